//! `provision` as a process.

use std::fs;

use sandboxrun::api::wire::ProvisionReport;

use crate::repository::{Repository, git};
use crate::server::Server;
use crate::{Volumes, succeed};

#[test]
fn a_usual_repository_is_what_git_clone_makes() {
    let repository = Repository::usual();
    let pack = repository.pack();
    let server = Server::of(pack.clone());
    let volumes = Volumes::new();
    let output = volumes.run("provision", &server);
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );

    let app = volumes.at("workspace/app");
    let in_app = |args: &[&str]| succeed(&mut git(&app), args);
    assert_eq!(in_app(&["rev-parse", "HEAD"]), pack.commit);
    assert_eq!(
        in_app(&["status", "--porcelain", "--branch"]),
        "## main...origin/main"
    );
    assert_eq!(in_app(&["log", "--format=%s"]), "first");
    assert_eq!(
        in_app(&["remote", "get-url", "origin"]),
        "https://git.example.com/acme/app.git"
    );
    in_app(&["fsck", "--strict"]);
    assert_eq!(
        fs::read_link(app.join("link")).unwrap().to_str(),
        Some("src/main.rs")
    );
    let Some(ProvisionReport::Done { inputs }) = server.with(|s| s.provisioned.clone()) else {
        panic!("no report");
    };
    assert_eq!((inputs[0].files, inputs[0].lfs_pointers), (5, 0));
}
