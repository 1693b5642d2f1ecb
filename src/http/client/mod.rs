//! HTTP/1.1 client: pooled connections, TLS with the system's trust roots, redirects within the origin only, and a
//! timeout on every wait.

mod connection;
mod connector;
mod error;
mod limit;
mod pool;
mod sse_reader;
mod urls;

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::header::{CONNECTION, CONTENT_LENGTH, CONTENT_TYPE, HOST, LOCATION, TRANSFER_ENCODING};
use http::{HeaderMap, HeaderName, HeaderValue, Method as Verb, StatusCode, Uri};
use parking_lot::{Mutex, MutexGuard};

use crate::http::codec::{RequestEncoder, ResponseHead};
use crate::http::read_buffer::BodyError;
use connection::EncodedRequest;
use pool::{ConnectionShortage, Pool, PoolError};

pub(crate) use connection::{HttpResponse, InFlight, ResponseBody};
pub use error::{HttpError, HttpErrorKind, HttpResult};
pub(crate) use limit::WhenFull;
pub(crate) use sse_reader::EventReader;
pub(crate) use urls::{redacted, resolve, same_origin};

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

/// How a request is sent.
#[derive(Debug, Clone, Default)]
pub(crate) struct SendOptions {
    /// Held until the response begins.
    pub(crate) in_flight: Option<InFlight>,
    /// Limit for the wait for the response head; the caller bounds it if `None`.
    pub(crate) timeout: Option<Duration>,
    pub(crate) when_full: WhenFull,
}

/// A URL with its request target and `Host` value, encoded once.
#[derive(Debug)]
struct Endpoint {
    url: Uri,
    target: Box<str>,
    host: Option<HeaderValue>,
}

impl HttpClient {
    /// A client for `url` that sends `headers` with every request. Getting a connection may take `connect_timeout`;
    /// bodies and events of more than `max_body_bytes` are refused.
    pub(crate) fn new(url: Uri, headers: HeaderMap, connect_timeout: Duration, max_body_bytes: usize) -> Self {
        let pool = Pool::for_origin(&url);
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
        self.send_with(SendOptions { timeout, ..SendOptions::default() }, verb, headers, body).await
    }

    /// Like [`Self::send`], with all options.
    pub(crate) async fn send_with(
        &self,
        options: SendOptions,
        verb: Verb,
        headers: impl Fn(&mut RequestEncoder),
        body: Bytes,
    ) -> HttpResult<HttpResponse> {
        let mut endpoint = Arc::clone(&self.endpoint());
        for _ in 0..=MAX_REDIRECTS {
            let mut request = self.encode(&endpoint, &verb, &headers, &body);
            request.in_flight.clone_from(&options.in_flight);
            request.when_full = options.when_full;
            let response = self.send_once(&endpoint, &request, options.timeout).await?;
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
        let response = std::pin::pin!(self.pool.send(request, self.connect_timeout));
        let response = match timeout {
            None => response.await,
            Some(timeout) => tokio::time::timeout(self.connect_timeout + timeout, response).await.map_err(|_| {
                HttpError::new(
                    HttpErrorKind::Timeout,
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
        EncodedRequest { verb: verb.clone(), head, body: rest, in_flight: None, when_full: WhenFull::Wait }
    }

    /// Reads a whole body within `timeout`.
    pub(crate) async fn read_body(&self, body: ResponseBody, timeout: Duration) -> HttpResult<Bytes> {
        match tokio::time::timeout(timeout, body.read_to_end(self.max_body_bytes)).await {
            Ok(Ok(body)) => Ok(body),
            Ok(Err(BodyError::TooLong)) => Err(HttpError::new(
                HttpErrorKind::Protocol,
                format!("the server sent a body of more than {} bytes", self.max_body_bytes),
            )),
            Ok(Err(BodyError::Broken(error))) => {
                Err(HttpError::new(HttpErrorKind::Broken, format!("response body broken off: {error}")))
            }
            Err(_) => Err(HttpError::new(
                HttpErrorKind::Timeout,
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
                HttpError::new(
                    HttpErrorKind::Unreachable,
                    format!("{url} cannot be reached: {cause}; is the server running?"),
                )
            }
            PoolError::LimitReached(max_connections, shortage) => {
                let why = match shortage {
                    ConnectionShortage::TimedOut(timeout) => format!("none became free within {timeout:?}"),
                    ConnectionShortage::QueueFull(waiting) => format!("{waiting} requests wait for one"),
                };
                HttpError::new(
                    HttpErrorKind::ConnectionLimit,
                    format!(
                        "all {max_connections} connections to {url} are in use, and {why}; the request was not sent"
                    ),
                )
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
    let next = resolve(url, &String::from_utf8_lossy(location)).ok_or_else(|| {
        let message = format!("{} redirects to an address that is not a valid URL", redacted(url));
        HttpError::new(HttpErrorKind::Protocol, message)
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
    fn request_target_always_has_a_path() {
        for (url, target) in
            [("http://h", "/"), ("http://h/", "/"), ("http://h?key=1", "/?key=1"), ("http://h/a?b=/c#d", "/a?b=/c")]
        {
            assert_eq!(&*Endpoint::new(url.parse().unwrap()).target, target, "{url}");
        }
    }

    #[test]
    fn connection_limit_error_says_that_nothing_was_sent() {
        let endpoint = Endpoint::new("http://h:1/s3cret?key=s3cret".parse().unwrap());
        let shortage = ConnectionShortage::TimedOut(Duration::from_secs(10));
        let error = endpoint.http_error(&PoolError::LimitReached(512, shortage));
        assert_eq!(error.kind(), HttpErrorKind::ConnectionLimit);
        assert_eq!(
            error.to_string(),
            "all 512 connections to http://h:1 are in use, and none became free within 10s; the request was not sent"
        );
    }
}
