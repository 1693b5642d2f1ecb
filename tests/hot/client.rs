//! The client: one connection, one call after the other.

use std::io::Write;
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use super::wire::Received;
use super::{Era, Route};

/// A client that makes the same call again and again.
#[derive(Debug)]
pub struct Client {
    stream: TcpStream,
    route: Route,
    head: String,
    id: u32,
}

/// Ids have the same number of digits.
const FIRST_ID: u32 = 100_000_000;
/// How long an answer may take.
const PATIENCE: Duration = Duration::from_secs(60);

impl Client {
    /// Connects, and opens a session in the era that has them.
    pub fn open(address: SocketAddr, route: Route) -> Self {
        let stream = TcpStream::connect(address).expect("the gateway is there");
        stream.set_nodelay(true).expect("a socket can be set up");
        stream.set_read_timeout(Some(PATIENCE)).expect("a socket can be set up");
        let head = format!(
            "POST /mcp/{} HTTP/1.1\r\nHost: {address}\r\nContent-Type: application/json\r\n\
             Accept: application/json, text/event-stream\r\nMCP-Protocol-Version: {}\r\n",
            route.group,
            route.client.revision()
        );
        let mut client = Self { stream, route, head, id: FIRST_ID };
        match route.client {
            Era::Handshake => client.shake_hands(),
            Era::PerRequest => client.head += &format!("Mcp-Method: {}\r\n", route.method()),
        }
        if let (Era::PerRequest, Some(tool)) = (route.client, route.tool) {
            client.head += &format!("Mcp-Name: {tool}\r\n");
        }
        client
    }

    fn shake_hands(&mut self) {
        let params = r#"{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"hot","version":"1"}}"#;
        let welcome = self.send(&format!(r#"{{"jsonrpc":"2.0","id":1,"method":"initialize","params":{params}}}"#));
        let session = welcome.header("mcp-session-id").expect("a session was opened").to_owned();
        self.head += &format!("Mcp-Session-Id: {session}\r\n");
        self.send(r#"{"jsonrpc":"2.0","method":"notifications/initialized"}"#);
    }

    fn send(&mut self, body: &str) -> Received {
        let request = format!("{}Content-Length: {}\r\n\r\n{body}", self.head, body.len());
        self.stream.write_all(request.as_bytes()).expect("the gateway reads");
        let received = Received::read(&mut self.stream).expect("the gateway answers").expect("the gateway stays");
        assert!(received.head.starts_with("HTTP/1.1 20"), "{received:?}");
        received
    }

    /// Calls that many times, and checks every answer.
    pub fn calls(mut self, times: u32) -> Self {
        let (method, params) = (self.route.method(), self.route.params());
        for _ in 0..times {
            self.id += 1;
            let id = self.id;
            let answer =
                self.send(&format!(r#"{{"jsonrpc":"2.0","id":{id},"method":"{method}","params":{{{params}}}}}"#));
            let is_right = answer.body.contains(self.route.mark) && answer.body.contains(&id.to_string());
            assert!(is_right, "{}: {answer:?}", self.route.name);
        }
        self
    }
}

impl Route {
    fn method(&self) -> &'static str {
        if self.tool.is_some() { "tools/call" } else { "tools/list" }
    }

    /// The members of the parameters.
    fn params(&self) -> String {
        let call = self.tool.map(|tool| format!(r#""name":"{tool}","arguments":{{"name":"H"}}"#));
        let meta = (self.client == Era::PerRequest).then(|| {
            let prefix = "io.modelcontextprotocol";
            format!(r#""_meta":{{"{prefix}/protocolVersion":"2026-07-28","{prefix}/clientCapabilities":{{}},"{prefix}/clientInfo":{{"name":"hot","version":"1"}}}}"#)
        });
        call.into_iter().chain(meta).collect::<Vec<_>>().join(",")
    }
}
