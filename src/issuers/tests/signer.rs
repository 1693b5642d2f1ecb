//! Makes keys, and tokens that they sign.

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use ring::rand::SystemRandom;
use ring::rsa::PublicKeyComponents;
use ring::signature::{self, EcdsaKeyPair, Ed25519KeyPair, KeyPair, RsaEncoding, RsaKeyPair};
use serde_json::{Value, json};

use crate::issuers::SigningAlgorithm;

/// A key that was made for these tests and signs nothing else; ring makes no RSA keys.
const RSA_KEY: &[u8] = include_bytes!("rsa2048.pk8");

pub(super) struct Signer {
    pub(super) algorithm: SigningAlgorithm,
    id: &'static str,
    key: PrivateKey,
}

enum PrivateKey {
    Rsa(RsaKeyPair),
    Ec(EcdsaKeyPair),
    Ed(Ed25519KeyPair),
}

pub(super) fn base64url(bytes: &[u8]) -> String {
    URL_SAFE_NO_PAD.encode(bytes)
}

impl Signer {
    /// A new key; for RSA always the same.
    pub(super) fn new(algorithm: SigningAlgorithm, id: &'static str) -> Self {
        let random = SystemRandom::new();
        let ecdsa = |algorithm| {
            let document = EcdsaKeyPair::generate_pkcs8(algorithm, &random).unwrap();
            PrivateKey::Ec(EcdsaKeyPair::from_pkcs8(algorithm, document.as_ref(), &random).unwrap())
        };
        let key = match algorithm {
            SigningAlgorithm::Es256 => ecdsa(&signature::ECDSA_P256_SHA256_FIXED_SIGNING),
            SigningAlgorithm::Es384 => ecdsa(&signature::ECDSA_P384_SHA384_FIXED_SIGNING),
            SigningAlgorithm::EdDsa => {
                let document = Ed25519KeyPair::generate_pkcs8(&random).unwrap();
                PrivateKey::Ed(Ed25519KeyPair::from_pkcs8(document.as_ref()).unwrap())
            }
            _ => PrivateKey::Rsa(RsaKeyPair::from_pkcs8(RSA_KEY).unwrap()),
        };
        Self { algorithm, id, key }
    }

    /// The public key, for its algorithm only.
    pub(super) fn jwk(&self) -> Value {
        let mut jwk = match &self.key {
            PrivateKey::Rsa(key) => {
                let components = PublicKeyComponents::<Vec<u8>>::from(key.public());
                json!({"kty": "RSA", "n": base64url(&components.n), "e": base64url(&components.e)})
            }
            PrivateKey::Ec(key) => {
                let point = &key.public_key().as_ref()[1..];
                let (x, y) = point.split_at(point.len() / 2);
                let curve = if x.len() == 32 { "P-256" } else { "P-384" };
                json!({"kty": "EC", "crv": curve, "x": base64url(x), "y": base64url(y)})
            }
            PrivateKey::Ed(key) => json!({"kty": "OKP", "crv": "Ed25519", "x": base64url(key.public_key().as_ref())}),
        };
        (jwk["kid"], jwk["alg"], jwk["use"]) = (self.id.into(), self.algorithm.as_str().into(), "sig".into());
        jwk
    }

    pub(super) fn token(&self, claims: &Value) -> String {
        self.token_with(&json!({"alg": self.algorithm.as_str(), "kid": self.id, "typ": "at+jwt"}), claims)
    }

    pub(super) fn token_with(&self, header: &Value, claims: &Value) -> String {
        self.token_of(&header.to_string(), &claims.to_string())
    }

    /// A token of any two texts.
    pub(super) fn token_of(&self, header: &str, claims: &str) -> String {
        let signed = format!("{}.{}", base64url(header.as_bytes()), base64url(claims.as_bytes()));
        format!("{signed}.{}", base64url(&self.sign(signed.as_bytes())))
    }

    pub(super) fn sign(&self, message: &[u8]) -> Vec<u8> {
        let random = SystemRandom::new();
        match &self.key {
            PrivateKey::Rsa(key) => {
                let padding: &'static dyn RsaEncoding = match self.algorithm {
                    SigningAlgorithm::Rs384 => &signature::RSA_PKCS1_SHA384,
                    SigningAlgorithm::Rs512 => &signature::RSA_PKCS1_SHA512,
                    SigningAlgorithm::Ps256 => &signature::RSA_PSS_SHA256,
                    SigningAlgorithm::Ps384 => &signature::RSA_PSS_SHA384,
                    SigningAlgorithm::Ps512 => &signature::RSA_PSS_SHA512,
                    _ => &signature::RSA_PKCS1_SHA256,
                };
                let mut signed = vec![0; key.public().modulus_len()];
                key.sign(padding, &random, message, &mut signed).unwrap();
                signed
            }
            PrivateKey::Ec(key) => key.sign(&random, message).unwrap().as_ref().to_vec(),
            PrivateKey::Ed(key) => key.sign(message).as_ref().to_vec(),
        }
    }
}
