//! No credential in reach: every credential is a word that a search finds, and nothing finds it.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;

use serde_json::json;

use super::support::{
    CANARIES, GIT_TOKEN, TICKET_TOKEN, World, files_below, is_below, processes_with,
};

/// The canaries, and each of them as Basic would carry it: in base64, wherever it begins.
fn forms() -> Vec<String> {
    let mut forms: Vec<String> = CANARIES.map(str::to_owned).into();
    for canary in CANARIES {
        for before in 0..3 {
            let mut bytes = vec![b'x'; before];
            bytes.extend_from_slice(canary.as_bytes());
            let text = base64(&bytes);
            // The first and the last characters depend on what is beside it.
            forms.push(text.chars().skip(4).take(text.len() - 8).collect());
        }
    }
    forms
}

fn base64(bytes: &[u8]) -> String {
    const DIGITS: &[u8] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut text = String::new();
    for chunk in bytes.chunks(3) {
        let word = (0..3).fold(0_usize, |word, at| {
            (word << 8) | usize::from(*chunk.get(at).unwrap_or(&0))
        });
        for digit in 0..4 {
            text.push(char::from(DIGITS[(word >> (18 - 6 * digit)) & 63]));
        }
    }
    text
}

fn assert_clean(what: &str, bytes: &[u8], forms: &[String]) {
    for form in forms {
        let found = bytes
            .windows(form.len())
            .any(|part| part == form.as_bytes());
        assert!(!found, "{what} holds {form}");
    }
}

/// What an agent that looks for a credential would do, while the credentials are in use.
const SEARCH: &str = r#"
cd /workspace/app
git fetch -q origin && git fetch -q --unshallow origin 2>/dev/null
curl -sS "$SANDBOXRUN_RELAY/lookups/tickets/rest/api/2/issue/DEMO-1" -D /sandbox/output/headers -o /sandbox/output/ticket
curl -sS "$SANDBOXRUN_RELAY/lookups/tickets/rest/api/2/issue/no" -D /sandbox/output/headers2 -o /sandbox/output/refused
env > /sandbox/output/env
cat /proc/[0-9]*/environ /proc/[0-9]*/cmdline > /sandbox/output/processes 2>/dev/null
cat /proc/[0-9]*/maps /proc/net/unix /proc/mounts /proc/keys > /sandbox/output/kernel 2>/dev/null
for f in /proc/[0-9]*/fd/*; do readlink $f; done > /sandbox/output/descriptors 2>/dev/null
git config --list --show-origin > /sandbox/output/git
word=cana; grep -raF -e "${word}ry-" / --exclude-dir=proc --exclude-dir=sys --exclude-dir=usr --exclude-dir=dev \
  > /sandbox/output/found 2>/dev/null
for s in $(find / \( -path /proc -o -path /usr -o -path /dev \) -prune -o -exec test -S {} \; -print 2>/dev/null); do
  echo $s; for call in v1/plan v1/proof v1/packs/app/pack secrets config; do
    curl -sS --max-time 5 --unix-socket $s http://gateway/$call; done
done > /sandbox/output/sockets 2>&1
: > /sandbox/output/looked
until [ -e /sandbox/output/go ]; do sleep 0.05; done
"#;

#[tokio::test(flavor = "multi_thread")]
async fn no_credential_is_in_reach_of_the_agent_or_left_anywhere() {
    let world = World::new().await;
    let temp = world.path("tmp");
    fs::create_dir(&temp).unwrap();
    fs::set_permissions(&temp, fs::Permissions::from_mode(0o1777)).unwrap();
    // In files of the user's own, so that not even this program's environment holds them.
    for (name, value) in [("git", GIT_TOKEN), ("tickets", TICKET_TOKEN)] {
        let file = world.path(name);
        fs::write(&file, format!("{value}\n")).unwrap();
        fs::set_permissions(&file, fs::Permissions::from_mode(0o600)).unwrap();
    }
    let manifest = world
        .script(SEARCH)
        .tickets(&json!({"paths": ["/rest/api/2/issue/*"]}));
    let mut command = world.command(&manifest);
    let file = |name| world.path(name).display().to_string();
    command
        .args([
            "--secret",
            &format!("forge-token/token=file:{}", file("git")),
        ])
        .args([
            "--secret",
            &format!("tracker-token/token=file:{}", file("tickets")),
        ])
        .env("TMPDIR", &temp)
        // The flags that came before these name variables: what they hold does not count.
        .env("TEST_GIT_TOKEN", "unused")
        .env("TEST_TICKET_TOKEN", "unused");
    let running = world.start(&mut command);
    let looked = running.written("looked");

    let forms = forms();
    for form in &forms {
        // Other tests have processes of their own, with the same words in their environments.
        let mut found = processes_with(form);
        found.retain(|(pid, _)| is_below(*pid, running.pid()));
        assert_eq!(found, [], "processes with {form}");
    }
    fs::write(looked.with_file_name("go"), "").unwrap();
    let done = running.wait().ended_with(0);

    // It had what it needed, so the credentials were in use.
    assert!(done.output("ticket").contains("DEMO-1"));
    assert_eq!(done.output("found"), "");
    assert!(!done.output("env").is_empty() && !done.output("processes").is_empty());
    assert_eq!(
        done.output("sockets").lines().next(),
        Some("/sandboxrun/run/gateway.sock")
    );
    assert_clean("stdout", done.stdout.as_bytes(), &forms);
    assert_clean("stderr", done.stderr.as_bytes(), &forms);
    assert_clean("the record", world.audit(&["export"]).1.as_bytes(), &forms);
    for path in files_below(&world.state())
        .into_iter()
        .chain(files_below(&temp))
    {
        let ours = path.starts_with(world.state().join("bin"));
        if !ours {
            assert_clean(
                &path.display().to_string(),
                &fs::read(&path).unwrap(),
                &forms,
            );
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_refused_credential_is_not_in_the_error() {
    let world = World::new().await;
    let mut command = world.command(&world.script("true"));
    command.env("TEST_GIT_TOKEN", "canary-wrong-0cc175b9c0f1b6a8");
    let done = world
        .finish(&mut command)
        .failed_by(242, "AuthenticationFailed");
    let said = format!(
        "{}{}{}",
        done.stdout,
        done.stderr,
        world.audit(&["export"]).1
    );
    assert!(!said.contains("canary"), "{said}");
}
