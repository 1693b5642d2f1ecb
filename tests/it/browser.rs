//! Chromium, driven by a script under `tests/peers/node` that uses `browser.mjs`. Both are installed on first use.

use std::process::Stdio;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use parking_lot::Mutex;
use serde_json::Value;
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader, Lines};
use tokio::process::{Child, ChildStdin, ChildStdout};

use crate::peers::{self, source};

/// How long a script may take to start, or for one plan. A browser starts slowly on a machine with other work.
const SCRIPT_TIMEOUT: Duration = Duration::from_secs(120);

/// A running script with a browser: it prints `listening on ORIGIN`, then answers each line of JSON with one. It ends, and
/// the browser with it, when it is stopped.
pub struct BrowserScript {
    /// Origin of the pages that the script serves, or what else it prints there.
    pub origin: String,
    child: Child,
    plans: ChildStdin,
    reports: Lines<BufReader<ChildStdout>>,
    /// What the script and its pages complain of, to be shown where a test fails.
    complaints: Arc<Mutex<Vec<String>>>,
}

/// Installs Chromium and the packages that drive it.
pub fn install_chromium() {
    static INSTALLED: OnceLock<()> = OnceLock::new();
    INSTALLED.get_or_init(|| {
        let folder = peers::installed();
        let status =
            std::process::Command::new("bash").arg(source().join("setup.sh")).arg(folder).arg("chromium").status();
        assert!(status.expect("bash runs").success(), "chromium could not be installed; see the output above");
    });
}

impl BrowserScript {
    pub async fn start(script: &str) -> Self {
        tokio::task::spawn_blocking(install_chromium).await.unwrap();
        let mut command = peers::script("node/node_modules/.bin/node", script);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let plans = child.stdin.take().unwrap();
        let reports = BufReader::new(child.stdout.take().unwrap()).lines();
        let mut errors = BufReader::new(child.stderr.take().unwrap()).lines();
        let complaints = Arc::new(Mutex::new(Vec::new()));
        let recorded = Arc::clone(&complaints);
        tokio::spawn(async move {
            while let Ok(Some(line)) = errors.next_line().await {
                recorded.lock().push(line);
            }
        });
        let mut browser = Self { origin: String::new(), child, plans, reports, complaints };
        let line = browser.next_line().await;
        browser.origin = line.strip_prefix("listening on ").unwrap_or_else(|| panic!("{line}")).to_owned();
        browser
    }

    async fn next_line(&mut self) -> String {
        match tokio::time::timeout(SCRIPT_TIMEOUT, self.reports.next_line()).await {
            Ok(Ok(Some(line))) => line,
            other => panic!("no line of the script: {other:?}\n{}", self.complaints.lock().join("\n")),
        }
    }

    /// Has the script carry out a plan, and returns its report.
    pub async fn carry_out(&mut self, plan: &Value) -> Value {
        self.plans.write_all(format!("{plan}\n").as_bytes()).await.unwrap();
        let report = self.next_line().await;
        serde_json::from_str(&report).unwrap_or_else(|error| panic!("{error}: {report}"))
    }

    /// Lets the script close the browser.
    pub async fn stop(mut self) {
        drop(self.plans);
        let ended = tokio::time::timeout(SCRIPT_TIMEOUT, self.child.wait()).await.expect("the browser ends in time");
        assert!(ended.unwrap().success());
    }
}
