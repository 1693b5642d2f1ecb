//! HTTP/2 client for gRPC: single requests with a message each, and the trailers of their responses. Calls of MCP never
//! go this way.

use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, Request, StatusCode, Uri};
use http_body_util::{BodyExt, Full, Limited};
use hyper_util::client::legacy::Client;
use hyper_util::rt::TokioExecutor;

use super::connector::{HttpsConnect, http2_connector};
use super::{HttpError, HttpErrorKind, HttpResult, redacted};

/// A client that speaks HTTP/2 only, with prior knowledge where there is no TLS.
pub(crate) struct Http2Client {
    client: Client<HttpsConnect, Full<Bytes>>,
    max_body_bytes: usize,
}

/// A response that was read whole.
#[derive(Debug)]
pub(crate) struct Http2Response {
    pub(crate) status: StatusCode,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Bytes,
    pub(crate) trailers: HeaderMap,
}

impl Http2Client {
    /// A client whose connections may take `connect_timeout`, and whose responses `max_body_bytes`.
    pub(crate) fn new(connect_timeout: Duration, max_body_bytes: usize) -> Self {
        let client = Client::builder(TokioExecutor::new()).http2_only(true).build(http2_connector(connect_timeout));
        Self { client, max_body_bytes }
    }

    /// Posts a body and reads the response, both within `timeout`.
    pub(crate) async fn post(
        &self,
        url: &Uri,
        headers: HeaderMap,
        body: Bytes,
        timeout: Duration,
    ) -> HttpResult<Http2Response> {
        let name = redacted(url);
        let broken = |why: &dyn std::error::Error| {
            let cause = why.source().map(|cause| format!(": {cause}")).unwrap_or_default();
            HttpError::new(HttpErrorKind::Broken, format!("{name}: {why}{cause}"))
        };
        let mut request = Request::post(url.clone()).body(Full::new(body)).map_err(|error| broken(&error))?;
        *request.headers_mut() = headers;
        let exchange = async {
            let response = self.client.request(request).await.map_err(|error| broken(&error))?;
            let (head, body) = response.into_parts();
            let collected = Limited::new(body, self.max_body_bytes).collect().await;
            let collected = collected.map_err(|error| broken(error.as_ref()))?;
            let trailers = collected.trailers().cloned().unwrap_or_default();
            Ok(Http2Response { status: head.status, headers: head.headers, body: collected.to_bytes(), trailers })
        };
        tokio::time::timeout(timeout, exchange).await.unwrap_or_else(|_| {
            let why = format!("{} did not answer within {timeout:?}", redacted(url));
            Err(HttpError::new(HttpErrorKind::Timeout(timeout), why))
        })
    }
}
