//! The servers of `rialto.toml`.

use std::path::PathBuf;

use http::{HeaderMap, HeaderName, HeaderValue};
use serde_json::Value;

use super::keys::{KINDS, SERVER};
use super::model::{ServerKind, ServerSection};
use super::reader::{ConfigReader, Table, listed, meant};
use super::spanned_value::{Span, SpannedEntry};
use crate::local::rest::{DocumentSource, ManualArgument, ManualBody, ManualTool, RestSpec, ValueKind};
use crate::mcp_client::{Address, Command, HttpTransport, Target};
use crate::upstream::ConnectionMode;

/// The longest that the name of a server or a group may be.
pub(super) const NAME_LENGTH: usize = 24;

/// Whether a name can be that of a server or a group.
pub(super) fn is_name(name: &str) -> bool {
    let letter = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    name.len() <= NAME_LENGTH
        && name.bytes().next().is_some_and(letter)
        && name.bytes().all(|byte| letter(byte) || byte == b'-')
}

/// Notes a name that cannot be one.
pub(super) fn check_name(reader: &ConfigReader<'_>, entry: &SpannedEntry, what: &str) {
    if !is_name(&entry.key) {
        let hint = format!(
            "use small letters, digits and hyphens, at most {NAME_LENGTH}, such as `{}`",
            super::import::slug(&entry.key, &[])
        );
        reader.error(&entry.key_at, format!("`{}` cannot be the name of a {what}", entry.key), Some(hint));
    }
}

/// Reads one server. `server` holds what holds for all that do not say otherwise.
pub(super) fn server(table: &Table<'_>, name: &str, mut server: ServerSection) -> Option<ServerSection> {
    server.name = name.into();
    server.written = name.into();
    settings(table, &mut server);
    server.disabled = table.flag("disabled").unwrap_or(false);
    server.kind = kind(table, name)?;
    Some(server)
}

/// What can be set for one server, and for all that do not say otherwise.
pub(super) fn settings(table: &Table<'_>, server: &mut ServerSection) {
    fn set<T>(place: &mut T, value: Option<T>) {
        if let Some(value) = value {
            *place = value;
        }
    }
    let settings = &mut server.settings;
    set(&mut settings.revision, table.revision("revision"));
    set(&mut settings.connect_timeout, table.duration("connect_timeout"));
    set(&mut settings.discovery_timeout, table.duration("discovery_timeout"));
    set(&mut settings.startup_timeout, table.duration("startup_timeout"));
    set(&mut settings.idle_timeout, table.duration("idle_timeout"));
    set(&mut settings.total_timeout, table.duration("total_timeout"));
    set(&mut settings.stop_timeout, table.duration("stop_timeout"));
    set(&mut settings.ping_interval, table.duration_or_off("ping_interval"));
    set(&mut settings.message_bytes, table.size("message_bytes"));
    set(&mut settings.max_input_rounds, table.count("max_input_rounds").and_then(|rounds| u32::try_from(rounds).ok()));
    if settings.total_timeout < settings.idle_timeout {
        // Whoever sets one of them only means that one; the other follows.
        match (table.entry("idle_timeout"), table.entry("total_timeout")) {
            (Some(_), Some(cap)) => {
                table.reader.error(&cap.node.at, "`total_timeout` is shorter than `idle_timeout`", None)
            }
            (Some(_), None) => settings.total_timeout = settings.idle_timeout,
            (None, _) => settings.idle_timeout = settings.total_timeout,
        }
    }
    server.connection_mode = match table.choice("connection") {
        Some("shared") => Some(ConnectionMode::Shared),
        Some(_) => Some(ConnectionMode::PerClient),
        None => server.connection_mode,
    };
    set(&mut server.max_leases, table.count("max_leases"));
    set(&mut server.lease_idle_timeout, table.duration("lease_idle_timeout"));
    set(&mut server.list_poll_interval, table.duration_or_off("list_poll_interval"));
    set(&mut server.serve_stale_for, table.duration("serve_stale_for"));
    set(&mut server.allow_server_requests, table.flag("allow_server_requests"));
}

/// What a server is: exactly one of the keys that say so has to be there, and nothing that does not fit.
fn kind(table: &Table<'_>, name: &str) -> Option<ServerKind> {
    let reader = table.reader;
    let given: Vec<&SpannedEntry> = KINDS.iter().filter_map(|kind| table.entry(kind)).collect();
    let chosen = match given.as_slice() {
        [] => {
            let hint = format!("give one of {}", listed(&KINDS));
            reader.missing(&table.at, format!("[servers.{name}] does not say what the server is"), Some(hint));
            return None;
        }
        [chosen] => chosen,
        [first, second, ..] => {
            let message = format!("[servers.{name}] has both `{}` and `{}`", first.key, second.key);
            let later = if first.key_at.start > second.key_at.start { first } else { second };
            reader.error(&later.key_at, message, Some("one of them has to go".into()));
            return None;
        }
    };
    for entry in table.entries() {
        let Some(key) = SERVER.key(&entry.key) else { continue };
        if !key.with.is_empty() && !key.with.contains(&chosen.key.as_str()) {
            let message = format!("`{}` in [servers.{name}] does not go with `{}`", entry.key, chosen.key);
            reader.error(&entry.key_at, message, Some(format!("it goes with {}", listed(key.with))));
        }
    }
    match chosen.key.as_str() {
        "builtin" => table.choice("builtin").map(|_| ServerKind::Elements),
        "command" => command(table).map(|command| ServerKind::Target(Target::Command(command))),
        "url" => address(table, name).map(|address| ServerKind::Target(Target::Url(address))),
        _ => rest(table, name).map(ServerKind::Rest),
    }
}

fn command(table: &Table<'_>) -> Option<Command> {
    let program = table.text("command");
    let arguments = table.words("args").unwrap_or_default();
    let environment = table.pairs("env").into_iter().map(|(name, value, _)| (name, value)).collect();
    let folder = table.text("cwd").map(|folder| below(table.reader, &folder));
    if let (Some(folder), Some(entry)) = (&folder, table.entry("cwd"))
        && !folder.is_dir()
    {
        table.reader.warn(&entry.node.at, "there is no such folder", None);
    }
    let program = program?;
    if let Some(entry) = table.entry("command")
        && arguments.is_empty()
        && program.contains(' ')
        && !program.contains('/')
    {
        let hint = "the program alone is the command, the rest are `args`".to_owned();
        table.reader.warn(&entry.node.at, "a program with a space in its name is unusual", Some(hint));
    }
    Some(Command { program, arguments, environment, folder })
}

/// A path in a file is relative to the folder of that file.
pub(super) fn below(reader: &ConfigReader<'_>, path: &str) -> PathBuf {
    match reader.path.parent().filter(|folder| !folder.as_os_str().is_empty()) {
        Some(folder) => folder.join(path),
        None => PathBuf::from(path),
    }
}

fn address(table: &Table<'_>, name: &str) -> Option<Address> {
    let transport = match table.choice("transport") {
        Some("sse") => Some(HttpTransport::Sse),
        Some(_) => Some(HttpTransport::Streamable),
        None => None,
    };
    let headers = headers(table, &format!("[servers.{name}]"));
    Some(Address { url: table.url("url")?, headers, transport })
}

/// Headers of a table. Their values are secrets.
fn headers(table: &Table<'_>, place: &str) -> HeaderMap {
    let mut headers = HeaderMap::new();
    for (name, value, at) in table.pairs("headers") {
        if let Some((name, value)) = header(table.reader, &name, &value, &at, place) {
            headers.append(name, value);
        }
    }
    headers
}

/// One header; notes one that cannot be.
pub(super) fn header(
    reader: &ConfigReader<'_>,
    name: &str,
    value: &str,
    at: &Span,
    place: &str,
) -> Option<(HeaderName, HeaderValue)> {
    let parsed = HeaderName::from_bytes(name.as_bytes());
    let Ok(parsed) = parsed else {
        reader.error(at, format!("`{name}` in the headers of {place} cannot be the name of a header"), None);
        return None;
    };
    let Ok(mut value) = HeaderValue::from_str(value.trim()) else {
        let hint = "it may not have line ends or other control characters in it".to_owned();
        reader.error(at, format!("the value of `{name}` in the headers of {place} cannot be sent"), Some(hint));
        return None;
    };
    value.set_sensitive(true);
    Some((parsed, value))
}

fn rest(table: &Table<'_>, name: &str) -> Option<RestSpec> {
    let base_url = table.url("base_url");
    let headers = headers(table, &format!("[servers.{name}]"));
    let query = table.pairs("query").into_iter().map(|(name, value, _)| (name, value)).collect();
    let document = table.text("openapi").and_then(|text| document(table, &text));
    let operations = table.table("operations", &format!("servers.{name}.operations"));
    let filter = operations.map(|table| super::build::filter(&table)).unwrap_or_default();
    let mut tools: Vec<ManualTool> = Vec::new();
    for table in table.tables("tools", &format!("servers.{name}.tools")) {
        let Some(tool) = tool(&table) else { continue };
        match table.entry("name") {
            Some(entry) if tools.iter().any(|other| other.name == tool.name) => {
                let shown = table.reader.shown(&tool.name, &entry.node.at);
                let message = format!("[servers.{name}] has two tools of the name `{shown}`");
                table.reader.error(&entry.node.at, message, None);
            }
            _ => tools.push(tool),
        }
    }
    if table.entry("openapi").is_none() && table.entry("tools").is_none() {
        let hint = "give `openapi`, or tools by hand as [[servers.NAME.tools]]".to_owned();
        table.reader.missing(&table.at, format!("[servers.{name}] has a `base_url` and no tools"), Some(hint));
    }
    Some(RestSpec { base_url: base_url?, headers, query, document, allow: filter.allow, deny: filter.deny, tools })
}

fn document(table: &Table<'_>, text: &str) -> Option<DocumentSource> {
    let entry = table.entry("openapi")?;
    if text.contains("://") {
        return table.uri(text, entry).map(DocumentSource::Url);
    }
    let path = below(table.reader, text);
    if !path.is_file() {
        table.reader.error(&entry.node.at, "the file that `openapi` names is not there", None);
    }
    Some(DocumentSource::File(path))
}

fn tool(table: &Table<'_>) -> Option<ManualTool> {
    let arguments: Vec<ManualArgument> = table
        .named("arguments")
        .iter()
        .filter_map(|entry| Some(argument(&table.one("arguments", entry, "tools.arguments")?, &entry.key)))
        .collect();
    let headers = table.pairs("headers");
    for (name, _, at) in &headers {
        if HeaderName::from_bytes(name.as_bytes()).is_err() {
            table.reader.error(at, format!("`{name}` cannot be the name of a header"), None);
        }
    }
    let method = table.choice("method").and_then(|method| method.parse().ok());
    let tool = ManualTool {
        title: table.text("title"),
        description: table.text("description"),
        method: method.unwrap_or(http::Method::GET),
        headers: headers.into_iter().map(|(name, value, _)| (name, value)).collect(),
        body: table.any("body").map(body),
        result_path: table.text("result_path"),
        read_only: table.flag("read_only"),
        destructive: table.flag("destructive"),
        idempotent: table.flag("idempotent"),
        arguments,
        url: table.text("url").unwrap_or_default(),
        name: table.text("name")?,
    };
    check_tool(table, &tool);
    Some(tool)
}

/// A body as it is to be sent: text as text, anything else as JSON.
fn body(value: Value) -> ManualBody {
    match value {
        Value::String(text) => ManualBody::Text(text),
        value => ManualBody::Json(value),
    }
}

/// What is wrong between the parts of a tool.
fn check_tool(table: &Table<'_>, tool: &ManualTool) {
    const LONGEST: usize = 64;
    let reader = table.reader;
    let (Some(name), Some(url)) = (table.entry("name"), table.entry("url")) else { return };
    let shown = reader.shown(&tool.name, &name.node.at);
    let legal = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-' | b'.');
    if tool.name.len() > LONGEST || !tool.name.bytes().all(legal) {
        let hint = format!("use letters, digits, `_`, `-` and `.`, at most {LONGEST}");
        reader.error(&name.node.at, format!("`{shown}` cannot be the name of a tool"), Some(hint));
    }
    let known: Vec<&str> = tool.arguments.iter().map(|argument| argument.name.as_str()).collect();
    for part in reader.shown(&tool.url, &url.node.at).replace("${", "").split('{').skip(1) {
        let Some((inside, _)) = part.split_once('}') else { continue };
        for name in inside.trim_start_matches(['+', '#', '.', '/', ';', '?', '&']).split(',') {
            let name = name.split(':').next().unwrap_or(name).trim_end_matches('*');
            if !name.is_empty() && !known.contains(&name) {
                let message = format!("the tool `{shown}` has no argument `{name}`, which its `url` names");
                reader.warn(&url.node.at, message, meant(name, &known));
            }
        }
    }
    if let (Some(body), true) = (table.entry("body"), matches!(tool.method, http::Method::GET | http::Method::HEAD)) {
        let hint = "say `method = \"POST\"`, or leave the body out".to_owned();
        reader.warn(&body.key_at, format!("the tool `{shown}` sends a body with {}", tool.method), Some(hint));
    }
}

fn argument(table: &Table<'_>, name: &str) -> ManualArgument {
    let kind = table.choice("type").unwrap_or("string");
    let fits = |value: &Value| match kind {
        "string" => value.is_string(),
        "integer" => value.is_i64() || value.is_u64(),
        "number" => value.is_number(),
        "boolean" => value.is_boolean(),
        "array" => value.is_array(),
        _ => value.is_object(),
    };
    let default = table.any("default");
    let choices = table.values("enum").unwrap_or_default();
    if let (Some(entry), Some(false)) = (table.entry("default"), default.as_ref().map(fits)) {
        let message = format!("the default of the argument `{name}` is {}, not of type {kind}", entry.node.described());
        table.reader.error(&entry.node.at, message, None);
    }
    if let (Some(entry), false) = (table.entry("enum"), choices.iter().all(fits)) {
        table.reader.error(
            &entry.node.at,
            format!("not every choice of the argument `{name}` is of type {kind}"),
            None,
        );
    }
    if let (Some(entry), Some(default)) = (table.entry("default"), &default)
        && !choices.is_empty()
        && !choices.contains(default)
    {
        table.reader.error(
            &entry.node.at,
            format!("the default of the argument `{name}` is none of its choices"),
            None,
        );
    }
    let required = table.flag("required").unwrap_or(false);
    let kind = ValueKind::named(kind).unwrap_or(ValueKind::String);
    ManualArgument { name: name.to_owned(), kind, description: table.text("description"), required, default, choices }
}
