//! Fetches JSON documents of an issuer, bounded in time, size, redirects and depth.

use std::io::Read;
use std::path::Path;
use std::time::Duration;

use bytes::Bytes;
use http::header::{ACCEPT, AUTHORIZATION, CACHE_CONTROL, CONTENT_TYPE};
use http::{HeaderMap, HeaderValue, Method as Verb, StatusCode, Uri};
use serde_json::{Map, Value};

use super::json::read_object;
use crate::http::client::{HttpClient, HttpErrorKind, redacted};
use crate::http::codec::RequestEncoder;

/// Time for all that one fetch needs, metadata included.
pub(super) const FETCH_TIMEOUT: Duration = Duration::from_secs(5);
/// Time for a connection.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(3);
/// Largest metadata document or answer about a token.
pub(super) const MAX_DOCUMENT_BYTES: usize = 64 << 10;
/// Largest JWK Set.
pub(super) const MAX_KEYS_BYTES: usize = 256 << 10;
/// How long a document is good for when its issuer does not say.
const DEFAULT_MAX_AGE: Duration = Duration::from_secs(3600);
/// Bounds of what its issuer may say.
const MIN_MAX_AGE: Duration = Duration::from_secs(5 * 60);
const MAX_MAX_AGE: Duration = Duration::from_secs(24 * 3600);

/// A document, and how long it is good for.
pub(super) struct IssuerDocument {
    pub(super) content: Map<String, Value>,
    pub(super) max_age: Duration,
}

/// Why there is no document.
#[derive(Debug)]
pub(super) enum FetchError {
    /// The server answered, but with something else.
    NotThere(String),
    /// There was no complete answer.
    Failed(String),
}

impl FetchError {
    /// The reason, for operators.
    pub(super) fn into_reason(self) -> String {
        match self {
            Self::NotThere(why) | Self::Failed(why) => why,
        }
    }
}

/// Gets a document.
pub(super) async fn get(url: &Uri, max_bytes: usize) -> Result<IssuerDocument, FetchError> {
    let web = HttpClient::new(url.clone(), HeaderMap::new(), CONNECT_TIMEOUT, max_bytes);
    let headers = |head: &mut RequestEncoder| head.put_static(&ACCEPT, "application/json");
    let failed = |why: String| FetchError::Failed(format!("{}: {why}", redacted(url)));
    let response = web.send(Verb::GET, headers, Bytes::new(), Some(FETCH_TIMEOUT)).await;
    let response = response.map_err(|error| failed(error.to_string()))?;
    let status = response.head.status();
    let max_age = max_age(response.head.get(&CACHE_CONTROL));
    if status != StatusCode::OK {
        let answer = format!("{}{} answers {status}", redacted(url), url.path());
        let error = if status.is_server_error() { FetchError::Failed } else { FetchError::NotThere };
        return Err(error(answer));
    }
    let body = web.read_body(response.body, FETCH_TIMEOUT).await.map_err(|error| failed(error.to_string()))?;
    let content = read_object(&body)
        .map_err(|why| FetchError::NotThere(format!("{}{} is not usable: {why}", redacted(url), url.path())))?;
    Ok(IssuerDocument { content, max_age })
}

/// A client for forms at one address. Keeping it keeps its connections.
pub(super) fn form_client(url: &Uri) -> HttpClient {
    HttpClient::new(url.clone(), HeaderMap::new(), CONNECT_TIMEOUT, MAX_DOCUMENT_BYTES)
}

/// Posts a form with client credentials, and returns the object of the answer. Redirects are not followed.
pub(super) async fn post_form(
    web: &HttpClient,
    form: &str,
    credentials: &HeaderValue,
) -> Result<Map<String, Value>, String> {
    let url = web.url();
    let mut headers = HeaderMap::new();
    headers.insert(AUTHORIZATION, credentials.clone());
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/x-www-form-urlencoded"));
    headers.insert(ACCEPT, HeaderValue::from_static("application/json"));
    let body = Bytes::copy_from_slice(form.as_bytes());
    let post = || web.send_to(&url, &Verb::POST, &headers, &body, FETCH_TIMEOUT);
    let response = match post().await {
        // A connection that lay idle may end as it is used, and to ask twice does no harm.
        Err(error) if matches!(error.kind(), HttpErrorKind::Broken | HttpErrorKind::NotSent) => post().await,
        response => response,
    };
    let response = response.map_err(|error| error.to_string())?;
    let status = response.head.status();
    if status != StatusCode::OK {
        return Err(format!("{}{} answers {status}", redacted(&url), url.path()));
    }
    let body = web.read_body(response.body, FETCH_TIMEOUT).await.map_err(|error| error.to_string())?;
    read_object(&body).map_err(|why| format!("the answer of {} is not usable: {why}", redacted(&url)))
}

/// Reads a document from a file.
pub(super) async fn read_file(path: &Path) -> Result<IssuerDocument, String> {
    let owned = path.to_owned();
    let read = move || {
        let mut bytes = Vec::new();
        let limit = u64::try_from(MAX_KEYS_BYTES).unwrap_or(u64::MAX) + 1;
        std::fs::File::open(&owned)?.take(limit).read_to_end(&mut bytes)?;
        Ok::<_, std::io::Error>(bytes)
    };
    let unusable = |why: String| format!("{} is not usable: {why}", path.display());
    let bytes = tokio::task::spawn_blocking(read).await.map_err(|error| unusable(error.to_string()))?;
    let bytes = bytes.map_err(|error| unusable(error.to_string()))?;
    if bytes.len() > MAX_KEYS_BYTES {
        return Err(unusable(format!("it has more than {MAX_KEYS_BYTES} bytes")));
    }
    Ok(IssuerDocument { content: read_object(&bytes).map_err(unusable)?, max_age: DEFAULT_MAX_AGE })
}

/// How long a document is good for by its `Cache-Control`.
fn max_age(cache_control: Option<&[u8]>) -> Duration {
    let Some(value) = cache_control.and_then(|value| std::str::from_utf8(value).ok()) else { return DEFAULT_MAX_AGE };
    let mut found = DEFAULT_MAX_AGE;
    for directive in value.to_ascii_lowercase().split(',').map(str::trim) {
        match directive.split_once('=') {
            Some(("max-age", seconds)) => {
                found = seconds.trim_matches('"').parse().map_or(DEFAULT_MAX_AGE, Duration::from_secs);
            }
            None if matches!(directive, "no-store" | "no-cache") => return MIN_MAX_AGE,
            _ => {}
        }
    }
    found.clamp(MIN_MAX_AGE, MAX_MAX_AGE)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn max_age_is_bounded() {
        for (header, seconds) in [
            ("", 3600),
            ("public", 3600),
            ("public, max-age=600", 600),
            ("Max-Age=\"900\"", 900),
            ("max-age=0", 300),
            ("max-age=1", 300),
            ("max-age=99999999", 86_400),
            ("max-age=x", 3600),
            ("no-store", 300),
            ("no-cache, max-age=900", 300),
        ] {
            assert_eq!(max_age(Some(header.as_bytes())), Duration::from_secs(seconds), "{header}");
        }
        assert_eq!(max_age(None), DEFAULT_MAX_AGE);
    }
}
