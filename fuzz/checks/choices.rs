//! Decisions drawn from the bytes of an input, so that a mutated input decides otherwise.

/// The bytes that were not drawn yet. Once they are used up, every number is zero and every text is empty.
pub struct Choices<'a>(&'a [u8]);

impl<'a> Choices<'a> {
    pub fn new(bytes: &'a [u8]) -> Self {
        Self(bytes)
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub fn byte(&mut self) -> u8 {
        let Some((byte, rest)) = self.0.split_first() else { return 0 };
        self.0 = rest;
        *byte
    }

    /// A text of up to 255 bytes: a byte with its length, then the text, of which the valid part is taken.
    pub fn text(&mut self) -> &'a str {
        let length = usize::from(self.byte()).min(self.0.len());
        let (text, rest) = self.0.split_at(length);
        self.0 = rest;
        let valid = text.utf8_chunks().next();
        valid.map_or("", |chunk| chunk.valid())
    }
}
