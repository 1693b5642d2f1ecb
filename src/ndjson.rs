//! Messages as lines: one JSON-RPC message on each, as on standard input and output.

use bytes::{Bytes, BytesMut};
use tokio::io::{AsyncBufRead, AsyncBufReadExt};

/// Reads lines, none longer than a limit.
#[derive(Debug)]
pub struct Lines<R> {
    reader: R,
    limit: usize,
}

/// One line, or what is wrong with it.
#[derive(Debug, PartialEq, Eq)]
pub enum TextLine {
    /// A line with something on it, without its end.
    Text(Bytes),
    /// A line over the limit; it was skipped.
    TooLong,
}

impl<R: AsyncBufRead + Unpin> Lines<R> {
    /// Reads lines of at most `limit` bytes.
    pub fn new(reader: R, limit: usize) -> Self {
        Self { reader, limit }
    }

    /// The next line that is not blank; nothing at the end. Not cancel-safe: a line that was
    /// read half is lost.
    ///
    /// # Errors
    /// When reading fails.
    pub async fn next(&mut self) -> std::io::Result<Option<TextLine>> {
        loop {
            let Some(line) = self.read().await? else { return Ok(None) };
            match line {
                TextLine::Text(text) => {
                    let text = text.strip_prefix(b"\xef\xbb\xbf").map_or(text.clone(), |rest| text.slice_ref(rest));
                    let trimmed = text.slice_ref(text.trim_ascii());
                    if !trimmed.is_empty() {
                        return Ok(Some(TextLine::Text(trimmed)));
                    }
                }
                TextLine::TooLong => return Ok(Some(TextLine::TooLong)),
            }
        }
    }

    async fn read(&mut self) -> std::io::Result<Option<TextLine>> {
        let mut line = BytesMut::new();
        let mut length = 0;
        loop {
            let available = self.reader.fill_buf().await?;
            if available.is_empty() {
                return Ok((length > 0).then(|| self.whole(line, length)));
            }
            let end = available.iter().position(|byte| *byte == b'\n');
            let part = end.unwrap_or(available.len());
            length += part;
            if length <= self.limit {
                line.extend_from_slice(&available[..part]);
            }
            let used = part + usize::from(end.is_some());
            self.reader.consume(used);
            if end.is_some() {
                return Ok(Some(self.whole(line, length)));
            }
        }
    }

    fn whole(&self, line: BytesMut, length: usize) -> TextLine {
        if length > self.limit { TextLine::TooLong } else { TextLine::Text(line.freeze()) }
    }
}

/// A message without line breaks, which are legal white space in JSON but end a line here.
pub fn one_line(message: Bytes) -> Bytes {
    if !message.contains(&b'\n') && !message.contains(&b'\r') {
        return message;
    }
    message.iter().map(|byte| if matches!(byte, b'\n' | b'\r') { b' ' } else { *byte }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn lines_are_cut_trimmed_and_bounded() {
        let text = b"\xef\xbb\xbf{}\r\n\n  \n0123456789\n01234567890\nlast";
        let mut lines = Lines::new(&text[..], 10);
        let mut read = Vec::new();
        while let Some(line) = lines.next().await.unwrap() {
            read.push(line);
        }
        let text = |text: &'static str| TextLine::Text(Bytes::from_static(text.as_bytes()));
        assert_eq!(read, [text("{}"), text("0123456789"), TextLine::TooLong, text("last")]);
    }
}
