//! Header fields of a message, left in the bytes that they arrived in.

use std::borrow::Cow;

use bytes::{BufMut, Bytes, BytesMut};
use http::{HeaderMap, HeaderName, HeaderValue};

/// The header fields of a received message in their order. Names are in lower case.
///
/// A head has few fields, most of which nobody asks for: they are searched in order, and a value is not copied before it
/// is used.
#[derive(Debug, Clone, Default)]
pub struct HeaderFields {
    text: Bytes,
    spans: Vec<FieldSpan>,
}

/// Where the name and the value of one field stand in the text.
#[derive(Debug, Clone, Copy)]
pub(super) struct FieldSpan {
    name: TextSpan,
    value: TextSpan,
}

#[derive(Debug, Clone, Copy)]
struct TextSpan {
    start: u32,
    length: u32,
}

/// Longest header name that `http` can represent.
pub(super) const MAX_NAME_BYTES: usize = u16::MAX as usize;

impl HeaderFields {
    /// The fields of a head whose text is at hand now. The names are brought into lower case.
    pub(super) fn new(mut text: BytesMut, spans: Vec<FieldSpan>) -> Self {
        for span in &spans {
            make_lowercase(&mut text[span.name.range()]);
        }
        Self { text: text.freeze(), spans }
    }

    /// The text of the whole head.
    pub(super) fn text(&self) -> &Bytes {
        &self.text
    }

    /// How many fields there are.
    pub fn len(&self) -> usize {
        self.spans.len()
    }

    /// Whether there is no field.
    pub fn is_empty(&self) -> bool {
        self.spans.is_empty()
    }

    /// All fields, with their names in lower case.
    pub fn iter(&self) -> impl Iterator<Item = (&[u8], &[u8])> {
        self.spans.iter().map(|span| (&self.text[span.name.range()], &self.text[span.value.range()]))
    }

    /// The first value of a field. `name` is in lower case.
    #[inline]
    pub fn get(&self, name: impl AsRef<str>) -> Option<&[u8]> {
        self.find(name.as_ref().as_bytes(), 0).map(|at| &self.text[self.spans[at].value.range()])
    }

    /// The first value of a field as text, with replacement characters where it is not UTF-8.
    pub fn get_text(&self, name: impl AsRef<str>) -> Option<Cow<'_, str>> {
        // Nearly always valid, which `from_utf8` finds out faster than `from_utf8_lossy`.
        let text = |value| str::from_utf8(value).map_or_else(|_| String::from_utf8_lossy(value), Cow::Borrowed);
        self.get(name).map(text)
    }

    /// All values of a field, in their order.
    pub fn get_all(&self, name: impl AsRef<str>) -> impl Iterator<Item = &[u8]> {
        let mut from = 0;
        std::iter::from_fn(move || {
            let at = self.find(name.as_ref().as_bytes(), from)?;
            from = at + 1;
            Some(&self.text[self.spans[at].value.range()])
        })
    }

    /// The fields as a map; those that are not valid in `http` are left out.
    pub fn to_map(&self) -> HeaderMap {
        let mut map = HeaderMap::with_capacity(self.len());
        for (name, value) in self.iter() {
            if let (Ok(name), Ok(value)) = (HeaderName::from_bytes(name), HeaderValue::from_bytes(value)) {
                map.append(name, value);
            }
        }
        map
    }

    /// The fields of a test.
    #[cfg(test)]
    pub(crate) fn of(fields: &[(&str, &str)]) -> Self {
        let mut map = HeaderMap::new();
        for (name, value) in fields {
            map.append(HeaderName::from_bytes(name.as_bytes()).unwrap(), value.parse().unwrap());
        }
        (&map).into()
    }

    /// The index of the first field of that name, from an index on.
    #[inline]
    fn find(&self, name: &[u8], from: usize) -> Option<usize> {
        let text = &self.text[..];
        let is_named = |span: &FieldSpan| span.name.length as usize == name.len() && text[span.name.range()] == *name;
        self.spans[from..].iter().position(is_named).map(|at| from + at)
    }
}

impl From<&HeaderMap> for HeaderFields {
    fn from(map: &HeaderMap) -> Self {
        let (mut text, mut spans) = (BytesMut::new(), Vec::with_capacity(map.len()));
        let mut put = |part: &[u8]| {
            text.put_slice(part);
            TextSpan::new(text.len() - part.len(), part.len())
        };
        for (name, value) in map {
            spans.push(FieldSpan { name: put(name.as_str().as_bytes()), value: put(value.as_bytes()) });
        }
        Self { text: text.freeze(), spans }
    }
}

impl FieldSpan {
    /// Where a field stands in the text that it was parsed from.
    pub(super) fn new(text: &[u8], field: &httparse::Header<'_>) -> Self {
        let span = |part: &[u8]| TextSpan::new(part.as_ptr().addr() - text.as_ptr().addr(), part.len());
        Self { name: span(field.name.as_bytes()), value: span(field.value) }
    }

    /// Whether CRLF ends the line before the field.
    pub(super) fn follows_line_end(&self, text: &[u8]) -> bool {
        text[..self.name.start as usize].ends_with(b"\r\n")
    }
}

/// [`make_ascii_lowercase`](slice::make_ascii_lowercase) by words: names are too short for what the compiler makes of it.
fn make_lowercase(name: &mut [u8]) {
    let (words, rest) = name.as_chunks_mut();
    words.iter_mut().for_each(make_word_lowercase);
    match words.is_empty() {
        true => rest.make_ascii_lowercase(),
        // What is in two words is changed once.
        false => name.last_chunk_mut().into_iter().for_each(make_word_lowercase),
    }
}

fn make_word_lowercase(bytes: &mut [u8; 8]) {
    const LOW_BITS: u64 = u64::MAX / 0xff;
    const HIGH_BITS: u64 = LOW_BITS << 7;
    let word = u64::from_le_bytes(*bytes);
    // The high bit of a sum says whether the seven lower bits are at least `A`, or greater than `Z`.
    let low = word & !HIGH_BITS;
    let from_a = low + LOW_BITS * (0x80 - b'A' as u64);
    let after_z = low + LOW_BITS * (0x7f - b'Z' as u64);
    let upper = (from_a ^ after_z) & !word & HIGH_BITS;
    *bytes = (word | upper >> 2).to_le_bytes();
}

impl TextSpan {
    fn new(start: usize, length: usize) -> Self {
        // Lossless: heads are limited to far less than 4 GiB.
        Self { start: start as u32, length: length as u32 }
    }

    fn range(self) -> std::ops::Range<usize> {
        self.start as usize..self.start as usize + self.length as usize
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_brought_into_lower_case_as_the_standard_library_does() {
        for length in 0..20 {
            for byte in 0..=u8::MAX {
                let mut name: Vec<u8> = (0..length).map(|at| byte.wrapping_add(at * 13)).collect();
                let expected = name.to_ascii_lowercase();
                make_lowercase(&mut name);
                assert_eq!(name, expected);
            }
        }
    }

    #[test]
    fn fields_are_found_by_name_in_their_order() {
        let fields = HeaderFields::of(&[("host", "h"), ("x-a", "1"), ("x-b", ""), ("x-a", "2")]);
        assert_eq!((fields.len(), fields.is_empty()), (4, false));
        assert_eq!(fields.get("x-a"), Some(&b"1"[..]));
        assert_eq!(fields.get("x-b"), Some(&b""[..]));
        assert_eq!(fields.get("x-c"), None);
        assert_eq!(fields.get(http::header::HOST), Some(&b"h"[..]));
        assert_eq!(fields.get_all("x-a").collect::<Vec<_>>(), [b"1", b"2"]);
        assert_eq!(fields.get_text("host").unwrap(), "h");
        assert_eq!(HeaderFields::from(&fields.to_map()).get_all("x-a").count(), 2);
        let text = BytesMut::from("X-Name: Value\r\n");
        let field = httparse::Header { name: std::str::from_utf8(&text[..6]).unwrap(), value: &text[8..13] };
        let spans = vec![FieldSpan::new(&text, &field)];
        assert_eq!(HeaderFields::new(text, spans).get("x-name"), Some(&b"Value"[..]));
    }
}
