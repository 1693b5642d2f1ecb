//! The parameters or the result of a message, with the places of the members that somebody reads on its way.
//!
//! The places are found while the message is validated, and travel with it: nobody searches the text again.

use std::borrow::Cow;
use std::fmt;
use std::ops::{Deref, Range};

use memchr::memmem;

use super::json::{Raw, key_text, leading_string, members};
use super::scan::skip_value;

/// The `params` of a request or the `result` of a response. It dereferences to its text.
#[derive(Clone)]
pub struct Payload {
    text: Raw,
    /// `None` for a payload that was made or edited here; its members are searched when they are asked for.
    index: Option<PayloadIndex>,
}

/// Generates [`Key`] from one table of variants and their spellings.
macro_rules! keys {
    ($($(#[$doc:meta])* $variant:ident = $text:literal,)*) => {
        /// The key of a member that is read on the way of a call.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub enum Key {
            $($(#[$doc])* $variant,)*
        }

        impl Key {
            const ALL: &[Self] = &[$(Self::$variant,)*];

            /// The key as it is written in a message.
            pub const fn as_str(self) -> &'static str {
                match self {
                    $(Self::$variant => $text,)*
                }
            }

            fn parse(text: &str) -> Option<Self> {
                match text {
                    $($text => Some(Self::$variant),)*
                    _ => None,
                }
            }
        }
    };
}

keys! {
    /// Metadata of a request or a result.
    Meta = "_meta",
    /// The tool or prompt of a request.
    Name = "name",
    /// The resource of a request.
    Uri = "uri",
    /// What an argument is completed for.
    Ref = "ref",
    /// The arguments of a tool or prompt.
    Arguments = "arguments",
    /// The wish to run a call as a task, or the task that was made of it.
    Task = "task",
    /// The task that a request is about.
    TaskId = "taskId",
    /// The state of a call that requires input.
    RequestState = "requestState",
    /// The input that a call required.
    InputResponses = "inputResponses",
    /// The input that a result requires.
    InputRequests = "inputRequests",
    /// What kind of result this is.
    ResultType = "resultType",
    /// Whether a tool reports a failure.
    IsError = "isError",
    /// The content of a tool result.
    Content = "content",
    /// The structured content of a tool result.
    StructuredContent = "structuredContent",
}

/// Where the members are in the text of an object, and which of them stand there twice.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct PayloadIndex {
    /// Start of each value; 0 when it is absent. Of duplicates the last one counts. Most ends are left out because every
    /// message carries this.
    starts: [u32; Key::ALL.len()],
    /// End of `_meta`, which is an object and read several times.
    meta_end: u32,
    /// One bit for each member that stands there twice.
    duplicates: u16,
}

// === impl PayloadIndex ===

impl PayloadIndex {
    /// Indexes an object that is valid JSON.
    pub(super) fn of(text: &[u8]) -> Self {
        let mut index = Self::default();
        for member in members(text) {
            index.record(&key_text(&text[member.key]), &member.value);
        }
        index
    }

    /// Records a member by its key without escapes.
    pub(super) fn record(&mut self, key: &str, value: &Range<usize>) {
        let Some(key) = Key::parse(key) else { return };
        let (Ok(start), Ok(end)) = (u32::try_from(value.start), u32::try_from(value.end)) else { return };
        if key == Key::Meta {
            self.meta_end = end;
        }
        if std::mem::replace(&mut self.starts[key as usize], start) != 0 {
            self.duplicates |= 1 << key as u16;
        }
    }

    fn start(&self, key: Key) -> Option<usize> {
        Some(self.starts[key as usize] as usize).filter(|start| *start > 0)
    }

    fn span(&self, key: Key, text: &[u8]) -> Option<Range<usize>> {
        let start = self.start(key)?;
        match key {
            Key::Meta => Some(start..self.meta_end as usize),
            _ => Some(start..skip_value(text, start)),
        }
    }

    /// The index after the value at `span` was replaced by one of another length.
    fn moved(mut self, span: &Range<usize>, length: usize) -> Self {
        for start in self.starts.iter_mut().filter(|start| **start as usize >= span.end) {
            *start = (*start as usize + length - span.len()) as u32;
        }
        if self.meta_end as usize >= span.end {
            self.meta_end = (self.meta_end as usize + length - span.len()) as u32;
        }
        self
    }
}

// === impl Payload ===

impl Payload {
    pub(super) fn indexed(text: Raw, index: PayloadIndex) -> Self {
        Self { text, index: Some(index) }
    }

    /// An empty object.
    pub fn empty() -> Self {
        Raw::empty().into()
    }

    /// The value of a member.
    pub fn member(&self, key: Key) -> Option<Raw> {
        self.span(key).map(|span| self.text.slice_at(span))
    }

    /// The value of a member that is a string.
    pub fn text_of(&self, key: Key) -> Option<Cow<'_, str>> {
        leading_string(&self.text.as_bytes()[self.start(key)?..])
    }

    /// Whether a member is there and `true`.
    pub fn is_true(&self, key: Key) -> bool {
        let text = self.text.as_bytes();
        // Most results that were made here say `false`, which is seen faster than their members are walked.
        let may_be_true = || {
            memmem::find_iter(text, key.as_str()).any(|at| is_true_after(&text[at + key.as_str().len()..]))
                || memchr::memchr(b'\\', text).is_some()
        };
        let is_true_at = |start: usize| text[start..].starts_with(b"true");
        (self.index.is_some() || may_be_true()) && self.start(key).is_some_and(is_true_at)
    }

    /// Whether a member is there.
    pub fn has(&self, key: Key) -> bool {
        match &self.index {
            Some(index) => index.start(key).is_some(),
            None => self.span(key).is_some(),
        }
    }

    /// Where the value of a member begins.
    fn start(&self, key: Key) -> Option<usize> {
        match &self.index {
            Some(index) => index.start(key),
            None => self.span(key).map(|span| span.start),
        }
    }

    fn span(&self, key: Key) -> Option<Range<usize>> {
        match &self.index {
            Some(index) => index.span(key, self.text.as_bytes()),
            None => {
                let text = self.text.as_bytes();
                // A key that is nowhere in the text is found faster than the members of a large object are walked.
                if memmem::find(text, key.as_str().as_bytes()).is_none() && memchr::memchr(b'\\', text).is_none() {
                    return None;
                }
                Some(members(text).filter(|member| member.is(text, key.as_str())).last()?.value)
            }
        }
    }

    /// The first of `keys` that stands there twice, so that two readers could take different ones.
    pub fn find_duplicate(&self, keys: &[Key]) -> Option<Key> {
        let duplicates = self.index.unwrap_or_else(|| PayloadIndex::of(self.text.as_bytes())).duplicates;
        match duplicates {
            0 => None,
            _ => keys.iter().copied().find(|key| duplicates & (1 << *key as u16) != 0),
        }
    }

    /// Sets a member: in place when it exists, else at the end. Unchanged bytes when it has that value already.
    #[must_use]
    pub fn with(&self, key: Key, value: &Raw) -> Self {
        let Some(index) = self.index.filter(|index| index.duplicates == 0) else {
            return self.text.map_member(key.as_str(), |_| value.clone()).into();
        };
        match self.span(key) {
            Some(span) if self.text.as_bytes()[span.clone()] == *value.as_bytes() => self.clone(),
            Some(span) => {
                let text = self.text.splice(span.clone(), value);
                Self { text, index: Some(index.moved(&span, value.as_bytes().len())) }
            }
            None => {
                let (text, start) = self.text.append_member(key.as_str(), value);
                let mut index = index;
                index.record(key.as_str(), &(start..start + value.as_bytes().len()));
                Self { text, index: Some(index) }
            }
        }
    }

    /// The text.
    pub fn into_raw(self) -> Raw {
        self.text
    }
}

/// Whether `true` follows the end of a key.
fn is_true_after(rest: &[u8]) -> bool {
    let value = rest.strip_prefix(b"\"").and_then(|rest| rest.trim_ascii_start().strip_prefix(b":"));
    value.is_some_and(|value| value.trim_ascii_start().starts_with(b"true"))
}

impl Deref for Payload {
    type Target = Raw;

    fn deref(&self) -> &Raw {
        &self.text
    }
}

impl From<Raw> for Payload {
    fn from(text: Raw) -> Self {
        Self { text, index: None }
    }
}

impl From<Payload> for Raw {
    fn from(payload: Payload) -> Self {
        payload.text
    }
}

impl PartialEq for Payload {
    fn eq(&self, other: &Self) -> bool {
        self.text == other.text
    }
}

impl fmt::Debug for Payload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.text.fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::Message;
    use bytes::Bytes;
    use proptest::prelude::*;

    /// A payload as it is received in a request and in a response, and as it would be without an index.
    fn received(payload: &str) -> [Payload; 3] {
        let parse = |text: String| Message::parse(&Bytes::from(text)).expect("it is a message");
        let request = parse(format!(r#"{{"jsonrpc":"2.0","id":1,"method":"x","params": {payload} }}"#));
        let response = parse(format!(r#"{{"jsonrpc":"2.0", "result" : {payload},"id":1}}"#));
        let (Message::Request(request), Message::Response(response)) = (request, response) else { panic!("{payload}") };
        let params = request.params.expect("it has params");
        let plain = params.clone().into_raw();
        [params, response.outcome.expect("it has a result"), plain.into()]
    }

    #[test]
    fn members_are_found_as_they_were_received() {
        let texts =
            received(r#"{ "n\u0061me" : "a\nb", "arguments":{"name":"inner","uri":1},"x":[{"uri":2}], "uri":7 }"#);
        for payload in texts {
            assert_eq!(payload.text_of(Key::Name).unwrap(), "a\nb");
            assert_eq!(payload.member(Key::Arguments).unwrap().to_string(), r#"{"name":"inner","uri":1}"#);
            assert_eq!(payload.member(Key::Uri).unwrap().to_string(), "7");
            assert_eq!(payload.text_of(Key::Uri), None, "it is no string");
            assert!(payload.has(Key::Name) && !payload.has(Key::Ref));
            assert_eq!(payload.find_duplicate(Key::ALL), None);
        }
    }

    /// A response may have any other members; those of a stray `params` are not taken for those of the result.
    #[test]
    fn params_beside_a_result_do_not_disturb_it() {
        let strays = ["", r#","params":{"long long long":1,"_meta":{},"isError":true}"#];
        let before = r#""params":{"long long long":1,"isError":true},"#;
        for (before, after) in strays.map(|after| ("", after)).into_iter().chain([(before, "")]) {
            let text = format!(r#"{{"jsonrpc":"2.0",{before}"id":1,"result":{{"isError":false}}{after}}}"#);
            let Ok(Message::Response(response)) = Message::parse(&Bytes::from(text)) else { panic!("{before}{after}") };
            let result = response.outcome.expect("it has a result");
            assert!(result.has(Key::IsError) && !result.is_true(Key::IsError) && !result.has(Key::Meta));
        }
    }

    #[test]
    fn duplicates_are_known_however_they_are_written() {
        for payload in received(r#"{"name":"good","x":1,"na\u006de":"danger","uri":"a"}"#) {
            assert_eq!(payload.find_duplicate(&[Key::Uri, Key::Name]), Some(Key::Name));
            assert_eq!(payload.text_of(Key::Name).unwrap(), "danger", "the last one counts");
        }
    }

    fn any_payload() -> impl Strategy<Value = String> {
        let key = prop::sample::select(vec!["name", "uri", "_meta", "task", "n\\u0061me", "other", "isError"]);
        let value = prop::sample::select(vec!["1", "\"a\"", "{\"name\":[1,{}]}", "[ ]", "\"\\\"x\"", "true"]);
        let space = prop::sample::select(vec!["", " ", "\n\t"]);
        prop::collection::vec((key, value, space), 0..6).prop_map(|members| {
            let each = |(key, value, space): &(&str, &str, &str)| format!("{space}\"{key}\"{space}:{value}{space}");
            format!("{{{}}}", members.iter().map(each).collect::<Vec<_>>().join(","))
        })
    }

    proptest! {
        /// What is read through the index is what a search of the text finds, also after members were set.
        #[test]
        fn index_agrees_with_the_text(
            payload in any_payload(),
            value in prop::sample::select(vec!["1", "\"much longer\"", "{}"]),
        ) {
            let [params, result, plain] = received(&payload);
            let value = Raw::constant(value);
            for indexed in [params, result] {
                for changed in Key::ALL {
                    let pairs = [
                        (indexed.clone(), plain.clone()),
                        (indexed.with(*changed, &value), plain.with(*changed, &value)),
                        (
                            indexed.with(*changed, &value).with(Key::Meta, &value),
                            plain.with(*changed, &value).with(Key::Meta, &value),
                        ),
                    ];
                    for (one, other) in pairs {
                        prop_assert_eq!(&one, &other);
                        for key in Key::ALL {
                            prop_assert_eq!(one.member(*key), other.member(*key));
                            prop_assert_eq!(one.text_of(*key), other.text_of(*key));
                            prop_assert_eq!(one.is_true(*key), other.is_true(*key));
                            prop_assert_eq!(one.find_duplicate(&[*key]), other.find_duplicate(&[*key]));
                        }
                    }
                }
            }
        }
    }
}
