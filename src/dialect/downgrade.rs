//! Results for clients whose revision has fewer shapes than the result uses.
//!
//! Content of a kind that a client cannot read breaks it, so that is turned into something it
//! can. Members that it does not know are taken out.

use super::{Revision, RevisionFeatures};
use crate::protocol::{Method, Raw};

/// A result in the shapes of a revision, as far as they are not the envelope of an era.
pub(super) fn result(result: &Raw, method: &Method, to: Revision) -> Raw {
    let facts = to.facts();
    match method {
        Method::ToolsCall => call(result, facts),
        Method::PromptsGet if !facts.resource_links => each(result, "messages", |message| {
            let Some(content) = message.get("content") else { return message };
            message.edit().set("content", block(content, facts)).finish()
        }),
        Method::ToolsList => each(result, "tools", |tool| self::tool(&tool, facts)),
        Method::PromptsList => each(result, "prompts", |prompt| self::prompt(&prompt, facts)),
        Method::ResourcesList => each(result, "resources", |item| plain(&item, facts)),
        Method::TemplatesList => each(result, "resourceTemplates", |item| plain(&item, facts)),
        _ => result.clone(),
    }
}

/// Changes every element of one list; the same text when nothing changed.
fn each(result: &Raw, list: &str, change: impl Fn(Raw) -> Raw) -> Raw {
    let Some(items) = result.get(list).filter(Raw::is_array) else { return result.clone() };
    let before = items.items();
    let after: Vec<Raw> = before.iter().cloned().map(change).collect();
    if before == after {
        return result.clone();
    }
    result.edit().set(list, array(&after)).finish()
}

fn array(items: &[Raw]) -> Raw {
    Raw::of(items)
}

fn call(result: &Raw, facts: &RevisionFeatures) -> Raw {
    let mut result = result.clone();
    if !facts.resource_links || !facts.audio {
        result = each(&result, "content", |content| block(content, facts));
    }
    if facts.any_structured {
        return result;
    }
    let Some(structured) = result.get("structuredContent") else { return result };
    if facts.structured && structured.is_object() {
        return result;
    }
    let with_text = ensure_text(&result, &structured);
    if !facts.structured {
        return with_text.edit().remove("structuredContent").finish();
    }
    let wrapped = Raw::empty().edit().set("result", structured).finish();
    with_text.edit().set("structuredContent", wrapped).finish()
}

/// Says structured content in words where no text does.
fn ensure_text(result: &Raw, structured: &Raw) -> Raw {
    let mut content = result.get("content").map(|content| content.items()).unwrap_or_default();
    if content.iter().any(|block| kind_of(block).as_deref() == Some("text")) {
        return result.clone();
    }
    content.push(text(&structured.to_string()));
    result.edit().set("content", array(&content)).finish()
}

fn text(text: &str) -> Raw {
    Raw::of(&serde_json::json!({ "type": "text", "text": text }))
}

fn kind_of(block: &Raw) -> Option<String> {
    block.get("type")?.text().map(std::borrow::Cow::into_owned)
}

/// One block of content.
fn block(content: Raw, facts: &RevisionFeatures) -> Raw {
    let member = |key| content.get(key).and_then(|raw| raw.text().map(std::borrow::Cow::into_owned));
    match kind_of(&content).as_deref() {
        Some("resource_link") if !facts.resource_links => {
            let name = member("name").unwrap_or_default();
            let uri = member("uri").unwrap_or_default();
            text(&format!("{name}: {uri}"))
        }
        Some("audio") if !facts.audio => Raw::of(&serde_json::json!({
            "type": "resource",
            "resource": { "uri": "content:audio", "mimeType": member("mimeType"), "blob": member("data") },
        })),
        _ => content,
    }
}

fn tool(tool: &Raw, facts: &RevisionFeatures) -> Raw {
    let mut edit = tool.edit();
    // Before things had titles, a tool's stood among its annotations.
    if let Some(title) = tool.get("title").filter(|_| !facts.titles && facts.tool_annotations) {
        let annotations = tool.get("annotations").unwrap_or_else(Raw::empty);
        if annotations.get("title").is_none() {
            edit = edit.set("annotations", annotations.edit().set("title", title).finish());
        }
    }
    if !facts.tool_annotations {
        edit = edit.remove("annotations");
    }
    match tool.get("outputSchema") {
        Some(_) if !facts.structured => edit = edit.remove("outputSchema"),
        Some(schema) if !facts.any_structured && !is_object_schema(&schema) => {
            edit = edit.set("outputSchema", wrapped_schema(&schema));
        }
        _ => {}
    }
    let input = tool.get("inputSchema").filter(|_| !facts.any_structured);
    if let Some(schema) = input.as_ref().and_then(without_boolean_properties) {
        edit = edit.set("inputSchema", schema);
    }
    if !facts.tool_tasks {
        edit = edit.remove("execution");
    }
    plain(&edit.finish(), facts)
}

fn is_object_schema(schema: &Raw) -> bool {
    schema.get("type").and_then(|kind| kind.text().map(|kind| kind == "object")).unwrap_or(false)
}

/// The schema of `{"result": value}` where `schema` is that of the value. References into the
/// document are led to its new place. It is text that is replaced: a default that looks like a
/// reference would change, too, which a schema for display survives.
fn wrapped_schema(schema: &Raw) -> Raw {
    let text = schema.to_string();
    let moved = text.replace("\"#/", "\"#/properties/result/").replace("\"#\"", "\"#/properties/result\"");
    let inner = Raw::parse(&moved.into()).unwrap_or_else(|_| schema.clone());
    let properties = Raw::empty().edit().set("result", inner).finish();
    let whole = Raw::constant(r#"{"type":"object","required":["result"]}"#);
    whole.edit().set("properties", properties).finish()
}

/// Property schemas that are `true` or `false` as objects; nothing when there are none.
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

fn prompt(prompt: &Raw, facts: &RevisionFeatures) -> Raw {
    if facts.titles {
        return plain(prompt, facts);
    }
    let prompt = each(prompt, "arguments", |argument| plain(&argument, facts));
    plain(&prompt, facts)
}

/// Takes titles and icons out where they do not exist.
fn plain(item: &Raw, facts: &RevisionFeatures) -> Raw {
    let mut edit = item.edit();
    if !facts.titles {
        edit = edit.remove("title");
    }
    if !facts.icons {
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
        let result = result(&before, method, Revision::parse(to).unwrap());
        assert_eq!(result.to_string(), after, "{method} {to}");
    }

    #[test]
    fn structured_content() {
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
    fn content_kinds() {
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
    fn tools() {
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
    fn how_tools_run_as_tasks_is_said_in_one_revision() {
        let before = r#"{"tools":[{"name":"t","inputSchema":{"properties":{"a":true}},"execution":{}}]}"#;
        check(&Method::ToolsList, "2025-11-25", &before.replace("true", "{}"), &before.replace("true", "{}"));
        let after = r#"{"tools":[{"name":"t","inputSchema":{"properties":{"a":true}}}]}"#;
        check(&Method::ToolsList, "2026-07-28", before, after);
    }

    #[test]
    fn what_needs_no_change_is_the_same_text() {
        let before = r#"{ "tools" : [ {"name":"t" , "inputSchema":{}} ] }"#;
        check(&Method::ToolsList, "2024-11-05", before, before);
    }
}
