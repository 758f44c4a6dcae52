//! `agent` as a process: never started without proof and grant, started at most once, and gone at its end.

use std::net::{SocketAddr, TcpListener, UdpSocket};
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};

use rstest::rstest;
use sandboxrun::api::Reason;
use sandboxrun::api::wire::{AgentExit, Canary, GrantLine, Protocol};

use crate::server::Server;
use crate::{pod, until};

/// `agent` with a free port for its relay and short waits.
pub(crate) fn agent(server: &Server, script: &str) -> Command {
    let mut command = pod();
    command.args(["agent", "--relay-port", "0", "--gateway", &server.address()]);
    command.args([
        "--grace-millis",
        "300",
        "--proof-millis",
        "500",
        "--gateway-millis",
        "3000",
    ]);
    command.args(["--", "/bin/sh", "-c", script]);
    command
}

fn server() -> Server {
    Server::new(Vec::new())
}

fn run(server: &Server, script: &str) -> Output {
    agent(server, script).output().unwrap()
}

fn exit_of(server: &Server) -> AgentExit {
    server.with(|state| state.ended.clone()).unwrap().exit
}

/// A script that says when it runs, and a file that shows it.
struct Marker(tempfile::TempDir);

impl Marker {
    fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    fn file(&self) -> std::path::PathBuf {
        self.0.path().join("started")
    }

    fn touch(&self) -> String {
        format!("echo $$ >> '{}'", self.file().display())
    }

    fn starts(&self) -> usize {
        std::fs::read_to_string(self.file()).map_or(0, |text| text.lines().count())
    }
}

/// Whether a process is alive (a zombie is not).
fn is_alive(pid: &str) -> bool {
    std::fs::read_to_string(Path::new("/proc").join(pid).join("stat")).is_ok_and(|stat| {
        !stat
            .rsplit(')')
            .next()
            .unwrap()
            .trim_start()
            .starts_with('Z')
    })
}

#[test]
fn the_agent_runs_after_proof_and_grant_and_its_end_is_reported() {
    let server = server();
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
    server.with(|state| {
        assert_eq!(state.ended.as_ref().unwrap().nonce, state.nonces[0]);
        assert_eq!(state.nonces[0].len(), 32);
        assert_eq!(state.proofs[0].rounds, 2);
    });
}

#[rstest]
#[case::signal("kill -9 $$", 137, AgentExit::Signalled { signal: 9 })]
#[case::term("kill -15 $$", 143, AgentExit::Signalled { signal: 15 })]
fn an_end_by_a_signal_is_said_so(#[case] script: &str, #[case] code: i32, #[case] want: AgentExit) {
    let server = server();
    assert_eq!(run(&server, script).status.code(), Some(code));
    assert_eq!(exit_of(&server), want);
}

#[test]
fn a_command_that_is_not_there_is_127_and_said_so() {
    let server = server();
    let mut command = pod();
    command.args([
        "agent",
        "--relay-port",
        "0",
        "--gateway",
        &server.address(),
        "--",
    ]);
    assert_eq!(
        command.arg("/no/such/command").status().unwrap().code(),
        Some(127)
    );
    assert!(
        matches!(exit_of(&server), AgentExit::NotStarted { message } if message.contains("No such file"))
    );
}

#[test]
fn the_command_starts_in_its_directory_with_the_environment_as_given_and_no_input() {
    let server = server();
    let dir = tempfile::tempdir().unwrap();
    let mut command = pod();
    command.env_clear().env("GIVEN", "x").stdin(Stdio::piped());
    command.args(["agent", "--relay-port", "0", "--gateway", &server.address()]);
    command.arg("--workdir").arg(dir.path());
    command.args([
        "--",
        "/bin/sh",
        "-c",
        "pwd; /usr/bin/env; /bin/cat; echo end",
    ]);
    let output = command.output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let lines: Vec<_> = text.lines().collect();
    assert_eq!(lines[0], dir.path().to_str().unwrap());
    assert!(
        lines.contains(&"GIVEN=x") && lines.last() == Some(&"end"),
        "{text}"
    );
    // The shell itself adds PWD and the like; nothing of ours is there.
    assert!(!text.contains("gateway"), "{text}");
}

fn canary(address: SocketAddr, protocol: Protocol) -> Canary {
    Canary {
        name: "this machine".to_owned(),
        address,
        protocol,
        tolerated: false,
    }
}

#[test]
fn an_open_canary_is_reported_and_the_agent_never_starts() {
    let open = TcpListener::bind("127.0.0.1:0").unwrap();
    let marker = Marker::new();
    let server = server();
    let canary = canary(open.local_addr().unwrap(), Protocol::Tcp);
    server.with(|state| state.canaries = vec![canary.clone()]);
    let output = run(&server, &marker.touch());
    assert_eq!(output.status.code(), Some(125));
    assert!(
        String::from_utf8_lossy(&output.stderr)
            .contains("sandbox.policy_not_enforced (CanaryOpen)")
    );
    assert_eq!(marker.starts(), 0);
    server.with(|state| {
        let report = state.proofs.last().unwrap();
        assert_eq!(report.open, [canary]);
        assert!(report.rounds > 1, "it is tried again while there is time");
        assert!(state.nonces.is_empty(), "no grant was asked for");
    });
}

#[test]
fn g02_a_canary_that_closes_meanwhile_is_tried_until_it_is_closed_twice() {
    let open = TcpListener::bind("127.0.0.1:0").unwrap();
    let server = server();
    let canary = canary(open.local_addr().unwrap(), Protocol::Tcp);
    server.with(|state| state.canaries = vec![canary]);
    let mut command = agent(&server, "exit 0");
    command.args(["x"]); // an argument of the script, so that options before stay as they are
    let mut child = command.spawn().unwrap();
    // The first round has met it; then the policy takes hold.
    open.accept().unwrap();
    drop(open);
    assert_eq!(child.wait().unwrap().code(), Some(0));
    server.with(|state| {
        let report = state.proofs.last().unwrap();
        assert!(report.open.is_empty() && report.rounds >= 3, "{report:?}");
    });
}

#[test]
fn a_udp_canary_gets_the_nonce() {
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    socket
        .set_read_timeout(Some(std::time::Duration::from_secs(20)))
        .unwrap();
    let server = server();
    let canary = canary(socket.local_addr().unwrap(), Protocol::Udp);
    server.with(|state| state.canaries = vec![canary]);
    let mut child = agent(&server, "exit 0").spawn().unwrap();
    let mut buffer = [0; 64];
    let length = socket.recv(&mut buffer).unwrap();
    assert_eq!(&buffer[..length], b"nonce-0");
    child.wait().unwrap();
}

#[test]
fn a_nonce_that_only_the_gateway_saw_is_tried_again_with_a_new_one_and_then_refused() {
    let marker = Marker::new();
    let server = server();
    server.with(|state| state.udp_open = true);
    let output = run(&server, &marker.touch());
    assert_eq!((output.status.code(), marker.starts()), (Some(125), 0));
    server.with(|state| {
        let nonces: std::collections::HashSet<_> = state.proofs.iter().map(|p| &p.nonce).collect();
        assert!(nonces.len() > 1, "{nonces:?}");
    });
}

#[test]
fn a_proof_that_the_gateway_does_not_take_is_the_end() {
    let marker = Marker::new();
    let server = server();
    server.refuse("/v1/proof", usize::MAX, 403, Reason::CanaryDown);
    let output = run(&server, &marker.touch());
    assert_eq!((output.status.code(), marker.starts()), (Some(125), 0));
    assert!(String::from_utf8_lossy(&output.stderr).contains("CanaryDown"));
}

#[test]
fn a_refused_grant_is_never_a_start() {
    let marker = Marker::new();
    let server = server();
    server.refuse("/v1/grant", usize::MAX, 409, Reason::GrantLost);
    let output = run(&server, &marker.touch());
    assert_eq!((output.status.code(), marker.starts()), (Some(125), 0));
    assert!(String::from_utf8_lossy(&output.stderr).contains("GrantLost"));
    let calls = server.with(|state| state.requests.clone());
    assert_eq!(
        calls
            .iter()
            .filter(|call| call.ends_with("/v1/grant"))
            .count(),
        1
    );
}

#[test]
fn a_lost_answer_is_asked_for_again_with_the_same_nonce_and_starts_once() {
    let marker = Marker::new();
    let server = server();
    server.with(|state| state.lost_grants = 2);
    assert!(run(&server, &marker.touch()).status.success());
    assert_eq!(marker.starts(), 1);
    server.with(|state| {
        assert_eq!(state.nonces.len(), 3);
        assert!(state.nonces.windows(2).all(|pair| pair[0] == pair[1]));
    });
}

#[rstest]
#[case::stop_first("{\"line\":\"stop\",\"reason\":\"CancelRequested\"}\n")]
#[case::alive_first("{\"line\":\"alive\"}\n")]
#[case::garbage("yes\n")]
#[case::endless(&"x".repeat(100_000))]
fn anything_but_a_yes_is_never_a_start(#[case] answer: &str) {
    let marker = Marker::new();
    let server = server();
    server.with(|state| state.grant_answer = Some(answer.to_owned()));
    let output = run(&server, &marker.touch());
    assert_eq!((output.status.code(), marker.starts()), (Some(125), 0));
}

#[test]
fn the_timeout_counts_from_the_start_and_ends_with_sigkill() {
    let server = server();
    server.with(|state| state.timeout_secs = 1);
    let output = run(
        &server,
        "trap '' TERM; echo up; while :; do sleep 0.05; done",
    );
    assert_eq!(output.stdout, b"up\n");
    assert_eq!(
        exit_of(&server),
        AgentExit::Stopped {
            reason: Reason::TimeoutReached
        }
    );
    assert_eq!(output.status.code(), Some(137), "SIGTERM was ignored");
}

#[test]
fn sigterm_first_so_that_an_agent_can_end_well() {
    let server = server();
    server.with(|state| state.timeout_secs = 1);
    let output = run(
        &server,
        "trap 'echo bye; exit 3' TERM; while :; do sleep 0.05; done",
    );
    assert_eq!(
        (output.stdout.as_slice(), output.status.code()),
        (&b"bye\n"[..], Some(3))
    );
    assert_eq!(
        exit_of(&server),
        AgentExit::Stopped {
            reason: Reason::TimeoutReached
        }
    );
}

#[rstest]
#[case::never_a_word("while :; do sleep 0.05; done", true)]
#[case::first_then_silent("echo a; while :; do sleep 0.05; done", true)]
#[case::on_stderr("for i in 1 2 3 4 5 6; do echo $i >&2; sleep 0.4; done", false)]
fn silence_is_a_stall(#[case] script: &str, #[case] stalls: bool) {
    let server = server();
    server.with(|state| state.stall_secs = Some(1));
    let output = run(&server, script);
    if stalls {
        assert_eq!(
            exit_of(&server),
            AgentExit::Stopped {
                reason: Reason::NoOutput
            }
        );
    } else {
        assert_eq!(exit_of(&server), AgentExit::Exited { code: 0 });
        assert_eq!(output.stderr, b"1\n2\n3\n4\n5\n6\n");
    }
}

#[rstest]
fn a_flood_of_output_arrives_byte_for_byte(#[values(None, Some(30))] stall: Option<u64>) {
    let server = server();
    server.with(|state| state.stall_secs = stall);
    let output = run(
        &server,
        "head -c 20000000 /dev/zero | tr '\\0' '\\377'; printf end >&2",
    );
    assert_eq!(output.stdout.len(), 20_000_000);
    assert!(output.stdout.iter().all(|b| *b == 0xff));
    assert_eq!(output.stderr, b"end");
    assert_eq!(exit_of(&server), AgentExit::Exited { code: 0 });
}

#[rstest]
fn whatever_the_agent_leaves_behind_is_killed(#[values(None, Some(30))] stall: Option<u64>) {
    let marker = Marker::new();
    let server = server();
    server.with(|state| state.stall_secs = stall);
    // A daemon in a session of its own, whose parent is gone, and that ignores SIGTERM and holds the output open.
    let daemon = format!(
        "trap '' TERM HUP; {}; while :; do sleep 0.05; done",
        marker.touch()
    );
    let script = format!(
        "setsid sh -c 'setsid sh -c \"$0\" \"$0\" &' \"$0\" & while [ ! -s '{}' ]; do sleep 0.02; done; exit 5",
        marker.file().display()
    );
    let mut command = agent(&server, &script);
    let output = command.arg(daemon).output().unwrap();
    assert_eq!(
        output.status.code(),
        Some(5),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    assert_eq!(exit_of(&server), AgentExit::Exited { code: 5 });
    let pid = std::fs::read_to_string(marker.file()).unwrap();
    assert!(!is_alive(pid.trim()));
}

#[test]
fn a_fork_bomb_does_not_outlive_the_agent() {
    let server = server();
    server.with(|state| state.timeout_secs = 1);
    // Bounded, for the sake of this machine: four branches, each forking a successor for ever.
    let bomb = "next() { sleep 0.001; next & }; for i in 1 2 3 4; do next & done; wait; sleep 60";
    let output = run(&server, bomb);
    assert_eq!(
        exit_of(&server),
        AgentExit::Stopped {
            reason: Reason::TimeoutReached
        }
    );
    assert!(output.status.code().is_some());
}

/// Starts an agent that waits, and gives it back once it runs.
fn waiting(server: &Server, marker: &Marker, extra: &str) -> Child {
    let script = format!("{extra} {}; while :; do sleep 0.05; done", marker.touch());
    let child = agent(server, &script).spawn().unwrap();
    until("the agent runs", || marker.starts() == 1);
    child
}

#[rstest]
#[case::cancel(Reason::CancelRequested)]
#[case::policy(Reason::PolicyLost)]
fn a_stop_line_stops_the_agent_with_its_reason(#[case] reason: Reason) {
    let (server, marker) = (server(), Marker::new());
    let mut child = waiting(&server, &marker, "");
    server.send(&GrantLine::Alive);
    server.send(&GrantLine::Stop { reason });
    assert_eq!(child.wait().unwrap().code(), Some(143));
    assert_eq!(exit_of(&server), AgentExit::Stopped { reason });
}

#[test]
fn a_stopped_process_is_stopped_too() {
    let (server, marker) = (server(), Marker::new());
    let mut child = waiting(&server, &marker, "sh -c 'kill -STOP $$' &");
    server.send(&GrantLine::Stop {
        reason: Reason::CancelRequested,
    });
    assert_eq!(child.wait().unwrap().code(), Some(143));
}

#[test]
fn a_connection_that_breaks_is_made_again_with_the_same_nonce_and_the_agent_lives_on() {
    let (server, marker) = (server(), Marker::new());
    let mut child = waiting(&server, &marker, "");
    for times in 2..4 {
        server.with(|state| state.streams.clear());
        until("the grant is asked for again", || {
            server.with(|s| !s.streams.is_empty() && s.nonces.len() >= times)
        });
    }
    server.with(|state| assert!(state.nonces.windows(2).all(|pair| pair[0] == pair[1])));
    assert_eq!(marker.starts(), 1);
    server.send(&GrantLine::Stop {
        reason: Reason::CancelRequested,
    });
    child.wait().unwrap();
    assert_eq!(marker.starts(), 1);
}

#[rstest]
#[case::silent(false)]
#[case::refused(true)]
fn a_gateway_that_is_lost_stops_the_agent(#[case] refuses: bool) {
    let (server, marker) = (server(), Marker::new());
    let mut child = waiting(&server, &marker, "");
    if refuses {
        server.refuse("/v1/grant", usize::MAX, 503, Reason::GatewayBusy);
        server.with(|state| state.streams.clear());
    }
    // Otherwise the stream stays open, and no line comes any more; the same yes keeps it alive, so nothing may answer.
    if !refuses {
        server.with(|state| state.deaf = true);
    }
    assert_eq!(child.wait().unwrap().code(), Some(143));
    assert_eq!(
        exit_of(&server),
        AgentExit::Stopped {
            reason: Reason::GatewayLost
        }
    );
}

#[test]
fn sigterm_to_the_supervisor_reaches_the_agent_and_the_grace_is_kept() {
    let (server, marker) = (server(), Marker::new());
    let mut child = waiting(&server, &marker, "trap '' TERM;");
    let pid = rustix::process::Pid::from_child(&child);
    rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(137));
    let reason = Reason::SandboxEnding;
    assert_eq!(exit_of(&server), AgentExit::Stopped { reason });
}

#[test]
fn p04_an_agent_that_ends_well_when_it_is_told_to_has_not_ended_by_itself() {
    let (server, marker) = (server(), Marker::new());
    let mut child = waiting(&server, &marker, "trap 'exit 0' TERM;");
    let pid = rustix::process::Pid::from_child(&child);
    rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
    child.wait().unwrap();
    let reason = Reason::SandboxEnding;
    assert_eq!(exit_of(&server), AgentExit::Stopped { reason });
}

#[test]
fn an_end_that_cannot_be_reported_keeps_the_exit_status() {
    let server = server();
    server.refuse("/v1/ended", usize::MAX, 404, Reason::RunAbandoned);
    assert_eq!(run(&server, "exit 4").status.code(), Some(4));
}

/// As pid 1 of namespaces of its own, as a local run has it; `None` where this machine does not allow them.
fn as_init(server: &Server, script: &str) -> Option<Output> {
    let sealed = |program: &[&str]| {
        let mut command = Command::new("bwrap");
        command.args([
            "--unshare-user",
            "--uid",
            "1000",
            "--gid",
            "1000",
            "--unshare-pid",
        ]);
        command.args([
            "--unshare-net",
            "--unshare-ipc",
            "--as-pid-1",
            "--die-with-parent",
        ]);
        command.args(["--cap-drop", "ALL", "--ro-bind", "/", "/", "--dev", "/dev"]);
        command
            .args(["--proc", "/proc", "--"])
            .args(program)
            .stdin(Stdio::null());
        command.output()
    };
    if !sealed(&["/bin/true"]).is_ok_and(|output| output.status.success()) {
        eprintln!("skipped: bubblewrap cannot make namespaces here");
        return None;
    }
    let gateway = server.address();
    let program = env!("CARGO_BIN_EXE_sandboxrun-pod");
    let supervisor = [
        program,
        "agent",
        "--gateway",
        &gateway,
        "--grace-millis",
        "300",
    ];
    Some(sealed(&[&supervisor[..], &["--", "/bin/sh", "-c", script]].concat()).unwrap())
}

/// The supervisor's memory holds the nonce, and the agent has its uid.
#[test]
fn as_pid_1_its_memory_and_descriptors_are_closed_to_the_agent() {
    let server = server();
    let script = "cat /proc/self/environ >/dev/null && echo own; \
        for f in environ maps mem auxv; do head -c 1 /proc/1/$f >/dev/null 2>&1 && echo open $f; done; \
        readlink /proc/1/fd/* /proc/1/exe /proc/1/root; exit 0";
    let Some(output) = as_init(&server, script) else {
        return;
    };
    assert_eq!(String::from_utf8_lossy(&output.stdout), "own\n");
}

#[test]
fn as_pid_1_orphans_are_reaped_and_the_rest_is_killed_at_once() {
    let server = server();
    // An orphan that ended is a zombie until pid 1 takes it; a daemon ignores SIGTERM and would hold the output open.
    let script = "setsid sh -c 'trap \"\" TERM; while :; do sleep 0.05; done' & \
        sh -c 'sh -c \"exit 0\" &'; \
        while cat /proc/[0-9]*/stat 2>/dev/null | grep -q ' Z '; do sleep 0.02; done; exit 6";
    let Some(output) = as_init(&server, script) else {
        return;
    };
    assert_eq!(
        output.status.code(),
        Some(6),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    assert_eq!(exit_of(&server), AgentExit::Exited { code: 6 });
}

#[test]
fn as_pid_1_a_timeout_ends_with_sigkill_for_every_process() {
    let server = server();
    server.with(|state| state.timeout_secs = 1);
    let script = "trap '' TERM; setsid sh -c 'trap \"\" TERM; while :; do sleep 0.05; done' & \
        while :; do sleep 0.05; done";
    let Some(output) = as_init(&server, script) else {
        return;
    };
    assert_eq!(
        output.status.code(),
        Some(137),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    assert_eq!(
        exit_of(&server),
        AgentExit::Stopped {
            reason: Reason::TimeoutReached
        }
    );
}
