//! Minimal blocking HTTP/1.1 for the client and the upstream.

use std::io::{self, Read};
use std::net::TcpStream;

/// A request or a response.
#[derive(Debug)]
pub struct HttpMessage {
    /// Start line and headers.
    pub head: String,
    /// The raw body; a chunked one still has its chunk sizes.
    pub body: String,
}

impl HttpMessage {
    /// Reads one message; `None` at end of file.
    pub fn read(stream: &mut TcpStream) -> io::Result<Option<Self>> {
        let mut received = Vec::new();
        let mut chunk = [0; 16 * 1024];
        loop {
            let length = stream.read(&mut chunk)?;
            if length == 0 {
                return Ok(None);
            }
            received.extend_from_slice(&chunk[..length]);
            let text = std::str::from_utf8(&received).expect("a read never splits a UTF-8 character");
            let Some((head, body)) = text.split_once("\r\n\r\n") else { continue };
            if is_complete(head, body) {
                return Ok(Some(Self { head: head.to_owned(), body: body.to_owned() }));
            }
        }
    }

    pub fn header(&self, name: &str) -> Option<&str> {
        header(&self.head, name)
    }
}

fn is_complete(head: &str, body: &str) -> bool {
    match header(head, "content-length") {
        Some(length) => body.len() >= length.parse().expect("Content-Length is a number"),
        None => header(head, "transfer-encoding").is_none() || body.ends_with("0\r\n\r\n"),
    }
}

fn header<'h>(head: &'h str, name: &str) -> Option<&'h str> {
    let mut fields = head.lines().skip(1).filter_map(|line| line.split_once(':'));
    fields.find(|(field, _)| field.eq_ignore_ascii_case(name)).map(|(_, value)| value.trim())
}
