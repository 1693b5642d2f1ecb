//! Benchmark client: minimal HTTP/1.1 over one connection, to use as little CPU time as possible.

use std::io::ErrorKind;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::Failure;

/// Protocol era.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Era {
    /// Handshake and session: 2025-11-25.
    Handshake,
    /// Self-contained requests: 2026-07-28.
    PerRequest,
}

impl Era {
    /// The revision used for the era.
    pub(crate) fn revision(self) -> &'static str {
        match self {
            Self::Handshake => "2025-11-25",
            Self::PerRequest => "2026-07-28",
        }
    }
}

/// A parsed response.
pub(crate) struct Response<'c> {
    status: u16,
    head: &'c str,
    /// Contiguous, with the chunk framing removed.
    body: &'c [u8],
}

/// A keep-alive connection.
pub(crate) struct Connection {
    stream: TcpStream,
    address: SocketAddr,
    /// Path of the POST requests.
    path: &'static str,
    /// Line of the head that says who calls; may be empty.
    credential: String,
    received: Vec<u8>,
}

/// Timeout of all calls of one round.
const ROUND_TIMEOUT: Duration = Duration::from_secs(60);
/// Extra time after the budget for the call in flight, which is not cancelled.
const OVERRUN_ALLOWANCE: Duration = Duration::from_secs(15);
/// Default path of a server.
pub(crate) const PATH: &str = "/mcp";
const HEAD_END: &[u8] = b"\r\n\r\n";

impl Connection {
    pub(crate) async fn open(address: SocketAddr) -> Result<Self, Failure> {
        Self::open_at(address, PATH).await
    }

    /// Connects with another path.
    pub(crate) async fn open_at(address: SocketAddr, path: &'static str) -> Result<Self, Failure> {
        let stream = TcpStream::connect(address).await?;
        stream.set_nodelay(true)?;
        Ok(Self { stream, address, path, credential: String::new(), received: Vec::with_capacity(4096) })
    }

    /// Sends this value of `Authorization` with every request.
    #[must_use]
    pub(crate) fn with_authorization(mut self, value: &str) -> Self {
        self.credential = format!("Authorization: {value}\r\n");
        self
    }

    /// Reconnects if the server closed the idle connection.
    async fn reconnect_if_closed(&mut self) -> Result<(), Failure> {
        match self.stream.try_read(&mut [0; 1]) {
            Err(error) if error.kind() == ErrorKind::WouldBlock => Ok(()),
            Ok(1..) => Err("the server said something without being asked".into()),
            Ok(0) | Err(_) => {
                self.stream = Self::open_at(self.address, self.path).await?.stream;
                Ok(())
            }
        }
    }

    fn post(&self, headers: &str, body: &str) -> Vec<u8> {
        let (address, path, credential, length) = (self.address, self.path, &self.credential, body.len());
        format!(
            "POST {path} HTTP/1.1\r\nHost: {address}\r\nContent-Type: application/json\r\n\
             Accept: application/json, text/event-stream\r\n{credential}{headers}Content-Length: {length}\r\n\r\n{body}"
        )
        .into_bytes()
    }

    /// Sends a request and waits for the whole response.
    async fn round_trip(&mut self, request: &[u8]) -> Result<Response<'_>, Failure> {
        self.stream.write_all(request).await?;
        let head_end = self.read_head().await?;
        let framing = Framing::of(head_text(&self.received, head_end)?)?;
        let end = loop {
            match framing.end(&self.received, head_end)? {
                Some(end) => break end,
                None => self.read_more().await?,
            }
        };
        if end != self.received.len() {
            return Err("there is more than one response to a request".into());
        }
        let end = framing.join(&mut self.received, head_end)?;
        let head = head_text(&self.received, head_end)?;
        Ok(Response { status: status(head)?, head, body: &self.received[head_end..end] })
    }

    async fn read_head(&mut self) -> Result<usize, Failure> {
        self.received.clear();
        loop {
            self.read_more().await?;
            if let Some(at) = find(&self.received, HEAD_END) {
                return Ok(at + HEAD_END.len());
            }
        }
    }

    async fn read_more(&mut self) -> Result<(), Failure> {
        match self.stream.read_buf(&mut self.received).await? {
            0 => Err("the server closed the connection".into()),
            _ => Ok(()),
        }
    }

    /// Fetches the body at a path.
    pub(crate) async fn get(&mut self, path: &str) -> Result<Vec<u8>, Failure> {
        let request = format!("GET {path} HTTP/1.1\r\nHost: {}\r\n{}\r\n", self.address, self.credential);
        let response = self.round_trip(request.as_bytes()).await?;
        response.expect_success()?;
        Ok(response.body.to_vec())
    }

    /// Opens a session; `None` if the server is stateless.
    pub(crate) async fn handshake(&mut self) -> Result<Option<String>, Failure> {
        let initialize = r#"{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"bench","version":"1"}}}"#;
        let request = self.post("", initialize);
        let welcome = self.round_trip(&request).await?;
        welcome.expect_success()?;
        let session = welcome.header("mcp-session-id").map(str::to_owned);
        let request = self
            .post(&session_headers(session.as_deref()), r#"{"jsonrpc":"2.0","method":"notifications/initialized"}"#);
        self.round_trip(&request).await?.expect_success()?;
        Ok(session)
    }

    /// Sends `ping` in a session.
    pub(crate) async fn ping(&mut self, session: Option<&str>) -> Result<(), Failure> {
        let request = self.post(&session_headers(session), r#"{"jsonrpc":"2.0","id":2,"method":"ping"}"#);
        self.round_trip(&request).await?.expect_success()
    }

    /// Opens the session's GET stream, which stays open as long as the connection.
    pub(crate) async fn listen(&mut self, session: &str) -> Result<(), Failure> {
        let (address, path, credential) = (self.address, self.path, &self.credential);
        let headers = session_headers(Some(session));
        let request =
            format!("GET {path} HTTP/1.1\r\nHost: {address}\r\nAccept: text/event-stream\r\n{credential}{headers}\r\n");
        self.stream.write_all(request.as_bytes()).await?;
        let end = self.read_head().await?;
        let head = head_text(&self.received, end)?;
        match status(head)? {
            200 => Ok(()),
            other => Err(format!("a stream was answered with {other}").into()),
        }
    }
}

impl<'c> Response<'c> {
    fn header(&self, name: &str) -> Option<&'c str> {
        header(self.head, name)
    }

    fn expect_success(&self) -> Result<(), Failure> {
        match self.status {
            200..300 => Ok(()),
            other => Err(format!("status {other}: {}", String::from_utf8_lossy(self.body)).into()),
        }
    }
}

/// Body framing.
enum Framing {
    Length(usize),
    Chunks,
}

impl Framing {
    fn of(head: &str) -> Result<Self, Failure> {
        if let Some(length) = header(head, "content-length") {
            return Ok(Self::Length(length.parse()?));
        }
        match header(head, "transfer-encoding") {
            Some("chunked") => Ok(Self::Chunks),
            _ => Ok(Self::Length(0)),
        }
    }

    /// End offset of the body, if it is complete.
    fn end(&self, received: &[u8], head_end: usize) -> Result<Option<usize>, Failure> {
        match self {
            Self::Length(length) => {
                let end = head_end + length;
                Ok((received.len() >= end).then_some(end))
            }
            Self::Chunks => chunks_end(received, head_end),
        }
    }

    /// Removes the chunk framing of a complete body in place and returns the new end.
    fn join(&self, received: &mut Vec<u8>, head_end: usize) -> Result<usize, Failure> {
        if matches!(self, Self::Chunks) {
            let (mut from, mut to) = (head_end, head_end);
            while let Some((begin, length)) = chunk(received, from)?.filter(|(_, length)| *length > 0) {
                received.copy_within(begin..begin + length, to);
                (from, to) = (begin + length + 2, to + length);
            }
            received.truncate(to);
        }
        Ok(received.len())
    }
}

/// Start and length of the data of the chunk at `at`.
fn chunk(received: &[u8], at: usize) -> Result<Option<(usize, usize)>, Failure> {
    let Some(line) = received.get(at..).and_then(|rest| find(rest, b"\r\n")) else { return Ok(None) };
    let length = usize::from_str_radix(std::str::from_utf8(&received[at..at + line])?, 16)?;
    Ok(Some((at + line + 2, length)))
}

fn chunks_end(received: &[u8], mut at: usize) -> Result<Option<usize>, Failure> {
    loop {
        let Some((begin, length)) = chunk(received, at)? else { return Ok(None) };
        at = begin + length + 2;
        if length == 0 {
            return Ok((received.len() >= at).then_some(at));
        }
    }
}

/// A tool call and how its response is recognized.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ToolCall<'s> {
    pub(crate) tool: &'s str,
    /// Arguments as JSON.
    pub(crate) arguments: &'static str,
    /// Text that every response contains.
    pub(crate) answer: &'static [u8],
    /// Length of the text that begins with `answer`, if known.
    pub(crate) length: Option<usize>,
}

/// Budget of one client in a round: it stops at the first limit it reaches.
#[derive(Debug, Clone, Copy)]
pub(crate) struct CallBudget {
    pub(crate) calls: usize,
    pub(crate) time: Duration,
}

impl CallBudget {
    /// A number of calls, with the round timeout only.
    pub(crate) fn of(calls: usize) -> Self {
        Self { calls, time: ROUND_TIMEOUT }
    }

    /// As many calls as fit into the time, at least one.
    pub(crate) fn within(time: Duration) -> Self {
        Self { calls: usize::MAX, time }
    }
}

/// A client that repeats one request.
pub(crate) struct Caller {
    /// Used round-robin.
    connections: Vec<Connection>,
    turn: usize,
    session: Option<String>,
    era: Era,
    request: Vec<u8>,
    id_at: usize,
    id: u32,
    answer: &'static [u8],
    length: Option<usize>,
}

/// All ids have the same number of digits, so that the next id overwrites the last in place.
const FIRST_ID: u32 = 100_000_000;
const DIGITS: usize = 9;

impl Caller {
    /// Connects and, in the handshake era, opens a session.
    pub(crate) async fn open(address: SocketAddr, era: Era, tool_call: ToolCall<'_>) -> Result<Self, Failure> {
        Self::enter(Connection::open(address).await?, era, tool_call).await
    }

    /// The same over an open connection.
    pub(crate) async fn enter(mut connection: Connection, era: Era, tool_call: ToolCall<'_>) -> Result<Self, Failure> {
        let session = match era {
            Era::Handshake => connection.handshake().await?,
            Era::PerRequest => None,
        };
        Self::over(vec![connection], session.as_deref(), era, tool_call)
    }

    /// A client that uses several connections round-robin, in an existing session.
    pub(crate) fn over(
        connections: Vec<Connection>,
        session: Option<&str>,
        era: Era,
        tool_call: ToolCall<'_>,
    ) -> Result<Self, Failure> {
        let (session, request) = (session.map(str::to_owned), Vec::new());
        let mut new =
            Self { connections, turn: 0, session, era, request, id_at: 0, id: FIRST_ID, answer: b"", length: None };
        new.set_tool_call(tool_call)?;
        Ok(new)
    }

    /// Sets the tool call to repeat.
    pub(crate) fn set_tool_call(&mut self, tool_call: ToolCall<'_>) -> Result<(), Failure> {
        let ToolCall { tool, arguments, answer, length } = tool_call;
        (self.answer, self.length) = (answer, length);
        self.prepare_request(
            "tools/call",
            &format!("Mcp-Name: {tool}\r\n"),
            &format!(r#""name":"{tool}","arguments":{arguments}"#),
        )
    }

    /// Repeats `tools/list` from now on; `answer` must occur in the response.
    pub(crate) fn set_list_request(&mut self, answer: &'static [u8]) -> Result<(), Failure> {
        (self.answer, self.length) = (answer, None);
        self.prepare_request("tools/list", "", "")
    }

    /// Encodes the request to repeat.
    fn prepare_request(&mut self, method: &str, name: &str, params: &str) -> Result<(), Failure> {
        let (headers, meta) = match self.era {
            Era::Handshake => (session_headers(self.session.as_deref()), ""),
            Era::PerRequest => (
                format!("MCP-Protocol-Version: 2026-07-28\r\nMcp-Method: {method}\r\n{name}"),
                r#""_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientCapabilities":{},"io.modelcontextprotocol/clientInfo":{"name":"bench","version":"1"}}"#,
            ),
        };
        let comma = if params.is_empty() || meta.is_empty() { "" } else { "," };
        let body =
            format!(r#"{{"jsonrpc":"2.0","id":{FIRST_ID},"method":"{method}","params":{{{params}{comma}{meta}}}}}"#);
        self.request = self.connections.first().ok_or("a client needs a connection")?.post(&headers, &body);
        self.id_at = find(&self.request, FIRST_ID.to_string().as_bytes()).ok_or("the request has no id")?;
        Ok(())
    }

    /// Sends the request and checks the response.
    async fn call(&mut self) -> Result<Response<'_>, Failure> {
        self.id += 1;
        let mut digits = self.id;
        let id = &mut self.request[self.id_at..self.id_at + DIGITS];
        for place in id.iter_mut().rev() {
            *place = b'0' + (digits % 10) as u8;
            digits /= 10;
        }
        self.turn = (self.turn + 1) % self.connections.len();
        let connection = &mut self.connections[self.turn];
        let response = connection.round_trip(&self.request).await?;
        let id = &self.request[self.id_at..self.id_at + DIGITS];
        if response.status != 200 || !is_answer(response.body, id, self.answer, self.length) {
            let body: String = String::from_utf8_lossy(response.body).chars().take(400).collect();
            return Err(format!("a call was answered with {}: {body}", response.status).into());
        }
        Ok(response)
    }

    /// Calls once and counts the messages: notifications and the response.
    pub(crate) async fn messages(&mut self) -> Result<usize, Failure> {
        let body = tokio::time::timeout(ROUND_TIMEOUT, self.call()).await??.body;
        let mark: &[u8] = b"\"jsonrpc\"";
        Ok(body.windows(mark.len()).filter(|window| *window == mark).count())
    }

    /// Calls once and returns the size of the response body.
    pub(crate) async fn size(&mut self) -> Result<usize, Failure> {
        Ok(tokio::time::timeout(ROUND_TIMEOUT, self.call()).await??.body.len())
    }

    /// Calls that many times and returns the latency of each call.
    pub(crate) async fn latencies(&mut self, times: usize) -> Result<Vec<Duration>, Failure> {
        self.run_calls(CallBudget::of(times)).await
    }

    /// Makes sequential calls within the budget.
    pub(crate) async fn calls(mut self, share: CallBudget) -> Result<(Self, Vec<Duration>), Failure> {
        let took = self.run_calls(share).await?;
        Ok((self, took))
    }

    async fn run_calls(&mut self, share: CallBudget) -> Result<Vec<Duration>, Failure> {
        let all = async {
            for connection in &mut self.connections {
                connection.reconnect_if_closed().await?;
            }
            let mut took = Vec::with_capacity(share.calls.min(4096));
            let begin = Instant::now();
            let mut now = begin;
            while took.len() < share.calls && (took.is_empty() || now - begin < share.time) {
                self.call().await?;
                let end = Instant::now();
                took.push(end - now);
                now = end;
            }
            Ok::<_, Failure>(took)
        };
        // One timeout for all calls: a timer per call would cost more than the call itself.
        tokio::time::timeout(ROUND_TIMEOUT.min(share.time + OVERRUN_ALLOWANCE), all).await?
    }
}

/// Whether a body is the response with this id and contains the expected text.
fn is_answer(body: &[u8], id: &[u8], answer: &[u8], length: Option<usize>) -> bool {
    let Some(at) = find(body, answer) else { return false };
    let text = &body[at..];
    let is_whole = length.is_none_or(|length| memchr::memchr(b'"', text) == Some(length));
    // The id is outside the text, so skip a long text.
    is_whole && (find(&body[..at], id).is_some() || find(&text[length.unwrap_or(0)..], id).is_some())
}

fn session_headers(id: Option<&str>) -> String {
    let session = id.map(|id| format!("Mcp-Session-Id: {id}\r\n")).unwrap_or_default();
    format!("MCP-Protocol-Version: 2025-11-25\r\n{session}")
}

fn head_text(received: &[u8], end: usize) -> Result<&str, Failure> {
    Ok(std::str::from_utf8(&received[..end])?)
}

fn status(head: &str) -> Result<u16, Failure> {
    let code = head.strip_prefix("HTTP/1.1 ").and_then(|rest| rest.get(..3));
    Ok(code.ok_or("the response is not HTTP/1.1")?.parse()?)
}

fn header<'h>(head: &'h str, name: &str) -> Option<&'h str> {
    let lines = head.split("\r\n").skip(1);
    let mut fields = lines.filter_map(|line| line.split_once(':'));
    fields.find(|(field, _)| field.eq_ignore_ascii_case(name)).map(|(_, value)| value.trim())
}

fn find(text: &[u8], part: &[u8]) -> Option<usize> {
    memchr::memmem::find(text, part)
}
