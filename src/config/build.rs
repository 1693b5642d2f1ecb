//! Builds the configuration from the parsed `rialto.toml`.

use std::sync::Arc;

use super::model::{Config, GroupSection, ServerKind, ServerSection};
use super::policy_rules::check_rules;
use super::rate_limits::check_limit_references;
use super::reader::{ConfigReader, TableReader, suggestion};
use super::servers::{self, check_name};
use super::settings::{TOP_LEVEL, TopLevelSection};
use super::spanned_value::{SpannedNode, SpannedValue};
use super::structure::RESERVED_GROUP_NAMES;
use crate::gateway::DEFAULT_GROUP;

/// The valid part of a file. Diagnostics are collected in the reader.
pub(super) struct PartialConfig {
    pub(super) config: Config,
    /// Names of servers that were dropped because their section has errors.
    pub(super) invalid_servers: Vec<String>,
}

/// Name of the built-in server that is used when the file has no servers.
const DEFAULT_SERVER: &str = "elements";

pub(super) fn build(reader: &ConfigReader<'_>, root: &SpannedNode) -> Option<PartialConfig> {
    let file = TableReader::open(reader, root, &TOP_LEVEL, "", &(0..0))?;
    let mut settings = TopLevelSection::default();
    settings.read_table(&file);
    let named = file.named_entries("servers");
    let mut config = Config { settings, servers: Vec::new(), groups: Vec::new(), tls: None };
    let mut faulty = Vec::new();
    for entry in named {
        let errors = reader.error_count();
        check_name(reader, entry, "server");
        let table = file.named_table("servers", entry);
        let server = table.and_then(|table| servers::read_server(&table, &entry.key, &config.settings.defaults));
        match server.filter(|_| reader.error_count() == errors) {
            Some(server) => config.servers.push(server),
            None => faulty.push(entry.key.clone()),
        }
    }
    let mut names: Vec<&str> = named.iter().map(|entry| entry.key.as_str()).collect();
    match file.entry("servers") {
        None => {
            let settings = config.settings.defaults.clone();
            config.servers.push(ServerSection { settings, ..ServerSection::new(DEFAULT_SERVER, ServerKind::Elements) });
            names.push(DEFAULT_SERVER);
        }
        Some(entry) if named.is_empty() && matches!(entry.node.value, SpannedValue::Table(_)) => {
            reader.warn(&entry.key_span, "the file has no servers", None);
        }
        Some(_) => {}
    }
    config.groups = read_groups(&file, &config, &names);
    check_addresses(&file, &config);
    check_limit_references(&file, &config, &names);
    check_key_groups(&file, &config);
    check_public_url(&file, &config);
    let partial = PartialConfig { config, invalid_servers: faulty };
    check_rules(&file, &partial, &names);
    Some(partial)
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
        let Some(table) = file.named_table("groups", entry) else { continue };
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
        group.settings.read_table(&table);
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

/// Checks that listen addresses do not clash.
fn check_addresses(file: &TableReader<'_>, config: &Config) {
    let reader = file.reader;
    let listen = config.settings.listen;
    if let Some(entry) = file.entry("admin")
        && config.settings.admin.listen == Some(listen)
        && listen.port() != 0
    {
        reader.error(
            &entry.key_span,
            "[admin] has the same listen address as clients",
            Some("choose another port".into()),
        );
    }
}

/// Checks that API keys name groups that exist.
fn check_key_groups(file: &TableReader<'_>, config: &Config) {
    let known: Vec<&str> = config.groups.iter().map(|group| &*group.name).collect();
    let Some(access) = file.subtable("access") else { return };
    for entry in access.named_entries("keys") {
        let groups = access.named_table("keys", entry).and_then(|key| key.strings_with_spans("groups"));
        for (group, span) in groups.unwrap_or_default() {
            if !known.contains(&group.as_str()) {
                let group = file.reader.redacted(&group, &span);
                let message = format!("[access.keys.{}] lists the unknown group `{group}`", entry.key);
                file.reader.error_unless_broken(&span, message, suggestion(group, &known));
            }
        }
    }
}

/// Checks that clients can be told where they are, once they log in and come from other machines. A wrong scheme behind a
/// proxy is found out by nobody else.
fn check_public_url(file: &TableReader<'_>, config: &Config) {
    let issuers =
        file.subtable("access").and_then(|access| access.entries().iter().find(|entry| entry.key == "issuers"));
    if let Some(issuers) = issuers
        && config.settings.public_url.is_none()
        && !config.settings.listen.ip().is_loopback()
    {
        let hint = "set it to what clients type, such as public_url = \"https://mcp.example\"".to_owned();
        file.reader.error(&issuers.key_span, "`public_url` is missing, which clients that log in need", Some(hint));
    }
}
