//! Nodes that are processes of their own, a Redis that they share, and servers behind them in the test's hands.

use std::net::{SocketAddr, TcpListener};
use std::path::PathBuf;
use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;

use rialto::mcp_client::Target;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::Child;

use super::balancer::Balancer;
use crate::harness::{PATIENCE, Sending};
use crate::process::rialto;
use crate::puppet::{Offers, Puppet, Speaks, tool};
use crate::redis::{Program, Server};

/// How long a node may be silent.
pub const LEASE: Duration = Duration::from_secs(2);

/// How much of each node's log is shown when a test fails.
const LOG_LINES: usize = 300;

/// Nodes, their store and their servers.
pub struct Fleet {
    pub store: Server,
    pub nodes: Vec<Node>,
    pub balancer: Arc<Balancer>,
    /// A server over HTTP that keeps sessions.
    pub web: Arc<Puppet>,
    /// One that runs as a child.
    pub kid: Arc<Puppet>,
    folder: PathBuf,
}

/// One node.
pub struct Node {
    pub name: String,
    pub address: SocketAddr,
    store: String,
    config: PathBuf,
    log: PathBuf,
    child: Option<Child>,
    /// It was killed once, and could not clear up.
    killed: bool,
}

// === impl Fleet ===

impl Fleet {
    /// As many nodes as there are names, all ready.
    pub async fn start(names: &[&str]) -> Self {
        let store = Server::start(Program::Redis).await;
        let url = store.url();
        Self::with(store, names, |_| url.clone()).await.ready().await
    }

    pub async fn three() -> Self {
        Self::start(&["a", "b", "c"]).await
    }

    /// Nodes that find the store where `url` says, and may not be ready.
    pub async fn with(store: Server, names: &[&str], url: impl Fn(&str) -> String) -> Self {
        let web = Arc::new(Puppet::start("web", Speaks::Http).await);
        let kid = Arc::new(Puppet::with("kid", Speaks::Stdio, one_tool).await);
        let mut id = [0; 8];
        getrandom::fill(&mut id).unwrap();
        let folder = std::env::temp_dir().join(format!("rialto-nodes-{:016x}", u64::from_be_bytes(id)));
        std::fs::create_dir_all(&folder).unwrap();
        let config = folder.join("rialto.toml");
        std::fs::write(&config, configuration(&web, &kid)).unwrap();
        let mut nodes = Vec::new();
        for name in names {
            nodes.push(Node::start(name, url(name), config.clone(), folder.join(format!("{name}.log"))).await);
        }
        let balancer = Balancer::new(nodes.iter().map(|node| node.address).collect());
        Self { store, nodes, balancer, web, kid, folder }
    }

    async fn ready(self) -> Self {
        for node in &self.nodes {
            node.ready().await;
        }
        self
    }

    /// Waits until nothing is left of clients that have gone, and that the store has no key but those
    /// that it may have then.
    pub async fn settle(&self) {
        for node in &self.nodes {
            eventually(&format!("{} has no session", node.name), async || {
                let status = node.status().await;
                let busy = |key: &str| status[key].as_u64() != Some(0);
                match status["sessions"].as_array().is_some_and(Vec::is_empty)
                    && !busy("calls_in_flight")
                    && !busy("parked_calls")
                {
                    true => Ok(()),
                    false => Err(status.to_string()),
                }
            })
            .await;
        }
        // A session of HTTP+SSE that died with its node is forgotten after a while.
        let killed = self.nodes.iter().any(|node| node.killed);
        eventually("the store has no session", async || {
            let lives = self.store.lives_of_what_is_there().await;
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
        // What is left of children is what each node lists their tools with.
        eventually("no child is lent", async || {
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

    /// Stops all nodes in order; no child is left.
    pub async fn end(mut self) {
        for node in &mut self.nodes {
            node.terminate();
        }
        for node in &mut self.nodes {
            assert_eq!(node.ended().await, Some(0), "{}", node.name);
        }
        crate::children::gone(&self.kid.marker()).await;
    }

    /// The node of that name.
    pub fn node(&self, name: &str) -> &Node {
        self.nodes.iter().find(|node| node.name == name).unwrap()
    }

    /// The same, to do something to it.
    pub fn node_mut(&mut self, name: &str) -> &mut Node {
        self.nodes.iter_mut().find(|node| node.name == name).unwrap()
    }

    /// How many sessions of Streamable HTTP live on all nodes.
    pub async fn sessions(&self) -> u64 {
        let mut sum = 0;
        for node in &self.nodes {
            let status = node.status().await;
            let alike = status["sessions"].as_array().unwrap().iter().filter(|alike| alike["transport"] == "http");
            sum += alike.map(|alike| alike["count"].as_u64().unwrap()).sum::<u64>();
        }
        sum
    }

    /// Waits until there are that many.
    pub async fn has(&self, sessions: u64) {
        eventually("every session lives once", async || match self.sessions().await {
            found if found == sessions => Ok(()),
            found => Err(format!("{found} instead of {sessions}")),
        })
        .await;
    }
}

impl Drop for Fleet {
    fn drop(&mut self) {
        if std::thread::panicking() {
            for node in &self.nodes {
                let log = std::fs::read_to_string(&node.log).unwrap_or_default();
                let lines: Vec<&str> = log.lines().filter(|line| !line.contains("a call ended")).collect();
                println!("== {}\n{}", node.name, lines[lines.len().saturating_sub(LOG_LINES)..].join("\n"));
            }
            println!("== through the gate\n{}", super::gate::passed().join("\n"));
        }
        self.nodes.clear();
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

fn one_tool(offers: &mut Offers) {
    offers.capabilities = serde_json::json!({ "tools": { "listChanged": true } });
    offers.tools = vec![tool("kid")];
    offers.prompts.clear();
    offers.resources.clear();
    offers.templates.clear();
}

fn configuration(web: &Puppet, kid: &Puppet) -> String {
    let Target::Command(child) = kid.target() else { panic!("it is a child") };
    let quoted = |text: &str| serde_json::to_string(text).unwrap();
    let arguments: Vec<String> = child.arguments.iter().map(|argument| quoted(argument)).collect();
    format!(
        "[cluster]\nlease = \"{}s\"\ntimeout = \"1s\"\n\
        [limits]\nsse_retry = \"100ms\"\nsse_heartbeat = \"2s\"\nsse_after = \"250ms\"\n\
        elicitation_timeout = \"10s\"\n\
        [defaults]\nlease_idle_timeout = \"2s\"\nstop_timeout = \"500ms\"\n\
        [groups.default]\nnaming = \"plain\"\n\
        [servers.web]\nurl = \"http://{}/mcp\"\n\
        [servers.kid]\ncommand = {}\nargs = [{}]\nenv = {{ MARKER = {} }}\n",
        LEASE.as_secs(),
        web.address,
        quoted(&child.program),
        arguments.join(", "),
        quoted(&kid.marker()),
    )
}

/// A port that was free a moment ago.
pub fn free_port() -> u16 {
    TcpListener::bind(("127.0.0.1", 0)).unwrap().local_addr().unwrap().port()
}

// === impl Node ===

impl Node {
    /// Starts it on a port that is free; somebody may be there first.
    pub async fn start(name: &str, store: String, config: PathBuf, log: PathBuf) -> Self {
        let address = SocketAddr::from(([127, 0, 0, 1], 0));
        let mut node = Self { name: name.into(), address, store, config, log, child: None, killed: false };
        for _ in 0..20 {
            node.address.set_port(free_port());
            if node.again().await {
                return node;
            }
        }
        panic!("no port is free");
    }

    /// Starts it where it was before; false when it does not begin to serve.
    pub async fn again(&mut self) -> bool {
        let log = std::fs::File::options().create(true).append(true).open(&self.log).unwrap();
        let mut command = rialto();
        command.args(["serve", "--node", &self.name, "--store", &self.store, "--listen", &self.address.to_string()]);
        command.arg("--config").arg(&self.config);
        command.env("RIALTO_LOG", std::env::var("CLUSTER_LOG").unwrap_or_else(|_| "info".into()));
        command.env("RIALTO_SPOTLIGHT_MS", "300");
        let mut child = command.stdin(Stdio::null()).stderr(log).spawn().unwrap();
        let mut output = BufReader::new(child.stdout.take().unwrap());
        let mut line = String::new();
        tokio::time::timeout(PATIENCE, output.read_line(&mut line)).await.unwrap().unwrap();
        // Whoever wants to say more may do so.
        tokio::spawn(async move { tokio::io::copy(&mut output, &mut tokio::io::sink()).await });
        self.child = Some(child);
        line.contains("http://")
    }

    fn signal(&self, signal: Signal) {
        let child = self.child.as_ref().expect("it runs");
        let id = i32::try_from(child.id().expect("it runs")).unwrap();
        kill_process(Pid::from_raw(id).unwrap(), signal).unwrap();
    }

    /// Ends it at once.
    pub async fn kill(&mut self) {
        self.signal(Signal::KILL);
        self.killed = true;
        self.ended().await;
    }

    /// Asks it to stop.
    pub fn terminate(&mut self) {
        self.signal(Signal::TERM);
    }

    /// Halts it: its connections stay, and it does nothing.
    pub fn pause(&self) {
        self.signal(Signal::STOP);
    }

    pub fn resume(&self) {
        self.signal(Signal::CONT);
    }

    /// Waits for its end.
    pub async fn ended(&mut self) -> Option<i32> {
        let mut child = self.child.take().expect("it runs");
        tokio::time::timeout(PATIENCE, child.wait()).await.expect("an end in time").unwrap().code()
    }

    /// Whether it is there and says that it is ready.
    pub async fn is_ready(&self) -> Option<u16> {
        Some(Sending::to(self.address, "GET", "/readyz").attempt().await.ok()?.status)
    }

    pub async fn ready(&self) {
        self.says(200).await;
    }

    /// Waits until it says that it is ready, or not.
    pub async fn says(&self, status: u16) {
        eventually(&format!("{} says {status}", self.name), async || match self.is_ready().await {
            Some(said) if said == status => Ok(()),
            said => Err(format!("{said:?}")),
        })
        .await;
    }

    /// Everything that it holds.
    pub async fn status(&self) -> Value {
        Sending::to(self.address, "GET", "/admin/status").json().await.1
    }

    /// Its process.
    pub fn id(&self) -> u32 {
        self.child.as_ref().and_then(Child::id).expect("it runs")
    }
}

/// Waits until something holds; tells why not when it never does.
pub async fn eventually(what: &str, mut holds: impl AsyncFnMut() -> Result<(), String>) {
    let deadline = tokio::time::Instant::now() + PATIENCE;
    loop {
        let Err(why) = holds().await else { return };
        assert!(tokio::time::Instant::now() < deadline, "never: {what}: {why}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}
