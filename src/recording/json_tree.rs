//! JSON as places in its text: what is shown keeps every other byte, and numbers are never read.

use std::ops::Range;

/// A value and where it is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct JsonNode {
    /// Its bytes in the text.
    pub span: Range<usize>,
    /// What it is.
    pub kind: JsonKind,
}

/// What a value is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum JsonKind {
    /// Members in their order; the key is decoded.
    Object(Vec<(String, JsonNode)>),
    /// Items.
    Array(Vec<JsonNode>),
    /// A string.
    Text,
    /// A number.
    Number,
    /// `true`, `false` or `null`.
    Literal,
}

/// Deepest nesting that is looked into.
const MAX_DEPTH: usize = 200;

struct Parser<'t> {
    text: &'t str,
    at: usize,
    /// Whether the text may end anywhere.
    is_beginning: bool,
}

impl JsonNode {
    /// Reads a text; `None` if it is no JSON, or too deep.
    pub(super) fn parse(text: &str) -> Option<Self> {
        Self::read(text, false)
    }

    /// Reads the beginning of a JSON text: what is open at its end is closed there, and a member that has no value yet
    /// is left out.
    pub(super) fn parse_beginning(text: &str) -> Option<Self> {
        Self::read(text, true)
    }

    fn read(text: &str, is_beginning: bool) -> Option<Self> {
        let mut parser = Parser { text, at: 0, is_beginning };
        parser.skip_space();
        let node = parser.value(0)?;
        parser.skip_space();
        (parser.at == text.len()).then_some(node)
    }

    /// The members of an object.
    pub(super) fn members(&self) -> &[(String, Self)] {
        if let JsonKind::Object(members) = &self.kind { members } else { &[] }
    }

    /// A member of an object.
    pub(super) fn get(&self, key: &str) -> Option<&Self> {
        self.members().iter().find(|(name, _)| name == key).map(|(_, node)| node)
    }

    /// The content of a string.
    pub(super) fn text_in(&self, text: &str) -> Option<String> {
        if self.kind != JsonKind::Text {
            return None;
        }
        serde_json::from_str(&text[self.span.clone()]).ok()
    }
}

/// A pointer with one more step.
pub(super) fn step(pointer: &str, key: &str) -> String {
    format!("{pointer}/{}", key.replace('~', "~0").replace('/', "~1"))
}

impl Parser<'_> {
    fn peek(&self) -> Option<u8> {
        self.text.as_bytes().get(self.at).copied()
    }

    fn skip_space(&mut self) {
        while matches!(self.peek(), Some(b' ' | b'\t' | b'\n' | b'\r')) {
            self.at += 1;
        }
    }

    /// Whether a beginning ends here.
    fn is_at_end(&self) -> bool {
        self.is_beginning && self.at >= self.text.len()
    }

    fn expect(&mut self, byte: u8) -> Option<()> {
        (self.peek()? == byte).then(|| self.at += 1)
    }

    fn value(&mut self, depth: usize) -> Option<JsonNode> {
        if depth > MAX_DEPTH {
            return None;
        }
        let start = self.at;
        let kind = match self.peek()? {
            b'{' => self.object(depth)?,
            b'[' => self.array(depth)?,
            b'"' => {
                self.string()?;
                JsonKind::Text
            }
            b'-' | b'0'..=b'9' => {
                self.skip_while(|byte| matches!(byte, b'-' | b'+' | b'.' | b'e' | b'E' | b'0'..=b'9'));
                JsonKind::Number
            }
            _ => {
                self.skip_while(|byte| byte.is_ascii_alphabetic());
                let word = &self.text[start..self.at];
                let is_begun = !word.is_empty() && self.is_at_end();
                let is_known = |known: &str| word == known || is_begun && known.starts_with(word);
                ["true", "false", "null"].into_iter().any(is_known).then_some(JsonKind::Literal)?
            }
        };
        Some(JsonNode { span: start..self.at, kind })
    }

    fn skip_while(&mut self, fits: impl Fn(u8) -> bool) {
        while self.peek().is_some_and(&fits) {
            self.at += 1;
        }
    }

    /// Skips a string; returns where it is, with its quotes.
    fn string(&mut self) -> Option<Range<usize>> {
        let start = self.at;
        self.expect(b'"')?;
        loop {
            match self.peek() {
                None if self.is_beginning => {
                    self.at = self.text.len();
                    return Some(start..self.at);
                }
                None => return None,
                Some(b'"') => break,
                Some(b'\\') => self.at += 2,
                Some(_) => self.at += 1,
            }
        }
        self.at += 1;
        Some(start..self.at)
    }

    fn object(&mut self, depth: usize) -> Option<JsonKind> {
        let mut members = Vec::new();
        self.at += 1;
        self.skip_space();
        if self.expect(b'}').is_some() {
            return Some(JsonKind::Object(members));
        }
        loop {
            self.skip_space();
            if self.is_at_end() {
                return Some(JsonKind::Object(members));
            }
            let key = self.string()?;
            self.skip_space();
            if self.is_at_end() {
                return Some(JsonKind::Object(members));
            }
            let key = serde_json::from_str(self.text.get(key)?).ok()?;
            self.expect(b':')?;
            self.skip_space();
            if self.is_at_end() {
                return Some(JsonKind::Object(members));
            }
            members.push((key, self.value(depth + 1)?));
            self.skip_space();
            if self.expect(b'}').is_some() || self.is_at_end() {
                return Some(JsonKind::Object(members));
            }
            self.expect(b',')?;
        }
    }

    fn array(&mut self, depth: usize) -> Option<JsonKind> {
        let mut items = Vec::new();
        self.at += 1;
        self.skip_space();
        if self.expect(b']').is_some() {
            return Some(JsonKind::Array(items));
        }
        loop {
            self.skip_space();
            if self.is_at_end() {
                return Some(JsonKind::Array(items));
            }
            items.push(self.value(depth + 1)?);
            self.skip_space();
            if self.expect(b']').is_some() || self.is_at_end() {
                return Some(JsonKind::Array(items));
            }
            self.expect(b',')?;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_found_where_they_are() {
        let text = r#" {"a": [1.0, 12345678901234567890, "x\"y"], "b/c": {"d": null}} "#;
        let node = JsonNode::parse(text).unwrap();
        let spans = |node: &JsonNode| text[node.span.clone()].to_owned();
        let JsonKind::Array(items) = &node.get("a").unwrap().kind else { panic!() };
        assert_eq!(items.iter().map(spans).collect::<Vec<_>>(), ["1.0", "12345678901234567890", r#""x\"y""#]);
        assert_eq!(items[2].text_in(text).as_deref(), Some("x\"y"));
        assert_eq!(spans(node.get("b/c").unwrap().get("d").unwrap()), "null");
        assert_eq!(step("/a", "b/c~"), "/a/b~1c~0");
    }

    #[test]
    fn beginnings_are_read_wherever_they_end() {
        let text = r#"{"a": [1.5, "x\"y", {"b": true}], "c": {"d\u00e9": "e", "f": [[]]}}"#;
        for end in 1..=text.len() {
            let node = JsonNode::parse_beginning(&text[..end]);
            assert!(node.is_some_and(|node| node.span == (0..end)), "{}", &text[..end]);
        }
        let begun = JsonNode::parse_beginning(r#"{"a": {"b": "cd"#).unwrap();
        assert_eq!(begun.get("a").unwrap().get("b").unwrap().span, 12..15);
        for wrong in ["", "x", "{x", "[1,]", "{\"a\" 1"] {
            assert_eq!(JsonNode::parse_beginning(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn what_is_no_json_is_none() {
        let deep = "[".repeat(10_000);
        for text in ["", "{", "{\"a\"}", "[1,]", "nul", "\"", "\"\\", "{} x", "é", &deep] {
            assert_eq!(JsonNode::parse(text), None, "{text:.20}");
        }
    }
}
