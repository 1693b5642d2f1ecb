//! Request templates: where the arguments of a tool go in its HTTP request.

use bytes::Bytes;
use http::header::{ACCEPT, CONTENT_TYPE, COOKIE, USER_AGENT};
use http::{HeaderMap, HeaderName, HeaderValue, Method as Verb, Uri};

use super::argument_value::ArgumentValue;
use super::arguments::ToolArgument;
use super::base_url::{BaseUrl, header_value};
use super::body::RequestBodyTemplate;
use super::encode::{self, Escape, ParameterStyle};

/// Validated values of a tool's arguments, by argument index.
pub(super) type ArgumentValues = [Option<ArgumentValue>];

/// Template of a tool's HTTP request.
#[derive(Debug, Clone)]
pub(super) struct RequestTemplate {
    pub(super) verb: Verb,
    pub(super) path: TextTemplate,
    pub(super) query: Vec<QueryParameter>,
    pub(super) headers: Vec<(HeaderName, TextTemplate)>,
    pub(super) cookies: Vec<Placeholder>,
    pub(super) body: Option<RequestBodyTemplate>,
    pub(super) accept: HeaderValue,
    pub(super) arguments: Vec<ToolArgument>,
    pub(super) result_path: Option<String>,
}

/// A query parameter.
#[derive(Debug, Clone)]
pub(super) enum QueryParameter {
    /// One argument in an OpenAPI style.
    Styled(Placeholder, Escape),
    /// A fixed name with a template as its value.
    Template(String, TextTemplate),
}

/// Text with placeholders.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct TextTemplate(pub(super) Vec<Segment>);

/// Literal text or a placeholder.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Segment {
    Text(String),
    Value(Placeholder),
}

/// A placeholder for the value of an argument, and its serialization.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Placeholder {
    /// Name of the parameter in the API, which may differ from the argument's name.
    pub(super) name: String,
    pub(super) argument_index: usize,
    pub(super) style: ParameterStyle,
    pub(super) explode: bool,
}

/// A complete HTTP request.
#[derive(Debug)]
pub(super) struct ApiRequest {
    pub(super) verb: Verb,
    pub(super) uri: Uri,
    pub(super) headers: HeaderMap,
    pub(super) body: Bytes,
}

/// `User-Agent`, unless the configuration sets one.
const DEFAULT_USER_AGENT: HeaderValue = HeaderValue::from_static(concat!("rialto/", env!("CARGO_PKG_VERSION")));

// === impl RequestTemplate ===

impl RequestTemplate {
    /// Builds the request; the error is a sentence for the caller.
    pub(super) fn build(&self, base: &BaseUrl, values: &ArgumentValues) -> Result<ApiRequest, String> {
        let path = self.path.render_path(values)?;
        let query: Vec<(String, String)> = self.query.iter().flat_map(|part| part.render_pairs(values)).collect();
        let uri = base.request_uri(&path, &query)?;
        let mut headers = HeaderMap::new();
        headers.insert(ACCEPT, self.accept.clone());
        headers.insert(USER_AGENT, DEFAULT_USER_AGENT);
        let (media, body) = match self.body.as_ref().map(|body| body.encode(values)).transpose()?.flatten() {
            Some((media, body)) => (Some(media), body),
            None => (None, Bytes::new()),
        };
        headers.extend(media.map(|media| (CONTENT_TYPE, media)));
        for (name, template) in &self.headers {
            if let Some(text) = template.render(values, Escape::Verbatim) {
                headers.insert(name, header_value(name, &text)?);
            }
        }
        let cookies: Vec<String> =
            self.cookies.iter().filter_map(|placeholder| placeholder.render_cookie(values)).collect();
        if !cookies.is_empty() {
            headers.insert(COOKIE, header_value(&COOKIE, &cookies.join("; "))?);
        }
        Ok(ApiRequest { verb: self.verb.clone(), uri, headers, body })
    }
}

impl QueryParameter {
    fn render_pairs(&self, values: &ArgumentValues) -> Vec<(String, String)> {
        match self {
            Self::Styled(placeholder, escape) => match argument_value(values, placeholder) {
                Some(value) => {
                    encode::encode_pairs(&placeholder.name, value, placeholder.style, placeholder.explode, *escape)
                }
                None => Vec::new(),
            },
            Self::Template(name, template) => template.render_pairs(name, values),
        }
    }
}

impl Placeholder {
    fn render_cookie(&self, values: &ArgumentValues) -> Option<String> {
        let value = argument_value(values, self)?;
        let pairs = encode::encode_pairs(&self.name, value, self.style, self.explode, Escape::Strict);
        let written: Vec<String> =
            pairs.into_iter().map(|(name, value)| format!("{}={value}", Escape::Strict.apply(&name))).collect();
        Some(written.join("; ")).filter(|written| !written.is_empty())
    }
}

/// The value of an argument. Null counts as absent: outside of JSON there is no way to send it.
fn argument_value<'v>(values: &'v ArgumentValues, placeholder: &Placeholder) -> Option<&'v ArgumentValue> {
    values[placeholder.argument_index].as_ref().filter(|value| !value.is_null())
}

/// Decodes `+` and percent-encoding of a query component.
pub(super) fn decode_query_text(text: &str) -> String {
    let spaced = text.replace('+', " ");
    percent_encoding::percent_decode_str(&spaced).decode_utf8_lossy().into_owned()
}

// === impl TextTemplate ===

impl TextTemplate {
    /// Parses a template. `placeholder_for` maps a name to its placeholder; `allow_escaped_braces` makes `{{` and `}}`
    /// literal braces.
    pub(super) fn parse(
        text: &str,
        allow_escaped_braces: bool,
        mut placeholder_for: impl FnMut(&str) -> Result<Placeholder, String>,
    ) -> Result<Self, String> {
        let mut segments = Vec::new();
        let mut literal = String::new();
        let mut rest = text;
        while let Some(at) = rest.find(['{', '}']) {
            literal.push_str(&rest[..at]);
            let brace = &rest[at..=at];
            rest = &rest[at + 1..];
            if allow_escaped_braces && rest.starts_with(brace) {
                literal.push_str(brace);
                rest = &rest[1..];
                continue;
            }
            let Some(end) = rest.find('}').filter(|_| brace == "{") else {
                return Err(format!("{text:?} has a `{brace}` without its other half"));
            };
            if !literal.is_empty() {
                segments.push(Segment::Text(std::mem::take(&mut literal)));
            }
            segments.push(Segment::Value(placeholder_for(&rest[..end])?));
            rest = &rest[end + 1..];
        }
        literal.push_str(rest);
        if !literal.is_empty() {
            segments.push(Segment::Text(literal));
        }
        Ok(Self(segments))
    }

    /// Decodes the literal text of a template that is part of a query.
    pub(super) fn decode_query_text(self) -> Self {
        let decode_query_text = |segment| match segment {
            Segment::Text(text) => Segment::Text(decode_query_text(&text)),
            value @ Segment::Value(_) => value,
        };
        Self(self.0.into_iter().map(decode_query_text).collect())
    }

    /// All placeholders, in order.
    pub(super) fn placeholders(&self) -> impl Iterator<Item = &Placeholder> {
        self.0.iter().filter_map(|segment| match segment {
            Segment::Value(placeholder) => Some(placeholder),
            Segment::Text(_) => None,
        })
    }

    /// The placeholder, if the template consists of nothing else.
    pub(super) fn sole_placeholder(&self) -> Option<&Placeholder> {
        match self.0.as_slice() {
            [Segment::Value(placeholder)] => Some(placeholder),
            _ => None,
        }
    }

    /// Renders the text; `None` when an argument is absent.
    pub(super) fn render(&self, values: &ArgumentValues, escape: Escape) -> Option<String> {
        let mut out = String::new();
        for segment in &self.0 {
            match segment {
                Segment::Text(text) => out.push_str(&escape.apply(text)),
                Segment::Value(placeholder) => {
                    let value = argument_value(values, placeholder)?;
                    out.push_str(&encode::encode_inline(
                        &placeholder.name,
                        value,
                        placeholder.style,
                        placeholder.explode,
                        escape,
                    ));
                }
            }
        }
        Some(out)
    }

    /// Renders query parameters or form fields; an array that is the whole value is repeated per element.
    pub(super) fn render_pairs(&self, name: &str, values: &ArgumentValues) -> Vec<(String, String)> {
        if let Some(ArgumentValue::Array(items)) =
            self.sole_placeholder().and_then(|placeholder| values[placeholder.argument_index].as_ref())
        {
            return items.iter().map(|item| (name.to_owned(), Escape::Strict.apply(&encode::to_text(item)))).collect();
        }
        self.render(values, Escape::Strict).map(|value| (name.to_owned(), value)).into_iter().collect()
    }

    /// Renders a path; absent and empty values and dot segments are errors.
    fn render_path(&self, values: &ArgumentValues) -> Result<String, String> {
        let mut out = String::new();
        for segment in &self.0 {
            match segment {
                Segment::Text(text) => out.push_str(&encode::encode_path_literal(text)),
                Segment::Value(placeholder) => {
                    let value = values[placeholder.argument_index].as_ref();
                    let value =
                        value.ok_or_else(|| format!("`{}` is a part of the path and is missing", placeholder.name))?;
                    // An empty segment would address another resource.
                    if value.is_null()
                        || encode::encode_inline("", value, ParameterStyle::Simple, false, Escape::Strict).is_empty()
                    {
                        return Err(format!("`{}` is a part of the path and must not be empty", placeholder.name));
                    }
                    let text = encode::encode_inline(
                        &placeholder.name,
                        value,
                        placeholder.style,
                        placeholder.explode,
                        Escape::Strict,
                    );
                    if matches!(text.as_str(), "." | "..") {
                        return Err(format!("`{}` is a part of the path and must not be {text:?}", placeholder.name));
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

    fn template(text: &str) -> TextTemplate {
        let placeholder = |name: &str| {
            Ok(Placeholder { name: name.to_owned(), argument_index: 0, style: ParameterStyle::Simple, explode: false })
        };
        TextTemplate::parse(text, true, placeholder).unwrap()
    }

    #[test]
    fn templates_are_parsed_and_rendered() {
        let values = [Some(ArgumentValue::from(&json!("x y")))];
        assert_eq!(template("a{b}c").render(&values, Escape::Strict).unwrap(), "ax%20yc");
        assert_eq!(template("{{a}} {b}").render(&values, Escape::Verbatim).unwrap(), "{a} x y");
        assert_eq!(template("{b}").render(&[None], Escape::Verbatim), None);
        assert!(template("{b}").sole_placeholder().is_some());
        assert_eq!(template("a%20b+c").decode_query_text(), template("a b c"));
        let placeholder = |_: &str| Err("none".to_owned());
        for wrong in ["{a", "a}", "{a}"] {
            assert!(TextTemplate::parse(wrong, true, placeholder).is_err(), "{wrong}");
        }
    }

    #[test]
    fn array_as_whole_parameter_is_repeated() {
        let values = [Some(ArgumentValue::from(&json!(["a&b", 2])))];
        let written = |text: &str| template(text).render_pairs("q", &values);
        assert_eq!(written("{v}"), [("q".into(), "a%26b".into()), ("q".into(), "2".into())]);
        assert_eq!(written("in:{v}"), [("q".into(), "in%3Aa%26b,2".into())]);
    }

    #[test]
    fn path_values_cannot_leave_their_segment() {
        for value in [json!("."), json!(".."), json!(""), json!([]), json!([""]), json!(null)] {
            assert!(template("/a/{b}/c").render_path(&[Some((&value).into())]).is_err(), "{value}");
        }
        let written = |value: &str| template("/a/{b}").render_path(&[Some((&json!(value)).into())]).unwrap();
        assert_eq!(written("../x"), "/a/..%2Fx");
        assert_eq!(written("%2e%2e"), "/a/%252e%252e");
        assert_eq!(written("x?y#z\r\n"), "/a/x%3Fy%23z%0D%0A");
        assert_eq!(written("a b;c"), "/a/a%20b%3Bc");
    }

    proptest! {
        #[test]
        fn escaped_braces_are_literal(text in "[a-z{}%/ ]{0,20}") {
            let escaped = text.replace('{', "{{").replace('}', "}}");
            let none = |_: &str| Err("none".to_owned());
            let read = TextTemplate::parse(&escaped, true, none).unwrap();
            prop_assert_eq!(read.render(&[], Escape::Verbatim).unwrap(), text);
        }

        #[test]
        fn rendered_paths_keep_their_segment_count(value in any::<String>()) {
            if let Ok(path) = template("/a/{b}/c").render_path(&[Some((&json!(value)).into())]) {
                prop_assert_eq!(path.split('/').count(), 4);
                prop_assert!(!super::super::base_url::has_dot_segment(&path) || value.contains(['/', '\\']));
                prop_assert!(path.starts_with("/a/") && path.ends_with("/c"));
            }
        }
    }
}
