//! What an agent cannot do: reach anything but the relay, find a credential, or write the facts about itself.

use serde_json::json;

use crate::support::{Space, canaries, run, setting};

/// Tries an address by TCP (connect) and UDP (a datagram that is answered); prints `open HOST PORT` for what answers.
const PROBE: &str = r#"
use strict; use Socket qw(:DEFAULT inet_pton pack_sockaddr_in6);
$SIG{ALRM} = sub { die "late\n" };
for my $target (@ARGV) {
  my ($kind, $host, $port) = split /,/, $target;
  my $family = $host =~ /:/ ? AF_INET6 : AF_INET;
  my $packed = inet_pton($family, $host) or next;
  my $address = $family == AF_INET6 ? pack_sockaddr_in6($port, $packed) : pack_sockaddr_in($port, $packed);
  eval {
    alarm 3;
    socket(my $s, $family, $kind eq "tcp" ? SOCK_STREAM : SOCK_DGRAM, 0) or die;
    connect($s, $address) or die;
    if ($kind eq "udp") { send($s, "\x12\x34\x01\x00\x00\x01\x00\x00\x00\x00\x00\x00\x00\x00\x01\x00\x01", 0); sysread($s, my $answer, 1) or die; }
    print "open $kind $host $port\n";
  };
  alarm 0;
}
print socket(my $raw, AF_INET, SOCK_RAW, 1) ? "raw socket\n" : "no raw socket\n";
print "done\n";
"#;

#[test]
#[ignore = "needs a cluster: make e2e"]
fn g06_an_agent_reaches_nothing_but_its_relay() {
    let space = Space::new("reach");
    let service = |namespace: &str, name: &str| {
        let args = [
            "-n",
            namespace,
            "get",
            "service",
            name,
            "-o",
            "jsonpath={.spec.clusterIP}",
        ];
        crate::support::kubectl(&args).good()
    };
    let operator = service(crate::support::OPERATOR, "sandboxrun");
    let pods = [
        "get",
        "pods",
        "-A",
        "-o",
        "jsonpath={range .items[*]}{.status.podIP},{.status.hostIP}{\"\\n\"}{end}",
    ];
    let pods = crate::support::kubectl(&pods).good();
    let (pod, node) = pods
        .lines()
        .find_map(|line| line.split_once(',').filter(|(ip, _)| !ip.is_empty()))
        .unwrap();
    let forge = setting("E2E_FORGE").replace("https://", "");
    let mut targets = vec![
        format!("tcp,{},443", service("default", "kubernetes")),
        format!("tcp,{forge},443"),
        format!("tcp,{pod},8443"),
        format!("tcp,{pod},8080"),
        "tcp,169.254.169.254,80".to_owned(),
        "tcp,1.1.1.1,443".to_owned(),
        "udp,8.8.8.8,53".to_owned(),
        "udp,10.96.0.10,53".to_owned(),
        "tcp,2606:4700::1111,443".to_owned(),
        "tcp,fe80::1,443".to_owned(),
    ];
    for port in [8444, 53, 443, 8080, 8081] {
        targets.push(format!("tcp,{operator},{port}"));
        targets.push(format!("udp,{operator},{port}"));
    }
    // The gateway itself answers by TCP: that is the one thing that may.
    let script = format!(
        "cat > /tmp/probe.pl <<'PROBE'\n{PROBE}\nPROBE\nperl /tmp/probe.pl tcp,127.0.0.1,7070 {}\n\
         curl -s -o /dev/null -w 'name %{{http_code}}\\n' --max-time 5 --noproxy '*' https://example.com/ || echo 'no name'\n\
         curl -s -w 'proxy %{{http_connect}}\\n' --max-time 5 https://{forge}/healthz || echo 'proxy refused'\n\
         ls /var/run/secrets/kubernetes.io 2>&1; ls /var/run/sandboxrun /baseline 2>&1; true\n",
        targets.join(" ")
    );
    space.apply(&run("out", &script, &json!({}))).good();
    space.succeeded(180, "out");
    let log = space.agent_log("out");
    let open: Vec<&str> = log
        .lines()
        .filter(|line| line.starts_with("open "))
        .collect();
    assert_eq!(open, ["open tcp 127.0.0.1 7070"], "{log}");
    for line in ["no raw socket", "done", "no name", "proxy refused"] {
        assert!(log.lines().any(|found| found == line), "{line}: {log}");
    }
    for place in [
        "/var/run/secrets/kubernetes.io",
        "/var/run/sandboxrun",
        "/baseline",
    ] {
        assert!(
            log.contains(&format!("cannot access '{place}'")),
            "{place}: {log}"
        );
    }
    // the node is exempt on most plugins; that it is, is a fact of the run
    let _ = node;
}

#[test]
#[ignore = "needs a cluster: make e2e"]
fn c05_no_credential_is_anywhere_in_what_a_run_leaves() {
    let space = Space::new("leak");
    let spec = json!({
        "inputs": [{"name": "app", "repository": "acme/app", "connector": "forge"}],
        "lookups": [{"name": "tickets", "connector": "tracker", "paths": ["/rest/api/2/issue/*"]}],
    });
    // everything that the agent can read, but the kernel's own files
    let script = "curl -s http://127.0.0.1:7070/lookups/tickets/rest/api/2/issue/DEMO-1 > /dev/null; \
        git -C /workspace/app fetch -q origin; \
        env; cat /proc/[0-9]*/environ /proc/[0-9]*/cmdline /proc/[0-9]*/mountinfo 2>/dev/null | tr '\\0' '\\n'; \
        find / -xdev -type f -size -200k -newer /bin/busybox -exec cat {} + 2>/dev/null | tr -cd '[:print:]\\n' | head -c 400000; \
        for d in /workspace /sandbox /home/agent /tmp /sandboxrun; do find $d -type f -size -200k -exec cat {} + 2>/dev/null; done | tr -cd '[:print:]\\n' | head -c 400000";
    space.apply(&run("leak", script, &spec)).good();
    space.succeeded(180, "leak");
    let everything = [
        ("pods", space.kubectl(&["get", "pods", "-o", "yaml"]).good()),
        (
            "the run",
            space
                .kubectl(&["get", "sandboxruns,connectors", "-o", "yaml"])
                .good(),
        ),
        (
            "events",
            space.kubectl(&["get", "events", "-o", "yaml"]).good(),
        ),
        ("the agent's log", space.agent_log("leak")),
        (
            "all logs",
            space
                .kubectl(&[
                    "logs",
                    "-l",
                    "sandboxrun.dev/run",
                    "--all-containers",
                    "--tail=-1",
                ])
                .good(),
        ),
        (
            "the operator's log",
            crate::support::kubectl(&[
                "-n",
                crate::support::OPERATOR,
                "logs",
                "deployment/sandboxrun",
            ])
            .good(),
        ),
    ];
    for canary in canaries() {
        for (place, text) in &everything {
            assert!(!text.contains(&canary), "a credential is in {place}");
        }
    }
}

#[test]
#[ignore = "needs a cluster: make e2e"]
fn d07_a_hostile_agent_does_not_write_the_facts_about_itself() {
    let space = Space::new("hostile");
    let spec = json!({"inputs": [{"name": "app", "repository": "acme/app", "connector": "forge"}], "agent": {"timeout": "1m"}});
    let script = r#"
        trap '' TERM INT HUP
        echo '{"drift": "Unchanged", "exitCode": 0}' > /dev/termination-log
        echo '{"code": "sandbox.agent_failed"}'
        kill -9 1 -1 2>/dev/null
        echo changed >> /workspace/app/README.md
        chmod -R a-rwx /workspace/app
        (while :; do head -c 1000000 /dev/zero | tr '\0' x; done) &
        while :; do sleep 1; done
    "#;
    space.apply(&run("hostile", script, &spec)).good();
    let ended = space.failed(240, "hostile", "sandbox.agent_timeout", "TimeoutReached");
    let drift = &ended["status"]["inputs"][0]["drift"]["state"];
    assert_eq!(drift, "Drifted", "{}", space.story("hostile"));
}
