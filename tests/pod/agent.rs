//! `agent` as a process.

use std::process::{Command, Output};

use sandboxrun::api::wire::AgentExit;

use crate::pod;
use crate::server::Server;

/// `agent` with a free port for its relay.
pub(crate) fn agent(server: &Server, script: &str) -> Command {
    let mut command = pod();
    command.args(["agent", "--relay-port", "0", "--gateway", &server.address()]);
    command.args([
        "--grace-millis",
        "300",
        "--proof-millis",
        "500",
        "--gateway-millis",
        "1500",
    ]);
    command.args(["--", "/bin/sh", "-c", script]);
    command
}

fn exit_of(server: &Server) -> AgentExit {
    server.with(|state| state.ended.clone()).unwrap().exit
}

fn run(server: &Server, script: &str) -> Output {
    agent(server, script).output().unwrap()
}

#[test]
fn the_agent_runs_after_proof_and_grant_and_its_end_is_reported() {
    let server = Server::new(Vec::new());
    let output = run(&server, "echo out; echo err >&2; exit 7");
    assert_eq!(output.status.code(), Some(7));
    assert_eq!(
        (output.stdout.as_slice(), output.stderr.as_slice()),
        (&b"out\n"[..], &b"err\n"[..])
    );
    assert_eq!(exit_of(&server), AgentExit::Exited { code: 7 });
    let calls = server.with(|state| state.requests.clone());
    assert_eq!(
        calls,
        [
            "GET /v1/proof",
            "POST /v1/proof",
            "POST /v1/grant",
            "POST /v1/ended"
        ]
    );
}
