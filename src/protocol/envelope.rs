//! Parser for the JSON-RPC envelope; the members stay raw.

use std::borrow::Cow;
use std::fmt;

use serde::Deserialize;
use serde::de::{Deserializer, IgnoredAny, MapAccess, Visitor};
use serde_json::value::RawValue;

use super::payload::PayloadIndex;
use super::scan::{depth_within, skip_space};
use super::valid::{MAX_DEPTH, validate_members, validate_value};

/// The members of a JSON-RPC envelope, unparsed.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Envelope<'a> {
    pub(super) version: Option<&'a str>,
    pub(super) id: Option<&'a str>,
    pub(super) method: Option<&'a str>,
    pub(super) params: Option<&'a str>,
    /// Where the members of `params` and of `result` are, where these are objects.
    pub(super) params_index: Option<PayloadIndex>,
    pub(super) result_index: Option<PayloadIndex>,
    pub(super) result: Option<&'a str>,
    pub(super) error: Option<&'a str>,
    pub(super) extra: Vec<(Box<str>, &'a str)>,
}

impl<'a> Envelope<'a> {
    /// Parses an envelope.
    ///
    /// # Errors
    /// When the text is not JSON, or not an object with unique members.
    pub(super) fn read(text: &'a [u8]) -> Result<Self, serde_json::Error> {
        // Validate UTF-8 once; `from_slice` would validate every string again.
        match std::str::from_utf8(text) {
            Ok(text) => match Self::parse_fast(text) {
                Some(envelope) => Ok(envelope),
                None => Self::parse_general(serde_json::Deserializer::from_str(text)),
            },
            Err(_) => Self::parse_general(serde_json::Deserializer::from_slice(text)),
        }
    }

    /// Like [`Self::read`], with whether the text nests deeper than `max_depth`.
    ///
    /// # Errors
    /// Those of [`Self::read`].
    pub(super) fn read_within(text: &'a [u8], max_depth: usize) -> Result<(Self, bool), serde_json::Error> {
        // What the fast path accepts nests no deeper than `MAX_DEPTH` below the envelope, so it needs no second scan.
        if max_depth > MAX_DEPTH as usize
            && let Some(envelope) = std::str::from_utf8(text).ok().and_then(Self::parse_fast)
        {
            return Ok((envelope, false));
        }
        Ok((Self::read(text)?, !depth_within(text, max_depth)))
    }

    /// Fast path for envelopes and payloads without escaped keys and for unique members; `None` falls back to the general
    /// parser.
    fn parse_fast(whole: &'a str) -> Option<Self> {
        let text = whole.as_bytes();
        let mut envelope = Self::default();
        let end = validate_members(text, skip_space(text, 0), |key, value| {
            let key = &whole[key.start + 1..key.end - 1];
            let end = match key {
                "params" | "result" if text.get(value) == Some(&b'{') => {
                    let index = match key {
                        "params" => &mut envelope.params_index,
                        _ => &mut envelope.result_index,
                    };
                    let index = index.insert(PayloadIndex::default());
                    validate_members(text, value, |key, at| {
                        let end = validate_value(text, at, MAX_DEPTH - 1)?;
                        let key = &whole[key.start + 1..key.end - 1];
                        match key.contains('\\') {
                            true => return None,
                            false => index.record(key, &(at - value..end - value)),
                        }
                        Some(end)
                    })?
                }
                _ => validate_value(text, value, MAX_DEPTH)?,
            };
            envelope.insert(key, &whole[value..end])?;
            Some(end)
        })?;
        (skip_space(text, end) == text.len()).then_some(envelope)
    }

    /// Returns `None` for a duplicate member or a key with escapes.
    fn insert(&mut self, key: &str, value: &'a str) -> Option<()> {
        match self.member_slot(key) {
            Some(slot) if slot.is_none() => *slot = Some(value),
            None if !key.contains('\\') => self.extra.push((key.into(), value)),
            _ => return None,
        }
        Some(())
    }

    /// The field for a member that JSON-RPC defines.
    fn member_slot(&mut self, key: &str) -> Option<&mut Option<&'a str>> {
        Some(match key {
            "jsonrpc" => &mut self.version,
            "id" => &mut self.id,
            "method" => &mut self.method,
            "params" => &mut self.params,
            "result" => &mut self.result,
            "error" => &mut self.error,
            _ => return None,
        })
    }

    fn parse_general<R: serde_json::de::Read<'a>>(
        mut text: serde_json::Deserializer<R>,
    ) -> Result<Self, serde_json::Error> {
        let mut envelope = text.deserialize_any(EnvelopeVisitor)?;
        text.end()?;
        let index = |payload: &str| payload.starts_with('{').then(|| PayloadIndex::of(payload.as_bytes()));
        (envelope.params_index, envelope.result_index) =
            (envelope.params.and_then(index), envelope.result.and_then(index));
        Ok(envelope)
    }
}

/// A key, borrowed where it has no escapes. A plain `Cow` would always copy.
#[derive(Deserialize)]
struct EnvelopeKey<'a>(#[serde(borrow)] Cow<'a, str>);

struct EnvelopeVisitor;

impl<'de> Visitor<'de> for EnvelopeVisitor {
    type Value = Envelope<'de>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON-RPC message")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let mut envelope = Envelope::default();
        while let Some(EnvelopeKey(key)) = map.next_key::<EnvelopeKey<'de>>()? {
            match envelope.member_slot(&key) {
                Some(Some(_)) => {
                    map.next_value::<IgnoredAny>()?;
                    return Err(serde::de::Error::custom("a member stands there twice"));
                }
                Some(slot) => *slot = Some(map.next_value::<&RawValue>()?.get()),
                None => envelope.extra.push((key.as_ref().into(), map.next_value::<&RawValue>()?.get())),
            }
        }
        Ok(envelope)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn parse_slowly(text: &str) -> Option<Envelope<'_>> {
        Envelope::parse_general(serde_json::Deserializer::from_str(text)).ok()
    }

    #[test]
    fn common_envelopes_take_the_fast_path() {
        let text =
            "\n{ \"jsonrpc\" :\"2.0\",\"id\":1 , \"method\":\"a\\u0062\",\"params\":{\"a\":[1,{}]},\"x\":null}\n ";
        let envelope = Envelope::parse_fast(text).unwrap();
        assert_eq!(envelope.params, Some("{\"a\":[1,{}]}"));
        assert_eq!(envelope.extra, [("x".into(), "null")]);
        for text in ["[]", "{\"id\":1,\"id\":2}", "{\"i\\u0064\":1}", "{\"id\":1}x", "{\"id\":1,}", "{\"id\":}", ""] {
            assert!(Envelope::parse_fast(text).is_none(), "{text}");
        }
    }

    proptest! {
        /// The fast path must agree with the general parser.
        #[test]
        fn fast_path_agrees_with_the_general_parser(
            members in prop::collection::vec((prop::sample::select(vec![
                "jsonrpc", "id", "method", "params", "result", "error", "x", "y\\n", "",
            ]), prop::sample::select(vec!["1", "\"a\"", "{\"a\":[]}", " [1 , 2]", "tru", "\"\\q\"", "nul l"])), 0..5),
            end in prop::sample::select(vec!["}", "} ", "}}", "", ",}"]),
        ) {
            let members: Vec<String> = members.iter().map(|(key, value)| format!("\"{key}\": {value}")).collect();
            let text = format!("{{{}{end}", members.join(","));
            if let Some(envelope) = Envelope::parse_fast(&text) {
                prop_assert_eq!(Some(envelope), parse_slowly(&text));
            } else if let Some(envelope) = parse_slowly(&text) {
                let odd = text.contains('\\') || envelope == Envelope::default();
                prop_assert!(odd, "{} is as usual as any", text);
            }
        }
    }
}
