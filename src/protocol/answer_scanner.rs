//! Finds the result of one request in a response that arrives in pieces, and checks the response to its end.

use std::fmt;
use std::ops::Range;

use super::Id;
use super::checker::{JsonChecker, JsonFault, Step};

/// A scan of the response to one request.
#[derive(Debug)]
pub struct AnswerScanner {
    checker: JsonChecker,
    /// The id of the request as it is written.
    id: Vec<u8>,
    /// The member of the envelope that is being read.
    member: EnvelopeMember,
    /// The member of the result that is being read.
    result_member: ResultMember,
    has_version: bool,
    has_id: bool,
    result: ResultPlace,
    result_type: ScannedResultType,
    is_error: bool,
}

/// The `resultType` of a result, as far as it was read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ScannedResultType {
    /// It was not there yet.
    Unsaid,
    /// The result is the end of its call.
    Complete,
    /// The result is something else, such as a request for input.
    Other,
}

/// Why a text is not the response to the request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AnswerFault {
    /// It is not JSON.
    NotJson,
    /// It nests too deep.
    TooDeep,
    /// It is another message, or none.
    NotTheAnswer,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum EnvelopeMember {
    Version,
    Id,
    Result,
    Other,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ResultMember {
    ResultType,
    IsError,
    Other,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ResultPlace {
    Awaited,
    Open,
    Ended,
}

impl AnswerScanner {
    /// A scan for the response to request `id`, which may nest `max_depth` deep.
    pub fn new(id: &Id, max_depth: usize) -> Self {
        Self {
            checker: JsonChecker::new(max_depth),
            id: id.to_raw().as_bytes().to_vec(),
            member: EnvelopeMember::Other,
            result_member: ResultMember::Other,
            has_version: false,
            has_id: false,
            result: ResultPlace::Awaited,
            result_type: ScannedResultType::Unsaid,
            is_error: false,
        }
    }

    /// Reads the next piece of the text and returns which part of it belongs to the result.
    ///
    /// # Errors
    /// When the text cannot be the response; nothing more is to be read of it then.
    pub fn scan(&mut self, piece: &[u8]) -> Result<Range<usize>, AnswerFault> {
        self.checker.begin_piece(piece)?;
        let mut at = 0;
        let (mut begin, mut end) = (0, if self.result == ResultPlace::Open { piece.len() } else { 0 });
        loop {
            match self.checker.step(piece, &mut at)? {
                Step::NeedMore => return Ok(begin..end),
                Step::Begin(0) if piece[at - 1] != b'{' => return Err(AnswerFault::NotTheAnswer),
                Step::Key(1) => self.begin_member()?,
                Step::Begin(1) if self.member == EnvelopeMember::Result => {
                    if piece[at - 1] != b'{' {
                        return Err(AnswerFault::NotTheAnswer);
                    }
                    (begin, end, self.result) = (at - 1, piece.len(), ResultPlace::Open);
                }
                Step::End(1) if self.member == EnvelopeMember::Result => {
                    (end, self.result) = (at, ResultPlace::Ended);
                }
                Step::End(1) => self.end_member()?,
                Step::Key(2) if self.member == EnvelopeMember::Result => self.begin_result_member()?,
                Step::End(2) if self.member == EnvelopeMember::Result => self.end_result_member(),
                _ => {}
            }
        }
    }

    /// Whether the text is the response to the request as far as it was read, and its result has begun.
    pub fn is_answer(&self) -> bool {
        self.has_id && self.result != ResultPlace::Awaited
    }

    /// Whether the whole response was read.
    pub fn is_complete(&self) -> bool {
        self.checker.is_done() && self.has_version && self.has_id && self.result == ResultPlace::Ended
    }

    /// The `resultType` of the result.
    pub fn result_type(&self) -> ScannedResultType {
        self.result_type
    }

    /// Whether the result says `isError`.
    pub fn is_error(&self) -> bool {
        self.is_error
    }

    /// A key of the envelope. JSON-RPC's own members stand there once, and a response with a result has no error.
    fn begin_member(&mut self) -> Result<(), AnswerFault> {
        let (member, is_repeated) = match self.checker.text() {
            b"\"jsonrpc\"" => (EnvelopeMember::Version, self.has_version),
            b"\"id\"" => (EnvelopeMember::Id, self.has_id),
            b"\"result\"" => (EnvelopeMember::Result, self.result != ResultPlace::Awaited),
            b"\"error\"" | b"\"method\"" => return Err(AnswerFault::NotTheAnswer),
            // An escaped key may be any of these.
            key => (EnvelopeMember::Other, key.contains(&b'\\')),
        };
        self.member = member;
        if is_repeated { Err(AnswerFault::NotTheAnswer) } else { Ok(()) }
    }

    fn end_member(&mut self) -> Result<(), AnswerFault> {
        let text = self.checker.text();
        let is_right = match self.member {
            EnvelopeMember::Version => text == b"\"2.0\"",
            EnvelopeMember::Id => text == self.id,
            EnvelopeMember::Result | EnvelopeMember::Other => return Ok(()),
        };
        self.has_version |= self.member == EnvelopeMember::Version;
        self.has_id |= self.member == EnvelopeMember::Id;
        if is_right { Ok(()) } else { Err(AnswerFault::NotTheAnswer) }
    }

    fn begin_result_member(&mut self) -> Result<(), AnswerFault> {
        self.result_member = match self.checker.text() {
            b"\"resultType\"" if self.result_type != ScannedResultType::Unsaid => {
                return Err(AnswerFault::NotTheAnswer);
            }
            b"\"resultType\"" => ResultMember::ResultType,
            b"\"isError\"" => ResultMember::IsError,
            _ => ResultMember::Other,
        };
        Ok(())
    }

    fn end_result_member(&mut self) {
        match (self.result_member, self.checker.text()) {
            (ResultMember::ResultType, b"\"complete\"") => self.result_type = ScannedResultType::Complete,
            (ResultMember::ResultType, _) => self.result_type = ScannedResultType::Other,
            (ResultMember::IsError, text) => self.is_error = text == b"true",
            (ResultMember::Other, _) => {}
        }
    }
}

impl From<JsonFault> for AnswerFault {
    fn from(fault: JsonFault) -> Self {
        match fault {
            JsonFault::Malformed => Self::NotJson,
            JsonFault::TooDeep => Self::TooDeep,
        }
    }
}

impl fmt::Display for AnswerFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::NotJson => "the server sent a response that is not JSON",
            Self::TooDeep => "the server sent a response that nests too deep",
            Self::NotTheAnswer => "the server sent something else than the response to the request",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The result that is found in the text cut into pieces of `size`, and the scan.
    fn scan(text: &str, size: usize) -> Result<(String, AnswerScanner), AnswerFault> {
        let mut scanner = AnswerScanner::new(&Id::Number(7), 8);
        let mut result = Vec::new();
        for piece in text.as_bytes().chunks(size) {
            result.extend_from_slice(&piece[scanner.scan(piece)?]);
        }
        Ok((String::from_utf8(result).unwrap(), scanner))
    }

    #[test]
    fn result_is_found_however_the_text_is_cut() {
        for (text, result) in [
            (r#"{"jsonrpc":"2.0","id":7,"result":{"a":[1,"}"]}}"#, r#"{"a":[1,"}"]}"#),
            (" {\"id\" : 7 , \"result\" : { \"é\" : 1 } , \"jsonrpc\":\"2.0\", \"x\":[{}] }\n", "{ \"é\" : 1 }"),
            (r#"{"jsonrpc":"2.0","id":7,"result":{}}"#, "{}"),
        ] {
            for size in 1..=text.len() {
                let (found, scanner) = scan(text, size).unwrap();
                assert_eq!(found, result, "{text} by {size}");
                assert!(scanner.is_answer() && scanner.is_complete(), "{text} by {size}");
            }
        }
    }

    #[test]
    fn anything_but_the_response_is_refused() {
        for (text, fault) in [
            (r#"{"jsonrpc":"2.0","id":8,"result":{}}"#, AnswerFault::NotTheAnswer),
            (r#"{"jsonrpc":"2.0","id":"7","result":{}}"#, AnswerFault::NotTheAnswer),
            (r#"{"jsonrpc":"2.0","id":[7],"result":{}}"#, AnswerFault::NotTheAnswer),
            (r#"{"jsonrpc":"2.1","id":7,"result":{}}"#, AnswerFault::NotTheAnswer),
            (r#"{"jsonrpc":"2.0","id":7,"result":[]}"#, AnswerFault::NotTheAnswer),
            (r#"{"jsonrpc":"2.0","id":7,"result":{},"result":{}}"#, AnswerFault::NotTheAnswer),
            (r#"{"jsonrpc":"2.0","id":7,"result":{},"id":7}"#, AnswerFault::NotTheAnswer),
            (r#"{"jsonrpc":"2.0","id":7,"result":{},"error":{}}"#, AnswerFault::NotTheAnswer),
            (r#"{"jsonrpc":"2.0","id":7,"result":{},"err\u006fr":{}}"#, AnswerFault::NotTheAnswer),
            (r#"{"id":7,"result":{"resultType":"complete","resultType":"x"}}"#, AnswerFault::NotTheAnswer),
            (r#"[{"jsonrpc":"2.0","id":7,"result":{}}]"#, AnswerFault::NotTheAnswer),
            (r#"{"jsonrpc":"2.0","id":7,"result":{}}{}"#, AnswerFault::NotJson),
            (r#"{"jsonrpc":"2.0","id":7,"result":{]}"#, AnswerFault::NotJson),
            (r#"{"jsonrpc":"2.0","id":7,"result":{"a":[[[[[[[]]]]]]]}}"#, AnswerFault::TooDeep),
        ] {
            for size in 1..=text.len() {
                assert_eq!(scan(text, size).map(|(found, _)| found), Err(fault), "{text} by {size}");
            }
        }
    }

    #[test]
    fn response_is_complete_only_with_all_it_needs() {
        for text in [
            r#"{"jsonrpc":"2.0","id":7,"result":{"a":1}"#,
            r#"{"jsonrpc":"2.0","id":7,"result":{"a":"#,
            r#"{"id":7,"result":{"a":1}}"#,
            r#"{"jsonrpc":"2.0","result":{"a":1}}"#,
            r#"{"jsonrpc":"2.0","id":7}"#,
        ] {
            let (_, scanner) = scan(text, 5).unwrap();
            assert!(!scanner.is_complete(), "{text}");
        }
        assert!(!scan(r#"{"jsonrpc":"2.0","result":{"a":1},"id":7"#, 20).unwrap().1.is_complete());
    }

    #[test]
    fn only_members_of_the_result_itself_describe_it() {
        for (result, result_type, is_error) in [
            (r#"{"resultType":"complete","isError":true}"#, ScannedResultType::Complete, true),
            (r#"{"isError":false,"resultType":"input_required"}"#, ScannedResultType::Other, false),
            (r#"{"a":{"resultType":"complete","isError":true}}"#, ScannedResultType::Unsaid, false),
            (r#"{"resultType":["complete"],"isError":"true"}"#, ScannedResultType::Other, false),
            (r#"{"content":[{"isError":true},"isError",true]}"#, ScannedResultType::Unsaid, false),
        ] {
            let text = format!(r#"{{"jsonrpc":"2.0","x":{{"resultType":"complete"}},"id":7,"result":{result}}}"#);
            for size in [1, 3, 1000] {
                let (_, scanner) = scan(&text, size).unwrap();
                assert_eq!((scanner.result_type(), scanner.is_error()), (result_type, is_error), "{result}");
            }
        }
    }
}
