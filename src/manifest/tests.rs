//! What pods and policies look like, and what they never are.

#![allow(clippy::too_many_lines, reason = "tables")]

use std::collections::BTreeMap;
use std::time::Duration;

use k8s_openapi::api::core::v1::{Container, EnvVar, Pod, Volume, VolumeMount};
use k8s_openapi::api::networking::v1::NetworkPolicy;
use proptest::prelude::*;
use rstest::rstest;
use serde_json::{Value, json};

use super::*;
use crate::api::{Attempt, Fault as _, InputName, Reason, RunKey, RunSpec, SandboxRunSpec, layout};

fn installation(patch: &Value) -> Installation {
    let mut all = json!({"podImage": "registry.example.com/sandboxrun-pod@sha256:0123"});
    for (field, value) in patch.as_object().into_iter().flatten() {
        all[field] = value.clone();
    }
    serde_json::from_value(all).unwrap()
}

fn gateway() -> Gateway {
    Gateway {
        address: "10.96.12.34:8443".parse().unwrap(),
        ca: "-----BEGIN CERTIFICATE-----\nMIIB\n-----END CERTIFICATE-----\n".to_owned(),
    }
}

fn key(name: &str) -> RunKey {
    RunKey {
        namespace: "team-a".parse().unwrap(),
        name: name.parse().unwrap(),
        uid: "0d2f9e0c-6a53-4a5a-9d3c-2f6c6f1f8a11".parse().unwrap(),
    }
}

fn spec(spec: Value) -> RunSpec {
    let spec: SandboxRunSpec = serde_json::from_value(spec).unwrap();
    RunSpec::parse(&spec).unwrap()
}

fn small() -> RunSpec {
    spec(json!({"agent": {"image": "agent:1", "command": ["true"]}}))
}

/// A run that uses everything that shapes a pod.
fn whole() -> RunSpec {
    spec(json!({
        "inputs": [
            {"name": "app", "repository": "https://git.example.com/acme/app.git"},
            {"name": "lib", "repository": "acme/lib", "connector": "forge", "path": "libs/lib", "readOnly": true, "fetch": "None"},
        ],
        "agent": {
            "image": "registry.example.com/team/agent:1.2",
            "command": ["sh", "-c"], "args": ["echo $(hostname) $$ $HOME"],
            "env": [{"name": "MODE", "value": "fast"}, {"name": "LITERAL", "value": "$(MODE)"}, {"name": "GIT_TERMINAL_PROMPT", "value": "1"}],
            "scratch": ["/var/cache", "/opt/build"], "timeout": "1h", "runAsUser": 65532,
            "imagePullSecrets": [{"name": "pull"}],
            "resources": {"requests": {"cpu": "500m"}, "limits": {"memory": "8Gi", "nvidia.com/gpu": "1"}},
        },
        "policy": {"runtimeClassName": "gvisor"},
        "workspace": {"size": "20Gi"},
        "scheduling": {
            "nodeSelector": {"kubernetes.io/arch": "arm64"}, "priorityClassName": "agents", "startTimeout": "30m",
            "tolerations": [{"key": "pool", "value": "agents", "effect": "NoExecute", "tolerationSeconds": 60}],
        },
    }))
}

fn made(spec: &RunSpec, installation: &Installation) -> Pod {
    let origins = spec.inputs.iter().map(|input| {
        let address = format!("https://git.example.com/acme/{}.git", input.name);
        (input.name.clone(), address)
    });
    let origins: BTreeMap<InputName, String> = origins.collect();
    let key = key("nightly");
    let run = ResolvedRun {
        key: &key,
        spec,
        origins: &origins,
    };
    pod(&run, Attempt::FIRST, installation, &gateway())
}

/// The words that a pod gives to the program are words that the program takes.
#[test]
fn the_pod_program_understands_its_commands() {
    use clap::Parser as _;
    for spec in [small(), whole()] {
        let pod = made(&spec, &installation(&json!({})));
        for container in containers(&pod) {
            let command = container.command.as_ref().unwrap();
            let parsed = crate::pod::Cli::try_parse_from(command);
            assert!(parsed.is_ok(), "{}: {:?}", container.name, parsed.err());
        }
    }
}

fn containers(pod: &Pod) -> Vec<&Container> {
    let spec = pod.spec.as_ref().unwrap();
    let init = spec.init_containers.iter().flatten();
    init.chain(&spec.containers).collect()
}

fn container<'a>(pod: &'a Pod, name: &str) -> &'a Container {
    let mut all = containers(pod).into_iter();
    all.find(|container| container.name == name).unwrap()
}

#[test]
fn the_pod_of_a_small_run() {
    insta::assert_yaml_snapshot!(made(&small(), &installation(&json!({}))));
}

#[test]
fn the_pod_of_a_run_that_uses_everything() {
    let set = json!({
        "podImagePullPolicy": "Always", "podImagePullSecrets": ["ours", "pull"],
        "podAnnotations": {"example.com/mesh": "off", "sandboxrun.dev/run-name": "forged"},
        "podLabels": {"team": "agents", "sandboxrun.dev/run": "forged"},
        "waits": {"proof": "5s", "repeat": "1s", "grace": "2s", "collect": "10s", "report": "5s"}, "terminationGrace": "20s", "tokenLifetime": "10m",
    });
    insta::assert_yaml_snapshot!(made(&whole(), &installation(&set)));
}

#[test]
fn the_policy_of_a_namespace() {
    let namespace = "team-a".parse().unwrap();
    insta::assert_yaml_snapshot!(network_policy(
        &namespace,
        &installation(&json!({})),
        &gateway()
    ));
}

/// O05, as far as a pod says it: what the restricted Pod Security Standard asks for.
#[rstest]
#[case::small(small())]
#[case::whole(whole())]
fn o05_every_pod_is_restricted(#[case] spec: RunSpec) {
    let pod = made(&spec, &installation(&json!({})));
    let all = pod.spec.as_ref().unwrap();
    assert_eq!(all.automount_service_account_token, Some(false));
    assert_eq!(all.enable_service_links, Some(false));
    assert_eq!(all.restart_policy.as_deref(), Some("Never"));
    assert_eq!(
        (all.host_network, all.host_pid, all.host_ipc),
        (Some(false), Some(false), Some(false))
    );
    for container in containers(&pod) {
        let name = &container.name;
        let security = container.security_context.as_ref().unwrap();
        assert_eq!(security.allow_privilege_escalation, Some(false), "{name}");
        assert_eq!(security.run_as_non_root, Some(true), "{name}");
        assert_eq!(security.read_only_root_filesystem, Some(true), "{name}");
        assert_ne!(security.run_as_user, Some(0), "{name}");
        assert_eq!(
            security.seccomp_profile.as_ref().unwrap().type_,
            "RuntimeDefault",
            "{name}"
        );
        let capabilities = security.capabilities.as_ref().unwrap();
        assert_eq!(
            capabilities.drop.as_deref(),
            Some(["ALL".to_owned()].as_slice()),
            "{name}"
        );
        assert_eq!(capabilities.add, None, "{name}");
        assert!(
            container.startup_probe.is_none() && container.lifecycle.is_none(),
            "{name}"
        );
        for amounts in [
            &container.resources.as_ref().unwrap().requests,
            &container.resources.as_ref().unwrap().limits,
        ] {
            for resource in ["cpu", "memory", "ephemeral-storage"] {
                assert!(
                    amounts.as_ref().unwrap().contains_key(resource),
                    "{name} has no {resource}"
                );
            }
        }
    }
    for volume in all.volumes.iter().flatten() {
        match (&volume.empty_dir, &volume.projected) {
            (Some(dir), None) => assert!(dir.size_limit.is_some(), "{}", volume.name),
            (None, Some(_)) => assert_eq!(volume.name, "token"),
            _ => panic!("{} is of another kind", volume.name),
        }
    }
}

/// V01: git finds no dubious owner, since all three containers are one user, and no group is changed behind its back.
#[test]
fn v01_one_user_for_all_containers_and_no_fs_group() {
    let pod = made(&whole(), &installation(&json!({})));
    let security = pod
        .spec
        .as_ref()
        .unwrap()
        .security_context
        .as_ref()
        .unwrap();
    assert_eq!(security.fs_group, None);
    assert_eq!(security.run_as_user, Some(65532));
    for container in containers(&pod) {
        let own = container.security_context.as_ref().unwrap();
        assert_eq!(
            (own.run_as_user, own.run_as_group),
            (Some(65532), Some(65532))
        );
    }
}

#[test]
fn token_and_baseline_are_out_of_the_agents_reach_and_our_program_is_read_only() {
    let pod = made(&whole(), &installation(&json!({})));
    let agent = container(&pod, AGENT);
    let mounts: Vec<&VolumeMount> = agent.volume_mounts.iter().flatten().collect();
    assert!(
        mounts
            .iter()
            .all(|mount| mount.name != "token" && mount.name != "baseline")
    );
    let program = mounts.iter().find(|mount| mount.name == "program").unwrap();
    assert_eq!(program.read_only, Some(true));
    let lib = mounts
        .iter()
        .find(|mount| mount.mount_path == "/workspace/libs/lib")
        .unwrap();
    assert_eq!(
        (lib.read_only, lib.sub_path.as_deref()),
        (Some(true), Some("libs/lib"))
    );
    let text = serde_json::to_string(agent).unwrap();
    assert!(!text.contains("CERTIFICATE") && !text.contains(layout::TOKEN_FILE));
}

#[test]
fn what_a_run_says_reaches_its_agent_letter_by_letter() {
    let pod = made(&whole(), &installation(&json!({})));
    let agent = container(&pod, AGENT);
    // As the kubelet does it: `$$` is one dollar, `$(A)` the value of A.
    let command = agent.command.as_ref().unwrap();
    assert_eq!(command.last().unwrap(), "echo $$(hostname) $$$$ $$HOME");
    let env: BTreeMap<&str, &str> = agent
        .env
        .iter()
        .flatten()
        .map(|var| (var.name.as_str(), var.value.as_deref().unwrap()))
        .collect();
    assert_eq!(env["LITERAL"], "$$(MODE)");
    assert_eq!(env["GIT_TERMINAL_PROMPT"], "1");
    assert_eq!(env["HOME"], "/home/agent");
    assert_eq!(env["GIT_CONFIG_COUNT"], "1", "only `app` may be fetched");
    assert_eq!(
        env.len(),
        agent.env.as_ref().unwrap().len(),
        "each name once"
    );
}

#[test]
fn p09_the_deadline_is_the_sum_and_the_agent_keeps_its_minute() {
    let run = json!({"agent": {"image": "a", "command": ["true"], "timeout": "1m"}, "scheduling": {"startTimeout": "10m"}});
    let pod = made(&spec(run), &installation(&json!({})));
    // Start, agent, drift, and a minute for the kubelet.
    let all = pod.spec.as_ref().unwrap();
    assert_eq!(all.active_deadline_seconds, Some(600 + 60 + 150 + 60));
    assert_eq!(all.termination_grace_period_seconds, Some(150));
}

/// A07: the largest run that the rules let through makes an object that an API server takes (1.5 MiB), and every name
/// in it is one.
#[test]
fn a07_the_largest_run_makes_a_pod_that_fits() {
    let text = |character: &str, length: usize| character.repeat(length);
    let inputs: Vec<Value> = (0..16)
        .map(|at| json!({"name": format!("{}{at:02}", text("i", 38)), "repository": format!("https://h/{}", text("r", 2000)), "path": format!("{}{at:02}", text("p", 250)), "readOnly": true}))
        .collect();
    let scratch: Vec<String> = (0..16)
        .map(|at| format!("/{}{at:02}", text("s", 250)))
        .collect();
    let run = json!({"inputs": inputs, "agent": {"image": text("a", 1024), "command": [text("c", 65_536)], "scratch": scratch}});
    let pod = made(&spec(run), &installation(&json!({})));
    assert!(serde_json::to_vec(&pod).unwrap().len() < 1 << 20);
    for volume in pod.spec.as_ref().unwrap().volumes.iter().flatten() {
        assert!(volume.name.len() <= 63);
    }
}

#[test]
fn a03_reserved_labels_are_ours_alone() {
    let set = json!({"podLabels": {"sandboxrun.dev/run": "forged", "sandboxrun.dev/x": "y", "team": "a", "app.kubernetes.io/managed-by": "helm"}});
    let labels = pod_labels(&key("nightly"), Attempt::FIRST, &installation(&set));
    assert_eq!(labels[RUN_LABEL], "nightly");
    assert_eq!(labels["app.kubernetes.io/managed-by"], "sandboxrun");
    assert_eq!(labels["team"], "a");
    assert!(!labels.contains_key("sandboxrun.dev/x"));
}

/// G05: the label that the policy selects is on every pod, and the gateway is allowed by pod and by address.
#[test]
fn g05_the_policy_selects_every_pod_of_a_run_and_names_the_gateway_twice() {
    let policy = ours();
    let spec = policy.spec.as_ref().unwrap();
    let wanted = &spec
        .pod_selector
        .as_ref()
        .unwrap()
        .match_expressions
        .as_ref()
        .unwrap()[0];
    let pod = made(&small(), &installation(&json!({})));
    assert!(pod.metadata.labels.unwrap().contains_key(&wanted.key));
    let rules = spec.egress.as_ref().unwrap();
    let peers: Vec<_> = rules
        .iter()
        .flat_map(|rule| rule.to.iter().flatten())
        .collect();
    assert!(peers[0].pod_selector.is_some() && peers[0].namespace_selector.is_some());
    assert_eq!(peers[1].ip_block.as_ref().unwrap().cidr, "10.96.12.34/32");
    assert!(
        rules
            .iter()
            .all(|rule| rule.ports.as_ref().is_some_and(|ports| ports.len() == 1))
    );
    let six = Gateway {
        address: "[fd00::1]:8443".parse().unwrap(),
        ca: String::new(),
    };
    let policy = network_policy(&"a".parse().unwrap(), &installation(&json!({})), &six);
    assert!(
        serde_json::to_string(&policy)
            .unwrap()
            .contains("fd00::1/128")
    );
    let run = small();
    let key = key("a");
    let run = ResolvedRun {
        key: &key,
        spec: &run,
        origins: &BTreeMap::new(),
    };
    let made = super::pod(&run, Attempt::FIRST, &installation(&json!({})), &six);
    assert!(
        container(&made, BROKER)
            .command
            .as_ref()
            .unwrap()
            .contains(&"https://[fd00::1]:8443".to_owned())
    );
}

fn ours() -> NetworkPolicy {
    network_policy(
        &"team-a".parse().unwrap(),
        &installation(&json!({})),
        &gateway(),
    )
}

#[test]
fn a_policy_that_was_edited_is_seen() {
    let kept = |patch: Value| -> NetworkPolicy {
        let mut policy = serde_json::to_value(ours()).unwrap();
        for (pointer, value) in patch.as_object().unwrap() {
            let (parent, last) = pointer.rsplit_once('/').unwrap();
            policy.pointer_mut(parent).unwrap()[last] = value.clone();
        }
        serde_json::from_value(policy).unwrap()
    };
    assert!(!policy_differs(&ours(), &ours()));
    // What an API server and a reader make of it.
    assert!(!policy_differs(
        &ours(),
        &kept(
            json!({"/spec/ingress": [], "/metadata/uid": "x", "/metadata/labels": {}, "/spec/policyTypes": ["Egress", "Ingress"]})
        )
    ));
    for edit in [
        json!({"/spec/egress": [{}]}),
        json!({"/spec/ingress": [{}]}),
        json!({"/spec/egress": []}),
        json!({"/spec/policyTypes": ["Ingress"]}),
        json!({"/spec/podSelector": {}}),
    ] {
        assert!(policy_differs(&ours(), &kept(edit.clone())), "{edit}");
    }
}

#[rstest]
#[case::dns_for_all(json!({"podSelector": {}, "policyTypes": ["Egress"], "egress": [{"ports": [{"port": 53}]}]}), Some("egress"))]
#[case::types_are_implied(json!({"podSelector": {}, "egress": [{}]}), Some("egress"))]
#[case::no_selector(json!({"egress": [{}]}), Some("egress"))]
#[case::ingress_for_all(json!({"podSelector": {}, "ingress": [{}]}), Some("ingress"))]
#[case::both(json!({"podSelector": {}, "ingress": [{}], "egress": [{}]}), Some("egress and ingress"))]
#[case::by_our_own_label(json!({"podSelector": {"matchLabels": {"sandboxrun.dev/run": "nightly"}}, "egress": [{}]}), Some("egress"))]
#[case::by_what_it_is_not(json!({"podSelector": {"matchExpressions": [{"key": "app", "operator": "NotIn", "values": ["db"]}]}, "egress": [{}]}), Some("egress"))]
#[case::an_operator_of_tomorrow(json!({"podSelector": {"matchExpressions": [{"key": "app", "operator": "Like", "values": ["x"]}]}, "egress": [{}]}), Some("egress"))]
#[case::deny_all(json!({"podSelector": {}, "policyTypes": ["Ingress", "Egress"]}), None)]
#[case::rules_without_their_type(json!({"podSelector": {}, "policyTypes": ["Ingress"], "egress": [{}]}), None)]
#[case::other_pods(json!({"podSelector": {"matchLabels": {"app": "web"}}, "egress": [{}]}), None)]
#[case::other_pods_by_list(json!({"podSelector": {"matchExpressions": [{"key": "app", "operator": "In", "values": ["web"]}]}, "egress": [{}]}), None)]
#[case::the_cure(json!({"podSelector": {"matchExpressions": [{"key": "sandboxrun.dev/run", "operator": "DoesNotExist"}]}, "egress": [{}]}), None)]
fn g04_a_second_policy_that_opens_more_is_named(#[case] other: Value, #[case] what: Option<&str>) {
    let other = json!({"metadata": {"name": "allow-dns"}, "spec": other});
    let other: NetworkPolicy = serde_json::from_value(other).unwrap();
    let labels = pod_labels(&key("nightly"), Attempt::FIRST, &installation(&json!({})));
    let found = opens_more([&ours(), &other], &labels);
    assert_eq!(found.as_ref().map(|opening| opening.what), what);
    if let Some(opening) = found {
        assert_eq!(opening.reason(), Reason::PolicyOpened);
        assert_eq!(
            opening.to_string(),
            format!(
                "NetworkPolicy allow-dns selects pods of runs and opens {}, and policies add up: let its podSelector leave them out, with matchExpressions: [{{key: sandboxrun.dev/run, operator: DoesNotExist}}]",
                opening.what
            )
        );
    }
}

/// What a plain API server (1.34) makes of a pod.
fn kept(mut pod: Pod) -> Pod {
    let spec = pod.spec.as_mut().unwrap();
    spec.host_network = None;
    spec.host_pid = None;
    spec.host_ipc = None;
    spec.service_account = Some("default".to_owned());
    spec.service_account_name = Some("default".to_owned());
    spec.scheduler_name = Some("default-scheduler".to_owned());
    spec.priority = Some(0);
    spec.preemption_policy = Some("PreemptLowerPriority".to_owned());
    spec.node_name = Some("node-1".to_owned());
    spec.tolerations = Some(Vec::new());
    pod.metadata.uid = Some("u".to_owned());
    for container in spec
        .init_containers
        .iter_mut()
        .flatten()
        .chain(&mut spec.containers)
    {
        container.image_pull_policy = Some("IfNotPresent".to_owned());
        for var in container.env.iter_mut().flatten() {
            var.value = var.value.take().filter(|value| !value.is_empty());
        }
    }
    let mut spec = serde_json::to_value(&pod).unwrap();
    for volume in spec["spec"]["volumes"].as_array_mut().unwrap() {
        if volume["emptyDir"]["sizeLimit"] == "2Gi" {
            volume["emptyDir"]["sizeLimit"] = json!("2048Mi");
        }
    }
    serde_json::from_value(spec).unwrap()
}

#[test]
fn p13_what_an_api_server_fills_in_is_no_change() {
    for run in [small(), whole()] {
        let installation = installation(&json!({}));
        let sent = made(&run, &installation);
        assert_eq!(mutations(&sent, &sent, &installation), Vec::<String>::new());
        assert_eq!(
            mutations(&sent, &kept(sent.clone()), &installation),
            Vec::<String>::new()
        );
    }
}

type Change = fn(&mut Pod);

fn agent_of(pod: &mut Pod) -> &mut Container {
    &mut pod.spec.as_mut().unwrap().containers[0]
}

fn var(name: &str) -> EnvVar {
    EnvVar {
        name: name.to_owned(),
        value: Some("x".to_owned()),
        value_from: None,
    }
}

#[rstest]
#[case::a_sidecar(|pod: &mut Pod| pod.spec.as_mut().unwrap().containers.push(Container { name: "istio-proxy".to_owned(), ..Container::default() }), "container istio-proxy")]
#[case::an_init_container(|pod: &mut Pod| pod.spec.as_mut().unwrap().init_containers.as_mut().unwrap().insert(0, Container { name: "linkerd-init".to_owned(), ..Container::default() }), "init container linkerd-init")]
#[case::the_broker_is_gone(|pod: &mut Pod| drop(pod.spec.as_mut().unwrap().init_containers.as_mut().unwrap().pop()), "init container broker")]
#[case::an_order(|pod: &mut Pod| pod.spec.as_mut().unwrap().init_containers.as_mut().unwrap().reverse(), "order of initContainers")]
#[case::a_variable(|pod: &mut Pod| agent_of(pod).env.as_mut().unwrap().push(var("HTTP_PROXY_TOKEN")), "env HTTP_PROXY_TOKEN of agent")]
#[case::a_variable_again(|pod: &mut Pod| agent_of(pod).env.as_mut().unwrap().push(var("HOME")), "env HOME of agent")]
#[case::a_variables_value(|pod: &mut Pod| agent_of(pod).env.as_mut().unwrap()[0].value = Some("/root".to_owned()), "env HOME of agent")]
#[case::variables_of_a_secret(|pod: &mut Pod| agent_of(pod).env_from = Some(vec![k8s_openapi::api::core::v1::EnvFromSource { prefix: Some("X".to_owned()), ..Default::default() }]), "envFrom of agent")]
#[case::a_volume(|pod: &mut Pod| pod.spec.as_mut().unwrap().volumes.as_mut().unwrap().push(Volume { name: "vault".to_owned(), ..Volume::default() }), "volume vault")]
#[case::another_volume_behind_the_name(|pod: &mut Pod| { let volume = &mut pod.spec.as_mut().unwrap().volumes.as_mut().unwrap()[0]; volume.empty_dir = None; volume.host_path = Some(k8s_openapi::api::core::v1::HostPathVolumeSource { path: "/".to_owned(), type_: None }); }, "volume workspace")]
#[case::a_mount(|pod: &mut Pod| agent_of(pod).volume_mounts.as_mut().unwrap().push(VolumeMount { name: "token".to_owned(), mount_path: "/t".to_owned(), ..VolumeMount::default() }), "mount /t of agent")]
#[case::a_mount_made_writable(|pod: &mut Pod| for mount in agent_of(pod).volume_mounts.as_mut().unwrap() { if mount.name == "program" { mount.read_only = None; } }, "mount /sandboxrun of agent")]
#[case::a_command(|pod: &mut Pod| agent_of(pod).command.as_mut().unwrap().insert(0, "/wrap".to_owned()), "command of agent")]
#[case::arguments(|pod: &mut Pod| agent_of(pod).args = Some(vec!["x".to_owned()]), "args of agent")]
#[case::a_hook(|pod: &mut Pod| agent_of(pod).lifecycle = serde_json::from_value(json!({"postStart": {"exec": {"command": ["x"]}}})).unwrap(), "lifecycle of agent")]
#[case::a_probe_that_runs_something(|pod: &mut Pod| agent_of(pod).liveness_probe = serde_json::from_value(json!({"exec": {"command": ["x"]}})).unwrap(), "livenessProbe of agent")]
#[case::privilege(|pod: &mut Pod| agent_of(pod).security_context.as_mut().unwrap().privileged = Some(true), "securityContext of agent")]
#[case::a_false_taken_away(|pod: &mut Pod| agent_of(pod).security_context.as_mut().unwrap().allow_privilege_escalation = None, "securityContext of agent")]
#[case::a_capability(|pod: &mut Pod| agent_of(pod).security_context.as_mut().unwrap().capabilities.as_mut().unwrap().add = Some(vec!["NET_RAW".to_owned()]), "securityContext of agent")]
#[case::a_group(|pod: &mut Pod| pod.spec.as_mut().unwrap().security_context.as_mut().unwrap().fs_group = Some(1), "securityContext")]
#[case::the_host_network(|pod: &mut Pod| pod.spec.as_mut().unwrap().host_network = Some(true), "hostNetwork")]
#[case::service_links(|pod: &mut Pod| pod.spec.as_mut().unwrap().enable_service_links = None, "enableServiceLinks")]
#[case::a_token(|pod: &mut Pod| pod.spec.as_mut().unwrap().automount_service_account_token = Some(true), "automountServiceAccountToken")]
#[case::an_account(|pod: &mut Pod| pod.spec.as_mut().unwrap().service_account_name = Some("admin".to_owned()), "serviceAccountName")]
#[case::dns(|pod: &mut Pod| pod.spec.as_mut().unwrap().dns_policy = Some("ClusterFirst".to_owned()), "dnsPolicy")]
#[case::no_runtime_class(|pod: &mut Pod| pod.spec.as_mut().unwrap().runtime_class_name = None, "runtimeClassName")]
#[case::no_deadline(|pod: &mut Pod| pod.spec.as_mut().unwrap().active_deadline_seconds = None, "activeDeadlineSeconds")]
#[case::no_label(|pod: &mut Pod| drop(pod.metadata.labels.as_mut().unwrap().remove(RUN_LABEL)), "label sandboxrun.dev/run")]
#[case::no_owner(|pod: &mut Pod| pod.metadata.owner_references = None, "ownerReferences")]
fn p13_a_change_by_a_webhook_is_named(#[case] change: Change, #[case] what: &str) {
    let installation_ = installation(&json!({}));
    let sent = made(&whole(), &installation_);
    let mut found = kept(sent.clone());
    change(&mut found);
    assert_eq!(mutations(&sent, &found, &installation_), [what]);
    let accepts = |pattern: &str| installation(&json!({"acceptedMutations": [pattern]}));
    assert_eq!(
        mutations(&sent, &found, &accepts(what)),
        Vec::<String>::new()
    );
    assert_eq!(mutations(&sent, &found, &accepts("env OTHER_*")), [what]);
}

#[test]
fn p13_an_accepted_change_may_be_meant_for_every_container() {
    let accepting = installation(&json!({"acceptedMutations": ["env OTEL_*", "volume vault"]}));
    let sent = made(&small(), &accepting);
    let mut found = kept(sent.clone());
    agent_of(&mut found)
        .env
        .as_mut()
        .unwrap()
        .extend([var("OTEL_A"), var("OTHER")]);
    assert_eq!(mutations(&sent, &found, &accepting), ["env OTHER of agent"]);
}

#[test]
fn p13_a_rewritten_image_is_recorded_and_not_refused() {
    let installation = installation(&json!({}));
    let sent = made(&small(), &installation);
    let mut found = kept(sent.clone());
    agent_of(&mut found).image = Some("mirror.example.com/agent:1".to_owned());
    assert_eq!(
        mutations(&sent, &found, &installation),
        Vec::<String>::new()
    );
    let was = (
        "agent".to_owned(),
        "agent:1".to_owned(),
        "mirror.example.com/agent:1".to_owned(),
    );
    assert_eq!(rewritten_images(&sent, &found), [was]);
    assert_eq!(rewritten_images(&sent, &sent), []);
}

#[rstest]
#[case::runtime_class(json!({"runtimeClasses": ["kata"]}), "spec.policy.runtimeClassName: gvisor is not allowed here: write kata")]
#[case::no_runtime_class(json!({"runtimeClasses": []}), "spec.policy.runtimeClassName: cannot be set here: remove it")]
#[case::priority(json!({"priorityClasses": ["low", "lower"]}), "spec.scheduling.priorityClassName: agents is not allowed here: write one of low, lower")]
#[case::image(json!({"imagePrefixes": ["registry.example.com/tea", "other.example.com/"]}), "spec.agent.image: must begin with what is allowed here: write one of registry.example.com/tea, other.example.com/")]
#[case::label(json!({"nodeSelectorLabels": ["pool"]}), "spec.scheduling.nodeSelector: kubernetes.io/arch is not allowed here: write pool")]
#[case::toleration(json!({"tolerationKeys": []}), "spec.scheduling.tolerations[0].key: cannot be set here: remove it")]
#[case::memory(json!({"maxResources": {"memory": "4Gi", "cpu": "4"}}), "spec.agent.resources.requests.memory: is 8Gi, and at most 4Gi is allowed here; spec.agent.resources.limits.memory: is 8Gi, and at most 4Gi is allowed here")]
#[case::a_gpu(json!({"maxResources": {"memory": "8Gi", "cpu": "4"}, "onlyListedResources": true}), "spec.agent.resources.requests.nvidia.com/gpu: cannot be asked for here; spec.agent.resources.limits.nvidia.com/gpu: cannot be asked for here")]
#[case::workspace(json!({"maxWorkspaceSize": "10Gi"}), "spec.workspace.size: is 20Gi, and at most 10Gi is allowed here")]
#[case::timeout(json!({"maxTimeout": "30m"}), "spec.agent.timeout: is 1h, and at most 30m is allowed here")]
#[case::start(json!({"maxStartTimeout": "90s"}), "spec.scheduling.startTimeout: is 30m, and at most 90s is allowed here")]
#[case::retries(json!({"maxInfrastructureRetries": 1}), "spec.infrastructureRetries: is 2, and at most 1 is allowed here")]
fn what_is_above_a_limit_is_refused_with_field_and_bound(
    #[case] limits: Value,
    #[case] message: &str,
) {
    let mut all = json!({"priorityClasses": null, "tolerationKeys": null});
    assert_eq!(
        within_limits(&whole(), &installation(&json!({"limits": all}))),
        Ok(())
    );
    for (field, value) in limits.as_object().unwrap() {
        all[field] = value.clone();
    }
    let refused = within_limits(&whole(), &installation(&json!({"limits": all}))).unwrap_err();
    assert_eq!(
        (refused.reason, refused.message.as_str()),
        (Reason::AboveLimit, message)
    );
}

#[test]
fn by_default_a_run_cannot_push_others_out_or_go_to_reserved_nodes() {
    let limits = installation(&json!({}));
    assert_eq!(within_limits(&small(), &limits), Ok(()));
    let refused = within_limits(&whole(), &limits).unwrap_err().message;
    assert_eq!(
        refused,
        "spec.scheduling.priorityClassName: cannot be set here: remove it; spec.scheduling.tolerations[0].key: cannot be set here: remove it"
    );
    let must = installation(
        &json!({"limits": {"requireRuntimeClass": true, "runtimeClasses": ["gvisor"]}}),
    );
    let refused = within_limits(&small(), &must).unwrap_err().message;
    assert_eq!(
        refused,
        "spec.policy.runtimeClassName: must be set here: write gvisor"
    );
}

#[rstest]
#[case::a_repository("example.com/team", "example.com/team/agent:1", true)]
#[case::the_image_itself("example.com/team", "example.com/team@sha256:0", true)]
#[case::a_tag("example.com/team", "example.com/team:1", true)]
#[case::a_longer_name("example.com/team", "example.com/teams/agent", false)]
#[case::a_longer_host("example.com", "example.com.other.org/a", false)]
#[case::a_slash_at_the_end("example.com/", "example.com/a", true)]
#[case::nothing("", "a", false)]
fn an_image_prefix_ends_where_a_part_ends(
    #[case] prefix: &str,
    #[case] image: &str,
    #[case] allowed: bool,
) {
    let limits = installation(&json!({"limits": {"imagePrefixes": [prefix]}}));
    let run = spec(json!({"agent": {"image": image, "command": ["true"]}}));
    assert_eq!(within_limits(&run, &limits).is_ok(), allowed);
}

#[test]
fn a_pod_stays_no_longer_than_allowed() {
    let wishes = crate::api::Wishes::default();
    let limits = installation(&json!({"limits": {"maxTtlAfterFinished": "1h"}}));
    assert_eq!(
        ttl_after_finished(&wishes, &limits),
        Duration::from_hours(1)
    );
    assert_eq!(
        ttl_after_finished(&wishes, &installation(&json!({}))),
        Duration::from_hours(24)
    );
}

/// What the kubelet makes of a text before it starts a container, `$(A)` and all.
fn expanded(text: &str) -> String {
    let mut found = String::new();
    let mut rest = text.chars().peekable();
    while let Some(c) = rest.next() {
        match (c, rest.peek()) {
            ('$', Some('$')) => {
                rest.next();
                found.push('$');
            }
            ('$', Some('(')) => found.push_str("EXPANDED"),
            _ => found.push(c),
        }
    }
    found
}

proptest! {
    #[test]
    fn no_text_is_expanded_on_its_way_to_the_agent(word in "[$(A) ]{0,12}") {
        let run = json!({"agent": {"image": "a", "command": ["c", word], "env": [{"name": "A", "value": word}]}});
        let pod = made(&spec(run), &installation(&json!({})));
        let agent = container(&pod, AGENT);
        prop_assert_eq!(&expanded(agent.command.as_ref().unwrap().last().unwrap()), &word);
        let value = agent.env.as_ref().unwrap().last().unwrap().value.clone().unwrap();
        prop_assert_eq!(&expanded(&value), &word);
    }
}
