//! Where the gateway listens, as a command line says it.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::str::FromStr;

/// Where the gateway listens.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum GatewayAddress {
    /// A Unix socket, `unix:/path`.
    Unix(PathBuf),
    /// TLS at an address, `https://IP:PORT`. Never a name: there is no DNS in a pod.
    Https(SocketAddr),
}

/// The text names no gateway.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error(
    "must be `unix:` and the absolute path of a socket, or `https://IP:PORT` (IPv6 in brackets)"
)]
pub struct GatewayAddressError;

impl FromStr for GatewayAddress {
    type Err = GatewayAddressError;

    fn from_str(text: &str) -> Result<Self, GatewayAddressError> {
        if let Some(path) = text.strip_prefix("unix:") {
            return path
                .starts_with('/')
                .then(|| Self::Unix(PathBuf::from(path)))
                .ok_or(GatewayAddressError);
        }
        text.strip_prefix("https://")
            .and_then(|address| address.parse().ok())
            .filter(|address: &SocketAddr| address.port() != 0)
            .map(Self::Https)
            .ok_or(GatewayAddressError)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    #[rstest]
    #[case::unix("unix:/run/g.sock", true)]
    #[case::tls("https://10.0.0.1:8443", true)]
    #[case::tls_v6("https://[fd00::1]:8443", true)]
    #[case::relative("unix:g.sock", false)]
    #[case::no_scheme("/run/g.sock", false)]
    #[case::name("https://gateway:8443", false)]
    #[case::no_port("https://10.0.0.1", false)]
    #[case::port_0("https://10.0.0.1:0", false)]
    #[case::path("https://10.0.0.1:8443/v1", false)]
    #[case::plain("http://10.0.0.1:8443", false)]
    fn a_gateway_is_a_socket_or_an_address(#[case] text: &str, #[case] good: bool) {
        assert_eq!(text.parse::<GatewayAddress>().is_ok(), good);
    }
}
