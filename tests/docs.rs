//! What the pages say is so: their manifests are good, their links lead somewhere, every code is explained, and the commands
//! of `sandboxrun` in them are commands.

// `cfg(test)` is always so here; it tells clippy that helpers of tests may unwrap, too.
#![cfg(test)]

use std::path::{Path, PathBuf};

use clap::Parser as _;
use sandboxrun::api::{Code, Reason, manifest};

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// Every page that people read: its path and its text.
fn pages() -> Vec<(PathBuf, String)> {
    let mut found = vec![root().join("README.md")];
    for entry in std::fs::read_dir(root().join("docs")).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_some_and(|extension| extension == "md") {
            found.push(path);
        }
    }
    found.sort();
    found
        .into_iter()
        .map(|path| {
            let text = std::fs::read_to_string(&path).unwrap();
            (path, text)
        })
        .collect()
}

/// The blocks of a kind, such as `yaml`.
fn blocks<'a>(page: &'a str, kind: &str) -> Vec<&'a str> {
    page.split(&format!("```{kind}\n"))
        .skip(1)
        .filter_map(|rest| rest.split("```").next())
        .collect()
}

/// Text between two marks: here documents in commands.
fn here_documents(block: &str) -> Vec<&str> {
    block
        .split("<<'END'\n")
        .skip(1)
        .filter_map(|rest| rest.split("\nEND").next())
        .collect()
}

#[test]
fn every_manifest_on_a_page_is_a_good_one() {
    let mut count = 0;
    for (path, page) in pages() {
        let commands = blocks(&page, "sh");
        let applied = commands.into_iter().flat_map(here_documents);
        for block in blocks(&page, "yaml").into_iter().chain(applied) {
            let ours = |document: &str| {
                let begins = |text: &str| document.lines().any(|line| line.starts_with(text));
                begins("apiVersion: sandboxrun.dev/") || begins("kind: Secret")
            };
            for document in block.split("\n---\n").filter(|document| ours(document)) {
                for read in manifest::read(&path.display().to_string(), document.as_bytes()) {
                    assert!(read.is_ok(), "{:?}\n{document}", read.err());
                    count += 1;
                }
            }
        }
    }
    assert!(count > 15, "only {count} manifests were found");
}

#[test]
fn every_link_leads_to_a_file() {
    let mut wrong = Vec::new();
    for (path, page) in pages() {
        for link in page.split("](").skip(1) {
            let link = link.split(')').next().unwrap();
            let file = link.split('#').next().unwrap();
            let elsewhere = file.is_empty() || file.contains("://");
            if !elsewhere && !path.parent().unwrap().join(file).exists() {
                wrong.push(format!("{}: {link}", path.display()));
            }
        }
    }
    assert_eq!(wrong, Vec::<String>::new());
}

#[test]
fn troubleshooting_knows_every_code_of_a_run_and_no_other() {
    let page = std::fs::read_to_string(root().join("docs/troubleshooting.md")).unwrap();
    let told: Vec<&str> = page
        .split("\n| `sandbox.")
        .skip(1)
        .filter_map(|row| row.split('`').next())
        .collect();
    let codes = Code::ALL
        .iter()
        .filter_map(|code| code.as_str().strip_prefix("sandbox."));
    assert_eq!(told, codes.collect::<Vec<_>>());
}

/// A reason that a page names is one of the registry.
#[test]
fn connectors_name_reasons_that_there_are() {
    let page = std::fs::read_to_string(root().join("docs/connectors.md")).unwrap();
    let table = page.split("| reason |").nth(1).unwrap();
    let mut count = 0;
    for row in table.lines().filter(|line| line.starts_with("| `")) {
        let cell = row.split('|').nth(1).unwrap();
        for reason in cell.split('`').skip(1).step_by(2) {
            assert!(reason.parse::<Reason>().is_ok(), "{reason}");
            count += 1;
        }
    }
    assert!(count > 5);
}

/// Each line of a page that begins with our program is a command that it takes.
#[test]
fn every_command_of_ours_on_a_page_is_one() {
    let mut count = 0;
    for (path, page) in pages() {
        for block in blocks(&page, "sh") {
            for line in block.replace("\\\n", " ").lines() {
                let Some(command) = line.strip_prefix("sandboxrun ") else {
                    continue;
                };
                let command = command.split('#').next().unwrap();
                let words = command
                    .split_whitespace()
                    .take_while(|word| !word.starts_with(['>', '<', '|']));
                let words: Vec<&str> = std::iter::once("sandboxrun").chain(words).collect();
                let parsed = sandboxrun::cli::Cli::try_parse_from(&words);
                assert!(
                    parsed.is_ok(),
                    "{}: {line}: {}",
                    path.display(),
                    parsed.err().unwrap()
                );
                count += 1;
            }
        }
    }
    assert!(count >= 5, "only {count} commands were found");
}
