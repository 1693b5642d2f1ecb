//! SDK clients on a gateway with five upstreams: built-in, stdio, HTTP+SSE, Streamable HTTP and REST.

use rmcp::model::{
    CallToolRequestParams, ClientCapabilities, ClientConfig, ElicitRequestParams, ElicitResult, ElicitationAction,
    GetPromptRequestParams, ProtocolVersion, ReadResourceRequestParams,
};
use rmcp::service::RequestContext;
use rmcp::transport::StreamableHttpClientTransport;
use rmcp::{ClientHandler, ClientLifecycleMode, ClientServiceExt, ErrorData, RoleClient};
use serde_json::{Value, json};

use super::GatewayProcess;
use crate::children::{gone, marker};
use crate::harness::{HttpRequest, modern};
use crate::peers::{PY1, PY2, Peer, TS1, TS2, carry_out};
use crate::rest::{Api, json_response};
use crate::servers::{EVERYTHING, PYTHON_1, Served, TYPESCRIPT_2};

/// A gateway with its upstreams.
struct Deployment {
    rialto: GatewayProcess,
    /// In the environment of every child process of the gateway.
    marker: String,
    _served: [Served; 2],
    _api: Api,
}

const VARIABLES: [(&str, &str); 2] = [("WEATHER_TOKEN", "t0ken"), ("KEY", "k3y")];
const WEATHER: &str = "
openapi: 3.1.0
info: { title: Weather, version: '1' }
paths:
  /v1/places/{name}:
    get:
      operationId: getPlace
      parameters: [{ name: name, in: path, required: true, schema: { type: string } }]
      responses: { '200': { description: A place. } }
    delete:
      operationId: dropPlace
      responses: { '204': { description: Gone. } }
";

impl Deployment {
    async fn start(name: &str) -> Self {
        let marker = marker(name);
        let (python, typescript) =
            tokio::join!(Served::start(PYTHON_1, &["sse", "0"]), Served::start(TYPESCRIPT_2, &["http", "0"]));
        let api = Api::start(|seen| {
            assert_eq!(seen.headers["authorization"], "Bearer t0ken");
            assert!(seen.target.contains("appid=k3y"), "{seen:?}");
            match seen.target.starts_with("/v1/forecast?latitude=47.4&longitude=8.5&") {
                true => json_response(200, r#"{"current_weather":{"temperature":21},"more":0}"#),
                false => json_response(200, r#"{"name":"Bern"}"#),
            }
        })
        .await;
        let (program, arguments) = EVERYTHING.command(&["stdio"]).await;
        // The example of docs/rest.md with another host.
        let docs = include_str!("../../../docs/rest.md");
        let (_, rest) = docs.split_once("```toml\n").unwrap();
        let (weather, _) = rest.split_once("```").unwrap();
        let weather = weather.replace("https://api.open-meteo.com", &format!("http://{}", api.address));
        let file = format!(
            r#"
            [servers.elements]
            builtin = "elements"
            [servers.everything]
            command = {program:?}
            args = {arguments:?}
            env = {{ MARKER = {marker:?} }}
            [servers.py]
            url = "http://{}/sse"
            [servers.ts]
            url = "http://{}/mcp"
            {weather}"#,
            python.address, typescript.address
        );
        let folder = crate::config::TempFolder::new(&format!("gateway-{name}"));
        folder.write("rialto.toml", &file);
        folder.write("weather.yaml", WEATHER);
        let rialto = GatewayProcess::start_in(folder, &["serve", "--listen", "127.0.0.1:0"], &VARIABLES).await;
        let status = rialto.until_ready().await;
        assert_eq!(
            super::names(&status["upstreams"], "transport"),
            ["in this process", "stdio", "sse", "streamable-http", "rest"]
        );
        Self { rialto, marker, _served: [python, typescript], _api: api }
    }

    /// Stops the gateway and checks that no session or process is left.
    async fn stop(self) {
        self.rialto.until_status("every session has ended", |status| status["sessions"] == json!([])).await;
        self.rialto.stop().await;
        gone(&self.marker).await;
    }
}

/// The calls, reads and gets that every client makes. A handshake-era server cannot send requests to these per-request
/// clients.
fn plan(per_request: bool) -> Value {
    let mut calls = vec![
        json!(["elements__getElement", { "name": "Fe" }]),
        json!(["everything__echo", { "message": "hi" }]),
        json!(["py__echo", { "message": "héllo" }]),
        json!(["ts__echo", { "message": "héllo" }]),
        json!(["weather__forecast", { "latitude": 47.4, "longitude": 8.5 }]),
        json!(["weather__getPlace", { "name": "Bern" }]),
        json!(["py__fail", {}]),
        json!(["py__count", { "to": 3, "delayMs": 50 }]),
        json!(["ts__count", { "to": 3, "delayMs": 50 }]),
        json!(["ts__confirm", {}]),
        json!(["ts__think", { "prompt": "tea" }]),
    ];
    if !per_request {
        calls.extend([json!(["py__confirm", {}]), json!(["py__think", { "prompt": "tea" }])]);
    }
    json!({
        "calls": calls,
        "reads": [
            ["rialto://elements/elements://symbol/Fe"],
            ["rialto://everything/demo://resource/static/document/features.md"],
            ["rialto://py/test://static"],
            ["rialto://py/test://item/7"],
            ["rialto://ts/test://static"],
        ],
        "gets": [
            ["elements__describeElement", { "name": "Fe" }],
            ["everything__simple-prompt", {}],
            ["py__greet", { "name": "Bo" }],
            ["ts__greet", { "name": "Bo" }],
        ],
    })
}

fn check(peer: Peer, report: &Value, per_request: bool, tools: &[String]) {
    let context = format!("{}: {report:#}", peer.name);
    assert_eq!(report["revision"], if per_request { "2026-07-28" } else { "2025-11-25" }, "{context}");
    assert_eq!(report["tools"], json!(tools), "{context}");
    for (list, count) in [("resources", 13), ("prompts", 7)] {
        assert_eq!(report[list].as_array().unwrap().len(), count, "{context}");
    }
    let mut calls = vec![
        ("elements__getElement", "Iron"),
        ("everything__echo", "Echo: hi"),
        ("py__echo", "héllo"),
        ("ts__echo", "héllo"),
        ("weather__forecast", r#"{"temperature":21}"#),
        ("weather__getPlace", "Bern"),
        ("py__count", "counted to 3"),
        ("ts__count", "counted to 3"),
        ("ts__confirm", "Ada"),
        ("ts__think", "thoughts on tea"),
    ];
    if !per_request {
        calls.extend([("py__confirm", "Ada"), ("py__think", "thoughts on tea")]);
    }
    for (tool, word) in calls {
        let call = &report["calls"][tool];
        assert_eq!(call["isError"], false, "{tool} of {context}");
        assert!(call["text"].as_str().unwrap().contains(word), "{tool} of {context}");
    }
    assert_eq!(report["calls"]["py__fail"]["isError"], true, "{context}");
    for tool in ["py__count", "ts__count"] {
        // The TypeScript SDKs drop progress that arrives in one chunk with the response.
        let seen = report["calls"][tool]["progress"].as_array().unwrap();
        assert!(
            !seen.is_empty() && seen.iter().zip(1..).all(|(seen, n)| *seen == json!(n) || *seen == json!(f64::from(n))),
            "{tool} of {context}"
        );
    }
    for (uri, word) in [
        ("rialto://elements/elements://symbol/Fe", "\"Fe\""),
        ("rialto://everything/demo://resource/static/document/features.md", "#"),
        ("rialto://py/test://static", "always the same"),
        ("rialto://py/test://item/7", "item 7"),
        ("rialto://ts/test://static", "always the same"),
    ] {
        assert!(report["reads"][uri].as_str().is_some_and(|text| text.contains(word)), "{uri} of {context}");
    }
    for (prompt, word) in [
        ("elements__describeElement", "Iron"),
        ("everything__simple-prompt", "simple prompt"),
        ("py__greet", "Hello, Bo"),
        ("ts__greet", "Hello, Bo"),
    ] {
        assert!(report["gets"][prompt].as_str().is_some_and(|text| text.contains(word)), "{prompt} of {context}");
    }
    assert_eq!(report["closed"], true, "{context}");
}

/// Runs the plan over every transport, in each era that the SDK speaks.
async fn run_over_every_transport(peer: Peer, both_eras: bool) {
    let deployment = Deployment::start(peer.name).await;
    let session = deployment.rialto.open("/mcp").await;
    let tools = session.tools().await;
    session.close().await;
    assert!(!tools.iter().any(|tool| tool.contains("dropPlace")), "{tools:?}");
    let file = deployment.rialto.path("rialto.toml").display().to_string();
    let command = [env!("CARGO_BIN_EXE_rialto"), "stdio", "--config", &file, "--group", "default"].map(str::to_owned);
    for revision in if both_eras { &["2025-11-25", "auto"][..] } else { &["2025-11-25"] } {
        for transport in ["http", "sse", "stdio"] {
            let target = match transport {
                "http" => vec![deployment.rialto.url("/mcp")],
                "sse" => vec![deployment.rialto.url("/sse")],
                _ => {
                    // The SDK passes its own environment to the process, so the variables are set with env.
                    let variables = VARIABLES.map(|(name, value)| format!("{name}={value}"));
                    ["env".to_owned()].into_iter().chain(variables).chain(command.clone()).collect()
                }
            };
            let per_request = *revision == "auto" && transport != "sse";
            if *revision == "auto" && !per_request {
                continue;
            }
            let report = carry_out(peer, revision, transport, &target, Some(&plan(per_request))).await;
            check(peer, &report, per_request, &tools);
        }
    }
    deployment.stop().await;
}

#[tokio::test]
async fn typescript_sdk_1_over_every_transport() {
    run_over_every_transport(TS1, false).await;
}

#[tokio::test]
async fn typescript_sdk_2_over_every_transport() {
    run_over_every_transport(TS2, true).await;
}

#[tokio::test]
async fn python_sdk_1_over_every_transport() {
    run_over_every_transport(PY1, false).await;
}

#[tokio::test]
async fn python_sdk_2_over_every_transport() {
    run_over_every_transport(PY2, true).await;
}

/// A client that accepts every elicitation.
#[derive(Clone)]
struct AcceptingClient;

impl ClientHandler for AcceptingClient {
    fn get_info(&self) -> ClientConfig {
        let capabilities = ClientCapabilities::builder().enable_elicitation().build();
        ClientConfig::new(capabilities, rmcp::model::Implementation::from_build_env())
    }

    async fn create_elicitation(
        &self,
        _: ElicitRequestParams,
        _: RequestContext<RoleClient>,
    ) -> Result<ElicitResult, ErrorData> {
        Ok(ElicitResult::new(ElicitationAction::Accept).with_content(json!({ "name": "Ada", "sure": true })))
    }
}

/// The config table of a per-request TypeScript server over stdio, with extra settings.
async fn typescript_server(name: &str, more: &str) -> String {
    let (program, arguments) = TYPESCRIPT_2.command(&["stdio", "modern"]).await;
    format!("[servers.{name}]\ncommand = {program:?}\nargs = {arguments:?}\n{more}\n")
}

#[tokio::test]
async fn elicitation_names_its_server_and_can_be_disallowed() {
    let file = typescript_server("ts", "").await + &typescript_server("mute", "allow_server_requests = false").await;
    let rialto = GatewayProcess::start("asking", &file).await;
    rialto.until_ready().await;
    for (server, allowed) in [("ts", true), ("mute", false)] {
        let params = json!({ "name": format!("{server}__confirm"), "arguments": {} });
        let mut body = modern(json!(1), "tools/call", params.clone());
        body["params"]["_meta"]["io.modelcontextprotocol/clientCapabilities"] =
            json!({ "elicitation": { "form": {} } });
        let sending = HttpRequest::to(rialto.address, "POST", "/mcp").modern_headers("tools/call", &params);
        let sending = sending.header("content-type", "application/json").header("accept", "*/*").body(body.to_string());
        let answer = super::read_response(sending.go().await).await;
        let question = &answer["result"]["inputRequests"]["question"]["params"]["message"];
        assert_eq!(question.as_str(), allowed.then_some("[ts] Who are you?"), "{answer}");
    }
    rialto.stop().await;
}

#[tokio::test]
async fn rust_sdk_in_both_eras() {
    let deployment = Deployment::start("rust").await;
    let preferred_versions = vec![ProtocolVersion::V_2026_07_28];
    for lifecycle in [ClientLifecycleMode::Initialize, ClientLifecycleMode::Discover { preferred_versions }] {
        let handshake = lifecycle == ClientLifecycleMode::Initialize;
        let transport = StreamableHttpClientTransport::from_uri(deployment.rialto.url("/mcp"));
        let client = AcceptingClient.serve_with_lifecycle(transport, lifecycle).await.unwrap();
        let tools = client.list_all_tools().await.unwrap();
        assert!(tools.iter().any(|tool| tool.name == "weather__forecast"));
        for (tool, arguments, word) in [
            ("elements__getElement", json!({ "name": "Fe" }), "Iron"),
            ("everything__echo", json!({ "message": "hi" }), "Echo: hi"),
            ("py__echo", json!({ "message": "hi" }), "hi"),
            ("ts__confirm", json!({}), "Ada"),
            ("weather__getPlace", json!({ "name": "Bern" }), "Bern"),
            ("py__confirm", json!({}), "Ada"),
        ] {
            if tool == "py__confirm" && !handshake {
                continue;
            }
            let arguments = arguments.as_object().cloned().unwrap();
            let result = client.call_tool(CallToolRequestParams::new(tool).with_arguments(arguments)).await;
            let result = result.unwrap_or_else(|error| panic!("{tool}: {error}"));
            assert!(result.content[0].as_text().unwrap().text.contains(word), "{tool}: {result:?}");
        }
        for uri in ["rialto://elements/elements://symbol/Fe", "rialto://py/test://static", "rialto://ts/test://static"]
        {
            assert_eq!(client.read_resource(ReadResourceRequestParams::new(uri)).await.unwrap().contents.len(), 1);
        }
        let name = json!({ "name": "Bo" }).as_object().cloned().unwrap();
        let got = client.get_prompt(GetPromptRequestParams::new("ts__greet").with_arguments(name)).await.unwrap();
        assert_eq!(got.messages.len(), 1);
        client.cancel().await.unwrap();
    }
    deployment.stop().await;
}
