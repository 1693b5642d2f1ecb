//! HTTP to upstreams: TLS with the system's roots, redirects within the origin only, and a limit on
//! every wait.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use http::header::{CONTENT_TYPE, HOST, LOCATION};
use http::{HeaderMap, HeaderValue, Method as Verb, Request, Response, StatusCode, Uri};
use http_body_util::{BodyExt, Full, Limited};

use super::pool::{Failed, Pool, Reading};
use super::target::{Address, Settings};
use crate::error::{Error, Kind, Result};

/// How many redirects are followed.
const REDIRECTS: usize = 3;
/// How much of a body that explains a failure is shown.
const SNIPPET: usize = 300;
/// Speaks HTTP to one address.
#[derive(Debug)]
pub(super) struct Web {
    pool: Arc<Pool>,
    /// Where to send; a redirect within the origin moves it.
    place: Mutex<Place>,
    headers: HeaderMap,
    connect: Duration,
    limit: usize,
}

/// An address, and how a request names it.
#[derive(Debug, Clone)]
struct Place {
    url: Uri,
    path: Uri,
    host: Option<HeaderValue>,
}

impl Web {
    pub(super) fn new(url: Uri, headers: HeaderMap, settings: &Settings) -> Self {
        let (pool, place) = (Pool::of(&url, settings.connect), Mutex::new(Place::new(url)));
        Self { pool, place, headers, connect: settings.connect, limit: settings.message_bytes }
    }

    fn place(&self) -> MutexGuard<'_, Place> {
        self.place.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Where requests go.
    pub(super) fn url(&self) -> Uri {
        self.place().url.clone()
    }

    /// The largest body or event that is read.
    pub(super) fn limit(&self) -> usize {
        self.limit
    }

    /// Sends to the address itself. The headers are made anew should the server have moved.
    pub(super) async fn send(
        &self,
        verb: Verb,
        headers: impl Fn() -> HeaderMap,
        body: Bytes,
        patience: Option<Duration>,
    ) -> Result<Response<Reading>> {
        let mut place = self.place().clone();
        for _ in 0..=REDIRECTS {
            let response = self.send_there(&place, verb.clone(), headers(), body.clone(), patience).await?;
            let Some(next) = redirected(&place.url, &response)? else { return Ok(response) };
            tracing::debug!(from = %shown(&place.url), to = %shown(&next), "the server moved within its origin");
            place = Place::new(next);
            *self.place() = place.clone();
        }
        Err(Error::new(Kind::Protocol, format!("{} redirects again and again", shown(&place.url))))
    }

    /// Sends to some address of the same origin. No redirect is followed.
    pub(super) async fn send_to(
        &self,
        url: &Uri,
        verb: Verb,
        headers: &HeaderMap,
        body: Bytes,
        patience: Duration,
    ) -> Result<Response<Reading>> {
        self.send_there(&Place::new(url.clone()), verb, headers.clone(), body, Some(patience)).await
    }

    async fn send_there(
        &self,
        place: &Place,
        verb: Verb,
        headers: HeaderMap,
        body: Bytes,
        patience: Option<Duration>,
    ) -> Result<Response<Reading>> {
        let mut request = Request::new(Full::new(body));
        *request.method_mut() = verb;
        *request.uri_mut() = place.path.clone();
        let all = request.headers_mut();
        *all = headers;
        for (name, value) in &self.headers {
            all.append(name, value.clone());
        }
        if let Some(host) = &place.host {
            all.entry(HOST).or_insert_with(|| host.clone());
        }
        let sent = std::pin::pin!(self.pool.send(request));
        let response = match patience {
            None => sent.await,
            Some(patience) => tokio::time::timeout(self.connect + patience, sent).await.map_err(|_| {
                Error::new(Kind::Timeout, format!("{} did not answer within {patience:?}", shown(&place.url)))
            })?,
        };
        response.map_err(|failed| place.failed(&failed))
    }

    /// Reads a whole body.
    pub(super) async fn read(&self, body: Reading, patience: Duration) -> Result<Bytes> {
        let collected = Limited::new(body, self.limit).collect();
        match tokio::time::timeout(patience, collected).await {
            Ok(Ok(collected)) => Ok(collected.to_bytes()),
            Ok(Err(error)) if error.is::<http_body_util::LengthLimitError>() => {
                Err(Error::new(Kind::Protocol, format!("the server sent a body of more than {} bytes", self.limit)))
            }
            Ok(Err(error)) => Err(Error::new(Kind::Broken, format!("the answer broke off: {error}"))),
            Err(_) => Err(Error::new(Kind::Timeout, format!("the answer was not complete within {patience:?}"))),
        }
    }

    /// What a status that is no answer means.
    pub(super) fn refused(&self, status: StatusCode, body: &[u8]) -> Error {
        let url = self.url();
        let text = String::from_utf8_lossy(&body[..body.len().min(SNIPPET)]);
        let text = text.trim();
        let said = if text.is_empty() { String::new() } else { format!(": {text}") };
        match status {
            StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => Error::new(
                Kind::Credentials,
                format!("{} answered {status}{said}; give credentials as a header", shown(&url)),
            ),
            _ => Error::new(Kind::Status(status.as_u16()), format!("{} answered {status}{said}", shown(&url))),
        }
    }
}

/// Reads what is at an address.
///
/// # Errors
/// When it cannot be reached, or answers with anything but success.
pub async fn fetch(address: &Address, settings: &Settings) -> Result<Bytes> {
    let web = Web::new(address.url.clone(), address.headers.clone(), settings);
    let response = web.send(Verb::GET, HeaderMap::new, Bytes::new(), Some(settings.probe)).await?;
    let status = response.status();
    let body = web.read(response.into_body(), settings.call).await?;
    if status.is_success() { Ok(body) } else { Err(web.refused(status, &body)) }
}

impl Place {
    fn new(url: Uri) -> Self {
        let path = url.path_and_query().map_or_else(Uri::default, |path| Uri::from(path.clone()));
        let host = url.authority().and_then(|authority| HeaderValue::from_str(authority.as_str()).ok());
        Self { url, path, host }
    }

    /// Why no answer came from there.
    fn failed(&self, failed: &Failed) -> Error {
        use std::error::Error as _;
        let (mut why, mut source) = match failed {
            Failed::Unreachable(error) => (error.to_string(), error.source()),
            Failed::Broken(error) => (error.to_string(), error.source()),
        };
        while let Some(inner) = source {
            why = inner.to_string();
            source = inner.source();
        }
        let place = shown(&self.url);
        match failed {
            Failed::Unreachable(_) => {
                Error::new(Kind::Unreachable, format!("{place} cannot be reached: {why}; is the server running?"))
            }
            Failed::Broken(_) => Error::new(Kind::Broken, format!("the connection to {place} broke: {why}")),
        }
    }
}

/// Where a response sends us, if that is within the origin. Elsewhere our headers, which may hold
/// credentials, must not go.
fn redirected(url: &Uri, response: &Response<Reading>) -> Result<Option<Uri>> {
    let moved = matches!(
        response.status(),
        StatusCode::MOVED_PERMANENTLY
            | StatusCode::FOUND
            | StatusCode::TEMPORARY_REDIRECT
            | StatusCode::PERMANENT_REDIRECT
    );
    let Some(location) = response.headers().get(LOCATION).filter(|_| moved) else { return Ok(None) };
    let location = String::from_utf8_lossy(location.as_bytes()).into_owned();
    let next = resolve(url, &location).ok_or_else(|| {
        Error::new(Kind::Protocol, format!("{} redirects to {location:?}, which is no address", shown(url)))
    })?;
    if !same_origin(url, &next) {
        let why =
            format!("{} redirects to another origin, {}; use that address if you trust it", shown(url), shown(&next));
        return Err(Error::new(Kind::Protocol, why));
    }
    Ok(Some(next))
}

/// An address as it is meant from another one.
pub(super) fn resolve(base: &Uri, reference: &str) -> Option<Uri> {
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
pub(super) fn same_origin(a: &Uri, b: &Uri) -> bool {
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
pub(super) fn shown(url: &Uri) -> String {
    let scheme = url.scheme_str().unwrap_or("http");
    let authority = url.authority().map_or("", |authority| authority.as_str());
    format!("{scheme}://{authority}{}", url.path())
}

/// Whether a response is of a media type.
pub(super) fn is_media(headers: &HeaderMap, media: &str) -> bool {
    let value = headers.get(CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or_default();
    value.split(';').next().unwrap_or_default().trim().eq_ignore_ascii_case(media)
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
