//! From the tree of `rialto.toml` to the configuration.

use std::sync::Arc;

use http::HeaderName;

use super::keys::{FILE, RESERVED};
use super::model::{
    Access, ClusterSection, Config, FilterSection, GroupSection, LimitsSection, Log, ServerKind, ServerSection, Token,
};
use super::reader::{ConfigReader, Table, meant};
use super::servers::{self, check_name};
use super::spanned_value::{Node, SpannedValue};
use crate::gateway::{DEFAULT_GROUP, Naming};
use crate::telemetry::LogFormat;

/// What came of a file: what could be read of it. Its problems are with the reader.
pub(super) struct ConfigBuilder {
    pub(super) config: Config,
    /// The names of servers that were left out because something is wrong with them.
    pub(super) faulty: Vec<String>,
}

/// The server that is there when the file has none.
const ELEMENTS: &str = "elements";
/// The fewest letters that a secret may have.
const SECRET_LENGTH: usize = 16;

/// Reads the whole file.
pub(super) fn build(reader: &ConfigReader<'_>, root: &Node) -> Option<ConfigBuilder> {
    let file = Table::open(reader, root, &FILE, "", &(0..0))?;
    let store = file.store("store").unwrap_or_default();
    let cluster = file.table("cluster", "cluster").map(|table| cluster(&table)).unwrap_or_default();
    let log = file.table("log", "log").map(|table| log(&table)).unwrap_or_default();
    let admin = file.table("admin", "admin").and_then(|table| table.address("listen"));
    let access = file.table("access", "access").map(|table| access(&table)).unwrap_or_default();
    let limits = file.table("limits", "limits").map(|table| limits(&table)).unwrap_or_default();
    let mut defaults = ServerSection::new("", ServerKind::Elements);
    if let Some(table) = file.table("defaults", "defaults") {
        servers::settings(&table, &mut defaults);
    }
    let named = file.named("servers");
    let mut config = Config {
        listen: file.address("listen"),
        workers: file.count("workers"),
        admin,
        store,
        cluster,
        log,
        access,
        limits,
        servers: Vec::new(),
        groups: Vec::new(),
    };
    let mut faulty = Vec::new();
    for entry in named {
        let errors = reader.errors();
        check_name(reader, entry, "server");
        let table = file.one("servers", entry, "servers");
        let server = table.and_then(|table| servers::server(&table, &entry.key, defaults.clone()));
        match server.filter(|_| reader.errors() == errors) {
            Some(server) => config.servers.push(server),
            None => faulty.push(entry.key.clone()),
        }
    }
    let mut names: Vec<&str> = named.iter().map(|entry| entry.key.as_str()).collect();
    match file.entry("servers") {
        None => {
            config.servers.push(ServerSection { name: ELEMENTS.into(), written: ELEMENTS.into(), ..defaults });
            names.push(ELEMENTS);
        }
        Some(entry) if named.is_empty() && matches!(entry.node.value, SpannedValue::Table(_)) => {
            reader.warn(&entry.key_at, "the file names no servers", None);
        }
        Some(_) => {}
    }
    config.groups = groups(&file, &config, &names);
    check_addresses(&file, &config);
    Some(ConfigBuilder { config, faulty })
}

fn cluster(table: &Table<'_>) -> ClusterSection {
    let (prefix, secret) = (table.text("prefix"), table.text("sealing_key"));
    let fits = |letter: char| letter.is_ascii_alphanumeric() || matches!(letter, '-' | '_' | '.' | ':');
    if let (Some(prefix), Some(entry)) = (&prefix, table.entry("prefix"))
        && !prefix.chars().all(fits)
    {
        let hint = "it has letters, digits, and any of - _ . :".to_owned();
        table.reader.error(&entry.node.at, "`prefix` in [cluster] cannot be part of a key", Some(hint));
    }
    if let (Some(secret), Some(entry)) = (&secret, table.entry("sealing_key"))
        && secret.len() < SECRET_LENGTH
    {
        let message = format!("`secret` in [cluster] has fewer than {SECRET_LENGTH} letters");
        table.reader.error(&entry.node.at, message, Some("make one: openssl rand -hex 32".into()));
    }
    let (lease, timeout) = (table.duration("lease"), table.duration("timeout"));
    ClusterSection { node: table.text("node"), prefix, lease, timeout, sealing_key: secret }
}

fn log(table: &Table<'_>) -> Log {
    let filter = table.text("filter");
    if let (Some(filter), Some(entry)) = (&filter, table.entry("filter"))
        && !crate::telemetry::is_valid_filter(filter)
    {
        let hint = "write a level such as \"info\", or targets as in \"rialto=debug,hyper=warn\"".to_owned();
        table.reader.error(&entry.node.at, "`filter` in [log] cannot be read", Some(hint));
    }
    let format = table.choice("format").map(|word| if word == "json" { LogFormat::Json } else { LogFormat::Text });
    Log { filter, format }
}

fn access(table: &Table<'_>) -> Access {
    let mut caller_headers = Vec::new();
    for (name, at) in table.texts("forward_headers").unwrap_or_default() {
        match HeaderName::from_bytes(name.as_bytes()) {
            Ok(name) => caller_headers.push(name),
            Err(_) => {
                let name = table.reader.shown(&name, &at);
                table.reader.error(&at, format!("{name:?} cannot be the name of a header"), None);
            }
        }
    }
    let mut tokens: Vec<Token> = Vec::new();
    for (name, secret, at) in table.pairs("tokens") {
        if secret.is_empty() {
            table.reader.error(&at, format!("the token of `{name}` is empty"), None);
        } else if tokens.iter().any(|token| token.secret == secret) {
            table.reader.error(&at, format!("`{name}` has the token of another caller"), None);
        }
        tokens.push(Token { name, secret });
    }
    let origins = table.texts("origins").unwrap_or_default();
    for (origin, at) in &origins {
        if !(origin == "*" || origin == "null" || origin.contains("://")) {
            let origin = table.reader.shown(origin, at);
            let hint = format!("write it as \"https://{origin}\"");
            table.reader.error(at, format!("{origin:?} is no origin"), Some(hint));
        }
    }
    let hosts = table.texts("hosts").unwrap_or_default();
    for (host, at) in &hosts {
        if host.contains('/') {
            let host = table.reader.shown(host, at);
            let bare = host.split_once("://").map_or(host, |(_, rest)| rest).split('/').next().unwrap_or("");
            table.reader.error(at, format!("{host:?} is no host"), Some(format!("write it as \"{bare}\"")));
        }
    }
    Access {
        hosts: hosts.into_iter().map(|(host, _)| host).collect(),
        origins: origins.into_iter().map(|(origin, _)| origin).collect(),
        forward_headers: caller_headers,
        tokens,
        allow_session_delete: table.flag("allow_session_delete"),
    }
}

fn limits(table: &Table<'_>) -> LimitsSection {
    LimitsSection {
        body_bytes: table.size("body_bytes"),
        headers: table.count("headers"),
        header_bytes: table.size("header_bytes"),
        json_depth: table.count("json_depth"),
        batch: table.count("batch"),
        sessions: table.count("sessions"),
        streams: table.count("streams"),
        calls: table.count("calls"),
        subscriptions: table.count("subscriptions"),
        events: table.count("events"),
        event_bytes: table.size("event_bytes"),
        event_age: table.duration("event_age"),
        session_idle: table.duration("session_idle"),
        parked_calls: table.count("parked_calls"),
        parked_calls_per_caller: table.count("parked_calls_per_caller"),
        elicitation_timeout: table.duration("elicitation_timeout"),
        sampling_timeout: table.duration("sampling_timeout"),
        sse_after: table.duration("sse_after"),
        sse_heartbeat: table.duration("sse_heartbeat"),
        sse_retry: table.duration("sse_retry"),
        shutdown_timeout: table.duration("shutdown_timeout"),
    }
}

/// Which names are let through.
pub(super) fn filter(table: &Table<'_>) -> FilterSection {
    let allow = table.words("allow");
    if let (Some(entry), Some([])) = (table.entry("allow"), allow.as_deref()) {
        let hint = "leave it out to allow all, or write deny = [\"*\"]".to_owned();
        table.reader.error(&entry.node.at, "an empty `allow` allows nothing", Some(hint));
    }
    FilterSection { allow: allow.unwrap_or_default(), deny: table.words("deny").unwrap_or_default() }
}

/// The groups; the default one is made up where it is not given. `known` are the servers of the file,
/// also those that something is wrong with.
fn groups(file: &Table<'_>, config: &Config, known: &[&str]) -> Vec<GroupSection> {
    let reader = file.reader;
    let enabled = |name: &str| config.server(name).is_some_and(|server| !server.disabled);
    let all = || config.servers.iter().filter(|server| !server.disabled).map(|server| Arc::clone(&server.name));
    let mut groups: Vec<GroupSection> = Vec::new();
    let mut used: Vec<String> = Vec::new();
    for entry in file.named("groups") {
        check_name(reader, entry, "group");
        if RESERVED.contains(&entry.key.as_str()) {
            let message =
                format!("a group cannot be called `{}`, as /mcp/{} is an address already", entry.key, entry.key);
            reader.error(&entry.key_at, message, None);
        }
        let Some(table) = file.one("groups", entry, "groups") else { continue };
        let mut group = GroupSection::new(&entry.key, Vec::new());
        match table.texts("servers") {
            Some(members) => {
                for (i, (name, at)) in members.iter().enumerate() {
                    if !known.contains(&name.as_str()) {
                        let name = reader.shown(name, at);
                        let message = format!("[groups.{}] names the server `{name}`, which is not there", entry.key);
                        reader.missing(at, message, meant(name, known));
                    } else if members[..i].iter().any(|(other, _)| other == name) {
                        reader.error(at, format!("[groups.{}] names the server `{name}` twice", entry.key), None);
                    }
                }
                used.extend(members.iter().map(|(name, _)| name.clone()));
                let chosen = members.iter().filter(|(name, _)| enabled(name));
                group.servers = chosen.map(|(name, _)| name.as_str().into()).collect();
                let all_known = members.iter().all(|(name, _)| config.server(name).is_some());
                if group.servers.is_empty() && all_known {
                    let why = if members.is_empty() { "it names none" } else { "all of them are disabled" };
                    reader.warn(&entry.key_at, format!("[groups.{}] has no servers: {why}", entry.key), None);
                }
            }
            None => {
                used.extend(known.iter().map(|name| (*name).to_owned()));
                group.servers = all().collect();
            }
        }
        fill(&mut group, &table, &entry.key);
        groups.push(group);
    }
    match groups.iter().any(|group| &*group.name == DEFAULT_GROUP) {
        true => {
            for entry in file.named("servers") {
                if !used.contains(&entry.key) && enabled(&entry.key) {
                    let hint = "name it in one, or leave [groups.default] out to serve all".to_owned();
                    reader.warn(&entry.key_at, format!("the server `{}` is in no group", entry.key), Some(hint));
                }
            }
        }
        false => groups.insert(0, GroupSection::new(DEFAULT_GROUP, all().collect())),
    }
    groups
}

fn fill(group: &mut GroupSection, table: &Table<'_>, name: &str) {
    if table.choice("naming") == Some("plain") {
        group.naming = Naming::Plain;
    }
    group.instructions = table.text("instructions");
    let one = |key: &str| table.table(key, &format!("groups.{name}.{key}")).map(|table| filter(&table));
    group.tools = one("tools").unwrap_or_default();
    group.prompts = one("prompts").unwrap_or_default();
    group.resources = one("resources").unwrap_or_default();
    group.page_size = table.count("page_size").unwrap_or(group.page_size);
}

/// What is wrong between the addresses and who may reach them.
fn check_addresses(file: &Table<'_>, config: &Config) {
    let reader = file.reader;
    if let (Some(listen), Some(admin), Some(entry)) = (config.listen, config.admin, file.entry("admin"))
        && listen == admin
        && listen.port() != 0
    {
        reader.error(&entry.key_at, "[admin] listens where clients are served", Some("choose another port".into()));
    }
    let (Some(listen), Some(entry)) = (config.listen, file.entry("listen")) else { return };
    if listen.ip().is_loopback() {
        return;
    }
    if config.access.tokens.is_empty() {
        let hint = "give callers a token in [access.tokens]".to_owned();
        reader.warn(&entry.node.at, format!("anybody who reaches {listen} may call"), Some(hint));
    }
    if config.access.hosts.is_empty() {
        let hint = "list them in [access] hosts".to_owned();
        reader.warn(&entry.node.at, "requests that name a host beyond this machine will be refused", Some(hint));
    }
}
