//! Whose calls share a lease.

use std::net::IpAddr;
use std::sync::Arc;

use crate::call::{Call, Caller};
use crate::identity::CallerId;
use crate::protocol::Raw;

/// Who a lease belongs to.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) enum LeaseKey {
    /// A client session, by its key.
    Session(u128),
    /// Calls without a session, grouped by caller and the server requests that they may get.
    Caller(LeaseOwner, AcceptedRequests),
}

/// Who a lease of calls without a session belongs to. Callers without a credential are told apart by their address: the
/// questions of a server go to whoever shares the lease.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct LeaseOwner {
    caller: CallerId,
    address: Option<IpAddr>,
}

/// The server requests that a client accepts, as a set of bits: what a client declares beyond them is no reason for
/// another lease.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct AcceptedRequests(u8);

/// Client capabilities that allow a server to send requests.
pub const SERVER_REQUEST_CAPABILITIES: [&str; 3] = ["sampling", "elicitation", "roots"];

/// Client capabilities without those.
pub fn without_server_requests(capabilities: &Raw) -> Raw {
    capabilities.without(|key, _| SERVER_REQUEST_CAPABILITIES.iter().any(|kind| kind.as_bytes() == key))
}

// === impl AcceptedRequests ===

impl AcceptedRequests {
    /// What a client declares.
    pub fn of(capabilities: &Raw) -> Self {
        let [sampling, elicitation, roots] = capabilities.pick(SERVER_REQUEST_CAPABILITIES);
        let has = |declared: &Option<Raw>, kind: &str| declared.as_ref().is_some_and(|all| all.get(kind).is_some());
        let url = has(&elicitation, "url");
        let flags = [
            sampling.is_some(),
            has(&sampling, "tools"),
            has(&sampling, "context"),
            // Without a mode, forms are meant.
            elicitation.is_some() && (!url || has(&elicitation, "form")),
            url,
            roots.is_some(),
        ];
        Self(flags.iter().enumerate().map(|(bit, set)| u8::from(*set) << bit).sum())
    }

    /// Accepts nothing.
    pub const NONE: Self = Self(0);

    /// The set as a number.
    pub fn bits(self) -> u8 {
        self.0
    }
}

// === impl LeaseKey ===

impl LeaseKey {
    /// Whether this is a lease of that caller for calls without a session.
    pub(super) fn is_caller(&self, caller: &LeaseOwner) -> bool {
        matches!(self, Self::Caller(owner, _) if owner == caller)
    }

    /// Whose lease a call uses; `accepted` are the server requests that it may get.
    pub(super) fn for_call(call: &Call, accepted: impl FnOnce() -> AcceptedRequests) -> Self {
        match &call.sink {
            Some(sink) => Self::Session(sink.key()),
            None => Self::Caller(LeaseOwner::of(&call.caller), accepted()),
        }
    }
}

impl LeaseOwner {
    fn of(caller: &Caller) -> Self {
        let address = caller.peer.filter(|_| caller.identity.is_anonymous()).map(|peer| peer.ip());
        Self { caller: Arc::clone(caller.id()), address }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn accepted(capabilities: &serde_json::Value) -> AcceptedRequests {
        AcceptedRequests::of(&Raw::of(capabilities))
    }

    #[test]
    fn only_what_a_server_may_ask_is_told_apart() {
        assert_eq!(accepted(&json!({})), AcceptedRequests::NONE);
        assert_eq!(accepted(&json!({ "experimental": { "n": 7 }, "extensions": {} })), AcceptedRequests::NONE);
        let form = accepted(&json!({ "elicitation": {} }));
        assert_eq!(form, accepted(&json!({ "x": 1, "elicitation": { "form": { "y": 2 } } })));
        let url = accepted(&json!({ "elicitation": { "url": {} } }));
        let both = accepted(&json!({ "elicitation": { "url": {}, "form": {} } }));
        let sampling = accepted(&json!({ "sampling": {} }));
        let with_tools = accepted(&json!({ "sampling": { "tools": {} } }));
        let roots = accepted(&json!({ "roots": { "listChanged": true } }));
        assert_eq!(roots, accepted(&json!({ "roots": {} })));
        let all = [AcceptedRequests::NONE, form, url, both, sampling, with_tools, roots];
        let different: std::collections::HashSet<_> = all.iter().collect();
        assert_eq!(different.len(), all.len());
    }
}
