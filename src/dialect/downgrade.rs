//! Downgrades results for clients of older revisions.
//!
//! A content type that the client does not know is converted to one it does; unknown members are removed.

use super::{Revision, RevisionFeatures};
use crate::protocol::{Key, Method, Payload, Raw};

/// Downgrades a result to a revision, except for the result envelope of the per-request era.
pub(super) fn result(result: Payload, method: &Method, to: Revision) -> Payload {
    let features = to.features();
    match method {
        Method::ToolsCall => tool_result(result, features),
        Method::PromptsGet if !features.resource_links => map_elements(&result, "messages", |message| {
            let Some(content) = message.get("content") else { return message };
            message.edit().set("content", content_block(content, features)).finish()
        })
        .into(),
        Method::ToolsList => map_elements(&result, "tools", |tool| self::tool(&tool, features)).into(),
        Method::PromptsList => map_elements(&result, "prompts", |prompt| self::prompt(&prompt, features)).into(),
        Method::ResourcesList => {
            map_elements(&result, "resources", |item| without_titles_and_icons(&item, features)).into()
        }
        Method::TemplatesList => {
            map_elements(&result, "resourceTemplates", |item| without_titles_and_icons(&item, features)).into()
        }
        _ => result,
    }
}

/// Whether [`result`] changes no result of the method.
pub(super) fn passes_unchanged(method: &Method, to: Revision) -> bool {
    match method {
        Method::ToolsCall | Method::ToolsList | Method::PromptsList | Method::ResourcesList | Method::TemplatesList => {
            false
        }
        Method::PromptsGet => to.features().resource_links,
        _ => true,
    }
}

/// Maps every element of one array member; unchanged bytes when no element changed.
fn map_elements(result: &Raw, list: &str, convert: impl Fn(Raw) -> Raw) -> Raw {
    let Some(items) = result.get(list).filter(Raw::is_array) else { return result.clone() };
    let before = items.items();
    let after: Vec<Raw> = before.iter().cloned().map(convert).collect();
    if before == after {
        return result.clone();
    }
    result.edit().set(list, array(&after)).finish()
}

fn array(items: &[Raw]) -> Raw {
    Raw::of(items)
}

fn tool_result(mut result: Payload, features: &RevisionFeatures) -> Payload {
    if !features.resource_links || !features.audio {
        result = map_elements(&result, Key::Content.as_str(), |content| content_block(content, features)).into();
    }
    if features.any_structured_content {
        return result;
    }
    let Some(structured) = result.member(Key::StructuredContent) else { return result };
    if features.structured_content && structured.is_object() {
        return result;
    }
    let with_text = ensure_text(&result, &structured);
    if !features.structured_content {
        return with_text.edit().remove(Key::StructuredContent.as_str()).finish().into();
    }
    let wrapped = Raw::empty().edit().set("result", structured).finish();
    with_text.edit().set(Key::StructuredContent.as_str(), wrapped).finish().into()
}

/// Adds structured content as a text block where the result has no text.
fn ensure_text(result: &Raw, structured: &Raw) -> Raw {
    let mut content = result.get("content").map(|content| content.items()).unwrap_or_default();
    if content.iter().any(|block| block_type(block).as_deref() == Some("text")) {
        return result.clone();
    }
    content.push(text_block(&structured.to_string()));
    result.edit().set("content", array(&content)).finish()
}

fn text_block(text: &str) -> Raw {
    Raw::of(&serde_json::json!({ "type": "text", "text": text }))
}

fn block_type(block: &Raw) -> Option<String> {
    block.get("type")?.text().map(std::borrow::Cow::into_owned)
}

/// Converts one content block.
fn content_block(content: Raw, features: &RevisionFeatures) -> Raw {
    let member = |key| content.get(key).and_then(|raw| raw.text().map(std::borrow::Cow::into_owned));
    match block_type(&content).as_deref() {
        Some("resource_link") if !features.resource_links => {
            let name = member("name").unwrap_or_default();
            let uri = member("uri").unwrap_or_default();
            text_block(&format!("{name}: {uri}"))
        }
        Some("audio") if !features.audio => Raw::of(&serde_json::json!({
            "type": "resource",
            "resource": { "uri": "content:audio", "mimeType": member("mimeType"), "blob": member("data") },
        })),
        _ => content,
    }
}

fn tool(tool: &Raw, features: &RevisionFeatures) -> Raw {
    let mut edit = tool.edit();
    // Before `title` existed, the title of a tool was an annotation.
    if let Some(title) = tool.get("title").filter(|_| !features.titles && features.tool_annotations) {
        let annotations = tool.get("annotations").unwrap_or_else(Raw::empty);
        if annotations.get("title").is_none() {
            edit = edit.set("annotations", annotations.edit().set("title", title).finish());
        }
    }
    if !features.tool_annotations {
        edit = edit.remove("annotations");
    }
    match tool.get("outputSchema") {
        Some(_) if !features.structured_content => edit = edit.remove("outputSchema"),
        Some(schema) if !features.any_structured_content && !is_object_schema(&schema) => {
            edit = edit.set("outputSchema", wrapped_schema(&schema));
        }
        _ => {}
    }
    let input = tool.get("inputSchema").filter(|_| !features.any_structured_content);
    if let Some(schema) = input.as_ref().and_then(without_boolean_properties) {
        edit = edit.set("inputSchema", schema);
    }
    if !features.tool_tasks {
        edit = edit.remove("execution");
    }
    without_titles_and_icons(&edit.finish(), features)
}

fn is_object_schema(schema: &Raw) -> bool {
    schema.get("type").and_then(|kind| kind.text().map(|kind| kind == "object")).unwrap_or(false)
}

/// Wraps the schema of a value as the schema of `{"result": value}` and moves its local references. The text
/// is replaced without parsing: a default value that looks like a reference changes too, which is harmless in
/// an output schema.
fn wrapped_schema(schema: &Raw) -> Raw {
    let text = schema.to_string();
    let moved = text.replace("\"#/", "\"#/properties/result/").replace("\"#\"", "\"#/properties/result\"");
    let inner = Raw::parse(&moved.into()).unwrap_or_else(|_| schema.clone());
    let properties = Raw::empty().edit().set("result", inner).finish();
    let whole = Raw::constant(r#"{"type":"object","required":["result"]}"#);
    whole.edit().set("properties", properties).finish()
}

/// Replaces boolean property schemas by equivalent objects; `None` when there are none.
fn without_boolean_properties(schema: &Raw) -> Option<Raw> {
    let properties = schema.get("properties")?;
    let is_boolean = |value: &Raw| matches!(value.as_bytes(), b"true" | b"false");
    if !properties.entries().any(|(_, value)| is_boolean(&value)) {
        return None;
    }
    let mut edit = properties.edit();
    for (key, value) in properties.entries() {
        match value.as_bytes() {
            b"true" => edit = edit.set(key, Raw::empty()),
            b"false" => edit = edit.set(key, Raw::constant(r#"{"not":{}}"#)),
            _ => {}
        }
    }
    Some(schema.edit().set("properties", edit.finish()).finish())
}

fn prompt(prompt: &Raw, features: &RevisionFeatures) -> Raw {
    if features.titles {
        return without_titles_and_icons(prompt, features);
    }
    let prompt = map_elements(prompt, "arguments", |argument| without_titles_and_icons(&argument, features));
    without_titles_and_icons(&prompt, features)
}

/// Removes `title` and `icons` where the revision lacks them.
fn without_titles_and_icons(item: &Raw, features: &RevisionFeatures) -> Raw {
    let mut edit = item.edit();
    if !features.titles {
        edit = edit.remove("title");
    }
    if !features.icons {
        edit = edit.remove("icons");
    }
    edit.finish()
}

#[cfg(test)]
mod tests {
    use super::*;
    use bytes::Bytes;

    fn check(method: &Method, to: &str, before: &str, after: &str) {
        let before = Raw::parse(&Bytes::copy_from_slice(before.as_bytes())).unwrap();
        let result = result(before.into(), method, Revision::parse(to).unwrap());
        assert_eq!(result.to_string(), after, "{method} {to}");
    }

    #[test]
    fn structured_content_is_downgraded() {
        let object = r#"{"content":[{"type":"text","text":"t"}],"structuredContent":{"a":1}}"#;
        check(&Method::ToolsCall, "2025-11-25", object, object);
        check(&Method::ToolsCall, "2025-06-18", object, object);
        check(&Method::ToolsCall, "2025-03-26", object, r#"{"content":[{"type":"text","text":"t"}]}"#);
        let list = r#"{"content":[],"structuredContent":[1]}"#;
        check(
            &Method::ToolsCall,
            "2025-11-25",
            list,
            r#"{"content":[{"text":"[1]","type":"text"}],"structuredContent":{"result":[1]}}"#,
        );
        check(&Method::ToolsCall, "2024-11-05", list, r#"{"content":[{"text":"[1]","type":"text"}]}"#);
    }

    #[test]
    fn content_types_are_downgraded() {
        let before = r#"{"content":[{"type":"resource_link","name":"n","uri":"u:v"},{"type":"audio","data":"AA==","mimeType":"audio/wav"}]}"#;
        check(&Method::ToolsCall, "2025-06-18", before, before);
        check(
            &Method::ToolsCall,
            "2025-03-26",
            before,
            r#"{"content":[{"text":"n: u:v","type":"text"},{"type":"audio","data":"AA==","mimeType":"audio/wav"}]}"#,
        );
        check(
            &Method::ToolsCall,
            "2024-11-05",
            before,
            r#"{"content":[{"text":"n: u:v","type":"text"},{"resource":{"blob":"AA==","mimeType":"audio/wav","uri":"content:audio"},"type":"resource"}]}"#,
        );
    }

    #[test]
    fn tools_are_downgraded() {
        let before = r#"{"tools":[{"name":"t","title":"T","icons":[],"annotations":{"readOnlyHint":true},"inputSchema":{"properties":{"a":true}},"outputSchema":{"type":"array"}}]}"#;
        check(
            &Method::ToolsList,
            "2025-11-25",
            before,
            r#"{"tools":[{"name":"t","title":"T","icons":[],"annotations":{"readOnlyHint":true},"inputSchema":{"properties":{"a":{}}},"outputSchema":{"type":"object","required":["result"],"properties":{"result":{"type":"array"}}}}]}"#,
        );
        check(
            &Method::ToolsList,
            "2025-03-26",
            before,
            r#"{"tools":[{"name":"t","annotations":{"readOnlyHint":true,"title":"T"},"inputSchema":{"properties":{"a":{}}}}]}"#,
        );
        check(
            &Method::ToolsList,
            "2024-11-05",
            before,
            r#"{"tools":[{"name":"t","inputSchema":{"properties":{"a":{}}}}]}"#,
        );
    }

    #[test]
    fn execution_is_kept_in_one_revision_only() {
        let before = r#"{"tools":[{"name":"t","inputSchema":{"properties":{"a":true}},"execution":{}}]}"#;
        check(&Method::ToolsList, "2025-11-25", &before.replace("true", "{}"), &before.replace("true", "{}"));
        let after = r#"{"tools":[{"name":"t","inputSchema":{"properties":{"a":true}}}]}"#;
        check(&Method::ToolsList, "2026-07-28", before, after);
    }

    #[test]
    fn unchanged_results_keep_their_bytes() {
        let before = r#"{ "tools" : [ {"name":"t" , "inputSchema":{}} ] }"#;
        check(&Method::ToolsList, "2024-11-05", before, before);
    }
}
