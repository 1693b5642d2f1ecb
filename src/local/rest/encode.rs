//! Serialization of arguments in OpenAPI parameter styles, percent-encoded so that no value can escape its
//! position in the request.

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};

use super::argument_value::ArgumentValue;

/// Encodes everything but RFC 3986 unreserved characters.
const STRICT_SET: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~');
/// Keeps reserved characters for `allowReserved`, except those that delimit query parameters.
const KEEP_RESERVED_SET: &AsciiSet = &STRICT_SET
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
/// For the literal text of a path: encodes only what a path cannot contain.
const PATH_LITERAL_SET: &AsciiSet = &NON_ALPHANUMERIC
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
/// Nesting limit of `deepObject` parameters; deeper values are written as JSON.
const MAX_QUERY_DEPTH: usize = 8;

/// OpenAPI parameter style.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ParameterStyle {
    /// `simple`: comma-separated.
    Simple,
    /// `label`: dot-prefixed, in paths.
    Label,
    /// `matrix`: `;name=value`, in paths.
    Matrix,
    /// `form`: repeated or comma-separated.
    Form,
    /// `spaceDelimited`, `pipeDelimited` and other separators.
    Delimited(char),
    /// `deepObject`: member names in brackets.
    DeepObject,
    /// JSON, for parameters declared with a JSON media type.
    Json,
}

/// Percent-encoding of a value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Escape {
    /// Encode everything but unreserved characters.
    Strict,
    /// Keep reserved characters, except parameter delimiters.
    KeepReserved,
    /// No encoding, for headers: `HeaderValue` rejects invalid characters.
    Verbatim,
}

impl Escape {
    pub(super) fn apply(self, text: &str) -> String {
        match self {
            Self::Strict => utf8_percent_encode(text, STRICT_SET).to_string(),
            Self::KeepReserved => utf8_percent_encode(text, KEEP_RESERVED_SET).to_string(),
            Self::Verbatim => text.to_owned(),
        }
    }
}

/// A value as text without encoding: strings as they are, anything else as JSON.
pub(super) fn to_text(value: &ArgumentValue) -> String {
    match value {
        ArgumentValue::String(text) => text.clone(),
        other => other.to_string(),
    }
}

/// Encodes the literal text of a path template.
pub(super) fn encode_path_literal(text: &str) -> String {
    utf8_percent_encode(text, PATH_LITERAL_SET).to_string()
}

/// Encodes a value into one string, for a path segment or a header.
pub(super) fn encode_inline(
    name: &str,
    value: &ArgumentValue,
    style: ParameterStyle,
    explode: bool,
    escape: Escape,
) -> String {
    let text = |value: &ArgumentValue| escape.apply(&to_text(value));
    let pairs = |between: &str| match value {
        ArgumentValue::Object(members) => {
            members.iter().map(|(key, value)| format!("{}{between}{}", escape.apply(key), text(value))).collect()
        }
        ArgumentValue::Array(items) => items.iter().map(text).collect(),
        other => vec![text(other)],
    };
    let parts: Vec<String> = pairs(if explode { "=" } else { "," });
    match style {
        ParameterStyle::Label => format!(".{}", parts.join(if explode { "." } else { "," })),
        ParameterStyle::Matrix => {
            let name = escape.apply(name);
            match (explode, value) {
                (true, ArgumentValue::Array(_)) => parts.iter().map(|part| format!(";{name}={part}")).collect(),
                (true, ArgumentValue::Object(_)) => parts.iter().map(|part| format!(";{part}")).collect(),
                _ => format!(";{name}={}", parts.join(",")),
            }
        }
        ParameterStyle::Json => escape.apply(&value.to_string()),
        ParameterStyle::Simple | ParameterStyle::Form | ParameterStyle::Delimited(_) | ParameterStyle::DeepObject => {
            parts.join(",")
        }
    }
}

/// Encodes a value into query parameters or form fields. Names are returned plain, values percent-encoded.
pub(super) fn encode_pairs(
    name: &str,
    value: &ArgumentValue,
    style: ParameterStyle,
    explode: bool,
    escape: Escape,
) -> Vec<(String, String)> {
    let text = |value: &ArgumentValue| escape.apply(&to_text(value));
    let single_pair = |value: String| vec![(name.to_owned(), value)];
    let separator = match style {
        ParameterStyle::Delimited(separator) => Escape::Strict.apply(&separator.to_string()),
        _ => ",".to_owned(),
    };
    match (style, value) {
        (ParameterStyle::Json, _) => single_pair(escape.apply(&value.to_string())),
        (ParameterStyle::DeepObject, ArgumentValue::Object(_)) => {
            let mut pairs_out = Vec::new();
            push_deep_object(name, value, escape, MAX_QUERY_DEPTH, &mut pairs_out);
            pairs_out
        }
        (_, ArgumentValue::Array(items)) if items.is_empty() => Vec::new(),
        (_, ArgumentValue::Object(members)) if members.is_empty() => Vec::new(),
        (_, ArgumentValue::Array(items)) if explode => items.iter().map(|item| (name.to_owned(), text(item))).collect(),
        (_, ArgumentValue::Array(items)) => single_pair(items.iter().map(text).collect::<Vec<_>>().join(&separator)),
        (_, ArgumentValue::Object(members)) if explode => {
            members.iter().map(|(key, value)| (key.clone(), text(value))).collect()
        }
        (_, ArgumentValue::Object(members)) => {
            let parts = members.iter().flat_map(|(key, value)| [escape.apply(key), text(value)]);
            single_pair(parts.collect::<Vec<_>>().join(&separator))
        }
        (_, scalar) => single_pair(text(scalar)),
    }
}

fn push_deep_object(
    name: &str,
    value: &ArgumentValue,
    escape: Escape,
    depth: usize,
    pairs_out: &mut Vec<(String, String)>,
) {
    match value {
        ArgumentValue::Object(members) if depth > 0 => {
            for (key, value) in members {
                push_deep_object(&format!("{name}[{key}]"), value, escape, depth - 1, pairs_out);
            }
        }
        ArgumentValue::Array(items) if depth > 0 => {
            for (n, value) in items.iter().enumerate() {
                push_deep_object(&format!("{name}[{n}]"), value, escape, depth - 1, pairs_out);
            }
        }
        other => pairs_out.push((name.to_owned(), escape.apply(&to_text(other)))),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::{Value, json};

    use super::*;

    fn query(value: &Value, style: ParameterStyle, explode: bool) -> String {
        let pairs = encode_pairs("color", &value.into(), style, explode, Escape::Strict);
        let encoded: Vec<String> =
            pairs.iter().map(|(name, value)| format!("{}={value}", Escape::Strict.apply(name))).collect();
        encoded.join("&")
    }

    /// Examples of the style table in the OpenAPI specification.
    #[test]
    fn query_styles_follow_the_specification() {
        let array = json!(["blue", "black", "brown"]);
        let object = json!({ "B": 150, "G": 200, "R": 100 });
        for (value, style, explode, expected) in [
            (json!("blue"), ParameterStyle::Form, true, "color=blue"),
            (json!(""), ParameterStyle::Form, true, "color="),
            (array.clone(), ParameterStyle::Form, false, "color=blue,black,brown"),
            (array.clone(), ParameterStyle::Form, true, "color=blue&color=black&color=brown"),
            (object.clone(), ParameterStyle::Form, false, "color=B,150,G,200,R,100"),
            (object.clone(), ParameterStyle::Form, true, "B=150&G=200&R=100"),
            (array.clone(), ParameterStyle::Delimited(' '), false, "color=blue%20black%20brown"),
            (array, ParameterStyle::Delimited('|'), false, "color=blue%7Cblack%7Cbrown"),
            (object, ParameterStyle::DeepObject, true, "color%5BB%5D=150&color%5BG%5D=200&color%5BR%5D=100"),
            (
                json!({ "a": { "b": [1, 2] } }),
                ParameterStyle::DeepObject,
                true,
                "color%5Ba%5D%5Bb%5D%5B0%5D=1&color%5Ba%5D%5Bb%5D%5B1%5D=2",
            ),
            (json!({ "a": 1 }), ParameterStyle::Json, true, "color=%7B%22a%22%3A1%7D"),
            (json!([]), ParameterStyle::Form, false, ""),
            (json!(["a,b", "c&d=e"]), ParameterStyle::Form, false, "color=a%2Cb,c%26d%3De"),
        ] {
            assert_eq!(query(&value, style, explode), expected, "{value} {style:?} {explode}");
        }
    }

    #[test]
    fn path_styles_follow_the_specification() {
        let array = json!(["blue", "black", "brown"]);
        let object = json!({ "B": 150, "G": 200, "R": 100 });
        for (value, style, explode, expected) in [
            (json!("blue"), ParameterStyle::Simple, false, "blue"),
            (array.clone(), ParameterStyle::Simple, false, "blue,black,brown"),
            (object.clone(), ParameterStyle::Simple, false, "B,150,G,200,R,100"),
            (object.clone(), ParameterStyle::Simple, true, "B=150,G=200,R=100"),
            (json!("blue"), ParameterStyle::Label, false, ".blue"),
            (array.clone(), ParameterStyle::Label, true, ".blue.black.brown"),
            (object.clone(), ParameterStyle::Label, true, ".B=150.G=200.R=100"),
            (json!("blue"), ParameterStyle::Matrix, false, ";color=blue"),
            (array.clone(), ParameterStyle::Matrix, false, ";color=blue,black,brown"),
            (array, ParameterStyle::Matrix, true, ";color=blue;color=black;color=brown"),
            (object.clone(), ParameterStyle::Matrix, true, ";B=150;G=200;R=100"),
            (object, ParameterStyle::Matrix, false, ";color=B,150,G,200,R,100"),
        ] {
            assert_eq!(
                encode_inline("color", &(&value).into(), style, explode, Escape::Strict),
                expected,
                "{value} {style:?}"
            );
        }
    }

    proptest! {
        #[test]
        fn encoded_values_contain_no_delimiters(text in any::<String>(), reserved in any::<bool>()) {
            let escape = if reserved { Escape::KeepReserved } else { Escape::Strict };
            let encoded = escape.apply(&text);
            prop_assert!(encoded.bytes().all(|byte| byte.is_ascii_graphic()));
            prop_assert!(!encoded.contains(['&', '=', '#', '+', ';', '[', ']', '"', '<', '>', '\\']));
            if !reserved {
                prop_assert!(!encoded.contains(['/', '?', ':', '@', ',']));
            }
            let read = percent_encoding::percent_decode_str(&encoded).decode_utf8().unwrap().into_owned();
            prop_assert_eq!(read, text);
        }
    }
}
