//! Finished packs on disk: made once, then served as plain files, and never removed while somebody holds them.
//!
//! A pack lies in a directory of its own that was moved into place whole: pack, index, and a description with the
//! SHA-256 of both, which is what is believed. A lease is a shared lock on the description; the kernel lets go of it
//! when its process dies, so no crash leaves a pack in use for ever.

use std::collections::HashSet;
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use aws_lc_rs::digest;
use rustix::fs::{Timespec, Timestamps, UTIME_NOW, UTIME_OMIT, futimens};
use serde::{Deserialize, Serialize};

use super::session::{PrivateDir, Session};
use crate::api::CommitId;
use crate::api::wire::Blob;

/// A pack that is being served. While it or a clone of it is held, its files stay.
#[derive(Debug, Clone)]
pub struct PackLease {
    /// The pack: exactly the objects of one commit and its history to one depth.
    pub pack: PathBuf,
    /// Its index, version 2.
    pub index: PathBuf,
    /// Length and hash of the pack.
    pub pack_blob: Blob,
    /// Length and hash of the index.
    pub index_blob: Blob,
    /// Commits whose parents are not in the pack.
    pub shallow: Vec<CommitId>,
    _held: Arc<File>,
}

/// What is written beside a pack.
#[derive(Debug, Serialize, Deserialize)]
struct Description {
    pack: Blob,
    index: Blob,
    shallow: Vec<CommitId>,
}

const PACK: &str = "pack";
const INDEX: &str = "idx";
const DESCRIPTION: &str = "about.json";

/// Packs whose bytes this process has compared with their hashes.
#[derive(Debug, Default)]
pub(super) struct Verified(Mutex<HashSet<(u64, u64)>>);

impl Verified {
    fn holds(&self, id: (u64, u64)) -> bool {
        self.0
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .contains(&id)
    }

    fn add(&self, id: (u64, u64)) {
        self.0
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .insert(id);
    }
}

/// The pack in a directory, if one is there and whole. One that is not is removed.
pub(super) fn open(
    dir: &Path,
    verified: &Verified,
    session: &Session,
) -> io::Result<Option<PackLease>> {
    let Ok(held) = File::open(dir.join(DESCRIPTION)) else {
        return Ok(None);
    };
    if held.try_lock_shared().is_err() || !is_still(&held, dir) {
        // It is being removed at this moment.
        return Ok(None);
    }
    let id = identity(&held)?;
    let whole = serde_json::from_reader::<_, Description>(&held)
        .ok()
        .filter(|description| verified.holds(id) || is_whole(dir, description));
    let Some(description) = whole else {
        session.discard(dir)?;
        return Ok(None);
    };
    verified.add(id);
    touch(&held);
    Ok(Some(lease(dir, description, held)))
}

/// A pack in the making.
#[derive(Debug)]
pub(super) struct Draft(PrivateDir);

impl Draft {
    /// A new one.
    pub(super) fn new(session: &Arc<Session>) -> io::Result<Self> {
        session.dir().map(Self)
    }

    /// Where its files are made.
    pub(super) fn dir(&self) -> &Path {
        self.0.path()
    }

    /// Takes a pack and its index, by link where the volume is the same one.
    pub(super) fn take(&self, pack: &Path, index: &Path) -> io::Result<()> {
        for (from, name) in [(pack, PACK), (index, INDEX)] {
            let to = self.dir().join(name);
            if fs::hard_link(from, &to).is_err() {
                fs::copy(from, &to)?;
            }
        }
        Ok(())
    }

    /// Describes it and moves it into place, whole or not at all.
    pub(super) fn publish(
        &self,
        place: &Path,
        shallow: Vec<CommitId>,
        verified: &Verified,
    ) -> io::Result<PackLease> {
        let (pack, index) = (
            blob(&self.dir().join(PACK))?,
            blob(&self.dir().join(INDEX))?,
        );
        let description = Description {
            pack,
            index,
            shallow,
        };
        let file = self.dir().join(DESCRIPTION);
        fs::write(&file, serde_json::to_vec(&description)?)?;
        for name in [PACK, INDEX, DESCRIPTION] {
            File::open(self.dir().join(name))?.sync_all()?;
        }
        File::open(self.dir())?.sync_all()?;
        // Held before anybody can see it, so that nobody removes it in between.
        let held = File::open(&file)?;
        held.try_lock_shared()?;
        if let Some(parent) = place.parent() {
            fs::create_dir_all(parent)?;
            fs::rename(self.dir(), place)?;
            File::open(parent)?.sync_all()?;
        }
        verified.add(identity(&held)?);
        Ok(lease(place, description, held))
    }
}

/// Takes a pack out of use, if nobody holds it. True: it is gone.
pub(super) fn remove(dir: &Path, session: &Session) -> bool {
    let Ok(file) = File::open(dir.join(DESCRIPTION)) else {
        return session.discard(dir).is_ok();
    };
    file.try_lock().is_ok() && session.discard(dir).is_ok()
}

/// When a pack was last leased.
pub(super) fn last_used(dir: &Path) -> Option<std::time::SystemTime> {
    fs::metadata(dir.join(DESCRIPTION))
        .and_then(|meta| meta.modified())
        .ok()
}

/// Marks a file as used now, by the clock of its volume.
pub(super) fn touch(file: &File) {
    let now = Timestamps {
        last_access: Timespec {
            tv_sec: 0,
            tv_nsec: UTIME_OMIT,
        },
        last_modification: Timespec {
            tv_sec: 0,
            tv_nsec: UTIME_NOW,
        },
    };
    // It is then only removed a little earlier than it should be.
    let _kept_old = futimens(file, &now);
}

fn lease(dir: &Path, description: Description, held: File) -> PackLease {
    PackLease {
        pack: dir.join(PACK),
        index: dir.join(INDEX),
        pack_blob: description.pack,
        index_blob: description.index,
        shallow: description.shallow,
        _held: Arc::new(held),
    }
}

fn is_whole(dir: &Path, description: &Description) -> bool {
    [(PACK, &description.pack), (INDEX, &description.index)]
        .iter()
        .all(|(name, want)| blob(&dir.join(name)).is_ok_and(|found| found == **want))
}

fn is_still(held: &File, dir: &Path) -> bool {
    let there = fs::metadata(dir.join(DESCRIPTION)).map(|meta| (meta.dev(), meta.ino()));
    matches!((identity(held), there), (Ok(held), Ok(there)) if held == there)
}

fn identity(file: &File) -> io::Result<(u64, u64)> {
    file.metadata().map(|meta| (meta.dev(), meta.ino()))
}

/// Length and hash of a file, read once from its beginning to its end.
fn blob(path: &Path) -> io::Result<Blob> {
    struct Hashing(digest::Context);
    impl io::Write for Hashing {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.update(bytes);
            Ok(bytes.len())
        }
        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }
    let mut hash =
        io::BufWriter::with_capacity(1 << 18, Hashing(digest::Context::new(&digest::SHA256)));
    let bytes = io::copy(&mut File::open(path)?, &mut hash)?;
    let hash = hash
        .into_inner()
        .map_err(io::IntoInnerError::into_error)?
        .0
        .finish();
    let sha256 = hex(hash.as_ref());
    Ok(Blob { bytes, sha256 })
}

/// Bytes in lower-case hex.
pub(super) fn hex(bytes: &[u8]) -> String {
    use std::fmt::Write as _;
    bytes
        .iter()
        .fold(String::with_capacity(bytes.len() * 2), |mut text, byte| {
            // Writing to a string does not fail.
            let _never = write!(text, "{byte:02x}");
            text
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Bench {
        _state: tempfile::TempDir,
        session: Arc<Session>,
        verified: Verified,
        place: PathBuf,
    }

    fn bench() -> Bench {
        let state = tempfile::tempdir().unwrap();
        let session = Session::open(state.path()).unwrap();
        let place = state.path().join("mirrors/k/packs/c-1");
        Bench {
            session,
            verified: Verified::default(),
            place,
            _state: state,
        }
    }

    impl Bench {
        fn publish(&self) -> PackLease {
            let draft = Draft::new(&self.session).unwrap();
            fs::write(draft.dir().join(PACK), "abc").unwrap();
            fs::write(draft.dir().join(INDEX), "").unwrap();
            draft
                .publish(&self.place, Vec::new(), &self.verified)
                .unwrap()
        }

        fn open(&self, verified: &Verified) -> Option<PackLease> {
            open(&self.place, verified, &self.session).unwrap()
        }
    }

    #[test]
    fn a_pack_is_served_with_the_hash_of_its_bytes() {
        let bench = bench();
        let made = bench.publish();
        assert_eq!(made.pack_blob.bytes, 3);
        assert_eq!(
            made.pack_blob.sha256,
            "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
        );
        let again = bench.open(&Verified::default()).unwrap();
        assert_eq!(again.pack_blob, made.pack_blob);
        assert_eq!(fs::read(&again.pack).unwrap(), b"abc");
    }

    #[test]
    fn a_pack_in_use_is_not_removed() {
        let bench = bench();
        let first = bench.publish();
        let second = bench.open(&bench.verified).unwrap();
        drop(first);
        assert!(!remove(&bench.place, &bench.session));
        drop(second);
        assert!(remove(&bench.place, &bench.session));
        assert!(bench.open(&bench.verified).is_none());
    }

    #[test]
    fn t07_a_pack_that_is_not_whole_is_never_served() {
        for (file, bytes) in [
            (PACK, "abd"),
            (PACK, "ab"),
            (INDEX, "x"),
            (DESCRIPTION, "{"),
        ] {
            let bench = bench();
            drop(bench.publish());
            fs::write(bench.place.join(file), bytes).unwrap();
            assert!(bench.open(&Verified::default()).is_none(), "{file}");
            assert!(!bench.place.exists(), "{file}");
        }
    }
}
