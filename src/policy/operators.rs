//! Who may see metrics and status: operators, by listener, by address, or by the admin token.

use std::net::SocketAddr;

use http::Uri;
use http::header::ORIGIN;
use subtle::ConstantTimeEq;

use super::Policy;
use super::credentials::bearer_token;
use super::host_origin::is_loopback_host;
use super::trusted_proxies::RequestSource;
use crate::http::codec::HeaderFields;

/// Which listener an operations request arrived on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OperationsListener {
    /// The operators' own.
    Operators,
    /// The one that clients use.
    Clients,
}

/// The admin token, if one is configured. `Debug` does not show it.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct AdminToken(Option<String>);

impl AdminToken {
    /// Accepts this token.
    pub fn new(token: impl Into<String>) -> Self {
        Self(Some(token.into()))
    }

    fn is_presented(&self, headers: &HeaderFields) -> bool {
        match (&self.0, bearer_token(headers)) {
            (Some(token), Some(given)) => token.as_bytes().ct_eq(given).into(),
            _ => false,
        }
    }
}

impl AdminToken {
    /// Whether a request presents something else in the place of the token.
    pub fn is_guessed(&self, headers: &HeaderFields) -> bool {
        self.0.is_some() && bearer_token(headers).is_some() && !self.is_presented(headers)
    }
}

impl std::fmt::Debug for AdminToken {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(if self.0.is_some() { "***" } else { "none" })
    }
}

impl Policy {
    /// Whether a request for metrics or status comes from an operator. Everybody else must get what an unknown path
    /// gets.
    ///
    /// An operator presents the admin token, or is on this machine, or uses the operators' own listener while no token
    /// is configured. A page that may not call the gateway is never an operator.
    pub fn is_operator(
        &self,
        listener: OperationsListener,
        uri: &Uri,
        headers: &HeaderFields,
        peer: SocketAddr,
    ) -> bool {
        let is_foreign_page = headers.get_text(ORIGIN).is_some_and(|origin| !self.host_origin.origin_allowed(&origin));
        if is_foreign_page {
            return false;
        }
        let has_own_listener = listener == OperationsListener::Operators
            && self.admin_token.0.is_none()
            && self.host_origin.admit_operator(uri, headers).is_ok();
        let is_proxy = self.trusted_proxies.source(peer) == RequestSource::TrustedProxy;
        self.admin_token.is_presented(headers) || has_own_listener || (!is_proxy && is_local(uri, headers, peer))
    }
}

/// Whether a request was made on this machine, and not passed on by a proxy on it: a proxy makes every peer loopback.
pub(super) fn is_local(uri: &Uri, headers: &HeaderFields, peer: SocketAddr) -> bool {
    peer.ip().to_canonical().is_loopback()
        && is_loopback_host(uri, headers)
        && !headers.iter().any(|(name, _)| is_forwarding_header(name))
}

/// Headers that proxies add to the requests of others.
fn is_forwarding_header(name: &[u8]) -> bool {
    let names: [&[u8]; 6] =
        [b"forwarded", b"via", b"x-real-ip", b"x-client-ip", b"true-client-ip", b"cf-connecting-ip"];
    names.contains(&name) || name.starts_with(b"x-forwarded-")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asks(policy: &Policy, listener: OperationsListener, peer: &str, headers: &[(&'static str, &str)]) -> bool {
        let headers = HeaderFields::of(headers);
        policy.is_operator(listener, &Uri::from_static("/metrics"), &headers, format!("{peer}:1").parse().unwrap())
    }

    #[test]
    fn on_the_clients_listener_only_this_machine_and_the_token_are_operators() {
        use OperationsListener::Clients;
        let open = Policy::default();
        let guarded = Policy { admin_token: AdminToken::new("s3cret"), ..Policy::default() };
        let token = ("authorization", "Bearer s3cret");
        for (peer, headers, local) in [
            ("127.0.0.1", &[("host", "localhost:3001")][..], true),
            ("[::1]", &[("host", "[::1]:3001")], true),
            ("[::ffff:127.0.0.1]", &[("host", "127.0.0.1")], true),
            ("10.0.0.1", &[("host", "localhost:3001")], false),
            ("127.0.0.1", &[("host", "gate.example")], false),
            ("127.0.0.1", &[("host", "localhost"), ("x-forwarded-for", "10.0.0.1")], false),
            ("127.0.0.1", &[("host", "localhost"), ("x-forwarded-proto", "https")], false),
            ("127.0.0.1", &[("host", "localhost"), ("forwarded", "for=10.0.0.1")], false),
            ("127.0.0.1", &[("host", "localhost"), ("x-real-ip", "10.0.0.1")], false),
            ("127.0.0.1", &[("host", "localhost"), ("via", "1.1 proxy")], false),
            ("127.0.0.1", &[("host", "localhost"), ("origin", "https://evil.example")], false),
        ] {
            assert_eq!(asks(&open, Clients, peer, headers), local, "{peer} {headers:?}");
            assert_eq!(asks(&guarded, Clients, peer, headers), local, "{peer} {headers:?}");
            assert_eq!(asks(&open, Clients, peer, &[headers, &[token]].concat()), local, "{peer} {headers:?}");
            let is_page = headers.iter().any(|(name, _)| *name == "origin");
            assert_eq!(asks(&guarded, Clients, peer, &[headers, &[token]].concat()), !is_page, "{peer} {headers:?}");
        }
        assert!(!asks(&guarded, Clients, "10.0.0.1", &[("host", "localhost"), ("authorization", "Bearer s3cre")]));
        let network = crate::policy::TrustedProxies::parse_network("127.0.0.1").unwrap();
        let trusted_proxies = crate::policy::TrustedProxies::new(vec![network]);
        let behind_proxy = Policy { trusted_proxies, admin_token: AdminToken::new("s3cret"), ..Policy::default() };
        assert!(!asks(&behind_proxy, Clients, "127.0.0.1", &[("host", "localhost")]), "it may come from anywhere");
        assert!(asks(&behind_proxy, Clients, "127.0.0.1", &[("host", "localhost"), token]));
        let guesses = |policy: &Policy, headers: &[(&'static str, &str)]| {
            policy.admin_token.is_guessed(&HeaderFields::of(headers))
        };
        let wrong = [("authorization", "Bearer s3cre")];
        assert!(guesses(&guarded, &wrong) && !guesses(&open, &wrong), "without a token there is nothing to guess");
        assert!(!guesses(&guarded, &[token]) && !guesses(&guarded, &[]));
        assert_eq!(format!("{:?} {:?}", guarded.admin_token, open.admin_token), "*** none");
    }

    #[test]
    fn a_configured_token_is_needed_on_the_operators_listener_too() {
        use OperationsListener::Operators;
        let open = Policy::default();
        let guarded = Policy { admin_token: AdminToken::new("s3cret"), ..Policy::default() };
        let headers = [("host", "10.0.0.2:3002")];
        assert!(asks(&open, Operators, "10.0.0.1", &headers));
        assert!(!asks(&open, Operators, "10.0.0.1", &[("host", "evil.example")]));
        assert!(!asks(&guarded, Operators, "10.0.0.1", &headers));
        assert!(asks(&guarded, Operators, "10.0.0.1", &[headers[0], ("authorization", "bearer s3cret")]));
    }
}
