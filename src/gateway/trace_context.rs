//! The trace context of a call: a member of `_meta` in MCP, headers elsewhere.

use std::sync::{Arc, LazyLock};

use http::HeaderValue;
use memchr::memmem::Finder;

use crate::call::{Call, TRACE_HEADERS};
use crate::protocol::{Key, Raw};

/// Spares most calls the search for a trace context that they do not have.
static TRACEPARENT: LazyLock<Finder<'static>> = LazyLock::new(|| Finder::new("\"traceparent\""));

/// Copies the trace context from `_meta` to the headers, for upstreams that read it there.
pub(super) fn copy_to_headers(call: &mut Call) {
    let meta = call.params.as_ref().and_then(|params| params.member(Key::Meta));
    let Some(meta) = meta.filter(|meta| TRACEPARENT.find(meta.as_bytes()).is_some()) else { return };
    let mut caller = (*call.caller).clone();
    for name in TRACE_HEADERS {
        let value = meta.get(name);
        let value = value.as_ref().and_then(Raw::text).and_then(|text| HeaderValue::from_str(&text).ok());
        if let Some(value) = value {
            caller.headers.insert(name, value);
        }
    }
    call.caller = Arc::new(caller);
}
