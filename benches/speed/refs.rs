//! One ref of a hundred thousand: what comes over the wire.

use std::path::Path;

use demo_forge::Change;
use sandboxrun::api::Namespace;

use crate::table::Row;
use crate::world::{Done, World, inputs, spec};

/// Bytes that the server sent for one ref, above TLS, headers included.
pub(crate) async fn rows(world: &World) -> Done<Vec<Row>> {
    const REFS: usize = 100_000;
    const TARGET: u64 = 2 << 10;
    let name = "bench/refs";
    let repo = world.repository(name)?;
    let commit = repo.commit("main", &[Change::file("README.md", "hello\n")])?;
    repo.packed_refs("refs/heads/bulk/", REFS, &commit)?;
    let namespace: Namespace = "bench".parse()?;
    let sent = || world.forge.traffic().sent;

    let inputs = inputs(&world.forge, &world.fresh("mirror"))?;
    let before = sent();
    let resolved = inputs
        .resolve(&namespace, &spec(Some(name))?, &|_| {})
        .await
        .map_err(|failure| failure.message)?;
    let ours = sent() - before;
    if resolved.first().map(|input| input.commit.as_str()) != Some(commit.as_str()) {
        return Err("another commit was found".into());
    }
    let before = sent();
    let url = world.forge.url(name);
    let (_, found) = world
        .git(Path::new("/"), &["ls-remote", &url, "refs/heads/main"])
        .await?;
    let rival = sent() - before;
    if !found.starts_with(&commit) {
        return Err("git found another commit".into());
    }
    Ok(vec![Row::counts(
        "listing: one ref of 100,000, bytes received",
        "bytes",
        ours,
        rival,
        TARGET,
    )])
}
