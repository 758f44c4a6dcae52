//! What the tests of the mirror add to the common world: our own program as git's helper, and looks into packs.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use demo_forge::Options;
use sandboxrun::api::{CommitId, Failure, Fault as _, Reason, RefSelector};
use sandboxrun::inputs::{PackLease, ResolvedInput, Settings};

use crate::support::{World, input};

/// A world whose git asks our own program for credentials.
pub(crate) async fn world() -> World {
    tuned(Options::new(), |_| {}).await
}

pub(crate) async fn tuned(options: Options, tune: impl FnOnce(&mut Settings)) -> World {
    World::tuned(options, |settings| {
        settings.fetch.helper_program = env!("CARGO_BIN_EXE_sandboxrun").into();
        settings.fetch.keep_free_bytes = 0;
        tune(settings);
    })
    .await
}

/// Resolves one input of `acme/app` to this depth and gets its pack.
pub(crate) async fn pack(
    world: &World,
    selector: RefSelector,
    depth: Option<u32>,
) -> Result<PackLease, Failure> {
    let resolved = resolve(world, selector, depth).await?;
    world.inputs.pack(&world.namespace, &resolved).await
}

pub(crate) async fn resolve(
    world: &World,
    selector: RefSelector,
    depth: Option<u32>,
) -> Result<ResolvedInput, Failure> {
    let mut app = input("app", "acme/app", selector);
    app.depth = depth;
    let resolved = world.resolve(vec![app]).await?;
    Ok(resolved.into_iter().next().unwrap())
}

/// The failure of a fetch, which must name the input.
pub(crate) async fn fails(world: &World, selector: RefSelector, depth: Option<u32>) -> Reason {
    let failure = pack(world, selector, depth).await.unwrap_err();
    assert_eq!(
        failure.input.as_ref().map(ToString::to_string),
        Some("app".to_owned())
    );
    assert!(failure.message.contains("acme/app"), "{failure}");
    eprintln!("{}: {failure}", failure.reason());
    failure.reason()
}

/// Unpacks a lease as a pod would, with stock git, and says what is in it. All objects must be there.
pub(crate) struct Opened {
    dir: tempfile::TempDir,
}

impl Opened {
    pub(crate) fn new(lease: &PackLease, commit: &CommitId) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let opened = Self { dir };
        let format = format!("--object-format={}", commit.format());
        opened.git(&["init", "-q", "--bare", &format, "."]);
        let packs = opened.dir.path().join("objects/pack");
        std::fs::copy(&lease.pack, packs.join("pack-x.pack")).unwrap();
        std::fs::copy(&lease.index, packs.join("pack-x.idx")).unwrap();
        let cuts: Vec<&str> = lease
            .shallow
            .iter()
            .flat_map(|id| [id.as_str(), "\n"])
            .collect();
        if !cuts.is_empty() {
            std::fs::write(opened.dir.path().join("shallow"), cuts.concat()).unwrap();
        }
        opened.git(&["verify-pack", "objects/pack/pack-x.idx"]);
        opened.git(&["update-ref", "refs/heads/x", commit.as_str()]);
        opened.git(&["fsck", "--strict", "--no-dangling"]);
        opened
    }

    /// The commits, as ids.
    pub(crate) fn history(&self) -> BTreeSet<String> {
        self.git(&["rev-list", "refs/heads/x"])
            .lines()
            .map(str::to_owned)
            .collect()
    }

    /// Objects in the pack that the commit does not need.
    pub(crate) fn surplus(&self) -> BTreeSet<String> {
        let all = self.git(&[
            "cat-file",
            "--batch-all-objects",
            "--batch-check=%(objectname)",
        ]);
        let needed = self.git(&["rev-list", "--objects", "--no-object-names", "refs/heads/x"]);
        let needed: BTreeSet<&str> = needed.lines().collect();
        all.lines()
            .filter(|id| !needed.contains(id))
            .map(str::to_owned)
            .collect()
    }

    pub(crate) fn file(&self, path: &str) -> String {
        self.git(&["cat-file", "blob", &format!("refs/heads/x:{path}")])
    }

    fn git(&self, args: &[&str]) -> String {
        git(self.dir.path(), args)
    }
}

/// Stock git in a directory.
pub(crate) fn git(dir: &Path, args: &[&str]) -> String {
    let mut command = Command::new("git");
    command.args(args).current_dir(dir);
    command
        .env("GIT_CONFIG_NOSYSTEM", "1")
        .env("GIT_CONFIG_GLOBAL", "/dev/null");
    let output = command.output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(
        output.status.success(),
        "{args:?}: {}",
        String::from_utf8_lossy(&output.stderr)
    );
    text
}

/// All files below a directory.
pub(crate) fn files(dir: &Path) -> Vec<std::path::PathBuf> {
    let mut found = Vec::new();
    let mut todo = vec![dir.to_owned()];
    while let Some(dir) = todo.pop() {
        for entry in std::fs::read_dir(&dir).into_iter().flatten().flatten() {
            match entry.file_type() {
                Ok(kind) if kind.is_dir() => todo.push(entry.path()),
                _ => found.push(entry.path()),
            }
        }
    }
    found
}

/// Waits until it is so; at most 20 seconds.
pub(crate) async fn until(what: &str, so: impl Fn() -> bool) {
    for _ in 0..2000 {
        if so() {
            return;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("it never came to this: {what}");
}

/// Processes that carry this directory in their environment or arguments.
pub(crate) fn processes_of(dir: &Path) -> Vec<String> {
    let needle = dir.to_str().unwrap().as_bytes();
    let holds = |bytes: &[u8]| bytes.windows(needle.len()).any(|window| window == needle);
    let mut found = Vec::new();
    for entry in std::fs::read_dir("/proc").unwrap().flatten() {
        let Ok(pid) = entry.file_name().to_string_lossy().parse::<u32>() else {
            continue;
        };
        if pid == std::process::id() {
            continue;
        }
        let read = |name: &str| std::fs::read(entry.path().join(name)).unwrap_or_default();
        if holds(&read("environ")) || holds(&read("cmdline")) {
            found.push(String::from_utf8_lossy(&read("cmdline")).replace('\0', " "));
        }
    }
    found
}
