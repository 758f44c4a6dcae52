//! What kind of address an address is, in whatever spelling or form it comes. Pure.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

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

/// The address that a host is, if it is one: IPv6 with or without brackets, IPv4 in every spelling that the system's
/// own look-up takes (`127.1`, `0x7f.1`, `0177.0.0.1`, `2130706433`).
pub(super) fn literal(host: &str) -> Option<IpAddr> {
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
pub(super) fn plain(ip: IpAddr) -> IpAddr {
    match ip {
        IpAddr::V6(v6) => v6.to_ipv4_mapped().map_or(ip, IpAddr::V4),
        IpAddr::V4(_) => ip,
    }
}

/// The address, and the IPv4 address that a gateway on the way would make of it (6to4, NAT64). All must pass.
pub(super) fn forms(ip: IpAddr) -> Vec<IpAddr> {
    let ip = plain(ip);
    let mut forms = vec![ip];
    let IpAddr::V6(v6) = ip else { return forms };
    // 6to4 has the IPv4 address after its prefix; NAT64, IPv4-compatible and ISATAP have it at the end.
    let embedded = match v6.segments() {
        [0x2002, high, low, ..]
        | [0x64, 0xff9b, 0, 0, 0, 0, high, low]
        | [0, 0, 0, 0, 0, 0, high, low]
        | [_, _, _, _, 0 | 0x0200, 0x5efe, high, low] => Some((high, low)),
        _ => None,
    };
    let v4 = |(high, low)| Ipv4Addr::from_bits((u32::from(high) << 16) | u32::from(low));
    forms.extend(embedded.map(|words| IpAddr::V4(v4(words))));
    forms
}

pub(super) fn closed(ip: IpAddr) -> Option<Closed> {
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
        [0xfc00..=0xfdff | 0xfec0..=0xfeff, ..] => Closed::Private,
        [0xfe80..=0xfebf, ..] => Closed::LinkLocal,
        [0xff00..=0xffff, ..] => Closed::Multicast,
        // Teredo, benchmarks, ORCHID; documentation, twice.
        [0x2001, 0..=0x01ff | 0x0db8, ..] | [0x3fff, 0..=0x0fff, ..] => Closed::Reserved,
        // The second one is NAT64, which is judged by its IPv4 form.
        [0x2000..=0x3fff, ..] | [0x64, 0xff9b, 0, 0, 0, 0, _, _] => return None,
        _ => Closed::Reserved,
    })
}
