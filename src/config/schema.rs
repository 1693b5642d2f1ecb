//! The JSON Schema of `rialto.toml`, for editors.

use serde_json::{Map, Value, json};

use super::keys::{ConfigKey, Section, ValueType};
use super::servers::MAX_NAME_LENGTH;
use super::settings::TOP_LEVEL;
use crate::dialect::FEATURES;

/// Regular expression for a string that contains a `${…}` variable.
const VARIABLE_PATTERN: &str = r"\$\{";

/// The JSON Schema of `rialto.toml`, pretty-printed.
pub fn schema() -> String {
    let mut schema = Map::new();
    schema.insert("$schema".into(), "https://json-schema.org/draft/2020-12/schema".into());
    schema.insert("title".into(), "rialto.toml".into());
    schema.extend(section_schema(&TOP_LEVEL));
    let mut text = serde_json::to_string_pretty(&schema).unwrap_or_default();
    text.push('\n');
    text
}

pub(super) fn section_schema(section: &Section) -> Map<String, Value> {
    let mut properties = Map::new();
    let mut required = Vec::new();
    for key in section.keys() {
        for name in [Some(key.name), key.alias].into_iter().flatten() {
            properties.insert(name.to_owned(), key_schema(key));
        }
        if let ValueType::RequiredString = key.value_type {
            required.push(key.name);
        }
    }
    let mut schema = Map::new();
    schema.insert("description".into(), section.description.into());
    schema.insert("type".into(), "object".into());
    schema.insert("properties".into(), properties.into());
    schema.insert("additionalProperties".into(), false.into());
    if !required.is_empty() {
        schema.insert("required".into(), required.into());
    }
    schema
}

/// The schema of one key, with its description.
fn key_schema(key: &ConfigKey) -> Value {
    let mut schema = match value_schema(key.value_type) {
        Value::Object(schema) => schema,
        _ => Map::new(),
    };
    let default =
        key.default_text().map(|default| format!(" Default: {}.", default.replace('`', ""))).unwrap_or_default();
    let with = match key.server_kinds {
        [] | ["builtin"] => String::new(),
        [only] if *only == key.name => String::new(),
        with => format!(" For {}.", with.join(" or ")),
    };
    schema.insert("description".into(), format!("{}{default}{with}", key.plain_description()).into());
    Value::Object(schema)
}

fn value_schema(kind: ValueType) -> Value {
    let text = || json!({ "type": "string" });
    // Every string value may also contain a variable.
    let pattern = |pattern: &str| json!({ "type": "string", "pattern": format!("{pattern}|{VARIABLE_PATTERN}") });
    let words =
        |words: &[&str]| json!({ "anyOf": [{ "enum": words }, { "type": "string", "pattern": VARIABLE_PATTERN }] });
    let fraction = || json!({ "type": "number", "minimum": 0, "maximum": 1 });
    match kind {
        ValueType::String => text(),
        ValueType::RequiredString => json!({ "type": "string", "minLength": 1 }),
        ValueType::Boolean => json!({ "type": "boolean" }),
        ValueType::Integer(least, most) => json!({ "type": "integer", "minimum": least, "maximum": most }),
        ValueType::Size => json!({ "anyOf": [
            { "type": "integer", "minimum": 1 },
            pattern(r"^ *[0-9]+ *([kKmMgG][iI]?)?[bB]? *$"),
        ] }),
        ValueType::Duration { allow_off: false, .. } => pattern("^([0-9]+(ms|s|m|h|d))+$"),
        ValueType::Duration { allow_off: true, .. } => pattern("^(([0-9]+(ms|s|m|h|d))+|off)$"),
        ValueType::Address => pattern(r"^(.+:[0-9]+)$"),
        ValueType::Url => pattern("^https?://"),
        ValueType::Store => pattern("^(memory$|rediss?(-cluster|-sentinel)?://)"),
        ValueType::Choice(choices) => words(choices),
        ValueType::Revision => {
            let mut known = vec!["auto"];
            known.extend(FEATURES.iter().map(|features| features.name));
            words(&known)
        }
        ValueType::Date => pattern("^[0-9]{4}-[0-9]{2}-[0-9]{2}([Tt ].+)?$"),
        ValueType::StringList => json!({ "type": "array", "items": text() }),
        ValueType::StringMap => json!({ "type": "object", "additionalProperties": text() }),
        ValueType::ChoiceMap(choices) => json!({ "type": "object", "additionalProperties": words(choices) }),
        ValueType::Fraction => fraction(),
        ValueType::FractionMap => json!({ "type": "object", "additionalProperties": fraction() }),
        ValueType::StringLists => {
            json!({ "type": "object", "additionalProperties": { "type": "array", "items": text() } })
        }
        ValueType::Any => json!({}),
        ValueType::AnyList => json!({ "type": "array" }),
        ValueType::Table(table) => Value::Object(section_schema(table)),
        ValueType::NamedTables(table) => {
            // Tool arguments may have any name; names of servers and groups are part of URLs, those of keys of
            // principals, those of issuers of rules.
            let named = ["naming", "builtin", "hashes", "issuer"];
            let free = named.iter().all(|key| table.key(key).is_none());
            let name = format!("^[a-z0-9][a-z0-9-]{{0,{}}}$", MAX_NAME_LENGTH - 1);
            let mut schema = json!({ "type": "object", "additionalProperties": section_schema(table) });
            if !free {
                schema["propertyNames"] = json!({ "pattern": name });
            }
            schema
        }
        ValueType::TableList(table) => json!({ "type": "array", "items": section_schema(table) }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn schema_and_key_tables_have_the_same_keys() {
        fn compare(section: &Section, schema: &Value) {
            let mut known: Vec<&str> = section.keys().flat_map(|key| [Some(key.name), key.alias]).flatten().collect();
            let mut described: Vec<&str> = schema["properties"].as_object().unwrap().keys().map(|key| &**key).collect();
            known.sort_unstable();
            described.sort_unstable();
            assert_eq!(known, described);
            for key in section.keys() {
                let below = &schema["properties"][key.name];
                match key.value_type {
                    ValueType::Table(section) => compare(section, below),
                    ValueType::NamedTables(section) => compare(section, &below["additionalProperties"]),
                    ValueType::TableList(section) => compare(section, &below["items"]),
                    _ => {}
                }
            }
        }
        compare(&TOP_LEVEL, &serde_json::from_str(&schema()).unwrap());
    }
}
