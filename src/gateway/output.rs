//! Checks what the agent left as its result. Pure.

use jsonschema::PatternOptions;
use serde_json::Value;

use crate::api::wire::OutputFile;
use crate::api::{Attempt, Failure, Reason, safe_text, sha256_hex};
use crate::audit::Event;

/// Deeper values are refused: nothing honest needs them, and they cost whoever reads them next.
const MAX_DEPTH: usize = 64;

/// The event for the record, and why the output does not count, if so.
pub(super) fn check(
    file: &OutputFile,
    schema: Option<&Value>,
    attempt: Attempt,
) -> (Event, Option<Failure>) {
    let failure = judge(file, schema).err();
    let (sha256, bytes, text) = match file {
        OutputFile::Text { text } => (
            Some(sha256_hex(text.as_bytes())),
            text.len() as u64,
            Some(text.replace('\0', "\u{fffd}")),
        ),
        OutputFile::Absent | OutputFile::Refused { .. } => (None, 0, None),
    };
    (
        Event::Output {
            attempt,
            sha256,
            bytes,
            text,
            failure: failure.clone(),
        },
        failure,
    )
}

/// Without a schema the file is optional and may be anything that is JSON; with one it must be there and fit.
fn judge(file: &OutputFile, schema: Option<&Value>) -> Result<(), Failure> {
    let text = match (file, schema) {
        (OutputFile::Absent, None) => return Ok(()),
        (OutputFile::Absent, Some(_)) => {
            return Err(Failure::new(
                Reason::OutputMissing,
                "output.json is not there, and agent.output.schema asks for it",
            ));
        }
        (OutputFile::Refused { message }, _) => {
            return Err(Failure::new(
                Reason::OutputNotJson,
                format!("output.json {message}"),
            ));
        }
        (OutputFile::Text { text }, _) => text,
    };
    let not_json = |why: String| {
        Failure::new(
            Reason::OutputNotJson,
            format!("output.json is not JSON: {why}"),
        )
    };
    let value: Value = serde_json::from_str(text).map_err(|error| not_json(error.to_string()))?;
    if depth(&value) > MAX_DEPTH {
        return Err(not_json(format!("it is more than {MAX_DEPTH} levels deep")));
    }
    let Some(schema) = schema else { return Ok(()) };
    let validator = validator(schema).map_err(|why| {
        Failure::new(
            Reason::RuleBroken,
            format!("agent.output.schema is not a JSON Schema: {why}"),
        )
    })?;
    validator.validate(&value).map_err(|error| {
        // Not the value: it may be long, and it is the agent's.
        let at = error.instance_path().to_string();
        let at = if at.is_empty() { "/".to_owned() } else { at };
        let rule = error.schema_path().to_string();
        Failure::new(
            Reason::SchemaMismatch,
            safe_text(format!("output.json at {at} breaks the schema's {rule}").as_bytes()),
        )
    })
}

/// A validator that fetches nothing and whose patterns run in linear time.
fn validator(schema: &Value) -> Result<jsonschema::Validator, String> {
    jsonschema::options()
        .with_pattern_options(PatternOptions::regex())
        .build(schema)
        .map_err(|error| safe_text(error.to_string().as_bytes()))
}

fn depth(value: &Value) -> usize {
    match value {
        Value::Array(items) => 1 + items.iter().map(depth).max().unwrap_or(0),
        Value::Object(fields) => 1 + fields.values().map(depth).max().unwrap_or(0),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;
    use serde_json::json;

    fn text(text: &str) -> OutputFile {
        OutputFile::Text { text: text.into() }
    }

    #[rstest]
    #[case::optional(OutputFile::Absent, None, None)]
    #[case::missing(OutputFile::Absent, Some(json!({})), Some(Reason::OutputMissing))]
    #[case::link(OutputFile::Refused { message: "is a symlink".into() }, None, Some(Reason::OutputNotJson))]
    #[case::not_json(text("{"), None, Some(Reason::OutputNotJson))]
    #[case::fits(text(r#"{"a": 1}"#), Some(json!({"required": ["a"]})), None)]
    #[case::does_not_fit(text(r#"{"b": 1}"#), Some(json!({"required": ["a"]})), Some(Reason::SchemaMismatch))]
    #[case::too_deep(text(&format!("{}{}", "[".repeat(65), "]".repeat(65))), None, Some(Reason::OutputNotJson))]
    #[case::outside_reference(text("{}"), Some(json!({"$ref": "http://127.0.0.1:1/x"})), Some(Reason::RuleBroken))]
    #[case::file_reference(text("{}"), Some(json!({"$ref": "file:///etc/passwd"})), Some(Reason::RuleBroken))]
    fn an_output_is_judged(
        #[case] file: OutputFile,
        #[case] schema: Option<Value>,
        #[case] want: Option<Reason>,
    ) {
        let (event, failure) = check(&file, schema.as_ref(), Attempt::FIRST);
        assert_eq!(failure.as_ref().map(|f| f.reason), want);
        let Event::Output {
            failure: recorded, ..
        } = event
        else {
            panic!("not an output")
        };
        assert_eq!(recorded, failure);
    }
}
