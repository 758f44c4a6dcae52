//! `spec.agent`: what runs, with what, for how long.

use std::time::Duration;

use super::Checks;
use super::text::{is_absolute, is_at_or_below, is_clean_path, overlap, repeated};
use crate::api::{Agent, AgentSpec, Input, layout, rules, units};

/// `agent.timeout` where none is written.
const TIMEOUT: Duration = Duration::from_mins(20);
/// The longest of all durations of a run.
pub(super) const LONGEST: Duration = Duration::from_hours(24);

pub(super) fn parse(checks: &mut Checks, spec: &AgentSpec, inputs: &[Input]) -> Option<Agent> {
    let image_ok = !spec.image.is_empty()
        && spec.image.chars().count() <= rules::MAX_IMAGE
        && !spec
            .image
            .chars()
            .any(|c| c.is_whitespace() || c.is_control());
    checks.rule(image_ok, "spec.agent.image", rules::IMAGE);
    command(checks, spec);
    env(checks, spec);
    scratch(checks, spec);
    if let Some(dir) = &spec.working_dir {
        let places = || rules::WORKING_PLACES.iter().copied();
        let places = places().chain(spec.scratch.iter().map(String::as_str));
        let good = is_absolute(dir) && places.into_iter().any(|place| is_at_or_below(dir, place));
        checks.rule(good, "spec.agent.workingDir", rules::WORKING_DIR);
    }
    context(checks, spec);
    let timeout = timeout(checks, spec.timeout.as_deref());
    let stall_timeout = spec.stall_timeout.as_deref();
    let stall_timeout =
        stall_timeout.map(|text| short_timeout(checks, "spec.agent.stallTimeout", text));
    let output_schema = spec.output.as_ref().map(|output| &output.schema);
    if let Some(schema) = output_schema {
        super::schema::check(checks, "spec.agent.output.schema", schema);
    }
    let first_input = || match inputs.first() {
        Some(input) => format!("{}/{}", layout::WORKSPACE, input.path),
        None => layout::WORKSPACE.to_owned(),
    };
    Some(Agent {
        image: spec.image.clone(),
        command: spec.command.iter().chain(&spec.args).cloned().collect(),
        env: spec.env.clone(),
        working_dir: spec.working_dir.clone().unwrap_or_else(first_input),
        scratch: spec.scratch.clone(),
        prompt: spec.prompt.clone(),
        context: spec.context.clone(),
        timeout: timeout?,
        stall_timeout: match stall_timeout {
            Some(stall) => Some(stall?),
            None => None,
        },
        output_schema: output_schema.cloned(),
    })
}

fn command(checks: &mut Checks, spec: &AgentSpec) {
    let named = spec
        .command
        .first()
        .is_some_and(|program| !program.is_empty());
    checks.rule(named, "spec.agent.command", rules::COMMAND_EMPTY);
    let lists = [
        ("spec.agent.command", &spec.command, rules::MAX_COMMAND),
        ("spec.agent.args", &spec.args, rules::MAX_ARGS),
    ];
    for (field, list, most) in lists {
        for (at, part) in checks.at_most(field, list, most).iter().enumerate() {
            checks.rule(!part.contains('\0'), format!("{field}[{at}]"), rules::NUL);
            checks.fits(format!("{field}[{at}]"), part, rules::MAX_ARG);
        }
    }
}

fn env(checks: &mut Checks, spec: &AgentSpec) {
    let env = checks.at_most("spec.agent.env", &spec.env, rules::MAX_ENV);
    let names: Vec<&str> = env.iter().map(|var| var.name.as_str()).collect();
    checks.distinct(
        "spec.agent.env",
        rules::ENV_NAMES,
        &repeated(&names),
        rules::ONE_NAMED,
    );
    for (at, var) in env.iter().enumerate() {
        let field = format!("spec.agent.env[{at}].name");
        if is_env_name(&var.name) {
            checks.rule(!is_reserved(&var.name), field, rules::ENV_RESERVED);
        } else {
            checks.refuse(field, rules::ENV_NAME);
        }
        let field = format!("spec.agent.env[{at}].value");
        checks.rule(!var.value.contains('\0'), field.clone(), rules::NUL);
        checks.fits(field, &var.value, rules::MAX_ENV_VALUE);
    }
}

/// What Kubernetes takes as a variable's name.
fn is_env_name(name: &str) -> bool {
    (1..=rules::MAX_ENV_NAME).contains(&name.len())
        && !name.starts_with(|c: char| c.is_ascii_digit())
        && name
            .bytes()
            .all(|b| b.is_ascii_alphanumeric() || matches!(b, b'_' | b'-' | b'.'))
}

/// What the sandbox sets itself: the way out, git's way to its origin, the home directory.
fn is_reserved(name: &str) -> bool {
    let upper = name.to_ascii_uppercase();
    name == "HOME"
        || name.starts_with("GIT_CONFIG")
        || name.starts_with("SANDBOXRUN_")
        || matches!(
            upper.as_str(),
            "HTTP_PROXY" | "HTTPS_PROXY" | "ALL_PROXY" | "NO_PROXY"
        )
}

fn scratch(checks: &mut Checks, spec: &AgentSpec) {
    let scratch = checks.at_most("spec.agent.scratch", &spec.scratch, rules::MAX_SCRATCH);
    for (at, path) in scratch.iter().enumerate() {
        let ours = rules::OWN_PLACES.iter().any(|place| overlap(path, place));
        let good = is_absolute(path) && !ours;
        checks.rule(good, format!("spec.agent.scratch[{at}]"), rules::SCRATCH);
    }
    let paths: Vec<&str> = scratch.iter().map(String::as_str).collect();
    checks.distinct(
        "spec.agent.scratch",
        rules::SCRATCH_PATHS,
        &sharing(&paths),
        rules::TWO_NAMED,
    );
}

fn context(checks: &mut Checks, spec: &AgentSpec) {
    let files = checks.at_most(
        "spec.agent.context",
        &spec.context,
        rules::MAX_CONTEXT_FILES,
    );
    for (at, file) in files.iter().enumerate() {
        let field = format!("spec.agent.context[{at}].path");
        checks.rule(is_clean_path(&file.path), field, rules::CONTEXT_PATH);
    }
    let paths: Vec<&str> = files.iter().map(|file| file.path.as_str()).collect();
    checks.distinct(
        "spec.agent.context",
        rules::CONTEXT_PATHS,
        &sharing(&paths),
        rules::TWO_NAMED,
    );
    let bytes = spec.prompt.as_deref().map_or(0, str::len)
        + spec
            .context
            .iter()
            .map(|file| file.content.len())
            .sum::<usize>();
    checks.rule(
        bytes <= rules::MAX_CONTEXT_BYTES,
        "spec.agent",
        rules::CONTEXT_BYTES,
    );
}

/// Paths that are there twice, or lie in or around another one.
fn sharing<'a>(paths: &[&'a str]) -> Vec<&'a str> {
    let overlaps = |path: &str| paths.iter().filter(|other| overlap(path, other)).count();
    paths
        .iter()
        .copied()
        .filter(|path| overlaps(path) > 1)
        .collect()
}

fn timeout(checks: &mut Checks, text: Option<&str>) -> Option<Duration> {
    let Some(text) = text else {
        return Some(TIMEOUT);
    };
    let bounds = Duration::from_mins(1)..=LONGEST;
    let timeout = units::duration(text).filter(|timeout| bounds.contains(timeout));
    checks.value("spec.agent.timeout", timeout.ok_or(rules::TIMEOUT))
}

/// A duration that may be short: of silence.
pub(super) fn short_timeout(checks: &mut Checks, field: &str, text: &str) -> Option<Duration> {
    let bounds = Duration::from_secs(1)..=LONGEST;
    let timeout = units::duration(text).filter(|timeout| bounds.contains(timeout));
    checks.value(field, timeout.ok_or(rules::SHORT_TIMEOUT))
}
