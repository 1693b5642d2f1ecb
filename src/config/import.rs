//! `mcp.json` as other clients have it: `mcpServers` or `servers`, each with a command or a URL.
//!
//! Keys that only other clients know are their matter; one that looks like a slip is pointed out.

use std::path::{Path, PathBuf};

use super::build::ConfigBuilder;
use super::model::{Config, GroupSection, ServerKind, ServerSection};
use super::reader::{ConfigReader, listed};
use super::servers::{NAME_LENGTH, header};
use super::spanned_value::{Node, SpannedEntry, SpannedValue};
use super::suggest::nearest;
use crate::gateway::DEFAULT_GROUP;
use crate::mcp_client::{Address, Command, HttpTransport, Target};

/// The keys of an entry that we know.
const KNOWN: [&str; 13] = [
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
/// The keys that hold the servers, in the order in which they are looked for.
const ROOTS: [&str; 2] = ["mcpServers", "servers"];

/// One entry, as it is being read.
struct ImportReader<'r> {
    reader: &'r ConfigReader<'r>,
    name: &'r str,
    entries: &'r [SpannedEntry],
}

/// The folder that `${workspaceFolder}` stands for: that of the file, or the one above `.vscode` and the like.
pub(super) fn workspace(file: &Path) -> PathBuf {
    let folder = file.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let hidden = folder.file_name().is_some_and(|name| matches!(name.to_str(), Some(".vscode" | ".cursor")));
    let folder = match (hidden, folder.parent()) {
        (true, Some(above)) if above.as_os_str().is_empty() => Path::new("."),
        (true, Some(above)) => above,
        _ => folder,
    };
    std::path::absolute(folder).unwrap_or_else(|_| folder.to_owned())
}

/// A name made of what names may be made of, and that is not taken.
pub(super) fn slug(name: &str, taken: &[&str]) -> String {
    let mut slug = String::new();
    for letter in name.chars().flat_map(char::to_lowercase) {
        match letter {
            'a'..='z' | '0'..='9' => slug.push(letter),
            _ if slug.is_empty() || slug.ends_with('-') => {}
            _ => slug.push('-'),
        }
    }
    slug.truncate(NAME_LENGTH);
    let base = match slug.trim_end_matches('-') {
        "" => "server",
        base => base,
    };
    let numbered = |number: usize| match number {
        1 => base.to_owned(),
        _ => {
            let tail = format!("-{number}");
            format!("{}{tail}", base[..base.len().min(NAME_LENGTH - tail.len())].trim_end_matches('-'))
        }
    };
    (1..).map(numbered).find(|candidate| !taken.contains(&candidate.as_str())).unwrap_or_default()
}

/// Reads the whole file.
pub(super) fn import(reader: &ConfigReader<'_>, root: &Node) -> Option<ConfigBuilder> {
    let SpannedValue::Table(entries) = &root.value else {
        reader.error(&root.at, format!("the file must hold an object, not {}", root.described()), None);
        return None;
    };
    let mut config = Config { servers: Vec::new(), groups: Vec::new(), ..Config::default() };
    let mut faulty = Vec::new();
    let servers = roots(reader, entries);
    if servers.is_some_and(<[SpannedEntry]>::is_empty) {
        reader.warn(&root.at, "the file names no servers", None);
    }
    for entry in servers.unwrap_or_default() {
        let errors = reader.errors();
        let taken: Vec<&str> = config.servers.iter().map(|server| &*server.name).collect();
        let name = slug(&entry.key, &taken);
        let read = server(reader, entry, &name);
        match read.filter(|_| reader.errors() == errors) {
            Some(server) => config.servers.push(server),
            None => faulty.push(entry.key.clone()),
        }
    }
    let enabled = config.servers.iter().filter(|server| !server.disabled).map(|server| server.name.clone());
    config.groups = vec![GroupSection::new(DEFAULT_GROUP, enabled.collect())];
    Some(ConfigBuilder { config, faulty })
}

/// The entries of the servers, wherever this client keeps them.
fn roots<'r>(reader: &ConfigReader<'_>, entries: &'r [SpannedEntry]) -> Option<&'r [SpannedEntry]> {
    let member = |entries: &'r [SpannedEntry], key: &str| entries.iter().find(|entry| entry.key == key);
    let found = ROOTS.iter().find_map(|key| member(entries, key)).or_else(|| {
        // The settings of an editor keep them one level down.
        match &member(entries, "mcp")?.node.value {
            SpannedValue::Table(inner) => member(inner, "servers"),
            _ => None,
        }
    });
    let Some(found) = found else {
        let near = entries.iter().find_map(|entry| Some((entry, nearest(&entry.key, &ROOTS)?)));
        match near {
            Some((entry, near)) => {
                let hint = Some(format!("did you mean `{near}`?"));
                reader.error(&entry.key_at, format!("unknown key `{}`", entry.key), hint);
            }
            None => reader.missing(
                &(0..0),
                format!("the file has neither {}", ROOTS.map(|r| format!("`{r}`")).join(" nor ")),
                None,
            ),
        }
        return None;
    };
    match &found.node.value {
        SpannedValue::Table(servers) => Some(servers),
        _ => {
            let message = format!("`{}` must be an object, not {}", found.key, found.node.described());
            reader.error(&found.node.at, message, None);
            None
        }
    }
}

fn server(reader: &ConfigReader<'_>, entry: &SpannedEntry, name: &str) -> Option<ServerSection> {
    let SpannedValue::Table(entries) = &entry.node.value else {
        let message = format!("the server `{}` must be an object, not {}", entry.key, entry.node.described());
        reader.error(&entry.node.at, message, None);
        return None;
    };
    let reading = ImportReader { reader, name: &entry.key, entries };
    for member in entries.iter().filter(|member| !KNOWN.contains(&member.key.as_str())) {
        let hint = nearest(&member.key, &KNOWN).map(|near| format!("did you mean `{near}`?"));
        reader.warn(&member.key_at, format!("`{}` of the server `{}` is not used", member.key, entry.key), hint);
    }
    let disabled = reading.flag("disabled").unwrap_or(false) || reading.flag("enabled") == Some(false);
    let address = ["url", "serverUrl", "httpUrl"].iter().find_map(|key| reading.member(key));
    let kind = match (reading.member("command"), address) {
        (Some(_), None) => reading.command()?,
        (None, Some(url)) => reading.address(url)?,
        (Some(command), Some(url)) => {
            let later = if command.key_at.start > url.key_at.start { command } else { url };
            let message = format!("the server `{}` has both `command` and `{}`", entry.key, url.key);
            reader.error(&later.key_at, message, Some("one of them has to go".into()));
            return None;
        }
        (None, None) => {
            let message = format!("the server `{}` has neither `command` nor `url`", entry.key);
            reader.missing(&entry.key_at, message, None);
            return None;
        }
    };
    let mut server = ServerSection::new(name, ServerKind::Target(kind));
    server.written = entry.key.as_str().into();
    server.disabled = disabled;
    Some(server)
}

// === impl Reading ===

impl<'r> ImportReader<'r> {
    fn member(&self, key: &str) -> Option<&'r SpannedEntry> {
        self.entries.iter().find(|entry| entry.key == key && !matches!(entry.node.value, SpannedValue::Null))
    }

    fn flag(&self, key: &str) -> Option<bool> {
        let entry = self.member(key)?;
        if let SpannedValue::Flag(flag) = entry.node.value {
            return Some(flag);
        }
        self.wrong(entry, "true or false");
        None
    }

    fn wrong(&self, entry: &SpannedEntry, wanted: &str) {
        let found = entry.node.described();
        let message = format!("`{}` of the server `{}` must be {wanted}, not {found}", entry.key, self.name);
        self.reader.error(&entry.node.at, message, None);
    }

    fn text(&self, key: &str) -> Option<String> {
        let entry = self.member(key)?;
        self.reader.text_of(&entry.node, &format!("`{key}` of the server `{}`", self.name))
    }

    /// An object of texts. Numbers and flags are taken as the texts that they look like.
    fn pairs(&self, key: &str) -> Vec<(&'r SpannedEntry, String)> {
        let Some(entry) = self.member(key) else { return Vec::new() };
        let SpannedValue::Table(entries) = &entry.node.value else {
            self.wrong(entry, "an object of texts");
            return Vec::new();
        };
        let one = |pair: &'r SpannedEntry| {
            let value = match &pair.node.value {
                SpannedValue::Null => return None,
                SpannedValue::Whole(number) => number.to_string(),
                SpannedValue::Flag(flag) => flag.to_string(),
                _ => self
                    .reader
                    .text_of(&pair.node, &format!("`{}` of `{key}` of the server `{}`", pair.key, self.name))?,
            };
            Some((pair, value))
        };
        entries.iter().filter_map(one).collect()
    }

    fn misfits(&self, keys: &[&str], with: &str) {
        for entry in keys.iter().filter_map(|key| self.member(key)) {
            let message = format!("`{}` of the server `{}` does not go with `{with}`", entry.key, self.name);
            self.reader.warn(&entry.key_at, message, None);
        }
    }

    fn command(&self) -> Option<Target> {
        self.misfits(&["headers"], "command");
        let arguments = match self.member("args") {
            None => Vec::new(),
            Some(entry) => match &entry.node.value {
                SpannedValue::List(items) => {
                    let what = format!("each of `args` of the server `{}`", self.name);
                    items.iter().filter_map(|item| self.reader.text_of(item, &what)).collect()
                }
                _ => {
                    self.wrong(entry, "a list of texts");
                    Vec::new()
                }
            },
        };
        let mut environment = self.environment_file();
        for (entry, value) in self.pairs("env") {
            environment.retain(|(name, _)| *name != entry.key);
            environment.push((entry.key.clone(), value));
        }
        let folder = self.text("cwd").map(|folder| workspace(self.reader.path).join(folder));
        self.transport(&["stdio", "local"]);
        Some(Target::Command(Command { program: self.text("command")?, arguments, environment, folder }))
    }

    /// The variables of the file that `envFile` names: `NAME=value` on each line.
    fn environment_file(&self) -> Vec<(String, String)> {
        let (Some(path), Some(entry)) = (self.text("envFile"), self.member("envFile")) else { return Vec::new() };
        let Ok(text) = std::fs::read_to_string(workspace(self.reader.path).join(path)) else {
            let message = format!("the file that `envFile` of the server `{}` names cannot be read", self.name);
            self.reader.error(&entry.node.at, message, None);
            return Vec::new();
        };
        let pair = |line: &str| {
            let line = line.trim();
            let line = line.strip_prefix("export ").unwrap_or(line);
            let (name, value) = line.split_once('=').filter(|_| !line.starts_with('#'))?;
            let value = value.trim();
            let quoted = ['"', '\''].iter().find_map(|quote| value.strip_prefix(*quote)?.strip_suffix(*quote));
            Some((name.trim().to_owned(), quoted.unwrap_or(value).to_owned()))
        };
        text.lines().filter_map(pair).collect()
    }

    fn address(&self, entry: &SpannedEntry) -> Option<Target> {
        self.misfits(&["args", "env", "envFile", "cwd"], &entry.key);
        let text = self.text(&entry.key);
        let transport = self.transport(&["http", "streamable-http", "streamableHttp", "streamable_http", "sse"]);
        let place = format!("the server `{}`", self.name);
        let headers = self.pairs("headers").into_iter();
        let headers = headers.filter_map(|(pair, value)| header(self.reader, &pair.key, &value, &pair.key_at, &place));
        let headers = headers.collect();
        let Ok(Target::Url(address)) = Target::url(&text?) else {
            let message = format!("`{}` of the server `{}` is no address of HTTP", entry.key, self.name);
            let hint = "write something like \"https://tracker.example/mcp\", and credentials as headers".to_owned();
            self.reader.error(&entry.node.at, message, Some(hint));
            return None;
        };
        // Under `http` either era may be there, and some clients say it of HTTP+SSE, so it is found out.
        let transport = (transport.as_deref() == Some("sse")).then_some(HttpTransport::Sse);
        Some(Target::Url(Address { headers, transport, ..address }))
    }

    /// The transport that the entry names, which must be one of these.
    fn transport(&self, known: &[&str]) -> Option<String> {
        let entry = self.member("type").or_else(|| self.member("transport"))?;
        let text = self.text(&entry.key)?;
        if !known.contains(&text.as_str()) {
            let shown = self.reader.shown(&text, &entry.node.at);
            let message = format!("`{}` of the server `{}` is not known here: {shown:?}", entry.key, self.name);
            self.reader.error(&entry.node.at, message, Some(format!("it is {}", listed(known))));
        }
        Some(text)
    }
}
