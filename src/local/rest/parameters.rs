//! Parameters and request body that an operation declares.

use serde_json::Value;

use super::body::{BodyMediaType, is_json, parse_media_type};
use super::document::{ApiDocument, OpenApiVersion};
use super::encode::ParameterStyle;

/// Longest chain of `$ref` that is followed.
const MAX_PARAMETER_REFERENCE_CHAIN: usize = 8;
/// Stands for a missing value, with a lifetime that outlives every document.
static NULL: Value = Value::Null;

/// A declared parameter.
#[derive(Debug, Clone)]
pub(super) struct ApiParameter<'d> {
    pub(super) name: &'d str,
    pub(super) location: ParameterLocation,
    pub(super) required: bool,
    pub(super) description: Option<&'d str>,
    pub(super) schema: Option<&'d Value>,
    pub(super) style: ParameterStyle,
    pub(super) explode: bool,
    /// `allowReserved`: reserved characters are not percent-encoded.
    pub(super) allow_reserved: bool,
}

/// The `in` of a parameter; the order is that of a tool's arguments.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum ParameterLocation {
    Path,
    Query,
    Header,
    Cookie,
}

/// A declared request body.
#[derive(Debug)]
pub(super) enum DeclaredBody<'d> {
    /// Described by one schema.
    Schema {
        media: BodyMediaType,
        schema: Option<&'d Value>,
        required: bool,
        description: Option<&'d str>,
        encoding: &'d Value,
    },
    /// Form fields declared as parameters (Swagger 2.0).
    Fields { media: BodyMediaType, fields: Vec<ApiParameter<'d>> },
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

/// Follows `$ref` chains; null when the target is missing or the chain is too long.
pub(super) fn resolve_references<'d>(document: &'d ApiDocument, value: &'d Value) -> &'d Value {
    let mut current = value;
    for _ in 0..MAX_PARAMETER_REFERENCE_CHAIN {
        let Some(reference) = current.get("$ref").and_then(Value::as_str) else { return current };
        current = document.resolve_reference(reference).unwrap_or(&NULL);
    }
    &NULL
}

/// Parameters and body of an operation. Its own parameters override those of the path item.
pub(super) fn of_operation<'d>(
    document: &'d ApiDocument,
    path_item: &'d Value,
    operation: &'d Value,
) -> (Vec<ApiParameter<'d>>, Option<DeclaredBody<'d>>) {
    let mut all: Vec<&Value> = Vec::new();
    for list in [&operation["parameters"], &path_item["parameters"]] {
        for parameter in list.as_array().into_iter().flatten() {
            let parameter = resolve_references(document, parameter);
            let known = all.iter().any(|other| other["name"] == parameter["name"] && other["in"] == parameter["in"]);
            if !known && parameter["name"].is_string() {
                all.push(parameter);
            }
        }
    }
    let mut found: Vec<ApiParameter<'d>> =
        all.iter().filter_map(|parameter| parse_parameter(document, parameter)).collect();
    found.sort_by_key(|found| found.location);
    let body = match document.version() {
        OpenApiVersion::Swagger2 => swagger_body(document, operation, &all),
        OpenApiVersion::OpenApi30 | OpenApiVersion::OpenApi31 => request_body(document, operation),
    };
    (found, body)
}

fn parse_parameter<'d>(document: &ApiDocument, parameter: &'d Value) -> Option<ApiParameter<'d>> {
    let location = match parameter["in"].as_str()? {
        "path" => ParameterLocation::Path,
        "query" => ParameterLocation::Query,
        "header" => ParameterLocation::Header,
        "cookie" => ParameterLocation::Cookie,
        _ => return None,
    };
    let name = parameter["name"].as_str().filter(|name| !name.is_empty())?;
    let description = parameter["description"].as_str();
    let required = parameter["required"] == Value::Bool(true);
    let allow_reserved = parameter["allowReserved"] == Value::Bool(true);
    let found = ApiParameter {
        name,
        location,
        required,
        description,
        schema: None,
        style: ParameterStyle::Form,
        explode: true,
        allow_reserved,
    };
    if document.version() == OpenApiVersion::Swagger2 {
        let (style, explode) = collection_style(parameter, location);
        return Some(ApiParameter { schema: Some(parameter), style, explode, ..found });
    }
    // A parameter with `content` is serialized in that media type instead of a style.
    if let Some(content) = parameter["content"].as_object().and_then(|content| content.iter().next()) {
        let is_json = parse_media_type(content.0).is_some_and(|media_type| is_json(&media_type));
        let style = if is_json { ParameterStyle::Json } else { ParameterStyle::Form };
        return Some(ApiParameter { schema: content.1.get("schema"), style, ..found });
    }
    let (style, explode) = parameter_style(parameter, location);
    Some(ApiParameter { schema: parameter.get("schema"), style, explode, ..found })
}

fn parameter_style(parameter: &Value, location: ParameterLocation) -> (ParameterStyle, bool) {
    let style = match (location, parameter["style"].as_str()) {
        (ParameterLocation::Path, Some("label")) => ParameterStyle::Label,
        (ParameterLocation::Path, Some("matrix")) => ParameterStyle::Matrix,
        (ParameterLocation::Path | ParameterLocation::Header, _) => ParameterStyle::Simple,
        (ParameterLocation::Query, Some("spaceDelimited")) => ParameterStyle::Delimited(' '),
        (ParameterLocation::Query, Some("pipeDelimited")) => ParameterStyle::Delimited('|'),
        (ParameterLocation::Query, Some("deepObject")) => ParameterStyle::DeepObject,
        (ParameterLocation::Query | ParameterLocation::Cookie, _) => ParameterStyle::Form,
    };
    let explode = parameter["explode"].as_bool().unwrap_or(style == ParameterStyle::Form);
    (style, explode)
}

/// Style of a Swagger 2.0 `collectionFormat`.
fn collection_style(parameter: &Value, location: ParameterLocation) -> (ParameterStyle, bool) {
    let list = parameter["collectionFormat"].as_str().unwrap_or("csv");
    match (location, list) {
        (ParameterLocation::Path | ParameterLocation::Header, _) => (ParameterStyle::Simple, false),
        (_, "multi") => (ParameterStyle::Form, true),
        (_, "ssv") => (ParameterStyle::Delimited(' '), false),
        (_, "tsv") => (ParameterStyle::Delimited('\t'), false),
        (_, "pipes") => (ParameterStyle::Delimited('|'), false),
        _ => (ParameterStyle::Form, false),
    }
}

/// Style of a form field, if its `encoding` object declares one.
pub(super) fn field_style(encoding: &Value) -> Option<(ParameterStyle, bool)> {
    if encoding.get("style").is_none() && encoding.get("explode").is_none() {
        return None;
    }
    Some(parameter_style(encoding, ParameterLocation::Query))
}

fn request_body<'d>(document: &'d ApiDocument, operation: &'d Value) -> Option<DeclaredBody<'d>> {
    let body = resolve_references(document, operation.get("requestBody")?);
    let content = body["content"].as_object()?;
    let (_, media, media_object) = content
        .iter()
        .filter_map(|(name, media_object)| {
            let media = BodyMediaType::parse(name)
                .or_else(|| name.contains('*').then(|| BodyMediaType::parse("application/json"))?)?;
            Some((media_preference(&media), media, media_object))
        })
        .min_by_key(|(rank, ..)| *rank)?;
    Some(DeclaredBody::Schema {
        media,
        schema: media_object.get("schema"),
        required: body["required"] == Value::Bool(true),
        description: body["description"].as_str(),
        encoding: &media_object["encoding"],
    })
}

/// Preference among declared media types, lowest first: types with named members before opaque ones.
fn media_preference(media: &BodyMediaType) -> u8 {
    match media {
        BodyMediaType::Json(name) if name == "application/json" => 0,
        BodyMediaType::Json(_) => 1,
        BodyMediaType::Form => 2,
        BodyMediaType::Multipart => 3,
        BodyMediaType::Other(_) => 4,
    }
}

fn swagger_body<'d>(document: &'d ApiDocument, operation: &'d Value, all: &[&'d Value]) -> Option<DeclaredBody<'d>> {
    let consumes = operation["consumes"].as_array().or_else(|| document.root()["consumes"].as_array());
    let consumes: Vec<BodyMediaType> =
        consumes.into_iter().flatten().filter_map(|name| BodyMediaType::parse(name.as_str()?)).collect();
    if let Some(body) = all.iter().find(|parameter| parameter["in"] == "body") {
        let able =
            consumes.into_iter().filter(|media| !matches!(media, BodyMediaType::Form | BodyMediaType::Multipart));
        return Some(DeclaredBody::Schema {
            media: able.min_by_key(media_preference).or_else(|| BodyMediaType::parse("application/json"))?,
            schema: body.get("schema"),
            required: body["required"] == Value::Bool(true),
            description: body["description"].as_str(),
            encoding: &NULL,
        });
    }
    let mut fields = Vec::new();
    let mut files = false;
    for parameter in all.iter().filter(|parameter| parameter["in"] == "formData") {
        files |= parameter["type"] == "file";
        let (style, explode) = collection_style(parameter, ParameterLocation::Query);
        let (style, explode) =
            if parameter["type"] == "array" { (style, explode) } else { (ParameterStyle::Form, true) };
        fields.push(ApiParameter {
            name: parameter["name"].as_str()?,
            location: ParameterLocation::Query,
            required: parameter["required"] == Value::Bool(true),
            description: parameter["description"].as_str(),
            schema: Some(*parameter),
            style,
            explode,
            allow_reserved: false,
        });
    }
    if fields.is_empty() {
        return None;
    }
    let parts = files || (!consumes.is_empty() && consumes.iter().all(|media| !matches!(media, BodyMediaType::Form)));
    Some(DeclaredBody::Fields { media: if parts { BodyMediaType::Multipart } else { BodyMediaType::Form }, fields })
}
