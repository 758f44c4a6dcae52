//! `sandboxrun explain`: what a code or a reason means, whether it heals, what to do.

use std::io::{self, Write};

use clap::Args;

use crate::api::{Code, Healing, Reason};

/// Explain an error code or a reason; without one, list all codes.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  sandboxrun explain sandbox.input_resolution_failed
  sandboxrun explain RefNotFound
  sandboxrun explain 241")]
pub(super) struct ExplainArgs {
    /// A code, a reason, or an exit code of `sandboxrun run`.
    #[arg(value_name = "CODE|REASON|EXIT")]
    what: Option<String>,
}

/// The text is not in the registry.
#[derive(Debug, thiserror::Error)]
#[error("{}", message(.0))]
pub(super) struct NotKnown(String);

fn message(text: &str) -> String {
    let text = crate::api::safe_text(text.as_bytes());
    let near = near(&text);
    let hint = if near.is_empty() {
        "`sandboxrun explain` lists all codes".to_owned()
    } else {
        format!("did you mean {}?", near.join(" or "))
    };
    format!("{text} is neither a code nor a reason: {hint}")
}

/// Names of the registry that hold the text, or that it holds, in any case.
fn near(text: &str) -> Vec<&'static str> {
    let plain = |text: &str| text.to_ascii_lowercase().replace(['_', '-', ' '], "");
    let wanted = plain(text);
    let names = Code::ALL.iter().map(|code| code.as_str());
    let names = names.chain(Reason::ALL.iter().map(|reason| reason.as_str()));
    let is_near = |name: &&str| {
        let name = plain(name);
        wanted.len() > 2 && (name.contains(&wanted) || wanted.contains(&name))
    };
    names.filter(is_near).take(3).collect()
}

/// Prints what is asked for. `Ok(Err(_))`: there is no such thing.
pub(super) fn run(args: &ExplainArgs, out: &mut dyn Write) -> io::Result<Result<(), NotKnown>> {
    let Some(text) = &args.what else {
        return list(out).map(Ok);
    };
    if let Ok(code) = text.parse::<Code>() {
        return explain_code(code, out).map(Ok);
    }
    if let Ok(reason) = text.parse::<Reason>() {
        return explain_reason(reason, out).map(Ok);
    }
    let number = text.parse::<u8>().ok();
    let codes = || {
        Code::ALL
            .iter()
            .filter(|code| number.is_some() && code.exit_code() == number)
    };
    if codes().next().is_none() {
        return Ok(Err(NotKnown(text.clone())));
    }
    for (at, code) in codes().enumerate() {
        if at > 0 {
            writeln!(out)?;
        }
        explain_code(*code, out)?;
    }
    Ok(Ok(()))
}

fn list(out: &mut dyn Write) -> io::Result<()> {
    for code in Code::ALL {
        let exit = code
            .exit_code()
            .map(|exit| exit.to_string())
            .unwrap_or_default();
        writeln!(out, "{exit:>3}  {:<34} {}", code.as_str(), code.meaning())?;
    }
    Ok(())
}

fn explain_code(code: Code, out: &mut dyn Write) -> io::Result<()> {
    writeln!(out, "{code}")?;
    writeln!(out, "  {}", code.meaning())?;
    if let Some(exit) = code.exit_code() {
        writeln!(out, "  `sandboxrun run` exits with {exit}.")?;
    }
    writeln!(out, "\nReasons:")?;
    for reason in Reason::ALL.iter().filter(|reason| reason.code() == code) {
        writeln!(out, "  {reason}  ({})", again(reason.healing()))?;
        writeln!(out, "    {}", reason.hint())?;
    }
    Ok(())
}

fn explain_reason(reason: Reason, out: &mut dyn Write) -> io::Result<()> {
    let code = reason.code();
    writeln!(out, "{reason}, a reason of {code}")?;
    writeln!(out, "  {}", code.meaning())?;
    writeln!(out, "  What to do: {}.", reason.hint())?;
    writeln!(out, "  {}.", upper_first(again(reason.healing())))?;
    if let Some(exit) = code.exit_code() {
        writeln!(out, "  `sandboxrun run` exits with {exit}.")?;
    }
    Ok(())
}

/// Whether it is tried again, in words.
pub(super) fn again(healing: Healing) -> &'static str {
    match healing {
        Healing::Transient => "tried again for up to 5 minutes",
        Healing::Brief => "tried again for 10 seconds",
        Healing::Permanent => "not tried again",
    }
}

fn upper_first(text: &str) -> String {
    let mut chars = text.chars();
    chars
        .next()
        .map(|first| first.to_uppercase().chain(chars).collect())
        .unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn explained(what: &str) -> String {
        let mut out = Vec::new();
        let args = ExplainArgs {
            what: Some(what.to_owned()),
        };
        match run(&args, &mut out).unwrap() {
            Ok(()) => String::from_utf8(out).unwrap(),
            Err(error) => error.to_string(),
        }
    }

    #[test]
    fn a_reason_says_its_code_and_what_to_do() {
        insta::assert_snapshot!(explained("RefNotFound"), @r"
        RefNotFound, a reason of sandbox.input_resolution_failed
          A repository, ref or commit could not be resolved or fetched.
          What to do: write the exact name of a ref that the repository has; `git ls-remote URL` lists them.
          Tried again for 10 seconds.
          `sandboxrun run` exits with 241.
        ");
    }

    #[test]
    fn every_code_and_reason_is_explained() {
        for code in Code::ALL {
            assert!(explained(code.as_str()).contains(code.meaning()));
            assert!(code.meaning().ends_with('.'), "{code}");
        }
        for reason in Reason::ALL {
            assert!(explained(reason.as_str()).contains(reason.hint()));
        }
    }

    #[test]
    fn what_is_not_there_gets_a_suggestion() {
        assert_eq!(
            explained("ref_not_found"),
            "ref_not_found is neither a code nor a reason: did you mean RefNotFound?"
        );
        assert_eq!(
            explained("\u{1b}[2J"),
            "\\x1b[2J is neither a code nor a reason: `sandboxrun explain` lists all codes"
        );
    }
}
