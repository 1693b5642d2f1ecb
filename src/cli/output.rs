//! Terminal output: tables, and results as text.

use std::borrow::Cow;
use std::io::{IsTerminal, Write};

use comfy_table::{ContentArrangement, Table, presets};
use serde_json::Value;

use crate::protocol::Raw;

/// Formats a table that fits the width of the terminal.
pub(super) fn table(columns: &[&str], rows: impl IntoIterator<Item = Vec<String>>) -> String {
    let mut table = Table::new();
    table.load_style(presets::NOTHING).set_content_arrangement(ContentArrangement::Dynamic);
    table.set_header(columns.iter().copied());
    for row in rows {
        table.add_row(row);
    }
    table.trim_fmt()
}

/// Prints a line; exits quietly if the reader closed the pipe.
pub(super) fn print_line(text: &str) {
    if writeln!(std::io::stdout(), "{text}").is_err() {
        std::process::exit(0);
    }
}

/// Prints a text result unchanged, so that a pipe gets exactly its bytes. Only on a terminal a missing final newline is
/// added, because the shell prompt would follow on the same line.
pub(super) fn print_text(text: &str) {
    let mut stdout = std::io::stdout();
    let text = newline_terminated_if(stdout.is_terminal(), text);
    if stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush()).is_err() {
        std::process::exit(0);
    }
}

fn newline_terminated_if(is_terminal: bool, text: &str) -> Cow<'_, str> {
    if is_terminal && !text.ends_with('\n') { Cow::Owned(format!("{text}\n")) } else { Cow::Borrowed(text) }
}

/// Replaces control characters (terminal escape sequences) in text from a server.
pub(super) fn strip_control_chars(text: &str) -> String {
    let is_printable = |character: char| !character.is_control() || matches!(character, '\n' | '\t');
    text.chars().map(|character| if is_printable(character) { character } else { '\u{fffd}' }).collect()
}

/// A member of an object as text; strings without quotes.
pub(super) fn member_text(item: &Raw, key: &str) -> String {
    let value = item.get(key);
    match value.as_ref().and_then(Raw::text) {
        Some(text) => strip_control_chars(&text),
        None => strip_control_chars(&value.map(|value| value.to_string()).unwrap_or_default()),
    }
}

/// The first line of the description.
pub(super) fn summary(item: &Raw) -> String {
    member_text(item, "description").lines().next().unwrap_or_default().to_owned()
}

/// The arguments in an input schema, optional ones in brackets.
pub(super) fn signature(schema: Option<&Raw>) -> String {
    let schema: Value = schema.and_then(|schema| schema.read().ok()).unwrap_or(Value::Null);
    let required: Vec<&str> = schema["required"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
    let one = |(name, property): (&String, &Value)| {
        let kind = property["type"].as_str().unwrap_or("any");
        let name_and_kind = strip_control_chars(&format!("{name}:{kind}"));
        if required.contains(&name.as_str()) { name_and_kind } else { format!("[{name_and_kind}]") }
    };
    schema["properties"].as_object().map(|all| all.iter().map(one).collect::<Vec<_>>().join(" ")).unwrap_or_default()
}

/// The content blocks of a tool result as text; `structuredContent` if there are none.
pub(super) fn content_text(result: &Raw) -> String {
    let blocks = result.get("content").map(|content| content.items()).unwrap_or_default();
    let mut lines: Vec<String> = blocks.iter().map(block_text).collect();
    if blocks.is_empty() {
        lines.extend(result.get("structuredContent").map(|structured| pretty_json(&structured)));
    }
    lines.join("\n")
}

/// One content block as text; binary content as a placeholder.
pub(super) fn block_text(block: &Raw) -> String {
    let member = |key| member_text(block, key);
    match member("type").as_str() {
        "text" => member("text"),
        "resource_link" => format!("[link] {} {}", member("uri"), member("name")),
        "resource" => block.get("resource").map(|resource| resource_text(&resource)).unwrap_or_default(),
        kind @ ("image" | "audio") => {
            format!("[{kind}, {}, {} bytes in Base64]", member("mimeType"), member("data").len())
        }
        _ => pretty_json(block),
    }
}

/// The text of a resource; binary content as a placeholder.
pub(super) fn resource_text(resource: &Raw) -> String {
    match resource.get("text").as_ref().and_then(Raw::text) {
        Some(text) => strip_control_chars(&text),
        None => {
            format!("[{}, {} bytes in Base64]", member_text(resource, "mimeType"), member_text(resource, "blob").len())
        }
    }
}

/// Pretty-printed JSON.
pub(super) fn pretty_json(raw: &Raw) -> String {
    let pretty = raw.read::<Value>().ok().and_then(|value| serde_json::to_string_pretty(&value).ok());
    strip_control_chars(&pretty.unwrap_or_else(|| raw.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn missing_final_newline_is_added_on_a_terminal_only() {
        assert_eq!(newline_terminated_if(true, "Iron"), "Iron\n");
        assert_eq!(newline_terminated_if(true, "Iron\n"), "Iron\n");
        assert_eq!(newline_terminated_if(false, "Iron"), "Iron");
        assert_eq!(newline_terminated_if(false, "Iron\n"), "Iron\n");
    }
}
