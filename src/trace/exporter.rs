//! Takes spans from the queue and sends them in batches, by one task beside the workers.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};

use bytes::Bytes;
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use super::encode::export_request;
use super::settings::TraceConfig;
use super::span::EndedSpan;
use crate::otlp::{EncodedResource, OtlpSender, OtlpSignal};

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
    sender: OtlpSender,
    resource: EncodedResource,
    counters: Arc<SpanCounters>,
}

impl SpanPipeline {
    /// The queue and the task that empties it.
    pub(super) fn new(config: TraceConfig, counters: &Arc<SpanCounters>) -> (Arc<Self>, Exporter) {
        let (sender, receiver) = sync_channel(config.queue_size);
        let export_sender = OtlpSender::new(OtlpSignal::Traces, &config.collector);
        let resource = config.collector.encoded_resource();
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
            sender: export_sender,
            resource,
            counters: Arc::clone(counters),
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

    /// Sends a batch and counts what became of its spans.
    async fn send(&mut self, batch: Vec<EndedSpan>) {
        let count = batch.len() as u64;
        let request = Bytes::from(export_request(&self.resource, &batch));
        drop(batch);
        match self.sender.send(request, &self.pipeline.stop).await {
            Ok(rejected) => {
                let rejected = rejected.count.min(count);
                self.counters.exported.fetch_add(count - rejected, Ordering::Relaxed);
                self.counters.rejected.fetch_add(rejected, Ordering::Relaxed);
            }
            Err(error) => {
                self.counters.export_failed.fetch_add(count, Ordering::Relaxed);
                tracing::debug!(spans = count, %error, "spans dropped");
            }
        }
    }
}
