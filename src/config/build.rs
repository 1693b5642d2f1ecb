//! Builds the configuration from the parsed `rialto.toml`.

use std::sync::Arc;

use http::HeaderName;

use super::keys::{RESERVED_GROUP_NAMES, TOP_LEVEL};
use super::model::{
    AccessSection, CallerToken, ClusterSection, Config, FilterSection, GroupSection, LimitsSection, LogSection,
    ServerKind, ServerSection,
};
use super::reader::{ConfigReader, TableReader, suggestion};
use super::servers::{self, check_name};
use super::spanned_value::{SpannedNode, SpannedValue};
use crate::gateway::{DEFAULT_GROUP, Naming};
use crate::telemetry::LogFormat;

/// The valid part of a file. Diagnostics are collected in the reader.
pub(super) struct PartialConfig {
    pub(super) config: Config,
    /// Names of servers that were dropped because their section has errors.
    pub(super) invalid_servers: Vec<String>,
}

/// Name of the built-in server that is used when the file has no servers.
const DEFAULT_SERVER: &str = "elements";
const MIN_SEALING_KEY_BYTES: usize = 16;

pub(super) fn build(reader: &ConfigReader<'_>, root: &SpannedNode) -> Option<PartialConfig> {
    let file = TableReader::open(reader, root, &TOP_LEVEL, "", &(0..0))?;
    let store = file.store("store").unwrap_or_default();
    let cluster = file.subtable("cluster", "cluster").map(|table| read_cluster(&table)).unwrap_or_default();
    let log = file.subtable("log", "log").map(|table| read_log(&table)).unwrap_or_default();
    let admin = file.subtable("admin", "admin").and_then(|table| table.socket_addr("listen"));
    let access = file.subtable("access", "access").map(|table| read_access(&table)).unwrap_or_default();
    let limits = file.subtable("limits", "limits").map(|table| read_limits(&table)).unwrap_or_default();
    let mut defaults = ServerSection::new("", ServerKind::Elements);
    if let Some(table) = file.subtable("defaults", "defaults") {
        servers::read_settings(&table, &mut defaults);
    }
    let named = file.named_entries("servers");
    let mut config = Config {
        listen: file.socket_addr("listen"),
        workers: file.integer("workers"),
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
        let errors = reader.error_count();
        check_name(reader, entry, "server");
        let table = file.named_table("servers", entry, "servers");
        let server = table.and_then(|table| servers::read_server(&table, &entry.key, defaults.clone()));
        match server.filter(|_| reader.error_count() == errors) {
            Some(server) => config.servers.push(server),
            None => faulty.push(entry.key.clone()),
        }
    }
    let mut names: Vec<&str> = named.iter().map(|entry| entry.key.as_str()).collect();
    match file.entry("servers") {
        None => {
            config.servers.push(ServerSection {
                name: DEFAULT_SERVER.into(),
                original_name: DEFAULT_SERVER.into(),
                ..defaults
            });
            names.push(DEFAULT_SERVER);
        }
        Some(entry) if named.is_empty() && matches!(entry.node.value, SpannedValue::Table(_)) => {
            reader.warn(&entry.key_span, "the file has no servers", None);
        }
        Some(_) => {}
    }
    config.groups = read_groups(&file, &config, &names);
    check_addresses(&file, &config);
    Some(PartialConfig { config, invalid_servers: faulty })
}

fn read_cluster(table: &TableReader<'_>) -> ClusterSection {
    let (prefix, sealing_key) = (table.string("prefix"), table.string("sealing_key"));
    sealing_key.iter().for_each(|key| table.reader.secrets.add(key));
    let is_valid = |character: char| character.is_ascii_alphanumeric() || matches!(character, '-' | '_' | '.' | ':');
    if let (Some(prefix), Some(entry)) = (&prefix, table.entry("prefix"))
        && !prefix.chars().all(is_valid)
    {
        let hint = "use letters, digits, and any of - _ . :".to_owned();
        table.reader.error(&entry.node.span, "`prefix` in [cluster] has invalid characters", Some(hint));
    }
    if let (Some(sealing_key), Some(entry)) = (&sealing_key, table.entry("sealing_key"))
        && sealing_key.len() < MIN_SEALING_KEY_BYTES
    {
        let message = format!("`sealing_key` in [cluster] has fewer than {MIN_SEALING_KEY_BYTES} characters");
        table.reader.error(&entry.node.span, message, Some("generate one: openssl rand -hex 32".into()));
    }
    let (lease, timeout) = (table.duration("lease"), table.duration("timeout"));
    ClusterSection { node: table.string("node"), prefix, lease, timeout, sealing_key }
}

fn read_log(table: &TableReader<'_>) -> LogSection {
    let filter = table.string("filter");
    if let (Some(filter), Some(entry)) = (&filter, table.entry("filter"))
        && !crate::telemetry::is_valid_filter(filter)
    {
        let hint = "write a level such as \"info\", or targets as in \"rialto=debug,hyper=warn\"".to_owned();
        table.reader.error(&entry.node.span, "`filter` in [log] is not a log filter", Some(hint));
    }
    let format = table.choice("format").map(|word| if word == "json" { LogFormat::Json } else { LogFormat::Text });
    LogSection { filter, format }
}

fn read_access(table: &TableReader<'_>) -> AccessSection {
    let mut forward_headers = Vec::new();
    for (name, span) in table.strings_with_spans("forward_headers").unwrap_or_default() {
        match HeaderName::from_bytes(name.as_bytes()) {
            Ok(name) => forward_headers.push(name),
            Err(_) => {
                let name = table.reader.redacted(&name, &span);
                table.reader.error(&span, format!("{name:?} is not a valid header name"), None);
            }
        }
    }
    let mut tokens: Vec<CallerToken> = Vec::new();
    for (name, secret, span) in table.string_map("tokens") {
        if secret.is_empty() {
            table.reader.error(&span, format!("the token of `{name}` is empty"), None);
        } else if tokens.iter().any(|token| token.secret == secret) {
            table.reader.error(&span, format!("`{name}` has the same token as another caller"), None);
        }
        tokens.push(CallerToken { name, secret });
    }
    let origins = table.strings_with_spans("origins").unwrap_or_default();
    for (origin, span) in &origins {
        if !(origin == "*" || origin == "null" || origin.contains("://")) {
            let origin = table.reader.redacted(origin, span);
            let hint = format!("write it as \"https://{origin}\"");
            table.reader.error(span, format!("{origin:?} is not an origin"), Some(hint));
        }
    }
    let hosts = table.strings_with_spans("hosts").unwrap_or_default();
    for (host, span) in &hosts {
        if host.contains('/') {
            let host = table.reader.redacted(host, span);
            let bare = host.split_once("://").map_or(host, |(_, rest)| rest).split('/').next().unwrap_or("");
            table.reader.error(span, format!("{host:?} is not a host name"), Some(format!("write it as \"{bare}\"")));
        }
    }
    AccessSection {
        hosts: hosts.into_iter().map(|(host, _)| host).collect(),
        origins: origins.into_iter().map(|(origin, _)| origin).collect(),
        forward_headers,
        tokens,
        allow_session_delete: table.boolean("allow_session_delete"),
    }
}

fn read_limits(table: &TableReader<'_>) -> LimitsSection {
    LimitsSection {
        body_bytes: table.size("body_bytes"),
        headers: table.integer("headers"),
        header_bytes: table.size("header_bytes"),
        json_depth: table.integer("json_depth"),
        batch: table.integer("batch"),
        sessions: table.integer("sessions"),
        streams: table.integer("streams"),
        calls: table.integer("calls"),
        subscriptions: table.integer("subscriptions"),
        events: table.integer("events"),
        event_bytes: table.size("event_bytes"),
        event_age: table.duration("event_age"),
        session_idle: table.duration("session_idle"),
        parked_calls: table.integer("parked_calls"),
        parked_calls_per_caller: table.integer("parked_calls_per_caller"),
        elicitation_timeout: table.duration("elicitation_timeout"),
        sampling_timeout: table.duration("sampling_timeout"),
        sse_after: table.duration("sse_after"),
        sse_heartbeat: table.duration("sse_heartbeat"),
        sse_retry: table.duration("sse_retry"),
        shutdown_timeout: table.duration("shutdown_timeout"),
    }
}

pub(super) fn read_filter(table: &TableReader<'_>) -> FilterSection {
    let allow = table.strings("allow");
    if let (Some(entry), Some([])) = (table.entry("allow"), allow.as_deref()) {
        let hint = "leave it out to allow all, or write deny = [\"*\"]".to_owned();
        table.reader.error(&entry.node.span, "an empty `allow` allows nothing", Some(hint));
    }
    FilterSection { allow: allow.unwrap_or_default(), deny: table.strings("deny").unwrap_or_default() }
}

/// Reads the groups and adds `default` if it is missing. `known` are all server names of the file, including servers
/// with errors.
fn read_groups(file: &TableReader<'_>, config: &Config, known: &[&str]) -> Vec<GroupSection> {
    let reader = file.reader;
    let enabled = |name: &str| config.server(name).is_some_and(|server| !server.disabled);
    let all = || config.servers.iter().filter(|server| !server.disabled).map(|server| Arc::clone(&server.name));
    let mut groups: Vec<GroupSection> = Vec::new();
    let mut used: Vec<String> = Vec::new();
    for entry in file.named_entries("groups") {
        check_name(reader, entry, "group");
        if RESERVED_GROUP_NAMES.contains(&entry.key.as_str()) {
            let message = format!("the group name `{}` is reserved: /mcp/{} is another path", entry.key, entry.key);
            reader.error(&entry.key_span, message, None);
        }
        let Some(table) = file.named_table("groups", entry, "groups") else { continue };
        let mut group = GroupSection::new(&entry.key, Vec::new());
        match table.strings_with_spans("servers") {
            Some(members) => {
                for (i, (name, span)) in members.iter().enumerate() {
                    if !known.contains(&name.as_str()) {
                        let name = reader.redacted(name, span);
                        let message = format!("[groups.{}] lists the unknown server `{name}`", entry.key);
                        reader.error_unless_broken(span, message, suggestion(name, known));
                    } else if members[..i].iter().any(|(other, _)| other == name) {
                        reader.error(span, format!("[groups.{}] lists the server `{name}` twice", entry.key), None);
                    }
                }
                used.extend(members.iter().map(|(name, _)| name.clone()));
                let chosen = members.iter().filter(|(name, _)| enabled(name));
                group.servers = chosen.map(|(name, _)| name.as_str().into()).collect();
                let all_known = members.iter().all(|(name, _)| config.server(name).is_some());
                if group.servers.is_empty() && all_known {
                    let why = if members.is_empty() { "the list is empty" } else { "all of them are disabled" };
                    reader.warn(&entry.key_span, format!("[groups.{}] has no servers: {why}", entry.key), None);
                }
            }
            None => {
                used.extend(known.iter().map(|name| (*name).to_owned()));
                group.servers = all().collect();
            }
        }
        read_group_settings(&mut group, &table, &entry.key);
        groups.push(group);
    }
    match groups.iter().any(|group| &*group.name == DEFAULT_GROUP) {
        true => {
            for entry in file.named_entries("servers") {
                if !used.contains(&entry.key) && enabled(&entry.key) {
                    let hint = "add it to one, or remove [groups.default] to serve all servers".to_owned();
                    reader.warn(&entry.key_span, format!("the server `{}` is in no group", entry.key), Some(hint));
                }
            }
        }
        false => groups.insert(0, GroupSection::new(DEFAULT_GROUP, all().collect())),
    }
    groups
}

fn read_group_settings(group: &mut GroupSection, table: &TableReader<'_>, name: &str) {
    if table.choice("naming") == Some("plain") {
        group.naming = Naming::Plain;
    }
    group.instructions = table.string("instructions");
    let one = |key: &str| table.subtable(key, &format!("groups.{name}.{key}")).map(|table| read_filter(&table));
    group.tools = one("tools").unwrap_or_default();
    group.prompts = one("prompts").unwrap_or_default();
    group.resources = one("resources").unwrap_or_default();
    group.page_size = table.integer("page_size").unwrap_or(group.page_size);
}

/// Checks that listen addresses do not clash and warns about open access.
fn check_addresses(file: &TableReader<'_>, config: &Config) {
    let reader = file.reader;
    if let (Some(listen), Some(admin), Some(entry)) = (config.listen, config.admin, file.entry("admin"))
        && listen == admin
        && listen.port() != 0
    {
        reader.error(
            &entry.key_span,
            "[admin] has the same listen address as clients",
            Some("choose another port".into()),
        );
    }
    let (Some(listen), Some(entry)) = (config.listen, file.entry("listen")) else { return };
    if listen.ip().is_loopback() {
        return;
    }
    if config.access.tokens.is_empty() {
        let hint = "set tokens in [access.tokens]".to_owned();
        reader.warn(&entry.node.span, format!("anyone who can reach {listen} may call"), Some(hint));
    }
    if config.access.hosts.is_empty() {
        let hint = "list the allowed hosts in [access] hosts".to_owned();
        reader.warn(&entry.node.span, "requests with a Host other than loopback will be refused", Some(hint));
    }
}
