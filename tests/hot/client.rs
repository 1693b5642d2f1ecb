//! A blocking client: one keep-alive connection, one call at a time.

use std::io::Write;
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use super::wire::HttpMessage;
use super::{Era, Route};

/// A client that repeats the call of its route.
#[derive(Debug)]
pub struct Client {
    stream: TcpStream,
    route: Route,
    head: String,
    id: u32,
}

/// Large enough that all ids have the same number of digits.
const FIRST_ID: u32 = 100_000_000;
/// Read timeout of a response.
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(60);

impl Client {
    /// Connects, and opens a session in the handshake era. `authorization` is the value of that header.
    pub fn open(address: SocketAddr, route: Route, authorization: Option<&str>) -> Self {
        let stream = TcpStream::connect(address).expect("the gateway accepts connections");
        stream.set_nodelay(true).expect("socket options can be set");
        stream.set_read_timeout(Some(RESPONSE_TIMEOUT)).expect("socket options can be set");
        let head = format!(
            "POST /mcp/{} HTTP/1.1\r\nHost: {address}\r\nContent-Type: application/json\r\n\
             Accept: application/json, text/event-stream\r\nMCP-Protocol-Version: {}\r\n",
            route.group,
            route.client.revision()
        );
        let mut client = Self { stream, route, head, id: FIRST_ID };
        if let Some(value) = authorization {
            client.head += &format!("Authorization: {value}\r\n");
        }
        match route.client {
            Era::Handshake => client.initialize(),
            Era::PerRequest => client.head += &format!("Mcp-Method: {}\r\n", route.method()),
        }
        if let (Era::PerRequest, Some(tool)) = (route.client, route.tool) {
            client.head += &format!("Mcp-Name: {tool}\r\n");
        }
        client
    }

    fn initialize(&mut self) {
        let params = r#"{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"hot","version":"1"}}"#;
        let response = self.send(&format!(r#"{{"jsonrpc":"2.0","id":1,"method":"initialize","params":{params}}}"#));
        let session = response.header("mcp-session-id").expect("a session id").to_owned();
        self.head += &format!("Mcp-Session-Id: {session}\r\n");
        self.send(r#"{"jsonrpc":"2.0","method":"notifications/initialized"}"#);
    }

    fn send(&mut self, body: &str) -> HttpMessage {
        let request = format!("{}Content-Length: {}\r\n\r\n{body}", self.head, body.len());
        self.stream.write_all(request.as_bytes()).expect("the gateway reads");
        let message =
            HttpMessage::read(&mut self.stream).expect("the gateway answers").expect("the connection stays open");
        assert!(message.head.starts_with("HTTP/1.1 20"), "{message:?}");
        message
    }

    /// Makes `times` calls and checks every response.
    pub fn calls(mut self, times: u32) -> Self {
        let (method, params) = (self.route.method(), self.route.params());
        for _ in 0..times {
            self.id += 1;
            let id = self.id;
            let response =
                self.send(&format!(r#"{{"jsonrpc":"2.0","id":{id},"method":"{method}","params":{{{params}}}}}"#));
            let is_expected = response.body.contains(self.route.mark) && response.body.contains(&id.to_string());
            assert!(is_expected, "{}: {response:?}", self.route.name);
        }
        self
    }
}

impl Route {
    fn method(&self) -> &'static str {
        if self.tool.is_some() { "tools/call" } else { "tools/list" }
    }

    /// The members of the params object.
    fn params(&self) -> String {
        let call = self.tool.map(|tool| format!(r#""name":"{tool}","arguments":{{"name":"H"}}"#));
        let meta = (self.client == Era::PerRequest).then(|| {
            let prefix = "io.modelcontextprotocol";
            format!(r#""_meta":{{"{prefix}/protocolVersion":"2026-07-28","{prefix}/clientCapabilities":{{}},"{prefix}/clientInfo":{{"name":"hot","version":"1"}}}}"#)
        });
        call.into_iter().chain(meta).collect::<Vec<_>>().join(",")
    }
}
