//! Scans valid JSON text for the ends of strings and values.

/// The first position after white space.
pub(super) fn skip_space(text: &[u8], mut at: usize) -> usize {
    while matches!(text.get(at), Some(b' ' | b'\t' | b'\n' | b'\r')) {
        at += 1;
    }
    at
}

/// The position after the string at `at`, and whether it has an escape.
pub(super) fn skip_string(text: &[u8], at: usize) -> (usize, bool) {
    let mut at = at + 1;
    let mut escaped = false;
    while let Some(found) = find_quote_or_backslash(text, at) {
        if text[found] == b'"' {
            return (found + 1, escaped);
        }
        escaped = true;
        at = found + 2;
    }
    (text.len(), escaped)
}

/// Eight-byte words searched with SWAR before `memchr` takes over, which is faster on long strings only.
const SWAR_WORDS_MAX: usize = 6;
/// The lowest bit of each byte.
pub(super) const LOW_BITS: u64 = u64::from_le_bytes([1; 8]);
/// The highest bit of each byte.
pub(super) const HIGH_BITS: u64 = LOW_BITS << 7;

/// The first quote or backslash from `at` on. Optimized for short strings.
fn find_quote_or_backslash(text: &[u8], at: usize) -> Option<usize> {
    let rest = text.get(at..)?;
    let (words, _) = rest.as_chunks::<8>();
    let near = words.len().min(SWAR_WORDS_MAX);
    for (n, word) in words[..near].iter().enumerate() {
        let word = u64::from_le_bytes(*word);
        let found =
            mark_zero_bytes(word ^ (LOW_BITS * b'"' as u64)) | mark_zero_bytes(word ^ (LOW_BITS * b'\\' as u64));
        if found != 0 {
            return Some(at + n * 8 + found.trailing_zeros() as usize / 8);
        }
    }
    let far = near * 8;
    memchr::memchr2(b'"', b'\\', &rest[far..]).map(|found| at + far + found)
}

/// Sets the high bit of zero bytes. The lowest mark is exact; higher ones may be false.
pub(super) const fn mark_zero_bytes(word: u64) -> u64 {
    word.wrapping_sub(LOW_BITS) & !word & HIGH_BITS
}

/// The position after the value at `at`.
pub(super) fn skip_value(text: &[u8], mut at: usize) -> usize {
    match text.get(at) {
        Some(b'"') => return skip_string(text, at).0,
        Some(b'{' | b'[') => {}
        _ => {
            while let Some(byte) = text.get(at) {
                if matches!(byte, b',' | b'}' | b']' | b' ' | b'\t' | b'\n' | b'\r') {
                    break;
                }
                at += 1;
            }
            return at;
        }
    }
    let mut depth = 0usize;
    while let Some(byte) = text.get(at) {
        match byte {
            b'"' => {
                at = skip_string(text, at).0;
                continue;
            }
            b'{' | b'[' => depth += 1,
            b'}' | b']' => depth -= 1,
            _ => {}
        }
        at += 1;
        if depth == 0 {
            break;
        }
    }
    at
}

/// Whether `text` nests arrays and objects no deeper than `limit`. Counts brackets outside strings only, so
/// the text need not be validated first.
pub fn depth_within(text: &[u8], limit: usize) -> bool {
    // Most texts have fewer brackets than the limit in total.
    if memchr::memchr2_iter(b'{', b'[', text).nth(limit).is_none() {
        return true;
    }
    let mut depth = 0usize;
    let mut at = 0;
    while let Some(byte) = text.get(at) {
        match byte {
            b'"' => {
                at = skip_string(text, at).0;
                continue;
            }
            b'{' | b'[' => {
                depth += 1;
                if depth > limit {
                    return false;
                }
            }
            b'}' | b']' => depth = depth.saturating_sub(1),
            _ => {}
        }
        at += 1;
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// Finds the first quote or backslash at any position.
        #[test]
        fn first_quote_or_backslash_is_found(text in prop::collection::vec(prop_oneof![9 => any::<u8>(), 1 => Just(b'"'), 1 => Just(b'\\')], 0..120), at in 0usize..20) {
            let expected = text.get(at..).and_then(|rest| rest.iter().position(|byte| matches!(byte, b'"' | b'\\')));
            prop_assert_eq!(find_quote_or_backslash(&text, at), expected.map(|found| found + at));
        }
    }
}
