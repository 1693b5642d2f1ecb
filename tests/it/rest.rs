//! REST upstreams (OpenAPI documents and manual tools) against local HTTP servers.

use std::convert::Infallible;
use std::io::Write;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use bytes::Bytes;
use http::{HeaderMap, Method as Verb, Request, Response};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use rialto::call::{AnswerDelivery, Call, Caller, ClientInfo, Reply};
use rialto::dialect::Revision;
use rialto::local::rest::RestLimits;
use rialto::local::rest::{DocumentSource, ManualArgument, ManualBody, ManualTool, Rest, RestSpec, ValueKind};
use rialto::protocol::{Method, Outcome, Raw};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;

use crate::harness::TEST_TIMEOUT;

/// A request that a server received.
#[derive(Debug, Clone)]
pub struct RecordedRequest {
    pub verb: String,
    /// Path and query as sent.
    pub target: String,
    pub headers: HeaderMap,
    pub body: Bytes,
}

/// An HTTP API that records its requests.
#[derive(Clone)]
pub struct Api {
    pub address: SocketAddr,
    seen: Arc<Mutex<Vec<RecordedRequest>>>,
}

impl Api {
    pub async fn start(answer: impl Fn(&RecordedRequest) -> Response<Full<Bytes>> + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let api = Self { address: listener.local_addr().unwrap(), seen: Arc::default() };
        let (seen, answer) = (Arc::clone(&api.seen), Arc::new(answer));
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let (seen, answer) = (Arc::clone(&seen), Arc::clone(&answer));
                let service = service_fn(move |request: Request<Incoming>| {
                    let (seen, answer) = (Arc::clone(&seen), Arc::clone(&answer));
                    async move {
                        let (parts, body) = request.into_parts();
                        let request = RecordedRequest {
                            verb: parts.method.to_string(),
                            target: parts.uri.to_string(),
                            headers: parts.headers,
                            body: body.collect().await.unwrap().to_bytes(),
                        };
                        seen.lock().unwrap().push(request.clone());
                        Ok::<_, Infallible>(answer(&request))
                    }
                });
                tokio::spawn(
                    hyper::server::conn::http1::Builder::new().serve_connection(TokioIo::new(stream), service),
                );
            }
        });
        api
    }

    /// An API that answers every request with the same JSON.
    pub async fn json(text: &'static str) -> Self {
        Self::start(move |_| json_response(200, text)).await
    }

    /// Takes the only recorded request; panics if there are others.
    pub fn take_only_request(&self) -> RecordedRequest {
        let mut seen = self.seen.lock().unwrap();
        assert_eq!(seen.len(), 1, "{seen:?}");
        seen.remove(0)
    }

    /// All recorded requests.
    pub fn requests(&self) -> Vec<RecordedRequest> {
        self.seen.lock().unwrap().clone()
    }

    pub fn request_count(&self) -> usize {
        self.seen.lock().unwrap().len()
    }

    pub fn spec(&self) -> RestSpec {
        spec(&format!("http://{}", self.address))
    }
}

pub fn json_response(status: u16, text: impl Into<Bytes>) -> Response<Full<Bytes>> {
    let builder = Response::builder().status(status).header("content-type", "application/json");
    builder.body(Full::new(text.into())).unwrap()
}

fn redirect(status: u16, location: String) -> Response<Full<Bytes>> {
    Response::builder().status(status).header("location", location).body(Full::default()).unwrap()
}

pub fn spec(base_url: &str) -> RestSpec {
    RestSpec {
        base_url: base_url.parse().unwrap(),
        headers: HeaderMap::new(),
        query: Vec::new(),
        document: None,
        allow: Vec::new(),
        deny: Vec::new(),
        tools: Vec::new(),
    }
}

pub fn limits() -> RestLimits {
    let (connect, call) = (Duration::from_secs(2), Duration::from_secs(10));
    RestLimits {
        connect_timeout: connect,
        discovery_timeout: call,
        call_timeout: call,
        message_bytes: 16 << 20,
        json_depth: 128,
    }
}

pub fn call(method: Method, params: Value) -> Call {
    let client = ClientInfo { revision: Revision::NEWEST, capabilities: Raw::empty(), info: None };
    let caller = Caller::local(rialto::identity::Identity::local());
    Call {
        target_label: None,
        id: 1.into(),
        method,
        params: Some(Raw::of(&params).into()),
        client: Arc::new(client),
        caller: Arc::new(caller),
        level: None,
        progress_token: None,
        sink: None,
        limits: None,
        delivery: AnswerDelivery::Whole,
        trace: rialto::trace::CallTrace::PassedOn,
    }
}

async fn outcome(rest: &Rest, call: &Call) -> Outcome {
    let mut replies = rest.call(call);
    let reply = tokio::time::timeout(TEST_TIMEOUT, replies.next()).await.unwrap().unwrap();
    let Reply::End(answer) = reply else { panic!("{reply:?}") };
    assert!(replies.next().await.is_none());
    answer.outcome
}

/// Calls a tool and parses its result.
pub async fn call_tool(rest: &Rest, name: &str, arguments: Value) -> Value {
    let call = call(Method::ToolsCall, json!({ "name": name, "arguments": arguments }));
    let result = outcome(rest, &call).await.unwrap();
    result.read().unwrap()
}

/// The error text of a tool call that must fail.
pub async fn tool_error(rest: &Rest, name: &str, arguments: Value) -> String {
    let result = call_tool(rest, name, arguments).await;
    assert_eq!(result["isError"], true, "{result}");
    assert!(result.get("structuredContent").is_none());
    result["content"][0]["text"].as_str().unwrap().to_owned()
}

pub fn listed(rest: &Rest) -> Vec<Value> {
    let list: Value = rest.tools().read().unwrap();
    list["tools"].as_array().unwrap().clone()
}

/// A temporary file, removed on drop.
struct TempFile(PathBuf);

impl TempFile {
    fn of(document: &Value) -> Self {
        Self::text(&document.to_string())
    }

    fn text(text: &str) -> Self {
        use std::sync::atomic::{AtomicUsize, Ordering};
        static COUNT: AtomicUsize = AtomicUsize::new(0);
        let name = format!("rest-{}-{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
        let path = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(name);
        std::fs::File::create(&path).unwrap().write_all(text.as_bytes()).unwrap();
        Self(path)
    }
}

impl Drop for TempFile {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

/// A manual tool whose arguments are all required strings.
pub fn manual_tool(name: &str, method: Verb, url: &str, arguments: &[&str]) -> ManualTool {
    let argument = |name: &&str| ManualArgument {
        name: (*name).to_owned(),
        kind: ValueKind::String,
        description: None,
        required: true,
        default: None,
        choices: Vec::new(),
    };
    ManualTool {
        name: name.to_owned(),
        title: None,
        description: None,
        method,
        url: url.to_owned(),
        arguments: arguments.iter().map(argument).collect(),
        headers: Vec::new(),
        body: None,
        result_path: None,
        read_only: None,
        destructive: None,
        idempotent: None,
    }
}

async fn load_document(api: &Api, document: &Value) -> Rest {
    let file = TempFile::of(document);
    let spec = RestSpec { document: Some(DocumentSource::File(file.0.clone())), ..api.spec() };
    Rest::load(&spec, &limits()).await.unwrap()
}

const WEATHER: &str = r#"{"latitude":52.52,"longitude":13.4,"current_weather":{"temperature":11.30,"windspeed":4}}"#;

/// An OpenAPI document for the weather API.
const WEATHER_DOCUMENT: &str = "
openapi: 3.0.3
info: { title: Weather, version: '1.0', description: Forecasts for anywhere. }
servers: [{ url: 'https://elsewhere.example/wrong' }]
paths:
  /v1/forecast:
    get:
      operationId: getForecast
      summary: Forecast for a place
      parameters:
        - { name: latitude, in: query, required: true, description: Degrees north., schema: { type: number } }
        - { name: longitude, in: query, required: true, schema: { type: number } }
        - { name: current_weather, in: query, schema: { type: boolean } }
      responses: { 200: { description: A forecast. } }
";

#[tokio::test]
async fn an_openapi_document_becomes_a_tool() {
    let api = Api::json(WEATHER).await;
    let file = TempFile::text(WEATHER_DOCUMENT);
    let mut spec = RestSpec { document: Some(DocumentSource::File(file.0.clone())), ..api.spec() };
    spec.headers.insert("authorization", "Bearer secret-token".parse().unwrap());
    spec.query.push(("appid".to_owned(), "secret key".to_owned()));
    assert!(!format!("{spec:?}").contains("secret"), "{spec:?}");
    let rest = Rest::load(&spec, &limits()).await.unwrap();
    assert!(!format!("{rest:?}").contains("secret"), "{rest:?}");
    assert_eq!(
        rest.server().info.read::<Value>().unwrap(),
        json!({ "name": "Weather", "title": "Weather", "version": "1.0" })
    );
    assert_eq!(rest.server().instructions.as_ref().unwrap().text().unwrap(), "Forecasts for anywhere.");
    assert_eq!(
        listed(&rest),
        [json!({
            "name": "getForecast",
            "title": "Forecast for a place",
            "description": "Forecast for a place",
            "inputSchema": {
                "type": "object",
                "properties": {
                    "latitude": { "type": "number", "description": "Degrees north." },
                    "longitude": { "type": "number" },
                    "current_weather": { "type": "boolean" },
                },
                "required": ["latitude", "longitude"],
                "additionalProperties": false,
            },
            "annotations": { "readOnlyHint": true, "idempotentHint": true, "openWorldHint": true },
        })]
    );
    let arguments = json!({ "latitude": 52.52, "longitude": 13.4, "current_weather": true });
    let result = call_tool(&rest, "getForecast", arguments).await;
    assert_eq!(result["isError"], false);
    assert_eq!(result["resultType"], "complete");
    assert_eq!(result["content"], json!([{ "type": "text", "text": WEATHER }]));
    assert_eq!(result["structuredContent"]["current_weather"]["temperature"], 11.3);
    let seen = api.take_only_request();
    assert_eq!(seen.verb, "GET");
    assert_eq!(seen.target, "/v1/forecast?latitude=52.52&longitude=13.4&current_weather=true&appid=secret%20key");
    assert_eq!(seen.headers["authorization"], "Bearer secret-token");
    assert_eq!(seen.headers["accept"], "application/json, */*;q=0.5");
    assert!(seen.body.is_empty() && !seen.headers.contains_key("content-type"));
}

#[tokio::test]
async fn a_manual_tool_maps_arguments_to_a_url_and_validates_them() {
    let api = Api::json(WEATHER).await;
    let url = "/v1/forecast?latitude={latitude}&longitude={longitude}&units={units}&current_weather=true";
    let mut tool = manual_tool("forecast", Verb::GET, url, &["latitude", "longitude", "units"]);
    tool.arguments[0].kind = ValueKind::Number;
    tool.arguments[1].kind = ValueKind::Number;
    tool.arguments[2].required = false;
    tool.arguments[2].choices = vec![json!("C"), json!("F")];
    tool.result_path = Some("current_weather".to_owned());
    let rest = Rest::load(&RestSpec { tools: vec![tool], ..api.spec() }, &limits()).await.unwrap();
    let result = call_tool(&rest, "forecast", json!({ "latitude": 52.52, "longitude": 13 })).await;
    assert_eq!(result["structuredContent"], json!({ "temperature": 11.3, "windspeed": 4 }));
    assert_eq!(result["content"][0]["text"], r#"{"temperature":11.30,"windspeed":4}"#);
    assert_eq!(api.take_only_request().target, "/v1/forecast?latitude=52.52&longitude=13&current_weather=true");
    let wrong = tool_error(&rest, "forecast", json!({ "latitude": "north", "units": "K", "place": "x" })).await;
    assert_eq!(
        wrong,
        "`latitude` must be of type number; it was \"north\"; `longitude` is missing; `units` must be one of \"C\", \
         \"F\"; it was \"K\"; `place` is not among the arguments; this tool takes `latitude`, `longitude`, `units`"
    );
    assert_eq!(api.request_count(), 0);
}

#[tokio::test]
async fn manual_tools_send_json_form_and_text_bodies() {
    let api = Api::json("[]").await;
    let mut json_tool = manual_tool("note", Verb::POST, "/notes/{id}?tag={tags}", &["id", "text", "tags", "extra"]);
    json_tool.arguments[2].kind = ValueKind::Array;
    json_tool.arguments[3].required = false;
    json_tool.headers =
        vec![("X-Note".to_owned(), "note {id}".to_owned()), ("X-Extra".to_owned(), "{extra}".to_owned())];
    let template =
        json!({ "t": "{text}", "said": "It says {text}.", "tags": "{tags}", "more": ["{extra}", 1, "{{}}"] });
    json_tool.body = Some(ManualBody::Json(template));
    let mut form_tool = manual_tool("form", Verb::PUT, "form", &["a"]);
    form_tool.body = Some(ManualBody::Form(vec![("x y".to_owned(), "{a}".to_owned())]));
    let mut text_tool = manual_tool("text", Verb::POST, "/text", &["a"]);
    text_tool.body = Some(ManualBody::Text("<{a}>".to_owned()));
    let tools = vec![json_tool, form_tool, text_tool];
    let rest = Rest::load(&RestSpec { tools, ..api.spec() }, &limits()).await.unwrap();

    let result = call_tool(&rest, "note", json!({ "id": "a/b", "text": "\"hi\"", "tags": ["p&q", "r"] })).await;
    assert_eq!(result["structuredContent"], json!({ "result": [] }));
    let seen = api.take_only_request();
    assert_eq!((seen.verb.as_str(), seen.target.as_str()), ("POST", "/notes/a%2Fb?tag=p%26q&tag=r"));
    assert_eq!(seen.headers["x-note"], "note a/b");
    assert!(!seen.headers.contains_key("x-extra"));
    assert_eq!(seen.headers["content-type"], "application/json");
    let body: Value = serde_json::from_slice(&seen.body).unwrap();
    assert_eq!(body, json!({ "t": "\"hi\"", "said": "It says \"hi\".", "tags": ["p&q", "r"], "more": [1, "{}"] }));

    call_tool(&rest, "form", json!({ "a": "1&2" })).await;
    let seen = api.take_only_request();
    assert_eq!((seen.target.as_str(), &seen.body[..]), ("/form", &b"x%20y=1%262"[..]));
    assert_eq!(seen.headers["content-type"], "application/x-www-form-urlencoded");
    call_tool(&rest, "text", json!({ "a": "b" })).await;
    assert_eq!(api.take_only_request().body, "<b>");
}

#[tokio::test]
async fn numbers_are_sent_as_they_came() {
    let api = Api::json("{}").await;
    let mut tool = manual_tool("put", Verb::PUT, "/items/{id}?at={at}&of={of}", &["id", "at", "of", "data"]);
    let kinds = [ValueKind::Integer, ValueKind::Number, ValueKind::Array, ValueKind::Object];
    for (argument, kind) in tool.arguments.iter_mut().zip(kinds) {
        argument.kind = kind;
    }
    tool.body = Some(ManualBody::Json(json!({ "id": "{id}", "data": "{data}" })));
    let rest = Rest::load(&RestSpec { tools: vec![tool], ..api.spec() }, &limits()).await.unwrap();
    let params = r#"{"name":"put","arguments":{"id":1234567890123456789012345,"at":0.1000,
        "of":[99999999999999999999,-0],"data":{"n":[1e400,2.50]}}}"#;
    let mut put = call(Method::ToolsCall, json!({}));
    put.params = Some(Raw::parse(&Bytes::from(params)).unwrap().into());
    outcome(&rest, &put).await.unwrap();
    let seen = api.take_only_request();
    assert_eq!(seen.target, "/items/1234567890123456789012345?at=0.1000&of=99999999999999999999&of=-0");
    assert_eq!(seen.body, r#"{"data":{"n":[1e400,2.50]},"id":1234567890123456789012345}"#);
}

#[tokio::test]
async fn invalid_manual_tools_and_base_urls_are_refused() {
    type Change = fn(&mut ManualTool);
    let spec = spec("https://api.example.com/v1");
    let with = |change: Change| {
        let mut tool = manual_tool("t", Verb::GET, "/a/{b}", &["b"]);
        change(&mut tool);
        let spec = RestSpec { tools: vec![tool], ..spec.clone() };
        async move { Rest::load(&spec, &limits()).await.map(|_| ()).map_err(|error| error.to_string()) }
    };
    assert_eq!(with(|_| {}).await, Ok(()));
    let cases: [(Change, &str); 10] = [
        (|tool| tool.name = "a b".to_owned(), "is no name for a tool"),
        (|tool| tool.url = "https://evil.example/{b}".to_owned(), "is a path below the base URL"),
        (|tool| tool.url = "//evil.example/{b}".to_owned(), "is a path below the base URL"),
        (|tool| tool.url = "/../{b}".to_owned(), "leads elsewhere"),
        (|tool| tool.url = "/a/%2e%2E/{b}".to_owned(), "leads elsewhere"),
        (|tool| tool.url = "/a".to_owned(), "the argument \"b\" is nowhere in the request"),
        (|tool| tool.url = "/a/{c}".to_owned(), "`{c}` is not among its arguments"),
        (|tool| tool.arguments[0].required = false, "must be required or have a default"),
        (
            |tool| tool.headers = vec![("Authorization".to_owned(), "{b}".to_owned())],
            "cannot be set by a tool's arguments",
        ),
        (|tool| tool.headers = vec![("Host".to_owned(), "evil".to_owned())], "cannot be set by a tool's arguments"),
    ];
    for (change, expected) in cases {
        let message = with(change).await.unwrap_err();
        assert!(message.contains(expected), "{message}");
    }
    for (url, expected) in [
        ("https://api.example.com/v1?key=1", "has a query"),
        ("https://me:pw@api.example.com/", "has credentials in it"),
        ("ftp://api.example.com", "is no HTTP address"),
        ("/v1", "is no absolute URL"),
    ] {
        let spec = RestSpec { base_url: url.parse().unwrap(), ..spec.clone() };
        let message = Rest::load(&spec, &limits()).await.unwrap_err().to_string();
        assert!(message.contains(expected) && !message.contains("pw"), "{message}");
    }
}

/// An operation with a parameter in every location, and clashing names.
fn clashing_document() -> Value {
    let text = json!({ "type": "string" });
    json!({
        "openapi": "3.1.0",
        "info": { "title": "Clash", "version": "1" },
        "paths": { "/things/{id}": {
            "parameters": [
                { "name": "id", "in": "path", "required": true, "schema": text },
                { "name": "page", "in": "query", "schema": { "type": "string" } },
            ],
            "post": {
                "operationId": "things/change",
                "parameters": [
                    { "name": "page", "in": "query", "schema": { "type": "integer" } },
                    { "name": "id", "in": "query", "schema": text },
                    { "name": "id", "in": "header", "schema": text },
                    { "name": "filter[name]", "in": "query", "schema": text },
                    { "name": "session", "in": "cookie", "schema": text },
                    { "name": "Authorization", "in": "header", "required": true, "schema": text },
                    { "name": "Mcp-Session-Id", "in": "header", "schema": text },
                    { "name": "X-Api-Version", "in": "header", "schema": text },
                    { "name": "key", "in": "query", "schema": text },
                ],
                "requestBody": { "required": true, "content": { "application/json": { "schema": { "$ref": "#/components/schemas/Thing" } } } },
            },
            "put": {
                "requestBody": { "content": { "application/json": { "schema": { "properties": { "id": text } } } } },
            },
            "trace": {},
        } },
        "components": { "schemas": { "Thing": {
            "type": "object",
            "required": ["label", "created"],
            "properties": {
                "label": text,
                "created": { "type": "string", "readOnly": true },
                "parts": { "type": "array", "items": { "$ref": "#/components/schemas/Thing" } },
            },
        } } },
    })
}

#[tokio::test]
async fn clashing_parameter_names_get_distinct_arguments() {
    let api = Api::json("{}").await;
    let file = TempFile::of(&clashing_document());
    let mut spec = RestSpec { document: Some(DocumentSource::File(file.0.clone())), ..api.spec() };
    spec.base_url = format!("http://{}/base/", api.address).parse().unwrap();
    spec.headers.insert("x-api-version", "7".parse().unwrap());
    spec.query.push(("KEY".to_owned(), "k".to_owned()));
    let rest = Rest::load(&spec, &limits()).await.unwrap();
    let tools = listed(&rest);
    let names: Vec<&str> = tools.iter().map(|tool| tool["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["put_things_id", "things_change"]);
    let schema = &tools[1]["inputSchema"];
    let properties: Vec<&String> = schema["properties"].as_object().unwrap().keys().collect();
    assert_eq!(properties, ["filter_name", "id", "id_header", "id_query", "label", "page", "parts", "session"]);
    assert_eq!(schema["required"], json!(["id", "label"]));
    assert_eq!(schema["properties"]["page"]["type"], "integer");
    assert_eq!(schema["properties"]["parts"]["items"], json!({ "$ref": "#/$defs/Thing" }));
    assert_eq!(schema["$defs"]["Thing"]["required"], json!(["label"]));
    assert_eq!(tools[1]["annotations"]["destructiveHint"], false);

    let arguments = json!({
        "id": "a", "id_query": "b", "id_header": "c", "page": 2, "filter_name": "x=y", "session": "s;t",
        "label": "L", "parts": [{ "label": "M" }],
    });
    let mut made = call(Method::ToolsCall, json!({ "name": "things_change", "arguments": arguments }));
    let mut headers = HeaderMap::new();
    headers.insert("traceparent", "00-1-2-01".parse().unwrap());
    headers.insert("x-other", "no".parse().unwrap());
    made.caller = Arc::new(Caller { headers, request_id: Some("r1".parse().unwrap()), ..(*made.caller).clone() });
    outcome(&rest, &made).await.unwrap();
    let seen = api.take_only_request();
    assert_eq!(seen.target, "/base/things/a?page=2&id=b&filter%5Bname%5D=x%3Dy&KEY=k");
    assert_eq!(seen.headers["id"], "c");
    assert_eq!(seen.headers["cookie"], "session=s%3Bt");
    assert_eq!(seen.headers["x-api-version"], "7");
    assert_eq!(seen.headers["traceparent"], "00-1-2-01");
    assert_eq!(seen.headers["x-request-id"], "r1");
    assert!(!seen.headers.contains_key("x-other") && !seen.headers.contains_key("authorization"));
    assert_eq!(seen.body, r#"{"label":"L","parts":[{"label":"M"}]}"#);

    // A body with clashing members becomes one `body` argument; an absent optional body is not sent.
    call_tool(&rest, "put_things_id", json!({ "id": "a", "body": { "id": "b" } })).await;
    assert_eq!(api.take_only_request().body, r#"{"id":"b"}"#);
    call_tool(&rest, "put_things_id", json!({ "id": "a", "page": null })).await;
    let seen = api.take_only_request();
    assert_eq!((seen.target.as_str(), seen.body.len()), ("/base/things/a?KEY=k", 0));
}

#[tokio::test]
async fn allow_and_deny_patterns_select_operations() {
    let operation = |id: &str| json!({ "operationId": id });
    let document = json!({
        "swagger": "2.0",
        "paths": {
            "/a": { "get": operation("getA"), "delete": operation("getRidOfA") },
            "/b": { "get": operation("getB"), "post": operation("makeB") },
        },
    });
    let file = TempFile::of(&document);
    for (allow, deny, expected) in [
        (&[][..], &[][..], &["getA", "getRidOfA", "getB", "makeB"][..]),
        (&["get*"], &["DELETE *"], &["getA", "getB"]),
        (&["* /b"], &["makeB"], &["getB"]),
        (&["get?"], &[], &["getA", "getB"]),
    ] {
        let owned = |patterns: &[&str]| patterns.iter().map(|pattern| (*pattern).to_owned()).collect();
        let document = Some(DocumentSource::File(file.0.clone()));
        let spec = RestSpec { document, allow: owned(allow), deny: owned(deny), ..spec("http://127.0.0.1:1") };
        let rest = Rest::load(&spec, &limits()).await.unwrap();
        let tools = listed(&rest);
        let mut names: Vec<&str> = tools.iter().map(|tool| tool["name"].as_str().unwrap()).collect();
        let mut expected = expected.to_vec();
        names.sort_unstable();
        expected.sort_unstable();
        assert_eq!(names, expected);
    }
    let none = RestSpec {
        document: Some(DocumentSource::File(file.0.clone())),
        deny: vec!["*".to_owned()],
        ..spec("http://h")
    };
    let message = Rest::load(&none, &limits()).await.unwrap_err().to_string();
    assert_eq!(message, "the document has no operation that is offered; see `allow` and `deny`");
}

#[tokio::test]
async fn redirects_and_arguments_cannot_reach_another_host() {
    let other = Api::json(r#"{"stolen":true}"#).await;
    let elsewhere = format!("http://{}", other.address);
    let target = elsewhere.clone();
    let api = Api::start(move |seen| match seen.target.split('?').next().unwrap() {
        "/base/away" => redirect(302, format!("{target}/x")),
        "/base/slashes" => redirect(307, format!("//{}/x", target.trim_start_matches("http://"))),
        "/base/up" => redirect(302, "/admin".to_owned()),
        "/base/dots" => redirect(302, "/base/../admin".to_owned()),
        "/base/near" => redirect(301, "/base/there?x=1".to_owned()),
        "/base/loop" => redirect(302, "/base/loop".to_owned()),
        _ => json_response(200, r#"{"here":true}"#),
    })
    .await;
    let path = |name: &str| json!({ name: { "operationId": name.trim_matches('/'), "x": 1 } });
    let mut paths = serde_json::Map::new();
    for name in ["away", "slashes", "up", "dots", "near", "loop"] {
        paths.insert(
            format!("/{name}"),
            json!({ "get": { "operationId": name }, "post": { "operationId": format!("{name}Post") } }),
        );
    }
    let argument = |name: &str, place: &str| json!({ "name": name, "in": place, "schema": {} });
    let parameters = json!([
        argument("p", "path"),
        argument("q", "query"),
        argument("Host", "header"),
        argument("x-h", "header"),
        argument("authorization", "header"),
        argument("X-Forwarded-Host", "header"),
    ]);
    let servers = json!([{ "url": elsewhere }]);
    paths.insert(
        "/at/{p}".to_owned(),
        json!({ "servers": servers, "get": { "operationId": "at", "parameters": parameters, "servers": servers } }),
    );
    paths.insert(
        "/spread".to_owned(),
        json!({ "get": { "operationId": "spread", "parameters": [
        { "name": "o", "in": "query", "schema": { "type": "object" } },
    ] } }),
    );
    paths.insert("/x/../../up".to_owned(), path("get"));
    paths.insert(format!("@{}/", other.address), path("get"));
    paths.insert("/ref".to_owned(), json!({ "$ref": format!("{elsewhere}/path.json") }));
    let schema = json!({ "$ref": format!("{elsewhere}/schema.json") });
    paths.insert("/schema".to_owned(), json!({ "post": { "operationId": "schema", "requestBody": { "content": { "application/json": { "schema": schema } } } } }));
    let document = json!({ "openapi": "3.0.0", "servers": servers, "paths": paths });
    let file = TempFile::of(&document);
    let mut spec = RestSpec { document: Some(DocumentSource::File(file.0.clone())), ..api.spec() };
    spec.base_url = format!("http://{}/base", api.address).parse().unwrap();
    spec.headers.insert("authorization", "Bearer secret-token".parse().unwrap());
    spec.query.push(("key".to_owned(), "secret-key".to_owned()));
    let rest = Rest::load(&spec, &limits()).await.unwrap();
    assert_eq!(listed(&rest).len(), 15);

    for tool in ["away", "slashes", "up", "dots", "loop", "awayPost", "nearPost"] {
        let message = tool_error(&rest, tool, json!({})).await;
        assert!(message.contains("redirects") && !message.contains("secret"), "{message}");
    }
    api.seen.lock().unwrap().clear();
    let result = call_tool(&rest, "near", json!({})).await;
    assert_eq!(result["structuredContent"], json!({ "here": true }));
    assert_eq!(api.seen.lock().unwrap()[1].target, "/base/there?x=1&key=secret-key");

    let hostile = [
        "../../x",
        "..",
        ".",
        "",
        "//127.0.0.1/x",
        "a?b=c",
        "a#b",
        "%2e%2e",
        "..%2f",
        "a\r\nHost: evil",
        "@evil",
        "\\\\evil",
        &elsewhere,
        "a;b",
        "\u{0}",
        "a b",
        "é",
    ];
    for value in hostile {
        api.seen.lock().unwrap().clear();
        call_tool(&rest, "at", json!({ "p": value, "q": value })).await;
        // A path segment that is a dot segment after decoding is not sent at all.
        if value.is_empty() || value.split('/').any(|part| matches!(part, "." | "..")) {
            assert_eq!(api.request_count(), 0, "{value:?}");
            continue;
        }
        let seen = api.take_only_request();
        let (path, query) = seen.target.split_once('?').unwrap();
        assert_eq!(path.matches('/').count(), 3, "{path}");
        assert!(path.starts_with("/base/at/") && !path.contains([';', '\\', '#']), "{path}");
        assert_eq!(query.split('&').count(), 2, "{query}");
        let decoded = percent(path.strip_prefix("/base/at/").unwrap());
        assert_eq!(decoded, value);
        assert_eq!(seen.headers["host"], api.address.to_string());
        assert_eq!(seen.headers["authorization"], "Bearer secret-token");
    }
    api.seen.lock().unwrap().clear();
    for name in ["Host", "authorization", "X-Forwarded-Host"] {
        let message = tool_error(&rest, "at", json!({ "p": "a", name: "evil" })).await;
        assert!(message.contains("is not among the arguments"), "{message}");
    }
    let message = tool_error(&rest, "at", json!({ "p": "a", "x-h": "a\r\nX-Evil: 1" })).await;
    assert_eq!(message, "the header `x-h` can only hold visible ASCII characters");
    assert_eq!(api.request_count(), 0);
    call_tool(&rest, "spread", json!({ "o": { "key": "mine", "Key": "mine", "a&b": 1 } })).await;
    assert_eq!(api.take_only_request().target, "/base/spread?a%26b=1&key=secret-key");
    call_tool(&rest, "schema", json!({ "body": [1] })).await;
    assert_eq!(api.take_only_request().body, "[1]");
    assert_eq!(other.request_count(), 0, "the other host received a request");
}

fn percent(text: &str) -> String {
    let mut bytes = Vec::new();
    let mut rest = text.as_bytes();
    while let [first, tail @ ..] = rest {
        if *first == b'%' {
            bytes.push(u8::from_str_radix(std::str::from_utf8(&tail[..2]).unwrap(), 16).unwrap());
            rest = &tail[2..];
        } else {
            bytes.push(*first);
            rest = tail;
        }
    }
    String::from_utf8(bytes).unwrap()
}

#[tokio::test]
async fn api_failures_become_tool_errors() {
    let api = Api::start(|seen| match seen.target.as_str() {
        "/gone" => json_response(410, r#"{"message":"it is gone"}"#),
        "/empty" => Response::builder().status(204).body(Full::default()).unwrap(),
        "/huge" => Response::new(Full::from(vec![b'x'; 70_000])),
        "/huge-failure" => Response::builder().status(500).body(Full::from(vec![b'x'; 70_000])).unwrap(),
        "/deep" => json_response(200, format!("{}{}", "[".repeat(20_000), "]".repeat(20_000))),
        "/zipped" => Response::builder().header("content-encoding", "gzip").body(Full::from("x")).unwrap(),
        _ => json_response(200, "{}"),
    })
    .await;
    let tools = ["gone", "empty", "huge", "huge-failure", "deep", "zipped"];
    let tools = tools.map(|name| manual_tool(name, Verb::GET, &format!("/{name}"), &[])).to_vec();
    let settings = RestLimits { message_bytes: 64 << 10, ..limits() };
    let rest = Rest::load(&RestSpec { tools: tools.clone(), ..api.spec() }, &settings).await.unwrap();
    assert_eq!(tool_error(&rest, "gone", json!({})).await, "410 Gone\n\n{\"message\":\"it is gone\"}");
    assert_eq!(tool_error(&rest, "huge", json!({})).await, "the server sent a body of more than 65536 bytes");
    assert_eq!(tool_error(&rest, "huge-failure", json!({})).await, "500 Internal Server Error");
    assert_eq!(tool_error(&rest, "deep", json!({})).await, "the answer nests more than 128 levels deep");
    assert!(tool_error(&rest, "zipped", json!({})).await.contains("gzip"));
    let empty = call_tool(&rest, "empty", json!({})).await;
    assert_eq!(empty["content"], json!([{ "type": "text", "text": "204 No Content" }]));

    let unknown = outcome(&rest, &call(Method::ToolsCall, json!({ "name": "none" }))).await.unwrap_err();
    assert_eq!((unknown.code(), unknown.message().as_str()), (-32602, "Invalid params: there is no tool \"none\""));
    let list = call(Method::ToolsCall, json!({ "name": "gone", "arguments": [] }));
    assert_eq!(outcome(&rest, &list).await.unwrap_err().code(), -32602);
    let prompts = outcome(&rest, &call(Method::PromptsList, json!({}))).await.unwrap_err();
    assert_eq!(prompts.code(), -32601);
    let cursor = outcome(&rest, &call(Method::ToolsList, json!({ "cursor": "x" }))).await.unwrap_err();
    assert_eq!(cursor.code(), -32602);
    assert_eq!(&*outcome(&rest, &call(Method::ToolsList, json!({}))).await.unwrap(), rest.tools());

    // Nothing listens on this port any more.
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let mut unreachable = RestSpec { tools, ..spec(&format!("http://{}", listener.local_addr().unwrap())) };
    unreachable.headers.insert("authorization", "Bearer secret-token".parse().unwrap());
    unreachable.query.push(("key".to_owned(), "secret-key".to_owned()));
    drop(listener);
    let rest = Rest::load(&unreachable, &settings).await.unwrap();
    let error = outcome(&rest, &call(Method::ToolsCall, json!({ "name": "gone" }))).await.unwrap_err();
    assert!(error.failure().is_some() && error.message().contains("cannot be reached"), "{}", error.message());
    assert!(!error.message().contains("secret"), "{}", error.message());
}

/// A server that reads one request, sends `partial_response` and reports when the connection closes.
async fn stalled_server(partial_response: &'static [u8]) -> (SocketAddr, tokio::sync::mpsc::Receiver<&'static str>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let (report, events) = tokio::sync::mpsc::channel(8);
    tokio::spawn(async move {
        let (mut stream, _) = listener.accept().await.unwrap();
        let mut buffer = [0; 4096];
        assert!(stream.read(&mut buffer).await.unwrap() > 0);
        stream.write_all(partial_response).await.unwrap();
        report.send("request").await.unwrap();
        if let Ok(0) | Err(_) = stream.read(&mut buffer).await {
            report.send("closed").await.unwrap();
        }
    });
    (address, events)
}

#[tokio::test]
async fn cancelling_a_rest_call_closes_its_connection() {
    for partial_response in [&b""[..], b"HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\nthe first half"] {
        let (address, mut events) = stalled_server(partial_response).await;
        let tools = vec![manual_tool("t", Verb::GET, "/", &[])];
        let rest = Rest::load(&RestSpec { tools, ..spec(&format!("http://{address}")) }, &limits()).await.unwrap();
        let mut replies = rest.call(&call(Method::ToolsCall, json!({ "name": "t" })));
        tokio::select! {
            reply = replies.next() => panic!("{reply:?}"),
            event = events.recv() => assert_eq!(event, Some("request")),
        }
        drop(replies);
        let closed = tokio::time::timeout(TEST_TIMEOUT, events.recv()).await.unwrap();
        assert_eq!(closed, Some("closed"));
    }
}

#[tokio::test]
async fn a_rest_call_timeout_closes_the_connection() {
    for partial_response in [&b""[..], b"HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\nthe first half"] {
        let (address, mut events) = stalled_server(partial_response).await;
        let tools = vec![manual_tool("t", Verb::GET, "/p", &[])];
        let settings = RestLimits { call_timeout: Duration::from_millis(300), ..limits() };
        let rest = Rest::load(&RestSpec { tools, ..spec(&format!("http://{address}")) }, &settings).await.unwrap();
        let started = Instant::now();
        let error = outcome(&rest, &call(Method::ToolsCall, json!({ "name": "t" }))).await.unwrap_err();
        assert!(started.elapsed() < Duration::from_secs(5));
        assert!(error.failure().is_some(), "{}", error.message());
        assert!(error.message().contains("silent for 300 ms"), "{}", error.message());
        assert_eq!(events.recv().await, Some("request"));
        assert_eq!(tokio::time::timeout(TEST_TIMEOUT, events.recv()).await.unwrap(), Some("closed"));
    }
}

#[tokio::test]
async fn an_openapi_document_is_fetched_by_url() {
    let api = Api::start(|seen| match seen.target.as_str() {
        "/openapi.yaml" => Response::new(Full::from(WEATHER_DOCUMENT)),
        "/moved.yaml" => redirect(302, "/openapi.yaml".to_owned()),
        "/v1/forecast?latitude=1&longitude=2" => json_response(200, "{}"),
        _ => json_response(404, "{}"),
    })
    .await;
    let at = |path: &str| Some(DocumentSource::Url(format!("http://{}{path}", api.address).parse().unwrap()));
    let mut own = RestSpec { document: at("/moved.yaml"), ..api.spec() };
    own.headers.insert("authorization", "Bearer secret-token".parse().unwrap());
    let rest = Rest::load(&own, &limits()).await.unwrap();
    assert_eq!(listed(&rest).len(), 1);
    // Same origin as the API: its credentials are sent with the document request.
    assert_eq!(api.seen.lock().unwrap()[1].headers["authorization"], "Bearer secret-token");
    api.seen.lock().unwrap().clear();
    let other =
        RestSpec { base_url: "http://127.0.0.1:1".parse().unwrap(), document: at("/openapi.yaml"), ..own.clone() };
    Rest::load(&other, &limits()).await.unwrap();
    assert!(!api.take_only_request().headers.contains_key("authorization"));

    let missing = RestSpec { document: at("/none"), ..own.clone() };
    let message = Rest::load(&missing, &limits()).await.unwrap_err().to_string();
    assert!(message.contains("answered 404") && !message.contains("/none"), "{message}");
    let file = RestSpec { document: Some(DocumentSource::File("no/such/file.yaml".into())), ..own.clone() };
    let message = Rest::load(&file, &limits()).await.unwrap_err().to_string();
    assert!(message.starts_with("the document no/such/file.yaml cannot be read"), "{message}");
    let (address, _events) = stalled_server(b"").await;
    let slow = Some(DocumentSource::Url(format!("http://{address}/").parse().unwrap()));
    let short_timeouts = RestLimits {
        discovery_timeout: Duration::from_millis(200),
        connect_timeout: Duration::from_millis(300),
        ..limits()
    };
    let message = Rest::load(&RestSpec { document: slow, ..own }, &short_timeouts).await.unwrap_err().to_string();
    assert!(message.contains("did not answer within"), "{message}");
}

#[tokio::test]
async fn swagger_2_form_file_and_list_parameters_are_sent() {
    let api = Api::json("{}").await;
    let document = json!({
        "swagger": "2.0", "basePath": "/wrong", "host": "elsewhere.example",
        "paths": {
            "/form": { "post": { "operationId": "form", "consumes": ["application/x-www-form-urlencoded"], "parameters": [
                { "name": "a", "in": "formData", "type": "string", "required": true },
                { "name": "l", "in": "formData", "type": "array", "items": { "type": "string" }, "collectionFormat": "pipes" },
            ] } },
            "/file": { "post": { "operationId": "file", "parameters": [
                { "name": "f", "in": "formData", "type": "file", "required": true },
            ] } },
            "/body": { "post": { "operationId": "body", "consumes": ["text/plain"], "parameters": [
                { "name": "b", "in": "body", "schema": { "type": "string" } },
            ] } },
            "/list": { "get": { "operationId": "list", "parameters": [
                { "name": "c", "in": "query", "type": "array", "items": { "type": "integer" } },
                { "name": "m", "in": "query", "type": "array", "items": { "type": "integer" }, "collectionFormat": "multi" },
                { "name": "t", "in": "query", "type": "array", "items": { "type": "integer" }, "collectionFormat": "tsv" },
            ] } },
        },
    });
    let rest = load_document(&api, &document).await;
    let file = &listed(&rest)[1]["inputSchema"]["properties"]["f"];
    let description = "Text, or bytes as a `data:` URI in Base64.";
    assert_eq!(*file, json!({ "type": "string", "format": "binary", "description": description }));
    call_tool(&rest, "form", json!({ "a": "1", "l": ["x", "y|z"] })).await;
    let seen = api.take_only_request();
    assert_eq!((seen.target.as_str(), &seen.body[..]), ("/form", &b"a=1&l=x%7Cy%7Cz"[..]));
    call_tool(&rest, "file", json!({ "f": "data:text/csv;base64,YSxi" })).await;
    let seen = api.take_only_request();
    assert!(seen.headers["content-type"].to_str().unwrap().starts_with("multipart/form-data; boundary="));
    let body = String::from_utf8(seen.body.to_vec()).unwrap();
    assert!(body.contains("name=\"f\"; filename=\"f\"\r\nContent-Type: text/csv\r\n\r\na,b\r\n"), "{body}");
    call_tool(&rest, "body", json!({ "body": "plain words" })).await;
    let seen = api.take_only_request();
    assert_eq!((&seen.headers["content-type"], &seen.body[..]), (&"text/plain".parse().unwrap(), &b"plain words"[..]));
    call_tool(&rest, "list", json!({ "c": [1, 2], "m": [3, 4], "t": [5, 6] })).await;
    assert_eq!(api.take_only_request().target, "/list?c=1,2&m=3&m=4&t=5%096");
}
