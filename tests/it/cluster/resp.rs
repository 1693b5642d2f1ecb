//! Redis protocol as far as the store proxy needs it: where a command or reply ends, and what a command says.

use bytes::{Bytes, BytesMut};

/// A command on its way to the store.
#[derive(Debug, Clone)]
pub struct StoreCommand {
    /// Number of the connection, counted from 0.
    pub connection: u64,
    pub arguments: Vec<Bytes>,
}

/// First byte of a mailbox message: its kind, as in `src/cluster/message.rs`.
pub mod kind {
    pub const REQUEST: u8 = 1;
    pub const CANCEL: u8 = 6;
    pub const WINDOW_UPDATE: u8 = 7;
    pub const UNKNOWN_RELAY: u8 = 9;
    pub const NODE_LEAVING: u8 = 10;
}

impl StoreCommand {
    /// Takes the next whole command from a buffer.
    pub fn take(connection: u64, buffer: &mut BytesMut) -> Option<Self> {
        let end = frame_length(buffer)?;
        let frame = buffer.split_to(end).freeze();
        let mut at = line_end(&frame)?;
        let mut arguments = Vec::new();
        while at < frame.len() {
            let start = at + line_end(&frame[at..])?;
            let length = number(&frame[at + 1..start - 2])?;
            arguments.push(frame.slice(start..start + length));
            at = start + length + 2;
        }
        Some(Self { connection, arguments })
    }

    pub fn encode(&self) -> Bytes {
        let mut frame = format!("*{}\r\n", self.arguments.len()).into_bytes();
        for argument in &self.arguments {
            frame.extend(format!("${}\r\n", argument.len()).into_bytes());
            frame.extend_from_slice(argument);
            frame.extend_from_slice(b"\r\n");
        }
        frame.into()
    }

    /// Whether the command has this name.
    pub fn is(&self, name: &str) -> bool {
        self.arguments.first().is_some_and(|first| first.eq_ignore_ascii_case(name.as_bytes()))
    }

    /// Keys of a script, or the first argument of another command.
    pub fn keys(&self) -> &[Bytes] {
        if !self.is("EVALSHA") && !self.is("EVAL") {
            return self.arguments.get(1..2).unwrap_or_default();
        }
        let count = self.arguments.get(2).and_then(|count| number(count)).unwrap_or(0);
        self.arguments.get(3..3 + count).unwrap_or_default()
    }

    /// Whether a key has this type, such as `s` for sessions or `m` for mailboxes.
    pub fn has_key(&self, key_type: &str) -> bool {
        self.keys().iter().any(|key| {
            let mut parts = key.splitn(3, |byte| *byte == b':');
            parts.nth(1) == Some(key_type.as_bytes())
        })
    }

    /// Index of the first mailbox message of a script that sends some.
    pub fn first_message(&self) -> Option<usize> {
        let is_script = self.is("EVALSHA") || self.is("EVAL");
        // The arguments before the messages are numbers in digits; a message begins with its kind.
        let is_message = |argument: &Bytes| argument.first().is_some_and(|first| *first < b' ');
        let is_mailbox = is_script && self.keys().len() == 1 && self.has_key("m");
        self.arguments.iter().position(is_message).filter(|_| is_mailbox)
    }

    /// The mailbox messages that the command sends.
    pub fn messages(&self) -> &[Bytes] {
        self.first_message().map_or(&[], |first| &self.arguments[first..])
    }

    /// Whether the command sends a message of this kind.
    pub fn sends(&self, message_kind: u8) -> bool {
        self.messages().iter().any(|message| message.first() == Some(&message_kind))
    }
}

/// Takes the next whole reply from a buffer.
pub fn take_reply(buffer: &mut BytesMut) -> Option<Bytes> {
    let end = frame_length(buffer)?;
    Some(buffer.split_to(end).freeze())
}

/// Length of the first line with its line break.
fn line_end(bytes: &[u8]) -> Option<usize> {
    bytes.windows(2).position(|pair| pair == b"\r\n").map(|at| at + 2)
}

fn number(digits: &[u8]) -> Option<usize> {
    std::str::from_utf8(digits).ok()?.parse().ok()
}

/// Length of the first whole value in a buffer, of RESP2 or RESP3.
fn frame_length(bytes: &[u8]) -> Option<usize> {
    let mut end = line_end(bytes)?;
    let count = number(&bytes[1..end - 2]);
    let elements = match bytes[0] {
        b'$' | b'!' | b'=' => {
            end += count.map_or(0, |length| length + 2);
            0
        }
        b'*' | b'~' | b'>' => count.unwrap_or(0),
        b'%' | b'|' => 2 * count.unwrap_or(0),
        _ => 0,
    };
    if end > bytes.len() {
        return None;
    }
    for _ in 0..elements {
        end += frame_length(&bytes[end..])?;
    }
    Some(end)
}

#[test]
fn commands_and_replies_are_found_at_every_split() {
    let command = StoreCommand {
        connection: 0,
        arguments: ["EVALSHA", "x", "1", "rialto:m:{a}/1", "9", "\u{6}one", "\u{1}two"].map(Bytes::from).to_vec(),
    };
    let frame = command.encode();
    for split in 0..frame.len() {
        let mut buffer = BytesMut::from(&frame[..split]);
        assert!(StoreCommand::take(0, &mut buffer).is_none(), "{split}");
        buffer.extend_from_slice(&frame[split..]);
        assert_eq!(StoreCommand::take(0, &mut buffer).unwrap().arguments, command.arguments);
    }
    assert!(command.sends(kind::CANCEL) && command.sends(kind::REQUEST) && !command.sends(kind::WINDOW_UPDATE));
    for reply in [
        "+OK\r\n",
        ":1\r\n",
        "$-1\r\n",
        "$2\r\nab\r\n",
        "*2\r\n$1\r\na\r\n*1\r\n:3\r\n",
        "%1\r\n+a\r\n_\r\n",
        "*-1\r\n",
    ] {
        for split in 0..reply.len() {
            let mut buffer = BytesMut::from(&reply[..split]);
            assert!(take_reply(&mut buffer).is_none(), "{reply:?} {split}");
            buffer.extend_from_slice(&reply.as_bytes()[split..]);
            assert_eq!(take_reply(&mut buffer).unwrap(), reply);
        }
    }
}
