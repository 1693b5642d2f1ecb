//! What people see: tables, and the content of results.

use std::io::Write;

use comfy_table::{ContentArrangement, Table, presets};
use serde_json::Value;

use crate::protocol::Raw;

/// A table with these columns, as wide as the terminal.
pub(super) fn table(columns: &[&str], rows: impl IntoIterator<Item = Vec<String>>) -> String {
    let mut table = Table::new();
    table.load_style(presets::NOTHING).set_content_arrangement(ContentArrangement::Dynamic);
    table.set_header(columns.iter().copied());
    for row in rows {
        table.add_row(row);
    }
    table.trim_fmt()
}

/// Prints a line. Whoever reads may have gone; then there is nothing left to do.
pub(super) fn line(text: &str) {
    if writeln!(std::io::stdout(), "{text}").is_err() {
        std::process::exit(0);
    }
}

/// What a server wrote, without the control characters that a terminal would obey.
pub(super) fn plain(text: &str) -> String {
    let harmless = |letter: char| !letter.is_control() || matches!(letter, '\n' | '\t');
    text.chars().map(|letter| if harmless(letter) { letter } else { '\u{fffd}' }).collect()
}

/// A member of an item as text.
pub(super) fn text(item: &Raw, key: &str) -> String {
    let value = item.get(key);
    match value.as_ref().and_then(Raw::text) {
        Some(text) => plain(&text),
        None => plain(&value.map(|value| value.to_string()).unwrap_or_default()),
    }
}

/// The first line of a description.
pub(super) fn summary(item: &Raw) -> String {
    text(item, "description").lines().next().unwrap_or_default().to_owned()
}

/// The arguments that a schema names, those that may be left out in brackets.
pub(super) fn signature(schema: Option<&Raw>) -> String {
    let schema: Value = schema.and_then(|schema| schema.read().ok()).unwrap_or(Value::Null);
    let required: Vec<&str> = schema["required"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
    let one = |(name, property): (&String, &Value)| {
        let kind = property["type"].as_str().unwrap_or("any");
        let name_and_kind = plain(&format!("{name}:{kind}"));
        if required.contains(&name.as_str()) { name_and_kind } else { format!("[{name_and_kind}]") }
    };
    schema["properties"].as_object().map(|all| all.iter().map(one).collect::<Vec<_>>().join(" ")).unwrap_or_default()
}

/// The blocks of content in a result, as text.
pub(super) fn content(result: &Raw) -> String {
    let blocks = result.get("content").map(|content| content.items()).unwrap_or_default();
    let mut lines: Vec<String> = blocks.iter().map(block).collect();
    if blocks.is_empty() {
        lines.extend(result.get("structuredContent").map(|structured| pretty(&structured)));
    }
    lines.join("\n")
}

/// One block of content.
pub(super) fn block(block: &Raw) -> String {
    let member = |key| text(block, key);
    match member("type").as_str() {
        "text" => member("text"),
        "resource_link" => format!("[link] {} {}", member("uri"), member("name")),
        "resource" => block.get("resource").map(|resource| resource_text(&resource)).unwrap_or_default(),
        kind @ ("image" | "audio") => {
            format!("[{kind}, {}, {} bytes in Base64]", member("mimeType"), member("data").len())
        }
        _ => pretty(block),
    }
}

/// The content of a resource.
pub(super) fn resource_text(resource: &Raw) -> String {
    match resource.get("text").as_ref().and_then(Raw::text) {
        Some(text) => plain(&text),
        None => format!("[{}, {} bytes in Base64]", text(resource, "mimeType"), text(resource, "blob").len()),
    }
}

/// JSON for people.
pub(super) fn pretty(raw: &Raw) -> String {
    let pretty = raw.read::<Value>().ok().and_then(|value| serde_json::to_string_pretty(&value).ok());
    plain(&pretty.unwrap_or_else(|| raw.to_string()))
}
