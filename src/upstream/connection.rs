//! A connection to an upstream: calls with their limits and their questions.

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use http::HeaderMap;
use tokio::sync::{mpsc, oneshot};
use tokio::time::Instant;

use super::Unsolicited;
use super::connect::{self, Found, Opened, Wire};
use super::notebook::Notebook;
use super::target::{Settings, Target};
use crate::dialect::Revision;
use crate::dialect::headers::{self, Mirror};
use crate::dialect::lower::Server;
use crate::dialect::outgoing::{self, Extras, InputRequired, Speaker};
use crate::error::{Error, Kind, Result};
use crate::exchange::{Answer, Call, Caller, Client, Question, Replies, Reply, TRACE};
use crate::protocol::{ErrorObject, Id, Method, Notice, Notification, Outcome, Raw, code};

/// A connection to an upstream.
#[derive(Debug)]
pub struct Connection {
    wire: Wire,
    server: Server,
    offered: Vec<String>,
    revision: Revision,
    found: Found,
    settings: Settings,
    speaker: Speaker,
    /// The headers that tools want mirrored, as last listed; nothing before the first list.
    mirrors: Mutex<Option<HashMap<String, Vec<Mirror>>>>,
}

/// How long to wait when a server only says to come back, at first.
const COME_BACK: Duration = Duration::from_millis(250);
/// The longest of such waits.
const COME_BACK_CAP: Duration = Duration::from_secs(5);
/// How long a person may take at an address before the server is asked again, at first.
const VISIT: Duration = Duration::from_secs(2);
/// The longest of such waits.
const VISIT_CAP: Duration = Duration::from_secs(30);
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
        settings: Settings,
        speaker: Speaker,
        unsolicited: mpsc::Sender<Unsolicited>,
    ) -> Result<Arc<Self>> {
        Self::open_with(target, settings, speaker, unsolicited, None).await
    }

    /// The same, but goes on with the session that a notebook names.
    pub(super) async fn open_with(
        target: &Target,
        settings: Settings,
        speaker: Speaker,
        unsolicited: mpsc::Sender<Unsolicited>,
        notebook: Option<Arc<Notebook>>,
    ) -> Result<Arc<Self>> {
        let opening = connect::open(target, &settings, &speaker, &unsolicited, notebook.as_ref());
        let Opened { wire, introduction, found } = opening.await?;
        tracing::debug!(%target, revision = %introduction.revision, transport = found.transport, "connected");
        Ok(Arc::new(Self {
            wire,
            server: introduction.server,
            offered: introduction.offered,
            revision: introduction.revision,
            found,
            settings,
            speaker,
            mirrors: Mutex::default(),
        }))
    }

    /// What the server says of itself.
    pub fn server(&self) -> &Server {
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
    pub fn found(&self) -> &Found {
        &self.found
    }

    /// The id of the session, where there is one.
    pub fn session_id(&self) -> Option<String> {
        match &self.wire {
            Wire::Http(http) => http.session_id(),
            Wire::Stdio(_) | Wire::Sse(_) => None,
        }
    }

    /// Whether its session was opened elsewhere.
    pub(super) fn goes_on(&self) -> bool {
        matches!(&self.wire, Wire::Http(http) if http.goes_on())
    }

    /// Who we are to the server.
    pub fn speaker(&self) -> &Speaker {
        &self.speaker
    }

    /// Passes a call on. Dropping the replies cancels it.
    pub fn call(self: &Arc<Self>, call: Call) -> Replies {
        let now = Instant::now();
        let conversation = Conversation {
            params: call.params.clone(),
            call,
            connection: Arc::clone(self),
            replies: None,
            queue: VecDeque::new(),
            asked: Vec::new(),
            visited: HashSet::new(),
            progress: f64::NEG_INFINITY,
            state: None,
            rounds: 0,
            asked_client: false,
            refreshed: false,
            end: now + self.settings.call_cap,
        };
        Replies::stream(futures_util::stream::unfold(Some(conversation), |conversation| async move {
            let mut conversation = conversation?;
            let reply = conversation.next().await;
            let more = !matches!(reply, Reply::End(_));
            Some((reply, more.then_some(conversation)))
        }))
    }

    /// A call of our own.
    pub(super) fn own_call(&self, method: Method, params: Option<Raw>) -> Call {
        let client = Client {
            revision: self.revision,
            capabilities: self.speaker.capabilities.clone(),
            info: Some(self.speaker.info.clone()),
        };
        Call {
            id: Id::Number(0),
            method,
            params,
            client: Arc::new(client),
            caller: Arc::new(Caller { principal: "rialto".into(), peer: None, headers: HeaderMap::new() }),
            level: None,
            progress: None,
            audience: None,
        }
    }

    /// Makes a request of our own and waits for its result, past everything that comes before it.
    ///
    /// # Errors
    /// When the server answers with an error, or not at all.
    pub async fn request(self: &Arc<Self>, method: Method, params: Option<Raw>) -> Result<Raw> {
        let what = format!("`{method}`");
        let replies = self.call(self.own_call(method, params));
        connect::answer(replies, self.settings.call_cap, &what).await?.map_err(Error::answered)
    }

    /// Sends a notification.
    ///
    /// # Errors
    /// When the server does not take it.
    pub async fn notify(&self, notification: &Notification) -> Result<()> {
        match &self.wire {
            Wire::Http(http) => http.notify(notification).await,
            Wire::Stdio(stdio) => {
                stdio.duplex.notify(notification).await;
                Ok(())
            }
            Wire::Sse(sse) => {
                sse.duplex.notify(notification).await;
                Ok(())
            }
        }
    }

    /// Waits until the connection is over, and says why. Over Streamable HTTP nothing stays open
    /// that could tell, so this never ends there.
    pub async fn closed(&self) -> Error {
        match &self.wire {
            Wire::Http(_) => std::future::pending().await,
            Wire::Stdio(stdio) => stdio.duplex.closed().await,
            Wire::Sse(sse) => sse.duplex.closed().await,
        }
    }

    /// Whether the connection is over, as far as it can tell.
    pub fn is_closed(&self) -> bool {
        match &self.wire {
            Wire::Http(http) => http.is_closed(),
            Wire::Stdio(stdio) => stdio.duplex.is_closed(),
            Wire::Sse(sse) => sse.duplex.is_closed(),
        }
    }

    /// Whether questions come with the call that they belong to.
    pub fn attributes_questions(&self) -> bool {
        matches!(self.wire, Wire::Http(_))
    }

    /// Whether a call is at work, as far as the connection can tell.
    pub fn is_busy(&self) -> bool {
        match &self.wire {
            Wire::Http(_) => false,
            Wire::Stdio(stdio) => stdio.duplex.is_busy(),
            Wire::Sse(sse) => sse.duplex.is_busy(),
        }
    }

    /// Ends the connection: the session is ended, unless another node goes on with it, the child
    /// stopped, whoever still waits is told.
    pub async fn close(&self) {
        match &self.wire {
            Wire::Http(http) => http.close().await,
            Wire::Stdio(stdio) => stdio.close().await,
            Wire::Sse(sse) => sse.close(),
        }
    }

    fn send(&self, method: Method, params: Option<Raw>, token: Option<Raw>, extra: Headers<'_>) -> Replies {
        match &self.wire {
            Wire::Http(http) => http.call(method, params, token, extra.mirrors, extra.caller),
            Wire::Stdio(stdio) => stdio.duplex.call(method, params, token, self.revision),
            Wire::Sse(sse) => sse.duplex.call(method, params, token, self.revision),
        }
    }

    /// The parameters as the server is to get them.
    fn params(&self, params: Option<&Raw>, call: &Call) -> Option<Raw> {
        let speaker = Speaker {
            capabilities: outgoing::capabilities(&call.client.capabilities, call.client.revision, self.revision),
            info: call.client.info.clone().unwrap_or_else(|| self.speaker.info.clone()),
        };
        let params = outgoing::params(params, self.revision, &speaker, &Extras { progress: None, level: call.level });
        match &self.wire {
            Wire::Http(_) => params, // the trace goes into the headers
            Wire::Stdio(_) | Wire::Sse(_) => traced(params, &call.caller.headers),
        }
    }

    /// Whether calls of tools need headers that only the list of tools tells.
    fn mirrors_arguments(&self) -> bool {
        matches!(self.wire, Wire::Http(_)) && !self.revision.facts().sessions
    }

    /// The headers that a tool wants mirrored. Reads the list of tools when that was never read.
    async fn mirrors_of(&self, call: &Call) -> Vec<Mirror> {
        let name = call.params.as_ref().and_then(|params| params.get("name"));
        let Some(name) =
            name.as_ref().and_then(Raw::text).filter(|_| call.method == Method::ToolsCall && self.mirrors_arguments())
        else {
            return Vec::new();
        };
        if self.known_mirrors().is_none() {
            self.list_mirrors(call).await;
        }
        self.known_mirrors().and_then(|known| known.get(name.as_ref()).cloned()).unwrap_or_default()
    }

    fn known_mirrors(&self) -> Option<HashMap<String, Vec<Mirror>>> {
        self.mirrors.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Reads the whole list of tools for the headers that they want.
    async fn list_mirrors(&self, call: &Call) {
        let mut known = HashMap::new();
        let mut cursor: Option<Raw> = None;
        for _ in 0..PAGES {
            let before = cursor.take();
            let params = before.clone().map(|cursor| Raw::empty().edit().set("cursor", cursor).finish());
            let headers = Headers { mirrors: &[], caller: &call.caller.headers };
            let replies = self.send(Method::ToolsList, self.params(params.as_ref(), call), None, headers);
            let Ok(Ok(page)) = connect::answer(replies, self.settings.call, "`tools/list`").await else { break };
            known.extend(headers::mirrors_of_tools(&page));
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
        known.get_or_insert_default().extend(headers::mirrors_of_tools(page));
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
struct Headers<'h> {
    mirrors: &'h [Mirror],
    caller: &'h HeaderMap,
}

/// One call, over as many rounds as it takes.
struct Conversation {
    connection: Arc<Connection>,
    call: Call,
    /// The parameters, with what later rounds add.
    params: Option<Raw>,
    replies: Option<Replies>,
    queue: VecDeque<Reply>,
    /// Questions that were passed on, and where their answers come.
    asked: Vec<Asked>,
    /// The addresses that somebody has agreed to go to.
    visited: HashSet<String>,
    /// How far the call has come, over all rounds.
    progress: f64,
    state: Option<Raw>,
    rounds: u32,
    /// The client was asked something, and may take its time.
    asked_client: bool,
    refreshed: bool,
    end: Instant,
}

/// A question that was passed on.
struct Asked {
    key: String,
    answered: oneshot::Receiver<Outcome>,
    /// The address that it sends people to.
    url: Option<String>,
}

impl Conversation {
    async fn next(&mut self) -> Reply {
        loop {
            if let Some(reply) = self.queue.pop_front() {
                return reply;
            }
            if !self.asked.is_empty() || self.state.is_some() {
                if let Err(error) = self.answer_and_retry().await {
                    return self.failed(&error);
                }
                continue;
            }
            let reply = match self.wait().await {
                Ok(reply) => reply,
                Err(error) => return Reply::End(Answer { outcome: Err(error), revision: self.connection.revision }),
            };
            match reply {
                Reply::End(answer) => {
                    if let Some(reply) = self.ended(answer).await {
                        return reply;
                    }
                }
                Reply::Question(question) => {
                    // However long the client takes does not count.
                    self.asked_client = true;
                    self.end = Instant::now() + self.connection.settings.call_cap;
                    return Reply::Question(question);
                }
                Reply::Notice(notification) if !self.goes_on(&notification) => {}
                notice @ Reply::Notice(_) => return notice,
            }
        }
    }

    /// Waits for the next reply, within the limits.
    async fn wait(&mut self) -> std::result::Result<Reply, ErrorObject> {
        if self.replies.is_none() {
            let mirrors = self.connection.mirrors_of(&self.call).await;
            let params = self.connection.params(self.params.as_ref(), &self.call);
            let token = self.call.progress.clone();
            let headers = Headers { mirrors: &mirrors, caller: &self.call.caller.headers };
            self.replies = Some(self.connection.send(self.call.method.clone(), params, token, headers));
        }
        let settings = &self.connection.settings;
        let silence = if self.asked_client { settings.call_cap } else { settings.call };
        let limit =
            if self.call.method == Method::Listen { None } else { Some((Instant::now() + silence).min(self.end)) };
        let Some(replies) = &mut self.replies else { return Err(lost()) };
        let reply = match limit {
            None => replies.next().await,
            Some(limit) => match tokio::time::timeout_at(limit, replies.next()).await {
                Ok(reply) => reply,
                Err(_) => {
                    self.replies = None; // cancels it
                    let whole = Instant::now() >= self.end;
                    let limit = if whole { settings.call_cap } else { silence };
                    let why = format!("Request timed out: the server was silent for {limit:?}");
                    return Err(ErrorObject::unavailable(why));
                }
            },
        };
        reply.ok_or_else(lost)
    }

    /// Looks at an answer: it may ask for input, or for headers that we do not know yet.
    async fn ended(&mut self, answer: Answer) -> Option<Reply> {
        self.replies = None;
        let mismatch = matches!(&answer.outcome, Err(error) if error.code() == code::HEADER_MISMATCH);
        if mismatch && self.connection.mirrors_arguments() && !std::mem::replace(&mut self.refreshed, true) {
            // Its list of tools has changed since we read it.
            self.connection.list_mirrors(&self.call).await;
            return None;
        }
        let answers_questions = self.call.client.revision.facts().sessions;
        let (Ok(result), true) = (&answer.outcome, answers_questions && !self.connection.revision.facts().sessions)
        else {
            return Some(Reply::End(answer));
        };
        match outgoing::input_required(result) {
            Ok(None) => Some(Reply::End(answer)),
            Ok(Some(input)) => {
                self.rounds += 1;
                if self.rounds > self.connection.settings.rounds {
                    let why = format!("the server asked for input more than {} times", self.connection.settings.rounds);
                    return Some(self.failed(&Error::new(Kind::Protocol, why)));
                }
                self.pass_on(input);
                None
            }
            Err(why) => Some(self.failed(&Error::new(Kind::Protocol, why))),
        }
    }

    /// Whether a notice may be passed on: progress that begins anew with a round has to catch up first.
    fn goes_on(&mut self, notification: &Notification) -> bool {
        let told = notification.params.as_ref().filter(|_| notification.notice == Notice::Progress);
        let value = told.and_then(|params| params.get("progress")).and_then(|value| value.read::<f64>().ok());
        let Some(value) = value else { return true };
        let further = self.rounds == 0 || value > self.progress;
        self.progress = self.progress.max(value);
        further
    }

    fn pass_on(&mut self, input: InputRequired) {
        self.state = input.state;
        for (key, method, params) in input.questions {
            let (answer, answered) = oneshot::channel();
            let url = params.as_ref().and_then(|params| params.get("url"));
            let url = url.as_ref().and_then(Raw::text).map(std::borrow::Cow::into_owned);
            if url.as_ref().is_some_and(|url| self.visited.contains(url)) {
                // Somebody is on the way there already; the server only has to be asked again later.
                let _ = answer.send(Ok(Raw::constant(r#"{"action":"accept"}"#)));
            } else {
                self.queue.push_back(Reply::Question(Question { method, params, answer }));
            }
            self.asked.push(Asked { key, answered, url });
        }
    }

    /// Waits for the client's answers, and sends the request again with them.
    async fn answer_and_retry(&mut self) -> Result<()> {
        let asked = std::mem::take(&mut self.asked);
        let begun = Instant::now();
        if asked.is_empty() {
            // It only wants us to come back later.
            let wait = COME_BACK * 2u32.saturating_pow(self.rounds.saturating_sub(1));
            tokio::time::sleep(wait.min(COME_BACK_CAP)).await;
        } else if asked.iter().all(|asked| asked.url.as_ref().is_some_and(|url| self.visited.contains(url))) {
            let wait = VISIT * 2u32.saturating_pow(self.rounds.saturating_sub(2));
            tokio::time::sleep(wait.min(VISIT_CAP)).await;
        }
        let mut answers = Vec::with_capacity(asked.len());
        for Asked { key, answered, url } in asked {
            match tokio::time::timeout(self.connection.settings.call_cap, answered).await {
                Ok(Ok(Ok(result))) => {
                    let action = result.get("action");
                    let agreed = action.as_ref().and_then(Raw::text).as_deref() == Some("accept");
                    self.visited.extend(url.filter(|_| agreed));
                    answers.push((key, result.edit().remove("_meta").finish()));
                }
                Ok(Ok(Err(error))) => {
                    return Err(Error::new(Kind::Protocol, format!("the client did not answer: {}", error.message())));
                }
                Ok(Err(_)) => {
                    return Err(Error::new(Kind::Protocol, "the client does not answer questions of this kind"));
                }
                Err(_) => return Err(Error::new(Kind::Timeout, "the client did not answer in time")),
            }
        }
        self.end += begun.elapsed();
        let state = self.state.take();
        self.params = Some(outgoing::retried(self.params.as_ref(), &answers, state.as_ref()));
        Ok(())
    }

    /// A call that cannot go on: a tool's failure is a result, anything else an error.
    fn failed(&self, error: &Error) -> Reply {
        let outcome = if self.call.method == Method::ToolsCall {
            let content = [serde_json::json!({ "type": "text", "text": error.to_string() })];
            Ok(Raw::of(&serde_json::json!({ "content": content, "isError": true, "resultType": "complete" })))
        } else {
            Err(ErrorObject::new(code::INTERNAL_ERROR, error.to_string()))
        };
        Reply::End(Answer { outcome, revision: self.connection.revision })
    }
}

/// Parameters with the trace that came in the client's headers, where they do not tell one already.
fn traced(mut params: Option<Raw>, headers: &HeaderMap) -> Option<Raw> {
    for name in TRACE {
        let Some(value) = headers.get(name).and_then(|value| value.to_str().ok()) else { continue };
        if params.as_ref().and_then(|params| params.at(&["_meta", name])).is_none() {
            params = Some(crate::dialect::meta::with(params.as_ref(), name, Raw::of(value)));
        }
    }
    params
}

fn lost() -> ErrorObject {
    ErrorObject::new(code::INTERNAL_ERROR, "Internal error: the call ended without an answer")
}
