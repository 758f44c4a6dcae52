//! One commit, from its server to a pack on disk.
//!
//! First by id. Servers that give out only what they advertise are asked for the ref that led there, deeper and deeper,
//! and then for everything. Nothing but the commit itself is ever taken in its place. What was in a mirror before is
//! looked at as git stored it, and a mirror that proves damaged is thrown away and made anew.

use std::fs;
use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::fetch_error::FetchError;
use super::git::{Call, Git, MARK};
use super::git_text::{self, Said};
use super::holds::Holds;
use super::objects::{self, Found, Look, Short};
use super::packs::{Draft, PackLease, Verified};
use super::process::{Bounds, DiskBound, End, Ended};
use super::session::Session;
use super::store::{Locked, Repo};
use super::trace;
use super::way::Way;
use super::{ListError, ObjectSeen, Settings, Wanted, list_error};
use crate::api::{CommitId, Reason, RefName};

/// How much deeper than wanted a ref is fetched, step by step, until the commit is there.
const DEEPER: [u32; 3] = [16, 256, 4096];
/// So many packs of a mirror are joined into a few.
const MANY_PACKS: usize = 24;

/// What came of it.
#[derive(Debug)]
pub(super) enum Made {
    /// A pack.
    Pack(PackLease),
    /// The object is no commit.
    Other(ObjectSeen),
}

/// Everything that a fetch needs, for one object.
pub(super) struct Fetch<'a> {
    pub(super) git: &'a Git,
    pub(super) settings: &'a Settings,
    pub(super) session: &'a Arc<Session>,
    pub(super) verified: &'a Arc<Verified>,
    pub(super) count: &'a AtomicU64,
    pub(super) holds: &'a Holds,
    pub(super) wanted: &'a Wanted,
    /// Checked by the guard; the connection goes there and nowhere else.
    pub(super) addresses: &'a [SocketAddr],
    pub(super) locked: &'a Locked,
    /// Where the pack goes.
    pub(super) place: PathBuf,
}

/// A mirror after a look into it.
struct Seen {
    repo: Repo,
    found: Found,
    /// The mirror was made for this fetch and holds nothing else, so its one pack is the answer.
    sole: bool,
}

impl Fetch<'_> {
    /// Fetches it, if the mirror does not have it, and makes its pack.
    pub(super) async fn make(&self) -> Result<Made, FetchError> {
        match self.attempt().await {
            Err(FetchError::Damaged(_)) => {
                for whole in [false, true] {
                    let repo = self.locked.repo(whole, self.wanted.id.format());
                    self.session.discard(&repo.dir).map_err(FetchError::State)?;
                }
                self.attempt().await
            }
            done => done,
        }
    }

    async fn attempt(&self) -> Result<Made, FetchError> {
        let seen = match self.in_mirror().await? {
            Some(seen) => seen,
            None => self.at_server().await?,
        };
        match seen.found {
            Found::History { shallow } => {
                let lease = self.pack(&seen.repo, shallow, seen.sole).await?;
                self.tidy(&seen.repo).await;
                Ok(Made::Pack(lease))
            }
            Found::Other(object) => Ok(Made::Other(object)),
            Found::Missing | Found::TooShort => Err(self.not_found()),
        }
    }

    /// What is here already.
    async fn in_mirror(&self) -> Result<Option<Seen>, FetchError> {
        for whole in [self.wanted.depth.is_none(), true] {
            let repo = self.repo(whole);
            if repo.exists() {
                let found = self.look(&repo, Short::IsTooShort).await?;
                if matches!(found, Found::History { .. } | Found::Other(_)) {
                    return Ok(Some(Seen {
                        repo,
                        found,
                        sole: false,
                    }));
                }
            }
        }
        Ok(None)
    }

    async fn at_server(&self) -> Result<Seen, FetchError> {
        if let Some(wait) = self.holds.left(&self.wanted.remote) {
            return Err(FetchError::Answered(ListError::RateLimited {
                wait: Some(wait),
            }));
        }
        let way = Way::open(
            self.settings,
            self.session,
            &self.wanted.remote,
            self.addresses,
        )?;
        self.locked.set_busy().map_err(FetchError::State)?;
        let seen = self.by_some_way(&way).await;
        self.locked.set_idle().map_err(FetchError::State)?;
        seen
    }

    async fn by_some_way(&self, way: &Way) -> Result<Seen, FetchError> {
        match self.by_id(way).await {
            Err(FetchError::NotAdvertised(_)) => {}
            done => return done,
        }
        if let Some(via) = &self.wanted.via
            && let Some(seen) = self.by_ref(way, via).await?
        {
            return Ok(seen);
        }
        self.by_everything(way).await
    }

    async fn by_id(&self, way: &Way) -> Result<Seen, FetchError> {
        let (repo, is_new) = self.ready(self.wanted.depth.is_none()).await?;
        let refspec = format!("+{}:{}", self.wanted.id, repo.next_pin());
        let fetched = self.fetch(way, &repo, self.wanted.depth, &refspec).await;
        if let Err(error) = fetched {
            if !is_new {
                return Err(error);
            }
            // Nothing of it would be of use, and the next one may be the sole pack again.
            self.session.discard(&repo.dir).map_err(FetchError::State)?;
            if let FetchError::Damaged(words) = error {
                // A mirror that was just made is not at fault.
                let reason = Reason::FetchFailed;
                return Err(FetchError::Refused { reason, words });
            }
            return Err(error);
        }
        let found = self.look(&repo, Short::IsAllThereIs).await?;
        let sole = is_new && repo.packs().len() == 1;
        Ok(Seen { repo, found, sole })
    }

    async fn by_ref(&self, way: &Way, via: &RefName) -> Result<Option<Seen>, FetchError> {
        let (repo, _) = self.ready(self.wanted.depth.is_none()).await?;
        let refspec = format!("+{via}:{}", repo.next_pin());
        let depths: Vec<Option<u32>> = match self.wanted.depth {
            None => vec![None],
            Some(depth) => DEEPER
                .iter()
                .map(|more| Some(depth.saturating_add(*more)))
                .collect(),
        };
        for depth in depths {
            match self.fetch(way, &repo, depth, &refspec).await {
                // It was deleted in the meantime.
                Err(FetchError::NotAdvertised(_)) => return Ok(None),
                done => done?,
            }
            let found = self.look(&repo, Short::IsTooShort).await?;
            if matches!(found, Found::History { .. } | Found::Other(_)) {
                return Ok(Some(Seen {
                    repo,
                    found,
                    sole: false,
                }));
            }
        }
        Ok(None)
    }

    async fn by_everything(&self, way: &Way) -> Result<Seen, FetchError> {
        let (repo, _) = self.ready(true).await?;
        match self.fetch(way, &repo, None, "+refs/*:refs/all/*").await {
            Err(FetchError::NotAdvertised(_)) => return Err(self.not_found()),
            done => done?,
        }
        // A file for each of many refs would cost more than the objects.
        let packed = self.local(&repo).args(["pack-refs", "--all"]);
        packed
            .run(b"", self.bounds(&repo))
            .await
            .map_err(FetchError::Git)?;
        let found = self.look(&repo, Short::IsAllThereIs).await?;
        Ok(Seen {
            repo,
            found,
            sole: false,
        })
    }

    /// The mirror for whole or cut histories; made if it is not there. True: it is new.
    async fn ready(&self, whole: bool) -> Result<(Repo, bool), FetchError> {
        let repo = self.repo(whole);
        if repo.exists() {
            let is_new = repo.packs().is_empty();
            return Ok((repo, is_new));
        }
        // Made aside and moved into place, so that a half-made one is never there.
        let draft = self.session.dir().map_err(FetchError::State)?;
        let format = format!("--object-format={}", self.wanted.id.format());
        let init = self
            .git
            .call(draft.path())
            .args(["init", "--quiet", "--bare", "--template="]);
        let init = init.arg(format).arg("mirror");
        let made = init
            .run(b"", self.bounds(&repo))
            .await
            .map_err(FetchError::Git)?;
        if !made.is_success() {
            return Err(self.failed(&made));
        }
        fs::rename(draft.path().join("mirror"), &repo.dir).map_err(FetchError::State)?;
        Ok((repo, true))
    }

    async fn fetch(
        &self,
        way: &Way,
        repo: &Repo,
        depth: Option<u32>,
        refspec: &str,
    ) -> Result<(), FetchError> {
        let mut call = self
            .local(repo)
            .args([
                "fetch",
                "--quiet",
                "--no-progress",
                "--no-tags",
                "--no-write-fetch-head",
            ])
            .args(["--no-recurse-submodules", "--no-auto-maintenance"]);
        call = match depth {
            Some(depth) => call.arg(format!("--depth={depth}")),
            // A server may itself hold only a part of the history.
            None => call.arg("--update-shallow"),
        };
        if refspec.contains('*') {
            call = call.arg("--prune");
        }
        let url = self.wanted.remote.repository.as_str();
        let call = way.prepare(call).args(["--end-of-options", url, refspec]);
        self.count.fetch_add(1, Ordering::Relaxed);
        // Silence ends it, over https and ssh alike. Not curl's own limit: a server that packs for long says five bytes in
        // five seconds that it lives, which curl takes for less than one a second.
        let times = self.settings.times;
        let stall = Some(times.stall + times.connect);
        let ended = way
            .run(
                call,
                Bounds {
                    stall,
                    ..self.bounds(repo)
                },
            )
            .await
            .map_err(FetchError::Git)?;
        if ended.is_success() {
            Ok(())
        } else {
            Err(self.failed(&ended))
        }
    }

    /// Exactly the commit and its history up to the cuts, as one pack.
    async fn pack(
        &self,
        repo: &Repo,
        shallow: Vec<CommitId>,
        sole: bool,
    ) -> Result<PackLease, FetchError> {
        let draft = Draft::new(self.session).map_err(FetchError::State)?;
        let pack = match repo.packs().first().filter(|_| sole) {
            Some(pack) => pack.clone(),
            None => self.repack(repo, &shallow, draft.dir()).await?,
        };
        let (place, verified) = (self.place.clone(), Arc::clone(self.verified));
        let publish = move || {
            draft.take(&pack, &pack.with_extension("idx"))?;
            draft.publish(&place, shallow, &verified)
        };
        let published = tokio::task::spawn_blocking(publish).await;
        published
            .map_err(io::Error::other)
            .flatten()
            .map_err(FetchError::State)
    }

    /// Writes a pack from the mirror. It fails if a single object of it is missing.
    async fn repack(
        &self,
        repo: &Repo,
        shallow: &[CommitId],
        dir: &Path,
    ) -> Result<PathBuf, FetchError> {
        let cuts = dir.join("cuts");
        let lines: Vec<&str> = shallow
            .iter()
            .flat_map(|id| {
                [
                    id.as_str(),
                    "
",
                ]
            })
            .collect();
        fs::write(&cuts, lines.concat()).map_err(FetchError::State)?;
        let call = self.git.call(&repo.dir).arg("--shallow-file").arg(&cuts);
        let call = call
            .arg("--git-dir")
            .arg(&repo.dir)
            .env(MARK, self.locked.mark());
        // What has a delta keeps it; to look for more would take longer than to send a little more.
        let call = call.args(["pack-objects", "--quiet", "--revs", "--window=0"]);
        let call = call.arg("--delta-base-offset").arg(dir.join("made"));
        let input = format!("{}\n", self.wanted.id);
        let ended = call
            .run(input.as_bytes(), self.bounds(repo))
            .await
            .map_err(FetchError::Git)?;
        let name = String::from_utf8_lossy(&ended.stdout).trim().to_owned();
        if ended.is_success() && !name.is_empty() {
            return Ok(dir.join(format!("made-{name}.pack")));
        }
        let error = self.failed(&ended);
        if let FetchError::Refused {
            reason: Reason::FetchFailed,
            words,
        } = error
        {
            return Err(FetchError::Damaged(words));
        }
        Err(error)
    }

    /// Joins many packs into few. The answer is made already: what fails here only costs time later.
    async fn tidy(&self, repo: &Repo) {
        if repo.packs().len() >= MANY_PACKS && self.locked.set_busy().is_ok() {
            let call = self
                .local(repo)
                .args(["repack", "-d", "--quiet", "--geometric=2"]);
            if call.run(b"", self.bounds(repo)).await.is_ok() {
                let _killed_later_in_vain = self.locked.set_idle();
            }
        }
    }

    async fn look(&self, repo: &Repo, short: Short) -> Result<Found, FetchError> {
        let look = Look {
            id: &self.wanted.id,
            depth: self.wanted.depth,
            cuts: &repo.shallow(),
            short,
        };
        objects::look(self.local(repo), self.bounds(repo), &look)
            .await
            .map_err(FetchError::Git)
    }

    fn repo(&self, whole: bool) -> Repo {
        self.locked.repo(whole, self.wanted.id.format())
    }

    fn local(&self, repo: &Repo) -> Call<'_> {
        let call = self.git.call(&repo.dir).env(MARK, self.locked.mark());
        call.arg("--git-dir").arg(&repo.dir)
    }

    fn bounds(&self, repo: &Repo) -> Bounds {
        let fetch = &self.settings.fetch;
        let disk = repo.exists().then(|| DiskBound {
            dir: repo.dir.clone(),
            most_bytes: fetch.mirror_bytes,
            keep_free_bytes: fetch.keep_free_bytes,
        });
        Bounds {
            deadline: fetch.deadline,
            memory_bytes: fetch.memory_bytes,
            disk,
            stall: None,
        }
    }

    fn failed(&self, ended: &Ended) -> FetchError {
        let fetch = &self.settings.fetch;
        match ended.end {
            End::Exited(_) => {}
            End::Deadline => return FetchError::Deadline(fetch.deadline),
            End::Stalled => return FetchError::Stalled(self.settings.times.stall),
            End::TooLarge => return FetchError::TooLarge(fetch.mirror_bytes),
            End::DiskFull => return FetchError::DiskFull(fetch.keep_free_bytes),
        }
        let remote = &self.wanted.remote;
        let (text, heard) = trace::split(&String::from_utf8_lossy(&ended.stderr));
        if let Some(answer) = heard.and_then(|heard| list_error::heard(&heard, remote)) {
            if let ListError::RateLimited { wait: Some(wait) } = answer {
                self.holds.hold(remote, wait);
            }
            return FetchError::Answered(answer);
        }
        let words = git_text::words(&text, &remote.credential);
        match git_text::read(&text) {
            Said::Reason(reason) => FetchError::Refused { reason, words },
            Said::NotAdvertised | Said::NoSuchRef => {
                FetchError::NotAdvertised(self.wanted.id.clone())
            }
            // Words that nobody foresaw may well be those of a damaged mirror.
            Said::Damaged | Said::Unknown => FetchError::Damaged(words),
        }
    }

    fn not_found(&self) -> FetchError {
        FetchError::NotFound(self.wanted.id.clone())
    }
}
