//! Seals what clients carry for us, so that nobody can read it, change it or make it up.

use std::sync::Arc;

use arc_swap::ArcSwap;
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use chacha20poly1305::aead::{Aead, KeyInit, Payload};
use chacha20poly1305::{ChaCha20Poly1305, Key, Nonce};
use sha2::{Digest, Sha256};

/// Seals what clients carry for us.
#[derive(Clone)]
pub struct Seal(Arc<ArcSwap<SealingKeys>>);

struct SealingKeys {
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
        let mut secret = [0; 32];
        getrandom::fill(&mut secret).expect("the system gives randomness");
        Self(Arc::new(ArcSwap::from_pointee(SealingKeys::of(&secret))))
    }

    /// From now on a seal that all know who know the secret.
    pub fn set_key(&self, secret: &[u8]) {
        self.0.store(Arc::new(SealingKeys::of(secret)));
    }

    /// Seals bytes for a purpose.
    ///
    /// # Panics
    /// When the system has no randomness to give.
    pub fn seal(&self, purpose: &str, bytes: &[u8]) -> String {
        let mut nonce = [0; NONCE];
        getrandom::fill(&mut nonce).expect("the system gives randomness");
        self.close_with(nonce, purpose, bytes)
    }

    /// Seals bytes for a purpose so that the same bytes look the same each time.
    pub fn seal_deterministic(&self, purpose: &str, bytes: &[u8]) -> String {
        let mut hash = Sha256::new();
        let keys = self.0.load();
        for part in [&keys.marker, purpose.as_bytes(), &[0], bytes] {
            hash.update(part);
        }
        let mut nonce = [0; NONCE];
        nonce.copy_from_slice(&hash.finalize()[..NONCE]);
        self.close_with(nonce, purpose, bytes)
    }

    fn close_with(&self, nonce: [u8; NONCE], purpose: &str, bytes: &[u8]) -> String {
        let payload = Payload { msg: bytes, aad: purpose.as_bytes() };
        let sealed = self.0.load().cipher.encrypt(&Nonce::from(nonce), payload).expect("a short text can be sealed");
        let mut out = nonce.to_vec();
        out.extend_from_slice(&sealed);
        URL_SAFE_NO_PAD.encode(out)
    }

    /// What was sealed for that purpose; nothing when it was not, or was touched.
    pub fn open(&self, purpose: &str, text: &str) -> Option<Vec<u8>> {
        let bytes = URL_SAFE_NO_PAD.decode(text).ok()?;
        let (nonce, sealed) = bytes.split_at_checked(NONCE)?;
        let nonce: [u8; NONCE] = nonce.try_into().ok()?;
        self.0.load().cipher.decrypt(&Nonce::from(nonce), Payload { msg: sealed, aad: purpose.as_bytes() }).ok()
    }
}

impl SealingKeys {
    fn of(secret: &[u8]) -> Self {
        let derive = |purpose: &str| -> [u8; 32] {
            let mut hash = Sha256::new();
            for part in [purpose.as_bytes(), &[0], secret] {
                hash.update(part);
            }
            hash.finalize().into()
        };
        Self { cipher: ChaCha20Poly1305::new(&Key::from(derive("rialto seal"))), marker: derive("rialto marker") }
    }
}

impl std::fmt::Debug for Seal {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Seal")
    }
}
