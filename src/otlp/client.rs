//! Sends encoded requests to a collector: OTLP over HTTP or over gRPC.

use std::io::Write;
use std::time::{Duration, SystemTime};

use bytes::{BufMut, Bytes, BytesMut};
use flate2::Compression;
use flate2::write::GzEncoder;
use http::header::{CONTENT_ENCODING, CONTENT_TYPE, RETRY_AFTER, TE};
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

/// How requests to the collector are compressed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum OtlpCompression {
    /// Not at all.
    #[default]
    Off,
    /// By gzip.
    Gzip,
}

/// A request that was compressed as the collector is to get it. It is made once, however often it is sent.
#[derive(Debug, Clone)]
pub(super) struct PackedRequest(Bytes);

/// A collector.
pub(super) struct OtlpClient {
    url: Uri,
    transport: OtlpTransport,
    compression: OtlpCompression,
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

const GZIP: &str = "gzip";
const GRPC_ENCODING: HeaderName = HeaderName::from_static("grpc-encoding");
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
        let CollectorConfig { url, protocol, compression, headers, timeout, .. } = collector.clone();
        let connect_time = timeout.min(MAX_CONNECT_TIME);
        let transport = match protocol {
            OtlpProtocol::HttpProtobuf => {
                let client = HttpClient::new(url.clone(), HeaderMap::new(), connect_time, MAX_RESPONSE_BYTES);
                OtlpTransport::Http(client)
            }
            OtlpProtocol::Grpc => OtlpTransport::Grpc(Http2Client::new(connect_time, MAX_RESPONSE_BYTES)),
        };
        Self { url, transport, compression, headers, timeout }
    }

    /// The address of the collector, for logs.
    pub(super) fn name(&self) -> String {
        redacted(&self.url)
    }

    /// Compresses and frames an encoded request.
    pub(super) fn pack(&self, request: Bytes) -> PackedRequest {
        let request = match self.compression {
            OtlpCompression::Off => request,
            OtlpCompression::Gzip => gzip(&request),
        };
        PackedRequest(match &self.transport {
            OtlpTransport::Http(_) => request,
            OtlpTransport::Grpc(_) => grpc_frame(self.compression, &request),
        })
    }

    /// Sends a request.
    pub(super) async fn export(&self, request: PackedRequest) -> Result<RejectedItems, ExportError> {
        match &self.transport {
            OtlpTransport::Http(client) => self.export_http(client, request.0).await,
            OtlpTransport::Grpc(client) => self.export_grpc(client, request.0).await,
        }
    }

    async fn export_http(&self, client: &HttpClient, request: Bytes) -> Result<RejectedItems, ExportError> {
        let headers = |head: &mut RequestEncoder| {
            head.put_static(&CONTENT_TYPE, "application/x-protobuf");
            if self.compression == OtlpCompression::Gzip {
                head.put_static(&CONTENT_ENCODING, GZIP);
            }
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

    async fn export_grpc(&self, client: &Http2Client, request: Bytes) -> Result<RejectedItems, ExportError> {
        let mut headers = self.headers.clone();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/grpc"));
        headers.insert(TE, HeaderValue::from_static("trailers"));
        if self.compression == OtlpCompression::Gzip {
            headers.insert(GRPC_ENCODING, HeaderValue::from_static(GZIP));
        }
        if let Ok(timeout) = HeaderValue::from_str(&format!("{}m", self.timeout.as_millis())) {
            headers.insert(GRPC_TIMEOUT, timeout);
        }
        let response = client.post(&self.url, headers, request, self.timeout).await;
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

fn gzip(request: &Bytes) -> Bytes {
    let mut encoder = GzEncoder::new(Vec::with_capacity(request.len() / 4), Compression::fast());
    // Writing to memory does not fail.
    let _ = encoder.write_all(request);
    encoder.finish().unwrap_or_default().into()
}

/// A message of gRPC.
fn grpc_frame(compression: OtlpCompression, message: &Bytes) -> Bytes {
    let mut frame = BytesMut::with_capacity(GRPC_PREFIX_BYTES + message.len());
    frame.put_u8(u8::from(compression != OtlpCompression::Off));
    frame.put_u32(u32::try_from(message.len()).unwrap_or(u32::MAX));
    frame.put_slice(message);
    frame.freeze()
}

#[cfg(test)]
mod tests {
    use std::io::Read;

    use super::*;

    fn packed(protocol: OtlpProtocol, compression: OtlpCompression) -> Bytes {
        let collector = CollectorConfig {
            url: Uri::from_static("http://127.0.0.1:1/v1/traces"),
            protocol,
            compression,
            headers: HeaderMap::new(),
            timeout: MAX_CONNECT_TIME,
            export_timeout: MAX_CONNECT_TIME,
            resource: Vec::new(),
        };
        OtlpClient::new(&collector).pack(Bytes::from_static(b"a request")).0
    }

    #[tokio::test]
    async fn requests_are_framed_and_compressed_as_is_said() {
        let decompressed = |bytes: &[u8]| {
            let mut text = String::new();
            flate2::read::GzDecoder::new(bytes).read_to_string(&mut text).unwrap();
            text
        };
        let [plain, compressed] = [OtlpCompression::Off, OtlpCompression::Gzip];
        assert_eq!(&packed(OtlpProtocol::HttpProtobuf, plain)[..], b"a request");
        assert_eq!(decompressed(&packed(OtlpProtocol::HttpProtobuf, compressed)), "a request");
        assert_eq!(&packed(OtlpProtocol::Grpc, plain)[..], b"\0\0\0\0\x09a request");
        let framed = packed(OtlpProtocol::Grpc, compressed);
        let (prefix, message) = framed.split_at(GRPC_PREFIX_BYTES);
        assert_eq!(prefix, [[1].as_slice(), &(message.len() as u32).to_be_bytes()].concat());
        assert_eq!(decompressed(message), "a request");
    }
}
