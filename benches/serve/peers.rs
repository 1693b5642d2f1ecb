//! Peers to compare with: the same tool served by the official Rust SDK in its modes, and a fixed response from hyper
//! as the lower bound for HTTP.
//!
//! They run in this binary, started with [`ARGUMENT`]. All of them use hyper without timeouts, on a runtime with as
//! many threads as Rialto has.

use std::convert::Infallible;
use std::sync::Arc;

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto;
use rialto::local::elements::{Elements, SPOTLIGHT_INTERVAL, data, one_line};
use rialto::protocol::Method;
use rmcp::model::{
    CallToolRequestParams, CallToolResponse, CallToolResult, ContentBlock, ErrorData, ListToolsResult,
    PaginatedRequestParams, ServerCapabilities, ServerConfig, Tool,
};
use rmcp::service::RequestContext;
use rmcp::transport::streamable_http_server::session::local::LocalSessionManager;
use rmcp::transport::streamable_http_server::{StreamableHttpServerConfig, StreamableHttpService};
use rmcp::{RoleServer, ServerHandler};
use serde_json::json;
use tokio::net::TcpListener;

use crate::Failure;
use crate::process::Server;

/// The version of the SDK; pinned in Cargo.toml.
pub(crate) const RMCP: &str = "3.8.0";

/// Makes this binary serve instead of measure; the kind of peer follows.
pub(crate) const ARGUMENT: &str = "serve-as-peer";

/// The SDK with sessions, where it always responds with SSE, in its fastest settings: no priming event and no
/// keep-alive timer.
pub(crate) const EVENTS: &str = "rmcp-events";
/// The SDK with sessions and default settings.
pub(crate) const DEFAULTS: &str = "rmcp-defaults";
/// The SDK without sessions, where it can respond with JSON.
pub(crate) const JSON: &str = "rmcp-json";
/// hyper with the same fixed response to every request.
pub(crate) const FIXED: &str = "hyper-fixed";

/// Starts a peer.
pub(crate) async fn start(kind: &str) -> Result<Server, Failure> {
    let mut command = tokio::process::Command::new(std::env::current_exe()?);
    command.args([ARGUMENT, kind]);
    Server::start(command).await
}

/// Runs a peer until the process is killed.
pub(crate) fn serve(kind: &str) -> Result<(), Failure> {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    runtime.block_on(async {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        println!("{kind} serves at http://{}/mcp", listener.local_addr()?);
        let mut config = StreamableHttpServerConfig::default();
        let mut sessions = LocalSessionManager::default();
        match kind {
            FIXED => return fixed(listener).await,
            DEFAULTS => {}
            EVENTS => {
                config = config.with_sse_retry(None).with_sse_keep_alive(None);
                sessions.session_config.sse_retry = None;
            }
            JSON => config = config.with_legacy_session_mode(false).with_json_response(true),
            other => return Err(format!("there is no peer {other}").into()),
        }
        let handler = Handler::new()?;
        let service = StreamableHttpService::new(move || Ok(handler.clone()), Arc::new(sessions), config);
        // Called by reference: as a tower service it would clone its configuration for each request.
        let service = Arc::new(service);
        accept(listener, move |request| {
            let service = Arc::clone(&service);
            async move { service.handle(request).await }
        })
        .await
    })
}

async fn fixed(listener: TcpListener) -> Result<(), Failure> {
    let element = data::by_name("H").ok_or("there is no hydrogen")?;
    let answer = json!({ "jsonrpc": "2.0", "id": 1, "result": result(element) });
    let answer = Bytes::from(serde_json::to_vec(&answer)?);
    accept(listener, move |request: Request<Incoming>| {
        let answer = answer.clone();
        async move {
            // The request body is read but not parsed.
            let _ = request.into_body().collect().await;
            let mut response = Response::new(Full::new(answer));
            let json = http::HeaderValue::from_static("application/json");
            response.headers_mut().insert(http::header::CONTENT_TYPE, json);
            response
        }
    })
    .await
}

/// Accepts and serves connections forever.
async fn accept<F, B>(
    listener: TcpListener,
    serve: impl Fn(Request<Incoming>) -> F + Clone + Send + Sync + 'static,
) -> Result<(), Failure>
where
    F: Future<Output = Response<B>> + Send + 'static,
    B: http_body::Body<Data = Bytes, Error = Infallible> + Send + 'static,
{
    loop {
        let (stream, _) = listener.accept().await?;
        stream.set_nodelay(true)?;
        let serve = serve.clone();
        tokio::spawn(async move {
            let service = service_fn(|request| {
                let response = serve(request);
                async move { Ok::<_, Infallible>(response.await) }
            });
            // The client reports broken connections.
            let _ = auto::Builder::new(TokioExecutor::new()).serve_connection(TokioIo::new(stream), service).await;
        });
    }
}

/// The tool `getElement` for the SDK, dispatched by hand, which is cheaper than its router.
#[derive(Clone)]
struct Handler {
    tool: Tool,
}

impl Handler {
    /// Uses the tool definition of Rialto's built-in server.
    fn new() -> Result<Self, Failure> {
        let elements = Elements::new(SPOTLIGHT_INTERVAL);
        let tools = elements.list(&Method::ToolsList).get("tools").ok_or("there is no list of tools")?;
        let tools: Vec<Tool> = tools.read()?;
        let tool = tools.into_iter().find(|tool| tool.name == "getElement").ok_or("there is no getElement")?;
        Ok(Self { tool })
    }
}

impl ServerHandler for Handler {
    fn get_info(&self) -> ServerConfig {
        ServerConfig::new(ServerCapabilities::builder().enable_tools().build())
    }

    async fn call_tool(
        &self,
        request: CallToolRequestParams,
        _: RequestContext<RoleServer>,
    ) -> Result<CallToolResponse, ErrorData> {
        let name = request.arguments.as_ref().and_then(|arguments| arguments.get("name"));
        let element = name.and_then(|name| name.as_str()).and_then(data::by_name);
        let Some(element) = element.filter(|_| request.name == self.tool.name) else {
            return Err(ErrorData::invalid_params("there is no such tool or element", None));
        };
        let mut result = CallToolResult::success(vec![ContentBlock::text(one_line(element))]);
        result.structured_content = Some(object(element));
        Ok(result.into())
    }

    async fn list_tools(
        &self,
        _: Option<PaginatedRequestParams>,
        _: RequestContext<RoleServer>,
    ) -> Result<ListToolsResult, ErrorData> {
        Ok(ListToolsResult::with_all_items(vec![self.tool.clone()]))
    }

    fn get_tool(&self, name: &str) -> Option<Tool> {
        (name == self.tool.name).then(|| self.tool.clone())
    }
}

fn result(element: &data::Element) -> serde_json::Value {
    json!({
        "content": [{ "type": "text", "text": one_line(element) }],
        "structuredContent": object(element),
        "isError": false,
    })
}

/// The element in the format of Rialto's tool.
fn object(element: &data::Element) -> serde_json::Value {
    let mass: serde_json::Number = element.mass.parse().unwrap_or_else(|_| element.number.into());
    json!({
        "content": one_line(element),
        "atomicNumber": element.number,
        "symbol": element.symbol,
        "chineseName": element.chinese,
        "pinyin": element.pinyin,
        "englishName": element.english,
        "atomicMass": mass,
        "period": element.period,
        "group": element.group,
    })
}
