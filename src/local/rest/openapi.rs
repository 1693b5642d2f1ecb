//! Tools from the operations of an API document.

use http::{HeaderValue, Method as Verb};
use serde_json::{Map, Value, json};
use wildmatch::WildMatch;

use super::arguments::{ToolArgument, truncated};
use super::base_url::{BaseUrl, has_dot_segment, settable_header};
use super::body::{BodyField, BodyMediaType, FieldEncoding, RequestBodyTemplate, is_json, parse_media_type};
use super::document::{ApiDocument, OpenApiVersion};
use super::encode::{Escape, ParameterStyle};
use super::names::UniqueNames;
use super::parameters::{self, ApiParameter, DeclaredBody, ParameterLocation};
use super::request_template::{Placeholder, QueryParameter, RequestTemplate, Segment, TextTemplate, decode_query_text};
use super::schema::SchemaBuilder;
use super::spec::RestSpec;

/// Length limits of texts from the document.
const MAX_TOOL_TITLE_BYTES: usize = 120;
const MAX_TOOL_DESCRIPTION_BYTES: usize = 1500;
/// Argument limit of a tool; operations with more are skipped.
const MAX_TOOL_ARGUMENTS: usize = 200;
/// Tool limit of a document; further operations are skipped.
const MAX_TOOLS: usize = 5000;
/// HTTP methods that become tools. `TRACE` is excluded, because it echoes credentials.
const OFFERED_METHODS: &[(&str, Verb)] = &[
    ("get", Verb::GET),
    ("put", Verb::PUT),
    ("post", Verb::POST),
    ("delete", Verb::DELETE),
    ("options", Verb::OPTIONS),
    ("head", Verb::HEAD),
    ("patch", Verb::PATCH),
];

/// Appended to the description of arguments that take bytes.
const FILE_ARGUMENT_HINT: &str = "Text, or bytes as a `data:` URI in Base64.";

/// A tool: its definition in `tools/list`, and the template of its request.
#[derive(Debug)]
pub(super) struct RestTool {
    pub(super) name: String,
    pub(super) definition: Value,
    pub(super) template: RequestTemplate,
}

/// Tool annotations that follow from the HTTP method.
#[derive(Debug, Clone, Copy)]
pub(super) struct ToolHints {
    pub(super) read_only: bool,
    pub(super) destructive: bool,
    pub(super) idempotent: bool,
}

/// The `allow` and `deny` patterns of the configuration.
#[derive(Debug)]
struct OperationFilter {
    allow: Vec<WildMatch>,
    deny: Vec<WildMatch>,
}

/// An operation with the path item that contains it.
struct Operation<'d> {
    verb: Verb,
    path: &'d str,
    path_item: &'d Value,
    object: &'d Value,
}

/// Converts the allowed operations of a document; one that cannot be converted is logged and skipped.
pub(super) fn tools(document: &ApiDocument, spec: &RestSpec, base: &BaseUrl, names: &mut UniqueNames) -> Vec<RestTool> {
    let filter = OperationFilter::new(spec);
    let mut tools = Vec::new();
    let paths = document.root()["paths"].as_object();
    for (path, path_item) in paths.into_iter().flatten().filter(|(path, _)| !path.starts_with("x-")) {
        let path_item = parameters::resolve_references(document, path_item);
        for (key, verb) in OFFERED_METHODS {
            let Some(object) = path_item.get(*key).filter(|object| object.is_object()) else { continue };
            if tools.len() == MAX_TOOLS {
                tracing::warn!(
                    max_tools = MAX_TOOLS,
                    "API document has too many operations, the rest is skipped; narrow `allow`"
                );
                return tools;
            }
            let operation = Operation { verb: verb.clone(), path, path_item, object };
            let id = object["operationId"].as_str();
            let wanted = id.map_or_else(|| format!("{key} {path}"), str::to_owned);
            if !filter.allows(&[&super::names::sanitize(&wanted), &wanted, &format!("{verb} {path}")]) {
                continue;
            }
            match operation.tool(document, base) {
                Ok((definition, template)) => {
                    let name = names.reserve_similar(&wanted, None);
                    tools.push(RestTool { definition: with_name(&name, definition), name, template });
                }
                Err(why) => tracing::warn!(%verb, path, why, "API operation skipped"),
            }
        }
    }
    tools
}

fn with_name(name: &str, mut definition: Map<String, Value>) -> Value {
    definition.insert("name".to_owned(), name.into());
    Value::Object(definition)
}

// === impl Operation ===

impl<'d> Operation<'d> {
    /// The tool definition without its name, and the request template.
    fn tool(&self, document: &'d ApiDocument, base: &BaseUrl) -> Result<(Map<String, Value>, RequestTemplate), String> {
        let fixed = self.path.split('#').next().unwrap_or_default();
        let (fixed, fixed_query) = fixed.split_once('?').unwrap_or((fixed, ""));
        if !fixed.starts_with('/') || has_dot_segment(fixed) {
            return Err("its path does not lead below the base URL".to_owned());
        }
        let (declared_parameters, body) = parameters::of_operation(document, self.path_item, self.object);
        let mut builder = ToolBuilder::new(document, base, self.verb.clone());
        for name in path_placeholders(fixed) {
            let declared = declared_parameters
                .iter()
                .find(|parameter| parameter.location == ParameterLocation::Path && parameter.name == name);
            builder.add_path_parameter(name, declared);
        }
        for parameter in declared_parameters.iter().filter(|parameter| parameter.location != ParameterLocation::Path) {
            builder.add_parameter(parameter);
        }
        builder.add_body(body);
        let placeholders = builder.path.clone();
        let path = TextTemplate::parse(fixed, false, |name| {
            placeholders
                .iter()
                .find(|placeholder| placeholder.name == name)
                .cloned()
                .ok_or_else(|| format!("{name:?} has no parameter"))
        })?;
        for pair in fixed_query.split('&').filter(|pair| !pair.is_empty() && !pair.contains('{')) {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            let text = TextTemplate::parse(value, false, |_| Err("no argument can be here".to_owned()))?;
            builder.query.push(QueryParameter::Template(decode_query_text(name), text.decode_query_text()));
        }
        if builder.arguments.len() > MAX_TOOL_ARGUMENTS {
            return Err(format!(
                "it takes {} arguments; at most {MAX_TOOL_ARGUMENTS} are offered",
                builder.arguments.len()
            ));
        }
        let accept = self.accept(document);
        let (schema, template) = builder.finish(path, accept);
        Ok((self.definition(schema), template))
    }

    fn definition(&self, schema: Value) -> Map<String, Value> {
        let summary = self.object["summary"].as_str().map(str::trim).filter(|summary| !summary.is_empty());
        let text = self.object["description"].as_str().map(str::trim).filter(|text| !text.is_empty());
        let mut description = match (summary, text) {
            (Some(summary), Some(text)) if !text.starts_with(summary) => format!("{summary}\n\n{text}"),
            (_, Some(text)) => text.to_owned(),
            (Some(summary), None) => summary.to_owned(),
            (None, None) => format!("{} {}", self.verb, self.path),
        };
        if self.object["deprecated"] == Value::Bool(true) {
            description = format!("Deprecated. {description}");
        }
        let mut listed = Map::new();
        if let Some(title) = summary {
            listed.insert("title".to_owned(), shortened(title, MAX_TOOL_TITLE_BYTES).into());
        }
        listed.insert("description".to_owned(), shortened(&description, MAX_TOOL_DESCRIPTION_BYTES).into());
        listed.insert("inputSchema".to_owned(), schema);
        listed.insert("annotations".to_owned(), ToolHints::of(&self.verb).annotations());
        listed
    }

    /// `Accept` header from the operation's success responses, JSON first.
    fn accept(&self, document: &'d ApiDocument) -> HeaderValue {
        let mut media: Vec<&str> = Vec::new();
        for (status, response) in self.object["responses"].as_object().into_iter().flatten() {
            if !status.starts_with('2') {
                continue;
            }
            let content = parameters::resolve_references(document, response)["content"].as_object();
            media.extend(content.into_iter().flatten().map(|(name, _)| name.as_str()));
        }
        if document.version() == OpenApiVersion::Swagger2 {
            let produces = self.object["produces"].as_array().or_else(|| document.root()["produces"].as_array());
            media.extend(produces.into_iter().flatten().filter_map(Value::as_str));
        }
        media.retain(|name| name.contains('/') && !name.contains(['*', ',']) && name.len() <= 100);
        media.sort_by_key(|name| !parse_media_type(name).is_some_and(|media_type| is_json(&media_type)));
        media.dedup();
        if media.is_empty() {
            media.push("application/json");
        }
        media.truncate(4);
        let text = format!("{}, */*;q=0.5", media.join(", "));
        HeaderValue::from_str(&text).unwrap_or(DEFAULT_ACCEPT)
    }
}

/// `Accept` header of operations that declare no media type.
pub(super) const DEFAULT_ACCEPT: HeaderValue = HeaderValue::from_static("application/json, */*;q=0.5");

fn path_placeholders(path: &str) -> impl Iterator<Item = &str> {
    path.split('{').skip(1).filter_map(|rest| rest.split_once('}').map(|(name, _)| name))
}

pub(super) fn shortened(text: &str, max_bytes: usize) -> String {
    if text.len() <= max_bytes { text.to_owned() } else { format!("{}…", truncated(text, max_bytes).trim_end()) }
}

// === impl ToolBuilder ===

/// Collects the arguments of one tool and their places in the request.
struct ToolBuilder<'d, 'b> {
    base: &'b BaseUrl,
    schema: SchemaBuilder<'d>,
    names: UniqueNames,
    properties: Map<String, Value>,
    arguments: Vec<ToolArgument>,
    path: Vec<Placeholder>,
    query: Vec<QueryParameter>,
    headers: Vec<(http::HeaderName, TextTemplate)>,
    cookies: Vec<Placeholder>,
    body: Option<RequestBodyTemplate>,
    verb: Verb,
}

impl<'d, 'b> ToolBuilder<'d, 'b> {
    fn new(document: &'d ApiDocument, base: &'b BaseUrl, verb: Verb) -> Self {
        Self {
            base,
            schema: SchemaBuilder::new(document),
            names: UniqueNames::default(),
            properties: Map::new(),
            arguments: Vec::new(),
            path: Vec::new(),
            query: Vec::new(),
            headers: Vec::new(),
            cookies: Vec::new(),
            body: None,
            verb,
        }
    }

    /// Adds an argument under a unique name and returns its index.
    fn add_argument(
        &mut self,
        wanted: &str,
        location: &str,
        required: bool,
        schema: Value,
        stated: Option<&str>,
    ) -> usize {
        let name = self.names.reserve_similar(wanted, Some(location));
        let mut schema = schema;
        if let (Some(stated), Some(members)) =
            (stated.filter(|stated| !stated.trim().is_empty()), schema.as_object_mut())
        {
            members.insert("description".to_owned(), shortened(stated.trim(), 600).into());
        }
        self.arguments.push(ToolArgument::from_schema(&name, required, &schema));
        self.properties.insert(name, schema);
        self.arguments.len() - 1
    }

    fn add_path_parameter(&mut self, name: &str, declared: Option<&ApiParameter<'d>>) {
        if self.path.iter().any(|placeholder| placeholder.name == name) {
            return;
        }
        let (schema, stated) = match declared {
            Some(parameter) => (
                parameter.schema.map_or_else(|| json!({}), |schema| self.schema.convert_root(schema)),
                parameter.description,
            ),
            None => (json!({ "type": "string" }), None),
        };
        let (style, explode) =
            declared.map_or((ParameterStyle::Simple, false), |parameter| (parameter.style, parameter.explode));
        let argument_index = self.add_argument(name, "path", true, schema, stated);
        self.path.push(Placeholder { name: name.to_owned(), argument_index, style, explode });
    }

    fn add_parameter(&mut self, parameter: &ApiParameter<'d>) {
        let header = match parameter.location {
            ParameterLocation::Query if self.base.is_query_protected(parameter.name) => return,
            ParameterLocation::Header => match settable_header(self.base, parameter.name) {
                // `Accept` is set from the declared media types.
                Some(name) if name != http::header::ACCEPT => Some(name),
                _ => return,
            },
            ParameterLocation::Cookie if self.base.headers().contains_key(http::header::COOKIE) => return,
            _ => None,
        };
        let schema = parameter.schema.map_or_else(|| json!({}), |schema| self.schema.convert_root(schema));
        let location = parameter.location.as_str();
        let argument_index =
            self.add_argument(parameter.name, location, parameter.required, schema, parameter.description);
        let placeholder = Placeholder {
            name: parameter.name.to_owned(),
            argument_index,
            style: parameter.style,
            explode: parameter.explode,
        };
        match (parameter.location, header) {
            (ParameterLocation::Query, _) => {
                let escape = if parameter.allow_reserved { Escape::KeepReserved } else { Escape::Strict };
                self.query.push(QueryParameter::Styled(placeholder, escape));
            }
            (ParameterLocation::Header, Some(name)) => {
                self.headers.push((name, TextTemplate(vec![Segment::Value(placeholder)])));
            }
            (ParameterLocation::Cookie, _) => self.cookies.push(placeholder),
            (ParameterLocation::Header | ParameterLocation::Path, _) => {}
        }
    }

    fn add_body(&mut self, body: Option<DeclaredBody<'d>>) {
        match body {
            None => {}
            Some(DeclaredBody::Schema { media, schema, required, description, encoding }) => {
                let members = schema.filter(|_| media.has_members()).and_then(|schema| self.schema.members(schema));
                let free = |name: &&str| self.names.is_free(&super::names::sanitize(name));
                match members.filter(|members| members.properties.keys().all(free)) {
                    Some(members) => {
                        let fields = members.properties.into_iter().map(|(name, property)| {
                            let needed = required && members.required.contains(&name);
                            self.add_body_field(name, property, needed, None, encoding.get(name))
                        });
                        let fields = fields.collect();
                        self.body = Some(RequestBodyTemplate::Fields(fields, media, required));
                    }
                    None => {
                        let schema = match (schema, &media) {
                            (Some(schema), media) if media.has_members() => self.schema.convert_root(schema),
                            (_, BodyMediaType::Other(_)) => json!({ "type": "string" }),
                            _ => json!({}),
                        };
                        let stated = match &media {
                            BodyMediaType::Other(name) => {
                                let name = name.to_str().unwrap_or_default();
                                Some(format!("{} As {name}. {FILE_ARGUMENT_HINT}", description.unwrap_or_default()))
                            }
                            _ => description.map(str::to_owned),
                        };
                        let argument_index = self.add_argument("body", "content", required, schema, stated.as_deref());
                        self.body = Some(RequestBodyTemplate::Argument(argument_index, media));
                    }
                }
            }
            Some(DeclaredBody::Fields { media, fields }) => {
                let required = fields.iter().any(|field| field.required);
                let fields = fields
                    .iter()
                    .map(|parameter| {
                        let schema = parameter.schema.unwrap_or(&Value::Null);
                        let mut field = self.add_body_field(
                            parameter.name,
                            schema,
                            parameter.required,
                            parameter.description,
                            None,
                        );
                        if field.encoding == FieldEncoding::Plain
                            && (parameter.style, parameter.explode) != (ParameterStyle::Form, true)
                        {
                            field.encoding = FieldEncoding::Styled(parameter.style, parameter.explode);
                        }
                        field
                    })
                    .collect();
                self.body = Some(RequestBodyTemplate::Fields(fields, media, required));
            }
        }
    }

    fn add_body_field(
        &mut self,
        name: &str,
        schema: &'d Value,
        required: bool,
        stated: Option<&str>,
        encoding: Option<&Value>,
    ) -> BodyField {
        let schema = self.schema.convert_root(schema);
        let bytes = "application/octet-stream";
        let files = |schema: &Value| schema["format"] == "binary" || schema["contentMediaType"] == bytes;
        let field_encoding = match encoding.and_then(parameters::field_style) {
            Some((style, explode)) => FieldEncoding::Styled(style, explode),
            None if files(&schema) || files(&schema["items"]) => FieldEncoding::File,
            None => FieldEncoding::Plain,
        };
        let stated = match (field_encoding, stated.or_else(|| schema["description"].as_str())) {
            (FieldEncoding::File, stated) => Some(format!("{} {FILE_ARGUMENT_HINT}", stated.unwrap_or_default())),
            (_, stated) => stated.map(str::to_owned),
        };
        let argument_index = self.add_argument(name, "body", required, schema, stated.as_deref());
        BodyField { name: name.to_owned(), argument_index, encoding: field_encoding }
    }

    fn finish(self, path: TextTemplate, accept: HeaderValue) -> (Value, RequestTemplate) {
        let required: Vec<&String> = self
            .arguments
            .iter()
            .filter(|argument_index| argument_index.required)
            .map(|argument_index| &argument_index.name)
            .collect();
        let mut schema = json!({ "type": "object", "properties": self.properties, "additionalProperties": false });
        if !required.is_empty() {
            schema["required"] = json!(required);
        }
        if let Some(definitions) = self.schema.finish() {
            schema["$defs"] = definitions;
        }
        let template = RequestTemplate {
            verb: self.verb,
            path,
            query: self.query,
            headers: self.headers,
            cookies: self.cookies,
            body: self.body,
            accept,
            arguments: self.arguments,
            result_path: None,
        };
        (schema, template)
    }
}

// === impl ToolHints ===

impl ToolHints {
    /// Annotations by the semantics of the HTTP method (RFC 9110).
    pub(super) fn of(verb: &Verb) -> Self {
        let read_only = matches!(*verb, Verb::GET | Verb::HEAD | Verb::OPTIONS);
        let destructive = *verb == Verb::DELETE;
        Self { read_only, destructive, idempotent: read_only || destructive || *verb == Verb::PUT }
    }

    pub(super) fn annotations(self) -> Value {
        let mut all =
            json!({ "readOnlyHint": self.read_only, "idempotentHint": self.idempotent, "openWorldHint": true });
        if !self.read_only {
            all["destructiveHint"] = self.destructive.into();
        }
        all
    }
}

// === impl OperationFilter ===

impl OperationFilter {
    fn new(spec: &RestSpec) -> Self {
        let read = |patterns: &[String]| patterns.iter().map(|pattern| WildMatch::new(pattern)).collect();
        Self { allow: read(&spec.allow), deny: read(&spec.deny) }
    }

    fn allows(&self, names: &[&str]) -> bool {
        let any = |patterns: &[WildMatch]| patterns.iter().any(|one| names.iter().any(|name| one.matches(name)));
        (self.allow.is_empty() || any(&self.allow)) && !any(&self.deny)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn base() -> (RestSpec, BaseUrl) {
        let base_url = "https://api.example.com/v1".parse().unwrap();
        let (headers, query) = (http::HeaderMap::new(), Vec::new());
        let spec = RestSpec { base_url, headers, query, document: None, allow: vec![], deny: vec![], tools: vec![] };
        let base = BaseUrl::new(&spec).unwrap();
        (spec, base)
    }

    fn listed(document: Value) -> Vec<Value> {
        let (spec, base) = base();
        let document = ApiDocument::new(document).unwrap();
        tools(&document, &spec, &base, &mut UniqueNames::default()).into_iter().map(|tool| tool.definition).collect()
    }

    #[test]
    fn tools_are_named_described_and_annotated() {
        let document = json!({ "openapi": "3.0.0", "paths": { "/a/{b}": {
            "get": { "summary": "Gets a.", "description": "Gets a, with b." },
            "put": { "operationId": "same" },
            "patch": { "operationId": "same", "deprecated": true },
            "delete": { "operationId": "rid", "summary": "x".repeat(5000) },
        } } });
        let tools = listed(document);
        let stated = |n: usize| (tools[n]["name"].as_str().unwrap(), tools[n]["description"].as_str().unwrap());
        assert_eq!(stated(0), ("get_a_b", "Gets a.\n\nGets a, with b."));
        assert_eq!(stated(1), ("same", "PUT /a/{b}"));
        assert_eq!(
            tools[1]["annotations"],
            json!({ "readOnlyHint": false, "destructiveHint": false, "idempotentHint": true, "openWorldHint": true })
        );
        assert_eq!(tools[2]["annotations"]["destructiveHint"], true);
        assert!(tools[2]["title"].as_str().unwrap().len() < 130 && stated(2).1.len() < 1600);
        assert_eq!(stated(3), ("same_2", "Deprecated. PATCH /a/{b}"));
        assert_eq!(tools[0]["inputSchema"]["required"], json!(["b"]));
    }

    /// Arbitrary JSON built from keywords that mean something in an API document.
    fn anything() -> impl Strategy<Value = Value> {
        let word = prop::sample::select(vec![
            "path",
            "query",
            "header",
            "cookie",
            "body",
            "formData",
            "string",
            "object",
            "array",
            "a",
            "b",
            "deepObject",
            "#/components/x",
            "#/paths/~1a~1{b}/get",
            "#",
            "https://h/x",
        ]);
        let key = prop::sample::select(vec![
            "parameters",
            "requestBody",
            "content",
            "application/json",
            "multipart/form-data",
            "schema",
            "properties",
            "required",
            "type",
            "items",
            "allOf",
            "oneOf",
            "$ref",
            "name",
            "in",
            "style",
            "explode",
            "enum",
            "nullable",
            "additionalProperties",
            "responses",
            "200",
            "operationId",
            "encoding",
            "a",
            "b",
        ]);
        let leaf = prop_oneof![
            word.prop_map(Value::from),
            any::<bool>().prop_map(Value::from),
            Just(Value::Null),
            (-3..3i64).prop_map(Value::from),
        ];
        leaf.prop_recursive(6, 60, 6, move |inner| {
            let members = prop::collection::vec((key.clone(), inner.clone()), 0..6);
            let object = members.prop_map(|members| {
                Value::Object(members.into_iter().map(|(key, value)| (key.to_owned(), value)).collect())
            });
            prop_oneof![object, prop::collection::vec(inner, 0..4).prop_map(Value::from)]
        })
    }

    proptest! {
        #[test]
        fn arbitrary_documents_never_panic(operation in anything(), x in anything(), pick in 0..3usize, swagger in any::<bool>()) {
            let (location, media) = [("query", "application/json"), ("header", "multipart/form-data"), ("cookie", "a/b")][pick];
            let parameters = json!([{ "name": "a", "in": location, "schema": operation }, { "name": "f", "in": "formData", "items": x }, x]);
            let content = json!({ media: { "schema": x, "encoding": operation } });
            let post = json!({ "parameters": parameters, "requestBody": { "content": content, "required": true } });
            let mut document = json!({
                "paths": { "/a/{b}": { "get": operation, "post": post, "parameters": x } },
                "components": { "x": x },
            });
            document[if swagger { "swagger" } else { "openapi" }] = if swagger { "2.0" } else { "3.1.0" }.into();
            for tool in listed(document) {
                prop_assert_eq!(&tool["inputSchema"]["type"], "object");
                prop_assert!(tool["inputSchema"].to_string().len() < 100_000);
            }
        }
    }
}
