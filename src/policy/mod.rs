//! Admission decisions: host and origin, principal, operators, limits and quotas. Pure: no sockets, no status codes.

mod auth;
mod caller_quota;
mod host_origin;
mod limits;
mod operators;
mod quota;
mod quotas;

use std::net::SocketAddr;

use http::{HeaderMap, HeaderName, Uri};

use crate::call::{Caller, Principal, REQUEST_ID, TRACE_HEADERS};

pub use auth::{RevokedCallers, Tokens};
pub use caller_quota::{CallerPermit, CallerQuota, QuotaKey};
pub use host_origin::HostOriginRules;
pub use limits::Limits;
pub use operators::{AdminToken, OperationsListener};
pub use quota::{Permit, Quota, ScopedPermit};
pub use quotas::{QuotaLimits, QuotaUsage, Quotas};

/// The rules that a request must pass before its body is read.
#[derive(Debug, Default)]
pub struct Policy {
    /// Allowed hosts and origins.
    pub host_origin: HostOriginRules,
    /// Accepted bearer tokens.
    pub tokens: Tokens,
    /// Token of operators.
    pub admin_token: AdminToken,
    /// Request headers that are forwarded to upstreams along with the caller.
    pub forward_headers: Vec<HeaderName>,
}

/// Trace and request id headers, forwarded with every call; only their first value.
static ALWAYS_FORWARDED: [HeaderName; 4] = [
    HeaderName::from_static(TRACE_HEADERS[0]),
    HeaderName::from_static(TRACE_HEADERS[1]),
    HeaderName::from_static(TRACE_HEADERS[2]),
    REQUEST_ID,
];

/// Why a request was not admitted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Denied {
    /// This `Host` is not allowed.
    Host(String),
    /// This `Origin` is not allowed.
    Origin(String),
    /// The bearer token is missing or unknown.
    Credentials,
}

impl Policy {
    /// Checks the request head: host, origin, then bearer token.
    ///
    /// # Errors
    /// The first check that fails.
    pub fn admit(&self, uri: &Uri, headers: &HeaderMap, peer: Option<SocketAddr>) -> Result<Caller, Denied> {
        self.host_origin.admit(uri, headers)?;
        let principal: Principal = self.tokens.principal(headers)?;
        Ok(self.caller(principal, headers, peer))
    }

    /// Builds a caller with those request headers that are forwarded.
    pub fn caller(&self, principal: Principal, headers: &HeaderMap, peer: Option<SocketAddr>) -> Caller {
        let mut forwarded = HeaderMap::new();
        for (name, value) in headers {
            let is_configured = self.forward_headers.contains(name);
            if is_configured || ALWAYS_FORWARDED.contains(name) && !forwarded.contains_key(name) {
                forwarded.append(name, value.clone());
            }
        }
        Caller { principal, peer, headers: forwarded }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_configured_headers_are_forwarded_with_the_caller() {
        let policy = Policy { forward_headers: vec![HeaderName::from_static("x-tenant")], ..Policy::default() };
        let mut headers = HeaderMap::new();
        for (name, value) in [("host", "localhost"), ("x-tenant", "a"), ("x-tenant", "b"), ("cookie", "secret")] {
            headers.append(name, value.parse().unwrap());
        }
        let peer: SocketAddr = "127.0.0.1:5".parse().unwrap();
        let caller = policy.admit(&Uri::from_static("/mcp"), &headers, Some(peer)).unwrap();
        assert_eq!((caller.principal.as_ref(), caller.peer), ("anybody", Some(peer)));
        assert_eq!(caller.headers.get_all("x-tenant").iter().count(), 2);
        assert_eq!(caller.headers.len(), 2, "and no others");
    }
}
