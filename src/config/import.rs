//! Import of `mcp.json` files of other clients: `mcpServers` or `servers`, each with a command or a URL.
//!
//! Unknown keys are only warned about, because other clients have keys of their own.

use std::path::{Path, PathBuf};

use super::build::PartialConfig;
use super::model::{Config, GroupSection, ServerKind, ServerSection};
use super::reader::{ConfigReader, quoted_list};
use super::servers::{MAX_NAME_LENGTH, parse_header};
use super::spanned_value::{SpannedEntry, SpannedNode, SpannedValue};
use super::suggest::nearest;
use crate::gateway::DEFAULT_GROUP;
use crate::mcp_client::{Address, Command, HttpTransport, Target};

/// Keys of a server entry that Rialto uses.
const KNOWN_KEYS: [&str; 13] = [
    "command",
    "args",
    "env",
    "envFile",
    "cwd",
    "url",
    "serverUrl",
    "httpUrl",
    "headers",
    "type",
    "transport",
    "disabled",
    "enabled",
];
/// Top-level keys that hold the servers, in search order.
const ROOT_KEYS: [&str; 2] = ["mcpServers", "servers"];

/// Reader for one server entry.
struct ImportReader<'r> {
    reader: &'r ConfigReader<'r>,
    name: &'r str,
    entries: &'r [SpannedEntry],
}

/// The directory for `${workspaceFolder}`: that of the file, or the parent of `.vscode` or `.cursor`.
pub(super) fn workspace_folder(file: &Path) -> PathBuf {
    let folder = file.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let hidden = folder.file_name().is_some_and(|name| matches!(name.to_str(), Some(".vscode" | ".cursor")));
    let folder = match (hidden, folder.parent()) {
        (true, Some(above)) if above.as_os_str().is_empty() => Path::new("."),
        (true, Some(above)) => above,
        _ => folder,
    };
    std::path::absolute(folder).unwrap_or_else(|_| folder.to_owned())
}

/// Turns any name into a valid server name that is not in `taken`.
pub(super) fn slug(name: &str, taken: &[&str]) -> String {
    let mut slug = String::new();
    for character in name.chars().flat_map(char::to_lowercase) {
        match character {
            'a'..='z' | '0'..='9' => slug.push(character),
            _ if slug.is_empty() || slug.ends_with('-') => {}
            _ => slug.push('-'),
        }
    }
    slug.truncate(MAX_NAME_LENGTH);
    let base = match slug.trim_end_matches('-') {
        "" => "server",
        base => base,
    };
    let numbered = |number: usize| match number {
        1 => base.to_owned(),
        _ => {
            let tail = format!("-{number}");
            format!("{}{tail}", base[..base.len().min(MAX_NAME_LENGTH - tail.len())].trim_end_matches('-'))
        }
    };
    (1..).map(numbered).find(|candidate| !taken.contains(&candidate.as_str())).unwrap_or_default()
}

pub(super) fn import(reader: &ConfigReader<'_>, root: &SpannedNode) -> Option<PartialConfig> {
    let SpannedValue::Table(entries) = &root.value else {
        reader.error(&root.span, format!("the file must contain an object, not {}", root.type_name()), None);
        return None;
    };
    let mut config = Config { servers: Vec::new(), groups: Vec::new(), ..Config::default() };
    let mut faulty = Vec::new();
    let servers = find_servers(reader, entries);
    if servers.is_some_and(<[SpannedEntry]>::is_empty) {
        reader.warn(&root.span, "the file has no servers", None);
    }
    for entry in servers.unwrap_or_default() {
        let errors = reader.error_count();
        let taken: Vec<&str> = config.servers.iter().map(|server| &*server.name).collect();
        let name = slug(&entry.key, &taken);
        let server = import_server(reader, entry, &name);
        match server.filter(|_| reader.error_count() == errors) {
            Some(server) => config.servers.push(server),
            None => faulty.push(entry.key.clone()),
        }
    }
    let enabled = config.servers.iter().filter(|server| !server.disabled).map(|server| server.name.clone());
    config.groups = vec![GroupSection::new(DEFAULT_GROUP, enabled.collect())];
    Some(PartialConfig { config, invalid_servers: faulty })
}

/// Finds the table of servers in a client's file.
fn find_servers<'r>(reader: &ConfigReader<'_>, entries: &'r [SpannedEntry]) -> Option<&'r [SpannedEntry]> {
    let member = |entries: &'r [SpannedEntry], key: &str| entries.iter().find(|entry| entry.key == key);
    let found = ROOT_KEYS.iter().find_map(|key| member(entries, key)).or_else(|| {
        // VS Code's `settings.json` nests them under `mcp`.
        match &member(entries, "mcp")?.node.value {
            SpannedValue::Table(inner) => member(inner, "servers"),
            _ => None,
        }
    });
    let Some(found) = found else {
        let near = entries.iter().find_map(|entry| Some((entry, nearest(&entry.key, &ROOT_KEYS)?)));
        match near {
            Some((entry, near)) => {
                let hint = Some(format!("did you mean `{near}`?"));
                reader.error(&entry.key_span, format!("unknown key `{}`", entry.key), hint);
            }
            None => reader.error_unless_broken(
                &(0..0),
                format!("the file has neither {}", ROOT_KEYS.map(|r| format!("`{r}`")).join(" nor ")),
                None,
            ),
        }
        return None;
    };
    match &found.node.value {
        SpannedValue::Table(servers) => Some(servers),
        _ => {
            let message = format!("`{}` must be an object, not {}", found.key, found.node.type_name());
            reader.error(&found.node.span, message, None);
            None
        }
    }
}

fn import_server(reader: &ConfigReader<'_>, entry: &SpannedEntry, name: &str) -> Option<ServerSection> {
    let SpannedValue::Table(entries) = &entry.node.value else {
        let message = format!("the server `{}` must be an object, not {}", entry.key, entry.node.type_name());
        reader.error(&entry.node.span, message, None);
        return None;
    };
    let importer = ImportReader { reader, name: &entry.key, entries };
    for member in entries.iter().filter(|member| !KNOWN_KEYS.contains(&member.key.as_str())) {
        let hint = nearest(&member.key, &KNOWN_KEYS).map(|near| format!("did you mean `{near}`?"));
        reader.warn(&member.key_span, format!("`{}` of the server `{}` is not used", member.key, entry.key), hint);
    }
    let disabled = importer.boolean("disabled").unwrap_or(false) || importer.boolean("enabled") == Some(false);
    let address = ["url", "serverUrl", "httpUrl"].iter().find_map(|key| importer.member(key));
    let kind = match (importer.member("command"), address) {
        (Some(_), None) => importer.command()?,
        (None, Some(url)) => importer.address(url)?,
        (Some(command), Some(url)) => {
            let later = if command.key_span.start > url.key_span.start { command } else { url };
            let message = format!("the server `{}` has both `command` and `{}`", entry.key, url.key);
            reader.error(&later.key_span, message, Some("remove one of them".into()));
            return None;
        }
        (None, None) => {
            let message = format!("the server `{}` has neither `command` nor `url`", entry.key);
            reader.error_unless_broken(&entry.key_span, message, None);
            return None;
        }
    };
    let mut server = ServerSection::new(name, ServerKind::Target(kind));
    server.original_name = entry.key.as_str().into();
    server.disabled = disabled;
    Some(server)
}

// === impl ImportReader ===

impl<'r> ImportReader<'r> {
    fn member(&self, key: &str) -> Option<&'r SpannedEntry> {
        self.entries.iter().find(|entry| entry.key == key && !matches!(entry.node.value, SpannedValue::Null))
    }

    fn boolean(&self, key: &str) -> Option<bool> {
        let entry = self.member(key)?;
        if let SpannedValue::Boolean(flag) = entry.node.value {
            return Some(flag);
        }
        self.type_error(entry, "true or false");
        None
    }

    fn type_error(&self, entry: &SpannedEntry, wanted: &str) {
        let found = entry.node.type_name();
        let message = format!("`{}` of the server `{}` must be {wanted}, not {found}", entry.key, self.name);
        self.reader.error(&entry.node.span, message, None);
    }

    fn string(&self, key: &str) -> Option<String> {
        let entry = self.member(key)?;
        self.reader.expect_string(&entry.node, &format!("`{key}` of the server `{}`", self.name))
    }

    /// An object of strings. Numbers and booleans are converted to strings.
    fn string_map(&self, key: &str) -> Vec<(&'r SpannedEntry, String)> {
        let Some(entry) = self.member(key) else { return Vec::new() };
        let SpannedValue::Table(entries) = &entry.node.value else {
            self.type_error(entry, "an object of strings");
            return Vec::new();
        };
        let one = |pair: &'r SpannedEntry| {
            let value = match &pair.node.value {
                SpannedValue::Null => return None,
                SpannedValue::Integer(number) => number.to_string(),
                SpannedValue::Boolean(flag) => flag.to_string(),
                _ => self
                    .reader
                    .expect_string(&pair.node, &format!("`{}` of `{key}` of the server `{}`", pair.key, self.name))?,
            };
            self.reader.secrets.add_entry(key, &pair.key, &value);
            Some((pair, value))
        };
        entries.iter().filter_map(one).collect()
    }

    fn warn_unused_with(&self, keys: &[&str], with: &str) {
        for entry in keys.iter().filter_map(|key| self.member(key)) {
            let message = format!("`{}` of the server `{}` is not used with `{with}`", entry.key, self.name);
            self.reader.warn(&entry.key_span, message, None);
        }
    }

    fn command(&self) -> Option<Target> {
        self.warn_unused_with(&["headers"], "command");
        let arguments = match self.member("args") {
            None => Vec::new(),
            Some(entry) => match &entry.node.value {
                SpannedValue::List(items) => {
                    let what = format!("each of `args` of the server `{}`", self.name);
                    items.iter().filter_map(|item| self.reader.expect_string(item, &what)).collect()
                }
                _ => {
                    self.type_error(entry, "a list of strings");
                    Vec::new()
                }
            },
        };
        let mut environment = self.environment_file();
        for (entry, value) in self.string_map("env") {
            environment.retain(|(name, _)| *name != entry.key);
            environment.push((entry.key.clone(), value));
        }
        let folder = self.string("cwd").map(|folder| workspace_folder(self.reader.path).join(folder));
        self.transport(&["stdio", "local"]);
        Some(Target::Command(Command {
            program: self.string("command")?,
            arguments,
            environment,
            working_directory: folder,
        }))
    }

    /// Reads the `envFile`: one `NAME=value` per line. By hand, because `dotenvy` replaces `$NAME` and refuses spaces and
    /// backslashes without quotes, which the clients whose files these are take literally.
    fn environment_file(&self) -> Vec<(String, String)> {
        let (Some(path), Some(entry)) = (self.string("envFile"), self.member("envFile")) else { return Vec::new() };
        let Ok(text) = std::fs::read_to_string(workspace_folder(self.reader.path).join(path)) else {
            let message = format!("the `envFile` of the server `{}` cannot be read", self.name);
            self.reader.error(&entry.node.span, message, None);
            return Vec::new();
        };
        let pair = |line: &str| {
            let line = line.trim();
            let line = line.strip_prefix("export ").unwrap_or(line);
            let (name, value) = line.split_once('=').filter(|_| !line.starts_with('#'))?;
            let value = value.trim();
            let quoted = ['"', '\''].iter().find_map(|quote| value.strip_prefix(*quote)?.strip_suffix(*quote));
            let (name, value) = (name.trim(), quoted.unwrap_or(value));
            self.reader.secrets.add_entry("env", name, value);
            Some((name.to_owned(), value.to_owned()))
        };
        text.lines().filter_map(pair).collect()
    }

    fn address(&self, entry: &SpannedEntry) -> Option<Target> {
        self.warn_unused_with(&["args", "env", "envFile", "cwd"], &entry.key);
        let text = self.string(&entry.key);
        let transport = self.transport(&["http", "streamable-http", "streamableHttp", "streamable_http", "sse"]);
        let location = format!("the server `{}`", self.name);
        let headers = self.string_map("headers").into_iter();
        let headers =
            headers.filter_map(|(pair, value)| parse_header(self.reader, &pair.key, &value, &pair.key_span, &location));
        let headers = headers.collect();
        let Ok(Target::Url(address)) = Target::url(&text?) else {
            let message = format!("`{}` of the server `{}` is not an HTTP URL", entry.key, self.name);
            let hint = "write something like \"https://tracker.example/mcp\", and credentials as headers".to_owned();
            self.reader.error(&entry.node.span, message, Some(hint));
            return None;
        };
        // Some clients write `http` for HTTP+SSE servers too, so the transport is detected.
        let transport = (transport.as_deref() == Some("sse")).then_some(HttpTransport::Sse);
        Some(Target::Url(Address { headers, transport, ..address }))
    }

    /// The value of `type` or `transport`, checked against `known`.
    fn transport(&self, known: &[&str]) -> Option<String> {
        let entry = self.member("type").or_else(|| self.member("transport"))?;
        let text = self.string(&entry.key)?;
        if !known.contains(&text.as_str()) {
            let value = self.reader.redacted(&text, &entry.node.span);
            let message = format!("`{}` of the server `{}` is unknown: {value:?}", entry.key, self.name);
            self.reader.error(&entry.node.span, message, Some(format!("use {}", quoted_list(known))));
        }
        Some(text)
    }
}
