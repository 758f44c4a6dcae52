//! `provision` in a pod: the proof of the policy beside the download, against a network that is still open.

use std::net::TcpListener;

use sandboxrun::api::Reason;
use sandboxrun::api::wire::{Canary, Protocol, ProvisionReport};

use crate::repository::Repository;
use crate::server::Server;
use crate::{Volumes, until};

/// A listener, and the canary that it is.
fn open_canary(server: &Server) -> TcpListener {
    let open = TcpListener::bind("127.0.0.1:0").unwrap();
    let canary = Canary {
        name: "a port of the gateway".to_owned(),
        address: open.local_addr().unwrap(),
        protocol: Protocol::Tcp,
        tolerated: false,
    };
    server.with(|state| state.canaries = vec![canary]);
    open
}

#[test]
fn g02_provision_waits_for_a_network_that_closes_and_ends_with_a_round_after_the_checkout() {
    let server = Server::of(Repository::usual().pack());
    let volumes = Volumes::new();
    let open = open_canary(&server);
    let mut command = volumes.command("provision", &server);
    command.arg("--install").arg(volumes.at("program"));
    let mut child = command.spawn().unwrap();
    // The inputs are in place, and the network is still open: nothing may start yet.
    until("the inputs are in place", || {
        server.with(|state| state.provisioned.is_some())
    });
    open.accept().unwrap();
    assert!(child.try_wait().unwrap().is_none());
    drop(open);
    assert!(child.wait().unwrap().success());
    server.with(|state| {
        let report = state.proofs.last().unwrap();
        assert!(report.open.is_empty() && report.rounds >= 3, "{report:?}");
        assert!(report.open_millis > 0, "how long it was open is said");
        // Reported when they were there, before the proof was done.
        let at = |call: &str| state.requests.iter().position(|r| r == call).unwrap();
        assert!(at("POST /v1/provisioned") < at("POST /v1/proof"));
    });
    assert_eq!(
        std::fs::metadata(volumes.at("program")).unwrap().len(),
        std::fs::metadata(env!("CARGO_BIN_EXE_sandboxrun-pod"))
            .unwrap()
            .len()
    );
}

#[test]
fn g02_provision_gives_up_on_a_network_that_stays_open_and_says_so() {
    let server = Server::of(Repository::usual().pack());
    let volumes = Volumes::new();
    let open = open_canary(&server);
    let mut command = volumes.command("provision", &server);
    command.arg("--install").arg(volumes.at("program"));
    let output = command.args(["--proof-millis", "600"]).output().unwrap();
    drop(open);
    assert_eq!(output.status.code(), Some(1));
    let message = std::fs::read_to_string(volumes.at("message")).unwrap();
    assert!(message.contains("CanaryOpen"), "{message}");
    server.with(|state| {
        let last = state.provisioned.as_ref().unwrap();
        assert!(matches!(last, ProvisionReport::Failed { failure } if failure.reason == Reason::CanaryOpen));
        assert!(!state.proofs.last().unwrap().tries_again);
    });
}
