//! Proxies whose word about the client counts.

use std::fmt;
use std::net::{IpAddr, SocketAddr};

use ipnet::IpNet;

use crate::http::codec::HeaderFields;

/// Addresses of proxies whose `X-Forwarded-For` and `X-Forwarded-Proto` count. From anybody else they do not.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct TrustedProxies(Vec<IpNet>);

/// Who is at the other end of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RequestSource {
    /// A client, or a proxy that nobody named.
    Stranger,
    /// The same, over TLS.
    TlsClient,
    /// One of the trusted proxies.
    TrustedProxy,
}

const FORWARDED_FOR: &str = "x-forwarded-for";
const FORWARDED_PROTO: &str = "x-forwarded-proto";

impl TrustedProxies {
    /// Trusts these networks.
    pub fn new(networks: Vec<IpNet>) -> Self {
        Self(networks)
    }

    /// Reads an address, or a network such as `10.0.0.0/8`.
    pub fn parse_network(text: &str) -> Option<IpNet> {
        text.parse().ok().or_else(|| text.parse::<IpAddr>().ok().map(IpNet::from))
    }

    /// Whether nobody is trusted.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The networks as they are written.
    pub fn networks(&self) -> impl Iterator<Item = String> + '_ {
        self.0.iter().map(ToString::to_string)
    }

    /// Who is at the other end of a connection.
    pub fn source(&self, peer: SocketAddr) -> RequestSource {
        match self.trusts(peer.ip()) {
            true => RequestSource::TrustedProxy,
            false => RequestSource::Stranger,
        }
    }

    /// The address of the client: that of the connection or, behind trusted proxies, the last one of
    /// `X-Forwarded-For` that is none of theirs.
    pub fn client_address(&self, peer: SocketAddr, headers: &HeaderFields) -> SocketAddr {
        if self.source(peer) != RequestSource::TrustedProxy {
            return peer;
        }
        let lines: Vec<&[u8]> = headers.get_all(FORWARDED_FOR).collect();
        let hops = lines.iter().rev().flat_map(|line| line.rsplit(|byte| *byte == b','));
        let mut client = peer;
        for hop in hops {
            // What a proxy did not write in a known form says nothing, nor does what stands before it.
            let Some(address) = parse_hop(hop) else { break };
            client = address;
            if !self.trusts(address.ip()) {
                break;
            }
        }
        client
    }

    /// The scheme that the client used, as the trusted proxy says.
    pub fn forwarded_scheme(&self, headers: &HeaderFields, source: RequestSource) -> Option<&'static str> {
        if source != RequestSource::TrustedProxy {
            return None;
        }
        // The last one is of the proxy itself; others may have come from the client.
        let last = headers.get_all(FORWARDED_PROTO).last()?.rsplit(|byte| *byte == b',').next()?.trim_ascii();
        ["https", "http"].into_iter().find(|scheme| last.eq_ignore_ascii_case(scheme.as_bytes()))
    }

    fn trusts(&self, address: IpAddr) -> bool {
        let address = address.to_canonical();
        self.0.iter().any(|network| network.contains(&address))
    }
}

/// One address of `X-Forwarded-For`, with or without a port.
fn parse_hop(hop: &[u8]) -> Option<SocketAddr> {
    let text = str::from_utf8(hop.trim_ascii()).ok()?;
    let bare = text.strip_prefix('[').and_then(|text| text.strip_suffix(']')).unwrap_or(text);
    bare.parse().map(|address| SocketAddr::new(address, 0)).or_else(|_| text.parse()).ok()
}

impl fmt::Debug for TrustedProxies {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.networks()).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn proxies(networks: &[&str]) -> TrustedProxies {
        TrustedProxies::new(networks.iter().map(|text| TrustedProxies::parse_network(text).unwrap()).collect())
    }

    #[test]
    fn only_trusted_proxies_name_the_client() {
        let proxies = proxies(&["10.0.0.0/8", "fd00::/8", "127.0.0.1"]);
        for (peer, forwarded, client) in [
            ("10.0.0.1:5", &["192.0.2.7"][..], "192.0.2.7:0"),
            ("10.0.0.1:5", &["192.0.2.7, 10.9.9.9"], "192.0.2.7:0"),
            ("10.0.0.1:5", &["203.0.113.1, 192.0.2.7"], "192.0.2.7:0"),
            ("10.0.0.1:5", &["203.0.113.1", "192.0.2.7,10.1.1.1"], "192.0.2.7:0"),
            ("10.0.0.1:5", &["10.1.1.1"], "10.1.1.1:0"),
            ("10.0.0.1:5", &["192.0.2.7, nonsense"], "10.0.0.1:5"),
            ("10.0.0.1:5", &["192.0.2.7:4711"], "192.0.2.7:4711"),
            ("10.0.0.1:5", &["[2001:db8::1]"], "[2001:db8::1]:0"),
            ("10.0.0.1:5", &["2001:db8::1"], "[2001:db8::1]:0"),
            ("10.0.0.1:5", &[], "10.0.0.1:5"),
            ("[::ffff:10.0.0.1]:5", &["192.0.2.7"], "192.0.2.7:0"),
            ("[fd00::1]:5", &["192.0.2.7"], "192.0.2.7:0"),
            ("127.0.0.1:5", &["192.0.2.7"], "192.0.2.7:0"),
            ("127.0.0.2:5", &["192.0.2.7"], "127.0.0.2:5"),
            ("192.0.2.1:5", &["192.0.2.7"], "192.0.2.1:5"),
        ] {
            let fields: Vec<_> = forwarded.iter().map(|line| (FORWARDED_FOR, *line)).collect();
            let found = proxies.client_address(peer.parse().unwrap(), &HeaderFields::of(&fields));
            assert_eq!(found.to_string(), client, "{peer} {forwarded:?}");
        }
    }

    #[test]
    fn the_scheme_is_the_word_of_the_trusted_proxy() {
        let proxies = proxies(&["10.0.0.0/8"]);
        for (values, scheme) in [
            (&["https"][..], Some("https")),
            (&["HTTP"], Some("http")),
            (&["javascript, https"], Some("https")),
            (&["http", "https"], Some("https")),
            (&["https, gopher"], None),
            (&[], None),
        ] {
            let fields: Vec<_> = values.iter().map(|value| (FORWARDED_PROTO, *value)).collect();
            let headers = HeaderFields::of(&fields);
            assert_eq!(proxies.forwarded_scheme(&headers, RequestSource::TrustedProxy), scheme, "{values:?}");
            assert_eq!(proxies.forwarded_scheme(&headers, RequestSource::Stranger), None);
        }
        assert!(TrustedProxies::parse_network("10.0.0.0/33").is_none());
        assert!(TrustedProxies::parse_network("proxy.example").is_none());
        let fields = HeaderFields::of(&[(FORWARDED_PROTO, "http")]);
        for source in [RequestSource::Stranger, RequestSource::TlsClient] {
            assert_eq!(proxies.forwarded_scheme(&fields, source), None, "{source:?}");
        }
    }
}
