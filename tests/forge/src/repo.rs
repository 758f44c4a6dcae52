//! Repositories for tests, made by stock git. Author, committer and times are made up and fixed, so the same
//! calls give the same ids on every machine.

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use crate::ForgeError;
use crate::error::doing;
use crate::git::{self, EPOCH};

const WHO: &str = "Demo Forge <forge@example.com>";

/// The hash that a repository's ids are made with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ObjectFormat {
    /// 40 hexadecimal digits.
    Sha1,
    /// 64 hexadecimal digits.
    Sha256,
}

/// One change of a commit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// Writes a regular file.
    File {
        /// Where.
        path: String,
        /// Its bytes.
        content: Vec<u8>,
        /// Whether it can be executed.
        executable: bool,
    },
    /// Writes a symbolic link.
    Symlink {
        /// Where.
        path: String,
        /// What it says.
        target: String,
    },
    /// Writes a submodule entry. `.gitmodules` is a file of its own.
    Gitlink {
        /// Where.
        path: String,
        /// The commit of the other repository.
        commit: String,
    },
    /// Removes a path.
    Delete {
        /// Which.
        path: String,
    },
}

impl Change {
    /// A regular file.
    pub fn file(path: impl Into<String>, content: impl Into<Vec<u8>>) -> Self {
        Self::File {
            path: path.into(),
            content: content.into(),
            executable: false,
        }
    }

    /// A file that can be executed.
    pub fn executable(path: impl Into<String>, content: impl Into<Vec<u8>>) -> Self {
        Self::File {
            path: path.into(),
            content: content.into(),
            executable: true,
        }
    }

    /// A symbolic link.
    pub fn symlink(path: impl Into<String>, target: impl Into<String>) -> Self {
        Self::Symlink {
            path: path.into(),
            target: target.into(),
        }
    }

    /// A submodule entry.
    pub fn gitlink(path: impl Into<String>, commit: impl Into<String>) -> Self {
        Self::Gitlink {
            path: path.into(),
            commit: commit.into(),
        }
    }

    /// A file as git LFS leaves it in the repository: it stands for `size` bytes that are elsewhere.
    pub fn lfs_pointer(path: impl Into<String>, size: u64) -> Self {
        let id = "4d7a214614ab2935c943f9e0ff69d22eadbb8f32b1258daaa5e2ca24d17e2393";
        let spec = "https://git-lfs.github.com/spec/v1";
        Self::file(
            path,
            format!("version {spec}\noid sha256:{id}\nsize {size}\n"),
        )
    }

    /// A removal.
    pub fn delete(path: impl Into<String>) -> Self {
        Self::Delete { path: path.into() }
    }

    fn write(&self, stream: &mut Vec<u8>) {
        match self {
            Self::File {
                path,
                content,
                executable,
            } => {
                let mode = if *executable { "100755" } else { "100644" };
                blob(stream, mode, path, content);
            }
            Self::Symlink { path, target } => blob(stream, "120000", path, target.as_bytes()),
            Self::Gitlink { path, commit } => {
                line(stream, &format!("M 160000 {commit} {}", quoted(path)));
            }
            Self::Delete { path } => line(stream, &format!("D {}", quoted(path))),
        }
    }
}

/// A repository on disk.
#[derive(Debug)]
pub struct Repo {
    git_dir: PathBuf,
    clock: AtomicU64,
}

impl Repo {
    /// Makes an empty bare repository whose HEAD is `main`.
    ///
    /// # Errors
    /// When git fails.
    pub fn init(git_dir: impl Into<PathBuf>, format: ObjectFormat) -> Result<Self, ForgeError> {
        let git_dir = git_dir.into();
        fs::create_dir_all(&git_dir).map_err(doing(format!("making {}", git_dir.display())))?;
        let format = match format {
            ObjectFormat::Sha1 => "--object-format=sha1",
            ObjectFormat::Sha256 => "--object-format=sha256",
        };
        let args = [
            "init",
            "--quiet",
            "--bare",
            "--template=",
            "--initial-branch=main",
            format,
        ];
        git::run(&git_dir, &args, &[], b"")?;
        Ok(Self::open(git_dir))
    }

    /// Takes a repository that is there.
    #[must_use]
    pub fn open(git_dir: impl Into<PathBuf>) -> Self {
        Self {
            git_dir: git_dir.into(),
            clock: AtomicU64::new(0),
        }
    }

    /// Its git directory.
    #[must_use]
    pub fn git_dir(&self) -> &Path {
        &self.git_dir
    }

    /// Runs stock git in it and returns what it printed, without white space at the end.
    ///
    /// # Errors
    /// When git fails.
    pub fn git(&self, args: &[&str]) -> Result<String, ForgeError> {
        self.git_with(args, b"")
    }

    /// The same, with input.
    ///
    /// # Errors
    /// When git fails.
    pub fn git_with(&self, args: &[&str], input: &[u8]) -> Result<String, ForgeError> {
        let date = format!("@{} +0000", self.now());
        let env = [
            ("GIT_DIR", self.git_dir.display().to_string()),
            ("GIT_AUTHOR_NAME", "Demo Forge".to_owned()),
            ("GIT_AUTHOR_EMAIL", "forge@example.com".to_owned()),
            ("GIT_AUTHOR_DATE", date.clone()),
            ("GIT_COMMITTER_NAME", "Demo Forge".to_owned()),
            ("GIT_COMMITTER_EMAIL", "forge@example.com".to_owned()),
            ("GIT_COMMITTER_DATE", date),
        ];
        let output = git::run(&self.git_dir, args, &env, input)?;
        Ok(String::from_utf8_lossy(&output).trim_end().to_owned())
    }

    /// Commits on top of a branch (`main`) or of any full ref (`refs/pull/7/head`), which is made if need
    /// be, and returns the commit's id.
    ///
    /// # Errors
    /// When git fails.
    pub fn commit(&self, branch: &str, changes: &[Change]) -> Result<String, ForgeError> {
        let name = full_name(branch);
        let parent = self.find(&name);
        self.commit_from(branch, parent.as_deref(), changes)
    }

    /// Commits on top of `parent` (or of nothing) and points the branch there, whatever it pointed to: a
    /// forced push.
    ///
    /// # Errors
    /// When git fails.
    pub fn commit_from(
        &self,
        branch: &str,
        parent: Option<&str>,
        changes: &[Change],
    ) -> Result<String, ForgeError> {
        let name = full_name(branch);
        let mut stream = Vec::new();
        line(&mut stream, &format!("commit {name}"));
        line(
            &mut stream,
            &format!("committer {WHO} {} +0000", self.tick()),
        );
        data(
            &mut stream,
            format!("Change {} paths\n", changes.len()).as_bytes(),
        );
        match parent {
            Some(parent) => line(&mut stream, &format!("from {parent}")),
            None => line(&mut stream, "deleteall"),
        }
        for change in changes {
            change.write(&mut stream);
        }
        if parent.is_none() {
            // Without `from`, fast-import would build on what the ref points to.
            self.delete_ref(&name)?;
        }
        self.import(&stream)?;
        self.git(&["rev-parse", "--verify", &name])
    }

    /// Feeds a stream to `git fast-import`.
    ///
    /// # Errors
    /// When git fails.
    pub fn import(&self, stream: &[u8]) -> Result<(), ForgeError> {
        self.git_with(
            &["fast-import", "--quiet", "--force", "--date-format=raw"],
            stream,
        )?;
        Ok(())
    }

    /// Points a branch at a commit.
    ///
    /// # Errors
    /// When git fails.
    pub fn branch(&self, name: &str, id: &str) -> Result<(), ForgeError> {
        self.set_ref(&full_name(name), id)
    }

    /// Points any full ref at any object.
    ///
    /// # Errors
    /// When git fails.
    pub fn set_ref(&self, name: &str, id: &str) -> Result<(), ForgeError> {
        self.git(&["update-ref", name, id]).map(drop)
    }

    /// Removes a ref, if it is there.
    ///
    /// # Errors
    /// When git fails.
    pub fn delete_ref(&self, name: &str) -> Result<(), ForgeError> {
        self.git(&["update-ref", "-d", name]).map(drop)
    }

    /// Points HEAD at a branch.
    ///
    /// # Errors
    /// When git fails.
    pub fn set_head(&self, branch: &str) -> Result<(), ForgeError> {
        self.git(&["symbolic-ref", "HEAD", &full_name(branch)])
            .map(drop)
    }

    /// Makes a lightweight tag of any object.
    ///
    /// # Errors
    /// When git fails.
    pub fn tag(&self, name: &str, id: &str) -> Result<(), ForgeError> {
        self.set_ref(&format!("refs/tags/{name}"), id)
    }

    /// Makes an annotated tag of any object (a commit, a tree, another tag) and returns its own id.
    ///
    /// # Errors
    /// When git fails.
    pub fn annotated_tag(&self, name: &str, id: &str) -> Result<String, ForgeError> {
        self.tick();
        self.git(&["tag", "--force", "--annotate", "--message", name, name, id])?;
        self.git(&["rev-parse", "--verify", &format!("refs/tags/{name}")])
    }

    /// The tree of a commit.
    ///
    /// # Errors
    /// When git fails.
    pub fn tree_of(&self, commit: &str) -> Result<String, ForgeError> {
        self.git(&["rev-parse", "--verify", &format!("{commit}^{{tree}}")])
    }

    /// The id that a full ref has, if it is there.
    #[must_use]
    pub fn find(&self, name: &str) -> Option<String> {
        self.git(&["rev-parse", "--quiet", "--verify", name]).ok()
    }

    /// The hash that its ids are made with.
    ///
    /// # Errors
    /// When git fails.
    pub fn format(&self) -> Result<ObjectFormat, ForgeError> {
        let name = self.git(&["rev-parse", "--show-object-format"])?;
        Ok(if name == "sha256" {
            ObjectFormat::Sha256
        } else {
            ObjectFormat::Sha1
        })
    }

    /// The time of the next object.
    pub(crate) fn now(&self) -> u64 {
        EPOCH + 60 * self.clock.load(Ordering::Relaxed)
    }

    /// Lets a minute pass and returns the new time.
    pub(crate) fn tick(&self) -> u64 {
        EPOCH + 60 * (self.clock.fetch_add(1, Ordering::Relaxed) + 1)
    }
}

fn full_name(branch: &str) -> String {
    if branch.starts_with("refs/") {
        branch.to_owned()
    } else {
        format!("refs/heads/{branch}")
    }
}

pub(crate) fn line(stream: &mut Vec<u8>, text: &str) {
    stream.extend_from_slice(text.as_bytes());
    stream.push(b'\n');
}

pub(crate) fn data(stream: &mut Vec<u8>, bytes: &[u8]) {
    line(stream, &format!("data {}", bytes.len()));
    stream.extend_from_slice(bytes);
    stream.push(b'\n');
}

pub(crate) fn blob(stream: &mut Vec<u8>, mode: &str, path: &str, content: &[u8]) {
    line(stream, &format!("M {mode} inline {}", quoted(path)));
    data(stream, content);
}

/// A path as fast-import reads it, whatever is in it.
fn quoted(path: &str) -> String {
    let mut out = String::with_capacity(path.len() + 2);
    out.push('"');
    for c in path.chars() {
        match c {
            '"' | '\\' => out.extend(['\\', c]),
            c if c.is_control() => {
                for byte in c.to_string().bytes() {
                    _ = write!(out, "\\{byte:03o}");
                }
            }
            c => out.push(c),
        }
    }
    out.push('"');
    out
}
