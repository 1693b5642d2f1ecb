//! Authenticated encryption of tokens that clients carry: cursors, request states, session ids.

use std::sync::Arc;

use arc_swap::ArcSwap;
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use chacha20poly1305::aead::{Aead, KeyInit, Payload};
use chacha20poly1305::{ChaCha20Poly1305, Key, Nonce};
use sha2::{Digest, Sha256};

/// Seals and opens tokens. Clones share the key.
#[derive(Clone)]
pub struct Seal(Arc<ArcSwap<SealingKeys>>);

struct SealingKeys {
    cipher: ChaCha20Poly1305,
    /// Of the key before this one, which still opens what it has sealed.
    previous_cipher: Option<ChaCha20Poly1305>,
    /// Derives nonces from the content for deterministic seals.
    nonce_key: [u8; 32],
}

/// Length of a ChaCha20-Poly1305 nonce in bytes.
const NONCE_LEN: usize = 12;

impl Seal {
    /// A seal with a random key, valid in this process only.
    ///
    /// # Panics
    /// When the operating system has no randomness.
    pub fn random() -> Self {
        let mut secret = [0; 32];
        getrandom::fill(&mut secret).expect("the operating system provides randomness");
        Self(Arc::new(ArcSwap::from_pointee(SealingKeys::derive(&secret))))
    }

    /// Replaces the key by one derived from a shared secret; all nodes with the secret open each other's
    /// seals.
    pub fn set_key(&self, secret: &[u8]) {
        let previous_cipher = Some(self.0.load().cipher.clone());
        self.0.store(Arc::new(SealingKeys { previous_cipher, ..SealingKeys::derive(secret) }));
    }

    /// Seals bytes with a random nonce. `purpose` is associated data: [`Self::open`] needs the same.
    ///
    /// # Panics
    /// When the operating system has no randomness.
    pub fn seal(&self, purpose: &str, bytes: &[u8]) -> String {
        let mut nonce = [0; NONCE_LEN];
        getrandom::fill(&mut nonce).expect("the operating system provides randomness");
        self.encrypt(nonce, purpose, bytes)
    }

    /// Seals bytes with a nonce derived from the content: equal input gives an equal token.
    pub fn seal_deterministic(&self, purpose: &str, bytes: &[u8]) -> String {
        let mut hash = Sha256::new();
        let keys = self.0.load();
        for part in [&keys.nonce_key, purpose.as_bytes(), &[0], bytes] {
            hash.update(part);
        }
        let mut nonce = [0; NONCE_LEN];
        nonce.copy_from_slice(&hash.finalize()[..NONCE_LEN]);
        self.encrypt(nonce, purpose, bytes)
    }

    fn encrypt(&self, nonce: [u8; NONCE_LEN], purpose: &str, bytes: &[u8]) -> String {
        let payload = Payload { msg: bytes, aad: purpose.as_bytes() };
        let sealed = self.0.load().cipher.encrypt(&Nonce::from(nonce), payload).expect("a short token can be sealed");
        let mut out = nonce.to_vec();
        out.extend_from_slice(&sealed);
        URL_SAFE_NO_PAD.encode(out)
    }

    /// Opens a token; `None` when it was sealed for another purpose or key, or was modified.
    pub fn open(&self, purpose: &str, text: &str) -> Option<Vec<u8>> {
        let bytes = URL_SAFE_NO_PAD.decode(text).ok()?;
        let (nonce, sealed) = bytes.split_at_checked(NONCE_LEN)?;
        let nonce: [u8; NONCE_LEN] = nonce.try_into().ok()?;
        let keys = self.0.load();
        let open = |with: &ChaCha20Poly1305| {
            with.decrypt(&Nonce::from(nonce), Payload { msg: sealed, aad: purpose.as_bytes() })
        };
        open(&keys.cipher).ok().or_else(|| open(keys.previous_cipher.as_ref()?).ok())
    }
}

impl SealingKeys {
    fn derive(secret: &[u8]) -> Self {
        let derive = |purpose: &str| -> [u8; 32] {
            let mut hash = Sha256::new();
            for part in [purpose.as_bytes(), &[0], secret] {
                hash.update(part);
            }
            hash.finalize().into()
        };
        let cipher = ChaCha20Poly1305::new(&Key::from(derive("rialto seal")));
        Self { cipher, previous_cipher: None, nonce_key: derive("rialto marker") }
    }
}

impl std::fmt::Debug for Seal {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Seal")
    }
}
