//! HTTP/1.1 client: pooled connections, TLS with the system's trust roots, redirects within the origin only, and a
//! timeout on every wait.

mod connection;
mod error;
mod pool;
mod sse_reader;

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::header::{CONNECTION, CONTENT_LENGTH, CONTENT_TYPE, HOST, LOCATION, TRANSFER_ENCODING};
use http::{HeaderMap, HeaderName, HeaderValue, Method as Verb, StatusCode, Uri};
use parking_lot::{Mutex, MutexGuard};

use crate::http::codec::{RequestEncoder, ResponseHead};
use crate::http::read_buffer::BodyError;
use connection::EncodedRequest;
use pool::{Pool, PoolError};

pub(crate) use connection::{HttpResponse, InFlight, ResponseBody};
pub use error::{HttpError, HttpErrorKind, HttpResult};
pub(crate) use sse_reader::EventReader;

/// Limit of redirects followed for one request.
const MAX_REDIRECTS: usize = 3;
/// A body up to this size is copied behind the head and written with it in one buffer.
const INLINE_BODY_MAX: usize = 8 << 10;
/// Header fields that only the encoder writes, because they decide the framing.
const FRAMING_HEADERS: [HeaderName; 3] = [CONNECTION, CONTENT_LENGTH, TRANSFER_ENCODING];

/// Client of one URL with fixed headers and limits.
#[derive(Debug)]
pub(crate) struct HttpClient {
    pool: Arc<Pool>,
    /// Where requests are sent; a redirect within the origin replaces it.
    endpoint: Mutex<Arc<Endpoint>>,
    headers: HeaderMap,
    connect_timeout: Duration,
    max_body_bytes: usize,
}

/// A URL with its request target and `Host` value, encoded once.
#[derive(Debug)]
struct Endpoint {
    url: Uri,
    target: Box<str>,
    host: Option<HeaderValue>,
}

impl HttpClient {
    /// A client for `url` that sends `headers` with every request. Opening a connection may take `connect_timeout`; bodies
    /// and events of more than `max_body_bytes` are refused.
    pub(crate) fn new(url: Uri, headers: HeaderMap, connect_timeout: Duration, max_body_bytes: usize) -> Self {
        let pool = Pool::for_origin(&url, connect_timeout);
        Self { pool, endpoint: Mutex::new(Arc::new(Endpoint::new(url))), headers, connect_timeout, max_body_bytes }
    }

    fn endpoint(&self) -> MutexGuard<'_, Arc<Endpoint>> {
        self.endpoint.lock()
    }

    /// The URL that requests are sent to, after redirects.
    pub(crate) fn url(&self) -> Uri {
        self.endpoint().url.clone()
    }

    /// Limit of a response body or event, in bytes.
    pub(crate) fn max_body_bytes(&self) -> usize {
        self.max_body_bytes
    }

    /// Sends a request to the client's URL. `headers` is called again for each redirect.
    pub(crate) async fn send(
        &self,
        verb: Verb,
        headers: impl Fn(&mut RequestEncoder),
        body: Bytes,
        timeout: Option<Duration>,
    ) -> HttpResult<HttpResponse> {
        self.send_tracked(None, verb, headers, body, timeout).await
    }

    /// Like [`Self::send`]; `in_flight` is held until the response begins.
    pub(crate) async fn send_tracked(
        &self,
        in_flight: Option<InFlight>,
        verb: Verb,
        headers: impl Fn(&mut RequestEncoder),
        body: Bytes,
        timeout: Option<Duration>,
    ) -> HttpResult<HttpResponse> {
        let mut endpoint = Arc::clone(&self.endpoint());
        for _ in 0..=MAX_REDIRECTS {
            let mut request = self.encode(&endpoint, &verb, &headers, &body);
            request.in_flight.clone_from(&in_flight);
            let response = self.send_once(&endpoint, &request, timeout).await?;
            let Some(next) = redirect_target(&endpoint.url, &response.head)? else { return Ok(response) };
            tracing::debug!(from = %redacted(&endpoint.url), to = %redacted(&next), "redirect followed within the origin");
            endpoint = Arc::new(Endpoint::new(next));
            *self.endpoint() = Arc::clone(&endpoint);
        }
        Err(HttpError::new(HttpErrorKind::Protocol, format!("{} redirects again and again", redacted(&endpoint.url))))
    }

    /// Sends a request to another URL of the same origin. Redirects are not followed.
    pub(crate) async fn send_to(
        &self,
        url: &Uri,
        verb: &Verb,
        headers: &HeaderMap,
        body: &Bytes,
        timeout: Duration,
    ) -> HttpResult<HttpResponse> {
        let request_headers = |head: &mut RequestEncoder| put_headers(head, headers);
        let mut endpoint = Endpoint::new(url.clone());
        if headers.contains_key(HOST) {
            endpoint.host = None;
        }
        self.send_once(&endpoint, &self.encode(&endpoint, verb, request_headers, body), Some(timeout)).await
    }

    async fn send_once(
        &self,
        endpoint: &Endpoint,
        request: &EncodedRequest,
        timeout: Option<Duration>,
    ) -> HttpResult<HttpResponse> {
        let response = std::pin::pin!(self.pool.send(request));
        let response = match timeout {
            None => response.await,
            Some(timeout) => tokio::time::timeout(self.connect_timeout + timeout, response).await.map_err(|_| {
                HttpError::new(
                    HttpErrorKind::Timeout(timeout),
                    format!("{} did not answer within {timeout:?}", redacted(&endpoint.url)),
                )
            })?,
        };
        response.map_err(|error| endpoint.http_error(&error))
    }

    /// Encodes a request; the caller's headers come before the client's own.
    fn encode(
        &self,
        endpoint: &Endpoint,
        verb: &Verb,
        headers: impl FnOnce(&mut RequestEncoder),
        body: &Bytes,
    ) -> EncodedRequest {
        let is_inline = body.len() <= INLINE_BODY_MAX;
        let mut head = RequestEncoder::new(verb, &endpoint.target, if is_inline { body.len() } else { 0 });
        if let Some(host) = endpoint.host.as_ref().filter(|_| !self.headers.contains_key(HOST)) {
            head.put(&HOST, host);
        }
        headers(&mut head);
        put_headers(&mut head, &self.headers);
        let has_body = !body.is_empty() || matches!(*verb, Verb::POST | Verb::PUT | Verb::PATCH);
        let mut head = head.finish(has_body.then_some(body.len()));
        let mut rest = Bytes::new();
        match is_inline {
            true => head.extend_from_slice(body),
            false => rest = body.clone(),
        }
        EncodedRequest { verb: verb.clone(), head, body: rest, in_flight: None }
    }

    /// Reads a whole body within `timeout`.
    pub(crate) async fn read_body(&self, body: ResponseBody, timeout: Duration) -> HttpResult<Bytes> {
        match tokio::time::timeout(timeout, body.read_to_end(self.max_body_bytes)).await {
            Ok(Ok(body)) => Ok(body),
            Ok(Err(BodyError::TooLong)) => Err(HttpError::new(
                HttpErrorKind::TooLarge(self.max_body_bytes),
                format!("the server sent a body of more than {} bytes", self.max_body_bytes),
            )),
            Ok(Err(BodyError::Broken(error))) => {
                Err(HttpError::new(HttpErrorKind::Broken, format!("response body broken off: {error}")))
            }
            Err(_) => Err(HttpError::new(
                HttpErrorKind::Timeout(timeout),
                format!("response body was not complete within {timeout:?}"),
            )),
        }
    }
}

impl Endpoint {
    fn new(url: Uri) -> Self {
        let target = match url.path_and_query().map_or("/", |target| target.as_str()) {
            // A URL may have a query and no path.
            query if query.starts_with('?') => format!("/{query}").into(),
            target => target.into(),
        };
        let host = url.authority().and_then(|authority| HeaderValue::from_str(authority.as_str()).ok());
        Self { url, target, host }
    }

    /// Adds the URL and the root cause to a pool error.
    fn http_error(&self, error: &PoolError) -> HttpError {
        let url = redacted(&self.url);
        match error {
            PoolError::Unreachable(error) => {
                let mut cause: &dyn std::error::Error = &**error;
                while let Some(inner) = cause.source() {
                    cause = inner;
                }
                // The connector reports its own timeout and that of the system as the same kind of I/O error.
                let io_kind = cause.downcast_ref::<std::io::Error>().map(std::io::Error::kind);
                let kind = match io_kind {
                    Some(std::io::ErrorKind::TimedOut) => HttpErrorKind::ConnectTimeout,
                    _ => HttpErrorKind::Unreachable,
                };
                HttpError::new(kind, format!("{url} cannot be reached: {cause}; is the server running?"))
            }
            PoolError::NotSent(cause) => {
                HttpError::new(HttpErrorKind::NotSent, format!("connection to {url} broken: {cause}"))
            }
            PoolError::Broken(cause) => {
                HttpError::new(HttpErrorKind::Broken, format!("connection to {url} broken: {cause}"))
            }
        }
    }
}

/// The target of a redirect within the origin. Another origin is an error, because the headers may hold credentials.
fn redirect_target(url: &Uri, head: &ResponseHead) -> HttpResult<Option<Uri>> {
    let is_redirect = matches!(
        head.status(),
        StatusCode::MOVED_PERMANENTLY
            | StatusCode::FOUND
            | StatusCode::TEMPORARY_REDIRECT
            | StatusCode::PERMANENT_REDIRECT
    );
    if !is_redirect {
        return Ok(None);
    }
    let Some(location) = head.get(&LOCATION) else { return Ok(None) };
    let location = String::from_utf8_lossy(location).into_owned();
    let next = resolve(url, &location).ok_or_else(|| {
        HttpError::new(
            HttpErrorKind::Protocol,
            format!("{} redirects to an address that is not a valid URL", redacted(url)),
        )
    })?;
    if !same_origin(url, &next) {
        let message = format!(
            "{} redirects to another origin, {}; use that address if you trust it",
            redacted(url),
            redacted(&next)
        );
        return Err(HttpError::new(HttpErrorKind::Protocol, message));
    }
    Ok(Some(next))
}

/// Resolves a URI reference against a base URL. `None` where the result is not a valid URL.
pub(crate) fn resolve(base: &Uri, reference: &str) -> Option<Uri> {
    let is_absolute = ["http://", "https://"].iter().any(|scheme| reference.starts_with(scheme));
    if is_absolute || reference.split('/').next().is_some_and(|first| first.ends_with(':')) {
        return reference.parse().ok();
    }
    let scheme = base.scheme_str()?;
    let authority = base.authority()?;
    if let Some(rest) = reference.strip_prefix("//") {
        return format!("{scheme}://{rest}").parse().ok();
    }
    if reference.starts_with('/') {
        return format!("{scheme}://{authority}{reference}").parse().ok();
    }
    if reference.starts_with('?') {
        return format!("{scheme}://{authority}{}{reference}", base.path()).parse().ok();
    }
    let folder = base.path().rsplit_once('/').map_or("", |(folder, _)| folder);
    format!("{scheme}://{authority}{folder}/{reference}").parse().ok()
}

/// Whether two URLs have the same scheme, host and port. One with user information is of no origin.
pub(crate) fn same_origin(a: &Uri, b: &Uri) -> bool {
    let port = |uri: &Uri| {
        uri.port_u16().or(match uri.scheme_str() {
            Some("http") => Some(80),
            Some("https") => Some(443),
            _ => None,
        })
    };
    let host = |uri: &Uri| uri.host().map(str::to_ascii_lowercase);
    let has_no_user_info = |uri: &Uri| uri.authority().is_some_and(|authority| !authority.as_str().contains('@'));
    has_no_user_info(a)
        && has_no_user_info(b)
        && a.scheme_str() == b.scheme_str()
        && host(a) == host(b)
        && port(a) == port(b)
}

/// Scheme, host and port of a URL, for logs and errors: user information, path and query may hold secrets.
pub(crate) fn redacted(url: &Uri) -> String {
    let scheme = url.scheme_str().unwrap_or("http");
    let authority = url.authority().map_or("", |authority| authority.as_str());
    let host = authority.rsplit_once('@').map_or(authority, |(_, host)| host);
    format!("{scheme}://{host}")
}

/// Whether the `Content-Type` is a media type, whatever its parameters.
pub(crate) fn has_media_type(head: &ResponseHead, media_type: &str) -> bool {
    let value = head.get(&CONTENT_TYPE).unwrap_or_default();
    let end = memchr::memchr(b';', value).unwrap_or(value.len());
    value[..end].trim_ascii().eq_ignore_ascii_case(media_type.as_bytes())
}

fn put_headers(head: &mut RequestEncoder, headers: &HeaderMap) {
    for (name, value) in headers.iter().filter(|(name, _)| !FRAMING_HEADERS.contains(name)) {
        head.put(name, value);
    }
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
            ("?s=1", "http://h:1/a/sse?s=1"),
            ("http://h:1/m", "http://h:1/m"),
            ("/m?next=http://x", "http://h:1/m?next=http://x"),
            ("//other/m", "http://other/m"),
        ] {
            assert_eq!(resolve(&base, reference).unwrap().to_string(), expected);
        }
    }

    #[test]
    fn request_target_always_has_a_path() {
        for (url, target) in
            [("http://h", "/"), ("http://h/", "/"), ("http://h?key=1", "/?key=1"), ("http://h/a?b=/c#d", "/a?b=/c")]
        {
            assert_eq!(&*Endpoint::new(url.parse().unwrap()).target, target, "{url}");
        }
    }

    #[test]
    fn origin_is_scheme_host_and_port() {
        let same = |a: &str, b: &str| same_origin(&a.parse().unwrap(), &b.parse().unwrap());
        assert!(same("http://h/a", "http://H:80/b"));
        assert!(same("https://h:443", "https://h"));
        assert!(!same("http://h", "https://h"));
        assert!(!same("http://h:1", "http://h:2"));
        assert!(!same("http://h", "http://h.evil"));
        assert!(!same("http://h", "http://user@h"));
    }
}
