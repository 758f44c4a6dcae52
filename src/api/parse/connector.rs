//! `Connector`: a server, the credential for it, and what runs may use it for.

use super::text::{is_pattern, is_secret_key, is_subdomain};
use super::{Checks, SpecError};
use crate::api::{
    Auth, AuthSpec, ConnectorName, ConnectorSpec, ConnectorType, ConnectorUse, HeaderSpec, Origin,
    ParsedConnector, PathPattern, SecretKeyRef, SshSpec, TokenSpec, rules,
};

impl ParsedConnector {
    /// Checks every rule of a connector and fills in what is left out.
    ///
    /// # Errors
    /// Every broken rule, in the order of the fields.
    pub fn parse(name: &ConnectorName, spec: &ConnectorSpec) -> Result<Self, Vec<SpecError>> {
        let mut checks = Checks::default();
        checks.fits("spec.url", &spec.url, rules::MAX_URL);
        let origin = spec
            .url
            .parse::<Origin>()
            .map_err(|error| error.said_as(rules::CONNECTOR_SCHEME));
        let origin = checks.value("spec.url", origin);
        let auth = match &spec.auth {
            Some(auth) => parse_auth(&mut checks, auth),
            None => Some(Auth::Anonymous),
        };
        if let (Some(origin), Some(auth)) = (&origin, &auth) {
            fits(&mut checks, spec, origin, auth);
        }
        if let Some(ca) = &spec.ca_ref {
            secret_key(&mut checks, "spec.caRef", ca);
        }
        uses(&mut checks, spec);
        let allow = spec.allow.clone().unwrap_or_default();
        let field = "spec.allow.repositories";
        let repositories = checks.at_most(field, &allow.repositories, rules::MAX_PATTERNS);
        let good = repositories.iter().all(|pattern| is_pattern(pattern));
        checks.rule(good, field, rules::REPOSITORIES);
        super::lookups::methods(&mut checks, "spec.allow.methods", &allow.methods);
        super::lookups::paths(&mut checks, "spec.allow.paths", &allow.paths);
        let patterns = |list: &[String]| {
            list.iter()
                .map(|text| PathPattern::new(text))
                .collect::<Vec<_>>()
        };
        let parsed = origin.zip(auth).map(|(origin, auth)| Self {
            name: name.clone(),
            kind: spec.kind,
            origin,
            auth,
            ca: spec.ca_ref.clone(),
            uses: spec.uses.clone(),
            allowed_repositories: patterns(&allow.repositories),
            allowed_methods: allow.methods.clone(),
            allowed_paths: patterns(&allow.paths),
        });
        checks.finish(parsed)
    }
}

fn parse_auth(checks: &mut Checks, spec: &AuthSpec) -> Option<Auth> {
    match (&spec.token, &spec.ssh, &spec.header) {
        (Some(token), None, None) => Some(token_auth(checks, token)),
        (None, Some(ssh), None) => Some(ssh_auth(checks, ssh)),
        (None, None, Some(header)) => Some(header_auth(checks, header)),
        _ => {
            checks.refuse("spec.auth", rules::ONE_AUTH);
            None
        }
    }
}

fn token_auth(checks: &mut Checks, spec: &TokenSpec) -> Auth {
    secret_key(checks, "spec.auth.token.secretRef", &spec.secret_ref);
    if let Some(username) = &spec.username {
        let good = (1..=rules::MAX_HEADER).contains(&username.chars().count())
            && !username.chars().any(|c| c == ':' || c.is_control());
        checks.rule(good, "spec.auth.token.username", rules::USERNAME);
    }
    Auth::Token {
        secret: spec.secret_ref.clone(),
        username: spec.username.clone(),
    }
}

fn ssh_auth(checks: &mut Checks, spec: &SshSpec) -> Auth {
    secret_key(checks, "spec.auth.ssh.privateKeyRef", &spec.private_key_ref);
    let field = "spec.auth.ssh.knownHosts";
    checks.fits(field, &spec.known_hosts, rules::MAX_KNOWN_HOSTS);
    let is_entry = |line: &str| {
        let line = line.trim_start();
        !line.starts_with('#') && line.split_whitespace().count() >= 3
    };
    checks.rule(
        spec.known_hosts.lines().any(is_entry),
        field,
        rules::KNOWN_HOSTS,
    );
    Auth::Ssh {
        private_key: spec.private_key_ref.clone(),
        known_hosts: spec.known_hosts.clone(),
    }
}

fn header_auth(checks: &mut Checks, spec: &HeaderSpec) -> Auth {
    let is_token = |b: u8| b.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&b);
    let lower = spec.name.to_ascii_lowercase();
    let good = (1..=rules::MAX_HEADER).contains(&lower.len())
        && lower.bytes().all(is_token)
        && !rules::CONNECTION_HEADERS.contains(&lower.as_str())
        && !lower.starts_with("proxy-");
    checks.rule(good, "spec.auth.header.name", rules::HEADER_NAME);
    let prefix = spec.prefix.clone().unwrap_or_default();
    let good = prefix.len() <= rules::MAX_HEADER
        && prefix.bytes().all(|b| b == b' ' || b.is_ascii_graphic());
    checks.rule(good, "spec.auth.header.prefix", rules::HEADER_PREFIX);
    secret_key(checks, "spec.auth.header.secretRef", &spec.secret_ref);
    Auth::Header {
        name: spec.name.clone(),
        prefix,
        secret: spec.secret_ref.clone(),
    }
}

/// What the kinds of url, auth and use say about each other.
fn fits(checks: &mut Checks, spec: &ConnectorSpec, origin: &Origin, auth: &Auth) {
    let ssh = origin.scheme() == "ssh";
    match auth {
        Auth::Anonymous => checks.rule(!ssh, "spec.auth", rules::SSH_NEEDS_KEY),
        Auth::Ssh { .. } => checks.rule(ssh, "spec.auth", rules::AUTH_FITS_URL),
        Auth::Token { .. } | Auth::Header { .. } => {
            checks.rule(!ssh, "spec.auth", rules::AUTH_FITS_URL);
        }
    }
    let lookups = spec.uses.contains(&ConnectorUse::Lookups);
    checks.rule(!(ssh && lookups), "spec.uses", rules::SSH_LOOKUPS);
}

fn uses(checks: &mut Checks, spec: &ConnectorSpec) {
    let times = |wanted: ConnectorUse| spec.uses.iter().filter(|one| **one == wanted).count();
    let (inputs, lookups) = (times(ConnectorUse::Inputs), times(ConnectorUse::Lookups));
    checks.rule(inputs + lookups > 0, "spec.uses", rules::USES_EMPTY);
    checks.rule(inputs <= 1 && lookups <= 1, "spec.uses", rules::USES_TWICE);
    let http_inputs = spec.kind == ConnectorType::Http && inputs > 0;
    checks.rule(!http_inputs, "spec.uses", rules::HTTP_INPUTS);
}

fn secret_key(checks: &mut Checks, field: &str, at: &SecretKeyRef) {
    checks.rule(
        is_subdomain(&at.name),
        format!("{field}.name"),
        rules::OBJECT_NAME,
    );
    checks.rule(
        is_secret_key(&at.key),
        format!("{field}.key"),
        rules::SECRET_KEY,
    );
}
