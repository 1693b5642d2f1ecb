//! Our side: the codec, driven as the HTTP/1.1 server and the client connection drive it.

use bytes::BytesMut;
use http::Method as Verb;
use rialto::http::codec::{
    BodyDecoder, Decoded, HeadRules, HeadSearch, MAX_RESPONSE_HEAD_BYTES, RequestHead, ResponseHead,
};

use super::{ClientRequest, End, Ending, Message, Role, Transcript};

/// Limits of a request head; hyper gets the same number of fields.
pub const HEAD_RULES: HeadRules = HeadRules { max_headers: 100, max_bytes: 64 << 10 };

/// A connection that reads its input piece by piece.
struct Connection<'i> {
    pieces: &'i [&'i [u8]],
    ending: Ending,
    buffer: BytesMut,
    received: usize,
    messages: Vec<Message>,
}

/// A head with what follows from it.
struct Head {
    message: Message,
    decoder: BodyDecoder,
    keep_alive: bool,
}

pub(super) fn read(role: Role, pieces: &[&[u8]], ending: Ending) -> Transcript {
    let mut connection = Connection { pieces, ending, buffer: BytesMut::new(), received: 0, messages: Vec::new() };
    let end = match role {
        Role::Server => connection.serve(),
        Role::Client { request } => connection.receive(request),
    };
    Transcript { messages: connection.messages, end }
}

impl Connection<'_> {
    /// Reads requests as `http/server/http1.rs` does.
    fn serve(&mut self) -> End {
        loop {
            let consumed = self.consumed();
            let head = match self.read_head(HEAD_RULES.max_bytes, |buffer| {
                let head = RequestHead::parse(buffer, &HEAD_RULES).map_err(drop)?;
                Ok(head.map(|(head, framing)| {
                    let version = if framing.is_http11 { "HTTP/1.1" } else { "HTTP/1.0" };
                    let start_line = format!("{} {} {version}", head.verb, head.uri);
                    let message = Message { start_line, headers: head.headers.to_map(), ..Message::default() };
                    Head { message, decoder: framing.body, keep_alive: framing.keep_alive }
                }))
            }) {
                Ok(Some(head)) => head,
                Ok(None) if self.buffer.is_empty() => return End::Open { consumed },
                Ok(None) => return End::InHead { consumed },
                Err(()) => return End::Refused,
            };
            let keep_alive = head.keep_alive;
            if let Some(end) = self.read_body(head) {
                return end;
            }
            if !keep_alive {
                return End::Closed { consumed: self.consumed() };
            }
        }
    }

    /// Reads a response as `http/client/connection.rs` does.
    fn receive(&mut self, request: ClientRequest) -> End {
        let verb = match request {
            ClientRequest::Post => Verb::POST,
            ClientRequest::Head => Verb::HEAD,
        };
        loop {
            let mut is_interim = false;
            let head = match self.read_head(MAX_RESPONSE_HEAD_BYTES, |buffer| {
                let head = ResponseHead::parse(buffer, &verb).map_err(drop)?;
                Ok(head.map(|(head, decoder)| {
                    is_interim = head.is_interim();
                    let start_line = head.status().as_str().to_owned();
                    let message = Message { start_line, headers: head.headers(), ..Message::default() };
                    Head { message, decoder, keep_alive: head.keep_alive() }
                }))
            }) {
                Ok(Some(_)) if is_interim => continue,
                Ok(Some(head)) => head,
                Ok(None) => return End::InHead { consumed: self.consumed() },
                Err(()) => return End::Refused,
            };
            let keep_alive = head.keep_alive;
            if let Some(end) = self.read_body(head) {
                return end;
            }
            let consumed = self.consumed();
            // Unsolicited bytes behind a response make the connection unusable.
            let is_idle = self.buffer.is_empty() && self.pieces.iter().all(|piece| piece.is_empty());
            return if keep_alive && is_idle { End::Open { consumed } } else { End::Closed { consumed } };
        }
    }

    fn consumed(&self) -> usize {
        self.received - self.buffer.len()
    }

    /// Receives the next piece; false after the last.
    fn receive_piece(&mut self) -> bool {
        let Some((piece, rest)) = self.pieces.split_first() else { return false };
        self.pieces = rest;
        self.received += piece.len();
        self.buffer.extend_from_slice(piece);
        true
    }

    fn read_head(
        &mut self,
        max_bytes: usize,
        mut parse: impl FnMut(&mut BytesMut) -> Result<Option<Head>, ()>,
    ) -> Result<Option<Head>, ()> {
        let mut search = HeadSearch::default();
        loop {
            if search.should_parse(&self.buffer, max_bytes)
                && let Some(head) = parse(&mut self.buffer)?
            {
                return Ok(Some(head));
            }
            if !self.receive_piece() {
                return Ok(None);
            }
        }
    }

    /// Reads a body and records its message; `None` when the message is complete.
    fn read_body(&mut self, head: Head) -> Option<End> {
        let Head { mut message, mut decoder, .. } = head;
        let end = loop {
            match decoder.decode(&mut self.buffer) {
                Ok(Decoded::Data(data)) => message.body.extend_from_slice(&data),
                Ok(Decoded::End) => break None,
                Ok(Decoded::NeedMore) if self.receive_piece() => {}
                Ok(Decoded::NeedMore) if self.ending == Ending::Close && decoder == BodyDecoder::UntilClose => {
                    break None;
                }
                Ok(Decoded::NeedMore) => break Some(End::InBody),
                Err(_) => break Some(End::Refused),
            }
        };
        message.is_complete = end.is_none();
        self.messages.push(message);
        end
    }
}
