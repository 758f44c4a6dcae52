//! P13: what a webhook did to a pod between our sending it and the API server's keeping it. Pure.
//!
//! Compared are the parts that decide what runs, what it can see and what it may do. What the API server itself fills
//! in is not a change, and neither is where the pod runs and how much it may use: that is the cluster's to decide. A
//! rewritten image is told apart, since a mirror registry is a usual thing.

use std::collections::BTreeSet;

use k8s_openapi::api::core::v1::{Container, Pod};
use serde::Serialize;
use serde_json::{Map, Value};

use super::Installation;

/// Fields of a pod's spec that belong to the scheduler, to quotas and to the cluster.
const OF_THE_CLUSTER: &[&str] = &[
    "affinity",
    "imagePullSecrets",
    "nodeName",
    "nodeSelector",
    "overhead",
    "preemptionPolicy",
    "priority",
    "priorityClassName",
    "readinessGates",
    "resources",
    "schedulerName",
    "schedulingGates",
    "tolerations",
    "topologySpreadConstraints",
];
/// Fields of a pod's spec that are compared entry by entry.
const IN_PARTS: &[&str] = &[
    "containers",
    "initContainers",
    "ephemeralContainers",
    "volumes",
    "serviceAccount",
    "serviceAccountName",
];
/// Fields of a container that do not say what runs.
const OF_THE_KUBELET: &[&str] = &[
    "image",
    "imagePullPolicy",
    "resizePolicy",
    "resources",
    "terminationMessagePath",
    "terminationMessagePolicy",
];
/// Lists of a container that are compared entry by entry: the field, what an entry is called, the key of its name.
const LISTS: &[(&str, &str, &str)] = &[
    ("env", "env", "name"),
    ("volumeMounts", "mount", "mountPath"),
    ("volumeDevices", "device", "devicePath"),
    ("ports", "port", "containerPort"),
];

/// What was added, changed or taken away, but for what the installation accepts: each as a few words, such as
/// `container istio-proxy`, `env HTTP_PROXY of agent` or `securityContext of broker`.
#[must_use]
pub fn mutations(sent: &Pod, made: &Pod, installation: &Installation) -> Vec<String> {
    let mut found = BTreeSet::new();
    labels(sent, made, &mut found);
    let (sent, made) = (object(&sent.spec), object(&made.spec));
    fields(
        &sent,
        &made,
        &[OF_THE_CLUSTER, IN_PARTS].concat(),
        "",
        &mut found,
    );
    account(&made, &mut found);
    for (field, what) in [
        ("containers", "container"),
        ("initContainers", "init container"),
        ("ephemeralContainers", "ephemeral container"),
    ] {
        entries(
            &sent,
            &made,
            (field, what, "name"),
            "",
            &mut found,
            |one, other, name, found| {
                container(one, other, name, found);
            },
        );
    }
    entries(
        &sent,
        &made,
        ("volumes", "volume", "name"),
        "",
        &mut found,
        differ("volume", ""),
    );
    let accepted = &installation.accepted_mutations;
    let accepts = |words: &String| accepted.iter().any(|pattern| is_meant(pattern, words));
    found.into_iter().filter(|words| !accepts(words)).collect()
}

/// Containers whose image is another one than was sent: name, sent, found. Recorded, not refused.
#[must_use]
pub fn rewritten_images(sent: &Pod, made: &Pod) -> Vec<(String, String, String)> {
    let all = |pod: &Pod| -> Vec<Container> {
        let spec = pod.spec.clone().unwrap_or_default();
        let init = spec.init_containers.into_iter().flatten();
        init.chain(spec.containers).collect()
    };
    let sent = all(sent);
    let pairs = all(made).into_iter().filter_map(|found| {
        let was = sent.iter().find(|container| container.name == found.name)?;
        let (was, is) = (was.image.clone()?, found.image?);
        (was != is).then_some((found.name, was, is))
    });
    pairs.collect()
}

/// Whether an accepted change is this one: `env OTEL_*` means every such variable, of every container.
fn is_meant(pattern: &str, words: &str) -> bool {
    let of_any = words.split_once(" of ").map_or(words, |(what, _)| what);
    [words, of_any]
        .iter()
        .any(|words| match pattern.strip_suffix('*') {
            Some(beginning) => words.starts_with(beginning),
            None => *words == pattern,
        })
}

type Found = BTreeSet<String>;
type Fields = Map<String, Value>;

/// What selects the pod for our policy, and whose it is.
fn labels(sent: &Pod, made: &Pod, found: &mut Found) {
    for (name, value) in sent.metadata.labels.iter().flatten() {
        let kept = made.metadata.labels.iter().flatten();
        if !kept
            .into_iter()
            .any(|(other, kept)| other == name && kept == value)
        {
            found.insert(format!("label {name}"));
        }
    }
    if sent.metadata.owner_references != made.metadata.owner_references {
        found.insert("ownerReferences".to_owned());
    }
}

/// The account of the namespace that has no rights is the one that is filled in.
fn account(made: &Fields, found: &mut Found) {
    let name = made.get("serviceAccountName").and_then(Value::as_str);
    if name.is_some_and(|name| name != "default") {
        found.insert("serviceAccountName".to_owned());
    }
}

fn container(sent: &Fields, made: &Fields, name: &str, found: &mut Found) {
    let of = format!(" of {name}");
    let lists: Vec<&str> = LISTS.iter().map(|(field, ..)| *field).collect();
    fields(sent, made, &[OF_THE_KUBELET, &lists].concat(), &of, found);
    for (field, what, key) in LISTS {
        entries(
            sent,
            made,
            (field, what, key),
            &of,
            found,
            differ(what, &of),
        );
    }
}

/// Compares what is left of two objects, field by field.
fn fields(sent: &Fields, made: &Fields, without: &[&str], of: &str, found: &mut Found) {
    let names: BTreeSet<&String> = sent.keys().chain(made.keys()).collect();
    for name in names {
        let same = same(name, sent.get(name), made.get(name));
        if !without.contains(&name.as_str()) && !same {
            found.insert(format!("{name}{of}"));
        }
    }
}

/// Compares two lists whose entries have names.
fn entries(
    sent: &Fields,
    made: &Fields,
    (field, what, key): (&str, &str, &str),
    of: &str,
    found: &mut Found,
    mut compare: impl FnMut(&Fields, &Fields, &str, &mut Found),
) {
    let list = |fields: &Fields| -> Vec<(String, Fields)> {
        let list = fields.get(field).and_then(Value::as_array);
        let objects = list.into_iter().flatten().filter_map(Value::as_object);
        objects
            .map(|entry| (name_of(entry, key), entry.clone()))
            .collect()
    };
    let (sent, made) = (list(sent), list(made));
    let of_name = |list: &[(String, Fields)], name: &str| -> Vec<Fields> {
        let same = list.iter().filter(|(other, _)| other == name);
        same.map(|(_, entry)| entry.clone()).collect()
    };
    let names: BTreeSet<&String> = sent.iter().chain(&made).map(|(name, _)| name).collect();
    for name in names {
        // Two of one name: the later one counts, and which that is cannot be told.
        match (
            of_name(&sent, name).as_slice(),
            of_name(&made, name).as_slice(),
        ) {
            ([one], [other]) => compare(one, other, name, found),
            _ => {
                found.insert(format!("{what} {name}{of}"));
            }
        }
    }
    // What is added is told above. The order counts where one is mounted over, or refers to, another.
    let order = |list: &[(String, Fields)]| -> Vec<String> {
        let once =
            |name: &&String| of_name(&sent, name).len() == 1 && of_name(&made, name).len() == 1;
        list.iter()
            .map(|(name, _)| name)
            .filter(once)
            .cloned()
            .collect()
    };
    if order(&made) != order(&sent) {
        found.insert(format!("order of {field}{of}"));
    }
}

/// Entries that are compared as a whole.
fn differ(what: &str, of: &str) -> impl FnMut(&Fields, &Fields, &str, &mut Found) {
    let (what, of) = (what.to_owned(), of.to_owned());
    move |one, other, name, found| {
        let (one, other) = (Value::from(one.clone()), Value::from(other.clone()));
        if !same("", Some(&one), Some(&other)) {
            found.insert(format!("{what} {name}{of}"));
        }
    }
}

fn name_of(entry: &Fields, key: &str) -> String {
    match entry.get(key) {
        Some(Value::String(name)) => name.clone(),
        Some(other) => other.to_string(),
        None => String::new(),
    }
}

/// Whether two values are the same but for what the API server fills in.
fn same(field: &str, sent: Option<&Value>, made: Option<&Value>) -> bool {
    match (sent, made) {
        (None, None) => true,
        (None, Some(made)) => is_default(field, made),
        // A `false` that is gone may mean `true`, but for those that the API server drops itself.
        (Some(Value::Bool(false)), None) => DROPPED.contains(&field),
        (Some(sent), None) => is_empty(sent),
        (Some(Value::Object(sent)), Some(Value::Object(made))) => {
            let names: BTreeSet<&String> = sent.keys().chain(made.keys()).collect();
            names
                .into_iter()
                .all(|name| same(name, sent.get(name), made.get(name)))
        }
        (Some(Value::Array(sent)), Some(Value::Array(made))) => {
            sent.len() == made.len()
                && sent
                    .iter()
                    .zip(made)
                    .all(|(one, other)| same("", Some(one), Some(other)))
        }
        (Some(Value::String(sent)), Some(Value::String(made))) if field == "sizeLimit" => {
            // The API server writes an amount in its own way.
            let amount = |text: &str| text.parse::<crate::api::Quantity>().ok();
            sent == made || (amount(sent).is_some() && amount(sent) == amount(made))
        }
        (Some(sent), Some(made)) => sent == made,
    }
}

/// Fields whose `false` an API server does not keep, since absent means the same.
const DROPPED: &[&str] = &["hostNetwork", "hostPID", "hostIPC", "readOnly"];

fn is_empty(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::Array(list) => list.is_empty(),
        Value::Object(fields) => fields.values().all(is_empty),
        Value::String(text) => text.is_empty(),
        Value::Bool(_) | Value::Number(_) => false,
    }
}

/// What an API server writes where nothing was said, or what means the same as nothing.
fn is_default(field: &str, value: &Value) -> bool {
    match (field, value) {
        (_, Value::Null | Value::Bool(false)) => true,
        (_, Value::Array(list)) => list.is_empty(),
        (_, Value::Object(fields)) => fields.iter().all(|(name, value)| is_default(name, value)),
        ("procMount", Value::String(text)) => text == "Default",
        ("recursiveReadOnly", Value::String(text)) => text == "Disabled",
        ("protocol", Value::String(text)) => text == "TCP",
        (_, Value::String(text)) => text.is_empty(),
        (_, Value::Number(_) | Value::Bool(true)) => false,
    }
}

fn object(value: &impl Serialize) -> Fields {
    match serde_json::to_value(value) {
        Ok(Value::Object(fields)) => fields,
        Ok(_) | Err(_) => Fields::new(),
    }
}
