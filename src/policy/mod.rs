//! May this happen? Decisions over facts; no sockets, no statuses.

mod auth;
mod host_origin;
mod limits;

use std::net::SocketAddr;

use http::{HeaderMap, HeaderName, Uri};

use crate::call::{Caller, Principal, REQUEST_ID, TRACE};

pub use auth::Tokens;
pub use host_origin::HostOriginRules;
pub use limits::Limits;

/// Everything that is decided before a body is read.
#[derive(Debug, Default)]
pub struct Policy {
    /// Which hosts and origins may be named.
    pub doors: HostOriginRules,
    /// Who may call.
    pub tokens: Tokens,
    /// The headers that travel with a call as part of its caller.
    pub caller_headers: Vec<HeaderName>,
}

/// The headers that travel with every call.
static CARRIED: [HeaderName; 4] = [
    HeaderName::from_static(TRACE[0]),
    HeaderName::from_static(TRACE[1]),
    HeaderName::from_static(TRACE[2]),
    REQUEST_ID,
];

/// Why a request is turned away.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Denied {
    /// The `Host` is not one of ours.
    Host(String),
    /// The `Origin` may not call us.
    Origin(String),
    /// Nobody we know.
    Credentials,
}

impl Policy {
    /// Judges a request by its head: the host and origin it names, then who sends it.
    ///
    /// # Errors
    /// The first judgement that fails.
    pub fn admit(&self, uri: &Uri, headers: &HeaderMap, peer: Option<SocketAddr>) -> Result<Caller, Denied> {
        self.doors.admit(uri, headers)?;
        let principal: Principal = self.tokens.principal(headers)?;
        Ok(self.caller(principal, headers, peer))
    }

    /// A caller with what of a request's headers travels with its calls.
    pub fn caller(&self, principal: Principal, headers: &HeaderMap, peer: Option<SocketAddr>) -> Caller {
        let mut chosen = HeaderMap::new();
        for (name, value) in headers {
            let all = self.caller_headers.contains(name);
            if all || CARRIED.contains(name) && !chosen.contains_key(name) {
                chosen.append(name, value.clone());
            }
        }
        Caller { principal, peer, headers: chosen }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_caller_carries_the_headers_that_were_chosen() {
        let policy = Policy { caller_headers: vec![HeaderName::from_static("x-tenant")], ..Policy::default() };
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
