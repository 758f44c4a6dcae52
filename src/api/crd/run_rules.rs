//! The rules of a `SandboxRun`.

use serde_json::json;

use super::cel::{
    self, CONTROL, are_methods, are_patterns, is_absolute, is_clean_path, is_duration, is_free_of,
    is_label, is_subdomain, matches, overlap, text, texts, url_rules,
};
use super::{At, at};
use crate::api::UNSEEN;
use crate::api::rules::{self, ONE_NAMED, TWO_NAMED};

pub(super) fn table() -> Vec<At> {
    // A run that nobody has looked at yet is not what it should be: without this, kstatus calls it current.
    let unseen = at("status").keyword("default", json!({"observedGeneration": UNSEEN}));
    let mut table = vec![unseen, changes()];
    table.extend(inputs());
    table.extend(refs());
    table.extend(agent());
    table.extend(files());
    table.extend(lookups());
    table.extend(egress_and_policy());
    table.extend(placement());
    table
}

/// What may not change once the object is there. Stated on the parent: a rule on a field is not asked when the field
/// is added or removed.
fn changes() -> At {
    let mut spec = at("spec");
    for field in rules::IMMUTABLE_FIELDS {
        let rule = format!(
            "has(self.{field}) == has(oldSelf.{field}) && (!has(self.{field}) || self.{field} == oldSelf.{field})"
        );
        spec = spec.rule_for(&format!(".{field}"), rule, rules::IMMUTABLE);
    }
    let is = |object: &str| format!("(has({object}.cancel) && {object}.cancel)");
    let rerun = |object: &str| format!("(has({object}.rerun) ? {object}.rerun : '')");
    let latches = format!(
        "!{} || {} || {} != {}",
        is("oldSelf"),
        is("self"),
        rerun("self"),
        rerun("oldSelf")
    );
    spec.rule_for(".cancel", latches, rules::CANCEL_LATCHES)
}

/// Names that more than one entry has.
const SAME_NAME: &str = "self.map(a, !self.exists_one(b, b.name == a.name), a.name)";
/// Each entry has a name of its own.
const OWN_NAMES: &str = "self.all(a, self.exists_one(b, b.name == a.name))";

fn inputs() -> Vec<At> {
    let path = |input: &str| format!("(has({input}.path) ? {input}.path : {input}.name)");
    let clash = format!("a.name != b.name && ({})", overlap(&path("a"), &path("b")));
    let sharing = format!("self.map(a, self.exists(b, {clash}), a.name)");
    let address = "self.repository.contains(':')";
    let scheme = format!(
        "!{address} || self.repository.startsWith('https://') || self.repository.startsWith('ssh://') || \
         (!self.repository.contains('://') && !self.repository.contains('::') && {})",
        matches("self.repository", "^[^@]*@[^:]*:")
    );
    let mut input = at("spec.inputs[]").rule_for(
        ".repository",
        format!("{address} || has(self.connector)"),
        rules::REPOSITORY_SCHEME,
    );
    let urls = url_rules(
        "self.repository",
        address,
        (&scheme, rules::REPOSITORY_SCHEME),
        false,
    );
    for (rule, message) in urls {
        input = input.rule_for(".repository", rule, message);
    }
    let bad_path = format!(r"^$|^/|^-|[?#\\{CONTROL}]|//+[^/]|(^|/)(\.|%2[eE]){{1,2}}(/|$)|%2[fF]");
    let below = format!(
        "{address} || !has(self.connector) || {}",
        is_free_of("self.repository", &bad_path)
    );
    vec![
        at("spec.inputs")
            .max_items(rules::MAX_INPUTS)
            .map_by("name")
            .rule_naming(OWN_NAMES, rules::INPUT_NAMES, SAME_NAME, ONE_NAMED)
            .rule_naming(
                &format!("self.all(a, !self.exists(b, {clash}))"),
                rules::INPUT_PATHS,
                &sharing,
                TWO_NAMED,
            ),
        input.rule_for(".repository", below, rules::REPOSITORY_PATH),
        // Longer than a label may be, so that the sentence is ours.
        at("spec.inputs[].name")
            .max_length(63)
            .rule(is_label("self"), rules::LABEL),
        at("spec.inputs[].repository").max_length(rules::MAX_URL),
        at("spec.inputs[].connector")
            .max_length(rules::MAX_SUBDOMAIN)
            .rule(is_subdomain("self"), rules::CONNECTOR_NAME),
        at("spec.inputs[].path").max_length(rules::MAX_PATH).rule(
            is_clean_path("self", Some(r"\.[gG][iI][tT]")),
            rules::INPUT_PATH,
        ),
        at("spec.inputs[].depth").rule("self >= 0", rules::DEPTH),
    ]
}

fn refs() -> Vec<At> {
    let malformed = format!(r"[{CONTROL} ~^:?*\[\\]|\.\.|@\{{|\.$|(^|/)(/|$|[.-])|\.lock(/|$)");
    let well_formed = is_free_of("self", &malformed);
    let short = |prefix: &str| {
        format!(
            "bytes(self).size() <= {}",
            rules::MAX_REF.saturating_sub(prefix.len())
        )
    };
    let name = |place: &'static str| at(place).max_length(rules::MAX_REF);
    vec![
        at("spec.inputs[].ref").rule(
            "[has(self.branch), has(self.tag), has(self.commit), has(self.name)].filter(x, x).size() == 1",
            rules::ONE_REF,
        ),
        name("spec.inputs[].ref.branch")
            .rule(well_formed.clone(), rules::REF_MALFORMED)
            .rule(short("refs/heads/"), rules::REF_TOO_LONG),
        name("spec.inputs[].ref.tag")
            .rule(well_formed.clone(), rules::REF_MALFORMED)
            .rule(short("refs/tags/"), rules::REF_TOO_LONG),
        name("spec.inputs[].ref.name")
            .rule("self.startsWith('refs/')", rules::REF_NOT_FULL)
            .rule(well_formed, rules::REF_MALFORMED)
            .rule(short(""), rules::REF_TOO_LONG),
        name("spec.inputs[].ref.commit")
            .rule(matches("self", "^([0-9a-fA-F]{40}|[0-9a-fA-F]{64})$"), rules::COMMIT),
    ]
}

fn agent() -> Vec<At> {
    let no_nul = is_free_of("self", r"\x00");
    let reserved = "^(HOME|GIT_CONFIG.*|SANDBOXRUN_.*|(?i:(HTTP|HTTPS|ALL|NO)_PROXY))$";
    let places = format!(
        "({} + (has(self.scratch) ? self.scratch : []))",
        texts(rules::WORKING_PLACES)
    );
    let working_dir = format!(
        "!has(self.workingDir) || ({} && {places}.exists(p, self.workingDir == p || self.workingDir.startsWith(p + '/')))",
        is_absolute("self.workingDir")
    );
    let bytes = "(has(self.prompt) ? bytes(self.prompt).size() : 0) + \
                 (has(self.context) ? self.context.map(c, bytes(c.content).size()).sum() : 0)";
    vec![
        at("spec.agent")
            .rule_for(".workingDir", working_dir, rules::WORKING_DIR)
            .rule(
                format!("{bytes} <= {}", rules::MAX_CONTEXT_BYTES),
                rules::CONTEXT_BYTES,
            ),
        at("spec.agent.image").max_length(rules::MAX_IMAGE).rule(
            matches("self", &format!(r"^[^\s\pZ{CONTROL}]+$")),
            rules::IMAGE,
        ),
        at("spec.agent.command")
            .max_items(rules::MAX_COMMAND)
            .rule("self.size() > 0 && self[0] != ''", rules::COMMAND_EMPTY),
        at("spec.agent.command[]")
            .max_length(rules::MAX_ARG)
            .rule(no_nul.clone(), rules::NUL),
        at("spec.agent.args").max_items(rules::MAX_ARGS),
        at("spec.agent.args[]")
            .max_length(rules::MAX_ARG)
            .rule(no_nul.clone(), rules::NUL),
        at("spec.agent.env")
            .max_items(rules::MAX_ENV)
            // No rule of ours for names given twice: with 256 variables it costs more than an API server spends on a rule,
            // and of a map it refuses a second entry by itself.
            .map_by("name"),
        at("spec.agent.env[].name")
            .max_length(rules::MAX_ENV_NAME)
            .rule(
                matches("self", "^[-._a-zA-Z][-._a-zA-Z0-9]*$"),
                rules::ENV_NAME,
            )
            .rule(is_free_of("self", reserved), rules::ENV_RESERVED),
        at("spec.agent.env[].value")
            .max_length(rules::MAX_ENV_VALUE)
            .rule(no_nul, rules::NUL),
        at("spec.agent.workingDir").max_length(rules::MAX_PATH.saturating_add(1)),
        at("spec.agent.prompt").max_length(rules::MAX_CONTEXT_BYTES),
        at("spec.agent.timeout")
            .max_length(rules::MAX_UNIT)
            .rule(is_duration("self", "1m", "24h"), rules::TIMEOUT),
        at("spec.agent.stallTimeout")
            .max_length(rules::MAX_UNIT)
            .rule(is_duration("self", "1s", "24h"), rules::SHORT_TIMEOUT),
        at("spec.agent.runAsUser").rule(
            format!("self >= 1 && self <= {}", rules::MAX_USER),
            rules::USER,
        ),
        at("spec.agent.imagePullSecrets")
            .max_items(rules::MAX_PULL_SECRETS)
            .map_by("name")
            .rule_naming(OWN_NAMES, rules::PULL_SECRETS, SAME_NAME, ONE_NAMED),
        at("spec.agent.imagePullSecrets[].name")
            .max_length(rules::MAX_SUBDOMAIN)
            .rule(is_subdomain("self"), rules::OBJECT_NAME),
    ]
}

fn resources() -> Vec<At> {
    let name = format!(
        "(k in {} || (k.size() <= {} && {}))",
        texts(rules::RESOURCES),
        rules::MAX_LABEL_NAME,
        matches("k", &format!("^{}/{}$", cel::PREFIX, cel::NAME))
    );
    let amount = |subject: &str| {
        let form = r"^[0-9]{1,15}(m|(\.[0-9]{1,3})?(k|M|G|T|Ki|Mi|Gi|Ti)?)$";
        format!(
            "{} && {}",
            matches(subject, form),
            matches(subject, "[1-9]")
        )
    };
    let map = |place: &'static str| {
        at(place)
            .max_properties(rules::MAX_RESOURCES)
            .rule(format!("self.all(k, {name})"), rules::RESOURCE_NAMES)
            .rule(
                format!("self.all(k, {})", amount("self[k]")),
                rules::AMOUNTS,
            )
    };
    let above = format!(
        "k in self.limits && {} && {} && quantity(self.requests[k]).compareTo(quantity(self.limits[k])) > 0",
        amount("self.requests[k]"),
        amount("self.limits[k]")
    );
    vec![
        at("spec.agent.resources").rule_naming(
            &format!(
                "!has(self.requests) || !has(self.limits) || !self.requests.exists(k, {above})"
            ),
            rules::REQUESTS_FIT,
            &format!("self.requests.map(k, {above}, k)"),
            ONE_NAMED,
        ),
        map("spec.agent.resources.requests"),
        map("spec.agent.resources.limits"),
        at("spec.agent.resources.requests{}").max_length(rules::MAX_UNIT),
        at("spec.agent.resources.limits{}").max_length(rules::MAX_UNIT),
    ]
}

fn placement() -> Vec<At> {
    let label_name = |subject: &str| {
        format!(
            "{subject}.size() <= {} && {}",
            rules::MAX_LABEL_NAME,
            matches(subject, &format!("^({}/)?{}$", cel::PREFIX, cel::NAME))
        )
    };
    let label_value = |subject: &str| matches(subject, &format!("^({})?$", cel::NAME));
    let exists = "(has(self.operator) && self.operator == 'Exists')";
    let mut table = resources();
    table.extend([
        at("spec.workspace.size")
            .max_length(rules::MAX_UNIT)
            .rule(bytes("self"), rules::QUANTITY),
        at("spec.scheduling.nodeSelector")
            .max_properties(rules::MAX_NODE_LABELS)
            .rule(
                format!("self.all(k, {} && {})", label_name("k"), label_value("self[k]")),
                rules::NODE_SELECTOR,
            ),
        at("spec.scheduling.nodeSelector{}").max_length(rules::MAX_LABEL_VALUE),
        at("spec.scheduling.tolerations").max_items(rules::MAX_TOLERATIONS),
        at("spec.scheduling.tolerations[]")
            .rule_for(
                ".key",
                format!("has(self.key) ? {} : {exists}", label_name("self.key")),
                rules::TOLERATION_KEY,
            )
            .rule_for(
                ".value",
                format!("!has(self.value) || (!{exists} && {})", label_value("self.value")),
                rules::TOLERATION_VALUE,
            )
            .rule_for(
                ".tolerationSeconds",
                "!has(self.tolerationSeconds) || (self.tolerationSeconds >= 0 && has(self.effect) && self.effect == 'NoExecute')",
                rules::TOLERATION_SECONDS,
            ),
        at("spec.scheduling.tolerations[].key").max_length(rules::MAX_LABEL_NAME),
        at("spec.scheduling.tolerations[].value").max_length(rules::MAX_LABEL_VALUE),
        at("spec.scheduling.priorityClassName")
            .max_length(rules::MAX_SUBDOMAIN)
            .rule(is_subdomain("self"), rules::OBJECT_NAME),
        at("spec.scheduling.startTimeout")
            .max_length(rules::MAX_UNIT)
            .rule(is_duration("self", "1s", "24h"), rules::SHORT_TIMEOUT),
        at("spec.infrastructureRetries").rule(
            format!("self >= 0 && self <= {}", rules::MAX_RETRIES),
            rules::RETRIES,
        ),
        at("spec.rerun")
            .max_length(rules::MAX_RERUN)
            .rule(is_free_of("self", &format!("[{CONTROL}]")), rules::RERUN),
        at("spec.ttlAfterFinished")
            .max_length(rules::MAX_UNIT)
            .rule(is_duration("self", "0s", "8760h"), rules::TTL),
    ]);
    table
}

fn files() -> Vec<At> {
    let ours = format!(
        "{}.exists(p, {})",
        texts(rules::OWN_PLACES),
        overlap("self", "p")
    );
    let own = |path: &str| {
        let path = |one: &str| format!("{one}{path}");
        format!("self.exists_one(b, {})", overlap(&path("a"), &path("b")))
    };
    let sharing = |path: &str| format!("self.map(a, !{}, a{path})", own(path));
    vec![
        at("spec.agent.scratch")
            .max_items(rules::MAX_SCRATCH)
            .rule_naming(
                &format!("self.all(a, {})", own("")),
                rules::SCRATCH_PATHS,
                &sharing(""),
                TWO_NAMED,
            ),
        at("spec.agent.scratch[]")
            .max_length(rules::MAX_PATH.saturating_add(1))
            .rule(
                format!("{} && !{ours}", is_absolute("self")),
                rules::SCRATCH,
            ),
        at("spec.agent.context")
            .max_items(rules::MAX_CONTEXT_FILES)
            .map_by("path")
            .rule_naming(
                &format!("self.all(a, {})", own(".path")),
                rules::CONTEXT_PATHS,
                &sharing(".path"),
                TWO_NAMED,
            ),
        at("spec.agent.context[].path")
            .max_length(rules::MAX_PATH)
            .rule(is_clean_path("self", None), rules::CONTEXT_PATH),
        at("spec.agent.context[].content").max_length(rules::MAX_CONTEXT_BYTES),
    ]
}

/// A number of bytes above 0. Less than one byte, which only a number without a unit can be, is none.
fn bytes(subject: &str) -> String {
    format!(
        "{} && {} && {}",
        matches(
            subject,
            r"^[0-9]{1,15}(\.[0-9]{1,3})?(k|M|G|T|Ki|Mi|Gi|Ti)?$"
        ),
        matches(subject, "[1-9]"),
        is_free_of(subject, r"^0+(\.[0-9]+)?$")
    )
}

fn lookups() -> Vec<At> {
    let count = format!("self >= 1 && self <= {}", rules::MAX_CALLS);
    vec![
        at("spec.lookups")
            .max_items(rules::MAX_LOOKUPS)
            .map_by("name")
            .rule_naming(OWN_NAMES, rules::LOOKUP_NAMES, SAME_NAME, ONE_NAMED),
        at("spec.lookups[].name")
            .max_length(63)
            .rule(is_label("self"), rules::LABEL),
        at("spec.lookups[].connector")
            .max_length(rules::MAX_SUBDOMAIN)
            .rule(is_subdomain("self"), rules::CONNECTOR_NAME),
        at("spec.lookups[].methods")
            .max_items(rules::MAX_METHODS)
            .rule(are_methods(), rules::METHODS),
        at("spec.lookups[].methods[]").max_length(rules::MAX_METHOD),
        at("spec.lookups[].paths")
            .max_items(rules::MAX_PATTERNS)
            .rule("self.size() > 0", rules::PATHS_EMPTY)
            .rule(are_patterns(true), rules::PATHS),
        at("spec.lookups[].paths[]").max_length(rules::MAX_PATTERN),
        at("spec.lookups[].limits.calls").rule(count.clone(), rules::COUNT),
        at("spec.lookups[].limits.perMinute").rule(count, rules::COUNT),
        at("spec.lookups[].limits.bytes")
            .max_length(rules::MAX_UNIT)
            .rule(bytes("self"), rules::QUANTITY),
        at("spec.lookups[].limits.idleTimeout")
            .max_length(rules::MAX_UNIT)
            .rule(is_duration("self", "1s", "24h"), rules::SHORT_TIMEOUT),
    ]
}

fn egress_and_policy() -> Vec<At> {
    let label = "([-A-Za-z0-9_]{0,61}[A-Za-z0-9_])?";
    let host = format!(r"^(\*\.)?([A-Za-z0-9_]{label}\.)*[A-Za-z_]{label}$");
    let short = format!(
        "self.size() <= {} + (self.startsWith({}) ? 2 : 0)",
        rules::MAX_SUBDOMAIN,
        text("*.")
    );
    vec![
        at("spec.egress.allow").max_items(rules::MAX_EGRESS),
        at("spec.egress.allow[].host")
            .max_length(rules::MAX_SUBDOMAIN.saturating_add(2))
            .rule(
                format!("{} && {short}", matches("self", &host)),
                rules::HOST,
            ),
        at("spec.egress.allow[].port").rule("self >= 1 && self <= 65535", rules::PORT),
        at("spec.policy.runtimeClassName")
            .max_length(rules::MAX_SUBDOMAIN)
            .rule(is_subdomain("self"), rules::OBJECT_NAME),
    ]
}
