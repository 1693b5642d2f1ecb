//! Newline-delimited JSON: one message per line, with a limit on the line length.

use bytes::{Bytes, BytesMut};
use tokio::io::{AsyncBufRead, AsyncBufReadExt};

use crate::protocol::{IdScanner, SkippedId};

/// Reads lines and skips those over a limit.
#[derive(Debug)]
pub struct LineReader<R> {
    reader: R,
    max_line_bytes: usize,
}

/// One line as read.
#[derive(Debug, PartialEq, Eq)]
pub enum TextLine {
    /// A line that is not blank, trimmed, without its line end and byte order mark.
    Text(Bytes),
    /// A line over the limit, which was skipped, and the id of the message in it.
    TooLong(SkippedId),
}

impl<R: AsyncBufRead + Unpin> LineReader<R> {
    /// Reads lines of at most `limit` bytes.
    pub fn new(reader: R, max_line_bytes: usize) -> Self {
        Self { reader, max_line_bytes }
    }

    /// The next line that is not blank; `None` at the end of the input. Not cancel-safe: a partly read line is lost.
    ///
    /// # Errors
    /// When reading fails.
    pub async fn next(&mut self) -> std::io::Result<Option<TextLine>> {
        loop {
            let Some(line) = self.read_line().await? else { return Ok(None) };
            match line {
                TextLine::Text(text) => {
                    let text = text.strip_prefix(b"\xef\xbb\xbf").map_or(text.clone(), |rest| text.slice_ref(rest));
                    let trimmed = text.slice_ref(text.trim_ascii());
                    if !trimmed.is_empty() {
                        return Ok(Some(TextLine::Text(trimmed)));
                    }
                }
                too_long @ TextLine::TooLong(_) => return Ok(Some(too_long)),
            }
        }
    }

    async fn read_line(&mut self) -> std::io::Result<Option<TextLine>> {
        let mut line = BytesMut::new();
        let mut is_empty = true;
        // Set once the line is over the limit; of the rest only the id is looked for.
        let mut skipped: Option<IdScanner> = None;
        loop {
            let available = self.reader.fill_buf().await?;
            let is_end_of_input = available.is_empty();
            let end = available.iter().position(|byte| *byte == b'\n');
            let part = &available[..end.unwrap_or(available.len())];
            is_empty &= is_end_of_input;
            match &mut skipped {
                Some(scanner) => scanner.push(part),
                None if line.len() + part.len() <= self.max_line_bytes => line.extend_from_slice(part),
                None => {
                    let scanner = skipped.insert(IdScanner::default());
                    scanner.push(&std::mem::take(&mut line));
                    scanner.push(part);
                }
            }
            let used = part.len() + usize::from(end.is_some());
            self.reader.consume(used);
            if is_end_of_input && is_empty {
                return Ok(None);
            }
            if is_end_of_input || end.is_some() {
                let text = || TextLine::Text(line.freeze());
                return Ok(Some(skipped.map_or_else(text, |scanner| TextLine::TooLong(scanner.finish()))));
            }
        }
    }
}

/// Replaces line breaks, which are legal white space in JSON, by spaces.
pub fn to_single_line(message: Bytes) -> Bytes {
    if !message.contains(&b'\n') && !message.contains(&b'\r') {
        return message;
    }
    message.iter().map(|byte| if matches!(byte, b'\n' | b'\r') { b' ' } else { *byte }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn lines_are_split_trimmed_and_bounded() {
        let text = b"\xef\xbb\xbf{}\r\n\n  \n0123456789\n01234567890\nlast";
        let mut lines = LineReader::new(&text[..], 10);
        let mut read = Vec::new();
        while let Some(line) = lines.next().await.unwrap() {
            read.push(line);
        }
        let text = |text: &'static str| TextLine::Text(Bytes::from_static(text.as_bytes()));
        assert_eq!(read, [text("{}"), text("0123456789"), TextLine::TooLong(SkippedId::Absent), text("last")]);
    }
}
