//! The id of a message that is too long to be kept, found while its text passes by.

/// What is known of the id of a message whose text was skipped.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SkippedId {
    /// The JSON text of the member `id`.
    Found(Vec<u8>),
    /// The message has no id, or the text was no message: no request waits for it.
    Absent,
    /// The text is a batch, or ended in the middle.
    Unknown,
}

/// Scans the text of one JSON object for its member `id`, at any position. Keeps a few bytes only.
#[derive(Debug, Default)]
pub struct IdScanner {
    /// The first byte that is no white space.
    first: Option<u8>,
    depth: usize,
    in_string: bool,
    after_backslash: bool,
    /// The value of a member follows, not its key.
    in_value: bool,
    is_id: bool,
    /// The key, or the value of `id`, as far as it was read.
    token: Vec<u8>,
    id: Option<Vec<u8>>,
    is_complete: bool,
}

/// Longest id that is found.
const MAX_ID_BYTES: usize = 256;

impl IdScanner {
    /// Scans the next part of the text.
    pub fn push(&mut self, part: &[u8]) {
        let part = if self.first.is_none() { part.trim_ascii_start() } else { part };
        let Some(begin) = part.first() else { return };
        if *self.first.get_or_insert(*begin) == b'{' && !self.is_complete {
            part.iter().for_each(|byte| self.scan(*byte));
        }
    }

    /// What was found, at the end of the text.
    pub fn finish(self) -> SkippedId {
        match (self.id, self.first) {
            (Some(id), _) => SkippedId::Found(id),
            (None, Some(b'{')) if !self.is_complete => SkippedId::Unknown,
            (None, Some(b'[')) => SkippedId::Unknown,
            _ => SkippedId::Absent,
        }
    }

    fn scan(&mut self, byte: u8) {
        if self.in_string {
            self.keep(byte);
            match byte {
                _ if self.after_backslash => self.after_backslash = false,
                b'\\' => self.after_backslash = true,
                b'"' => self.in_string = false,
                _ => {}
            }
            return;
        }
        match byte {
            b'"' => {
                self.in_string = true;
                self.keep(byte);
            }
            b'{' | b'[' => self.depth += 1,
            b'}' | b']' => {
                self.end_member();
                self.depth = self.depth.saturating_sub(1);
                self.is_complete = self.depth == 0;
            }
            b',' => self.end_member(),
            b':' if self.depth == 1 && !self.in_value => {
                (self.in_value, self.is_id) = (true, self.token == b"\"id\"");
                self.token.clear();
            }
            b' ' | b'\t' | b'\r' | b'\n' => {}
            _ => self.keep(byte),
        }
    }

    /// Keeps a byte of a key or of the id.
    fn keep(&mut self, byte: u8) {
        if self.depth == 1 && (!self.in_value || self.is_id) && self.token.len() <= MAX_ID_BYTES {
            self.token.push(byte);
        }
    }

    fn end_member(&mut self) {
        if self.depth != 1 {
            return;
        }
        let token = std::mem::take(&mut self.token);
        if self.is_id && self.in_value && token.len() <= MAX_ID_BYTES {
            self.id = Some(token);
        }
        (self.in_value, self.is_id) = (false, false);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use serde_json::json;

    fn scan(text: &str, parts: usize) -> SkippedId {
        let mut scanner = IdScanner::default();
        text.as_bytes().chunks(parts).for_each(|part| scanner.push(part));
        scanner.finish()
    }

    #[test]
    fn the_id_is_found_at_any_position() {
        let found = |id: &str| SkippedId::Found(id.as_bytes().to_vec());
        for (text, expected) in [
            (r#" {"jsonrpc":"2.0","id":7,"result":{"id":8}}"#, found("7")),
            (r#"{"result":{"id":8,"a":[{"id":9}]},"jsonrpc":"2.0","id" : "a,}\" b"}"#, found(r#""a,}\" b""#)),
            (r#"{"result":"\"id\":5","id":-3 }"#, found("-3")),
            (r#"{"method":"notifications/message","params":{"id":1}}"#, SkippedId::Absent),
            (r#"{"id":7"#, SkippedId::Unknown),
            (r#"{"result":"{\"id\":1"#, SkippedId::Unknown),
            (r#"[{"id":7}]"#, SkippedId::Unknown),
            ("xxxx", SkippedId::Absent),
        ] {
            for parts in [1, 2, 5, 1000] {
                assert_eq!(scan(text, parts), expected, "{text} in parts of {parts}");
            }
        }
    }

    proptest! {
        #[test]
        fn every_id_is_found(id in any::<i64>(), text in any::<String>(), before: bool, parts in 1usize..20) {
            let result = json!({ "id": text, text.clone(): [{ "id": 1 }, text] });
            let message = match before {
                true => format!(r#"{{"id":{id},"result":{result}}}"#),
                false => format!(r#"{{"result":{result},"id":{id}}}"#),
            };
            prop_assert_eq!(scan(&message, parts), SkippedId::Found(id.to_string().into_bytes()));
        }
    }
}
