//! A document as a tree that knows the line of every part: no key twice, bounded depth and expansion.

use std::collections::HashSet;
use std::fmt;
use std::marker::PhantomData;

use serde::Deserialize;
use serde::de::{Deserializer, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Number, Value};
use serde_saphyr::Spanned;

/// A value and where it stands.
#[derive(Debug)]
pub(super) struct Node {
    /// From 1; 0 where it is not known.
    line: u64,
    value: Kind,
}

#[derive(Debug)]
enum Kind {
    Null,
    Bool(bool),
    Number(Number),
    Text(String),
    List(Vec<Node>),
    Map(Vec<(Key, Node)>),
}

#[derive(Debug)]
struct Key {
    line: u64,
    text: String,
}

/// Why a text is no tree.
#[derive(Debug)]
pub(super) struct TreeError {
    /// Within the text, from 1; 0 where it is not known.
    pub(super) line: u64,
    pub(super) message: String,
}

/// Reads one YAML document. Unquoted `yes`, `no`, `on` and `off` are booleans, and numbers that begin with 0 are octal,
/// as `kubectl` reads them.
pub(super) fn yaml(text: &str) -> Result<Node, TreeError> {
    let options = serde_saphyr::options! {
        with_snippet: false,
        legacy_octal_numbers: true,
        budget: serde_saphyr::budget! {
            max_depth: MAX_DEPTH,
            max_nodes: MAX_NODES,
            max_events: 4 * MAX_NODES,
            max_aliases: 1_000,
            max_anchors: 1_000,
            max_total_scalar_bytes: 2 * super::MAX_BYTES,
        },
        alias_limits: serde_saphyr::alias_limits! {
            max_total_replayed_events: MAX_NODES,
            max_replay_stack_depth: 16,
        },
    };
    let yaml = serde_saphyr::from_str_with_options::<Yaml>(text, options);
    yaml.map(|yaml| yaml.0).map_err(|error| yaml_error(&error))
}

/// Reads one or several JSON values, if that is what the text is.
pub(super) fn json(text: &str) -> Option<Vec<Node>> {
    let values = serde_json::Deserializer::from_str(text).into_iter::<Json>();
    values
        .map(|value| value.map(|json| json.0))
        .collect::<Result<_, _>>()
        .ok()
}

/// Levels of a document: those of the deepest output schema and of what stands around it. A level costs 30 KiB of stack in
/// a debug build, and a thread has 2 MiB.
const MAX_DEPTH: usize = 48;
/// Values in a document, after anchors are expanded.
const MAX_NODES: usize = 100_000;

impl Node {
    pub(super) fn get(&self, key: &str) -> Option<&Self> {
        self.fields()
            .find(|(name, _)| *name == key)
            .map(|(_, node)| node)
    }

    pub(super) fn keys(&self) -> impl Iterator<Item = &str> {
        self.fields().map(|(name, _)| name)
    }

    pub(super) fn text(&self) -> Option<&str> {
        match &self.value {
            Kind::Text(text) => Some(text),
            Kind::Null | Kind::Bool(_) | Kind::Number(_) | Kind::List(_) | Kind::Map(_) => None,
        }
    }

    pub(super) fn is_null(&self) -> bool {
        matches!(self.value, Kind::Null)
    }

    pub(super) fn is_map(&self) -> bool {
        matches!(self.value, Kind::Map(_))
    }

    /// The plain value.
    pub(super) fn json(&self) -> Value {
        match &self.value {
            Kind::Null => Value::Null,
            Kind::Bool(value) => Value::Bool(*value),
            Kind::Number(number) => Value::Number(number.clone()),
            Kind::Text(text) => Value::String(text.clone()),
            Kind::List(items) => items.iter().map(Self::json).collect(),
            Kind::Map(fields) => {
                let fields = fields
                    .iter()
                    .map(|(key, node)| (key.text.clone(), node.json()));
                Value::Object(fields.collect::<Map<_, _>>())
            }
        }
    }

    /// The line of a field such as `spec.inputs[0].ref`, or of the closest part around it that is there.
    pub(super) fn line_of(&self, field: &str) -> Option<u64> {
        let mut line = self.line;
        let mut node = self;
        for step in field.split(['.', '[']).filter(|step| !step.is_empty()) {
            let next = match (&node.value, step.strip_suffix(']')) {
                (Kind::List(items), Some(at)) => at
                    .parse::<usize>()
                    .ok()
                    .and_then(|at| items.get(at))
                    .map(|n| (n.line, n)),
                (Kind::Map(fields), None) => fields
                    .iter()
                    .find(|(key, _)| key.text == step)
                    .map(|(key, node)| (key.line, node)),
                _ => None,
            };
            let Some((at, next)) = next else { break };
            line = if at > 0 { at } else { line };
            node = next;
        }
        Some(line).filter(|line| *line > 0)
    }

    fn fields(&self) -> impl Iterator<Item = (&str, &Self)> {
        let fields = match &self.value {
            Kind::Map(fields) => fields.as_slice(),
            Kind::Null | Kind::Bool(_) | Kind::Number(_) | Kind::Text(_) | Kind::List(_) => &[],
        };
        fields.iter().map(|(key, node)| (key.text.as_str(), node))
    }
}

/// What a tree is read from: YAML tells the line of a key and a value, JSON does not.
trait Source<'de> {
    type Key: Deserialize<'de> + Into<Key>;
    type Item: Deserialize<'de> + Into<Node>;
}

#[derive(Debug)]
struct Yaml(Node);

impl Source<'_> for Yaml {
    type Key = Spanned<String>;
    type Item = Self;
}

impl<'de> Deserialize<'de> for Yaml {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let spanned = Spanned::<Read<Self>>::deserialize(deserializer)?;
        Ok(Self(Node {
            line: spanned.referenced.line(),
            value: spanned.value.0,
        }))
    }
}

impl From<Yaml> for Node {
    fn from(yaml: Yaml) -> Self {
        yaml.0
    }
}

impl From<Spanned<String>> for Key {
    fn from(key: Spanned<String>) -> Self {
        Self {
            line: key.referenced.line(),
            text: key.value,
        }
    }
}

struct Json(Node);

impl Source<'_> for Json {
    type Key = String;
    type Item = Self;
}

impl<'de> Deserialize<'de> for Json {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Ok(Self(Node {
            line: 0,
            value: Read::<Self>::deserialize(deserializer)?.0,
        }))
    }
}

impl From<Json> for Node {
    fn from(json: Json) -> Self {
        json.0
    }
}

impl From<String> for Key {
    fn from(text: String) -> Self {
        Self { line: 0, text }
    }
}

/// A value as one of the sources gives it.
struct Read<S>(Kind, PhantomData<S>);

impl<'de, S: Source<'de>> Deserialize<'de> for Read<S> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let kind = deserializer.deserialize_any(KindVisitor::<S>(PhantomData))?;
        Ok(Self(kind, PhantomData))
    }
}

struct KindVisitor<S>(PhantomData<S>);

impl<'de, S: Source<'de>> Visitor<'de> for KindVisitor<S> {
    type Value = Kind;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a value")
    }

    fn visit_unit<E>(self) -> Result<Kind, E> {
        Ok(Kind::Null)
    }

    fn visit_none<E>(self) -> Result<Kind, E> {
        Ok(Kind::Null)
    }

    fn visit_some<D: Deserializer<'de>>(self, deserializer: D) -> Result<Kind, D::Error> {
        deserializer.deserialize_any(self)
    }

    fn visit_bool<E>(self, value: bool) -> Result<Kind, E> {
        Ok(Kind::Bool(value))
    }

    fn visit_i64<E>(self, value: i64) -> Result<Kind, E> {
        Ok(Kind::Number(value.into()))
    }

    fn visit_u64<E>(self, value: u64) -> Result<Kind, E> {
        Ok(Kind::Number(value.into()))
    }

    fn visit_f64<E: serde::de::Error>(self, value: f64) -> Result<Kind, E> {
        let number = Number::from_f64(value).ok_or_else(|| E::custom(NOT_FINITE))?;
        Ok(Kind::Number(number))
    }

    fn visit_str<E>(self, value: &str) -> Result<Kind, E> {
        Ok(Kind::Text(value.to_owned()))
    }

    fn visit_string<E>(self, value: String) -> Result<Kind, E> {
        Ok(Kind::Text(value))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Kind, A::Error> {
        let mut list = Vec::new();
        while let Some(item) = items.next_element::<S::Item>()? {
            list.push(item.into());
        }
        Ok(Kind::List(list))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<Kind, A::Error> {
        let mut fields: Vec<(Key, Node)> = Vec::new();
        let mut seen = HashSet::new();
        while let Some(key) = entries.next_key::<S::Key>()? {
            let key: Key = key.into();
            if !seen.insert(key.text.clone()) {
                return Err(serde::de::Error::custom("a key is there twice"));
            }
            fields.push((key, entries.next_value::<S::Item>()?.into()));
        }
        Ok(Kind::Map(fields))
    }
}

const NOT_FINITE: &str = "holds a number that is not finite: write it in quotes";

/// An error in words of ours. The library's own may quote what it stumbled over, which may be a secret; only the
/// scanner's are fixed texts about the syntax.
fn yaml_error(error: &serde_saphyr::Error) -> TreeError {
    let line = error.location().map_or(0, |at| at.line());
    TreeError {
        line,
        message: yaml_message(error.without_snippet()),
    }
}

#[expect(
    clippy::wildcard_enum_match_arm,
    reason = "an enum of the library with some sixty variants, most of which a tree cannot meet"
)]
fn yaml_message(error: &serde_saphyr::Error) -> String {
    use serde_saphyr::Error as E;
    match error {
        E::AliasError { error, .. } => yaml_message(error),
        E::DuplicateMappingKey { key: Some(key), .. } => {
            format!("has the key {} twice in one mapping: remove one of the two", super::shown(key))
        }
        E::DuplicateMappingKey { key: None, .. } => {
            "has a key twice in one mapping: remove one of the two".to_owned()
        }
        E::Budget { .. }
        | E::AliasReplayCounterOverflow { .. }
        | E::AliasReplayLimitExceeded { .. }
        | E::AliasExpansionLimitExceeded { .. }
        | E::AliasReplayStackDepthExceeded { .. } => format!(
            "is nested too deeply or grows too large when its anchors are expanded: at most {MAX_DEPTH} levels and {MAX_NODES} values"
        ),
        E::UnknownAnchor { .. } => {
            "begins with '*' but names no anchor of this document: put the text in quotes".to_owned()
        }
        E::NonFiniteFloat { .. } => NOT_FINITE.to_owned(),
        E::UnsupportedTag { .. } => "has a YAML tag: put the text in quotes, or remove the tag".to_owned(),
        E::MultipleDocuments { .. } => {
            "has more than one value in one document: put a line with --- between them".to_owned()
        }
        E::ExternalMessage { msg, .. } => format!("is no YAML: {msg}"),
        _ => "is no YAML that can be read here: check indentation, quotes and brackets near this line".to_owned(),
    }
}
