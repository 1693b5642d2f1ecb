//! An HTTP API as an upstream: its operations are tools.
//!
//! [`Spec`] says where the API is, with which credentials, and what becomes a tool: the operations
//! of a document (OpenAPI 3 or Swagger 2.0), or requests that are mapped by hand. A call of a tool
//! is one request. Whatever the document, an argument or an answer says, requests go to the base
//! URL of the configuration and nowhere else.

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
use serde_json::{Map, Value, json};

use self::base_url::Base;
use self::content::{ApiResponse, failure};
use self::names::ToolNames;
use self::openapi::{Tool, shortened};
use self::request_template::{ApiRequest, RequestTemplate};

use crate::call::{Answer, Call, Replies, Reply};
use crate::dialect::to_client::ServerInfo;
use crate::dialect::{classify, meta};
use crate::error::{Error, ErrorKind, Result};
use crate::http::client::{self as web, HttpClient};
use crate::protocol::{ErrorObject, Method, Raw, code};

pub use spec::{DocumentSource, ManualArgument, ManualBody, ManualTool, RestLimits, RestSpec, ValueKind};

/// How many redirects are followed.
const REDIRECTS: usize = 3;
/// How much of a document's description becomes instructions.
const INSTRUCTIONS: usize = 2000;
/// How long a client may keep the list of tools.
const KEEP: Duration = Duration::from_secs(300);
/// Headers of the client's request that go on to the API: they tell which request belongs to which.
const CARRIED: &[&str] = &["traceparent", "tracestate", "baggage", "x-request-id"];

/// An HTTP API as a server of tools.
#[derive(Clone)]
pub struct Rest(Arc<RestInner>);

struct RestInner {
    base: Base,
    web: HttpClient,
    server: ServerInfo,
    /// What every result says of who answers.
    meta: Box<RawValue>,
    list: Raw,
    plans: BTreeMap<String, RequestTemplate>,
    patience: Duration,
}

impl Rest {
    /// Reads the document, if there is one, and makes the tools.
    ///
    /// # Errors
    /// When the document cannot be read or is none, when a tool that is mapped by hand makes no sense,
    /// or when there would be no tool at all.
    pub async fn load(spec: &RestSpec, settings: &RestLimits) -> Result<Self> {
        let base = Base::new(spec)?;
        let mut taken = ToolNames::default();
        let mut tools: Vec<Tool> = Vec::new();
        for hand in &spec.tools {
            tools.push(manual_tools::tool(hand, &base, &mut taken).map_err(|why| Error::new(ErrorKind::Usage, why))?);
        }
        let mut about = Value::Null;
        if let Some(from) = &spec.document {
            let document = document::load(from, spec, settings).await?;
            let (own_spec, own_base) = (spec.clone(), base.clone());
            // A large document takes a while.
            let making = move || {
                let tools = openapi::tools(&document, &own_spec, &own_base, &mut taken);
                (tools, document.root()["info"].clone())
            };
            let made = tokio::task::spawn_blocking(making).await;
            let (made, info) = made.map_err(|error| Error::new(ErrorKind::Usage, format!("the document: {error}")))?;
            tools.extend(made);
            about = info;
        }
        if tools.is_empty() {
            let why = match &spec.document {
                Some(_) => "the document has no operation that is offered; see `allow` and `deny`",
                None => "there is neither a document nor a tool that is mapped by hand",
            };
            return Err(Error::new(ErrorKind::Usage, why));
        }
        let url = base.uri().ok_or_else(|| Error::new(ErrorKind::Usage, "the base URL is none"))?;
        let server = server(&about, &url);
        let meta = json!({ meta::SERVER_INFO: server.info });
        let listed: Vec<&Value> = tools.iter().map(|tool| &tool.listed).collect();
        let list = Raw::of(&json!({
            "tools": listed,
            "resultType": "complete",
            "ttlMs": KEEP.as_millis() as u64,
            "cacheScope": "private",
            "_meta": meta,
        }));
        let meta =
            RawValue::from_string(meta.to_string()).map_err(|error| Error::new(ErrorKind::Usage, error.to_string()))?;
        let plans = tools.into_iter().map(|tool| (tool.name, tool.plan)).collect();
        let web = HttpClient::new(url, HeaderMap::new(), settings.connect_timeout, settings.message_bytes);
        Ok(Self(Arc::new(RestInner { base, web, server, meta, list, plans, patience: settings.call_timeout })))
    }

    /// What the server says of itself.
    pub fn server(&self) -> &ServerInfo {
        &self.0.server
    }

    /// The list of tools, as a whole result.
    pub fn tools(&self) -> &Raw {
        &self.0.list
    }

    /// Answers a call. Dropping the replies closes the connection to the API.
    pub fn call(&self, call: &Call) -> Replies {
        let answered = match &call.method {
            Method::ToolsList => self.listed(call),
            Method::ToolsCall => match self.planned(call) {
                Ok(Ok((name, built))) => return self.replies(name, built),
                Ok(Err(why)) => Ok(failure(&why, &self.0.meta)),
                Err(error) => Err(error),
            },
            other => Err(classify::method_not_found(other)),
        };
        answered.map_or_else(Replies::from, |result| Answer::result(result).into())
    }

    /// Everything fits on one page, so no cursor was ever given out.
    fn listed(&self, call: &Call) -> std::result::Result<Raw, ErrorObject> {
        match call.params.as_ref().and_then(|params| params.get("cursor")) {
            None => Ok(self.0.list.clone()),
            Some(_) => Err(invalid("this list has one page, so `cursor` names none; leave it out")),
        }
    }

    /// The request of a call, or what is wrong with its arguments.
    fn planned(
        &self,
        call: &Call,
    ) -> std::result::Result<std::result::Result<(String, ApiRequest), String>, ErrorObject> {
        let params = call.params.as_ref();
        let name = params.and_then(|params| params.get("name"));
        let name = name.as_ref().and_then(Raw::text).map(Cow::into_owned);
        let name = name.ok_or_else(|| invalid("`params.name` must be a string"))?;
        let plan = self.0.plans.get(&name).ok_or_else(|| invalid(&format!("there is no tool {name:?}")))?;
        let given = params.and_then(|params| params.get("arguments")).filter(|given| !given.is_null());
        let given: Map<String, Value> = match given {
            None => Map::new(),
            Some(given) if !given.is_object() => return Err(invalid("`params.arguments` must be an object")),
            Some(given) => match given.read() {
                Ok(given) => given,
                Err(error) => return Ok(Err(format!("the arguments cannot be read: {error}"))),
            },
        };
        let built = arguments::check(&plan.inputs, given).and_then(|values| plan.build(&self.0.base, &values));
        Ok(built.map(|mut built| {
            for carried in CARRIED {
                if let Some(value) = call.caller.headers.get(*carried) {
                    built.headers.insert(*carried, value.clone());
                }
            }
            let own = self.0.base.headers();
            for name in own.keys() {
                built.headers.remove(name);
            }
            built.headers.extend(own.iter().map(|(name, value)| (name.clone(), value.clone())));
            (name, built)
        }))
    }

    /// What comes back for a request. It goes out when the replies are first read, and is given up when
    /// they are dropped.
    fn replies(&self, tool: String, built: ApiRequest) -> Replies {
        let shared = Arc::clone(&self.0);
        Replies::stream(futures_util::stream::once(async move {
            let place = web::redacted(&built.uri);
            let outcome = match tokio::time::timeout(shared.patience, shared.send(built)).await {
                Ok(outcome) => outcome,
                Err(_) => {
                    let why = format!("{place} did not answer within {:?}", shared.patience);
                    Err(Error::new(ErrorKind::Timeout, why))
                }
            };
            let pick = shared.plans.get(&tool).and_then(|plan| plan.pick.as_deref());
            Reply::End(match outcome {
                Ok(answered) => Answer::result(content::result(&answered, pick, &shared.meta)),
                Err(error) if error.may_retry() => Answer::error(error.into_object()),
                Err(error) => Answer::result(failure(&error.to_string(), &shared.meta)),
            })
        }))
    }
}

impl RestInner {
    /// Sends a request, and follows where it leads as long as that is below the base URL.
    async fn send(&self, built: ApiRequest) -> Result<ApiResponse> {
        let ApiRequest { verb, mut uri, headers, body } = built;
        let follows = matches!(verb, Verb::GET | Verb::HEAD);
        for _ in 0..=REDIRECTS {
            let response = self.web.send_to(&uri, &verb, &headers, &body, self.patience).await?;
            let status = response.head.status();
            let location = response.head.get(&LOCATION).filter(|_| matches!(status.as_u16(), 301..=303 | 307 | 308));
            if let Some(location) = location {
                let said = String::from_utf8_lossy(location).into_owned();
                let next = self.base.redirected(&uri, &said).filter(|_| follows);
                uri = next.ok_or_else(|| astray(&uri, status, &said, follows))?;
                continue;
            }
            let body = self.web.read(response.body, self.patience).await;
            let place = web::redacted(&uri);
            let body = match body {
                // A failure is one even if what explains it does not arrive.
                Err(_) if !status.is_success() => bytes::Bytes::new(),
                body => body?,
            };
            return Ok(ApiResponse { status, headers: response.head.headers(), body, place });
        }
        Err(Error::new(ErrorKind::Protocol, format!("{} redirects again and again", web::redacted(&uri))))
    }
}

/// A redirect that is not followed.
fn astray(from: &http::Uri, status: http::StatusCode, location: &str, follows: bool) -> Error {
    let to = web::resolve(from, location).map_or_else(|| "no address".to_owned(), |to| web::redacted(&to));
    let why = match follows {
        true => "which is not below the base URL and is not followed",
        false => "which is not followed for this method",
    };
    Error::new(ErrorKind::Protocol, format!("{} answered {status} and redirects to {to}, {why}", web::redacted(from)))
}

/// What a document says of itself.
fn server(about: &Value, url: &http::Uri) -> ServerInfo {
    let said = |key: &str| about[key].as_str().map(str::trim).filter(|text| !text.is_empty());
    let host = url.host().unwrap_or("api");
    let title = said("title").map_or_else(|| host.to_owned(), |title| shortened(title, 100));
    let version = match &about["version"] {
        Value::String(version) => shortened(version, 50),
        Value::Number(version) => version.to_string(),
        _ => "0".to_owned(),
    };
    let name = if said("title").is_some() { names::clean(&title) } else { host.to_owned() };
    let info = Raw::of(&json!({ "name": name, "title": title, "version": version }));
    let instructions = said("description").map(|text| Raw::of(&shortened(text, INSTRUCTIONS)));
    ServerInfo { info, capabilities: Raw::constant(r#"{"tools":{}}"#), instructions }
}

fn invalid(why: &str) -> ErrorObject {
    ErrorObject::new(code::INVALID_PARAMS, format!("Invalid params: {why}"))
}

impl std::fmt::Debug for Rest {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Rest").field("base", &self.0.base).field("tools", &self.0.plans.len()).finish()
    }
}
