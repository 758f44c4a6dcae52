//! The one NetworkPolicy of a namespace with runs. Pure.

use std::collections::BTreeMap;
use std::net::IpAddr;

use k8s_openapi::api::networking::v1::{
    IPBlock, NetworkPolicy, NetworkPolicyEgressRule, NetworkPolicyPeer, NetworkPolicyPort,
    NetworkPolicySpec,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{
    LabelSelector, LabelSelectorRequirement, ObjectMeta,
};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;

use super::names::RUN_LABEL;
use super::{Gateway, Installation};
use crate::api::Namespace;

/// The policy's name, in every namespace.
pub const POLICY_NAME: &str = "sandboxrun";

/// What pods of runs may reach: the gateway and nothing else. Nothing reaches them.
///
/// The gateway stands there twice, since some network plugins look before the Service's address becomes that of a
/// pod, and others after it.
#[must_use]
pub fn network_policy(
    namespace: &Namespace,
    installation: &Installation,
    gateway: &Gateway,
) -> NetworkPolicy {
    let operator = &installation.operator;
    let pods = NetworkPolicyPeer {
        namespace_selector: Some(labelled(&BTreeMap::from([(
            "kubernetes.io/metadata.name".to_owned(),
            operator.namespace.clone(),
        )]))),
        pod_selector: Some(labelled(&operator.pod_labels)),
        ip_block: None,
    };
    let service = NetworkPolicyPeer {
        ip_block: Some(IPBlock {
            cidr: alone(gateway.address.ip()),
            except: None,
        }),
        ..NetworkPolicyPeer::default()
    };
    NetworkPolicy {
        metadata: ObjectMeta {
            name: Some(POLICY_NAME.to_owned()),
            namespace: Some(namespace.to_string()),
            labels: Some(BTreeMap::from([(
                "app.kubernetes.io/managed-by".to_owned(),
                "sandboxrun".to_owned(),
            )])),
            ..ObjectMeta::default()
        },
        spec: Some(NetworkPolicySpec {
            pod_selector: Some(LabelSelector {
                match_expressions: Some(vec![LabelSelectorRequirement {
                    key: RUN_LABEL.to_owned(),
                    operator: "Exists".to_owned(),
                    values: None,
                }]),
                match_labels: None,
            }),
            policy_types: Some(vec!["Ingress".to_owned(), "Egress".to_owned()]),
            ingress: None,
            egress: Some(vec![
                to(pods, operator.port),
                to(service, gateway.address.port()),
            ]),
        }),
    }
}

fn labelled(labels: &BTreeMap<String, String>) -> LabelSelector {
    LabelSelector {
        match_expressions: None,
        match_labels: Some(labels.clone()),
    }
}

fn to(peer: NetworkPolicyPeer, port: u16) -> NetworkPolicyEgressRule {
    NetworkPolicyEgressRule {
        to: Some(vec![peer]),
        ports: Some(vec![NetworkPolicyPort {
            end_port: None,
            port: Some(IntOrString::Int(i32::from(port))),
            protocol: Some("TCP".to_owned()),
        }]),
    }
}

/// One address as a range.
fn alone(address: IpAddr) -> String {
    let bits = if address.is_ipv4() { 32 } else { 128 };
    format!("{address}/{bits}")
}

/// Whether the policy that was found is not the one that we make.
#[must_use]
pub fn policy_differs(ours: &NetworkPolicy, found: &NetworkPolicy) -> bool {
    let plain = |policy: &NetworkPolicy| {
        let mut spec = policy.spec.clone().unwrap_or_default();
        spec.ingress = spec.ingress.filter(|rules| !rules.is_empty());
        spec.egress = spec.egress.filter(|rules| !rules.is_empty());
        if let Some(types) = &mut spec.policy_types {
            types.sort_unstable();
        }
        spec
    };
    plain(ours) != plain(found)
}
