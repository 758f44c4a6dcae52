//! `provision` as a process: what it makes, compared with what stock git makes.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use rstest::rstest;
use sandboxrun::api::wire::{ContextFile, ProvisionReport, ProvisionedInput};
use sandboxrun::api::{Failure, Reason};

use crate::repository::{PackOf, Repository, git};
use crate::server::Server;
use crate::{Volumes, succeed, until};

/// Provisions, which must succeed, and returns the one input's report.
fn provision(server: &Server, volumes: &Volumes) -> ProvisionedInput {
    let output = volumes.run("provision", server);
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    match server.with(|state| state.provisioned.clone()) {
        Some(ProvisionReport::Done { mut inputs }) => inputs.remove(0),
        other => panic!("{other:?}"),
    }
}

/// Provisions, which must fail, and proves that nothing is left.
fn failure(server: &Server, volumes: &Volumes) -> (Failure, Output) {
    let output = volumes.run("provision", server);
    assert_eq!(output.status.code(), Some(1));
    let left = |name: &str| fs::read_dir(volumes.at(name)).unwrap().count();
    assert_eq!(
        (left("workspace"), left("baseline"), left("sandbox")),
        (0, 0, 0)
    );
    let Some(ProvisionReport::Failed { failure }) = server.with(|s| s.provisioned.clone()) else {
        panic!("no failure was reported");
    };
    let message = fs::read_to_string(volumes.at("message")).unwrap();
    assert!(matches!(
        serde_json::from_str(&message).unwrap(),
        ProvisionReport::Failed { failure: said } if said.reason == failure.reason
    ));
    (failure, output)
}

/// Every path below a directory with its mode bits and content, `.git` left out.
fn tree(root: &Path) -> BTreeMap<PathBuf, (u32, Vec<u8>)> {
    let mut found = BTreeMap::new();
    let mut pending = vec![root.to_owned()];
    while let Some(directory) = pending.pop() {
        for entry in fs::read_dir(&directory).unwrap() {
            let path = entry.unwrap().path();
            let metadata = fs::symlink_metadata(&path).unwrap();
            let content = if metadata.is_symlink() {
                fs::read_link(&path)
                    .unwrap()
                    .into_os_string()
                    .into_encoded_bytes()
            } else if metadata.is_dir() {
                if path.file_name().unwrap() == ".git" {
                    continue;
                }
                pending.push(path.clone());
                Vec::new()
            } else {
                fs::read(&path).unwrap()
            };
            let relative = path.strip_prefix(root).unwrap().to_owned();
            found.insert(relative, (metadata.mode() & !0o022, content));
        }
    }
    found
}

fn cloned(repository: &Repository, into: &Path) {
    let url = format!("file://{}", repository.dir.path().display());
    let into = into.to_str().unwrap();
    succeed(
        &mut git(Path::new("/")),
        &["clone", "-q", "--depth", "1", &url, into],
    );
}

/// Provisions HEAD and proves that the work tree is what `git clone` makes, and clean.
fn same_as_clone(repository: &Repository) -> Volumes {
    let server = Server::of(repository.pack());
    let volumes = Volumes::new();
    provision(&server, &volumes);
    cloned(repository, &volumes.at("clone"));
    let (ours, theirs) = (
        tree(&volumes.at("workspace/app")),
        tree(&volumes.at("clone")),
    );
    assert_eq!(
        ours.keys().collect::<Vec<_>>(),
        theirs.keys().collect::<Vec<_>>()
    );
    for (path, content) in &ours {
        assert!(theirs[path] == *content, "{}", path.display());
    }
    let app = volumes.at("workspace/app");
    assert_eq!(succeed(&mut git(&app), &["status", "--porcelain"]), "");
    // Also if git does not believe the index, and reads every file again.
    fs::remove_file(app.join(".git/index")).unwrap();
    succeed(&mut git(&app), &["reset", "-q"]);
    assert_eq!(succeed(&mut git(&app), &["status", "--porcelain"]), "");
    volumes
}

#[test]
fn a_usual_repository_is_what_git_clone_makes() {
    let repository = Repository::usual();
    let pack = repository.pack();
    let server = Server::of(pack.clone());
    let volumes = Volumes::new();
    let input = provision(&server, &volumes);
    assert_eq!((input.files, input.lfs_pointers), (5, 0));

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
    assert_eq!(in_app(&["diff", "HEAD"]), "");
    in_app(&["fsck", "--strict"]);
    same_as_clone(&repository);
}

#[test]
fn the_index_is_believed_by_git_without_reading_a_file() {
    let server = Server::of(Repository::usual().pack());
    let volumes = Volumes::new();
    provision(&server, &volumes);
    let app = volumes.at("workspace/app");
    // With a blob for which git would have to ask the disk, it would complain.
    let trace = volumes.at("trace");
    let mut status = git(&app);
    status.env("GIT_TRACE2_PERF", &trace);
    succeed(&mut status, &["status", "--porcelain"]);
    let racy = succeed(&mut git(&app), &["ls-files", "--debug", "README.md"]);
    let mtime = fs::metadata(app.join("README.md")).unwrap().mtime();
    assert!(racy.contains(&format!("mtime: {mtime}:0")), "{racy}");
    assert!(mtime < fs::metadata(app.join(".git/index")).unwrap().mtime());
    // The cache of trees is one that git takes.
    assert_eq!(succeed(&mut git(&app), &["write-tree"]), {
        succeed(&mut git(&app), &["rev-parse", "HEAD^{tree}"])
    });
}

#[test]
fn names_and_contents_of_every_kind() {
    let repository = Repository::new();
    repository.write("empty", "");
    repository.write("new\nline \"quoted\" \\ back", "x");
    repository.write("grün/日本", "x");
    repository.write("a/b", "x");
    repository.write("a-b", "x");
    repository.write("a.b/c", "x");
    repository.write("a/sub/deeper/c", "x");
    let odd = std::os::unix::ffi::OsStrExt::from_bytes(b"\xff\xfe");
    fs::write(repository.dir.path().join::<&std::ffi::OsStr>(odd), "x").unwrap();
    symlink("/etc/passwd", repository.at("absolute")).unwrap();
    symlink("../../..", repository.at("a/up")).unwrap();
    symlink("nowhere\n\u{7f}", repository.at("dangling")).unwrap();
    for n in 0..600 {
        repository.write(&format!("many/{n}"), format!("{n}\n"));
    }
    let deep = "d/".repeat(500) + "file";
    repository.write(&deep, "deep");
    repository.commit("odd names");
    same_as_clone(&repository);
}

#[test]
fn a_commit_without_files_and_an_empty_tree_inside() {
    let repository = Repository::new();
    repository.commit("nothing");
    same_as_clone(&repository);

    let empty = repository.feed(&["mktree"], b"");
    let blob = repository.blob(b"x");
    let lines = format!("100644 blob {blob}\ta\x00040000 tree {empty}\tempty\0");
    let commit = repository.commit_tree(lines.as_bytes());
    repository.git(&["reset", "-q", "--soft", &commit]);
    let server = Server::of(repository.pack());
    let volumes = Volumes::new();
    provision(&server, &volumes);
    let app = volumes.at("workspace/app");
    assert_eq!(succeed(&mut git(&app), &["status", "--porcelain"]), "");
}

#[test]
fn sha256_repositories_work() {
    let repository = Repository::of_format("sha256");
    repository.write("src/a.txt", "a\n");
    repository.write("b", "b\n");
    repository.commit("first");
    let volumes = same_as_clone(&repository);
    let app = volumes.at("workspace/app");
    let format = succeed(&mut git(&app), &["rev-parse", "--show-object-format"]);
    assert_eq!(format, "sha256");
}

/// What attributes can do to bytes, all in one repository.
#[test]
fn files_are_written_as_git_writes_them_with_the_pinned_attributes() {
    let repository = Repository::new();
    repository.git(&["config", "core.autocrlf", "false"]);
    let root = "# rules\n* text=auto\n*.bat eol=crlf\n*.auto text=auto eol=crlf\n*.bin binary\n\
        *.id ident\n*.u16 text working-tree-encoding=UTF-16LE-BOM eol=crlf\n\
        *.l1 working-tree-encoding=ISO-8859-1\n[attr]dos text eol=crlf\n\"sp ace*\" dos\n\
        /top.x eol=crlf\nsub/**/deep.x eol=crlf\n*.lf text eol=lf\n*.none -text\n\
        *.filtered filter=evil text eol=crlf\n!neg.x eol=crlf\ndir/ eol=crlf\n[a-c]lass.y eol=crlf\n";
    repository.write(".gitattributes", root);
    repository.write(
        "sub/.gitattributes",
        "*.bat -text\n/only.y eol=crlf\n[attr]no eol=crlf\n*.z no\n",
    );
    let text = "one\ntwo\nthree\n";
    for name in [
        "a.bat",
        "a.auto",
        "a.bin",
        "a.lf",
        "a.none",
        "a.filtered",
        "sp ace 1",
        "top.x",
        "neg.x",
        "dir/a.x",
        "sub/top.x",
        "sub/deep.x",
        "sub/a/b/deep.x",
        "sub/a.bat",
        "sub/only.y",
        "sub/x/only.y",
        "sub/a.z",
        "class.y",
        "blass.y",
        "dlass.y",
        "plain",
    ] {
        repository.write(name, text);
    }
    repository.write("binary.auto", b"a\0b\nc\n");
    repository.write("control.auto", [b"\x01\x02\x03\n".as_slice(); 9].concat());
    repository.write("eof.auto", b"a\nb\x1a");
    repository.write("empty.bat", "");
    repository.write("no-newline.bat", "a\nb");
    repository.write(
        "a.id",
        "$Id$ x $Id: old $ y $Id: two words $ z $Id\n$Ident$\n",
    );
    repository.write("no.id", "nothing to expand\n");
    repository.write(
        "a.u16",
        "\u{feff}grün\n€\n"
            .encode_utf16()
            .flat_map(u16::to_le_bytes)
            .collect::<Vec<_>>(),
    );
    repository.write("a.l1", b"gr\xfcn\n");
    // A mixed file is stored as it is where nothing says text.
    repository.write("mixed.none", "a\r\nb\nc\rd\n");
    repository.commit("rules");
    same_as_clone(&repository);
}

#[test]
fn an_encoding_that_is_not_known_is_an_error_that_names_file_and_encoding() {
    let repository = Repository::new();
    repository.write("dir/a.txt", "a\n");
    repository.commit("plain");
    let blob = repository.blob(b"*.txt working-tree-encoding=EBCDIC-INT\n");
    let dir = repository.git(&["rev-parse", "HEAD:dir"]);
    let lines = format!("100644 blob {blob}\t.gitattributes\x00040000 tree {dir}\tdir\0");
    let commit = repository.commit_tree(lines.as_bytes());
    let (failure, _) = failure(&Server::of(repository.pack_of(&commit)), &Volumes::new());
    assert_eq!(failure.reason, Reason::CheckoutFailed);
    assert!(failure.message.contains("dir/a.txt") && failure.message.contains("EBCDIC-INT"));
}

#[test]
fn a_large_file_is_streamed() {
    let repository = Repository::new();
    let mut state = 1_u64;
    let noise: Vec<u8> = std::iter::repeat_with(|| {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        state.to_be_bytes()[0]
    })
    .take(17 << 20)
    .collect();
    repository.write("noise.bin", &noise);
    repository.write("zeros.bin", vec![0; 40 << 20]);
    repository.commit("large");
    let server = Server::of(repository.pack());
    let volumes = Volumes::new();
    let input = provision(&server, &volumes);
    assert_eq!(input.bytes, (17 << 20) + (40 << 20));
    assert!(fs::read(volumes.at("workspace/app/noise.bin")).unwrap() == noise);
    assert!(volumes.run("collect", &server).status.success());
    let drift = server
        .with(|s| s.outcome.clone())
        .unwrap()
        .inputs
        .remove(0)
        .drift;
    assert_eq!(drift, sandboxrun::api::wire::Drift::Unchanged);
}

#[rstest]
#[case::branch(Some("refs/heads/feat/ü"), "## feat/ü...origin/feat/ü")]
#[case::tag(Some("refs/tags/v1"), "## HEAD (no branch)")]
#[case::other(Some("refs/pull/7/head"), "## HEAD (no branch)")]
#[case::commit(None, "## HEAD (no branch)")]
fn refs_are_as_a_user_expects(#[case] resolved: Option<&str>, #[case] status: &str) {
    let pack = Repository::usual().pack();
    let mut planned = pack.planned("app");
    planned.resolved_ref = resolved.map(|name| name.parse().unwrap());
    planned.path = "group/lib".to_owned();
    let server = Server::new(vec![(planned, pack)]);
    let volumes = Volumes::new();
    provision(&server, &volumes);
    let lib = volumes.at("workspace/group/lib");
    let in_lib = |args: &[&str]| succeed(&mut git(&lib), args);
    assert_eq!(
        in_lib(&["-c", "core.quotePath=false", "status", "-sb"]),
        status
    );
    if resolved == Some("refs/tags/v1") {
        assert_eq!(in_lib(&["describe", "--tags"]), "v1");
    }
    let fetch = in_lib(&["config", "remote.origin.fetch"]);
    assert!(fetch.starts_with("+refs/heads/"), "{fetch}");
}

#[test]
fn prompt_and_context_are_written() {
    let server = Server::new(Vec::new());
    server.with(|state| {
        let plan = state.plan.as_mut().unwrap();
        plan.prompt = Some("do it\n".to_owned());
        plan.context = vec![ContextFile {
            path: "a/b.md".to_owned(),
            content: "b".to_owned(),
        }];
    });
    let volumes = Volumes::new();
    assert!(volumes.run("provision", &server).status.success());
    assert_eq!(
        fs::read_to_string(volumes.at("sandbox/prompt.md")).unwrap(),
        "do it\n"
    );
    assert_eq!(
        fs::read_to_string(volumes.at("sandbox/context/a/b.md")).unwrap(),
        "b"
    );
    assert!(volumes.at("sandbox/output").is_dir());
}

#[test]
fn v02_a_second_start_gives_the_same_and_leaves_what_is_not_ours() {
    let server = Server::of(Repository::usual().pack());
    let volumes = Volumes::new();
    fs::create_dir(volumes.at("workspace/lost+found")).unwrap();
    fs::write(volumes.at("workspace/lost+found/x"), "x").unwrap();
    provision(&server, &volumes);
    let first = tree(&volumes.at("workspace"));
    let app = volumes.at("workspace/app");
    fs::write(app.join("left over"), "x").unwrap();
    fs::write(app.join("README.md"), "changed").unwrap();
    fs::set_permissions(app.join("src"), fs::Permissions::from_mode(0o700)).unwrap();
    provision(&server, &volumes);
    assert!(tree(&volumes.at("workspace")) == first);
    assert_eq!(succeed(&mut git(&app), &["status", "--porcelain"]), "");
}

#[test]
fn v03_a_submodule_is_an_empty_directory_and_reported() {
    let repository = Repository::usual();
    let gitlink = format!("160000,{},{}", "1".repeat(40), "libs/sub");
    repository.git(&["update-index", "--add", "--cacheinfo", &gitlink]);
    repository.git(&["commit", "-q", "-m", "a submodule without .gitmodules"]);
    let server = Server::of(repository.pack());
    let volumes = Volumes::new();
    let input = provision(&server, &volumes);
    assert_eq!(input.submodules, ["libs/sub"]);
    let app = volumes.at("workspace/app");
    assert_eq!(fs::read_dir(app.join("libs/sub")).unwrap().count(), 0);
    assert_eq!(succeed(&mut git(&app), &["status", "--porcelain"]), "");
    let calls = server.with(|state| state.requests.clone());
    assert!(calls.iter().all(|call| call.contains("/v1/")), "{calls:?}");
}

#[test]
fn v04_lfs_pointers_stay_pointers_and_are_counted() {
    let repository = Repository::new();
    let pointer = "version https://git-lfs.github.com/spec/v1\noid sha256:aa\nsize 5\n";
    repository.write("a.bin", pointer);
    repository.write("b.bin", pointer);
    repository.write("c.txt", "no pointer\n");
    repository.commit("pointers");
    // Written after the commit, since git here would look for the filter.
    let server = Server::of(repository.pack());
    let volumes = Volumes::new();
    assert_eq!(provision(&server, &volumes).lfs_pointers, 2);
    assert_eq!(
        fs::read_to_string(volumes.at("workspace/app/a.bin")).unwrap(),
        pointer
    );
}

/// Trees that git would not make, line by line for `git mktree`.
#[rstest]
#[case::dot_git("100644 blob {blob}\t.git\0")]
#[case::upper("100644 blob {blob}\t.GIT\0")]
#[case::ntfs("100644 blob {blob}\tgit~1\0")]
#[case::dot_git_directory("040000 tree {tree}\t.git\0")]
#[case::link_then_directory("120000 blob {link}\ta\x00040000 tree {tree}\ta\0")]
#[case::linked_rules("120000 blob {link}\t.gitmodules\0")]
fn v05_a_path_that_leads_out_is_refused(#[case] lines: &str) {
    let repository = Repository::new();
    let outside = tempfile::tempdir().unwrap();
    let blob = repository.blob(b"evil");
    let link = repository.blob(outside.path().to_str().unwrap().as_bytes());
    let tree = repository.feed(
        &["mktree"],
        format!("100644 blob {blob}\thooks\n").as_bytes(),
    );
    let lines = lines
        .replace("{blob}", &blob)
        .replace("{link}", &link)
        .replace("{tree}", &tree);
    let commit = repository.commit_tree(lines.as_bytes());
    let (failure, output) = failure(&Server::of(repository.pack_of(&commit)), &Volumes::new());
    assert_eq!(failure.reason, Reason::UnsafePath, "{}", failure.message);
    assert_eq!(failure.input.unwrap().as_str(), "app");
    assert!(String::from_utf8_lossy(&output.stderr).contains("sandbox.input_checkout_failed"));
    assert_eq!(fs::read_dir(outside.path()).unwrap().count(), 0);
}

#[test]
fn v05_names_of_a_tree_with_slashes_and_dots_are_refused() {
    // `git mktree` does not make these: the bytes of the tree are written as they are.
    for name in ["..", ".", "a/b", "../../x"] {
        let repository = Repository::new();
        let blob = repository.blob(b"evil");
        let raw: Vec<u8> = blob
            .as_bytes()
            .chunks_exact(2)
            .map(|pair| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap())
            .collect();
        let content = [format!("100644 {name}\0").as_bytes(), &raw].concat();
        let tree = repository.feed(
            &["hash-object", "-w", "-t", "tree", "--literally", "--stdin"],
            &content,
        );
        let commit = repository.git(&["commit-tree", "-m", "evil", &tree]);
        let pack = repository.pack_objects(&[&commit, &tree, &blob]);
        let pack = PackOf { commit, ..pack };
        let (failure, _) = failure(&Server::of(pack), &Volumes::new());
        assert_eq!(
            failure.reason,
            Reason::UnsafePath,
            "{name}: {}",
            failure.message
        );
    }
}

#[test]
fn v05_nothing_of_the_repository_runs() {
    let repository = Repository::new();
    let marker = repository.at("ran");
    repository.write(".gitattributes", "* filter=evil\n*.txt text eol=crlf\n");
    repository.write("a.txt", "a\n");
    repository.write(".gitconfig", "[filter \"evil\"]\n\tsmudge = touch ran\n");
    repository.commit("filters");
    let server = Server::of(repository.pack());
    let volumes = Volumes::new();
    let mut command = volumes.command("provision", &server);
    // Even where the machine's own configuration names the filter.
    let home = tempfile::tempdir().unwrap();
    let smudge = format!("[filter \"evil\"]\n\tsmudge = touch {}\n", marker.display());
    fs::write(home.path().join(".gitconfig"), smudge).unwrap();
    assert!(command.env("HOME", home.path()).status().unwrap().success());
    assert!(!marker.exists());
    let app = volumes.at("workspace/app");
    assert_eq!(fs::read_to_string(app.join("a.txt")).unwrap(), "a\r\n");
    assert!(!app.join(".git/hooks").exists());
}

#[test]
fn a_broken_transfer_is_resumed_where_it_broke() {
    let pack = Repository::usual().pack();
    let path = "/v1/packs/app/pack";
    let length = pack.pack.len();
    let server = Server::of(pack);
    server.with(|state| state.cuts.insert(path.to_owned(), vec![10, 0, length / 3]));
    let volumes = Volumes::new();
    provision(&server, &volumes);
    let calls = server.with(|state| state.requests.clone());
    let of_pack: Vec<_> = calls.iter().filter(|call| call.contains(path)).collect();
    assert_eq!(
        of_pack,
        [
            &format!("GET {path}"),
            &format!("GET {path} bytes=10-"),
            &format!("GET {path} bytes=10-"),
            &format!("GET {path} bytes={}-", 10 + length / 3),
        ]
    );
}

#[test]
fn a_pack_that_is_not_what_was_announced_is_refused() {
    type Break = fn(&mut Vec<u8>);
    let breaks: [(&str, Break, &str); 4] = [
        ("pack", |b| b[40] ^= 1, "SHA-256"),
        ("pack", |b| b.push(0), "longer than"),
        ("pack", |b| b.truncate(b.len() - 7), "broke off"),
        ("idx", |b| b[1100] ^= 1, "SHA-256"),
    ];
    for (part, break_it, said) in breaks {
        let server = Server::of(Repository::usual().pack());
        server.with(|state| {
            break_it(
                state
                    .files
                    .get_mut(&format!("/v1/packs/app/{part}"))
                    .unwrap(),
            );
        });
        let (failure, _) = failure(&server, &Volumes::new());
        assert_eq!(failure.reason, Reason::PackInvalid);
        assert_eq!(failure.input.unwrap().as_str(), "app");
        assert!(failure.message.contains(said), "{}", failure.message);
    }
}

/// The gateway itself was deceived: hashes fit, but the pack does not hold the commit.
#[test]
fn a_pack_without_the_pinned_commit_or_with_other_objects_is_refused() {
    let repository = Repository::usual();
    let other = Repository::usual();
    other.write("README.md", "other\n");
    let wrong = PackOf {
        commit: repository.pack().commit,
        ..{
            other.commit("x");
            other.pack()
        }
    };
    let (failure_of_wrong, _) = failure(&Server::of(wrong), &Volumes::new());
    assert_eq!(failure_of_wrong.reason, Reason::PackInvalid);
    assert!(
        failure_of_wrong.message.contains("missing"),
        "{}",
        failure_of_wrong.message
    );

    // A blob is missing.
    let head = repository.git(&["rev-parse", "HEAD"]);
    let tree = repository.git(&["rev-parse", "HEAD^{tree}"]);
    let partial = PackOf {
        commit: head.clone(),
        ..repository.pack_objects(&[&head, &tree])
    };
    assert_eq!(
        failure(&Server::of(partial), &Volumes::new()).0.reason,
        Reason::PackInvalid
    );

    // Pack and index of two packs.
    let mixed = PackOf {
        index: other.pack().index,
        ..repository.pack()
    };
    assert_eq!(
        failure(&Server::of(mixed), &Volumes::new()).0.reason,
        Reason::PackInvalid
    );
}

#[test]
fn one_of_three_inputs_fails_and_none_is_left() {
    let pack = Repository::usual().pack();
    let inputs = ["a", "b", "c"].map(|name| (pack.planned(name), pack.clone()));
    let server = Server::new(inputs.into());
    server.with(|state| state.files.remove("/v1/packs/b/pack"));
    let (failure, output) = failure(&server, &Volumes::new());
    assert_eq!(failure.input.as_ref().unwrap().as_str(), "b");
    assert!(String::from_utf8_lossy(&output.stderr).contains("input `b`"));
}

#[test]
fn a_process_that_is_killed_leaves_nothing_that_looks_complete() {
    let pack = Repository::usual().pack();
    let inputs = ["a", "b"].map(|name| (pack.planned(name), pack.clone()));
    let server = Server::new(inputs.into());
    let volumes = Volumes::new();
    server.with(|state| state.hang = Some("/v1/packs/b/pack".to_owned()));
    let mut child = volumes.command("provision", &server).spawn().unwrap();
    let ready = volumes.at("workspace/.sandboxrun-staging/a/.git/HEAD");
    until("input a is made", || ready.exists());
    child.kill().unwrap();
    child.wait().unwrap();
    assert!(!volumes.at("workspace/a").exists());
    assert!(!volumes.at("baseline/inputs.json").exists());
    assert!(server.with(|state| state.provisioned.is_none()));

    server.with(|state| state.hang = None);
    provision(&server, &volumes);
    assert!(volumes.at("workspace/a/README.md").exists());
    assert!(!volumes.at("workspace/.sandboxrun-staging").exists());
}

#[test]
fn a_gateway_that_does_not_take_the_report_is_a_failure() {
    let server = Server::of(Repository::usual().pack());
    server.refuse("/v1/provisioned", usize::MAX, 409, Reason::RunAbandoned);
    let volumes = Volumes::new();
    let output = volumes.run("provision", &server);
    assert_eq!(output.status.code(), Some(1));
}

#[test]
fn a_gateway_that_is_away_for_a_moment_is_waited_for() {
    let server = Server::of(Repository::usual().pack());
    server.refuse("/v1/plan", 2, 503, Reason::GatewayBusy);
    server.refuse("/v1/packs/app/idx", 1, 503, Reason::GatewayBusy);
    server.refuse("/v1/provisioned", 2, 503, Reason::GatewayBusy);
    provision(&server, &Volumes::new());
}

/// V06. Needs root, for a small file system.
#[test]
fn v06_a_full_volume_is_said_with_its_sizes_and_nothing_is_left() {
    let repository = Repository::usual();
    repository.write("large", vec![7; 3 << 20]);
    repository.commit("large");
    let volumes = Volumes::new();
    let workspace = volumes.at("workspace");
    let mounted = Command::new("mount")
        .args(["-t", "tmpfs", "-o", "size=1m", "tmpfs"])
        .arg(&workspace)
        .output()
        .is_ok_and(|output| output.status.success());
    if !mounted {
        eprintln!("skipped: mounting a small tmpfs needs root");
        return;
    }
    let _unmount = Unmount(&workspace);
    let (failure, _) = failure(&Server::of(repository.pack()), &volumes);
    assert_eq!(failure.reason, Reason::NoSpaceForInputs);
    assert!(
        failure.message.contains("the volume has 1 MiB"),
        "{}",
        failure.message
    );
    assert_eq!(failure.input.unwrap().as_str(), "app");
}

struct Unmount<'a>(&'a Path);

impl Drop for Unmount<'_> {
    fn drop(&mut self) {
        let _unmounted = Command::new("umount").arg(self.0).status();
    }
}
