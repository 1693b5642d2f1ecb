//! The server behind whatever is measured: it reads a request and writes an answer that it has ready,
//! over HTTP with hyper or on standard input and output, in either era.
//!
//! It runs in this program, started anew with [`ARGUMENT`].

use std::convert::Infallible;
use std::io::{BufRead, Write};
use std::sync::Arc;

use bytes::Bytes;
use http::header::CONTENT_TYPE;
use http::{HeaderName, HeaderValue, Method as Verb, Request, Response, StatusCode};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
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

/// Makes this program serve instead of measure; the wire, the era and the size of answers follow.
pub(crate) const ARGUMENT: &str = "serve-as-upstream";

/// What is called.
pub(crate) const SUBJECT: Subject =
    Subject { tool: "fixed", arguments: r#"{"what":"the same as ever"}"#, answer: MARK.as_bytes() };

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

/// The arguments that make this program such a server.
pub(crate) fn arguments(wire: Wire, era: Era, bytes: usize) -> [String; 4] {
    [ARGUMENT, wire.name(), era.revision(), &bytes.to_string()].map(str::to_owned)
}

/// Starts one that is reached over HTTP.
pub(crate) async fn start(era: Era, bytes: usize) -> Result<Server, Failure> {
    let mut command = Command::new(std::env::current_exe()?);
    command.args(arguments(Wire::Http, era, bytes));
    Server::start(command).await
}

/// Serves until the process ends.
pub(crate) fn serve(arguments: &[String]) -> Result<(), Failure> {
    let [wire, revision, bytes] = arguments else { return Err("a wire, a revision and a size are needed".into()) };
    let eras = [Era::Handshake, Era::PerRequest];
    let era = eras.into_iter().find(|era| era.revision() == revision).ok_or("there is no such era")?;
    let answers = Arc::new(Answers::new(era, bytes.parse()?));
    if wire == Wire::Stdio.name() {
        return on_lines(&answers);
    }
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(over_http(answers))
}

/// What is answered, ready to be sent.
struct Answers {
    era: Era,
    called: Raw,
    listed: Raw,
    introduced: Raw,
}

/// One message to answer with; nothing where none is wanted.
type Answer = Option<Bytes>;

impl Answers {
    fn new(era: Era, bytes: usize) -> Self {
        let text = format!("{MARK}{}", "x".repeat(bytes.saturating_sub(MARK.len())));
        let schema = json!({ "type": "object", "properties": { "what": { "type": "string" } } });
        let tools = json!([{ "name": SUBJECT.tool, "description": "The same as ever", "inputSchema": schema }]);
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
        Self {
            era,
            called: whole(json!({ "content": [{ "type": "text", "text": text }], "isError": false })),
            listed: whole(listed),
            introduced: whole(introduced),
        }
    }

    fn to(&self, message: &Bytes) -> Result<Answer, Failure> {
        let message = Message::parse(message).map_err(|invalid| invalid.why)?;
        let Message::Request(request) = message else { return Ok(None) };
        let outcome = match (&request.method, self.era) {
            (Method::ToolsCall, _) => Ok(self.called.clone()),
            (Method::ToolsList, _) => Ok(self.listed.clone()),
            (Method::Initialize, Era::Handshake) | (Method::Discover, Era::PerRequest) => Ok(self.introduced.clone()),
            (Method::Ping, Era::Handshake) => Ok(Raw::empty()),
            _ => Err(ErrorObject::new(code::METHOD_NOT_FOUND, "Method not found")),
        };
        Ok(Some(protocol::Response::new(Some(request.id), outcome).encode()))
    }
}

fn on_lines(answers: &Answers) -> Result<(), Failure> {
    let (mut input, mut output) = (std::io::stdin().lock(), std::io::stdout().lock());
    let mut line = Vec::new();
    while input.read_until(b'\n', &mut line)? > 0 {
        if let Some(answer) = answers.to(&Bytes::from(std::mem::take(&mut line)))? {
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

async fn respond(answers: &Answers, request: Request<Incoming>) -> Response<Full<Bytes>> {
    if *request.method() != Verb::POST {
        return with_status(StatusCode::METHOD_NOT_ALLOWED);
    }
    let Ok(body) = request.into_body().collect().await else { return with_status(StatusCode::BAD_REQUEST) };
    match answers.to(&body.to_bytes()) {
        Ok(Some(answer)) => {
            let mut response = Response::new(Full::new(answer));
            let headers = response.headers_mut();
            headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
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

fn with_status(status: StatusCode) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::default());
    *response.status_mut() = status;
    response
}
