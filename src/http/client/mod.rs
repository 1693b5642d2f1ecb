//! HTTP/1.1 client: pooled connections, TLS with the system's trust roots, redirects within the origin only, and a
//! timeout on every wait.

mod connection;
mod connector;
mod error;
mod http2;
mod in_memory;
mod limit;
mod pool;
mod sse_reader;
mod urls;

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::FutureExt;
use http::header::{CONNECTION, CONTENT_LENGTH, CONTENT_TYPE, HOST, LOCATION, TRANSFER_ENCODING};
use http::{HeaderMap, HeaderName, HeaderValue, Method as Verb, StatusCode, Uri};
use parking_lot::{Mutex, MutexGuard};

use crate::http::codec::{RequestEncoder, ResponseHead};
use crate::http::read_buffer::BodyError;
use crate::recorder::Mark;
use connection::EncodedRequest;
use pool::{ConnectionShortage, Pool, PoolError};

pub(crate) use connection::{HttpResponse, InFlight, ResponseBody};
pub use error::{HttpError, HttpErrorKind, HttpResult};
pub(crate) use http2::Http2Client;
pub use in_memory::{InMemoryBody, InMemoryClient};
pub use limit::DEFAULT_CONNECTIONS_PER_ORIGIN;
pub(crate) use limit::WhenFull;
pub use pool::{OriginUsage, SENT_AGAIN, origin_usage, set_connections_per_origin};
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
    /// Where requests are sent; a permanent redirect within the origin replaces it.
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
    /// The call that the request is a part of, for the recorder.
    pub(crate) mark: Mark,
}

/// Where a redirect leads, and for how long.
struct Redirect {
    target: Uri,
    lifetime: RedirectLifetime,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum RedirectLifetime {
    /// 302 and 307: the next request goes to the original URL again.
    ThisRequest,
    /// 301 and 308: remembered by the client.
    Permanent,
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

    /// The URL that requests are sent to, after permanent redirects.
    pub(crate) fn url(&self) -> Uri {
        self.endpoint().url.clone()
    }

    /// Whether the client itself sends this header with every request.
    pub(crate) fn sends_header(&self, name: &HeaderName) -> bool {
        self.headers.contains_key(name)
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
        let (response, _) = self.send_following(options, verb, headers, body).await?;
        Ok(response)
    }

    /// Like [`Self::send`]; also returns the URL that the response came from, after all redirects.
    pub(crate) async fn send_and_locate(
        &self,
        verb: Verb,
        headers: impl Fn(&mut RequestEncoder),
        body: Bytes,
        timeout: Option<Duration>,
    ) -> HttpResult<(HttpResponse, Uri)> {
        let options = SendOptions { timeout, ..SendOptions::default() };
        let (response, endpoint) = self.send_following(options, verb, headers, body).await?;
        Ok((response, endpoint.url.clone()))
    }

    /// Sends a request and follows redirects. Method and body stay the same also for 301 and 302, which browsers turn
    /// into GET: with another method an MCP message would be another request.
    async fn send_following(
        &self,
        options: SendOptions,
        verb: Verb,
        headers: impl Fn(&mut RequestEncoder),
        body: Bytes,
    ) -> HttpResult<(HttpResponse, Arc<Endpoint>)> {
        let mut endpoint = Arc::clone(&self.endpoint());
        // What comes after a temporary redirect is temporary, too.
        let mut lifetime = RedirectLifetime::Permanent;
        let mut status = StatusCode::OK;
        for _ in 0..=MAX_REDIRECTS {
            let mut request = self.encode(&endpoint, &verb, &headers, &body);
            request.in_flight.clone_from(&options.in_flight);
            (request.when_full, request.mark) = (options.when_full, options.mark);
            let response = self.send_once(&endpoint, &request, options.timeout).await?;
            let Some(redirect) = redirect(&endpoint.url, &response.head)? else { return Ok((response, endpoint)) };
            status = response.head.status();
            tracing::debug!(from = %redacted(&endpoint.url), %status, "redirect followed within the origin");
            let next = Arc::new(Endpoint::new(redirect.target));
            if redirect.lifetime == RedirectLifetime::ThisRequest {
                lifetime = RedirectLifetime::ThisRequest;
            }
            if lifetime == RedirectLifetime::Permanent {
                self.replace_endpoint(&endpoint, &next);
            }
            endpoint = next;
        }
        let message = format!("{} redirects again and again", redacted(&endpoint.url));
        Err(HttpError::new(HttpErrorKind::Redirect(status.as_u16()), message))
    }

    /// Remembers a permanent redirect, unless another request has found one meanwhile.
    fn replace_endpoint(&self, old: &Arc<Endpoint>, new: &Arc<Endpoint>) {
        let mut current = self.endpoint();
        if Arc::ptr_eq(&current, old) {
            *current = Arc::clone(new);
        }
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
        let (when_full, mark) = (WhenFull::Wait, Mark::NONE);
        EncodedRequest { verb: verb.clone(), head, body: rest, in_flight: None, when_full, mark }
    }

    /// Reads a whole body within `timeout`.
    pub(crate) async fn read_body(&self, body: ResponseBody, timeout: Duration) -> HttpResult<Bytes> {
        let mut reading = pin!(body.read_to_end(self.max_body_bytes));
        // Most bodies arrive with their head, and need no timer.
        let read = match reading.as_mut().now_or_never() {
            Some(read) => Ok(read),
            None => tokio::time::timeout(timeout, reading).await,
        };
        match read {
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
                let (kind, cause) = connector::why_unconnected(&**error);
                HttpError::new(kind, format!("{url} cannot be reached: {cause}; is the server running?"))
            }
            PoolError::NotSent(cause) => {
                HttpError::new(HttpErrorKind::NotSent, format!("connection to {url} broken: {cause}"))
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

/// The redirect of a response, if it is one. A target at another origin, and so one without TLS after one with TLS, is
/// an error, because the headers may hold credentials.
fn redirect(url: &Uri, head: &ResponseHead) -> HttpResult<Option<Redirect>> {
    let lifetime = match head.status() {
        StatusCode::MOVED_PERMANENTLY | StatusCode::PERMANENT_REDIRECT => RedirectLifetime::Permanent,
        StatusCode::FOUND | StatusCode::TEMPORARY_REDIRECT => RedirectLifetime::ThisRequest,
        _ => return Ok(None),
    };
    let refused = |message| Err(HttpError::new(HttpErrorKind::Redirect(head.status().as_u16()), message));
    let Some(location) = head.get(&LOCATION) else { return Ok(None) };
    let Some(target) = resolve(url, &String::from_utf8_lossy(location)) else {
        return refused(format!("{} redirects to an address that is not a valid URL", redacted(url)));
    };
    if !same_origin(url, &target) {
        return refused(format!(
            "{} redirects to another origin, {}; use that address if you trust it",
            redacted(url),
            redacted(&target)
        ));
    }
    Ok(Some(Redirect { target, lifetime }))
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
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpListener;
    use tokio::sync::mpsc;

    #[test]
    fn request_target_always_has_a_path() {
        for (url, target) in
            [("http://h", "/"), ("http://h/", "/"), ("http://h?key=1", "/?key=1"), ("http://h/a?b=/c#d", "/a?b=/c")]
        {
            assert_eq!(&*Endpoint::new(url.parse().unwrap()).target, target, "{url}");
        }
    }

    /// A server whose responses are given by path, as status and `Location`; others are 200. Each request is recorded as
    /// method, path and body.
    async fn redirecting_server(
        redirects: &'static [(&'static str, &'static str, &'static str)],
    ) -> (HttpClient, mpsc::UnboundedReceiver<String>) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}/start", listener.local_addr().unwrap()).parse().unwrap();
        let (sender, received) = mpsc::unbounded_channel();
        tokio::spawn(async move {
            while let Ok((mut stream, _)) = listener.accept().await {
                let mut request = Vec::new();
                // Every request ends with the body `{}`.
                while !request.ends_with(b"{}") && stream.read_buf(&mut request).await.unwrap_or(0) > 0 {}
                let request = String::from_utf8(request).unwrap();
                let mut words = request.split(' ');
                let (verb, path) = (words.next().unwrap(), words.next().unwrap_or_default());
                let body = request.rsplit("\r\n").next().unwrap();
                let _ = sender.send(format!("{verb} {path} {body}"));
                let found = redirects.iter().find(|(from, ..)| *from == path);
                let (status, location) = found.map_or(("200 OK", ""), |(_, status, location)| (*status, *location));
                let response = format!(
                    "HTTP/1.1 {status}\r\nlocation: {location}\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"
                );
                let _ = stream.write_all(response.as_bytes()).await;
            }
        });
        (HttpClient::new(url, HeaderMap::new(), Duration::from_secs(5), 100), received)
    }

    /// Posts twice; the last status and the requests that the server received, in order.
    async fn post_twice(
        redirects: &'static [(&'static str, &'static str, &'static str)],
    ) -> (HttpResult<StatusCode>, Vec<String>) {
        let (client, mut received) = redirecting_server(redirects).await;
        let post = || client.send(Verb::POST, |_| (), Bytes::from_static(b"{}"), Some(Duration::from_secs(5)));
        let _ = post().await;
        let status = post().await.map(|response| response.head.status());
        let requests = std::iter::from_fn(|| received.try_recv().ok()).collect();
        (status, requests)
    }

    #[tokio::test]
    async fn temporary_redirects_are_followed_for_one_request() {
        for redirects in [&[("/start", "302 Found", "/new")], &[("/start", "307 Temporary Redirect", "new?x")]] {
            let (status, requests) = post_twice(redirects).await;
            assert_eq!(status.unwrap(), StatusCode::OK);
            let target = redirects[0].2.trim_start_matches('/');
            let followed = ["POST /start {}".to_owned(), format!("POST /{target} {{}}")];
            assert_eq!(requests, [followed.clone(), followed].concat());
        }
    }

    #[tokio::test]
    async fn permanent_redirects_are_remembered() {
        for redirects in
            [&[("/start", "301 Moved Permanently", "/new")], &[("/start", "308 Permanent Redirect", "/new")]]
        {
            let (status, requests) = post_twice(redirects).await;
            assert_eq!(status.unwrap(), StatusCode::OK);
            assert_eq!(requests, ["POST /start {}", "POST /new {}", "POST /new {}"]);
        }
    }

    #[tokio::test]
    async fn redirects_are_remembered_up_to_the_first_temporary_one() {
        let (status, requests) = post_twice(&[
            ("/start", "308 Permanent Redirect", "/b"),
            ("/b", "307 Temporary Redirect", "/c"),
            ("/c", "308 Permanent Redirect", "/d"),
        ])
        .await;
        assert_eq!(status.unwrap(), StatusCode::OK);
        let paths: Vec<&str> = requests.iter().filter_map(|request| request.split(' ').nth(1)).collect();
        assert_eq!(paths, ["/start", "/b", "/c", "/d", "/b", "/c", "/d"]);
    }

    #[tokio::test]
    async fn redirects_are_bounded_and_see_other_is_not_followed() {
        let (status, requests) = post_twice(&[("/start", "307 Temporary Redirect", "/start")]).await;
        assert_eq!(status.unwrap_err().kind(), HttpErrorKind::Redirect(307));
        assert_eq!(requests.len(), 2 * (MAX_REDIRECTS + 1));
        let (status, requests) = post_twice(&[("/start", "303 See Other", "/new")]).await;
        assert_eq!(status.unwrap(), StatusCode::SEE_OTHER);
        assert_eq!(requests, ["POST /start {}", "POST /start {}"]);
    }

    /// Headers with credentials are sent wherever a redirect is followed to.
    #[test]
    fn redirects_stay_within_the_origin() {
        let url = "https://h/a".parse().unwrap();
        for (location, followed) in [
            ("/b", Some("https://h/b")),
            ("https://h:443/b", Some("https://h/b")),
            ("http://h/b", None),
            ("https://h:8443/b", None),
            ("https://other/b", None),
            ("//other/b", None),
            ("https://user@h/b", None),
            ("https://", None),
        ] {
            let head = format!("HTTP/1.1 308 Permanent Redirect\r\nlocation: {location}\r\n\r\n");
            let (head, _) = ResponseHead::parse(&mut head.as_bytes().into(), &Verb::POST).unwrap().unwrap();
            let target = redirect(&url, &head).map(|redirect| redirect.unwrap().target.to_string());
            let target = target.as_deref().map_err(HttpError::kind);
            assert_eq!(target, followed.ok_or(HttpErrorKind::Redirect(308)), "{location}");
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
