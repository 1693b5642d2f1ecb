//! Validates JSON and finds the end of a value in one pass, for the envelope of every call.
//!
//! Accepted text is valid JSON. Rejected text may still be valid: deeply nested values are left to
//! `serde_json`, which is slower and reports errors.

use std::ops::Range;

use super::scan::{HIGH_BITS, LOW_BITS, mark_zero_bytes, skip_space};

/// Maximum nesting depth: one bit per level, with one level left for the envelope around the value.
pub(super) const MAX_DEPTH: u32 = u128::BITS - 1;
/// Bytes of a string searched with SWAR before `memchr` takes over, which is faster on long strings only.
const SWAR_BYTES_MAX: usize = 64;

/// The position after the valid value at `at`, which nests no deeper than `max_depth`, at most [`MAX_DEPTH`]. The text must
/// be UTF-8.
pub(super) fn validate_value(text: &[u8], mut at: usize, max_depth: u32) -> Option<usize> {
    // Bit stack of the open levels: 1 for an object; the lowest bit is the innermost.
    let (mut objects, mut depth) = (0u128, 0);
    loop {
        // A value starts here.
        match text.get(at)? {
            b'"' => at = validate_string(text, at)?,
            b'-' | b'0'..=b'9' => at = validate_number(text, at)?,
            b't' => at = validate_literal(text, at, b"true")?,
            b'f' => at = validate_literal(text, at, b"false")?,
            b'n' => at = validate_literal(text, at, b"null")?,
            open @ (b'{' | b'[') if depth < max_depth => {
                let is_object = *open == b'{';
                at = skip_space(text, at + 1);
                let close = if is_object { b'}' } else { b']' };
                if *text.get(at)? == close {
                    at += 1;
                } else {
                    (objects, depth) = (objects << 1 | u128::from(is_object), depth + 1);
                    if is_object {
                        at = validate_key(text, at)?;
                    }
                    continue;
                }
            }
            _ => return None,
        }
        // A value has ended.
        loop {
            if depth == 0 {
                return Some(at);
            }
            at = skip_space(text, at);
            let in_object = objects & 1 == 1;
            match (text.get(at)?, in_object) {
                (b',', true) => {
                    at = validate_key(text, skip_space(text, at + 1))?;
                    break;
                }
                (b',', false) => {
                    at = skip_space(text, at + 1);
                    break;
                }
                (b'}', true) | (b']', false) => (objects, depth, at) = (objects >> 1, depth - 1, at + 1),
                _ => return None,
            }
        }
    }
}

/// The position after the valid object at `at`. `validate_member` is given each key with its quotes and where its value
/// begins, and returns the position after the value.
pub(super) fn validate_members(
    text: &[u8],
    at: usize,
    mut validate_member: impl FnMut(Range<usize>, usize) -> Option<usize>,
) -> Option<usize> {
    if *text.get(at)? != b'{' {
        return None;
    }
    let mut at = skip_space(text, at + 1);
    if *text.get(at)? == b'}' {
        return Some(at + 1);
    }
    loop {
        let key = at..validate_string(text, at)?;
        at = skip_space(text, key.end);
        if *text.get(at)? != b':' {
            return None;
        }
        let value = skip_space(text, at + 1);
        at = skip_space(text, validate_member(key, value)?);
        match text.get(at)? {
            b',' => at = skip_space(text, at + 1),
            b'}' => return Some(at + 1),
            _ => return None,
        }
    }
}

/// The position after a key, its colon and white space.
fn validate_key(text: &[u8], at: usize) -> Option<usize> {
    let at = skip_space(text, validate_string(text, at)?);
    (*text.get(at)? == b':').then(|| skip_space(text, at + 1))
}

/// The position after the valid string at `at`.
pub(super) fn validate_string(text: &[u8], at: usize) -> Option<usize> {
    if *text.get(at)? != b'"' {
        return None;
    }
    let mut at = at + 1;
    loop {
        let stop = find_string_stop(text, at)?;
        at = match text[stop] {
            b'"' => return Some(stop + 1),
            b'\\' => match text.get(stop + 1)? {
                b'"' | b'\\' | b'/' | b'b' | b'f' | b'n' | b'r' | b't' => stop + 2,
                b'u' if text.get(stop + 2..stop + 6)?.iter().all(u8::is_ascii_hexdigit) => stop + 6,
                _ => return None,
            },
            _ => return None,
        };
    }
}

/// The first quote, backslash or control character from `at` on.
#[inline]
fn find_string_stop(text: &[u8], begin: usize) -> Option<usize> {
    let mut at = begin;
    while let Some(word) = text.get(at..)?.first_chunk() {
        let stops = mark_string_stops(*word);
        if stops != 0 {
            return Some(at + stops.trailing_zeros() as usize / 8);
        }
        at += 8;
        if at - begin == SWAR_BYTES_MAX {
            return find_far_stop(text, at);
        }
    }
    text[at..].iter().position(|byte| matches!(byte, b'"' | b'\\' | ..b' ')).map(|found| at + found)
}

/// The same in a long string.
fn find_far_stop(text: &[u8], at: usize) -> Option<usize> {
    let far = &text[at..];
    let end = memchr::memchr2(b'"', b'\\', far)?;
    // Test whole chunks for control characters, so that the loop is vectorized.
    let control = far[..end].chunks(256).position(|piece| piece.iter().fold(false, |any, byte| any | (*byte < b' ')));
    let found = match control {
        None => end,
        Some(n) => n * 256 + far[n * 256..end].iter().position(|byte| *byte < b' ')?,
    };
    Some(at + found)
}

/// Sets the high bit of quotes, backslashes and control characters. The lowest mark is exact; higher ones may be false.
const fn mark_string_stops(word: [u8; 8]) -> u64 {
    let word = u64::from_le_bytes(word);
    // Flipping this bit moves the quote to the end of the control characters, and the space out of its place.
    let flipped = word ^ (LOW_BITS * (b'"' ^ b' ') as u64);
    let below = flipped.wrapping_sub(LOW_BITS * (b' ' + 1) as u64) & !flipped & HIGH_BITS;
    below | mark_zero_bytes(word ^ (LOW_BITS * b'\\' as u64))
}

fn validate_literal(text: &[u8], at: usize, word: &[u8]) -> Option<usize> {
    text[at..].starts_with(word).then_some(at + word.len())
}

/// The position after the valid number at `at`.
fn validate_number(text: &[u8], mut at: usize) -> Option<usize> {
    let digits = |mut at: usize| {
        let begin = at;
        while matches!(text.get(at), Some(b'0'..=b'9')) {
            at += 1;
        }
        (at > begin).then_some(at)
    };
    if text[at] == b'-' {
        at += 1;
    }
    at = if text.get(at) == Some(&b'0') { at + 1 } else { digits(at)? };
    if text.get(at) == Some(&b'.') {
        at = digits(at + 1)?;
    }
    if matches!(text.get(at), Some(b'e' | b'E')) {
        let signed = matches!(text.get(at + 1), Some(b'+' | b'-'));
        at = digits(at + 1 + usize::from(signed))?;
    }
    Some(at)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use serde::de::IgnoredAny;

    /// Whether the whole text is one valid value.
    fn is_valid(text: &str) -> bool {
        let text = text.as_bytes();
        validate_value(text, skip_space(text, 0), MAX_DEPTH).is_some_and(|end| skip_space(text, end) == text.len())
    }

    fn check(text: &str) {
        assert_eq!(is_valid(text), serde_json::from_str::<IgnoredAny>(text).is_ok(), "{text:?}");
    }

    #[test]
    fn agrees_with_serde_json() {
        let long = |fill: &str| format!("\"{}{fill}{}\"", "x".repeat(300), "y".repeat(300));
        for text in [
            "",
            " ",
            "{}",
            "[]",
            "[ ]",
            "{ }",
            "{,}",
            "[,]",
            "[1,]",
            "[1,,2]",
            "{\"a\"}",
            "{\"a\":}",
            "{\"a\":1,}",
            "{\"a\":1 \"b\":2}",
            "{\"a\" : [1 , {\"b\":null}] }",
            "{a:1}",
            "{1:1}",
            "[1}",
            "{\"a\":1]",
            "[[]",
            "[]]",
            "true",
            "tru",
            "truex",
            "null",
            "nul",
            "falsee",
            "0",
            "-",
            "-0",
            "01",
            "1.",
            ".1",
            "1.0",
            "1e",
            "1e+",
            "1E-5",
            "+1",
            "--1",
            "1e5.5",
            "0x1",
            "1_0",
            "NaN",
            "\"",
            "\"a",
            "\"a\"b",
            "\"\\\"\"",
            "\"\\x\"",
            "\"\\u12\"",
            "\"\\u12g4\"",
            "\"\\u1234\"",
            "\"\\ud800\"",
            "\"\t\"",
            "\"\n\"",
            "\"\u{7f}\"",
            "\"é氢\"",
            "\"\\\"",
            "'a'",
            "[\"a\",\"b\"",
            "{\"\":{}}",
            "{\"a\":1}x",
            "// c",
            "[1 2]",
            "{\"a\"::1}",
            "\u{feff}1",
            "1 ",
            "\r\n[\t1\r]\n",
        ] {
            check(text);
        }
        for fill in ["", "\\n", "\n", "\\", "\"", "\\u00e9", "\u{1f}", "é", "\u{0}"] {
            check(&long(fill));
        }
        let deep = |depth: usize| format!("{}1{}", "[".repeat(depth), "]".repeat(depth));
        assert!(is_valid(&deep(MAX_DEPTH as usize)));
        assert!(!is_valid(&deep(MAX_DEPTH as usize + 1)), "others look at that");
    }

    proptest! {
        /// Text that is almost JSON.
        #[test]
        fn agrees_with_serde_json_on_near_json(
            parts in prop::collection::vec(prop::sample::select(vec![
                "{", "}", "[", "]", ",", ":", "\"", "\"a\"", "\\", "\\n", "\\u0041", "1", "-", "0", ".", "e", "E+", "true",
                "null", " ", "\n", "\t", "x", "é", "\u{1}", "\"k\":", "[1]", "{\"a\":2}", "12345678", "abcdefghijk",
            ]), 0..24)
        ) {
            check(&parts.concat());
        }

        /// Valid JSON, and the same with one character replaced.
        #[test]
        fn agrees_with_serde_json_on_mutated_json(texts in prop::collection::vec(".{0,80}", 1..5), at in any::<prop::sample::Index>(), other in any::<char>()) {
            let value = serde_json::json!({ "a": texts, "b": { "c": [1.5e3, -7, true, null], "d": {} } });
            let text = value.to_string();
            check(&text);
            let mut changed: Vec<char> = text.chars().collect();
            let at = at.index(changed.len());
            changed[at] = other;
            check(&changed.into_iter().collect::<String>());
        }
    }
}
