//! `collect` as a process: whatever an agent did to its workspace is seen, and nothing of it is run or followed.

use std::fs::{self, File, Permissions};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::os::unix::net::UnixListener;
use std::path::Path;

use rstest::rstest;
use sandboxrun::api::wire::{
    Change, ChangedPath, Drift, DriftFacts, GitDir, HeadSeen, Outcome, OutputFile, UnknownReason,
};

use crate::repository::{Repository, git};
use crate::server::Server;
use crate::{Volumes, succeed};

/// A run whose inputs are in place.
struct Run {
    server: Server,
    volumes: Volumes,
}

impl Run {
    fn of(repository: &Repository) -> Self {
        let run = Self {
            server: Server::of(repository.pack()),
            volumes: Volumes::new(),
        };
        let output = run.volumes.run("provision", &run.server);
        assert!(
            output.status.success(),
            "{}",
            String::from_utf8_lossy(&output.stderr)
        );
        run
    }

    fn usual() -> Self {
        Self::of(&Repository::usual())
    }

    fn app(&self) -> std::path::PathBuf {
        self.volumes.at("workspace/app")
    }

    fn git(&self, args: &[&str]) -> String {
        succeed(&mut git(&self.app()), args)
    }

    fn outcome(&self) -> Outcome {
        let output = self.volumes.run("collect", &self.server);
        assert!(
            output.status.success(),
            "{}",
            String::from_utf8_lossy(&output.stderr)
        );
        self.server.with(|state| state.outcome.clone()).unwrap()
    }

    fn drift(&self) -> Drift {
        self.outcome().inputs.remove(0).drift
    }

    fn facts(&self) -> DriftFacts {
        match self.drift() {
            Drift::Drifted(facts) => facts,
            other => panic!("not drifted: {other:?}"),
        }
    }
}

fn changed(path: &str, change: Change) -> ChangedPath {
    ChangedPath {
        path: path.to_owned(),
        change,
    }
}

#[test]
fn d02_nothing_done_is_unchanged_also_after_git_was_used() {
    let run = Run::usual();
    assert_eq!(run.drift(), Drift::Unchanged);
    run.git(&["status"]);
    run.git(&["gc", "-q"]);
    run.git(&["pack-refs", "--all"]);
    run.git(&["update-index", "--really-refresh"]);
    assert_eq!(run.drift(), Drift::Unchanged);
}

#[test]
fn d02_an_edit_without_a_commit_is_counted_and_head_did_not_move() {
    let run = Run::usual();
    let app = run.app();
    fs::write(app.join("README.md"), "HELLO\n").unwrap();
    fs::write(app.join("src/main.rs"), "longer than it was before").unwrap();
    fs::remove_file(app.join("src/deep/er/x.txt")).unwrap();
    fs::write(app.join("new\n"), "").unwrap();
    fs::set_permissions(app.join("run.sh"), Permissions::from_mode(0o644)).unwrap();
    fs::remove_file(app.join("link")).unwrap();
    symlink("elsewhere", app.join("link")).unwrap();
    let facts = run.facts();
    assert_eq!((facts.modified, facts.deleted, facts.added), (3, 1, 1));
    assert_eq!((facts.type_changed, facts.mode_changed), (0, 1));
    assert_eq!(
        (facts.head, facts.git_dir),
        (HeadSeen::Pinned, GitDir::Intact)
    );
    assert!(!facts.truncated && !facts.incomplete);
    let want = [
        ("README.md", Change::Modified),
        ("link", Change::Modified),
        ("new\\n", Change::Added),
        ("run.sh", Change::ModeChanged),
        ("src/deep/er/x.txt", Change::Deleted),
        ("src/main.rs", Change::Modified),
    ];
    assert_eq!(
        facts.paths,
        want.map(|(path, change)| changed(path, change))
    );
}

#[rstest]
#[case::on_its_branch("commit -qam mine")]
#[case::two_commits("commit -qam one; commit -q --allow-empty -m two")]
#[case::on_a_new_branch("checkout -qb mine; commit -qam mine")]
#[case::detached("checkout -q --detach; commit -qam mine")]
#[case::packed("commit -qam mine; gc -q; pack-refs --all")]
#[case::merged(
    "checkout -qb side; commit -qam side; checkout -q main; commit -q --allow-empty -m main; \
    merge -q --no-ff -m m side"
)]
fn d02_a_commit_of_the_agent_is_a_moved_head_that_descends_from_the_pin(#[case] steps: &str) {
    let run = Run::usual();
    fs::write(run.app().join("README.md"), "HELLO\n").unwrap();
    for step in steps.split("; ") {
        run.git(&step.split_whitespace().collect::<Vec<_>>());
    }
    let facts = run.facts();
    let head = run.git(&["rev-parse", "HEAD"]).parse().unwrap();
    assert_eq!(
        facts.head,
        HeadSeen::Moved {
            to: Some(head),
            pinned_is_ancestor: Some(true)
        }
    );
    assert_eq!((facts.modified, facts.git_dir), (1, GitDir::Intact));
}

#[test]
fn d02_an_amended_commit_does_not_descend_from_the_pin() {
    let run = Run::usual();
    run.git(&["commit", "-q", "--amend", "-m", "mine"]);
    let facts = run.facts();
    assert!(matches!(
        facts.head,
        HeadSeen::Moved {
            to: Some(_),
            pinned_is_ancestor: Some(false)
        }
    ));
    assert_eq!(facts.modified + facts.added + facts.deleted, 0);
}

#[test]
fn a_branch_switched_at_the_same_commit_is_a_moved_head() {
    let run = Run::usual();
    run.git(&["checkout", "-qb", "other"]);
    assert!(matches!(
        run.facts().head,
        HeadSeen::Moved {
            to: Some(_),
            pinned_is_ancestor: Some(true)
        }
    ));
}

/// D01: the drift evasion set. After each trick the plain check (HEAD is the pin, `git status` prints nothing) is
/// shown to be deceived, so that the test itself cannot be.
#[rstest]
#[case::assume_unchanged(1, "modified")]
#[case::skip_worktree(2, "modified")]
#[case::excluded_file(3, "added")]
#[case::ignored_file(4, "added")]
#[case::untracked_hidden(5, "added")]
#[case::file_mode(6, "modeChanged")]
#[case::other_worktree(7, "modified")]
#[case::replaced_commit(8, "modified")]
#[case::clean_filter(9, "modified")]
#[case::sparse(10, "deleted")]
fn d01_each_trick_of_the_evasion_set_is_drift(#[case] trick: u32, #[case] seen_as: &str) {
    let repository = Repository::usual();
    repository.write(".gitignore", "*.ignored\n");
    repository.commit("ignore rules");
    let pinned = repository.pack().commit;
    let run = Run::of(&repository);
    let app = run.app();
    let change = || fs::write(app.join("README.md"), "HELLO\n").unwrap();
    match trick {
        1 => {
            run.git(&["update-index", "--assume-unchanged", "README.md"]);
            change();
        }
        2 => {
            run.git(&["update-index", "--skip-worktree", "README.md"]);
            change();
        }
        3 => {
            fs::write(app.join(".git/info/exclude"), "secret\n").unwrap();
            fs::write(app.join("secret"), "x").unwrap();
        }
        4 => fs::write(app.join("a.ignored"), "x").unwrap(),
        5 => {
            run.git(&["config", "status.showUntrackedFiles", "no"]);
            fs::write(app.join("new"), "x").unwrap();
        }
        6 => {
            run.git(&["config", "core.fileMode", "false"]);
            fs::set_permissions(app.join("run.sh"), Permissions::from_mode(0o644)).unwrap();
        }
        7 => {
            let clean = run.volumes.at("clean");
            succeed(std::process::Command::new("cp").arg("-a"), &[&app, &clean]);
            fs::remove_dir_all(clean.join(".git")).unwrap();
            run.git(&["config", "core.worktree", clean.to_str().unwrap()]);
            change();
        }
        8 => {
            change();
            run.git(&["add", "-A"]);
            let tree = run.git(&["write-tree"]);
            let other = run.git(&["commit-tree", "-m", "first", &tree]);
            run.git(&["replace", &pinned, &other]);
        }
        9 => {
            fs::write(app.join(".git/info/attributes"), "README.md filter=back\n").unwrap();
            run.git(&["config", "filter.back.clean", "printf 'hello\\n'"]);
            change();
        }
        _ => {
            run.git(&["sparse-checkout", "set", "--no-cone", "/README.md"]);
            assert!(!app.join("src").exists());
        }
    }
    assert_eq!(
        run.git(&["rev-parse", "HEAD"]),
        pinned,
        "the plain check is deceived"
    );
    assert_eq!(
        run.git(&["status", "--porcelain"]),
        "",
        "the plain check is deceived"
    );
    let facts = serde_json::to_value(run.facts()).unwrap();
    assert!(facts[seen_as].as_u64().unwrap() > 0, "{facts}");
}

#[test]
fn an_inner_repository_and_its_git_directory_are_walked_into() {
    let run = Run::usual();
    let inner = run.app().join("inner");
    fs::create_dir(&inner).unwrap();
    succeed(&mut git(&inner), &["init", "-q"]);
    fs::write(inner.join("file"), "x").unwrap();
    let facts = run.facts();
    assert!(facts.added > 2, "{facts:?}");
    assert!(
        facts
            .paths
            .iter()
            .any(|p| p.path.starts_with("inner/.git/"))
    );
}

#[test]
fn what_git_would_not_see_is_no_drift() {
    let run = Run::usual();
    let app = run.app();
    fs::create_dir_all(app.join("empty/in/empty")).unwrap();
    fs::set_permissions(app.join("README.md"), Permissions::from_mode(0o666)).unwrap();
    fs::set_permissions(app.join("src"), Permissions::from_mode(0o2775)).unwrap();
    let times = fs::FileTimes::new().set_modified(std::time::UNIX_EPOCH);
    File::options()
        .write(true)
        .open(app.join("README.md"))
        .unwrap()
        .set_times(times)
        .unwrap();
    assert_eq!(run.drift(), Drift::Unchanged);
}

#[test]
fn a_file_rewritten_with_crlf_or_with_its_old_time_is_drift() {
    let run = Run::usual();
    let readme = run.app().join("README.md");
    let modified = fs::metadata(&readme).unwrap().modified().unwrap();
    fs::write(&readme, "HELLO\n").unwrap();
    let file = File::options().write(true).open(&readme).unwrap();
    file.set_times(fs::FileTimes::new().set_modified(modified))
        .unwrap();
    fs::write(run.app().join("src/main.rs"), "fn main() {}\r\n").unwrap();
    assert_eq!(run.facts().modified, 2);
}

#[test]
fn an_entry_of_another_type_is_said_so_and_never_opened() {
    let run = Run::usual();
    let app = run.app();
    for name in ["README.md", "run.sh", "src/main.rs", "link"] {
        fs::remove_file(app.join(name)).unwrap();
    }
    let mode = rustix::fs::Mode::from_raw_mode(0o600);
    rustix::fs::mkfifoat(rustix::fs::CWD, app.join("README.md"), mode).unwrap();
    rustix::fs::mkfifoat(rustix::fs::CWD, app.join("new fifo"), mode).unwrap();
    let _socket = UnixListener::bind(app.join("run.sh")).unwrap();
    symlink("../README.md", app.join("src/main.rs")).unwrap();
    fs::create_dir(app.join("link")).unwrap();
    fs::write(app.join("link/inside"), "x").unwrap();
    fs::remove_dir_all(app.join("src/deep")).unwrap();
    symlink("/etc", app.join("src/deep")).unwrap();
    let facts = run.facts();
    assert_eq!(
        (facts.type_changed, facts.added, facts.deleted),
        (5, 2, 1),
        "{facts:?}"
    );
    assert_eq!(facts.paths[0], changed("README.md", Change::TypeChanged));
}

#[rstest]
#[case::missing(GitDir::Missing)]
#[case::file(GitDir::Replaced)]
#[case::link(GitDir::Replaced)]
#[case::empty_directory(GitDir::Replaced)]
fn d05_a_git_directory_that_is_gone_or_replaced_is_said_so(
    #[case] want: GitDir,
    #[values(false, true)] edited: bool,
) {
    let name = std::thread::current().name().unwrap().to_owned();
    let run = Run::usual();
    let app = run.app();
    // It is not followed, even where it leads to a good one.
    let elsewhere = run.volumes.at("elsewhere");
    fs::rename(app.join(".git"), &elsewhere).unwrap();
    if name.contains("file") {
        fs::write(
            app.join(".git"),
            format!("gitdir: {}\n", elsewhere.display()),
        )
        .unwrap();
    } else if name.contains("link") {
        symlink(&elsewhere, app.join(".git")).unwrap();
    } else if name.contains("empty") {
        fs::create_dir(app.join(".git")).unwrap();
    }
    if edited {
        fs::write(app.join("README.md"), "HELLO\n").unwrap();
    }
    let facts = run.facts();
    assert_eq!((facts.git_dir, facts.head), (want, HeadSeen::Unreadable));
    assert_eq!(
        facts.modified,
        u64::from(edited),
        "the tree is still compared"
    );
}

#[test]
fn d05_a_git_directory_made_anew_is_a_moved_head() {
    let run = Run::usual();
    fs::remove_dir_all(run.app().join(".git")).unwrap();
    run.git(&["init", "-q", "-b", "main"]);
    assert_eq!(
        run.facts().head,
        HeadSeen::Moved {
            to: None,
            pinned_is_ancestor: None
        }
    );
}

#[rstest]
#[case::garbage(b"\xff\0garbage")]
#[case::leads_out(b"ref: ../../../../etc/hostname\n")]
#[case::leads_out_below_refs(b"ref: refs/../../../../../etc/hostname\n")]
#[case::endless(b"ref: HEAD\n")]
fn a_hostile_head_is_read_as_text_and_leads_nowhere(#[case] content: &[u8]) {
    let run = Run::usual();
    fs::write(run.app().join(".git/HEAD"), content).unwrap();
    let facts = run.facts();
    assert!(
        matches!(
            facts.head,
            HeadSeen::Unreadable | HeadSeen::Moved { to: None, .. }
        ),
        "{facts:?}"
    );
}

#[test]
fn d04_nothing_in_the_tree_is_run() {
    let run = Run::usual();
    let app = run.app();
    let marker = run.volumes.at("ran");
    let touch = format!("touch {}", marker.display());
    for key in [
        "core.fsmonitor",
        "filter.evil.clean",
        "filter.evil.process",
        "credential.helper",
        "core.pager",
        "core.sshCommand",
        "diff.external",
        "core.hooksPath",
    ] {
        run.git(&["config", key, &touch]);
    }
    fs::write(app.join(".git/info/attributes"), "* filter=evil\n").unwrap();
    let bin = run.volumes.at("bin");
    fs::create_dir(&bin).unwrap();
    fs::write(bin.join("git"), format!("#!/bin/sh\n{touch}\n")).unwrap();
    fs::set_permissions(bin.join("git"), Permissions::from_mode(0o755)).unwrap();
    fs::write(app.join("README.md"), "HELLO\n").unwrap();
    let mut collect = run.volumes.command("collect", &run.server);
    assert!(collect.env("PATH", &bin).status().unwrap().success());
    assert!(!marker.exists());
    let drift = run
        .server
        .with(|state| state.outcome.clone())
        .unwrap()
        .inputs
        .remove(0)
        .drift;
    assert!(matches!(drift, Drift::Drifted(facts) if facts.modified == 1));
}

#[test]
fn the_whole_input_deleted_or_replaced_by_a_link_is_drift() {
    let run = Run::usual();
    let elsewhere = run.volumes.at("elsewhere");
    fs::rename(run.app(), &elsewhere).unwrap();
    assert_eq!(
        (run.facts().deleted, run.facts().git_dir),
        (5, GitDir::Missing)
    );
    symlink(&elsewhere, run.app()).unwrap();
    assert_eq!(
        (run.facts().deleted, run.facts().git_dir),
        (5, GitDir::Missing)
    );
}

/// D03. Without root nothing could be hidden from a collector that may not change modes; with it, modes hide nothing.
/// So the program runs as somebody else, who owns the volumes.
#[test]
fn d03_locked_files_and_directories_are_opened_and_what_is_not_ours_is_unknown() {
    let run = Run::usual();
    let app = run.app();
    if !rustix::process::geteuid().is_root() {
        eprintln!("skipped: running as another user needs root");
        return;
    }
    fs::set_permissions(run.volumes.root.path(), Permissions::from_mode(0o755)).unwrap();
    fs::set_permissions(
        run.server.socket().parent().unwrap(),
        Permissions::from_mode(0o755),
    )
    .unwrap();
    fs::set_permissions(run.server.socket(), Permissions::from_mode(0o777)).unwrap();
    let own = |path: &Path| {
        succeed(
            std::process::Command::new("chown").args(["-R", "65534:65534"]),
            &[path],
        );
    };
    for name in ["workspace", "baseline", "sandbox"] {
        own(&run.volumes.at(name));
    }
    fs::write(run.volumes.at("message"), "").unwrap();
    own(&run.volumes.at("message"));
    // The build directory may be closed to others.
    let program = run.volumes.at("sandboxrun-pod");
    fs::copy(env!("CARGO_BIN_EXE_sandboxrun-pod"), &program).unwrap();
    let drift = || {
        let original = run.volumes.command("collect", &run.server);
        let mut collect = std::process::Command::new(&program);
        collect.args(original.get_args());
        std::os::unix::process::CommandExt::uid(&mut collect, 65534);
        std::os::unix::process::CommandExt::gid(&mut collect, 65534);
        assert!(collect.status().unwrap().success());
        run.server
            .with(|state| state.outcome.clone())
            .unwrap()
            .inputs
            .remove(0)
            .drift
    };
    fs::set_permissions(app.join("README.md"), Permissions::from_mode(0o000)).unwrap();
    fs::set_permissions(app.join("src/deep"), Permissions::from_mode(0o000)).unwrap();
    fs::set_permissions(app.join("src"), Permissions::from_mode(0o400)).unwrap();
    fs::set_permissions(app.join(".git"), Permissions::from_mode(0o000)).unwrap();
    assert_eq!(drift(), Drift::Unchanged, "what is ours is opened");

    // As if the disk refused it.
    succeed(
        std::process::Command::new("chown").arg("0:0"),
        &[app.join("src/main.rs")],
    );
    fs::set_permissions(app.join("src/main.rs"), Permissions::from_mode(0o600)).unwrap();
    match drift() {
        Drift::Unknown {
            reason: UnknownReason::Unreadable,
            message,
        } => {
            assert!(message.contains("src/main.rs"), "{message}");
        }
        other => panic!("{other:?}"),
    }
    fs::write(app.join("README.md"), "HELLO\n").unwrap();
    match drift() {
        Drift::Drifted(facts) => assert!(facts.incomplete && facts.modified == 1, "{facts:?}"),
        other => panic!("{other:?}"),
    }
}

#[test]
fn d03_a_baseline_that_is_missing_or_damaged_is_unknown() {
    let no_baseline = |drift: Drift| {
        matches!(
            drift,
            Drift::Unknown {
                reason: UnknownReason::NoBaseline,
                ..
            }
        )
    };
    let run = Run::usual();
    let file = run.volumes.at("baseline/app.baseline");
    let mut bytes = fs::read(&file).unwrap();
    bytes[30] ^= 1;
    fs::write(&file, bytes).unwrap();
    assert!(no_baseline(run.drift()));
    fs::remove_file(run.volumes.at("baseline/inputs.json")).unwrap();
    assert!(no_baseline(run.drift()), "asked for at the gateway");
}

#[test]
fn a_budget_that_is_used_up_is_unknown_and_a_proven_change_still_counts() {
    let run = Run::usual();
    let drift = || {
        let mut collect = run.volumes.command("collect", &run.server);
        assert!(
            collect
                .args(["--budget-secs", "0"])
                .status()
                .unwrap()
                .success()
        );
        run.server
            .with(|state| state.outcome.clone())
            .unwrap()
            .inputs
            .remove(0)
            .drift
    };
    assert!(matches!(
        drift(),
        Drift::Unknown {
            reason: UnknownReason::Budget,
            ..
        }
    ));
    run.git(&["checkout", "-q", "--detach"]);
    assert!(matches!(drift(), Drift::Drifted(facts) if facts.incomplete));
}

#[test]
fn a_sparse_file_of_a_terabyte_costs_no_more_than_its_size() {
    let run = Run::usual();
    let app = run.app();
    for name in ["README.md", "new"] {
        // Where the file system takes it: ext4 does up to 16 TiB.
        let file = File::options()
            .create(true)
            .truncate(false)
            .write(true)
            .open(app.join(name))
            .unwrap();
        if file.set_len(1 << 40).is_err() {
            file.set_len(1 << 33).unwrap();
        }
    }
    // Reading it would take the whole budget, and the answer would be another.
    let facts = run.facts();
    assert_eq!(
        (facts.modified, facts.added, facts.incomplete),
        (1, 1, false)
    );
}

#[test]
fn a_tree_of_ten_thousand_levels_is_walked() {
    let run = Run::usual();
    let flags = rustix::fs::OFlags::RDONLY | rustix::fs::OFlags::DIRECTORY;
    let none = rustix::fs::Mode::empty();
    let mode = rustix::fs::Mode::from_raw_mode(0o755);
    let mut at = rustix::fs::open(run.app(), flags, none).unwrap();
    for _ in 0..10_000 {
        rustix::fs::mkdirat(&at, "d", mode).unwrap();
        at = rustix::fs::openat(&at, "d", flags, none).unwrap();
    }
    rustix::fs::symlinkat("x", &at, "bottom").unwrap();
    drop(at);
    let facts = run.facts();
    assert_eq!((facts.added, facts.incomplete), (1, false));
    // What `TempDir` cannot remove is removed by a tool that can.
    succeed(
        std::process::Command::new("rm").arg("-rf"),
        &[run.app().join("d")],
    );
}

#[test]
fn l03_names_that_are_no_text_are_made_safe() {
    let run = Run::usual();
    let name = std::ffi::OsStr::from_bytes(b"\xff\x1b[2J\n");
    fs::write(run.app().join(name), "x").unwrap();
    assert_eq!(
        run.facts().paths,
        [changed(r"\xff\x1b[2J\n", Change::Added)]
    );
}

#[test]
fn many_new_files_are_counted_and_the_first_are_named() {
    let run = Run::usual();
    let many = run.app().join("many");
    fs::create_dir(&many).unwrap();
    for n in 0..5000 {
        fs::write(many.join(format!("{n:05}")), "").unwrap();
    }
    let facts = run.facts();
    assert_eq!(
        (facts.added, facts.truncated, facts.paths.len()),
        (5000, true, 20)
    );
    assert_eq!(facts.paths[19].path, "many/00019");
    let message = fs::read_to_string(run.volumes.at("message")).unwrap();
    assert!(
        message.len() <= 2048 && message.contains("5000"),
        "{message}"
    );
}

#[test]
fn a_submodule_that_is_filled_or_gone_is_drift() {
    let repository = Repository::usual();
    let gitlink = format!("160000,{},sub", "1".repeat(40));
    repository.git(&["update-index", "--add", "--cacheinfo", &gitlink]);
    repository.git(&["commit", "-q", "-m", "sub"]);
    let run = Run::of(&repository);
    assert_eq!(run.drift(), Drift::Unchanged);
    fs::write(run.app().join("sub/x"), "x").unwrap();
    assert_eq!(run.facts().added, 1);
    fs::remove_dir_all(run.app().join("sub")).unwrap();
    assert_eq!(run.facts().deleted, 1);
}

#[test]
fn the_output_is_part_of_the_outcome() {
    let run = Run::usual();
    fs::write(run.volumes.at("sandbox/output/output.json"), "{\"a\":1}").unwrap();
    assert_eq!(
        run.outcome().output,
        OutputFile::Text {
            text: "{\"a\":1}".to_owned()
        }
    );
}

#[test]
fn an_outcome_that_the_gateway_does_not_take_is_in_the_termination_message() {
    let run = Run::usual();
    run.server.refuse(
        "/v1/outcome",
        usize::MAX,
        404,
        sandboxrun::api::Reason::RunAbandoned,
    );
    let output = run.volumes.run("collect", &run.server);
    assert_eq!(output.status.code(), Some(1));
    let message = fs::read_to_string(run.volumes.at("message")).unwrap();
    let value: serde_json::Value = serde_json::from_str(&message).unwrap();
    assert_eq!(value["inputs"][0]["drift"]["state"], "unchanged");
}
