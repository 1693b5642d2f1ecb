//! The request state that a per-request client carries between the rounds of a call. It is sealed for one
//! caller, one group and one request with its parameters.

use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use sha2::{Digest, Sha256};

use super::group::Group;
use super::route::invalid_params;
use crate::call::Call;
use crate::protocol::{ErrorObject, Key, Raw};

/// The content of a request state.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum RequestState {
    /// Resumes the parked call with this id on this node.
    Parked(u128, Arc<str>),
    /// Repeats the call.
    Retry,
    /// Carries the upstream's own request state.
    Upstream(Raw),
}

/// Prefixes of sealed request states, by kind.
const PARKED_PREFIX: &str = "h.";
const RETRY_PREFIX: &str = "a.";
const UPSTREAM_PREFIX: &str = "u.";
/// How long an upstream's own request state is accepted; the upstream may expire it earlier.
pub(super) const UPSTREAM_STATE_LIFETIME: Duration = Duration::from_secs(24 * 3600);

impl RequestState {
    /// Seals the request state with its expiry and the digest of the call.
    pub(super) fn seal(&self, group: &Group, call: &Call, lifetime: Duration) -> String {
        let end = unix_seconds().saturating_add(lifetime.as_secs().saturating_add(1));
        let mut bytes = end.to_be_bytes().to_vec();
        bytes.extend_from_slice(&request_digest(call));
        let prefix = match self {
            Self::Parked(id, node) => {
                bytes.extend_from_slice(&id.to_be_bytes());
                bytes.extend_from_slice(node.as_bytes());
                PARKED_PREFIX
            }
            Self::Retry => RETRY_PREFIX,
            Self::Upstream(state) => {
                bytes.extend_from_slice(state.as_bytes());
                UPSTREAM_PREFIX
            }
        };
        format!("{prefix}{}", group.seal().seal(&purpose(prefix, group, call), &bytes))
    }

    /// The request state of a call; `None` when it has none.
    ///
    /// # Errors
    /// When this gateway did not seal it for this call, or it expired.
    pub(super) fn from_call(group: &Group, call: &Call) -> Result<Option<Self>, ErrorObject> {
        let Some(params) = call.params.as_ref().filter(|params| params.has(Key::RequestState)) else {
            return Ok(None);
        };
        let refused = || invalid_params("`requestState` is none of this server's, for this request; call anew");
        let text = params.text_of(Key::RequestState).ok_or_else(refused)?;
        let (prefix, sealed) = text.split_at_checked(PARKED_PREFIX.len()).ok_or_else(refused)?;
        let bytes = group.seal().open(&purpose(prefix, group, call), sealed).ok_or_else(refused)?;
        let (end, rest) = bytes.split_at_checked(8).ok_or_else(refused)?;
        let (made_for, rest) = rest.split_at_checked(32).ok_or_else(refused)?;
        if made_for != request_digest(call) {
            return Err(refused());
        }
        if u64::from_be_bytes(end.try_into().map_err(|_| refused())?) < unix_seconds() {
            return Err(invalid_params("`requestState` is too old; call anew"));
        }
        Ok(Some(match prefix {
            PARKED_PREFIX => {
                let (id, node) = rest.split_at_checked(16).ok_or_else(refused)?;
                let id = u128::from_be_bytes(id.try_into().map_err(|_| refused())?);
                Self::Parked(id, std::str::from_utf8(node).map_err(|_| refused())?.into())
            }
            RETRY_PREFIX => Self::Retry,
            UPSTREAM_PREFIX => Self::Upstream(Raw::parse(&rest.to_vec().into()).map_err(|_| refused())?),
            _ => return Err(refused()),
        }))
    }
}

/// Associated data of the seal: binds the state to its kind, group and caller.
fn purpose(prefix: &str, group: &Group, call: &Call) -> String {
    format!("{prefix} {} {}", group.name(), call.caller.id())
}

/// Digest of the method and the parameters, without the members that change from round to round.
fn request_digest(call: &Call) -> [u8; 32] {
    let mut hash = Sha256::new();
    hash.update(call.method.as_str().as_bytes());
    if let Some(params) = &call.params {
        hash_canonical(
            &mut hash,
            &params.without(|key, _| matches!(key, b"_meta" | b"inputResponses" | b"requestState")),
        );
    }
    hash.finalize().into()
}

/// What is left to hash, last first.
enum HashStep {
    Value(Raw),
    Key(String),
    Sign(u8),
}

/// Hashes a value independently of member order and string escapes. Numbers are hashed as written. The client decides
/// how deep the value nests, so the steps are kept on the heap.
fn hash_canonical(hash: &mut Sha256, value: &Raw) {
    let mut steps = vec![HashStep::Value(value.clone())];
    while let Some(step) = steps.pop() {
        let value = match step {
            HashStep::Value(value) => value,
            HashStep::Key(key) => {
                hash.update(URL_SAFE_NO_PAD.encode(key.as_bytes()).as_bytes());
                hash.update([b':']);
                continue;
            }
            HashStep::Sign(sign) => {
                hash.update([sign]);
                continue;
            }
        };
        if value.is_object() {
            let mut members: Vec<_> = value.entries().collect();
            members.sort_by(|(one, _), (other, _)| one.cmp(other));
            hash.update([b'{']);
            steps.push(HashStep::Sign(b'}'));
            for (key, member) in members.into_iter().rev() {
                steps.extend([HashStep::Value(member), HashStep::Key(key.into_owned())]);
            }
        } else if value.is_array() {
            hash.update([b'[']);
            steps.push(HashStep::Sign(b']'));
            for item in value.items().into_iter().rev() {
                steps.extend([HashStep::Sign(b','), HashStep::Value(item)]);
            }
        } else if let Some(text) = value.text() {
            hash.update([b'"']);
            hash.update(URL_SAFE_NO_PAD.encode(text.as_bytes()).as_bytes());
        } else {
            hash.update(value.as_bytes());
        }
    }
}

fn unix_seconds() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

/// An unguessable id.
///
/// # Panics
/// When the operating system has no randomness.
pub(super) fn random_id() -> u128 {
    let mut bytes = [0; 16];
    getrandom::fill(&mut bytes).expect("the operating system provides randomness");
    u128::from_be_bytes(bytes)
}
