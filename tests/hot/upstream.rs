//! A server behind the gateway, in either era: it has three tools, which differ in what they answer.

use std::io::{self, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::thread;

use serde_json::{Value, json};

use super::Era;
use super::wire::Received;

/// Answers with 100 bytes as JSON.
pub const SMALL: &str = "small";
/// Answers with 10,000 bytes.
pub const LARGE: &str = "large";
/// Answers with 100 bytes, as an event.
pub const EVENTS: &str = "events";
/// What the text of every answer begins with.
pub const MARK: &str = "payload:";

/// Starts one, which serves as long as this process is there.
pub fn start(era: Era) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").expect("there is a port");
    let address = listener.local_addr().expect("a listener has an address");
    thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            // A connection that breaks is the gateway's matter, and the client will see it.
            thread::spawn(move || serve(stream, era));
        }
    });
    address
}

fn serve(mut stream: TcpStream, era: Era) -> io::Result<()> {
    stream.set_nodelay(true)?;
    while let Some(request) = Received::read(&mut stream)? {
        let answer =
            if request.head.starts_with("POST") { answer(&request.body, era) } else { plain("405 Method Not Allowed") };
        stream.write_all(answer.as_bytes())?;
    }
    Ok(())
}

fn answer(body: &str, era: Era) -> String {
    let message: Value = serde_json::from_str(body).expect("the gateway sends JSON");
    let Some(id) = message.get("id") else { return plain("202 Accepted") };
    let tool = message["params"]["name"].as_str().unwrap_or_default();
    let result = match message["method"].as_str() {
        Some("tools/call") => called(tool),
        Some("tools/list") => json!({ "tools": ([SMALL, LARGE, EVENTS].map(listed)) }),
        Some("initialize" | "server/discover") => introduced(era),
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
        return with("text/event-stream", &format!("event: message\ndata: {response}\n\n"));
    }
    with("application/json", &response)
}

fn called(tool: &str) -> Value {
    let length = if tool == LARGE { 10_000 } else { 100 };
    let text = format!("{MARK}{}", "x".repeat(length - MARK.len()));
    json!({ "content": [{ "type": "text", "text": text }], "isError": false })
}

fn listed(tool: &str) -> Value {
    let schema = json!({ "type": "object", "properties": { "name": { "type": "string" } } });
    json!({ "name": tool, "description": "The same as ever", "inputSchema": schema })
}

fn introduced(era: Era) -> Value {
    let info = json!({ "name": "upstream", "version": "1" });
    let capabilities = json!({ "tools": {} });
    match era {
        Era::Handshake => {
            json!({ "protocolVersion": era.revision(), "serverInfo": info, "capabilities": capabilities })
        }
        Era::PerRequest => json!({ "supportedVersions": [era.revision()], "capabilities": capabilities }),
    }
}

fn plain(status: &str) -> String {
    format!("HTTP/1.1 {status}\r\nContent-Length: 0\r\n\r\n")
}

fn with(media: &str, body: &str) -> String {
    let length = body.len();
    // Sessions are all the same to it, and of no meaning in the other era.
    format!(
        "HTTP/1.1 200 OK\r\nContent-Type: {media}\r\nMcp-Session-Id: upstream\r\nContent-Length: {length}\r\n\r\n{body}"
    )
}
