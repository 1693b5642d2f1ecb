//! What an operation takes, as its document says: parameters, and the body.

use serde_json::Value;

use super::body::{Media, is_json};
use super::document::{ApiDocument, Dialect};
use super::encode::Style;

/// How many references lead from one to the next.
const LONGEST_CHAIN: usize = 8;
/// What is said of that of which nothing is said.
static NOTHING: Value = Value::Null;

/// One parameter.
#[derive(Debug, Clone)]
pub(super) struct ApiParameter<'d> {
    pub(super) name: &'d str,
    pub(super) place: ParameterLocation,
    pub(super) required: bool,
    pub(super) description: Option<&'d str>,
    pub(super) schema: Option<&'d Value>,
    pub(super) style: Style,
    pub(super) explode: bool,
    /// Whether reserved characters stay as they are.
    pub(super) reserved: bool,
}

/// Where a parameter stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum ParameterLocation {
    Path,
    Query,
    Header,
    Cookie,
}

/// What is sent in the body.
#[derive(Debug)]
pub(super) enum Sent<'d> {
    /// What a schema says.
    Schema {
        media: Media,
        schema: Option<&'d Value>,
        required: bool,
        description: Option<&'d str>,
        encoding: &'d Value,
    },
    /// The fields of a form, one by one (Swagger 2.0).
    Fields { media: Media, fields: Vec<ApiParameter<'d>> },
}

impl ParameterLocation {
    pub(super) fn as_str(self) -> &'static str {
        match self {
            Self::Path => "path",
            Self::Query => "query",
            Self::Header => "header",
            Self::Cookie => "cookie",
        }
    }
}

/// Follows references to what they mean; what leads nowhere means nothing.
pub(super) fn followed<'d>(document: &'d ApiDocument, value: &'d Value) -> &'d Value {
    let mut here = value;
    for _ in 0..LONGEST_CHAIN {
        let Some(reference) = here.get("$ref").and_then(Value::as_str) else { return here };
        here = document.find(reference).unwrap_or(&NOTHING);
    }
    &NOTHING
}

/// What an operation takes. Its own parameters come before those of its path.
pub(super) fn of<'d>(
    document: &'d ApiDocument,
    item: &'d Value,
    own: &'d Value,
) -> (Vec<ApiParameter<'d>>, Option<Sent<'d>>) {
    let mut all: Vec<&Value> = Vec::new();
    for list in [&own["parameters"], &item["parameters"]] {
        for parameter in list.as_array().into_iter().flatten() {
            let parameter = followed(document, parameter);
            let known = all.iter().any(|other| other["name"] == parameter["name"] && other["in"] == parameter["in"]);
            if !known && parameter["name"].is_string() {
                all.push(parameter);
            }
        }
    }
    let mut found: Vec<ApiParameter<'d>> = all.iter().filter_map(|parameter| read(document, parameter)).collect();
    found.sort_by_key(|found| found.place);
    let sent = match document.dialect() {
        Dialect::Swagger => swagger_body(document, own, &all),
        Dialect::Older | Dialect::Newest => body(document, own),
    };
    (found, sent)
}

fn read<'d>(document: &ApiDocument, parameter: &'d Value) -> Option<ApiParameter<'d>> {
    let place = match parameter["in"].as_str()? {
        "path" => ParameterLocation::Path,
        "query" => ParameterLocation::Query,
        "header" => ParameterLocation::Header,
        "cookie" => ParameterLocation::Cookie,
        _ => return None,
    };
    let name = parameter["name"].as_str().filter(|name| !name.is_empty())?;
    let description = parameter["description"].as_str();
    let required = parameter["required"] == Value::Bool(true);
    let reserved = parameter["allowReserved"] == Value::Bool(true);
    let found =
        ApiParameter { name, place, required, description, schema: None, style: Style::Form, explode: true, reserved };
    if document.dialect() == Dialect::Swagger {
        let (style, explode) = collection(parameter, place);
        return Some(ApiParameter { schema: Some(parameter), style, explode, ..found });
    }
    // A parameter with a media type is written in that.
    if let Some(content) = parameter["content"].as_object().and_then(|content| content.iter().next()) {
        let style = if is_json(content.0) { Style::Json } else { Style::Form };
        return Some(ApiParameter { schema: content.1.get("schema"), style, ..found });
    }
    let (style, explode) = style(parameter, place);
    Some(ApiParameter { schema: parameter.get("schema"), style, explode, ..found })
}

fn style(parameter: &Value, place: ParameterLocation) -> (Style, bool) {
    let style = match (place, parameter["style"].as_str()) {
        (ParameterLocation::Path, Some("label")) => Style::Label,
        (ParameterLocation::Path, Some("matrix")) => Style::Matrix,
        (ParameterLocation::Path | ParameterLocation::Header, _) => Style::Simple,
        (ParameterLocation::Query, Some("spaceDelimited")) => Style::Delimited(' '),
        (ParameterLocation::Query, Some("pipeDelimited")) => Style::Delimited('|'),
        (ParameterLocation::Query, Some("deepObject")) => Style::Deep,
        (ParameterLocation::Query | ParameterLocation::Cookie, _) => Style::Form,
    };
    let explode = parameter["explode"].as_bool().unwrap_or(style == Style::Form);
    (style, explode)
}

/// How Swagger 2.0 says what a list looks like.
fn collection(parameter: &Value, place: ParameterLocation) -> (Style, bool) {
    let list = parameter["collectionFormat"].as_str().unwrap_or("csv");
    match (place, list) {
        (ParameterLocation::Path | ParameterLocation::Header, _) => (Style::Simple, false),
        (_, "multi") => (Style::Form, true),
        (_, "ssv") => (Style::Delimited(' '), false),
        (_, "tsv") => (Style::Delimited('\t'), false),
        (_, "pipes") => (Style::Delimited('|'), false),
        _ => (Style::Form, false),
    }
}

/// How a field of a form is written, where its document says so.
pub(super) fn style_of_field(encoding: &Value) -> Option<(Style, bool)> {
    if encoding.get("style").is_none() && encoding.get("explode").is_none() {
        return None;
    }
    Some(style(encoding, ParameterLocation::Query))
}

fn body<'d>(document: &'d ApiDocument, own: &'d Value) -> Option<Sent<'d>> {
    let body = followed(document, own.get("requestBody")?);
    let content = body["content"].as_object()?;
    let (_, media, how) = content
        .iter()
        .filter_map(|(name, how)| {
            let media =
                Media::named(name).or_else(|| name.contains('*').then(|| Media::named("application/json"))?)?;
            Some((rank(&media), media, how))
        })
        .min_by_key(|(rank, ..)| *rank)?;
    Some(Sent::Schema {
        media,
        schema: how.get("schema"),
        required: body["required"] == Value::Bool(true),
        description: body["description"].as_str(),
        encoding: &how["encoding"],
    })
}

/// Which of several media types is sent: the one that says most of its members.
fn rank(media: &Media) -> u8 {
    match media {
        Media::Json(name) if name == "application/json" => 0,
        Media::Json(_) => 1,
        Media::Form => 2,
        Media::Multipart => 3,
        Media::Other(_) => 4,
    }
}

fn swagger_body<'d>(document: &'d ApiDocument, own: &'d Value, all: &[&'d Value]) -> Option<Sent<'d>> {
    let consumes = own["consumes"].as_array().or_else(|| document.root()["consumes"].as_array());
    let consumes: Vec<Media> = consumes.into_iter().flatten().filter_map(|name| Media::named(name.as_str()?)).collect();
    if let Some(body) = all.iter().find(|parameter| parameter["in"] == "body") {
        let able = consumes.into_iter().filter(|media| !matches!(media, Media::Form | Media::Multipart));
        return Some(Sent::Schema {
            media: able.min_by_key(rank).or_else(|| Media::named("application/json"))?,
            schema: body.get("schema"),
            required: body["required"] == Value::Bool(true),
            description: body["description"].as_str(),
            encoding: &NOTHING,
        });
    }
    let mut fields = Vec::new();
    let mut files = false;
    for parameter in all.iter().filter(|parameter| parameter["in"] == "formData") {
        files |= parameter["type"] == "file";
        let (style, explode) = collection(parameter, ParameterLocation::Query);
        let (style, explode) = if parameter["type"] == "array" { (style, explode) } else { (Style::Form, true) };
        fields.push(ApiParameter {
            name: parameter["name"].as_str()?,
            place: ParameterLocation::Query,
            required: parameter["required"] == Value::Bool(true),
            description: parameter["description"].as_str(),
            schema: Some(*parameter),
            style,
            explode,
            reserved: false,
        });
    }
    if fields.is_empty() {
        return None;
    }
    let parts = files || (!consumes.is_empty() && consumes.iter().all(|media| !matches!(media, Media::Form)));
    Some(Sent::Fields { media: if parts { Media::Multipart } else { Media::Form }, fields })
}
