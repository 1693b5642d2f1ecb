//! Flags of the command line as a second layer over the file: they are read by the same tables, so that a flag means and
//! refuses what its key does.

use std::cell::RefCell;
use std::fmt;
use std::path::Path;

use super::keys::{ConfigKey, Flag, FlagScope, Section, ValueType};
use super::model::Config;
use super::reader::{ConfigReader, TableReader, ValueSource};
use super::secrets::SecretCollector;
use super::settings::TOP_LEVEL;
use super::spanned_value::{SpannedEntry, SpannedNode, SpannedValue};
use super::values::{parse_duration, parse_size};
use crate::redact::Secrets;

/// A setting with a flag.
#[derive(Debug, Clone, Copy)]
pub(crate) struct FlaggedKey {
    /// The table of the key; `None` at the top level.
    pub(crate) table: Option<&'static str>,
    pub(crate) key: &'static ConfigKey,
    pub(crate) flag: Flag,
}

/// A flag that was given, on the command line or by its variable.
#[derive(Clone)]
pub(crate) struct GivenFlag {
    pub(crate) setting: FlaggedKey,
    /// Its values as typed; one, unless the flag can be repeated.
    pub(crate) values: Vec<String>,
}

/// The settings with a flag, in the order of the tables.
pub(crate) fn flagged_keys(scope: FlagScope) -> impl Iterator<Item = FlaggedKey> {
    flagged_keys_of(&TOP_LEVEL).filter(move |setting| setting.flag.scope == scope)
}

/// The settings with a flag in a section and in the tables of it.
pub(super) fn flagged_keys_of(section: &'static Section) -> impl Iterator<Item = FlaggedKey> {
    let flagged = |table, key: &'static ConfigKey| key.flag.map(|flag| FlaggedKey { table, key, flag });
    section.keys().flat_map(move |key| match key.value_type {
        ValueType::Table(inner) => {
            inner.keys().filter_map(move |inner| flagged(Some(key.name), inner)).collect::<Vec<_>>()
        }
        _ => flagged(None, key).into_iter().collect(),
    })
}

impl Config {
    /// This configuration with the settings that flags were given for, and the secrets among them.
    ///
    /// # Errors
    /// What is wrong with the flags, one sentence each.
    pub(crate) fn with_flags(&self, flags: &[GivenFlag]) -> Result<(Self, Secrets), Vec<String>> {
        let mut config = self.clone();
        let secrets = read_flags(flags, &TOP_LEVEL, |table| config.settings.read_table(table))?;
        Ok((config, secrets))
    }
}

/// Reads flags as if they were a file with these values. Returns the secrets among them.
///
/// # Errors
/// What is wrong with them, one sentence each.
pub(super) fn read_flags(
    flags: &[GivenFlag],
    section: &'static Section,
    read: impl FnOnce(&TableReader<'_>),
) -> Result<Secrets, Vec<String>> {
    let mut root: Vec<SpannedEntry> = Vec::new();
    for flag in flags {
        let value = flag.value().map_err(|why| vec![format!("--{} {why}", flag.setting.flag.name)])?;
        let entry = spanned_entry(flag.setting.key.name, value);
        match flag.setting.table {
            None => root.push(entry),
            Some(name) => match root.iter_mut().find(|table| table.key == name) {
                Some(SpannedEntry { node: SpannedNode { value: SpannedValue::Table(entries), .. }, .. }) => {
                    entries.push(entry);
                }
                _ => root.push(spanned_entry(name, SpannedValue::Table(vec![entry]))),
            },
        }
    }
    let secrets = SecretCollector::default();
    let reader = ConfigReader {
        secrets: &secrets,
        source: ValueSource::CommandLine,
        path: Path::new(""),
        text: "",
        lookup: &|_| None,
        has_syntax_errors: false,
        diagnostics: RefCell::default(),
    };
    let root = SpannedNode { span: 0..0, value: SpannedValue::Table(root) };
    if let Some(table) = TableReader::open(&reader, &root, section, "", &(0..0)) {
        read(&table);
    }
    let mut mistakes: Vec<String> = reader.diagnostics.into_inner().iter().map(|found| found.sentence()).collect();
    mistakes.dedup();
    if mistakes.is_empty() { Ok(secrets.finish()) } else { Err(mistakes) }
}

fn spanned_entry(key: &str, value: SpannedValue) -> SpannedEntry {
    SpannedEntry { key: key.to_owned(), key_span: 0..0, node: SpannedNode { span: 0..0, value } }
}

impl GivenFlag {
    /// The value that the file would have.
    fn value(&self) -> Result<SpannedValue, String> {
        let first = || self.values.first().cloned().unwrap_or_default();
        let count = || first().parse().map_err(|_| format!("must be a number, not {:?}", first()));
        Ok(match self.setting.key.value_type {
            ValueType::Boolean => SpannedValue::Boolean(self.setting.flag.turns_off.is_none()),
            ValueType::Integer(..) | ValueType::Size => SpannedValue::Integer(count()?),
            ValueType::Duration { .. } => {
                SpannedValue::String(format!("{}{}", first(), self.setting.flag.duration_unit()))
            }
            ValueType::StringList => SpannedValue::List(self.values.iter().map(|word| string_node(word)).collect()),
            ValueType::StringMap => {
                let pairs = self.values.iter().map(|pair| match pair.split_once('=') {
                    Some((name, value)) if !name.is_empty() && !value.is_empty() => {
                        Ok(spanned_entry(name, SpannedValue::String(value.to_owned())))
                    }
                    _ => Err(format!("takes {}, neither of them empty", self.setting.flag.value_name)),
                });
                SpannedValue::Table(pairs.collect::<Result<_, _>>()?)
            }
            _ => SpannedValue::String(first()),
        })
    }
}

fn string_node(text: &str) -> SpannedNode {
    SpannedNode { span: 0..0, value: SpannedValue::String(text.to_owned()) }
}

/// Leaves the values out: they may be secret.
impl fmt::Debug for GivenFlag {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "--{}", self.setting.flag.name)
    }
}

impl FlaggedKey {
    /// The default in the unit of the flag.
    pub(crate) fn default_text(&self) -> Option<String> {
        let text = self.key.default_text()?.replace('`', "");
        let bare = text.trim_matches('"');
        Some(match self.key.value_type {
            ValueType::Duration { .. } => match (self.flag.duration_unit(), parse_duration(bare)?) {
                ("ms", duration) => duration.as_millis().to_string(),
                (_, duration) => duration.as_secs().to_string(),
            },
            ValueType::Size => parse_size(bare)?.to_string(),
            _ if bare.contains('"') => text,
            _ => bare.to_owned(),
        })
    }
}
