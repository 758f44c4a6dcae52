//! The address guard: which addresses the host side connects to on behalf of a run.
//!
//! Inputs, lookups and egress all go through it. A name is resolved once, every address it leads to must pass, and
//! the caller connects to the addresses that come out and to nothing else: a second look-up could say otherwise.

use std::fmt;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use futures::future::BoxFuture;

use super::Settings;
use crate::api::{Fault, Reason};

/// Turns names into addresses. [`SystemNames`] is the one in use; tests bring their own.
pub trait Names: Send + Sync {
    /// All addresses of a host name.
    fn lookup<'a>(&'a self, host: &'a str) -> BoxFuture<'a, io::Result<Vec<IpAddr>>>;
}

/// The names that this machine knows.
#[derive(Debug, Clone, Copy, Default)]
pub struct SystemNames;

impl Names for SystemNames {
    fn lookup<'a>(&'a self, host: &'a str) -> BoxFuture<'a, io::Result<Vec<IpAddr>>> {
        Box::pin(async move {
            let found = tokio::net::lookup_host((host, 0)).await?;
            Ok(found.map(|address| address.ip()).collect())
        })
    }
}

/// Why an address is not connected to.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum AddressError {
    /// The host leads to a closed address.
    #[error("`{host}` leads to {address}, {kind}, which is closed for port {port}")]
    Refused {
        /// The host as it was asked for.
        host: String,
        /// The first closed address.
        address: IpAddr,
        /// What kind of address that is.
        kind: Closed,
        /// The port as it was asked for.
        port: u16,
    },
    /// The name leads nowhere.
    #[error("`{host}` has no address: {cause}")]
    NotFound {
        /// The host as it was asked for.
        host: String,
        /// The system's words.
        cause: String,
    },
    /// The name was not resolved in time.
    #[error("`{host}` was not resolved in time")]
    TimedOut {
        /// The host as it was asked for.
        host: String,
    },
}

impl Fault for AddressError {
    fn reason(&self) -> Reason {
        match self {
            Self::Refused { .. } => Reason::AddressRefused,
            Self::NotFound { .. } | Self::TimedOut { .. } => Reason::HostUnreachable,
        }
    }
}

/// Kinds of addresses that are closed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Closed {
    /// `0.0.0.0/8`, `::`
    Unspecified,
    /// `127.0.0.0/8`, `::1`
    Loopback,
    /// RFC 1918, unique local, site local.
    Private,
    /// `100.64.0.0/10`, shared by carriers and clouds.
    Shared,
    /// `169.254.0.0/16`, `fe80::/10`: cloud metadata lives here.
    LinkLocal,
    /// Addresses where clouds serve metadata outside the link-local range.
    Metadata,
    /// Multicast and broadcast.
    Multicast,
    /// Documentation, benchmarks, protocols and what is not assigned.
    Reserved,
    /// Named by the administrator as never to be reached: the API server.
    ApiServer,
}

impl fmt::Display for Closed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Unspecified => "an unspecified address",
            Self::Loopback => "a loopback address",
            Self::Private => "a private address",
            Self::Shared => "a carrier's or cloud's shared address",
            Self::LinkLocal => "a link-local address",
            Self::Metadata => "a cloud's metadata address",
            Self::Multicast => "a multicast address",
            Self::Reserved => "a reserved address",
            Self::ApiServer => "an address of the API server",
        })
    }
}

/// Decides which addresses may be connected to. Cheap to clone.
#[derive(Clone)]
pub struct AddressGuard(Arc<Inner>);

struct Inner {
    exceptions: Vec<AddressException>,
    always_refused: Vec<IpAddr>,
    names: Arc<dyn Names>,
    patience: Duration,
}

impl AddressGuard {
    /// A guard as the settings say.
    #[must_use]
    pub fn new(settings: &Settings, names: Arc<dyn Names>) -> Self {
        Self(Arc::new(Inner {
            exceptions: settings.address_exceptions.clone(),
            always_refused: settings
                .always_refused
                .iter()
                .map(|ip| plain(*ip))
                .collect(),
            names,
            patience: settings.times.connect,
        }))
    }

    /// The addresses to connect to for a host and port. All of the host's addresses have passed.
    ///
    /// # Errors
    /// When one of them is closed, there is none, or the look-up takes too long.
    pub async fn resolve(&self, host: &str, port: u16) -> Result<Vec<SocketAddr>, AddressError> {
        let found = if let Some(literal) = literal(host) {
            vec![literal]
        } else {
            let name = host.trim_end_matches('.');
            let lookup = tokio::time::timeout(self.0.patience, self.0.names.lookup(name));
            match lookup.await {
                Ok(Ok(found)) => found,
                Ok(Err(error)) => {
                    return Err(AddressError::NotFound {
                        host: host.to_owned(),
                        cause: error.to_string(),
                    });
                }
                Err(_) => {
                    return Err(AddressError::TimedOut {
                        host: host.to_owned(),
                    });
                }
            }
        };
        if found.is_empty() {
            let cause = "the look-up came back empty".to_owned();
            return Err(AddressError::NotFound {
                host: host.to_owned(),
                cause,
            });
        }
        let mut checked: Vec<SocketAddr> = Vec::with_capacity(found.len());
        for ip in found {
            self.check(host, ip, port)?;
            let address = SocketAddr::new(plain(ip), port);
            if !checked.contains(&address) {
                checked.push(address);
            }
        }
        Ok(checked)
    }

    /// Whether one address may be connected to, for this host and port.
    ///
    /// # Errors
    /// When it is closed and no exception opens it.
    pub fn check(&self, host: &str, ip: IpAddr, port: u16) -> Result<(), AddressError> {
        let refused = |kind| {
            Err(AddressError::Refused {
                host: host.to_owned(),
                address: ip,
                kind,
                port,
            })
        };
        let forms = forms(ip);
        if forms
            .iter()
            .any(|form| self.0.always_refused.contains(form))
        {
            return refused(Closed::ApiServer);
        }
        match forms.iter().find_map(|form| closed(*form)) {
            None => Ok(()),
            Some(_)
                if self
                    .0
                    .exceptions
                    .iter()
                    .any(|e| e.opens(host, &forms, port)) =>
            {
                Ok(())
            }
            Some(kind) => refused(kind),
        }
    }
}

/// Opens a closed range for one host and port. Written `HOST=RANGE:PORT`: `git.internal=10.1.0.0/16:443`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AddressException {
    host: String,
    range: Range,
    port: u16,
}

impl AddressException {
    fn opens(&self, host: &str, forms: &[IpAddr], port: u16) -> bool {
        port == self.port
            && clean(host) == self.host
            && forms
                .iter()
                .all(|form| closed(*form).is_none() || self.range.holds(*form))
    }
}

/// Why a text is no [`AddressException`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error(
    "must be HOST=RANGE:PORT, such as git.internal=10.1.0.0/16:443 or git.internal=fd00::/8:443"
)]
pub struct AddressExceptionError;

impl FromStr for AddressException {
    type Err = AddressExceptionError;

    fn from_str(text: &str) -> Result<Self, AddressExceptionError> {
        let (host, rest) = text.split_once('=').ok_or(AddressExceptionError)?;
        let (range, port) = rest.rsplit_once(':').ok_or(AddressExceptionError)?;
        let port = port
            .parse()
            .ok()
            .filter(|port| *port != 0)
            .ok_or(AddressExceptionError)?;
        let host = clean(host);
        if host.is_empty() || host.contains(['*', '/', ' ']) {
            return Err(AddressExceptionError);
        }
        Ok(Self {
            host,
            range: range.parse()?,
            port,
        })
    }
}

/// An address with the number of its leading bits that count.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Range {
    base: IpAddr,
    bits: u8,
}

impl Range {
    fn holds(&self, ip: IpAddr) -> bool {
        let shift = |width: u8| u32::from(width.saturating_sub(self.bits));
        match (self.base, ip) {
            (IpAddr::V4(base), IpAddr::V4(ip)) => {
                let differ = base.to_bits() ^ ip.to_bits();
                differ.checked_shr(shift(32)).unwrap_or(0) == 0
            }
            (IpAddr::V6(base), IpAddr::V6(ip)) => {
                let differ = base.to_bits() ^ ip.to_bits();
                differ.checked_shr(shift(128)).unwrap_or(0) == 0
            }
            (IpAddr::V4(_), IpAddr::V6(_)) | (IpAddr::V6(_), IpAddr::V4(_)) => false,
        }
    }
}

impl FromStr for Range {
    type Err = AddressExceptionError;

    fn from_str(text: &str) -> Result<Self, AddressExceptionError> {
        let (base, bits) = match text.split_once('/') {
            Some((base, bits)) => (base, Some(bits)),
            None => (text, None),
        };
        let base: IpAddr = base.parse().map_err(|_| AddressExceptionError)?;
        let width = if base.is_ipv4() { 32 } else { 128 };
        let bits = match bits {
            Some(bits) => bits
                .parse()
                .ok()
                .filter(|b| *b <= width)
                .ok_or(AddressExceptionError)?,
            None => width,
        };
        Ok(Self { base, bits })
    }
}

/// A host in lower case, without brackets and last dot; a literal in its usual form.
fn clean(host: &str) -> String {
    match literal(host) {
        Some(ip) => ip.to_string(),
        None => host.trim_end_matches('.').to_ascii_lowercase(),
    }
}

/// The address that a host is, if it is one: IPv6 with or without brackets, IPv4 in every spelling that the system's
/// own look-up takes (`127.1`, `0x7f.1`, `0177.0.0.1`, `2130706433`).
fn literal(host: &str) -> Option<IpAddr> {
    let bare = host
        .strip_prefix('[')
        .and_then(|h| h.strip_suffix(']'))
        .unwrap_or(host);
    let without_zone = bare.split_once('%').map_or(bare, |(address, _)| address);
    if let Ok(ip) = without_zone.parse::<Ipv6Addr>() {
        return Some(plain(IpAddr::V6(ip)));
    }
    odd_v4(bare.trim_end_matches('.')).map(IpAddr::V4)
}

fn odd_v4(text: &str) -> Option<Ipv4Addr> {
    let parts: Vec<&str> = text.split('.').collect();
    let (last, first) = parts.split_last().filter(|_| parts.len() <= 4)?;
    let mut bits: u32 = 0;
    for (at, part) in first.iter().enumerate() {
        let byte = number(part).filter(|n| *n <= 0xff)?;
        bits |= byte << (24 - 8 * u32::try_from(at).ok()?);
    }
    let room = 32 - 8 * u32::try_from(first.len()).ok()?;
    let tail = number(last).filter(|n| room == 32 || *n < 1 << room)?;
    Some(Ipv4Addr::from_bits(bits | tail))
}

fn number(text: &str) -> Option<u32> {
    let lower = text.to_ascii_lowercase();
    let digits = |text: &str, radix| {
        let good = !text.is_empty() && text.chars().all(|c| c.is_digit(radix));
        good.then(|| u32::from_str_radix(text, radix).ok())
            .flatten()
    };
    match lower.strip_prefix("0x") {
        Some("") => Some(0),
        Some(hex) => digits(hex, 16),
        None if lower.len() > 1 && lower.starts_with('0') => digits(&lower, 8),
        None => digits(&lower, 10),
    }
}

/// IPv4 in IPv6 clothes becomes IPv4: that is what the kernel connects to.
fn plain(ip: IpAddr) -> IpAddr {
    match ip {
        IpAddr::V6(v6) => v6.to_ipv4_mapped().map_or(ip, IpAddr::V4),
        IpAddr::V4(_) => ip,
    }
}

/// The address, and the IPv4 address that a gateway on the way would make of it (6to4, NAT64). All must pass.
fn forms(ip: IpAddr) -> Vec<IpAddr> {
    let ip = plain(ip);
    let mut forms = vec![ip];
    if let IpAddr::V6(v6) = ip {
        let [a, b, c, d, e, f, g, h] = v6.segments();
        let v4 = |high: u16, low: u16| {
            IpAddr::V4(Ipv4Addr::from_bits(
                (u32::from(high) << 16) | u32::from(low),
            ))
        };
        if a == 0x2002 {
            forms.push(v4(b, c));
        }
        let nat64 = [a, b, c, d, e, f] == [0x64, 0xff9b, 0, 0, 0, 0];
        let compatible = [a, b, c, d, e, f] == [0; 6] && (g, h) != (0, 0) && (g, h) != (0, 1);
        // ISATAP: fe80 or any prefix with 0:5efe before the IPv4 address.
        if nat64 || compatible || (e & 0xfdff == 0 && f == 0x5efe) {
            forms.push(v4(g, h));
        }
    }
    forms
}

fn closed(ip: IpAddr) -> Option<Closed> {
    match ip {
        IpAddr::V4(ip) => closed_v4(ip),
        IpAddr::V6(ip) => closed_v6(ip),
    }
}

/// The IANA registry of special-purpose IPv4 addresses, and Azure's metadata server, which has a public address.
fn closed_v4(ip: Ipv4Addr) -> Option<Closed> {
    Some(match ip.octets() {
        [0, ..] => Closed::Unspecified,
        [127, ..] => Closed::Loopback,
        [10, ..] | [172, 16..=31, ..] | [192, 168, ..] => Closed::Private,
        [100, 64..=127, ..] => Closed::Shared,
        [169, 254, ..] => Closed::LinkLocal,
        [168, 63, 129, 16] => Closed::Metadata,
        [224..=239, ..] | [255, 255, 255, 255] => Closed::Multicast,
        [192, 0, 0 | 2, _]
        | [192, 88, 99, _]
        | [198, 18 | 19, ..]
        | [198, 51, 100, _]
        | [203, 0, 113, _]
        | [240..=255, ..] => Closed::Reserved,
        _ => return None,
    })
}

/// Only global unicast (`2000::/3`) without its special parts is open, and NAT64 if what it stands for is.
fn closed_v6(ip: Ipv6Addr) -> Option<Closed> {
    Some(match ip.segments() {
        [0, 0, 0, 0, 0, 0, 0, 0] => Closed::Unspecified,
        [0, 0, 0, 0, 0, 0, 0, 1] => Closed::Loopback,
        [0x64, 0xff9b, 0, 0, 0, 0, _, _] => return None, // judged by its IPv4 form
        [0xfc00..=0xfdff | 0xfec0..=0xfeff, ..] => Closed::Private,
        [0xfe80..=0xfebf, ..] => Closed::LinkLocal,
        [0xff00..=0xffff, ..] => Closed::Multicast,
        // Teredo, benchmarks, ORCHID; documentation, twice.
        [0x2001, 0..=0x01ff, ..] | [0x2001, 0x0db8, ..] | [0x3fff, 0..=0x0fff, ..] => {
            Closed::Reserved
        }
        [0x2000..=0x3fff, ..] => return None,
        _ => Closed::Reserved,
    })
}
