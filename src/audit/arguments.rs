//! What the audit log has of the arguments of a call.

use serde_json::Value;
use serde_json::value::{RawValue, to_raw_value};
use sha2::{Digest, Sha256};

use super::event::cut;
use super::hex;
use crate::protocol::Raw;

/// What is written of the arguments of a call.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum ArgumentDetail {
    /// Nothing.
    #[default]
    None,
    /// The names of the members.
    Keys,
    /// A keyed digest, by which equal arguments can be found.
    Digest,
    /// Everything but the redacted members.
    All,
}

/// JSON Pointers (RFC 6901) to members that are masked.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RedactedPointers(Vec<String>);

/// Members of which the names are written.
const MAX_KEYS: usize = 64;
/// Longer arguments are replaced by their size.
const MAX_ARGUMENT_BYTES: usize = 16 << 10;
/// What stands in place of a redacted member.
const MASK: &str = "***";

impl RedactedPointers {
    /// Masks what these pointers point to.
    pub fn new(pointers: &[String]) -> Self {
        Self(pointers.to_vec())
    }
}

impl ArgumentDetail {
    /// What is written of these arguments.
    pub(super) fn describe(
        self,
        arguments: &Raw,
        redacted: &RedactedPointers,
        key: &[u8; 32],
    ) -> Option<Box<RawValue>> {
        match self {
            Self::None => None,
            Self::Keys => {
                let keys: Vec<String> = arguments.entries().take(MAX_KEYS).map(|(name, _)| cut(&name)).collect();
                to_raw_value(&keys).ok()
            }
            Self::Digest => to_raw_value(&keyed_digest(arguments.as_bytes(), key)).ok(),
            Self::All => {
                let size = arguments.as_bytes().len();
                let read =
                    if size > MAX_ARGUMENT_BYTES { None } else { serde_json::from_slice(arguments.as_bytes()).ok() };
                let Some(mut value): Option<Value> = read else {
                    return to_raw_value(&serde_json::json!({ "omitted_bytes": size })).ok();
                };
                for pointer in &redacted.0 {
                    if let Some(member) = value.pointer_mut(pointer) {
                        *member = MASK.into();
                    }
                }
                to_raw_value(&value).ok()
            }
        }
    }
}

/// The key goes into both rounds, so that nobody without it can compute the digest of guessed arguments.
fn keyed_digest(bytes: &[u8], key: &[u8; 32]) -> String {
    let inner = Sha256::new().chain_update(key).chain_update(bytes).finalize();
    let outer = Sha256::new().chain_update(key).chain_update(inner).finalize();
    hex(&outer[..16])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn described(detail: ArgumentDetail, arguments: &'static str) -> String {
        let redacted = RedactedPointers::new(&["/password".into(), "/nested/0/key".into(), "/a~1b".into()]);
        let described = detail.describe(&Raw::constant(arguments), &redacted, &[7; 32]);
        described.map_or_else(String::new, |described| described.get().to_owned())
    }

    #[test]
    fn arguments_are_described_as_configured() {
        let arguments = r#"{ "password": "s3cret", "nested": [{ "key": "s3cret", "n": 1 }], "a/b": "s3cret" }"#;
        assert_eq!(described(ArgumentDetail::None, arguments), "");
        assert_eq!(described(ArgumentDetail::Keys, arguments), r#"["password","nested","a/b"]"#);
        assert_eq!(
            described(ArgumentDetail::All, arguments),
            r#"{"a/b":"***","nested":[{"key":"***","n":1}],"password":"***"}"#
        );
        let digest = described(ArgumentDetail::Digest, arguments);
        assert_eq!(digest, described(ArgumentDetail::Digest, arguments));
        assert_ne!(digest, described(ArgumentDetail::Digest, "{}"));
        assert!(digest.len() == 34, "{digest}");
        // A member that stands twice is masked whichever the server reads.
        let twice = r#"{"password":"s3cret","password":"other s3cret"}"#;
        assert_eq!(described(ArgumentDetail::All, twice), r#"{"password":"***"}"#);
    }

    #[test]
    fn large_and_unreadable_arguments_are_replaced_by_their_size() {
        let large = format!("{{\"text\":\"{}\"}}", "x".repeat(MAX_ARGUMENT_BYTES));
        let large: &'static str = large.leak();
        assert_eq!(described(ArgumentDetail::All, large), format!("{{\"omitted_bytes\":{}}}", large.len()));
        let deep: &'static str = format!("{}{}", "[".repeat(200), "]".repeat(200)).leak();
        assert_eq!(described(ArgumentDetail::All, deep), r#"{"omitted_bytes":400}"#);
    }
}
