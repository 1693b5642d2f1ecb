//! Sends encoded requests to a collector: OTLP over HTTP or over gRPC.

use std::time::{Duration, SystemTime};

use bytes::{BufMut, Bytes, BytesMut};
use http::header::{CONTENT_TYPE, RETRY_AFTER, TE};
use http::{HeaderMap, HeaderName, HeaderValue, Method as Verb, StatusCode, Uri};

use super::resource::rejected_items;
use super::sender::RejectedItems;
use super::settings::CollectorConfig;
use crate::failure::parse_retry_after;
use crate::http::client::{Http2Client, HttpClient, redacted};
use crate::http::codec::RequestEncoder;

/// How spans and metrics are sent to the collector.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OtlpProtocol {
    /// Protobuf in POST requests.
    HttpProtobuf,
    /// gRPC over HTTP/2.
    Grpc,
}

/// A collector.
pub(super) struct OtlpClient {
    url: Uri,
    transport: OtlpTransport,
    headers: HeaderMap,
    timeout: Duration,
}

enum OtlpTransport {
    Http(HttpClient),
    Grpc(Http2Client),
}

/// Why a request was not taken.
#[derive(Debug)]
pub(super) struct ExportError {
    pub(super) why: String,
    pub(super) is_retryable: bool,
    /// The delay that the collector asks for.
    pub(super) retry_after: Option<Duration>,
}

const GRPC_STATUS: HeaderName = HeaderName::from_static("grpc-status");
const GRPC_MESSAGE: HeaderName = HeaderName::from_static("grpc-message");
const GRPC_TIMEOUT: HeaderName = HeaderName::from_static("grpc-timeout");
/// Longest time for a connection.
const MAX_CONNECT_TIME: Duration = Duration::from_secs(5);
/// Largest response that is read.
const MAX_RESPONSE_BYTES: usize = 64 << 10;
/// Bytes before a message of gRPC: whether it is compressed, and its length.
const GRPC_PREFIX_BYTES: usize = 5;
/// Statuses of gRPC after which the request is sent again: cancelled, deadline exceeded, resource exhausted, aborted, out of
/// range, unavailable, data loss.
const RETRYABLE_GRPC: [u32; 7] = [1, 4, 8, 10, 11, 14, 15];
/// Most of what an error of the collector says.
const MAX_MESSAGE_BYTES: usize = 200;

impl OtlpClient {
    pub(super) fn new(collector: &CollectorConfig) -> Self {
        let CollectorConfig { url, protocol, headers, timeout, .. } = collector.clone();
        let connect_time = timeout.min(MAX_CONNECT_TIME);
        let transport = match protocol {
            OtlpProtocol::HttpProtobuf => {
                let client = HttpClient::new(url.clone(), HeaderMap::new(), connect_time, MAX_RESPONSE_BYTES);
                OtlpTransport::Http(client)
            }
            OtlpProtocol::Grpc => OtlpTransport::Grpc(Http2Client::new(connect_time, MAX_RESPONSE_BYTES)),
        };
        Self { url, transport, headers, timeout }
    }

    /// The address of the collector, for logs.
    pub(super) fn name(&self) -> String {
        redacted(&self.url)
    }

    /// Sends an encoded request.
    pub(super) async fn export(&self, request: Bytes) -> Result<RejectedItems, ExportError> {
        match &self.transport {
            OtlpTransport::Http(client) => self.export_http(client, request).await,
            OtlpTransport::Grpc(client) => self.export_grpc(client, &request).await,
        }
    }

    async fn export_http(&self, client: &HttpClient, request: Bytes) -> Result<RejectedItems, ExportError> {
        let headers = |head: &mut RequestEncoder| {
            head.put_static(&CONTENT_TYPE, "application/x-protobuf");
            self.headers.iter().for_each(|(name, value)| head.put(name, value));
        };
        let failed = |why: String| ExportError { why, is_retryable: true, retry_after: None };
        let response = client.send(Verb::POST, headers, request, Some(self.timeout)).await;
        let response = response.map_err(|error| failed(error.to_string()))?;
        let status = response.head.status();
        let retry_after = response.head.get(&RETRY_AFTER).and_then(|value| parse_retry_after(value, SystemTime::now()));
        let body = client.read_body(response.body, self.timeout).await.map_err(|error| failed(error.to_string()))?;
        if status.is_success() {
            return Ok(rejected_items(&body));
        }
        let is_retryable = matches!(
            status,
            StatusCode::TOO_MANY_REQUESTS
                | StatusCode::BAD_GATEWAY
                | StatusCode::SERVICE_UNAVAILABLE
                | StatusCode::GATEWAY_TIMEOUT
        );
        Err(ExportError { why: format!("{} answers {status}", self.name()), is_retryable, retry_after })
    }

    async fn export_grpc(&self, client: &Http2Client, request: &Bytes) -> Result<RejectedItems, ExportError> {
        let mut headers = self.headers.clone();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/grpc"));
        headers.insert(TE, HeaderValue::from_static("trailers"));
        if let Ok(timeout) = HeaderValue::from_str(&format!("{}m", self.timeout.as_millis())) {
            headers.insert(GRPC_TIMEOUT, timeout);
        }
        let response = client.post(&self.url, headers, grpc_frame(request), self.timeout).await;
        let response =
            response.map_err(|error| ExportError { why: error.to_string(), is_retryable: true, retry_after: None })?;
        // An error without a message comes with the headers alone.
        let field = |name: &HeaderName| response.trailers.get(name).or_else(|| response.headers.get(name));
        let status = field(&GRPC_STATUS).and_then(|status| status.to_str().ok()?.parse::<u32>().ok());
        if let (StatusCode::OK, Some(0)) = (response.status, status) {
            return Ok(rejected_items(response.body.get(GRPC_PREFIX_BYTES..).unwrap_or_default()));
        }
        let message = field(&GRPC_MESSAGE).map(|message| String::from_utf8_lossy(message.as_bytes()).into_owned());
        let message = message.unwrap_or_default();
        let message = &message[..message.floor_char_boundary(MAX_MESSAGE_BYTES)];
        let why = match status {
            Some(status) => format!("{} answers gRPC status {status} {message}", self.name()),
            None => format!("{} answers {} without a gRPC status", self.name(), response.status),
        };
        let is_retryable = match status {
            Some(status) => RETRYABLE_GRPC.contains(&status),
            None => matches!(response.status.as_u16(), 429 | 502 | 503 | 504),
        };
        Err(ExportError { why, is_retryable, retry_after: None })
    }
}

/// A message of gRPC, which is not compressed.
fn grpc_frame(message: &Bytes) -> Bytes {
    let mut frame = BytesMut::with_capacity(GRPC_PREFIX_BYTES + message.len());
    frame.put_u8(0);
    frame.put_u32(u32::try_from(message.len()).unwrap_or(u32::MAX));
    frame.put_slice(message);
    frame.freeze()
}
