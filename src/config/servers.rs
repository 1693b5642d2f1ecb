//! Reads the server sections of `rialto.toml`.

use std::path::PathBuf;

use http::{HeaderMap, HeaderName, HeaderValue};
use serde_json::Value;

use super::model::{ServerKind, ServerSection};
use super::reader::{ConfigReader, TableReader, quoted_list, suggestion};
use super::settings::{FilterSection, UpstreamSettings};
use super::spanned_value::{Span, SpannedEntry};
use super::structure::{SERVER, SERVER_KIND_KEYS};
use crate::local::rest::{DocumentSource, ManualArgument, ManualBody, ManualTool, RestSpec, ValueKind};
use crate::mcp_client::{Address, Command, HttpTransport, Target};

/// Maximum length of a server or group name, in characters.
pub(super) const MAX_NAME_LENGTH: usize = 24;

/// Whether a name is valid for a server or a group.
pub(crate) fn is_valid_name(name: &str) -> bool {
    let is_alphanumeric = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    name.len() <= MAX_NAME_LENGTH
        && name.bytes().next().is_some_and(is_alphanumeric)
        && name.bytes().all(|byte| is_alphanumeric(byte) || byte == b'-')
}

/// Records an error if the key is not a valid server or group name.
pub(super) fn check_name(reader: &ConfigReader<'_>, entry: &SpannedEntry, what: &str) {
    if !is_valid_name(&entry.key) {
        let hint = format!(
            "use lowercase letters, digits and hyphens, at most {MAX_NAME_LENGTH}, such as `{}`",
            super::import::slug(&entry.key, &[])
        );
        reader.error(&entry.key_span, format!("`{}` is not a valid {what} name", entry.key), Some(hint));
    }
}

/// Reads one server section on top of the settings in `defaults`.
pub(super) fn read_server(table: &TableReader<'_>, name: &str, defaults: &UpstreamSettings) -> Option<ServerSection> {
    let mut settings = defaults.clone();
    settings.read_table(table);
    let disabled = table.boolean("disabled").unwrap_or(false);
    let kind = read_kind(table, name)?;
    Some(ServerSection { disabled, settings, ..ServerSection::new(name, kind) })
}

/// Determines the kind of server: requires exactly one kind key and rejects keys of other kinds.
fn read_kind(table: &TableReader<'_>, name: &str) -> Option<ServerKind> {
    let reader = table.reader;
    let kind_keys: Vec<&SpannedEntry> = SERVER_KIND_KEYS.iter().filter_map(|kind| table.entry(kind)).collect();
    let chosen = match kind_keys.as_slice() {
        [] => {
            let hint = format!("set one of {}", quoted_list(&SERVER_KIND_KEYS));
            reader.error_unless_broken(&table.span, format!("[servers.{name}] has no kind"), Some(hint));
            return None;
        }
        [chosen] => chosen,
        [first, second, ..] => {
            let message = format!("[servers.{name}] has both `{}` and `{}`", first.key, second.key);
            let later = if first.key_span.start > second.key_span.start { first } else { second };
            reader.error(&later.key_span, message, Some("remove one of them".into()));
            return None;
        }
    };
    for entry in table.entries() {
        let Some(key) = SERVER.key(&entry.key) else { continue };
        if !key.server_kinds.is_empty() && !key.server_kinds.contains(&chosen.key.as_str()) {
            let message = format!("`{}` in [servers.{name}] is not valid with `{}`", entry.key, chosen.key);
            reader.error(&entry.key_span, message, Some(format!("it is valid with {}", quoted_list(key.server_kinds))));
        }
    }
    match chosen.key.as_str() {
        "builtin" => table.choice("builtin").map(|_| ServerKind::Elements),
        "command" => read_command(table).map(|command| ServerKind::Target(Target::Command(command))),
        "url" => read_address(table, name).map(|address| ServerKind::Target(Target::Url(address))),
        _ => read_rest(table, name).map(ServerKind::Rest),
    }
}

fn read_command(table: &TableReader<'_>) -> Option<Command> {
    let program = table.string("command");
    let arguments = table.strings("args").unwrap_or_default();
    let environment = table.string_map("env").into_iter().map(|(name, value, _)| (name, value)).collect();
    let folder = table.string("cwd").map(|folder| resolve_path(table.reader, &folder));
    if let (Some(folder), Some(entry)) = (&folder, table.entry("cwd"))
        && !folder.is_dir()
    {
        table.reader.warn(&entry.node.span, "the directory does not exist", None);
    }
    let program = program?;
    if let Some(entry) = table.entry("command")
        && arguments.is_empty()
        && program.contains(' ')
        && !program.contains('/')
    {
        let hint = "put arguments into `args`".to_owned();
        table.reader.warn(&entry.node.span, "the program name contains a space", Some(hint));
    }
    Some(Command { program, arguments, environment, working_directory: folder })
}

/// Resolves a path relative to the directory of the configuration file.
pub(super) fn resolve_path(reader: &ConfigReader<'_>, path: &str) -> PathBuf {
    match reader.path.parent().filter(|folder| !folder.as_os_str().is_empty()) {
        Some(folder) => folder.join(path),
        None => PathBuf::from(path),
    }
}

fn read_address(table: &TableReader<'_>, name: &str) -> Option<Address> {
    let transport = match table.choice("transport") {
        Some("sse") => Some(HttpTransport::Sse),
        Some(_) => Some(HttpTransport::Streamable),
        None => None,
    };
    let headers = read_headers(table, &format!("[servers.{name}]"));
    Some(Address { url: table.url("url")?, headers, transport })
}

/// Reads the `headers` of a table.
fn read_headers(table: &TableReader<'_>, location: &str) -> HeaderMap {
    let mut headers = HeaderMap::new();
    for (name, value, span) in table.string_map("headers") {
        if let Some((name, value)) = parse_header(table.reader, &name, &value, &span, location) {
            headers.append(name, value);
        }
    }
    headers
}

/// Parses one header and marks its value as sensitive; records an error if it is invalid.
pub(super) fn parse_header(
    reader: &ConfigReader<'_>,
    name: &str,
    value: &str,
    span: &Span,
    location: &str,
) -> Option<(HeaderName, HeaderValue)> {
    let parsed = HeaderName::from_bytes(name.as_bytes());
    let Ok(parsed) = parsed else {
        reader.error(span, format!("`{name}` in the headers of {location} is not a valid header name"), None);
        return None;
    };
    let Ok(mut value) = HeaderValue::from_str(value.trim()) else {
        let hint = "control characters are not allowed".to_owned();
        reader.error(
            span,
            format!("the value of `{name}` in the headers of {location} is not a valid header value"),
            Some(hint),
        );
        return None;
    };
    value.set_sensitive(true);
    Some((parsed, value))
}

fn read_rest(table: &TableReader<'_>, name: &str) -> Option<RestSpec> {
    let base_url = table.url("base_url");
    let headers = read_headers(table, &format!("[servers.{name}]"));
    let query = table.string_map("query").into_iter().map(|(name, value, _)| (name, value)).collect();
    let document = table.string("openapi").and_then(|text| read_document(table, &text));
    let mut filter = FilterSection::default();
    if let Some(operations) = table.subtable("operations") {
        filter.read_table(&operations);
    }
    let mut tools: Vec<ManualTool> = Vec::new();
    for table in table.table_list("tools") {
        let Some(tool) = read_tool(&table) else { continue };
        match table.entry("name") {
            Some(entry) if tools.iter().any(|other| other.name == tool.name) => {
                let tool_name = table.reader.redacted(&tool.name, &entry.node.span);
                let message = format!("[servers.{name}] has two tools named `{tool_name}`");
                table.reader.error(&entry.node.span, message, None);
            }
            _ => tools.push(tool),
        }
    }
    if table.entry("openapi").is_none() && table.entry("tools").is_none() {
        let hint = "set `openapi`, or describe tools in [[servers.NAME.tools]]".to_owned();
        table.reader.error_unless_broken(
            &table.span,
            format!("[servers.{name}] has a `base_url` but no tools"),
            Some(hint),
        );
    }
    Some(RestSpec { base_url: base_url?, headers, query, document, allow: filter.allow, deny: filter.deny, tools })
}

fn read_document(table: &TableReader<'_>, text: &str) -> Option<DocumentSource> {
    let entry = table.entry("openapi")?;
    if text.contains("://") {
        return table.parse_url(text, entry).map(DocumentSource::Url);
    }
    let path = resolve_path(table.reader, text);
    if !path.is_file() {
        table.reader.error(&entry.node.span, "the `openapi` file does not exist", None);
    }
    Some(DocumentSource::File(path))
}

fn read_tool(table: &TableReader<'_>) -> Option<ManualTool> {
    let arguments: Vec<ManualArgument> = table
        .named_entries("arguments")
        .iter()
        .filter_map(|entry| Some(read_argument(&table.named_table("arguments", entry)?, &entry.key)))
        .collect();
    let headers = table.string_map("headers");
    for (name, _, span) in &headers {
        if HeaderName::from_bytes(name.as_bytes()).is_err() {
            table.reader.error(span, format!("`{name}` is not a valid header name"), None);
        }
    }
    let method = table.choice("method").and_then(|method| method.parse().ok());
    let tool = ManualTool {
        title: table.string("title"),
        description: table.string("description"),
        method: method.unwrap_or(http::Method::GET),
        headers: headers.into_iter().map(|(name, value, _)| (name, value)).collect(),
        body: table.any_value("body").map(to_body),
        result_path: table.string("result_path"),
        read_only: table.boolean("read_only"),
        destructive: table.boolean("destructive"),
        idempotent: table.boolean("idempotent"),
        arguments,
        url: table.string("url").unwrap_or_default(),
        name: table.string("name")?,
    };
    check_tool(table, &tool);
    Some(tool)
}

/// A string is sent as a text template, anything else as JSON.
fn to_body(value: Value) -> ManualBody {
    match value {
        Value::String(text) => ManualBody::Text(text),
        value => ManualBody::Json(value),
    }
}

/// Checks the tool name, the placeholders of its URL, and the body against the method.
fn check_tool(table: &TableReader<'_>, tool: &ManualTool) {
    const MAX_TOOL_NAME_LENGTH: usize = 64;
    let reader = table.reader;
    let (Some(name), Some(url)) = (table.entry("name"), table.entry("url")) else { return };
    let tool_name = reader.redacted(&tool.name, &name.node.span);
    let legal = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-' | b'.');
    if tool.name.len() > MAX_TOOL_NAME_LENGTH || !tool.name.bytes().all(legal) {
        let hint = format!("use letters, digits, `_`, `-` and `.`, at most {MAX_TOOL_NAME_LENGTH}");
        reader.error(&name.node.span, format!("`{tool_name}` is not a valid tool name"), Some(hint));
    }
    let known: Vec<&str> = tool.arguments.iter().map(|argument| argument.name.as_str()).collect();
    for part in reader.redacted(&tool.url, &url.node.span).replace("${", "").split('{').skip(1) {
        let Some((inside, _)) = part.split_once('}') else { continue };
        for name in inside.trim_start_matches(['+', '#', '.', '/', ';', '?', '&']).split(',') {
            let name = name.split(':').next().unwrap_or(name).trim_end_matches('*');
            if !name.is_empty() && !known.contains(&name) {
                let message = format!("the `url` of the tool `{tool_name}` refers to the unknown argument `{name}`");
                reader.warn(&url.node.span, message, suggestion(name, &known));
            }
        }
    }
    if let (Some(body), true) = (table.entry("body"), matches!(tool.method, http::Method::GET | http::Method::HEAD)) {
        let hint = "set `method = \"POST\"`, or remove the body".to_owned();
        reader.warn(&body.key_span, format!("the tool `{tool_name}` sends a body with {}", tool.method), Some(hint));
    }
}

fn read_argument(table: &TableReader<'_>, name: &str) -> ManualArgument {
    let kind = table.choice("type").unwrap_or("string");
    let fits = |value: &Value| match kind {
        "string" => value.is_string(),
        "integer" => value.is_i64() || value.is_u64(),
        "number" => value.is_number(),
        "boolean" => value.is_boolean(),
        "array" => value.is_array(),
        _ => value.is_object(),
    };
    let default = table.any_value("default");
    let choices = table.any_list("enum").unwrap_or_default();
    if let (Some(entry), Some(false)) = (table.entry("default"), default.as_ref().map(fits)) {
        let message = format!("the default of the argument `{name}` is {}, not of type {kind}", entry.node.type_name());
        table.reader.error(&entry.node.span, message, None);
    }
    if let (Some(entry), false) = (table.entry("enum"), choices.iter().all(fits)) {
        table.reader.error(
            &entry.node.span,
            format!("not every `enum` value of the argument `{name}` is of type {kind}"),
            None,
        );
    }
    if let (Some(entry), Some(default)) = (table.entry("default"), &default)
        && !choices.is_empty()
        && !choices.contains(default)
    {
        table.reader.error(
            &entry.node.span,
            format!("the default of the argument `{name}` is not one of its `enum` values"),
            None,
        );
    }
    let required = table.boolean("required").unwrap_or(false);
    let kind = ValueKind::named(kind).unwrap_or(ValueKind::String);
    ManualArgument { name: name.to_owned(), kind, description: table.string("description"), required, default, choices }
}
