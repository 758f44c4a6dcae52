//! The ssh server, seen with stock git and stock ssh.

#![expect(clippy::unwrap_used, reason = "a helper of a test may fail the test")]

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::time::Duration;

use demo_forge::{
    Change, Client, Forge, KeyType, Options, Outcome, Repo, Scope, Ssh, SshKey, Visibility,
};
use tempfile::TempDir;

struct Room {
    ssh: Ssh,
    repo: Repo,
    client: Client,
    dir: TempDir,
    // The last one: it stops first what uses its files.
    _forge: Forge,
}

async fn room() -> Room {
    let forge = Forge::start(Options::new()).await.unwrap();
    let repo = forge.create("acme/app", Visibility::Private).unwrap();
    repo.commit("main", &[Change::file("a", "a")]).unwrap();
    let ssh = Ssh::start(&forge).await.unwrap();
    let client = Client::new(&forge).unwrap();
    Room {
        ssh,
        repo,
        client,
        dir: TempDir::new().unwrap(),
        _forge: forge,
    }
}

impl Room {
    fn client(&self, key: &str, known_hosts: &str) -> Client {
        let (key_file, hosts_file) = (self.dir.path().join("key"), self.dir.path().join("hosts"));
        fs::write(&key_file, key).unwrap();
        fs::set_permissions(&key_file, fs::Permissions::from_mode(0o600)).unwrap();
        fs::write(&hosts_file, known_hosts).unwrap();
        let command = format!(
            "ssh -F /dev/null -o BatchMode=yes -o IdentitiesOnly=yes -o StrictHostKeyChecking=yes \
             -o UserKnownHostsFile={} -i {}",
            hosts_file.display(),
            key_file.display()
        );
        self.client.clone().config("core.sshCommand", &command)
    }

    fn trusting(&self, key: &SshKey) -> Client {
        self.client(key.text(), &self.ssh.known_hosts(&KeyType::ALL).unwrap())
    }

    async fn list(&self, client: &Client) -> Outcome {
        client
            .git(self.dir.path(), &["ls-remote", &self.ssh.url("acme/app")])
            .await
            .unwrap()
    }
}

#[tokio::test]
async fn a_key_clones_and_only_a_writing_one_pushes() {
    let room = room().await;
    let (read, write) = (
        room.ssh.authorize(Scope::Read).unwrap(),
        room.ssh.authorize(Scope::Write).unwrap(),
    );
    let tree = room.dir.path().join("tree");
    let reader = room.trusting(&read);
    let cloned = reader
        .clone_into(&room.ssh.url("acme/app"), &tree)
        .await
        .unwrap();
    assert!(
        cloned.success(),
        "{} {}",
        cloned.stderr,
        room.ssh.server_log()
    );
    let request = room.ssh.requests().unwrap().pop().unwrap();
    assert_eq!(request.command, "git-upload-pack '/acme/app.git'");
    assert_eq!(request.git_protocol, "version=2");

    let who = ["-c", "user.name=n", "-c", "user.email=e"];
    let args = [&who[..], &["commit", "-q", "--allow-empty", "-m", "m"]].concat();
    assert!(reader.git(&tree, &args).await.unwrap().success());
    let push = ["push", "-q", "origin", "main"];
    let refused = reader.git(&tree, &push).await.unwrap();
    assert!(
        refused.stderr.contains("may only read"),
        "{}",
        refused.stderr
    );
    let pushed = room.trusting(&write).git(&tree, &push).await.unwrap();
    assert!(pushed.success(), "{}", pushed.stderr);
    let head = reader.git(&tree, &["rev-parse", "HEAD"]).await.unwrap();
    assert_eq!(room.repo.find("refs/heads/main"), Some(head.stdout));
}

#[tokio::test]
async fn c06_keys_and_hosts_that_are_wrong() {
    let room = room().await;
    let key = room.ssh.authorize(Scope::Read).unwrap();
    let all = room.ssh.known_hosts(&KeyType::ALL).unwrap();
    for kind in KeyType::ALL {
        let one = room.client(key.text(), &room.ssh.known_hosts(&[kind]).unwrap());
        assert!(room.list(&one).await.success(), "{kind:?}");
    }
    let unknown = room.list(&room.client(key.text(), "")).await;
    assert!(
        unknown.stderr.contains("Host key verification failed"),
        "{}",
        unknown.stderr
    );

    let locked = room
        .ssh
        .authorize_with_passphrase(Scope::Read, "open sesame")
        .unwrap();
    let denied = room.list(&room.client(locked.text(), &all)).await;
    assert!(
        denied.stderr.contains("Permission denied"),
        "{}",
        denied.stderr
    );

    assert!(key.with_crlf().contains("\r\n"));
    assert!(!key.without_last_newline().ends_with('\n'));
    assert!(room.list(&room.client(key.text(), &all)).await.success());

    room.ssh.change_host_keys().unwrap();
    let changed = room.list(&room.client(key.text(), &all)).await;
    assert!(
        changed.stderr.contains("HOST IDENTIFICATION HAS CHANGED"),
        "{}",
        changed.stderr
    );
}

#[tokio::test]
async fn nothing_but_git_below_the_repositories_is_served() {
    let room = room().await;
    let key = room.ssh.authorize(Scope::Write).unwrap();
    let client = room.trusting(&key);
    for repo in ["acme/none", "../ssh", "acme/../../repos/acme/app"] {
        let refused = client
            .git(room.dir.path(), &["ls-remote", &room.ssh.url(repo)])
            .await
            .unwrap();
        assert!(
            refused.stderr.contains("repository not found"),
            "{repo}: {}",
            refused.stderr
        );
    }
    let alias = client
        .clone()
        .config("alias.x", "!$(git config core.sshCommand) \"$@\"; :");
    let port = room.ssh.addr().port().to_string();
    let host = format!("{}@127.0.0.1", room.ssh.user());
    let refused = alias
        .git(room.dir.path(), &["x", "-p", &port, &host, "id"])
        .await
        .unwrap();
    assert!(
        refused.stderr.contains("only git is served here"),
        "{}",
        refused.stderr
    );
    assert_eq!(refused.stdout, "");
}

#[tokio::test]
async fn t03_an_ssh_server_that_says_nothing() {
    let room = room().await;
    let key = room.ssh.authorize(Scope::Read).unwrap();
    room.ssh.go_silent(true);
    let hung = room
        .list(&room.trusting(&key).deadline(Duration::from_secs(1)))
        .await;
    assert!(hung.status.is_none(), "{hung:?}");
    room.ssh.go_silent(false);
    assert!(room.list(&room.trusting(&key)).await.success());
    assert_eq!(room.ssh.connections(), 2);
}
