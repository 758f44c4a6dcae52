//! `spec.inputs`: repositories, refs, and where they go.

use super::Checks;
use super::text::{is_clean_path, overlap, repeated};
use crate::api::{
    FetchSpec, Input, InputSpec, RefName, RefSelector, RefSpec, RepoUrl, Repository, rules,
};

pub(super) fn parse(checks: &mut Checks, specs: &[InputSpec]) -> Vec<Input> {
    let specs = checks.at_most("spec.inputs", specs, rules::MAX_INPUTS);
    let names: Vec<&str> = specs.iter().map(|spec| spec.name.as_str()).collect();
    checks.distinct(
        "spec.inputs",
        rules::INPUT_NAMES,
        &repeated(&names),
        rules::ONE_NAMED,
    );
    checks.distinct(
        "spec.inputs",
        rules::INPUT_PATHS,
        &sharing_a_path(specs),
        rules::TWO_NAMED,
    );
    specs
        .iter()
        .enumerate()
        .filter_map(|(at, spec)| input(checks, at, spec))
        .collect()
}

/// Names of inputs whose path another one has, or lies in or around.
fn sharing_a_path(specs: &[InputSpec]) -> Vec<&str> {
    let clash = |one: &InputSpec, other: &InputSpec| {
        one.name != other.name && overlap(path(one), path(other))
    };
    let shares = |one: &&InputSpec| specs.iter().any(|other| clash(one, other));
    specs
        .iter()
        .filter(shares)
        .map(|spec| spec.name.as_str())
        .collect()
}

fn path(spec: &InputSpec) -> &str {
    spec.path.as_deref().unwrap_or(&spec.name)
}

fn input(checks: &mut Checks, at: usize, spec: &InputSpec) -> Option<Input> {
    let field = |name: &str| format!("spec.inputs[{at}].{name}");
    let name = checks.value(field("name"), spec.name.parse().map_err(|_| rules::LABEL));
    let repository = checks.value(
        field("repository"),
        repository(&spec.repository, spec.connector.is_some()),
    );
    let connector = spec.connector.as_ref().map(|connector| {
        checks.value(
            field("connector"),
            connector.parse().map_err(|_| rules::CONNECTOR_NAME),
        )
    });
    let selector = match &spec.reference {
        Some(spec) => selector(checks, &field("ref"), spec),
        None => Some(RefSelector::Head),
    };
    if let Some(path) = &spec.path {
        checks.rule(is_input_path(path), field("path"), rules::INPUT_PATH);
    }
    let depth = spec.depth.unwrap_or(1);
    let depth = checks.value(
        field("depth"),
        u32::try_from(depth).map_err(|_| rules::DEPTH),
    )?;
    Some(Input {
        name: name?,
        repository: repository?,
        connector: match connector {
            Some(connector) => Some(connector?),
            None => None,
        },
        selector: selector?,
        path: path(spec).to_owned(),
        depth: Some(depth).filter(|depth| *depth > 0),
        read_only: spec.read_only.unwrap_or(false),
        fetch: spec.fetch.unwrap_or_default() == FetchSpec::Origin,
    })
}

fn is_input_path(path: &str) -> bool {
    is_clean_path(path)
        && !path
            .split('/')
            .any(|part| part.eq_ignore_ascii_case(".git"))
}

/// A whole address, or a path below the connector's url. Whatever has a `:` is meant as an address.
fn repository(text: &str, has_connector: bool) -> Result<Repository, String> {
    if text.chars().count() > rules::MAX_URL {
        return Err(format!("must have at most {} characters", rules::MAX_URL));
    }
    if text.contains(':') {
        let url = text
            .parse::<RepoUrl>()
            .map_err(|error| error.said_as(rules::REPOSITORY_SCHEME));
        return url.map(Repository::Url);
    }
    if !has_connector {
        return Err(rules::REPOSITORY_SCHEME.to_owned());
    }
    match crate::api::repo_url::path_below(text) {
        Ok(()) => Ok(Repository::BelowConnector(text.to_owned())),
        Err(_) => Err(rules::REPOSITORY_PATH.to_owned()),
    }
}

fn selector(checks: &mut Checks, field: &str, spec: &RefSpec) -> Option<RefSelector> {
    let set = [&spec.branch, &spec.tag, &spec.commit, &spec.name];
    if set.iter().filter(|text| text.is_some()).count() != 1 {
        checks.refuse(field, rules::ONE_REF);
        return None;
    }
    let named = |name: &str| format!("{field}.{name}");
    if let Some(text) = &spec.branch {
        return checks
            .value(named("branch"), RefName::branch(text))
            .map(RefSelector::Branch);
    }
    if let Some(text) = &spec.tag {
        return checks
            .value(named("tag"), RefName::tag(text))
            .map(RefSelector::Tag);
    }
    if let Some(text) = &spec.commit {
        let commit = text.parse().map_err(|_| rules::COMMIT);
        return checks
            .value(named("commit"), commit)
            .map(RefSelector::Commit);
    }
    let text = spec.name.as_deref().unwrap_or_default();
    checks
        .value(named("name"), text.parse())
        .map(RefSelector::Name)
}
