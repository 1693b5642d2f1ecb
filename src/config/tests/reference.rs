//! The files in `docs` that are made from the tables. `UPDATE_DOCS=1 cargo test --lib config::` writes them.

use std::path::PathBuf;

use serde_json::Value;

use crate::config::keys::{ConfigKey, MAX_COUNT, Section, ValueType};
use crate::config::settings::{
    ACCESS, ACCESS_KEY, ADMIN, AUDIT, CLUSTER, DEFAULTS, FILTER, LIMITS, LOG, POLICY, TELEMETRY, TLS, TOP_LEVEL,
};
use crate::config::structure::{ARGUMENT, GROUP, ISSUER, LIMIT, RULE, SERVER, SERVER_KIND_KEYS, TARGETS, TOOL};

/// The section that a table of the page shows, by the name in its opening comment.
const TABLES: &[(&str, &Section)] = &[
    ("top level", &TOP_LEVEL),
    ("cluster", &CLUSTER),
    ("log", &LOG),
    ("telemetry", &TELEMETRY),
    ("admin", &ADMIN),
    ("tls", &TLS),
    ("access", &ACCESS),
    ("issuers", &ISSUER),
    ("keys", &ACCESS_KEY),
    ("audit", &AUDIT),
    ("limits", &LIMITS),
    ("policy limits", &LIMIT),
    ("defaults", &DEFAULTS),
    ("tools", &TOOL),
    ("arguments", &ARGUMENT),
    ("groups", &GROUP),
    ("filter", &FILTER),
    ("policy", &POLICY),
    ("rules", &RULE),
    ("targets", &TARGETS),
];

/// The reference page; its text is written by hand, its tables are not.
const PAGE: &str = include_str!("../../../docs/configuration.md");

/// Compares a file in `docs` with what it should be, or writes it.
fn compare(name: &str, expected: &str) {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("docs").join(name);
    if std::env::var_os("UPDATE_DOCS").is_some() {
        return std::fs::write(path, expected).unwrap();
    }
    let found = std::fs::read_to_string(&path).unwrap();
    assert!(found == expected, "write docs/{name}: UPDATE_DOCS=1 cargo test --lib config::");
}

#[test]
fn schema_in_docs_is_up_to_date() {
    compare("rialto.schema.json", &crate::config::schema());
}

#[test]
fn reference_page_is_up_to_date() {
    compare("configuration.md", &reference_page());
}

/// The reference page with tables made from the keys.
pub(super) fn reference_page() -> String {
    let is_kind = |key: &&ConfigKey| SERVER_KIND_KEYS.contains(&key.name);
    let is_setting = |key: &&ConfigKey| DEFAULTS.key(key.name).is_some();
    let mut page = PAGE.to_owned();
    for (name, section) in TABLES {
        page = replace_table(&page, name, &markdown(section.keys()));
    }
    page = replace_table(&page, "kinds of servers", &markdown(SERVER.keys().filter(is_kind)));
    let others = SERVER.keys().filter(|key| !is_kind(key) && !is_setting(key));
    replace_table(&page, "servers", &markdown(others))
}

/// Puts a table between its two comments.
fn replace_table(page: &str, name: &str, table: &str) -> String {
    let (opening, closing) = (format!("<!-- keys: {name} -->\n"), "<!-- end of keys -->\n");
    let (before, rest) = page.split_once(&opening).unwrap_or_else(|| panic!("the page has no {opening}"));
    let (_, after) = rest.split_once(closing).unwrap_or_else(|| panic!("{opening} is not closed"));
    format!("{before}{opening}{table}{closing}{after}")
}

/// A table with a row for each key. Columns that would be empty are left out.
pub(super) fn markdown(keys: impl Iterator<Item = &'static ConfigKey>) -> String {
    let keys: Vec<&ConfigKey> = keys.collect();
    let kinds = |key: &ConfigKey| match key.server_kinds {
        [] => String::new(),
        [only] if *only == key.name => String::new(),
        kinds => kinds.iter().map(|kind| format!("`{kind}`")).collect::<Vec<_>>().join(", "),
    };
    let flag =
        |key: &ConfigKey| key.flag.map(|flag| format!("`--{}`, `{}`", flag.name, flag.variable())).unwrap_or_default();
    let mut columns: Vec<(&str, Vec<String>)> = vec![
        ("key", keys.iter().map(|key| key_cell(key)).collect()),
        ("for", keys.iter().map(|key| kinds(key)).collect()),
        ("value", keys.iter().map(|key| value_cell(key.value_type)).collect()),
        ("meaning", keys.iter().map(|key| key.description.to_owned()).collect()),
        ("default", keys.iter().map(|key| default_cell(key)).collect()),
        ("flag and variable", keys.iter().map(|key| flag(key)).collect()),
    ];
    columns.retain(|(_, cells)| cells.iter().any(|cell| !cell.is_empty()));
    let row = |cells: Vec<&str>| format!("| {} |\n", cells.join(" | ")).replace("|  |", "| |");
    let mut table = row(columns.iter().map(|(title, _)| *title).collect());
    table += &format!("|{}\n", "---|".repeat(columns.len()));
    for i in 0..keys.len() {
        table += &row(columns.iter().map(|(_, cells)| cells[i].as_str()).collect());
    }
    table
}

fn key_cell(key: &ConfigKey) -> String {
    match key.alias {
        Some(alias) => format!("`{}`, or `{alias}`", key.name),
        None => format!("`{}`", key.name),
    }
}

fn default_cell(key: &ConfigKey) -> String {
    match key.default_text() {
        Some(default) if serde_json::from_str::<Value>(&default).is_ok() => format!("`{default}`"),
        Some(default) => default.into_owned(),
        None => String::new(),
    }
}

fn value_cell(value_type: ValueType) -> String {
    match value_type {
        ValueType::String => "string".to_owned(),
        ValueType::RequiredString => "string, required".to_owned(),
        ValueType::Boolean => "`true` or `false`".to_owned(),
        ValueType::Integer(least, MAX_COUNT) => format!("integer from {least}"),
        ValueType::Integer(least, most) => format!("integer, {least} to {most}"),
        ValueType::Size => "size".to_owned(),
        ValueType::Duration { allow_off: true, .. } => "duration, or `\"off\"`".to_owned(),
        ValueType::Duration { .. } => "duration".to_owned(),
        ValueType::Address => "address".to_owned(),
        ValueType::Url => "URL".to_owned(),
        ValueType::Store => "`\"memory\"`, or a URL".to_owned(),
        ValueType::Choice(words) => words.iter().map(|word| format!("`\"{word}\"`")).collect::<Vec<_>>().join(", "),
        ValueType::Revision => "revision, or `\"auto\"`".to_owned(),
        ValueType::Date => "date".to_owned(),
        ValueType::StringList => "list of strings".to_owned(),
        ValueType::StringMap => "table of strings".to_owned(),
        ValueType::ChoiceMap(words) => format!("table of {}", words.join(", ")),
        ValueType::Fraction => "number from 0 to 1".to_owned(),
        ValueType::FractionMap => "table of numbers from 0 to 1".to_owned(),
        ValueType::StringLists => "table of lists of strings".to_owned(),
        ValueType::Any => "any".to_owned(),
        ValueType::AnyList => "list".to_owned(),
        ValueType::Table(_) => "table".to_owned(),
        ValueType::NamedTables(_) => "tables by name".to_owned(),
        ValueType::TableList(_) => "list of tables".to_owned(),
    }
}
