//! Compares a work tree with its baseline, on all cores.
//!
//! Directories of the baseline are shared out among threads. What the baseline does not have is only counted: its
//! directories are walked by whoever finds them, its files are not opened. So memory is bounded by the baseline and by
//! [`MAX_PENDING`], whatever an agent made. Nothing but directories, and regular files of the right size, is opened.

use std::ffi::CStr;
use std::fs::File;
use std::io::Read as _;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use tokio::time::Instant;

use aws_lc_rs::digest;
use rustix::fs::{self, AtFlags, FileType, Mode, OFlags, RawDir};
use rustix::io::Errno;

use super::findings::{Findings, join};
use crate::api::wire::Change;
use crate::pod::access;
use crate::pod::baseline::{Baseline, Entry, EntryKind};

/// Directories of an added tree that wait to be counted. More are said to be uncounted.
const MAX_PENDING: usize = 200_000;
/// Directories of an added tree that are open at once.
const MAX_OPEN: usize = 4096;
/// An added directory's path is not made longer than this: it is only shown.
const MAX_SHOWN_PATH: usize = 4096;
/// Files of one directory that one thread takes at a time.
const FILES_PER_TASK: usize = 512;

/// Compares the tree below `root` with its baseline. What is not reached by `deadline` is said so.
pub(super) fn compare(root: OwnedFd, baseline: &Baseline<'_>, deadline: Instant) -> Findings {
    let queue = Queue::default();
    queue.push(Task::Directory {
        at: Arc::new(root),
        name: None,
        path: Vec::new(),
    });
    let threads = std::thread::available_parallelism()
        .map_or(2, usize::from)
        .min(8);
    let all = Mutex::new(Findings::default());
    std::thread::scope(|scope| {
        for _ in 1..threads {
            scope.spawn(|| Worker::new(&queue, baseline, deadline).run(&all));
        }
        Worker::new(&queue, baseline, deadline).run(&all);
    });
    all.into_inner().unwrap_or_else(PoisonError::into_inner)
}

/// Counts everything of the baseline at and below `path` as deleted.
pub(super) fn all_deleted(baseline: &Baseline<'_>, path: &[u8], findings: &mut Findings) {
    let mut pending = vec![path.to_vec()];
    while let Some(path) = pending.pop() {
        for entry in baseline.directory(&path).unwrap_or_default() {
            match entry.kind {
                EntryKind::Directory => pending.push(join(&path, entry.name)),
                EntryKind::File
                | EntryKind::Executable
                | EntryKind::Symlink
                | EntryKind::Submodule => findings.change(&path, entry.name, Change::Deleted),
            }
        }
    }
}

enum Task {
    /// A directory of the baseline. The root has no name: `at` is it.
    Directory {
        at: Arc<OwnedFd>,
        name: Option<Vec<u8>>,
        path: Vec<u8>,
    },
    /// Regular files of a directory, by their places in the baseline.
    Files {
        at: Arc<OwnedFd>,
        path: Arc<[u8]>,
        places: Vec<usize>,
    },
}

/// Work that is left, the newest first, so that few directories are open at once.
#[derive(Default)]
struct Queue {
    state: Mutex<(Vec<Task>, usize)>,
    changed: Condvar,
}

impl Queue {
    fn push(&self, task: Task) {
        self.lock().0.push(task);
        self.changed.notify_one();
    }

    fn take(&self) -> Option<Task> {
        let mut state = self.lock();
        loop {
            if let Some(task) = state.0.pop() {
                state.1 += 1;
                return Some(task);
            }
            if state.1 == 0 {
                return None;
            }
            state = self
                .changed
                .wait(state)
                .unwrap_or_else(PoisonError::into_inner);
        }
    }

    fn finish(&self) {
        let mut state = self.lock();
        state.1 -= 1;
        if state.1 == 0 && state.0.is_empty() {
            self.changed.notify_all();
        }
    }

    fn lock(&self) -> MutexGuard<'_, (Vec<Task>, usize)> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

struct Worker<'a> {
    queue: &'a Queue,
    baseline: &'a Baseline<'a>,
    deadline: Instant,
    findings: Findings,
    bytes: Vec<u8>,
}

impl<'a> Worker<'a> {
    fn new(queue: &'a Queue, baseline: &'a Baseline<'a>, deadline: Instant) -> Self {
        Self {
            queue,
            baseline,
            deadline,
            findings: Findings::default(),
            bytes: vec![0; 256 * 1024],
        }
    }

    fn run(mut self, all: &Mutex<Findings>) {
        while let Some(task) = self.queue.take() {
            match task {
                Task::Directory { at, name, path } => self.directory(at, name.as_deref(), &path),
                Task::Files { at, path, places } => self.files(&at, &path, &places),
            }
            self.queue.finish();
        }
        all.lock()
            .unwrap_or_else(PoisonError::into_inner)
            .absorb(self.findings);
    }

    /// Whether the time is over; then it is said so.
    fn is_late(&mut self) -> bool {
        self.findings.out_of_time |= Instant::now() >= self.deadline;
        self.findings.out_of_time
    }

    fn directory(&mut self, at: Arc<OwnedFd>, name: Option<&[u8]>, path: &[u8]) {
        if self.is_late() {
            return;
        }
        let entries = self.baseline.directory(path).unwrap_or_default();
        let directory = match name.map(|name| open_directory(&at, name)) {
            None => at,
            Some(Ok(directory)) => Arc::new(directory),
            Some(Err(_)) => return self.findings.unreadable(path, b""),
        };
        let mut seen = vec![false; entries.len()];
        let mut files = Vec::new();
        let mut buffer = Vec::with_capacity(64 * 1024);
        let mut listing = RawDir::new(&*directory, buffer.spare_capacity_mut());
        let mut late = 0_u32;
        while let Some(next) = listing.next() {
            late = late.wrapping_add(1);
            if late.is_multiple_of(1024) && self.is_late() {
                return;
            }
            let Ok(found) = next else {
                // The rest of the names is not known, so neither is what is gone.
                return self.findings.unreadable(path, b"");
            };
            let name = found.file_name().to_bytes();
            if matches!(name, b"." | b"..") || (path.is_empty() && name == b".git") {
                continue;
            }
            let Some(kind) = file_type(&directory, found.file_name(), found.file_type()) else {
                self.findings.unreadable(path, name);
                continue;
            };
            match entries.binary_search_by(|entry| entry.name.cmp(name)) {
                Ok(place) => {
                    if let Some(seen) = seen.get_mut(place) {
                        *seen = true;
                    }
                    if let Some(entry) = entries.get(place)
                        && self.known(&directory, path, entry, kind)
                    {
                        files.push(place);
                    }
                }
                Err(_) => self.added(&directory, path, name, kind),
            }
        }
        for (entry, _) in entries.iter().zip(&seen).filter(|(_, seen)| !**seen) {
            if entry.kind == EntryKind::Directory {
                all_deleted(self.baseline, &join(path, entry.name), &mut self.findings);
            } else {
                self.findings.change(path, entry.name, Change::Deleted);
            }
        }
        self.share_files(&directory, path, files);
    }

    /// Compares an entry that is there. `true`: it is a regular file as before, whose bytes must be compared.
    fn known(
        &mut self,
        directory: &Arc<OwnedFd>,
        path: &[u8],
        entry: &Entry<'_>,
        kind: FileType,
    ) -> bool {
        match (entry.kind, kind) {
            (EntryKind::File | EntryKind::Executable, FileType::RegularFile) => return true,
            (EntryKind::Symlink, FileType::Symlink) => {
                match fs::readlinkat(&**directory, entry.name, Vec::new()) {
                    Ok(target) => {
                        if digest::digest(&digest::SHA256, target.to_bytes()).as_ref()
                            != entry.sha256
                        {
                            self.findings.change(path, entry.name, Change::Modified);
                        }
                    }
                    Err(_) => self.findings.unreadable(path, entry.name),
                }
            }
            (EntryKind::Directory, FileType::Directory) => {
                let (at, name) = (Arc::clone(directory), Some(entry.name.to_vec()));
                self.queue.push(Task::Directory {
                    at,
                    name,
                    path: join(path, entry.name),
                });
            }
            (EntryKind::Submodule, FileType::Directory) => {
                self.added(directory, path, entry.name, kind);
            }
            (before, _) => {
                self.findings.change(path, entry.name, Change::TypeChanged);
                if before == EntryKind::Directory {
                    all_deleted(self.baseline, &join(path, entry.name), &mut self.findings);
                }
                if kind == FileType::Directory {
                    self.added(directory, path, entry.name, kind);
                }
            }
        }
        false
    }

    fn share_files(&mut self, directory: &Arc<OwnedFd>, path: &[u8], mut files: Vec<usize>) {
        let shared: Arc<[u8]> = path.into();
        while files.len() > FILES_PER_TASK {
            let places = files.split_off(files.len() - FILES_PER_TASK);
            let (at, path) = (Arc::clone(directory), Arc::clone(&shared));
            self.queue.push(Task::Files { at, path, places });
        }
        self.files(directory, path, &files);
    }

    fn files(&mut self, directory: &OwnedFd, path: &[u8], places: &[usize]) {
        let entries = self.baseline.directory(path).unwrap_or_default();
        for entry in places.iter().filter_map(|place| entries.get(*place)) {
            if self.is_late() {
                return;
            }
            self.file(directory, path, entry);
        }
    }

    fn file(&mut self, directory: &OwnedFd, path: &[u8], entry: &Entry<'_>) {
        let Ok(stat) = fs::statat(directory, entry.name, AtFlags::SYMLINK_NOFOLLOW) else {
            return self.findings.unreadable(path, entry.name);
        };
        if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
            return self.findings.change(path, entry.name, Change::TypeChanged);
        }
        // Of the mode, what lets a file run counts, and what lets it run as somebody else.
        let runs = stat.st_mode & 0o100 != 0;
        if runs != (entry.kind == EntryKind::Executable) || stat.st_mode & 0o6000 != 0 {
            self.findings.change(path, entry.name, Change::ModeChanged);
        }
        let same = if u64::try_from(stat.st_size) == Ok(entry.size) {
            self.same_bytes(directory, entry)
        } else {
            Some(false)
        };
        match same {
            Some(true) => {}
            Some(false) => self.findings.change(path, entry.name, Change::Modified),
            None if self.findings.out_of_time => {}
            None => self.findings.unreadable(path, entry.name),
        }
    }

    /// Whether a file has the baseline's bytes; `None`: it cannot be read, or the time is over.
    fn same_bytes(&mut self, directory: &OwnedFd, entry: &Entry<'_>) -> Option<bool> {
        let flags =
            OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
        let open = || fs::openat(directory, entry.name, flags, Mode::empty());
        let opened = match open() {
            Err(Errno::ACCESS) => {
                access::let_us_read(directory, entry.name, false);
                open()
            }
            opened => opened,
        };
        let mut file = File::from(opened.ok()?);
        let mut left = entry.size;
        if left <= self.bytes.len() as u64 {
            // The usual case: one read, one hash.
            let mut length = 0;
            while let Some(room) = self.bytes.get_mut(length..).filter(|room| !room.is_empty()) {
                match file.read(room) {
                    Ok(0) => break,
                    Ok(read) => length += read,
                    Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
                    Err(_) => return None,
                }
                if length as u64 >= left {
                    break;
                }
            }
            let bytes = self.bytes.get(..length)?;
            return Some(digest::digest(&digest::SHA256, bytes).as_ref() == entry.sha256);
        }
        let mut hash = digest::Context::new(&digest::SHA256);
        while left > 0 {
            if self.is_late() {
                return None;
            }
            let read = file.read(&mut self.bytes).ok()?;
            if read == 0 {
                return Some(false);
            }
            hash.update(self.bytes.get(..read)?);
            left = left.saturating_sub(read as u64);
        }
        Some(hash.finish().as_ref() == entry.sha256)
    }

    /// Counts an entry that the baseline does not have, and all that is in it.
    fn added(&mut self, directory: &Arc<OwnedFd>, path: &[u8], name: &[u8], kind: FileType) {
        if kind != FileType::Directory {
            return self.findings.change(path, name, Change::Added);
        }
        let top = Arc::new(Opened {
            fd: Arc::clone(directory),
            path: path.to_vec(),
        });
        let mut pending = vec![(top, name.to_vec())];
        let mut parents_open = 0_usize;
        while let Some((parent, name)) = pending.pop() {
            if self.is_late() {
                return;
            }
            if Arc::strong_count(&parent) == 1 {
                parents_open = parents_open.saturating_sub(1);
            }
            let Ok(fd) = open_directory(&parent.fd, &name) else {
                self.findings.unreadable(&parent.path, &name);
                continue;
            };
            let mut shown = join(&parent.path, &name);
            shown.truncate(MAX_SHOWN_PATH);
            drop(parent);
            let opened = Arc::new(Opened {
                fd: Arc::new(fd),
                path: shown,
            });
            let before = pending.len();
            self.count(&opened, &mut pending, parents_open < MAX_OPEN);
            if pending.len() > before {
                parents_open += 1;
            }
        }
    }

    /// Counts the entries of an added directory; its directories are put on the list.
    fn count(
        &mut self,
        opened: &Arc<Opened>,
        pending: &mut Vec<(Arc<Opened>, Vec<u8>)>,
        may_go_deeper: bool,
    ) {
        let mut buffer = Vec::with_capacity(32 * 1024);
        let mut listing = RawDir::new(&*opened.fd, buffer.spare_capacity_mut());
        let mut late = 0_u32;
        while let Some(next) = listing.next() {
            late = late.wrapping_add(1);
            if late.is_multiple_of(1024) && self.is_late() {
                return;
            }
            let Ok(found) = next else {
                return self.findings.unreadable(&opened.path, b"");
            };
            let name = found.file_name().to_bytes();
            if matches!(name, b"." | b"..") {
                continue;
            }
            match file_type(&opened.fd, found.file_name(), found.file_type()) {
                Some(FileType::Directory) if !may_go_deeper || pending.len() >= MAX_PENDING => {
                    // There may be nothing in it: not a change, but not known to be none.
                    self.findings.uncounted = true;
                    self.findings.unreadable(&opened.path, name);
                }
                Some(FileType::Directory) => pending.push((Arc::clone(opened), name.to_vec())),
                Some(_) => self.findings.change(&opened.path, name, Change::Added),
                None => self.findings.unreadable(&opened.path, name),
            }
        }
    }
}

/// A directory of an added tree that is open because some of its directories still wait.
struct Opened {
    fd: Arc<OwnedFd>,
    path: Vec<u8>,
}

/// The type that the listing gave, or else what `lstat` says.
fn file_type(directory: &OwnedFd, name: &CStr, listed: FileType) -> Option<FileType> {
    if listed != FileType::Unknown {
        return Some(listed);
    }
    let stat = fs::statat(directory, name, AtFlags::SYMLINK_NOFOLLOW).ok()?;
    Some(FileType::from_raw_mode(stat.st_mode))
}

fn open_directory(at: &OwnedFd, name: &[u8]) -> Result<OwnedFd, Errno> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let open = || fs::openat(at, name, flags, Mode::empty());
    let opened = match open() {
        Err(Errno::ACCESS) => {
            access::let_us_read(at, name, true);
            open()
        }
        opened => opened,
    }?;
    // A directory that may be listed but not entered.
    let mode = fs::fstat(&opened)?.st_mode;
    if mode & 0o500 != 0o500 {
        let _refused = fs::fchmod(&opened, Mode::from_raw_mode((mode & 0o7777) | 0o700));
    }
    Ok(opened)
}
