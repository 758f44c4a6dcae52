//! The chart: lint, schemas of the real API server, `install.yaml`, rights, `helm test`.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use serde_json::{Value, json};

use crate::support::{OPERATOR, Space, kubectl, program, setting};

fn template(more: &[&str]) -> String {
    let chart = setting("E2E_CHART");
    let args = [
        "template",
        "sandboxrun",
        &chart,
        "-n",
        OPERATOR,
        "--kube-version",
        "1.33.0",
    ];
    program("helm", &[&args, more].concat(), "").good()
}

#[test]
#[ignore = "needs a cluster: make e2e"]
fn helm_finds_nothing_to_say_about_the_chart() {
    let chart = setting("E2E_CHART");
    program("helm", &["lint", "--strict", &chart], "").good();
    for bad in [
        "config.times.image=soon",
        "config.tmes.image=5m",
        "record.volume.type=HostPath",
    ] {
        let said = program("helm", &["lint", &chart, "--set", bad], "");
        assert!(!said.ok, "{bad} is to be refused");
    }
}

#[test]
#[ignore = "needs a cluster: make e2e"]
fn every_object_of_the_chart_fits_the_schemas_of_the_api_server() {
    let dir = tempfile::tempdir().unwrap();
    let api: Value =
        serde_json::from_str(&kubectl(&["get", "--raw", "/openapi/v2"]).good()).unwrap();
    let mut definitions = api["definitions"].clone();
    // v2 of OpenAPI has no word for "either"
    definitions["io.k8s.apimachinery.pkg.util.intstr.IntOrString"] =
        json!({"type": ["string", "integer"]});
    // One file a kind, each with all definitions: kubeconform's own place for schemas is on the internet.
    for (name, schema) in definitions.as_object().unwrap() {
        for kind in schema["x-kubernetes-group-version-kind"]
            .as_array()
            .into_iter()
            .flatten()
        {
            let part = |field: &str| kind[field].as_str().unwrap_or_default().to_lowercase();
            // as kubeconform's `KindSuffix` has it: the group's first word, none for the core
            let group = part("group");
            let group = group.split('.').next().unwrap_or_default();
            let dash = if group.is_empty() { "" } else { "-" };
            let file = format!("{}{dash}{group}-{}.json", part("kind"), part("version"));
            if WANTED.contains(&part("kind").as_str()) {
                let whole =
                    json!({"$ref": format!("#/definitions/{name}"), "definitions": definitions});
                fs::write(dir.path().join(file), whole.to_string()).unwrap();
            }
        }
    }
    let schemas = format!(
        "{}/{{{{.ResourceKind}}}}{{{{.KindSuffix}}}}.json",
        dir.path().display()
    );
    let installed =
        fs::read_to_string(Path::new(&setting("E2E_CHART")).join("install.yaml")).unwrap();
    for objects in [
        template(&[]),
        template(&["--set", "watchNamespaces={a,b}"]),
        template(&["-f", &setting("E2E_VALUES")]),
        installed,
    ] {
        program(
            "kubeconform",
            &["-summary", "-schema-location", &schemas, "-"],
            &objects,
        )
        .good();
    }
}

const WANTED: [&str; 16] = [
    "deployment",
    "service",
    "serviceaccount",
    "secret",
    "configmap",
    "persistentvolumeclaim",
    "networkpolicy",
    "role",
    "rolebinding",
    "clusterrole",
    "clusterrolebinding",
    "customresourcedefinition",
    "pod",
    "namespace",
    "lease",
    "event",
];

#[test]
#[ignore = "needs a cluster: make e2e"]
fn install_yaml_is_the_chart() {
    let dir = tempfile::tempdir().unwrap();
    let fresh = dir.path().join("install.yaml");
    let script = Path::new(&setting("E2E_CHART")).join("../install-yaml");
    program(script.to_str().unwrap(), &[fresh.to_str().unwrap()], "").good();
    let kept = Path::new(&setting("E2E_CHART")).join("install.yaml");
    assert!(
        fs::read(&fresh).unwrap() == fs::read(kept).unwrap(),
        "install.yaml is stale: run `make generate`"
    );
}

/// What the operator may do in a namespace, a line a verb, as the API server sees it.
fn rights(namespace: &str) -> BTreeSet<String> {
    let account = format!("--as=system:serviceaccount:{OPERATOR}:sandboxrun");
    let review = json!({"apiVersion": "authorization.k8s.io/v1", "kind": "SelfSubjectRulesReview",
        "spec": {"namespace": namespace}});
    let said = program(
        "kubectl",
        &[
            "create",
            "-f",
            "-",
            "-o",
            "json",
            "--validate=false",
            &account,
        ],
        &review.to_string(),
    )
    .good();
    let review: Value = serde_json::from_str(&said).unwrap();
    assert_eq!(review["status"]["incomplete"], false);
    let words = |rule: &Value, field: &str| -> Vec<String> {
        let list = rule[field].as_array().into_iter().flatten();
        list.map(|word| word.as_str().unwrap().to_owned()).collect()
    };
    let mut found = BTreeSet::new();
    for rule in review["status"]["resourceRules"].as_array().unwrap() {
        for group in words(rule, "apiGroups") {
            // what every account may: ask about itself
            if group == "authorization.k8s.io"
                || words(rule, "resources")
                    .iter()
                    .all(|what| what.starts_with("selfsubject"))
            {
                continue;
            }
            for resource in words(rule, "resources") {
                let names = words(rule, "resourceNames").join(",");
                let only = if names.is_empty() {
                    String::new()
                } else {
                    format!(" {names}")
                };
                let group = if group.is_empty() { "core" } else { &group };
                for verb in words(rule, "verbs") {
                    found.insert(format!("{verb} {group}/{resource}{only}"));
                }
            }
        }
    }
    found
}

/// The rows of a table of the chart's README: what is allowed, and where.
fn documented(column: &str) -> BTreeSet<String> {
    let readme = fs::read_to_string(Path::new(&setting("E2E_CHART")).join("README.md")).unwrap();
    let rows = readme.lines().filter_map(|line| line.strip_prefix("| `"));
    let mut found = BTreeSet::new();
    for row in rows {
        let cells: Vec<&str> = row.split(" | ").collect();
        let [resource, verbs, place, ..] = cells[..] else {
            continue;
        };
        if place.trim_end_matches(" |") == column {
            for verb in verbs.split(", ") {
                found.insert(format!("{verb} {}", resource.trim_end_matches('`')));
            }
        }
    }
    found
}

#[test]
#[ignore = "needs a cluster: make e2e"]
fn o05_the_operator_may_do_what_is_documented_and_nothing_else() {
    let space = Space::empty("rights");
    let runs = documented("namespaces with runs");
    assert_eq!(rights(space.name()), runs);
    let own: BTreeSet<_> = runs
        .union(&documented("its own namespace"))
        .cloned()
        .collect();
    assert_eq!(rights(OPERATOR), own);
    let default: BTreeSet<_> = runs
        .union(&documented("namespace default"))
        .cloned()
        .collect();
    assert_eq!(rights("default"), default);
    let account = format!("system:serviceaccount:{OPERATOR}:sandboxrun");
    for verb in ["list", "watch", "create", "delete"] {
        let said = kubectl(&["auth", "can-i", verb, "secrets", "-A", "--as", &account]);
        assert_eq!(said.out.trim(), "no", "{verb} secrets");
    }
}

#[test]
#[ignore = "needs a cluster: make e2e"]
fn helm_test_proves_that_policies_are_enforced() {
    let said = program(
        "helm",
        &["test", "sandboxrun", "-n", OPERATOR, "--timeout", "120s"],
        "",
    );
    assert!(said.ok, "{}{}", said.out, said.err);
}
