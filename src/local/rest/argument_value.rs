//! JSON values of arguments, with numbers as they were written.

use std::collections::BTreeMap;
use std::fmt;

use serde_json::Value;

use crate::protocol::Raw;

/// A JSON value of the caller. A number keeps its text: as a float, an integer of 25 digits would be another one.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum ArgumentValue {
    Null,
    Bool(bool),
    Number(Box<str>),
    String(String),
    Array(Vec<ArgumentValue>),
    Object(BTreeMap<String, ArgumentValue>),
}

/// Levels of arrays and objects in one argument, which are parsed and written recursively.
const MAX_ARGUMENT_DEPTH: usize = 128;

/// Parser of one valid JSON text.
struct ValueParser<'t> {
    text: &'t [u8],
    at: usize,
}

impl ArgumentValue {
    /// Parses a value.
    ///
    /// # Errors
    /// A sentence when it nests too deep, or has a string that is not Unicode.
    pub(super) fn parse(raw: &Raw) -> Result<Self, String> {
        ValueParser { text: raw.as_bytes(), at: 0 }.value(MAX_ARGUMENT_DEPTH)
    }

    pub(super) fn is_null(&self) -> bool {
        matches!(self, Self::Null)
    }

    pub(super) fn as_object(&self) -> Option<&BTreeMap<String, Self>> {
        match self {
            Self::Object(members) => Some(members),
            _ => None,
        }
    }

    /// Whether this is a number without a fraction.
    pub(super) fn is_integer(&self) -> bool {
        match self {
            Self::Number(text) => is_plain_integer(text) || text.parse().is_ok_and(|number: f64| number.fract() == 0.0),
            _ => false,
        }
    }

    /// `3.0` and `3e0` as `3`; any other value as it is.
    pub(super) fn with_plain_integer(self) -> Self {
        match &self {
            Self::Number(text) if !is_plain_integer(text) => match text.parse::<f64>() {
                Ok(number) if number.abs() < 9e15 => Self::Number((number as i64).to_string().into()),
                _ => self,
            },
            _ => self,
        }
    }

    /// Whether both are the same value; `1.0` is `1`.
    pub(super) fn is_same(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Number(one), Self::Number(two)) if !is_plain_integer(one) || !is_plain_integer(two) => {
                one.parse::<f64>().ok() == two.parse::<f64>().ok()
            }
            _ => self == other,
        }
    }
}

fn is_plain_integer(text: &str) -> bool {
    !text.contains(['.', 'e', 'E'])
}

impl From<&Value> for ArgumentValue {
    fn from(value: &Value) -> Self {
        match value {
            Value::Null => Self::Null,
            Value::Bool(value) => Self::Bool(*value),
            Value::Number(number) => Self::Number(number.to_string().into()),
            Value::String(text) => Self::String(text.clone()),
            Value::Array(items) => Self::Array(items.iter().map(Self::from).collect()),
            Value::Object(members) => {
                Self::Object(members.iter().map(|(key, value)| (key.clone(), value.into())).collect())
            }
        }
    }
}

/// Writes the value as JSON.
impl fmt::Display for ArgumentValue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Null => f.write_str("null"),
            Self::Bool(value) => write!(f, "{value}"),
            Self::Number(text) => f.write_str(text),
            Self::String(text) => write!(f, "{}", Value::from(text.as_str())),
            Self::Array(items) => {
                for (n, item) in items.iter().enumerate() {
                    write!(f, "{}{item}", if n == 0 { '[' } else { ',' })?;
                }
                f.write_str(if items.is_empty() { "[]" } else { "]" })
            }
            Self::Object(members) => {
                for (n, (key, value)) in members.iter().enumerate() {
                    write!(f, "{}{}:{value}", if n == 0 { '{' } else { ',' }, Value::from(key.as_str()))?;
                }
                f.write_str(if members.is_empty() { "{}" } else { "}" })
            }
        }
    }
}

// === impl ValueParser ===

impl ValueParser<'_> {
    fn value(&mut self, depth: usize) -> Result<ArgumentValue, String> {
        self.skip_space();
        match self.text.get(self.at) {
            Some(b'{' | b'[') if depth == 0 => Err(format!("they nest more than {MAX_ARGUMENT_DEPTH} levels deep")),
            Some(b'{') => self.object(depth - 1),
            Some(b'[') => self.array(depth - 1),
            Some(b'"') => self.string().map(ArgumentValue::String),
            _ => Ok(self.scalar()),
        }
    }

    fn object(&mut self, depth: usize) -> Result<ArgumentValue, String> {
        let mut members = BTreeMap::new();
        while self.next_element(b'}') {
            let key = self.string()?;
            self.skip_space();
            self.at += 1; // the colon
            members.insert(key, self.value(depth)?);
        }
        Ok(ArgumentValue::Object(members))
    }

    fn array(&mut self, depth: usize) -> Result<ArgumentValue, String> {
        let mut items = Vec::new();
        while self.next_element(b']') {
            items.push(self.value(depth)?);
        }
        Ok(ArgumentValue::Array(items))
    }

    /// Moves over the opening bracket or a comma to the next element; false after the closing bracket.
    fn next_element(&mut self, close: u8) -> bool {
        self.skip_space();
        if matches!(self.text.get(self.at), Some(b'{' | b'[' | b',')) {
            self.at += 1;
            self.skip_space();
        }
        let has_more = self.text.get(self.at).is_some_and(|byte| *byte != close);
        self.at += usize::from(!has_more);
        has_more
    }

    fn string(&mut self) -> Result<String, String> {
        let begin = self.at;
        self.at += 1;
        while self.text.get(self.at).is_some_and(|byte| *byte != b'"') {
            self.at += if self.text[self.at] == b'\\' { 2 } else { 1 };
        }
        self.at = (self.at + 1).min(self.text.len());
        serde_json::from_slice(&self.text[begin..self.at]).map_err(|error| error.to_string())
    }

    fn scalar(&mut self) -> ArgumentValue {
        let rest = &self.text[self.at..];
        let is_end = |byte: &u8| matches!(byte, b',' | b'}' | b']' | b' ' | b'\t' | b'\n' | b'\r');
        let text = &rest[..rest.iter().position(is_end).unwrap_or(rest.len())];
        self.at += text.len();
        match text {
            b"null" => ArgumentValue::Null,
            b"true" => ArgumentValue::Bool(true),
            b"false" => ArgumentValue::Bool(false),
            number => ArgumentValue::Number(String::from_utf8_lossy(number).into()),
        }
    }

    fn skip_space(&mut self) {
        while matches!(self.text.get(self.at), Some(b' ' | b'\t' | b'\n' | b'\r')) {
            self.at += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    fn parse(text: &str) -> Result<ArgumentValue, String> {
        ArgumentValue::parse(&Raw::parse(&Bytes::copy_from_slice(text.as_bytes())).unwrap())
    }

    #[test]
    fn numbers_are_written_as_they_came() {
        let text = r#"{"a":[1234567890123456789012345,-0,1e400,0.10,{}],"b":"x\n"}"#;
        assert_eq!(parse(text).unwrap().to_string(), text);
        assert_eq!(parse(" [ ] ").unwrap().to_string(), "[]");
    }

    #[test]
    fn integers_are_recognized_in_every_spelling() {
        for (text, is_integer, plain) in
            [("3", true, "3"), ("3.0", true, "3"), ("3e2", true, "300"), ("3.5", false, "3"), ("1e300", true, "1e300")]
        {
            let value = parse(text).unwrap();
            assert_eq!(value.is_integer(), is_integer, "{text}");
            assert_eq!(value.with_plain_integer().to_string(), plain);
        }
        assert!(parse("1.0").unwrap().is_same(&parse("1").unwrap()));
        assert!(!parse("12345678901234567890").unwrap().is_same(&parse("12345678901234567891").unwrap()));
    }

    #[test]
    fn depth_and_strings_are_checked() {
        let nested = |depth: usize| parse(&format!("{}{}", "[".repeat(depth), "]".repeat(depth)));
        assert!(nested(MAX_ARGUMENT_DEPTH).is_ok());
        assert!(nested(MAX_ARGUMENT_DEPTH + 1).unwrap_err().contains("128 levels"));
        assert!(parse(r#""\ud800""#).is_err());
    }

    fn any_json() -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![
            Just(Value::Null),
            any::<bool>().prop_map(Value::from),
            any::<i64>().prop_map(Value::from),
            any::<String>().prop_map(Value::from),
        ];
        leaf.prop_recursive(4, 32, 4, |inner| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
                prop::collection::btree_map(any::<String>(), inner, 0..4).prop_map(|map| json!(map)),
            ]
        })
    }

    proptest! {
        #[test]
        fn agrees_with_serde_json(value in any_json(), pretty: bool) {
            let text = if pretty { serde_json::to_string_pretty(&value).unwrap() } else { value.to_string() };
            let parsed = parse(&text).unwrap();
            prop_assert_eq!(&parsed, &ArgumentValue::from(&value));
            prop_assert_eq!(serde_json::from_str::<Value>(&parsed.to_string()).unwrap(), value);
        }
    }
}
