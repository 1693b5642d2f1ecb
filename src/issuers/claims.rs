//! What a verified token says of its holder.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, SystemTime};

use serde_json::{Map, Value};

use super::TokenError;
use super::audience::is_same_audience;
use super::settings::{AudienceClaim, IssuerSettings};
use crate::identity::{Credential, Identity};
use crate::line_log::is_unprintable;

/// Longest subject and client id.
const MAX_ID_BYTES: usize = 1024;
/// Most roles, and most scopes, of one token.
const MAX_ROLES: usize = 200;
/// Longest role or scope.
const MAX_ROLE_CHARS: usize = 128;
/// Longest name that is kept for display.
const MAX_NAME_CHARS: usize = 256;
/// Latest time that a token may name: the end of the year 9999.
const MAX_SECONDS: f64 = 253_402_300_799.0;
/// Claims with roles, where the file names none.
const ROLES_CLAIMS: [&str; 2] = ["roles", "groups"];

/// Decides whether a value of `aud` is an address that the request was sent to.
pub type AudienceCheck<'c> = dyn Fn(&str) -> bool + Sync + 'c;

/// A token that was verified, by its signature or by its issuer. Time and audience are judged at each use.
#[derive(Debug)]
pub(super) struct VerifiedToken {
    identity: Arc<Identity>,
    /// Earliest use, leeway included.
    starts_at: SystemTime,
    /// End, leeway included.
    ends_at: SystemTime,
    audience: TokenAudience,
}

/// Whom a token is for.
#[derive(Debug)]
enum TokenAudience {
    /// An audience that the file lists.
    Listed,
    /// These; one of them has to be the address that is asked.
    Named(Vec<Box<str>>),
}

impl VerifiedToken {
    /// Reads the claims of a token whose origin is established.
    ///
    /// # Errors
    /// [`TokenError::Unverifiable`] where claims are missing or malformed.
    pub(super) fn read(
        settings: &IssuerSettings,
        claims: Map<String, Value>,
        credential: Credential,
        warned: &AtomicBool,
    ) -> Result<Self, TokenError> {
        // A token that is bound to a key (DPoP, mutual TLS) is no bearer token.
        if claims.contains_key("cnf") {
            return Err(TokenError::Unverifiable);
        }
        if has_other_purpose(&claims) {
            return Err(TokenError::Unverifiable);
        }
        let ends_at = time(&claims, "exp")?.ok_or(TokenError::Unverifiable)? + settings.leeway;
        let starts = [time(&claims, "nbf")?, time(&claims, "iat")?].into_iter().flatten().max();
        let starts_at = starts.and_then(|start| start.checked_sub(settings.leeway)).unwrap_or(SystemTime::UNIX_EPOCH);
        let audience = TokenAudience::read(settings, &claims);
        let client_id = match id(&claims, "client_id")? {
            Some(client_id) => Some(client_id),
            None => id(&claims, "azp")?,
        };
        let principal = match (id(&claims, "sub")?, client_id) {
            // It would be the principal of a client.
            (Some(subject), _) if subject.starts_with('|') => return Err(TokenError::Unverifiable),
            (Some(subject), _) => format!("{}|{subject}", settings.issuer),
            (None, Some(client_id)) => format!("{}||{client_id}", settings.issuer),
            (None, None) => return Err(TokenError::Unverifiable),
        };
        let mut identity = Identity::new(principal, credential);
        if let Some(client_id) = client_id {
            identity = identity.with_client_id(client_id);
        }
        identity.roles = roles(settings, &claims, warned);
        identity.scopes = scopes(&claims);
        identity.name = claims.get(settings.name_claim.as_str()).and_then(Value::as_str).and_then(display_name);
        identity.token_id = id(&claims, "jti").ok().flatten().map(Into::into);
        identity.expires_at = Some(ends_at);
        identity.claims = Some(Arc::new(claims));
        Ok(Self { identity: Arc::new(identity), starts_at, ends_at, audience })
    }

    /// Says which key signed the token.
    pub(super) fn with_signing_key(mut self, digest: &Arc<str>) -> Self {
        Arc::make_mut(&mut self.identity).signing_key = Some(Arc::clone(digest));
        self
    }

    /// The holder, if the token may be used now and for what was asked.
    ///
    /// # Errors
    /// The first rule that it breaks: expiry, start, audience.
    pub(super) fn accept(&self, now: SystemTime, is_asked: &AudienceCheck<'_>) -> Result<Arc<Identity>, TokenError> {
        if now >= self.ends_at {
            return Err(TokenError::Expired);
        }
        if now < self.starts_at {
            return Err(TokenError::NotYetValid);
        }
        let is_for_us = match &self.audience {
            TokenAudience::Listed => true,
            TokenAudience::Named(values) => values.iter().any(|value| is_asked(value)),
        };
        if is_for_us { Ok(Arc::clone(&self.identity)) } else { Err(TokenError::WrongAudience) }
    }

    /// Whether the token can be used now or later.
    pub(super) fn has_ended(&self, now: SystemTime) -> bool {
        now >= self.ends_at
    }
}

impl TokenAudience {
    fn read(settings: &IssuerSettings, claims: &Map<String, Value>) -> Self {
        let name = match settings.audience_claim {
            AudienceClaim::Aud => "aud",
            AudienceClaim::ClientId => "client_id",
        };
        let values: Vec<&str> = match claims.get(name) {
            Some(Value::String(value)) => vec![value],
            // One that is no string makes the whole list malformed.
            Some(Value::Array(values)) => values.iter().map(Value::as_str).collect::<Option<_>>().unwrap_or_default(),
            _ => Vec::new(),
        };
        let listed = |value: &&str| settings.audiences.iter().any(|listed| is_same_audience(value, listed));
        match settings.audience_claim {
            _ if values.iter().any(listed) => Self::Listed,
            AudienceClaim::Aud => Self::Named(values.into_iter().map(Into::into).collect()),
            AudienceClaim::ClientId => Self::Named(Vec::new()),
        }
    }
}

/// A time in seconds since 1970, with or without a fraction.
fn time(claims: &Map<String, Value>, name: &str) -> Result<Option<SystemTime>, TokenError> {
    let Some(value) = claims.get(name) else { return Ok(None) };
    let seconds = value.as_f64().filter(|seconds| (0.0..=MAX_SECONDS).contains(seconds));
    let seconds = seconds.ok_or(TokenError::Unverifiable)?;
    Ok(Some(SystemTime::UNIX_EPOCH + Duration::from_secs_f64(seconds)))
}

/// An id: not empty, bounded, and on one line, because it becomes part of keys and logs.
fn id<'c>(claims: &'c Map<String, Value>, name: &str) -> Result<Option<&'c str>, TokenError> {
    let Some(value) = claims.get(name) else { return Ok(None) };
    let is_valid = |id: &&str| !id.is_empty() && id.len() <= MAX_ID_BYTES && !id.chars().any(is_unprintable);
    value.as_str().filter(is_valid).map(Some).ok_or(TokenError::Unverifiable)
}

fn display_name(name: &str) -> Option<Arc<str>> {
    let shown: String = name.chars().filter(|character| !is_unprintable(*character)).take(MAX_NAME_CHARS).collect();
    (!shown.is_empty()).then(|| shown.into())
}

/// The scopes that were granted: `scope` as a string, or `scp` as a string or a list.
fn scopes(claims: &Map<String, Value>) -> Vec<Arc<str>> {
    let found: Vec<&str> = match (claims.get("scope"), claims.get("scp")) {
        (Some(Value::String(scopes)), _) | (None, Some(Value::String(scopes))) => scopes.split_whitespace().collect(),
        (None, Some(Value::Array(scopes))) => scopes.iter().filter_map(Value::as_str).collect(),
        _ => Vec::new(),
    };
    found.into_iter().filter(|scope| is_short(scope)).take(MAX_ROLES).map(Into::into).collect()
}

/// The roles of the claims that the file names. Too many are cut, with one warning per issuer.
fn roles(settings: &IssuerSettings, claims: &Map<String, Value>, warned: &AtomicBool) -> Vec<Arc<str>> {
    let named = settings.roles_claim.as_deref();
    let places = named.map_or_else(|| ROLES_CLAIMS.to_vec(), |name| vec![name]);
    let mut found: Vec<Arc<str>> = Vec::new();
    let mut dropped = 0_usize;
    for value in places.into_iter().filter_map(|place| claim_at(claims, place)) {
        let values = match value {
            Value::String(role) => vec![role.as_str()],
            Value::Array(roles) => roles.iter().filter_map(Value::as_str).collect(),
            _ => Vec::new(),
        };
        for role in values {
            match found.len() < MAX_ROLES && is_short(role) {
                true => found.push(role.into()),
                false => dropped += 1,
            }
        }
    }
    if dropped > 0 && !warned.swap(true, Ordering::Relaxed) {
        tracing::warn!(
            issuer = &*settings.name,
            dropped,
            "a token has more than {MAX_ROLES} roles, or roles of more than {MAX_ROLE_CHARS} characters; they are left out"
        );
    }
    found
}

fn is_short(word: &str) -> bool {
    !word.is_empty() && word.chars().count() <= MAX_ROLE_CHARS
}

/// A claim by its name. Dots descend into objects, unless a claim has the whole name: namespaced claims are URLs.
fn claim_at<'c>(claims: &'c Map<String, Value>, path: &str) -> Option<&'c Value> {
    if let Some(value) = claims.get(path) {
        return Some(value);
    }
    let (first, rest) = path.split_once('.')?;
    claim_at(claims.get(first)?.as_object()?, rest)
}

/// Whether the claims are those of a token that is not for access: an ID token, a refresh token, a notice of a logout. One
/// of them may well name the audience that is accepted.
fn has_other_purpose(claims: &Map<String, Value>) -> bool {
    let is = |name: &str, values: &[&str]| {
        claims.get(name).and_then(Value::as_str).is_some_and(|value| values.contains(&value))
    };
    ["at_hash", "c_hash", "events"].iter().any(|name| claims.contains_key(*name))
        || is("typ", &["ID", "Refresh", "Offline", "Logout"])
        || is("token_use", &["id"])
}
