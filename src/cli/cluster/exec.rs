//! `sandboxrun audit` in a cluster: the same command, run in the operator's pod, beside the record.

use std::ffi::OsString;

use k8s_openapi::api::core::v1::Pod;
use kube::api::{Api, AttachParams, ListParams, ResourceExt as _};
use tokio::io::AsyncRead;

use super::{Cluster, ClusterArgs, block, refused};
use crate::api::{Failure, Reason};

/// The operator's pods, as the chart labels them.
const OPERATOR: &str = "app.kubernetes.io/name=sandboxrun,app.kubernetes.io/component=operator";

/// Runs `sandboxrun audit` with these arguments in the operator's pod, and gives its exit code.
///
/// # Errors
/// When there is no operator, or one may not run commands in its pod.
pub(in crate::cli) fn audit(
    namespace: &str,
    context: Option<String>,
    args: Vec<OsString>,
) -> Result<u8, Failure> {
    block(async {
        let place = ClusterArgs {
            namespace: Some(namespace.to_owned()),
            context,
        };
        let cluster = Cluster::connect(&place).await?;
        let pods = Api::<Pod>::namespaced(cluster.client, namespace);
        let found = pods.list(&ListParams::default().labels(OPERATOR)).await;
        let found = found.map_err(|error| refused(&error))?;
        let running = found.items.iter().find(|pod| {
            let phase = pod
                .status
                .as_ref()
                .and_then(|status| status.phase.as_deref());
            phase == Some("Running") && pod.metadata.deletion_timestamp.is_none()
        });
        let pod = running.ok_or_else(|| {
            let message = format!(
                "no operator runs in namespace `{namespace}`: name its namespace with --system-namespace"
            );
            Failure::new(Reason::ClusterUnusable, message)
        })?;
        let words = args
            .into_iter()
            .map(|word| word.to_string_lossy().into_owned());
        let command = ["sandboxrun", "audit"]
            .map(str::to_owned)
            .into_iter()
            .chain(words);
        let params = AttachParams::default()
            .stdin(false)
            .stdout(true)
            .stderr(true);
        let params = params.container("operator");
        let attached = pods.exec(&pod.name_any(), command, &params).await;
        let mut attached = attached.map_err(|error| refused(&error))?;
        let status = attached.take_status();
        let (out, err) = (attached.stdout(), attached.stderr());
        tokio::join!(
            copy(out, tokio::io::stdout()),
            copy(err, tokio::io::stderr())
        );
        let status = match status {
            Some(status) => status.await,
            None => None,
        };
        Ok(exit_code(status.as_ref()))
    })
}

/// A reader that closed the pipe has seen enough.
async fn copy(from: Option<impl AsyncRead + Unpin>, mut to: impl tokio::io::AsyncWrite + Unpin) {
    if let Some(mut from) = from {
        drop(tokio::io::copy(&mut from, &mut to).await);
    }
}

/// The exit code that the kubelet reports: in the causes of a failure.
fn exit_code(status: Option<&k8s_openapi::apimachinery::pkg::apis::meta::v1::Status>) -> u8 {
    let Some(status) = status else { return 1 };
    if status.status.as_deref() == Some("Success") {
        return 0;
    }
    let causes = status
        .details
        .as_ref()
        .and_then(|details| details.causes.as_ref());
    let code = causes
        .into_iter()
        .flatten()
        .find(|cause| cause.reason.as_deref() == Some("ExitCode"));
    code.and_then(|cause| cause.message.as_ref()?.parse().ok())
        .unwrap_or(1)
}
