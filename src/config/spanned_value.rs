//! A file as one small tree, whatever it was written in, with the place of every key and value.

use std::ops::Range;

use jsonc_parser::ast;
use toml::Spanned;
use toml::de::{DeTable, DeValue};

/// From where to where, in bytes.
pub(super) type Span = Range<usize>;

/// A value, and where it stands.
#[derive(Debug, Clone)]
pub(super) struct Node {
    pub(super) at: Span,
    pub(super) value: SpannedValue,
}

/// A value.
#[derive(Debug, Clone)]
pub(super) enum SpannedValue {
    Text(String),
    Whole(i64),
    Real(f64),
    Flag(bool),
    Null,
    Date(String),
    List(Vec<Node>),
    /// In the order of the file.
    Table(Vec<SpannedEntry>),
}

/// A key with its value.
#[derive(Debug, Clone)]
pub(super) struct SpannedEntry {
    pub(super) key: String,
    pub(super) key_at: Span,
    pub(super) node: Node,
}

/// What keeps a text from being read.
#[derive(Debug)]
pub(super) struct Fault {
    pub(super) at: Span,
    pub(super) message: String,
}

/// Reads TOML, past its mistakes.
pub(super) fn from_toml(text: &str) -> (Node, Vec<Fault>) {
    let (table, errors) = DeTable::parse_recoverable(text);
    let fault = |error: toml::de::Error| {
        let at = error.span().unwrap_or_default();
        let mut message = error.message().trim().replace('\n', ", ");
        if let ("duplicate key", Some(key)) = (message.as_str(), text.get(at.clone())) {
            message = format!("duplicate key `{key}`");
        }
        Fault { at, message }
    };
    let mut faults: Vec<Fault> = errors.into_iter().map(fault).collect();
    let at = table.span();
    let node = Node { at, value: SpannedValue::Table(toml_table(table.into_inner(), &mut faults)) };
    (node, faults)
}

fn toml_table(table: DeTable<'_>, faults: &mut Vec<Fault>) -> Vec<SpannedEntry> {
    let entry = |(key, value): (Spanned<std::borrow::Cow<'_, str>>, Spanned<DeValue<'_>>)| SpannedEntry {
        key_at: key.span(),
        key: key.into_inner().into_owned(),
        node: toml_node(value, faults),
    };
    let mut entries: Vec<SpannedEntry> = table.into_iter().map(entry).collect();
    entries.sort_by_key(|entry| entry.key_at.start);
    entries
}

fn toml_node(node: Spanned<DeValue<'_>>, faults: &mut Vec<Fault>) -> Node {
    let at = node.span();
    let value = match node.into_inner() {
        DeValue::String(text) => SpannedValue::Text(text.into_owned()),
        DeValue::Integer(number) => match i64::from_str_radix(number.as_str(), number.radix()) {
            Ok(number) => SpannedValue::Whole(number),
            Err(_) => {
                faults.push(Fault { at: at.clone(), message: "this number is too large".into() });
                SpannedValue::Whole(0)
            }
        },
        DeValue::Float(number) => SpannedValue::Real(number.as_str().parse().unwrap_or(f64::NAN)),
        DeValue::Boolean(flag) => SpannedValue::Flag(flag),
        DeValue::Datetime(date) => SpannedValue::Date(date.to_string()),
        DeValue::Array(items) => SpannedValue::List(items.into_iter().map(|item| toml_node(item, faults)).collect()),
        DeValue::Table(table) => SpannedValue::Table(toml_table(table, faults)),
    };
    Node { at, value }
}

/// Reads JSON with comments and trailing commas, up to the first mistake.
pub(super) fn from_json(text: &str) -> (Node, Vec<Fault>) {
    let strict = jsonc_parser::ParseOptions {
        allow_comments: true,
        allow_trailing_commas: true,
        allow_loose_object_property_names: false,
        allow_missing_commas: false,
        allow_single_quoted_strings: false,
        allow_hexadecimal_numbers: false,
        allow_unary_plus_numbers: false,
        allow_bare_decimal_point_numbers: false,
        allow_non_finite_numbers: false,
        allow_extended_string_escapes: false,
    };
    let nothing = || Node { at: 0..0, value: SpannedValue::Table(Vec::new()) };
    match jsonc_parser::parse_to_ast(text, &jsonc_parser::CollectOptions::default(), &strict) {
        Ok(parsed) => match parsed.value {
            Some(value) => {
                let mut faults = Vec::new();
                let node = json_node(value, &mut faults);
                (node, faults)
            }
            None => (nothing(), vec![Fault { at: 0..0, message: "the file is empty".into() }]),
        },
        Err(error) => {
            let range = error.range();
            let message = lowered(&error.kind().to_string());
            (nothing(), vec![Fault { at: range.start..range.end, message }])
        }
    }
}

fn json_node(value: ast::Value<'_>, faults: &mut Vec<Fault>) -> Node {
    let (range, value) = match value {
        ast::Value::StringLit(text) => (text.range, SpannedValue::Text(text.value.into_owned())),
        ast::Value::NumberLit(number) => {
            let whole = number.value.parse().map(SpannedValue::Whole);
            (number.range, whole.unwrap_or_else(|_| SpannedValue::Real(number.value.parse().unwrap_or(f64::NAN))))
        }
        ast::Value::BooleanLit(flag) => (flag.range, SpannedValue::Flag(flag.value)),
        ast::Value::NullKeyword(null) => (null.range, SpannedValue::Null),
        ast::Value::Array(list) => {
            (list.range, SpannedValue::List(list.elements.into_iter().map(|item| json_node(item, faults)).collect()))
        }
        ast::Value::Object(object) => (object.range, SpannedValue::Table(json_entries(object.properties, faults))),
    };
    Node { at: range.start..range.end, value }
}

fn json_entries(properties: Vec<ast::ObjectProp<'_>>, faults: &mut Vec<Fault>) -> Vec<SpannedEntry> {
    let mut entries: Vec<SpannedEntry> = Vec::with_capacity(properties.len());
    for property in properties {
        let range = match &property.name {
            ast::ObjectPropName::String(name) => name.range,
            ast::ObjectPropName::Word(name) => name.range,
        };
        let key_at = range.start..range.end;
        let key = property.name.into_string();
        if entries.iter().any(|entry| entry.key == key) {
            faults.push(Fault { at: key_at.clone(), message: format!("the key `{key}` is there twice") });
        }
        entries.push(SpannedEntry { key, key_at, node: json_node(property.value, faults) });
    }
    entries
}

fn lowered(message: &str) -> String {
    let mut letters = message.chars();
    letters.next().map(|first| first.to_lowercase().chain(letters).collect()).unwrap_or_default()
}

// === impl Node ===

impl Node {
    /// What it is, for messages.
    pub(super) fn described(&self) -> &'static str {
        match &self.value {
            SpannedValue::Text(_) => "a text",
            SpannedValue::Whole(_) | SpannedValue::Real(_) => "a number",
            SpannedValue::Flag(_) => "true or false",
            SpannedValue::Null => "null",
            SpannedValue::Date(_) => "a date",
            SpannedValue::List(_) => "a list",
            SpannedValue::Table(_) => "a table",
        }
    }
}
