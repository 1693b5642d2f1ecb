//! The operations of a document as tools.

use http::{HeaderValue, Method as Verb};
use serde_json::{Map, Value, json};
use wildmatch::WildMatch;

use super::arguments::{Input, truncated};
use super::base_url::{Base, climbs, open_header};
use super::body::{BodyField, FieldEncoding, Media, RequestBodyTemplate};
use super::document::{ApiDocument, Dialect};
use super::encode::{Escape, Style};
use super::names::ToolNames;
use super::parameters::{self, ApiParameter, ParameterLocation, Sent};
use super::request_template::{Parameter, Placeholder, RequestTemplate, Segment, Template, meant};
use super::schema::Builder;
use super::spec::RestSpec;

/// How much of what a document says is kept.
const TITLE: usize = 120;
const DESCRIPTION: usize = 1500;
/// How many arguments a tool may have. One with more is no tool for a model.
const MOST_ARGUMENTS: usize = 200;
/// How many operations are offered at most; the rest of a document is not.
const MOST_TOOLS: usize = 5000;
/// The methods that are offered. `TRACE` repeats credentials, so it is not among them.
const VERBS: &[(&str, Verb)] = &[
    ("get", Verb::GET),
    ("put", Verb::PUT),
    ("post", Verb::POST),
    ("delete", Verb::DELETE),
    ("options", Verb::OPTIONS),
    ("head", Verb::HEAD),
    ("patch", Verb::PATCH),
];

/// How bytes are given.
const FILE: &str = "Text, or bytes as a `data:` URI in Base64.";

/// A tool as it is listed, and how it is called.
#[derive(Debug)]
pub(super) struct Tool {
    pub(super) name: String,
    pub(super) listed: Value,
    pub(super) plan: RequestTemplate,
}

/// What a tool does to the world, as its annotations say.
#[derive(Debug, Clone, Copy)]
pub(super) struct Hints {
    pub(super) read_only: bool,
    pub(super) destructive: bool,
    pub(super) idempotent: bool,
}

/// Which operations are offered.
#[derive(Debug)]
struct OperationFilter {
    allow: Vec<WildMatch>,
    deny: Vec<WildMatch>,
}

/// One operation, where it stands.
struct Operation<'d> {
    verb: Verb,
    path: &'d str,
    item: &'d Value,
    own: &'d Value,
}

/// The operations that are offered, as tools.
pub(super) fn tools(document: &ApiDocument, spec: &RestSpec, base: &Base, taken: &mut ToolNames) -> Vec<Tool> {
    let filter = OperationFilter::new(spec);
    let mut tools = Vec::new();
    let paths = document.root()["paths"].as_object();
    for (path, item) in paths.into_iter().flatten().filter(|(path, _)| !path.starts_with("x-")) {
        let item = parameters::followed(document, item);
        for (key, verb) in VERBS {
            let Some(own) = item.get(*key).filter(|own| own.is_object()) else { continue };
            if tools.len() == MOST_TOOLS {
                tracing::warn!(most = MOST_TOOLS, "the document has more operations than are offered; choose some");
                return tools;
            }
            let operation = Operation { verb: verb.clone(), path, item, own };
            let id = own["operationId"].as_str();
            let wanted = id.map_or_else(|| format!("{key} {path}"), str::to_owned);
            if !filter.lets(&[&super::names::clean(&wanted), &wanted, &format!("{verb} {path}")]) {
                continue;
            }
            match operation.tool(document, base) {
                Ok((listed, plan)) => {
                    let name = taken.nearest(&wanted, None);
                    tools.push(Tool { listed: named(&name, listed), name, plan });
                }
                Err(why) => tracing::warn!(%verb, path, why, "an operation of the document is not offered"),
            }
        }
    }
    tools
}

fn named(name: &str, mut listed: Map<String, Value>) -> Value {
    listed.insert("name".to_owned(), name.into());
    Value::Object(listed)
}

// === impl Operation ===

impl<'d> Operation<'d> {
    /// What is listed of it, but for its name, and how it is called.
    fn tool(&self, document: &'d ApiDocument, base: &Base) -> Result<(Map<String, Value>, RequestTemplate), String> {
        let fixed = self.path.split('#').next().unwrap_or_default();
        let (fixed, fixed_query) = fixed.split_once('?').unwrap_or((fixed, ""));
        if !fixed.starts_with('/') || climbs(fixed) {
            return Err("its path does not lead below the base URL".to_owned());
        }
        let (found, sent) = parameters::of(document, self.item, self.own);
        let mut making = ToolBuilder::new(document, base, self.verb.clone());
        for name in placeholders(fixed) {
            let declared = found.iter().find(|found| found.place == ParameterLocation::Path && found.name == name);
            making.path_parameter(name, declared);
        }
        for found in found.iter().filter(|found| found.place != ParameterLocation::Path) {
            making.parameter(found);
        }
        making.body(sent);
        let slots = making.path.clone();
        let path = Template::parse(fixed, false, |name| {
            slots.iter().find(|slot| slot.name == name).cloned().ok_or_else(|| format!("{name:?} has no parameter"))
        })?;
        for pair in fixed_query.split('&').filter(|pair| !pair.is_empty() && !pair.contains('{')) {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            let text = Template::parse(value, false, |_| Err("no argument can be here".to_owned()))?;
            making.query.push(Parameter::Template(meant(name), text.meant()));
        }
        if making.inputs.len() > MOST_ARGUMENTS {
            return Err(format!("it takes {} arguments; at most {MOST_ARGUMENTS} are offered", making.inputs.len()));
        }
        let accept = self.accept(document);
        let (schema, plan) = making.finish(path, accept);
        Ok((self.listed(schema), plan))
    }

    fn listed(&self, schema: Value) -> Map<String, Value> {
        let summary = self.own["summary"].as_str().map(str::trim).filter(|summary| !summary.is_empty());
        let text = self.own["description"].as_str().map(str::trim).filter(|text| !text.is_empty());
        let mut description = match (summary, text) {
            (Some(summary), Some(text)) if !text.starts_with(summary) => format!("{summary}\n\n{text}"),
            (_, Some(text)) => text.to_owned(),
            (Some(summary), None) => summary.to_owned(),
            (None, None) => format!("{} {}", self.verb, self.path),
        };
        if self.own["deprecated"] == Value::Bool(true) {
            description = format!("Deprecated. {description}");
        }
        let mut listed = Map::new();
        if let Some(title) = summary {
            listed.insert("title".to_owned(), shortened(title, TITLE).into());
        }
        listed.insert("description".to_owned(), shortened(&description, DESCRIPTION).into());
        listed.insert("inputSchema".to_owned(), schema);
        listed.insert("annotations".to_owned(), Hints::of(&self.verb).annotations());
        listed
    }

    /// What we ask for: what the operation says that it answers with, JSON before all else.
    fn accept(&self, document: &'d ApiDocument) -> HeaderValue {
        let mut media: Vec<&str> = Vec::new();
        for (status, response) in self.own["responses"].as_object().into_iter().flatten() {
            if !status.starts_with('2') {
                continue;
            }
            let content = parameters::followed(document, response)["content"].as_object();
            media.extend(content.into_iter().flatten().map(|(name, _)| name.as_str()));
        }
        if document.dialect() == Dialect::Swagger {
            let produces = self.own["produces"].as_array().or_else(|| document.root()["produces"].as_array());
            media.extend(produces.into_iter().flatten().filter_map(Value::as_str));
        }
        media.retain(|name| name.contains('/') && !name.contains(['*', ',']) && name.len() <= 100);
        media.sort_by_key(|name| !super::body::is_json(name));
        media.dedup();
        if media.is_empty() {
            media.push("application/json");
        }
        media.truncate(4);
        let text = format!("{}, */*;q=0.5", media.join(", "));
        HeaderValue::from_str(&text).unwrap_or(ANYTHING)
    }
}

/// What is asked for where nothing is said.
pub(super) const ANYTHING: HeaderValue = HeaderValue::from_static("application/json, */*;q=0.5");

fn placeholders(path: &str) -> impl Iterator<Item = &str> {
    path.split('{').skip(1).filter_map(|rest| rest.split_once('}').map(|(name, _)| name))
}

pub(super) fn shortened(text: &str, most: usize) -> String {
    if text.len() <= most { text.to_owned() } else { format!("{}…", truncated(text, most).trim_end()) }
}

// === impl Making ===

/// A tool that is being put together.
struct ToolBuilder<'d, 'b> {
    base: &'b Base,
    schema: Builder<'d>,
    names: ToolNames,
    properties: Map<String, Value>,
    inputs: Vec<Input>,
    path: Vec<Placeholder>,
    query: Vec<Parameter>,
    headers: Vec<(http::HeaderName, Template)>,
    cookies: Vec<Placeholder>,
    body: Option<RequestBodyTemplate>,
    verb: Verb,
}

impl<'d, 'b> ToolBuilder<'d, 'b> {
    fn new(document: &'d ApiDocument, base: &'b Base, verb: Verb) -> Self {
        Self {
            base,
            schema: Builder::new(document),
            names: ToolNames::default(),
            properties: Map::new(),
            inputs: Vec::new(),
            path: Vec::new(),
            query: Vec::new(),
            headers: Vec::new(),
            cookies: Vec::new(),
            body: None,
            verb,
        }
    }

    /// Adds an argument, under a name of its own.
    fn input(&mut self, wanted: &str, place: &str, required: bool, schema: Value, said: Option<&str>) -> usize {
        let name = self.names.nearest(wanted, Some(place));
        let mut schema = schema;
        if let (Some(said), Some(members)) = (said.filter(|said| !said.trim().is_empty()), schema.as_object_mut()) {
            members.insert("description".to_owned(), shortened(said.trim(), 600).into());
        }
        self.inputs.push(Input::of(&name, required, &schema));
        self.properties.insert(name, schema);
        self.inputs.len() - 1
    }

    fn path_parameter(&mut self, name: &str, declared: Option<&ApiParameter<'d>>) {
        if self.path.iter().any(|slot| slot.name == name) {
            return;
        }
        let (schema, said) = match declared {
            Some(found) => {
                (found.schema.map_or_else(|| json!({}), |schema| self.schema.top(schema)), found.description)
            }
            None => (json!({ "type": "string" }), None),
        };
        let (style, explode) = declared.map_or((Style::Simple, false), |found| (found.style, found.explode));
        let input = self.input(name, "path", true, schema, said);
        self.path.push(Placeholder { name: name.to_owned(), input, style, explode });
    }

    fn parameter(&mut self, found: &ApiParameter<'d>) {
        let header = match found.place {
            ParameterLocation::Query if self.base.keeps_query(found.name) => return,
            ParameterLocation::Header => match open_header(self.base, found.name) {
                // The media types are ours to say.
                Some(name) if name != http::header::ACCEPT => Some(name),
                _ => return,
            },
            ParameterLocation::Cookie if self.base.headers().contains_key(http::header::COOKIE) => return,
            _ => None,
        };
        let schema = found.schema.map_or_else(|| json!({}), |schema| self.schema.top(schema));
        let place = found.place.as_str();
        let input = self.input(found.name, place, found.required, schema, found.description);
        let slot = Placeholder { name: found.name.to_owned(), input, style: found.style, explode: found.explode };
        match (found.place, header) {
            (ParameterLocation::Query, _) => {
                let escape = if found.reserved { Escape::Reserved } else { Escape::Strict };
                self.query.push(Parameter::Styled(slot, escape));
            }
            (ParameterLocation::Header, Some(name)) => {
                self.headers.push((name, Template(vec![Segment::Value(slot)])));
            }
            (ParameterLocation::Cookie, _) => self.cookies.push(slot),
            (ParameterLocation::Header | ParameterLocation::Path, _) => {}
        }
    }

    fn body(&mut self, sent: Option<Sent<'d>>) {
        match sent {
            None => {}
            Some(Sent::Schema { media, schema, required, description, encoding }) => {
                let members = schema.filter(|_| media.has_members()).and_then(|schema| self.schema.members(schema));
                let free = |name: &&str| self.names.is_free(&super::names::clean(name));
                match members.filter(|members| members.properties.keys().all(free)) {
                    Some(members) => {
                        let fields = members.properties.into_iter().map(|(name, property)| {
                            let needed = required && members.required.contains(&name);
                            self.field(name, property, needed, None, encoding.get(name))
                        });
                        let fields = fields.collect();
                        self.body = Some(RequestBodyTemplate::Fields(fields, media, required));
                    }
                    None => {
                        let schema = match (schema, &media) {
                            (Some(schema), media) if media.has_members() => self.schema.top(schema),
                            (_, Media::Other(_)) => json!({ "type": "string" }),
                            _ => json!({}),
                        };
                        let said = match &media {
                            Media::Other(name) => {
                                let name = name.to_str().unwrap_or_default();
                                Some(format!("{} As {name}. {FILE}", description.unwrap_or_default()))
                            }
                            _ => description.map(str::to_owned),
                        };
                        let input = self.input("body", "content", required, schema, said.as_deref());
                        self.body = Some(RequestBodyTemplate::Whole(input, media));
                    }
                }
            }
            Some(Sent::Fields { media, fields }) => {
                let required = fields.iter().any(|field| field.required);
                let fields = fields
                    .iter()
                    .map(|found| {
                        let schema = found.schema.unwrap_or(&Value::Null);
                        let mut field = self.field(found.name, schema, found.required, found.description, None);
                        if field.how == FieldEncoding::Plain && (found.style, found.explode) != (Style::Form, true) {
                            field.how = FieldEncoding::Styled(found.style, found.explode);
                        }
                        field
                    })
                    .collect();
                self.body = Some(RequestBodyTemplate::Fields(fields, media, required));
            }
        }
    }

    fn field(
        &mut self,
        name: &str,
        schema: &'d Value,
        required: bool,
        said: Option<&str>,
        encoding: Option<&Value>,
    ) -> BodyField {
        let schema = self.schema.top(schema);
        let bytes = "application/octet-stream";
        let files = |schema: &Value| schema["format"] == "binary" || schema["contentMediaType"] == bytes;
        let how = match encoding.and_then(parameters::style_of_field) {
            Some((style, explode)) => FieldEncoding::Styled(style, explode),
            None if files(&schema) || files(&schema["items"]) => FieldEncoding::File,
            None => FieldEncoding::Plain,
        };
        let said = match (how, said.or_else(|| schema["description"].as_str())) {
            (FieldEncoding::File, said) => Some(format!("{} {FILE}", said.unwrap_or_default())),
            (_, said) => said.map(str::to_owned),
        };
        let input = self.input(name, "body", required, schema, said.as_deref());
        BodyField { name: name.to_owned(), input, how }
    }

    fn finish(self, path: Template, accept: HeaderValue) -> (Value, RequestTemplate) {
        let required: Vec<&String> =
            self.inputs.iter().filter(|input| input.required).map(|input| &input.name).collect();
        let mut schema = json!({ "type": "object", "properties": self.properties, "additionalProperties": false });
        if !required.is_empty() {
            schema["required"] = json!(required);
        }
        if let Some(definitions) = self.schema.finish() {
            schema["$defs"] = definitions;
        }
        let plan = RequestTemplate {
            verb: self.verb,
            path,
            query: self.query,
            headers: self.headers,
            cookies: self.cookies,
            body: self.body,
            accept,
            inputs: self.inputs,
            pick: None,
        };
        (schema, plan)
    }
}

// === impl Hints ===

impl Hints {
    /// What a method promises.
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

// === impl Filter ===

impl OperationFilter {
    fn new(spec: &RestSpec) -> Self {
        let read = |patterns: &[String]| patterns.iter().map(|pattern| WildMatch::new(pattern)).collect();
        Self { allow: read(&spec.allow), deny: read(&spec.deny) }
    }

    fn lets(&self, names: &[&str]) -> bool {
        let any = |patterns: &[WildMatch]| patterns.iter().any(|one| names.iter().any(|name| one.matches(name)));
        (self.allow.is_empty() || any(&self.allow)) && !any(&self.deny)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn base() -> (RestSpec, Base) {
        let base_url = "https://api.example.com/v1".parse().unwrap();
        let (headers, query) = (http::HeaderMap::new(), Vec::new());
        let spec = RestSpec { base_url, headers, query, document: None, allow: vec![], deny: vec![], tools: vec![] };
        let base = Base::new(&spec).unwrap();
        (spec, base)
    }

    fn listed(document: Value) -> Vec<Value> {
        let (spec, base) = base();
        let document = ApiDocument::new(document).unwrap();
        tools(&document, &spec, &base, &mut ToolNames::default()).into_iter().map(|tool| tool.listed).collect()
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
        let said = |n: usize| (tools[n]["name"].as_str().unwrap(), tools[n]["description"].as_str().unwrap());
        assert_eq!(said(0), ("get_a_b", "Gets a.\n\nGets a, with b."));
        assert_eq!(said(1), ("same", "PUT /a/{b}"));
        assert_eq!(
            tools[1]["annotations"],
            json!({ "readOnlyHint": false, "destructiveHint": false, "idempotentHint": true, "openWorldHint": true })
        );
        assert_eq!(tools[2]["annotations"]["destructiveHint"], true);
        assert!(tools[2]["title"].as_str().unwrap().len() < 130 && said(2).1.len() < 1600);
        assert_eq!(said(3), ("same_2", "Deprecated. PATCH /a/{b}"));
        assert_eq!(tools[0]["inputSchema"]["required"], json!(["b"]));
    }

    /// Anything that can stand in a document, with words in it that mean something there.
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
        fn no_document_makes_it_panic(operation in anything(), x in anything(), pick in 0..3usize, swagger in any::<bool>()) {
            let (place, media) = [("query", "application/json"), ("header", "multipart/form-data"), ("cookie", "a/b")][pick];
            let parameters = json!([{ "name": "a", "in": place, "schema": operation }, { "name": "f", "in": "formData", "items": x }, x]);
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
