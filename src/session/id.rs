//! Names of sessions: the transport, and 128 random bits.

use std::fmt;

/// The transports that have sessions. A session of one can never be reached through another.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum SessionTransport {
    /// Streamable HTTP.
    Http,
    /// HTTP+SSE.
    Sse,
    /// Standard input and output.
    Stdio,
}

/// The name of a session.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct SessionId {
    transport: SessionTransport,
    key: u128,
}

impl SessionTransport {
    /// Its name, which ids of this transport begin with.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Http => "http",
            Self::Sse => "sse",
            Self::Stdio => "stdio",
        }
    }
}

impl SessionId {
    /// A new id that nobody can guess.
    ///
    /// # Panics
    /// When the system has no randomness to give; no session would be safe without it.
    pub fn random(transport: SessionTransport) -> Self {
        let mut bytes = [0; 16];
        getrandom::fill(&mut bytes).expect("the system gives randomness");
        let key = u128::from_be_bytes(bytes);
        Self { transport, key }
    }

    /// Reads an id that arrived on a transport. Without a prefix it is understood as of that
    /// transport; with the prefix of another one it is no id here, whatever follows.
    pub fn parse(text: &str, arrived_on: SessionTransport) -> Option<Self> {
        let key = match text.split_once(':') {
            None => text,
            Some((prefix, key)) if prefix == arrived_on.as_str() => key,
            Some(_) => return None,
        };
        let ([high, low], []) = key.as_bytes().as_chunks::<16>() else { return None };
        let key = (u128::from(number(high)?) << 64) | u128::from(number(low)?);
        Some(Self { transport: arrived_on, key })
    }

    /// The random part.
    pub(super) fn key(self) -> u128 {
        self.key
    }

    /// The transport it belongs to.
    pub fn transport(&self) -> SessionTransport {
        self.transport
    }
}

/// Reads sixteen digits, in the one way that we write them.
fn number(digits: &[u8; 16]) -> Option<u64> {
    digits.iter().try_fold(0, |number, digit| {
        let value = match digit {
            b'0'..=b'9' => digit - b'0',
            b'a'..=b'f' => digit - b'a' + 10,
            _ => return None,
        };
        Some(number << 4 | u64::from(value))
    })
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
    fn ids_belong_to_one_transport() {
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
    fn only_what_we_write_is_read() {
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
