//! Whether the pinned commit is an ancestor of where HEAD went: read from the objects, within bounds, else not said.
//!
//! The object store is the agent's. Each object is taken by its id and proved to have it, so replace refs, grafts and
//! alternates have no say; files are opened without following links; what is too much is not read.

use std::collections::HashSet;
use std::fs::File;
use std::io::Read as _;
use std::os::fd::OwnedFd;
use std::time::Duration;

use tokio::time::Instant;

use crate::api::{CommitId, ObjectFormat};
use crate::pod::head;
use crate::pod::objects::{Commit, Inflater, Kind, Limits, ObjectId, Pack, PackIndex};

/// Commits that are read at most.
const MAX_COMMITS: usize = 10_000;
/// Time that is spent at most: the comparison of the tree matters more.
const MAX_TIME: Duration = Duration::from_secs(5);
/// The largest commit that is read.
const MAX_COMMIT: usize = 1 << 20;
/// Bytes of all packs' indexes together: about two million objects.
const MAX_INDEXES: u64 = 64 << 20;
/// Names in the pack directory that are looked at.
const MAX_PACKS: usize = 1000;

/// Whether `pinned` is an ancestor of `to`; `None`: not known.
pub(super) fn is_ancestor(git: &OwnedFd, pinned: &CommitId, to: &CommitId) -> Option<bool> {
    let deadline = Instant::now() + MAX_TIME;
    let format = pinned.format();
    let pinned = ObjectId::from_hex(pinned.as_str().as_bytes())?;
    let mut store = Store {
        git,
        format,
        packs: None,
        inflater: Inflater::default(),
    };
    let mut pending = vec![ObjectId::from_hex(to.as_str().as_bytes())?];
    let mut seen: HashSet<ObjectId> = pending.iter().copied().collect();
    // A commit that is not there hides what lies behind it: the walk goes on, but can no longer end with "no".
    let mut complete = true;
    while let Some(id) = pending.pop() {
        if id == pinned {
            return Some(true);
        }
        if seen.len() > MAX_COMMITS || Instant::now() >= deadline {
            return None;
        }
        match store.commit(&id) {
            Some(commit) => pending.extend(commit.parents.into_iter().filter(|p| seen.insert(*p))),
            None => complete = false,
        }
    }
    complete.then_some(false)
}

struct Store<'g> {
    git: &'g OwnedFd,
    format: ObjectFormat,
    /// Opened when a commit is not loose.
    packs: Option<Vec<Pack>>,
    inflater: Inflater,
}

impl Store<'_> {
    fn commit(&mut self, id: &ObjectId) -> Option<Commit> {
        let content = match self.loose(id) {
            Some(content) => content,
            None => self.packed(id)?,
        };
        Commit::parse(&content).ok()
    }

    fn loose(&mut self, id: &ObjectId) -> Option<Vec<u8>> {
        let hex = id.to_string();
        let (directory, name) = hex.split_at_checked(2)?;
        let file = head::open_below(self.git, &format!("objects/{directory}/{name}"))?;
        let mut packed = Vec::new();
        file.take(MAX_COMMIT as u64).read_to_end(&mut packed).ok()?;
        let object = self.inflater.inflate_up_to(&packed, MAX_COMMIT).ok()?;
        let end = object.iter().take(32).position(|b| *b == 0)?;
        let content = object.get(end + 1..)?.to_vec();
        (ObjectId::of(self.format, Kind::Commit, &content) == *id).then_some(content)
    }

    fn packed(&mut self, id: &ObjectId) -> Option<Vec<u8>> {
        let (git, format) = (self.git, self.format);
        let limits = Limits {
            object: MAX_COMMIT,
            cache: 4 * MAX_COMMIT,
        };
        self.packs
            .get_or_insert_with(|| open_packs(git, format))
            .iter()
            .find_map(|pack| pack.reader(limits).read(id, Kind::Commit).ok())
            .map(|content| content.to_vec())
    }
}

/// The packs that can be opened within the bounds.
fn open_packs(git: &OwnedFd, format: ObjectFormat) -> Vec<Pack> {
    let mut room = MAX_INDEXES;
    let mut packs = Vec::new();
    for name in pack_names(git).unwrap_or_default() {
        let open = |ext: &str| head::open_below(git, &format!("objects/pack/{name}.{ext}"));
        if let (Some(index), Some(file)) = (open("idx"), open("pack"))
            && let Some(pack) = open_pack(file, index, format, &mut room)
        {
            packs.push(pack);
        }
    }
    packs
}

fn open_pack(file: File, index: File, format: ObjectFormat, room: &mut u64) -> Option<Pack> {
    let length = index.metadata().ok()?.len();
    *room = room.checked_sub(length)?;
    let mut bytes = Vec::new();
    index.take(length).read_to_end(&mut bytes).ok()?;
    Pack::open(file, PackIndex::parse(bytes, format).ok()?, format).ok()
}

fn pack_names(git: &OwnedFd) -> Option<Vec<String>> {
    let directory = head::open_directory_below(git, "objects/pack")?;
    let listing = rustix::fs::Dir::read_from(&directory).ok()?;
    Some(
        listing
            .take(MAX_PACKS)
            .filter_map(Result::ok)
            .filter_map(|entry| {
                entry
                    .file_name()
                    .to_str()
                    .ok()?
                    .strip_suffix(".idx")
                    .map(str::to_owned)
            })
            .collect(),
    )
}
