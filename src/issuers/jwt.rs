//! Takes a signed token apart (RFC 7515, 7519), before anything in it is believed.

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde_json::{Map, Value};

use super::json::read_object;

/// Largest token that is looked at.
pub(super) const MAX_TOKEN_BYTES: usize = 16 << 10;

/// A token whose signature was not verified yet.
#[derive(Debug)]
pub(super) struct UnverifiedToken<'t> {
    /// `alg`, as the token has it.
    pub(super) algorithm: String,
    /// `kid`.
    pub(super) key_id: Option<String>,
    pub(super) claims: Map<String, Value>,
    /// What was signed.
    pub(super) signed: &'t [u8],
    pub(super) signature: Vec<u8>,
}

/// Whether a credential has the form of a signed token: three parts in base64url, of which the last may be empty.
pub(super) fn has_jwt_form(token: &str) -> bool {
    let is_base64url =
        |part: &str| part.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_'));
    let mut parts = token.split('.');
    let (Some(header), Some(payload), Some(signature), None) = (parts.next(), parts.next(), parts.next(), parts.next())
    else {
        return false;
    };
    !header.is_empty() && !payload.is_empty() && [header, payload, signature].into_iter().all(is_base64url)
}

impl<'t> UnverifiedToken<'t> {
    /// Takes a token apart. `None` for one that nobody could verify: malformed, of another type, or with extensions that
    /// must be understood. Keys and addresses of keys in the header (`jwk`, `jku`, `x5u`, `x5c`) are not looked at.
    pub(super) fn parse(token: &'t str) -> Option<Self> {
        if token.len() > MAX_TOKEN_BYTES {
            return None;
        }
        let (signed, signature) = token.rsplit_once('.')?;
        let (header, payload) = signed.split_once('.')?;
        let decode = |part: &str| URL_SAFE_NO_PAD.decode(part).ok();
        let header = read_object(&decode(header)?).ok()?;
        let claims = read_object(&decode(payload)?).ok()?;
        if header.contains_key("crit") || !header.get("typ").is_none_or(is_access_token_type) {
            return None;
        }
        let key_id = match header.get("kid") {
            None => None,
            Some(Value::String(id)) => Some(id.clone()),
            Some(_) => return None,
        };
        let algorithm = header.get("alg")?.as_str()?.to_owned();
        Some(Self { algorithm, key_id, claims, signed: signed.as_bytes(), signature: decode(signature)? })
    }

    /// `iss`, which selects the issuer.
    pub(super) fn issuer(&self) -> Option<&str> {
        self.claims.get("iss")?.as_str()
    }
}

/// Whether `typ` is that of a JWT or of an access token (RFC 9068). A token of another type was made for another purpose.
fn is_access_token_type(typ: &Value) -> bool {
    let Some(typ) = typ.as_str().map(str::to_ascii_lowercase) else { return false };
    matches!(typ.strip_prefix("application/").unwrap_or(&typ), "jwt" | "at+jwt")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_form_tells_signed_tokens_from_others() {
        for token in ["a.b.c", "a.b.", "eyJ-_.eyJ9.x"] {
            assert!(has_jwt_form(token), "{token}");
        }
        for token in ["", "abc", "a.b", ".b.c", "a..c", "a.b.c.d", "a.b.c=", "a.b+.c", "a.b.c d"] {
            assert!(!has_jwt_form(token), "{token}");
        }
    }
}
