//! A client for any MCP server, on the same code that the gateway uses.
//!
//! ```no_run
//! use rialto::client::{Client, Options};
//! use rialto::mcp_client::Target;
//!
//! # async fn example() -> rialto::error::Result<()> {
//! let target = Target::url("http://127.0.0.1:3001/mcp")?;
//! let client = Client::connect(&target, Options::default()).await?;
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
//! Transport, era and revision are found out; [`Options`] can pin them. What the server asks
//! (sampling, elicitation, roots) goes to the [`Host`], whether it comes as a request during the
//! call or as a result that asks for input. `examples/conformance_client.rs` is a whole program with
//! one.

mod host;
mod listening;

use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use http::HeaderMap;
use serde_json::json;
use tokio::sync::{broadcast, mpsc};
use tokio::task::JoinHandle;

pub use host::{Host, ServerRequestFuture, Silent};
pub use listening::{ListenRequest, Listening};

use crate::call::{self, Call, Caller, ChangeEvent, Replies, Reply};
use crate::dialect::Revision;
use crate::dialect::to_client::ServerInfo;
use crate::dialect::to_upstream::ClientIdentity;
use crate::error::{Error, ErrorKind, Result};
use crate::mcp_client::{Connection, ConnectionSettings, ProbeReport, Target, Unsolicited};
use crate::protocol::{Id, Level, Method, Notification, Raw};
use crate::upstream::{self, List};

/// How a client behaves.
pub struct ClientOptions {
    /// How the server is treated: pins, limits, patience.
    pub settings: ConnectionSettings,
    /// Who we are, as the server is to see it.
    pub info: Raw,
    /// Answers what the server asks.
    pub host: Arc<dyn Host>,
    /// From which level on log messages are wanted.
    pub level: Option<Level>,
}

/// A connection to a server.
pub struct Client {
    connection: Arc<Connection>,
    state: Arc<ClientState>,
    speaker: Arc<call::ClientInfo>,
    caller: Arc<Caller>,
    level: Option<Level>,
    last_token: AtomicI64,
    pump: JoinHandle<()>,
}

/// What the task that hears the server shares with the client.
struct ClientState {
    host: Arc<dyn Host>,
    notices: broadcast::Sender<Notification>,
    subscriptions: Mutex<Vec<String>>,
    level: Option<Level>,
}

/// How many notices may wait for a slow listener; who falls behind misses the oldest.
const NOTICES_WAITING: usize = 256;
/// How many things that the server says by itself may wait.
const UNSOLICITED_WAITING: usize = 256;

impl Client {
    /// Finds out what is at the target, and connects to it.
    ///
    /// # Errors
    /// When it cannot be reached, or speaks nothing that we speak.
    pub async fn connect(target: &Target, options: ClientOptions) -> Result<Self> {
        let ClientOptions { settings, info, host, level } = options;
        let speaker = ClientIdentity { capabilities: host.capabilities(), info };
        let (unsolicited, heard) = mpsc::channel(UNSOLICITED_WAITING);
        let connection = Connection::open(target, settings, speaker.clone(), unsolicited).await?;
        let state = Arc::new(ClientState {
            host,
            notices: broadcast::Sender::new(NOTICES_WAITING),
            subscriptions: Mutex::default(),
            level,
        });
        // Questions are to come as questions, whatever way the server has of asking.
        let speaker = Arc::new(call::ClientInfo {
            revision: Revision::NEWEST_HANDSHAKE,
            capabilities: speaker.capabilities,
            info: Some(speaker.info),
        });
        let caller = Arc::new(Caller { principal: "local".into(), peer: None, headers: HeaderMap::new() });
        let pump = tokio::spawn(run_unsolicited(
            Arc::downgrade(&connection),
            Arc::clone(&state),
            heard,
            Arc::clone(&speaker),
            Arc::clone(&caller),
        ));
        let client = Self { connection, state, speaker, caller, level, last_token: AtomicI64::new(0), pump };
        client.choose_level().await?;
        Ok(client)
    }

    /// In the handshake era the level of log messages is chosen once.
    async fn choose_level(&self) -> Result<()> {
        let logs = self.server().capabilities.get("logging").is_some();
        match self.level.filter(|_| logs && self.revision().facts().sessions) {
            Some(level) => {
                self.request(Method::SetLevel, Some(Raw::of(&json!({ "level": level.as_str() })))).await.map(drop)
            }
            None => Ok(()),
        }
    }

    /// What the server says of itself.
    pub fn server(&self) -> &ServerInfo {
        self.connection.server()
    }

    /// The revision that is spoken.
    pub fn revision(&self) -> Revision {
        self.connection.revision()
    }

    /// The revisions that the server offers, as far as it says.
    pub fn offered(&self) -> &[String] {
        self.connection.offered()
    }

    /// What was found, and how.
    pub fn found(&self) -> &ProbeReport {
        self.connection.found()
    }

    /// The id of the session, where there is one.
    pub fn session_id(&self) -> Option<String> {
        self.connection.session_id()
    }

    /// Makes a request and waits for the result. Progress and log messages go to the host, and so
    /// do questions.
    ///
    /// # Errors
    /// When the server answers with an error, or not at all.
    pub async fn request(&self, method: Method, params: Option<Raw>) -> Result<Raw> {
        let mut replies = self.begin(method, params);
        loop {
            match replies.next().await {
                Some(Reply::Notice(notification)) => self.state.host.notice(&notification),
                Some(Reply::Question(question)) => host::answer(&self.state.host, question),
                Some(Reply::End(answer)) => return answer.outcome.map_err(Error::answered),
                None => return Err(Error::new(ErrorKind::Broken, "the call ended without an answer")),
            }
        }
    }

    /// Begins a request; dropping the replies cancels it.
    pub fn begin(&self, method: Method, params: Option<Raw>) -> Replies {
        self.connection.call(self.call(method, params))
    }

    fn call(&self, method: Method, params: Option<Raw>) -> Call {
        let token = self.last_token.fetch_add(1, Ordering::Relaxed) + 1;
        let per_request_level = self.level.filter(|_| !self.revision().facts().sessions);
        Call {
            id: Id::Number(token),
            progress: matches!(method, Method::ToolsCall).then(|| Raw::of(&token)),
            method,
            params,
            client: Arc::clone(&self.speaker),
            caller: Arc::clone(&self.caller),
            level: per_request_level,
            sink: None,
        }
    }

    /// All tools, through all pages.
    ///
    /// # Errors
    /// When the server does not list them.
    pub async fn tools(&self) -> Result<Vec<Raw>> {
        self.list(List::Tools).await
    }

    /// All prompts, through all pages.
    ///
    /// # Errors
    /// When the server does not list them.
    pub async fn prompts(&self) -> Result<Vec<Raw>> {
        self.list(List::Prompts).await
    }

    /// All resources, through all pages.
    ///
    /// # Errors
    /// When the server does not list them.
    pub async fn resources(&self) -> Result<Vec<Raw>> {
        self.list(List::Resources).await
    }

    /// All resource templates, through all pages.
    ///
    /// # Errors
    /// When the server does not list them.
    pub async fn templates(&self) -> Result<Vec<Raw>> {
        self.list(List::Templates).await
    }

    async fn list(&self, list: List) -> Result<Vec<Raw>> {
        Ok(upstream::lists::read(&self.connection, list).await?.items)
    }

    /// Calls a tool.
    ///
    /// # Errors
    /// When the server answers with an error, or not at all. A tool that failed is a result with
    /// `isError`.
    pub async fn call_tool(&self, name: &str, arguments: Raw) -> Result<Raw> {
        let params = Raw::of(&json!({ "name": name })).edit().set("arguments", arguments).finish();
        self.request(Method::ToolsCall, Some(params)).await
    }

    /// Reads a resource.
    ///
    /// # Errors
    /// When there is none of that URI.
    pub async fn read(&self, uri: &str) -> Result<Raw> {
        self.request(Method::ResourcesRead, Some(Raw::of(&json!({ "uri": uri })))).await
    }

    /// Gets a prompt.
    ///
    /// # Errors
    /// When there is none of that name, or its arguments do not fit.
    pub async fn prompt(&self, name: &str, arguments: Raw) -> Result<Raw> {
        let params = Raw::of(&json!({ "name": name })).edit().set("arguments", arguments).finish();
        self.request(Method::PromptsGet, Some(params)).await
    }

    /// Asks whether the server is there, where the revision has a way to ask; nothing where not.
    ///
    /// # Errors
    /// When it does not answer.
    pub async fn ping(&self) -> Result<Option<()>> {
        if !self.revision().facts().sessions {
            return Ok(None);
        }
        self.request(Method::Ping, None).await.map(|_| Some(()))
    }

    /// Listens for changes.
    ///
    /// # Errors
    /// When the server does not tell of them.
    pub async fn listen(&self, wishes: ListenRequest) -> Result<Listening> {
        listening::listen(self, wishes).await
    }

    /// Ends the connection: the session is ended, the child stopped.
    pub async fn close(self) {
        self.pump.abort();
        let _ = self.pump.await;
        self.connection.close().await;
    }
}

/// Hears what the server says by itself, for as long as the connection is held.
async fn run_unsolicited(
    connection: std::sync::Weak<Connection>,
    state: Arc<ClientState>,
    mut heard: mpsc::Receiver<Unsolicited>,
    speaker: Arc<call::ClientInfo>,
    caller: Arc<Caller>,
) {
    while let Some(what) = heard.recv().await {
        match what {
            Unsolicited::Notice(notification) => state.notify(notification),
            Unsolicited::Question(question) => host::answer(&state.host, question),
            Unsolicited::Missed => state.notify_all(),
            Unsolicited::Reopened => {
                let Some(connection) = connection.upgrade() else { return };
                for (method, params) in state.to_renew() {
                    let call = Call {
                        id: Id::Number(0),
                        method,
                        params: Some(params),
                        client: Arc::clone(&speaker),
                        caller: Arc::clone(&caller),
                        level: None,
                        progress: None,
                        sink: None,
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
        self.host.notice(&notification);
        // Nobody may be listening; that is no fault.
        let _ = self.notices.send(notification);
    }

    /// Any list and any resource that was subscribed to may have changed: what the server said of some was missed.
    fn notify_all(&self) {
        let uris = self.subscriptions.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let updates = uris.into_iter().map(|uri| ChangeEvent::Updated(uri.into()));
        for change in ChangeEvent::LISTS.into_iter().chain(updates) {
            self.notify(change.notification());
        }
    }

    /// What a new session has to be told that the one before knew.
    fn to_renew(&self) -> Vec<(Method, Raw)> {
        let level = self.level.map(|level| (Method::SetLevel, Raw::of(&json!({ "level": level.as_str() }))));
        let uris = self.subscriptions.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let subscribe = |uri: String| (Method::Subscribe, Raw::of(&json!({ "uri": uri })));
        level.into_iter().chain(uris.into_iter().map(subscribe)).collect()
    }
}

impl Default for ClientOptions {
    fn default() -> Self {
        Self {
            settings: ConnectionSettings::default(),
            info: Raw::of(&json!({ "name": "rialto", "version": env!("CARGO_PKG_VERSION") })),
            host: Arc::new(Silent),
            level: None,
        }
    }
}
