//! API keys: `rlto_{id}_{secret}{checksum}`.
//!
//! The id is the beginning of the digest that stands in the file, so that a key that was found somewhere leads to its
//! line. The checksum is for secret scanners and typing errors. The secret has 256 random bits, which need no slow hash.

use std::fmt;
use std::sync::Arc;
use std::time::SystemTime;

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;

use super::revocation::Revoked;
use super::secret_digest::{AcceptedSecret, SecretDigest, succeed};
use crate::identity::{Credential, Identity};

/// The API keys, by the digests of their secrets.
#[derive(Clone, Default)]
pub struct ApiKeys {
    pub(super) accepted: Vec<AcceptedSecret>,
}

/// An API key as the configuration describes it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ApiKeySpec {
    /// Name of the key, part of the principal.
    pub name: Arc<str>,
    /// Digests of the secrets; two while the key is being replaced.
    pub hashes: Vec<SecretDigest>,
    /// Roles of whoever has the key.
    pub roles: Vec<Arc<str>>,
    /// The groups that the key is good for; `None` for all.
    pub groups: Option<Vec<Arc<str>>>,
    /// When the key ends.
    pub expires: Option<SystemTime>,
}

/// A key that was just made.
pub struct GeneratedKey {
    /// The key itself, which is shown once.
    pub key: String,
    /// The digest for the file.
    pub hash: SecretDigest,
}

/// What every API key begins with.
pub const KEY_PREFIX: &str = "rlto_";
const ID_LENGTH: usize = 8;
const SECRET_LENGTH: usize = 43;
const CHECKSUM_LENGTH: usize = 6;
const BASE62: &[u8; 62] = b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";

impl ApiKeys {
    /// Accepts these keys.
    pub fn new(specs: impl IntoIterator<Item = ApiKeySpec>) -> Self {
        let mut accepted = Vec::new();
        for spec in specs {
            let identity = Identity {
                roles: spec.roles,
                groups: spec.groups,
                expires_at: spec.expires,
                ..Identity::new(format!("key|{}", spec.name), Credential::Key(spec.name))
            };
            // An identity for each digest: it tells which of them a stream was opened with.
            accepted.extend(spec.hashes.into_iter().map(|hash| AcceptedSecret::new(identity.clone().into(), hash)));
        }
        Self { accepted }
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.accepted.is_empty()
    }

    /// Whose key this is, if it has not expired.
    pub(super) fn find(&self, given: &str, now: SystemTime) -> Option<&Arc<Identity>> {
        let (id, secret) = split_key(given)?;
        let digest = SecretDigest::of(secret.as_bytes());
        let (mut found, mut compared) = (None, false);
        for accepted in self.accepted.iter().filter(|accepted| id_of(&accepted.digest) == id.as_bytes()) {
            compared = true;
            if accepted.digest.matches(&digest) {
                found = Some(&accepted.identity);
            }
        }
        if !compared {
            // An unknown id takes as long as a known one.
            std::hint::black_box(digest.matches(&SecretDigest::of(b"")));
        }
        found.filter(|identity| identity.expires_at.is_none_or(|end| now < end))
    }

    /// Whether a key ends some day.
    pub fn has_expiring(&self) -> bool {
        self.accepted.iter().any(|accepted| accepted.identity.expires_at.is_some())
    }

    /// The keys that have expired and were not revoked for it yet.
    pub fn expired(&self, now: SystemTime) -> Revoked {
        let mut revoked = Revoked::default();
        let has_expired = |accepted: &&AcceptedSecret| {
            accepted.identity.expires_at.is_some_and(|end| end <= now) && !accepted.revoked.is_cancelled()
        };
        for accepted in self.accepted.iter().filter(has_expired) {
            revoked.signals.push(accepted.revoked.clone());
            revoked.credentials.push(accepted.identity.credential.clone());
        }
        revoked
    }

    /// Takes over from the keys accepted before.
    pub(super) fn succeed(&mut self, before: &Self, revoked: &mut Revoked) {
        succeed(&mut self.accepted, &before.accepted, revoked);
    }
}

impl GeneratedKey {
    /// Makes a key from 256 random bits.
    ///
    /// # Errors
    /// When the system has no random numbers.
    pub fn random() -> Result<Self, getrandom::Error> {
        let mut bytes = [0; 32];
        getrandom::fill(&mut bytes)?;
        Ok(Self::from_bytes(bytes))
    }

    fn from_bytes(bytes: [u8; 32]) -> Self {
        let secret = URL_SAFE_NO_PAD.encode(bytes);
        let hash = SecretDigest::of(secret.as_bytes());
        let id = id_of(&hash);
        let body = format!("{KEY_PREFIX}{}_{secret}", String::from_utf8_lossy(&id));
        Self { key: format!("{body}{}", checksum(body.as_bytes())), hash }
    }
}

/// Id and secret of a key with the right form and checksum.
fn split_key(given: &str) -> Option<(&str, &str)> {
    let (body, sum) = given.split_at_checked(given.len().checked_sub(CHECKSUM_LENGTH)?)?;
    let (id, rest) = body.strip_prefix(KEY_PREFIX)?.split_at_checked(ID_LENGTH)?;
    let secret = rest.strip_prefix('_').filter(|secret| secret.len() == SECRET_LENGTH)?;
    (checksum(body.as_bytes()) == sum).then_some((id, secret))
}

/// The id of the key with that digest: its first four bytes in hexadecimal digits.
fn id_of(digest: &SecretDigest) -> [u8; ID_LENGTH] {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    let mut id = [0; ID_LENGTH];
    for (pair, byte) in id.chunks_exact_mut(2).zip(digest.prefix()) {
        pair.copy_from_slice(&[DIGITS[usize::from(byte >> 4)], DIGITS[usize::from(byte & 15)]]);
    }
    id
}

/// CRC-32 (as in zip files) of the rest of the key, in base 62.
fn checksum(body: &[u8]) -> String {
    let mut rest = crc32(body);
    let mut digits = [b'0'; CHECKSUM_LENGTH];
    for digit in digits.iter_mut().rev() {
        *digit = BASE62[(rest % 62) as usize];
        rest /= 62;
    }
    digits.iter().map(|digit| char::from(*digit)).collect()
}

fn crc32(bytes: &[u8]) -> u32 {
    const POLYNOMIAL: u32 = 0xedb8_8320;
    let step = |crc: u32, _| (crc >> 1) ^ (POLYNOMIAL & (crc & 1).wrapping_neg());
    !bytes.iter().fold(u32::MAX, |crc, byte| (0..8).fold(crc ^ u32::from(*byte), step))
}

impl fmt::Debug for ApiKeys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let entries = self.accepted.iter().map(|accepted| (&accepted.identity.principal, &accepted.digest));
        f.debug_list().entries(entries).finish()
    }
}

/// Leaves the key out.
impl fmt::Debug for GeneratedKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("GeneratedKey").field(&self.hash).finish()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn spec(name: &str, hashes: &[SecretDigest]) -> ApiKeySpec {
        ApiKeySpec { name: name.into(), hashes: hashes.to_vec(), roles: Vec::new(), groups: None, expires: None }
    }

    #[test]
    fn a_key_has_its_form_and_checksum() {
        assert_eq!(crc32(b"123456789"), 0xcbf4_3926);
        let made = GeneratedKey::from_bytes([7; 32]);
        assert_eq!(made.key.len(), 5 + 8 + 1 + 43 + 6);
        assert!(made.hash.to_string().contains(&made.key[5..13]), "the id is the beginning of the hash");
        let (_, secret) = split_key(&made.key).unwrap();
        assert_eq!(SecretDigest::of(secret.as_bytes()), made.hash);
        assert_ne!(GeneratedKey::random().unwrap().key, GeneratedKey::random().unwrap().key);
        assert!(!format!("{made:?}").contains(secret));
    }

    #[test]
    fn only_the_whole_key_is_accepted() {
        let [one, other] = [1, 2].map(|byte| GeneratedKey::from_bytes([byte; 32]));
        let keys = ApiKeys::new([spec("ci", &[one.hash]), spec("cd", &[other.hash])]);
        let now = SystemTime::now();
        let found = |key: &str| keys.find(key, now).map(|identity| identity.principal.to_string());
        assert_eq!(found(&one.key).as_deref(), Some("key|ci"));
        assert_eq!(found(&other.key).as_deref(), Some("key|cd"));
        for at in 0..one.key.len() {
            let mut wrong = one.key.clone().into_bytes();
            wrong[at] = if wrong[at] == b'x' { b'y' } else { b'x' };
            assert_eq!(found(&String::from_utf8(wrong).unwrap()), None, "letter {at}");
            assert_eq!(found(&one.key[..at]), None, "cut at {at}");
        }
        // The id of one key with the secret of the other, and a checksum that fits.
        let mixed = format!("{}{}", &one.key[..14], &other.key[14..57]);
        assert_eq!(found(&format!("{mixed}{}", checksum(mixed.as_bytes()))), None);
        let unknown = GeneratedKey::from_bytes([3; 32]);
        assert_eq!(found(&unknown.key), None);
        assert!(!format!("{keys:?}").contains(&one.key[14..40]));
    }

    #[test]
    fn two_hashes_are_one_caller_and_an_expired_key_is_revoked_once() {
        let [old, new] = [1, 2].map(|byte| GeneratedKey::from_bytes([byte; 32]));
        let end = SystemTime::UNIX_EPOCH + Duration::from_secs(1000);
        let spec = ApiKeySpec { expires: Some(end), roles: vec!["robots".into()], ..spec("ci", &[old.hash, new.hash]) };
        let keys = ApiKeys::new([spec]);
        let before = end - Duration::from_secs(1);
        let [one, other] = [&old, &new].map(|made| keys.find(&made.key, before).unwrap());
        assert_eq!((one, &one.roles[..]), (other, &["robots".into()][..]));
        assert!(!Arc::ptr_eq(one, other), "streams are told apart by their digest");
        assert!(keys.find(&old.key, end).is_none());
        assert!(keys.expired(before).is_empty());
        let expired = keys.expired(end);
        expired.cancel();
        assert!(expired.ends(one, "default"));
        assert!(keys.expired(end).is_empty(), "it is revoked once");
    }
}
