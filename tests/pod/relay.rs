//! The relay as the agent sees it: a proxy on loopback that streams, and offers nothing else of the gateway.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpStream;
use std::process::{Child, Stdio};
use std::time::Duration;

use sandboxrun::api::Reason;
use sandboxrun::api::wire::{GrantLine, Problem};

use crate::agent::agent;
use crate::server::Server;

/// An agent that does nothing, and the port of its relay.
struct Relay {
    server: Server,
    child: Child,
    port: u16,
}

impl Relay {
    fn new() -> Self {
        let server = Server::new(Vec::new());
        // The agent itself finds the port: its supervisor is the only listener of its network's loopback that is new.
        let mut command = agent(&server, "echo up; exec sleep 600");
        command.stdout(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.as_mut().unwrap())
            .read_line(&mut line)
            .unwrap();
        assert_eq!(line, "up\n");
        let port = listening_port(child.id());
        Self {
            server,
            child,
            port,
        }
    }

    fn connect(&self) -> TcpStream {
        let stream = TcpStream::connect(("127.0.0.1", self.port)).unwrap();
        stream
            .set_read_timeout(Some(Duration::from_secs(20)))
            .unwrap();
        stream
    }

    /// Sends a request as it stands and returns head and body of the answer.
    fn ask(&self, request: &str) -> (String, String) {
        let mut stream = self.connect();
        stream.write_all(request.as_bytes()).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        let (head, body) = answer.split_once("\r\n\r\n").unwrap();
        (head.to_owned(), body.to_owned())
    }

    fn calls(&self) -> Vec<String> {
        self.server.with(|state| state.requests.split_off(3))
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        self.server.send(&GrantLine::Stop {
            reason: Reason::CancelRequested,
        });
        let _ended = self.child.wait();
    }
}

/// The port that a process listens on, from its sockets and the kernel's table.
fn listening_port(pid: u32) -> u16 {
    let sockets: Vec<String> = std::fs::read_dir(format!("/proc/{pid}/fd"))
        .unwrap()
        .filter_map(|fd| std::fs::read_link(fd.unwrap().path()).ok())
        .filter_map(|to| {
            to.to_str()?
                .strip_prefix("socket:[")?
                .strip_suffix(']')
                .map(str::to_owned)
        })
        .collect();
    let table = std::fs::read_to_string("/proc/net/tcp").unwrap();
    table
        .lines()
        .map(|line| line.split_whitespace().collect::<Vec<_>>())
        .filter(|words| words.get(3) == Some(&"0A"))
        .find(|words| sockets.iter().any(|inode| words[9] == inode))
        .map(|words| u16::from_str_radix(words[1].rsplit(':').next().unwrap(), 16).unwrap())
        .unwrap()
}

const LAST: &str = "Host: x\r\nConnection: close\r\n\r\n";

#[test]
fn lookups_and_plain_proxy_requests_are_passed_on_as_they_are() {
    let relay = Relay::new();
    let (head, body) = relay.ask(&format!(
        "GET /lookups/tickets/a%2Fb?q=1&q=2 HTTP/1.1\r\nX-Own: 7\r\nTE: trailers\r\n{LAST}"
    ));
    assert!(head.starts_with("HTTP/1.1 200"), "{head}");
    assert!(
        body.starts_with("GET /lookups/tickets/a%2Fb?q=1&q=2\n"),
        "{body}"
    );
    assert!(
        body.contains("x-own") && !body.contains("\"te\"") && !body.contains("connection"),
        "{body}"
    );
    let (_, body) = relay.ask(&format!(
        "GET http://packages.example.com/x HTTP/1.1\r\n{LAST}"
    ));
    assert!(
        body.starts_with("GET http://packages.example.com/x\n"),
        "{body}"
    );
}

#[test]
fn everything_else_is_refused_here_and_the_gateway_hears_nothing_of_it() {
    let relay = Relay::new();
    relay.calls();
    relay
        .server
        .with(|state| state.requests = vec![String::new(); 3]);
    for target in [
        "POST /v1/grant",
        "GET /v1/plan",
        "POST /lookups/../v1/ended",
        "GET /lookups/%2e%2e/v1/plan",
        "GET /",
        "GET http://127.0.0.1:PORT/v1/plan",
        "CONNECT example.com",
        "GET https://example.com/",
    ] {
        let target = target.replace("PORT", &relay.port.to_string());
        let (head, body) = relay.ask(&format!("{target} HTTP/1.1\r\n{LAST}"));
        if head.starts_with("HTTP/1.1 400") {
            continue; // not even HTTP
        }
        assert!(head.starts_with("HTTP/1.1 403"), "{target}: {head}");
        assert!(head.contains("application/problem+json"), "{head}");
        let problem: Problem = serde_json::from_str(&body).unwrap();
        assert_eq!(problem.reason, Reason::NotThroughRelay);
    }
    assert_eq!(relay.calls(), Vec::<String>::new());
}

#[test]
fn a_tunnel_carries_bytes_both_ways_and_a_refusal_arrives_as_it_is() {
    let relay = Relay::new();
    let mut stream = relay.connect();
    stream
        .write_all(b"CONNECT echo.example.com:443 HTTP/1.1\r\nHost: echo.example.com:443\r\n\r\n")
        .unwrap();
    let mut reader = BufReader::new(stream.try_clone().unwrap());
    let mut head = String::new();
    while !head.ends_with("\r\n\r\n") {
        assert_ne!(reader.read_line(&mut head).unwrap(), 0);
    }
    assert!(head.starts_with("HTTP/1.1 200"), "{head}");
    for word in ["\x16\x03\x01 hello", "again\0"] {
        stream.write_all(word.as_bytes()).unwrap();
        let mut back = vec![0; word.len()];
        reader.read_exact(&mut back).unwrap();
        assert_eq!(back, word.as_bytes());
    }
    stream.shutdown(std::net::Shutdown::Write).unwrap();
    assert_eq!(
        reader.read_to_end(&mut Vec::new()).unwrap(),
        0,
        "the end travels, too"
    );

    let (head, body) = relay.ask(&format!("CONNECT evil.example.com:443 HTTP/1.1\r\n{LAST}"));
    assert!(head.starts_with("HTTP/1.1 403"), "{head}");
    assert_eq!(
        serde_json::from_str::<Problem>(&body).unwrap().reason,
        Reason::NoRuleAllows
    );
}

#[test]
fn bodies_stream_both_ways_before_they_end() {
    let relay = Relay::new();
    let mut stream = relay.connect();
    let head = "POST /lookups/echo/all HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n";
    stream.write_all(head.as_bytes()).unwrap();
    let mut reader = BufReader::new(stream.try_clone().unwrap());
    // Each part comes back while the request is still open: nothing is held.
    for word in ["data: one\n\n", "data: two\n\n"] {
        stream
            .write_all(format!("{:x}\r\n{word}\r\n", word.len()).as_bytes())
            .unwrap();
        let mut seen = String::new();
        while !seen.contains(word) {
            assert_ne!(reader.read_line(&mut seen).unwrap(), 0, "{seen}");
        }
    }
    stream.write_all(b"0\r\n\r\n").unwrap();
}

#[test]
fn a_large_body_passes_in_little_memory() {
    let relay = Relay::new();
    let mut stream = relay.connect();
    let size = 64 << 20;
    let head = format!(
        "POST /lookups/echo/all HTTP/1.1\r\nHost: x\r\nContent-Length: {size}\r\nConnection: close\r\n\r\n"
    );
    stream.write_all(head.as_bytes()).unwrap();
    let mut writer = stream.try_clone().unwrap();
    let sender = std::thread::spawn(move || {
        for _ in 0..64 {
            writer.write_all(&vec![7; 1 << 20]).unwrap();
        }
    });
    let received = std::io::copy(&mut stream, &mut std::io::sink()).unwrap();
    sender.join().unwrap();
    assert!(received >= size, "{received}");
    let status = std::fs::read_to_string(format!("/proc/{}/status", relay.child.id())).unwrap();
    let peak = status
        .lines()
        .find_map(|line| line.strip_prefix("VmHWM:"))
        .unwrap();
    let peak_kib: u64 = peak.trim().trim_end_matches(" kB").parse().unwrap();
    // Twice the target of 15 MiB, since this is a build without optimisation.
    assert!(peak_kib < 30 << 10, "{peak_kib} KiB");
}

#[test]
fn a_gateway_that_is_away_is_a_refusal_that_may_be_tried_again() {
    let relay = Relay::new();
    std::fs::remove_file(relay.server.socket()).unwrap();
    let (head, body) = relay.ask(&format!("GET /lookups/tickets/1 HTTP/1.1\r\n{LAST}"));
    assert!(head.starts_with("HTTP/1.1 503"), "{head}");
    assert_eq!(
        serde_json::from_str::<Problem>(&body).unwrap().reason,
        Reason::GatewayBusy
    );
}

#[test]
fn many_connections_are_served() {
    let relay = Relay::new();
    let idle: Vec<_> = (0..200).map(|_| relay.connect()).collect();
    let (head, _) = relay.ask(&format!("GET /lookups/tickets/1 HTTP/1.1\r\n{LAST}"));
    assert!(head.starts_with("HTTP/1.1 200"), "{head}");
    drop(idle);
}
