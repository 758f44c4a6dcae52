//! What a process that was ended knew of an attempt, made again from the spec and the record. Pure.

use crate::api::{Input, Repository, RunSpec};
use crate::inputs::{CredentialProof, ResolvedInput};
use crate::run::{self, AttemptFacts};

/// The pinned inputs of an attempt, in the spec's order. `None`: they are not all in the record.
pub(super) fn inputs(spec: &RunSpec, attempt: &AttemptFacts) -> Option<Vec<ResolvedInput>> {
    let pinned = |input: &Input| {
        let known = attempt
            .inputs
            .iter()
            .find(|known| known.name == input.name)?;
        one(input, known)
    };
    spec.inputs.iter().map(pinned).collect()
}

fn one(input: &Input, known: &run::ResolvedInput) -> Option<ResolvedInput> {
    let repository = match &input.repository {
        Repository::Url(url) => url.clone(),
        // What was asked then is what is asked now, whatever the connector's url has become.
        Repository::BelowConnector(_) => known.repository.parse().ok()?,
    };
    let proof = match known.credential_proof.as_str() {
        "ReadOnly" => CredentialProof::ReadOnly,
        "CanWrite" => CredentialProof::CanWrite,
        "NotAsked" => CredentialProof::NotAsked,
        _ => CredentialProof::Unknown,
    };
    Some(ResolvedInput {
        name: input.name.clone(),
        repository,
        requested: input.selector.clone(),
        resolved_ref: known.resolved_ref.clone(),
        commit: known.commit.clone(),
        tag_object: known.tag_object.clone(),
        object_format: known.object_format,
        connector: input.connector.clone(),
        proof,
        resolved_at: known.at,
        depth: input.depth,
        path: input.path.clone(),
        read_only: input.read_only,
        fetch: input.fetch,
    })
}
