//! The fixture servers of the conformance suite, and the suite's verdict on each without the gateway.

use std::collections::HashMap;
use std::process::Stdio;
use std::sync::Arc;

use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::{Child, Command};
use tokio::sync::{Mutex, OnceCell};

use super::verdict::{Suite, Verdict};
use crate::conformance::examples;
use crate::harness::TEST_TIMEOUT;
use crate::peers::installed;
use crate::servers::PYTHON_CONFORMANCE;

/// The SDK of a fixture.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub enum Fixture {
    Rmcp,
    TypeScript,
    /// The Python SDK's own server for the suite; it always speaks both eras.
    Python,
}

/// The eras that a fixture serves.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub enum Shape {
    Both,
    Handshake,
    PerRequest,
}

/// A program and its arguments.
pub type CommandLine = (String, Vec<String>);

/// A server process, killed on drop.
pub struct Served {
    pub url: String,
    _child: Child,
}

impl Fixture {
    pub fn name(self) -> &'static str {
        match self {
            Self::Rmcp => "rmcp",
            Self::TypeScript => "typescript",
            Self::Python => "python",
        }
    }

    /// The command that starts the fixture.
    pub async fn command_line(self, transport: &str, shape: Shape) -> CommandLine {
        let arguments = vec![transport.to_owned(), shape.name().to_owned()];
        match self {
            Self::Rmcp => (text(examples("conformance_server").join("conformance_server")), arguments),
            Self::TypeScript => script("conformance.mjs", arguments).await,
            Self::Python => {
                assert!(shape == Shape::Both, "the server speaks both eras");
                let port = (transport == "http").then_some("0");
                PYTHON_CONFORMANCE.command(&[Some(transport), port].into_iter().flatten().collect::<Vec<_>>()).await
            }
        }
    }

    /// The suite's verdict over HTTP without the gateway; cached.
    pub async fn verdict_alone(self, shape: Shape, suite: Suite) -> Arc<Verdict> {
        type Known = HashMap<(Fixture, Shape, &'static str), Arc<OnceCell<Arc<Verdict>>>>;
        static KNOWN: Mutex<Option<Known>> = Mutex::const_new(None);
        let cell = {
            let mut known = KNOWN.lock().await;
            Arc::clone(known.get_or_insert_default().entry((self, shape, suite.revision)).or_default())
        };
        let run = async {
            // Some scenarios depend on timing, so one run may fail on a busy machine.
            let mut verdict = suite.run(&Served::start(self.command_line("http", shape).await).await.url).await;
            if !verdict.passed {
                verdict = suite.run(&Served::start(self.command_line("http", shape).await).await.url).await;
            }
            Arc::new(verdict)
        };
        Arc::clone(cell.get_or_init(|| run).await)
    }
}

impl Shape {
    /// The command-line argument of the fixtures.
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

/// The command that runs a Node script.
pub async fn script(name: &str, arguments: Vec<String>) -> CommandLine {
    let place = tokio::task::spawn_blocking(installed).await.unwrap();
    let script = text(place.join("node").join(name));
    (text(place.join("node/node_modules/.bin/node")), [vec![script], arguments].concat())
}

impl Served {
    /// Starts a server and waits for its `listening on` line with a URL or a port.
    pub async fn start((program, arguments): CommandLine) -> Self {
        let mut command = Command::new(&program);
        command.args(&arguments).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null()).kill_on_drop(true);
        let mut child = command.spawn().unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let line =
            tokio::time::timeout(TEST_TIMEOUT, lines.next_line()).await.expect("the server listens in time").unwrap();
        let line = line.unwrap_or_else(|| panic!("{program} {arguments:?} ended before it listened"));
        let place = line.strip_prefix("listening on ").unwrap();
        let url = match place.parse::<u16>() {
            Ok(port) => format!("http://127.0.0.1:{port}/mcp"),
            Err(_) => place.to_owned(),
        };
        Self { url, _child: child }
    }
}
