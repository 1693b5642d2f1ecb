//! The spans of a request that another node serves: the client's request here, and its relay, of which the span of the
//! other node is a part.

use std::sync::Arc;

use bytes::Bytes;
use http::{HeaderMap, HeaderName, StatusCode};

use super::http::RequestContext;
use crate::gateway::TracedRequest;
use crate::http::codec::HeaderFields;
use crate::protocol::{Message, Method};
use crate::request_span;
use crate::store::NodeId;
use crate::trace::{CallTrace, RemoteParent, SpanContext, SpanKind, TraceSpan};

/// The trace context between nodes, which counts more than what the client has put into its message.
const RELAY_TRACEPARENT: HeaderName = HeaderName::from_static("rialto-traceparent");
const RELAY_TRACESTATE: HeaderName = HeaderName::from_static("rialto-tracestate");

/// The spans of a request that is being relayed. Dropping them ends them.
#[derive(Debug)]
pub(super) struct RelaySpans {
    method: Method,
    relay: TraceSpan,
    request: Arc<TraceSpan>,
}

impl RequestContext<'_> {
    /// Begins the spans of a request that is relayed to `owner`, and tells that node of them.
    pub(super) fn begin_relay(&self, owner: &NodeId, headers: &mut HeaderMap) -> Option<RelaySpans> {
        let tracer = self.inbound.gateway.tracer();
        if !tracer.is_on() || self.head.verb != http::Method::POST {
            return None;
        }
        let Ok(Message::Request(request)) = Message::parse(self.body.get()?) else { return None };
        let traced = TracedRequest {
            method: &request.method,
            params: request.params.as_ref(),
            id: &request.id,
            caller: &self.caller,
            group: self.group.name(),
            revision: None,
        };
        let trace = traced.begin(tracer);
        let (told, spans) = match trace {
            CallTrace::PassedOn => return None,
            CallTrace::NotSampled(_) => (trace.headers(), None),
            CallTrace::Sampled(span) => {
                let relay = span.child(SpanKind::Client, "relay");
                relay.set("rialto.node", owner.name().to_string());
                (relay.headers(), Some(RelaySpans { method: request.method.clone(), relay, request: span }))
            }
        };
        if let Some(told) = told {
            headers.insert(RELAY_TRACEPARENT, told.parent);
            headers.extend(told.state.map(|state| (RELAY_TRACESTATE, state)));
        }
        spans
    }
}

impl RelaySpans {
    /// Ends the spans with a whole response of the other node.
    pub(super) fn end(self, status: StatusCode, body: &Bytes) {
        if let Ok(Message::Response(response)) = Message::parse(body) {
            self.relay.end();
            return request_span::end_with_answer(&self.request, &self.method, &response.outcome);
        }
        if status.is_client_error() || status.is_server_error() {
            self.fail(status.as_str());
        }
    }

    /// Ends the spans of a request that was not answered.
    pub(super) fn fail(&self, class: &str) {
        self.relay.fail(class, "");
        self.request.fail(class, "");
    }

    /// Forgets the spans: the request is served in another way.
    pub(super) fn discard(self) {
        self.relay.discard();
        self.request.discard();
    }
}

impl Drop for RelaySpans {
    fn drop(&mut self) {
        self.relay.end();
        self.request.end();
    }
}

/// The span of the node that relayed a request with these headers.
pub(super) fn relay_span(headers: &HeaderFields) -> Option<Arc<RemoteParent>> {
    let context = SpanContext::parse(headers.get(&RELAY_TRACEPARENT)?)?;
    Some(Arc::new(RemoteParent::new(context, headers.get_text(&RELAY_TRACESTATE).as_deref())))
}
