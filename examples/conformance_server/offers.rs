//! Tools, resources and prompts of the server, and the input requests of some tools.

use serde_json::{Map, Value, json};

use super::tasks;

/// One grey pixel.
const IMAGE: &str = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAAAAAA6fptVAAAACklEQVR4nGNoAAAAggCBd81ytgAAAABJRU5ErkJggg==";
/// Four samples of silence.
const AUDIO: &str = "UklGRigAAABXQVZFZm10IBAAAAABAAEAQB8AAEAfAAABAAgAZGF0YQQAAACAgICA";

// === input requests ===

pub(crate) fn form(message: &str, properties: &Value, required: &[&str]) -> Value {
    let schema = json!({ "type": "object", "properties": properties, "required": required });
    json!({ "method": "elicitation/create", "params": { "message": message, "requestedSchema": schema } })
}

pub(crate) fn sample(prompt: &str) -> Value {
    let message = json!({ "role": "user", "content": { "type": "text", "text": prompt } });
    json!({ "method": "sampling/createMessage", "params": { "messages": [message], "maxTokens": 100 } })
}

pub(crate) fn roots() -> Value {
    json!({ "method": "roots/list" })
}

pub(crate) fn name_form() -> Value {
    form("Who is there?", &json!({ "name": { "type": "string" } }), &["name"])
}

pub(crate) fn user_form(message: &str) -> Value {
    let fields = json!({ "username": { "type": "string" }, "email": { "type": "string" } });
    form(message, &fields, &["username", "email"])
}

pub(crate) fn form_with_defaults() -> Value {
    let fields = json!({
        "name": { "type": "string", "default": "John Doe" },
        "age": { "type": "integer", "default": 30 },
        "score": { "type": "number", "default": 95.5 },
        "status": { "type": "string", "enum": ["active", "inactive", "pending"], "default": "active" },
        "verified": { "type": "boolean", "default": true },
    });
    form("Anything to change?", &fields, &[])
}

pub(crate) fn form_with_choices() -> Value {
    let plain = json!(["option1", "option2", "option3"]);
    let titled = json!([
        { "const": "value1", "title": "One" },
        { "const": "value2", "title": "Two" },
        { "const": "value3", "title": "Three" },
    ]);
    let fields = json!({
        "untitledSingle": { "type": "string", "enum": plain },
        "titledSingle": { "type": "string", "oneOf": titled },
        "legacyEnum": { "type": "string", "enum": ["opt1", "opt2"], "enumNames": ["First", "Second"] },
        "untitledMulti": { "type": "array", "items": { "type": "string", "enum": plain } },
        "titledMulti": { "type": "array", "items": { "anyOf": titled } },
    });
    form("Which ones?", &fields, &[])
}

// === tools ===

/// Constant results.
pub(crate) fn fixed(name: &str) -> Option<Value> {
    let text = |text: &str| json!({ "type": "text", "text": text });
    let image = json!({ "type": "image", "data": IMAGE, "mimeType": "image/png" });
    let resource = |uri: &str, kind: &str, text: &str| json!({ "type": "resource", "resource": { "uri": uri, "mimeType": kind, "text": text } });
    let content = match name {
        "test_simple_text" => json!([text("plain text")]),
        "test_image_content" => json!([image]),
        "test_audio_content" => json!([{ "type": "audio", "data": AUDIO, "mimeType": "audio/wav" }]),
        "test_embedded_resource" => json!([resource("test://embedded-resource", "text/plain", "embedded")]),
        "test_multiple_content_types" => json!([
            text("three kinds"),
            image,
            resource("test://mixed-content-resource", "application/json", r#"{"number":1}"#),
        ]),
        "test_error_handling" => return Some(json!({ "content": [text("on purpose")], "isError": true })),
        known if tools().iter().any(|tool| tool["name"] == known) => json!([text(known)]),
        _ => return None,
    };
    Some(json!({ "content": content }))
}

/// A schema with keywords that an implementation might drop.
fn rich_schema() -> Value {
    json!({
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "type": "object",
        "$defs": {
            "address": { "$anchor": "place", "type": "object", "properties": { "town": { "type": "string" } } },
        },
        "properties": {
            "home": { "$ref": "#/$defs/address" },
            "by": { "enum": ["letter", "wire"] },
            "stamp": { "type": "string" },
            "key": { "type": "string" },
        },
        "allOf": [{ "anyOf": [{ "required": ["stamp"] }, { "required": ["key"] }] }],
        "if": { "properties": { "by": { "const": "letter" } } },
        "then": { "required": ["stamp"] },
        "else": { "required": ["key"] },
        "additionalProperties": false,
    })
}

/// All tools. The first one takes no arguments, because the suite calls the first tool.
pub(crate) fn tools() -> Vec<Value> {
    let text = |names: &[&str]| {
        let properties: Map<String, Value> =
            names.iter().map(|name| ((*name).to_owned(), json!({ "type": "string" }))).collect();
        json!({ "type": "object", "properties": properties, "required": names })
    };
    let schema = |name: &str| match name {
        "test_sampling" => text(&["prompt"]),
        "test_elicitation" => text(&["message"]),
        "json_schema_2020_12_tool" => rich_schema(),
        "test_custom_header" => {
            let value = json!({ "type": "string", "x-mcp-header": "Value" });
            json!({ "type": "object", "properties": { "value": value }, "required": ["value"] })
        }
        _ => json!({ "type": "object" }),
    };
    const NAMES: [(&str, &str); 28] = [
        ("test_simple_text", "Gives text"),
        ("test_image_content", "Gives an image"),
        ("test_audio_content", "Gives a sound"),
        ("test_embedded_resource", "Gives a resource"),
        ("test_multiple_content_types", "Gives text, an image and a resource"),
        ("test_tool_with_logging", "Logs three times"),
        ("test_logging_tool", "Logs three times, too"),
        ("test_error_handling", "Fails"),
        ("test_tool_with_progress", "Reports progress three times"),
        ("test_sampling", "Asks for a sample"),
        ("test_elicitation", "Asks for a form"),
        ("test_elicitation_sep1034_defaults", "Asks for a form with defaults"),
        ("test_elicitation_sep1330_enums", "Asks for a form with choices"),
        ("test_streaming_elicitation", "Asks for a form, on a stream"),
        ("test_reconnection", "Takes a moment"),
        ("test_custom_header", "Gives what its header says"),
        ("test_missing_capability", "Needs a client that can sample"),
        ("test_trigger_tool_change", "Says that the tools have changed"),
        ("test_trigger_prompt_change", "Says that the prompts have changed"),
        ("json_schema_2020_12_tool", "Has a schema with everything"),
        ("test_input_required_result_elicitation", "Asks for a name"),
        ("test_input_required_result_sampling", "Asks for a capital"),
        ("test_input_required_result_list_roots", "Asks for the roots"),
        ("test_input_required_result_request_state", "Asks, and keeps a state"),
        ("test_input_required_result_tampered_state", "Asks, and keeps an eye on its state"),
        ("test_input_required_result_multiple_inputs", "Asks three things at once"),
        ("test_input_required_result_multi_round", "Asks twice"),
        ("test_input_required_result_capabilities", "Asks for what the client can do"),
    ];
    NAMES
        .iter()
        .chain(&tasks::TOOLS)
        .map(|(name, told)| json!({ "name": name, "description": told, "inputSchema": schema(name) }))
        .collect()
}

// === resources and prompts ===

pub(crate) fn resources() -> Value {
    json!([
        { "uri": "test://static-text", "name": "text", "description": "Text", "mimeType": "text/plain" },
        { "uri": "test://static-binary", "name": "binary", "description": "An image", "mimeType": "image/png" },
        { "uri": "test://watched-resource", "name": "watched", "description": "Text", "mimeType": "text/plain" },
    ])
}

pub(crate) fn contents(uri: &str) -> Option<Value> {
    let text = |kind: &str, text: &str| json!([{ "uri": uri, "mimeType": kind, "text": text }]);
    match uri {
        "test://static-text" => Some(text("text/plain", "always the same")),
        "test://static-binary" => Some(json!([{ "uri": uri, "mimeType": "image/png", "blob": IMAGE }])),
        "test://watched-resource" => Some(text("text/plain", "watched")),
        other => {
            let id = other.strip_prefix("test://template/")?.strip_suffix("/data")?;
            Some(text("application/json", &json!({ "id": id }).to_string()))
        }
    }
}

pub(crate) fn prompts() -> Value {
    let argument = |name: &str| json!({ "name": name, "description": "Any text", "required": true });
    json!([
        { "name": "test_simple_prompt", "description": "Says one thing" },
        {
            "name": "test_prompt_with_arguments",
            "description": "Says what it is given",
            "arguments": [argument("arg1"), argument("arg2")],
        },
        {
            "name": "test_prompt_with_embedded_resource",
            "description": "Shows a resource",
            "arguments": [argument("resourceUri")],
        },
        { "name": "test_prompt_with_image", "description": "Shows an image" },
        { "name": "test_input_required_result_prompt", "description": "Asks what it is about" },
    ])
}

/// The messages of a prompt without input requests.
pub(crate) fn messages(name: &str, arguments: &Value) -> Option<Value> {
    let user = |content: Value| json!({ "role": "user", "content": content });
    let text = |text: String| user(json!({ "type": "text", "text": text }));
    let argument = |name: &str| arguments[name].as_str().unwrap_or_default();
    Some(match name {
        "test_simple_prompt" => json!([text("one thing".into())]),
        "test_prompt_with_arguments" => json!([text(format!("{} and {}", argument("arg1"), argument("arg2")))]),
        "test_prompt_with_embedded_resource" => {
            let uri = argument("resourceUri");
            let resource = json!({ "uri": uri, "mimeType": "text/plain", "text": "embedded" });
            json!([user(json!({ "type": "resource", "resource": resource })), text("See above.".into())])
        }
        "test_prompt_with_image" => {
            let image = json!({ "type": "image", "data": IMAGE, "mimeType": "image/png" });
            json!([user(image), text("See above.".into())])
        }
        _ => return None,
    })
}
