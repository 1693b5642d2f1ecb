//! A blocking upstream server of either era with three tools that differ in their response.

use std::io::{self, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::thread;

use serde_json::{Value, json};

use super::Era;
use super::wire::HttpMessage;

/// 100 bytes as JSON.
pub const SMALL: &str = "small";
/// 10,000 bytes as JSON.
pub const LARGE: &str = "large";
/// 100 bytes as an SSE event.
pub const EVENTS: &str = "events";
/// Prefix of every result text.
pub const MARK: &str = "payload:";

/// Starts a server that runs until the process exits.
pub fn start(era: Era) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").expect("there is a port");
    let address = listener.local_addr().expect("a listener has an address");
    thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            // A broken connection shows as a failed call at the client.
            thread::spawn(move || serve(stream, era));
        }
    });
    address
}

fn serve(mut stream: TcpStream, era: Era) -> io::Result<()> {
    stream.set_nodelay(true)?;
    while let Some(request) = HttpMessage::read(&mut stream)? {
        let http_response = if request.head.starts_with("POST") {
            respond(&request.body, era)
        } else {
            empty_response("405 Method Not Allowed")
        };
        stream.write_all(http_response.as_bytes())?;
    }
    Ok(())
}

fn respond(body: &str, era: Era) -> String {
    let message: Value = serde_json::from_str(body).expect("the gateway sends JSON");
    let Some(id) = message.get("id") else { return empty_response("202 Accepted") };
    let tool = message["params"]["name"].as_str().unwrap_or_default();
    let result = match message["method"].as_str() {
        Some("tools/call") => call_result(tool),
        Some("tools/list") => json!({ "tools": ([SMALL, LARGE, EVENTS].map(tool_entry)) }),
        Some("initialize" | "server/discover") => hello_result(era),
        _ => json!({}),
    };
    let mut result = result;
    if era == Era::PerRequest {
        result["resultType"] = "complete".into();
        result["ttlMs"] = 3_600_000.into();
        result["cacheScope"] = "private".into();
    }
    let response = json!({ "jsonrpc": "2.0", "id": id, "result": result }).to_string();
    if tool == EVENTS {
        return http_response("text/event-stream", &format!("event: message\ndata: {response}\n\n"));
    }
    http_response("application/json", &response)
}

fn call_result(tool: &str) -> Value {
    let length = if tool == LARGE { 10_000 } else { 100 };
    let text = format!("{MARK}{}", "x".repeat(length - MARK.len()));
    json!({ "content": [{ "type": "text", "text": text }], "isError": false })
}

fn tool_entry(tool: &str) -> Value {
    let schema = json!({ "type": "object", "properties": { "name": { "type": "string" } } });
    json!({ "name": tool, "description": "The same as ever", "inputSchema": schema })
}

fn hello_result(era: Era) -> Value {
    let info = json!({ "name": "upstream", "version": "1" });
    let capabilities = json!({ "tools": {} });
    match era {
        Era::Handshake => {
            json!({ "protocolVersion": era.revision(), "serverInfo": info, "capabilities": capabilities })
        }
        Era::PerRequest => json!({ "supportedVersions": [era.revision()], "capabilities": capabilities }),
    }
}

fn empty_response(status: &str) -> String {
    format!("HTTP/1.1 {status}\r\nContent-Length: 0\r\n\r\n")
}

fn http_response(media: &str, body: &str) -> String {
    let length = body.len();
    // One session id for all; the per-request era ignores it.
    format!(
        "HTTP/1.1 200 OK\r\nContent-Type: {media}\r\nMcp-Session-Id: upstream\r\nContent-Length: {length}\r\n\r\n{body}"
    )
}
