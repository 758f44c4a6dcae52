//! `spec.lookups` and `spec.egress`: what the agent may ask and reach.

use std::time::Duration;

use super::Checks;
use super::text::{is_absolute_pattern, is_method, repeated};
use crate::api::{
    EgressHost, EgressSpec, Lookup, LookupLimits, LookupSpec, PathPattern, rules, units,
};

/// `limits.idleTimeout` where none is written: a model may think for long.
const IDLE: Duration = Duration::from_mins(10);

pub(super) fn parse(checks: &mut Checks, specs: &[LookupSpec]) -> Vec<Lookup> {
    let specs = checks.at_most("spec.lookups", specs, rules::MAX_LOOKUPS);
    let names: Vec<&str> = specs.iter().map(|spec| spec.name.as_str()).collect();
    checks.distinct(
        "spec.lookups",
        rules::LOOKUP_NAMES,
        &repeated(&names),
        rules::ONE_NAMED,
    );
    specs
        .iter()
        .enumerate()
        .filter_map(|(at, spec)| lookup(checks, at, spec))
        .collect()
}

fn lookup(checks: &mut Checks, at: usize, spec: &LookupSpec) -> Option<Lookup> {
    let field = |name: &str| format!("spec.lookups[{at}].{name}");
    let name = checks.value(field("name"), spec.name.parse().map_err(|_| rules::LABEL));
    let connector = spec.connector.parse().map_err(|_| rules::CONNECTOR_NAME);
    let connector = checks.value(field("connector"), connector);
    methods(checks, &field("methods"), &spec.methods);
    checks.rule(!spec.paths.is_empty(), field("paths"), rules::PATHS_EMPTY);
    paths(checks, &field("paths"), &spec.paths);
    let limits = spec.limits.clone().unwrap_or_default();
    let limits = parse_limits(checks, &field("limits"), &limits);
    let default_methods = || vec!["GET".to_owned(), "HEAD".to_owned()];
    Some(Lookup {
        name: name?,
        connector: connector?,
        methods: if spec.methods.is_empty() {
            default_methods()
        } else {
            spec.methods.clone()
        },
        paths: spec
            .paths
            .iter()
            .map(|path| PathPattern::new(path))
            .collect(),
        max_calls: limits.calls,
        max_bytes: limits.bytes,
        per_minute: limits.per_minute,
        idle_timeout: limits.idle_timeout,
    })
}

pub(super) fn methods(checks: &mut Checks, field: &str, methods: &[String]) {
    let methods = checks.at_most(field, methods, rules::MAX_METHODS);
    checks.rule(
        methods.iter().all(|method| is_method(method)),
        field,
        rules::METHODS,
    );
}

pub(super) fn paths(checks: &mut Checks, field: &str, paths: &[String]) {
    let paths = checks.at_most(field, paths, rules::MAX_PATTERNS);
    checks.rule(
        paths.iter().all(|path| is_absolute_pattern(path)),
        field,
        rules::PATHS,
    );
}

struct Limits {
    calls: Option<u64>,
    bytes: Option<u64>,
    per_minute: Option<u64>,
    idle_timeout: Duration,
}

fn parse_limits(checks: &mut Checks, at: &str, spec: &LookupLimits) -> Limits {
    let mut count = |name: &str, number: Option<i64>| {
        let number = number?;
        let good = (1..=rules::MAX_CALLS).contains(&number);
        checks.rule(good, format!("{at}.{name}"), rules::COUNT);
        u64::try_from(number).ok()
    };
    let calls = count("calls", spec.calls);
    let per_minute = count("perMinute", spec.per_minute);
    let bytes = spec.bytes.as_deref().and_then(|text| {
        checks.value(
            format!("{at}.bytes"),
            units::quantity(text).ok_or(rules::QUANTITY),
        )
    });
    let idle_timeout = spec
        .idle_timeout
        .as_deref()
        .and_then(|text| super::agent::short_timeout(checks, &format!("{at}.idleTimeout"), text));
    Limits {
        calls,
        bytes,
        per_minute,
        idle_timeout: idle_timeout.unwrap_or(IDLE),
    }
}

pub(super) fn egress(checks: &mut Checks, spec: Option<&EgressSpec>) -> Vec<EgressHost> {
    let rules = spec.map_or(&[][..], |spec| &spec.allow);
    let rules = checks.at_most("spec.egress.allow", rules, rules::MAX_EGRESS);
    let mut hosts = Vec::new();
    for (at, rule) in rules.iter().enumerate() {
        let field = |name: &str| format!("spec.egress.allow[{at}].{name}");
        checks.rule(is_host(&rule.host), field("host"), rules::HOST);
        let port = u16::try_from(rule.port.unwrap_or(443))
            .ok()
            .filter(|port| *port > 0);
        if let Some(port) = checks.value(field("port"), port.ok_or(rules::PORT)) {
            hosts.push(EgressHost {
                host: rule.host.to_ascii_lowercase(),
                port,
            });
        }
    }
    hosts
}

/// A name, or `*.` and a name. Its last label cannot be read as a number, or it could be an address in disguise
/// (`127.1`, `0x7f.1`, `2130706433`).
fn is_host(text: &str) -> bool {
    let name = text.strip_prefix("*.").unwrap_or(text);
    let is_label = |label: &str| {
        (1..=63).contains(&label.len())
            && label
                .bytes()
                .all(|b| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_'))
            && !label.starts_with('-')
            && !label.ends_with('-')
    };
    let last = name.rsplit('.').next().unwrap_or_default();
    name.len() <= rules::MAX_SUBDOMAIN
        && name.split('.').all(is_label)
        && !last.starts_with(|c: char| c.is_ascii_digit())
}
