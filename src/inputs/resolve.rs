//! From what a run asks for to what it gets: one commit for each input, or one failure.
//!
//! An input goes through the same steps with each try, so that a rotated Secret or a moved branch is seen: credential,
//! listing with that credential, and then, side by side, the proof that it cannot write and the look at ids of which
//! a listing does not tell what they are.

use futures::future::try_join_all;

use super::list_error::ListError;
use super::pin::{PinError, Pinned, pin, settle};
use super::retry::{self, Missed};
use super::{
    Credential, CredentialProof, GitSide as _, Inputs, Progress, Remote, ResolvedInput, Shown,
    Wanted, Wants,
};
use crate::api::{
    ConnectorUse, CredentialProofPolicy, Failure, Fault as _, Healing, Input, Namespace, Reason,
    Repository, RunSpec, Transport,
};

/// What a listing that failed means for the next try.
pub(super) fn missed(error: &ListError, remote: &Remote) -> Missed {
    let hold = if let ListError::RateLimited { wait } = error {
        *wait
    } else {
        None
    };
    Missed {
        failure: error.failure(remote),
        hold,
    }
}

/// All inputs of a run, or the first failure that stays.
pub(super) async fn all(
    inputs: &Inputs,
    namespace: &Namespace,
    spec: &RunSpec,
    progress: &(dyn Fn(Progress) + Send + Sync),
) -> Result<Vec<ResolvedInput>, Failure> {
    if !spec.inputs.is_empty() && !inputs.settings().enabled {
        let text = "spec.inputs: inputs are switched off for this installation";
        return Err(Failure::new(Reason::InputsDisabled, text));
    }
    let each = spec
        .inputs
        .iter()
        .map(|input| one(inputs, namespace, input, spec.credential_proof, progress));
    try_join_all(each).await
}

async fn one(
    inputs: &Inputs,
    namespace: &Namespace,
    input: &Input,
    policy: CredentialProofPolicy,
    progress: &(dyn Fn(Progress) + Send + Sync),
) -> Result<ResolvedInput, Failure> {
    let tried = || attempt(inputs, namespace, input, policy);
    let waiting = |failure: &Failure| {
        progress(Progress {
            input: input.name.clone(),
            waiting_for: failure.clone(),
        });
    };
    retry::until_settled(inputs.settings().times, &input.name, tried, waiting).await
}

async fn attempt(
    inputs: &Inputs,
    namespace: &Namespace,
    input: &Input,
    policy: CredentialProofPolicy,
) -> Result<ResolvedInput, Missed> {
    let remote = remote(inputs, namespace, input).await?;
    let wants = Wants(input.selector.name().cloned().into_iter().collect());
    let listing = inputs.listing(&remote, wants).await;
    let listing = listing.map_err(|error| missed(&error, &remote))?;
    #[expect(
        clippy::disallowed_methods,
        reason = "when the server gave its answer: nothing is decided by it"
    )]
    let resolved_at = jiff::Timestamp::now();
    let pinned = pin(&input.selector, &listing).map_err(|error| pin_failure(&error, &remote))?;
    let depth = input.depth;
    let (proof, pinned) = tokio::try_join!(
        proof(inputs, &remote, policy),
        settled(inputs, &remote, pinned, depth),
    )?;
    Ok(ResolvedInput {
        name: input.name.clone(),
        requested: input.selector.clone(),
        resolved_ref: pinned.resolved_ref,
        commit: pinned.id,
        tag_object: pinned.tag_object,
        object_format: listing.format,
        connector: remote.credential.name().cloned(),
        repository: remote.repository,
        proof,
        resolved_at,
        depth,
        path: input.path.clone(),
        read_only: input.read_only,
        fetch: input.fetch,
    })
}

/// The repository with the credential that asks for it; nothing was sent yet.
async fn remote(inputs: &Inputs, namespace: &Namespace, input: &Input) -> Result<Remote, Failure> {
    let credential = match &input.connector {
        Some(name) => {
            inputs
                .credential(namespace, name, ConnectorUse::Inputs)
                .await?
        }
        None => Credential::anonymous(namespace),
    };
    let broken = |rule: String| {
        Failure::new(
            Reason::RuleBroken,
            format!("repository of input `{}` {rule}", input.name),
        )
    };
    let repository = match (&input.repository, credential.connector()) {
        (Repository::Url(url), _) => url.clone(),
        (Repository::BelowConnector(path), Some(connector)) => connector
            .origin
            .repository(path)
            .map_err(|error| broken(error.to_string()))?,
        (Repository::BelowConnector(_), None) => {
            return Err(broken(
                "is a short path: write the whole address, or name a connector".to_owned(),
            ));
        }
    };
    credential.covers(&repository)?;
    match (repository.transport(), credential.shown()) {
        (Transport::Https, Shown::Anonymous | Shown::Basic { .. } | Shown::Header { .. })
        | (Transport::Ssh, Shown::Ssh { .. }) => Ok(Remote {
            repository,
            credential,
        }),
        (Transport::Ssh, Shown::Anonymous | Shown::Basic { .. } | Shown::Header { .. }) => Err(
            broken("is reached over ssh: name a connector that has auth.ssh".to_owned()),
        ),
        (Transport::Https, Shown::Ssh { .. }) => Err(broken(
            "is reached over https: name a connector that has auth.token".to_owned(),
        )),
    }
}

async fn proof(
    inputs: &Inputs,
    remote: &Remote,
    policy: CredentialProofPolicy,
) -> Result<CredentialProof, Missed> {
    if policy == CredentialProofPolicy::Off || remote.credential.is_anonymous() {
        return Ok(CredentialProof::NotAsked);
    }
    let asked = inputs.proof(remote).await;
    let strict = policy == CredentialProofPolicy::Enforce;
    let proof = match asked {
        Ok(proof) => proof,
        // A server that cannot answer now is no answer; with Enforce it is asked again.
        Err(error) if strict && error.reason().healing() == Healing::Transient => {
            return Err(missed(&error, remote));
        }
        Err(_) => CredentialProof::Unknown,
    };
    let connector = remote.credential.name().map_or("", |name| name.as_str());
    let (reason, what) = match proof {
        CredentialProof::ReadOnly | CredentialProof::NotAsked => return Ok(proof),
        CredentialProof::CanWrite => (Reason::CredentialCanWrite, "may write to"),
        CredentialProof::Unknown => (Reason::CredentialProofUnknown, "may perhaps write to"),
    };
    if strict {
        let text = format!(
            "the credential of connector `{connector}` {what} {}, and policy.credentialProof is Enforce",
            remote.repository
        );
        return Err(Failure::new(reason, text).into());
    }
    Ok(proof)
}

/// What is pinned, for certain: where the listing does not tell, the object is brought here and looked at.
async fn settled(
    inputs: &Inputs,
    remote: &Remote,
    pinned: Pinned,
    depth: Option<u32>,
) -> Result<Pinned, Missed> {
    if pinned.certain {
        return Ok(pinned);
    }
    let wanted = Wanted {
        remote: remote.clone(),
        id: pinned.id.clone(),
        via: pinned.resolved_ref.clone(),
        depth,
    };
    match inputs.mirror().bring(&wanted).await {
        Ok(seen) => Ok(settle(pinned, seen).map_err(|error| pin_failure(&error, remote))?),
        Err(failure) => Err(inputs.cause(failure, remote).await),
    }
}

fn pin_failure(error: &PinError, remote: &Remote) -> Failure {
    Failure::new(error.reason(), format!("{}: {error}", remote.repository))
}
