//! Nothing else in reach: the agent has its inputs, its relay, and nothing of this machine.

use std::fs;
use std::net::{Ipv4Addr, TcpListener, UdpSocket};
use std::os::unix::fs::MetadataExt as _;
use std::process::Command;

use demo_forge::Trap;
use serde_json::json;

use super::support::{World, is_root, open_to_all};

/// An address of this machine that is not loopback, if it has one: connecting a UDP socket sends nothing.
fn own_address() -> Option<std::net::IpAddr> {
    let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0)).unwrap();
    socket.connect((Ipv4Addr::new(192, 0, 2, 1), 9)).ok()?;
    Some(socket.local_addr().ok()?.ip())
}

#[tokio::test(flavor = "multi_thread")]
async fn other_addresses_names_and_this_machines_files_are_out_of_reach() {
    let world = World::new().await;
    let trap = Trap::start().unwrap();
    let listener = TcpListener::bind((Ipv4Addr::UNSPECIFIED, 0)).unwrap();
    listener.set_nonblocking(true).unwrap();
    let port = listener.local_addr().unwrap().port();
    let other = own_address().unwrap_or_else(|| Ipv4Addr::LOCALHOST.into());
    let script = format!(
        r#"
        try() {{ name=$1; shift; if "$@" >/dev/null 2>&1; then echo "$name: OPEN"; else echo "$name: closed"; fi; }}
        {{
        try trap curl --noproxy '*' --max-time 5 http://{trap}/
        try trap_by_proxy curl --noproxy '' --max-time 5 -f http://{trap}/
        try trap_by_tunnel curl --noproxy '' --max-time 5 -p http://{trap}/
        try forge curl --noproxy '*' --max-time 5 -k {origin}/healthz
        try other curl --noproxy '*' --max-time 5 http://{other}:{port}/
        try other_by_proxy curl --noproxy '' --max-time 5 -f http://{other}:{port}/
        try metadata curl --noproxy '*' --max-time 5 http://169.254.169.254/
        try metadata_by_proxy curl --max-time 5 -f http://169.254.169.254/
        try dns getent hosts example.com
        try root_home ls /root
        try shadow cat /etc/shadow
        try run ls /run
        try var ls /var
        try state ls {state}
        try machine_id cat /etc/machine-id
        try sysctl sh -c 'echo 1 > /proc/sys/kernel/panic'
        try sysrq sh -c 'echo h > /proc/sysrq-trigger'
        try namespaces unshare --user --map-root-user true
        try mount mount -t tmpfs none /mnt
        try root_write touch /new
        try usr_write touch /usr/new
        try own_program sh -c 'echo > /sandboxrun/sandboxrun-pod'
        try own_program_dir touch /sandboxrun/run/new
        try supervisor_memory dd if=/proc/1/mem of=/dev/null count=1
        try supervisor_environment cat /proc/1/environ
        try kill_supervisor sh -c 'kill -KILL 1 && sleep 0.2 && ! kill -0 1'
        }} > /sandbox/output/tried
        ls /home > /sandbox/output/homes
        id -u > /sandbox/output/uid
        grep -E '^(CapEff|CapBnd|NoNewPrivs|Seccomp):' /proc/self/status > /sandbox/output/caps
        ls -d /proc/[0-9]* | wc -l > /sandbox/output/processes
        "#,
        trap = trap.addr(),
        origin = world.forge.origin(),
        state = world.state().display(),
    );
    let done = world.run(&world.script(&script)).ended_with(0);
    let tried = done.output("tried");
    assert_eq!(tried.lines().count(), 26, "{tried}");
    assert!(!tried.contains("OPEN"), "{tried}");
    assert_eq!(trap.connections(), 0);
    assert!(listener.accept().is_err());
    assert_eq!(done.output("homes"), "agent\n");
    assert_eq!(done.output("uid"), "1000\n");
    let caps = done.output("caps");
    assert!(caps.contains("CapEff:\t0000000000000000"), "{caps}");
    assert!(caps.contains("NoNewPrivs:\t1"), "{caps}");
    // Its own, and the supervisor: none of this machine's.
    assert!(done.output("processes").trim().parse::<u32>().unwrap() < 8);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_gateways_other_calls_are_refused() {
    let world = World::new().await;
    let script = r#"
        nonce=00112233445566778899aabbccddeeff
        ask() { echo "$1 $2 $(curl -sS -o /tmp/body -w '%{http_code}' --max-time 10 "$@" 2>&1) $(head -c 300 /tmp/body)"; rm -f /tmp/body; }
        for base in "http://127.0.0.1:7070" "--unix-socket /sandboxrun/run/gateway.sock http://gateway"; do
          for call in v1/plan v1/packs/app/pack v1/packs/app/idx lookups/../v1/plan git/app/../../v1/plan v1; do
            echo "$call $(curl -sS -o /dev/null -w '%{http_code}' --path-as-is --noproxy '*' $base/$call)"
          done
          for call in v1/provisioned v1/outcome v1/grant v1/ended; do
            echo "$call $(curl -sS -o /dev/null -w '%{http_code}' --noproxy '*' --max-time 10 \
              -H 'content-type: application/json' -d "{\"nonce\":\"$nonce\",\"exit\":{\"end\":\"Exited\",\"code\":0}}" $base/$call)"
          done
        done > /sandbox/output/asked
        find / \( -path /proc -o -path /usr -o -path /dev \) -prune -o -exec test -S {} \; -print 2>/dev/null > /sandbox/output/sockets
        exit 3
    "#;
    // Another run at the same time has sockets of its own.
    let mut other = world.script("until [ -e /sandbox/output/go ]; do sleep 0.05; done");
    other.name = "other".to_owned();
    let other = world.start(&mut world.command(&other));
    other.step("agent.started");
    let go = other.dir().join("sandbox/output/go");
    let done = world.run(&world.script(script));
    fs::write(go, "").unwrap();
    let other = other.wait();
    // Its own exit, not the one that the agent claimed.
    assert_eq!(done.code, 3, "{}", done.stderr);
    assert_eq!(other.code, 0, "{}", other.stderr);
    let uid = done.status["record"]["id"].as_str().unwrap();
    let output = world.state().join("runs").join(uid).join("sandbox/output");
    let asked = fs::read_to_string(output.join("asked")).unwrap();
    assert_eq!(asked.lines().count(), 20, "{asked}");
    for line in asked.lines() {
        let (_, status) = line.split_once(' ').unwrap();
        assert!(["403", "404", "409", "400"].contains(&status), "{asked}");
    }
    let sockets = fs::read_to_string(output.join("sockets")).unwrap();
    assert_eq!(sockets, "/sandboxrun/run/gateway.sock\n");
}

#[tokio::test(flavor = "multi_thread")]
async fn v07_nothing_of_the_agents_runs_when_the_owner_uses_git_in_what_is_kept() {
    let world = World::new().await;
    let marks = world.path("marks");
    fs::create_dir(&marks).unwrap();
    // Whoever runs them may leave a mark.
    fs::set_permissions(&marks, std::os::unix::fs::PermissionsExt::from_mode(0o1777)).unwrap();
    let script = r#"
        evil() { # a repository that runs something on every occasion
          git -C $1 config core.fsmonitor "touch $MARKS/fsmonitor-$2; false"
          git -C $1 config core.pager "touch $MARKS/pager-$2"
          git -C $1 config core.sshCommand "touch $MARKS/ssh-$2"
          git -C $1 config filter.evil.clean "touch $MARKS/clean-$2; cat"
          git -C $1 config filter.evil.smudge "touch $MARKS/smudge-$2; cat"
          git -C $1 config diff.evil.textconv "touch $MARKS/textconv-$2; cat"
          git -C $1 config diff.external "touch $MARKS/external-$2"
          git -C $1 config alias.status "!touch $MARKS/alias-$2"
          git -C $1 config credential.helper "!touch $MARKS/credential-$2"
          d=$(git -C $1 rev-parse --absolute-git-dir); mkdir -p $d/hooks $d/info
          echo '* filter=evil diff=evil' > $d/info/attributes
          for h in post-checkout pre-commit post-index-change reference-transaction post-commit; do
            printf '#!/bin/sh\ntouch %s\n' "$MARKS/$h-$2" > $d/hooks/$h; chmod +x $d/hooks/$h
          done
        }
        cd /workspace/app; evil . app; echo changed >> README.md
        git init -q /workspace; evil /workspace top
        git init -q /workspace/app/nested; evil /workspace/app/nested nested
        git init -q --bare /workspace/app/bare; git -C /workspace/app/bare config core.bare false
        git -C /workspace/app/bare config core.worktree ..; evil /workspace/app/bare bare
        rm -rf /workspace/link/.git; mv /workspace/link/.git /tmp/moved 2>/dev/null
        git init -q /workspace/app/elsewhere; evil /workspace/app/elsewhere elsewhere
        rm -rf /workspace/link/.git; echo "gitdir: ../app/elsewhere/.git" > /workspace/link/.git
        git init -q /sandbox/output/repo; evil /sandbox/output/repo output
        cp -r /workspace/app/.git /workspace/app/.GIT
        rm -rf "$MARKS"/* 2>/dev/null; true
    "#;
    let manifest = world
        .script(script)
        .input(json!({"name": "link", "repository": "acme/app", "connector": "forge", "ref": {"branch": "main"}}))
        .set("/agent/env", json!([{"name": "MARKS", "value": marks}]));
    let done = world.run(&manifest).ended_with(0);
    let workspace = done.workspace();
    let output = done.kept().join("sandbox/output");
    for dir in [
        workspace.clone(),
        workspace.join("app"),
        workspace.join("link"),
        workspace.join("app/nested"),
        workspace.join("app/bare"),
        workspace.join("app/elsewhere"),
        workspace.join("app/src"),
        output.clone(),
        output.join("repo"),
    ] {
        for args in [
            &["status"][..],
            &["--paginate", "log", "-1"],
            &["diff"],
            &["add", "--all"],
            &["stash"],
            &["fetch"],
            &["checkout", "--force", "HEAD"],
        ] {
            let ran = Command::new("git")
                .args(["-c", "safe.directory=*", "-C"])
                .arg(&dir)
                .args(args)
                .env("GIT_TERMINAL_PROMPT", "0")
                .env("GIT_CEILING_DIRECTORIES", world.dir.path())
                .output()
                .unwrap();
            // Whether git finds a repository there at all does not matter: what matters is whose it is.
            drop(ran);
        }
    }
    let marks: Vec<_> = fs::read_dir(&marks).unwrap().collect();
    assert!(marks.is_empty(), "{marks:?}");
    // It is ours, at the pinned commit, and shows what the agent changed.
    let status = Command::new("git")
        .args(["-c", "safe.directory=*", "-C"])
        .arg(workspace.join("app"))
        .args(["rev-parse", "HEAD"])
        .output()
        .unwrap();
    assert_eq!(String::from_utf8_lossy(&status.stdout).trim(), world.head);
    assert!(done.kept().join("agent-git").is_dir());
}

#[tokio::test(flavor = "multi_thread")]
async fn v08_started_by_root_the_agent_is_nobody() {
    if !is_root() {
        return; // this is about root
    }
    let world = World::new().await;
    let private = world.path("private");
    fs::write(&private, "of root").unwrap();
    fs::set_permissions(
        &private,
        std::os::unix::fs::PermissionsExt::from_mode(0o600),
    )
    .unwrap();
    let shown = world.path("shown");
    fs::create_dir(&shown).unwrap();
    open_to_all(&shown);
    fs::write(shown.join("tool"), "a tool").unwrap();
    let script = format!(
        "cat {0} > /sandbox/output/private; echo $? > /sandbox/output/code\n\
         cat {1}/tool > /sandbox/output/tool; echo x > {1}/tool; echo $? >> /sandbox/output/code",
        private.display(),
        shown.display()
    );
    let mut command = world.command(&world.script(&script));
    command
        .arg("--ro-bind")
        .arg(&private)
        .arg("--ro-bind")
        .arg(&shown);
    let running = world.start(&mut command);
    let done = running.wait().ended_with(0);
    assert_eq!(done.output("private"), "");
    assert_eq!(done.output("tool"), "a tool");
    assert_eq!(done.output("code"), "1\n2\n");
    assert_ne!(fs::metadata(done.workspace()).unwrap().uid(), 0);
}
