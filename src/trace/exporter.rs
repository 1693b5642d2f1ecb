//! Takes spans from the queue and sends them in batches, by one task beside the workers.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::time::Duration;

use bytes::Bytes;
use tokio::sync::Notify;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::encode::{EncodedResource, export_request};
use super::otlp::OtlpClient;
use super::settings::TraceConfig;
use super::span::EndedSpan;

/// The queue of ended spans. Workers push without a lock; the exporter looks into it at its own pace.
pub(super) struct SpanPipeline {
    pub(super) config: TraceConfig,
    queue: SyncSender<EndedSpan>,
    queued: AtomicUsize,
    /// Signalled when a batch is full.
    batch_ready: Notify,
    counters: Arc<SpanCounters>,
    pub(super) stop: CancellationToken,
}

/// What became of spans, since the start.
#[derive(Debug, Default)]
pub struct SpanCounters {
    pub(super) exported: AtomicU64,
    pub(super) queue_full: AtomicU64,
    pub(super) export_failed: AtomicU64,
    pub(super) rejected: AtomicU64,
}

/// The task that sends batches.
pub(super) struct Exporter {
    pipeline: Arc<SpanPipeline>,
    queue: Receiver<EndedSpan>,
    client: OtlpClient,
    resource: EncodedResource,
    counters: Arc<SpanCounters>,
    /// Whether the last batch failed; the log is told of the first and of the end only.
    is_failing: bool,
}

/// The first delay before a batch is sent again.
const RETRY_INITIAL_DELAY: Duration = Duration::from_millis(500);
/// The longest one, unless the collector asks for more.
const RETRY_MAX_DELAY: Duration = Duration::from_secs(10);

impl SpanPipeline {
    /// The queue and the task that empties it.
    pub(super) fn new(config: TraceConfig, counters: &Arc<SpanCounters>) -> (Arc<Self>, Exporter) {
        let (sender, receiver) = sync_channel(config.queue_size);
        let headers = config.headers.clone();
        let client = OtlpClient::new(config.protocol, config.url.clone(), headers, config.timeout);
        let attributes = config.resource.iter().map(|(key, value)| (key.as_str(), value.as_str()));
        let resource = EncodedResource::new(attributes);
        let pipeline = Arc::new(Self {
            config,
            queue: sender,
            queued: AtomicUsize::new(0),
            batch_ready: Notify::new(),
            counters: Arc::clone(counters),
            stop: CancellationToken::new(),
        });
        let exporter = Exporter {
            pipeline: Arc::clone(&pipeline),
            queue: receiver,
            client,
            resource,
            counters: Arc::clone(counters),
            is_failing: false,
        };
        (pipeline, exporter)
    }

    /// Queues a span, or counts it as dropped where the queue is full. Never blocks.
    pub(super) fn push(&self, span: EndedSpan) {
        // Counted first: the exporter must never take more than were counted.
        let queued = self.queued.fetch_add(1, Ordering::Relaxed) + 1;
        if self.queue.try_send(span).is_err() {
            self.queued.fetch_sub(1, Ordering::Relaxed);
            self.counters.queue_full.fetch_add(1, Ordering::Relaxed);
        } else if queued == self.config.batch_size {
            self.batch_ready.notify_one();
        }
    }
}

impl SpanCounters {
    /// Spans that the collector has.
    pub fn exported(&self) -> u64 {
        self.exported.load(Ordering::Relaxed)
    }

    /// Spans that were lost, by reason.
    pub fn dropped(&self) -> [(&'static str, u64); 3] {
        [("queue_full", &self.queue_full), ("export_failed", &self.export_failed), ("rejected", &self.rejected)]
            .map(|(reason, count)| (reason, count.load(Ordering::Relaxed)))
    }
}

impl Exporter {
    /// Sends batches until the pipeline is stopped and its queue is empty.
    pub(super) async fn run(mut self) {
        let pipeline = Arc::clone(&self.pipeline);
        while !pipeline.stop.is_cancelled() {
            tokio::select! {
                () = pipeline.batch_ready.notified() => {}
                () = tokio::time::sleep(pipeline.config.interval) => {}
                () = pipeline.stop.cancelled() => {}
            }
            loop {
                let batch = self.take_batch();
                let is_last = batch.len() < pipeline.config.batch_size && !pipeline.stop.is_cancelled();
                if batch.is_empty() {
                    break;
                }
                self.send(batch).await;
                if is_last {
                    break;
                }
            }
        }
    }

    fn take_batch(&self) -> Vec<EndedSpan> {
        let batch: Vec<_> = self.queue.try_iter().take(self.pipeline.config.batch_size).collect();
        self.pipeline.queued.fetch_sub(batch.len(), Ordering::Relaxed);
        batch
    }

    /// Sends a batch, again and again where that may help, until its time is up.
    async fn send(&mut self, batch: Vec<EndedSpan>) {
        let count = batch.len() as u64;
        let request = Bytes::from(export_request(&self.resource, &batch));
        drop(batch);
        let deadline = Instant::now() + self.pipeline.config.export_timeout;
        let mut delay = RETRY_INITIAL_DELAY;
        let error = loop {
            let sent = tokio::time::timeout_at(deadline, self.client.export(request.clone())).await;
            let error = match sent {
                Ok(Ok((rejected, why))) => return self.record_success(count, rejected, &why),
                Ok(Err(error)) => error,
                Err(_) => break "the collector did not answer in time".to_owned(),
            };
            let wait = error.retry_after.unwrap_or(delay);
            // While the gateway stops, nobody waits for a collector that is away.
            let gives_up = !error.is_retryable || Instant::now() + wait > deadline || self.pipeline.stop.is_cancelled();
            if gives_up {
                break error.why;
            }
            self.complain(&error.why);
            tokio::select! {
                () = tokio::time::sleep(wait) => {}
                () = self.pipeline.stop.cancelled() => {}
            }
            delay = (delay * 2).min(RETRY_MAX_DELAY);
        };
        self.counters.export_failed.fetch_add(count, Ordering::Relaxed);
        self.complain(&error);
        tracing::debug!(spans = count, %error, "spans dropped");
    }

    fn record_success(&mut self, count: u64, rejected: u64, why: &str) {
        let rejected = rejected.min(count);
        self.counters.exported.fetch_add(count - rejected, Ordering::Relaxed);
        self.counters.rejected.fetch_add(rejected, Ordering::Relaxed);
        if rejected > 0 || !why.is_empty() {
            tracing::warn!(spans = rejected, reason = why, "span export: the collector rejected spans");
        }
        if std::mem::take(&mut self.is_failing) {
            tracing::info!(collector = self.client.name(), "span export works again");
        }
    }

    fn complain(&mut self, error: &str) {
        if !std::mem::replace(&mut self.is_failing, true) {
            tracing::warn!(collector = self.client.name(), error, "span export failed; calls are not affected");
        }
    }
}
