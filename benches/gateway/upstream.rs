//! The server behind whatever is measured: it reads a request and writes an answer that it has ready,
//! over HTTP with hyper or on standard input and output, in either era.
//!
//! It runs in this program, started anew with [`ARGUMENT`].

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
use crate::client::{Era, Subject};
use crate::process::Server;

/// Makes this program serve instead of measure; the wire, the era and what is offered follow.
pub(crate) const ARGUMENT: &str = "serve-as-upstream";

/// What is called where nothing else is said.
pub(crate) const SUBJECT: Subject = subject("json-100", 100);

/// A tool that answers with a text of that many bytes.
pub(crate) const fn subject(tool: &str, bytes: usize) -> Subject<'_> {
    let arguments = r#"{"what":"the same as ever"}"#;
    Subject { tool, arguments, answer: MARK.as_bytes(), length: Some(bytes) }
}

/// What the text of every answer begins with.
const MARK: &str = "payload:";

/// How a server is reached.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Wire {
    Http,
    Stdio,
}

impl Wire {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Http => "http",
            Self::Stdio => "stdio",
        }
    }
}

/// In what form an answer comes over HTTP.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Form {
    Json,
    /// As an event of a stream.
    Events,
}

impl Form {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Json => "json",
            Self::Events => "sse",
        }
    }

    /// The tool that answers in this form, with a text of that many bytes.
    pub(crate) fn tool(self, bytes: usize) -> String {
        format!("{}-{bytes}", self.name())
    }
}

/// What a server offers: a tool for each form and size, and some that are only on the list.
#[derive(Debug, Clone)]
pub(crate) struct Offer {
    pub(crate) sizes: Vec<usize>,
    pub(crate) listed: usize,
}

impl Offer {
    pub(crate) fn of(sizes: &[usize]) -> Self {
        Self { sizes: sizes.to_vec(), listed: 0 }
    }

    /// The arguments that make this program a server with it.
    pub(crate) fn arguments(&self, wire: Wire, era: Era) -> Vec<String> {
        let sizes = self.sizes.iter().map(usize::to_string).collect::<Vec<_>>().join(",");
        [ARGUMENT, wire.name(), era.revision(), &self.listed.to_string(), &sizes].map(str::to_owned).to_vec()
    }
}

/// Starts one that is reached over HTTP.
pub(crate) async fn start(era: Era, offer: &Offer) -> Result<Server, Failure> {
    let mut command = Command::new(std::env::current_exe()?);
    command.args(offer.arguments(Wire::Http, era));
    Server::start(command).await
}

/// Serves until the process ends.
pub(crate) fn serve(arguments: &[String]) -> Result<(), Failure> {
    let [wire, revision, listed, sizes] = arguments else { return Err("this is no offer".into()) };
    let eras = [Era::Handshake, Era::PerRequest];
    let era = eras.into_iter().find(|era| era.revision() == revision).ok_or("there is no such era")?;
    let sizes = sizes.split(',').filter(|size| !size.is_empty()).map(str::parse).collect::<Result<_, _>>()?;
    let answers = Arc::new(Answers::new(era, &Offer { sizes, listed: listed.parse()? }));
    if wire == Wire::Stdio.name() {
        return on_lines(&answers);
    }
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(over_http(answers))
}

/// What is answered, ready to be sent.
struct Answers {
    era: Era,
    /// By the name of the tool.
    called: HashMap<String, (Form, Raw)>,
    listed: Raw,
    introduced: Raw,
}

/// One message to answer with, and in what form; nothing where none is wanted.
type Answer = Option<(Form, Bytes)>;

impl Answers {
    fn new(era: Era, offer: &Offer) -> Self {
        let schema = json!({ "type": "object", "properties": { "what": { "type": "string" } } });
        let forms = || [Form::Json, Form::Events].into_iter();
        let names = offer.sizes.iter().flat_map(|bytes| forms().map(|form| form.tool(*bytes)));
        let names = names.chain((0..offer.listed).map(|n| format!("listed-{n:03}")));
        let tools: Vec<Value> = names
            .map(|name| json!({ "name": name, "description": "The same as ever", "inputSchema": schema }))
            .collect();
        let info = json!({ "name": "upstream", "version": "1" });
        let introduced = match era {
            Era::Handshake => json!({ "protocolVersion": era.revision(), "serverInfo": info }),
            Era::PerRequest => json!({ "supportedVersions": [era.revision()], "ttlMs": 0, "cacheScope": "private" }),
        };
        let whole = |mut result: Value| {
            if era == Era::PerRequest {
                result["resultType"] = json!("complete");
                result["_meta"] = json!({ "io.modelcontextprotocol/serverInfo": info });
            }
            Raw::of(&result)
        };
        let mut introduced = introduced;
        introduced["capabilities"] = json!({ "tools": {} });
        let mut listed = json!({ "tools": tools });
        if era == Era::PerRequest {
            listed["ttlMs"] = json!(3_600_000);
            listed["cacheScope"] = json!("private");
        }
        let called = offer.sizes.iter().flat_map(|&bytes| {
            let text = format!("{MARK}{}", "x".repeat(bytes.saturating_sub(MARK.len())));
            let result = whole(json!({ "content": [{ "type": "text", "text": text }], "isError": false }));
            forms().map(move |form| (form.tool(bytes), (form, result.clone())))
        });
        Self { era, called: called.collect(), listed: whole(listed), introduced: whole(introduced) }
    }

    fn to(&self, message: &Bytes) -> Result<Answer, Failure> {
        let message = Message::parse(message).map_err(|invalid| invalid.why)?;
        let Message::Request(request) = message else { return Ok(None) };
        let mut form = Form::Json;
        let outcome = match (&request.method, self.era) {
            (Method::ToolsCall, _) => {
                let name = request.params.as_ref().and_then(|params| params.get("name"));
                let tool = name.as_ref().and_then(Raw::text).and_then(|name| self.called.get(name.as_ref()));
                form = tool.map_or(form, |(form, _)| *form);
                tool.map(|(_, result)| result.clone())
                    .ok_or_else(|| ErrorObject::new(code::INVALID_PARAMS, "No such tool"))
            }
            (Method::ToolsList, _) => Ok(self.listed.clone()),
            (Method::Initialize, Era::Handshake) | (Method::Discover, Era::PerRequest) => Ok(self.introduced.clone()),
            (Method::Ping, Era::Handshake) => Ok(Raw::empty()),
            _ => Err(ErrorObject::new(code::METHOD_NOT_FOUND, "Method not found")),
        };
        Ok(Some((form, protocol::Response::new(Some(request.id), outcome).encode())))
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
            // A connection that breaks is the caller's matter, and it will say so.
            let _ = http1::Builder::new().serve_connection(TokioIo::new(stream), service).await;
        });
    }
}

/// The whole at once, or an event in a stream whose length nobody tells.
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
                Form::Json => ("application/json", Body::Left(Full::new(answer))),
                Form::Events => ("text/event-stream", Body::Right(event(&answer))),
            };
            let mut response = Response::new(body);
            let headers = response.headers_mut();
            headers.insert(CONTENT_TYPE, HeaderValue::from_static(kind));
            if answers.era == Era::Handshake {
                // Sessions are all the same to it.
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
