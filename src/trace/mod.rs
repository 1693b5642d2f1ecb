//! Tracing by OpenTelemetry: spans of calls, which one task exports by OTLP to a collector.
//!
//! Where tracing is off, a call costs one relaxed load; where its call is not sampled, a random number and a look at the
//! context. Ended spans go into a bounded queue without a lock.

mod context;
mod encode;
mod exporter;
mod ids;
mod sampler;
mod settings;
mod span;
mod variables;

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use arc_swap::ArcSwapOption;
use parking_lot::Mutex;
use tokio::task::JoinHandle;

use crate::otlp::OtlpSettings;
use crate::redact::Secrets;
pub use context::{RemoteParent, SpanContext, TraceHeaders};
pub use exporter::SpanCounters;
use exporter::SpanPipeline;
pub use sampler::SamplerName;
pub use settings::TraceSettings;
use span::EndedSpan;
pub use span::{AttributeValue, CallTrace, SpanKind, TraceSpan};
pub use variables::{MAX_QUEUE_SIZE, TraceVariables};

/// Begins spans and has them exported. Clones share everything.
#[derive(Clone, Default)]
pub struct Tracer(Arc<TracerState>);

#[derive(Default)]
struct TracerState {
    is_on: AtomicBool,
    pipeline: ArcSwapOption<SpanPipeline>,
    counters: Arc<SpanCounters>,
    exporter: Mutex<Option<JoinHandle<()>>>,
    /// The variables at the start, which count for every reload.
    variables: Mutex<TraceVariables>,
}

impl Tracer {
    /// Whether calls may be traced.
    #[inline]
    pub fn is_on(&self) -> bool {
        self.0.is_on.load(Ordering::Relaxed)
    }

    /// Takes over the variables of these settings and applies the settings.
    ///
    /// # Errors
    /// When the address of the collector is not one.
    pub fn start(&self, settings: &TraceSettings, otlp: &OtlpSettings, node: &str) -> Result<(), String> {
        *self.0.variables.lock() = settings.variables.clone();
        self.configure(settings, otlp, node)
    }

    /// Applies these settings to calls that begin from now on, with the variables that were there at the start. Must be
    /// called within a runtime.
    ///
    /// # Errors
    /// When the address of the collector is not one; everything stays as it was.
    pub fn configure(&self, settings: &TraceSettings, otlp: &OtlpSettings, node: &str) -> Result<(), String> {
        let variables = self.0.variables.lock().clone();
        let config = TraceSettings { variables, ..settings.clone() }.resolve(otlp, node)?;
        let current = self.0.pipeline.load_full();
        if current.as_ref().map(|pipeline| &pipeline.config) == config.as_ref() {
            return Ok(());
        }
        let started = config.map(|config| SpanPipeline::new(config, &self.0.counters));
        let (pipeline, exporter) =
            started.map_or((None, None), |(pipeline, exporter)| (Some(pipeline), Some(exporter)));
        self.0.is_on.store(pipeline.is_some(), Ordering::Release);
        self.0.pipeline.store(pipeline);
        // The spans that wait in the queue before are still sent, by its own exporter.
        if let Some(before) = current {
            before.stop.cancel();
        }
        *self.0.exporter.lock() = exporter.map(|exporter| tokio::spawn(exporter.run()));
        Ok(())
    }

    /// Begins the span of a request that a client made. `name` is asked for only where the span is recorded.
    pub fn begin(&self, parent: Option<RemoteParent>, name: impl FnOnce() -> String) -> CallTrace {
        let pipeline = self.0.pipeline.load();
        let Some(pipeline) = pipeline.as_ref() else { return CallTrace::PassedOn };
        let context = parent.as_ref().map(|parent| &parent.context);
        let trace_id = context.map_or_else(ids::trace_id, |context| context.trace_id);
        if pipeline.config.sampler.samples(context, &trace_id) {
            return CallTrace::Sampled(Arc::new(TraceSpan::root(self, trace_id, parent, &name())));
        }
        match parent {
            Some(_) => CallTrace::PassedOn,
            None => CallTrace::NotSampled(SpanContext { trace_id, span_id: ids::span_id(), flags: 0 }),
        }
    }

    /// The secrets among the variables.
    pub fn secrets(&self) -> Secrets {
        Secrets::new(self.0.variables.lock().secrets().map(str::to_owned))
    }

    /// What became of spans so far.
    pub fn counters(&self) -> &SpanCounters {
        &self.0.counters
    }

    /// Sends what is queued and stops. Gives up after `timeout`.
    pub async fn stop(&self, timeout: Duration) {
        self.0.is_on.store(false, Ordering::Release);
        let Some(pipeline) = self.0.pipeline.swap(None) else { return };
        pipeline.stop.cancel();
        let exporter = self.0.exporter.lock().take();
        if let Some(exporter) = exporter
            && tokio::time::timeout(timeout, exporter).await.is_err()
        {
            tracing::warn!("span export did not end in time; spans were lost");
        }
    }

    fn queue(&self, span: EndedSpan) {
        if let Some(pipeline) = self.0.pipeline.load().as_ref() {
            pipeline.push(span);
        }
    }
}

impl fmt::Debug for Tracer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.is_on() { "Tracer(on)" } else { "Tracer(off)" })
    }
}
