//! Where mirrors lie: one place for each namespace, connector and repository, one writer at a time.
//!
//! Several processes may share a state directory. Whoever writes to a place holds its lock; what the last writer left
//! when it was killed is cleared by the next one before it trusts anything there.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use aws_lc_rs::digest;

use super::git::MARK;
use super::session::{Session, lock_file, private_dir_all};
use super::{FetchSettings, Remote, packs, process};
use crate::api::{CommitId, ObjectFormat};

/// How often a place that another process writes to is looked at.
const LOOK_AGAIN: Duration = Duration::from_millis(50);

/// All places.
#[derive(Debug)]
pub(super) struct Store {
    root: PathBuf,
    session: Arc<Session>,
    cache_bytes: u64,
    keep_free_bytes: u64,
}

/// The place of one repository, as one namespace sees it with one connector.
#[derive(Debug, Clone)]
pub(super) struct Place {
    dir: PathBuf,
}

/// A place that nobody else writes to.
#[derive(Debug)]
pub(super) struct Locked {
    place: Place,
    lock: File,
}

/// A bare repository in a place.
#[derive(Debug, Clone)]
pub(super) struct Repo {
    /// Its git directory.
    pub(super) dir: PathBuf,
}

impl Store {
    pub(super) fn new(state_dir: &Path, session: &Arc<Session>, settings: &FetchSettings) -> Self {
        Self {
            root: state_dir.join("mirrors"),
            session: Arc::clone(session),
            cache_bytes: settings.cache_bytes,
            keep_free_bytes: settings.keep_free_bytes,
        }
    }

    /// The place of a repository. The case of its path counts, and so does each spelling of it.
    pub(super) fn place(&self, remote: &Remote) -> io::Result<Place> {
        let namespace = remote.credential.namespace().as_str();
        let connector = remote.credential.name().map_or("", |name| name.as_str());
        let repository = remote.repository.as_str().trim_end_matches('/');
        let mut hash = digest::Context::new(&digest::SHA256);
        for part in [namespace, connector, repository] {
            hash.update(&(part.len() as u64).to_be_bytes());
            hash.update(part.as_bytes());
        }
        let hash = hash.finish();
        let name = packs::hex(hash.as_ref().get(..20).unwrap_or_default());
        let dir = self.root.join(name);
        if !dir.is_dir() {
            private_dir_all(&self.root)?;
            private_dir_all(&dir)?;
            // For people who look at the disk.
            fs::write(
                dir.join("about.txt"),
                format!("{namespace}\n{connector}\n{repository}\n"),
            )?;
        }
        Ok(Place { dir })
    }

    /// Removes what was not used for longest, until all fits, and says whether the volume has room.
    pub(super) fn make_room(&self) -> bool {
        let mut used = process::disk_usage(&self.root);
        let has_room =
            || process::free_bytes(&self.root).is_none_or(|free| free >= self.keep_free_bytes);
        if used <= self.cache_bytes && has_room() {
            return true;
        }
        let mut items = self.items();
        items.sort_by_key(|item| item.last_used);
        for item in items {
            if used <= self.cache_bytes && has_room() {
                break;
            }
            let freed = process::disk_usage(&item.dir);
            if item.remove(&self.session) {
                used = used.saturating_sub(freed);
            }
        }
        has_room()
    }

    fn items(&self) -> Vec<Item> {
        let below = |dir: &Path| fs::read_dir(dir).into_iter().flatten().flatten();
        let mut items = Vec::new();
        for place in below(&self.root) {
            let lock = place.path().join("lock");
            let locked = fs::metadata(&lock).and_then(|meta| meta.modified()).ok();
            for repo in below(&place.path()).filter(|e| is_repo(&e.path())) {
                items.push(Item {
                    dir: repo.path(),
                    lock: Some(lock.clone()),
                    last_used: locked,
                });
            }
            for pack in below(&place.path().join("packs")) {
                let last_used = packs::last_used(&pack.path());
                items.push(Item {
                    dir: pack.path(),
                    lock: None,
                    last_used,
                });
            }
        }
        items
    }
}

/// Something that can be removed by itself.
struct Item {
    dir: PathBuf,
    /// Of the place, for a repository.
    lock: Option<PathBuf>,
    last_used: Option<SystemTime>,
}

impl Item {
    fn remove(&self, session: &Session) -> bool {
        let Some(lock) = &self.lock else {
            return packs::remove(&self.dir, session);
        };
        let Ok(lock) = lock_file(lock) else {
            return false;
        };
        lock.try_lock().is_ok() && session.discard(&self.dir).is_ok()
    }
}

impl Place {
    /// Where the pack of a commit and depth lies, or will lie.
    pub(super) fn pack(&self, id: &CommitId, depth: Option<u32>) -> PathBuf {
        let depth = depth.map_or_else(|| "all".to_owned(), |depth| depth.to_string());
        self.dir.join("packs").join(format!("{id}-{depth}"))
    }

    /// Waits until nobody writes here, and clears what a writer that was killed has left.
    pub(super) async fn lock(&self) -> io::Result<Locked> {
        let lock = lock_file(&self.dir.join("lock"))?;
        loop {
            match lock.try_lock() {
                Ok(()) => break,
                Err(fs::TryLockError::WouldBlock) => tokio::time::sleep(LOOK_AGAIN).await,
                Err(fs::TryLockError::Error(error)) => return Err(error),
            }
        }
        packs::touch(&lock);
        let locked = Locked {
            place: self.clone(),
            lock,
        };
        if locked.busy().exists() {
            process::kill_marked(MARK, locked.mark());
            locked.set_idle()?;
        }
        for entry in fs::read_dir(&self.dir)?
            .flatten()
            .filter(|entry| is_repo(&entry.path()))
        {
            clear_leftovers(&entry.path());
        }
        Ok(locked)
    }
}

impl Locked {
    /// The repository of this object format, for whole histories or for cut ones: a shallow fetch would cut whole ones
    /// too, so they lie apart. It may not be there yet.
    pub(super) fn repo(&self, whole: bool, format: ObjectFormat) -> Repo {
        let name = format!("{}-{format}.git", if whole { "whole" } else { "shallow" });
        Repo {
            dir: self.place.dir.join(name),
        }
    }

    /// What the processes of this place carry in [`MARK`].
    pub(super) fn mark(&self) -> &OsStr {
        self.place.dir.as_os_str()
    }

    /// Says that processes write here now: whoever comes after a crash must end them first.
    pub(super) fn set_busy(&self) -> io::Result<()> {
        File::create(self.busy())?.sync_all()
    }

    /// Says that none do any more.
    pub(super) fn set_idle(&self) -> io::Result<()> {
        match fs::remove_file(self.busy()) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => Ok(()),
        }
    }

    fn busy(&self) -> PathBuf {
        self.place.dir.join("busy")
    }
}

impl Drop for Locked {
    fn drop(&mut self) {
        // Closing the file does it as well, once all of its copies are closed.
        let _closed_next = self.lock.unlock();
    }
}

impl Repo {
    /// Whether it is there.
    pub(super) fn exists(&self) -> bool {
        self.dir.is_dir()
    }

    /// Its packs that have an index.
    pub(super) fn packs(&self) -> Vec<PathBuf> {
        let dir = fs::read_dir(self.dir.join("objects/pack"));
        let files = dir
            .into_iter()
            .flatten()
            .flatten()
            .map(|entry| entry.path());
        files
            .filter(|file| file.extension() == Some(OsStr::new("pack")))
            .filter(|file| file.with_extension("idx").exists())
            .collect()
    }

    /// Commits whose parents it does not have.
    pub(super) fn shallow(&self) -> BTreeSet<CommitId> {
        let text = fs::read_to_string(self.dir.join("shallow")).unwrap_or_default();
        text.lines().filter_map(|line| line.parse().ok()).collect()
    }

    /// The ref for the next pin: a free one of a few, or the one that was not set for longest. What they point to need
    /// not be sent again.
    pub(super) fn next_pin(&self) -> String {
        const PINS: u32 = 8;
        let age = |pin: &String| {
            let file = fs::metadata(self.dir.join(pin));
            file.and_then(|file| file.modified())
                .unwrap_or(SystemTime::UNIX_EPOCH)
        };
        let pins = (0..PINS).map(|number| format!("refs/pins/{number}"));
        pins.min_by_key(age)
            .unwrap_or_else(|| "refs/pins/0".to_owned())
    }
}

fn is_repo(path: &Path) -> bool {
    path.extension() == Some(OsStr::new("git"))
}

/// Removes locks and half packs. Only under the place's lock: nothing of git runs here now.
fn clear_leftovers(repo: &Path) {
    let mut todo = vec![repo.to_owned()];
    while let Some(dir) = todo.pop() {
        for entry in fs::read_dir(&dir).into_iter().flatten().flatten() {
            let (path, name) = (entry.path(), entry.file_name());
            let name = name.to_string_lossy();
            let is_lock = path.extension() == Some(OsStr::new("lock"));
            if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                if name.starts_with("tmp_objdir-") || name.starts_with("incoming-") {
                    let _seen_by_git = fs::remove_dir_all(&path);
                } else {
                    todo.push(path);
                }
            } else if is_lock || name.starts_with("tmp_") || name.starts_with(".tmp-") {
                let _seen_by_git = fs::remove_file(&path);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::inputs::Credential;
    use rstest::rstest;

    fn store(cache_bytes: u64) -> (tempfile::TempDir, Store) {
        let state = tempfile::tempdir().unwrap();
        let session = Session::open(state.path()).unwrap();
        let settings = FetchSettings {
            cache_bytes,
            ..FetchSettings::default()
        };
        let store = Store::new(state.path(), &session, &settings);
        (state, store)
    }

    fn remote(namespace: &str, url: &str) -> Remote {
        Remote {
            repository: url.parse().unwrap(),
            credential: Credential::anonymous(&namespace.parse().unwrap()),
        }
    }

    #[rstest]
    #[case::case_of_the_path(("a", "https://h/Repo"), ("a", "https://h/repo"))]
    #[case::namespace(("a", "https://h/repo"), ("b", "https://h/repo"))]
    #[case::user_over_ssh(("a", "me@h:repo"), ("a", "you@h:repo"))]
    #[case::absolute_path(("a", "me@h:repo"), ("a", "ssh://me@h/repo"))]
    #[case::parts_do_not_run_together(("a", "https://h/b"), ("ah", "https://h/b"))]
    fn t09_two_repositories_have_two_places(
        #[case] one: (&str, &str),
        #[case] other: (&str, &str),
    ) {
        let (_state, store) = store(u64::MAX);
        let dir = |(namespace, url)| store.place(&remote(namespace, url)).unwrap().dir;
        assert_ne!(dir(one), dir(other));
        assert_eq!(dir(one), dir(one));
    }

    #[tokio::test]
    async fn t07_what_a_killed_writer_left_is_cleared_before_the_next_one_writes() {
        let (_state, store) = store(u64::MAX);
        let place = store.place(&remote("a", "https://h/r")).unwrap();
        let repo = place.lock().await.unwrap().repo(false, ObjectFormat::Sha1);
        fs::create_dir_all(repo.dir.join("objects/pack")).unwrap();
        let left = [
            "shallow.lock",
            "refs.lock",
            "objects/pack/tmp_pack_x1",
            "objects/pack/.tmp-9-pack-1.pack",
        ];
        for file in left {
            fs::write(repo.dir.join(file), "").unwrap();
        }
        fs::write(repo.dir.join("objects/pack/pack-1.pack"), "").unwrap();
        let mark = place.dir.clone();
        let mut orphan = std::process::Command::new("sleep")
            .arg("60")
            .env(MARK, mark)
            .spawn()
            .unwrap();
        fs::write(place.dir.join("busy"), "").unwrap();
        let _locked = place.lock().await.unwrap();
        assert!(!orphan.wait().unwrap().success());
        for file in left {
            assert!(!repo.dir.join(file).exists(), "{file}");
        }
        assert!(repo.dir.join("objects/pack/pack-1.pack").exists());
    }

    #[tokio::test]
    async fn a_place_has_one_writer() {
        let (_state, store) = store(u64::MAX);
        let place = store.place(&remote("a", "https://h/r")).unwrap();
        let first = place.lock().await.unwrap();
        let second = place.lock();
        tokio::pin!(second);
        let soon = tokio::time::timeout(Duration::from_millis(200), &mut second);
        assert!(soon.await.is_err());
        drop(first);
        second.await.unwrap();
    }

    #[tokio::test]
    async fn the_least_recently_used_goes_first_and_what_is_in_use_stays() {
        let (_state, store) = store(150_000);
        let mut repos = Vec::new();
        for (age, name) in [(30, "old"), (20, "held"), (10, "new")] {
            let place = store
                .place(&remote("a", &format!("https://h/{name}")))
                .unwrap();
            let repo = place.lock().await.unwrap().repo(true, ObjectFormat::Sha1);
            fs::create_dir(&repo.dir).unwrap();
            fs::write(repo.dir.join("f"), vec![1; 100_000]).unwrap();
            let lock = File::options()
                .write(true)
                .open(place.dir.join("lock"))
                .unwrap();
            let used = lock.metadata().unwrap().modified().unwrap() - Duration::from_secs(age);
            lock.set_modified(used).unwrap();
            repos.push((place, repo));
        }
        let (held_place, held) = &repos[1];
        let used = fs::metadata(held_place.dir.join("lock"))
            .unwrap()
            .modified()
            .unwrap();
        let locked = held_place.lock().await.unwrap();
        locked.lock.set_modified(used).unwrap();
        assert!(store.make_room());
        assert!(!repos[0].1.exists() && held.exists() && !repos[2].1.exists());
        drop(locked);
        assert!(store.make_room());
        assert!(held.exists());
    }
}
