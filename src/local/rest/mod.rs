//! HTTP APIs as MCP servers: each operation is a tool, each call of a tool one HTTP request.
//!
//! Tools come from an API document (OpenAPI 3 or Swagger 2.0) or from requests written in the configuration
//! ([`RestSpec`]). Requests stay below the configured base URL, whatever document, arguments or redirects say.

mod argument_value;
mod arguments;
mod base_url;
mod body;
mod content;
mod document;
mod encode;
mod manual_tools;
mod names;
mod openapi;
mod parameters;
mod request_template;
mod schema;
mod spec;

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use http::header::LOCATION;
use http::{HeaderMap, Method as Verb};
use serde_json::value::RawValue;
use serde_json::{Value, json};

use self::argument_value::ArgumentValue;
use self::base_url::BaseUrl;
use self::content::{ApiResponse, error_result};
use self::names::UniqueNames;
use self::openapi::{RestTool, shortened};
use self::request_template::{ApiRequest, RequestTemplate};

use crate::call::{Answer, Call, REQUEST_ID, Replies, TRACE_HEADERS};
use crate::dialect::to_client::ServerInfo;
use crate::dialect::{classify, meta};
use crate::error::{Error, Result};
use crate::failure::FailureKind;
use crate::http::client::{self as web, HttpClient};
use crate::local::LocalServer;
use crate::protocol::{ErrorObject, Method, Raw, code};

pub use spec::{DocumentSource, ManualArgument, ManualBody, ManualTool, RestLimits, RestSpec, ValueKind};

/// Redirects followed for one request.
const MAX_REDIRECTS: usize = 3;
/// Bytes of the document's description that become server instructions.
const MAX_INSTRUCTIONS_BYTES: usize = 2000;
/// Cache TTL of the tool list.
const TOOL_LIST_TTL: Duration = Duration::from_secs(300);

/// An HTTP API served as tools; clones share one instance.
#[derive(Clone)]
pub struct Rest(Arc<RestInner>);

struct RestInner {
    base_url: BaseUrl,
    http_client: HttpClient,
    server: ServerInfo,
    /// `_meta` of every result, with the server info.
    meta: Box<RawValue>,
    tool_list: Raw,
    templates: BTreeMap<String, RequestTemplate>,
    call_timeout: Duration,
    json_depth: usize,
}

impl Rest {
    /// Loads the document, if any, and builds the tools.
    ///
    /// # Errors
    /// The document cannot be loaded or parsed, a configured tool is invalid, or there is no tool at all.
    pub async fn load(spec: &RestSpec, settings: &RestLimits) -> Result<Self> {
        let base = BaseUrl::new(spec)?;
        let mut names = UniqueNames::default();
        let mut tools: Vec<RestTool> = Vec::new();
        for manual in &spec.tools {
            tools.push(manual_tools::build_tool(manual, &base, &mut names).map_err(Error::usage)?);
        }
        let mut info_object = Value::Null;
        if let Some(from) = &spec.document {
            let document = document::load(from, spec, settings).await?;
            let (own_spec, own_base) = (spec.clone(), base.clone());
            // Large documents take long to convert: keep them off the async workers.
            let build_tools = move || {
                let tools = openapi::tools(&document, &own_spec, &own_base, &mut names);
                (tools, document.root()["info"].clone())
            };
            let made = tokio::task::spawn_blocking(build_tools).await;
            let (made, info) = made.map_err(|error| Error::usage(format!("the document: {error}")))?;
            tools.extend(made);
            info_object = info;
        }
        if tools.is_empty() {
            let why = match &spec.document {
                Some(_) => "the document has no operation that is offered; see `allow` and `deny`",
                None => "there is neither a document nor a tool that is mapped by hand",
            };
            return Err(Error::usage(why));
        }
        let url = base.uri().ok_or_else(|| Error::usage("the base URL is none"))?;
        let server = describe_server(&info_object, &url);
        let meta = json!({ meta::SERVER_INFO: server.info });
        let listed: Vec<&Value> = tools.iter().map(|tool| &tool.definition).collect();
        let list = Raw::of(&json!({
            "tools": listed,
            "resultType": "complete",
            "ttlMs": TOOL_LIST_TTL.as_millis() as u64,
            "cacheScope": "private",
            "_meta": meta,
        }));
        let meta = RawValue::from_string(meta.to_string()).map_err(|error| Error::usage(error.to_string()))?;
        let templates = tools.into_iter().map(|tool| (tool.name, tool.template)).collect();
        let web = HttpClient::new(url, HeaderMap::new(), settings.connect_timeout, settings.message_bytes);
        Ok(Self(Arc::new(RestInner {
            base_url: base,
            http_client: web,
            server,
            meta,
            tool_list: list,
            templates,
            call_timeout: settings.call_timeout,
            json_depth: settings.json_depth,
        })))
    }

    /// Server info and capabilities.
    pub fn server(&self) -> &ServerInfo {
        &self.0.server
    }

    /// Result of `tools/list`.
    pub fn tools(&self) -> &Raw {
        &self.0.tool_list
    }

    /// Answers a call. Dropping the replies cancels the HTTP request.
    pub fn call(&self, call: &Call) -> Replies {
        let answered = match &call.method {
            Method::ToolsList => self.list_tools(call),
            Method::ToolsCall => match self.build_request(call) {
                Ok(Ok((name, request))) => return self.send_when_polled(name, request),
                Ok(Err(why)) => Ok(error_result(&why, &self.0.meta)),
                Err(error) => Err(error),
            },
            other => Err(classify::method_not_found(other)),
        };
        answered.map_or_else(Replies::from, |result| Answer::result(result).into())
    }

    /// The list fits on one page, so no cursor was ever issued and any cursor is invalid.
    fn list_tools(&self, call: &Call) -> std::result::Result<Raw, ErrorObject> {
        match call.params.as_ref().and_then(|params| params.get("cursor")) {
            None => Ok(self.0.tool_list.clone()),
            Some(_) => Err(invalid_params("this list has one page, so `cursor` names none; leave it out")),
        }
    }

    /// Builds the HTTP request of a call. The outer error is a protocol error, the inner one a tool error.
    fn build_request(
        &self,
        call: &Call,
    ) -> std::result::Result<std::result::Result<(String, ApiRequest), String>, ErrorObject> {
        let params = call.params.as_ref();
        let name = params.and_then(|params| params.get("name"));
        let name = name.as_ref().and_then(Raw::text).map(Cow::into_owned);
        let name = name.ok_or_else(|| invalid_params("`params.name` must be a string"))?;
        let template =
            self.0.templates.get(&name).ok_or_else(|| invalid_params(&format!("there is no tool {name:?}")))?;
        let given = params.and_then(|params| params.get("arguments")).filter(|given| !given.is_null());
        let given = match given {
            None => BTreeMap::new(),
            Some(given) if !given.is_object() => return Err(invalid_params("`params.arguments` must be an object")),
            Some(given) => match ArgumentValue::parse(&given) {
                Ok(ArgumentValue::Object(given)) => given,
                Ok(_) => BTreeMap::new(),
                Err(error) => return Ok(Err(format!("the arguments cannot be read: {error}"))),
            },
        };
        let request = arguments::validate_all(&template.arguments, given)
            .and_then(|values| template.build(&self.0.base_url, &values));
        Ok(request.map(|mut request| {
            for name in TRACE_HEADERS {
                if let Some(value) = call.caller.headers.get(name) {
                    request.headers.insert(name, value.clone());
                }
            }
            if let Some(trace) = call.trace.headers() {
                request.headers.insert(TRACE_HEADERS[0], trace.parent);
                request.headers.remove(TRACE_HEADERS[1]);
                trace.state.into_iter().for_each(|state| drop(request.headers.insert(TRACE_HEADERS[1], state)));
            }
            request.headers.extend(call.caller.request_id.clone().map(|id| (REQUEST_ID, id)));
            let configured = self.0.base_url.headers();
            for name in configured.keys() {
                request.headers.remove(name);
            }
            request.headers.extend(configured.iter().map(|(name, value)| (name.clone(), value.clone())));
            (name, request)
        }))
    }

    /// Replies of a call. The request is sent when the replies are first polled and cancelled when they are dropped.
    fn send_when_polled(&self, tool: String, request: ApiRequest) -> Replies {
        let shared = Arc::clone(&self.0);
        Replies::run(|_| async move {
            let redacted_url = web::redacted(&request.uri);
            let outcome = match tokio::time::timeout(shared.call_timeout, shared.send(request)).await {
                Ok(outcome) => outcome,
                Err(_) => {
                    let why = format!("{redacted_url} did not answer within {:?}", shared.call_timeout);
                    Err(Error::failure(FailureKind::Silent(shared.call_timeout), why))
                }
            };
            let result_path = shared.templates.get(&tool).and_then(|template| template.result_path.as_deref());
            match outcome {
                Ok(answered) => {
                    Answer::result(content::tool_result(&answered, result_path, shared.json_depth, &shared.meta))
                }
                Err(error) if error.is_retryable() => Answer::error(error.into_object()),
                Err(error) => Answer::result(error_result(&error.to_string(), &shared.meta)),
            }
        })
    }
}

impl LocalServer for Rest {
    fn server_info(&self) -> &ServerInfo {
        self.server()
    }

    fn list(&self, method: &Method) -> Option<&Raw> {
        (*method == Method::ToolsList).then(|| self.tools())
    }

    fn call(&self, call: &Call) -> Replies {
        Rest::call(self, call)
    }
}

impl RestInner {
    /// Sends a request and follows redirects of GET and HEAD below the base URL.
    async fn send(&self, request: ApiRequest) -> Result<ApiResponse> {
        let ApiRequest { verb, mut uri, headers, body } = request;
        let follows = matches!(verb, Verb::GET | Verb::HEAD);
        for _ in 0..=MAX_REDIRECTS {
            let response = self.http_client.send_to(&uri, &verb, &headers, &body, self.call_timeout).await?;
            let status = response.head.status();
            let location = response.head.get(&LOCATION).filter(|_| matches!(status.as_u16(), 301..=303 | 307 | 308));
            if let Some(location) = location {
                let target = String::from_utf8_lossy(location).into_owned();
                let next = self.base_url.resolve_redirect(&uri, &target).filter(|_| follows);
                uri = next.ok_or_else(|| redirect_error(&uri, status, &target, follows))?;
                continue;
            }
            let body = self.http_client.read_body(response.body, self.call_timeout).await;
            let resource_uri = format!("{}{}", web::redacted(&uri), uri.path());
            let body = match body {
                // The error status is reported even when its body cannot be read.
                Err(_) if !status.is_success() => bytes::Bytes::new(),
                body => body?,
            };
            return Ok(ApiResponse { status, headers: response.head.headers(), body, resource_uri });
        }
        Err(Error::failure(FailureKind::Protocol, format!("{} redirects again and again", web::redacted(&uri))))
    }
}

/// Error for a redirect that is not followed.
fn redirect_error(from: &http::Uri, status: http::StatusCode, location: &str, follows: bool) -> Error {
    let to = web::resolve(from, location).map_or_else(|| "no address".to_owned(), |to| web::redacted(&to));
    let why = match follows {
        true => "which is not below the base URL and is not followed",
        false => "which is not followed for this method",
    };
    Error::failure(
        FailureKind::Protocol,
        format!("{} answered {status} and redirects to {to}, {why}", web::redacted(from)),
    )
}

/// Server info from the document's `info` object.
fn describe_server(info_object: &Value, url: &http::Uri) -> ServerInfo {
    let stated = |key: &str| info_object[key].as_str().map(str::trim).filter(|text| !text.is_empty());
    let host = url.host().unwrap_or("api");
    let title = stated("title").map_or_else(|| host.to_owned(), |title| shortened(title, 100));
    let version = match &info_object["version"] {
        Value::String(version) => shortened(version, 50),
        Value::Number(version) => version.to_string(),
        _ => "0".to_owned(),
    };
    let name = if stated("title").is_some() { names::sanitize(&title) } else { host.to_owned() };
    let info = Raw::of(&json!({ "name": name, "title": title, "version": version }));
    let instructions = stated("description").map(|text| Raw::of(&shortened(text, MAX_INSTRUCTIONS_BYTES)));
    ServerInfo { info, capabilities: Raw::constant(r#"{"tools":{}}"#), instructions }
}

fn invalid_params(why: &str) -> ErrorObject {
    ErrorObject::new(code::INVALID_PARAMS, format!("Invalid params: {why}"))
}

impl std::fmt::Debug for Rest {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Rest").field("base", &self.0.base_url).field("tools", &self.0.templates.len()).finish()
    }
}
