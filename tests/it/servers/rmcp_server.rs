//! The official Rust SDK as a server, over Streamable HTTP in this process.

#![allow(deprecated, reason = "logging, sampling and roots are deprecated in 2026-07-28 and still tested")]

use std::convert::Infallible;
use std::sync::atomic::{AtomicU32, Ordering};

use hyper_util::rt::TokioIo;
use rmcp::model::{
    CallToolRequestParams, CallToolResponse, CallToolResult, ContentBlock, CreateMessageRequest,
    CreateMessageRequestParams, InputRequest, InputRequiredResult, ListRootsRequest, ListToolsResult, LoggingLevel,
    LoggingMessageNotificationParam, PaginatedRequestParams, ProgressNotificationParam, ProtocolVersion,
    ReadResourceRequestParams, ReadResourceResponse, ReadResourceResult, ResourceContents,
    ResourceUpdatedNotificationParam, SamplingMessage, ServerCapabilities, ServerConfig, SetLevelRequestParams,
    SubscribeRequestParams, SubscriptionFilter, Tool,
};
use rmcp::service::{RequestContext, SubscriptionContext};
use rmcp::transport::streamable_http_server::session::local::LocalSessionManager;
use rmcp::transport::streamable_http_server::{StreamableHttpServerConfig, StreamableHttpService};
use rmcp::{ErrorData, RoleServer, ServerHandler};
use tokio::net::TcpListener;

use super::*;

/// Interval between clock updates.
const CLOCK_INTERVAL: Duration = Duration::from_millis(300);

#[derive(Clone, Default)]
struct Handler {
    running: Arc<AtomicU32>,
}

/// Counts a running `count` call until dropped.
struct RunningCount(Arc<AtomicU32>);

impl Drop for RunningCount {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

fn text_response(text: impl Into<String>) -> CallToolResponse {
    CallToolResult::success(vec![ContentBlock::text(text)]).into()
}

fn internal_error(error: impl std::fmt::Display) -> ErrorData {
    ErrorData::internal_error(error.to_string(), None)
}

impl Handler {
    async fn count(&self, to: u64, delay: u64, context: &RequestContext<RoleServer>) -> Result<(), ErrorData> {
        self.running.fetch_add(1, Ordering::SeqCst);
        let _counting = RunningCount(Arc::clone(&self.running));
        for step in 1..=to {
            tokio::select! {
                () = tokio::time::sleep(Duration::from_millis(delay)) => {}
                () = context.ct.cancelled() => return Err(internal_error("cancelled")),
            }
            if let Some(token) = context.meta.get_progress_token() {
                let progress = ProgressNotificationParam::new(token, step as f64);
                context.peer.notify_progress(progress).await.map_err(internal_error)?;
            }
        }
        Ok(())
    }

    /// Requests input in the form of the request's era.
    async fn ask(
        &self,
        input_request: InputRequest,
        request: &CallToolRequestParams,
        context: &RequestContext<RoleServer>,
    ) -> Result<Result<Value, CallToolResponse>, ErrorData> {
        if context.protocol_version() == Some(ProtocolVersion::V_2026_07_28) {
            let answer = request.input_responses.as_ref().and_then(|answers| answers.get("question"));
            return Ok(match answer {
                Some(answer) => Ok(answer.clone()),
                None => Err(CallToolResponse::InputRequired(InputRequiredResult::from_input_requests(
                    [("question".to_owned(), input_request)].into(),
                ))),
            });
        }
        let answer = match input_request {
            InputRequest::CreateMessage(asked) => {
                serde_json::to_value(context.peer.create_message(asked.params).await.map_err(internal_error)?)
            }
            _ => serde_json::to_value(context.peer.list_roots().await.map_err(internal_error)?),
        };
        answer.map(Ok).map_err(internal_error)
    }
}

impl ServerHandler for Handler {
    fn get_info(&self) -> ServerConfig {
        let capabilities = ServerCapabilities::builder().enable_tools().enable_logging();
        ServerConfig::new(capabilities.enable_resources().enable_resources_subscribe().build())
    }

    async fn set_level(&self, _: SetLevelRequestParams, _: RequestContext<RoleServer>) -> Result<(), ErrorData> {
        Ok(())
    }

    async fn list_tools(
        &self,
        _: Option<PaginatedRequestParams>,
        _: RequestContext<RoleServer>,
    ) -> Result<ListToolsResult, ErrorData> {
        let schema = json!({ "type": "object" }).as_object().cloned().unwrap();
        let tool = |name| Tool::new(name, name, schema.clone());
        let tools = ["count", "echo", "fail", "structured", "think", "where"].map(tool);
        Ok(ListToolsResult::with_all_items(tools.into()))
    }

    async fn call_tool(
        &self,
        request: CallToolRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<CallToolResponse, ErrorData> {
        let arguments = Value::Object(request.arguments.clone().unwrap_or_default());
        match request.name.as_ref() {
            "echo" => {
                let message = arguments["message"].as_str().unwrap();
                let log = LoggingMessageNotificationParam::new(LoggingLevel::Info, json!(format!("echo: {message}")));
                context.peer.notify_logging_message(log).await.map_err(internal_error)?;
                Ok(text_response(message))
            }
            "count" => {
                let (to, delay) = (arguments["to"].as_u64().unwrap(), arguments["delayMs"].as_u64().unwrap());
                self.count(to, delay, &context).await?;
                Ok(text_response(format!("counted to {to}")))
            }
            "think" => {
                let message = SamplingMessage::user_text(arguments["prompt"].as_str().unwrap());
                let params = CreateMessageRequestParams::new(vec![message], 100);
                let input_request = InputRequest::CreateMessage(CreateMessageRequest::new(params));
                let answer = self.ask(input_request, &request, &context).await?;
                Ok(answer.map_or_else(
                    |input_required| input_required,
                    |answer| {
                        let content = &answer["content"];
                        text_response(content["text"].as_str().or(content[0]["text"].as_str()).unwrap())
                    },
                ))
            }
            "where" => {
                let answer = self.ask(InputRequest::ListRoots(ListRootsRequest::default()), &request, &context).await?;
                Ok(answer.map_or_else(
                    |input_required| input_required,
                    |answer| text_response(json!([answer["roots"][0]["uri"]]).to_string()),
                ))
            }
            "fail" => Ok(CallToolResult::error(vec![ContentBlock::text("on purpose")]).into()),
            "structured" => {
                Ok(CallToolResult::structured(json!({ "running": self.running.load(Ordering::SeqCst) })).into())
            }
            other => Err(ErrorData::invalid_params(format!("unknown tool {other}"), None)),
        }
    }

    async fn read_resource(
        &self,
        request: ReadResourceRequestParams,
        _: RequestContext<RoleServer>,
    ) -> Result<ReadResourceResponse, ErrorData> {
        match request.uri.as_str() {
            uri @ "test://static" => {
                Ok(ReadResourceResult::new(vec![ResourceContents::text("always the same", uri)]).into())
            }
            _ => Err(ErrorData::resource_not_found("Resource not found", None)),
        }
    }

    async fn subscribe(
        &self,
        request: SubscribeRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<(), ErrorData> {
        tokio::spawn(async move {
            let update = ResourceUpdatedNotificationParam::new(request.uri);
            while context.peer.notify_resource_updated(update.clone()).await.is_ok() {
                tokio::time::sleep(CLOCK_INTERVAL).await;
            }
        });
        Ok(())
    }

    fn accepted_subscription_filter(&self, requested: &SubscriptionFilter) -> Option<SubscriptionFilter> {
        Some(requested.clone())
    }

    async fn listen(&self, context: SubscriptionContext) -> Result<(), ErrorData> {
        while context.sink().notify_resource_updated(CLOCK).await.is_ok() {
            tokio::select! {
                () = tokio::time::sleep(CLOCK_INTERVAL) => {}
                () = context.cancelled() => break,
            }
        }
        Ok(())
    }
}

async fn serve() -> SocketAddr {
    let handler = Handler::default();
    let sessions = Arc::new(LocalSessionManager::default());
    let config = StreamableHttpServerConfig::default();
    let service = StreamableHttpService::new(move || Ok(handler.clone()), sessions, config);
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        loop {
            let (stream, _) = listener.accept().await.unwrap();
            let service = service.clone();
            let answer = hyper::service::service_fn(move |request| {
                let service = service.clone();
                async move { Ok::<_, Infallible>(service.handle(request).await) }
            });
            tokio::spawn(hyper::server::conn::http1::Builder::new().serve_connection(TokioIo::new(stream), answer));
        }
    });
    address
}

#[tokio::test]
async fn streamable_http() {
    const RMCP: SdkServer = SdkServer { both_eras: true, ..PYTHON_1 };
    let address = serve().await;
    let target = Target::url(&format!("http://{address}/mcp")).unwrap();
    for pinned in REVISIONS {
        let (client, host) = connect(&target, pinned).await.unwrap_or_else(|error| panic!("{pinned:?}: {error}"));
        let revision = RMCP.negotiated(pinned, "streamable-http");
        assert_eq!((client.probe_report().transport, client.revision()), ("streamable-http", revision));
        let tools = in_time("tools", client.tools()).await.unwrap();
        assert_eq!(names(&tools, "name"), ["count", "echo", "fail", "structured", "think", "where"]);
        assert_eq!(text(&call(&client, "echo", json!({ "message": "hello" })).await), "hello");
        crate::harness::until("the log message is seen", || host.has_logged("echo: hello")).await;
        call(&client, "count", json!({ "to": 5, "delayMs": 10 })).await;
        assert_eq!(host.take_progress(), [1, 2, 3, 4, 5]);
        assert_eq!(text(&call(&client, "think", json!({ "prompt": "bridges" })).await), "thoughts on bridges");
        assert_eq!(json_text(&call(&client, "where", json!({})).await), json!([ROOT]));
        let failed = in_time("fail", client.call_tool("fail", Raw::empty())).await.unwrap();
        assert_eq!(value(&failed)["isError"], true, "{failed}");
        let read = in_time("read", client.read("test://static")).await.unwrap();
        assert_eq!(value(&read)["contents"][0]["text"], "always the same", "{read}");
        wait_for_update(&client, CLOCK).await;
        start_and_cancel(&client, "count", json!({ "to": 100_000, "delayMs": 10 })).await;
        wait_idle(&client).await;
        let session = client.session_id();
        assert_eq!(session.is_some(), revision.has_sessions());
        in_time("closed", client.close()).await;
        if let Some(session) = session {
            assert_session_ended(RMCP, address, revision, &session).await;
        }
    }
}
