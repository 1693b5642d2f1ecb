//! The JSON Schema of `rialto.toml`, for editors.

use serde_json::{Map, Value, json};

use super::keys::{ConfigKey, FILE, Section, ValueType};
use super::servers::NAME_LENGTH;
use crate::dialect::FACTS;

/// What a text with a variable in it looks like.
const VARIABLE: &str = r"\$\{";

/// The schema, in JSON for people to read.
pub fn schema() -> String {
    let mut schema = Map::new();
    schema.insert("$schema".into(), "https://json-schema.org/draft/2020-12/schema".into());
    schema.insert("title".into(), "rialto.toml".into());
    schema.extend(section(&FILE));
    let mut text = serde_json::to_string_pretty(&schema).unwrap_or_default();
    text.push('\n');
    text
}

fn section(section: &Section) -> Map<String, Value> {
    let mut properties = Map::new();
    let mut required = Vec::new();
    for key in section.keys() {
        for name in [Some(key.name), key.alias].into_iter().flatten() {
            properties.insert(name.to_owned(), described(key));
        }
        if let ValueType::Needed = key.kind {
            required.push(key.name);
        }
    }
    let mut schema = Map::new();
    schema.insert("description".into(), section.about.into());
    schema.insert("type".into(), "object".into());
    schema.insert("properties".into(), properties.into());
    schema.insert("additionalProperties".into(), false.into());
    if !required.is_empty() {
        schema.insert("required".into(), required.into());
    }
    schema
}

/// The schema of a key, with what it is for.
fn described(key: &ConfigKey) -> Value {
    let mut schema = match kind(key.kind) {
        Value::Object(schema) => schema,
        _ => Map::new(),
    };
    let default = key.default.map(|default| format!(" Default: {default}.")).unwrap_or_default();
    let with = match key.with {
        [] | ["builtin"] => String::new(),
        [only] if *only == key.name => String::new(),
        with => format!(" Goes with {}.", with.join(" or ")),
    };
    schema.insert("description".into(), format!("{}{default}{with}", key.about).into());
    Value::Object(schema)
}

fn kind(kind: ValueType) -> Value {
    let text = || json!({ "type": "string" });
    // Whatever is a text may also be a variable.
    let pattern = |pattern: &str| json!({ "type": "string", "pattern": format!("{pattern}|{VARIABLE}") });
    let words = |words: &[&str]| json!({ "anyOf": [{ "enum": words }, { "type": "string", "pattern": VARIABLE }] });
    match kind {
        ValueType::Text => text(),
        ValueType::Needed => json!({ "type": "string", "minLength": 1 }),
        ValueType::Flag => json!({ "type": "boolean" }),
        ValueType::Count(least, most) => json!({ "type": "integer", "minimum": least, "maximum": most }),
        ValueType::Size => json!({ "anyOf": [
            { "type": "integer", "minimum": 1 },
            pattern(r"^ *[0-9]+ *([kKmMgG][iI]?)?[bB]? *$"),
        ] }),
        ValueType::Duration(_, false) => pattern("^([0-9]+(ms|s|m|h|d))+$"),
        ValueType::Duration(_, true) => pattern("^(([0-9]+(ms|s|m|h|d))+|off)$"),
        ValueType::Address => pattern(r"^(.+:[0-9]+)$"),
        ValueType::Url => pattern("^https?://"),
        ValueType::Store => pattern("^(memory$|rediss?(-cluster|-sentinel)?://)"),
        ValueType::Choice(choices) => words(choices),
        ValueType::Revision => {
            let mut known = vec!["auto"];
            known.extend(FACTS.iter().map(|facts| facts.name));
            words(&known)
        }
        ValueType::Texts => json!({ "type": "array", "items": text() }),
        ValueType::Pairs => json!({ "type": "object", "additionalProperties": text() }),
        ValueType::Any => json!({}),
        ValueType::Values => json!({ "type": "array" }),
        ValueType::Table(table) => Value::Object(section(table)),
        ValueType::Named(table) => {
            // Arguments of a tool may have any name; servers and groups are part of addresses.
            let free = table.key("naming").is_none() && table.key("builtin").is_none();
            let name = format!("^[a-z0-9][a-z0-9-]{{0,{}}}$", NAME_LENGTH - 1);
            let mut schema = json!({ "type": "object", "additionalProperties": section(table) });
            if !free {
                schema["propertyNames"] = json!({ "pattern": name });
            }
            schema
        }
        ValueType::Tables(table) => json!({ "type": "array", "items": section(table) }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_copy_in_the_docs_is_up_to_date() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/docs/rialto.schema.json");
        let copy = std::fs::read_to_string(path).unwrap_or_default();
        assert!(copy == schema(), "write it anew: cargo run -- schema > docs/rialto.schema.json");
    }

    #[test]
    fn every_key_is_in_the_schema_and_the_other_way_round() {
        fn compare(section: &Section, schema: &Value) {
            let mut known: Vec<&str> = section.keys().flat_map(|key| [Some(key.name), key.alias]).flatten().collect();
            let mut described: Vec<&str> = schema["properties"].as_object().unwrap().keys().map(|key| &**key).collect();
            known.sort_unstable();
            described.sort_unstable();
            assert_eq!(known, described);
            for key in section.keys() {
                let below = &schema["properties"][key.name];
                match key.kind {
                    ValueType::Table(section) => compare(section, below),
                    ValueType::Named(section) => compare(section, &below["additionalProperties"]),
                    ValueType::Tables(section) => compare(section, &below["items"]),
                    _ => {}
                }
            }
        }
        compare(&FILE, &serde_json::from_str(&schema()).unwrap());
    }
}
