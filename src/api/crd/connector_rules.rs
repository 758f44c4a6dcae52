//! The rules of a `Connector`.

use super::cel::{
    CONTROL, are_methods, are_patterns, is_free_of, is_subdomain, matches, texts, url_rules,
};
use super::{At, at};
use crate::api::rules;

pub(super) fn table() -> Vec<At> {
    let mut table = vec![connector(), url()];
    table.extend(auth());
    table.extend(allow());
    for (name, key) in SECRET_KEYS {
        table.push(
            at(name)
                .max_length(rules::MAX_SUBDOMAIN)
                .rule(is_subdomain("self"), rules::OBJECT_NAME),
        );
        table.push(at(key).max_length(rules::MAX_SUBDOMAIN).rule(
            format!(
                "{} && !(self in ['.', '..'])",
                matches("self", "^[-._a-zA-Z0-9]+$")
            ),
            rules::SECRET_KEY,
        ));
    }
    table
}

/// Where a key of a Secret is named.
const SECRET_KEYS: &[(&str, &str)] = &[
    (
        "spec.auth.token.secretRef.name",
        "spec.auth.token.secretRef.key",
    ),
    (
        "spec.auth.ssh.privateKeyRef.name",
        "spec.auth.ssh.privateKeyRef.key",
    ),
    (
        "spec.auth.header.secretRef.name",
        "spec.auth.header.secretRef.key",
    ),
    ("spec.caRef.name", "spec.caRef.key"),
];

/// What the kinds of url, auth and use say about each other.
fn connector() -> At {
    let ssh = "self.url.startsWith('ssh://')";
    at("spec")
        .rule_for(
            ".auth",
            format!("has(self.auth) || !{ssh}"),
            rules::SSH_NEEDS_KEY,
        )
        .rule_for(
            ".auth",
            format!("!has(self.auth) || has(self.auth.ssh) == {ssh}"),
            rules::AUTH_FITS_URL,
        )
        .rule_for(
            ".uses",
            format!("!({ssh} && 'Lookups' in self.uses)"),
            rules::SSH_LOOKUPS,
        )
        .rule_for(
            ".uses",
            "!(self.type == 'HTTP' && 'Inputs' in self.uses)",
            rules::HTTP_INPUTS,
        )
}

fn url() -> At {
    let scheme = "self.startsWith('https://') || self.startsWith('ssh://')";
    let rules = url_rules("self", "true", (scheme, rules::CONNECTOR_SCHEME), true);
    let url = at("spec.url").max_length(rules::MAX_URL);
    rules
        .into_iter()
        .fold(url, |url, (rule, message)| url.rule(rule, message))
}

fn auth() -> Vec<At> {
    let own = format!(
        "{} && !self.lowerAscii().startsWith('proxy-') && !(self.lowerAscii() in {})",
        matches("self", "^[!#$%&'*+.^_`|~0-9A-Za-z-]+$"),
        texts(rules::CONNECTION_HEADERS)
    );
    // A line that is no comment and has three words.
    let entry = r"(?m)^[^\S\n]*[^#\s]\S*[^\S\n]+\S+[^\S\n]+\S";
    vec![
        at("spec.auth").rule(
            "[has(self.token), has(self.ssh), has(self.header)].filter(x, x).size() == 1",
            rules::ONE_AUTH,
        ),
        at("spec.auth.token.username")
            .max_length(rules::MAX_HEADER)
            .rule(
                matches("self", &format!("^[^:{CONTROL}]+$")),
                rules::USERNAME,
            ),
        at("spec.auth.ssh.knownHosts")
            .max_length(rules::MAX_KNOWN_HOSTS)
            .rule(matches("self", entry), rules::KNOWN_HOSTS),
        at("spec.auth.header.name")
            .max_length(rules::MAX_HEADER)
            .rule(own, rules::HEADER_NAME),
        at("spec.auth.header.prefix")
            .max_length(rules::MAX_HEADER)
            .rule(is_free_of("self", r"[^\x20-\x7e]"), rules::HEADER_PREFIX),
    ]
}

fn allow() -> Vec<At> {
    vec![
        at("spec.uses")
            .max_items(8)
            .keyword("x-kubernetes-list-type", "set")
            .rule("self.size() > 0", rules::USES_EMPTY)
            .rule("self.all(a, self.exists_one(b, a == b))", rules::USES_TWICE),
        at("spec.allow.repositories")
            .max_items(rules::MAX_PATTERNS)
            .rule(are_patterns(false), rules::REPOSITORIES),
        at("spec.allow.repositories[]").max_length(rules::MAX_PATTERN),
        at("spec.allow.methods")
            .max_items(rules::MAX_METHODS)
            .rule(are_methods(), rules::METHODS),
        at("spec.allow.methods[]").max_length(rules::MAX_METHOD),
        at("spec.allow.paths")
            .max_items(rules::MAX_PATTERNS)
            .rule(are_patterns(true), rules::PATHS),
        at("spec.allow.paths[]").max_length(rules::MAX_PATTERN),
    ]
}
