//! The servers that the suite knows by heart, and what it says of each alone.

use std::collections::HashMap;
use std::process::Stdio;
use std::sync::Arc;

use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::{Child, Command};
use tokio::sync::{Mutex, OnceCell};

use super::verdict::{Suite, Verdict};
use crate::conformance::examples;
use crate::harness::PATIENCE;
use crate::peers::installed;

/// The SDK that a fixture is made with.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub enum Fixture {
    Rmcp,
    TypeScript,
}

/// Which eras it serves.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub enum Shape {
    Both,
    Handshake,
    PerRequest,
}

/// A program and its arguments.
pub type Line = (String, Vec<String>);

/// A server in a process of its own, which ends with this.
pub struct Served {
    pub url: String,
    _child: Child,
}

impl Fixture {
    pub fn name(self) -> &'static str {
        match self {
            Self::Rmcp => "rmcp",
            Self::TypeScript => "typescript",
        }
    }

    /// How it is started.
    pub async fn line(self, transport: &str, shape: Shape) -> Line {
        let arguments = vec![transport.to_owned(), shape.name().to_owned()];
        match self {
            Self::Rmcp => (text(examples("conformance_server").join("conformance_server")), arguments),
            Self::TypeScript => script("conformance.mjs", arguments).await,
        }
    }

    /// What the suite says of it over HTTP, with nothing in between. Found out once.
    pub async fn alone(self, shape: Shape, suite: Suite) -> Arc<Verdict> {
        type Known = HashMap<(Fixture, Shape, &'static str), Arc<OnceCell<Arc<Verdict>>>>;
        static KNOWN: Mutex<Option<Known>> = Mutex::const_new(None);
        let cell = {
            let mut known = KNOWN.lock().await;
            Arc::clone(known.get_or_insert_default().entry((self, shape, suite.revision)).or_default())
        };
        let run = async {
            // The suite waits for some things by the clock, so on a busy machine one run may fail.
            let mut verdict = suite.run(&Served::start(self.line("http", shape).await).await.url).await;
            if !verdict.passed {
                verdict = suite.run(&Served::start(self.line("http", shape).await).await.url).await;
            }
            Arc::new(verdict)
        };
        Arc::clone(cell.get_or_init(|| run).await)
    }
}

impl Shape {
    /// What the fixtures call it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Both => "both",
            Self::Handshake => "handshake",
            Self::PerRequest => "modern",
        }
    }
}

fn text(path: std::path::PathBuf) -> String {
    path.to_str().unwrap().to_owned()
}

/// One of the scripts for Node.
pub async fn script(name: &str, arguments: Vec<String>) -> Line {
    let place = tokio::task::spawn_blocking(installed).await.unwrap();
    let script = text(place.join("node").join(name));
    (text(place.join("node/node_modules/.bin/node")), [vec![script], arguments].concat())
}

impl Served {
    /// Starts a server, and waits until it says where it listens: a URL, or a port.
    pub async fn start((program, arguments): Line) -> Self {
        let mut command = Command::new(&program);
        command.args(&arguments).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null()).kill_on_drop(true);
        let mut child = command.spawn().unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let line = tokio::time::timeout(PATIENCE, lines.next_line()).await.expect("it listens in time").unwrap();
        let line = line.unwrap_or_else(|| panic!("{program} {arguments:?} ended before it listened"));
        let place = line.strip_prefix("listening on ").unwrap();
        let url = match place.parse::<u16>() {
            Ok(port) => format!("http://127.0.0.1:{port}/mcp"),
            Err(_) => place.to_owned(),
        };
        Self { url, _child: child }
    }
}
