//! Which room may know which: the table of the house, read from the `crate::` paths of the sources.

// `cfg(test)` is always so here; it tells clippy that helpers of tests may unwrap, too.
#![cfg(test)]
#![allow(
    clippy::string_slice,
    reason = "Rust source is cut at characters of ASCII"
)]

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

/// Room, the rooms that it may use, and words of the outside world that it must not.
const ROOMS: &[(&str, &[&str], &[&str])] = &[
    ("api", &[], IO),
    ("run", &["api"], IO),
    ("manifest", &["api"], IO),
    ("inputs", &["api"], &["kube::"]),
    ("audit", &["api"], &["kube::"]),
    ("deliver", &["api", "inputs"], &["kube::"]),
    ("gateway", &["api", "audit", "inputs"], &["kube::"]),
    ("pod", &["api"], &["kube::", "sqlx::", "k8s_openapi::"]),
    (
        "controller",
        &[
            "api", "run", "manifest", "inputs", "audit", "deliver", "gateway", "pod",
        ],
        &[],
    ),
    (
        "local",
        &[
            "api", "run", "manifest", "inputs", "audit", "deliver", "gateway", "pod",
        ],
        &["kube::"],
    ),
    (
        "cli",
        &[
            "api",
            "run",
            "manifest",
            "inputs",
            "audit",
            "deliver",
            "gateway",
            "pod",
            "controller",
            "local",
        ],
        &[],
    ),
];

/// What decides does not act: no runtime, no client, no file, no clock, no randomness.
const IO: &[&str] = &[
    "tokio::",
    "kube::Client",
    "kube::Api",
    "kube::runtime",
    "kube::client",
    "reqwest::",
    "std::fs",
    "std::process",
    "std::env",
    "std::io",
    "SystemTime",
    "Instant",
    "Timestamp::now",
    "rand::",
];

#[test]
fn each_room_knows_only_the_rooms_below_it() {
    let src = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut wrong = Vec::new();
    for dir in fs::read_dir(&src).unwrap() {
        let dir = dir.unwrap().path();
        let room = dir.file_name().unwrap().to_str().unwrap().to_owned();
        if !dir.is_dir() || room == "bin" {
            continue;
        }
        let Some((_, may, must_not)) = ROOMS.iter().find(|(name, ..)| *name == room) else {
            panic!("room `{room}` is not in the table");
        };
        for file in sources(&dir) {
            let text = code(&fs::read_to_string(&file).unwrap());
            let at = file.strip_prefix(&src).unwrap().display().to_string();
            for other in rooms_of(&text) {
                if other != room && !may.contains(&other.as_str()) {
                    wrong.push(format!("{at} uses crate::{other}"));
                }
            }
            for word in must_not.iter().filter(|word| text.contains(**word)) {
                wrong.push(format!("{at} uses {word}"));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// The program's `main` is wiring.
#[test]
fn main_has_at_most_40_lines() {
    let main = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/main.rs");
    assert!(fs::read_to_string(main).unwrap().lines().count() <= 40);
}

#[test]
fn grouped_and_nested_paths_are_seen() {
    let text = code(
        "use crate::{\n    api::{Code, Reason},\n    audit, // crate::cli\n};\nuse crate::inputs as i;\n#[cfg(test)]\nmod tests {\n use crate::local;\n}\n",
    );
    assert_eq!(
        rooms_of(&text),
        ["api", "audit", "inputs"].map(str::to_owned).into()
    );
}

fn sources(dir: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(dir)
        .unwrap()
        .map(|entry| entry.unwrap().path());
    entries
        .flat_map(|path| match path.extension() {
            _ if path.is_dir() => sources(&path),
            // A module of tests may use what it tests with.
            Some(extension) if extension == "rs" && !path.ends_with("tests.rs") => vec![path],
            _ => Vec::new(),
        })
        .collect()
}

/// The text without comments and without the module of tests at its end.
fn code(text: &str) -> String {
    let text = text
        .split("#[cfg(test)]\nmod tests {")
        .next()
        .unwrap_or_default();
    let lines = text
        .lines()
        .map(|line| line.split("//").next().unwrap_or_default());
    lines.collect::<Vec<_>>().join("\n")
}

/// The first step of every `crate::` path, also of those in braces.
fn rooms_of(text: &str) -> BTreeSet<String> {
    let mut rooms = BTreeSet::new();
    for path in text.split("crate::").skip(1) {
        let Some(group) = path.strip_prefix('{') else {
            rooms.insert(word(path));
            continue;
        };
        let mut depth = 1;
        let mut start = true;
        for (at, c) in group.char_indices() {
            match c {
                '{' => depth += 1,
                '}' => depth -= 1,
                ',' => start = start || depth == 1,
                c if c.is_alphabetic() && start && depth == 1 => {
                    rooms.insert(word(&group[at..]));
                    start = false;
                }
                _ => {}
            }
            if depth == 0 {
                break;
            }
        }
    }
    rooms
}

fn word(text: &str) -> String {
    text.chars()
        .take_while(|c| c.is_alphanumeric() || *c == '_')
        .collect()
}
