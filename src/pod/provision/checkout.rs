//! Writes the tree of a commit to disk, on all cores.
//!
//! Every tree and blob is proved to have the id by which its parent names it, so what is on disk is the pinned commit
//! whatever brought the pack. Each directory is made by us and opened without following links; files are made with
//! `O_EXCL`. A name that is there twice (a link, then a directory below it) therefore fails instead of leading out.

use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};

use rustix::fs::{self, Mode, OFlags, Timespec, Timestamps};

use super::attributes::{Attributes, Conversion};
use super::convert::ConvertError;
use super::index_file::{IndexStat, TreeRecord};
use super::safe_path::{self, UnsafeName};
use super::write_file::{self, WrittenFile};
use crate::api::{Fault, Reason, safe_text};
use crate::pod::objects::{
    Commit, Kind, Limits, ObjectError, ObjectId, Pack, PackError, PackReader, TreeEntries,
};

/// Why a commit could not be written to disk.
#[derive(Debug, thiserror::Error)]
pub enum CheckoutError {
    /// The pack does not hold the commit, whole and unharmed.
    #[error(transparent)]
    Pack(#[from] PackError),
    /// An object of the commit is broken in itself.
    #[error("object {id} is broken")]
    Object {
        /// Its id.
        id: ObjectId,
        /// What is wrong.
        #[source]
        source: ObjectError,
    },
    /// A name that must not be written.
    #[error("path `{path}`")]
    UnsafeName {
        /// The path, made safe to print.
        path: String,
        /// The rule.
        #[source]
        source: UnsafeName,
    },
    /// A name that the commit holds twice.
    #[error(
        "path `{path}` is there twice in the commit, or in two spellings that this volume takes for one"
    )]
    Twice {
        /// The path, made safe to print.
        path: String,
    },
    /// A mode that git does not know.
    #[error("path `{path}` has mode {mode:o}, which is no file, link, directory or submodule")]
    Mode {
        /// The path, made safe to print.
        path: String,
        /// The mode.
        mode: u32,
    },
    /// A file that cannot be written as its attributes ask for.
    #[error("cannot convert `{path}`")]
    Convert {
        /// The path, made safe to print.
        path: String,
        /// Why.
        #[source]
        source: ConvertError,
    },
    /// The disk did not take it.
    #[error("cannot write `{path}`")]
    Write {
        /// The path, made safe to print.
        path: String,
        /// Why.
        #[source]
        source: std::io::Error,
    },
}

impl Fault for CheckoutError {
    fn reason(&self) -> Reason {
        match self {
            Self::Pack(PackError::TooLarge { .. })
            | Self::Object { .. }
            | Self::Mode { .. }
            | Self::Convert { .. } => Reason::CheckoutFailed,
            Self::Pack(_) => Reason::PackInvalid,
            Self::UnsafeName { .. } | Self::Twice { .. } => Reason::UnsafePath,
            Self::Write { source, .. } if super::is_no_space(source) => Reason::NoSpaceForInputs,
            Self::Write { .. } => Reason::CheckoutFailed,
        }
    }
}

/// What became of one path.
#[derive(Debug, Clone)]
pub(super) struct Written {
    /// Relative to the work tree.
    pub path: Vec<u8>,
    /// The mode in the tree, in git's canonical form.
    pub mode: u32,
    /// The object.
    pub id: ObjectId,
    /// For the index.
    pub stat: IndexStat,
    /// Bytes on disk (of a link: of its target).
    pub size: u64,
    /// SHA-256 of them.
    pub sha256: [u8; 32],
    /// Whether it is an LFS pointer that stays one.
    pub lfs_pointer: bool,
}

/// Everything that was written.
#[derive(Debug, Default)]
pub(super) struct CheckedOut {
    /// Files, links and submodules, sorted by path.
    pub entries: Vec<Written>,
    /// Directories, the root among them.
    pub trees: Vec<TreeRecord>,
    /// Whether the commit has a directory without a file, which git's index cannot hold.
    pub empty_trees: bool,
}

/// Writes the tree of `commit` into the empty directory `root`. All files get the time `mtime`.
///
/// # Errors
/// The first thing that went wrong; what was written until then stays.
pub(super) fn checkout(
    pack: &Pack,
    commit: &ObjectId,
    root: OwnedFd,
    mtime: Timespec,
    threads: usize,
) -> Result<CheckedOut, CheckoutError> {
    let mut reader = pack.reader(Limits::default());
    let content = reader.read(commit, Kind::Commit)?;
    let tree = Commit::parse(&content)
        .map_err(|source| CheckoutError::Object {
            id: *commit,
            source,
        })?
        .tree;
    drop(reader);
    let queue = Queue::default();
    let root = Directory {
        fd: Arc::new(root),
        path: Arc::from([]),
        attributes: None,
    };
    queue.push(Task::Tree {
        parent: root,
        name: None,
        id: tree,
    });
    let times = Timestamps {
        last_access: mtime,
        last_modification: mtime,
    };
    let done = Mutex::new(CheckedOut::default());
    std::thread::scope(|scope| {
        for _ in 1..threads.max(1) {
            scope.spawn(|| Worker::new(pack, &queue, &times).run(&done));
        }
        Worker::new(pack, &queue, &times).run(&done);
    });
    if let Some(error) = queue.into_error() {
        return Err(error);
    }
    let mut done = done.into_inner().unwrap_or_else(PoisonError::into_inner);
    done.entries.sort_unstable_by(|a, b| a.path.cmp(&b.path));
    Ok(done)
}

/// A directory of the work tree, held open.
#[derive(Clone)]
struct Directory {
    fd: Arc<OwnedFd>,
    path: Arc<[u8]>,
    /// What holds for its files; of a directory that is not made yet, what holds above it.
    attributes: Option<Arc<Attributes>>,
}

impl Directory {
    fn join(&self, name: &[u8]) -> Vec<u8> {
        let mut path = Vec::with_capacity(self.path.len() + 1 + name.len());
        path.extend_from_slice(&self.path);
        if !path.is_empty() {
            path.push(b'/');
        }
        path.extend_from_slice(name);
        path
    }
}

enum Task {
    /// Makes a directory and what is in it. The root is there already and has no name.
    Tree {
        parent: Directory,
        name: Option<Vec<u8>>,
        id: ObjectId,
    },
    /// Writes some files of a large directory.
    Files {
        directory: Directory,
        files: Vec<File>,
    },
}

struct File {
    name: Vec<u8>,
    mode: u32,
    id: ObjectId,
}

/// A directory with more files than this is shared by several threads.
const FILES_PER_TASK: usize = 512;

/// Work that is left, the newest first, so that few directories are open at once.
#[derive(Default)]
struct Queue {
    state: Mutex<QueueState>,
    changed: Condvar,
    failed: AtomicBool,
}

#[derive(Default)]
struct QueueState {
    tasks: Vec<Task>,
    running: usize,
    error: Option<CheckoutError>,
}

impl Queue {
    fn push(&self, task: Task) {
        self.lock().tasks.push(task);
        self.changed.notify_one();
    }

    /// The next task; `None` once all work is done or something failed.
    fn take(&self) -> Option<Task> {
        let mut state = self.lock();
        loop {
            if state.error.is_some() {
                return None;
            }
            if let Some(task) = state.tasks.pop() {
                state.running += 1;
                return Some(task);
            }
            if state.running == 0 {
                return None;
            }
            state = self
                .changed
                .wait(state)
                .unwrap_or_else(PoisonError::into_inner);
        }
    }

    fn finish(&self, result: Result<(), CheckoutError>) {
        let mut state = self.lock();
        state.running -= 1;
        if let Err(error) = result {
            self.failed.store(true, Ordering::Relaxed);
            state.error.get_or_insert(error);
        }
        if state.error.is_some() || (state.running == 0 && state.tasks.is_empty()) {
            self.changed.notify_all();
        }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, QueueState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn into_error(self) -> Option<CheckoutError> {
        self.state
            .into_inner()
            .unwrap_or_else(PoisonError::into_inner)
            .error
    }
}

struct Worker<'a> {
    reader: PackReader<'a>,
    pack: &'a Pack,
    queue: &'a Queue,
    times: &'a Timestamps,
    made: CheckedOut,
}

impl<'a> Worker<'a> {
    fn new(pack: &'a Pack, queue: &'a Queue, times: &'a Timestamps) -> Self {
        let reader = pack.reader(Limits::default());
        Self {
            reader,
            pack,
            queue,
            times,
            made: CheckedOut::default(),
        }
    }

    fn run(mut self, done: &Mutex<CheckedOut>) {
        while let Some(task) = self.queue.take() {
            let result = match task {
                Task::Tree { parent, name, id } => self.tree(&parent, name.as_deref(), id),
                Task::Files { directory, files } => self.files(&directory, &files),
            };
            self.queue.finish(result);
        }
        let mut all = done.lock().unwrap_or_else(PoisonError::into_inner);
        all.entries.append(&mut self.made.entries);
        all.trees.append(&mut self.made.trees);
        all.empty_trees |= self.made.empty_trees;
    }

    fn tree(
        &mut self,
        parent: &Directory,
        name: Option<&[u8]>,
        id: ObjectId,
    ) -> Result<(), CheckoutError> {
        let mut directory = match name {
            None => parent.clone(),
            Some(name) => make_directory(parent, name)?,
        };
        let content = self.reader.read(&id, Kind::Tree)?;
        self.made.trees.push(TreeRecord {
            path: directory.path.to_vec(),
            id,
        });
        self.made.empty_trees |= content.is_empty() && name.is_some();
        self.read_attributes(&mut directory, &content)?;
        let mut files = Vec::new();
        for entry in TreeEntries::new(&content, self.pack.format()) {
            let entry = entry.map_err(|source| CheckoutError::Object { id, source })?;
            let path_len = directory.path.len() + 1 + entry.name.len();
            let named = || safe_text(&directory.join(entry.name));
            let mode = canonical(entry.mode).ok_or_else(|| CheckoutError::Mode {
                path: named(),
                mode: entry.mode,
            })?;
            safe_path::check(entry.name, path_len, mode == LINK).map_err(|source| {
                CheckoutError::UnsafeName {
                    path: named(),
                    source,
                }
            })?;
            let name = entry.name.to_vec();
            if mode == TREE {
                let parent = directory.clone();
                self.queue.push(Task::Tree {
                    parent,
                    name: Some(name),
                    id: entry.id,
                });
            } else {
                files.push(File {
                    name,
                    mode,
                    id: entry.id,
                });
            }
        }
        while files.len() > FILES_PER_TASK {
            let rest = files.split_off(files.len() - FILES_PER_TASK);
            self.queue.push(Task::Files {
                directory: directory.clone(),
                files: rest,
            });
        }
        self.files(&directory, &files)
    }

    /// Adds the rules of the directory's own `.gitattributes`. A link of that name is not read, as in git.
    fn read_attributes(
        &mut self,
        directory: &mut Directory,
        tree: &[u8],
    ) -> Result<(), CheckoutError> {
        let own = TreeEntries::new(tree, self.pack.format())
            .filter_map(Result::ok)
            .find(|entry| entry.name == b".gitattributes" && canonical(entry.mode) == Some(FILE));
        if let Some(entry) = own {
            let content = self.reader.read(&entry.id, Kind::Blob)?;
            let above = directory.attributes.take();
            directory.attributes =
                Some(Arc::new(Attributes::read(above, &directory.path, &content)));
        }
        Ok(())
    }

    fn files(&mut self, directory: &Directory, files: &[File]) -> Result<(), CheckoutError> {
        for file in files {
            if self.queue.failed.load(Ordering::Relaxed) {
                break;
            }
            let path = directory.join(&file.name);
            let written = match file.mode {
                SUBMODULE => {
                    make_directory(directory, &file.name)?;
                    WrittenFile::default()
                }
                LINK => write_file::symlink(&mut self.reader, &directory.fd, &file.name, &file.id)
                    .map_err(|error| error.at(&path))?,
                mode => {
                    let conversion = directory
                        .attributes
                        .as_ref()
                        .map_or_else(Conversion::default, |rules| rules.conversion(&path));
                    let how = write_file::How {
                        executable: mode == EXECUTABLE,
                        conversion,
                        times: self.times,
                    };
                    write_file::regular(&mut self.reader, &directory.fd, &file.name, &file.id, &how)
                        .map_err(|error| error.at(&path))?
                }
            };
            self.made.entries.push(Written {
                path,
                mode: file.mode,
                id: file.id,
                stat: written.stat,
                size: written.size,
                sha256: written.sha256,
                lfs_pointer: written.lfs_pointer,
            });
        }
        Ok(())
    }
}

const TREE: u32 = 0o040_000;
/// A symlink in a tree.
pub(super) const LINK: u32 = 0o120_000;
/// A submodule in a tree.
pub(super) const SUBMODULE: u32 = 0o160_000;
/// A file with the exec bit in a tree.
pub(super) const EXECUTABLE: u32 = 0o100_755;
const FILE: u32 = 0o100_644;

/// The mode as git's index holds it: of a file's bits only the owner's exec bit counts.
fn canonical(mode: u32) -> Option<u32> {
    match mode & 0o170_000 {
        0o100_000 if mode & 0o100 != 0 => Some(EXECUTABLE),
        0o100_000 => Some(FILE),
        TREE => Some(TREE),
        LINK => Some(LINK),
        SUBMODULE => Some(SUBMODULE),
        _ => None,
    }
}

fn make_directory(parent: &Directory, name: &[u8]) -> Result<Directory, CheckoutError> {
    let path = parent.join(name);
    let failed = |errno: rustix::io::Errno| write_file::FileError::Write(errno.into()).at(&path);
    fs::mkdirat(&parent.fd, name, Mode::from_raw_mode(0o777)).map_err(failed)?;
    let fd = fs::openat(&parent.fd, name, DIRECTORY, Mode::empty()).map_err(failed)?;
    Ok(Directory {
        fd: Arc::new(fd),
        path: path.into(),
        attributes: parent.attributes.clone(),
    })
}

/// Opens a directory and nothing else.
pub(super) const DIRECTORY: OFlags = OFlags::RDONLY
    .union(OFlags::DIRECTORY)
    .union(OFlags::NOFOLLOW)
    .union(OFlags::CLOEXEC);
