//! Common value tree for TOML and JSON, with the source span of every key and value.

use std::ops::Range;

use jsonc_parser::ast;
use toml::Spanned;
use toml::de::{DeTable, DeValue};

/// Byte range in the source text.
pub(super) type Span = Range<usize>;

/// A value with its span.
#[derive(Debug, Clone)]
pub(super) struct SpannedNode {
    pub(super) span: Span,
    pub(super) value: SpannedValue,
}

/// A parsed TOML or JSON value.
#[derive(Debug, Clone)]
pub(super) enum SpannedValue {
    String(String),
    Integer(i64),
    Float(f64),
    Boolean(bool),
    Null,
    Date(String),
    List(Vec<SpannedNode>),
    /// Entries in file order.
    Table(Vec<SpannedEntry>),
}

/// A key and its value.
#[derive(Debug, Clone)]
pub(super) struct SpannedEntry {
    pub(super) key: String,
    pub(super) key_span: Span,
    pub(super) node: SpannedNode,
}

/// A syntax error in the source text.
#[derive(Debug)]
pub(super) struct SyntaxError {
    pub(super) span: Span,
    pub(super) message: String,
}

/// Parses TOML and recovers after syntax errors.
pub(super) fn from_toml(text: &str) -> (SpannedNode, Vec<SyntaxError>) {
    let (table, errors) = DeTable::parse_recoverable(text);
    let syntax_error = |error: toml::de::Error| {
        let span = error.span().unwrap_or_default();
        let mut message = error.message().trim().replace('\n', ", ");
        if let ("duplicate key", Some(key)) = (message.as_str(), text.get(span.clone())) {
            message = format!("duplicate key `{key}`");
        }
        SyntaxError { span, message }
    };
    let mut errors: Vec<SyntaxError> = errors.into_iter().map(syntax_error).collect();
    let span = table.span();
    let node = SpannedNode { span, value: SpannedValue::Table(toml_table(table.into_inner(), &mut errors)) };
    (node, errors)
}

fn toml_table(table: DeTable<'_>, errors: &mut Vec<SyntaxError>) -> Vec<SpannedEntry> {
    let entry = |(key, value): (Spanned<std::borrow::Cow<'_, str>>, Spanned<DeValue<'_>>)| SpannedEntry {
        key_span: key.span(),
        key: key.into_inner().into_owned(),
        node: toml_node(value, errors),
    };
    let mut entries: Vec<SpannedEntry> = table.into_iter().map(entry).collect();
    entries.sort_by_key(|entry| entry.key_span.start);
    entries
}

fn toml_node(node: Spanned<DeValue<'_>>, errors: &mut Vec<SyntaxError>) -> SpannedNode {
    let span = node.span();
    let value = match node.into_inner() {
        DeValue::String(text) => SpannedValue::String(text.into_owned()),
        DeValue::Integer(number) => match i64::from_str_radix(number.as_str(), number.radix()) {
            Ok(number) => SpannedValue::Integer(number),
            Err(_) => {
                errors.push(SyntaxError { span: span.clone(), message: "the number is too large".into() });
                SpannedValue::Integer(0)
            }
        },
        DeValue::Float(number) => SpannedValue::Float(number.as_str().parse().unwrap_or(f64::NAN)),
        DeValue::Boolean(flag) => SpannedValue::Boolean(flag),
        DeValue::Datetime(date) => SpannedValue::Date(date.to_string()),
        DeValue::Array(items) => SpannedValue::List(items.into_iter().map(|item| toml_node(item, errors)).collect()),
        DeValue::Table(table) => SpannedValue::Table(toml_table(table, errors)),
    };
    SpannedNode { span, value }
}

/// Parses JSON with comments and trailing commas; stops at the first syntax error.
pub(super) fn from_json(text: &str) -> (SpannedNode, Vec<SyntaxError>) {
    let options = jsonc_parser::ParseOptions {
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
    let empty_table = || SpannedNode { span: 0..0, value: SpannedValue::Table(Vec::new()) };
    match jsonc_parser::parse_to_ast(text, &jsonc_parser::CollectOptions::default(), &options) {
        Ok(parsed) => match parsed.value {
            Some(value) => {
                let mut errors = Vec::new();
                let node = json_node(value, &mut errors);
                (node, errors)
            }
            None => (empty_table(), vec![SyntaxError { span: 0..0, message: "the file is empty".into() }]),
        },
        Err(error) => {
            let range = error.range();
            let message = lowercase_first(&error.kind().to_string());
            (empty_table(), vec![SyntaxError { span: range.start..range.end, message }])
        }
    }
}

fn json_node(value: ast::Value<'_>, errors: &mut Vec<SyntaxError>) -> SpannedNode {
    let (range, value) = match value {
        ast::Value::StringLit(text) => (text.range, SpannedValue::String(text.value.into_owned())),
        ast::Value::NumberLit(number) => {
            let whole = number.value.parse().map(SpannedValue::Integer);
            (number.range, whole.unwrap_or_else(|_| SpannedValue::Float(number.value.parse().unwrap_or(f64::NAN))))
        }
        ast::Value::BooleanLit(flag) => (flag.range, SpannedValue::Boolean(flag.value)),
        ast::Value::NullKeyword(null) => (null.range, SpannedValue::Null),
        ast::Value::Array(list) => {
            (list.range, SpannedValue::List(list.elements.into_iter().map(|item| json_node(item, errors)).collect()))
        }
        ast::Value::Object(object) => (object.range, SpannedValue::Table(json_entries(object.properties, errors))),
    };
    SpannedNode { span: range.start..range.end, value }
}

fn json_entries(properties: Vec<ast::ObjectProp<'_>>, errors: &mut Vec<SyntaxError>) -> Vec<SpannedEntry> {
    let mut entries: Vec<SpannedEntry> = Vec::with_capacity(properties.len());
    for property in properties {
        let range = match &property.name {
            ast::ObjectPropName::String(name) => name.range,
            ast::ObjectPropName::Word(name) => name.range,
        };
        let key_span = range.start..range.end;
        let key = property.name.into_string();
        if entries.iter().any(|entry| entry.key == key) {
            errors.push(SyntaxError { span: key_span.clone(), message: format!("duplicate key `{key}`") });
        }
        entries.push(SpannedEntry { key, key_span, node: json_node(property.value, errors) });
    }
    entries
}

fn lowercase_first(message: &str) -> String {
    let mut characters = message.chars();
    characters.next().map(|first| first.to_lowercase().chain(characters).collect()).unwrap_or_default()
}

// === impl SpannedNode ===

impl SpannedNode {
    /// The type of the value, for messages.
    pub(super) fn type_name(&self) -> &'static str {
        match &self.value {
            SpannedValue::String(_) => "a string",
            SpannedValue::Integer(_) | SpannedValue::Float(_) => "a number",
            SpannedValue::Boolean(_) => "true or false",
            SpannedValue::Null => "null",
            SpannedValue::Date(_) => "a date",
            SpannedValue::List(_) => "a list",
            SpannedValue::Table(_) => "a table",
        }
    }
}
