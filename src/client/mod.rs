//! A client for any MCP server, on the same code that the gateway uses.
//!
//! ```no_run
//! use rialto::client::{Client, ClientOptions};
//! use rialto::mcp_client::Target;
//!
//! # async fn example() -> rialto::error::Result<()> {
//! let target = Target::url("http://127.0.0.1:3001/mcp")?;
//! let client = Client::connect(&target, ClientOptions::default()).await?;
//! for tool in client.tools().await? {
//!     println!("{}", tool.get("name").unwrap_or(rialto::protocol::Raw::empty()));
//! }
//! let arguments = rialto::protocol::Raw::of(&serde_json::json!({ "name": "Fe" }));
//! let result = client.call_tool("getElement", arguments).await?;
//! println!("{result}");
//! client.close().await;
//! # Ok(())
//! # }
//! ```
//!
//! Transport, era and revision are detected; [`ClientOptions`] can pin them. Server requests (sampling, elicitation,
//! roots) go to the [`Host`], whether they arrive as requests during a call or as a result that requires input.
//! `examples/conformance_client.rs` is a complete program with a host.

mod host;
mod listening;
mod measurements;

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

use serde_json::json;
use tokio::sync::{broadcast, mpsc};
use tokio::task::JoinHandle;

use parking_lot::Mutex;

pub use host::{Host, NullHost, ServerRequestFuture};
pub use listening::{ListenRequest, Listening};
pub use measurements::{ProbeMeasurements, milliseconds};

use crate::call::{self, AnswerDelivery, Call, Caller, ChangeEvent, Replies, Reply};
use crate::dialect::to_client::ServerInfo;
use crate::dialect::to_upstream::ClientIdentity;
use crate::dialect::{LegFacts, Revision};
use crate::error::{Error, Result};
use crate::failure::FailureKind;
use crate::identity::Identity;
use crate::mcp_client::{Connection, ConnectionSettings, ProbeReport, Target, Unsolicited};
use crate::protocol::{Id, Level, Method, Notification, Payload, Raw};
use crate::trace::CallTrace;
use crate::upstream::{self, List};

/// Options of a client.
pub struct ClientOptions {
    /// Timeouts, limits, pinned transport and revision.
    pub settings: ConnectionSettings,
    /// `clientInfo` sent to the server.
    pub info: Raw,
    /// Handles notifications and server requests.
    pub host: Arc<dyn Host>,
    /// Minimum level of log messages from the server; `None` requests none.
    pub level: Option<Level>,
}

/// A connected MCP client.
pub struct Client {
    connection: Arc<Connection>,
    state: Arc<ClientState>,
    client_info: Arc<call::ClientInfo>,
    caller: Arc<Caller>,
    level: Option<Level>,
    last_token: AtomicI64,
    reader_task: JoinHandle<()>,
}

/// State shared with the task that reads unsolicited messages.
struct ClientState {
    host: Arc<dyn Host>,
    notifications: broadcast::Sender<Notification>,
    subscriptions: Mutex<Vec<String>>,
    level: Option<Level>,
}

/// Buffered notifications per listener; a slow listener loses the oldest.
const NOTIFICATION_BUFFER: usize = 256;
/// Buffered unsolicited messages from the connection.
const UNSOLICITED_BUFFER: usize = 256;

impl Client {
    /// Detects transport and revision of the target and connects.
    ///
    /// # Errors
    /// When the server is unreachable or has no protocol revision in common.
    pub async fn connect(target: &Target, options: ClientOptions) -> Result<Self> {
        let ClientOptions { settings, info, host, level } = options;
        let identity = ClientIdentity { capabilities: host.capabilities(), info };
        let (sender, receiver) = mpsc::channel(UNSOLICITED_BUFFER);
        let connection = Connection::open(target, settings, identity.clone(), sender).await?;
        let state = Arc::new(ClientState {
            host,
            notifications: broadcast::Sender::new(NOTIFICATION_BUFFER),
            subscriptions: Mutex::default(),
            level,
        });
        // Calls are made as a handshake-era client, so that input-required results arrive as server requests too.
        let client_info = Arc::new(call::ClientInfo {
            revision: Revision::NEWEST_HANDSHAKE,
            capabilities: identity.capabilities,
            info: Some(identity.info),
        });
        let caller = Arc::new(Caller::local(Identity::local()));
        let reader_task = tokio::spawn(run_unsolicited(
            Arc::downgrade(&connection),
            Arc::clone(&state),
            receiver,
            Arc::clone(&client_info),
            Arc::clone(&caller),
        ));
        let client = Self { connection, state, client_info, caller, level, last_token: AtomicI64::new(0), reader_task };
        client.set_log_level().await?;
        Ok(client)
    }

    /// Sends `logging/setLevel` once; per-request servers get the level with each call instead.
    async fn set_log_level(&self) -> Result<()> {
        let logs = self.server().capabilities.get("logging").is_some();
        match self.level.filter(|_| logs && self.revision().has_session_log_level()) {
            Some(level) => {
                self.request(Method::SetLevel, Some(Raw::of(&json!({ "level": level.as_str() })))).await.map(drop)
            }
            None => Ok(()),
        }
    }

    /// Name, version, capabilities and instructions of the server.
    pub fn server(&self) -> &ServerInfo {
        self.connection.server()
    }

    /// The negotiated protocol revision.
    pub fn revision(&self) -> Revision {
        self.connection.revision()
    }

    /// The revisions that the server advertises; empty if it does not say.
    pub fn offered(&self) -> &[String] {
        self.connection.offered_revisions()
    }

    /// How transport and revision were detected.
    pub fn probe_report(&self) -> &ProbeReport {
        self.connection.probe_report()
    }

    /// What tells this leg of the server from the other, if it speaks both eras.
    pub fn leg_facts(&self) -> LegFacts {
        let revision = self.revision();
        let reaches_client = revision.asks_by_result() || self.connection.keeps_session();
        LegFacts { revision, capabilities: self.server().capabilities.clone(), reaches_client }
    }

    /// The session id, if the server assigned one.
    pub fn session_id(&self) -> Option<String> {
        self.connection.session_id()
    }

    /// Sends a request and waits for the result. Notifications and server requests go to the host.
    ///
    /// # Errors
    /// When the server returns an error, times out or disconnects.
    pub async fn request(&self, method: Method, params: Option<Raw>) -> Result<Raw> {
        let mut replies = self.begin(method, params);
        loop {
            match replies.next().await {
                Some(Reply::Notification(notification)) => self.state.host.on_notification(&notification),
                Some(Reply::ServerRequest(question)) => host::spawn_answer(&self.state.host, question),
                Some(Reply::Piece(_)) => {} // only of calls that allow it
                Some(Reply::End(answer)) => {
                    return answer.outcome.map(Payload::into_raw).map_err(Error::from_error_object);
                }
                None => return Err(Error::failure(FailureKind::Broken, "the call ended without a response")),
            }
        }
    }

    /// Starts a request; dropping the replies cancels it.
    pub fn begin(&self, method: Method, params: Option<Raw>) -> Replies {
        self.connection.call(self.call(method, params))
    }

    fn call(&self, method: Method, params: Option<Raw>) -> Call {
        let token = self.last_token.fetch_add(1, Ordering::Relaxed) + 1;
        let per_request_level = self.level.filter(|_| !self.revision().has_session_log_level());
        Call {
            id: Id::Number(token),
            progress_token: matches!(method, Method::ToolsCall).then(|| Raw::of(&token)),
            method,
            params: params.map(Into::into),
            client: Arc::clone(&self.client_info),
            caller: Arc::clone(&self.caller),
            level: per_request_level,
            sink: None,
            limits: None,
            delivery: AnswerDelivery::Whole,
            trace: CallTrace::PassedOn,
            target_label: None,
        }
    }

    /// All tools, through all pages.
    ///
    /// # Errors
    /// When `tools/list` fails.
    pub async fn tools(&self) -> Result<Vec<Raw>> {
        self.list(List::Tools).await
    }

    /// All prompts, through all pages.
    ///
    /// # Errors
    /// When `prompts/list` fails.
    pub async fn prompts(&self) -> Result<Vec<Raw>> {
        self.list(List::Prompts).await
    }

    /// All resources, through all pages.
    ///
    /// # Errors
    /// When `resources/list` fails.
    pub async fn resources(&self) -> Result<Vec<Raw>> {
        self.list(List::Resources).await
    }

    /// All resource templates, through all pages.
    ///
    /// # Errors
    /// When `resources/templates/list` fails.
    pub async fn templates(&self) -> Result<Vec<Raw>> {
        self.list(List::Templates).await
    }

    async fn list(&self, list: List) -> Result<Vec<Raw>> {
        Ok(upstream::lists::read_all_pages(&self.connection, list).await?.items)
    }

    /// Calls a tool.
    ///
    /// # Errors
    /// When the server returns an error, times out or disconnects. A failed tool is a result with `isError`.
    pub async fn call_tool(&self, name: &str, arguments: Raw) -> Result<Raw> {
        let params = Raw::of(&json!({ "name": name })).edit().set("arguments", arguments).finish();
        self.request(Method::ToolsCall, Some(params)).await
    }

    /// Reads a resource.
    ///
    /// # Errors
    /// When the resource does not exist or cannot be read.
    pub async fn read(&self, uri: &str) -> Result<Raw> {
        self.request(Method::ResourcesRead, Some(Raw::of(&json!({ "uri": uri })))).await
    }

    /// Gets a prompt.
    ///
    /// # Errors
    /// When the prompt does not exist or its arguments are invalid.
    pub async fn prompt(&self, name: &str, arguments: Raw) -> Result<Raw> {
        let params = Raw::of(&json!({ "name": name })).edit().set("arguments", arguments).finish();
        self.request(Method::PromptsGet, Some(params)).await
    }

    /// Sends `ping`; `None` in the per-request era, which has no ping.
    ///
    /// # Errors
    /// When the server does not respond.
    pub async fn ping(&self) -> Result<Option<()>> {
        if !self.revision().has_ping() {
            return Ok(None);
        }
        self.request(Method::Ping, None).await.map(|_| Some(()))
    }

    /// Subscribes to list changes and resource updates.
    ///
    /// # Errors
    /// When the server does not support the subscription.
    pub async fn listen(&self, request: ListenRequest) -> Result<Listening> {
        listening::listen(self, request).await
    }

    /// Closes the connection: ends the session, or stops the child process.
    pub async fn close(self) {
        self.reader_task.abort();
        let _ = self.reader_task.await;
        self.connection.close().await;
    }
}

/// Reads unsolicited messages until the connection is closed. After a reconnect it restores subscriptions and the log
/// level.
async fn run_unsolicited(
    connection: std::sync::Weak<Connection>,
    state: Arc<ClientState>,
    mut receiver: mpsc::Receiver<Unsolicited>,
    client_info: Arc<call::ClientInfo>,
    caller: Arc<Caller>,
) {
    while let Some(message) = receiver.recv().await {
        match message {
            Unsolicited::Notification(notification) => state.notify(notification),
            Unsolicited::ServerRequest(question) => host::spawn_answer(&state.host, question),
            Unsolicited::Missed => state.notify_all(),
            Unsolicited::SessionReopened => {
                let Some(connection) = connection.upgrade() else { return };
                for (method, params) in state.session_setup_requests() {
                    let call = Call {
                        id: Id::Number(0),
                        method,
                        params: Some(params.into()),
                        client: Arc::clone(&client_info),
                        caller: Arc::clone(&caller),
                        level: None,
                        progress_token: None,
                        sink: None,
                        limits: None,
                        delivery: AnswerDelivery::Whole,
                        trace: CallTrace::PassedOn,
                        target_label: None,
                    };
                    let mut replies = connection.call(call);
                    while replies.next().await.is_some() {}
                }
                state.notify_all();
            }
        }
    }
}

impl ClientState {
    fn notify(&self, notification: Notification) {
        self.host.on_notification(&notification);
        // Fails only when nobody is listening.
        let _ = self.notifications.send(notification);
    }

    /// Reports every list and subscribed resource as changed, because notifications may have been lost.
    fn notify_all(&self) {
        let uris = self.subscriptions.lock().clone();
        let updates = uris.into_iter().map(|uri| ChangeEvent::ResourceUpdated(uri.into()));
        for change in ChangeEvent::LISTS.into_iter().chain(updates) {
            self.notify(change.notification());
        }
    }

    /// Requests that restore the log level and subscriptions in a new session.
    fn session_setup_requests(&self) -> Vec<(Method, Raw)> {
        let level = self.level.map(|level| (Method::SetLevel, Raw::of(&json!({ "level": level.as_str() }))));
        let uris = self.subscriptions.lock().clone();
        let subscribe = |uri: String| (Method::Subscribe, Raw::of(&json!({ "uri": uri })));
        level.into_iter().chain(uris.into_iter().map(subscribe)).collect()
    }
}

impl Default for ClientOptions {
    fn default() -> Self {
        Self {
            settings: ConnectionSettings::default(),
            info: Raw::of(&json!({ "name": "rialto", "version": env!("CARGO_PKG_VERSION") })),
            host: Arc::new(NullHost),
            level: None,
        }
    }
}
