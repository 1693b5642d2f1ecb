//! Encoding of request bodies from tool arguments.

use std::collections::BTreeMap;

use base64::Engine;
use base64::prelude::{BASE64_STANDARD, BASE64_URL_SAFE};
use bytes::Bytes;
use http::HeaderValue;
use mime::Mime;

use super::argument_value::ArgumentValue;
use super::encode::{self, Escape, ParameterStyle};
use super::request_template::{ArgumentValues, TextTemplate};

/// How arguments make up the body of a request.
#[derive(Debug, Clone)]
pub(super) enum RequestBodyTemplate {
    /// One argument, by index, is the whole body.
    Argument(usize, BodyMediaType),
    /// Arguments are members of the body; the flag says that a body is required even without members.
    Fields(Vec<BodyField>, BodyMediaType, bool),
    /// JSON with placeholders.
    Json(BodyTemplate),
    /// URL-encoded form with placeholders in its values.
    Form(Vec<(String, TextTemplate)>),
    /// Text with placeholders.
    Text(TextTemplate),
}

/// An argument that is one member of the body.
#[derive(Debug, Clone)]
pub(super) struct BodyField {
    pub(super) name: String,
    pub(super) argument_index: usize,
    pub(super) encoding: FieldEncoding,
}

/// Encoding of one form field.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) enum FieldEncoding {
    /// Scalars as text, arrays as repeated fields, objects as JSON.
    #[default]
    Plain,
    /// An OpenAPI parameter style, with its `explode` flag.
    Styled(ParameterStyle, bool),
    /// A file part.
    File,
}

/// Media type of a request body.
#[derive(Debug, Clone)]
pub(super) enum BodyMediaType {
    /// JSON, with its `Content-Type`.
    Json(HeaderValue),
    /// `application/x-www-form-urlencoded`.
    Form,
    /// `multipart/form-data`.
    Multipart,
    /// Any other type: sent as it is, from a string or a `data:` URI.
    Other(HeaderValue),
}

/// JSON value with placeholders; members whose argument is absent are omitted.
#[derive(Debug, Clone)]
pub(super) enum BodyTemplate {
    Fixed(ArgumentValue),
    Argument(usize),
    Text(TextTemplate),
    Array(Vec<BodyTemplate>),
    Object(Vec<(String, BodyTemplate)>),
}

/// `Content-Type` and bytes of a body.
pub(super) type EncodedBody = (HeaderValue, Bytes);

const JSON_MEDIA_TYPE: HeaderValue = HeaderValue::from_static("application/json");
const FORM_MEDIA_TYPE: HeaderValue = HeaderValue::from_static("application/x-www-form-urlencoded");
const TEXT_MEDIA_TYPE: HeaderValue = HeaderValue::from_static("text/plain; charset=utf-8");

impl RequestBodyTemplate {
    /// Encodes the body; `None` when there is none to send.
    pub(super) fn encode(&self, values: &ArgumentValues) -> Result<Option<EncodedBody>, String> {
        match self {
            Self::Argument(argument_index, media_type) => match &values[*argument_index] {
                Some(value) => media_type.encode_value(value).map(Some),
                None => Ok(None),
            },
            Self::Fields(fields, media_type, required) => {
                let given: Vec<(&BodyField, &ArgumentValue)> =
                    fields.iter().filter_map(|field| Some((field, values[field.argument_index].as_ref()?))).collect();
                if given.is_empty() && !required {
                    return Ok(None);
                }
                media_type.encode_fields(&given).map(Some)
            }
            Self::Json(template) => {
                let value = template.render(values).unwrap_or(ArgumentValue::Null);
                Ok(Some((JSON_MEDIA_TYPE, value.to_string().into())))
            }
            Self::Form(fields) => {
                let filled = fields.iter().flat_map(|(name, template)| template.render_pairs(name, values));
                Ok(Some((FORM_MEDIA_TYPE, encode_form(filled).into())))
            }
            Self::Text(template) => {
                Ok(template.render(values, Escape::Verbatim).map(|text| (TEXT_MEDIA_TYPE, text.into())))
            }
        }
    }
}

impl BodyMediaType {
    /// Parses a media type; `None` for wildcards and invalid ones.
    pub(super) fn parse(name: &str) -> Option<Self> {
        let media_type = parse_media_type(name)?;
        if media_type.type_() == mime::STAR || media_type.subtype() == mime::STAR {
            return None;
        }
        let value = HeaderValue::from_str(name.trim()).ok()?;
        Some(match media_type.essence_str() {
            _ if is_json(&media_type) => Self::Json(value),
            "application/x-www-form-urlencoded" => Self::Form,
            "multipart/form-data" => Self::Multipart,
            _ => Self::Other(value),
        })
    }

    /// Whether a body of this type consists of named members.
    pub(super) fn has_members(&self) -> bool {
        !matches!(self, Self::Other(_))
    }

    fn encode_value(&self, value: &ArgumentValue) -> Result<EncodedBody, String> {
        match self {
            Self::Json(media_type) => Ok((media_type.clone(), value.to_string().into())),
            Self::Form | Self::Multipart => {
                let members = value.as_object().ok_or("the body must be an object, whose members are the fields")?;
                let fields: Vec<BodyField> = members
                    .keys()
                    .map(|name| BodyField { name: name.clone(), argument_index: 0, encoding: FieldEncoding::Plain })
                    .collect();
                self.encode_fields(&fields.iter().zip(members.values()).collect::<Vec<_>>())
            }
            Self::Other(media_type) => Ok((media_type.clone(), decode_file(value).1)),
        }
    }

    fn encode_fields(&self, given: &[(&BodyField, &ArgumentValue)]) -> Result<EncodedBody, String> {
        match self {
            Self::Json(media_type) => {
                let members: BTreeMap<String, ArgumentValue> =
                    given.iter().map(|(field, value)| (field.name.clone(), (*value).clone())).collect();
                Ok((media_type.clone(), ArgumentValue::Object(members).to_string().into()))
            }
            Self::Form => {
                let given = given.iter().filter(|(_, value)| !value.is_null());
                let pairs = given.flat_map(|(field, value)| {
                    let (style, explode) = match (field.encoding, value) {
                        (FieldEncoding::Styled(style, explode), _) => (style, explode),
                        (_, ArgumentValue::Object(_)) => (ParameterStyle::Json, true),
                        _ => (ParameterStyle::Form, true),
                    };
                    encode::encode_pairs(&field.name, value, style, explode, Escape::Strict)
                });
                Ok((FORM_MEDIA_TYPE, encode_form(pairs).into()))
            }
            Self::Multipart => encode_multipart(given),
            Self::Other(_) => Err("a body of this media type has no members".to_owned()),
        }
    }
}

impl BodyTemplate {
    fn render(&self, values: &ArgumentValues) -> Option<ArgumentValue> {
        Some(match self {
            Self::Fixed(value) => value.clone(),
            Self::Argument(argument_index) => values[*argument_index].clone()?,
            Self::Text(template) => ArgumentValue::String(template.render(values, Escape::Verbatim)?),
            Self::Array(items) => ArgumentValue::Array(items.iter().filter_map(|item| item.render(values)).collect()),
            Self::Object(members) => {
                let filled =
                    members.iter().filter_map(|(name, template)| Some((name.clone(), template.render(values)?)));
                ArgumentValue::Object(filled.collect())
            }
        })
    }
}

/// Parses a media type. APIs send malformed parameters; the type counts without them.
pub(super) fn parse_media_type(text: &str) -> Option<Mime> {
    let essence = || text.split(';').next()?.trim().parse().ok();
    text.trim().parse().ok().or_else(essence)
}

/// Whether a media type is JSON.
pub(super) fn is_json(media_type: &Mime) -> bool {
    let is_json = matches!(media_type.essence_str(), "application/json" | "text/json");
    is_json || media_type.suffix() == Some(mime::JSON)
}

fn encode_form(pairs: impl Iterator<Item = (String, String)>) -> String {
    pairs.map(|(name, value)| format!("{}={value}", Escape::Strict.apply(&name))).collect::<Vec<_>>().join("&")
}

/// Decodes a `data:` URI in Base64 into media type and bytes; any other value is sent as text.
fn decode_file(value: &ArgumentValue) -> (Option<HeaderValue>, Bytes) {
    let text = encode::to_text(value);
    let decoded = || {
        let (head, data) = text.strip_prefix("data:")?.split_once(',')?;
        let media_type = head.strip_suffix(";base64")?;
        let bytes = BASE64_STANDARD.decode(data).or_else(|_| BASE64_URL_SAFE.decode(data)).ok()?;
        Some((HeaderValue::from_str(media_type).ok().filter(|media_type| !media_type.is_empty()), Bytes::from(bytes)))
    };
    decoded().unwrap_or_else(|| (None, Bytes::from(text.clone())))
}

fn encode_multipart(given: &[(&BodyField, &ArgumentValue)]) -> Result<EncodedBody, String> {
    let mut random = [0; 16];
    getrandom::fill(&mut random).map_err(|_| "there is no randomness for a boundary")?;
    let boundary = format!("rialto-{:032x}", u128::from_be_bytes(random));
    let mut out: Vec<u8> = Vec::new();
    let mut part = |name: &str, head: &str, content: &[u8]| {
        let name = escape_part_name(name);
        let head = format!("--{boundary}\r\nContent-Disposition: form-data; name=\"{name}\"{head}\r\n\r\n");
        out.extend_from_slice(head.as_bytes());
        out.extend_from_slice(content);
        out.extend_from_slice(b"\r\n");
    };
    for (field, value) in given.iter().filter(|(_, value)| !value.is_null()) {
        let items: Vec<&ArgumentValue> = match value {
            ArgumentValue::Array(items) => items.iter().collect(),
            other => vec![other],
        };
        for item in items {
            if field.encoding == FieldEncoding::File {
                let (media_type, bytes) = decode_file(item);
                let media_type = media_type
                    .as_ref()
                    .and_then(|media_type| media_type.to_str().ok())
                    .unwrap_or("application/octet-stream");
                let head = format!("; filename=\"{}\"\r\nContent-Type: {media_type}", escape_part_name(&field.name));
                part(&field.name, &head, &bytes);
            } else if matches!(item, ArgumentValue::Object(_) | ArgumentValue::Array(_)) {
                part(&field.name, "\r\nContent-Type: application/json", item.to_string().as_bytes());
            } else {
                part(&field.name, "", encode::to_text(item).as_bytes());
            }
        }
    }
    out.extend_from_slice(format!("--{boundary}--\r\n").as_bytes());
    let media_type = HeaderValue::from_str(&format!("multipart/form-data; boundary={boundary}"));
    Ok((media_type.map_err(|_| "the boundary is no header")?, out.into()))
}

/// Escapes a multipart field name as the HTML standard requires, so that it cannot add headers.
fn escape_part_name(name: &str) -> String {
    name.replace('"', "%22").replace('\r', "%0D").replace('\n', "%0A")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn field(name: &str, encoding: FieldEncoding) -> BodyField {
        BodyField { name: name.to_owned(), argument_index: 0, encoding }
    }

    #[test]
    fn form_fields_are_percent_encoded() {
        let (plain, deep) =
            (field("a b", FieldEncoding::Plain), field("m", FieldEncoding::Styled(ParameterStyle::DeepObject, true)));
        let value = (ArgumentValue::from(&json!(["x&y", 2])), ArgumentValue::from(&json!({ "k": "v=w" })));
        let (media_type, body) = BodyMediaType::Form.encode_fields(&[(&plain, &value.0), (&deep, &value.1)]).unwrap();
        assert_eq!(media_type, "application/x-www-form-urlencoded");
        assert_eq!(body, "a%20b=x%26y&a%20b=2&m%5Bk%5D=v%3Dw");
    }

    #[test]
    fn multipart_field_names_cannot_add_headers() {
        let (text, sent) = (field("a\"\r\nX: y", FieldEncoding::Plain), field("f", FieldEncoding::File));
        let value = ["1\r\n2", "data:image/png;base64,AAEC"].map(|text| ArgumentValue::String(text.to_owned()));
        let (media_type, body) =
            BodyMediaType::Multipart.encode_fields(&[(&text, &value[0]), (&sent, &value[1])]).unwrap();
        let boundary = media_type.to_str().unwrap().split_once("boundary=").unwrap().1;
        let expected = format!(
            "--{boundary}\r\nContent-Disposition: form-data; name=\"a%22%0D%0AX: y\"\r\n\r\n1\r\n2\r\n\
             --{boundary}\r\nContent-Disposition: form-data; name=\"f\"; filename=\"f\"\r\n\
             Content-Type: image/png\r\n\r\n\0\u{1}\u{2}\r\n--{boundary}--\r\n"
        );
        assert_eq!(body, expected);
    }

    #[test]
    fn media_types_are_parsed_and_wildcards_refused() {
        assert!(matches!(
            BodyMediaType::parse("application/vnd.api+json; charset=utf-8"),
            Some(BodyMediaType::Json(_))
        ));
        assert!(matches!(BodyMediaType::parse("Application/JSON"), Some(BodyMediaType::Json(_))));
        assert!(matches!(BodyMediaType::parse("multipart/form-data"), Some(BodyMediaType::Multipart)));
        assert!(matches!(BodyMediaType::parse("text/plain"), Some(BodyMediaType::Other(_))));
        let spaced = BodyMediaType::parse("application/json ; charset=utf-8");
        assert!(matches!(spaced, Some(BodyMediaType::Json(value)) if value == "application/json ; charset=utf-8"));
        assert!(BodyMediaType::parse("*/*").is_none() && BodyMediaType::parse("text/*").is_none());
        assert!(BodyMediaType::parse("a/b\r\nX: y").is_none());
    }
}
