//! The CA of the gateway's certificate: made here, kept in a Secret, and replaced long before it ends.
//!
//! Pods get the CA with their spec and keep it for as long as they live, so a new CA is announced first: for [`OVERLAP`]
//! new pods trust the old and the new one while the gateway still shows a certificate of the old one. [`step`] decides,
//! [`Authority`] reads, writes and serves.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::Secret;
use kube::api::{Api, ObjectMeta, PostParams};
use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DnType, ExtendedKeyUsagePurpose, IsCa,
    KeyPair, KeyUsagePurpose, PKCS_ECDSA_P256_SHA256, SanType,
};
use rustls::pki_types::PrivateKeyDer;
use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;

use super::causes;
use crate::api::{Fault, Reason};

/// How long a CA is valid: two years.
const CA_VALID: Duration = Duration::from_hours(2 * 365 * 24);
/// A CA of this age gets a successor: a year before it ends, so that an operator that was down does no harm.
const CA_RENEW: Duration = Duration::from_hours(365 * 24);
/// How long new pods trust both: the longest run of 24 hours, its start, and as much again.
const OVERLAP: Duration = Duration::from_hours(72);
/// How long the gateway's own certificate is valid.
const LEAF_VALID: Duration = Duration::from_hours(30 * 24);
/// The gateway's certificate is made anew this often.
const LEAF_RENEW: Duration = Duration::from_hours(24);
/// A certificate is valid from this long ago, for clocks that are behind.
const BACKDATED: Duration = Duration::from_hours(1);

/// A CA with its key.
#[derive(Clone, PartialEq, Eq)]
struct Ca {
    certificate: String,
    key: String,
    created: Timestamp,
}

/// What the Secret holds.
#[derive(Clone, PartialEq, Eq)]
struct Kept {
    current: Ca,
    next: Option<Ca>,
}

/// What is to be done with what the Secret holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Step {
    /// Nothing.
    Keep,
    /// Make the first CA.
    Begin,
    /// Announce a successor.
    Announce,
    /// The successor takes over.
    Succeed,
}

fn step(kept: Option<&Kept>, now: Timestamp) -> Step {
    let age = |ca: &Ca| Duration::try_from(now.duration_since(ca.created)).unwrap_or_default();
    match kept {
        None => Step::Begin,
        Some(Kept { current, .. }) if age(current) >= CA_VALID => Step::Begin,
        Some(Kept {
            next: Some(next), ..
        }) if age(next) >= OVERLAP => Step::Succeed,
        Some(Kept {
            current,
            next: None,
        }) if age(current) >= CA_RENEW => Step::Announce,
        Some(_) => Step::Keep,
    }
}

/// Why there is no CA.
#[derive(Debug, thiserror::Error)]
pub enum AuthorityError {
    /// The Secret cannot be read or written.
    #[error("the secret `{secret}` of the gateway's CA cannot be {what}")]
    Secret {
        /// Its name.
        secret: String,
        /// `read` or `written`.
        what: &'static str,
        /// Why.
        #[source]
        source: kube::Error,
    },
    /// The API server does not answer.
    #[error("the secret `{secret}` of the gateway's CA could not be read in time")]
    Late {
        /// Its name.
        secret: String,
    },
    /// What it holds is no CA.
    #[error(
        "the secret `{secret}` holds no usable CA at key `{key}`: empty it, and a new one is made"
    )]
    Damaged {
        /// Its name.
        secret: String,
        /// The key.
        key: &'static str,
    },
    /// A certificate could not be made.
    #[error("a certificate could not be made")]
    Make(#[source] rcgen::Error),
    /// A certificate that was made cannot be served.
    #[error("a certificate that was made cannot be served")]
    Serve(#[source] rustls::Error),
}

impl Fault for AuthorityError {
    fn reason(&self) -> Reason {
        match self {
            Self::Secret { .. } | Self::Late { .. } | Self::Damaged { .. } => {
                Reason::ClusterUnusable
            }
            Self::Make(_) | Self::Serve(_) => Reason::Bug,
        }
    }
}

/// The CA and the certificate that is shown now. Cheap to clone; all clones are the same.
#[derive(Debug, Clone)]
pub struct Authority {
    secrets: Api<Secret>,
    secret: String,
    addresses: Vec<IpAddr>,
    timeout: Duration,
    shown: Arc<RwLock<Shown>>,
}

#[derive(Debug)]
struct Shown {
    key: Arc<CertifiedKey>,
    bundle: String,
}

impl Authority {
    /// Reads the CA or makes it, and a certificate for these addresses of the gateway.
    ///
    /// # Errors
    /// When the Secret cannot be read or written, or holds something else.
    pub async fn open(
        secrets: Api<Secret>,
        secret: &str,
        addresses: Vec<IpAddr>,
        timeout: Duration,
        now: Timestamp,
    ) -> Result<Self, AuthorityError> {
        let kept = settled(&secrets, secret, timeout, now).await?;
        let shown = show(&kept, &addresses, now)?;
        Ok(Self {
            secrets,
            secret: secret.to_owned(),
            addresses,
            timeout,
            shown: Arc::new(RwLock::new(shown)),
        })
    }

    /// The certificates that a new pod trusts, in PEM.
    #[must_use]
    pub fn bundle(&self) -> String {
        let shown = self.shown.read().unwrap_or_else(PoisonError::into_inner);
        shown.bundle.clone()
    }

    /// What a TLS server needs. It shows the newest certificate to each new connection.
    ///
    /// # Errors
    /// When the crypto provider does not know the protocol versions.
    pub fn server_config(&self) -> Result<Arc<rustls::ServerConfig>, AuthorityError> {
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let config = rustls::ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(AuthorityError::Serve)?
            .with_no_client_auth()
            .with_cert_resolver(Arc::new(self.clone()));
        Ok(Arc::new(config))
    }

    /// Renews certificate and CA in time, for ever. A failure is logged and tried again an hour later.
    pub async fn keep_fresh(&self, now: impl Fn() -> Timestamp) {
        let mut pause = LEAF_RENEW;
        loop {
            tokio::time::sleep(pause).await;
            pause = match self.renew(now()).await {
                Ok(()) => LEAF_RENEW,
                Err(error) => {
                    let error = causes(&error);
                    tracing::error!(%error, "the gateway's certificate could not be renewed");
                    Duration::from_hours(1)
                }
            };
        }
    }

    async fn renew(&self, now: Timestamp) -> Result<(), AuthorityError> {
        let kept = settled(&self.secrets, &self.secret, self.timeout, now).await?;
        let shown = show(&kept, &self.addresses, now)?;
        *self.shown.write().unwrap_or_else(PoisonError::into_inner) = shown;
        Ok(())
    }
}

impl ResolvesServerCert for Authority {
    fn resolve(&self, _: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        let shown = self.shown.read().unwrap_or_else(PoisonError::into_inner);
        Some(Arc::clone(&shown.key))
    }
}

/// [`settle`], within this time.
async fn settled(
    secrets: &Api<Secret>,
    name: &str,
    timeout: Duration,
    now: Timestamp,
) -> Result<Kept, AuthorityError> {
    let late = |_| AuthorityError::Late {
        secret: name.to_owned(),
    };
    tokio::time::timeout(timeout, settle(secrets, name, now))
        .await
        .map_err(late)?
}

/// Reads what is kept and takes the step that is due. A write that lost a race is decided anew.
async fn settle(secrets: &Api<Secret>, name: &str, now: Timestamp) -> Result<Kept, AuthorityError> {
    let failed = |what| {
        move |source| AuthorityError::Secret {
            secret: name.to_owned(),
            what,
            source,
        }
    };
    loop {
        let found = secrets.get_opt(name).await.map_err(failed("read"))?;
        let kept = found.as_ref().and_then(|secret| secret.data.as_ref());
        let kept = kept.map(|data| decode(name, data)).transpose()?.flatten();
        let kept = match (step(kept.as_ref(), now), kept) {
            (Step::Keep, Some(kept)) => return Ok(kept),
            (Step::Announce, Some(kept)) => Kept {
                next: Some(make_ca(now)?),
                ..kept
            },
            (
                Step::Succeed,
                Some(Kept {
                    next: Some(next), ..
                }),
            ) => Kept {
                current: next,
                next: None,
            },
            (Step::Keep | Step::Begin | Step::Announce | Step::Succeed, _) => Kept {
                current: make_ca(now)?,
                next: None,
            },
        };
        let written = write(secrets, name, found, &kept).await;
        match written {
            Ok(()) => return Ok(kept),
            Err(kube::Error::Api(status)) if status.code == 409 => {}
            Err(error) => return Err(failed("written")(error)),
        }
    }
}

async fn write(
    secrets: &Api<Secret>,
    name: &str,
    found: Option<Secret>,
    kept: &Kept,
) -> kube::Result<()> {
    let data = Some(encode(kept));
    let params = PostParams::default();
    if let Some(secret) = found {
        let secret = Secret { data, ..secret };
        return secrets.replace(name, &params, &secret).await.map(drop);
    }
    let secret = Secret {
        metadata: ObjectMeta {
            name: Some(name.to_owned()),
            ..ObjectMeta::default()
        },
        data,
        ..Secret::default()
    };
    secrets.create(&params, &secret).await.map(drop)
}

/// The keys of the Secret: certificate, private key and time of making, of the CA that signs and of the one to come.
const CURRENT: [&str; 3] = ["ca.crt", "ca.key", "ca.created"];
const NEXT: [&str; 3] = ["next.crt", "next.key", "next.created"];

fn encode(kept: &Kept) -> BTreeMap<String, ByteString> {
    let pairs = [(CURRENT, Some(&kept.current)), (NEXT, kept.next.as_ref())];
    let mut data = BTreeMap::new();
    for ([crt, key, created], ca) in pairs {
        if let Some(ca) = ca {
            let values = [
                (crt, ca.certificate.clone()),
                (key, ca.key.clone()),
                (created, ca.created.to_string()),
            ];
            data.extend(
                values.map(|(key, value)| (key.to_owned(), ByteString(value.into_bytes()))),
            );
        }
    }
    data
}

/// `None`: the Secret is empty, as the chart makes it.
fn decode(
    secret: &str,
    data: &BTreeMap<String, ByteString>,
) -> Result<Option<Kept>, AuthorityError> {
    let read = |[crt, key, created]: [&'static str; 3]| {
        let text = |key: &'static str| {
            let value = data.get(key).filter(|value| !value.0.is_empty());
            let damaged = || AuthorityError::Damaged {
                secret: secret.to_owned(),
                key,
            };
            value
                .map(|value| String::from_utf8(value.0.clone()).map_err(|_| damaged()))
                .transpose()
        };
        let (Some(certificate), Some(private), Some(at)) = (text(crt)?, text(key)?, text(created)?)
        else {
            return Ok(None);
        };
        let at = at.parse().map_err(|_| AuthorityError::Damaged {
            secret: secret.to_owned(),
            key: created,
        })?;
        KeyPair::from_pem(&private).map_err(|_| AuthorityError::Damaged {
            secret: secret.to_owned(),
            key,
        })?;
        Ok(Some(Ca {
            certificate,
            key: private,
            created: at,
        }))
    };
    let Some(current) = read(CURRENT)? else {
        return Ok(None);
    };
    Ok(Some(Kept {
        current,
        next: read(NEXT)?,
    }))
}

fn ca_params(created: Timestamp) -> CertificateParams {
    let mut params = CertificateParams::default();
    params
        .distinguished_name
        .push(DnType::CommonName, "sandboxrun gateway CA");
    params.distinguished_name.push(
        DnType::OrganizationalUnitName,
        created.as_millisecond().to_string(),
    );
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    valid(&mut params, created, CA_VALID);
    params
}

fn valid(params: &mut CertificateParams, from: Timestamp, span: Duration) {
    let from = std::time::SystemTime::from(from);
    params.not_before = (from - BACKDATED).into();
    params.not_after = (from + span).into();
}

fn make_ca(now: Timestamp) -> Result<Ca, AuthorityError> {
    let key = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256).map_err(AuthorityError::Make)?;
    let private = key.serialize_pem();
    let issuer = CertifiedIssuer::self_signed(ca_params(now), key).map_err(AuthorityError::Make)?;
    Ok(Ca {
        certificate: issuer.pem(),
        key: private,
        created: now,
    })
}

/// A fresh certificate of the CA that signs now, and the bundle of all that new pods trust.
fn show(kept: &Kept, addresses: &[IpAddr], now: Timestamp) -> Result<Shown, AuthorityError> {
    let ca_key = KeyPair::from_pem(&kept.current.key).map_err(AuthorityError::Make)?;
    let issuer = rcgen::Issuer::new(ca_params(kept.current.created), ca_key);
    let key = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256).map_err(AuthorityError::Make)?;
    let mut params = CertificateParams::default();
    params
        .distinguished_name
        .push(DnType::CommonName, "sandboxrun gateway");
    params.subject_alt_names = addresses.iter().map(|ip| SanType::IpAddress(*ip)).collect();
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
    valid(&mut params, now, LEAF_VALID);
    let certificate = params
        .signed_by(&key, &issuer)
        .map_err(AuthorityError::Make)?;
    let private = PrivateKeyDer::Pkcs8(key.serialize_der().into());
    let signing = rustls::crypto::aws_lc_rs::sign::any_supported_type(&private)
        .map_err(AuthorityError::Serve)?;
    let certified = CertifiedKey::new(vec![certificate.der().clone()], signing);
    let announced = kept.next.iter().map(|ca| ca.certificate.as_str());
    let bundle = std::iter::once(kept.current.certificate.as_str()).chain(announced);
    Ok(Shown {
        key: Arc::new(certified),
        bundle: bundle.collect(),
    })
}

#[cfg(test)]
mod tests {
    use rustls::RootCertStore;
    use rustls::client::WebPkiServerVerifier;
    use rustls::client::danger::ServerCertVerifier as _;
    use rustls::pki_types::pem::PemObject as _;
    use rustls::pki_types::{CertificateDer, ServerName, UnixTime};

    use super::*;

    const DAY: i64 = 24 * 3600;

    fn day(day: i64) -> Timestamp {
        Timestamp::from_second(1_800_000_000 + day * DAY).unwrap()
    }

    fn ca(created: Timestamp) -> Ca {
        make_ca(created).unwrap()
    }

    /// Whether who trusts this bundle accepts what is shown, at this time.
    fn trusts(bundle: &str, shown: &Shown, at: Timestamp) -> bool {
        let mut roots = RootCertStore::empty();
        for certificate in CertificateDer::pem_slice_iter(bundle.as_bytes()) {
            roots.add(certificate.unwrap()).unwrap();
        }
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let verifier = WebPkiServerVerifier::builder_with_provider(roots.into(), provider)
            .build()
            .unwrap();
        let name = ServerName::try_from("10.96.7.7").unwrap();
        let seconds = u64::try_from(at.as_second()).unwrap();
        let now = UnixTime::since_unix_epoch(Duration::from_secs(seconds));
        let certificate = shown.key.cert.first().unwrap();
        verifier
            .verify_server_cert(certificate, &[], &name, &[], now)
            .is_ok()
    }

    fn shown(kept: &Kept, at: Timestamp) -> Shown {
        show(kept, &["10.96.7.7".parse().unwrap()], at).unwrap()
    }

    #[test]
    fn a_pod_trusts_the_gateway_by_its_address() {
        let kept = Kept {
            current: ca(day(0)),
            next: None,
        };
        let now = shown(&kept, day(3));
        assert!(trusts(&now.bundle, &now, day(3)));
        assert!(!trusts(&now.bundle, &now, day(60)), "a certificate ends");
        let other = Kept {
            current: ca(day(0)),
            next: None,
        };
        assert!(!trusts(&shown(&other, day(3)).bundle, &now, day(3)));
    }

    #[test]
    fn a_successor_is_announced_before_it_signs() {
        let mut kept = Kept {
            current: ca(day(0)),
            next: None,
        };
        assert_eq!(step(None, day(0)), Step::Begin);
        assert_eq!(step(Some(&kept), day(364)), Step::Keep);
        assert_eq!(step(Some(&kept), day(366)), Step::Announce);
        let before = shown(&kept, day(366));
        kept.next = Some(ca(day(366)));
        let announced = shown(&kept, day(367));
        assert!(
            trusts(&before.bundle, &announced, day(367)),
            "old pods go on"
        );
        assert_eq!(step(Some(&kept), day(368)), Step::Keep);
        assert_eq!(step(Some(&kept), day(370)), Step::Succeed);
        let after = Kept {
            current: kept.next.clone().unwrap(),
            next: None,
        };
        let now = shown(&after, day(370));
        assert!(
            trusts(&announced.bundle, &now, day(370)),
            "pods of the overlap go on"
        );
        assert_eq!(step(Some(&after), day(371)), Step::Keep);
    }

    #[test]
    fn a_ca_that_has_ended_is_replaced_at_once() {
        let kept = Kept {
            current: ca(day(0)),
            next: None,
        };
        assert_eq!(step(Some(&kept), day(800)), Step::Begin);
    }

    #[test]
    fn what_is_kept_comes_back() {
        let kept = Kept {
            current: ca(day(0)),
            next: Some(ca(day(366))),
        };
        assert!(decode("s", &encode(&kept)).unwrap() == Some(kept.clone()));
        assert!(decode("s", &BTreeMap::new()).unwrap().is_none());
        let mut damaged = encode(&kept);
        damaged.insert("ca.key".into(), ByteString(b"x".to_vec()));
        assert!(matches!(
            decode("s", &damaged),
            Err(AuthorityError::Damaged { key: "ca.key", .. })
        ));
    }
}
