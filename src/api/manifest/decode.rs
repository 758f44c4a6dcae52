//! From a tree to an object: the envelope by hand, `spec` by its type, then the rules of its kind.

use std::borrow::Cow;
use std::collections::BTreeMap;

use k8s_openapi::ByteString;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde::de::DeserializeOwned;

use super::split::Chunk;
use super::tree::{self, Node};
use super::{Document, ManifestError, SecretBytes, SecretManifest, shown};
use crate::api::{
    Connector, ConnectorName, ParsedConnector, Reason, RunName, RunSpec, SandboxRun, rules,
};

const API_VERSION: &str = "sandboxrun.dev/v1alpha1";

type Found = Vec<(usize, Result<Document, ManifestError>)>;

/// Reads one chunk of a file, which is one YAML document or some JSON values.
pub(super) fn document(file: &str, chunk: &Chunk<'_>, found: &mut Found) {
    if chunk.text.trim_start().starts_with('{')
        && let Some(values) = tree::json(chunk.text)
    {
        for (index, root) in values.iter().enumerate() {
            let place = Place {
                file,
                number: chunk.number + index,
                first_line: chunk.first_line,
            };
            found.extend(object(&place, root));
        }
        return;
    }
    let place = Place {
        file,
        number: chunk.number,
        first_line: chunk.first_line,
    };
    match tree::yaml(chunk.text) {
        Ok(root) if root.is_null() => {}
        Ok(root) => found.extend(object(&place, &root)),
        Err(error) => {
            let line = Some(error.line).filter(|line| *line > 0);
            let error = ManifestError {
                file: file.to_owned(),
                line: line.map(|line| place.line(line)),
                document: Some(place.number),
                object: String::new(),
                field: String::new(),
                message: error.message.into(),
                reason: Reason::NotDecodable,
            };
            found.push((place.number, Err(error)));
        }
    }
}

/// Where a document stands.
struct Place<'a> {
    file: &'a str,
    number: usize,
    first_line: u64,
}

impl Place<'_> {
    fn line(&self, within: u64) -> u64 {
        self.first_line + within - 1
    }
}

/// One document and what is wrong with it.
struct Reader<'a> {
    place: &'a Place<'a>,
    root: &'a Node,
    object: String,
    errors: Vec<ManifestError>,
}

fn object(place: &Place<'_>, root: &Node) -> Found {
    let mut reader = Reader {
        place,
        root,
        object: String::new(),
        errors: Vec::new(),
    };
    let document = reader.read();
    match document {
        Some(document) if reader.errors.is_empty() => vec![(place.number, Ok(document))],
        Some(_) | None => {
            let errors = reader.errors.into_iter();
            errors.map(|error| (place.number, Err(error))).collect()
        }
    }
}

impl Reader<'_> {
    fn refuse(&mut self, reason: Reason, field: &str, message: impl Into<Cow<'static, str>>) {
        let line = self.root.line_of(field).map(|line| self.place.line(line));
        self.errors.push(ManifestError {
            file: self.place.file.to_owned(),
            line,
            document: Some(self.place.number),
            object: self.object.clone(),
            field: field.to_owned(),
            message: message.into(),
            reason,
        });
    }

    fn read(&mut self) -> Option<Document> {
        if !self.root.is_map() {
            self.refuse(
                Reason::NotDecodable,
                "",
                "must be a mapping with apiVersion, kind and metadata",
            );
            return None;
        }
        let said = |key: &str| self.root.get(key).and_then(Node::text);
        match (said("apiVersion"), said("kind")) {
            (Some(API_VERSION), Some("SandboxRun")) => self.run(),
            (Some(API_VERSION), Some("Connector")) => self.connector(),
            (Some("v1"), Some("Secret")) => self.secret(),
            (_, Some("SandboxRun" | "Connector")) => {
                self.refuse(
                    Reason::NotDecodable,
                    "apiVersion",
                    "must be sandboxrun.dev/v1alpha1",
                );
                None
            }
            (_, Some("Secret")) => {
                self.refuse(
                    Reason::NotDecodable,
                    "apiVersion",
                    "must be v1 for a Secret",
                );
                None
            }
            (_, Some(_) | None) => {
                self.refuse(
                    Reason::NotDecodable,
                    "kind",
                    "must be SandboxRun, Connector or Secret: remove other documents",
                );
                None
            }
        }
    }

    fn run(&mut self) -> Option<Document> {
        let metadata = self.envelope("SandboxRun", &["spec", "status"])?;
        let spec = self.typed("spec")?;
        match &metadata.name {
            Some(name) if name.parse::<RunName>().is_err() => {
                self.refuse(Reason::RuleBroken, "metadata.name", rules::OBJECT_NAME);
            }
            None if metadata.generate_name.is_none() => self.name_missing(),
            Some(_) | None => {}
        }
        let run = SandboxRun {
            metadata,
            spec,
            status: None,
        };
        if let Err(errors) = RunSpec::parse(&run.spec) {
            for error in errors {
                self.refuse(Reason::RuleBroken, &error.field, error.message);
            }
        }
        Some(Document::Run(Box::new(run)))
    }

    fn connector(&mut self) -> Option<Document> {
        let metadata = self.envelope("Connector", &["spec", "status"])?;
        let spec = self.typed("spec")?;
        let connector = Connector { metadata, spec };
        let name = self.name(connector.metadata.name.as_deref());
        let name = name
            .unwrap_or_else(|| "connector".to_owned())
            .parse::<ConnectorName>()
            .ok()?;
        if let Err(errors) = ParsedConnector::parse(&name, &connector.spec) {
            for error in errors {
                self.refuse(Reason::RuleBroken, &error.field, error.message);
            }
        }
        Some(Document::Connector(Box::new(connector)))
    }

    fn secret(&mut self) -> Option<Document> {
        let metadata = self.envelope("Secret", &["data", "stringData", "type", "immutable"])?;
        let name = self.name(metadata.name.as_deref());
        let mut values = BTreeMap::new();
        for (field, plain) in [("data", false), ("stringData", true)] {
            let Some(node) = self.root.get(field).filter(|node| !node.is_null()) else {
                continue;
            };
            if !node.is_map() {
                self.refuse(
                    Reason::NotDecodable,
                    field,
                    "must be a mapping of keys to texts",
                );
                continue;
            }
            for key in node.keys() {
                let value = node.get(key).and_then(Node::text);
                let at = format!("{field}.{key}");
                match value {
                    Some(text) if plain => {
                        values.insert(key.to_owned(), SecretBytes::new(text.as_bytes().to_vec()));
                    }
                    Some(text) => match serde_json::from_value::<ByteString>(text.into()) {
                        Ok(ByteString(bytes)) => {
                            values.insert(key.to_owned(), SecretBytes::new(bytes));
                        }
                        Err(_) => self.refuse(
                            Reason::NotDecodable,
                            &at,
                            "must be base64: write the plain text under stringData instead",
                        ),
                    },
                    None => self.refuse(
                        Reason::NotDecodable,
                        &at,
                        "must be text: put the value in quotes",
                    ),
                }
            }
        }
        Some(Document::Secret(SecretManifest {
            name: name?,
            namespace: metadata.namespace,
            annotations: metadata.annotations.unwrap_or_default(),
            values,
        }))
    }

    /// The metadata, once kind and name are known and no field is there that does not belong.
    fn envelope(&mut self, kind: &str, fields: &[&str]) -> Option<ObjectMeta> {
        const METADATA: &[&str] = &[
            "annotations",
            "creationTimestamp",
            "deletionGracePeriodSeconds",
            "deletionTimestamp",
            "finalizers",
            "generateName",
            "generation",
            "labels",
            "managedFields",
            "name",
            "namespace",
            "ownerReferences",
            "resourceVersion",
            "selfLink",
            "uid",
        ];
        let root = self.root;
        let name = root
            .get("metadata")
            .and_then(|node| node.get("name"))
            .and_then(Node::text);
        let name = crate::api::safe_text(name.unwrap_or_default().as_bytes());
        self.object = [kind, &name].join(" ").trim_end().into();
        let known = |key: &str| matches!(key, "apiVersion" | "kind" | "metadata");
        for key in root
            .keys()
            .filter(|key| !known(key) && !fields.contains(key))
        {
            let message = format!("is no field of a {kind}: it has {}", fields.join(", "));
            self.refuse(Reason::NotDecodable, &shown(key), message);
        }
        let Some(node) = root.get("metadata") else {
            self.refuse(
                Reason::NotDecodable,
                "metadata",
                "is missing: it holds the name",
            );
            return None;
        };
        for key in node.keys().filter(|key| !METADATA.contains(key)) {
            let field = format!("metadata.{}", shown(key));
            self.refuse(
                Reason::NotDecodable,
                &field,
                "is no field of metadata: write name, namespace, labels or annotations",
            );
        }
        self.typed("metadata")
    }

    fn name(&mut self, name: Option<&str>) -> Option<String> {
        match name {
            Some(name) if name.parse::<RunName>().is_ok() => Some(name.to_owned()),
            Some(_) => {
                self.refuse(Reason::RuleBroken, "metadata.name", rules::OBJECT_NAME);
                None
            }
            None => {
                self.name_missing();
                None
            }
        }
    }

    fn name_missing(&mut self) {
        self.refuse(
            Reason::RuleBroken,
            "metadata.name",
            "is missing: give the object a name",
        );
    }

    /// A part of the document by its type.
    fn typed<T: DeserializeOwned>(&mut self, part: &str) -> Option<T> {
        let Some(node) = self.root.get(part) else {
            self.refuse(Reason::NotDecodable, part, "is missing");
            return None;
        };
        match serde_path_to_error::deserialize(node.json()) {
            Ok(value) => Some(value),
            Err(error) => {
                let path = error.path().to_string();
                let inner = error.into_inner().to_string();
                let (field, message) = plain(part, &path, &inner);
                self.refuse(Reason::NotDecodable, &field, message);
                None
            }
        }
    }
}

/// Field and message of a decoding error, in words of ours and without the value.
fn plain(part: &str, path: &str, error: &str) -> (String, String) {
    let mut field = match path {
        "." | "" => part.to_owned(),
        path => format!("{part}.{path}"),
    };
    let quoted = || error.split('`').nth(1).unwrap_or_default();
    let allowed = || {
        let names = error
            .split_once("expected ")
            .map(|(_, names)| names)
            .unwrap_or_default();
        names
            .split('`')
            .skip(1)
            .step_by(2)
            .collect::<Vec<_>>()
            .join(", ")
    };
    if error.starts_with("missing field") {
        return (format!("{field}.{}", quoted()), "is missing".to_owned());
    }
    if error.starts_with("unknown field") {
        let key = shown(quoted());
        if !field.ends_with(&format!(".{key}")) {
            field = format!("{}.{key}", field.trim_end_matches(".?"));
        }
        return (
            field,
            format!("is no field here: write one of {}", allowed()),
        );
    }
    if error.starts_with("unknown variant") {
        return (field, format!("must be one of {}", allowed()));
    }
    let expected = error.rsplit_once("expected ").map(|(_, expected)| expected);
    let found = error.strip_prefix("invalid type: ");
    let message = match (expected, found) {
        (Some(expected), Some(found)) => wrong_type(expected, found),
        (Some(expected), None) => format!("is out of range: must be {}", kind(expected)),
        (None, _) => "cannot be read".to_owned(),
    };
    (field, message)
}

fn wrong_type(expected: &str, found: &str) -> String {
    let wanted = kind(expected);
    let is = |word: &str| found.starts_with(word);
    let found = if is("string") {
        "text"
    } else if is("map") {
        "a mapping"
    } else if is("sequence") {
        "a list"
    } else if is("null") || is("unit") {
        "empty"
    } else if is("boolean") {
        "true or false"
    } else {
        "a number"
    };
    match (wanted, found) {
        ("text", "true or false" | "a number") => {
            format!("must be text, and is {found}: put it in quotes")
        }
        (_, "empty") => format!("must be {wanted}, and is empty: fill it in or remove the field"),
        _ => format!("must be {wanted}, and is {found}"),
    }
}

/// What serde expects, in words of a manifest.
fn kind(expected: &str) -> &'static str {
    let expected = expected.trim_start_matches("a ").trim_start_matches("an ");
    match expected {
        "string" => "text",
        "sequence" => "a list",
        "boolean" => "true or false",
        "i32" | "i64" | "u32" | "u64" | "u16" => "a whole number",
        other if other.starts_with("variant") || other.starts_with("enum") => {
            "one of the listed words"
        }
        // A struct, by its name.
        _ => "a mapping",
    }
}
