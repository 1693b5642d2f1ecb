//! HTTP/1.1 by hand, for both ends.

use std::io::{self, Read};
use std::net::TcpStream;

/// A request or a response.
#[derive(Debug)]
pub struct Received {
    /// The first line and the headers.
    pub head: String,
    /// With the chunks' lengths in it, where it came in chunks.
    pub body: String,
}

impl Received {
    /// Reads one; nothing where the other side is gone.
    pub fn read(stream: &mut TcpStream) -> io::Result<Option<Self>> {
        let mut received = Vec::new();
        let mut part = [0; 16 * 1024];
        loop {
            let length = stream.read(&mut part)?;
            if length == 0 {
                return Ok(None);
            }
            received.extend_from_slice(&part[..length]);
            let text = std::str::from_utf8(&received).expect("what is sent is UTF-8, and cut nowhere in a letter");
            let Some((head, body)) = text.split_once("\r\n\r\n") else { continue };
            if is_whole(head, body) {
                return Ok(Some(Self { head: head.to_owned(), body: body.to_owned() }));
            }
        }
    }

    pub fn header(&self, name: &str) -> Option<&str> {
        header(&self.head, name)
    }
}

fn is_whole(head: &str, body: &str) -> bool {
    match header(head, "content-length") {
        Some(length) => body.len() >= length.parse().expect("a length is a number"),
        None => header(head, "transfer-encoding").is_none() || body.ends_with("0\r\n\r\n"),
    }
}

fn header<'h>(head: &'h str, name: &str) -> Option<&'h str> {
    let mut fields = head.lines().skip(1).filter_map(|line| line.split_once(':'));
    fields.find(|(field, _)| field.eq_ignore_ascii_case(name)).map(|(_, value)| value.trim())
}
