//! The trace context of a call: a member of `_meta` in MCP, headers elsewhere. Where tracing is on, also the span of the
//! call.

use std::borrow::Cow;
use std::sync::{Arc, LazyLock};

use http::{HeaderName, HeaderValue};
use memchr::memmem::Finder;

use super::group::Group;
use crate::call::{Call, Caller, Replies, Responder, ServerRequest, TRACE_HEADERS};
use crate::dialect::Revision;
use crate::protocol::{Id, Key, Method, Outcome, Payload, Raw};
use crate::request_span;
use crate::trace::{AttributeValue, CallTrace, RemoteParent, SpanContext, SpanKind, TraceSpan, Tracer};
use crate::upstream::Leg;

const TRACEPARENT: HeaderName = HeaderName::from_static(TRACE_HEADERS[0]);
const TRACESTATE: HeaderName = HeaderName::from_static(TRACE_HEADERS[1]);

/// Spares most calls the search for a trace context that they do not have.
static TRACEPARENT_MEMBER: LazyLock<Finder<'static>> = LazyLock::new(|| Finder::new("\"traceparent\""));

/// Copies the trace context from `_meta` to the headers, for upstreams that read it there.
pub(super) fn copy_to_headers(call: &mut Call) {
    let Some(meta) = traced_meta(call.params.as_ref()) else { return };
    let mut caller = (*call.caller).clone();
    for name in TRACE_HEADERS {
        let value = meta.get(name);
        let value = value.as_ref().and_then(Raw::text).and_then(|text| HeaderValue::from_str(&text).ok());
        if let Some(value) = value {
            caller.headers.insert(name, value);
        }
    }
    if let (CallTrace::PassedOn, Some(access)) = (&call.trace, &caller.access) {
        let context = caller.headers.get(&TRACEPARENT).and_then(|value| SpanContext::parse(value.as_bytes()));
        context.iter().for_each(|context| access.note_trace(&context.trace_id_text()));
    }
    call.caller = Arc::new(caller);
}

/// The `_meta` of a request that has a trace context in it.
fn traced_meta(params: Option<&Payload>) -> Option<Raw> {
    params?.member(Key::Meta).filter(|meta| TRACEPARENT_MEMBER.find(meta.as_bytes()).is_some())
}

/// The span that a request is a part of, as its sender says: the node that relayed it, the client in `_meta`, or the
/// transport in headers.
fn remote_parent(caller: &Caller, params: Option<&Payload>) -> Option<RemoteParent> {
    if let Some(relay_span) = &caller.relay_span {
        return Some((**relay_span).clone());
    }
    let header = |name: &HeaderName| caller.headers.get(name).and_then(|value| value.to_str().ok());
    let transport = header(&TRACEPARENT).and_then(|text| SpanContext::parse(text.as_bytes()));
    if let Some(meta) = traced_meta(params) {
        let [parent, state] = meta.pick([TRACE_HEADERS[0], TRACE_HEADERS[1]]);
        let text = |raw: &Option<Raw>| raw.as_ref().and_then(Raw::text).map(Cow::into_owned);
        let context = text(&parent).and_then(|text| SpanContext::parse(text.as_bytes()));
        if let Some(context) = context {
            return Some(RemoteParent::new(context, text(&state).as_deref()).with_link(transport));
        }
    }
    Some(RemoteParent::new(transport?, header(&TRACESTATE)))
}

/// A request of a client whose span begins.
#[derive(Debug, Clone, Copy)]
pub struct TracedRequest<'r> {
    /// The method of the request.
    pub method: &'r Method,
    /// Its parameters.
    pub params: Option<&'r Payload>,
    /// Its id.
    pub id: &'r Id,
    /// Who sent it.
    pub caller: &'r Caller,
    /// The name of the group that it is for.
    pub group: &'r Arc<str>,
    /// The revision that its sender speaks, where that is known.
    pub revision: Option<Revision>,
}

impl TracedRequest<'_> {
    /// Begins the span of the request; nothing where tracing is off.
    pub fn begin(self, tracer: &Tracer) -> CallTrace {
        if !tracer.is_on() {
            return CallTrace::PassedOn;
        }
        let parent = remote_parent(self.caller, self.params);
        let trace = tracer.begin(parent, || request_span::name(self.method, self.params));
        if let (Some(context), Some(access)) = (trace.context(), &self.caller.access) {
            access.note_trace(&context.trace_id_text());
        }
        if let Some(span) = trace.span() {
            self.describe(span);
        }
        trace
    }

    fn describe(self, span: &TraceSpan) {
        request_span::describe(span, self.method, self.params);
        request_span::set_id(span, self.id);
        if let Some(revision) = self.revision {
            span.set("mcp.protocol.version", revision.to_string());
        }
        match self.caller.peer {
            Some(peer) => {
                span.set("network.transport", AttributeValue::Static("tcp"));
                span.set("network.protocol.name", AttributeValue::Static("http"));
                span.set("client.address", peer.ip().to_string());
                span.set("client.port", i64::from(peer.port()));
            }
            None => span.set("network.transport", AttributeValue::Static("pipe")),
        }
        span.set("rialto.group", Arc::clone(self.group));
    }
}

impl Group {
    /// Begins the span of a call, before it is [handled](Self::handle).
    #[inline]
    pub fn begin_span(&self, call: &mut Call) {
        if self.tracer().is_on() {
            self.begin_recorded_span(call);
        }
    }

    fn begin_recorded_span(&self, call: &mut Call) {
        let request = TracedRequest {
            method: &call.method,
            params: call.params.as_ref(),
            id: &call.id,
            caller: &call.caller,
            group: self.name(),
            revision: Some(call.client.revision),
        };
        call.trace = request.begin(self.tracer());
        // The tag is a hash, which a call that is not recorded does without.
        if let Some(span) = call.trace.span()
            && let Some(tag) = call.sink.as_ref().and_then(|sink| sink.log_tag())
        {
            span.set("mcp.session.id", tag);
        }
    }
}

/// Ends the span of a call when it was answered, or given up.
struct EndOnDrop(Arc<TraceSpan>);

impl Drop for EndOnDrop {
    fn drop(&mut self) {
        if self.0.is_open() {
            self.0.fail(AttributeValue::Static("cancelled"), "");
            self.0.end();
        }
    }
}

/// Ends the span of a client's request with the answer among these replies.
pub(super) fn end_with_answer(span: &Arc<TraceSpan>, method: &Method, replies: Replies) -> Replies {
    end_span(span, method, replies, request_span::end_with_answer)
}

fn end_span(
    span: &Arc<TraceSpan>,
    method: &Method,
    mut replies: Replies,
    end: fn(&TraceSpan, &Method, &Outcome),
) -> Replies {
    if let Some(answer) = replies.take_ready() {
        end(span, method, &answer.outcome);
        return answer.into();
    }
    let (guard, method) = (EndOnDrop(Arc::clone(span)), method.clone());
    Replies::run(move |mut out| async move {
        let answer = replies.forward_to(&mut out).await;
        end(&guard.0, &method, &answer.outcome);
        answer
    })
}

/// Calls a server in this process, which may send a request to an HTTP API; `None` where the server is elsewhere.
pub(super) fn call_local(leg: &Leg, call: &Call) -> Option<Replies> {
    let Some(parent) = call.trace.span().filter(|_| leg.spec().is_local()) else { return leg.call_local(call) };
    let span = Arc::new(parent.child(SpanKind::Client, &request_span::name(&call.method, call.params.as_ref())));
    request_span::describe(&span, &call.method, call.params.as_ref());
    span.set("rialto.upstream", Arc::clone(leg.name()));
    let replies = leg.call_local(&Call { trace: CallTrace::Sampled(Arc::clone(&span)), ..call.clone() })?;
    Some(end_span(&span, &call.method, replies, request_span::end_with_response))
}

/// Has the time that the client takes to answer a server request recorded.
pub(super) fn traced_server_request(span: &Arc<TraceSpan>, request: ServerRequest) -> ServerRequest {
    let waiting = span.child(SpanKind::Client, request.method.as_str());
    waiting.set("mcp.method.name", request.method.as_str());
    let ServerRequest { method, params, mut responder, asker } = request;
    let (own, answered) = tokio::sync::oneshot::channel();
    let mut own = Responder::from(own);
    if let Some(clock) = responder.clock() {
        own = own.timed(clock);
    }
    let answered_method = method.clone();
    tokio::spawn(async move {
        tokio::select! {
            outcome = answered => match outcome {
                Ok(outcome) => {
                    request_span::end_with_response(&waiting, &answered_method, &outcome);
                    // A send error means that the upstream stopped waiting.
                    let _ = responder.send(outcome);
                }
                // Dropping the responder tells the upstream that there will be no response.
                Err(_) => waiting.fail(AttributeValue::Static("unanswered"), ""),
            },
            () = responder.closed() => waiting.fail(AttributeValue::Static("cancelled"), ""),
        }
    });
    ServerRequest { method, params, responder: own, asker }
}
