//! Finds the ends of things in JSON text, byte by byte or faster.

/// Past white space.
pub(super) fn skip_space(text: &[u8], mut at: usize) -> usize {
    while matches!(text.get(at), Some(b' ' | b'\t' | b'\n' | b'\r')) {
        at += 1;
    }
    at
}

/// Past the string that begins at `at`, and whether there is an escape in it.
pub(super) fn skip_string(text: &[u8], at: usize) -> (usize, bool) {
    let mut at = at + 1;
    let mut escaped = false;
    while let Some(found) = stop(text, at) {
        if text[found] == b'"' {
            return (found + 1, escaped);
        }
        escaped = true;
        at = found + 2;
    }
    (text.len(), escaped)
}

/// How many times eight bytes are looked at here before others, who are faster once they have begun,
/// are asked to.
const NEAR: usize = 6;
/// The lowest bit of each byte.
pub(super) const ONES: u64 = u64::from_le_bytes([1; 8]);
/// The highest bit of each byte.
pub(super) const TOPS: u64 = ONES << 7;

/// The first quote or backslash from `at` on. Most strings are short.
fn stop(text: &[u8], at: usize) -> Option<usize> {
    let rest = text.get(at..)?;
    let (words, _) = rest.as_chunks::<8>();
    let near = words.len().min(NEAR);
    for (n, word) in words[..near].iter().enumerate() {
        let word = u64::from_le_bytes(*word);
        let found = zeros(word ^ (ONES * b'"' as u64)) | zeros(word ^ (ONES * b'\\' as u64));
        if found != 0 {
            return Some(at + n * 8 + found.trailing_zeros() as usize / 8);
        }
    }
    let far = near * 8;
    memchr::memchr2(b'"', b'\\', &rest[far..]).map(|found| at + far + found)
}

/// Marks the bytes that are zero. The lowest mark is right; one above it may be too many.
pub(super) const fn zeros(word: u64) -> u64 {
    word.wrapping_sub(ONES) & !word & TOPS
}

/// Past the value that begins at `at`.
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

/// Whether `text` nests arrays and objects no deeper than `limit`. Looks at brackets outside
/// strings only, so it may be asked before the text is known to be valid.
pub fn depth_within(text: &[u8], limit: usize) -> bool {
    // Most texts have not even so many brackets.
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
        /// Wherever a quote or a backslash stands, the first is found.
        #[test]
        fn strings_end_where_they_end(text in prop::collection::vec(prop_oneof![9 => any::<u8>(), 1 => Just(b'"'), 1 => Just(b'\\')], 0..120), at in 0usize..20) {
            let expected = text.get(at..).and_then(|rest| rest.iter().position(|byte| matches!(byte, b'"' | b'\\')));
            prop_assert_eq!(stop(&text, at), expected.map(|found| found + at));
        }
    }
}
