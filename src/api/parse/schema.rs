//! `agent.output.schema`: a JSON Schema that is one, is small, and points nowhere outside itself.

use serde_json::Value;

use super::Checks;
use crate::api::rules;

pub(super) fn check(checks: &mut Checks, field: &str, schema: &Value) {
    if !schema.is_object() {
        checks.refuse(
            field,
            "must be a JSON Schema as an object, such as {type: object}",
        );
        return;
    }
    if depth(schema, rules::MAX_SCHEMA_DEPTH).is_none() {
        let most = rules::MAX_SCHEMA_DEPTH;
        checks.refuse(field, format!("must have at most {most} levels"));
        return;
    }
    if schema.to_string().len() > rules::MAX_SCHEMA_BYTES {
        let most = rules::MAX_SCHEMA_BYTES;
        checks.refuse(field, format!("must have at most {most} bytes as JSON"));
        return;
    }
    if let Some(at) = outside(schema, field) {
        checks.refuse(
            at,
            "must point to a place in this schema, such as #/$defs/item: nothing is fetched",
        );
        return;
    }
    if let Err(error) = compile(schema) {
        let at = error.instance_path().as_str().replace('/', ".");
        checks.refuse(
            format!("{field}{at}"),
            format!("is no valid JSON Schema: {}", error.masked()),
        );
    }
}

/// Builds the validator as it is used on the output: patterns run on a linear engine, and nothing is fetched.
fn compile(schema: &Value) -> Result<jsonschema::Validator, jsonschema::ValidationError<'static>> {
    jsonschema::options()
        .with_pattern_options(jsonschema::PatternOptions::regex())
        .build(schema)
}

/// `Some` if the value has at most so many levels.
fn depth(value: &Value, most: usize) -> Option<()> {
    let below = most.checked_sub(1)?;
    match value {
        Value::Object(fields) => fields.values().try_for_each(|value| depth(value, below)),
        Value::Array(items) => items.iter().try_for_each(|value| depth(value, below)),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => Some(()),
    }
}

/// The field of the first reference that leads out of the schema. A property may be *named* `$ref`: then its value is
/// a schema and no text.
fn outside(value: &Value, at: &str) -> Option<String> {
    const REFERENCES: [&str; 3] = ["$ref", "$dynamicRef", "$recursiveRef"];
    match value {
        Value::Object(fields) => fields.iter().find_map(|(key, value)| {
            let field = format!("{at}.{key}");
            match value
                .as_str()
                .filter(|_| REFERENCES.contains(&key.as_str()))
            {
                Some(target) => (!target.starts_with('#')).then_some(field),
                None => outside(value, &field),
            }
        }),
        Value::Array(items) => {
            let mut items = items.iter().enumerate();
            items.find_map(|(index, value)| outside(value, &format!("{at}[{index}]")))
        }
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => None,
    }
}
