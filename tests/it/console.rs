//! The admin API and the page of the console, at a running gateway.

mod access;
mod api;
mod checklist;
mod configuration;
mod nodes;
mod operators;
mod privacy;
mod redaction;
mod servers;
mod streams;
mod why;

use std::sync::LazyLock;
use std::time::Duration;

use rialto::console;
use serde_json::{Value, json};

use crate::harness::{HttpRequest, Rialto, TEST_TIMEOUT};

/// The document that describes the API.
static DOCUMENT: LazyLock<Value> = LazyLock::new(|| serde_json::from_slice(&console::openapi()).unwrap());

/// A request to the API with the key of the running gateway.
pub fn asked(rialto: &Rialto, verb: &'static str, path: &str) -> HttpRequest {
    let request = rialto.send(verb, &format!("/admin/v1/{path}"));
    let request = request.header("authorization", &format!("Bearer {}", rialto.console.key().reveal()));
    if verb == "GET" { request } else { request.header("content-type", "application/json") }
}

/// The answer to a GET, which must be as the document says.
pub async fn get(rialto: &Rialto, path: &str) -> Value {
    let (status, answer) = asked(rialto, "GET", path).json().await;
    assert_eq!(status, 200, "{path}: {answer}");
    validate("get", path, "200", &answer);
    answer
}

/// Waits for an answer to a GET that is as it should be.
pub async fn wait(rialto: &Rialto, path: &str, holds: impl Fn(&Value) -> bool) -> Value {
    let deadline = tokio::time::Instant::now() + TEST_TIMEOUT;
    loop {
        let answer = get(rialto, path).await;
        if holds(&answer) {
            return answer;
        }
        assert!(tokio::time::Instant::now() < deadline, "{path}: {answer:#}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// The answer to a POST, which must be as the document says.
pub async fn post(rialto: &Rialto, path: &str, body: &Value) -> (u16, Value) {
    let (status, answer) = asked(rialto, "POST", path).body(body.to_string()).json().await;
    let said = if status < 300 { status.to_string() } else { "default".to_owned() };
    validate("post", path, &said, &answer);
    (status, answer)
}

/// Panics unless an answer is as the document says.
pub fn validate(verb: &str, path: &str, status: &str, answer: &Value) {
    let path = path.split('?').next().unwrap();
    let operation = operation(verb, path).unwrap_or_else(|| panic!("{verb} {path} is not in the document"));
    let schema = &operation["responses"][status]["content"]["application/json"]["schema"];
    assert!(schema.is_object(), "{verb} {path} has no answer {status}");
    let mistakes = mistakes(schema, answer, "");
    assert!(mistakes.is_empty(), "{verb} {path}: {mistakes:#?}\n{answer:#}");
}

fn operation(verb: &str, path: &str) -> Option<&'static Value> {
    let matches = |template: &str| {
        let (one, other): (Vec<&str>, Vec<&str>) = (template[1..].split('/').collect(), path.split('/').collect());
        one.len() == other.len() && one.iter().zip(&other).all(|(one, other)| one.starts_with('{') || one == other)
    };
    let paths = DOCUMENT["paths"].as_object().unwrap();
    paths.iter().filter(|(template, _)| matches(template)).find_map(|(_, item)| item.get(verb))
}

/// What in a value is not as a JSON Schema says; of the words that the document uses.
pub fn mistakes(schema: &Value, value: &Value, at: &str) -> Vec<String> {
    if let Some(name) = schema["$ref"].as_str() {
        let name = name.strip_prefix("#/components/schemas/").unwrap();
        return mistakes(&DOCUMENT["components"]["schemas"][name], value, at);
    }
    if let Some(choices) = schema["oneOf"].as_array() {
        let fits = choices.iter().filter(|choice| mistakes(choice, value, at).is_empty()).count();
        return if fits == 1 { Vec::new() } else { vec![format!("{at}: fits {fits} of oneOf")] };
    }
    let mut found = Vec::new();
    let kind = match value {
        Value::Null => "null",
        Value::Bool(_) => "boolean",
        Value::Number(number) if number.is_f64() => "number",
        Value::Number(_) => "integer",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    };
    let kinds: Vec<&str> = match &schema["type"] {
        Value::String(one) => vec![one],
        Value::Array(some) => some.iter().filter_map(Value::as_str).collect(),
        _ => Vec::new(),
    };
    let is_kind = |word: &&str| *word == kind || *word == "number" && kind == "integer";
    if !kinds.is_empty() && !kinds.iter().any(is_kind) {
        found.push(format!("{at}: is {kind}, not {kinds:?}"));
        return found;
    }
    if let Some(words) = schema["enum"].as_array().filter(|words| !words.contains(value) && !value.is_null()) {
        found.push(format!("{at}: {value} is none of {words:?}"));
    }
    if let Some(least) = schema["minimum"].as_f64().filter(|least| value.as_f64().is_some_and(|value| value < *least)) {
        found.push(format!("{at}: {value} is below {least}"));
    }
    if let Some(most) = schema["maximum"].as_f64().filter(|most| value.as_f64().is_some_and(|value| value > *most)) {
        found.push(format!("{at}: {value} is above {most}"));
    }
    for (n, item) in value.as_array().into_iter().flatten().enumerate() {
        found.extend(mistakes(&schema["items"], item, &format!("{at}/{n}")));
    }
    for name in schema["required"].as_array().into_iter().flatten().filter_map(Value::as_str) {
        if value.is_object() && value.get(name).is_none() {
            found.push(format!("{at}: {name} is missing"));
        }
    }
    for (name, member) in value.as_object().into_iter().flatten() {
        match (schema["properties"].get(name), &schema["additionalProperties"]) {
            (Some(schema), _) => found.extend(mistakes(schema, member, &format!("{at}/{name}"))),
            (None, Value::Bool(false)) => found.push(format!("{at}: {name} is not in the document")),
            (None, schema @ Value::Object(_)) => found.extend(mistakes(schema, member, &format!("{at}/{name}"))),
            _ => {}
        }
    }
    found
}

#[test]
fn the_validator_finds_what_is_wrong() {
    let page = json!({ "$ref": "#/components/schemas/LogLinePage" });
    assert_eq!(mistakes(&page, &json!({ "items": [{ "at": "x", "text": "y" }], "next": null }), ""), [""; 0]);
    for wrong in [
        json!({ "items": [] }),
        json!({ "items": [{ "at": 1, "text": "y" }], "next": null }),
        json!({ "items": [], "next": null, "more": 1 }),
        json!({ "items": [], "next": 3 }),
    ] {
        assert_eq!(mistakes(&page, &wrong, "").len(), 1, "{wrong}");
    }
    let right = json!({ "$ref": "#/components/schemas/Right" });
    assert_eq!(mistakes(&right, &json!("fly"), "").len(), 1);
}
