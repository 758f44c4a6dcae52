//! How git servers list refs: protocol v2, and v0 and v1 for servers that know no better. Pure over streams.
//!
//! Over HTTP, greeting and answer are two requests ([`super::http`]); over ssh they are one conversation
//! ([`list_over`]). Only what was wanted is kept, so a server with a million refs costs time and no memory.

use std::collections::BTreeMap;

use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt as _};

use super::pkt::{self, Packet, PktError, PktReader};
use super::{Head, Listed, Listing, Wants};
use crate::api::{CommitId, ObjectFormat, RefName, safe_text};

/// How we introduce ourselves. The word before the slash is what some forges tell git clients by.
pub const AGENT: &str = concat!("git/sandboxrun-", env!("CARGO_PKG_VERSION"));

/// What is wrong with what a server says.
#[derive(Debug, thiserror::Error)]
pub enum ProtocolError {
    /// The framing.
    #[error(transparent)]
    Framing(#[from] PktError),
    /// A line that the protocol does not have at this place.
    #[error("{0}")]
    Unexpected(&'static str),
    /// The server's own error line, made safe; at most 300 characters.
    #[error("the server says: {0}")]
    Remote(String),
    /// A hash that we do not know.
    #[error("the repository's object format `{0}` is not known")]
    UnknownFormat(String),
    /// Writing our question failed.
    #[error("asking failed")]
    Asking(#[source] std::io::Error),
}

/// What a server begins with.
#[derive(Debug)]
pub enum Greeting {
    /// Protocol v2: now it can be asked.
    V2(Capabilities),
    /// Protocol v0 or v1: that was the whole listing.
    Refs(Listing),
}

/// What a server of protocol v2 can do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Capabilities {
    format: ObjectFormat,
    names_format: bool,
    agent: bool,
    unborn: bool,
}

/// Reads what a server begins with. `wants` is asked for once it counts: in v0 before the refs, in v2 not at all.
///
/// # Errors
/// When the server says something else.
pub async fn greeting<R: AsyncRead + Unpin>(
    from: &mut PktReader<R>,
    wants: impl FnOnce() -> Wants,
) -> Result<Greeting, ProtocolError> {
    let mut first = line(from).await?;
    if first
        .as_deref()
        .is_some_and(|l| l.starts_with(b"# service="))
    {
        // Over HTTP the service is named first, in a message of its own.
        while line(from).await?.is_some() {}
        first = line(from).await?;
    }
    match first.as_deref() {
        Some(b"version 2") => Ok(Greeting::V2(capabilities(from).await?)),
        Some(b"version 1") => {
            let next = line(from).await?;
            advertised(from, next, wants()).await.map(Greeting::Refs)
        }
        _ => advertised(from, first, wants()).await.map(Greeting::Refs),
    }
}

/// The question for the wanted names and `HEAD`.
#[must_use]
pub fn question(server: &Capabilities, wants: &Wants) -> Vec<u8> {
    let names = wants.0.iter().map(RefName::as_str);
    ask(server, ["HEAD"].into_iter().chain(names))
}

/// The question whether there is any ref at all.
#[must_use]
pub fn question_for_any(server: &Capabilities) -> Vec<u8> {
    ask(server, ["refs/"].into_iter())
}

/// Reads the answer to [`question`].
///
/// # Errors
/// When it is none.
pub async fn answer<R: AsyncRead + Unpin>(
    from: &mut PktReader<R>,
    server: &Capabilities,
    wants: &Wants,
) -> Result<Listing, ProtocolError> {
    let mut listing = Listing::nothing(server.format);
    while let Some(line) = line(from).await? {
        listing.take(&v2_ref(&line, server.format)?, wants);
    }
    Ok(listing)
}

/// Reads as much of the answer to [`question_for_any`] as it takes: whether there is a ref.
///
/// # Errors
/// When it is none.
pub async fn answer_for_any<R: AsyncRead + Unpin>(
    from: &mut PktReader<R>,
) -> Result<bool, ProtocolError> {
    Ok(line(from).await?.is_some())
}

/// A whole listing over one pair of streams, as with ssh. Ends the conversation.
///
/// # Errors
/// When the server says something that is not git's, or the streams end.
pub async fn list_over<R, W>(
    reader: R,
    mut writer: W,
    wants: &Wants,
    limit: u64,
) -> Result<Listing, ProtocolError>
where
    R: AsyncRead + Unpin,
    W: AsyncWrite + Unpin,
{
    let mut from = PktReader::new(reader, limit);
    let listing = match greeting(&mut from, || wants.clone()).await? {
        Greeting::Refs(listing) => listing,
        Greeting::V2(server) => {
            send(&mut writer, &question(&server, wants)).await?;
            let mut listing = answer(&mut from, &server, wants).await?;
            if listing.says_nothing() {
                send(&mut writer, &question_for_any(&server)).await?;
                listing.empty = !answer_for_any(&mut from).await?;
            }
            listing
        }
    };
    // A server that has gone already has said all that we wanted.
    drop(send(&mut writer, b"0000").await);
    Ok(listing)
}

async fn send<W: AsyncWrite + Unpin>(to: &mut W, bytes: &[u8]) -> Result<(), ProtocolError> {
    to.write_all(bytes).await.map_err(ProtocolError::Asking)?;
    to.flush().await.map_err(ProtocolError::Asking)
}

impl Listing {
    fn nothing(format: ObjectFormat) -> Self {
        Self {
            format,
            head: Head::Absent,
            refs: BTreeMap::new(),
            empty: false,
        }
    }

    /// Nothing was seen, and not everything was asked for: the repository may be empty.
    pub(super) fn says_nothing(&self) -> bool {
        self.refs.is_empty() && !matches!(self.head, Head::At { .. })
    }

    fn take(&mut self, seen: &Seen<'_>, wants: &Wants) {
        match seen {
            Seen::Ref {
                name: b"HEAD",
                id,
                symref,
                ..
            } => {
                self.head = Head::At {
                    id: id.clone(),
                    branch: symref.clone(),
                };
            }
            Seen::Ref {
                name, id, peeled, ..
            } => {
                let listed = Listed {
                    id: id.clone(),
                    peeled: peeled.clone(),
                };
                if let Some(name) = wants
                    .0
                    .iter()
                    .find(|want| want.as_str().as_bytes() == *name)
                {
                    self.refs.insert(name.clone(), listed);
                }
            }
            Seen::UnbornHead { branch } => {
                self.head = Head::Unborn {
                    branch: branch.clone(),
                }
            }
            Seen::Other => {}
        }
    }
}

/// A line of a listing.
enum Seen<'a> {
    Ref {
        name: &'a [u8],
        id: CommitId,
        peeled: Option<CommitId>,
        symref: Option<RefName>,
    },
    UnbornHead {
        branch: RefName,
    },
    Other,
}

async fn capabilities<R: AsyncRead + Unpin>(
    from: &mut PktReader<R>,
) -> Result<Capabilities, ProtocolError> {
    let mut server = Capabilities {
        format: ObjectFormat::Sha1,
        names_format: false,
        agent: false,
        unborn: false,
    };
    let mut lists = false;
    while let Some(line) = line(from).await? {
        let (name, value) = split_at(&line, b'=').unwrap_or((&line, b""));
        match name {
            b"agent" => server.agent = true,
            b"object-format" => {
                server.format = format(value)?;
                server.names_format = true;
            }
            b"ls-refs" => {
                lists = true;
                server.unborn = value
                    .split(|byte| *byte == b' ')
                    .any(|word| word == b"unborn");
            }
            _ => {}
        }
    }
    if lists {
        Ok(server)
    } else {
        Err(ProtocolError::Unexpected(
            "the server speaks protocol v2 and cannot list refs",
        ))
    }
}

fn ask<'a>(server: &Capabilities, prefixes: impl Iterator<Item = &'a str>) -> Vec<u8> {
    let mut bytes = Vec::new();
    pkt::write(&mut bytes, b"command=ls-refs\n");
    if server.agent {
        pkt::write(&mut bytes, format!("agent={AGENT}\n").as_bytes());
    }
    if server.names_format {
        pkt::write(
            &mut bytes,
            format!("object-format={}\n", server.format).as_bytes(),
        );
    }
    bytes.extend_from_slice(b"0001");
    pkt::write(&mut bytes, b"peel\n");
    pkt::write(&mut bytes, b"symrefs\n");
    if server.unborn {
        pkt::write(&mut bytes, b"unborn\n");
    }
    for prefix in prefixes {
        pkt::write(&mut bytes, format!("ref-prefix {prefix}\n").as_bytes());
    }
    bytes.extend_from_slice(b"0000");
    bytes
}

/// `ID NAME[ symref-target:NAME][ peeled:ID]`, or `unborn HEAD symref-target:NAME`.
fn v2_ref(line: &[u8], format: ObjectFormat) -> Result<Seen<'_>, ProtocolError> {
    const BAD: ProtocolError = ProtocolError::Unexpected("a line that is no ref");
    let mut words = line.split(|byte| *byte == b' ');
    let (first, name) = words.next().zip(words.next()).ok_or(BAD)?;
    let (mut peeled, mut symref) = (None, None);
    for word in words {
        if let Some(target) = word.strip_prefix(b"symref-target:") {
            symref = ref_name(target);
        } else if let Some(target) = word.strip_prefix(b"peeled:") {
            peeled = Some(id(target, format).ok_or(BAD)?);
        }
    }
    if first == b"unborn" {
        let head = symref.filter(|_| name == b"HEAD");
        return Ok(head.map_or(Seen::Other, |branch| Seen::UnbornHead { branch }));
    }
    Ok(Seen::Ref {
        name,
        id: id(first, format).ok_or(BAD)?,
        peeled,
        symref,
    })
}

/// The listing of v0 and v1, from its first line on: `ID NAME\0CAPABILITIES`, then `ID NAME` and `ID NAME^{}`.
async fn advertised<R: AsyncRead + Unpin>(
    from: &mut PktReader<R>,
    first: Option<Vec<u8>>,
    wants: Wants,
) -> Result<Listing, ProtocolError> {
    const BAD: ProtocolError = ProtocolError::Unexpected("a line that is no ref");
    let mut listing = Listing::nothing(ObjectFormat::Sha1);
    listing.empty = true;
    let Some(first) = first else {
        return Ok(listing);
    };
    let (first, said) = split_at(&first, 0).unwrap_or((&first, b""));
    let mut branch = None;
    for word in said.split(|byte| *byte == b' ') {
        if let Some(name) = word.strip_prefix(b"object-format=") {
            listing.format = format(name)?;
        } else if let Some(target) = word.strip_prefix(b"symref=HEAD:") {
            branch = ref_name(target);
        }
    }
    let mut current = Some(first.to_vec());
    while let Some(line) = current {
        let (first, name) = split_at(&line, b' ').ok_or(BAD)?;
        if first == b"shallow" {
            current = self::line(from).await?;
            continue;
        }
        let id = id(first, listing.format).ok_or(BAD)?;
        if let Some(tag) = name.strip_suffix(b"^{}") {
            let wanted = listing
                .refs
                .iter_mut()
                .find(|(name, _)| name.as_str().as_bytes() == tag);
            if let Some((_, listed)) = wanted {
                listed.peeled = Some(id);
            }
        } else {
            listing.empty = false;
            listing.take(
                &Seen::Ref {
                    name,
                    id,
                    peeled: None,
                    symref: branch.clone(),
                },
                &wants,
            );
        }
        current = self::line(from).await?;
    }
    if let (Head::Absent, Some(branch)) = (&listing.head, branch) {
        listing.head = Head::Unborn { branch };
    }
    Ok(listing)
}

/// The next line without its newline; `None` at the end of a message.
async fn line<R: AsyncRead + Unpin>(
    from: &mut PktReader<R>,
) -> Result<Option<Vec<u8>>, ProtocolError> {
    match from.next().await? {
        Some(Packet::Data(data)) => {
            if let Some(text) = data.strip_prefix(b"ERR ") {
                let text = safe_text(text.trim_ascii());
                return Err(ProtocolError::Remote(text.chars().take(300).collect()));
            }
            Ok(Some(data.strip_suffix(b"\n").unwrap_or(data).to_vec()))
        }
        Some(Packet::Flush) => Ok(None),
        Some(Packet::Delimiter | Packet::ResponseEnd) => Err(ProtocolError::Unexpected(
            "the end of a section where there is none",
        )),
        None => Err(PktError::Truncated.into()),
    }
}

fn split_at(line: &[u8], separator: u8) -> Option<(&[u8], &[u8])> {
    let at = line.iter().position(|byte| *byte == separator)?;
    Some((line.get(..at)?, line.get(at + 1..)?))
}

fn format(name: &[u8]) -> Result<ObjectFormat, ProtocolError> {
    match name {
        b"sha1" => Ok(ObjectFormat::Sha1),
        b"sha256" => Ok(ObjectFormat::Sha256),
        other => {
            let name: String = safe_text(other).chars().take(40).collect();
            Err(ProtocolError::UnknownFormat(name))
        }
    }
}

fn id(hex: &[u8], format: ObjectFormat) -> Option<CommitId> {
    let text = std::str::from_utf8(hex)
        .ok()
        .filter(|text| text.len() == format.hex_len())?;
    text.parse().ok()
}

fn ref_name(bytes: &[u8]) -> Option<RefName> {
    std::str::from_utf8(bytes).ok()?.parse().ok()
}

#[cfg(test)]
#[path = "protocol_tests.rs"]
mod tests;
