//! Why the API server does not take a pod, in our own words: what heals, what waits for a quota, what never will. Pure.

use kube::core::Status;

use crate::api::{Failure, Reason};

/// The server's answer to the creation of a pod as a failure of the run.
#[must_use]
pub(super) fn of_pod(status: &Status) -> Failure {
    let message = crate::api::safe_text(status.message.as_bytes());
    let has = |words: &str| message.contains(words);
    let reason = match status.code {
        403 if has("exceeded quota") => Reason::QuotaExceeded,
        // A namespace that was made a moment ago; one that is going takes the run with it.
        403 if has("error looking up service account") || is_terminating(status) => {
            Reason::PodRefusedForNow
        }
        400 | 403 | 404 | 405 | 413 | 415 | 422 => Reason::PodRejectedByPolicy,
        // A webhook that says no may use any other code; the server's own troubles pass.
        code if has("denied the request") && code != 500 => Reason::PodRejectedByPolicy,
        _ => Reason::PodRefusedForNow,
    };
    Failure::new(reason, message)
}

fn is_terminating(status: &Status) -> bool {
    let causes = status.details.iter().flat_map(|details| &details.causes);
    let mut reasons = causes.map(|cause| cause.reason.as_str());
    reasons.any(|reason| reason == "NamespaceTerminating")
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    #[rstest]
    #[case::quota(
        403,
        "pods \"p\" is forbidden: exceeded quota: small, requested: pods=1",
        Reason::QuotaExceeded
    )]
    #[case::pod_security(
        403,
        "pods \"p\" is forbidden: violates PodSecurity \"restricted:latest\": x",
        Reason::PodRejectedByPolicy
    )]
    #[case::runtime_class(
        403,
        "pods \"p\" is forbidden: pod rejected: RuntimeClass \"gvisor\" not found",
        Reason::PodRejectedByPolicy
    )]
    #[case::priority_class(
        403,
        "pods \"p\" is forbidden: no PriorityClass with name x was found",
        Reason::PodRejectedByPolicy
    )]
    #[case::webhook(
        400,
        "admission webhook \"x\" denied the request: no",
        Reason::PodRejectedByPolicy
    )]
    #[case::webhook_with_its_own_code(
        418,
        "admission webhook \"x\" denied the request: no",
        Reason::PodRejectedByPolicy
    )]
    #[case::webhook_is_down(
        500,
        "Internal error occurred: failed calling webhook \"x\"",
        Reason::PodRefusedForNow
    )]
    #[case::new_namespace(
        403,
        "pods \"p\" is forbidden: error looking up service account a/default: not found",
        Reason::PodRefusedForNow
    )]
    #[case::not_valid(
        422,
        "Pod \"p\" is invalid: spec.x: Invalid value",
        Reason::PodRejectedByPolicy
    )]
    #[case::busy(429, "the server is busy", Reason::PodRefusedForNow)]
    #[case::no_leader(503, "etcdserver: no leader", Reason::PodRefusedForNow)]
    fn p_a_refusal_says_whether_it_heals(
        #[case] code: u16,
        #[case] message: &str,
        #[case] reason: Reason,
    ) {
        let status = Status::failure(message, "Any").with_code(code);
        let failure = of_pod(&status);
        assert_eq!(failure.reason, reason);
        assert_eq!(failure.message, message);
    }
}
