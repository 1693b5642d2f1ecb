//! A client for the official conformance suite, and an example of [`rialto::client`].
//!
//! For each scenario the suite starts a test server and runs this program with its URL:
//!
//! ```sh
//! cargo build --example conformance_client
//! conformance client --suite all --spec-version 2026-07-28 --command target/debug/examples/conformance_client
//! ```
//!
//! Environment variables: `MCP_CONFORMANCE_SCENARIO` is the scenario, `MCP_CONFORMANCE_PROTOCOL_VERSION` the revision
//! to use, `MCP_CONFORMANCE_CONTEXT` the parameters of the scenario as JSON. With `--probe` before the URL the
//! revision is detected instead.
//!
//! In most scenarios the client lists everything the server offers, uses each item once with arguments made from its
//! schema, and answers all server requests. The last line is `done` on success.

use std::env;
use std::error::Error;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::try_join_all;
use rialto::client::{Client, ClientOptions, Host, ServerRequestFuture};
use rialto::dialect::Revision;
use rialto::mcp_client::{ConnectionSettings, Target};
use rialto::protocol::{ErrorObject, Method, Notification, Outcome, Raw, code};
use serde_json::{Map, Value, json};

/// Any error; it is printed.
type Result<T> = std::result::Result<T, Box<dyn Error>>;

/// Idle timeout of a call. The suite itself waits for half a minute.
const PATIENCE: Duration = Duration::from_secs(20);

/// Scenario whose server lists a tool only to test schema handling; it cannot be called.
const LIST_ONLY: &str = "json-schema-ref-no-deref";
/// Scenario that expects the schema of one tool as the argument of another.
const SCHEMA_ECHO: &str = "json-schema-2020-12-preservation";

#[tokio::main(flavor = "current_thread")]
async fn main() -> ExitCode {
    match run().await {
        Ok(()) => {
            println!("done");
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("conformance_client: {error}");
            ExitCode::FAILURE
        }
    }
}

async fn run() -> Result<()> {
    let task = Task::read()?;
    let client = connect(&task).await?;
    let played = play(&client, &task).await;
    // End the session even after an error.
    client.close().await;
    played
}

/// Parameters given by the suite.
struct Task {
    target: Target,
    scenario: String,
    /// The revision to use; `None` to detect it.
    revision: Option<Revision>,
    context: Raw,
}

impl Task {
    /// Reads command line and environment.
    fn read() -> Result<Self> {
        let mut arguments: Vec<String> = env::args().skip(1).collect();
        let probe = arguments.first().is_some_and(|first| first == "--probe");
        let url = arguments.pop().ok_or("usage: conformance_client [--probe] URL")?;
        let variable = |name: &str| env::var(name).unwrap_or_default();
        // An unknown revision is left to the negotiation.
        let revision = Revision::parse(variable("MCP_CONFORMANCE_PROTOCOL_VERSION")).filter(|_| !probe);
        let context = variable("MCP_CONFORMANCE_CONTEXT");
        Ok(Self {
            target: Target::url(&url)?,
            scenario: variable("MCP_CONFORMANCE_SCENARIO"),
            revision,
            context: if context.is_empty() { Raw::empty() } else { Raw::parse(&context.into())? },
        })
    }
}

/// Connects and prints the probe report.
async fn connect(task: &Task) -> Result<Client> {
    let settings =
        ConnectionSettings { revision: task.revision, idle_timeout: PATIENCE, ..ConnectionSettings::default() };
    let info = Raw::of(&json!({ "name": "conformance_client", "version": env!("CARGO_PKG_VERSION") }));
    let options = ClientOptions { settings, info, host: Arc::new(Obliging), level: None };
    let client = Client::connect(&task.target, options).await?;
    println!("connected: {} ({})", client.revision(), client.probe_report().why);
    Ok(client)
}

/// Lists and uses everything that the server offers.
async fn play(client: &Client, task: &Task) -> Result<()> {
    // Not every server of the suite declares tools, but all answer `tools/list`.
    let tools = client.tools().await?;
    println!("tools: {}", tools.len());
    if task.scenario == LIST_ONLY {
        return Ok(());
    }
    // Concurrently: a server request of one call must not reach another call.
    let calls = calls(task, &tools)?;
    try_join_all(calls.into_iter().map(|(name, arguments)| call(client, name, arguments))).await?;

    let offered = |family: &str| client.server().capabilities.get(family).is_some();
    if offered("resources") {
        for resource in client.resources().await? {
            let uri = member(&resource, "uri")?;
            println!("read {uri}: {}", client.read(&uri).await?);
        }
    }
    if offered("prompts") {
        for prompt in client.prompts().await? {
            let name = member(&prompt, "name")?;
            println!("prompt {name}: {}", client.prompt(&name, prompt_arguments(&prompt)).await?);
        }
    }
    Ok(())
}

/// Calls a tool; `isError` counts as a failure, because no scenario expects it.
async fn call(client: &Client, name: String, arguments: Raw) -> Result<()> {
    let result = client.call_tool(&name, arguments).await?;
    println!("call {name}: {result}");
    match result.get("isError").map(|failed| failed.read::<bool>()) {
        Some(Ok(true)) => Err(format!("the tool {name} failed").into()),
        _ => Ok(()),
    }
}

/// The tools to call with their arguments: those of the scenario, or all.
fn calls(task: &Task, tools: &[Raw]) -> Result<Vec<(String, Raw)>> {
    if let Some(named) = task.context.get("toolCalls") {
        let call = |call: &Raw| Ok((member(call, "name")?, call.get("arguments").unwrap_or_else(Raw::empty)));
        return named.items().iter().map(call).collect();
    }
    let schema = |tool: &Raw| tool.get("inputSchema").unwrap_or_else(Raw::empty);
    if task.scenario == SCHEMA_ECHO {
        // `Raw` keeps the received text, so nothing is lost.
        let [observed, echo, ..] = tools else { return Err("two tools were expected".into()) };
        let arguments = Raw::empty().edit().set("schema", schema(observed)).finish();
        return Ok(vec![(member(echo, "name")?, arguments)]);
    }
    let call = |tool: &Raw| Ok((member(tool, "name")?, Raw::of(&sample(&schema(tool).read()?))));
    tools.iter().map(call).collect()
}

/// Values for the required arguments of a prompt.
fn prompt_arguments(prompt: &Raw) -> Raw {
    let arguments: Vec<Value> = prompt.get("arguments").and_then(|list| list.read().ok()).unwrap_or_default();
    let required = arguments.iter().filter(|argument| argument["required"] == true);
    let filled: Map<String, Value> =
        required.filter_map(|argument| Some((argument["name"].as_str()?.to_owned(), json!("text")))).collect();
    Raw::of(&filled)
}

/// A required string member.
fn member(value: &Raw, key: &str) -> Result<String> {
    let found = value.get(key);
    let text = found.as_ref().and_then(Raw::text);
    Ok(text.ok_or_else(|| format!("{value} has no `{key}`"))?.into_owned())
}

/// A sample value for a schema, from its simple keywords; for objects only required members. Does not follow `$ref`,
/// which may point to a remote URL.
fn sample(schema: &Value) -> Value {
    if let Some(given) = schema.get("default").or(schema.get("const")).or(schema["enum"].get(0)) {
        return given.clone();
    }
    let kind = schema["type"].as_str().or(schema["type"][0].as_str());
    match kind {
        Some("string") => json!("text"),
        Some("integer" | "number") => json!(1),
        Some("boolean") => json!(true),
        Some("array") => json!([]),
        Some("null") => Value::Null,
        _ => {
            let required = schema["required"].as_array().into_iter().flatten().filter_map(Value::as_str);
            required.map(|name| (name.to_owned(), sample(&schema["properties"][name]))).collect()
        }
    }
}

/// A host that answers every server request automatically.
struct Obliging;

impl Host for Obliging {
    fn capabilities(&self) -> Raw {
        Raw::of(&json!({ "elicitation": { "form": {} }, "roots": {}, "sampling": {} }))
    }

    fn on_notification(&self, notification: &Notification) {
        println!("heard {}", notification.method);
    }

    fn on_server_request<'a>(&'a self, method: &'a Method, params: Option<&'a Raw>) -> ServerRequestFuture<'a> {
        println!("asked {method}");
        Box::pin(async move {
            match method.as_str() {
                "elicitation/create" => filled_in(params),
                "sampling/createMessage" => Ok(Raw::of(&json!({
                    "role": "assistant",
                    "content": { "type": "text", "text": "An answer that was there before the question." },
                    "model": "none",
                    "stopReason": "endTurn",
                }))
                .into()),
                "roots/list" => Ok(Raw::of(&json!({ "roots": [] })).into()),
                other => Err(ErrorObject::new(code::METHOD_NOT_FOUND, format!("this client is not asked {other}"))),
            }
        })
    }
}

/// Answers a form with its defaults, and sample values for the other required fields.
fn filled_in(params: Option<&Raw>) -> Outcome {
    let form: Value = params.and_then(|params| params.get("requestedSchema")?.read().ok()).unwrap_or_default();
    let empty = Map::new();
    let mut content = Map::new();
    for (name, field) in form["properties"].as_object().unwrap_or(&empty) {
        let required = form["required"].as_array().is_some_and(|names| names.contains(&json!(name)));
        if required || field.get("default").is_some() {
            content.insert(name.clone(), sample(field));
        }
    }
    Ok(Raw::of(&json!({ "action": "accept", "content": content })).into())
}
