//! The bytes of a secret.

use std::fmt;
use std::ops::BitAnd;

use subtle::ConstantTimeEq;
use zeroize::Zeroize;

/// The bytes of a secret, which are overwritten when they are no longer needed.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct SecretBytes(Box<[u8]>);

impl SecretBytes {
    /// Keeps a copy of these bytes.
    pub fn new(bytes: &[u8]) -> Self {
        Self(bytes.into())
    }

    /// Whether these are the bytes, in a time that depends on their number alone.
    pub fn is(&self, given: &[u8]) -> bool {
        // Eight bytes at a time: a token is long, and is compared for each request.
        let ((own_words, own_rest), (words, rest)) = (self.0.as_chunks::<8>(), given.as_chunks::<8>());
        let is_same_word =
            |(own, word): (&[u8; 8], &[u8; 8])| u64::from_ne_bytes(*own).ct_eq(&u64::from_ne_bytes(*word));
        let same_words = own_words.iter().zip(words).map(is_same_word);
        self.0.len() == given.len() && same_words.fold(own_rest.ct_eq(rest), BitAnd::bitand).into()
    }
}

impl AsRef<[u8]> for SecretBytes {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

impl Drop for SecretBytes {
    fn drop(&mut self) {
        self.0.zeroize();
    }
}

/// Only how many there are.
impl fmt::Debug for SecretBytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} secret bytes", self.0.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_byte_counts() {
        let text: Vec<u8> = (0..40).collect();
        for length in 0..text.len() {
            let secret = SecretBytes::new(&text[..length]);
            assert!(secret.is(&text[..length]));
            assert!(!secret.is(&text[..=length]) && !SecretBytes::new(&text[..=length]).is(&text[..length]));
            for at in 0..length {
                let mut other = text[..length].to_vec();
                other[at] ^= 0x80;
                assert!(!secret.is(&other), "{length} {at}");
            }
        }
        assert_eq!(format!("{:?}", SecretBytes::new(b"abc")), "3 secret bytes");
    }
}
