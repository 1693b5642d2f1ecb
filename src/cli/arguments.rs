//! Tool and prompt arguments from the command line: `key=value`, `key:=json`.

use std::path::Path;

use serde_json::{Map, Value};

use crate::config::nearest;
use crate::error::{Error, Result};
use crate::protocol::Raw;

/// Reads arguments from a file and from `key=value` words, and checks them against the input schema. Words override
/// the file.
pub(super) fn read(words: &[String], file: Option<&Path>, schema: Option<&Raw>) -> Result<Map<String, Value>> {
    let mut arguments = match file {
        None => Map::new(),
        Some(file) => from_file(file)?,
    };
    let schema: Value = schema.and_then(|schema| schema.read().ok()).unwrap_or(Value::Null);
    for word in words {
        let (key, value) = parse_argument(word, &schema)?;
        arguments.insert(key, value);
    }
    check(&arguments, &schema)?;
    Ok(arguments)
}

fn usage_error(why: String) -> Error {
    Error::usage(why)
}

fn from_file(file: &Path) -> Result<Map<String, Value>> {
    let text =
        if file == Path::new("-") { std::io::read_to_string(std::io::stdin()) } else { std::fs::read_to_string(file) };
    let text = text.map_err(|error| usage_error(format!("{}: {error}", file.display())))?;
    match serde_json::from_str(&text) {
        Ok(Value::Object(map)) => Ok(map),
        Ok(_) => Err(usage_error(format!("{} must contain one JSON object", file.display()))),
        Err(error) => Err(usage_error(format!("{} is not JSON: {error}", file.display()))),
    }
}

/// Parses one word: `key:=json` as JSON, `key=value` as the type in the schema.
fn parse_argument(word: &str, schema: &Value) -> Result<(String, Value)> {
    let (key, value) = word.split_once('=').filter(|(key, _)| !key.is_empty()).ok_or_else(|| {
        usage_error(format!("{word:?} is not an argument; write key=value, or key:=json for values other than strings"))
    })?;
    if let Some(key) = key.strip_suffix(':') {
        let parsed = serde_json::from_str(value)
            .map_err(|error| usage_error(format!("the value of {key:?} is not JSON: {error}")))?;
        return Ok((key.to_owned(), parsed));
    }
    let property = &schema["properties"][key];
    let fitted = parse_typed(value, property).map_err(|kind| {
        usage_error(format!("{key:?} must be {kind}, not {value:?}{}", description_suffix(property)))
    })?;
    Ok((key.to_owned(), fitted))
}

/// Converts a string to the JSON type of a schema property; without a type it stays a string.
fn parse_typed(value: &str, property: &Value) -> std::result::Result<Value, String> {
    let kinds: Vec<&str> = match &property["type"] {
        Value::String(kind) => vec![kind],
        Value::Array(kinds) => kinds.iter().filter_map(Value::as_str).collect(),
        _ => Vec::new(),
    };
    if kinds.is_empty() || kinds.contains(&"string") {
        return Ok(value.into());
    }
    let parsed: Option<Value> = serde_json::from_str(value).ok();
    let fits = |kind: &&str| parsed.as_ref().is_some_and(|parsed| has_type(parsed, kind));
    match kinds.iter().any(fits) {
        true => Ok(parsed.unwrap_or(Value::Null)),
        false => Err(kinds.iter().map(|kind| with_article(kind)).collect::<Vec<_>>().join(" or ")),
    }
}

fn has_type(value: &Value, kind: &str) -> bool {
    match kind {
        "string" => value.is_string(),
        "integer" => value.is_i64() || value.is_u64() || value.as_f64().is_some_and(|number| number.fract() == 0.0),
        "number" => value.is_number(),
        "boolean" => value.is_boolean(),
        "array" => value.is_array(),
        "object" => value.is_object(),
        "null" => value.is_null(),
        _ => true,
    }
}

fn with_article(kind: &str) -> String {
    let article = if kind.starts_with(['a', 'e', 'i', 'o', 'u']) { "an" } else { "a" };
    format!("{article} {kind}")
}

fn description_suffix(property: &Value) -> String {
    property["description"].as_str().map(|text| format!(" ({text})")).unwrap_or_default()
}

/// Checks for typical typing mistakes: unknown names, missing required ones, wrong types, values outside `enum`. Full
/// validation is left to the server.
fn check(arguments: &Map<String, Value>, schema: &Value) -> Result<()> {
    let empty = Map::new();
    let properties = schema["properties"].as_object().unwrap_or(&empty);
    let mut mistakes = Vec::new();
    for name in schema["required"].as_array().into_iter().flatten().filter_map(Value::as_str) {
        if !arguments.contains_key(name) {
            mistakes.push(format!(
                "{name:?} is missing{}",
                description_suffix(&properties.get(name).cloned().unwrap_or(Value::Null))
            ));
        }
    }
    for (name, value) in arguments {
        let Some(property) = properties.get(name) else {
            if schema["additionalProperties"] == Value::Bool(false) {
                mistakes.push(format!("{name:?} is unknown{}", suggestion(name, properties)));
            }
            continue;
        };
        if let Some(kind) = property["type"].as_str().filter(|kind| !has_type(value, kind)) {
            mistakes.push(format!("{name:?} must be {}, not {value}", with_article(kind)));
        }
        if let Some(allowed) = property["enum"].as_array().filter(|allowed| !allowed.contains(value)) {
            let allowed: Vec<String> = allowed.iter().map(ToString::to_string).collect();
            mistakes.push(format!("{name:?} must be one of {}", allowed.join(", ")));
        }
    }
    match mistakes.is_empty() {
        true => Ok(()),
        false => Err(usage_error(format!("{}; use --unchecked to skip this check", mistakes.join("; ")))),
    }
}

/// Hint with the most similar argument name, or the valid names.
fn suggestion(name: &str, properties: &Map<String, Value>) -> String {
    let known: Vec<&str> = properties.keys().map(String::as_str).collect();
    match nearest(name, &known) {
        Some(near) => format!("; did you mean {near:?}?"),
        None if known.is_empty() => "; it takes no arguments".to_owned(),
        None => format!("; it takes {}", known.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fit(words: &[&str]) -> std::result::Result<String, String> {
        let schema = Raw::constant(
            r#"{"type":"object","properties":{"name":{"type":"string"},"count":{"type":"integer","description":"how many"},"deep":{"type":"object"},
            "mode":{"enum":["a","b"]},"free":{}},"required":["name"],"additionalProperties":false}"#,
        );
        let words: Vec<String> = words.iter().map(|word| (*word).to_owned()).collect();
        read(&words, None, Some(&schema)).map(|map| Value::Object(map).to_string()).map_err(|error| error.to_string())
    }

    #[test]
    fn values_are_converted_to_the_type_in_the_schema() {
        assert_eq!(fit(&["name=7", "count=7", "free=7"]).unwrap(), r#"{"count":7,"free":"7","name":"7"}"#);
        assert_eq!(fit(&["name=a=b", "deep={\"x\":1}"]).unwrap(), r#"{"deep":{"x":1},"name":"a=b"}"#);
        assert_eq!(fit(&["name:=\"x\"", "mode=b"]).unwrap(), r#"{"mode":"b","name":"x"}"#);
    }

    #[test]
    fn invalid_arguments_are_explained() {
        for (words, message) in [
            (&["count=7"][..], "\"name\" is missing"),
            (&["name=x", "cuont=7"], "did you mean \"count\"?"),
            (&["name=x", "count=many"], "\"count\" must be an integer, not \"many\" (how many)"),
            (&["name:=5"], "\"name\" must be a string, not 5"),
            (&["name=x", "mode=c"], "one of \"a\", \"b\""),
            (&["name"], "write key=value"),
            (&["name:={"], "not JSON"),
        ] {
            let error = fit(words).unwrap_err();
            assert!(error.contains(message), "{words:?}: {error}");
        }
    }
}
