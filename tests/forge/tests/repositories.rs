//! The repositories that tests are made of: always the same, large ones quickly, hostile ones really so.

#![expect(clippy::unwrap_used, reason = "a helper of a test may fail the test")]

use demo_forge::{Change, Client, Forge, Hostile, ObjectFormat, Options, Repo, Visibility};
use tempfile::TempDir;

fn repo(format: ObjectFormat) -> (Repo, TempDir) {
    let dir = TempDir::new().unwrap();
    (Repo::init(dir.path().join("r.git"), format).unwrap(), dir)
}

#[test]
fn all_kinds_of_entries_and_names() {
    let (repo, _dir) = repo(ObjectFormat::Sha1);
    let sub = "2".repeat(40);
    let tip = repo
        .commit(
            "topic/ünïcode",
            &[
                Change::file("a \"quoted\" näme\n", "x"),
                Change::executable("bin/run", "#!/bin/sh\n"),
                Change::symlink("link", "bin/run"),
                Change::gitlink("vendor/sub", sub.clone()),
                Change::lfs_pointer("big.bin", 12),
            ],
        )
        .unwrap();
    let listed = repo
        .git(&["-c", "core.quotePath=false", "ls-tree", "-r", "-z", &tip])
        .unwrap();
    for entry in [
        "\ta \"quoted\" näme\n\0",
        "100755",
        "120000",
        "\tvendor/sub",
    ] {
        assert!(listed.contains(entry), "{entry:?} in {listed:?}");
    }
    let next = repo
        .commit("topic/ünïcode", &[Change::delete("link")])
        .unwrap();
    assert_eq!(repo.git(&["rev-parse", &format!("{next}^")]).unwrap(), tip);
    assert!(!repo.git(&["ls-tree", &next]).unwrap().contains("link"));
    let pull = repo
        .commit_from("refs/pull/7/head", Some(&tip), &[Change::file("p", "p")])
        .unwrap();
    assert_eq!(repo.find("refs/pull/7/head"), Some(pull));
}

#[test]
fn a_hundred_thousand_refs_keep_the_others() {
    let (repo, _dir) = repo(ObjectFormat::Sha1);
    let tip = repo.commit("main", &[Change::file("a", "a")]).unwrap();
    let tag = repo.annotated_tag("v1", &tip).unwrap();
    repo.packed_refs("refs/heads/bulk/", 100_000, &tip).unwrap();
    assert_eq!(repo.find("refs/tags/v1"), Some(tag));
    assert_eq!(repo.find("refs/heads/bulk/099999"), Some(tip.clone()));
    assert_eq!(repo.find("v1^{}"), Some(tip));
    assert_eq!(
        repo.git(&["for-each-ref", "--count=200000"])
            .unwrap()
            .lines()
            .count(),
        100_002
    );
}

#[test]
fn many_files_are_the_same_every_time() {
    let made = |format| {
        let (repo, _dir) = repo(format);
        let tip = repo.many_files("main", 1_000, 2_000_000).unwrap();
        let listed = repo.git(&["ls-tree", "-r", "-l", &tip]).unwrap();
        let sizes = listed
            .lines()
            .filter_map(|l| l.split_whitespace().nth(3)?.parse::<u64>().ok());
        let (count, bytes) = sizes.fold((0, 0), |(count, bytes), size| (count + 1, bytes + size));
        assert_eq!(count, 1_000);
        assert!((2_000_000..2_100_000).contains(&bytes), "{bytes}");
        tip
    };
    assert_eq!(made(ObjectFormat::Sha1), made(ObjectFormat::Sha1));
    assert_eq!(made(ObjectFormat::Sha256).len(), 64);
}

#[tokio::test]
async fn v05_hostile_trees_are_really_there_and_are_served() {
    let forge = Forge::start(Options::new()).await.unwrap();
    let client = Client::new(&forge).unwrap();
    let outside = TempDir::new().unwrap();
    let outside = outside.path().to_str().unwrap();
    for (format, kind) in [ObjectFormat::Sha1, ObjectFormat::Sha256]
        .iter()
        .flat_map(|f| Hostile::ALL.map(|k| (*f, k)))
    {
        let name = format!("acme/{kind:?}-{format:?}");
        let repo = forge.create_as(&name, Visibility::Public, format).unwrap();
        repo.hostile("main", kind, outside).unwrap();
        let checked = repo.git(&["fsck", "--strict"]);
        assert_eq!(
            checked.is_ok(),
            kind == Hostile::Attributes,
            "{kind:?}: {checked:?}"
        );
        let tree = forge.root().join(&name);
        let args = [
            "clone",
            "--quiet",
            "--mirror",
            &forge.url(&name),
            tree.to_str().unwrap(),
        ];
        let cloned = client.git(forge.root(), &args).await.unwrap();
        // Not even the server's own git can read a name that is empty.
        assert_eq!(
            cloned.success(),
            kind != Hostile::EmptyName,
            "{kind:?}: {}",
            cloned.stderr
        );
    }
}
