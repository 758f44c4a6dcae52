//! Inputs over ssh, against a real sshd.

use demo_forge::{Change, KeyType, Options, Scope, Ssh, Visibility};
use rstest::rstest;
use sandboxrun::api::{Auth, Failure, Reason, RefSelector};
use sandboxrun::inputs::{CredentialProof, Inputs, ResolvedInput, Sources};
use std::sync::Arc;
use std::time::Duration;

use crate::support::{World, at, branch, commit, connector, key_ref, tag};
use crate::world::{Opened, files, processes_of, tuned, until};

/// A world with an ssh server before its forge, and one repository.
struct SshWorld {
    world: World,
    ssh: Ssh,
    commit: String,
}

async fn ssh_world() -> SshWorld {
    let mut world = tuned(Options::new(), |settings| {
        settings.times.brief = Duration::ZERO;
        settings.times.give_up = Duration::ZERO;
    })
    .await;
    let repo = world.forge.create("acme/app", Visibility::Private).unwrap();
    repo.commit("main", &[Change::file("a", "1")]).unwrap();
    let commit = repo.commit("main", &[Change::file("a", "2")]).unwrap();
    repo.annotated_tag("v1", &commit).unwrap();
    let ssh = Ssh::start(&world.forge).await.unwrap();
    let mut settings = world.inputs.settings().clone();
    let exception = format!("127.0.0.1=127.0.0.0/8:{}", ssh.addr().port());
    settings.address_exceptions.push(exception.parse().unwrap());
    let sources = Arc::clone(&world.manifests) as Arc<dyn Sources>;
    world.inputs = Inputs::new(settings, sources);
    SshWorld { world, ssh, commit }
}

impl SshWorld {
    fn origin(&self) -> String {
        format!("ssh://{}", self.ssh.addr())
    }

    fn connect(&self, key: &str, known_hosts: &str) {
        self.world
            .manifests
            .add_secret("key", key.as_bytes(), &self.origin());
        let auth = Auth::Ssh {
            private_key: key_ref("key"),
            known_hosts: known_hosts.to_owned(),
        };
        let mut own = connector("shell", &self.origin(), auth);
        own.ca = None;
        self.world.manifests.add_connector(own);
    }

    fn known(&self) -> String {
        self.ssh.known_hosts(&KeyType::ALL).unwrap()
    }

    async fn resolve(&self, selector: RefSelector) -> Result<ResolvedInput, Failure> {
        let input = at(&self.ssh.url("acme/app"), Some("shell"), selector);
        Ok(self.world.resolve(vec![input]).await?.remove(0))
    }

    async fn run(&self, selector: RefSelector) -> Result<ResolvedInput, Failure> {
        let resolved = self.resolve(selector).await?;
        let lease = self
            .world
            .inputs
            .pack(&self.world.namespace, &resolved)
            .await?;
        let opened = Opened::new(&lease, &resolved.commit);
        assert_eq!(opened.history().len(), 1);
        Ok(resolved)
    }
}

#[tokio::test]
async fn refs_are_listed_and_commits_fetched_over_ssh_with_protocol_v2() {
    let own = ssh_world().await;
    let key = own.ssh.authorize(Scope::Read).unwrap();
    own.connect(key.text(), &own.known());
    for selector in [
        branch("main"),
        tag("v1"),
        RefSelector::Head,
        commit(&own.commit),
    ] {
        let resolved = own.run(selector).await.unwrap();
        assert_eq!(resolved.commit.as_str(), own.commit);
        assert_eq!(resolved.proof, CredentialProof::ReadOnly);
    }
    let requests = own.ssh.requests().unwrap();
    assert!(
        requests
            .iter()
            .any(|r| r.command.contains("git-upload-pack")),
        "{requests:?}"
    );
    assert!(
        requests
            .iter()
            .filter(|r| r.command.contains("upload"))
            .all(|r| r.git_protocol == "version=2")
    );
}

#[tokio::test]
async fn c09_a_key_that_may_push_is_seen_to() {
    let own = ssh_world().await;
    let key = own.ssh.authorize(Scope::Write).unwrap();
    own.connect(key.text(), &own.known());
    let resolved = own.resolve(branch("main")).await.unwrap();
    assert_eq!(resolved.proof, CredentialProof::CanWrite);
}

// C06: the first three shapes of a key work.
#[rstest]
#[case::crlf(|key: &demo_forge::SshKey| key.with_crlf())]
#[case::no_last_newline(|key: &demo_forge::SshKey| key.without_last_newline())]
#[case::as_written(|key: &demo_forge::SshKey| key.text().to_owned())]
#[tokio::test]
async fn c06_a_key_works_as_it_comes_out_of_a_secret(
    #[case] shape: fn(&demo_forge::SshKey) -> String,
) {
    let own = ssh_world().await;
    let key = own.ssh.authorize(Scope::Read).unwrap();
    own.connect(&shape(&key), &own.known());
    own.run(branch("main")).await.unwrap();
}

#[tokio::test]
async fn c06_a_passphrase_is_refused_at_once_and_without_a_connection() {
    let own = ssh_world().await;
    let key = own
        .ssh
        .authorize_with_passphrase(Scope::Read, "secret")
        .unwrap();
    own.connect(key.text(), &own.known());
    let failure = own.run(branch("main")).await.unwrap_err();
    assert_eq!(failure.reason, Reason::KeyUnusable, "{failure}");
    assert_eq!(own.ssh.connections(), 0);
}

#[rstest]
#[case::ed25519(&[KeyType::Ed25519])]
#[case::ecdsa(&[KeyType::Ecdsa])]
#[case::rsa(&[KeyType::Rsa])]
#[tokio::test]
async fn c06_a_host_key_of_any_type_counts(#[case] types: &[KeyType]) {
    let own = ssh_world().await;
    let key = own.ssh.authorize(Scope::Read).unwrap();
    let other = "other.example.com ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIJfYqd1mZbCTwqXzKTtdDNZCbGUOPXW+2uEFk5sAzBnJ";
    let known = own.ssh.known_hosts(types).unwrap().replace('\n', "\r\n");
    own.connect(key.text(), &format!("# ours\n{other}\n{known}"));
    own.run(branch("main")).await.unwrap();
}

#[tokio::test]
async fn c06_a_host_key_that_nobody_knows_is_not_trusted() {
    let own = ssh_world().await;
    let key = own.ssh.authorize(Scope::Read).unwrap();
    own.connect(key.text(), "");
    let failure = own.run(branch("main")).await.unwrap_err();
    assert_eq!(failure.reason, Reason::HostKeyUnknown, "{failure}");
    assert_eq!(own.ssh.requests().unwrap().len(), 0, "nothing was asked");
    // And it was not learned.
    assert_eq!(
        own.run(branch("main")).await.unwrap_err().reason,
        Reason::HostKeyUnknown
    );
}

#[tokio::test]
async fn c06_a_host_key_that_changed_is_another_reason() {
    let own = ssh_world().await;
    let key = own.ssh.authorize(Scope::Read).unwrap();
    own.connect(key.text(), &own.known());
    let resolved = own.resolve(branch("main")).await.unwrap();
    own.ssh.change_host_keys().unwrap();
    // Listing and fetch alike.
    let listed = own.run(branch("main")).await.unwrap_err();
    assert_eq!(listed.reason, Reason::HostKeyMismatch, "{listed}");
    let fetched = own
        .world
        .inputs
        .pack(&own.world.namespace, &resolved)
        .await
        .unwrap_err();
    assert_eq!(fetched.reason, Reason::HostKeyMismatch, "{fetched}");
}

#[tokio::test]
async fn a_key_that_the_server_does_not_know_is_refused_by_it() {
    let own = ssh_world().await;
    let known = own.ssh.authorize(Scope::Read).unwrap();
    let other = ssh_world().await.ssh.authorize(Scope::Read).unwrap();
    own.connect(known.text(), &own.known());
    let resolved = own.resolve(branch("main")).await.unwrap();
    own.connect(other.text(), &own.known());
    let listed = own.run(branch("main")).await.unwrap_err();
    assert_eq!(listed.reason, Reason::AuthenticationFailed, "{listed}");
    let fetched = own
        .world
        .inputs
        .pack(&own.world.namespace, &resolved)
        .await
        .unwrap_err();
    assert_eq!(fetched.reason, Reason::AuthenticationFailed, "{fetched}");
}

#[tokio::test]
async fn a_repository_that_is_not_there_is_not_found_over_ssh() {
    let own = ssh_world().await;
    let key = own.ssh.authorize(Scope::Read).unwrap();
    own.connect(key.text(), &own.known());
    let input = at(&own.ssh.url("acme/none"), Some("shell"), branch("main"));
    let failure = own.world.resolve(vec![input]).await.unwrap_err();
    assert_eq!(
        failure.reason,
        Reason::RepositoryNotFoundOrNoAccess,
        "{failure}"
    );
}

#[tokio::test]
async fn a_server_that_is_not_there_is_unreachable_over_ssh() {
    let own = ssh_world().await;
    let key = own.ssh.authorize(Scope::Read).unwrap();
    own.connect(key.text(), &own.known());
    let resolved = own.resolve(branch("main")).await.unwrap();
    let SshWorld { world, ssh, .. } = own;
    drop(ssh);
    let failure = world
        .inputs
        .pack(&world.namespace, &resolved)
        .await
        .unwrap_err();
    assert_eq!(failure.reason, Reason::HostUnreachable, "{failure}");
}

#[tokio::test]
async fn t03_an_ssh_server_that_goes_silent_ends_the_attempt() {
    let mut own = ssh_world().await;
    let key = own.ssh.authorize(Scope::Read).unwrap();
    own.connect(key.text(), &own.known());
    // With all the time that a busy machine needs.
    let resolved = own.resolve(branch("main")).await.unwrap();
    let mut settings = own.world.inputs.settings().clone();
    settings.times.stall = Duration::from_secs(2);
    settings.times.connect = Duration::from_secs(2);
    let sources = Arc::clone(&own.world.manifests) as Arc<dyn Sources>;
    own.world.inputs = Inputs::new(settings, sources);
    own.ssh.go_silent(true);
    let listed = own.run(branch("main")).await.unwrap_err();
    let fetched = own
        .world
        .inputs
        .pack(&own.world.namespace, &resolved)
        .await
        .unwrap_err();
    for failure in [listed, fetched] {
        let silent = [Reason::TransferStalled, Reason::HostUnreachable];
        assert!(
            silent.contains(&failure.reason),
            "{failure} {:?}",
            failure.reason
        );
    }
    assert_eq!(processes_of(own.world.state_dir()), Vec::<String>::new());
}

#[tokio::test]
async fn c05_the_key_lies_in_a_private_file_only_while_it_is_used() {
    let own = ssh_world().await;
    let key = own.ssh.authorize(Scope::Read).unwrap();
    own.connect(key.text(), &own.known());
    own.run(branch("main")).await.unwrap();
    let line = key.text().lines().nth(2).unwrap().to_owned();
    until("no file holds the key", || {
        files(own.world.state_dir()).iter().all(|file| {
            !String::from_utf8_lossy(&std::fs::read(file).unwrap_or_default()).contains(&line)
        })
    })
    .await;
}
