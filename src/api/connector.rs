//! The `Connector` resource: a server, the credential for it, and what runs may use it for.

#![allow(
    clippy::duplicated_attributes,
    reason = "the derive takes one printcolumn for each column"
)]

use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// A server, the credential that is bound to it, and what it may be used for. The tenant boundary.
#[derive(CustomResource, Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[kube(
    group = "sandboxrun.dev",
    version = "v1alpha1",
    kind = "Connector",
    namespaced,
    printcolumn(name = "Type", type_ = "string", json_path = ".spec.type"),
    printcolumn(name = "URL", type_ = "string", json_path = ".spec.url"),
    printcolumn(
        name = "Age",
        type_ = "date",
        json_path = ".metadata.creationTimestamp"
    )
)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ConnectorSpec {
    /// What kind of server.
    #[serde(rename = "type")]
    pub kind: ConnectorType,
    /// `https://host[:port][/prefix]` (or `ssh://`): the origin that the credential is bound to.
    pub url: String,
    /// At most one of its fields; absent: anonymous.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub auth: Option<AuthSpec>,
    /// A CA certificate in PEM, added to the system roots.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ca_ref: Option<SecretKeyRef>,
    /// What runs may use it for.
    pub uses: Vec<ConnectorUse>,
    /// Upper bound for every run. Absent: no bound.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub allow: Option<AllowSpec>,
}

/// What kind of server a connector leads to; decides the user name that goes with a token.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum ConnectorType {
    /// GitHub and GitHub Enterprise.
    GitHub,
    /// GitLab.
    GitLab,
    /// Gitea and Forgejo.
    Gitea,
    /// Bitbucket.
    Bitbucket,
    /// Azure Repos.
    AzureRepos,
    /// Any other git server.
    Git,
    /// An HTTP API; for lookups only.
    #[serde(rename = "HTTP")]
    Http,
}

/// What runs may use a connector for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum ConnectorUse {
    /// Repositories of `spec.inputs`.
    Inputs,
    /// Calls of `spec.lookups`.
    Lookups,
}

/// One way to show who we are.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct AuthSpec {
    /// A token or password, sent as HTTP Basic.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub token: Option<TokenSpec>,
    /// An ssh key.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ssh: Option<SshSpec>,
    /// A header of its own; for lookups.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub header: Option<HeaderSpec>,
}

/// A token or password.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct TokenSpec {
    /// Where the value is.
    pub secret_ref: SecretKeyRef,
    /// Default: what the type of server expects.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub username: Option<String>,
}

/// An ssh key and the host keys to trust.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct SshSpec {
    /// A private key without passphrase.
    pub private_key_ref: SecretKeyRef,
    /// Lines of a `known_hosts` file. No key is trusted on first use.
    pub known_hosts: String,
}

/// A header that is added to every call.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct HeaderSpec {
    /// Its name, such as `Authorization` or `x-api-key`.
    pub name: String,
    /// Put before the value, such as `Bearer `.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prefix: Option<String>,
    /// Where the value is.
    pub secret_ref: SecretKeyRef,
}

/// A key of a Secret in the connector's own namespace.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct SecretKeyRef {
    /// The Secret.
    pub name: String,
    /// The key inside.
    pub key: String,
}

/// Upper bound for every run that uses a connector.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct AllowSpec {
    /// Repositories below the url, such as `acme/*`. Absent: all.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub repositories: Vec<String>,
    /// Methods of lookups. Absent: all.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub methods: Vec<String>,
    /// Paths of lookups below the url. Absent: all.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub paths: Vec<String>,
}
