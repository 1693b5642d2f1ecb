//! HTTP/1.1 held against hyper: the same bytes, in the same pieces, through our codec and through hyper.
//!
//! We may refuse more than hyper, but a message that we accept must be the message that hyper reads: the same head, the
//! same body, the same bytes consumed, and the connection kept open or closed alike. Nothing may depend on how the bytes
//! were split.

mod hyper_peer;
mod our_codec;

use http::HeaderMap;

pub use our_codec::HEAD_RULES;

/// Which end of the connection reads the bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    Server,
    Client { request: ClientRequest },
}

/// The request that a client sent before it reads; a response to HEAD has no body.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ClientRequest {
    Post,
    Head,
}

/// What happens after the last byte.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ending {
    /// Nothing more arrives, and the connection stays open.
    Silence,
    /// The sender closes the connection.
    Close,
}

/// One message, as far as it was read.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Message {
    /// Method, target and version of a request, or the status of a response.
    pub start_line: String,
    pub headers: HeaderMap,
    pub body: Vec<u8>,
    /// The body was read to its end.
    pub is_complete: bool,
}

/// What a peer made of the bytes of a connection.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Transcript {
    pub messages: Vec<Message>,
    pub end: End,
}

/// How a connection stands after the last byte.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    /// Between two messages. All bytes up to offset `consumed` belong to complete messages.
    Open { consumed: usize },
    /// In an incomplete head that begins at offset `consumed`, or before the response that a client waits for.
    InHead { consumed: usize },
    /// Closed after a complete message that ends at offset `consumed`.
    Closed { consumed: usize },
    /// Within the body of the last message.
    InBody,
    /// The bytes after the complete messages are not acceptable.
    Refused,
}

/// What our codec and what hyper make of an input.
pub fn read_by_both(role: Role, pieces: &[&[u8]], ending: Ending) -> (Transcript, Transcript) {
    (our_codec::read(role, pieces, ending), hyper_peer::read(role, pieces, ending))
}

/// Compares both peers on one way to split the input, and returns our transcript.
///
/// # Panics
/// When we accept what hyper does not, or read it differently.
pub fn compare(role: Role, pieces: &[&[u8]]) -> Transcript {
    let (ours, theirs) = read_by_both(role, pieces, Ending::Silence);
    let context = || format!("{role:?}\n input: {}\n  ours: {ours:?}\n hyper: {theirs:?}", show(pieces));
    let complete = |transcript: &Transcript| transcript.messages.iter().filter(|message| message.is_complete).count();
    let accepted = complete(&ours);
    assert!(complete(&theirs) >= accepted, "a message was accepted that hyper does not accept\n{}", context());
    assert_eq!(ours.messages[..accepted], theirs.messages[..accepted], "messages differ\n{}", context());
    if ours.end != End::Refused && !refuses_incomplete_head_earlier(&ours, &theirs) {
        assert_eq!(ours.end, theirs.end, "the connections stand differently\n{}", context());
        assert_eq!(ours.messages, theirs.messages, "messages differ\n{}", context());
    }
    if matches!(role, Role::Client { .. }) {
        compare_at_close(role, pieces);
    }
    ours
}

/// The one exception. Both peers parse a head with its first bytes and then when a blank line arrives, but they look for
/// that line over different ranges, so hyper may notice earlier that an incomplete head will never be acceptable.
fn refuses_incomplete_head_earlier(ours: &Transcript, theirs: &Transcript) -> bool {
    matches!(ours.end, End::InHead { .. }) && theirs.end == End::Refused && ours.messages == theirs.messages
}

/// A response may end with its connection. What is complete then must be complete for hyper, too.
fn compare_at_close(role: Role, pieces: &[&[u8]]) {
    let accepted = |transcript: Transcript| -> Vec<Message> {
        transcript.messages.into_iter().filter(|message| message.is_complete).collect()
    };
    let (ours, theirs) = read_by_both(role, pieces, Ending::Close);
    let (ours, theirs) = (accepted(ours), accepted(theirs));
    let is_same = ours.is_empty() || ours == theirs;
    assert!(is_same, "at close, {role:?}\n input: {}\n  ours: {ours:?}\n hyper: {theirs:?}", show(pieces));
}

/// Checks that a split input was read like the whole one. Only the moment of a refusal may differ: a head is parsed when
/// it is complete, or with its first bytes.
pub fn check_split(whole: &Transcript, split: &Transcript, pieces: &[&[u8]]) {
    let complete = |transcript: &Transcript| -> Vec<Message> {
        transcript.messages.iter().filter(|message| message.is_complete).cloned().collect()
    };
    let is_same = match whole.end == End::Refused || split.end == End::Refused {
        true => complete(whole) == complete(split) && !matches!(split.end, End::Closed { .. }),
        false => whole == split,
    };
    assert!(is_same, "the split matters\n input: {}\n whole: {whole:?}\n split: {split:?}", show(pieces));
}

/// The input with its pieces separated, for error messages.
pub fn show(pieces: &[&[u8]]) -> String {
    let shown: Vec<String> = pieces.iter().map(|piece| format!("\"{}\"", piece.escape_ascii())).collect();
    shown.join(" ")
}
