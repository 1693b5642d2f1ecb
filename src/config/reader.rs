//! Walks a file with the tables of keys in hand, and notes everything that is wrong on the way.

use std::cell::RefCell;
use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

use http::Uri;

use super::keys::{ConfigKey, Section, ValueType};
use super::model::Store;
use super::problem::{Diagnostic, Severity, place};
use super::spanned_value::{Node, Span, SpannedEntry, SpannedValue};
use super::suggest::nearest;
use super::values;
use super::variables::expand;
use crate::dialect::{FACTS, Revision};
use crate::mcp_client::Target;

/// Where the values of variables come from.
pub type Lookup<'l> = dyn Fn(&str) -> Option<String> + 'l;

/// A file that is being read.
pub(super) struct ConfigReader<'r> {
    pub(super) path: &'r Path,
    pub(super) text: &'r str,
    pub(super) lookup: &'r Lookup<'r>,
    /// Whether the text itself is broken, so that what is missing may only be unreadable.
    pub(super) broken: bool,
    pub(super) problems: RefCell<Vec<Diagnostic>>,
}

/// A table of the file, with the keys that it may have.
pub(super) struct Table<'r> {
    pub(super) reader: &'r ConfigReader<'r>,
    section: &'static Section,
    /// Its name for messages: ` in [servers.files]`, or nothing for the file itself.
    place: String,
    entries: &'r [SpannedEntry],
    pub(super) at: Span,
}

// === impl Reader ===

impl<'r> ConfigReader<'r> {
    /// Notes something that is wrong.
    pub(super) fn error(&self, at: &Span, message: impl Into<String>, hint: Option<String>) {
        self.note(Severity::Error, at, message.into(), hint);
    }

    /// Notes something that is missing, or whose fellow is. In a text that is broken it may well be there.
    pub(super) fn missing(&self, at: &Span, message: impl Into<String>, hint: Option<String>) {
        if !self.broken {
            self.error(at, message, hint);
        }
    }

    /// Notes something that is probably not meant.
    pub(super) fn warn(&self, at: &Span, message: impl Into<String>, hint: Option<String>) {
        if !self.broken {
            self.note(Severity::Warning, at, message.into(), hint);
        }
    }

    fn note(&self, severity: Severity, at: &Span, message: String, hint: Option<String>) {
        let (line, column) = place(self.text, at.start);
        let problem = Diagnostic { file: self.path.to_owned(), line, column, severity, message, hint };
        self.problems.borrow_mut().push(problem);
    }

    /// How many errors there are so far.
    pub(super) fn errors(&self) -> usize {
        self.problems.borrow().iter().filter(|problem| problem.severity == Severity::Error).count()
    }

    /// Puts variables into a text; notes those that are not set.
    pub(super) fn filled(&self, text: &str, at: &Span) -> Option<String> {
        let names = match expand(text, self.lookup) {
            Ok(filled) => return Some(filled),
            Err(names) => names,
        };
        for name in names {
            let written = self.text.get(at.clone()).unwrap_or_default();
            let found = written.find(&format!("${{{name}")).or_else(|| written.find(&format!("${{env:{name}")));
            let start = at.start + found.unwrap_or(0);
            let (message, hint) = match name.split_once(':') {
                Some(("input", input)) => {
                    let variable: String = input.chars().map(variable_letter).collect();
                    let hint = format!("use an environment variable instead: ${{{variable}}}");
                    (format!("nobody is there to be asked for `${{{name}}}`"), hint)
                }
                Some(_) => (format!("`${{{name}}}` is known to another client only"), "write the value itself".into()),
                None => {
                    let hint = format!("set it, or give a default: ${{{name}:-…}}; $${{ stands for ${{ itself");
                    (format!("the variable `{name}` is not set"), hint)
                }
            };
            self.error(&(start..start), message, Some(hint));
        }
        None
    }

    /// A text as it may be shown: as it is written where there are variables in it.
    pub(super) fn shown<'t>(&'t self, text: &'t str, at: &Span) -> &'t str {
        match self.text.get(at.clone()) {
            Some(written) if written.contains("${") => written.trim_matches(['"', '\'']),
            _ => text,
        }
    }

    /// A text with its variables put in; notes anything else.
    pub(super) fn text_of(&self, node: &Node, what: &str) -> Option<String> {
        match &node.value {
            SpannedValue::Text(text) => self.filled(text, &node.at),
            _ => {
                self.error(&node.at, format!("{what} must be a text, not {}", node.described()), None);
                None
            }
        }
    }
}

fn variable_letter(letter: char) -> char {
    if letter.is_ascii_alphanumeric() { letter.to_ascii_uppercase() } else { '_' }
}

/// `did you mean …?`, or what there is if it is not too much.
pub(super) fn meant(word: &str, known: &[&str]) -> Option<String> {
    const FEW: usize = 9;
    match nearest(word, known) {
        Some(near) => Some(format!("did you mean `{near}`?")),
        None if known.is_empty() || known.len() > FEW => None,
        None => Some(format!("there is {}", listed(known))),
    }
}

/// Words in a row.
pub(super) fn listed(words: &[&str]) -> String {
    words.iter().map(|word| format!("`{word}`")).collect::<Vec<_>>().join(", ")
}

// === impl Table ===

impl<'r> Table<'r> {
    /// Takes a node as a table, and notes the keys that it should not have.
    pub(super) fn open(
        reader: &'r ConfigReader<'r>,
        node: &'r Node,
        section: &'static Section,
        name: &str,
        at: &Span,
    ) -> Option<Self> {
        let SpannedValue::Table(entries) = &node.value else {
            reader.error(&node.at, format!("`{name}` must be a table, not {}", node.described()), None);
            return None;
        };
        let place = if name.is_empty() { String::new() } else { format!(" in [{name}]") };
        let table = Self { reader, section, place, entries, at: at.clone() };
        for (i, entry) in entries.iter().enumerate() {
            let Some(key) = section.key(&entry.key) else {
                let known: Vec<&str> = section.keys().map(|key| key.name).collect();
                let message = format!("unknown key `{}`{}", entry.key, table.place);
                reader.error(&entry.key_at, message, meant(&entry.key, &known));
                continue;
            };
            let same = |before: &&SpannedEntry| section.key(&before.key).is_some_and(|other| other.name == key.name);
            if let Some(before) = entries[..i].iter().find(same) {
                let message = format!("`{}` and `{}` are the same", before.key, entry.key);
                reader.error(&entry.key_at, message, Some("one of them has to go".into()));
            }
        }
        Some(table)
    }

    /// The entries as they are.
    pub(super) fn entries(&self) -> &'r [SpannedEntry] {
        self.entries
    }

    /// The entry of a key.
    pub(super) fn entry(&self, name: &str) -> Option<&'r SpannedEntry> {
        self.known(name).1
    }

    /// A key and its entry.
    fn known(&self, name: &str) -> (Option<&'static ConfigKey>, Option<&'r SpannedEntry>) {
        let key = self.section.key(name);
        debug_assert!(key.is_some(), "{name} is in no table of keys");
        let of_key =
            |entry: &&SpannedEntry| key.is_some_and(|key| entry.key == key.name || key.alias == Some(&entry.key));
        (key, self.entries.iter().find(of_key))
    }

    fn wrong(&self, entry: &SpannedEntry, wanted: &str) {
        let message = format!("`{}`{} must be {wanted}, not {}", entry.key, self.place, entry.node.described());
        self.reader.error(&entry.node.at, message, None);
    }

    /// A value that is of the right type and yet cannot be. The text is shown as it is written.
    fn bad(&self, entry: &SpannedEntry, written: &str, why: &str, hint: Option<String>) {
        let message = format!("`{}`{}: {written:?} {why}", entry.key, self.place);
        self.reader.error(&entry.node.at, message, hint);
    }

    /// The text of a key as it is written, and with its variables put in.
    fn written(&self, name: &str, wanted: &str) -> Option<(&'r SpannedEntry, &'r str, String)> {
        let entry = self.entry(name)?;
        let SpannedValue::Text(text) = &entry.node.value else {
            self.wrong(entry, wanted);
            return None;
        };
        Some((entry, text, self.reader.filled(text, &entry.node.at)?))
    }

    /// A text.
    pub(super) fn text(&self, name: &str) -> Option<String> {
        let (key, _) = self.known(name);
        let found = self.written(name, "a text");
        if let (Some(ValueType::Needed), None) = (key.map(|key| key.kind), self.entry(name)) {
            self.reader.missing(&self.at, format!("`{name}` is missing{}", self.place), None);
        }
        let (entry, _, text) = found?;
        if text.trim().is_empty() {
            self.reader.error(&entry.node.at, format!("`{name}`{} is empty", self.place), None);
            return None;
        }
        Some(text)
    }

    /// True or false.
    pub(super) fn flag(&self, name: &str) -> Option<bool> {
        let entry = self.entry(name)?;
        if let SpannedValue::Flag(flag) = entry.node.value {
            return Some(flag);
        }
        self.wrong(entry, "true or false");
        None
    }

    /// A whole number.
    pub(super) fn count(&self, name: &str) -> Option<usize> {
        let (Some(ConfigKey { kind: ValueType::Count(least, most), .. }), Some(entry)) = self.known(name) else {
            return None;
        };
        match entry.node.value {
            SpannedValue::Whole(number) => {
                let fits = u64::try_from(number).ok().filter(|number| (*least..=*most).contains(number));
                if fits.is_none() {
                    let message = format!("`{name}`{}: {number} must be from {least} to {most}", self.place);
                    self.reader.error(&entry.node.at, message, None);
                }
                fits.and_then(|number| usize::try_from(number).ok())
            }
            _ => {
                self.wrong(entry, "a whole number");
                None
            }
        }
    }

    /// A number of bytes.
    pub(super) fn size(&self, name: &str) -> Option<usize> {
        const WANTED: &str = "a number of bytes, or a size such as \"16MiB\"";
        let entry = self.entry(name)?;
        let found = match &entry.node.value {
            SpannedValue::Whole(number) => u64::try_from(*number).ok(),
            SpannedValue::Text(_) => {
                let (entry, written, text) = self.written(name, WANTED)?;
                let size = values::size(&text);
                if size.is_none() {
                    self.bad(entry, written, "is no size", Some("write it as \"16MiB\" or \"64KiB\"".into()));
                    return None;
                }
                size
            }
            _ => {
                self.wrong(entry, WANTED);
                return None;
            }
        };
        let found = found.filter(|size| *size > 0).and_then(|size| usize::try_from(size).ok());
        if found.is_none() {
            self.reader.error(&entry.node.at, format!("`{name}`{} must be more than 0", self.place), None);
        }
        found
    }

    /// A duration; nothing inside for `off`.
    pub(super) fn duration_or_off(&self, name: &str) -> Option<Option<Duration>> {
        const UNITS: &str = "a duration has a unit: \"250ms\", \"30s\", \"5m\", \"1h\"";
        let (Some(ConfigKey { kind: ValueType::Duration(zero, off), .. }), Some(entry)) = self.known(name) else {
            return None;
        };
        if let SpannedValue::Whole(_) | SpannedValue::Real(_) = entry.node.value {
            let message = format!("`{name}`{} must be a duration, not a number", self.place);
            self.reader.error(&entry.node.at, message, Some(UNITS.into()));
            return None;
        }
        let (entry, written, text) = self.written(name, "a duration such as \"30s\"")?;
        match (text.as_str(), values::duration(&text)) {
            ("off", _) if *off => Some(None),
            (_, Some(duration)) if *zero || !duration.is_zero() => Some(Some(duration)),
            (_, Some(_)) => {
                let hint = off.then(|| "\"off\" leaves it out".to_owned());
                self.bad(entry, written, "must be more than 0", hint);
                None
            }
            (_, None) => {
                self.bad(entry, written, "is no duration", Some(UNITS.into()));
                None
            }
        }
    }

    /// A duration.
    pub(super) fn duration(&self, name: &str) -> Option<Duration> {
        self.duration_or_off(name).flatten()
    }

    /// One of the words that the key takes.
    pub(super) fn choice(&self, name: &str) -> Option<&'static str> {
        let (Some(ConfigKey { kind: ValueType::Choice(words), .. }), Some(_)) = self.known(name) else { return None };
        let (entry, written, text) = self.written(name, &format!("one of {}", listed(words)))?;
        let found = words.iter().find(|word| **word == text);
        if found.is_none() {
            let hint = match nearest(&text, words) {
                Some(near) => format!("did you mean `{near}`?"),
                None => format!("it is {}", words.iter().map(|w| format!("`{w}`")).collect::<Vec<_>>().join(" or ")),
            };
            self.bad(entry, written, "is not known", Some(hint));
        }
        found.copied()
    }

    /// A revision; nothing inside for `auto`.
    pub(super) fn revision(&self, name: &str) -> Option<Option<Revision>> {
        let entry = self.entry(name)?;
        let text = match &entry.node.value {
            SpannedValue::Date(date) => date.clone(),
            _ => self.written(name, "a revision such as \"2025-06-18\", or \"auto\"")?.2,
        };
        if text == "auto" {
            return Some(None);
        }
        let found = Revision::parse(&text);
        if found.is_none() {
            let known: Vec<&str> = FACTS.iter().map(|facts| facts.name).collect();
            let hint = format!("it is `auto`, {}", listed(&known));
            self.reader.error(
                &entry.node.at,
                format!("`{name}`{} is no revision that is known", self.place),
                Some(hint),
            );
        }
        found.map(Some)
    }

    /// A socket address.
    pub(super) fn address(&self, name: &str) -> Option<SocketAddr> {
        let (entry, written, text) = self.written(name, "an address such as \"127.0.0.1:3001\"")?;
        let text = text.strip_prefix("localhost:").map_or(text.clone(), |port| format!("127.0.0.1:{port}"));
        let address = text.parse().ok();
        if address.is_none() {
            let hint = match text.parse::<std::net::IpAddr>() {
                Ok(ip) if !written.contains("${") => {
                    format!("the port is missing; write \"{}\"", SocketAddr::new(ip, 3001))
                }
                _ => "write an IP address and a port, such as \"127.0.0.1:3001\"".to_owned(),
            };
            self.bad(entry, written, "is no address", Some(hint));
        }
        address
    }

    /// A URL of HTTP, and where it stands. It may hold secrets and is not shown.
    pub(super) fn url(&self, name: &str) -> Option<Uri> {
        let (entry, _, text) = self.written(name, "a URL")?;
        self.uri(&text, entry)
    }

    /// A text as a URL of HTTP.
    pub(super) fn uri(&self, text: &str, entry: &SpannedEntry) -> Option<Uri> {
        let reason = match Target::url(text) {
            Ok(Target::Url(address)) => return Some(address.url),
            _ if text.split_once("://").is_some_and(|(_, rest)| rest.split('/').next().unwrap_or("").contains('@')) => {
                "has credentials in it; give them in `headers`"
            }
            _ => "is no address of HTTP; write something like \"https://tracker.example/mcp\"",
        };
        let (why, hint) = reason.split_once("; ").unwrap_or((reason, ""));
        self.reader.error(&entry.node.at, format!("`{}`{} {why}", entry.key, self.place), Some(hint.to_owned()));
        None
    }

    /// `memory`, or a URL of Redis. It may hold secrets and is not shown.
    pub(super) fn store(&self, name: &str) -> Option<Store> {
        let (entry, _, text) = self.written(name, "`memory` or a URL of Redis")?;
        match Store::parse(&text) {
            Ok(store) => Some(store),
            Err((why, hint)) => {
                self.reader.error(&entry.node.at, format!("`{name}`{} {why}", self.place), Some(hint));
                None
            }
        }
    }

    /// A list of texts, each with its place.
    pub(super) fn texts(&self, name: &str) -> Option<Vec<(String, Span)>> {
        let entry = self.entry(name)?;
        let SpannedValue::List(items) = &entry.node.value else {
            let message =
                format!("`{}`{} must be a list of texts, not {}", entry.key, self.place, entry.node.described());
            let hint = matches!(entry.node.value, SpannedValue::Text(_)).then(|| format!("write {name} = [\"…\"]"));
            self.reader.error(&entry.node.at, message, hint);
            return None;
        };
        let what = format!("each of `{name}`{}", self.place);
        let one = |item: &Node| Some((self.reader.text_of(item, &what)?, item.at.clone()));
        Some(items.iter().filter_map(one).collect())
    }

    /// A list of texts.
    pub(super) fn words(&self, name: &str) -> Option<Vec<String>> {
        Some(self.texts(name)?.into_iter().map(|(word, _)| word).collect())
    }

    /// A table of texts, in order, each with the place of its key.
    pub(super) fn pairs(&self, name: &str) -> Vec<(String, String, Span)> {
        let Some(entry) = self.entry(name) else { return Vec::new() };
        let SpannedValue::Table(entries) = &entry.node.value else {
            self.wrong(entry, "a table of texts");
            return Vec::new();
        };
        let one = |pair: &SpannedEntry| {
            let what = format!("`{}` of `{name}`{}", pair.key, self.place);
            Some((pair.key.clone(), self.reader.text_of(&pair.node, &what)?, pair.key_at.clone()))
        };
        entries.iter().filter_map(one).collect()
    }

    /// A table below this one.
    pub(super) fn table(&self, name: &str, full: &str) -> Option<Table<'r>> {
        let (Some(ConfigKey { kind: ValueType::Table(section), .. }), Some(entry)) = self.known(name) else {
            return None;
        };
        Self::open(self.reader, &entry.node, section, full, &entry.key_at)
    }

    /// The entries of tables that go by name.
    pub(super) fn named(&self, name: &str) -> &'r [SpannedEntry] {
        match self.entry(name).map(|entry| (entry, &entry.node.value)) {
            Some((_, SpannedValue::Table(entries))) => entries,
            Some((entry, _)) => {
                self.wrong(entry, "tables by name");
                &[]
            }
            None => &[],
        }
    }

    /// One of the tables that go by name.
    pub(super) fn one(&self, name: &str, entry: &'r SpannedEntry, full: &str) -> Option<Table<'r>> {
        let (Some(ConfigKey { kind: ValueType::Named(section), .. }), _) = self.known(name) else { return None };
        Self::open(self.reader, &entry.node, section, &format!("{full}.{}", entry.key), &entry.key_at)
    }

    /// A list of tables.
    pub(super) fn tables(&self, name: &str, full: &str) -> Vec<Table<'r>> {
        let (Some(ConfigKey { kind: ValueType::Tables(section), .. }), Some(entry)) = self.known(name) else {
            return Vec::new();
        };
        let SpannedValue::List(items) = &entry.node.value else {
            self.wrong(entry, "a list of tables");
            return Vec::new();
        };
        items.iter().filter_map(|item| Self::open(self.reader, item, section, full, &item.at)).collect()
    }

    /// Any value, as JSON, with variables put into its texts.
    pub(super) fn any(&self, name: &str) -> Option<serde_json::Value> {
        self.json(&self.entry(name)?.node)
    }

    /// A list of any values.
    pub(super) fn values(&self, name: &str) -> Option<Vec<serde_json::Value>> {
        let entry = self.entry(name)?;
        match &entry.node.value {
            SpannedValue::List(items) => items.iter().map(|item| self.json(item)).collect(),
            _ => {
                self.wrong(entry, "a list");
                None
            }
        }
    }

    fn json(&self, node: &Node) -> Option<serde_json::Value> {
        Some(match &node.value {
            SpannedValue::Text(text) => self.reader.filled(text, &node.at)?.into(),
            SpannedValue::Whole(number) => (*number).into(),
            SpannedValue::Real(number) => (*number).into(),
            SpannedValue::Flag(flag) => (*flag).into(),
            SpannedValue::Null => serde_json::Value::Null,
            SpannedValue::Date(date) => date.as_str().into(),
            SpannedValue::List(items) => items.iter().map(|item| self.json(item)).collect::<Option<Vec<_>>>()?.into(),
            SpannedValue::Table(entries) => {
                let pair = |entry: &SpannedEntry| Some((entry.key.clone(), self.json(&entry.node)?));
                serde_json::Value::Object(entries.iter().map(pair).collect::<Option<_>>()?)
            }
        })
    }
}
