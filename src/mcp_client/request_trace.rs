//! The trace context of one request to a server, and the span of the request where it is recorded.

use super::connection::Connection;
use crate::call::{Call, Replies, TRACE_HEADERS};
use crate::dialect::meta::with_member;
use crate::protocol::{Id, Method, Outcome, Payload, Raw};
use crate::request_span;
use crate::trace::{AttributeValue, CallTrace, SpanKind, TraceHeaders, TraceSpan};

/// What a server is told in place of the client's trace context.
pub(super) struct RequestTrace {
    pub(super) headers: TraceHeaders,
    span: Option<TraceSpan>,
}

impl RequestTrace {
    /// Begins a request of a call; `None` where the context of the client passes unchanged.
    #[inline]
    pub(super) fn begin(
        connection: &Connection,
        call: &Call,
        method: &Method,
        params: Option<&Payload>,
    ) -> Option<Self> {
        match &call.trace {
            CallTrace::PassedOn => None,
            CallTrace::NotSampled(_) => Some(Self { headers: call.trace.headers()?, span: None }),
            CallTrace::Sampled(parent) => Self::record(connection, parent, method, params),
        }
    }

    fn record(connection: &Connection, parent: &TraceSpan, method: &Method, params: Option<&Payload>) -> Option<Self> {
        let span = parent.child(SpanKind::Client, &request_span::name(method, params));
        request_span::describe(&span, method, params);
        span.set("mcp.protocol.version", connection.revision().to_string());
        if let Some(upstream) = parent.upstream() {
            span.set("rialto.upstream", upstream.clone());
        }
        match connection.address() {
            Some((host, port)) => {
                span.set("network.transport", AttributeValue::Static("tcp"));
                span.set("network.protocol.name", AttributeValue::Static("http"));
                span.set("network.protocol.version", AttributeValue::Static("1.1"));
                span.set("server.address", host);
                span.set("server.port", i64::from(port));
            }
            None => span.set("network.transport", AttributeValue::Static("pipe")),
        }
        Some(Self { headers: span.headers()?, span: Some(span) })
    }

    /// Notes the id that the request has at the server.
    pub(super) fn note_id(&self, id: &Id) {
        if let Some(span) = &self.span {
            request_span::set_id(span, id);
        }
    }

    /// Ends the request with its response.
    pub(super) fn end(self, method: &Method, outcome: &Outcome) {
        if let Some(span) = &self.span {
            request_span::end_with_response(span, method, outcome);
        }
    }

    /// Ends the request with the answer among these replies.
    pub(super) fn end_with(trace: Option<Self>, method: &Method, replies: Replies) -> Replies {
        let Some(trace) = trace.filter(|trace| trace.span.is_some()) else { return replies };
        let method = method.clone();
        Replies::run(|mut out| async move {
            let answer = replies.forward_to(&mut out).await;
            trace.end(&method, &answer.outcome);
            answer
        })
    }

    /// The parameters with this context in `_meta`.
    pub(super) fn put_into_meta(&self, params: Option<Payload>) -> Option<Payload> {
        let text = |value: &http::HeaderValue| value.to_str().ok().map(Raw::of);
        let Some(parent) = text(&self.headers.parent) else { return params };
        let mut put = with_member(params.as_deref(), TRACE_HEADERS[0], parent);
        // A state belongs to the parent that it came with.
        match self.headers.state.as_ref().and_then(text) {
            Some(state) => put = with_member(Some(&put), TRACE_HEADERS[1], state),
            None if put.at(&["_meta", TRACE_HEADERS[1]]).is_some() => {
                put = put.map_member("_meta", |meta| match meta {
                    Some(meta) => meta.edit().remove(TRACE_HEADERS[1]).finish(),
                    None => Raw::empty(),
                });
            }
            None => {}
        }
        Some(put.into())
    }

    /// Whether the request has a span that is recorded.
    pub(super) fn is_recorded(&self) -> bool {
        self.span.is_some()
    }
}

impl Drop for RequestTrace {
    fn drop(&mut self) {
        if let Some(span) = self.span.as_ref().filter(|span| span.is_open()) {
            span.fail(AttributeValue::Static("cancelled"), "");
        }
    }
}
