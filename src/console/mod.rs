//! The console: a page for operators at `/console`, over an HTTP API at `/admin/v1`.
//!
//! `openapi.json` describes the API; each resource is a file of this folder with a table of its routes. Requests are
//! admitted by `access` and served on the runtime beside the workers. Recorded calls are shown by a thread of low
//! priority, so that nobody who looks delays a call.

mod access;
mod api;
mod assets;
mod attention;
mod calls;
mod config_file;
mod figures;
mod gather;
mod groups;
mod live;
mod live_nodes;
mod me;
mod nodes;
mod overview;
mod replay;
mod server_checks;
mod servers;
mod sessions;
mod shell_words;
mod tries;
mod watcher;
mod why;

use std::borrow::Cow;
use std::path::PathBuf;
use std::sync::{Arc, Weak};
use std::time::SystemTime;

use bytes::Bytes;
use http::header::CACHE_CONTROL;
use http::{HeaderName, HeaderValue, Method as Verb, Response, StatusCode};
use tokio::runtime::Handle;
use tokio_util::sync::CancellationToken;

pub use api::{AdminRequest, ApiAnswer, ApiError, ApiFuture, ApiResult, ApiRoute, Handler};
pub use live::{EventFilter, LiveEvent, LiveHub, Topic};

use crate::audit::{AuditEvent, AuditKind, AuditOutcome, cut};
use crate::http::codec::HeaderFields;
use crate::http::server::RequestBodyError;
use crate::identity::{Credential, Identity};
use crate::inbound::{
    ConsoleAdmission, ConsoleCaller, ConsoleFuture, ConsoleHead, ConsoleRequest, ConsoleService, Inbound,
    ResponseContent,
};
use crate::policy::{ConsoleKey, FailedCredentials, Operator, OperatorRight, Policy, presented_token};
use crate::protocol::Raw;
use crate::recording::MASK;
use crate::redact::secrets_in;
use crate::workers::BackgroundThread;
use access::{MAX_BODY_BYTES, MAX_WRONG_KEYS, api_path, error_response, not_allowed, secured, too_large};
use figures::FigureHistory;
use nodes::{ALL_NODES, LIVE, NodeRequest, SeenNodes};
use tries::Tries;

/// Where the API is.
const API_PREFIX: &str = "/admin/v1";
/// Name of this node in a gateway without a cluster.
const LONE_NODE: &str = "rialto";
/// Principal of calls that operators try.
const CONSOLE_PRINCIPAL: &str = "console";
/// Purpose of the cursors of lists.
const CURSOR_PURPOSE: &str = "console cursor";

/// What a console is started with.
#[derive(Debug, Clone, Default)]
pub struct ConsoleSettings {
    /// Serves the files of the page from this directory, in place of those in the binary.
    pub folder: Option<PathBuf>,
    /// Whether the operators' listener can be reached from other machines.
    pub is_admin_exposed: bool,
}

/// The console of one gateway.
#[derive(Debug)]
pub struct Console {
    inbound: Weak<Inbound>,
    settings: ConsoleSettings,
    key: ConsoleKey,
    /// The runtime beside the workers.
    runtime: Handle,
    /// Makes long answers.
    background: BackgroundThread,
    routes: Vec<ApiRoute>,
    live: Arc<LiveHub>,
    wrong_keys: FailedCredentials,
    started_at: SystemTime,
    figures: FigureHistory,
    tries: Tries,
    /// What calls of the console show at its own listener.
    call_key: ConsoleKey,
    seen_nodes: SeenNodes,
    closing: CancellationToken,
}

impl Console {
    /// Installs a console at a gateway. Must be called within the runtime that is to serve it.
    ///
    /// # Errors
    /// When the system has no random bytes for its key, or no thread.
    pub fn install(
        inbound: &Arc<Inbound>,
        settings: ConsoleSettings,
        workers: Vec<Handle>,
    ) -> std::io::Result<Arc<Self>> {
        let console = Arc::new(Self {
            inbound: Arc::downgrade(inbound),
            settings,
            key: ConsoleKey::generate()?,
            runtime: Handle::current(),
            background: BackgroundThread::start("console")?,
            routes: routes(),
            live: Arc::new(LiveHub::new()),
            wrong_keys: FailedCredentials::allowing(MAX_WRONG_KEYS),
            started_at: SystemTime::now(),
            figures: FigureHistory::default(),
            tries: Tries::default(),
            call_key: ConsoleKey::generate()?,
            seen_nodes: SeenNodes::default(),
            closing: inbound.shutdown.closing().clone(),
        });
        inbound.install_console(Arc::clone(&console) as Arc<dyn ConsoleService>);
        calls::start(&console, inbound, workers);
        tokio::spawn(watcher::run(Arc::downgrade(&console)));
        Ok(console)
    }

    /// The key of this start.
    pub fn key(&self) -> &ConsoleKey {
        &self.key
    }

    /// Every route of the API.
    pub fn routes(&self) -> &[ApiRoute] {
        &self.routes
    }

    /// The event stream.
    pub fn live(&self) -> &Arc<LiveHub> {
        &self.live
    }

    /// The gateway.
    ///
    /// # Errors
    /// While the process ends.
    pub fn inbound(&self) -> Result<Arc<Inbound>, ApiError> {
        let ending = || ApiError::new(StatusCode::SERVICE_UNAVAILABLE, "ending", "the gateway is shutting down");
        self.inbound.upgrade().ok_or_else(ending)
    }

    /// Cancelled when streams have to end.
    pub fn closing(&self) -> CancellationToken {
        self.closing.clone()
    }

    /// The filter of the streams of calls for a query, which looks into bodies where they may be seen.
    ///
    /// # Errors
    /// When the query is not understood.
    pub fn event_filter(&self, query: &str, may_see_bodies: bool) -> Result<EventFilter, ApiError> {
        calls::event_filter(query, Arc::clone(&self.inbound()?.calls), may_see_bodies)
    }

    /// The name of this node.
    pub fn node(&self) -> String {
        let cluster = self.inbound.upgrade().and_then(|inbound| inbound.cluster.clone());
        cluster.map_or_else(|| LONE_NODE.to_owned(), |cluster| cluster.node().name().to_string())
    }

    /// A cursor that nobody can make up.
    pub fn seal_cursor(&self, position: usize) -> String {
        let bytes = position.to_be_bytes();
        // The same position has the same cursor, so that a page that did not change has the same entity tag.
        let seal = |inbound: Arc<Inbound>| inbound.gateway.seal().seal_deterministic(CURSOR_PURPOSE, &bytes);
        self.inbound.upgrade().map(seal).unwrap_or_default()
    }

    /// The position that a cursor of ours holds.
    ///
    /// # Errors
    /// When it is none of ours.
    pub fn open_cursor(&self, cursor: &str) -> Result<usize, ApiError> {
        let opened = self.inbound()?.gateway.seal().open(CURSOR_PURPOSE, cursor);
        let position = opened.and_then(|bytes| bytes.try_into().ok()).map(usize::from_be_bytes);
        position.ok_or_else(|| ApiError::invalid("the cursor is not valid").hint("begin without a cursor"))
    }

    /// The route of a path and its parameters.
    fn find_route(&self, verb: &Verb, path: &str) -> Result<(ApiRoute, Vec<String>), ApiError> {
        let verb = if *verb == Verb::HEAD { &Verb::GET } else { verb };
        let mut others = Vec::new();
        for route in &self.routes {
            if let Some(parameters) = route.matches(path) {
                if route.verb == verb {
                    return Ok((*route, parameters));
                }
                others.push(route.verb.as_str());
            }
        }
        match others.is_empty() {
            false => Err(not_allowed(&others.join(", "))),
            true => {
                let hint = "GET /admin/v1/openapi.json has them all";
                Err(ApiError::not_found("the API has no such address").hint(hint))
            }
        }
    }

    /// Serves a request to the API.
    async fn serve_api(self: Arc<Self>, request: ConsoleRequest, path: String) -> Response<ResponseContent> {
        // Who watches is said, too: at the node that the operator asks.
        let is_act = !matches!(request.verb, Verb::GET | Verb::HEAD) || (path == LIVE && !request.is_relayed);
        let described = format!("{} {API_PREFIX}/{path}", request.verb);
        let (request_id, client) = (request.request_id.clone(), request.client);
        let operator = match &request.caller {
            ConsoleCaller::Operator(operator) => Some(operator.clone()),
            _ => None,
        };
        let result = Arc::clone(&self).answer_api(request, &path).await;
        let status = match &result {
            Ok(answer) => answer.status,
            Err(error) => error.status,
        };
        if let Some(operator) = operator.filter(|_| is_act) {
            let mut event = AuditEvent::new(AuditKind::Admin, audit_outcome(status));
            event.request_id = Some(request_id);
            event.peer = Some(client);
            self.record(event, &operator.name, &described, status);
        }
        match result {
            Ok(answer) => respond(answer),
            Err(error) => error_response(&error),
        }
    }

    async fn answer_api(self: Arc<Self>, request: ConsoleRequest, path: &str) -> ApiResult {
        let (route, parameters) = self.find_route(&request.verb, path)?;
        let inbound = self.inbound()?;
        let operator = match request.caller {
            ConsoleCaller::Operator(operator) => operator,
            ConsoleCaller::Public if route.may.is_none() => {
                Operator { name: "".into(), may: OperatorRight::Look, principal: None }
            }
            _ => return Err(self.wrong_key(request.client, &request.request_id, (&request.verb, path))),
        };
        let access = inbound.policy().console.clone();
        let operator = Operator { may: access.effective(operator.may), ..operator };
        if let Some(needed) = route.may.filter(|needed| *needed > operator.may) {
            let message = format!("{} may not do this: it needs the right to {}", operator.name, needed.as_str());
            let hint = match access.edit {
                false if needed == OperatorRight::Edit => "[admin] edit is off",
                _ => "[admin.tokens] says what each operator may do",
            };
            return Err(ApiError::new(StatusCode::FORBIDDEN, "not_allowed", message).hint(hint));
        }
        let body = match request.body {
            Ok(body) if body.len() > MAX_BODY_BYTES => return Err(too_large()),
            Ok(body) => body,
            Err(RequestBodyError::TooLarge) => return Err(too_large()),
            Err(_) => return Err(ApiError::invalid("the body did not arrive")),
        };
        let query = url::form_urlencoded::parse(request.uri.query().unwrap_or_default().as_bytes());
        let mut query: Vec<(String, String)> =
            query.map(|(key, value)| (key.into_owned(), value.into_owned())).collect();
        let node = query.iter().position(|(key, _)| key == "node").map(|at| query.remove(at).1);
        let node = node.or_else(|| self.node_of_call(&route, &parameters));
        let elsewhere = NodeRequest {
            verb: request.verb.clone(),
            path: path.to_owned(),
            query: query.clone(),
            body: body.clone(),
            if_match: request.headers.get_text("if-match").map(std::borrow::Cow::into_owned),
        };
        if let Some(node) = node.as_deref().filter(|node| !node.is_empty() && !request.is_relayed)
            && let Some(answer) = self.serve_elsewhere(node, &route, &operator, elsewhere.clone()).await
        {
            return answer.map(without_secrets);
        }
        let (console, asker, is_relayed) = (Arc::clone(&self), operator.clone(), request.is_relayed);
        let is_resumed = request.headers.get_text("last-event-id").is_some();
        let request =
            AdminRequest { console: self, operator, parameters, query, headers: request.headers, body, is_relayed };
        let answer = console.handle(&route, request).await?;
        match &inbound.cluster {
            Some(cluster) if route.path == LIVE && node.as_deref() == Some(ALL_NODES) && !is_relayed => {
                live_nodes::join_streams(&console, cluster, &asker, (elsewhere, is_resumed), answer)
            }
            _ => Ok(answer),
        }
    }

    /// Serves a request at this node.
    async fn serve_own(self: &Arc<Self>, route: &ApiRoute, operator: &Operator, request: NodeRequest) -> ApiResult {
        let request = AdminRequest {
            console: Arc::clone(self),
            operator: operator.clone(),
            parameters: Vec::new(),
            query: request.query,
            headers: HeaderFields::default(),
            body: request.body,
            is_relayed: false,
        };
        self.handle(route, request).await
    }

    /// Runs the handler of a route.
    async fn handle(&self, route: &ApiRoute, request: AdminRequest) -> ApiResult {
        let answer = (route.handler)(request);
        if !route.is_heavy {
            return answer.await.map(without_secrets);
        }
        let answer = self.background.spawn(async { answer.await.map(without_secrets) });
        answer.await.unwrap_or_else(|_| Err(broken()))
    }

    /// The node whose call a request is about, if it is another one: the id of a call names its node.
    fn node_of_call(&self, route: &ApiRoute, parameters: &[String]) -> Option<String> {
        self.inbound.upgrade()?.cluster.as_ref()?;
        let call = parameters.first().filter(|_| route.path.starts_with("calls/{call}"))?;
        let (node, _) = call.rsplit_once('.')?;
        (node != self.node()).then(|| node.to_owned())
    }

    /// Says aloud what an operator did: a line in the log and one in the audit log.
    fn record(&self, mut event: AuditEvent, operator: &str, what: &str, status: StatusCode) {
        tracing::info!(operator, what, status = status.as_u16(), "operator acted");
        let Some(inbound) = self.inbound.upgrade() else { return };
        if let Some(log) = inbound.gateway.audit().log() {
            event.status = Some(status.as_u16().to_string());
            event.detail = Some(cut(&format!("{operator}: {what}")));
            log.record(event);
        }
    }
}

/// Every route of the API: a table for each resource.
fn routes() -> Vec<ApiRoute> {
    [
        me::routes(),
        overview::routes(),
        servers::routes(),
        groups::routes(),
        sessions::routes(),
        tries::routes(),
        config_file::routes(),
        nodes::routes(),
        live::routes(),
        calls::routes(),
    ]
    .concat()
}

fn audit_outcome(status: StatusCode) -> AuditOutcome {
    match status {
        StatusCode::UNAUTHORIZED => AuditOutcome::Unauthenticated,
        StatusCode::FORBIDDEN => AuditOutcome::Denied,
        status if status.is_success() => AuditOutcome::Allowed,
        _ => AuditOutcome::Failed,
    }
}

/// The answer without secrets of the configuration. Each resource hides what it knows to be secret; whatever clients and
/// servers put elsewhere is found here.
fn without_secrets(mut answer: ApiAnswer) -> ApiAnswer {
    if let ResponseContent::Full(bytes) = &answer.body
        && let Ok(Cow::Owned(masked)) = str::from_utf8(bytes).map(|text| secrets_in(text, MASK))
    {
        answer.body = ResponseContent::Full(masked.into());
    }
    answer
}

fn broken() -> ApiError {
    ApiError::new(StatusCode::INTERNAL_SERVER_ERROR, "broken", "the console failed; see the log")
}

fn respond(answer: ApiAnswer) -> Response<ResponseContent> {
    let mut response = secured(answer.status, answer.media_type, answer.body);
    let headers = response.headers_mut();
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    for (name, value) in answer.headers {
        if let Ok(value) = HeaderValue::from_str(&value) {
            headers.insert(HeaderName::from_static(name), value);
        }
    }
    response
}

impl ConsoleService for Console {
    fn admit(&self, policy: &Policy, head: &ConsoleHead<'_>) -> ConsoleAdmission {
        self.admit_head(policy, head)
    }

    fn own_caller(&self, headers: &HeaderFields) -> Option<Arc<Identity>> {
        let is_own = presented_token(headers).is_some_and(|token| self.call_key.is(token));
        is_own.then(|| Arc::new(Identity::new(CONSOLE_PRINCIPAL, Credential::Local)))
    }

    fn serve(self: Arc<Self>, request: ConsoleRequest) -> ConsoleFuture {
        let runtime = self.runtime.clone();
        let task = runtime.spawn(async move {
            match api_path(&request.path) {
                Some(path) => {
                    let path = path.to_owned();
                    self.serve_api(request, path).await
                }
                None => {
                    let folder = self.settings.folder.as_deref();
                    assets::serve(&request.path, &request.verb, &request.headers, folder)
                }
            }
        });
        Box::pin(async move { task.await.unwrap_or_else(|_| error_response(&broken())) })
    }
}

/// A member of an object that is a text.
fn text_member(object: &Raw, key: &str) -> Option<String> {
    object.get(key)?.text().map(std::borrow::Cow::into_owned)
}

/// The document that describes the API.
pub fn openapi() -> Bytes {
    Bytes::from_static(include_bytes!("openapi.json"))
}
