//! Typed access to a parsed file, or to the flags of a command line, driven by the key tables. Mistakes are collected as
//! diagnostics instead of ending the read.

use std::cell::RefCell;
use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

use http::Uri;

use super::diagnostic::{Diagnostic, Severity, line_and_column};
use super::keys::{ConfigKey, Section, ValueType};
use super::model::StoreLocation;
use super::secrets::SecretCollector;
use super::spanned_value::{Span, SpannedEntry, SpannedNode, SpannedValue};
use super::suggest::nearest;
use super::values;
use super::variables::expand;
use crate::dialect::{FEATURES, Revision};
use crate::mcp_client::Target;

/// Resolves variables in `${NAME}`.
pub type VariableLookup<'l> = dyn Fn(&str) -> Option<String> + 'l;

/// Where the values that are read come from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ValueSource {
    /// A file: strings may contain variables, and messages name the key and its table.
    File,
    /// Flags and their environment variables, taken literally: messages name the flag.
    CommandLine,
}

/// A file being read: its source text and the diagnostics so far.
pub(crate) struct ConfigReader<'r> {
    pub(super) source: ValueSource,
    pub(super) path: &'r Path,
    pub(super) text: &'r str,
    pub(super) lookup: &'r VariableLookup<'r>,
    pub(super) secrets: &'r SecretCollector,
    /// Whether the file has syntax errors. If so, "missing" diagnostics and warnings are suppressed: the parser may
    /// have skipped the key.
    pub(super) has_syntax_errors: bool,
    pub(super) diagnostics: RefCell<Vec<Diagnostic>>,
}

/// Reader for one TOML table, with the keys that are valid in it.
pub(crate) struct TableReader<'r> {
    pub(super) reader: &'r ConfigReader<'r>,
    section: &'static Section,
    /// Dotted path of the table, such as `servers.files`; empty at the top level.
    path: String,
    /// Suffix for messages, such as ` in [servers.files]`; empty at the top level.
    location: String,
    entries: &'r [SpannedEntry],
    pub(super) span: Span,
}

// === impl ConfigReader ===

impl<'r> ConfigReader<'r> {
    /// Records an error.
    pub(super) fn error(&self, span: &Span, message: impl Into<String>, hint: Option<String>) {
        self.push_diagnostic(Severity::Error, span, message.into(), hint);
    }

    /// Records an error about a missing key, unless syntax errors may be the reason.
    pub(super) fn error_unless_broken(&self, span: &Span, message: impl Into<String>, hint: Option<String>) {
        if !self.has_syntax_errors {
            self.error(span, message, hint);
        }
    }

    /// Records a warning, unless the file has syntax errors.
    pub(super) fn warn(&self, span: &Span, message: impl Into<String>, hint: Option<String>) {
        if !self.has_syntax_errors {
            self.push_diagnostic(Severity::Warning, span, message.into(), hint);
        }
    }

    fn push_diagnostic(&self, severity: Severity, span: &Span, message: String, hint: Option<String>) {
        let (line, column) = line_and_column(self.text, span.start);
        let diagnostic = Diagnostic { file: self.path.to_owned(), line, column, severity, message, hint };
        self.diagnostics.borrow_mut().push(diagnostic);
    }

    /// Number of errors so far, without warnings.
    pub(super) fn error_count(&self) -> usize {
        self.diagnostics.borrow().iter().filter(|diagnostic| diagnostic.severity == Severity::Error).count()
    }

    /// Expands `${NAME}` in a string; records an error for each unset variable.
    pub(super) fn expand_variables(&self, text: &str, span: &Span) -> Option<String> {
        if self.source == ValueSource::CommandLine {
            return Some(text.to_owned());
        }
        let names = match expand(text, self.lookup) {
            Ok(filled) => return Some(filled),
            Err(names) => names,
        };
        for name in names {
            let written = self.text.get(span.clone()).unwrap_or_default();
            let found = written.find(&format!("${{{name}")).or_else(|| written.find(&format!("${{env:{name}")));
            let start = span.start + found.unwrap_or(0);
            let (message, hint) = match name.split_once(':') {
                Some(("input", input)) => {
                    let variable: String = input.chars().map(to_variable_char).collect();
                    let hint = format!("use an environment variable instead: ${{{variable}}}");
                    (format!("`${{{name}}}` needs a prompt, which Rialto does not have"), hint)
                }
                Some(("file", file)) => {
                    let hint = "it must be readable, hold text and not be empty".to_owned();
                    (format!("the file `{file}` cannot be read"), hint)
                }
                Some(_) => (format!("`${{{name}}}` is only known to other clients"), "write the value itself".into()),
                None => {
                    let hint = format!("set it, or give a default: ${{{name}:-…}}; $${{ stands for ${{ itself");
                    (format!("the variable `{name}` is not set"), hint)
                }
            };
            self.error(&(start..start), message, Some(hint));
        }
        None
    }

    /// The string for use in messages: the source text if it contains variables, so that no value leaks.
    pub(super) fn redacted<'t>(&'t self, text: &'t str, span: &Span) -> &'t str {
        match self.text.get(span.clone()) {
            Some(written) if written.contains("${") => written.trim_matches(['"', '\'']),
            _ => text,
        }
    }

    /// A string with variables expanded; records an error for any other type.
    pub(super) fn expect_string(&self, node: &SpannedNode, what: &str) -> Option<String> {
        match &node.value {
            SpannedValue::String(text) => self.expand_variables(text, &node.span),
            _ => {
                self.error(&node.span, format!("{what} must be a string, not {}", node.type_name()), None);
                None
            }
        }
    }
}

fn to_variable_char(character: char) -> char {
    if character.is_ascii_alphanumeric() { character.to_ascii_uppercase() } else { '_' }
}

/// Hint `did you mean …?`, or the valid names if there are few.
pub(super) fn suggestion(word: &str, known: &[&str]) -> Option<String> {
    const MAX_LISTED: usize = 9;
    match nearest(word, known) {
        Some(near) => Some(format!("did you mean `{near}`?")),
        None if known.is_empty() || known.len() > MAX_LISTED => None,
        None => Some(format!("valid: {}", quoted_list(known))),
    }
}

/// Names in backticks, separated by commas.
pub(super) fn quoted_list(words: &[&str]) -> String {
    words.iter().map(|word| format!("`{word}`")).collect::<Vec<_>>().join(", ")
}

// === impl TableReader ===

impl<'r> TableReader<'r> {
    /// Opens a node as a table and records unknown and duplicate keys.
    pub(super) fn open(
        reader: &'r ConfigReader<'r>,
        node: &'r SpannedNode,
        section: &'static Section,
        path: &str,
        span: &Span,
    ) -> Option<Self> {
        let SpannedValue::Table(entries) = &node.value else {
            reader.error(&node.span, format!("`{path}` must be a table, not {}", node.type_name()), None);
            return None;
        };
        let location = if path.is_empty() { String::new() } else { format!(" in [{path}]") };
        let table = Self { reader, section, path: path.to_owned(), location, entries, span: span.clone() };
        for (i, entry) in entries.iter().enumerate() {
            let Some(key) = section.key(&entry.key) else {
                let known: Vec<&str> = section.keys().map(|key| key.name).collect();
                let message = format!("unknown key `{}`{}", entry.key, table.location);
                reader.error(&entry.key_span, message, suggestion(&entry.key, &known));
                continue;
            };
            let same = |before: &&SpannedEntry| section.key(&before.key).is_some_and(|other| other.name == key.name);
            if let Some(before) = entries[..i].iter().find(same) {
                let message = format!("`{}` and `{}` are the same key", before.key, entry.key);
                reader.error(&entry.key_span, message, Some("remove one of them".into()));
            }
        }
        Some(table)
    }

    pub(super) fn entries(&self) -> &'r [SpannedEntry] {
        self.entries
    }

    /// The entry of a key, found by name or alias.
    pub(super) fn entry(&self, name: &str) -> Option<&'r SpannedEntry> {
        self.key_and_entry(name).1
    }

    /// The definition of a key and its entry in the file.
    fn key_and_entry(&self, name: &str) -> (Option<&'static ConfigKey>, Option<&'r SpannedEntry>) {
        let key = self.section.key(name);
        debug_assert!(key.is_some(), "{name} is in no table of keys");
        let of_key =
            |entry: &&SpannedEntry| key.is_some_and(|key| entry.key == key.name || key.alias == Some(&entry.key));
        (key, self.entries.iter().find(of_key))
    }

    /// The key for use in messages: the key and its table, or the flag.
    pub(super) fn subject(&self, key: &str) -> String {
        match (self.reader.source, self.section.key(key).and_then(|key| key.flag)) {
            (ValueSource::CommandLine, Some(flag)) => format!("--{}", flag.name),
            _ => format!("`{key}`{}", self.location),
        }
    }

    fn type_error(&self, entry: &SpannedEntry, wanted: &str) {
        let message = format!("{} must be {wanted}, not {}", self.subject(&entry.key), entry.node.type_name());
        self.reader.error(&entry.node.span, message, None);
    }

    /// Records an invalid value. `written` is the source text, with variables not expanded.
    fn value_error(&self, entry: &SpannedEntry, written: &str, why: &str, hint: Option<String>) {
        let message = format!("{}: {written:?} {why}", self.subject(&entry.key));
        self.reader.error(&entry.node.span, message, hint);
    }

    /// The entry, its source text, and the string with variables expanded.
    fn string_entry(&self, name: &str, wanted: &str) -> Option<(&'r SpannedEntry, &'r str, String)> {
        let entry = self.entry(name)?;
        let SpannedValue::String(text) = &entry.node.value else {
            self.type_error(entry, wanted);
            return None;
        };
        Some((entry, text, self.reader.expand_variables(text, &entry.node.span)?))
    }

    /// A non-empty string.
    pub(super) fn string(&self, name: &str) -> Option<String> {
        let (key, _) = self.key_and_entry(name);
        let string = self.string_entry(name, "a string");
        if let (Some(ValueType::RequiredString), None) = (key.map(|key| key.value_type), self.entry(name)) {
            self.reader.error_unless_broken(&self.span, format!("`{name}` is missing{}", self.location), None);
        }
        let (entry, _, text) = string?;
        if text.trim().is_empty() {
            self.reader.error(&entry.node.span, format!("{} is empty", self.subject(name)), None);
            return None;
        }
        Some(text)
    }

    /// A boolean.
    pub(super) fn boolean(&self, name: &str) -> Option<bool> {
        let entry = self.entry(name)?;
        if let SpannedValue::Boolean(flag) = entry.node.value {
            return Some(flag);
        }
        self.type_error(entry, "true or false");
        None
    }

    /// An integer or a size, as the key says.
    pub(super) fn number(&self, name: &str) -> Option<usize> {
        match self.section.key(name)?.value_type {
            ValueType::Size => self.size(name),
            _ => self.integer(name),
        }
    }

    /// An integer within the bounds of the key.
    pub(super) fn integer(&self, name: &str) -> Option<usize> {
        let (Some(ConfigKey { value_type: ValueType::Integer(least, most), .. }), Some(entry)) =
            self.key_and_entry(name)
        else {
            return None;
        };
        match entry.node.value {
            SpannedValue::Integer(number) => {
                let fits = u64::try_from(number).ok().filter(|number| (*least..=*most).contains(number));
                if fits.is_none() {
                    let message = format!("{}: {number} must be from {least} to {most}", self.subject(name));
                    self.reader.error(&entry.node.span, message, None);
                }
                fits.and_then(|number| usize::try_from(number).ok())
            }
            _ => {
                self.type_error(entry, "an integer");
                None
            }
        }
    }

    /// A size in bytes.
    pub(super) fn size(&self, name: &str) -> Option<usize> {
        const WANTED: &str = "a number of bytes, or a size such as \"16MiB\"";
        let entry = self.entry(name)?;
        let found = match &entry.node.value {
            SpannedValue::Integer(number) => u64::try_from(*number).ok(),
            SpannedValue::String(_) => {
                let (entry, written, text) = self.string_entry(name, WANTED)?;
                let size = values::parse_size(&text);
                if size.is_none() {
                    self.value_error(
                        entry,
                        written,
                        "is not a size",
                        Some("write it as \"16MiB\" or \"64KiB\"".into()),
                    );
                    return None;
                }
                size
            }
            _ => {
                self.type_error(entry, WANTED);
                return None;
            }
        };
        let found = found.filter(|size| *size > 0).and_then(|size| usize::try_from(size).ok());
        if found.is_none() {
            self.reader.error(&entry.node.span, format!("{} must be more than 0", self.subject(name)), None);
        }
        found
    }

    /// A duration; `Some(None)` for `off`.
    pub(super) fn duration_or_off(&self, name: &str) -> Option<Option<Duration>> {
        const UNITS: &str = "write a duration with a unit: \"250ms\", \"30s\", \"5m\", \"1h\"";
        let (Some(ConfigKey { value_type: ValueType::Duration { allow_zero, allow_off }, .. }), Some(entry)) =
            self.key_and_entry(name)
        else {
            return None;
        };
        if let SpannedValue::Integer(_) | SpannedValue::Float(_) = entry.node.value {
            let message = format!("{} must be a duration, not a number", self.subject(name));
            self.reader.error(&entry.node.span, message, Some(UNITS.into()));
            return None;
        }
        let (entry, written, text) = self.string_entry(name, "a duration such as \"30s\"")?;
        match (text.as_str(), values::parse_duration(&text)) {
            ("off", _) if *allow_off => Some(None),
            (_, Some(duration)) if *allow_zero || !duration.is_zero() => Some(Some(duration)),
            (_, Some(_)) => {
                let hint = allow_off.then(|| "\"off\" disables it".to_owned());
                self.value_error(entry, written, "must be more than 0", hint);
                None
            }
            (_, None) => {
                self.value_error(entry, written, "is not a duration", Some(UNITS.into()));
                None
            }
        }
    }

    /// A duration.
    pub(super) fn duration(&self, name: &str) -> Option<Duration> {
        self.duration_or_off(name).flatten()
    }

    /// One of the choices of the key.
    pub(super) fn choice(&self, name: &str) -> Option<&'static str> {
        let (Some(ConfigKey { value_type: ValueType::Choice(words), .. }), Some(_)) = self.key_and_entry(name) else {
            return None;
        };
        let (entry, written, text) = self.string_entry(name, &format!("one of {}", quoted_list(words)))?;
        let found = words.iter().find(|word| **word == text);
        if found.is_none() {
            let hint = match nearest(&text, words) {
                Some(near) => format!("did you mean `{near}`?"),
                None => format!("use {}", words.iter().map(|w| format!("`{w}`")).collect::<Vec<_>>().join(" or ")),
            };
            self.value_error(entry, written, "is unknown", Some(hint));
        }
        found.copied()
    }

    /// A protocol revision; `Some(None)` for `auto`.
    pub(super) fn revision(&self, name: &str) -> Option<Option<Revision>> {
        let entry = self.entry(name)?;
        let text = match &entry.node.value {
            SpannedValue::Date(date) => date.clone(),
            _ => self.string_entry(name, "a revision such as \"2025-06-18\", or \"auto\"")?.2,
        };
        if text == "auto" {
            return Some(None);
        }
        let found = Revision::parse(&text);
        if found.is_none() {
            let known: Vec<&str> = FEATURES.iter().map(|features| features.name).collect();
            let hint = format!("use `auto`, {}", quoted_list(&known));
            self.reader.error(&entry.node.span, format!("{} is not a known revision", self.subject(name)), Some(hint));
        }
        found.map(Some)
    }

    /// A socket address.
    pub(super) fn socket_addr(&self, name: &str) -> Option<SocketAddr> {
        let (entry, written, text) = self.string_entry(name, "an address such as \"127.0.0.1:3001\"")?;
        let text = text.strip_prefix("localhost:").map_or(text.clone(), |port| format!("127.0.0.1:{port}"));
        let address = text.parse().ok();
        if address.is_none() {
            let hint = match text.parse::<std::net::IpAddr>() {
                Ok(ip) if !written.contains("${") => {
                    format!("the port is missing; write \"{}\"", SocketAddr::new(ip, 3001))
                }
                _ => "write an IP address and a port, such as \"127.0.0.1:3001\"".to_owned(),
            };
            self.value_error(entry, written, "is not an address", Some(hint));
        }
        address
    }

    /// An HTTP URL. Messages do not contain it, because it may hold secrets.
    pub(super) fn url(&self, name: &str) -> Option<Uri> {
        let (entry, _, text) = self.string_entry(name, "a URL")?;
        self.parse_url(&text, entry)
    }

    /// Parses an HTTP URL; records an error if it is none.
    pub(super) fn parse_url(&self, text: &str, entry: &SpannedEntry) -> Option<Uri> {
        let reason = match Target::url(text) {
            Ok(Target::Url(address)) => return Some(address.url),
            _ if text.split_once("://").is_some_and(|(_, rest)| rest.split('/').next().unwrap_or("").contains('@')) => {
                "has credentials in it; give them in `headers`"
            }
            _ => "is not an HTTP URL; write something like \"https://tracker.example/mcp\"",
        };
        let (why, hint) = reason.split_once("; ").unwrap_or((reason, ""));
        self.reader.error(&entry.node.span, format!("{} {why}", self.subject(&entry.key)), Some(hint.to_owned()));
        None
    }

    /// `memory` or a Redis URL. Messages do not contain it, because it may hold a password.
    pub(super) fn store(&self, name: &str) -> Option<StoreLocation> {
        let (entry, _, text) = self.string_entry(name, "`memory` or a Redis URL")?;
        match StoreLocation::parse(&text) {
            Ok(store) => {
                self.reader.secrets.add_url_password(&text);
                Some(store)
            }
            Err((why, hint)) => {
                self.reader.error(&entry.node.span, format!("{} {why}", self.subject(name)), Some(hint));
                None
            }
        }
    }

    /// A list of strings, each with its span.
    pub(super) fn strings_with_spans(&self, name: &str) -> Option<Vec<(String, Span)>> {
        let entry = self.entry(name)?;
        let SpannedValue::List(items) = &entry.node.value else {
            let message =
                format!("{} must be a list of strings, not {}", self.subject(&entry.key), entry.node.type_name());
            let hint = matches!(entry.node.value, SpannedValue::String(_)).then(|| format!("write {name} = [\"…\"]"));
            self.reader.error(&entry.node.span, message, hint);
            return None;
        };
        let what = format!("each of {}", self.subject(name));
        let one = |item: &SpannedNode| Some((self.reader.expect_string(item, &what)?, item.span.clone()));
        Some(items.iter().filter_map(one).collect())
    }

    /// A list of strings.
    pub(super) fn strings(&self, name: &str) -> Option<Vec<String>> {
        Some(self.strings_with_spans(name)?.into_iter().map(|(word, _)| word).collect())
    }

    /// A table of strings in file order, each with the span of its key.
    pub(super) fn string_map(&self, name: &str) -> Vec<(String, String, Span)> {
        let Some(entry) = self.entry(name) else { return Vec::new() };
        let SpannedValue::Table(entries) = &entry.node.value else {
            self.type_error(entry, "a table of strings");
            return Vec::new();
        };
        let one = |pair: &SpannedEntry| {
            let what = format!("`{}` of {}", pair.key, self.subject(name));
            let value = self.reader.expect_string(&pair.node, &what)?;
            self.reader.secrets.add_entry(name, &pair.key, &value);
            Some((pair.key.clone(), value, pair.key_span.clone()))
        };
        entries.iter().filter_map(one).collect()
    }

    /// A table of lists of strings in file order, each with the span of its key.
    pub(super) fn string_lists(&self, name: &str) -> Vec<(String, Vec<String>, Span)> {
        let Some(entry) = self.entry(name) else { return Vec::new() };
        let SpannedValue::Table(entries) = &entry.node.value else {
            self.type_error(entry, "a table of lists of strings");
            return Vec::new();
        };
        let one = |pair: &SpannedEntry| {
            let what = format!("`{}` of {}", pair.key, self.subject(name));
            let SpannedValue::List(items) = &pair.node.value else {
                let message = format!("{what} must be a list of strings, not {}", pair.node.type_name());
                self.reader.error(&pair.node.span, message, None);
                return None;
            };
            let words = items.iter().filter_map(|item| self.reader.expect_string(item, &format!("each of {what}")));
            Some((pair.key.clone(), words.collect(), pair.key_span.clone()))
        };
        entries.iter().filter_map(one).collect()
    }

    /// A nested table.
    pub(super) fn subtable(&self, name: &str) -> Option<TableReader<'r>> {
        let (Some(ConfigKey { value_type: ValueType::Table(section), .. }), Some(entry)) = self.key_and_entry(name)
        else {
            return None;
        };
        Self::open(self.reader, &entry.node, section, &self.path_of(name), &entry.key_span)
    }

    /// The entries of a table of named tables.
    pub(super) fn named_entries(&self, name: &str) -> &'r [SpannedEntry] {
        match self.entry(name).map(|entry| (entry, &entry.node.value)) {
            Some((_, SpannedValue::Table(entries))) => entries,
            Some((entry, _)) => {
                self.type_error(entry, "a table of named tables");
                &[]
            }
            None => &[],
        }
    }

    /// Opens one of the named tables.
    pub(super) fn named_table(&self, name: &str, entry: &'r SpannedEntry) -> Option<TableReader<'r>> {
        let (Some(ConfigKey { value_type: ValueType::NamedTables(section), .. }), _) = self.key_and_entry(name) else {
            return None;
        };
        let path = format!("{}.{}", self.path_of(name), entry.key);
        Self::open(self.reader, &entry.node, section, &path, &entry.key_span)
    }

    /// A list of tables.
    pub(super) fn table_list(&self, name: &str) -> Vec<TableReader<'r>> {
        let (Some(ConfigKey { value_type: ValueType::TableList(section), .. }), Some(entry)) = self.key_and_entry(name)
        else {
            return Vec::new();
        };
        let SpannedValue::List(items) = &entry.node.value else {
            self.type_error(entry, "a list of tables");
            return Vec::new();
        };
        let path = self.path_of(name);
        items.iter().filter_map(|item| Self::open(self.reader, item, section, &path, &item.span)).collect()
    }

    /// Dotted path of a table in this one.
    fn path_of(&self, name: &str) -> String {
        if self.path.is_empty() { name.to_owned() } else { format!("{}.{name}", self.path) }
    }

    /// Any value as JSON, with variables expanded in its strings.
    pub(super) fn any_value(&self, name: &str) -> Option<serde_json::Value> {
        self.to_json(&self.entry(name)?.node)
    }

    /// A list of values of any type, as JSON.
    pub(super) fn any_list(&self, name: &str) -> Option<Vec<serde_json::Value>> {
        let entry = self.entry(name)?;
        match &entry.node.value {
            SpannedValue::List(items) => items.iter().map(|item| self.to_json(item)).collect(),
            _ => {
                self.type_error(entry, "a list");
                None
            }
        }
    }

    fn to_json(&self, node: &SpannedNode) -> Option<serde_json::Value> {
        Some(match &node.value {
            SpannedValue::String(text) => self.reader.expand_variables(text, &node.span)?.into(),
            SpannedValue::Integer(number) => (*number).into(),
            SpannedValue::Float(number) => (*number).into(),
            SpannedValue::Boolean(flag) => (*flag).into(),
            SpannedValue::Null => serde_json::Value::Null,
            SpannedValue::Date(date) => date.as_str().into(),
            SpannedValue::List(items) => {
                items.iter().map(|item| self.to_json(item)).collect::<Option<Vec<_>>>()?.into()
            }
            SpannedValue::Table(entries) => {
                let pair = |entry: &SpannedEntry| Some((entry.key.clone(), self.to_json(&entry.node)?));
                serde_json::Value::Object(entries.iter().map(pair).collect::<Option<_>>()?)
            }
        })
    }
}
