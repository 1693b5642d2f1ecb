//! The body of a request, from arguments.

use base64::Engine;
use base64::prelude::{BASE64_STANDARD, BASE64_URL_SAFE};
use bytes::Bytes;
use http::HeaderValue;
use serde_json::{Map, Value};

use super::encode::{self, Escape, Style};
use super::request_template::{Template, Values};

/// What becomes of arguments in a body.
#[derive(Debug, Clone)]
pub(super) enum RequestBodyTemplate {
    /// One argument is the body.
    Whole(usize, Media),
    /// Arguments are its members. One that must be there is sent even if it has none.
    Fields(Vec<BodyField>, Media, bool),
    /// JSON with arguments in it.
    Shape(BodyTemplate),
    /// Fields of a form with arguments in them.
    Form(Vec<(String, Template)>),
    /// Text with arguments in it.
    Text(Template),
}

/// One argument that is a member of a body.
#[derive(Debug, Clone)]
pub(super) struct BodyField {
    pub(super) name: String,
    pub(super) input: usize,
    pub(super) how: FieldEncoding,
}

/// How a field of a form is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) enum FieldEncoding {
    /// As text, each element of a list by itself, and anything else as JSON.
    #[default]
    Plain,
    /// In a style of OpenAPI.
    Styled(Style, bool),
    /// As a file.
    File,
}

/// How a body is written.
#[derive(Debug, Clone)]
pub(super) enum Media {
    /// As JSON, under some name for it.
    Json(HeaderValue),
    /// As the fields of a form.
    Form,
    /// As the parts of a form.
    Multipart,
    /// As it is: a string, or bytes in a `data:` URI.
    Other(HeaderValue),
}

/// JSON with arguments in it.
#[derive(Debug, Clone)]
pub(super) enum BodyTemplate {
    Fixed(Value),
    Input(usize),
    Text(Template),
    Array(Vec<BodyTemplate>),
    Object(Vec<(String, BodyTemplate)>),
}

/// A body and its media type.
pub(super) type EncodedBody = (HeaderValue, Bytes);

const JSON: HeaderValue = HeaderValue::from_static("application/json");
const FORM: HeaderValue = HeaderValue::from_static("application/x-www-form-urlencoded");
const TEXT: HeaderValue = HeaderValue::from_static("text/plain; charset=utf-8");

impl RequestBodyTemplate {
    /// Writes the body; nothing when there is none to send.
    pub(super) fn write(&self, values: &Values) -> Result<Option<EncodedBody>, String> {
        match self {
            Self::Whole(input, media) => match &values[*input] {
                Some(value) => media.whole(value).map(Some),
                None => Ok(None),
            },
            Self::Fields(fields, media, required) => {
                let given: Vec<(&BodyField, &Value)> =
                    fields.iter().filter_map(|field| Some((field, values[field.input].as_ref()?))).collect();
                if given.is_empty() && !required {
                    return Ok(None);
                }
                media.fields(&given).map(Some)
            }
            Self::Shape(shape) => {
                let value = shape.fill(values).unwrap_or(Value::Null);
                Ok(Some((JSON, value.to_string().into())))
            }
            Self::Form(fields) => {
                let filled = fields.iter().flat_map(|(name, template)| template.pairs(name, values));
                Ok(Some((FORM, form(filled).into())))
            }
            Self::Text(template) => Ok(template.fill(values, Escape::Nothing).map(|text| (TEXT, text.into()))),
        }
    }
}

impl Media {
    /// A media type of a document; nothing when it is none.
    pub(super) fn named(name: &str) -> Option<Self> {
        let essence = name.split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
        if !essence.contains('/') || essence.contains('*') {
            return None;
        }
        let value = HeaderValue::from_str(name.trim()).ok()?;
        Some(match essence.as_str() {
            json if is_json(json) => Self::Json(value),
            "application/x-www-form-urlencoded" => Self::Form,
            "multipart/form-data" => Self::Multipart,
            _ => Self::Other(value),
        })
    }

    /// Whether a body of this kind has members.
    pub(super) fn has_members(&self) -> bool {
        !matches!(self, Self::Other(_))
    }

    fn whole(&self, value: &Value) -> Result<EncodedBody, String> {
        match self {
            Self::Json(media) => Ok((media.clone(), value.to_string().into())),
            Self::Form | Self::Multipart => {
                let members = value.as_object().ok_or("the body must be an object, whose members are the fields")?;
                let fields: Vec<BodyField> = members
                    .keys()
                    .map(|name| BodyField { name: name.clone(), input: 0, how: FieldEncoding::Plain })
                    .collect();
                self.fields(&fields.iter().zip(members.values()).collect::<Vec<_>>())
            }
            Self::Other(media) => Ok((media.clone(), file(value).1)),
        }
    }

    fn fields(&self, given: &[(&BodyField, &Value)]) -> Result<EncodedBody, String> {
        match self {
            Self::Json(media) => {
                let members: Map<String, Value> =
                    given.iter().map(|(field, value)| (field.name.clone(), (*value).clone())).collect();
                Ok((media.clone(), Value::Object(members).to_string().into()))
            }
            Self::Form => {
                let given = given.iter().filter(|(_, value)| !value.is_null());
                let pairs = given.flat_map(|(field, value)| {
                    let (style, explode) = match (field.how, value) {
                        (FieldEncoding::Styled(style, explode), _) => (style, explode),
                        (_, Value::Object(_)) => (Style::Json, true),
                        _ => (Style::Form, true),
                    };
                    encode::pairs(&field.name, value, style, explode, Escape::Strict)
                });
                Ok((FORM, form(pairs).into()))
            }
            Self::Multipart => multipart(given),
            Self::Other(_) => Err("a body of this media type has no members".to_owned()),
        }
    }
}

impl BodyTemplate {
    fn fill(&self, values: &Values) -> Option<Value> {
        Some(match self {
            Self::Fixed(value) => value.clone(),
            Self::Input(input) => values[*input].clone()?,
            Self::Text(template) => template.fill(values, Escape::Nothing)?.into(),
            Self::Array(items) => items.iter().filter_map(|item| item.fill(values)).collect(),
            Self::Object(members) => {
                let filled = members.iter().filter_map(|(name, shape)| Some((name.clone(), shape.fill(values)?)));
                Value::Object(filled.collect())
            }
        })
    }
}

/// Whether a media type is JSON.
pub(super) fn is_json(essence: &str) -> bool {
    essence == "application/json" || essence == "text/json" || essence.ends_with("+json")
}

fn form(pairs: impl Iterator<Item = (String, String)>) -> String {
    pairs.map(|(name, value)| format!("{}={value}", Escape::Strict.apply(&name))).collect::<Vec<_>>().join("&")
}

/// Bytes that were given as text, or as a `data:` URI with their media type.
fn file(value: &Value) -> (Option<HeaderValue>, Bytes) {
    let text = encode::plain(value);
    let decoded = || {
        let (head, data) = text.strip_prefix("data:")?.split_once(',')?;
        let media = head.strip_suffix(";base64")?;
        let bytes = BASE64_STANDARD.decode(data).or_else(|_| BASE64_URL_SAFE.decode(data)).ok()?;
        Some((HeaderValue::from_str(media).ok().filter(|media| !media.is_empty()), Bytes::from(bytes)))
    };
    decoded().unwrap_or_else(|| (None, Bytes::from(text.clone())))
}

fn multipart(given: &[(&BodyField, &Value)]) -> Result<EncodedBody, String> {
    let mut random = [0; 16];
    getrandom::fill(&mut random).map_err(|_| "there is no randomness for a boundary")?;
    let boundary = format!("rialto-{:032x}", u128::from_be_bytes(random));
    let mut out: Vec<u8> = Vec::new();
    let mut part = |name: &str, head: &str, content: &[u8]| {
        let name = quoted(name);
        let head = format!("--{boundary}\r\nContent-Disposition: form-data; name=\"{name}\"{head}\r\n\r\n");
        out.extend_from_slice(head.as_bytes());
        out.extend_from_slice(content);
        out.extend_from_slice(b"\r\n");
    };
    for (field, value) in given.iter().filter(|(_, value)| !value.is_null()) {
        let items: Vec<&Value> = match value {
            Value::Array(items) => items.iter().collect(),
            other => vec![other],
        };
        for item in items {
            if field.how == FieldEncoding::File {
                let (media, bytes) = file(item);
                let media = media.as_ref().and_then(|media| media.to_str().ok()).unwrap_or("application/octet-stream");
                let head = format!("; filename=\"{}\"\r\nContent-Type: {media}", quoted(&field.name));
                part(&field.name, &head, &bytes);
            } else if item.is_object() || item.is_array() {
                part(&field.name, "\r\nContent-Type: application/json", item.to_string().as_bytes());
            } else {
                part(&field.name, "", encode::plain(item).as_bytes());
            }
        }
    }
    out.extend_from_slice(format!("--{boundary}--\r\n").as_bytes());
    let media = HeaderValue::from_str(&format!("multipart/form-data; boundary={boundary}"));
    Ok((media.map_err(|_| "the boundary is no header")?, out.into()))
}

/// A name in the head of a part, written as browsers do.
fn quoted(name: &str) -> String {
    name.replace('"', "%22").replace('\r', "%0D").replace('\n', "%0A")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn field(name: &str, how: FieldEncoding) -> BodyField {
        BodyField { name: name.to_owned(), input: 0, how }
    }

    #[test]
    fn a_form_is_encoded() {
        let (plain, deep) = (field("a b", FieldEncoding::Plain), field("m", FieldEncoding::Styled(Style::Deep, true)));
        let value = (json!(["x&y", 2]), json!({ "k": "v=w" }));
        let (media, body) = Media::Form.fields(&[(&plain, &value.0), (&deep, &value.1)]).unwrap();
        assert_eq!(media, "application/x-www-form-urlencoded");
        assert_eq!(body, "a%20b=x%26y&a%20b=2&m%5Bk%5D=v%3Dw");
    }

    #[test]
    fn parts_of_a_form_cannot_add_headers() {
        let (text, sent) = (field("a\"\r\nX: y", FieldEncoding::Plain), field("f", FieldEncoding::File));
        let value = (json!("1\r\n2"), json!("data:image/png;base64,AAEC"));
        let (media, body) = Media::Multipart.fields(&[(&text, &value.0), (&sent, &value.1)]).unwrap();
        let boundary = media.to_str().unwrap().split_once("boundary=").unwrap().1;
        let expected = format!(
            "--{boundary}\r\nContent-Disposition: form-data; name=\"a%22%0D%0AX: y\"\r\n\r\n1\r\n2\r\n\
             --{boundary}\r\nContent-Disposition: form-data; name=\"f\"; filename=\"f\"\r\n\
             Content-Type: image/png\r\n\r\n\0\u{1}\u{2}\r\n--{boundary}--\r\n"
        );
        assert_eq!(body, expected);
    }

    #[test]
    fn media_types_are_told_apart() {
        assert!(matches!(Media::named("application/vnd.api+json; charset=utf-8"), Some(Media::Json(_))));
        assert!(matches!(Media::named("Application/JSON"), Some(Media::Json(_))));
        assert!(matches!(Media::named("multipart/form-data"), Some(Media::Multipart)));
        assert!(matches!(Media::named("text/plain"), Some(Media::Other(_))));
        assert!(Media::named("*/*").is_none());
        assert!(Media::named("a/b\r\nX: y").is_none());
    }
}
