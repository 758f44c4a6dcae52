//! The three containers of a pod: `provision` and `broker` of ours, and the agent's.
//!
//! One user id for all three; what separates them is what is mounted where.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{
    Capabilities, Container, EnvVar, EnvVarSource, ObjectFieldSelector, ResourceRequirements,
    SecurityContext, Volume, VolumeMount,
};
use k8s_openapi::apimachinery::pkg::api::resource;

use super::pod::{
    AGENT, BROKER, PROVISION, WORKSPACE_VOLUME, gateway_url, runtime_default, scratch_volume,
    seconds,
};
use super::{Gateway, Installation, ResolvedRun, Resources};
use crate::api::{FetchableInput, Quantity, RunSpec, layout, relay_environment};

/// A container with all that none of them may be without.
fn hardened(name: &str, user: i64) -> Container {
    Container {
        name: name.to_owned(),
        termination_message_path: Some(layout::TERMINATION_LOG.to_owned()),
        termination_message_policy: Some("File".to_owned()),
        security_context: Some(SecurityContext {
            allow_privilege_escalation: Some(false),
            privileged: Some(false),
            read_only_root_filesystem: Some(true),
            run_as_non_root: Some(true),
            run_as_user: Some(user),
            run_as_group: Some(user),
            capabilities: Some(Capabilities {
                add: None,
                drop: Some(vec!["ALL".to_owned()]),
            }),
            seccomp_profile: Some(runtime_default()),
            ..SecurityContext::default()
        }),
        ..Container::default()
    }
}

/// Our two containers. The broker is a native sidecar: it starts before the agent and is told to end after it.
pub(super) fn own(
    spec: &RunSpec,
    installation: &Installation,
    gateway: &Gateway,
) -> [Container; 2] {
    let waits = &installation.waits;
    let common = |name: &str, command: &str, resources: &Resources, more: Vec<String>| {
        let mut words = vec![
            layout::IMAGE_PROGRAM.to_owned(),
            command.to_owned(),
            "--gateway".to_owned(),
            gateway_url(gateway.address),
            "--token-file".to_owned(),
            layout::TOKEN_FILE.to_owned(),
        ];
        words.extend(more);
        words.push("--termination-log".to_owned());
        words.push(layout::TERMINATION_LOG.to_owned());
        Container {
            image: Some(installation.pod_image.clone()),
            image_pull_policy: Some(installation.pod_image_pull_policy.as_str().to_owned()),
            command: Some(words),
            env: Some(vec![
                literal_var(layout::CA_VARIABLE, &gateway.ca),
                EnvVar {
                    name: layout::NODE_ADDRESSES_ENV.to_owned(),
                    value: None,
                    value_from: Some(EnvVarSource {
                        field_ref: Some(ObjectFieldSelector {
                            api_version: Some("v1".to_owned()),
                            field_path: "status.hostIPs".to_owned(),
                        }),
                        ..EnvVarSource::default()
                    }),
                },
            ]),
            resources: Some(requirements(&resources.requests, &resources.limits)),
            volume_mounts: Some(vec![
                mount(WORKSPACE_VOLUME, layout::WORKSPACE),
                mount("sandbox", layout::SANDBOX),
                mount("baseline", layout::BASELINE),
                mount("program", layout::PROGRAM_DIR),
                read_only(mount("token", layout::TOKEN_DIR)),
            ]),
            ..hardened(name, spec.placement.run_as_user)
        }
    };
    let millis =
        |flag: &str, time: std::time::Duration| [flag.to_owned(), time.as_millis().to_string()];
    let mut provision = vec!["--install".to_owned(), layout::POD_PROGRAM.to_owned()];
    provision.extend(millis("--proof-millis", waits.proof));
    let mut broker = vec!["--exec-socket".to_owned(), layout::BROKER_SOCKET.to_owned()];
    broker.extend(millis("--repeat-millis", waits.repeat));
    for (flag, time) in [
        ("--agent-wait-secs", waits.agent_gone),
        ("--budget-secs", waits.collect),
        ("--report-secs", waits.report),
    ] {
        broker.extend([flag.to_owned(), seconds(time).to_string()]);
    }
    let own = &installation.own_resources;
    [
        common(PROVISION, "provision", &own.provision, provision),
        Container {
            restart_policy: Some("Always".to_owned()),
            ..common(BROKER, "broker", &own.broker, broker)
        },
    ]
}

/// The agent's container: the user's image, our `exec` as its first process, nothing of ours that could be written.
pub(super) fn agent(
    run: &ResolvedRun<'_>,
    installation: &Installation,
    volumes: &[Volume],
) -> Container {
    let (spec, waits) = (run.spec, &installation.waits);
    let mut command: Vec<String> = [
        layout::POD_PROGRAM,
        "exec",
        "--gateway",
        &format!("unix:{}", layout::BROKER_SOCKET),
        "--workdir",
        &literal(&spec.agent.working_dir),
        "--grace-millis",
        &waits.grace.as_millis().to_string(),
        "--grant-millis",
        &waits.grant.as_millis().to_string(),
        "--gateway-millis",
        &waits.gateway.as_millis().to_string(),
        "--",
    ]
    .map(str::to_owned)
    .into();
    command.extend(spec.agent.command.iter().map(|word| literal(word)));
    Container {
        image: Some(spec.agent.image.clone()),
        command: Some(command),
        // The image's own need not be there, and `exec` goes where the run says.
        working_dir: Some("/".to_owned()),
        env: Some(environment(run)),
        resources: Some(resources(spec, installation, volumes)),
        volume_mounts: Some(mounts(spec)),
        ..hardened(AGENT, spec.placement.run_as_user)
    }
}

/// What the agent sees, in the order in which it is mounted.
fn mounts(spec: &RunSpec) -> Vec<VolumeMount> {
    let mut all = vec![mount(WORKSPACE_VOLUME, layout::WORKSPACE)];
    for input in spec.inputs.iter().filter(|input| input.read_only) {
        let path = format!("{}/{}", layout::WORKSPACE, input.path);
        all.push(VolumeMount {
            sub_path: Some(input.path.clone()),
            ..read_only(mount(WORKSPACE_VOLUME, &path))
        });
    }
    // Prompt and context are only read; `provision` has made the directory for what is left.
    all.push(read_only(mount("sandbox", layout::SANDBOX)));
    all.push(VolumeMount {
        sub_path: Some(layout::OUTPUT_NAME.to_owned()),
        ..mount("sandbox", layout::OUTPUT)
    });
    all.push(read_only(mount("program", layout::PROGRAM_DIR)));
    all.push(mount("home", layout::HOME));
    all.push(mount("tmp", "/tmp"));
    for (at, path) in spec.agent.scratch.iter().enumerate() {
        all.push(mount(&scratch_volume(at), path));
    }
    all
}

fn mount(volume: &str, path: &str) -> VolumeMount {
    VolumeMount {
        name: volume.to_owned(),
        mount_path: path.to_owned(),
        ..VolumeMount::default()
    }
}

fn read_only(mount: VolumeMount) -> VolumeMount {
    VolumeMount {
        read_only: Some(true),
        ..mount
    }
}

/// The home directory, what leads to the relay, then the run's own, which may say otherwise. No secret is among it.
fn environment(run: &ResolvedRun<'_>) -> Vec<EnvVar> {
    let fetchable: Vec<FetchableInput<'_>> = run
        .spec
        .inputs
        .iter()
        .filter(|input| input.fetch)
        .filter_map(|input| {
            Some(FetchableInput {
                name: &input.name,
                origin: run.origins.get(&input.name)?,
            })
        })
        .collect();
    let mut all = vec![("HOME".to_owned(), layout::HOME.to_owned())];
    all.extend(relay_environment(&fetchable));
    let own = &run.spec.agent.env;
    all.retain(|(name, _)| own.iter().all(|var| var.name != *name));
    let own = own.iter().map(|var| (var.name.clone(), var.value.clone()));
    let all = all.into_iter().chain(own);
    all.map(|(name, value)| literal_var(&name, &value))
        .collect()
}

fn literal_var(name: &str, value: &str) -> EnvVar {
    EnvVar {
        name: name.to_owned(),
        value: Some(literal(value)),
        value_from: None,
    }
}

/// A text that the kubelet hands on as it is: it would put the value of `A` in the place of `$(A)`, and make `$$` one
/// dollar. Values are literal, here as in a local run.
fn literal(text: &str) -> String {
    if text.contains("$(") || text.contains("$$") {
        text.replace('$', "$$")
    } else {
        text.to_owned()
    }
}

/// What the run says, over what the installation says. The bound on the node's disk holds all of the pod's volumes,
/// since the kubelet counts them: a volume that is full is then told by its own name.
fn resources(
    spec: &RunSpec,
    installation: &Installation,
    volumes: &[Volume],
) -> ResourceRequirements {
    const DISK: &str = "ephemeral-storage";
    let place = &spec.placement;
    let over = |defaults: &BTreeMap<String, Quantity>, own: &BTreeMap<String, Quantity>| {
        let mut all = defaults.clone();
        all.extend(own.clone());
        all
    };
    let requests = over(&installation.agent_resources.requests, &place.requests);
    let mut limits = over(&installation.agent_resources.limits, &place.limits);
    if let Some(disk) = limits.get_mut(DISK) {
        let sizes = volumes
            .iter()
            .filter_map(|volume| volume.empty_dir.as_ref()?.size_limit.as_ref())
            .filter_map(|size| size.0.parse::<Quantity>().ok());
        *disk = sizes.fold(disk.clone(), |sum, size| sum.plus(&size));
    }
    requirements(&requests, &limits)
}

fn requirements(
    requests: &BTreeMap<String, Quantity>,
    limits: &BTreeMap<String, Quantity>,
) -> ResourceRequirements {
    let amounts = |map: &BTreeMap<String, Quantity>| {
        let amounts = map
            .iter()
            .map(|(name, amount)| (name.clone(), resource::Quantity(amount.to_string())));
        Some(amounts.collect()).filter(|map: &BTreeMap<_, _>| !map.is_empty())
    };
    ResourceRequirements {
        claims: None,
        requests: amounts(requests),
        limits: amounts(limits),
    }
}
