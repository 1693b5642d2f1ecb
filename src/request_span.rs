//! Spans of MCP requests: names and attributes by the semantic conventions of OpenTelemetry for MCP.

use crate::protocol::{ErrorObject, Id, Key, Method, Outcome, Payload};
use crate::trace::{AttributeValue, TraceSpan};

/// The name of the span of a request: the method, and the tool or prompt. The URI of a resource is in an attribute only,
/// because there may be any number of them.
pub fn name(method: &Method, params: Option<&Payload>) -> String {
    let target = match method {
        Method::ToolsCall | Method::PromptsGet => params.and_then(|params| params.text_of(Key::Name)),
        _ => None,
    };
    match target {
        Some(target) => format!("{} {target}", method.as_str()),
        None => method.as_str().to_owned(),
    }
}

/// Sets what is known of a request when it begins.
pub fn describe(span: &TraceSpan, method: &Method, params: Option<&Payload>) {
    span.set("mcp.method.name", method.as_str());
    let text = |key: Key| params.and_then(|params| params.text_of(key)).map(std::borrow::Cow::into_owned);
    match method {
        Method::ToolsCall => {
            span.set("gen_ai.operation.name", AttributeValue::Static("execute_tool"));
            text(Key::Name).into_iter().for_each(|name| span.set("gen_ai.tool.name", name));
        }
        Method::PromptsGet => text(Key::Name).into_iter().for_each(|name| span.set("gen_ai.prompt.name", name)),
        Method::ResourcesRead | Method::Subscribe | Method::Unsubscribe => {
            text(Key::Uri).into_iter().for_each(|uri| span.set("mcp.resource.uri", uri));
        }
        _ => {}
    }
}

/// Sets the id of a request.
pub fn set_id(span: &TraceSpan, id: &Id) {
    match id {
        Id::Number(number) => span.set("jsonrpc.request.id", number.to_string()),
        other => {
            let raw = other.to_raw();
            let text = raw
                .text()
                .map_or_else(|| String::from_utf8_lossy(raw.as_bytes()).into_owned(), |text| text.into_owned());
            span.set("jsonrpc.request.id", text);
        }
    }
}

/// Records what the client is answered, and ends the span.
pub fn end_with_answer(span: &TraceSpan, method: &Method, outcome: &Outcome) {
    match outcome {
        Ok(result) => record_result(span, method, result),
        Err(error) => record_error(span, error),
    }
    span.end();
}

/// Records the response of a server, or that there was none, and ends the span.
pub fn end_with_response(span: &TraceSpan, method: &Method, outcome: &Outcome) {
    match outcome {
        Ok(result) => record_result(span, method, result),
        Err(error) => match error.failure() {
            Some(failure) => span.fail(AttributeValue::Static(failure.kind().name()), &error.message()),
            None => record_error(span, error),
        },
    }
    span.end();
}

fn record_result(span: &TraceSpan, method: &Method, result: &Payload) {
    if *method == Method::ToolsCall && result.is_true(Key::IsError) {
        span.fail(AttributeValue::Static("tool_error"), "");
    }
}

fn record_error(span: &TraceSpan, error: &ErrorObject) {
    let code = error.code().to_string();
    span.set("rpc.response.status_code", code.clone());
    span.fail(code, &error.message());
}
