//! Arguments in requests: the styles of OpenAPI, with every value encoded so that it cannot break
//! out of its place.

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use serde_json::Value;

/// What is encoded in a path or a query: everything but what never needs it.
const STRICT: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~');
/// What is encoded where a document wants reserved characters as they are. Those that separate
/// parameters are encoded even so.
const RESERVED: &AsciiSet = &STRICT
    .remove(b':')
    .remove(b'/')
    .remove(b'?')
    .remove(b'@')
    .remove(b'!')
    .remove(b'$')
    .remove(b'\'')
    .remove(b'(')
    .remove(b')')
    .remove(b'*')
    .remove(b',');
/// What is encoded in the fixed text of a path: what may not stand there at all.
const LITERAL: &AsciiSet = &NON_ALPHANUMERIC
    .remove(b'-')
    .remove(b'.')
    .remove(b'_')
    .remove(b'~')
    .remove(b'/')
    .remove(b':')
    .remove(b'@')
    .remove(b'!')
    .remove(b'$')
    .remove(b'&')
    .remove(b'\'')
    .remove(b'(')
    .remove(b')')
    .remove(b'*')
    .remove(b'+')
    .remove(b',')
    .remove(b';')
    .remove(b'=')
    .remove(b'%');
/// How deep a value may be nested in a query. The rest is written as JSON.
const DEEPEST: usize = 8;

/// How a value that is not a scalar is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Style {
    /// With commas.
    Simple,
    /// With a dot in front of each value, in paths.
    Label,
    /// With `;name=` in front, in paths.
    Matrix,
    /// As in forms: repeated or with commas.
    Form,
    /// With another separator than a comma.
    Delimited(char),
    /// With the members' names in brackets.
    Deep,
    /// As JSON.
    Json,
}

/// Where a value goes, and what that does to it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Escape {
    /// Everything that could mean something is encoded.
    Strict,
    /// Reserved characters stay, but for those that separate parameters.
    Reserved,
    /// Nothing is encoded: headers, which refuse what they cannot hold.
    Nothing,
}

impl Escape {
    pub(super) fn apply(self, text: &str) -> String {
        match self {
            Self::Strict => utf8_percent_encode(text, STRICT).to_string(),
            Self::Reserved => utf8_percent_encode(text, RESERVED).to_string(),
            Self::Nothing => text.to_owned(),
        }
    }
}

/// A value as text, without encoding: a scalar as it reads, anything else as JSON.
pub(super) fn plain(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}

/// Fixed text of a path.
pub(super) fn literal(text: &str) -> String {
    utf8_percent_encode(text, LITERAL).to_string()
}

/// A value within one text: a part of a path, or a header.
pub(super) fn inline(name: &str, value: &Value, style: Style, explode: bool, escape: Escape) -> String {
    let text = |value: &Value| escape.apply(&plain(value));
    let pairs = |between: &str| match value {
        Value::Object(members) => {
            members.iter().map(|(key, value)| format!("{}{between}{}", escape.apply(key), text(value))).collect()
        }
        Value::Array(items) => items.iter().map(text).collect(),
        other => vec![text(other)],
    };
    let parts: Vec<String> = pairs(if explode { "=" } else { "," });
    match style {
        Style::Label => format!(".{}", parts.join(if explode { "." } else { "," })),
        Style::Matrix => {
            let name = escape.apply(name);
            match (explode, value) {
                (true, Value::Array(_)) => parts.iter().map(|part| format!(";{name}={part}")).collect(),
                (true, Value::Object(_)) => parts.iter().map(|part| format!(";{part}")).collect(),
                _ => format!(";{name}={}", parts.join(",")),
            }
        }
        Style::Json => escape.apply(&value.to_string()),
        Style::Simple | Style::Form | Style::Delimited(_) | Style::Deep => parts.join(","),
    }
}

/// A value as parameters of a query or fields of a form: names, which are not encoded yet, and values,
/// which are.
pub(super) fn pairs(name: &str, value: &Value, style: Style, explode: bool, escape: Escape) -> Vec<(String, String)> {
    let text = |value: &Value| escape.apply(&plain(value));
    let one = |value: String| vec![(name.to_owned(), value)];
    let separator = match style {
        Style::Delimited(separator) => Escape::Strict.apply(&separator.to_string()),
        _ => ",".to_owned(),
    };
    match (style, value) {
        (Style::Json, _) => one(escape.apply(&value.to_string())),
        (Style::Deep, Value::Object(_)) => {
            let mut found = Vec::new();
            deep(name, value, escape, DEEPEST, &mut found);
            found
        }
        (_, Value::Array(items)) if items.is_empty() => Vec::new(),
        (_, Value::Object(members)) if members.is_empty() => Vec::new(),
        (_, Value::Array(items)) if explode => items.iter().map(|item| (name.to_owned(), text(item))).collect(),
        (_, Value::Array(items)) => one(items.iter().map(text).collect::<Vec<_>>().join(&separator)),
        (_, Value::Object(members)) if explode => {
            members.iter().map(|(key, value)| (key.clone(), text(value))).collect()
        }
        (_, Value::Object(members)) => {
            let parts = members.iter().flat_map(|(key, value)| [escape.apply(key), text(value)]);
            one(parts.collect::<Vec<_>>().join(&separator))
        }
        (_, scalar) => one(text(scalar)),
    }
}

fn deep(name: &str, value: &Value, escape: Escape, depth: usize, found: &mut Vec<(String, String)>) {
    match value {
        Value::Object(members) if depth > 0 => {
            for (key, value) in members {
                deep(&format!("{name}[{key}]"), value, escape, depth - 1, found);
            }
        }
        Value::Array(items) if depth > 0 => {
            for (n, value) in items.iter().enumerate() {
                deep(&format!("{name}[{n}]"), value, escape, depth - 1, found);
            }
        }
        other => found.push((name.to_owned(), escape.apply(&plain(other)))),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    fn query(value: &Value, style: Style, explode: bool) -> String {
        let pairs = pairs("color", value, style, explode, Escape::Strict);
        let written: Vec<String> =
            pairs.iter().map(|(name, value)| format!("{}={value}", Escape::Strict.apply(name))).collect();
        written.join("&")
    }

    /// The table of styles in the specification, with what it leaves open encoded.
    #[test]
    fn styles_of_a_query_are_those_of_the_specification() {
        let array = json!(["blue", "black", "brown"]);
        let object = json!({ "B": 150, "G": 200, "R": 100 });
        for (value, style, explode, expected) in [
            (json!("blue"), Style::Form, true, "color=blue"),
            (json!(""), Style::Form, true, "color="),
            (array.clone(), Style::Form, false, "color=blue,black,brown"),
            (array.clone(), Style::Form, true, "color=blue&color=black&color=brown"),
            (object.clone(), Style::Form, false, "color=B,150,G,200,R,100"),
            (object.clone(), Style::Form, true, "B=150&G=200&R=100"),
            (array.clone(), Style::Delimited(' '), false, "color=blue%20black%20brown"),
            (array, Style::Delimited('|'), false, "color=blue%7Cblack%7Cbrown"),
            (object, Style::Deep, true, "color%5BB%5D=150&color%5BG%5D=200&color%5BR%5D=100"),
            (
                json!({ "a": { "b": [1, 2] } }),
                Style::Deep,
                true,
                "color%5Ba%5D%5Bb%5D%5B0%5D=1&color%5Ba%5D%5Bb%5D%5B1%5D=2",
            ),
            (json!({ "a": 1 }), Style::Json, true, "color=%7B%22a%22%3A1%7D"),
            (json!([]), Style::Form, false, ""),
            (json!(["a,b", "c&d=e"]), Style::Form, false, "color=a%2Cb,c%26d%3De"),
        ] {
            assert_eq!(query(&value, style, explode), expected, "{value} {style:?} {explode}");
        }
    }

    #[test]
    fn styles_of_a_path_are_those_of_the_specification() {
        let array = json!(["blue", "black", "brown"]);
        let object = json!({ "B": 150, "G": 200, "R": 100 });
        for (value, style, explode, expected) in [
            (json!("blue"), Style::Simple, false, "blue"),
            (array.clone(), Style::Simple, false, "blue,black,brown"),
            (object.clone(), Style::Simple, false, "B,150,G,200,R,100"),
            (object.clone(), Style::Simple, true, "B=150,G=200,R=100"),
            (json!("blue"), Style::Label, false, ".blue"),
            (array.clone(), Style::Label, true, ".blue.black.brown"),
            (object.clone(), Style::Label, true, ".B=150.G=200.R=100"),
            (json!("blue"), Style::Matrix, false, ";color=blue"),
            (array.clone(), Style::Matrix, false, ";color=blue,black,brown"),
            (array, Style::Matrix, true, ";color=blue;color=black;color=brown"),
            (object.clone(), Style::Matrix, true, ";B=150;G=200;R=100"),
            (object, Style::Matrix, false, ";color=B,150,G,200,R,100"),
        ] {
            assert_eq!(inline("color", &value, style, explode, Escape::Strict), expected, "{value} {style:?}");
        }
    }

    proptest! {
        #[test]
        fn nothing_breaks_out_of_its_place(text in any::<String>(), reserved in any::<bool>()) {
            let escape = if reserved { Escape::Reserved } else { Escape::Strict };
            let written = escape.apply(&text);
            prop_assert!(written.bytes().all(|byte| byte.is_ascii_graphic()));
            prop_assert!(!written.contains(['&', '=', '#', '+', ';', '[', ']', '"', '<', '>', '\\']));
            if !reserved {
                prop_assert!(!written.contains(['/', '?', ':', '@', ',']));
            }
            let read = percent_encoding::percent_decode_str(&written).decode_utf8().unwrap().into_owned();
            prop_assert_eq!(read, text);
        }
    }
}
