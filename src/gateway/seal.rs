//! Seals what clients carry for us, so that nobody can read it, change it or make it up.

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use chacha20poly1305::aead::{Aead, KeyInit, Payload};
use chacha20poly1305::{ChaCha20Poly1305, Key, Nonce};
use sha2::{Digest, Sha256};

/// Seals what clients carry for us.
#[derive(Clone)]
pub struct Seal {
    cipher: ChaCha20Poly1305,
    /// Makes nonces of what is sealed, where the same has to look the same.
    marker: [u8; 32],
}

/// Bytes of a nonce.
const NONCE: usize = 12;

impl Seal {
    /// A seal that only this process knows.
    ///
    /// # Panics
    /// When the system has no randomness to give; nothing would be safe without it.
    pub fn random() -> Self {
        let mut key = [0; 32];
        let mut marker = [0; 32];
        getrandom::fill(&mut key).expect("the system gives randomness");
        getrandom::fill(&mut marker).expect("the system gives randomness");
        Self { cipher: ChaCha20Poly1305::new(&Key::from(key)), marker }
    }

    /// Seals bytes for a purpose.
    ///
    /// # Panics
    /// When the system has no randomness to give.
    pub fn close(&self, purpose: &str, bytes: &[u8]) -> String {
        let mut nonce = [0; NONCE];
        getrandom::fill(&mut nonce).expect("the system gives randomness");
        self.close_with(nonce, purpose, bytes)
    }

    /// Seals bytes for a purpose so that the same bytes look the same each time.
    pub fn close_alike(&self, purpose: &str, bytes: &[u8]) -> String {
        let mut hash = Sha256::new();
        for part in [&self.marker, purpose.as_bytes(), &[0], bytes] {
            hash.update(part);
        }
        let mut nonce = [0; NONCE];
        nonce.copy_from_slice(&hash.finalize()[..NONCE]);
        self.close_with(nonce, purpose, bytes)
    }

    fn close_with(&self, nonce: [u8; NONCE], purpose: &str, bytes: &[u8]) -> String {
        let payload = Payload { msg: bytes, aad: purpose.as_bytes() };
        let sealed = self.cipher.encrypt(&Nonce::from(nonce), payload).expect("a short text can be sealed");
        let mut out = nonce.to_vec();
        out.extend_from_slice(&sealed);
        URL_SAFE_NO_PAD.encode(out)
    }

    /// What was sealed for that purpose; nothing when it was not, or was touched.
    pub fn open(&self, purpose: &str, text: &str) -> Option<Vec<u8>> {
        let bytes = URL_SAFE_NO_PAD.decode(text).ok()?;
        let (nonce, sealed) = bytes.split_at_checked(NONCE)?;
        let nonce: [u8; NONCE] = nonce.try_into().ok()?;
        self.cipher.decrypt(&Nonce::from(nonce), Payload { msg: sealed, aad: purpose.as_bytes() }).ok()
    }
}

impl std::fmt::Debug for Seal {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Seal")
    }
}
