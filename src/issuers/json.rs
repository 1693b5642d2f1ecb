//! Reads JSON from outside strictly: one object, no member twice at any depth, bounded nesting.

use std::fmt;

use serde::de::{DeserializeSeed, Deserializer, Error as _, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Value};

/// Deepest nesting that is read.
const MAX_DEPTH: usize = 32;

/// The object that `bytes` hold.
///
/// # Errors
/// Why it is none, without any of its content.
pub(super) fn read_object(bytes: &[u8]) -> Result<Map<String, Value>, String> {
    let mut reader = serde_json::Deserializer::from_slice(bytes);
    // The message of the parser may quote what it found.
    let place = |error: serde_json::Error| match error.classify() {
        serde_json::error::Category::Data => "it has a member twice, or is nested too deeply".to_owned(),
        _ => format!("it is no JSON (line {}, column {})", error.line(), error.column()),
    };
    let value = StrictValue { depth: MAX_DEPTH }.deserialize(&mut reader).map_err(place)?;
    reader.end().map_err(place)?;
    match value {
        Value::Object(object) => Ok(object),
        _ => Err("it is no JSON object".to_owned()),
    }
}

/// Reads a value that may be nested so deep.
#[derive(Clone, Copy)]
struct StrictValue {
    depth: usize,
}

impl StrictValue {
    fn inner<E: serde::de::Error>(self) -> Result<Self, E> {
        let depth = self.depth.checked_sub(1).ok_or_else(|| E::custom("nested too deeply"))?;
        Ok(Self { depth })
    }
}

impl<'de> DeserializeSeed<'de> for StrictValue {
    type Value = Value;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for StrictValue {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON value")
    }

    fn visit_bool<E>(self, value: bool) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_i64<E>(self, value: i64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_u64<E>(self, value: u64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_f64<E>(self, value: f64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_str<E>(self, value: &str) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_string<E>(self, value: String) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Value, A::Error> {
        let inner = self.inner()?;
        let mut list = Vec::new();
        while let Some(item) = items.next_element_seed(inner)? {
            list.push(item);
        }
        Ok(list.into())
    }

    fn visit_map<A: MapAccess<'de>>(self, mut members: A) -> Result<Value, A::Error> {
        let inner = self.inner()?;
        let mut object = Map::new();
        while let Some(name) = members.next_key::<String>()? {
            let value = members.next_value_seed(inner)?;
            if object.insert(name, value).is_some() {
                return Err(A::Error::custom("a member twice"));
            }
        }
        Ok(object.into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_one_object_without_duplicates_is_read() {
        let nested = |depth: usize| format!("{}{}", r#"{"a":"#.repeat(depth), "1") + &"}".repeat(depth);
        let lists = |depth: usize| format!(r#"{{"a":{}{}}}"#, "[".repeat(depth), "]".repeat(depth));
        for text in
            [r#"{"a":1,"b":[{"a":1},{"a":1}],"c":1.5,"d":null,"e":-1,"f":true}"#, " {} ", &nested(32), &lists(31)]
        {
            let plain: Value = serde_json::from_str(text).unwrap();
            assert_eq!(Value::from(read_object(text.as_bytes()).unwrap()), plain, "{text}");
        }
        for text in [
            "",
            "[]",
            "1",
            "{",
            "{}{}",
            "{} x",
            r#"{"a":1,"a":1}"#,
            r#"{"a":1,"\u0061":1}"#,
            r#"{"b":[{"a":1,"a":2}]}"#,
            "{\"a\":\"\u{1}\"}",
            &nested(33),
            &lists(32),
            &nested(100_000),
            "<html></html>",
        ] {
            assert!(read_object(text.as_bytes()).is_err(), "{}", &text[..text.len().min(40)]);
        }
        assert!(read_object(b"{\"a\":\"\xff\"}").is_err());
    }
}
