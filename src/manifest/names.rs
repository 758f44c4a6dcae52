//! Names, labels and annotations of what is made for a run: of any run, within the bounds of Kubernetes, never shared.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;

use super::Installation;
use crate::api::{Attempt, RunKey, RunUid, sha256_hex};

/// What begins with this is ours: no setting and no user gives labels or annotations of this prefix.
const RESERVED: &str = "sandboxrun.dev/";
/// On every pod of a run: the run's name as a label value. That it exists is what the network policy selects.
pub const RUN_LABEL: &str = "sandboxrun.dev/run";
/// On every pod of a run: the run's uid.
pub const UID_LABEL: &str = "sandboxrun.dev/uid";
/// On every pod of a run: the number of the attempt.
pub const ATTEMPT_LABEL: &str = "sandboxrun.dev/attempt";
/// On every pod of a run: the run's whole name.
pub const RUN_NAME_ANNOTATION: &str = "sandboxrun.dev/run-name";

/// Characters of a label value, and of a name that becomes a host name.
const MOST: usize = 63;
/// Hex digits of the hash in a shortened text: 64 bits, so that no two are ever the same by chance.
const HASH: usize = 16;

/// The name of the pod of an attempt. Made from uid and attempt alone, so it is never used twice.
#[must_use]
pub fn pod_name(uid: &RunUid, attempt: Attempt) -> String {
    let ending = format!("-{attempt}");
    // The uid of an API server has 36 characters, which leaves room for every attempt; others may be longer.
    let room = MOST.saturating_sub("sandboxrun-".len() + ending.len());
    format!("sandboxrun-{}{ending}", shortened(uid.as_str(), room))
}

/// A name as a label value: itself, or its beginning and a hash. No name becomes what another one is or becomes: what
/// is as long as a shortened one is shortened, too.
#[must_use]
pub fn label_value(name: &str) -> String {
    shortened(name, MOST)
}

/// A text of fewer than `most` characters, or exactly so many characters of its beginning and its hash.
fn shortened(text: &str, most: usize) -> String {
    if text.len() < most {
        return text.to_owned();
    }
    let hash = sha256_hex(text.as_bytes());
    let hash = hash.get(..HASH).unwrap_or(&hash);
    let head = text
        .get(..most.saturating_sub(HASH + 1))
        .unwrap_or_default();
    format!("{head}-{hash}")
}

/// The labels of a pod: the mesh opt-outs, what the installation adds, and ours, which win.
#[must_use]
pub fn pod_labels(
    key: &RunKey,
    attempt: Attempt,
    installation: &Installation,
) -> BTreeMap<String, String> {
    let ours = [
        ("app.kubernetes.io/managed-by", "sandboxrun".to_owned()),
        (RUN_LABEL, label_value(key.name.as_str())),
        (UID_LABEL, label_value(key.uid.as_str())),
        (ATTEMPT_LABEL, attempt.to_string()),
    ];
    together(MESH_LABELS, &installation.pod_labels, ours)
}

/// The annotations of a pod, likewise.
pub(super) fn pod_annotations(
    key: &RunKey,
    installation: &Installation,
) -> BTreeMap<String, String> {
    let ours = [
        (
            "kubectl.kubernetes.io/default-container",
            super::pod::AGENT.to_owned(),
        ),
        (RUN_NAME_ANNOTATION, key.name.to_string()),
    ];
    together(OPT_OUTS, &installation.pod_annotations, ours)
}

/// Service meshes whose webhook asks a label whether it may add its containers.
const MESH_LABELS: &[(&str, &str)] = &[
    ("sidecar.istio.io/inject", "false"),
    ("istio.io/dataplane-mode", "none"),
    ("kuma.io/sidecar-injection", "disabled"),
];

/// Service meshes that ask an annotation, and autoscalers that would move a pod whose agent starts at most once.
const OPT_OUTS: &[(&str, &str)] = &[
    ("sidecar.istio.io/inject", "false"),
    ("linkerd.io/inject", "disabled"),
    ("kuma.io/sidecar-injection", "disabled"),
    ("consul.hashicorp.com/connect-inject", "false"),
    ("cluster-autoscaler.kubernetes.io/safe-to-evict", "false"),
    ("karpenter.sh/do-not-disrupt", "true"),
];

fn together<const N: usize>(
    defaults: &[(&str, &str)],
    set: &BTreeMap<String, String>,
    ours: [(&str, String); N],
) -> BTreeMap<String, String> {
    let own = |(name, value): &(&str, &str)| ((*name).to_owned(), (*value).to_owned());
    let mut all: BTreeMap<String, String> = defaults.iter().map(own).collect();
    let set = set.iter().filter(|(name, _)| !name.starts_with(RESERVED));
    all.extend(set.map(|(name, value)| (name.clone(), value.clone())));
    all.extend(ours.map(|(name, value)| (name.to_owned(), value)));
    all
}

/// What makes a pod go with its run, and tells whose it is.
#[must_use]
pub fn owner(key: &RunKey) -> OwnerReference {
    OwnerReference {
        api_version: "sandboxrun.dev/v1alpha1".to_owned(),
        kind: "SandboxRun".to_owned(),
        name: key.name.to_string(),
        uid: key.uid.to_string(),
        controller: Some(true),
        block_owner_deletion: None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn is_label_value(text: &str) -> bool {
        let edge = |c: char| c.is_ascii_alphanumeric();
        text.len() <= 63
            && text.starts_with(edge)
            && text.ends_with(edge)
            && text
                .bytes()
                .all(|b| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.'))
    }

    #[test]
    fn a03_two_names_that_are_equal_in_the_first_63_are_told_apart() {
        let long = |last: &str| format!("{}{last}", "a.b-c".repeat(50));
        let (one, other) = (label_value(&long("x")), label_value(&long("y")));
        assert_ne!(one, other);
        assert_eq!(one.len(), 63);
        assert!(is_label_value(&one), "{one}");
        // A name that is written like a shortened one is another one.
        assert_ne!(label_value(&one), one);
        assert_eq!(label_value("nightly"), "nightly");
    }

    #[test]
    fn a03_the_name_of_a_pod_comes_from_uid_and_attempt() {
        let uid: RunUid = "0d2f9e0c-6a53-4a5a-9d3c-2f6c6f1f8a11".parse().unwrap();
        let last = Attempt::new(u32::MAX).unwrap();
        assert_eq!(
            pod_name(&uid, Attempt::FIRST),
            "sandboxrun-0d2f9e0c-6a53-4a5a-9d3c-2f6c6f1f8a11-1"
        );
        assert!(pod_name(&uid, last).len() <= 63);
    }

    proptest! {
        #[test]
        fn a03_names_never_collide_and_never_exceed(
            one in "[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?", other in "[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?",
            shared in "[a-z0-9][a-z0-9.-]{40,200}",
        ) {
            for (one, other) in [(one.clone(), other.clone()), (format!("{shared}{one}"), format!("{shared}{other}"))] {
                let (a, b) = (label_value(&one), label_value(&other));
                prop_assert!(is_label_value(&a), "{a}");
                prop_assert_eq!(a == b, one == other);
                prop_assert_ne!(label_value(&a) == a, a.len() == 63);
            }
        }

        #[test]
        fn a03_names_of_pods_never_collide_and_never_exceed(
            one in "[0-9a-f][0-9a-f-]{0,63}", other in "[0-9a-f][0-9a-f-]{0,63}", a in 1..=u32::MAX, b in 1..=u32::MAX,
        ) {
            let name = |uid: &str, attempt| pod_name(&uid.parse().unwrap(), Attempt::new(attempt).unwrap());
            prop_assert!(name(&one, a).len() <= 63 && name(&one, a).ends_with(|c: char| c.is_ascii_digit()));
            prop_assert_eq!(name(&one, a) == name(&one, b), a == b);
            prop_assert_eq!(name(&one, a) == name(&other, a), one == other);
        }
    }
}
