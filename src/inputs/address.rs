//! The address guard: which addresses the host side connects to on behalf of a run.
//!
//! Inputs, lookups and egress all go through it. A name is resolved once, every address it leads to must pass, and
//! the caller connects to the addresses that come out and to nothing else: a second look-up could say otherwise.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use futures::future::BoxFuture;

use super::Settings;
use super::closed::{Closed, closed, forms, literal, plain};
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

    /// Whether a host that is itself an address may be connected to; a name passes here, [`Self::resolve`] checks it.
    ///
    /// # Errors
    /// When it is a closed address.
    pub fn check_literal(&self, host: &str, port: u16) -> Result<(), AddressError> {
        literal(host).map_or(Ok(()), |ip| self.check(host, ip, port))
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

#[cfg(test)]
#[path = "address_tests.rs"]
mod tests;
