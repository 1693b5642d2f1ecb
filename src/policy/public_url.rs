//! The URL that clients know the gateway by.

use std::borrow::Cow;
use std::fmt;

use http::Uri;

use super::Policy;
use super::audience::{Audience, BaseAudience};
use super::credentials::CredentialRequest;
use super::host_origin::{is_loopback_host, request_authority};
use super::trusted_proxies::RequestSource;
use crate::http::codec::HeaderFields;

/// The configured URL that clients know the gateway by: scheme, host, port, maybe a path; no slash at its end.
#[derive(Clone, PartialEq, Eq)]
pub struct PublicUrl {
    text: String,
    /// Where the path begins.
    path_start: usize,
}

impl PublicUrl {
    /// Reads the URL.
    ///
    /// # Errors
    /// What is wrong with it, and what to write.
    pub fn parse(text: &str) -> Result<Self, (&'static str, String)> {
        const FORM: &str = "write something like \"https://mcp.example\" or \"https://example.org/mcp-gateway\"";
        let lower = text.to_ascii_lowercase();
        let Some(rest) = lower.strip_prefix("https://").or_else(|| lower.strip_prefix("http://")) else {
            return Err(("is not an HTTP URL", FORM.to_owned()));
        };
        let authority = rest.split('/').next().unwrap_or_default();
        if authority.contains('@') {
            return Err(("has credentials in it", "leave them out".to_owned()));
        }
        if text.contains(['?', '#']) {
            return Err(("has a query or a fragment", "leave it out".to_owned()));
        }
        if text.ends_with('/') && !authority.is_empty() {
            return Err(("ends with a slash", format!("write \"{}\"", text.trim_end_matches('/'))));
        }
        let path_start = text.len() - rest.len() + authority.len();
        let is_plain = |part: &str| !matches!(part, "" | "." | "..") && part.bytes().all(is_path_byte);
        let path_is_plain = text[path_start..].split('/').skip(1).all(is_plain);
        if !path_is_plain || authority.is_empty() || text.parse::<Uri>().is_err() {
            return Err(("is not an HTTP URL", FORM.to_owned()));
        }
        // Scheme and host are the same in any case; what clients compare is spelt in one way.
        Ok(Self { text: format!("{}{}", &lower[..path_start], &text[path_start..]), path_start })
    }

    /// The URL.
    pub fn as_str(&self) -> &str {
        &self.text
    }

    /// Its path: empty, or with a slash before it and none behind.
    pub fn path(&self) -> &str {
        &self.text[self.path_start..]
    }
}

impl fmt::Debug for PublicUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl Policy {
    /// The URL that the client knows the gateway by: the public one, or else that of the request.
    pub fn base_url(&self, uri: &Uri, headers: &HeaderFields, source: RequestSource) -> Cow<'_, str> {
        match &self.public_url {
            Some(url) => url.as_str().into(),
            None => {
                let own = if source == RequestSource::TlsClient { "https" } else { "http" };
                let scheme = self.trusted_proxies.forwarded_scheme(headers, source).unwrap_or(own);
                format!("{scheme}://{}", request_authority(uri, headers).to_ascii_lowercase()).into()
            }
        }
    }

    /// The path that the public URL adds before the gateway's own.
    pub fn public_path(&self) -> &str {
        self.public_url.as_ref().map_or("", PublicUrl::path)
    }

    /// The audiences that tokens for a group may have. Without a public URL the client says by which address it knows this
    /// machine; the port must be the one that is served, for a token of another program on the machine is none for us.
    pub(super) fn audience<'r>(&'r self, request: &CredentialRequest<'r>) -> Audience<'r> {
        let base_audience = match self.accept_origin_audience {
            true => BaseAudience::Accepted,
            false => BaseAudience::Refused,
        };
        let base_url = self.base_url(request.uri, request.headers, request.source);
        let audience = Audience::new(base_url, request.group, base_audience);
        match request.served_port {
            // Clients of a proxy know the port of the proxy.
            Some(port) if self.public_url.is_none() && request.source != RequestSource::TrustedProxy => {
                match is_loopback_host(request.uri, request.headers) {
                    true => audience.served_at(port),
                    false => audience,
                }
            }
            _ => audience,
        }
    }
}

/// The bytes of a path that need no escape and have no meaning of their own.
fn is_path_byte(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"-._~".contains(&byte)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_public_url_has_one_spelling() {
        for (text, spelt, path) in [
            ("https://mcp.example", "https://mcp.example", ""),
            ("HTTPS://MCP.Example:8443", "https://mcp.example:8443", ""),
            ("http://127.0.0.1:3001/Gate/b", "http://127.0.0.1:3001/Gate/b", "/Gate/b"),
            ("http://[::1]:3001", "http://[::1]:3001", ""),
        ] {
            let url = PublicUrl::parse(text).unwrap();
            assert_eq!((url.as_str(), url.path()), (spelt, path));
        }
        for (text, why) in [
            ("mcp.example", "not an HTTP URL"),
            ("ftp://mcp.example", "not an HTTP URL"),
            ("https://", "not an HTTP URL"),
            ("https:///x", "not an HTTP URL"),
            ("https://h/a//b", "not an HTTP URL"),
            ("https://h/../b", "not an HTTP URL"),
            ("https://h/%2e", "not an HTTP URL"),
            ("https://h h", "not an HTTP URL"),
            ("https://mcp.example/", "slash"),
            ("https://mcp.example/p/", "slash"),
            ("https://ann:pw@mcp.example", "credentials"),
            ("https://mcp.example/?a", "query"),
            ("https://mcp.example#a", "fragment"),
        ] {
            let (message, _) = PublicUrl::parse(text).unwrap_err();
            assert!(message.contains(why), "{text}: {message}");
        }
    }
}
