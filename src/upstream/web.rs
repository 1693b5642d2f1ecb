//! HTTP to upstreams: one pool of connections, TLS with the system's roots, redirects within the
//! origin only, and a limit on every wait.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use http::header::{CONTENT_TYPE, HOST, LOCATION};
use http::{HeaderMap, HeaderValue, Method as Verb, Request, Response, StatusCode, Uri};
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Incoming;
use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::{TokioExecutor, TokioTimer};

use super::target::{Address, Settings};
use crate::error::{Error, Kind, Result};

type Pool = Client<HttpsConnector<HttpConnector>, Full<Bytes>>;

/// How many redirects are followed.
const REDIRECTS: usize = 3;
/// How much of a body that explains a failure is shown.
const SNIPPET: usize = 300;
/// How long an unused connection is kept.
const IDLE: Duration = Duration::from_secs(60);

/// Speaks HTTP to one address.
#[derive(Debug)]
pub(super) struct Web {
    pool: Pool,
    /// Where to send; a redirect within the origin moves it.
    url: Mutex<Uri>,
    headers: HeaderMap,
    connect: Duration,
    limit: usize,
}

impl Web {
    pub(super) fn new(url: Uri, headers: HeaderMap, settings: &Settings) -> Self {
        let pool = pool(settings.connect);
        Self { pool, url: Mutex::new(url), headers, connect: settings.connect, limit: settings.message_bytes }
    }

    /// Where requests go.
    pub(super) fn url(&self) -> Uri {
        self.url.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The largest body or event that is read.
    pub(super) fn limit(&self) -> usize {
        self.limit
    }

    /// Sends to the address itself.
    pub(super) async fn send(
        &self,
        verb: Verb,
        headers: &HeaderMap,
        body: Bytes,
        patience: Duration,
    ) -> Result<Response<Incoming>> {
        let mut url = self.url();
        for _ in 0..=REDIRECTS {
            let response = self.send_to(&url, verb.clone(), headers, body.clone(), patience).await?;
            let Some(next) = redirected(&url, &response)? else { return Ok(response) };
            tracing::debug!(from = %shown(&url), to = %shown(&next), "the server moved within its origin");
            *self.url.lock().unwrap_or_else(PoisonError::into_inner) = next.clone();
            url = next;
        }
        Err(Error::new(Kind::Protocol, format!("{} redirects again and again", shown(&url))))
    }

    /// Sends to some address of the same origin. No redirect is followed.
    pub(super) async fn send_to(
        &self,
        url: &Uri,
        verb: Verb,
        headers: &HeaderMap,
        body: Bytes,
        patience: Duration,
    ) -> Result<Response<Incoming>> {
        let mut request = Request::builder().method(verb).uri(url.clone());
        if let Some(all) = request.headers_mut() {
            *all = headers.clone();
            for (name, value) in &self.headers {
                all.append(name, value.clone());
            }
            if let Some(authority) =
                url.authority().and_then(|authority| HeaderValue::from_str(authority.as_str()).ok())
            {
                all.entry(HOST).or_insert(authority);
            }
        }
        let request = request
            .body(Full::new(body))
            .map_err(|error| Error::new(Kind::Usage, format!("{}: {error}", shown(url))))?;
        match tokio::time::timeout(self.connect + patience, self.pool.request(request)).await {
            Ok(Ok(response)) => Ok(response),
            Ok(Err(error)) => Err(unreachable(url, &error)),
            Err(_) => Err(Error::new(Kind::Timeout, format!("{} did not answer within {patience:?}", shown(url)))),
        }
    }

    /// Reads a whole body.
    pub(super) async fn read(&self, body: Incoming, patience: Duration) -> Result<Bytes> {
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

/// The pool that everything with the same patience shares, so that many sessions with one server
/// use few connections.
/// Reads what is at an address.
///
/// # Errors
/// When it cannot be reached, or answers with anything but success.
pub async fn fetch(address: &Address, settings: &Settings) -> Result<Bytes> {
    let web = Web::new(address.url.clone(), address.headers.clone(), settings);
    let response = web.send(Verb::GET, &HeaderMap::new(), Bytes::new(), settings.probe).await?;
    let status = response.status();
    let body = web.read(response.into_body(), settings.call).await?;
    if status.is_success() { Ok(body) } else { Err(web.refused(status, &body)) }
}

fn pool(connect: Duration) -> Pool {
    static POOLS: Mutex<BTreeMap<Duration, Pool>> = Mutex::new(BTreeMap::new());
    let mut pools = POOLS.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(pool) = pools.get(&connect) {
        return pool.clone();
    }
    let mut tcp = HttpConnector::new();
    tcp.enforce_http(false);
    tcp.set_nodelay(true);
    tcp.set_connect_timeout(Some(connect));
    let builder = HttpsConnectorBuilder::new().with_native_roots().unwrap_or_else(|error| {
        // A system without roots can still reach what needs none; TLS will say that it trusts nobody.
        tracing::warn!(%error, "the system's TLS roots cannot be read; no HTTPS server will be trusted");
        HttpsConnectorBuilder::new().with_tls_config(trusting_nobody())
    });
    let connector = builder.https_or_http().enable_http1().wrap_connector(tcp);
    let pool: Pool =
        Client::builder(TokioExecutor::new()).pool_idle_timeout(IDLE).pool_timer(TokioTimer::new()).build(connector);
    pools.insert(connect, pool.clone());
    pool
}

fn trusting_nobody() -> rustls::ClientConfig {
    let provider = std::sync::Arc::new(rustls::crypto::ring::default_provider());
    let config = rustls::ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
    let config = config.expect("the provider has the usual versions");
    config.with_root_certificates(rustls::RootCertStore::empty()).with_no_client_auth()
}

fn unreachable(url: &Uri, error: &hyper_util::client::legacy::Error) -> Error {
    use std::error::Error as _;
    let mut why = error.to_string();
    let mut source = error.source();
    while let Some(inner) = source {
        why = inner.to_string();
        source = inner.source();
    }
    match error.is_connect() {
        true => {
            Error::new(Kind::Unreachable, format!("{} cannot be reached: {why}; is the server running?", shown(url)))
        }
        false => Error::new(Kind::Broken, format!("the connection to {} broke: {why}", shown(url))),
    }
}

/// Where a response sends us, if that is within the origin. Elsewhere our headers, which may hold
/// credentials, must not go.
fn redirected(url: &Uri, response: &Response<Incoming>) -> Result<Option<Uri>> {
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
