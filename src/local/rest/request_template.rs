//! How a call becomes a request: where each argument goes.

use bytes::Bytes;
use http::header::{ACCEPT, CONTENT_TYPE, COOKIE, USER_AGENT};
use http::{HeaderMap, HeaderName, HeaderValue, Method as Verb, Uri};
use serde_json::Value;

use super::arguments::Input;
use super::base_url::{Base, header_value};
use super::body::RequestBodyTemplate;
use super::encode::{self, Escape, Style};

/// The values of a tool's inputs, in their order.
pub(super) type Values = [Option<Value>];

/// How a call becomes a request.
#[derive(Debug, Clone)]
pub(super) struct RequestTemplate {
    pub(super) verb: Verb,
    pub(super) path: Template,
    pub(super) query: Vec<Parameter>,
    pub(super) headers: Vec<(HeaderName, Template)>,
    pub(super) cookies: Vec<Placeholder>,
    pub(super) body: Option<RequestBodyTemplate>,
    pub(super) accept: HeaderValue,
    pub(super) inputs: Vec<Input>,
    pub(super) pick: Option<String>,
}

/// A part of a query.
#[derive(Debug, Clone)]
pub(super) enum Parameter {
    /// An argument in a style.
    Styled(Placeholder, Escape),
    /// Text with arguments in it.
    Template(String, Template),
}

/// Text with arguments in it.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Template(pub(super) Vec<Segment>);

/// A part of a template.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Segment {
    Text(String),
    Value(Placeholder),
}

/// Where the value of an argument stands, and how it is written there.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Placeholder {
    /// The name that the API knows it by.
    pub(super) name: String,
    pub(super) input: usize,
    pub(super) style: Style,
    pub(super) explode: bool,
}

/// A request that is ready to go.
#[derive(Debug)]
pub(super) struct ApiRequest {
    pub(super) verb: Verb,
    pub(super) uri: Uri,
    pub(super) headers: HeaderMap,
    pub(super) body: Bytes,
}

/// What we call ourselves, unless the configuration says otherwise.
const AGENT: HeaderValue = HeaderValue::from_static(concat!("rialto/", env!("CARGO_PKG_VERSION")));

// === impl Plan ===

impl RequestTemplate {
    /// The request for some values, or why there is none.
    pub(super) fn build(&self, base: &Base, values: &Values) -> Result<ApiRequest, String> {
        let path = self.path.path(values)?;
        let query: Vec<(String, String)> = self.query.iter().flat_map(|part| part.pairs(values)).collect();
        let uri = base.address(&path, &query)?;
        let mut headers = HeaderMap::new();
        headers.insert(ACCEPT, self.accept.clone());
        headers.insert(USER_AGENT, AGENT);
        let (media, body) = match self.body.as_ref().map(|body| body.write(values)).transpose()?.flatten() {
            Some((media, body)) => (Some(media), body),
            None => (None, Bytes::new()),
        };
        headers.extend(media.map(|media| (CONTENT_TYPE, media)));
        for (name, template) in &self.headers {
            if let Some(text) = template.fill(values, Escape::Nothing) {
                headers.insert(name, header_value(name, &text)?);
            }
        }
        let cookies: Vec<String> = self.cookies.iter().filter_map(|slot| slot.cookie(values)).collect();
        if !cookies.is_empty() {
            headers.insert(COOKIE, header_value(&COOKIE, &cookies.join("; "))?);
        }
        Ok(ApiRequest { verb: self.verb.clone(), uri, headers, body })
    }
}

impl Parameter {
    fn pairs(&self, values: &Values) -> Vec<(String, String)> {
        match self {
            Self::Styled(slot, escape) => match given(values, slot) {
                Some(value) => encode::pairs(&slot.name, value, slot.style, slot.explode, *escape),
                None => Vec::new(),
            },
            Self::Template(name, template) => template.pairs(name, values),
        }
    }
}

impl Placeholder {
    fn cookie(&self, values: &Values) -> Option<String> {
        let value = given(values, self)?;
        let pairs = encode::pairs(&self.name, value, self.style, self.explode, Escape::Strict);
        let written: Vec<String> =
            pairs.into_iter().map(|(name, value)| format!("{}={value}", Escape::Strict.apply(&name))).collect();
        Some(written.join("; ")).filter(|written| !written.is_empty())
    }
}

/// The value of an argument where null is the same as nothing, as it is outside of JSON.
fn given<'v>(values: &'v Values, slot: &Placeholder) -> Option<&'v Value> {
    values[slot.input].as_ref().filter(|value| !value.is_null())
}

/// Text that was written as part of a query, as it is meant.
pub(super) fn meant(text: &str) -> String {
    let spaced = text.replace('+', " ");
    percent_encoding::percent_decode_str(&spaced).decode_utf8_lossy().into_owned()
}

// === impl Template ===

impl Template {
    /// Reads a template. `input` says which argument a name means; `doubled` whether `{{` stands for a
    /// brace.
    pub(super) fn parse(
        text: &str,
        doubled: bool,
        mut input: impl FnMut(&str) -> Result<Placeholder, String>,
    ) -> Result<Self, String> {
        let mut pieces = Vec::new();
        let mut fixed = String::new();
        let mut rest = text;
        while let Some(at) = rest.find(['{', '}']) {
            fixed.push_str(&rest[..at]);
            let brace = &rest[at..=at];
            rest = &rest[at + 1..];
            if doubled && rest.starts_with(brace) {
                fixed.push_str(brace);
                rest = &rest[1..];
                continue;
            }
            let Some(end) = rest.find('}').filter(|_| brace == "{") else {
                return Err(format!("{text:?} has a `{brace}` without its other half"));
            };
            if !fixed.is_empty() {
                pieces.push(Segment::Text(std::mem::take(&mut fixed)));
            }
            pieces.push(Segment::Value(input(&rest[..end])?));
            rest = &rest[end + 1..];
        }
        fixed.push_str(rest);
        if !fixed.is_empty() {
            pieces.push(Segment::Text(fixed));
        }
        Ok(Self(pieces))
    }

    /// The same template with its text as it is meant, where it was written as part of a query.
    pub(super) fn meant(self) -> Self {
        let meant = |piece| match piece {
            Segment::Text(text) => Segment::Text(meant(&text)),
            value @ Segment::Value(_) => value,
        };
        Self(self.0.into_iter().map(meant).collect())
    }

    /// The arguments in it.
    pub(super) fn slots(&self) -> impl Iterator<Item = &Placeholder> {
        self.0.iter().filter_map(|piece| match piece {
            Segment::Value(slot) => Some(slot),
            Segment::Text(_) => None,
        })
    }

    /// The argument that is all of it.
    pub(super) fn only(&self) -> Option<&Placeholder> {
        match self.0.as_slice() {
            [Segment::Value(slot)] => Some(slot),
            _ => None,
        }
    }

    /// The text with values in it; nothing when one of them is not given.
    pub(super) fn fill(&self, values: &Values, escape: Escape) -> Option<String> {
        let mut out = String::new();
        for piece in &self.0 {
            match piece {
                Segment::Text(text) => out.push_str(&escape.apply(text)),
                Segment::Value(slot) => {
                    let value = given(values, slot)?;
                    out.push_str(&encode::inline(&slot.name, value, slot.style, slot.explode, escape));
                }
            }
        }
        Some(out)
    }

    /// The parameters of a query or the fields of a form that it stands for. A list that is all of it
    /// makes one of each element.
    pub(super) fn pairs(&self, name: &str, values: &Values) -> Vec<(String, String)> {
        if let Some(Value::Array(items)) = self.only().and_then(|slot| values[slot.input].as_ref()) {
            return items.iter().map(|item| (name.to_owned(), Escape::Strict.apply(&encode::plain(item)))).collect();
        }
        self.fill(values, Escape::Strict).map(|value| (name.to_owned(), value)).into_iter().collect()
    }

    /// The path with values in it.
    fn path(&self, values: &Values) -> Result<String, String> {
        let mut out = String::new();
        for piece in &self.0 {
            match piece {
                Segment::Text(text) => out.push_str(&encode::literal(text)),
                Segment::Value(slot) => {
                    let value = values[slot.input].as_ref();
                    let value = value.ok_or_else(|| format!("`{}` is a part of the path and is missing", slot.name))?;
                    // An empty part would make it the path of something else.
                    if value.is_null() || encode::inline("", value, Style::Simple, false, Escape::Strict).is_empty() {
                        return Err(format!("`{}` is a part of the path and must not be empty", slot.name));
                    }
                    let text = encode::inline(&slot.name, value, slot.style, slot.explode, Escape::Strict);
                    if matches!(text.as_str(), "." | "..") {
                        return Err(format!("`{}` is a part of the path and must not be {text:?}", slot.name));
                    }
                    out.push_str(&text);
                }
            }
        }
        Ok(out)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    fn template(text: &str) -> Template {
        let slot =
            |name: &str| Ok(Placeholder { name: name.to_owned(), input: 0, style: Style::Simple, explode: false });
        Template::parse(text, true, slot).unwrap()
    }

    #[test]
    fn templates_are_read() {
        let values = [Some(json!("x y"))];
        assert_eq!(template("a{b}c").fill(&values, Escape::Strict).unwrap(), "ax%20yc");
        assert_eq!(template("{{a}} {b}").fill(&values, Escape::Nothing).unwrap(), "{a} x y");
        assert_eq!(template("{b}").fill(&[None], Escape::Nothing), None);
        assert!(template("{b}").only().is_some());
        assert_eq!(template("a%20b+c").meant(), template("a b c"));
        let slot = |_: &str| Err("none".to_owned());
        for wrong in ["{a", "a}", "{a}"] {
            assert!(Template::parse(wrong, true, slot).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_list_that_is_all_of_a_parameter_is_repeated() {
        let values = [Some(json!(["a&b", 2]))];
        let written = |text: &str| template(text).pairs("q", &values);
        assert_eq!(written("{v}"), [("q".into(), "a%26b".into()), ("q".into(), "2".into())]);
        assert_eq!(written("in:{v}"), [("q".into(), "in%3Aa%26b,2".into())]);
    }

    #[test]
    fn a_part_of_a_path_is_never_another_place() {
        for value in [json!("."), json!(".."), json!(""), json!([]), json!([""]), json!(null)] {
            assert!(template("/a/{b}/c").path(&[Some(value.clone())]).is_err(), "{value}");
        }
        let written = |value: &str| template("/a/{b}").path(&[Some(json!(value))]).unwrap();
        assert_eq!(written("../x"), "/a/..%2Fx");
        assert_eq!(written("%2e%2e"), "/a/%252e%252e");
        assert_eq!(written("x?y#z\r\n"), "/a/x%3Fy%23z%0D%0A");
        assert_eq!(written("a b;c"), "/a/a%20b%3Bc");
    }

    proptest! {
        #[test]
        fn braces_that_are_doubled_stay(text in "[a-z{}%/ ]{0,20}") {
            let escaped = text.replace('{', "{{").replace('}', "}}");
            let none = |_: &str| Err("none".to_owned());
            let read = Template::parse(&escaped, true, none).unwrap();
            prop_assert_eq!(read.fill(&[], Escape::Nothing).unwrap(), text);
        }

        #[test]
        fn a_path_keeps_its_parts(value in any::<String>()) {
            if let Ok(path) = template("/a/{b}/c").path(&[Some(json!(value))]) {
                prop_assert_eq!(path.split('/').count(), 4);
                prop_assert!(!super::super::base_url::climbs(&path) || value.contains(['/', '\\']));
                prop_assert!(path.starts_with("/a/") && path.ends_with("/c"));
            }
        }
    }
}
