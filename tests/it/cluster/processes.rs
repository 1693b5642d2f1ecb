//! Test cluster: nodes as separate processes, a shared Redis, and scripted servers behind them.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;

use rialto::mcp_client::Target;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::Child;

use super::balancer::RoundRobinBalancer;
use super::upstream_proxy::{self, UpstreamFault};
use crate::harness::{HttpRequest, TEST_TIMEOUT};
use crate::ports::ReservedPort;
use crate::process::rialto;
use crate::redis::{RedisFlavor, RedisServer};
use crate::scripted_server::{ScriptedServer, ServerCatalog, ServerTransport, tool};

/// Node lease.
pub const LEASE: Duration = Duration::from_secs(2);

/// Log lines of each node that a failing test prints.
const MAX_LOG_LINES: usize = 300;

/// Nodes, their store and their upstream servers.
pub struct TestCluster {
    pub store: RedisServer,
    pub nodes: Vec<Node>,
    pub balancer: Arc<RoundRobinBalancer>,
    /// Streamable HTTP server with sessions.
    pub http_server: Arc<ScriptedServer>,
    /// Stdio server, run as a child process of the nodes.
    pub child_server: Arc<ScriptedServer>,
    folder: PathBuf,
}

/// One node process.
pub struct Node {
    pub name: String,
    pub address: SocketAddr,
    _port: ReservedPort,
    store: String,
    config: PathBuf,
    log: PathBuf,
    child: Option<Child>,
    /// Killed at least once, so leftovers of its sessions stay in the store until they expire.
    killed: bool,
}

// === impl TestCluster ===

impl TestCluster {
    /// Starts one node per name and waits until all are ready.
    pub async fn start(names: &[&str]) -> Self {
        let store = RedisServer::start(RedisFlavor::Redis).await;
        let url = store.url();
        Self::with(store, names, |_| url.clone()).await.wait_ready().await
    }

    pub async fn three() -> Self {
        Self::start(&["a", "b", "c"]).await
    }

    /// Three nodes that answer a plain call in JSON however long it takes.
    pub async fn three_without_early_streams() -> Self {
        let store = RedisServer::start(RedisFlavor::Redis).await;
        let url = store.url();
        let sse_after = TEST_TIMEOUT * 2;
        Self::begin(store, &["a", "b", "c"], |_| url.clone(), |_| UpstreamFault::None, sse_after)
            .await
            .wait_ready()
            .await
    }

    /// Starts nodes with a store URL each, without waiting for readiness.
    pub async fn with(store: RedisServer, names: &[&str], url: impl Fn(&str) -> String) -> Self {
        Self::with_upstream_proxy(store, names, url, |_| UpstreamFault::None).await
    }

    /// Like [`Self::with`], with a rule for the requests that the nodes send to the HTTP server.
    pub async fn with_upstream_proxy(
        store: RedisServer,
        names: &[&str],
        url: impl Fn(&str) -> String,
        rule: impl Fn(&str) -> UpstreamFault + Send + Sync + 'static,
    ) -> Self {
        Self::begin(store, names, url, rule, Duration::from_millis(250)).await
    }

    async fn begin(
        store: RedisServer,
        names: &[&str],
        url: impl Fn(&str) -> String,
        rule: impl Fn(&str) -> UpstreamFault + Send + Sync + 'static,
        sse_after: Duration,
    ) -> Self {
        let http_server = Arc::new(ScriptedServer::start("web", ServerTransport::Http).await);
        let http_address = upstream_proxy::start(http_server.address, Arc::new(rule)).await;
        let child_server = Arc::new(ScriptedServer::with("child", ServerTransport::Stdio, one_tool).await);
        let mut id = [0; 8];
        getrandom::fill(&mut id).unwrap();
        let folder = std::env::temp_dir().join(format!("rialto-nodes-{:016x}", u64::from_be_bytes(id)));
        std::fs::create_dir_all(&folder).unwrap();
        let config = folder.join("rialto.toml");
        std::fs::write(&config, configuration(http_address, &child_server, sse_after)).unwrap();
        let mut nodes = Vec::new();
        for name in names {
            nodes.push(Node::start(name, url(name), config.clone(), folder.join(format!("{name}.log"))).await);
        }
        let balancer = RoundRobinBalancer::new(nodes.iter().map(|node| node.address).collect());
        Self { store, nodes, balancer, http_server, child_server, folder }
    }

    async fn wait_ready(self) -> Self {
        for node in &self.nodes {
            node.wait_ready().await;
        }
        self
    }

    /// Waits until no node has sessions or calls, the store has only membership keys, and no child has a lease.
    pub async fn wait_idle(&self) {
        for node in &self.nodes {
            eventually(&format!("{} has no session", node.name), async || {
                let status = node.status().await;
                let busy = |key: &str| status[key].as_u64() != Some(0);
                match status["sessions"].as_array().is_some_and(Vec::is_empty)
                    && status["cluster"]["active_relays"] == 0
                    && !busy("calls_in_flight")
                    && !busy("parked_calls")
                {
                    true => Ok(()),
                    false => Err(status.to_string()),
                }
            })
            .await;
        }
        // An HTTP+SSE session that died with its node stays in the store until its TTL expires.
        let killed = self.nodes.iter().any(|node| node.killed);
        eventually("the store has no session", async || {
            let lives = self.store.ttls_without_tombstones().await;
            let over = |(key, life): &&(String, i64)| {
                let kind = key.strip_prefix("rialto:").unwrap_or_default();
                let known = ["n:{", "m:{", "p:{", "nodes", "secret"].iter().any(|start| kind.starts_with(start));
                let known = known || (killed && kind.starts_with("s:{sse:"));
                !known || *life < 0
            };
            let left: Vec<_> = lives.iter().filter(over).collect();
            if left.is_empty() { Ok(()) } else { Err(format!("{left:?}")) }
        })
        .await;
        // Each node keeps one child for its catalog connection.
        eventually("no child has a lease", async || {
            for node in &self.nodes {
                let status = node.status().await;
                if status["children"].as_u64().is_none_or(|children| children > 1) {
                    return Err(status.to_string());
                }
            }
            Ok(())
        })
        .await;
    }

    /// Stops all nodes gracefully and asserts that no child is left.
    pub async fn shut_down(mut self) {
        for node in &mut self.nodes {
            node.terminate();
        }
        for node in &mut self.nodes {
            assert_eq!(node.wait_exit().await, Some(0), "{}", node.name);
        }
        crate::children::gone(&self.child_server.marker()).await;
    }

    /// Node by name.
    pub fn node(&self, name: &str) -> &Node {
        self.nodes.iter().find(|node| node.name == name).unwrap()
    }

    /// Node by name, mutable.
    pub fn node_mut(&mut self, name: &str) -> &mut Node {
        self.nodes.iter_mut().find(|node| node.name == name).unwrap()
    }

    /// Number of Streamable HTTP sessions on all nodes.
    pub async fn sessions(&self) -> u64 {
        let mut sum = 0;
        for node in &self.nodes {
            let status = node.status().await;
            let alike = status["sessions"].as_array().unwrap().iter().filter(|alike| alike["transport"] == "http");
            sum += alike.map(|alike| alike["count"].as_u64().unwrap()).sum::<u64>();
        }
        sum
    }

    /// Waits until all nodes together own this many Streamable HTTP sessions.
    pub async fn wait_session_count(&self, sessions: u64) {
        eventually("every session has exactly one owner", async || match self.sessions().await {
            found if found == sessions => Ok(()),
            found => Err(format!("{found} instead of {sessions}")),
        })
        .await;
    }
}

impl Drop for TestCluster {
    fn drop(&mut self) {
        if std::thread::panicking() {
            for node in &self.nodes {
                let log = std::fs::read_to_string(&node.log).unwrap_or_default();
                let lines: Vec<&str> = log.lines().filter(|line| !line.contains("a call ended")).collect();
                println!("== {}\n{}", node.name, lines[lines.len().saturating_sub(MAX_LOG_LINES)..].join("\n"));
            }
            println!("== through the load balancer\n{}", super::load_balancer_proxy::recent_requests().join("\n"));
        }
        self.nodes.clear();
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

fn one_tool(catalog: &mut ServerCatalog) {
    catalog.capabilities = serde_json::json!({ "tools": { "listChanged": true } });
    catalog.tools = vec![tool("child")];
    catalog.prompts.clear();
    catalog.resources.clear();
    catalog.templates.clear();
}

fn configuration(http_address: SocketAddr, child_server: &ScriptedServer, sse_after: Duration) -> String {
    let Target::Command(child) = child_server.target() else { panic!("it is a child") };
    let quoted = |text: &str| serde_json::to_string(text).unwrap();
    let arguments: Vec<String> = child.arguments.iter().map(|argument| quoted(argument)).collect();
    format!(
        "[cluster]\nlease = \"{}s\"\ntimeout = \"1s\"\n\
        [limits]\nsse_retry = \"100ms\"\nsse_heartbeat = \"2s\"\nsse_after = \"{}ms\"\n\
        elicitation_timeout = \"10s\"\n\
        [defaults]\nlease_idle_timeout = \"2s\"\nstop_timeout = \"500ms\"\n\
        [groups.default]\nnaming = \"plain\"\n\
        [servers.web]\nurl = \"http://{}/mcp\"\n\
        [servers.child]\ncommand = {}\nargs = [{}]\nenv = {{ MARKER = {} }}\n",
        LEASE.as_secs(),
        sse_after.as_millis(),
        http_address,
        quoted(&child.program),
        arguments.join(", "),
        quoted(&child_server.marker()),
    )
}

// === impl Node ===

impl Node {
    /// Starts the node on a port of its own.
    pub async fn start(name: &str, store: String, config: PathBuf, log: PathBuf) -> Self {
        let port = ReservedPort::new();
        let (name, address) = (name.into(), port.address);
        let mut node = Self { name, address, _port: port, store, config, log, child: None, killed: false };
        node.restart().await;
        node
    }

    /// Starts the process, on the same address each time.
    pub async fn restart(&mut self) {
        let log = std::fs::File::options().create(true).append(true).open(&self.log).unwrap();
        let mut command = rialto();
        command.args(["serve", "--node", &self.name, "--store", &self.store, "--listen", &self.address.to_string()]);
        command.arg("--config").arg(&self.config);
        command.env("RIALTO_LOG", std::env::var("CLUSTER_LOG").unwrap_or_else(|_| "info".into()));
        // The key of its console is left there.
        command.env("XDG_RUNTIME_DIR", self.config.parent().unwrap());
        let mut child = command.stdin(Stdio::null()).stderr(log).spawn().unwrap();
        let mut output = BufReader::new(child.stdout.take().unwrap());
        let mut line = String::new();
        tokio::time::timeout(TEST_TIMEOUT, output.read_line(&mut line)).await.unwrap().unwrap();
        // Drains stdout, so that the process never blocks on it.
        tokio::spawn(async move { tokio::io::copy(&mut output, &mut tokio::io::sink()).await });
        self.child = Some(child);
        assert!(line.contains("http://"), "node {} does not serve, see {}", self.name, self.log.display());
    }

    fn signal(&self, signal: Signal) {
        let child = self.child.as_ref().expect("it runs");
        let id = i32::try_from(child.id().expect("it runs")).unwrap();
        kill_process(Pid::from_raw(id).unwrap(), signal).unwrap();
    }

    /// Kills the process with SIGKILL.
    pub async fn kill(&mut self) {
        self.signal(Signal::KILL);
        self.killed = true;
        self.wait_exit().await;
    }

    /// Starts a graceful shutdown with SIGTERM.
    pub fn terminate(&mut self) {
        self.signal(Signal::TERM);
    }

    /// Suspends the process with SIGSTOP: its connections stay open.
    pub fn pause(&self) {
        self.signal(Signal::STOP);
    }

    pub fn resume(&self) {
        self.signal(Signal::CONT);
    }

    /// Waits until the process exits; returns its exit code.
    pub async fn wait_exit(&mut self) -> Option<i32> {
        let mut child = self.child.take().expect("it runs");
        tokio::time::timeout(TEST_TIMEOUT, child.wait()).await.expect("an end in time").unwrap().code()
    }

    /// Status of `/readyz`; `None` when the node is unreachable.
    /// The key of the console of this node.
    pub async fn console_key(&self) -> String {
        let file = self.config.with_file_name(format!("rialto/console-{}.json", self.id()));
        crate::harness::until("the console is announced", || {
            std::fs::read(&file).is_ok_and(|text| text.ends_with(b"}"))
        })
        .await;
        let running: Value = serde_json::from_slice(&std::fs::read(&file).unwrap()).unwrap();
        running["key"].as_str().unwrap().to_owned()
    }

    pub async fn ready_status(&self) -> Option<u16> {
        Some(HttpRequest::to(self.address, "GET", "/readyz").attempt().await.ok()?.status)
    }

    pub async fn wait_ready(&self) {
        self.wait_ready_status(200).await;
    }

    /// Waits until `/readyz` returns this status.
    pub async fn wait_ready_status(&self, status: u16) {
        eventually(&format!("/readyz of {} returns {status}", self.name), async || match self.ready_status().await {
            Some(said) if said == status => Ok(()),
            said => Err(format!("{said:?}")),
        })
        .await;
    }

    /// Body of `/admin/status`.
    pub async fn status(&self) -> Value {
        HttpRequest::to(self.address, "GET", "/admin/status").json().await.1
    }

    /// Process id.
    pub fn id(&self) -> u32 {
        self.child.as_ref().and_then(Child::id).expect("it runs")
    }
}

/// Polls an async condition every 20 ms; panics with its last error after [`TEST_TIMEOUT`].
pub async fn eventually(what: &str, mut holds: impl AsyncFnMut() -> Result<(), String>) {
    let deadline = tokio::time::Instant::now() + TEST_TIMEOUT;
    loop {
        let Err(why) = holds().await else { return };
        assert!(tokio::time::Instant::now() < deadline, "never: {what}: {why}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}
