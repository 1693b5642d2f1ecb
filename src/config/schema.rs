//! The JSON Schema of `rialto.toml`, for editors.

use serde_json::{Map, Value, json};

use super::keys::{FILE, Key, Kind, Section};
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
        if let Kind::Needed = key.kind {
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
fn described(key: &Key) -> Value {
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

fn kind(kind: Kind) -> Value {
    let text = || json!({ "type": "string" });
    // Whatever is a text may also be a variable.
    let pattern = |pattern: &str| json!({ "type": "string", "pattern": format!("{pattern}|{VARIABLE}") });
    let words = |words: &[&str]| json!({ "anyOf": [{ "enum": words }, { "type": "string", "pattern": VARIABLE }] });
    match kind {
        Kind::Text => text(),
        Kind::Needed => json!({ "type": "string", "minLength": 1 }),
        Kind::Flag => json!({ "type": "boolean" }),
        Kind::Count(least, most) => json!({ "type": "integer", "minimum": least, "maximum": most }),
        Kind::Size => json!({ "anyOf": [
            { "type": "integer", "minimum": 1 },
            pattern(r"^ *[0-9]+ *([kKmMgG][iI]?)?[bB]? *$"),
        ] }),
        Kind::Duration(_, false) => pattern("^([0-9]+(ms|s|m|h|d))+$"),
        Kind::Duration(_, true) => pattern("^(([0-9]+(ms|s|m|h|d))+|off)$"),
        Kind::Address => pattern(r"^(.+:[0-9]+)$"),
        Kind::Url => pattern("^https?://"),
        Kind::Store => pattern("^(memory$|rediss?(-cluster|-sentinel)?://)"),
        Kind::Choice(choices) => words(choices),
        Kind::Revision => {
            let mut known = vec!["auto"];
            known.extend(FACTS.iter().map(|facts| facts.name));
            words(&known)
        }
        Kind::Texts => json!({ "type": "array", "items": text() }),
        Kind::Pairs => json!({ "type": "object", "additionalProperties": text() }),
        Kind::Any => json!({}),
        Kind::Values => json!({ "type": "array" }),
        Kind::Table(table) => Value::Object(section(table)),
        Kind::Named(table) => {
            // Arguments of a tool may have any name; servers and groups are part of addresses.
            let free = table.key("naming").is_none() && table.key("builtin").is_none();
            let name = format!("^[a-z0-9][a-z0-9-]{{0,{}}}$", NAME_LENGTH - 1);
            let mut schema = json!({ "type": "object", "additionalProperties": section(table) });
            if !free {
                schema["propertyNames"] = json!({ "pattern": name });
            }
            schema
        }
        Kind::Tables(table) => json!({ "type": "array", "items": section(table) }),
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
                    Kind::Table(section) => compare(section, below),
                    Kind::Named(section) => compare(section, &below["additionalProperties"]),
                    Kind::Tables(section) => compare(section, &below["items"]),
                    _ => {}
                }
            }
        }
        compare(&FILE, &serde_json::from_str(&schema()).unwrap());
    }
}
