//! Checks JSON that arrives in pieces. Nothing is kept of it but the beginning of the value that is being read.

use super::scan::skip_space;

/// A check of one JSON value, as far as it has come.
#[derive(Debug)]
pub(super) struct JsonChecker {
    /// The open arrays and objects, the innermost last.
    levels: Vec<Container>,
    max_depth: usize,
    expected: Expected,
    token: Token,
    /// The first bytes of the last key, string, number or word that is not nested deeper than [`WATCHED_DEPTH`].
    text: Vec<u8>,
    /// First bytes of a character whose rest is in the next piece.
    split_character: Vec<u8>,
}

/// What was found. Depths count the arrays and objects around it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Step {
    /// The piece is used up.
    NeedMore,
    /// A key ended.
    Key(usize),
    /// A value begins with the byte before the current position.
    Begin(usize),
    /// A value ended at the current position.
    End(usize),
}

/// Why text is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum JsonFault {
    /// It is not JSON.
    Malformed,
    /// It nests too deep.
    TooDeep,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Container {
    Array,
    Object,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Expected {
    Value,
    ValueOrEnd,
    Key,
    KeyOrEnd,
    Colon,
    CommaOrEnd,
    /// The value has ended; only white space may follow.
    Nothing,
}

/// The key or scalar that is being read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Token {
    None,
    Key(StringEscape),
    String(StringEscape),
    Number(NumberPart),
    /// The rest of `true`, `false` or `null`.
    Word(&'static [u8]),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum StringEscape {
    None,
    Begun,
    /// This many hexadecimal digits are missing.
    Digits(u8),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum NumberPart {
    Minus,
    Zero,
    Integer,
    Point,
    Fraction,
    Exponent,
    ExponentSign,
    ExponentDigits,
}

/// Steps are reported, and texts kept, of what at most this many arrays and objects surround.
const WATCHED_DEPTH: usize = 2;
/// Bytes that are kept of a text.
const MAX_KEPT_TEXT: usize = 64;

impl JsonChecker {
    /// A check of a value that may nest `max_depth` deep.
    pub(super) fn new(max_depth: usize) -> Self {
        Self {
            levels: Vec::new(),
            max_depth,
            expected: Expected::Value,
            token: Token::None,
            text: Vec::new(),
            split_character: Vec::new(),
        }
    }

    /// The text of the key, string, number or word that ended last, as it is written; empty for an array or object.
    /// Longer texts are cut.
    pub(super) fn text(&self) -> &[u8] {
        &self.text
    }

    /// Whether the value is complete.
    pub(super) fn is_done(&self) -> bool {
        let is_ended = match self.token {
            Token::None => self.expected == Expected::Nothing,
            // Only the end of the text ends a number that nothing surrounds.
            Token::Number(part) => self.levels.is_empty() && part.may_end(),
            _ => false,
        };
        is_ended && self.split_character.is_empty()
    }

    /// Checks that the text is UTF-8. To be called once for each piece, before its [steps](Self::step).
    pub(super) fn begin_piece(&mut self, mut piece: &[u8]) -> Result<(), JsonFault> {
        while !self.split_character.is_empty() {
            let Some((first, rest)) = piece.split_first() else { return Ok(()) };
            self.split_character.push(*first);
            piece = rest;
            match std::str::from_utf8(&self.split_character) {
                Ok(_) => self.split_character.clear(),
                Err(error) if error.error_len().is_some() => return Err(JsonFault::Malformed),
                Err(_) => {}
            }
        }
        match std::str::from_utf8(piece) {
            Ok(_) => Ok(()),
            Err(error) if error.error_len().is_some() => Err(JsonFault::Malformed),
            Err(error) => {
                self.split_character.extend_from_slice(&piece[error.valid_up_to()..]);
                Ok(())
            }
        }
    }

    /// Reads on from `at` to the next thing worth telling.
    pub(super) fn step(&mut self, piece: &[u8], at: &mut usize) -> Result<Step, JsonFault> {
        loop {
            let step = match self.token {
                Token::None => self.pass_structure(piece, at)?,
                _ => self.pass_token(piece, at)?,
            };
            match step {
                Some(Step::Key(depth) | Step::Begin(depth) | Step::End(depth)) if depth > WATCHED_DEPTH => {}
                Some(step) => return Ok(step),
                None if *at == piece.len() => return Ok(Step::NeedMore),
                None => {}
            }
        }
    }

    /// Reads one character between keys and scalars.
    fn pass_structure(&mut self, piece: &[u8], at: &mut usize) -> Result<Option<Step>, JsonFault> {
        *at = skip_space(piece, *at);
        let Some(byte) = piece.get(*at).copied() else { return Ok(None) };
        *at += 1;
        let innermost = self.levels.last().copied();
        match (self.expected, byte) {
            (Expected::Value | Expected::ValueOrEnd, b'{' | b'[') => return self.open(byte).map(Some),
            (Expected::ValueOrEnd, b']') | (Expected::KeyOrEnd, b'}') => return Ok(Some(self.close())),
            (Expected::Value | Expected::ValueOrEnd, _) => return self.begin_scalar(byte).map(Some),
            (Expected::Key | Expected::KeyOrEnd, b'"') => {
                self.token = Token::Key(StringEscape::None);
                self.begin_text(byte);
            }
            (Expected::Colon, b':') => self.expected = Expected::Value,
            (Expected::CommaOrEnd, b',') => {
                self.expected = if innermost == Some(Container::Object) { Expected::Key } else { Expected::Value };
            }
            (Expected::CommaOrEnd, b'}') if innermost == Some(Container::Object) => return Ok(Some(self.close())),
            (Expected::CommaOrEnd, b']') if innermost == Some(Container::Array) => return Ok(Some(self.close())),
            _ => return Err(JsonFault::Malformed),
        }
        Ok(None)
    }

    fn open(&mut self, byte: u8) -> Result<Step, JsonFault> {
        let depth = self.levels.len();
        if depth == self.max_depth {
            return Err(JsonFault::TooDeep);
        }
        let (level, expected) = match byte {
            b'{' => (Container::Object, Expected::KeyOrEnd),
            _ => (Container::Array, Expected::ValueOrEnd),
        };
        self.levels.push(level);
        self.expected = expected;
        Ok(Step::Begin(depth))
    }

    fn close(&mut self) -> Step {
        self.levels.pop();
        self.text.clear();
        self.end_value()
    }

    fn end_value(&mut self) -> Step {
        self.token = Token::None;
        self.expected = if self.levels.is_empty() { Expected::Nothing } else { Expected::CommaOrEnd };
        Step::End(self.levels.len())
    }

    fn begin_scalar(&mut self, byte: u8) -> Result<Step, JsonFault> {
        self.token = match byte {
            b'"' => Token::String(StringEscape::None),
            b'-' => Token::Number(NumberPart::Minus),
            b'0' => Token::Number(NumberPart::Zero),
            b'1'..=b'9' => Token::Number(NumberPart::Integer),
            b't' => Token::Word(b"rue"),
            b'f' => Token::Word(b"alse"),
            b'n' => Token::Word(b"ull"),
            _ => return Err(JsonFault::Malformed),
        };
        self.begin_text(byte);
        Ok(Step::Begin(self.levels.len()))
    }

    fn begin_text(&mut self, byte: u8) {
        self.text.clear();
        self.keep_text(&[byte]);
    }

    fn keep_text(&mut self, bytes: &[u8]) {
        if self.levels.len() <= WATCHED_DEPTH {
            let room = MAX_KEPT_TEXT - self.text.len();
            self.text.extend_from_slice(&bytes[..bytes.len().min(room)]);
        }
    }

    /// Reads on in a key or scalar.
    fn pass_token(&mut self, piece: &[u8], at: &mut usize) -> Result<Option<Step>, JsonFault> {
        match self.token {
            Token::Key(escape) => Ok(match self.pass_string(piece, at, escape)? {
                None => {
                    (self.token, self.expected) = (Token::None, Expected::Colon);
                    Some(Step::Key(self.levels.len()))
                }
                Some(escape) => {
                    self.token = Token::Key(escape);
                    None
                }
            }),
            Token::String(escape) => Ok(match self.pass_string(piece, at, escape)? {
                None => Some(self.end_value()),
                Some(escape) => {
                    self.token = Token::String(escape);
                    None
                }
            }),
            Token::Number(part) => self.pass_number(piece, at, part),
            Token::Word(rest) => {
                let count = rest.len().min(piece.len() - *at);
                let (found, missing) = (&piece[*at..*at + count], &rest[count..]);
                if found != &rest[..count] {
                    return Err(JsonFault::Malformed);
                }
                self.keep_text(found);
                *at += count;
                self.token = Token::Word(missing);
                Ok(missing.is_empty().then(|| self.end_value()))
            }
            Token::None => Ok(None),
        }
    }

    /// Reads on in a string: `None` when it has ended, or where in an escape it goes on.
    fn pass_string(
        &mut self,
        piece: &[u8],
        at: &mut usize,
        mut escape: StringEscape,
    ) -> Result<Option<StringEscape>, JsonFault> {
        while let Some(byte) = piece.get(*at).copied() {
            if escape == StringEscape::None {
                let rest = &piece[*at..];
                let run = &rest[..memchr::memchr2(b'"', b'\\', rest).unwrap_or(rest.len())];
                // Without an early exit, so that the loop is vectorized.
                if run.iter().fold(false, |any, byte| any | (*byte < b' ')) {
                    return Err(JsonFault::Malformed);
                }
                let end = rest.get(run.len()).copied();
                self.keep_text(&rest[..run.len() + usize::from(end.is_some())]);
                *at += run.len() + usize::from(end.is_some());
                match end {
                    Some(b'"') => return Ok(None),
                    Some(_) => escape = StringEscape::Begun,
                    None => {}
                }
                continue;
            }
            escape = match (escape, byte) {
                (StringEscape::Begun, b'"' | b'\\' | b'/' | b'b' | b'f' | b'n' | b'r' | b't') => StringEscape::None,
                (StringEscape::Begun, b'u') => StringEscape::Digits(4),
                (StringEscape::Digits(1), b'0'..=b'9' | b'a'..=b'f' | b'A'..=b'F') => StringEscape::None,
                (StringEscape::Digits(left), b'0'..=b'9' | b'a'..=b'f' | b'A'..=b'F') => StringEscape::Digits(left - 1),
                _ => return Err(JsonFault::Malformed),
            };
            self.keep_text(&[byte]);
            *at += 1;
        }
        Ok(Some(escape))
    }

    fn pass_number(&mut self, piece: &[u8], at: &mut usize, mut part: NumberPart) -> Result<Option<Step>, JsonFault> {
        while let Some(byte) = piece.get(*at).copied() {
            match part.next(byte) {
                Some(next) => part = next,
                None if part.may_end() => return Ok(Some(self.end_value())),
                None => return Err(JsonFault::Malformed),
            }
            self.keep_text(&[byte]);
            *at += 1;
        }
        self.token = Token::Number(part);
        Ok(None)
    }
}

impl NumberPart {
    /// The part that the next byte belongs to; `None` when it does not belong to the number.
    fn next(self, byte: u8) -> Option<Self> {
        Some(match (self, byte) {
            (Self::Minus, b'0') => Self::Zero,
            (Self::Minus, b'1'..=b'9') | (Self::Integer, b'0'..=b'9') => Self::Integer,
            (Self::Zero | Self::Integer, b'.') => Self::Point,
            (Self::Point | Self::Fraction, b'0'..=b'9') => Self::Fraction,
            (Self::Zero | Self::Integer | Self::Fraction, b'e' | b'E') => Self::Exponent,
            (Self::Exponent, b'+' | b'-') => Self::ExponentSign,
            (Self::Exponent | Self::ExponentSign | Self::ExponentDigits, b'0'..=b'9') => Self::ExponentDigits,
            _ => return None,
        })
    }

    fn may_end(self) -> bool {
        matches!(self, Self::Zero | Self::Integer | Self::Fraction | Self::ExponentDigits)
    }
}

#[cfg(test)]
mod tests {
    use super::super::scan::depth_within;
    use super::super::valid::{MAX_DEPTH, validate_value};
    use super::*;
    use proptest::prelude::*;

    const LIMIT: usize = 5;

    /// Whether the pieces are one value together.
    fn accepts<'p>(pieces: impl IntoIterator<Item = &'p [u8]>) -> bool {
        let mut checker = JsonChecker::new(LIMIT);
        for piece in pieces {
            let mut at = 0;
            if checker.begin_piece(piece).is_err() {
                return false;
            }
            loop {
                match checker.step(piece, &mut at) {
                    Ok(Step::NeedMore) => break,
                    Ok(_) => {}
                    Err(_) => return false,
                }
            }
        }
        checker.is_done()
    }

    /// What the validator of whole texts says.
    fn is_valid(text: &[u8]) -> bool {
        let end = validate_value(text, skip_space(text, 0), MAX_DEPTH);
        let is_whole = end.is_some_and(|end| skip_space(text, end) == text.len());
        is_whole && depth_within(text, LIMIT) && std::str::from_utf8(text).is_ok()
    }

    fn check(text: &[u8]) {
        let expected = is_valid(text);
        for split in 0..=text.len() {
            let (first, second) = text.split_at(split);
            assert_eq!(accepts([first, second]), expected, "{:?} split at {split}", String::from_utf8_lossy(text));
        }
        assert_eq!(accepts(text.chunks(1)), expected, "{:?} byte by byte", String::from_utf8_lossy(text));
    }

    #[test]
    fn agrees_with_the_validator_of_whole_texts() {
        for text in [
            "",
            " ",
            "{}",
            "[ ]",
            "{,}",
            "[1,]",
            "{\"a\"}",
            "{\"a\":1,}",
            "{\"a\" : [1 , {\"b\":null}] }",
            "[1}",
            "[]]",
            "true",
            "tru",
            "truex",
            "-",
            "-0",
            "01",
            "1.",
            "1.0",
            "1e",
            "1e+",
            "1E-5",
            "+1",
            "\"",
            "\"a\"b",
            "\"\\x\"",
            "\"\\u12\"",
            "\"\\u12g4\"",
            "\"\\u1234\"",
            "\"\t\"",
            "\"é氢\"",
            "\u{feff}1",
            "[[[[[]]]]]",
            "[[[[[[]]]]]]",
            "[1 2]",
            "{\"a\"::1}",
            "\r\n[\t1\r]\n",
            "\"\u{1f600}\"",
            "1 ",
            "é",
            "[\"\",\"\\\\\"]",
        ] {
            check(text.as_bytes());
        }
        check(b"\"\xff\"");
        check(b"\"\xe6\xb0\"");
        check(b"\"\xc3");
    }

    #[test]
    fn steps_tell_keys_and_values_of_the_outer_levels() {
        let text = br#"{"a":1,"b":{"c":[true,{"d":"x"}],"long key that nobody looks for":"y"}}"#;
        let mut checker = JsonChecker::new(9);
        let (mut at, mut told) = (0, Vec::new());
        loop {
            match checker.step(text, &mut at).unwrap() {
                Step::NeedMore => break,
                step => told.push((step, at, String::from_utf8(checker.text().to_vec()).unwrap())),
            }
        }
        let text_of = |step| told.iter().filter(move |(told, ..)| *told == step).map(|(.., text)| text.as_str());
        assert_eq!(text_of(Step::Key(1)).collect::<Vec<_>>(), ["\"a\"", "\"b\""]);
        assert_eq!(text_of(Step::Key(2)).collect::<Vec<_>>(), ["\"c\"", "\"long key that nobody looks for\""]);
        assert_eq!(text_of(Step::End(1)).collect::<Vec<_>>(), ["1", ""]);
        assert_eq!(text_of(Step::End(2)).collect::<Vec<_>>(), ["", "\"y\""]);
        assert!(checker.is_done());
    }

    proptest! {
        /// Text that is almost JSON.
        #[test]
        fn agrees_on_near_json(
            parts in prop::collection::vec(prop::sample::select(vec![
                "{", "}", "[", "]", ",", ":", "\"", "\"a\"", "\\", "\\n", "\\u0041", "1", "-", "0", ".", "e", "E+", "true",
                "null", " ", "\n", "x", "é", "\u{1}", "\"k\":", "[1]", "{\"a\":2}", "12345678", "abcdefghijk",
            ]), 0..16)
        ) {
            check(parts.concat().as_bytes());
        }

        /// Valid JSON, and the same with one byte replaced.
        #[test]
        fn agrees_on_mutated_json(texts in prop::collection::vec(".{0,20}", 1..4), at in any::<prop::sample::Index>(), other in any::<u8>()) {
            let value = serde_json::json!({ "a": texts, "b": { "c": [1.5e3, -7, true, null], "d": {} } });
            let mut text = value.to_string().into_bytes();
            check(&text);
            let at = at.index(text.len());
            text[at] = other;
            check(&text);
        }
    }
}
