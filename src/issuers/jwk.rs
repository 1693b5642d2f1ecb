//! The keys that an issuer publishes (RFC 7517).

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::SystemTime;

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use ring::signature::{self as ring_signature, UnparsedPublicKey};
use serde_json::{Map, Value};
use sha2::{Digest, Sha256};

use super::algorithm::{KeyKind, SigningAlgorithm};

/// Most keys of an issuer that are read.
const MAX_KEYS: usize = 100;
/// Smallest and largest RSA modulus, in bits.
const RSA_BITS: std::ops::RangeInclusive<usize> = 2048..=8192;

/// A public key that verifies signatures.
#[derive(Debug)]
pub(super) struct VerifyingKey {
    id: Option<Box<str>>,
    /// The only algorithm that the issuer uses it for, where it says so.
    algorithm: Option<SigningAlgorithm>,
    material: KeyMaterial,
    /// Tells it from every other key.
    digest: Arc<str>,
    /// Set when the issuer no longer publishes it.
    withdrawn: AtomicBool,
}

#[derive(Debug, PartialEq, Eq)]
enum KeyMaterial {
    Rsa {
        modulus: Vec<u8>,
        exponent: Vec<u8>,
    },
    /// An uncompressed point.
    P256(Vec<u8>),
    /// An uncompressed point.
    P384(Vec<u8>),
    Ed25519(Vec<u8>),
}

/// The keys of an issuer as of one moment.
#[derive(Debug)]
pub(super) struct KeySet {
    pub(super) keys: Vec<Arc<VerifyingKey>>,
    pub(super) fetched_at: SystemTime,
}

/// What a key is good for.
enum KeyUse {
    Verifying(VerifyingKey),
    /// For encryption, or for signing only.
    Other,
}

impl KeySet {
    /// Reads a JWK Set. Keys that cannot be used are skipped, with a sentence each.
    ///
    /// # Errors
    /// Why it is no JWK Set.
    pub(super) fn read(document: &Map<String, Value>, now: SystemTime) -> Result<(Self, Vec<String>), String> {
        let Some(Value::Array(items)) = document.get("keys") else {
            return Err("it has no list `keys`".to_owned());
        };
        let (mut keys, mut skipped) = (Vec::new(), Vec::new());
        for (index, item) in items.iter().take(MAX_KEYS).enumerate() {
            let read = item.as_object().ok_or("is no object").and_then(VerifyingKey::read);
            match read {
                Ok(KeyUse::Verifying(key)) => {
                    if key.id.is_none() {
                        skipped.push(format!("key {index} has no `kid`; it verifies only tokens without one"));
                    }
                    keys.push(Arc::new(key));
                }
                Ok(KeyUse::Other) => {}
                Err(why) => skipped.push(format!("key {index} {why}; it is not used")),
            }
        }
        if items.len() > MAX_KEYS {
            skipped.push(format!("only the first {MAX_KEYS} of {} keys are used", items.len()));
        }
        Ok((Self { keys, fetched_at: now }, skipped))
    }

    /// Takes over the keys that were there before, so that what they verified stays known, and withdraws the others,
    /// whose digests it returns.
    pub(super) fn succeed(&mut self, before: &Self) -> Vec<Arc<str>> {
        let mut withdrawn = Vec::new();
        for old in &before.keys {
            match self.keys.iter_mut().find(|new| new.digest == old.digest) {
                Some(new) => *new = Arc::clone(old),
                None => {
                    old.withdrawn.store(true, Ordering::Release);
                    withdrawn.push(Arc::clone(&old.digest));
                }
            }
        }
        withdrawn
    }
}

impl VerifyingKey {
    fn read(jwk: &Map<String, Value>) -> Result<KeyUse, &'static str> {
        let text = |name: &str| jwk.get(name).and_then(Value::as_str);
        if text("use").is_some_and(|used| used != "sig") {
            return Ok(KeyUse::Other);
        }
        match jwk.get("key_ops") {
            None => {}
            Some(Value::Array(operations)) if operations.iter().any(|operation| operation == "verify") => {}
            Some(_) => return Ok(KeyUse::Other),
        }
        let material = match (text("kty").unwrap_or_default(), text("crv")) {
            ("RSA", _) => rsa(jwk)?,
            ("EC", Some("P-256")) => KeyMaterial::P256(point(jwk, 32)?),
            ("EC", Some("P-384")) => KeyMaterial::P384(point(jwk, 48)?),
            ("OKP", Some("Ed25519")) => {
                KeyMaterial::Ed25519(bytes(jwk, "x").filter(|x| x.len() == 32).ok_or("has no valid `x`")?)
            }
            ("oct", _) => return Err("is symmetric"),
            _ => return Err("is of a kind or curve that is not supported"),
        };
        let algorithm = match jwk.get("alg") {
            None => None,
            // The same algorithm under the name of RFC 9864.
            Some(Value::String(name)) if name == "Ed25519" => Some(SigningAlgorithm::EdDsa),
            Some(Value::String(name)) => {
                Some(SigningAlgorithm::named(name).ok_or("is for an algorithm that is not supported")?)
            }
            Some(_) => return Err("has an `alg` that is no string"),
        };
        if algorithm.is_some_and(|algorithm| algorithm.key_kind() != material.kind()) {
            return Err("is of another kind than its `alg` needs");
        }
        let id: Option<Box<str>> = match jwk.get("kid") {
            None => None,
            Some(Value::String(id)) => Some(id.as_str().into()),
            Some(_) => return Err("has a `kid` that is no string"),
        };
        let digest = Sha256::digest(format!("{id:?} {algorithm:?} {material:?}"));
        let digest = URL_SAFE_NO_PAD.encode(&digest[..16]).into();
        Ok(KeyUse::Verifying(Self { id, algorithm, material, digest, withdrawn: AtomicBool::new(false) }))
    }

    pub(super) fn id(&self) -> Option<&str> {
        self.id.as_deref()
    }

    /// Whether the issuer no longer publishes it.
    pub(super) fn is_withdrawn(&self) -> bool {
        self.withdrawn.load(Ordering::Acquire)
    }

    /// Whether the key can be used with an algorithm.
    pub(super) fn fits(&self, algorithm: SigningAlgorithm) -> bool {
        algorithm.key_kind() == self.material.kind() && self.algorithm.is_none_or(|only| only == algorithm)
    }

    /// Whether `signature` is one of `message` by this key.
    pub(super) fn verifies(&self, algorithm: SigningAlgorithm, message: &[u8], signature: &[u8]) -> bool {
        if !self.fits(algorithm) {
            return false;
        }
        let verified = match &self.material {
            KeyMaterial::Rsa { modulus, exponent } => {
                let Some(parameters) = algorithm.rsa_parameters() else { return false };
                ring_signature::RsaPublicKeyComponents { n: modulus, e: exponent }
                    .verify(parameters, message, signature)
            }
            KeyMaterial::P256(point) => {
                UnparsedPublicKey::new(&ring_signature::ECDSA_P256_SHA256_FIXED, point).verify(message, signature)
            }
            KeyMaterial::P384(point) => {
                UnparsedPublicKey::new(&ring_signature::ECDSA_P384_SHA384_FIXED, point).verify(message, signature)
            }
            KeyMaterial::Ed25519(public) => {
                UnparsedPublicKey::new(&ring_signature::ED25519, public).verify(message, signature)
            }
        };
        verified.is_ok()
    }

    /// Tells the key from every other one.
    pub(super) fn digest(&self) -> &Arc<str> {
        &self.digest
    }
}

impl KeyMaterial {
    fn kind(&self) -> KeyKind {
        match self {
            Self::Rsa { .. } => KeyKind::Rsa,
            Self::P256(_) => KeyKind::P256,
            Self::P384(_) => KeyKind::P384,
            Self::Ed25519(_) => KeyKind::Ed25519,
        }
    }
}

fn bytes(jwk: &Map<String, Value>, name: &str) -> Option<Vec<u8>> {
    URL_SAFE_NO_PAD.decode(jwk.get(name)?.as_str()?).ok()
}

fn rsa(jwk: &Map<String, Value>) -> Result<KeyMaterial, &'static str> {
    let number = |name: &str| {
        let bytes = bytes(jwk, name)?;
        // Some issuers write a sign byte.
        let first = bytes.iter().position(|byte| *byte != 0)?;
        Some(bytes[first..].to_vec())
    };
    let (Some(modulus), Some(exponent)) = (number("n"), number("e")) else { return Err("has no valid `n` and `e`") };
    let bits = modulus.len() * 8 - modulus.first().map_or(0, |byte| byte.leading_zeros() as usize);
    if !RSA_BITS.contains(&bits) {
        return Err("is an RSA key of fewer than 2048 or more than 8192 bits");
    }
    Ok(KeyMaterial::Rsa { modulus, exponent })
}

/// The uncompressed form of a point whose coordinates have `size` bytes.
fn point(jwk: &Map<String, Value>, size: usize) -> Result<Vec<u8>, &'static str> {
    let coordinate = |name: &str| bytes(jwk, name).filter(|bytes| bytes.len() == size);
    let (Some(x), Some(y)) = (coordinate("x"), coordinate("y")) else { return Err("has no valid `x` and `y`") };
    Ok([&[4], x.as_slice(), y.as_slice()].concat())
}
