//! Nodes of Rialto, alone or with a store in common.

use std::net::SocketAddr;
use std::path::Path;
use std::time::{Duration, Instant};

use serde_json::Value;
use tokio::process::Command;

use crate::Failure;
use crate::client::{Connection, Era, ToolCall};
use crate::folder::Folder;
use crate::process::Server;
use crate::store::Store;
use crate::upstream::{self, ToolSet};

/// What is called.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Backend {
    /// The server that is built in: what a node does itself, and nothing else.
    Elements,
    /// A server that has its answers ready, over HTTP.
    Http,
}

/// How long a node may take until it is part of its cluster.
const JOIN: Duration = Duration::from_secs(30);
/// How long a node may be silent, unless that is what is measured.
pub(crate) const LEASE: Duration = Duration::from_secs(6);
/// The built-in server's look-up.
pub(crate) const LOOK_UP: ToolCall =
    ToolCall { tool: "getElement", arguments: r#"{"name":"H"}"#, answer: "Hydrogen".as_bytes(), length: None };

impl Backend {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Elements => "built in",
            Self::Http => "HTTP",
        }
    }

    pub(crate) fn tool_call(self) -> ToolCall<'static> {
        match self {
            Self::Elements => LOOK_UP,
            Self::Http => upstream::SUBJECT,
        }
    }

    /// The lines of a configuration that name it, and the server itself where it is one.
    pub(crate) async fn start(self, era: Era) -> Result<(String, Option<Server>), Failure> {
        if self == Self::Elements {
            return Ok((String::new(), None));
        }
        let server = upstream::start(era, &ToolSet::of(&[100])).await?;
        let revision = era.revision();
        let lines =
            format!("\n[servers.upstream]\nurl = \"http://{}/mcp\"\nrevision = \"{revision}\"\n", server.address);
        Ok((lines, Some(server)))
    }
}

/// A node, and the folder of its file.
pub(crate) struct Node {
    pub(crate) server: Server,
    _folder: Folder,
}

impl Node {
    /// Starts a node that keeps everything in its memory, of this build or of another.
    pub(crate) async fn alone(name: &str, servers: &str, build: Option<&Path>) -> Result<Self, Failure> {
        let program = build.map_or_else(Server::rialto, Command::new);
        Self::start(program, name, None, servers).await
    }

    /// Starts a node with a store, and waits until it is part of the cluster.
    pub(crate) async fn of(name: &str, store: &Store, lease: Duration, servers: &str) -> Result<Self, Failure> {
        let cluster = format!("[cluster]\nnode = \"{name}\"\nlease = \"{}ms\"\n", lease.as_millis());
        let node = Self::start(Server::rialto(), name, Some(&store.url()), &format!("{cluster}{servers}")).await?;
        let begin = Instant::now();
        while node.status().await?["cluster"]["store_connected"] != true {
            if begin.elapsed() > JOIN {
                return Err(format!("the node {name} does not become part of its cluster").into());
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        Ok(node)
    }

    async fn start(mut program: Command, name: &str, store: Option<&str>, rest: &str) -> Result<Self, Failure> {
        let folder = Folder::new(name)?;
        let store = store.map(|url| format!("store = \"{url}\"\n")).unwrap_or_default();
        let text = format!("listen = \"127.0.0.1:0\"\n{store}\n[log]\nfilter = \"error\"\n\n{rest}");
        let file = folder.write("rialto.toml", &text)?;
        program.args(["serve", "--log", "warn", "--config"]).arg(file);
        Ok(Self { server: Server::start(program).await?, _folder: folder })
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.server.address
    }

    /// What it says of itself.
    pub(crate) async fn status(&self) -> Result<Value, Failure> {
        let mut connection = Connection::open(self.address()).await?;
        Ok(serde_json::from_slice(&connection.get("/admin/status").await?)?)
    }

    /// How often it has asked the store something; never, when it is alone.
    pub(crate) async fn round_trips(&self) -> Result<u64, Failure> {
        Ok(self.status().await?["cluster"]["store_commands"].as_u64().unwrap_or(0))
    }
}

/// Opens sessions over one connection, which is closed afterwards.
pub(crate) async fn open_sessions(node: &Node, count: usize) -> Result<Vec<String>, Failure> {
    let mut connection = Connection::open(node.address()).await?;
    let mut ids = Vec::with_capacity(count);
    for _ in 0..count {
        ids.push(connection.handshake().await?.ok_or("the server opened no session")?);
    }
    Ok(ids)
}
