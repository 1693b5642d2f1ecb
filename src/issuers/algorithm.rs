//! The signature algorithms that are accepted, all of them asymmetric.

use ring::signature as ring_signature;

/// A signature algorithm of RFC 7518 or RFC 8037. There is no `none` and no HMAC: a public key must never be a secret.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SigningAlgorithm {
    /// RSA with PKCS #1 v1.5 padding and SHA-256.
    Rs256,
    /// RSA with PKCS #1 v1.5 padding and SHA-384.
    Rs384,
    /// RSA with PKCS #1 v1.5 padding and SHA-512.
    Rs512,
    /// RSA with PSS padding and SHA-256.
    Ps256,
    /// RSA with PSS padding and SHA-384.
    Ps384,
    /// RSA with PSS padding and SHA-512.
    Ps512,
    /// ECDSA on P-256 with SHA-256.
    Es256,
    /// ECDSA on P-384 with SHA-384.
    Es384,
    /// Ed25519.
    EdDsa,
}

/// The kind of key that an algorithm needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum KeyKind {
    Rsa,
    P256,
    P384,
    Ed25519,
}

impl SigningAlgorithm {
    /// Every algorithm, which is also the default of an issuer.
    pub const ALL: [Self; 9] = [
        Self::Rs256,
        Self::Rs384,
        Self::Rs512,
        Self::Ps256,
        Self::Ps384,
        Self::Ps512,
        Self::Es256,
        Self::Es384,
        Self::EdDsa,
    ];

    /// The name in `alg`.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Rs256 => "RS256",
            Self::Rs384 => "RS384",
            Self::Rs512 => "RS512",
            Self::Ps256 => "PS256",
            Self::Ps384 => "PS384",
            Self::Ps512 => "PS512",
            Self::Es256 => "ES256",
            Self::Es384 => "ES384",
            Self::EdDsa => "EdDSA",
        }
    }

    /// The algorithm with this name, which is case-sensitive.
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|algorithm| algorithm.as_str() == name)
    }

    pub(super) fn key_kind(self) -> KeyKind {
        match self {
            Self::Es256 => KeyKind::P256,
            Self::Es384 => KeyKind::P384,
            Self::EdDsa => KeyKind::Ed25519,
            _ => KeyKind::Rsa,
        }
    }

    /// How ring verifies it, where the key is RSA. Keys of fewer than 2048 bits are refused there as well.
    pub(super) fn rsa_parameters(self) -> Option<&'static ring_signature::RsaParameters> {
        match self {
            Self::Rs256 => Some(&ring_signature::RSA_PKCS1_2048_8192_SHA256),
            Self::Rs384 => Some(&ring_signature::RSA_PKCS1_2048_8192_SHA384),
            Self::Rs512 => Some(&ring_signature::RSA_PKCS1_2048_8192_SHA512),
            Self::Ps256 => Some(&ring_signature::RSA_PSS_2048_8192_SHA256),
            Self::Ps384 => Some(&ring_signature::RSA_PSS_2048_8192_SHA384),
            Self::Ps512 => Some(&ring_signature::RSA_PSS_2048_8192_SHA512),
            Self::Es256 | Self::Es384 | Self::EdDsa => None,
        }
    }
}
