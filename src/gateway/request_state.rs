//! The state that a client of the per-request era carries between the rounds of a call. It is
//! sealed for one caller of one group, and for one request with its parameters.

use std::sync::{Arc, LazyLock};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use memchr::memmem::Finder;
use sha2::{Digest, Sha256};

use super::group::Group;
use super::route::invalid;
use crate::call::Call;
use crate::protocol::{ErrorObject, Raw};

/// What a state says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum RequestState {
    /// Go on with this held call, on the node of this name.
    Parked(u128, Arc<str>),
    /// Make the call again.
    Retry,
    /// This is the upstream's own state.
    Upstream(Raw),
}

/// What states begin with, by kind.
const HELD: &str = "h.";
const AGAIN: &str = "a.";
const UPSTREAM: &str = "u.";
/// How long an upstream's own state is taken; it may have a limit of its own.
pub(super) const LIFETIME: Duration = Duration::from_secs(24 * 3600);

/// The member that it is carried in, looked for in every request and every result.
pub(super) static REQUEST_STATE: LazyLock<Finder<'static>> = LazyLock::new(|| Finder::new("requestState"));

impl RequestState {
    /// As the client carries it.
    pub(super) fn seal(&self, group: &Group, call: &Call, lifetime: Duration) -> String {
        let end = now().saturating_add(lifetime.as_secs().saturating_add(1));
        let mut bytes = end.to_be_bytes().to_vec();
        bytes.extend_from_slice(&digest(call));
        let prefix = match self {
            Self::Parked(id, node) => {
                bytes.extend_from_slice(&id.to_be_bytes());
                bytes.extend_from_slice(node.as_bytes());
                HELD
            }
            Self::Retry => AGAIN,
            Self::Upstream(state) => {
                bytes.extend_from_slice(state.as_bytes());
                UPSTREAM
            }
        };
        format!("{prefix}{}", group.seal().seal(&purpose(prefix, group, call), &bytes))
    }

    /// The state that a call carries; nothing when it carries none.
    ///
    /// # Errors
    /// When it is none of ours, or not for this call, or too old.
    pub(super) fn of(group: &Group, call: &Call) -> Result<Option<Self>, ErrorObject> {
        let params = call.params.as_ref().filter(|params| params.may_have(&REQUEST_STATE));
        let Some(text) = params.and_then(|params| params.get("requestState")) else { return Ok(None) };
        let refused = || invalid("`requestState` is none of this server's, for this request; call anew");
        let text = text.text().ok_or_else(refused)?;
        let (prefix, sealed) = text.split_at_checked(HELD.len()).ok_or_else(refused)?;
        let bytes = group.seal().open(&purpose(prefix, group, call), sealed).ok_or_else(refused)?;
        let (end, rest) = bytes.split_at_checked(8).ok_or_else(refused)?;
        let (made_for, rest) = rest.split_at_checked(32).ok_or_else(refused)?;
        if made_for != digest(call) {
            return Err(refused());
        }
        if u64::from_be_bytes(end.try_into().map_err(|_| refused())?) < now() {
            return Err(invalid("`requestState` is too old; call anew"));
        }
        Ok(Some(match prefix {
            HELD => {
                let (id, node) = rest.split_at_checked(16).ok_or_else(refused)?;
                let id = u128::from_be_bytes(id.try_into().map_err(|_| refused())?);
                Self::Parked(id, std::str::from_utf8(node).map_err(|_| refused())?.into())
            }
            AGAIN => Self::Retry,
            UPSTREAM => Self::Upstream(Raw::parse(&rest.to_vec().into()).map_err(|_| refused())?),
            _ => return Err(refused()),
        }))
    }
}

/// Whom a state is for: it does not open for anybody else.
fn purpose(prefix: &str, group: &Group, call: &Call) -> String {
    format!("{prefix} {} {}", group.name(), call.caller.principal)
}

/// Stands for a request and its parameters, without what changes from round to round.
fn digest(call: &Call) -> [u8; 32] {
    let mut hash = Sha256::new();
    hash.update(call.method.as_str().as_bytes());
    if let Some(params) = &call.params {
        add(&mut hash, &params.without(|key, _| matches!(key, b"_meta" | b"inputResponses" | b"requestState")));
    }
    hash.finalize().into()
}

/// Adds a value however its members are ordered and its texts spelled; numbers count as they are
/// written, whatever their size.
fn add(hash: &mut Sha256, value: &Raw) {
    if value.is_object() {
        let mut members: Vec<_> = value.entries().collect();
        members.sort_by(|(one, _), (other, _)| one.cmp(other));
        hash.update([b'{']);
        for (key, member) in members {
            hash.update(URL_SAFE_NO_PAD.encode(key.as_bytes()).as_bytes());
            hash.update([b':']);
            add(hash, &member);
        }
        hash.update([b'}']);
    } else if value.is_array() {
        hash.update([b'[']);
        for item in value.items() {
            add(hash, &item);
            hash.update([b',']);
        }
        hash.update([b']']);
    } else if let Some(text) = value.text() {
        hash.update([b'"']);
        hash.update(URL_SAFE_NO_PAD.encode(text.as_bytes()).as_bytes());
    } else {
        hash.update(value.as_bytes());
    }
}

fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

/// A number that nobody can guess.
///
/// # Panics
/// When the system has no randomness to give; nothing would be safe without it.
pub(super) fn random() -> u128 {
    let mut bytes = [0; 16];
    getrandom::fill(&mut bytes).expect("the system gives randomness");
    u128::from_be_bytes(bytes)
}
