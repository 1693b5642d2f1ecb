//! Whose calls share a lease.

use crate::call::{Call, Principal};
use crate::protocol::Raw;

/// Who a lease belongs to.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) enum LeaseKey {
    /// A client session, by its key.
    Session(u128),
    /// Calls without a session, grouped by principal and the server requests that they may get.
    Caller(Principal, AcceptedRequests),
}

/// The server requests that a client accepts, as a set of bits: what a client declares beyond them is no reason for
/// another lease.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct AcceptedRequests(u8);

/// Client capabilities that allow a server to send requests.
pub const SERVER_REQUEST_CAPABILITIES: [&str; 3] = ["sampling", "elicitation", "roots"];

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
    pub(super) fn for_call(call: &Call, allows_server_requests: bool) -> Self {
        let accepted = || match allows_server_requests {
            true => AcceptedRequests::of(&call.client.capabilities),
            false => AcceptedRequests::NONE,
        };
        match &call.sink {
            Some(sink) => Self::Session(sink.key()),
            None => Self::Caller(call.caller.principal.clone(), accepted()),
        }
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
