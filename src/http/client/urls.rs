//! Resolves, compares and redacts URLs.

use http::Uri;
use url::Url;

/// Resolves a URI reference against a base URL, without its fragment. `None` where the result is not a valid HTTP URL.
pub(crate) fn resolve(base: &Uri, reference: &str) -> Option<Uri> {
    let mut resolved = parse(base)?.join(reference).ok()?;
    resolved.set_fragment(None);
    matches!(resolved.scheme(), "http" | "https").then(|| resolved.as_str().parse().ok())?
}

/// Whether two URLs have the same scheme, host and port. One with user information is of no origin.
pub(crate) fn same_origin(a: &Uri, b: &Uri) -> bool {
    let (Some(a), Some(b)) = (parse(a), parse(b)) else { return false };
    let has_user_info = |url: &Url| !url.username().is_empty() || url.password().is_some();
    !has_user_info(&a) && !has_user_info(&b) && a.origin() == b.origin()
}

/// Scheme and authority of a URL, for logs and errors: user information, path and query may hold secrets.
pub(crate) fn redacted(url: &Uri) -> String {
    parse(url).map_or_else(|| "an invalid URL".to_owned(), |url| url.origin().ascii_serialization())
}

fn parse(url: &Uri) -> Option<Url> {
    Url::parse(&url.to_string()).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn relative_references_are_resolved() {
        let base: Uri = "http://h:1/a/sse?x=1".parse().unwrap();
        for (reference, expected) in [
            ("/m?s=1", "http://h:1/m?s=1"),
            ("m?s=1", "http://h:1/a/m?s=1"),
            ("./m", "http://h:1/a/m"),
            ("../m", "http://h:1/m"),
            ("?s=1", "http://h:1/a/sse?s=1"),
            ("", "http://h:1/a/sse?x=1"),
            ("m#part", "http://h:1/a/m"),
            ("http://h:1/m", "http://h:1/m"),
            ("HTTP://H:1/m", "http://h:1/m"),
            ("/m?next=http://x", "http://h:1/m?next=http://x"),
            ("/a b", "http://h:1/a%20b"),
            ("//other/m", "http://other/m"),
            ("https://other", "https://other/"),
        ] {
            assert_eq!(resolve(&base, reference).unwrap().to_string(), expected, "{reference}");
        }
        for reference in ["http://", "http://h:99999/", "ftp://h/m", "file:///m", "mailto:me@h", "http://[::1/m"] {
            assert_eq!(resolve(&base, reference), None, "{reference}");
        }
    }

    #[test]
    fn origin_is_scheme_host_and_port() {
        let same = |a: &str, b: &str| same_origin(&a.parse().unwrap(), &b.parse().unwrap());
        assert!(same("http://h/a", "http://H:80/b"));
        assert!(same("https://h:443", "https://h"));
        assert!(same("http://[::1]:3/", "http://[0:0::1]:3/"));
        assert!(!same("http://h", "https://h"));
        assert!(!same("http://h:1", "http://h:2"));
        assert!(!same("http://h", "http://h.evil"));
        assert!(!same("http://h", "http://user@h"));
        assert!(!same("http://user@h", "http://user@h"));
        assert!(!same("/a", "/a"), "a URL without a host is of no origin");
    }

    #[test]
    fn redacted_url_is_scheme_and_authority() {
        for (url, shown) in [
            ("http://h:3001/s3cret/mcp?key=s3cret", "http://h:3001"),
            ("https://s3cret:s3cret@h/mcp", "https://h"),
            ("https://h:443?key=s3cret", "https://h"),
            ("http://[::1]:9/", "http://[::1]:9"),
            ("/s3cret", "an invalid URL"),
        ] {
            assert_eq!(redacted(&url.parse().unwrap()), shown);
        }
    }
}
