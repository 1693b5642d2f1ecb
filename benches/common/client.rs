//! The client: HTTP/1.1 by hand over one connection, so that it takes as little of the processor
//! as can be.

use std::io::ErrorKind;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::Failure;

/// How a client and a server talk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Era {
    /// A handshake, then calls in a session: 2025-11-25.
    Handshake,
    /// Every request by itself: 2026-07-28.
    PerRequest,
}

impl Era {
    /// The revision that is spoken.
    pub(crate) fn revision(self) -> &'static str {
        match self {
            Self::Handshake => "2025-11-25",
            Self::PerRequest => "2026-07-28",
        }
    }
}

/// A response, as far as we look at it.
pub(crate) struct Response<'c> {
    status: u16,
    head: &'c str,
    /// In one piece, also where it came in chunks.
    body: &'c [u8],
}

/// One connection that is kept open.
pub(crate) struct Connection {
    stream: TcpStream,
    address: SocketAddr,
    /// Where messages are posted to.
    path: &'static str,
    received: Vec<u8>,
}

/// How long all calls of a turn may take.
const TURN: Duration = Duration::from_secs(60);
/// How much longer than it was given a client may take, because a call that is under way is not given up.
const LATE: Duration = Duration::from_secs(15);
/// Where servers are, if nothing else is said.
pub(crate) const PATH: &str = "/mcp";
const HEAD_END: &[u8] = b"\r\n\r\n";

impl Connection {
    pub(crate) async fn open(address: SocketAddr) -> Result<Self, Failure> {
        Self::open_at(address, PATH).await
    }

    /// The same where the messages are posted elsewhere.
    pub(crate) async fn open_at(address: SocketAddr, path: &'static str) -> Result<Self, Failure> {
        let stream = TcpStream::connect(address).await?;
        stream.set_nodelay(true)?;
        Ok(Self { stream, address, path, received: Vec::with_capacity(4096) })
    }

    /// Connects anew if the server closed the connection meanwhile, as servers do with those that are idle.
    async fn freshen(&mut self) -> Result<(), Failure> {
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
        let (address, path, length) = (self.address, self.path, body.len());
        format!(
            "POST {path} HTTP/1.1\r\nHost: {address}\r\nContent-Type: application/json\r\n\
             Accept: application/json, text/event-stream\r\n{headers}Content-Length: {length}\r\n\r\n{body}"
        )
        .into_bytes()
    }

    /// Sends a request and waits for the whole response.
    async fn exchange(&mut self, request: &[u8]) -> Result<Response<'_>, Failure> {
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

    /// What is to be read at a path.
    pub(crate) async fn get(&mut self, path: &str) -> Result<Vec<u8>, Failure> {
        let request = format!("GET {path} HTTP/1.1\r\nHost: {}\r\n\r\n", self.address);
        let response = self.exchange(request.as_bytes()).await?;
        response.expect_success()?;
        Ok(response.body.to_vec())
    }

    /// Opens a session; nothing where the server keeps none.
    pub(crate) async fn handshake(&mut self) -> Result<Option<String>, Failure> {
        let initialize = r#"{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"bench","version":"1"}}}"#;
        let request = self.post("", initialize);
        let welcome = self.exchange(&request).await?;
        welcome.expect_success()?;
        let session = welcome.header("mcp-session-id").map(str::to_owned);
        let request =
            self.post(&in_session(session.as_deref()), r#"{"jsonrpc":"2.0","method":"notifications/initialized"}"#);
        self.exchange(&request).await?.expect_success()?;
        Ok(session)
    }

    /// Asks whether somebody is there, in a session.
    pub(crate) async fn ping(&mut self, session: Option<&str>) -> Result<(), Failure> {
        let request = self.post(&in_session(session), r#"{"jsonrpc":"2.0","id":2,"method":"ping"}"#);
        self.exchange(&request).await?.expect_success()
    }

    /// Opens the stream of a session that listens; it stays open as long as the connection.
    pub(crate) async fn listen(&mut self, session: &str) -> Result<(), Failure> {
        let (address, path, headers) = (self.address, self.path, in_session(Some(session)));
        let request = format!("GET {path} HTTP/1.1\r\nHost: {address}\r\nAccept: text/event-stream\r\n{headers}\r\n");
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

/// How the end of a body is found.
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

    /// Where the body ends, if all of it is there.
    fn end(&self, received: &[u8], head_end: usize) -> Result<Option<usize>, Failure> {
        match self {
            Self::Length(length) => {
                let end = head_end + length;
                Ok((received.len() >= end).then_some(end))
            }
            Self::Chunks => chunks_end(received, head_end),
        }
    }

    /// Takes the lengths of chunks out of a body that is all there, and says where it ends now.
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

/// Where the data of the chunk at a place begins, and how long it is.
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

/// What is called, and what an answer is known by.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Subject<'s> {
    pub(crate) tool: &'s str,
    /// As JSON.
    pub(crate) arguments: &'static str,
    /// Stands in every answer.
    pub(crate) answer: &'static [u8],
    /// How long the text is that begins with it, where that is known.
    pub(crate) length: Option<usize>,
}

/// How much of the calls of a turn one client makes: it stops at what it reaches first.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Share {
    pub(crate) calls: usize,
    pub(crate) time: Duration,
}

impl Share {
    /// That many calls, however long they take.
    pub(crate) fn of(calls: usize) -> Self {
        Self { calls, time: TURN }
    }

    /// As many calls as there is time for, and one at least.
    pub(crate) fn within(time: Duration) -> Self {
        Self { calls: usize::MAX, time }
    }
}

/// A client that calls one tool again and again.
pub(crate) struct Caller {
    /// Each has a call in turn.
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

/// Ids have the same number of digits, so that a new one can be written over the last.
const FIRST_ID: u32 = 100_000_000;
const DIGITS: usize = 9;

impl Caller {
    /// Connects, and opens a session in the era that has them.
    pub(crate) async fn open(address: SocketAddr, era: Era, subject: Subject<'_>) -> Result<Self, Failure> {
        Self::enter(Connection::open(address).await?, era, subject).await
    }

    /// The same over a connection that is open.
    pub(crate) async fn enter(mut connection: Connection, era: Era, subject: Subject<'_>) -> Result<Self, Failure> {
        let session = match era {
            Era::Handshake => connection.handshake().await?,
            Era::PerRequest => None,
        };
        Self::over(vec![connection], session.as_deref(), era, subject)
    }

    /// A client that calls over several connections in turn, in a session that was opened before.
    pub(crate) fn over(
        connections: Vec<Connection>,
        session: Option<&str>,
        era: Era,
        subject: Subject<'_>,
    ) -> Result<Self, Failure> {
        let (session, request) = (session.map(str::to_owned), Vec::new());
        let mut new =
            Self { connections, turn: 0, session, era, request, id_at: 0, id: FIRST_ID, answer: b"", length: None };
        new.aim(subject)?;
        Ok(new)
    }

    /// Calls something else from now on.
    pub(crate) fn aim(&mut self, subject: Subject<'_>) -> Result<(), Failure> {
        let Subject { tool, arguments, answer, length } = subject;
        (self.answer, self.length) = (answer, length);
        self.ask("tools/call", &format!("Mcp-Name: {tool}\r\n"), &format!(r#""name":"{tool}","arguments":{arguments}"#))
    }

    /// Asks for the tools from now on, and knows the answer by something that stands in it.
    pub(crate) fn aim_at_list(&mut self, answer: &'static [u8]) -> Result<(), Failure> {
        (self.answer, self.length) = (answer, None);
        self.ask("tools/list", "", "")
    }

    /// Prepares the request that is sent from now on.
    fn ask(&mut self, method: &str, name: &str, params: &str) -> Result<(), Failure> {
        let (headers, meta) = match self.era {
            Era::Handshake => (in_session(self.session.as_deref()), ""),
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

    /// Calls, and checks the answer.
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
        let response = connection.exchange(&self.request).await?;
        let id = &self.request[self.id_at..self.id_at + DIGITS];
        if response.status != 200 || !is_answer(response.body, id, self.answer, self.length) {
            let body: String = String::from_utf8_lossy(response.body).chars().take(400).collect();
            return Err(format!("a call was answered with {}: {body}", response.status).into());
        }
        Ok(response)
    }

    /// Calls once, and counts the messages that come: the answer and what came before it.
    pub(crate) async fn messages(&mut self) -> Result<usize, Failure> {
        let body = tokio::time::timeout(TURN, self.call()).await??.body;
        let mark: &[u8] = b"\"jsonrpc\"";
        Ok(body.windows(mark.len()).filter(|window| *window == mark).count())
    }

    /// Calls once, and tells how long the body of the answer is.
    pub(crate) async fn size(&mut self) -> Result<usize, Failure> {
        Ok(tokio::time::timeout(TURN, self.call()).await??.body.len())
    }

    /// Calls that many times, and tells how long each took.
    pub(crate) async fn latencies(&mut self, times: usize) -> Result<Vec<Duration>, Failure> {
        self.work(Share::of(times)).await
    }

    /// Makes its share of calls, one after the other.
    pub(crate) async fn calls(mut self, share: Share) -> Result<(Self, Vec<Duration>), Failure> {
        let took = self.work(share).await?;
        Ok((self, took))
    }

    async fn work(&mut self, share: Share) -> Result<Vec<Duration>, Failure> {
        let all = async {
            for connection in &mut self.connections {
                connection.freshen().await?;
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
        // One timer for all of them: one for each would cost more than the rest of a call here.
        tokio::time::timeout(TURN.min(share.time + LATE), all).await?
    }
}

/// Whether a body is the answer with that id, and has the text that is known.
fn is_answer(body: &[u8], id: &[u8], answer: &[u8], length: Option<usize>) -> bool {
    let Some(at) = find(body, answer) else { return false };
    let text = &body[at..];
    let is_whole = length.is_none_or(|length| memchr::memchr(b'"', text) == Some(length));
    // The id is not in the text, so a long one is not searched.
    is_whole && (find(&body[..at], id).is_some() || find(&text[length.unwrap_or(0)..], id).is_some())
}

fn in_session(id: Option<&str>) -> String {
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
