//! The upstream server of the benchmark: answers with prepared responses, over HTTP (hyper) or stdio, in either era.
//!
//! It runs in this binary, started with [`ARGUMENT`].

use std::collections::HashMap;
use std::convert::Infallible;
use std::future::{Ready, ready};
use std::io::{BufRead, Write};
use std::sync::Arc;

use bytes::Bytes;
use futures_util::stream::{Once, once};
use http::header::CONTENT_TYPE;
use http::{HeaderName, HeaderValue, Method as Verb, Request, Response, StatusCode};
use http_body_util::{BodyExt, Either, Full, StreamBody};
use hyper::body::{Frame, Incoming};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use rialto::protocol::{self, ErrorObject, Message, Method, Raw, code};
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::process::Command;

use crate::Failure;
use crate::client::{Era, ToolCall};
use crate::process::Server;

/// Makes this binary serve instead of measure; transport, era and tools follow.
pub(crate) const ARGUMENT: &str = "serve-as-upstream";

/// The default tool call.
pub(crate) const SUBJECT: ToolCall = tool_call("json-100", 100);

/// A call of the tool that returns a text of this many bytes.
pub(crate) const fn tool_call(tool: &str, bytes: usize) -> ToolCall<'_> {
    let arguments = r#"{"what":"the same as ever"}"#;
    ToolCall { tool, arguments, answer: MARK.as_bytes(), length: Some(bytes) }
}

/// Start of the text in every response.
const MARK: &str = "payload:";

/// Transport to the upstream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum UpstreamTransport {
    Http,
    Stdio,
}

impl UpstreamTransport {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Http => "http",
            Self::Stdio => "stdio",
        }
    }
}

/// Format of a response over HTTP.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ResponseFormat {
    Json,
    /// As an SSE event.
    Events,
}

impl ResponseFormat {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Json => "json",
            Self::Events => "sse",
        }
    }

    /// Name of the tool that responds in this format with a text of this many bytes.
    pub(crate) fn tool(self, bytes: usize) -> String {
        format!("{}-{bytes}", self.name())
    }
}

/// Tools of the upstream: one per format and size, and some that only appear in the list.
#[derive(Debug, Clone)]
pub(crate) struct ToolSet {
    pub(crate) sizes: Vec<usize>,
    pub(crate) listed: usize,
}

impl ToolSet {
    pub(crate) fn of(sizes: &[usize]) -> Self {
        Self { sizes: sizes.to_vec(), listed: 0 }
    }

    /// Command line arguments that start this binary as an upstream with these tools.
    pub(crate) fn arguments(&self, transport: UpstreamTransport, era: Era) -> Vec<String> {
        let sizes = self.sizes.iter().map(usize::to_string).collect::<Vec<_>>().join(",");
        [ARGUMENT, transport.name(), era.revision(), &self.listed.to_string(), &sizes].map(str::to_owned).to_vec()
    }
}

/// Starts an upstream over HTTP.
pub(crate) async fn start(era: Era, offer: &ToolSet) -> Result<Server, Failure> {
    let mut command = Command::new(std::env::current_exe()?);
    command.args(offer.arguments(UpstreamTransport::Http, era));
    Server::start(command).await
}

/// Runs the upstream until the process is killed.
pub(crate) fn serve(arguments: &[String]) -> Result<(), Failure> {
    let [transport, revision, listed, sizes] = arguments else { return Err("this is no offer".into()) };
    let eras = [Era::Handshake, Era::PerRequest];
    let era = eras.into_iter().find(|era| era.revision() == revision).ok_or("there is no such era")?;
    let sizes = sizes.split(',').filter(|size| !size.is_empty()).map(str::parse).collect::<Result<_, _>>()?;
    let answers = Arc::new(Answers::new(era, &ToolSet { sizes, listed: listed.parse()? }));
    if transport == UpstreamTransport::Stdio.name() {
        return on_lines(&answers);
    }
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(over_http(answers))
}

/// Prepared responses.
struct Answers {
    era: Era,
    /// Responses by tool name.
    called: HashMap<String, (ResponseFormat, Raw)>,
    listed: Raw,
    hello: Raw,
}

/// A prepared message and its format; `None` for notifications.
type Answer = Option<(ResponseFormat, Bytes)>;

impl Answers {
    fn new(era: Era, offer: &ToolSet) -> Self {
        let schema = json!({ "type": "object", "properties": { "what": { "type": "string" } } });
        let forms = || [ResponseFormat::Json, ResponseFormat::Events].into_iter();
        let names = offer.sizes.iter().flat_map(|bytes| forms().map(|form| form.tool(*bytes)));
        let names = names.chain((0..offer.listed).map(|n| format!("listed-{n:03}")));
        let tools: Vec<Value> = names
            .map(|name| json!({ "name": name, "description": "The same as ever", "inputSchema": schema }))
            .collect();
        let info = json!({ "name": "upstream", "version": "1" });
        let hello = match era {
            Era::Handshake => json!({ "protocolVersion": era.revision(), "serverInfo": info }),
            Era::PerRequest => json!({ "supportedVersions": [era.revision()], "ttlMs": 0, "cacheScope": "private" }),
        };
        let complete = |mut result: Value| {
            if era == Era::PerRequest {
                result["resultType"] = json!("complete");
                result["_meta"] = json!({ "io.modelcontextprotocol/serverInfo": info });
            }
            Raw::of(&result)
        };
        let mut hello = hello;
        hello["capabilities"] = json!({ "tools": {} });
        let mut listed = json!({ "tools": tools });
        if era == Era::PerRequest {
            listed["ttlMs"] = json!(3_600_000);
            listed["cacheScope"] = json!("private");
        }
        let called = offer.sizes.iter().flat_map(|&bytes| {
            let text = format!("{MARK}{}", "x".repeat(bytes.saturating_sub(MARK.len())));
            let result = complete(json!({ "content": [{ "type": "text", "text": text }], "isError": false }));
            forms().map(move |form| (form.tool(bytes), (form, result.clone())))
        });
        Self { era, called: called.collect(), listed: complete(listed), hello: complete(hello) }
    }

    fn to(&self, message: &Bytes) -> Result<Answer, Failure> {
        let message = Message::parse(message).map_err(|invalid| invalid.reason)?;
        let Message::Request(request) = message else { return Ok(None) };
        let mut form = ResponseFormat::Json;
        let outcome = match (&request.method, self.era) {
            (Method::ToolsCall, _) => {
                let name = request.params.as_ref().and_then(|params| params.get("name"));
                let tool = name.as_ref().and_then(Raw::text).and_then(|name| self.called.get(name.as_ref()));
                form = tool.map_or(form, |(form, _)| *form);
                tool.map(|(_, result)| result.clone())
                    .ok_or_else(|| ErrorObject::new(code::INVALID_PARAMS, "No such tool"))
            }
            (Method::ToolsList, _) => Ok(self.listed.clone()),
            (Method::Initialize, Era::Handshake) | (Method::Discover, Era::PerRequest) => Ok(self.hello.clone()),
            (Method::Ping, Era::Handshake) => Ok(Raw::empty()),
            _ => Err(ErrorObject::new(code::METHOD_NOT_FOUND, "Method not found")),
        };
        Ok(Some((form, protocol::Response::new(Some(request.id), outcome.map(Into::into)).encode())))
    }
}

fn on_lines(answers: &Answers) -> Result<(), Failure> {
    let (mut input, mut output) = (std::io::stdin().lock(), std::io::stdout().lock());
    let mut line = Vec::new();
    while input.read_until(b'\n', &mut line)? > 0 {
        if let Some((_, answer)) = answers.to(&Bytes::from(std::mem::take(&mut line)))? {
            output.write_all(&answer)?;
            output.write_all(b"\n")?;
            output.flush()?;
        }
    }
    Ok(())
}

async fn over_http(answers: Arc<Answers>) -> Result<(), Failure> {
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    println!("the upstream serves at http://{}/mcp", listener.local_addr()?);
    loop {
        let (stream, _) = listener.accept().await?;
        stream.set_nodelay(true)?;
        let answers = Arc::clone(&answers);
        tokio::spawn(async move {
            let service = service_fn(|request| {
                let answers = Arc::clone(&answers);
                async move { Ok::<_, Infallible>(respond(&answers, request).await) }
            });
            // The client reports broken connections.
            let _ = http1::Builder::new().serve_connection(TokioIo::new(stream), service).await;
        });
    }
}

/// A body of known length, or one SSE event in a chunked body.
type Body = Either<Full<Bytes>, Event>;
type Event = StreamBody<Once<Ready<Result<Frame<Bytes>, Infallible>>>>;

async fn respond(answers: &Answers, request: Request<Incoming>) -> Response<Body> {
    if *request.method() != Verb::POST {
        return with_status(StatusCode::METHOD_NOT_ALLOWED);
    }
    let Ok(body) = request.into_body().collect().await else { return with_status(StatusCode::BAD_REQUEST) };
    match answers.to(&body.to_bytes()) {
        Ok(Some((form, answer))) => {
            let (kind, body) = match form {
                ResponseFormat::Json => ("application/json", Body::Left(Full::new(answer))),
                ResponseFormat::Events => ("text/event-stream", Body::Right(event(&answer))),
            };
            let mut response = Response::new(body);
            let headers = response.headers_mut();
            headers.insert(CONTENT_TYPE, HeaderValue::from_static(kind));
            if answers.era == Era::Handshake {
                // Session ids are not checked.
                headers.insert(HeaderName::from_static("mcp-session-id"), HeaderValue::from_static("upstream"));
            }
            response
        }
        Ok(None) => with_status(StatusCode::ACCEPTED),
        Err(_) => with_status(StatusCode::BAD_REQUEST),
    }
}

fn event(message: &Bytes) -> Event {
    let text = [b"event: message\ndata: ".as_slice(), message, b"\n\n"].concat();
    StreamBody::new(once(ready(Ok(Frame::data(text.into())))))
}

fn with_status(status: StatusCode) -> Response<Body> {
    let mut response = Response::new(Body::Left(Full::default()));
    *response.status_mut() = status;
    response
}
