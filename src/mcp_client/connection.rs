//! A connection to an upstream over any transport.

use std::collections::HashMap;
use std::sync::Arc;

use http::HeaderMap;
use parking_lot::Mutex;
use tokio::sync::mpsc;
use tokio::time::Instant;
use tokio_util::task::TaskTracker;

use super::Unsolicited;
use super::call;
use super::probe::{self, CallPath, Opened, ProbeReport, Transport};
use super::request_trace::RequestTrace;
use super::round::{ProgressFilter, Round, WaitLimits};
use super::session_resumption::ResumableSession;
use super::target::{ConnectionSettings, Target};
use super::task_registry::TaskRegistry;
use crate::call::{Answer, AnswerDelivery, Call, Caller, ClientInfo, Replies, ReplySink, TRACE_HEADERS};
use crate::dialect::Revision;
use crate::dialect::headers::{self, HeaderMirror};
use crate::dialect::tasks;
use crate::dialect::to_client::ServerInfo;
use crate::dialect::to_upstream::{self, ClientIdentity};
use crate::error::{Error, Result};
use crate::failure::Failure;
use crate::identity::{Credential, Identity};
use crate::metrics::record_client_session;
use crate::protocol::{Id, Key, Method, Notification, Outcome, Payload, Raw};
use crate::recorder::Mark;
use crate::trace::CallTrace;

/// An open connection whose revision was negotiated.
#[derive(Debug)]
pub struct Connection {
    transport: Transport,
    server: ServerInfo,
    offered_revisions: Vec<String>,
    revision: Revision,
    probe_report: ProbeReport,
    settings: ConnectionSettings,
    identity: ClientIdentity,
    /// Host and port of the server; `None` for a child process.
    address: Option<(Arc<str>, u16)>,
    /// Header mirrors by tool, for tools that have any; `None` until a tool list was read.
    mirrors: Mutex<Option<HashMap<String, Vec<HeaderMirror>>>>,
    /// Messages to send before the connection closes, such as task cancellations.
    closing_tasks: TaskTracker,
    opened_at: Instant,
}

/// Limit of `tools/list` pages read for header mirrors.
const MAX_LIST_PAGES: usize = 100;

impl Drop for Connection {
    fn drop(&mut self) {
        if self.revision.opens_with_handshake() {
            record_client_session(self.revision.as_str(), self.transport.network(), self.opened_at.elapsed());
        }
    }
}

impl Connection {
    /// Probes the target and opens a connection to it. Messages that belong to no call go to `unsolicited`.
    ///
    /// # Errors
    /// When the target is unreachable, refuses us, or supports no revision that we support.
    pub async fn open(
        target: &Target,
        settings: ConnectionSettings,
        identity: ClientIdentity,
        unsolicited: mpsc::Sender<Unsolicited>,
    ) -> Result<Arc<Self>> {
        Self::open_with(target, settings, identity, unsolicited, None).await
    }

    /// Like [`Self::open`], but resumes the upstream session that `resumable` has saved, if any.
    pub(crate) async fn open_with(
        target: &Target,
        settings: ConnectionSettings,
        identity: ClientIdentity,
        unsolicited: mpsc::Sender<Unsolicited>,
        resumable: Option<Arc<ResumableSession>>,
    ) -> Result<Arc<Self>> {
        let opened = probe::open(target, &settings, &identity, &unsolicited, resumable.as_ref());
        let Opened { transport, hello, report } = opened.await?;
        tracing::debug!(%target, revision = %hello.revision, transport = report.transport, "upstream connected");
        Ok(Arc::new(Self {
            transport,
            server: hello.server,
            offered_revisions: hello.offered,
            revision: hello.revision,
            probe_report: report,
            settings,
            identity,
            address: target.address(),
            mirrors: Mutex::default(),
            closing_tasks: TaskTracker::new(),
            opened_at: Instant::now(),
        }))
    }

    /// Name, capabilities and instructions of the server.
    pub fn server(&self) -> &ServerInfo {
        &self.server
    }

    /// The negotiated revision.
    pub fn revision(&self) -> Revision {
        self.revision
    }

    /// The transport, as a word.
    pub fn transport(&self) -> &'static str {
        self.transport.name()
    }

    /// The process id of the child that the server is; `None` where it is no child of this process.
    pub fn process(&self) -> Option<u32> {
        self.transport.process()
    }

    /// The revisions that the server lists, if it does.
    pub fn offered_revisions(&self) -> &[String] {
        &self.offered_revisions
    }

    /// How the transport and the revision were found.
    pub fn probe_report(&self) -> &ProbeReport {
        &self.probe_report
    }

    /// Whether the revision was given, and so not found out by this connection.
    pub(crate) fn was_revision_given(&self) -> bool {
        self.settings.revision.is_some()
    }

    /// The upstream session id; Streamable HTTP in the handshake era only.
    pub fn session_id(&self) -> Option<String> {
        self.transport.http()?.session_id()
    }

    /// Whether the server keeps a session for this connection: it can send requests and notifications of its own.
    pub fn keeps_session(&self) -> bool {
        let is_stateless = self.transport.http().is_some_and(|http| http.session_id().is_none());
        self.revision.has_sessions() && !is_stateless
    }

    /// Whether the connection resumed a session that another node had opened.
    pub(crate) fn is_resumed(&self) -> bool {
        self.transport.http().is_some_and(|http| http.is_resumed())
    }

    /// Host and port of the server; `None` for a child process.
    pub(super) fn address(&self) -> Option<(Arc<str>, u16)> {
        self.address.clone()
    }

    /// The identity that we present to the server.
    pub fn identity(&self) -> &ClientIdentity {
        &self.identity
    }

    /// Forwards a call. Dropping the replies cancels it.
    pub fn call(self: &Arc<Self>, call: Call) -> Replies {
        let connection = Arc::clone(self);
        Replies::run(|mut out| async move { connection.run_call(&call, &mut out).await })
    }

    /// Forwards a call and hands what precedes its answer to `out`. Dropping the future cancels the call.
    pub async fn run_call(self: &Arc<Self>, call: &Call, out: &mut impl ReplySink) -> Answer {
        call::run(self, call, out).await
    }

    /// A call made by the gateway itself.
    pub(crate) fn internal_call(&self, method: Method, params: Option<Raw>) -> Call {
        let client = ClientInfo {
            revision: self.revision,
            capabilities: self.identity.capabilities.clone(),
            info: Some(self.identity.info.clone()),
        };
        Call {
            id: Id::Number(0),
            method,
            params: params.map(Payload::from),
            client: Arc::new(client),
            caller: Arc::new(Caller::local(Identity::new("rialto", Credential::Local))),
            level: None,
            progress_token: None,
            sink: None,
            limits: None,
            delivery: AnswerDelivery::Whole,
            trace: CallTrace::PassedOn,
            target_label: None,
        }
    }

    /// Sends a request of the gateway itself and waits for its result; notifications and server requests are dropped.
    ///
    /// # Errors
    /// When the server responds with an error or does not respond within the total timeout.
    pub async fn request(self: &Arc<Self>, method: Method, params: Option<Raw>) -> Result<Raw> {
        let description = format!("`{method}`");
        let replies = self.call(self.internal_call(method, params));
        probe::wait_for_response(replies, self.settings.total_timeout, &description)
            .await?
            .map(Payload::into_raw)
            .map_err(Error::from_error_object)
    }

    /// Sends a notification.
    ///
    /// # Errors
    /// When the server refuses it (Streamable HTTP); other transports do not report that.
    pub async fn notify(&self, notification: &Notification) -> Result<()> {
        match self.transport.path() {
            CallPath::Http(http) => http.notify(notification).await,
            CallPath::Duplex(duplex) => {
                duplex.notify(notification).await;
                Ok(())
            }
        }
    }

    /// Waits until the connection is closed and returns the reason. Never resolves for Streamable HTTP, which has no
    /// connection to observe.
    pub async fn closed(&self) -> Failure {
        match self.transport.duplex() {
            Some(duplex) => duplex.closed().await,
            None => std::future::pending().await,
        }
    }

    /// Whether the connection is closed, as far as the transport shows.
    pub fn is_closed(&self) -> bool {
        match self.transport.path() {
            CallPath::Http(http) => http.is_closed(),
            CallPath::Duplex(duplex) => duplex.is_closed(),
        }
    }

    /// Whether the transport tells which call a server request belongs to.
    pub fn attributes_server_requests(&self) -> bool {
        self.transport.http().is_some()
    }

    /// Number of messages received so far; `None` for Streamable HTTP, which does not count them.
    pub fn received_messages(&self) -> Option<u64> {
        self.transport.duplex().map(|duplex| duplex.received_messages())
    }

    /// Whether calls are in flight, listen requests aside; always false for Streamable HTTP, which does not count them.
    pub fn has_calls_in_flight(&self) -> bool {
        self.transport.duplex().is_some_and(|duplex| duplex.has_calls_in_flight())
    }

    /// The tasks driven on this connection.
    pub(super) fn task_registry(&self) -> &TaskRegistry {
        match self.transport.path() {
            CallPath::Http(http) => &http.server_requests.task_registry,
            CallPath::Duplex(duplex) => &duplex.tasks,
        }
    }

    pub(super) fn settings(&self) -> &ConnectionSettings {
        &self.settings
    }

    pub(super) fn closing_tasks(&self) -> &TaskTracker {
        &self.closing_tasks
    }

    /// Closes the connection: pending calls fail, the upstream session is deleted unless another node resumes it, and a
    /// child process is stopped.
    pub async fn close(&self) {
        self.closing_tasks.close();
        let _ = tokio::time::timeout(self.settings.stop_timeout, self.closing_tasks.wait()).await;
        self.transport.close().await;
    }

    /// Sends a request once its replies are polled, without time limits.
    pub(super) fn send(
        &self,
        method: Method,
        params: Option<Payload>,
        progress_token: Option<Raw>,
        headers: RequestHeaders<'_>,
    ) -> Replies {
        match self.transport.path() {
            CallPath::Http(http) => {
                let request = http.request(method, params, progress_token, headers);
                let revision = self.revision;
                Replies::run(move |mut out| async move {
                    let (mut progress, mut limits) = (ProgressFilter::default(), WaitLimits::none());
                    let (progress, limits) = (&mut progress, &mut limits);
                    let mut round = Round { out: &mut out, progress, limits, delivery: AnswerDelivery::Whole };
                    Answer { outcome: request.run(&mut round).await, revision }
                })
            }
            CallPath::Duplex(duplex) => duplex.call((method, params), progress_token, self.revision, headers.notes()),
        }
    }

    /// Sends a request and waits for its response within the limits of the round.
    pub(super) async fn run_request(
        &self,
        method: Method,
        params: Option<Payload>,
        progress_token: Option<Raw>,
        headers: RequestHeaders<'_>,
        round: &mut Round<'_, impl ReplySink>,
    ) -> Outcome {
        match self.transport.path() {
            CallPath::Http(http) => {
                let request = http.request(method, params, progress_token, headers);
                request.run(round).await
            }
            CallPath::Duplex(duplex) => {
                let mut replies = duplex.call((method, params), progress_token, self.revision, headers.notes());
                round.forward_all(&mut replies).await
            }
        }
    }

    /// The parameters as sent to the server, with the client's capabilities translated to the revision of the connection.
    pub(super) fn params(
        &self,
        params: Option<&Payload>,
        call: &Call,
        declares_tasks: bool,
        trace: Option<&RequestTrace>,
    ) -> Option<Payload> {
        let identity = || {
            let capabilities =
                to_upstream::client_capabilities(&call.client.capabilities, call.client.revision, self.revision);
            ClientIdentity {
                capabilities: if declares_tasks { tasks::with_tasks_declared(&capabilities) } else { capabilities },
                info: call.client.info.clone().unwrap_or_else(|| self.identity.info.clone()),
            }
        };
        let params = to_upstream::request_params(params, self.revision, identity, call.level);
        match (self.transport.path(), trace) {
            // The context of the client is in the headers, and in `_meta` if the client has put it there.
            (CallPath::Http(_), None) => params,
            // Servers that record spans of messages look into `_meta`; that nothing is recorded need not be told twice.
            (CallPath::Http(_), Some(trace)) => {
                if trace.is_recorded() {
                    trace.put_into_meta(params)
                } else {
                    params
                }
            }
            (CallPath::Duplex(_), None) => with_trace_meta(params, &call.caller.headers, &TRACE_HEADERS),
            (CallPath::Duplex(_), Some(trace)) => {
                with_trace_meta(trace.put_into_meta(params), &call.caller.headers, &TRACE_HEADERS[2..])
            }
        }
    }

    /// Whether tool calls need headers that mirror arguments: Streamable HTTP in the per-request era.
    pub(super) fn requires_mirrors(&self) -> bool {
        self.transport.http().is_some() && self.revision.mirrors_body_in_headers()
    }

    /// The header mirrors of the tool that is called; reads the tool list if it was never read.
    pub(super) async fn mirrors_for(&self, call: &Call) -> Vec<HeaderMirror> {
        if call.method != Method::ToolsCall || !self.requires_mirrors() || self.no_tool_has_mirrors() {
            return Vec::new();
        }
        let name = call.params.as_ref().and_then(|params| params.text_of(Key::Name));
        let Some(name) = name else { return Vec::new() };
        if self.known_mirrors(&name).is_none() {
            Box::pin(self.refresh_mirrors(call)).await;
        }
        self.known_mirrors(&name).unwrap_or_default()
    }

    /// Whether the tool list was read and no tool has header mirrors.
    fn no_tool_has_mirrors(&self) -> bool {
        let known = self.mirrors.lock();
        known.as_ref().is_some_and(HashMap::is_empty)
    }

    /// The header mirrors of a tool; `None` if the tool list was never read.
    fn known_mirrors(&self, tool: &str) -> Option<Vec<HeaderMirror>> {
        let known = self.mirrors.lock();
        known.as_ref().map(|known| known.get(tool).cloned().unwrap_or_default())
    }

    /// Reads all pages of the tool list and replaces the known header mirrors.
    pub(super) async fn refresh_mirrors(&self, call: &Call) {
        let mut known = HashMap::new();
        let mut cursor: Option<Raw> = None;
        for _ in 0..MAX_LIST_PAGES {
            let previous = cursor.take();
            let params = previous.clone().map(|cursor| Raw::empty().edit().set("cursor", cursor).finish().into());
            let trace = RequestTrace::begin(self, call, &Method::ToolsList, None);
            let headers = RequestHeaders { mirrors: &[], caller: &call.caller, trace: trace.as_ref() };
            let params = self.params(params.as_ref(), call, false, trace.as_ref());
            let replies = self.send(Method::ToolsList, params, None, headers);
            let replies = RequestTrace::end_with(trace, &Method::ToolsList, replies);
            let Ok(Ok(page)) = probe::wait_for_response(replies, self.settings.idle_timeout, "`tools/list`").await
            else {
                break;
            };
            known.extend(headers::mirrors_of_tools(&page));
            known.retain(|_, mirrors: &mut Vec<HeaderMirror>| !mirrors.is_empty());
            let next = page.get("nextCursor").filter(|next| !next.is_null());
            if next.is_none() || next == previous {
                break;
            }
            cursor = next;
        }
        *self.mirrors.lock() = Some(known);
    }

    /// Records the header mirrors of a page of tools and returns the page without tools whose mirror annotations are
    /// invalid, which must not be offered.
    pub fn record_mirrors(&self, page: &Raw) -> Raw {
        if !self.requires_mirrors() {
            return page.clone();
        }
        let mut known = self.mirrors.lock();
        let mirrors = known.get_or_insert_default();
        mirrors.extend(headers::mirrors_of_tools(page));
        mirrors.retain(|_, tool_mirrors| !tool_mirrors.is_empty());
        let tools = page.get("tools").map(|tools| tools.items()).unwrap_or_default();
        let is_valid = |tool: &&Raw| match tool.get("inputSchema").map(|schema| headers::parse_mirrors(&schema)) {
            Some(Err(why)) => {
                tracing::warn!(tool = ?tool.get("name"), reason = %why, "tool left out: invalid header mirror annotation");
                false
            }
            _ => true,
        };
        let valid: Vec<&Raw> = tools.iter().filter(is_valid).collect();
        if valid.len() == tools.len() {
            return page.clone();
        }
        page.edit().set("tools", Raw::of(&valid)).finish()
    }
}

/// Sources of the HTTP headers of a request; ignored by transports without headers.
#[derive(Clone, Copy)]
pub(super) struct RequestHeaders<'h> {
    pub(super) mirrors: &'h [HeaderMirror],
    pub(super) caller: &'h Arc<Caller>,
    pub(super) trace: Option<&'h RequestTrace>,
}

impl<'h> RequestHeaders<'h> {
    /// What recorder and tracing know the call by.
    pub(super) fn notes(&self) -> (Mark, Option<&'h RequestTrace>) {
        (self.caller.mark(), self.trace)
    }
}

/// Adds the trace context of the client's HTTP headers to `_meta`, unless it is there already.
fn with_trace_meta(mut params: Option<Payload>, headers: &HeaderMap, names: &[&str]) -> Option<Payload> {
    for name in names.iter().copied() {
        let Some(value) = headers.get(name).and_then(|value| value.to_str().ok()) else { continue };
        if params.as_ref().and_then(|params| params.member(Key::Meta)?.get(name)).is_none() {
            params = Some(crate::dialect::meta::with_member(params.as_deref(), name, Raw::of(value)).into());
        }
    }
    params
}
