//! Makes the `.git` of an input as a user expects it after `git clone`, from files alone.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use crate::api::wire::PlannedInput;
use crate::api::{ObjectFormat, RefName};
use crate::pod::baseline;

/// Where packs lie, relative to the work tree.
pub(super) const PACKS: &str = ".git/objects/pack";

/// Makes the directories of an empty repository below `root` and returns where its pack goes.
///
/// # Errors
/// When the disk does not take it.
pub(super) fn create(root: &Path) -> io::Result<PathBuf> {
    let packs = root.join(PACKS);
    fs::create_dir_all(&packs)?;
    for directory in [
        ".git/objects/info",
        ".git/refs/heads",
        ".git/refs/tags",
        ".git/info",
    ] {
        fs::create_dir_all(root.join(directory))?;
    }
    Ok(packs)
}

/// Writes configuration, refs and index. `HEAD` comes last: without it git sees no repository.
///
/// # Errors
/// When the disk does not take it.
pub(super) fn finish(root: &Path, input: &PlannedInput, index: &[u8]) -> io::Result<()> {
    let git = root.join(".git");
    fs::write(git.join("index"), index)?;
    fs::write(git.join("config"), config(input))?;
    if !input.shallow.is_empty() {
        let lines: Vec<_> = input
            .shallow
            .iter()
            .flat_map(|id| [id.as_str(), "\n"])
            .collect();
        fs::write(git.join("shallow"), lines.concat())?;
    }
    let commit = format!("{}\n", input.commit);
    let write_ref = |name: &str| {
        let file = git.join(name);
        file.parent().map_or(Ok(()), fs::create_dir_all)?;
        fs::write(file, &commit)
    };
    let head = match (branch(input), input.resolved_ref.as_ref()) {
        (Some(branch), _) => {
            write_ref(branch.as_str())?;
            if let Some(short) = branch.as_str().strip_prefix("refs/heads/") {
                write_ref(&format!("refs/remotes/origin/{short}"))?;
            }
            format!("ref: {branch}\n")
        }
        (None, Some(name)) if name.as_str().starts_with("refs/tags/") => {
            write_ref(name.as_str())?;
            commit.clone()
        }
        (None, _) => commit.clone(),
    };
    fs::write(git.join("HEAD"), head)
}

/// Makes a `.git` for a work tree that is there already, whatever its files are now: as provision made it, from the
/// pack and its index, and from the git index that lies beside the baseline.
///
/// # Errors
/// When the disk does not take it, or one of the three is not there.
pub fn restore(
    root: &Path,
    input: &PlannedInput,
    pack: &Path,
    pack_index: &Path,
    baseline: &Path,
) -> io::Result<()> {
    let packs = create(root)?;
    for (from, extension) in [(pack, "pack"), (pack_index, "idx")] {
        let to = packs.join(format!("pack-{}.{extension}", input.commit));
        fs::hard_link(from, &to).or_else(|_| fs::copy(from, &to).map(drop))?;
    }
    let index = fs::read(baseline.join(baseline::index_name(&input.name)))?;
    finish(root, input, &index)
}

/// The branch that is checked out: the resolved ref, if it is one.
#[must_use]
pub(super) fn branch(input: &PlannedInput) -> Option<&RefName> {
    input
        .resolved_ref
        .as_ref()
        .filter(|name| name.as_str().starts_with("refs/heads/"))
}

fn config(input: &PlannedInput) -> String {
    let (version, extensions) = match input.commit.format() {
        ObjectFormat::Sha1 => (0, ""),
        ObjectFormat::Sha256 => (1, "[extensions]\n\tobjectformat = sha256\n"),
    };
    let branch = branch(input).and_then(|name| name.as_str().strip_prefix("refs/heads/"));
    // As `git clone` writes it: a shallow clone follows its one branch, a whole one all of them.
    let fetch = match branch {
        Some(branch) if !input.shallow.is_empty() => {
            format!("+refs/heads/{branch}:refs/remotes/origin/{branch}")
        }
        Some(_) | None => "+refs/heads/*:refs/remotes/origin/*".to_owned(),
    };
    let tracking = branch.map_or_else(String::new, |branch| {
        let (name, merge) = (quoted(branch), quoted(&format!("refs/heads/{branch}")));
        format!("[branch {name}]\n\tremote = origin\n\tmerge = {merge}\n")
    });
    format!(
        "[core]\n\trepositoryformatversion = {version}\n\tfilemode = true\n\tbare = false\n\
         \tlogallrefupdates = true\n{extensions}[remote \"origin\"]\n\turl = {url}\n\tfetch = {fetch}\n\
         {tracking}",
        url = quoted(&input.origin),
        fetch = quoted(&fetch),
    )
}

/// A text in the quotes of git's configuration. Control characters cannot be in a URL or a ref name.
fn quoted(text: &str) -> String {
    let mut out = String::with_capacity(text.len() + 2);
    out.push('"');
    for c in text.chars().filter(|c| !c.is_control()) {
        if matches!(c, '"' | '\\') {
            out.push('\\');
        }
        out.push(c);
    }
    out.push('"');
    out
}
