//! Protobuf as far as OTLP needs it: messages are written field by field, and responses are looked through.

use crate::redact::redact;

/// Writes the fields of one message.
#[derive(Debug)]
pub struct MessageWriter<'b>(pub &'b mut Vec<u8>);

/// The wire types of protobuf.
const VARINT: u64 = 0;
const FIXED_64: u64 = 1;
const LENGTH_DELIMITED: u64 = 2;
const FIXED_32: u64 = 5;

impl MessageWriter<'_> {
    fn varint(&mut self, mut number: u64) {
        while number >= 0x80 {
            self.0.push(u8::try_from(number & 0x7f).unwrap_or_default() | 0x80);
            number >>= 7;
        }
        self.0.push(u8::try_from(number).unwrap_or_default());
    }

    fn tag(&mut self, field: u64, wire_type: u64) {
        self.varint(field << 3 | wire_type);
    }

    /// A number of variable length: an integer, an enum or a boolean.
    pub fn number(&mut self, field: u64, number: u64) {
        self.tag(field, VARINT);
        self.varint(number);
    }

    /// Bytes, or a message that is encoded already.
    pub fn bytes(&mut self, field: u64, bytes: &[u8]) {
        self.tag(field, LENGTH_DELIMITED);
        self.varint(bytes.len() as u64);
        self.0.extend_from_slice(bytes);
    }

    /// A text without the secrets of the configuration.
    pub fn text(&mut self, field: u64, text: &str) {
        self.bytes(field, redact(text).as_bytes());
    }

    /// A number of eight bytes: `fixed64`, `sfixed64` or the bits of a `double`.
    pub fn fixed_64(&mut self, field: u64, number: u64) {
        self.tag(field, FIXED_64);
        self.0.extend_from_slice(&number.to_le_bytes());
    }

    /// A number of four bytes.
    pub fn fixed_32(&mut self, field: u64, number: u32) {
        self.tag(field, FIXED_32);
        self.0.extend_from_slice(&number.to_le_bytes());
    }

    /// Packed numbers of eight bytes each.
    pub fn packed_64(&mut self, field: u64, numbers: impl ExactSizeIterator<Item = u64>) {
        self.tag(field, LENGTH_DELIMITED);
        self.varint(numbers.len() as u64 * 8);
        numbers.for_each(|number| self.0.extend_from_slice(&number.to_le_bytes()));
    }

    /// A message within this one: its length is known when it is written.
    pub fn message(&mut self, field: u64, write: impl FnOnce(&mut MessageWriter<'_>)) {
        let mut inner = Vec::new();
        write(&mut MessageWriter(&mut inner));
        self.bytes(field, &inner);
    }

    /// A `KeyValue` whose value is a text.
    pub fn text_attribute(&mut self, field: u64, key: &str, value: &str) {
        self.message(field, |pair| {
            pair.text(1, key);
            pair.message(2, |any| any.text(1, value));
        });
    }

    /// A `KeyValue` whose value is an integer.
    pub fn integer_attribute(&mut self, field: u64, key: &str, value: i64) {
        self.message(field, |pair| {
            pair.text(1, key);
            pair.message(2, |any| any.number(3, value.cast_unsigned()));
        });
    }
}

/// The value of a field of a message that was received.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FieldValue<'m> {
    /// A number of variable length.
    Number(u64),
    /// Bytes, a text, or a message.
    Bytes(&'m [u8]),
}

/// The fields of a message as far as it can be read; numbers of fixed length are left out.
pub fn fields(mut message: &[u8]) -> impl Iterator<Item = (u64, FieldValue<'_>)> {
    std::iter::from_fn(move || {
        loop {
            let tag = take_varint(&mut message)?;
            let length = match tag & 7 {
                VARINT => return Some((tag >> 3, FieldValue::Number(take_varint(&mut message)?))),
                LENGTH_DELIMITED => usize::try_from(take_varint(&mut message)?).ok()?,
                FIXED_64 => 8,
                FIXED_32 => 4,
                _ => return None,
            };
            let (bytes, rest) = message.split_at_checked(length)?;
            message = rest;
            if tag & 7 == LENGTH_DELIMITED {
                return Some((tag >> 3, FieldValue::Bytes(bytes)));
            }
        }
    })
}

fn take_varint(message: &mut &[u8]) -> Option<u64> {
    let mut number = 0;
    for shift in (0..64).step_by(7) {
        let (byte, rest) = message.split_first()?;
        *message = rest;
        number |= u64::from(byte & 0x7f) << shift;
        if byte & 0x80 == 0 {
            return Some(number);
        }
    }
    None
}
