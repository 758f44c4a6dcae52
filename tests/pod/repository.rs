//! Repositories made by stock git, and the packs that a gateway would serve of them.

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use aws_lc_rs::digest;
use sandboxrun::api::wire::{Blob, PlannedInput};

use crate::succeed;

/// A repository in a temporary directory.
pub(crate) struct Repository {
    pub(crate) dir: tempfile::TempDir,
}

/// A pack of one commit, without its history.
#[derive(Clone)]
pub(crate) struct PackOf {
    pub(crate) commit: String,
    pub(crate) pack: Vec<u8>,
    pub(crate) index: Vec<u8>,
}

/// Stock git with nothing of this machine's configuration.
pub(crate) fn git(dir: &Path) -> Command {
    let mut command = Command::new("git");
    command
        .current_dir(dir)
        .env_clear()
        .env("PATH", std::env::var_os("PATH").unwrap())
        .env("HOME", "/nonexistent")
        .env("GIT_CONFIG_NOSYSTEM", "1")
        .env("GIT_CONFIG_COUNT", "1")
        .env("GIT_CONFIG_KEY_0", "safe.directory")
        .env("GIT_CONFIG_VALUE_0", "*");
    for who in ["AUTHOR", "COMMITTER"] {
        command
            .env(format!("GIT_{who}_NAME"), "Ada")
            .env(format!("GIT_{who}_EMAIL"), "ada@example.com")
            .env(format!("GIT_{who}_DATE"), "2024-05-06T07:08:09Z");
    }
    command
}

impl Repository {
    pub(crate) fn new() -> Self {
        Self::of_format("sha1")
    }

    pub(crate) fn of_format(format: &str) -> Self {
        let dir = tempfile::tempdir().unwrap();
        succeed(
            &mut git(dir.path()),
            &[
                "init",
                "-q",
                "-b",
                "main",
                &format!("--object-format={format}"),
            ],
        );
        Self { dir }
    }

    /// A small tree of everything that is usual.
    pub(crate) fn usual() -> Self {
        let repository = Self::new();
        repository.write("README.md", "hello\n");
        repository.write("src/main.rs", "fn main() {}\n");
        repository.write("src/deep/er/x.txt", "x\n");
        repository.write("run.sh", "#!/bin/sh\n");
        repository.make_executable("run.sh");
        std::os::unix::fs::symlink("src/main.rs", repository.at("link")).unwrap();
        repository.commit("first");
        repository
    }

    pub(crate) fn at(&self, path: &str) -> PathBuf {
        self.dir.path().join(path)
    }

    pub(crate) fn write(&self, path: &str, content: impl AsRef<[u8]>) {
        let path = self.at(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, content).unwrap();
    }

    pub(crate) fn make_executable(&self, path: &str) {
        let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
        std::fs::set_permissions(self.at(path), mode).unwrap();
    }

    pub(crate) fn git(&self, args: &[&str]) -> String {
        succeed(&mut git(self.dir.path()), args)
    }

    /// Commits everything and returns the id.
    pub(crate) fn commit(&self, message: &str) -> String {
        self.git(&["add", "-A"]);
        self.git(&["commit", "-q", "--allow-empty", "-m", message]);
        self.git(&["rev-parse", "HEAD"])
    }

    /// A tree from `git mktree` lines, and a commit of it: for what git would not add by itself.
    pub(crate) fn commit_tree(&self, lines: &[u8]) -> String {
        let tree = self.feed(&["mktree", "-z", "--missing"], lines);
        self.git(&["commit-tree", "-m", "made", &tree])
    }

    pub(crate) fn blob(&self, content: &[u8]) -> String {
        self.feed(&["hash-object", "-w", "--stdin"], content)
    }

    pub(crate) fn feed(&self, args: &[&str], input: &[u8]) -> String {
        let mut child = git(self.dir.path())
            .args(args)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        child.stdin.take().unwrap().write_all(input).unwrap();
        let output = child.wait_with_output().unwrap();
        assert!(output.status.success(), "{args:?}");
        String::from_utf8(output.stdout)
            .unwrap()
            .trim_end()
            .to_owned()
    }

    /// The pack of HEAD.
    pub(crate) fn pack(&self) -> PackOf {
        self.pack_of(&self.git(&["rev-parse", "HEAD"]))
    }

    pub(crate) fn pack_of(&self, commit: &str) -> PackOf {
        let tree = format!("{commit}^{{tree}}");
        let objects = self.git(&["rev-list", "--objects", "--no-object-names", &tree]);
        let ids: Vec<&str> = std::iter::once(commit).chain(objects.lines()).collect();
        PackOf {
            commit: commit.to_owned(),
            ..self.pack_objects(&ids)
        }
    }

    /// A pack of exactly these objects.
    pub(crate) fn pack_objects(&self, ids: &[&str]) -> PackOf {
        let out = tempfile::tempdir().unwrap();
        let base = out.path().join("p");
        let list = ids.join("\n") + "\n";
        let name = self.feed(
            &["pack-objects", "-q", base.to_str().unwrap()],
            list.as_bytes(),
        );
        let read = |ext: &str| std::fs::read(out.path().join(format!("p-{name}.{ext}"))).unwrap();
        PackOf {
            commit: String::new(),
            pack: read("pack"),
            index: read("idx"),
        }
    }
}

impl PackOf {
    /// The plan's line for it: branch `main`, path and name alike.
    pub(crate) fn planned(&self, name: &str) -> PlannedInput {
        PlannedInput {
            name: name.parse().unwrap(),
            path: name.to_owned(),
            commit: self.commit.parse().unwrap(),
            resolved_ref: Some("refs/heads/main".parse().unwrap()),
            origin: "https://git.example.com/acme/app.git".to_owned(),
            read_only: false,
            shallow: vec![self.commit.parse().unwrap()],
            pack: blob(&self.pack),
            index: blob(&self.index),
        }
    }
}

fn blob(bytes: &[u8]) -> Blob {
    let sum = digest::digest(&digest::SHA256, bytes);
    let hex: Vec<_> = sum.as_ref().iter().map(|b| format!("{b:02x}")).collect();
    Blob {
        bytes: bytes.len() as u64,
        sha256: hex.concat(),
    }
}
