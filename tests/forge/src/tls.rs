//! The forge's own certificate authority, its good certificate and its bad ones.

use std::fs;
use std::io::Write as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;
use std::sync::Arc;

use axum_server::tls_rustls::RustlsConfig;
use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DnType, ExtendedKeyUsagePurpose, IsCa,
    KeyPair, KeyUsagePurpose, date_time_ymd,
};
use rustls::pki_types::{CertificateDer, PrivatePkcs8KeyDer};

use crate::ForgeError;
use crate::error::doing;

/// Which certificate a listener shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Certificate {
    /// Signed by the forge's CA, for its real names.
    Good,
    /// Signed by nobody but itself.
    SelfSigned,
    /// Signed by the forge's CA, for another host.
    WrongHost,
    /// Signed by the forge's CA, for its real names, and long over.
    Expired,
}

impl Certificate {
    /// The bad ones.
    pub(crate) const BAD: [Self; 3] = [Self::SelfSigned, Self::WrongHost, Self::Expired];
}

/// A certificate authority made for one forge.
pub(crate) struct Authority {
    issuer: CertifiedIssuer<'static, KeyPair>,
    names: Vec<String>,
}

impl Authority {
    /// Makes a CA for a server that is reached as loopback and under `hosts`. Its key is kept in a file, so
    /// that who trusts the CA of one start trusts that of the next.
    pub(crate) fn new(hosts: &[String], key_file: &Path) -> Result<Self, ForgeError> {
        let mut params = CertificateParams::default();
        params
            .distinguished_name
            .push(DnType::CommonName, "demo forge CA");
        params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        params.not_before = date_time_ymd(2020, 1, 1);
        params.not_after = date_time_ymd(2045, 1, 1);
        let key = kept_key(key_file)?;
        let issuer = CertifiedIssuer::self_signed(params, key).map_err(ForgeError::Certificate)?;
        let mut names: Vec<String> = ["127.0.0.1", "::1", "localhost"]
            .map(ToOwned::to_owned)
            .to_vec();
        names.extend(hosts.iter().cloned());
        names.dedup();
        Ok(Self { issuer, names })
    }

    /// The CA's certificate, which clients are to trust.
    pub(crate) fn pem(&self) -> String {
        self.issuer.pem()
    }

    /// A server configuration that shows a certificate of this kind and speaks HTTP/1.1.
    pub(crate) fn server(&self, kind: Certificate) -> Result<RustlsConfig, ForgeError> {
        let (certificate, key) = self.leaf(kind)?;
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let mut config = rustls::ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(ForgeError::Tls)?
            .with_no_client_auth()
            .with_single_cert(
                vec![certificate],
                PrivatePkcs8KeyDer::from(key.serialize_der()).into(),
            )
            .map_err(ForgeError::Tls)?;
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        Ok(RustlsConfig::from_config(Arc::new(config)))
    }

    fn leaf(&self, kind: Certificate) -> Result<(CertificateDer<'static>, KeyPair), ForgeError> {
        let names = match kind {
            Certificate::WrongHost => vec!["somebody-else.invalid".to_owned()],
            Certificate::Good | Certificate::SelfSigned | Certificate::Expired => {
                self.names.clone()
            }
        };
        let mut params = CertificateParams::new(names).map_err(ForgeError::Certificate)?;
        params
            .distinguished_name
            .push(DnType::CommonName, "demo forge");
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        params.use_authority_key_identifier_extension = kind != Certificate::SelfSigned;
        params.not_before = date_time_ymd(2020, 1, 1);
        params.not_after = date_time_ymd(
            if kind == Certificate::Expired {
                2021
            } else {
                2045
            },
            1,
            1,
        );
        let key = KeyPair::generate().map_err(ForgeError::Certificate)?;
        let certificate = if kind == Certificate::SelfSigned {
            params.self_signed(&key)
        } else {
            params.signed_by(&key, &self.issuer)
        };
        Ok((
            certificate.map_err(ForgeError::Certificate)?.der().clone(),
            key,
        ))
    }
}

fn kept_key(file: &Path) -> Result<KeyPair, ForgeError> {
    if file.exists() {
        let text =
            fs::read_to_string(file).map_err(doing(format!("reading {}", file.display())))?;
        return KeyPair::from_pem(&text).map_err(ForgeError::Certificate);
    }
    let key = KeyPair::generate().map_err(ForgeError::Certificate)?;
    fs::OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(file)
        .and_then(|mut out| out.write_all(key.serialize_pem().as_bytes()))
        .map_err(doing(format!("writing {}", file.display())))?;
    Ok(key)
}
