//! Digests of secrets: what is kept of API keys and static tokens.

use std::fmt;
use std::sync::Arc;

use sha2::{Digest, Sha256};
use subtle::ConstantTimeEq;
use tokio_util::sync::CancellationToken;

use super::revocation::Revoked;
use crate::identity::Identity;

/// SHA-256 of a secret. In the file it is written as `sha256:` and 64 hexadecimal digits.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct SecretDigest([u8; 32]);

/// A secret that is accepted, and whose it is.
#[derive(Clone)]
pub(super) struct AcceptedSecret {
    pub(super) identity: Arc<Identity>,
    pub(super) digest: SecretDigest,
    /// Cancelled when the secret is no longer accepted.
    pub(super) revoked: CancellationToken,
}

/// What a digest begins with in the file.
const ALGORITHM: &str = "sha256:";

impl SecretDigest {
    /// Hashes a secret.
    pub fn of(secret: &[u8]) -> Self {
        Self(Sha256::digest(secret).into())
    }

    /// Reads a digest as it is written in the file.
    pub fn parse(text: &str) -> Option<Self> {
        let digits = text.strip_prefix(ALGORITHM).filter(|digits| digits.len() == 64 && digits.is_ascii())?;
        let mut bytes = [0; 32];
        for (byte, pair) in bytes.iter_mut().zip(digits.as_bytes().chunks_exact(2)) {
            let digit = |at: usize| char::from(pair[at]).to_digit(16);
            *byte = u8::try_from(digit(0)? * 16 + digit(1)?).ok()?;
        }
        Some(Self(bytes))
    }

    /// Whether both are equal, in a time that does not tell where they differ.
    pub(super) fn matches(&self, other: &Self) -> bool {
        self.0.ct_eq(&other.0).into()
    }

    /// The first four bytes, by which the digest of an API key is found.
    pub(super) fn prefix(&self) -> [u8; 4] {
        let [a, b, c, d, ..] = self.0;
        [a, b, c, d]
    }
}

/// The text of the file.
impl fmt::Display for SecretDigest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(ALGORITHM)?;
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

/// Enough of it to recognize the line in the file.
impl fmt::Debug for SecretDigest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [a, b, c, d] = self.prefix();
        write!(f, "{ALGORITHM}{a:02x}{b:02x}{c:02x}{d:02x}…")
    }
}

impl AcceptedSecret {
    pub(super) fn new(identity: Arc<Identity>, digest: SecretDigest) -> Self {
        Self { identity, digest, revoked: CancellationToken::new() }
    }
}

/// Lets new secrets take over from those accepted before. One that is the same, with the same rights, goes on; what
/// the others had open is revoked.
pub(super) fn succeed(now: &mut [AcceptedSecret], before: &[AcceptedSecret], revoked: &mut Revoked) {
    let is_same = |one: &AcceptedSecret, other: &AcceptedSecret| {
        one.digest == other.digest && one.identity.credential == other.identity.credential
    };
    for old in before {
        match now.iter_mut().find(|new| is_same(new, old)) {
            Some(new) if new.identity == old.identity => {
                new.identity = Arc::clone(&old.identity);
                new.revoked = old.revoked.clone();
            }
            Some(new) => {
                revoked.signals.push(old.revoked.clone());
                revoked.changed.push(Arc::clone(&new.identity));
            }
            None => {
                revoked.signals.push(old.revoked.clone());
                // While another secret of the same name is as before, its holder goes on with the sessions.
                let remains = now.iter().any(|new| {
                    new.identity.credential == old.identity.credential && before.iter().any(|old| is_same(new, old))
                });
                if !remains {
                    revoked.credentials.push(old.identity.credential.clone());
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn digests_are_written_and_read_alike() {
        let digest = SecretDigest::of(b"abc");
        let text = "sha256:ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
        assert_eq!(digest.to_string(), text);
        assert_eq!(SecretDigest::parse(text), Some(digest));
        assert_eq!(SecretDigest::parse(&text.to_ascii_uppercase().replace("SHA256", "sha256")), Some(digest));
        assert_eq!(format!("{digest:?}"), "sha256:ba7816bf…");
        let long = format!("{text}00");
        for wrong in ["", "sha256:", &text[7..], &text[..70], &long, &text.replace('b', "g"), &text.replace("ba", "é")]
        {
            assert_eq!(SecretDigest::parse(wrong), None, "{wrong}");
        }
        assert!(digest.matches(&SecretDigest::of(b"abc")) && !digest.matches(&SecretDigest::of(b"abd")));
    }
}
