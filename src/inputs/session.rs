//! Private directories of this process below the state directory: sockets, keys, packs in the making.
//!
//! Each process has one, held by a lock that ends with the process. Whoever opens the state directory next removes
//! those that nobody holds, so nothing outlives a crash for longer than that.

use std::fs::{self, File, Permissions};
use std::io;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::process;

/// The private directory of this process.
#[derive(Debug)]
pub(super) struct Session {
    dir: PathBuf,
    next: AtomicU64,
    _held: File,
}

/// A directory that only this user can enter. Dropped, it is removed with everything inside.
#[derive(Debug)]
pub(super) struct PrivateDir {
    path: PathBuf,
    _session: Arc<Session>,
}

impl Session {
    /// Makes the directory of this process, and removes those of processes that are gone.
    pub(super) fn open(state_dir: &Path) -> io::Result<Arc<Self>> {
        let all = state_dir.join("tmp");
        private_dir_all(state_dir)?;
        private_dir_all(&all)?;
        // Between making a directory and holding it, nobody may look.
        let doorway = lock_file(&all.join("lock"))?;
        doorway.lock()?;
        for entry in fs::read_dir(&all)?.flatten() {
            let dir = entry.path();
            let held = File::open(dir.join("held")).is_ok_and(|held| held.try_lock().is_err());
            if dir.is_dir() && !held {
                // Every program that it started has its home there.
                process::kill_marked("HOME", home(&dir).as_os_str());
                remove_dir(&dir);
            }
        }
        let dir = all.join(random_name());
        make_private(&dir)?;
        let held = lock_file(&dir.join("held"))?;
        held.lock()?;
        doorway.unlock()?;
        let session = Self {
            dir,
            next: AtomicU64::new(0),
            _held: held,
        };
        make_private(&session.home())?;
        Ok(Arc::new(session))
    }

    /// An empty home directory for programs.
    pub(super) fn home(&self) -> PathBuf {
        home(&self.dir)
    }

    /// A new private directory.
    pub(super) fn dir(self: &Arc<Self>) -> io::Result<PrivateDir> {
        let path = self
            .dir
            .join(self.next.fetch_add(1, Ordering::Relaxed).to_string());
        make_private(&path)?;
        Ok(PrivateDir {
            path,
            _session: Arc::clone(self),
        })
    }

    /// Moves a directory out of everybody's sight and removes it.
    pub(super) fn discard(&self, dir: &Path) -> io::Result<()> {
        let grave = self
            .dir
            .join(self.next.fetch_add(1, Ordering::Relaxed).to_string());
        match fs::rename(dir, &grave) {
            Ok(()) => {
                remove_dir(&grave);
                Ok(())
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            Err(error) => Err(error),
        }
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        remove_dir(&self.dir);
    }
}

impl PrivateDir {
    /// Where it is.
    pub(super) fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for PrivateDir {
    fn drop(&mut self) {
        remove_dir(&self.path);
    }
}

fn home(session: &Path) -> PathBuf {
    session.join("home")
}

/// Makes a directory and its parents; the last one is for this user only.
pub(super) fn private_dir_all(dir: &Path) -> io::Result<()> {
    if !dir.is_dir() {
        if let Some(parent) = dir.parent() {
            fs::create_dir_all(parent)?;
        }
        match make_private(dir) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            made => made?,
        }
    }
    Ok(())
}

/// Opens a file to lock it.
pub(super) fn lock_file(path: &Path) -> io::Result<File> {
    File::options()
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .open(path)
}

/// What cannot be removed now is removed when the state directory is opened next.
fn remove_dir(dir: &Path) {
    let _left_for_the_next = fs::remove_dir_all(dir);
}

fn make_private(dir: &Path) -> io::Result<()> {
    fs::create_dir(dir)?;
    fs::set_permissions(dir, Permissions::from_mode(0o700))
}

/// 16 hex digits that nobody else has. Not a secret: the directory's mode guards it.
fn random_name() -> String {
    let mut bytes = [0_u8; 8];
    // Without randomness the name may clash, and making the directory then fails.
    let _same_name_again = aws_lc_rs::rand::fill(&mut bytes);
    format!("{:016x}", u64::from_be_bytes(bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn t07_what_a_killed_process_left_is_removed_and_what_lives_stays() {
        let state = tempfile::tempdir().unwrap();
        let alive = Session::open(state.path()).unwrap();
        let dead = state.path().join("tmp/0123456789abcdef");
        fs::create_dir(&dead).unwrap();
        fs::write(dead.join("held"), "").unwrap();
        fs::write(dead.join("key"), "secret").unwrap();
        let mut orphan = std::process::Command::new("sleep");
        let mut orphan = orphan
            .arg("60")
            .env("HOME", dead.join("home"))
            .spawn()
            .unwrap();
        let kept = alive.dir().unwrap();
        let other = Session::open(state.path()).unwrap();
        assert!(!dead.exists());
        assert!(!orphan.wait().unwrap().success());
        assert!(kept.path().is_dir() && other.home().is_dir());
        let mode = fs::metadata(kept.path()).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o700);
        let path = kept.path().to_owned();
        drop(kept);
        assert!(!path.exists());
    }
}
