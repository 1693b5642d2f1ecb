//! What the resources of the admin API are made of: routes, requests, answers and errors.

use std::borrow::Cow;
use std::pin::Pin;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use http::{Method as Verb, StatusCode};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use super::Console;
use crate::http::codec::HeaderFields;
use crate::inbound::ResponseContent;
use crate::line_log::push_rfc3339;
use crate::policy::{Operator, OperatorRight};

/// One route of the API. Its path has parameters in braces, as in the OpenAPI document.
#[derive(Debug, Clone, Copy)]
pub struct ApiRoute {
    /// The HTTP method.
    pub verb: &'static Verb,
    /// Path below `/admin/v1/`.
    pub path: &'static str,
    /// The right that it needs; `None` for everybody who can reach the API.
    pub may: Option<OperatorRight>,
    /// Whether `node=all` gathers the answers of all nodes.
    pub gathers: bool,
    /// Whether the answer is long to make, and its handler waits for nothing but the processor.
    pub is_heavy: bool,
    /// What serves it.
    pub handler: Handler,
}

/// What serves a route.
pub type Handler = fn(AdminRequest) -> ApiFuture;
/// An answer to come.
pub type ApiFuture = Pin<Box<dyn Future<Output = ApiResult> + Send>>;
/// An answer, or why there is none.
pub type ApiResult = Result<ApiAnswer, ApiError>;

/// A request to the API, from an operator who may make it.
#[derive(Debug, Clone)]
pub struct AdminRequest {
    /// The console.
    pub console: Arc<Console>,
    /// Who asks.
    pub operator: Operator,
    /// The values of the parameters in the path, in their order.
    pub parameters: Vec<String>,
    /// The parameters of the query.
    pub query: Vec<(String, String)>,
    /// The header fields.
    pub headers: HeaderFields,
    /// The body.
    pub body: Bytes,
    /// Whether another node has sent it here.
    pub is_relayed: bool,
}

/// A successful answer.
#[derive(Debug)]
pub struct ApiAnswer {
    /// The HTTP status.
    pub status: StatusCode,
    /// Media type of the body.
    pub media_type: &'static str,
    /// Further headers: name and value.
    pub headers: Vec<(&'static str, String)>,
    /// The body.
    pub body: ResponseContent,
}

/// Why a request was not served.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ApiError {
    /// The HTTP status.
    pub status: StatusCode,
    /// One word for programs.
    pub code: &'static str,
    /// One sentence for people.
    pub message: String,
    /// What to do about it.
    pub hint: Option<String>,
    /// When to try again.
    pub retry_after: Option<Duration>,
}

/// Most items of one page of a list.
pub(super) const MAX_LIMIT: usize = 500;
/// Items of one page of a list, unless the request says otherwise.
pub(super) const DEFAULT_LIMIT: usize = 100;
/// Media type of JSON.
pub(super) const JSON: &str = "application/json";

impl ApiRoute {
    /// A route that reads.
    pub const fn get(path: &'static str, may: OperatorRight, handler: Handler) -> Self {
        Self { verb: &Verb::GET, path, may: Some(may), gathers: false, is_heavy: false, handler }
    }

    /// A route that does something.
    pub const fn post(path: &'static str, may: OperatorRight, handler: Handler) -> Self {
        Self { verb: &Verb::POST, path, may: Some(may), gathers: false, is_heavy: false, handler }
    }

    /// A route that replaces something.
    pub const fn put(path: &'static str, may: OperatorRight, handler: Handler) -> Self {
        Self { verb: &Verb::PUT, path, may: Some(may), gathers: false, is_heavy: false, handler }
    }

    /// A route that removes or ends something.
    pub const fn delete(path: &'static str, may: OperatorRight, handler: Handler) -> Self {
        Self { verb: &Verb::DELETE, path, may: Some(may), gathers: false, is_heavy: false, handler }
    }

    /// Lets `node=all` gather the answers of all nodes.
    pub const fn on_all_nodes(mut self) -> Self {
        self.gathers = true;
        self
    }

    /// Serves the route on the background thread. Its handler must not open connections or start tasks.
    pub const fn in_background(mut self) -> Self {
        self.is_heavy = true;
        self
    }

    /// The values of the parameters, if the path is one of this route.
    pub(super) fn matches(&self, path: &str) -> Option<Vec<String>> {
        let (mut given, mut parameters) = (path.split('/'), Vec::new());
        for part in self.path.split('/') {
            let value = given.next()?;
            if part.starts_with('{') {
                let value = percent_encoding::percent_decode_str(value).decode_utf8().ok()?;
                parameters.push(value.into_owned());
            } else if part != value {
                return None;
            }
        }
        (given.next().is_none() && parameters.iter().all(|value| !value.is_empty())).then_some(parameters)
    }
}

impl AdminRequest {
    /// A parameter of the path; its place is in the route.
    pub fn parameter(&self, place: usize) -> &str {
        self.parameters.get(place).map_or("", String::as_str)
    }

    /// A parameter of the query that is not empty.
    pub fn query(&self, name: &str) -> Option<&str> {
        let found = self.query.iter().find(|(key, _)| key == name);
        found.map(|(_, value)| value.as_str()).filter(|value| !value.is_empty())
    }

    /// How many items the answer may have.
    ///
    /// # Errors
    /// When `limit` is no number from 1 to 500.
    pub fn limit(&self) -> Result<usize, ApiError> {
        let Some(text) = self.query("limit") else { return Ok(DEFAULT_LIMIT) };
        let limit = text.parse().ok().filter(|limit| (1..=MAX_LIMIT).contains(limit));
        limit.ok_or_else(|| ApiError::invalid(format!("limit is a number from 1 to {MAX_LIMIT}")))
    }

    /// The body as JSON.
    ///
    /// # Errors
    /// When it is not what the route takes.
    pub fn json<T: DeserializeOwned>(&self) -> Result<T, ApiError> {
        serde_json::from_slice(&self.body).map_err(|error| ApiError::invalid(format!("the body is not valid: {error}")))
    }

    /// A page of a list that is at hand whole. The cursor is the number of the first item of the next page.
    ///
    /// # Errors
    /// When `limit` or `cursor` is invalid.
    pub fn page<T: Serialize>(&self, items: Vec<T>) -> ApiResult {
        let limit = self.limit()?;
        let start = match self.query("cursor") {
            Some(cursor) => self.console.open_cursor(cursor)?,
            None => 0,
        };
        let next = (items.len() > start + limit).then(|| self.console.seal_cursor(start + limit));
        let items: Vec<T> = items.into_iter().skip(start).take(limit).collect();
        ApiAnswer::json(&json!({ "items": items, "next": next })).with_etag(self)
    }
}

impl ApiAnswer {
    /// A JSON answer with status 200.
    pub fn json(value: &impl Serialize) -> Self {
        Self::json_with(StatusCode::OK, value)
    }

    /// A JSON answer.
    pub fn json_with(status: StatusCode, value: &impl Serialize) -> Self {
        // The values are ours: their keys are strings and their numbers finite.
        let body = serde_json::to_vec(value).unwrap_or_default();
        Self { status, media_type: JSON, headers: Vec::new(), body: ResponseContent::Full(body.into()) }
    }

    /// An answer without a body.
    pub fn empty() -> Self {
        Self { status: StatusCode::NO_CONTENT, media_type: "", headers: Vec::new(), body: ResponseContent::Empty }
    }

    /// Adds an entity tag; the answer is 304 if the client has it already.
    ///
    /// # Errors
    /// Never; it is a result so that handlers can end with it.
    pub fn with_etag(mut self, request: &AdminRequest) -> ApiResult {
        if let ResponseContent::Full(body) = &self.body {
            let tag = entity_tag(body);
            if request.headers.get("if-none-match") == Some(tag.as_bytes()) {
                self = Self { status: StatusCode::NOT_MODIFIED, ..Self::empty() };
            }
            self.headers.push(("etag", tag));
        }
        Ok(self)
    }

    /// Adds a header.
    #[must_use]
    pub fn with_header(mut self, name: &'static str, value: impl Into<String>) -> Self {
        self.headers.push((name, value.into()));
        self
    }
}

impl ApiError {
    /// An error with this status.
    pub fn new(status: StatusCode, code: &'static str, message: impl Into<String>) -> Self {
        Self { status, code, message: message.into(), hint: None, retry_after: None }
    }

    /// The request is not as the document says.
    pub fn invalid(message: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, "invalid", message)
    }

    /// Nothing has that name.
    pub fn not_found(message: impl Into<String>) -> Self {
        Self::new(StatusCode::NOT_FOUND, "not_found", message)
    }

    /// Says what to do.
    #[must_use]
    pub fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }

    /// The JSON of the error.
    pub fn to_json(&self) -> Value {
        let mut error = json!({ "code": self.code, "message": crate::redact::redact(&self.message) });
        if let Some(hint) = &self.hint {
            error["hint"] = Cow::into_owned(crate::redact::redact(hint)).into();
        }
        json!({ "error": error })
    }
}

/// A strong entity tag of a body.
pub(super) fn entity_tag(body: &[u8]) -> String {
    format!("\"{}\"", hex_digest(body))
}

/// The first 16 hexadecimal digits of the SHA-256 digest.
pub(super) fn hex_digest(bytes: &[u8]) -> String {
    Sha256::digest(bytes)[..8].iter().map(|byte| format!("{byte:02x}")).collect()
}

/// A time as RFC 3339 with milliseconds.
pub(super) fn rfc3339(time: SystemTime) -> String {
    let mut text = String::new();
    push_rfc3339(&mut text, time);
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_matches_part_by_part() {
        let route = ApiRoute::get("servers/{server}/lists/{kind}", OperatorRight::Look, |_| {
            Box::pin(async { Ok(ApiAnswer::empty()) })
        });
        assert_eq!(route.matches("servers/a%2Fb/lists/tools").unwrap(), ["a/b", "tools"]);
        for other in ["servers/a/lists", "servers/a/lists/tools/x", "servers//lists/tools", "groups/a/lists/tools"] {
            assert_eq!(route.matches(other), None, "{other}");
        }
    }

    #[test]
    fn an_error_has_code_message_and_hint() {
        let error = ApiError::not_found("no such call").hint("look again");
        let expected = json!({"error": {"code": "not_found", "message": "no such call", "hint": "look again"}});
        assert_eq!(error.to_json(), expected);
        assert!(ApiError::invalid("x").to_json()["error"].get("hint").is_none());
    }
}
