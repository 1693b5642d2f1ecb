//! Session ids: a transport prefix and 128 random bits.

use std::fmt;

use sha2::{Digest, Sha256};

/// Transports with sessions. An id of one transport never resolves on another.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum SessionTransport {
    /// Streamable HTTP.
    Http,
    /// HTTP+SSE.
    Sse,
    /// Standard input and output.
    Stdio,
}

/// A session id, written as `transport:` and 32 lowercase hex digits. Whoever knows it can use the session, so logs and
/// `Debug` show [`SessionId::log_tag`] instead.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct SessionId {
    transport: SessionTransport,
    key: u128,
}

/// A session in logs. It tells sessions apart and opens none.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SessionLogTag {
    transport: SessionTransport,
    hash: u32,
}

/// Bytes of the hash in a log tag.
const LOG_TAG_BYTES: usize = 4;

impl SessionTransport {
    /// Prefix of the session ids of this transport; also its label in metrics.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Http => "http",
            Self::Sse => "sse",
            Self::Stdio => "stdio",
        }
    }
}

impl SessionId {
    /// Generates an unguessable id.
    ///
    /// # Panics
    /// When the operating system's random number generator fails.
    pub fn random(transport: SessionTransport) -> Self {
        let mut bytes = [0; 16];
        getrandom::fill(&mut bytes).expect("the system random number generator works");
        let key = u128::from_be_bytes(bytes);
        Self { transport, key }
    }

    /// Parses an id received on a transport. An id without prefix is taken as one of that transport; any other prefix
    /// is refused.
    pub fn parse(text: &str, arrived_on: SessionTransport) -> Option<Self> {
        let unprefixed = text.strip_prefix(arrived_on.as_str()).and_then(|rest| rest.strip_prefix(':'));
        let key = unprefixed.unwrap_or(text);
        let ([high, low], []) = key.as_bytes().as_chunks::<16>() else { return None };
        let key = (u128::from(parse_hex(high)?) << 64) | u128::from(parse_hex(low)?);
        Some(Self { transport: arrived_on, key })
    }

    /// Stands for the id in logs: its transport and the first digits of its hash.
    pub fn log_tag(self) -> SessionLogTag {
        let digest = Sha256::digest(self.key.to_be_bytes());
        let mut first = [0; LOG_TAG_BYTES];
        first.copy_from_slice(&digest[..LOG_TAG_BYTES]);
        SessionLogTag { transport: self.transport, hash: u32::from_be_bytes(first) }
    }

    /// The random 128 bits.
    pub(super) fn key(self) -> u128 {
        self.key
    }

    /// The transport that the session was opened on.
    pub fn transport(&self) -> SessionTransport {
        self.transport
    }
}

/// The value of each lowercase hex digit; [`NO_DIGIT`] for other bytes.
static HEX_VALUES: [u8; 256] = {
    let (mut values, mut value) = ([NO_DIGIT; 256], 0);
    while value < 16 {
        values[b"0123456789abcdef"[value as usize] as usize] = value;
        value += 1;
    }
    values
};
const NO_DIGIT: u8 = 0xff;

/// Parses sixteen lowercase hex digits. Upper case and signs are refused, so that every id has one spelling.
fn parse_hex(digits: &[u8; 16]) -> Option<u64> {
    let (mut number, mut all) = (0, 0);
    for digit in digits {
        let value = HEX_VALUES[*digit as usize];
        all |= value;
        number = number << 4 | u64::from(value & 0xf);
    }
    (all < 16).then_some(number)
}

impl fmt::Display for SessionLogTag {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}#{:08x}", self.transport.as_str(), self.hash)
    }
}

impl fmt::Debug for SessionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SessionId({})", self.log_tag())
    }
}

impl fmt::Display for SessionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{:032x}", self.transport.as_str(), self.key)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_resolve_on_their_own_transport_only() {
        let id = SessionId::random(SessionTransport::Http);
        let text = id.to_string();
        let bare = text.strip_prefix("http:").unwrap();
        assert_eq!(SessionId::parse(&text, SessionTransport::Http), Some(id));
        assert_eq!(SessionId::parse(bare, SessionTransport::Http), Some(id));
        assert_eq!(SessionId::parse(&text, SessionTransport::Sse), None);
        assert_ne!(SessionId::parse(bare, SessionTransport::Sse), Some(id));
        assert_eq!(SessionId::parse(&format!("sse:{bare}"), SessionTransport::Http), None);
        assert_eq!(SessionId::parse(&format!("sse:http:{bare}"), SessionTransport::Sse), None);
        assert_eq!(SessionId::parse(&format!("http:sse:{bare}"), SessionTransport::Http), None);
    }

    #[test]
    fn logs_and_debug_do_not_show_the_id() {
        let id = SessionId::random(SessionTransport::Http);
        let bare = id.to_string().replace("http:", "");
        let (tag, debug) = (id.log_tag().to_string(), format!("{id:?}"));
        assert!(tag.starts_with("http#") && tag.len() == 13 && debug.contains(&tag), "{tag} {debug}");
        assert!(!debug.contains(&bare[..8]) && tag == id.log_tag().to_string());
    }

    #[test]
    fn malformed_ids_are_refused() {
        for bad in [
            "",
            "http:",
            "http:12",
            "x",
            "http:+0000000000000000000000000000000",
            "http:ABCDEFABCDEFABCDEFABCDEFABCDEFAB",
        ] {
            assert_eq!(SessionId::parse(bad, SessionTransport::Http), None, "{bad}");
        }
    }
}
