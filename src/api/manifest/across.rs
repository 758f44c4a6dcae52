//! What documents say about each other: names that are there twice, and references from one to another.
//!
//! An object that is not among the documents may be in the cluster already, so that is a note and no error.

use std::collections::HashMap;

use super::{Document, ManifestError, SecretManifest};
use crate::api::{
    Auth, Connector, ConnectorName, ConnectorUse, ParsedConnector, Reason, RepoUrl, Repository,
    RunSpec, SandboxRun, SecretKeyRef,
};

/// The annotation by which a Secret says where it may go.
const ORIGIN: &str = "sandboxrun.dev/origin";

/// A document and where it stands.
#[derive(Debug, Clone)]
pub struct Placed {
    /// The file as it was named.
    pub file: String,
    /// The number of the document in its file, from 1.
    pub number: usize,
    /// The document.
    pub document: Document,
}

/// What a set of documents says about itself.
#[derive(Debug, Default)]
pub struct Findings {
    /// What cannot work.
    pub errors: Vec<ManifestError>,
    /// What has to be there already, and cannot be seen from here.
    pub notes: Vec<ManifestError>,
}

/// Looks at all documents together.
#[must_use]
pub fn across(documents: &[Placed]) -> Findings {
    let mut findings = Findings::default();
    twice(documents, &mut findings);
    let set = Set { documents };
    for placed in documents {
        match &placed.document {
            Document::Run(run) => set.run(placed, run, &mut findings),
            Document::Connector(connector) => set.connector(placed, connector, &mut findings),
            Document::Secret(_) => {}
        }
    }
    findings
}

impl Placed {
    fn error(&self, field: String, message: String) -> ManifestError {
        ManifestError {
            file: self.file.clone(),
            line: None,
            document: Some(self.number),
            object: format!("{} {}", self.document.kind(), self.document.name()),
            field,
            message: message.into(),
            reason: Reason::RuleBroken,
        }
    }

    fn namespace(&self) -> &str {
        self.document.namespace().unwrap_or("default")
    }
}

fn twice(documents: &[Placed], findings: &mut Findings) {
    let mut seen = HashMap::new();
    for placed in documents {
        let name = placed.document.name();
        let key = (placed.document.kind(), placed.namespace(), name);
        if name.is_empty() {
            continue;
        }
        if let Some(first) = seen.insert(key, placed) {
            let message = format!(
                "is the name of document {} of {} too: keep one of the two",
                first.number, first.file
            );
            findings
                .errors
                .push(placed.error("metadata.name".to_owned(), message));
        }
    }
}

struct Set<'a> {
    documents: &'a [Placed],
}

impl Set<'_> {
    fn run(&self, placed: &Placed, run: &SandboxRun, findings: &mut Findings) {
        let Ok(spec) = RunSpec::parse(&run.spec) else {
            return;
        };
        for (at, input) in spec.inputs.iter().enumerate() {
            let Some(name) = &input.connector else {
                continue;
            };
            let field = format!("spec.inputs[{at}]");
            let connector = self.used(placed, &field, name, ConnectorUse::Inputs, findings);
            if let (Some(connector), Repository::Url(url)) = (connector, &input.repository) {
                let origin = connector.origin;
                if !RepoUrl::is_within(url, &origin) {
                    let message = format!(
                        "is not below {origin}, the url of connector {name}: name a repository there, or another connector"
                    );
                    findings
                        .errors
                        .push(placed.error(format!("{field}.repository"), message));
                }
            }
        }
        for (at, lookup) in spec.lookups.iter().enumerate() {
            let field = format!("spec.lookups[{at}]");
            let name = &lookup.connector;
            let _connector = self.used(placed, &field, name, ConnectorUse::Lookups, findings);
        }
    }

    /// The connector that a field of a run names, once it is known to serve that.
    fn used(
        &self,
        placed: &Placed,
        field: &str,
        name: &ConnectorName,
        wanted: ConnectorUse,
        findings: &mut Findings,
    ) -> Option<ParsedConnector> {
        let field = format!("{field}.connector");
        let found = self
            .documents
            .iter()
            .find_map(|other| match &other.document {
                Document::Connector(connector)
                    if other.namespace() == placed.namespace()
                        && other.document.name() == name.as_str() =>
                {
                    ParsedConnector::parse(name, &connector.spec).ok()
                }
                Document::Run(_) | Document::Connector(_) | Document::Secret(_) => None,
            });
        let Some(connector) = found else {
            let message = format!(
                "no Connector {name} is among these files: it has to be in namespace {} already",
                placed.namespace()
            );
            findings.notes.push(placed.error(field, message));
            return None;
        };
        if !connector.uses.contains(&wanted) {
            let message =
                format!("connector {name} is not for {wanted:?}: add it to its spec.uses");
            findings.errors.push(placed.error(field, message));
            return None;
        }
        Some(connector)
    }

    fn connector(&self, placed: &Placed, connector: &Connector, findings: &mut Findings) {
        let Ok(name) = placed.document.name().parse() else {
            return;
        };
        let Ok(parsed) = ParsedConnector::parse(&name, &connector.spec) else {
            return;
        };
        let credential = match &parsed.auth {
            Auth::Anonymous => None,
            Auth::Token { secret, .. } => Some(("spec.auth.token.secretRef", secret)),
            Auth::Ssh { private_key, .. } => Some(("spec.auth.ssh.privateKeyRef", private_key)),
            Auth::Header { secret, .. } => Some(("spec.auth.header.secretRef", secret)),
        };
        if let Some((field, reference)) = credential
            && let Some(secret) = self.key(placed, field, reference, findings)
            && secret
                .annotations
                .get(ORIGIN)
                .and_then(|url| url.parse().ok())
                != Some(parsed.origin.clone())
        {
            let message = format!(
                "Secret {} does not say that it may go there: annotate it with {ORIGIN}: {}",
                secret.name, parsed.origin
            );
            findings
                .errors
                .push(placed.error(format!("{field}.name"), message));
        }
        if let Some(reference) = &parsed.ca {
            let _secret = self.key(placed, "spec.caRef", reference, findings);
        }
    }

    /// The Secret that a connector names, if it is among the documents; that it has the key.
    fn key(
        &self,
        placed: &Placed,
        field: &str,
        reference: &SecretKeyRef,
        findings: &mut Findings,
    ) -> Option<&SecretManifest> {
        let secret = self
            .documents
            .iter()
            .find_map(|other| match &other.document {
                Document::Secret(secret)
                    if other.namespace() == placed.namespace() && secret.name == reference.name =>
                {
                    Some(secret)
                }
                Document::Run(_) | Document::Connector(_) | Document::Secret(_) => None,
            })?;
        // A Secret without values is a mould: the value comes by `--secret`, or from elsewhere.
        if !secret.values.is_empty() && !secret.values.contains_key(&reference.key) {
            let message = format!(
                "Secret {} has no key {}: add it, or name one that it has",
                reference.name, reference.key
            );
            findings
                .errors
                .push(placed.error(format!("{field}.key"), message));
        }
        Some(secret)
    }
}
