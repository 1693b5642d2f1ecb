//! Spans: what happened from when to when, as a part of which other span.

use std::fmt;
use std::sync::{Arc, OnceLock};
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use parking_lot::Mutex;

use super::Tracer;
use super::context::{RemoteParent, SAMPLED, SpanContext, TraceHeaders};
use super::ids;

/// The role of a span.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SpanKind {
    /// Something that happens within this process.
    Internal = 1,
    /// A request that somebody else made.
    Server = 2,
    /// A request to somebody else.
    Client = 3,
}

/// The value of an attribute.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AttributeValue {
    /// A text of its own.
    Text(String),
    /// A text that many spans have.
    Shared(Arc<str>),
    /// A text that is known when the program is built.
    Static(&'static str),
    /// A number.
    Integer(i64),
}

/// What is exported of a span.
#[derive(Debug)]
pub(super) struct SpanData {
    pub(super) context: SpanContext,
    pub(super) state: Option<Arc<str>>,
    pub(super) parent: Option<[u8; 8]>,
    pub(super) parent_is_remote: bool,
    pub(super) name: String,
    pub(super) kind: SpanKind,
    /// Nanoseconds since 1970.
    pub(super) started: u64,
    pub(super) ended: u64,
    pub(super) attributes: Vec<(&'static str, AttributeValue)>,
    pub(super) links: Vec<SpanContext>,
    /// Whether it failed, with the message of the error.
    pub(super) failed: bool,
    pub(super) message: String,
}

/// A span on its way to the collector; the queue has room for pointers only.
pub(super) type EndedSpan = Box<SpanData>;

/// A span that is recorded. It ends when it is dropped, if it did not end before.
pub struct TraceSpan {
    tracer: Tracer,
    context: SpanContext,
    state: Option<Arc<str>>,
    began: Instant,
    /// `None` once it has ended.
    data: Mutex<Option<EndedSpan>>,
    /// The upstream that a call goes to.
    upstream: OnceLock<Arc<str>>,
}

/// The trace of a call.
#[derive(Debug, Clone, Default)]
pub enum CallTrace {
    /// Nothing is recorded, and the context of the client passes as it came.
    #[default]
    PassedOn,
    /// A trace that begins here and is not recorded. Servers are told, so that they record nothing either.
    NotSampled(SpanContext),
    /// The span of the call is recorded.
    Sampled(Arc<TraceSpan>),
}

/// Longest text of a name or an attribute; the rest is cut. With the bound of the queue this bounds the memory.
const MAX_TEXT_BYTES: usize = 1024;
/// Most links of a span.
const MAX_LINKS: usize = 8;

impl TraceSpan {
    /// A span without a parent in this process.
    pub(super) fn root(tracer: &Tracer, trace_id: [u8; 16], parent: Option<RemoteParent>, name: &str) -> Self {
        let flags = parent.as_ref().map_or(0, |parent| parent.context.flags) | SAMPLED;
        let context = SpanContext { trace_id, span_id: ids::span_id(), flags };
        let (parent, state, link) = match parent {
            Some(RemoteParent { context, state, link }) => (Some(context.span_id), state.map(Arc::from), link),
            None => (None, None, None),
        };
        let span = Self::new(tracer, (context, state), parent, SpanKind::Server, name);
        if let Some(data) = &mut *span.data.lock() {
            data.parent_is_remote = true;
            data.links.extend(link);
        }
        span
    }

    fn new(
        tracer: &Tracer,
        (context, state): (SpanContext, Option<Arc<str>>),
        parent: Option<[u8; 8]>,
        kind: SpanKind,
        name: &str,
    ) -> Self {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let started = u64::try_from(now.as_nanos()).unwrap_or(u64::MAX);
        let data = SpanData {
            context,
            state: state.clone(),
            parent,
            parent_is_remote: false,
            name: cut(name).to_owned(),
            kind,
            started,
            ended: started,
            attributes: Vec::with_capacity(8),
            links: Vec::new(),
            failed: false,
            message: String::new(),
        };
        let data = Mutex::new(Some(Box::new(data)));
        Self { tracer: tracer.clone(), context, state, began: Instant::now(), data, upstream: OnceLock::new() }
    }

    /// A span that is a part of this one.
    pub fn child(&self, kind: SpanKind, name: &str) -> Self {
        let context = SpanContext { span_id: ids::span_id(), ..self.context };
        Self::new(&self.tracer, (context, self.state.clone()), Some(self.context.span_id), kind, name)
    }

    /// The span as others know it.
    pub fn context(&self) -> SpanContext {
        self.context
    }

    /// The trace context for somebody whose spans are parts of this one.
    pub fn headers(&self) -> Option<TraceHeaders> {
        TraceHeaders::new(self.context, self.state.as_deref())
    }

    /// Sets an attribute.
    pub fn set(&self, key: &'static str, value: impl Into<AttributeValue>) {
        if let Some(data) = &mut *self.data.lock() {
            data.attributes.push((key, value.into()));
        }
    }

    /// Names the upstream that the call goes to.
    pub fn set_upstream(&self, name: &Arc<str>) {
        if self.upstream.set(Arc::clone(name)).is_ok() {
            self.set("rialto.upstream", Arc::clone(name));
        }
    }

    /// The upstream that the call goes to.
    pub fn upstream(&self) -> Option<&Arc<str>> {
        self.upstream.get()
    }

    /// Records that something belongs together without being a part of it.
    pub fn link(&self, other: SpanContext) {
        if let Some(data) = &mut *self.data.lock()
            && data.links.len() < MAX_LINKS
        {
            data.links.push(other);
        }
    }

    /// Records that it failed. `class` is one of few words, `message` what the error says.
    pub fn fail(&self, class: impl Into<AttributeValue>, message: &str) {
        if let Some(data) = &mut *self.data.lock()
            && !data.failed
        {
            data.failed = true;
            data.attributes.push(("error.type", class.into()));
            data.message = cut(message).to_owned();
        }
    }

    /// Whether it has not ended.
    pub fn is_open(&self) -> bool {
        self.data.lock().is_some()
    }

    /// Forgets the span.
    pub fn discard(&self) {
        self.data.lock().take();
    }

    /// Ends the span and hands it to the exporter.
    pub fn end(&self) {
        let Some(mut data) = self.data.lock().take() else { return };
        // The clock may have been set meanwhile; how long it took is not affected.
        let took = u64::try_from(self.began.elapsed().as_nanos()).unwrap_or(u64::MAX);
        data.ended = data.started.saturating_add(took);
        self.tracer.queue(data);
    }
}

impl Drop for TraceSpan {
    fn drop(&mut self) {
        self.end();
    }
}

impl CallTrace {
    /// The span of the call, where it is recorded.
    #[inline]
    pub fn span(&self) -> Option<&Arc<TraceSpan>> {
        match self {
            Self::Sampled(span) => Some(span),
            Self::PassedOn | Self::NotSampled(_) => None,
        }
    }

    /// The context that is in use; `None` where that of the client is.
    pub fn context(&self) -> Option<SpanContext> {
        match self {
            Self::PassedOn => None,
            Self::NotSampled(context) => Some(*context),
            Self::Sampled(span) => Some(span.context()),
        }
    }

    /// The trace context for a server, in place of the client's.
    pub fn headers(&self) -> Option<TraceHeaders> {
        match self {
            Self::PassedOn => None,
            Self::NotSampled(context) => TraceHeaders::new(*context, None),
            Self::Sampled(span) => span.headers(),
        }
    }
}

/// A text without what is too much of it.
fn cut(text: &str) -> &str {
    &text[..text.floor_char_boundary(MAX_TEXT_BYTES)]
}

impl From<&str> for AttributeValue {
    fn from(text: &str) -> Self {
        Self::Text(cut(text).to_owned())
    }
}

impl From<String> for AttributeValue {
    fn from(mut text: String) -> Self {
        text.truncate(cut(&text).len());
        Self::Text(text)
    }
}

impl From<Arc<str>> for AttributeValue {
    fn from(text: Arc<str>) -> Self {
        Self::Shared(text)
    }
}

impl From<i64> for AttributeValue {
    fn from(number: i64) -> Self {
        Self::Integer(number)
    }
}

impl fmt::Debug for TraceSpan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "TraceSpan({})", self.context)
    }
}
