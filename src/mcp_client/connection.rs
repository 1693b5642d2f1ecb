//! A connection to an upstream, whatever transport it has.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use http::HeaderMap;
use tokio::sync::mpsc;
use tokio_util::task::TaskTracker;

use super::Unsolicited;
use super::call::UpstreamCall;
use super::probe::{self, Opened, ProbeReport, Transport};
use super::session_resumption::ResumableSession;
use super::target::{ConnectionSettings, Target};
use super::task_registry::TaskRegistry;
use crate::call::{Call, Caller, ClientInfo, Replies, TRACE};
use crate::dialect::Revision;
use crate::dialect::headers::{self, HeaderMirror};
use crate::dialect::tasks;
use crate::dialect::to_client::ServerInfo;
use crate::dialect::to_upstream::{self, ClientIdentity, Extras};
use crate::error::{Error, Result};
use crate::protocol::{Id, Method, Notification, Raw};

/// A connection to an upstream.
#[derive(Debug)]
pub struct Connection {
    transport: Transport,
    server: ServerInfo,
    offered: Vec<String>,
    revision: Revision,
    found: ProbeReport,
    settings: ConnectionSettings,
    identity: ClientIdentity,
    /// The headers that tools want mirrored, as last listed, of those that want any; nothing before the
    /// first list.
    mirrors: Mutex<Option<HashMap<String, Vec<HeaderMirror>>>>,
    /// What is still to be said before the connection goes.
    closing_tasks: TaskTracker,
}

/// How many pages of a list are read.
const PAGES: usize = 100;

impl Connection {
    /// Finds out what is at the target, and opens a connection to it. What the upstream says by
    /// itself goes to `unsolicited`.
    ///
    /// # Errors
    /// When it cannot be reached, or speaks nothing that we speak.
    pub async fn open(
        target: &Target,
        settings: ConnectionSettings,
        speaker: ClientIdentity,
        unsolicited: mpsc::Sender<Unsolicited>,
    ) -> Result<Arc<Self>> {
        Self::open_with(target, settings, speaker, unsolicited, None).await
    }

    /// The same, but goes on with the session that a notebook names.
    pub(crate) async fn open_with(
        target: &Target,
        settings: ConnectionSettings,
        speaker: ClientIdentity,
        unsolicited: mpsc::Sender<Unsolicited>,
        notebook: Option<Arc<ResumableSession>>,
    ) -> Result<Arc<Self>> {
        let opening = probe::open(target, &settings, &speaker, &unsolicited, notebook.as_ref());
        let Opened { wire, introduction, found } = opening.await?;
        tracing::debug!(%target, revision = %introduction.revision, transport = found.transport, "connected");
        Ok(Arc::new(Self {
            transport: wire,
            server: introduction.server,
            offered: introduction.offered,
            revision: introduction.revision,
            found,
            settings,
            identity: speaker,
            mirrors: Mutex::default(),
            closing_tasks: TaskTracker::new(),
        }))
    }

    /// What the server says of itself.
    pub fn server(&self) -> &ServerInfo {
        &self.server
    }

    /// The revision that is spoken.
    pub fn revision(&self) -> Revision {
        self.revision
    }

    /// The revisions that the server offers, as far as it says.
    pub fn offered(&self) -> &[String] {
        &self.offered
    }

    /// What was found, and how.
    pub fn found(&self) -> &ProbeReport {
        &self.found
    }

    /// The id of the session, where there is one.
    pub fn session_id(&self) -> Option<String> {
        match &self.transport {
            Transport::Http(http) => http.session_id(),
            Transport::Stdio(_) | Transport::Sse(_) => None,
        }
    }

    /// Whether its session was opened elsewhere.
    pub(crate) fn is_resumed(&self) -> bool {
        matches!(&self.transport, Transport::Http(http) if http.is_resumed())
    }

    /// Who we are to the server.
    pub fn speaker(&self) -> &ClientIdentity {
        &self.identity
    }

    /// Passes a call on. Dropping the replies cancels it.
    pub fn call(self: &Arc<Self>, call: Call) -> Replies {
        let params = call.params.clone();
        UpstreamCall::new(self, call, params, false).replies()
    }

    /// Passes a call on that the server takes as a task only. Dropping the replies cancels it.
    pub fn call_as_task(self: &Arc<Self>, call: Call) -> Replies {
        // People may take longer than calls, so it is kept for longer than a call may take.
        let kept = self.settings.total_timeout + Duration::from_secs(3600);
        let params = tasks::augmented(call.params.as_ref(), kept);
        UpstreamCall::new(self, call, Some(params), true).replies()
    }

    /// A call of our own.
    pub(crate) fn own_call(&self, method: Method, params: Option<Raw>) -> Call {
        let client = ClientInfo {
            revision: self.revision,
            capabilities: self.identity.capabilities.clone(),
            info: Some(self.identity.info.clone()),
        };
        Call {
            id: Id::Number(0),
            method,
            params,
            client: Arc::new(client),
            caller: Arc::new(Caller { principal: "rialto".into(), peer: None, headers: HeaderMap::new() }),
            level: None,
            progress: None,
            sink: None,
        }
    }

    /// Makes a request of our own and waits for its result, past everything that comes before it.
    ///
    /// # Errors
    /// When the server answers with an error, or not at all.
    pub async fn request(self: &Arc<Self>, method: Method, params: Option<Raw>) -> Result<Raw> {
        let what = format!("`{method}`");
        let replies = self.call(self.own_call(method, params));
        probe::answer(replies, self.settings.total_timeout, &what).await?.map_err(Error::answered)
    }

    /// Sends a notification.
    ///
    /// # Errors
    /// When the server does not take it.
    pub async fn notify(&self, notification: &Notification) -> Result<()> {
        match &self.transport {
            Transport::Http(http) => http.notify(notification).await,
            Transport::Stdio(stdio) => {
                stdio.duplex.notify(notification).await;
                Ok(())
            }
            Transport::Sse(sse) => {
                sse.duplex.notify(notification).await;
                Ok(())
            }
        }
    }

    /// Waits until the connection is over, and says why. Over Streamable HTTP nothing stays open
    /// that could tell, so this never ends there.
    pub async fn closed(&self) -> Error {
        match &self.transport {
            Transport::Http(_) => std::future::pending().await,
            Transport::Stdio(stdio) => stdio.duplex.closed().await,
            Transport::Sse(sse) => sse.duplex.closed().await,
        }
    }

    /// Whether the connection is over, as far as it can tell.
    pub fn is_closed(&self) -> bool {
        match &self.transport {
            Transport::Http(http) => http.is_closed(),
            Transport::Stdio(stdio) => stdio.duplex.is_closed(),
            Transport::Sse(sse) => sse.duplex.is_closed(),
        }
    }

    /// Whether questions come with the call that they belong to.
    pub fn attributes_questions(&self) -> bool {
        matches!(self.transport, Transport::Http(_))
    }

    /// Whether a call is at work, as far as the connection can tell.
    pub fn is_busy(&self) -> bool {
        match &self.transport {
            Transport::Http(_) => false,
            Transport::Stdio(stdio) => stdio.duplex.is_busy(),
            Transport::Sse(sse) => sse.duplex.is_busy(),
        }
    }

    /// The tasks that are driven on it.
    pub(super) fn related(&self) -> &TaskRegistry {
        match &self.transport {
            Transport::Http(http) => &http.questions.related,
            Transport::Stdio(stdio) => &stdio.duplex.tasks,
            Transport::Sse(sse) => &sse.duplex.tasks,
        }
    }

    pub(super) fn settings(&self) -> &ConnectionSettings {
        &self.settings
    }

    pub(super) fn closing_tasks(&self) -> &TaskTracker {
        &self.closing_tasks
    }

    /// Ends the connection: the session is ended, unless another node goes on with it, the child
    /// stopped, whoever still waits is told.
    pub async fn close(&self) {
        self.closing_tasks.close();
        let _ = tokio::time::timeout(self.settings.stop_timeout, self.closing_tasks.wait()).await;
        match &self.transport {
            Transport::Http(http) => http.close().await,
            Transport::Stdio(stdio) => stdio.close().await,
            Transport::Sse(sse) => sse.close(),
        }
    }

    pub(super) fn send(&self, method: Method, params: Option<Raw>, token: Option<Raw>, extra: Headers<'_>) -> Replies {
        match &self.transport {
            Transport::Http(http) => http.call(method, params, token, extra),
            Transport::Stdio(stdio) => stdio.duplex.call(method, params, token, self.revision),
            Transport::Sse(sse) => sse.duplex.call(method, params, token, self.revision),
        }
    }

    /// The parameters as the server is to get them, from somebody who knows tasks or does not.
    pub(super) fn params(&self, params: Option<&Raw>, call: &Call, knows_tasks: bool) -> Option<Raw> {
        let able = to_upstream::capabilities(&call.client.capabilities, call.client.revision, self.revision);
        let speaker = ClientIdentity {
            capabilities: if knows_tasks { tasks::declared(&able) } else { able },
            info: call.client.info.clone().unwrap_or_else(|| self.identity.info.clone()),
        };
        let params =
            to_upstream::params(params, self.revision, &speaker, &Extras { progress: None, level: call.level });
        match &self.transport {
            Transport::Http(_) => params, // the trace goes into the headers
            Transport::Stdio(_) | Transport::Sse(_) => with_trace_meta(params, &call.caller.headers),
        }
    }

    /// Whether calls of tools need headers that only the list of tools tells.
    pub(super) fn mirrors_arguments(&self) -> bool {
        matches!(self.transport, Transport::Http(_)) && !self.revision.facts().sessions
    }

    /// The headers that a tool wants mirrored. Reads the list of tools when that was never read.
    pub(super) async fn mirrors_of(&self, call: &Call) -> Vec<HeaderMirror> {
        if call.method != Method::ToolsCall || !self.mirrors_arguments() || self.mirrors_nothing() {
            return Vec::new();
        }
        let name = call.params.as_ref().and_then(|params| params.get("name"));
        let Some(name) = name.as_ref().and_then(Raw::text) else { return Vec::new() };
        if self.known_mirrors(&name).is_none() {
            Box::pin(self.list_mirrors(call)).await;
        }
        self.known_mirrors(&name).unwrap_or_default()
    }

    /// Whether the list of tools was read, and none of them wants anything mirrored.
    fn mirrors_nothing(&self) -> bool {
        let known = self.mirrors.lock().unwrap_or_else(PoisonError::into_inner);
        known.as_ref().is_some_and(HashMap::is_empty)
    }

    /// The headers that a tool wants mirrored; nothing when the list of tools was never read.
    fn known_mirrors(&self, tool: &str) -> Option<Vec<HeaderMirror>> {
        let known = self.mirrors.lock().unwrap_or_else(PoisonError::into_inner);
        known.as_ref().map(|known| known.get(tool).cloned().unwrap_or_default())
    }

    /// Reads the whole list of tools for the headers that they want.
    pub(super) async fn list_mirrors(&self, call: &Call) {
        let mut known = HashMap::new();
        let mut cursor: Option<Raw> = None;
        for _ in 0..PAGES {
            let before = cursor.take();
            let params = before.clone().map(|cursor| Raw::empty().edit().set("cursor", cursor).finish());
            let headers = Headers { mirrors: &[], caller: &call.caller };
            let replies = self.send(Method::ToolsList, self.params(params.as_ref(), call, false), None, headers);
            let Ok(Ok(page)) = probe::answer(replies, self.settings.idle_timeout, "`tools/list`").await else { break };
            known.extend(headers::mirrors_of_tools(&page));
            known.retain(|_, wanted: &mut Vec<HeaderMirror>| !wanted.is_empty());
            let next = page.get("nextCursor").filter(|next| !next.is_null());
            if next.is_none() || next == before {
                break;
            }
            cursor = next;
        }
        *self.mirrors.lock().unwrap_or_else(PoisonError::into_inner) = Some(known);
    }

    /// A page of tools went by; its headers are worth remembering. Tools whose annotations are not
    /// allowed must not be offered.
    pub fn note_tools(&self, page: &Raw) -> Raw {
        if !self.mirrors_arguments() {
            return page.clone();
        }
        let mut known = self.mirrors.lock().unwrap_or_else(PoisonError::into_inner);
        let known_now = known.get_or_insert_default();
        known_now.extend(headers::mirrors_of_tools(page));
        known_now.retain(|_, wanted| !wanted.is_empty());
        let tools = page.get("tools").map(|tools| tools.items()).unwrap_or_default();
        let allowed = |tool: &&Raw| match tool.get("inputSchema").map(|schema| headers::mirrors(&schema)) {
            Some(Err(why)) => {
                tracing::warn!(tool = ?tool.get("name"), %why, "a tool is left out");
                false
            }
            _ => true,
        };
        let kept: Vec<&Raw> = tools.iter().filter(allowed).collect();
        if kept.len() == tools.len() {
            return page.clone();
        }
        page.edit().set("tools", Raw::of(&kept)).finish()
    }
}

/// What goes into the headers of a request, where it has some.
#[derive(Clone, Copy)]
pub(super) struct Headers<'h> {
    pub(super) mirrors: &'h [HeaderMirror],
    pub(super) caller: &'h Arc<Caller>,
}

/// Parameters with the trace that came in the client's headers, where they do not tell one already.
fn with_trace_meta(mut params: Option<Raw>, headers: &HeaderMap) -> Option<Raw> {
    for name in TRACE {
        let Some(value) = headers.get(name).and_then(|value| value.to_str().ok()) else { continue };
        if params.as_ref().and_then(|params| params.at(&["_meta", name])).is_none() {
            params = Some(crate::dialect::meta::with(params.as_ref(), name, Raw::of(value)));
        }
    }
    params
}
