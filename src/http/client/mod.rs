//! HTTP to upstreams: TLS with the system's roots, redirects within the origin only, and a limit on
//! every wait.

mod connection;
mod error;
mod pool;
mod sse_reader;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use http::header::{CONNECTION, CONTENT_LENGTH, CONTENT_TYPE, HOST, LOCATION, TRANSFER_ENCODING};
use http::{HeaderMap, HeaderName, HeaderValue, Method as Verb, StatusCode, Uri};

use crate::http::codec::{RequestEncoder, ResponseHead};
use crate::http::read_buffer::BodyError;
use connection::EncodedRequest;
use pool::{Pool, PoolError};

pub(crate) use connection::{HttpResponse, InFlight, ResponseBody};
pub use error::{HttpError, HttpErrorKind, HttpResult};
pub(crate) use sse_reader::EventReader;

/// How many redirects are followed.
const REDIRECTS: usize = 3;
/// A body that is no longer than this goes out with its head in one piece.
const INLINE_BODY_MAX: usize = 8 << 10;
/// The headers that say how a message is framed, which nobody else has a say in.
const FRAMING: [HeaderName; 3] = [CONNECTION, CONTENT_LENGTH, TRANSFER_ENCODING];

/// Speaks HTTP to one address.
#[derive(Debug)]
pub(crate) struct HttpClient {
    pool: Arc<Pool>,
    /// Where to send; a redirect within the origin moves it.
    place: Mutex<Arc<Endpoint>>,
    headers: HeaderMap,
    connect: Duration,
    limit: usize,
}

/// An address, and how a request names it.
#[derive(Debug)]
struct Endpoint {
    url: Uri,
    target: Box<str>,
    host: Option<HeaderValue>,
}

impl HttpClient {
    /// A client for one address, with headers that go with every request. A connection may take `connect` to open, and
    /// no body or event of more than `limit` bytes is read.
    pub(crate) fn new(url: Uri, headers: HeaderMap, connect: Duration, limit: usize) -> Self {
        let (pool, place) = (Pool::of(&url, connect), Mutex::new(Arc::new(Endpoint::new(url))));
        Self { pool, place, headers, connect, limit }
    }

    fn place(&self) -> MutexGuard<'_, Arc<Endpoint>> {
        self.place.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Where requests go.
    pub(crate) fn url(&self) -> Uri {
        self.place().url.clone()
    }

    /// The largest body or event that is read.
    pub(crate) fn limit(&self) -> usize {
        self.limit
    }

    /// Sends to the address itself. The headers are written anew should the server have moved.
    pub(crate) async fn send(
        &self,
        verb: Verb,
        headers: impl Fn(&mut RequestEncoder),
        body: Bytes,
        patience: Option<Duration>,
    ) -> HttpResult<HttpResponse> {
        self.send_in(None, verb, headers, body, patience).await
    }

    /// The same, of a request that somebody has to know to be on its way.
    pub(crate) async fn send_in(
        &self,
        in_flight: Option<InFlight>,
        verb: Verb,
        headers: impl Fn(&mut RequestEncoder),
        body: Bytes,
        patience: Option<Duration>,
    ) -> HttpResult<HttpResponse> {
        let mut place = Arc::clone(&self.place());
        for _ in 0..=REDIRECTS {
            let mut request = self.written(&place, &verb, &headers, &body);
            request.in_flight.clone_from(&in_flight);
            let response = self.send_there(&place, &request, patience).await?;
            let Some(next) = redirected(&place.url, &response.head)? else { return Ok(response) };
            tracing::debug!(from = %redacted(&place.url), to = %redacted(&next), "the server moved within its origin");
            place = Arc::new(Endpoint::new(next));
            *self.place() = Arc::clone(&place);
        }
        Err(HttpError::new(HttpErrorKind::Protocol, format!("{} redirects again and again", redacted(&place.url))))
    }

    /// Sends to some address of the same origin. No redirect is followed.
    pub(crate) async fn send_to(
        &self,
        url: &Uri,
        verb: &Verb,
        headers: &HeaderMap,
        body: &Bytes,
        patience: Duration,
    ) -> HttpResult<HttpResponse> {
        let own = |head: &mut RequestEncoder| put_all(head, headers);
        let mut place = Endpoint::new(url.clone());
        if headers.contains_key(HOST) {
            place.host = None;
        }
        self.send_there(&place, &self.written(&place, verb, own, body), Some(patience)).await
    }

    async fn send_there(
        &self,
        place: &Endpoint,
        request: &EncodedRequest,
        patience: Option<Duration>,
    ) -> HttpResult<HttpResponse> {
        let sent = std::pin::pin!(self.pool.send(request));
        let response = match patience {
            None => sent.await,
            Some(patience) => tokio::time::timeout(self.connect + patience, sent).await.map_err(|_| {
                HttpError::new(
                    HttpErrorKind::Timeout,
                    format!("{} did not answer within {patience:?}", redacted(&place.url)),
                )
            })?,
        };
        response.map_err(|failed| place.failed(&failed))
    }

    /// A request as it goes out.
    fn written(
        &self,
        place: &Endpoint,
        verb: &Verb,
        headers: impl FnOnce(&mut RequestEncoder),
        body: &Bytes,
    ) -> EncodedRequest {
        let short = body.len() <= INLINE_BODY_MAX;
        let mut head = RequestEncoder::new(verb, &place.target, if short { body.len() } else { 0 });
        if let Some(host) = place.host.as_ref().filter(|_| !self.headers.contains_key(HOST)) {
            head.put(&HOST, host);
        }
        headers(&mut head);
        put_all(&mut head, &self.headers);
        let has_body = !body.is_empty() || matches!(*verb, Verb::POST | Verb::PUT | Verb::PATCH);
        let mut head = head.finish(has_body.then_some(body.len()));
        let mut rest = Bytes::new();
        match short {
            true => head.extend_from_slice(body),
            false => rest = body.clone(),
        }
        EncodedRequest { verb: verb.clone(), head, body: rest, in_flight: None }
    }

    /// Reads a whole body.
    pub(crate) async fn read(&self, body: ResponseBody, patience: Duration) -> HttpResult<Bytes> {
        match tokio::time::timeout(patience, body.read_to_end(self.limit)).await {
            Ok(Ok(body)) => Ok(body),
            Ok(Err(BodyError::TooLong)) => Err(HttpError::new(
                HttpErrorKind::Protocol,
                format!("the server sent a body of more than {} bytes", self.limit),
            )),
            Ok(Err(BodyError::Broken(error))) => {
                Err(HttpError::new(HttpErrorKind::Broken, format!("the answer broke off: {error}")))
            }
            Err(_) => {
                Err(HttpError::new(HttpErrorKind::Timeout, format!("the answer was not complete within {patience:?}")))
            }
        }
    }
}

impl Endpoint {
    fn new(url: Uri) -> Self {
        let target = match url.path_and_query().map_or("/", |target| target.as_str()) {
            // An address may have no path.
            query if query.starts_with('?') => format!("/{query}").into(),
            target => target.into(),
        };
        let host = url.authority().and_then(|authority| HeaderValue::from_str(authority.as_str()).ok());
        Self { url, target, host }
    }

    /// Why no answer came from there.
    fn failed(&self, failed: &PoolError) -> HttpError {
        let place = redacted(&self.url);
        match failed {
            PoolError::Unreachable(error) => {
                let mut why: &dyn std::error::Error = &**error;
                while let Some(inner) = why.source() {
                    why = inner;
                }
                HttpError::new(
                    HttpErrorKind::Unreachable,
                    format!("{place} cannot be reached: {why}; is the server running?"),
                )
            }
            PoolError::Broken(why) => {
                HttpError::new(HttpErrorKind::Broken, format!("the connection to {place} broke: {why}"))
            }
        }
    }
}

/// Where a response sends us, if that is within the origin. Elsewhere our headers, which may hold
/// credentials, must not go.
fn redirected(url: &Uri, head: &ResponseHead) -> HttpResult<Option<Uri>> {
    let moved = matches!(
        head.status(),
        StatusCode::MOVED_PERMANENTLY
            | StatusCode::FOUND
            | StatusCode::TEMPORARY_REDIRECT
            | StatusCode::PERMANENT_REDIRECT
    );
    if !moved {
        return Ok(None);
    }
    let Some(location) = head.get(&LOCATION) else { return Ok(None) };
    let location = String::from_utf8_lossy(location).into_owned();
    let next = resolve(url, &location).ok_or_else(|| {
        HttpError::new(
            HttpErrorKind::Protocol,
            format!("{} redirects to {location:?}, which is no address", redacted(url)),
        )
    })?;
    if !same_origin(url, &next) {
        let why = format!(
            "{} redirects to another origin, {}; use that address if you trust it",
            redacted(url),
            redacted(&next)
        );
        return Err(HttpError::new(HttpErrorKind::Protocol, why));
    }
    Ok(Some(next))
}

/// An address as it is meant from another one.
pub(crate) fn resolve(base: &Uri, reference: &str) -> Option<Uri> {
    let absolute = ["http://", "https://"].iter().any(|scheme| reference.starts_with(scheme));
    if absolute || reference.split('/').next().is_some_and(|first| first.ends_with(':')) {
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

/// Whether two addresses have the same scheme, host and port.
pub(crate) fn same_origin(a: &Uri, b: &Uri) -> bool {
    let port = |uri: &Uri| {
        uri.port_u16().or(match uri.scheme_str() {
            Some("http") => Some(80),
            Some("https") => Some(443),
            _ => None,
        })
    };
    let host = |uri: &Uri| uri.host().map(str::to_ascii_lowercase);
    let bare = |uri: &Uri| uri.authority().is_some_and(|authority| !authority.as_str().contains('@'));
    bare(a) && bare(b) && a.scheme_str() == b.scheme_str() && host(a) == host(b) && port(a) == port(b)
}

/// An address as it may be shown: without its query, which may hold secrets.
pub(crate) fn redacted(url: &Uri) -> String {
    let scheme = url.scheme_str().unwrap_or("http");
    let authority = url.authority().map_or("", |authority| authority.as_str());
    format!("{scheme}://{authority}{}", url.path())
}

/// Whether an answer is of a media type.
pub(crate) fn is_media(head: &ResponseHead, media: &str) -> bool {
    let value = head.get(&CONTENT_TYPE).unwrap_or_default();
    let end = memchr::memchr(b';', value).unwrap_or(value.len());
    value[..end].trim_ascii().eq_ignore_ascii_case(media.as_bytes())
}

fn put_all(head: &mut RequestEncoder, headers: &HeaderMap) {
    for (name, value) in headers.iter().filter(|(name, _)| !FRAMING.contains(name)) {
        head.put(name, value);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn references_are_resolved() {
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
    fn a_request_names_a_path_even_where_its_address_has_none() {
        for (url, target) in
            [("http://h", "/"), ("http://h/", "/"), ("http://h?key=1", "/?key=1"), ("http://h/a?b=/c#d", "/a?b=/c")]
        {
            assert_eq!(&*Endpoint::new(url.parse().unwrap()).target, target, "{url}");
        }
    }

    #[test]
    fn origins_are_scheme_host_and_port() {
        let same = |a: &str, b: &str| same_origin(&a.parse().unwrap(), &b.parse().unwrap());
        assert!(same("http://h/a", "http://H:80/b"));
        assert!(same("https://h:443", "https://h"));
        assert!(!same("http://h", "https://h"));
        assert!(!same("http://h:1", "http://h:2"));
        assert!(!same("http://h", "http://h.evil"));
        assert!(!same("http://h", "http://user@h"));
    }
}
