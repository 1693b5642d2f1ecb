//! The types that a setting can have: how each is read from a table, shown, and handed to the struct that uses it.

use std::net::SocketAddr;
use std::time::Duration;

use http::HeaderName;
use serde_json::Value;

use super::keys::ValueType;
use super::model::{CallerToken, Secret, StoreLocation};
use super::reader::TableReader;
use super::settings::FilterSection;
use super::values::{format_duration, format_size};
use crate::dialect::{LegRule, Revision};
use crate::gateway::{NameFilter, Naming};
use crate::http::server::Http1Implementation;
use crate::policy::{AdminToken, Tokens};
use crate::telemetry::LogFormat;
use crate::upstream::ConnectionMode;

/// A value of a setting.
pub(crate) trait SettingValue: PartialEq {
    /// Takes the value of `key` from a table that has it. A wrong one is reported, and the value stays as it was.
    fn read(&mut self, table: &TableReader<'_>, key: &str);

    /// The value as it would be written in the file, with secrets redacted; `null` if it is not set.
    fn to_json(&self, value_type: ValueType) -> Value;

    /// The values below this one with their dotted names, in the order of the tables; itself if it is no table.
    fn to_rows(&self, name: &str, value_type: ValueType) -> Vec<(String, Value)> {
        vec![(name.to_owned(), self.to_json(value_type))]
    }

    /// The dotted names of the values below this one that differ; its own name if it is no table.
    fn changes(&self, other: &Self, name: &str) -> Vec<String> {
        if self == other { Vec::new() } else { vec![name.to_owned()] }
    }
}

/// Hands a value to a field of another type.
pub(crate) trait FillPlace<Place> {
    fn fill(&self, place: &mut Place);
}

/// An enum that is written as one of a few words.
pub(super) trait Choice: Sized + 'static {
    /// The words, in the order of the values.
    const WORDS: &'static [&'static str];
    /// The values.
    const VALUES: &'static [Self];
}

/// Polling interval that stands for "off": thirty years.
pub(super) const POLLING_OFF_INTERVAL: Duration = Duration::from_secs(30 * 365 * 86_400);

fn set<T>(target: &mut T, value: Option<T>) {
    if let Some(value) = value {
        *target = value;
    }
}

/// Implements [`SettingValue`] by a method of the reader and a conversion to JSON.
macro_rules! values {
    ($($value:ty: $read:expr, $show:expr;)+) => {$(
        impl SettingValue for $value {
            fn read<'r>(&mut self, table: &TableReader<'r>, key: &str) {
                let read: fn(&TableReader<'r>, &str) -> Option<$value> = $read;
                set(self, read(table, key));
            }

            fn to_json(&self, value_type: ValueType) -> Value {
                let show: fn(&$value, ValueType) -> Value = $show;
                show(self, value_type)
            }
        }
    )+};
}

values! {
    bool: TableReader::boolean, |flag, _| (*flag).into();
    usize: TableReader::number, show_number;
    Option<usize>: |table, key| table.number(key).map(Some), |number, _| (*number).into();
    u32: |table, key| table.number(key).and_then(|number| u32::try_from(number).ok()), |number, _| (*number).into();
    Duration: TableReader::duration, |duration, _| format_duration(*duration).into();
    Option<Duration>: TableReader::duration_or_off,
        |duration, _| duration.map_or_else(|| "off".to_owned(), format_duration).into();
    String: TableReader::string, |text, _| text.as_str().into();
    Option<String>: |table, key| table.string(key).map(Some), |text, _| text.as_deref().into();
    Option<Secret>: |table, key| {
        let text = table.string(key)?;
        table.reader.secrets.add(&text);
        Some(Some(Secret(text)))
    },
        |secret, _| secret.as_ref().map(|_| "***").into();
    SocketAddr: TableReader::socket_addr, |address, _| address.to_string().into();
    Option<SocketAddr>: |table, key| table.socket_addr(key).map(Some),
        |address, _| address.map(|address| address.to_string()).into();
    StoreLocation: TableReader::store, |store, _| store.to_string().into();
    Option<Revision>: TableReader::revision,
        |revision, _| revision.map_or_else(|| "auto".to_owned(), |revision| revision.to_string()).into();
    Vec<String>: TableReader::strings, |words, _| words.as_slice().into();
    Vec<HeaderName>: read_header_names, |names, _| names.iter().map(HeaderName::as_str).collect();
    Vec<CallerToken>: read_tokens, |tokens, _| tokens.iter().map(|token| token.name.as_str()).collect();
}

/// Implements [`Choice`] and [`SettingValue`] for an enum and for one that need not be set.
macro_rules! choices {
    ($($choice:ty { $($word:literal => $variant:ident),+ })+) => {$(
        impl Choice for $choice {
            const WORDS: &'static [&'static str] = &[$($word),+];
            const VALUES: &'static [Self] = &[$(Self::$variant),+];
        }

        values! {
            $choice: read_choice, |value, _| choice_word(value).into();
            Option<$choice>: |table, key| read_choice(table, key).map(Some),
                |value, _| value.as_ref().map(choice_word).into();
        }
    )+};
}

choices! {
    LogFormat { "text" => Text, "json" => Json }
    Http1Implementation { "rialto" => Rialto, "hyper" => Hyper }
    ConnectionMode { "per-client" => PerClient, "shared" => Shared }
    LegRule { "client" => Client, "handshake" => Handshake, "per-request" => PerRequest }
    Naming { "prefix" => Prefix, "plain" => Plain }
}

fn read_choice<T: Choice + Copy>(table: &TableReader<'_>, key: &str) -> Option<T> {
    let word = table.choice(key)?;
    T::WORDS.iter().zip(T::VALUES).find(|(known, _)| **known == word).map(|(_, value)| *value)
}

fn choice_word<T: Choice + PartialEq>(value: &T) -> &'static str {
    T::WORDS.iter().zip(T::VALUES).find(|(_, known)| *known == value).map_or("", |(word, _)| word)
}

fn show_number(number: &usize, value_type: ValueType) -> Value {
    match value_type {
        ValueType::Size => format_size(*number).into(),
        _ => (*number).into(),
    }
}

fn read_header_names(table: &TableReader<'_>, key: &str) -> Option<Vec<HeaderName>> {
    let mut names = Vec::new();
    for (name, span) in table.strings_with_spans(key)? {
        match HeaderName::from_bytes(name.as_bytes()) {
            Ok(name) => names.push(name),
            Err(_) => {
                let name = table.reader.redacted(&name, &span);
                table.reader.error(&span, format!("{name:?} is not a valid header name"), None);
            }
        }
    }
    Some(names)
}

fn read_tokens(table: &TableReader<'_>, key: &str) -> Option<Vec<CallerToken>> {
    table.entry(key)?;
    let mut tokens: Vec<CallerToken> = Vec::new();
    for (name, secret, span) in table.string_map(key) {
        if secret.is_empty() {
            table.reader.error(&span, format!("the token of `{name}` is empty"), None);
        } else if tokens.iter().any(|token| token.secret == secret) {
            table.reader.error(&span, format!("`{name}` has the same token as another caller"), None);
        }
        tokens.push(CallerToken { name, secret });
    }
    Some(tokens)
}

// === Places of another type ===

impl<T: Clone> FillPlace<T> for T {
    fn fill(&self, place: &mut T) {
        place.clone_from(self);
    }
}

/// Threads: unless a number is set, one for each CPU core available to this process.
impl FillPlace<usize> for Option<usize> {
    fn fill(&self, place: &mut usize) {
        *place = self.unwrap_or_else(|| std::thread::available_parallelism().map_or(1, std::num::NonZero::get));
    }
}

/// Milliseconds.
impl FillPlace<u64> for Duration {
    fn fill(&self, place: &mut u64) {
        *place = u64::try_from(self.as_millis()).unwrap_or(u64::MAX);
    }
}

/// An interval that may be off.
impl FillPlace<Duration> for Option<Duration> {
    fn fill(&self, place: &mut Duration) {
        *place = self.unwrap_or(POLLING_OFF_INTERVAL);
    }
}

impl FillPlace<ConnectionMode> for Option<ConnectionMode> {
    fn fill(&self, place: &mut ConnectionMode) {
        *place = self.unwrap_or_default();
    }
}

impl FillPlace<Option<String>> for Option<Secret> {
    fn fill(&self, place: &mut Option<String>) {
        *place = self.as_ref().map(|secret| secret.0.clone());
    }
}

impl FillPlace<AdminToken> for Option<Secret> {
    fn fill(&self, place: &mut AdminToken) {
        *place = self.as_ref().map_or_else(AdminToken::default, |secret| AdminToken::new(&secret.0));
    }
}

/// The URL of a store that is not in this process.
impl FillPlace<Option<String>> for StoreLocation {
    fn fill(&self, place: &mut Option<String>) {
        *place = match self {
            Self::Memory => None,
            Self::Redis(url) => Some(url.clone()),
        };
    }
}

impl FillPlace<Tokens> for Vec<CallerToken> {
    fn fill(&self, place: &mut Tokens) {
        *place = Tokens::new(self.iter().cloned().map(|token| (token.name, token.secret)));
    }
}

impl FillPlace<NameFilter> for FilterSection {
    fn fill(&self, place: &mut NameFilter) {
        *place = NameFilter::new(&self.allow, &self.deny);
    }
}
