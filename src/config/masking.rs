//! Shows the text of a configuration file without its secrets, also of a file with mistakes, whose secrets are in use
//! nowhere.

use std::path::Path;

use super::reader::VariableLookup;
use super::secrets::is_secret_word;
use super::spanned_value::{Span, SpannedNode, SpannedValue, SyntaxError, from_json, from_toml};
use super::{ConfigFormat, Severity, parse_partially};

/// Tables whose strings are secrets, whatever their keys.
const SECRET_TABLES: [&str; 5] = ["env", "headers", "tokens", "query", "keys"];

/// The text with `mask` in place of every secret; each line stays a line.
pub fn masked_text(text: &str, path: &Path, lookup: &VariableLookup<'_>, mask: &str) -> String {
    let format = ConfigFormat::detect(path, text);
    let (root, syntax_errors) = tree(text, format);
    if !syntax_errors.is_empty() {
        return by_line(text, |line| masked_line(line, mask));
    }
    let (_, diagnostics, secrets) = parse_partially(text, path, format, lookup);
    let mut shown = text.to_owned();
    if diagnostics.iter().any(|diagnostic| diagnostic.severity == Severity::Error) {
        let mut spans = Vec::new();
        secret_spans(&root, false, &mut spans);
        // A variable says nothing, but for its default.
        let is_variable = |text: &str| text.contains("${") && !text.contains(":-");
        for span in spans.into_iter().rev().filter(|span| !is_variable(&text[span.clone()])) {
            let lines = "\n".repeat(text[span.clone()].matches('\n').count());
            shown.replace_range(span, &format!("\"{mask}\"{lines}"));
        }
    }
    by_line(&shown, |line| secrets.masked(line))
}

fn tree(text: &str, format: ConfigFormat) -> (SpannedNode, Vec<SyntaxError>) {
    match format {
        ConfigFormat::Toml => from_toml(text),
        ConfigFormat::McpJson => from_json(text),
    }
}

fn by_line(text: &str, change: impl Fn(&str) -> String) -> String {
    text.split('\n').map(change).collect::<Vec<_>>().join("\n")
}

/// The strings that stand where secrets do, in file order.
fn secret_spans(node: &SpannedNode, is_secret: bool, spans: &mut Vec<Span>) {
    match &node.value {
        SpannedValue::Table(entries) => {
            for entry in entries {
                let key = entry.key.to_ascii_lowercase();
                let is_named = SECRET_TABLES.contains(&key.as_str()) || key == "store" || is_secret_word(&key);
                secret_spans(&entry.node, is_secret || is_named, spans);
            }
        }
        SpannedValue::List(items) => items.iter().for_each(|item| secret_spans(item, is_secret, spans)),
        SpannedValue::String(_) | SpannedValue::Integer(_) if is_secret => spans.push(node.span.clone()),
        _ => {}
    }
}

/// A line of a file that cannot be read: nobody knows which of its values are secrets, so none is shown.
fn masked_line(line: &str, mask: &str) -> String {
    let text = line.trim();
    let is_comment = text.starts_with('#') || text.starts_with("//");
    let is_header = text.starts_with('[') && text.ends_with(']') && !text.contains(['"', '\'', '=', ',']);
    if is_comment || is_header || is_harmless(text) {
        return line.to_owned();
    }
    match key_length(line) {
        Some(length) if is_harmless(line[length..].trim()) => line.to_owned(),
        Some(length) => format!("{} \"{mask}\"", &line[..length]),
        None => format!("{}\"{mask}\"", &line[..line.len() - line.trim_start().len()]),
    }
}

/// Whether a value is brackets, a literal, or a variable alone.
fn is_harmless(value: &str) -> bool {
    let value = value.trim_end_matches(',').trim_matches('"');
    let is_variable = value.strip_prefix("${").and_then(|rest| rest.strip_suffix('}'));
    is_variable.is_some_and(|name| !name.contains(['}', '-']))
        || matches!(value, "true" | "false" | "null")
        || value.bytes().all(|byte| b"{}[], \t\r".contains(&byte))
}

/// How long a key is, with what separates it from its value.
fn key_length(line: &str) -> Option<usize> {
    let mut quote = None;
    for (at, letter) in line.char_indices() {
        match (quote, letter) {
            (None, '"' | '\'') => quote = Some(letter),
            (Some(open), _) if letter == open => quote = None,
            (None, '=' | ':') => return Some(at + 1),
            _ => {}
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn masked(path: &str, text: &str) -> String {
        masked_text(text, Path::new(path), &|_| None, "***")
    }

    #[test]
    fn secrets_of_a_file_with_mistakes_are_masked() {
        let toml = "listen = 7\n[access.tokens]\nann = \"of-ann\"\n[servers.a]\nurl = \"http://a.example/mcp\"\n\
                    headers = { X-Team = \"blue\", X-Mode = \"${M:-green}\", Authorization = \"${A}\" }\n[servers.b]\ncommand = \"b\"\n\
                    env.PLAIN = \"one\"\n[servers.c.env]\nMORE = '''\ntwo\nthree'''\n";
        let shown = masked("rialto.toml", toml);
        for secret in ["of-ann", "blue", "green", "one", "two", "three"] {
            assert!(!shown.contains(secret), "{secret}: {shown}");
        }
        assert!(shown.contains("http://a.example/mcp") && shown.contains("\"${A}\""), "{shown}");
        assert_eq!(shown.lines().count(), toml.lines().count(), "{shown}");
        let json = "{\"mcpServers\": {\"a\": {\"command\": 7, \"env\": {\"A\": \"one\"}, \"args\": [\"-y\"]}}}";
        assert_eq!(masked("mcp.json", json), json.replace("\"one\"", "\"***\""));
    }

    #[test]
    fn no_value_of_a_file_that_cannot_be_read_is_shown() {
        let toml = "# ours\n[access.tokens]\nann = of-ann\nbob = \"${BOB}\"\neve = \"${\"\nbare\nworkers = {\nlist = [\n  \"one\",\n]\n";
        let shown = "# ours\n[access.tokens]\nann = \"***\"\nbob = \"${BOB}\"\neve = \"***\"\n\"***\"\nworkers = {\nlist = [\n  \"***\"\n]\n";
        assert_eq!(masked("rialto.toml", toml), shown);
        let json = "{\n \"mcpServers\": {\n  \"a\": {\"env\": {\"A\": \"one\"}},\n  \"b\": {\n   \"url\": \"http://b\n";
        let shown = "{\n \"mcpServers\": {\n  \"a\": \"***\"\n  \"b\": {\n   \"url\": \"***\"\n";
        assert_eq!(masked("mcp.json", json), shown);
    }
}
