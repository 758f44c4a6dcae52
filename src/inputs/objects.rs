//! What a mirror holds: the type of an object, where a tag leads, and how deep a history goes.
//!
//! One `git cat-file` answers all questions of a look. It gives what is stored, without grafts and replacements.

use std::collections::{BTreeSet, HashSet};
use std::io;

use tokio::io::{
    AsyncBufRead, AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader,
};
use tokio::process::{ChildStdin, ChildStdout};

use super::ObjectSeen;
use super::git::{Call, GitError};
use super::process::{Bounds, Running};
use crate::api::CommitId;

/// The longest commit or tag of which everything is read: the parents stand first, and more than a few hundred are unheard of.
const LONGEST: u64 = 1 << 20;
/// Tags on tags that are followed.
const TAGS: usize = 64;

/// What a mirror has of a commit and its history.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Found {
    /// Not even the object.
    Missing,
    /// The object is no commit.
    Other(ObjectSeen),
    /// The commit, but not all of the history that is wanted.
    TooShort,
    /// All that is wanted. The history is to be cut at these commits.
    History {
        /// Commits whose parents are left out.
        shallow: Vec<CommitId>,
    },
}

/// How a history ends that is shorter than what is wanted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Short {
    /// It was just fetched to the wanted depth: the server has no more either.
    IsAllThereIs,
    /// It may go on at the server.
    IsTooShort,
}

/// What to look for.
#[derive(Debug)]
pub(super) struct Look<'a> {
    /// The commit.
    pub(super) id: &'a CommitId,
    /// How many generations of it; `None`: all.
    pub(super) depth: Option<u32>,
    /// Where the mirror's own histories are cut.
    pub(super) cuts: &'a BTreeSet<CommitId>,
    /// What a cut above the wanted depth means.
    pub(super) short: Short,
}

/// Looks into a mirror.
pub(super) async fn look(
    call: Call<'_>,
    bounds: Bounds,
    look: &Look<'_>,
) -> Result<Found, GitError> {
    let mut reader = Reader::start(call, bounds)?;
    let found = reader.find(look).await;
    // A reader that breaks off has a damaged mirror before it: as good as empty.
    Ok(found.unwrap_or(Found::Missing))
}

/// A `git cat-file` that is being asked.
struct Reader {
    stdin: ChildStdin,
    stdout: BufReader<ChildStdout>,
    _running: Running,
}

/// An object: its type and, for a commit or a tag, its text.
struct Object {
    kind: String,
    text: Vec<u8>,
}

impl Reader {
    fn start(call: Call<'_>, bounds: Bounds) -> Result<Self, GitError> {
        let (mut running, _) = call.args(["cat-file", "--batch-command"]).spawn(bounds)?;
        let no_pipes = || GitError::Start {
            program: "git",
            cause: io::ErrorKind::BrokenPipe.into(),
        };
        let (stdin, stdout) = running.streams().ok_or_else(no_pipes)?;
        Ok(Self {
            stdin,
            stdout: BufReader::new(stdout),
            _running: running,
        })
    }

    async fn find(&mut self, look: &Look<'_>) -> io::Result<Found> {
        let Some(object) = self.object(look.id).await? else {
            return Ok(Found::Missing);
        };
        match object.kind.as_str() {
            "commit" => self.history(look, object).await,
            "tag" => self.peel(object).await.map(Found::Other),
            "tree" => Ok(Found::Other(ObjectSeen::NotACommit("tree"))),
            _ => Ok(Found::Other(ObjectSeen::NotACommit("blob"))),
        }
    }

    /// Generation by generation, so that a commit counts by its shortest way.
    async fn history(&mut self, look: &Look<'_>, first: Object) -> io::Result<Found> {
        let mut shallow = Vec::new();
        if look.depth.is_none() && look.cuts.is_empty() {
            return Ok(Found::History { shallow });
        }
        let mut seen = HashSet::from([look.id.clone()]);
        let mut generation = vec![(look.id.clone(), parents(&first.text))];
        for left in (0..look.depth.unwrap_or(u32::MAX)).rev() {
            let mut next = Vec::new();
            for (id, parents) in generation {
                let is_cut = look.cuts.contains(&id) && !parents.is_empty();
                if is_cut && left > 0 && look.short == Short::IsTooShort {
                    return Ok(Found::TooShort);
                }
                if (left == 0 && !parents.is_empty()) || is_cut {
                    shallow.push(id);
                    continue;
                }
                next.extend(
                    parents
                        .into_iter()
                        .filter(|parent| seen.insert(parent.clone())),
                );
            }
            if next.is_empty() || left == 0 {
                break;
            }
            generation = Vec::with_capacity(next.len());
            for id in next {
                match self.object(&id).await? {
                    Some(object) => generation.push((id, parents(&object.text))),
                    None => return Ok(Found::TooShort),
                }
            }
        }
        shallow.sort();
        Ok(Found::History { shallow })
    }

    /// Follows a tag to its end.
    async fn peel(&mut self, tag: Object) -> io::Result<ObjectSeen> {
        let mut tag = tag;
        for _ in 0..TAGS {
            let target = header(&tag.text, b"object ").and_then(|id| id.parse().ok());
            let kind = header(&tag.text, b"type ").unwrap_or_default().to_owned();
            match (kind.as_str(), target) {
                ("commit", Some(commit)) => return Ok(ObjectSeen::TagOfCommit(commit)),
                ("tree", _) => return Ok(ObjectSeen::NotACommit("tree")),
                ("tag", Some(id)) => match self.object(&id).await? {
                    Some(object) => tag = object,
                    None => break,
                },
                _ => return Ok(ObjectSeen::NotACommit("blob")),
            }
        }
        Ok(ObjectSeen::NotACommit("tag"))
    }

    async fn object(&mut self, id: &CommitId) -> io::Result<Option<Object>> {
        let Some((kind, _)) = self.ask(&format!("info {id}\n")).await? else {
            return Ok(None);
        };
        let mut text = Vec::new();
        if kind == "commit" || kind == "tag" {
            let Some((_, size)) = self.ask(&format!("contents {id}\n")).await? else {
                return Ok(None);
            };
            let read = (&mut self.stdout)
                .take(size.min(LONGEST))
                .read_to_end(&mut text)
                .await?;
            skip(&mut self.stdout, (size + 1).saturating_sub(read as u64)).await?;
        }
        Ok(Some(Object { kind, text }))
    }

    /// One question, and the line `ID TYPE SIZE`; `None`: `ID missing`.
    async fn ask(&mut self, question: &str) -> io::Result<Option<(String, u64)>> {
        self.stdin.write_all(question.as_bytes()).await?;
        self.stdin.flush().await?;
        let mut line = String::new();
        if self.stdout.read_line(&mut line).await? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        let mut words = line.split_ascii_whitespace().skip(1);
        let kind = words.next().unwrap_or_default().to_owned();
        let size = words.next().and_then(|size| size.parse().ok());
        Ok(size.map(|size| (kind, size)))
    }
}

async fn skip(from: &mut (impl AsyncBufRead + Unpin), mut bytes: u64) -> io::Result<()> {
    while bytes > 0 {
        let there = from.fill_buf().await?.len() as u64;
        if there == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        let taken = there.min(bytes);
        from.consume(usize::try_from(taken).unwrap_or(usize::MAX));
        bytes -= taken;
    }
    Ok(())
}

/// The parents in the text of a commit.
fn parents(text: &[u8]) -> Vec<CommitId> {
    headers(text)
        .filter_map(|line| line.strip_prefix(b"parent "))
        .filter_map(|id| std::str::from_utf8(id).ok()?.parse().ok())
        .collect()
}

fn header<'a>(text: &'a [u8], name: &[u8]) -> Option<&'a str> {
    headers(text).find_map(|line| std::str::from_utf8(line.strip_prefix(name)?).ok())
}

fn headers(text: &[u8]) -> impl Iterator<Item = &[u8]> {
    text.split(|byte| *byte == b'\n')
        .take_while(|line| !line.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parents_are_read_from_the_head_of_a_commit_only() {
        let (a, b) = ("a".repeat(40), "b".repeat(40));
        let text = format!("tree {a}\nparent {a}\nparent {b}\nauthor x\n\nparent {b}\n");
        let found: Vec<String> = parents(text.as_bytes())
            .into_iter()
            .map(Into::into)
            .collect();
        assert_eq!(found, [a, b]);
    }
}
