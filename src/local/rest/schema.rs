//! Conversion of API document schemas into self-contained JSON Schema 2020-12 for tool arguments.
//!
//! Referenced schemas go into the tool's own `$defs`, so that recursive schemas stay recursive. They are converted
//! breadth first; once the size budget is spent, further ones are left open (`{}`).

use std::collections::{BTreeMap, VecDeque};

use serde_json::{Map, Value, json};

use super::arguments::truncated;
use super::document::{ApiDocument, OpenApiVersion};

/// Approximate size budget of a tool's schema.
const MAX_SCHEMA_BYTES: usize = 32 << 10;
/// Nesting limit between two references.
const MAX_SCHEMA_DEPTH: usize = 24;
/// Longest chain of `$ref` that is followed.
const MAX_REFERENCE_CHAIN: usize = 16;
/// Limit on the schemas that are merged into one body.
const MAX_MERGED_SCHEMAS: usize = 100;
/// Length limit of a description.
const MAX_SCHEMA_DESCRIPTION_BYTES: usize = 600;
/// Size limits of an example, of a default or constant, and of an enum; larger ones are omitted.
const MAX_EXAMPLE_BYTES: usize = 200;
const MAX_DEFAULT_BYTES: usize = 500;
const MAX_ENUM_BYTES: usize = 8 << 10;
/// A referenced schema up to this size is inlined instead of going into `$defs`.
const INLINE_SCHEMA_MAX_BYTES: usize = 300;

/// Whether a keyword's value is valid.
type KeywordCheck = fn(&Value) -> bool;

/// Keywords copied unchanged when their value is valid.
const COPIED_KEYWORDS: &[(&str, KeywordCheck)] = &[
    ("format", Value::is_string),
    ("title", |value| value.as_str().is_some_and(|title| title.len() <= 100)),
    ("const", |value| approximate_size(value) <= MAX_DEFAULT_BYTES),
    ("default", |value| approximate_size(value) <= MAX_DEFAULT_BYTES),
    ("multipleOf", is_positive),
    ("minimum", Value::is_number),
    ("maximum", Value::is_number),
    ("minLength", Value::is_u64),
    ("maxLength", Value::is_u64),
    ("pattern", |value| value.as_str().is_some_and(|pattern| pattern.len() <= MAX_DEFAULT_BYTES)),
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

/// Builds the schemas of one tool's arguments, with shared `$defs` and one size budget.
#[derive(Debug)]
pub(super) struct SchemaBuilder<'d> {
    document: &'d ApiDocument,
    /// Name in `$defs` of each reference.
    definition_names: BTreeMap<&'d str, String>,
    pending_definitions: VecDeque<(String, &'d Value)>,
    bytes_left: usize,
}

/// Merged properties of an object schema.
#[derive(Debug, Default)]
pub(super) struct SchemaMembers<'d> {
    pub(super) properties: BTreeMap<&'d str, &'d Value>,
    pub(super) required: Vec<&'d str>,
    /// Schemas merged so far.
    merged_schemas: usize,
}

impl<'d> SchemaBuilder<'d> {
    pub(super) fn new(document: &'d ApiDocument) -> Self {
        Self {
            document,
            definition_names: BTreeMap::new(),
            pending_definitions: VecDeque::new(),
            bytes_left: MAX_SCHEMA_BYTES,
        }
    }

    /// Converts the schema of one argument; a reference at its root is inlined.
    pub(super) fn convert_root(&mut self, schema: &'d Value) -> Value {
        match self.resolve(schema) {
            Some(found) => self.convert(found, MAX_SCHEMA_DEPTH),
            None => json!({}),
        }
    }

    /// Converts the referenced schemas; returns `$defs`, if there are any.
    pub(super) fn finish(mut self) -> Option<Value> {
        let mut definitions = Map::new();
        while let Some((name, target)) = self.pending_definitions.pop_front() {
            let converted = self.convert(target, MAX_SCHEMA_DEPTH);
            definitions.insert(name, converted);
        }
        (!definitions.is_empty()).then_some(Value::Object(definitions))
    }

    /// Follows a `$ref` chain; `None` when the target is missing or the chain is too long.
    pub(super) fn resolve(&self, schema: &'d Value) -> Option<&'d Value> {
        let mut current = schema;
        for _ in 0..MAX_REFERENCE_CHAIN {
            let Some(reference) = current.get("$ref").and_then(Value::as_str) else { return Some(current) };
            current = self.document.resolve_reference(reference)?;
        }
        None
    }

    /// Properties of an object schema with its `allOf` parts merged; `None` when it has other constraints, such as
    /// `oneOf` or additional properties.
    pub(super) fn members(&self, schema: &'d Value) -> Option<SchemaMembers<'d>> {
        let mut found = SchemaMembers::default();
        self.collect_members(schema, MAX_REFERENCE_CHAIN, &mut found).filter(|()| !found.properties.is_empty())?;
        found.required.retain(|name| found.properties.contains_key(name));
        Some(found)
    }

    fn collect_members(&self, schema: &'d Value, depth: usize, found: &mut SchemaMembers<'d>) -> Option<()> {
        found.merged_schemas += 1;
        if found.merged_schemas > MAX_MERGED_SCHEMAS {
            return None;
        }
        let schema = self.resolve(schema).filter(|_| depth > 0)?.as_object()?;
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
            self.collect_members(part, depth - 1, found)?;
        }
        for (name, property) in schema.get("properties").and_then(Value::as_object).into_iter().flatten() {
            if !self.is_read_only(property) {
                found.properties.insert(name, property);
            }
        }
        let required = schema.get("required").and_then(Value::as_array).into_iter().flatten();
        found.required.extend(required.filter_map(Value::as_str));
        Some(())
    }

    fn is_read_only(&self, property: &'d Value) -> bool {
        let found = self.resolve(property).unwrap_or(property);
        found.get("readOnly").is_some_and(|value| *value == Value::Bool(true))
    }

    fn convert(&mut self, schema: &'d Value, depth: usize) -> Value {
        if depth == 0 || self.bytes_left == 0 {
            return json!({});
        }
        if let Some(reference) = schema.get("$ref").and_then(Value::as_str) {
            return self.convert_reference(reference, schema, depth);
        }
        let mut hidden = Vec::new();
        for (name, property) in schema.get("properties").and_then(Value::as_object).into_iter().flatten() {
            if self.is_read_only(property) {
                hidden.push(name.as_str());
            }
        }
        let version = self.document.version();
        let mut converted = convert_keywords(schema, version, |part, name| {
            if name.is_some_and(|name| hidden.contains(&name)) { Value::Null } else { self.convert(part, depth - 1) }
        });
        if !hidden.is_empty() {
            remove_properties(&mut converted, &hidden);
        }
        // Subschemas have been subtracted by their own conversion.
        self.bytes_left = self.bytes_left.saturating_sub(approximate_own_size(&converted));
        if self.bytes_left == 0 { json!({}) } else { converted }
    }

    fn convert_reference(&mut self, reference: &'d str, schema: &'d Value, depth: usize) -> Value {
        if let Some(name) = self.definition_names.get(reference) {
            self.bytes_left = self.bytes_left.saturating_sub(name.len() + 24);
            return json!({ "$ref": format!("#/$defs/{name}") });
        }
        let Some(target) = self.document.resolve_reference(reference).and_then(|target| self.resolve(target)) else {
            return json!({});
        };
        if is_inlineable(target) {
            let mut copied = self.convert(target, depth - 1);
            if let (Some(text_value), Some(copied)) = (schema.get("description"), copied.as_object_mut()) {
                copied.insert("description".to_owned(), truncated_text(text_value, MAX_SCHEMA_DESCRIPTION_BYTES));
            }
            return copied;
        }
        let last = reference.rsplit('/').next().unwrap_or_default();
        let mut name: String = last.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '_' }).take(60).collect();
        while self.definition_names.values().any(|taken| *taken == name) {
            name.push('_');
        }
        self.bytes_left = self.bytes_left.saturating_sub(name.len() + 24);
        self.definition_names.insert(reference, name.clone());
        self.pending_definitions.push_back((name.clone(), target));
        json!({ "$ref": format!("#/$defs/{name}") })
    }
}

/// Converts the keywords of one schema to 2020-12; `part` converts its subschemas.
fn convert_keywords<'v>(
    schema: &'v Value,
    version: OpenApiVersion,
    mut part: impl FnMut(&'v Value, Option<&str>) -> Value,
) -> Value {
    let Some(from) = schema.as_object() else {
        return if schema.is_boolean() { schema.clone() } else { json!({}) };
    };
    let mut to = Map::new();
    if let Some(kind) = from.get("type").and_then(known_types) {
        to.insert("type".to_owned(), kind);
    }
    if let Some(text_value) = from.get("description").filter(|text_value| text_value.is_string()) {
        to.insert("description".to_owned(), truncated_text(text_value, MAX_SCHEMA_DESCRIPTION_BYTES));
    }
    for (key, is_valid) in COPIED_KEYWORDS {
        if let Some(value) = from.get(*key).filter(|value| is_valid(value)) {
            to.insert((*key).to_owned(), value.clone());
        }
    }
    if let Some(values) =
        from.get("enum").filter(|values| !is_empty_array(values) && approximate_size(values) <= MAX_ENUM_BYTES)
    {
        to.insert("enum".to_owned(), values.clone());
    }
    if from.get("type").is_some_and(|kind| kind == "file") {
        to.insert("type".to_owned(), "string".into());
        to.insert("format".to_owned(), "binary".into());
    }
    convert_exclusive_limits(from, &mut to);
    convert_examples(from, &mut to);
    convert_subschemas(from, &mut to, &mut part);
    if let Some(required) = from.get("required").and_then(Value::as_array) {
        let names: Vec<&Value> = required.iter().filter(|name| name.is_string()).collect();
        if !names.is_empty() {
            to.insert("required".to_owned(), json!(names));
        }
    }
    let null = |key: &str| from.get(key).is_some_and(|value| *value == Value::Bool(true));
    if (version != OpenApiVersion::OpenApi31 && null("nullable")) || null("x-nullable") {
        return allow_null(to);
    }
    Value::Object(to)
}

/// Converts the subschemas of a schema.
fn convert_subschemas<'v>(
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
            // Drafts before 2020-12 wrote a tuple as an array of `items`.
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

/// Converts boolean `exclusiveMinimum`/`exclusiveMaximum` (OpenAPI 3.0) to numbers.
fn convert_exclusive_limits(from: &Map<String, Value>, to: &mut Map<String, Value>) {
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

fn convert_examples(from: &Map<String, Value>, to: &mut Map<String, Value>) {
    let single = from.get("example").into_iter();
    let several = from.get("examples").and_then(Value::as_array).into_iter().flatten();
    let examples: Vec<&Value> =
        single.chain(several).filter(|example| approximate_size(example) <= MAX_EXAMPLE_BYTES).take(2).collect();
    if !examples.is_empty() {
        to.insert("examples".to_owned(), json!(examples));
    }
}

fn known_types(kind: &Value) -> Option<Value> {
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

/// Allows null in addition to what the schema allows.
fn allow_null(mut schema: Map<String, Value>) -> Value {
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

/// Removes properties, and their names from `required`.
fn remove_properties(schema: &mut Value, names: &[&str]) {
    if let Some(properties) = schema.get_mut("properties").and_then(Value::as_object_mut) {
        properties.retain(|name, _| !names.contains(&name.as_str()));
    }
    if let Some(required) = schema.get_mut("required").and_then(Value::as_array_mut) {
        required.retain(|name| !name.as_str().is_some_and(|name| names.contains(&name)));
    }
}

/// Whether a schema is small and flat enough to be inlined.
fn is_inlineable(schema: &Value) -> bool {
    let deep = ["properties", "items", "allOf", "anyOf", "oneOf", "not", "additionalProperties", "prefixItems"];
    let Some(members) = schema.as_object() else { return true };
    !deep.iter().any(|key| members.contains_key(*key)) && approximate_size(schema) <= INLINE_SCHEMA_MAX_BYTES
}

fn truncated_text(text_value: &Value, max_bytes: usize) -> Value {
    let text = text_value.as_str().unwrap_or_default().trim();
    if text.len() <= max_bytes { text.into() } else { format!("{}…", truncated(text, max_bytes).trim_end()).into() }
}

fn is_empty_array(values: &Value) -> bool {
    values.as_array().is_none_or(Vec::is_empty)
}

fn is_positive(value: &Value) -> bool {
    value.as_f64().is_some_and(|number| number > 0.0)
}

/// Approximate size of a value as JSON, in bytes.
pub(super) fn approximate_size(value: &Value) -> usize {
    match value {
        Value::Null | Value::Bool(_) => 5,
        Value::Number(_) => 8,
        Value::String(text) => text.len() + 2,
        Value::Array(items) => 2 + items.iter().map(|item| approximate_size(item) + 1).sum::<usize>(),
        Value::Object(members) => {
            2 + members.iter().map(|(key, value)| key.len() + 4 + approximate_size(value)).sum::<usize>()
        }
    }
}

/// Approximate size of a schema without its subschemas.
fn approximate_own_size(schema: &Value) -> usize {
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
                _ => approximate_size(value),
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
        let mut builder = SchemaBuilder::new(&document);
        let converted = builder.convert_root(document.resolve_reference("#/schema").unwrap());
        (converted, builder.finish())
    }

    #[test]
    fn openapi_30_keywords_are_converted() {
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
    fn openapi_31_schemas_are_unchanged() {
        let schema = json!({
            "type": ["string", "null"], "examples": ["x"], "exclusiveMinimum": 3, "const": 1,
        });
        assert_eq!(converted("3.1.0", &json!({}), &schema), (schema, None));
    }

    #[test]
    fn recursive_schemas_stay_recursive() {
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
    fn unresolvable_references_become_open_schemas() {
        for reference in ["https://elsewhere.example/s.json", "other.yaml#/A", "#/nowhere", "#/components/schemas/Loop"]
        {
            let schemas = json!({ "Loop": { "$ref": "#/components/schemas/Loop" } });
            let schema = json!({ "type": "array", "items": { "$ref": reference } });
            assert_eq!(converted("3.0.0", &schemas, &schema), (json!({ "type": "array", "items": {} }), None));
        }
    }

    #[test]
    fn schema_size_is_bounded() {
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
        assert!(approximate_size(&definitions) < 2 * MAX_SCHEMA_BYTES, "{}", approximate_size(&definitions));
        let wanted = definitions.to_string();
        for name in wanted.split("#/$defs/").skip(1).map(|rest| rest.split('"').next().unwrap()) {
            assert!(definitions.get(name).is_some(), "{name}");
        }
    }

    proptest! {
        /// In any graph of schemas, every `$ref` of the result has a target in `$defs`.
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
