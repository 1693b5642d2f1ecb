//! Whose calls share a lease.

use bytes::Bytes;

use crate::call::{Call, Principal};
use crate::protocol::Raw;

/// Who a lease belongs to.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) enum LeaseKey {
    /// A client session, by its key.
    Session(u128),
    /// Calls without a session, grouped by principal and declared client capabilities.
    Caller(Principal, Bytes),
}

/// Client capabilities that allow a server to send requests.
pub const SERVER_REQUEST_CAPABILITIES: [&str; 3] = ["sampling", "elicitation", "roots"];

/// Whether a client declared any capability that allows server requests.
pub(super) fn accepts_server_requests(capabilities: &Raw) -> bool {
    SERVER_REQUEST_CAPABILITIES.iter().any(|kind| capabilities.get(kind).is_some())
}

// === impl LeaseKey ===

impl LeaseKey {
    pub(super) fn for_call(call: &Call) -> Self {
        match &call.sink {
            Some(sink) => Self::Session(sink.key()),
            None => Self::Caller(call.caller.principal.clone(), call.client.capabilities.bytes()),
        }
    }
}
