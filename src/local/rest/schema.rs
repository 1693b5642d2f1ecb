//! The schemas of a document as schemas of arguments: JSON Schema of 2020-12 that stands by itself.
//!
//! What a schema refers to goes into the tool's own `$defs`, so that a schema that contains itself
//! stays what it is. What is nearest goes in first; once a schema has its size, what it refers to
//! beyond that is left open.

use std::collections::{BTreeMap, VecDeque};

use serde_json::{Map, Value, json};

use super::arguments::truncated;
use super::document::{ApiDocument, Dialect};

/// How large the schema of a tool may get, about.
const LARGEST: usize = 32 << 10;
/// How deep a schema may be nested without a reference between.
const DEEPEST: usize = 24;
/// How many references lead from one to the next.
const LONGEST_CHAIN: usize = 16;
/// How many schemas the members of one body may come from.
const MOST_PARTS: usize = 100;
/// How much of a description is kept.
const DESCRIPTION: usize = 600;
/// How large an example, a default or a list of values may be.
const LARGEST_EXAMPLE: usize = 200;
const LARGEST_DEFAULT: usize = 500;
const LARGEST_ENUM: usize = 8 << 10;
/// A schema that is as small as this is copied to where it is referred to.
const SMALL: usize = 300;

/// Whether a value has the form that a keyword wants.
type Fits = fn(&Value) -> bool;

/// Keywords whose values are taken as they are, with the form that they must have.
const PLAIN: &[(&str, Fits)] = &[
    ("format", Value::is_string),
    ("title", |value| value.as_str().is_some_and(|title| title.len() <= 100)),
    ("const", |value| size(value) <= LARGEST_DEFAULT),
    ("default", |value| size(value) <= LARGEST_DEFAULT),
    ("multipleOf", positive),
    ("minimum", Value::is_number),
    ("maximum", Value::is_number),
    ("minLength", Value::is_u64),
    ("maxLength", Value::is_u64),
    ("pattern", |value| value.as_str().is_some_and(|pattern| pattern.len() <= LARGEST_DEFAULT)),
    ("minItems", Value::is_u64),
    ("maxItems", Value::is_u64),
    ("uniqueItems", Value::is_boolean),
    ("minProperties", Value::is_u64),
    ("maxProperties", Value::is_u64),
    ("contentEncoding", Value::is_string),
    ("contentMediaType", Value::is_string),
    ("deprecated", Value::is_boolean),
    ("writeOnly", Value::is_boolean),
];

/// Builds the schema of one tool.
#[derive(Debug)]
pub(super) struct Builder<'d> {
    document: &'d ApiDocument,
    /// The names under which what is referred to goes into `$defs`.
    names: BTreeMap<&'d str, String>,
    waiting: VecDeque<(String, &'d Value)>,
    left: usize,
}

/// The members of a schema of an object, if that is all it is.
#[derive(Debug, Default)]
pub(super) struct SchemaMembers<'d> {
    pub(super) properties: BTreeMap<&'d str, &'d Value>,
    pub(super) required: Vec<&'d str>,
    /// How many schemas they come from.
    parts: usize,
}

impl<'d> Builder<'d> {
    pub(super) fn new(document: &'d ApiDocument) -> Self {
        Self { document, names: BTreeMap::new(), waiting: VecDeque::new(), left: LARGEST }
    }

    /// A schema of the document for one argument. At its top there is no reference.
    pub(super) fn top(&mut self, schema: &'d Value) -> Value {
        match self.resolved(schema) {
            Some(found) => self.convert(found, DEEPEST),
            None => json!({}),
        }
    }

    /// What was referred to.
    pub(super) fn finish(mut self) -> Option<Value> {
        let mut definitions = Map::new();
        while let Some((name, target)) = self.waiting.pop_front() {
            let converted = self.convert(target, DEEPEST);
            definitions.insert(name, converted);
        }
        (!definitions.is_empty()).then_some(Value::Object(definitions))
    }

    /// Follows references to what they mean; nothing when that is not in the document.
    pub(super) fn resolved(&self, schema: &'d Value) -> Option<&'d Value> {
        let mut here = schema;
        for _ in 0..LONGEST_CHAIN {
            let Some(reference) = here.get("$ref").and_then(Value::as_str) else { return Some(here) };
            here = self.document.find(reference)?;
        }
        None
    }

    /// The members that a schema of an object has, with those of all that it is made of; nothing when it
    /// is anything more than a list of members.
    pub(super) fn members(&self, schema: &'d Value) -> Option<SchemaMembers<'d>> {
        let mut found = SchemaMembers::default();
        self.collect(schema, LONGEST_CHAIN, &mut found).filter(|()| !found.properties.is_empty())?;
        found.required.retain(|name| found.properties.contains_key(name));
        Some(found)
    }

    fn collect(&self, schema: &'d Value, depth: usize, found: &mut SchemaMembers<'d>) -> Option<()> {
        found.parts += 1;
        if found.parts > MOST_PARTS {
            return None;
        }
        let schema = self.resolved(schema).filter(|_| depth > 0)?.as_object()?;
        let object = match schema.get("type") {
            None => schema.contains_key("properties") || schema.contains_key("allOf"),
            Some(kind) => kind == "object",
        };
        let more = ["oneOf", "anyOf", "not", "if", "patternProperties", "discriminator"];
        let open = schema.get("additionalProperties").is_some_and(|more| *more != Value::Bool(false));
        let nullable = schema.get("nullable").is_some_and(|nullable| *nullable == Value::Bool(true));
        if !object || open || nullable || more.iter().any(|key| schema.contains_key(*key)) {
            return None;
        }
        for part in schema.get("allOf").and_then(Value::as_array).into_iter().flatten() {
            self.collect(part, depth - 1, found)?;
        }
        for (name, property) in schema.get("properties").and_then(Value::as_object).into_iter().flatten() {
            if !self.read_only(property) {
                found.properties.insert(name, property);
            }
        }
        let required = schema.get("required").and_then(Value::as_array).into_iter().flatten();
        found.required.extend(required.filter_map(Value::as_str));
        Some(())
    }

    fn read_only(&self, property: &'d Value) -> bool {
        let found = self.resolved(property).unwrap_or(property);
        found.get("readOnly").is_some_and(|value| *value == Value::Bool(true))
    }

    fn convert(&mut self, schema: &'d Value, depth: usize) -> Value {
        if depth == 0 || self.left == 0 {
            return json!({});
        }
        if let Some(reference) = schema.get("$ref").and_then(Value::as_str) {
            return self.referred(reference, schema, depth);
        }
        let mut hidden = Vec::new();
        for (name, property) in schema.get("properties").and_then(Value::as_object).into_iter().flatten() {
            if self.read_only(property) {
                hidden.push(name.as_str());
            }
        }
        let dialect = self.document.dialect();
        let mut converted = adapt(schema, dialect, |part, name| {
            if name.is_some_and(|name| hidden.contains(&name)) { Value::Null } else { self.convert(part, depth - 1) }
        });
        if !hidden.is_empty() {
            without(&mut converted, &hidden);
        }
        // What is below has been counted already.
        self.left = self.left.saturating_sub(own_size(&converted));
        if self.left == 0 { json!({}) } else { converted }
    }

    fn referred(&mut self, reference: &'d str, schema: &'d Value, depth: usize) -> Value {
        if let Some(name) = self.names.get(reference) {
            self.left = self.left.saturating_sub(name.len() + 24);
            return json!({ "$ref": format!("#/$defs/{name}") });
        }
        let Some(target) = self.document.find(reference).and_then(|target| self.resolved(target)) else {
            return json!({});
        };
        if simple(target) {
            let mut copied = self.convert(target, depth - 1);
            if let (Some(said), Some(copied)) = (schema.get("description"), copied.as_object_mut()) {
                copied.insert("description".to_owned(), bounded(said, DESCRIPTION));
            }
            return copied;
        }
        let last = reference.rsplit('/').next().unwrap_or_default();
        let mut name: String = last.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '_' }).take(60).collect();
        while self.names.values().any(|taken| *taken == name) {
            name.push('_');
        }
        self.left = self.left.saturating_sub(name.len() + 24);
        self.names.insert(reference, name.clone());
        self.waiting.push_back((name.clone(), target));
        json!({ "$ref": format!("#/$defs/{name}") })
    }
}

/// One schema in the newest form, with `part` for the schemas in it.
fn adapt<'v>(schema: &'v Value, dialect: Dialect, mut part: impl FnMut(&'v Value, Option<&str>) -> Value) -> Value {
    let Some(from) = schema.as_object() else {
        return if schema.is_boolean() { schema.clone() } else { json!({}) };
    };
    let mut to = Map::new();
    if let Some(kind) = from.get("type").and_then(types) {
        to.insert("type".to_owned(), kind);
    }
    if let Some(said) = from.get("description").filter(|said| said.is_string()) {
        to.insert("description".to_owned(), bounded(said, DESCRIPTION));
    }
    for (key, fits) in PLAIN {
        if let Some(value) = from.get(*key).filter(|value| fits(value)) {
            to.insert((*key).to_owned(), value.clone());
        }
    }
    if let Some(values) = from.get("enum").filter(|values| !is_empty(values) && size(values) <= LARGEST_ENUM) {
        to.insert("enum".to_owned(), values.clone());
    }
    if from.get("type").is_some_and(|kind| kind == "file") {
        to.insert("type".to_owned(), "string".into());
        to.insert("format".to_owned(), "binary".into());
    }
    limits(from, &mut to);
    examples(from, &mut to);
    parts(from, &mut to, &mut part);
    if let Some(required) = from.get("required").and_then(Value::as_array) {
        let names: Vec<&Value> = required.iter().filter(|name| name.is_string()).collect();
        if !names.is_empty() {
            to.insert("required".to_owned(), json!(names));
        }
    }
    let null = |key: &str| from.get(key).is_some_and(|value| *value == Value::Bool(true));
    if (dialect != Dialect::Newest && null("nullable")) || null("x-nullable") {
        return nullable(to);
    }
    Value::Object(to)
}

/// The schemas within a schema.
fn parts<'v>(
    from: &'v Map<String, Value>,
    to: &mut Map<String, Value>,
    part: &mut impl FnMut(&'v Value, Option<&str>) -> Value,
) {
    for key in ["properties", "patternProperties"] {
        if let Some(members) = from.get(key).and_then(Value::as_object) {
            let own = key == "properties";
            let members = members.iter().map(|(name, value)| (name.clone(), part(value, own.then_some(name.as_str()))));
            to.insert(key.to_owned(), Value::Object(members.collect()));
        }
    }
    for key in ["allOf", "anyOf", "oneOf", "prefixItems"] {
        if let Some(items) = from.get(key).and_then(Value::as_array).filter(|items| !items.is_empty()) {
            let items: Vec<Value> = items.iter().map(|item| part(item, None)).collect();
            to.insert(key.to_owned(), items.into());
        }
    }
    for key in ["additionalProperties", "not", "contains", "propertyNames", "items"] {
        match from.get(key) {
            // A list of schemas was how a tuple was written once.
            Some(Value::Array(items)) if key == "items" && !items.is_empty() => {
                let items: Vec<Value> = items.iter().map(|item| part(item, None)).collect();
                to.insert("prefixItems".to_owned(), items.into());
            }
            Some(value) if value.is_object() || value.is_boolean() => {
                to.insert(key.to_owned(), part(value, None));
            }
            _ => {}
        }
    }
}

/// Limits that were a flag beside another limit once, and are numbers now.
fn limits(from: &Map<String, Value>, to: &mut Map<String, Value>) {
    for (exclusive, inclusive) in [("exclusiveMinimum", "minimum"), ("exclusiveMaximum", "maximum")] {
        match from.get(exclusive) {
            Some(Value::Bool(true)) => {
                if let Some(limit) = to.remove(inclusive) {
                    to.insert(exclusive.to_owned(), limit);
                }
            }
            Some(limit) if limit.is_number() => {
                to.insert(exclusive.to_owned(), limit.clone());
            }
            _ => {}
        }
    }
}

fn examples(from: &Map<String, Value>, to: &mut Map<String, Value>) {
    let one = from.get("example").into_iter();
    let many = from.get("examples").and_then(Value::as_array).into_iter().flatten();
    let kept: Vec<&Value> = one.chain(many).filter(|example| size(example) <= LARGEST_EXAMPLE).take(2).collect();
    if !kept.is_empty() {
        to.insert("examples".to_owned(), json!(kept));
    }
}

fn types(kind: &Value) -> Option<Value> {
    let known = |kind: &Value| {
        let name = kind.as_str()?;
        super::spec::ValueKind::named(name)?;
        Some(kind.clone())
    };
    match kind {
        Value::Array(kinds) => {
            let kinds: Vec<Value> = kinds.iter().filter_map(known).collect();
            (!kinds.is_empty()).then_some(Value::Array(kinds))
        }
        kind => known(kind),
    }
}

/// The same schema, but null is allowed too.
fn nullable(mut schema: Map<String, Value>) -> Value {
    if let Some(Value::Array(values)) = schema.get_mut("enum")
        && !values.contains(&Value::Null)
    {
        values.push(Value::Null);
    }
    let composed = ["allOf", "anyOf", "oneOf"].iter().any(|key| schema.contains_key(*key));
    match schema.get_mut("type") {
        Some(kind) if kind.is_string() => *kind = json!([kind, "null"]),
        None if composed => return json!({ "anyOf": [schema, { "type": "null" }] }),
        _ => {}
    }
    Value::Object(schema)
}

/// Takes members out that a request does not have.
fn without(schema: &mut Value, names: &[&str]) {
    if let Some(properties) = schema.get_mut("properties").and_then(Value::as_object_mut) {
        properties.retain(|name, _| !names.contains(&name.as_str()));
    }
    if let Some(required) = schema.get_mut("required").and_then(Value::as_array_mut) {
        required.retain(|name| !name.as_str().is_some_and(|name| names.contains(&name)));
    }
}

/// Whether a schema is so simple that a copy is better than a reference.
fn simple(schema: &Value) -> bool {
    let deep = ["properties", "items", "allOf", "anyOf", "oneOf", "not", "additionalProperties", "prefixItems"];
    let Some(members) = schema.as_object() else { return true };
    !deep.iter().any(|key| members.contains_key(*key)) && size(schema) <= SMALL
}

fn bounded(said: &Value, most: usize) -> Value {
    let text = said.as_str().unwrap_or_default().trim();
    if text.len() <= most { text.into() } else { format!("{}…", truncated(text, most).trim_end()).into() }
}

fn is_empty(values: &Value) -> bool {
    values.as_array().is_none_or(Vec::is_empty)
}

fn positive(value: &Value) -> bool {
    value.as_f64().is_some_and(|number| number > 0.0)
}

/// How many bytes a value has as JSON, about.
pub(super) fn size(value: &Value) -> usize {
    match value {
        Value::Null | Value::Bool(_) => 5,
        Value::Number(_) => 8,
        Value::String(text) => text.len() + 2,
        Value::Array(items) => 2 + items.iter().map(|item| size(item) + 1).sum::<usize>(),
        Value::Object(members) => 2 + members.iter().map(|(key, value)| key.len() + 4 + size(value)).sum::<usize>(),
    }
}

/// The size of a schema without the schemas in it.
fn own_size(schema: &Value) -> usize {
    let Some(members) = schema.as_object() else { return 5 };
    let keys = |value: &Value| value.as_object().map_or(0, |all| all.keys().map(|key| key.len() + 4).sum::<usize>());
    let own = members.iter().map(|(key, value)| {
        key.len()
            + 6
            + match key.as_str() {
                "properties" | "patternProperties" => keys(value),
                "allOf"
                | "anyOf"
                | "oneOf"
                | "prefixItems"
                | "items"
                | "additionalProperties"
                | "not"
                | "contains"
                | "propertyNames" => 2,
                _ => size(value),
            }
    });
    2 + own.sum::<usize>()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn converted(version: &str, schemas: &Value, schema: &Value) -> (Value, Option<Value>) {
        let mut document = json!({ "openapi": version, "components": { "schemas": schemas } });
        document["schema"] = schema.clone();
        let document = ApiDocument::new(document).unwrap();
        let mut builder = Builder::new(&document);
        let converted = builder.top(document.find("#/schema").unwrap());
        (converted, builder.finish())
    }

    #[test]
    fn older_forms_become_the_newest() {
        let cases = [
            (json!({ "type": "string", "nullable": true }), json!({ "type": ["string", "null"] })),
            (
                json!({ "type": "string", "nullable": true, "enum": ["a"] }),
                json!({ "type": ["string", "null"], "enum": ["a", null] }),
            ),
            (
                json!({ "allOf": [{ "type": "string" }], "nullable": true }),
                json!({ "anyOf": [{ "allOf": [{ "type": "string" }] }, { "type": "null" }] }),
            ),
            (
                json!({ "type": "integer", "minimum": 0, "exclusiveMinimum": true, "maximum": 9, "exclusiveMaximum": false }),
                json!({ "type": "integer", "exclusiveMinimum": 0, "maximum": 9 }),
            ),
            (json!({ "type": "string", "example": "x" }), json!({ "type": "string", "examples": ["x"] })),
            (json!({ "type": "file" }), json!({ "type": "string", "format": "binary" })),
            (
                json!({ "type": "any", "xml": {}, "x-mcp-header": "A", "discriminator": {}, "required": true }),
                json!({}),
            ),
            (
                json!({ "type": "array", "items": [{ "type": "string" }] }),
                json!({ "type": "array", "prefixItems": [{ "type": "string" }] }),
            ),
            (
                json!({ "properties": { "id": { "readOnly": true }, "n": {} }, "required": ["id", "n"] }),
                json!({ "properties": { "n": {} }, "required": ["n"] }),
            ),
        ];
        for (from, to) in cases {
            assert_eq!(converted("3.0.3", &json!({}), &from), (to, None), "{from}");
        }
    }

    #[test]
    fn the_newest_form_stays() {
        let schema = json!({
            "type": ["string", "null"], "examples": ["x"], "exclusiveMinimum": 3, "const": 1,
        });
        assert_eq!(converted("3.1.0", &json!({}), &schema), (schema, None));
    }

    #[test]
    fn a_schema_that_contains_itself_stays_what_it_is() {
        let node = json!({ "type": "object", "properties": {
            "children": { "type": "array", "items": { "$ref": "#/components/schemas/Node" } },
        } });
        let (top, definitions) =
            converted("3.0.0", &json!({ "Node": node }), &json!({ "$ref": "#/components/schemas/Node" }));
        let inner = json!({ "type": "object", "properties": {
            "children": { "type": "array", "items": { "$ref": "#/$defs/Node" } },
        } });
        assert_eq!(top, inner);
        assert_eq!(definitions, Some(json!({ "Node": inner })));
    }

    #[test]
    fn references_that_lead_nowhere_are_left_open() {
        for reference in ["https://elsewhere.example/s.json", "other.yaml#/A", "#/nowhere", "#/components/schemas/Loop"]
        {
            let schemas = json!({ "Loop": { "$ref": "#/components/schemas/Loop" } });
            let schema = json!({ "type": "array", "items": { "$ref": reference } });
            assert_eq!(converted("3.0.0", &schemas, &schema), (json!({ "type": "array", "items": {} }), None));
        }
    }

    #[test]
    fn a_schema_has_its_size() {
        let text = "x".repeat(500);
        let mut schemas = Map::new();
        for n in 0..2000 {
            let next = |by: usize| json!({ "$ref": format!("#/components/schemas/S{}", (n * 7 + by) % 2000) });
            let properties = json!({ "a": next(1), "b": next(2), "c": next(3), "t": { "description": text } });
            schemas.insert(format!("S{n}"), json!({ "type": "object", "properties": properties }));
        }
        let (top, definitions) = converted("3.0.0", &schemas.into(), &json!({ "$ref": "#/components/schemas/S1" }));
        assert!(top["properties"]["t"]["description"].is_string());
        let definitions = definitions.unwrap();
        assert!(size(&definitions) < 2 * LARGEST, "{}", size(&definitions));
        let wanted = definitions.to_string();
        for name in wanted.split("#/$defs/").skip(1).map(|rest| rest.split('"').next().unwrap()) {
            assert!(definitions.get(name).is_some(), "{name}");
        }
    }

    proptest! {
        /// Whatever graph of schemas there is, every reference of the result has its target.
        #[test]
        fn every_reference_has_its_target(edges in prop::collection::vec((0..12usize, 0..12usize, any::<bool>()), 0..40)) {
            let mut schemas: Map<String, Value> =
                (0..12).map(|n| (format!("S{n}"), json!({ "type": "object", "properties": {}, "allOf": [] }))).collect();
            for (n, (from, to, whole)) in edges.into_iter().enumerate() {
                let reference = json!({ "$ref": format!("#/components/schemas/S{to}") });
                let schema = &mut schemas[&format!("S{from}")];
                if whole {
                    schema["allOf"].as_array_mut().unwrap().push(reference);
                } else {
                    schema["properties"][format!("p{n}")] = reference;
                }
            }
            let (top, definitions) = converted("3.0.0", &schemas.into(), &json!({ "$ref": "#/components/schemas/S0" }));
            let all = json!({ "top": top, "$defs": definitions.unwrap_or_default() });
            for name in all.to_string().split("#/$defs/").skip(1).map(|rest| rest.split('"').next().unwrap()) {
                prop_assert!(all["$defs"].get(name).is_some());
            }
        }
    }
}
