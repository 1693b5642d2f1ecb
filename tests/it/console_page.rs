//! The console's page: its modules alone by Node, its types, and the whole page in Chromium, served by the binary.

use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::OnceLock;
use std::time::Duration;

use tokio::io::{AsyncBufReadExt, AsyncReadExt, BufReader};
use tokio::process::{Child, Command};

use crate::browser::install_chromium;
use crate::cluster::processes::{LEASE, Node};
use crate::harness::TEST_TIMEOUT;
use crate::peers::{self, source};
use crate::process::rialto;
use crate::redis::{RedisFlavor, RedisServer};

/// How long a file of tests by Node may take on a machine with other work, in a browser or not; each wait in it has a limit of
/// its own.
const BROWSER_TIMEOUT: Duration = Duration::from_secs(1800);

fn console_folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("console")
}

/// Installs what the tests of the page import.
fn install_packages() {
    static INSTALLED: OnceLock<()> = OnceLock::new();
    INSTALLED.get_or_init(|| {
        let folder = peers::installed();
        let setup =
            std::process::Command::new("bash").arg(source().join("setup.sh")).arg(folder).arg("console").status();
        assert!(setup.expect("bash runs").success(), "the packages could not be installed; see the output above");
    });
}

fn node() -> Command {
    let mut command = Command::new(peers::installed().join("node/node_modules/.bin/node"));
    command.kill_on_drop(true).stdin(Stdio::null()).current_dir(env!("CARGO_MANIFEST_DIR"));
    command
}

async fn succeeds(mut command: Command, limit: Duration) {
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let (mut output, mut errors) = (child.stdout.take().unwrap(), child.stderr.take().unwrap());
    let (mut said, mut complained) = (Vec::new(), Vec::new());
    let reading =
        async { tokio::join!(output.read_to_end(&mut said), errors.read_to_end(&mut complained), child.wait()).2 };
    let status = tokio::time::timeout(limit, reading).await;
    let text = [said, complained].map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).join("\n");
    assert!(matches!(&status, Ok(Ok(status)) if status.success()), "{status:?}: {text}");
}

/// A gateway with a runtime folder of its own, and the link that `rialto console` prints.
struct Served {
    _gateway: Child,
    folder: PathBuf,
    link: String,
}

impl Drop for Served {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

/// What a gateway of a test serves.
#[derive(Clone, Copy)]
enum Setting {
    /// The built-in server alone, without a file.
    Bare,
    /// Several servers: built in, the reference server, one that asks, one whose words are markup, one that is down, and one
    /// of the newest revision.
    Office,
    /// The same, where callers need credentials and some of them are operators.
    Guarded,
    /// The office without the server whose words are markup, for pictures.
    Pictures,
    /// A hundred servers, one of them with a thousand tools; ten thousand calls are kept.
    Large,
}

impl Setting {
    /// The configuration file, if there is one.
    fn file(self) -> Option<String> {
        let who = match self {
            Self::Bare => return None,
            Self::Large => return Some(large_file()),
            Self::Office | Self::Pictures => {
                "[admin.tokens]\neve = { token = \"token-of-eve-who-edits\", may = \"edit\" }\n"
            }
            Self::Guarded => {
                "principals = { look = [\"token:lou\"], act = [\"token:ann\"] }\n[access.tokens]\nlou = \
                 \"token-of-lou-who-looks\"\nann = \"token-of-ann-who-acts\"\nbob = \"token-of-bob-who-calls\"\n"
            }
        };
        let (peers, own) = (peers::installed().join("node"), own_servers());
        let servers = [
            ELEMENTS.to_owned(),
            server("everything", peers.join("everything.mjs"), "\"stdio\""),
            server("tickets", own.clone(), "\"tickets\""),
            if matches!(self, Self::Pictures) { String::new() } else { server("odd", own, "\"odd\"") },
            server("desk", peers.join("server2.mjs"), "\"stdio\", \"modern\""),
            "[servers.search]\nurl = \"http://127.0.0.1:1/mcp\"\n\n".to_owned(),
        ];
        let groups = "[groups.support]\nservers = [\"tickets\", \"elements\"]\n";
        Some(format!(
            "# Servers of an office.\nlisten = \"127.0.0.1:0\"\n\n[admin]\n{who}\n{}{groups}",
            servers.concat()
        ))
    }
}

/// Servers of [`Setting::Large`], of which the last has a thousand tools.
const LARGE_SERVERS: usize = 100;

fn large_file() -> String {
    let admin = "[admin]\nrecord = \"always\"\nrecord_bytes = \"256MiB\"\nrecord_rate = 1000000\n\n";
    let small = (1..LARGE_SERVERS).map(|n| format!("[servers.server{n}]\nbuiltin = \"elements\"\n\n"));
    let many = server("many", own_servers(), "\"many\"");
    format!("listen = \"127.0.0.1:0\"\n\n{admin}{}{many}", small.collect::<String>())
}

/// The built-in server in a file.
const ELEMENTS: &str = "[servers.elements]\nbuiltin = \"elements\"\n\n";

/// A server in a file that Node runs.
fn server(name: &str, script: PathBuf, arguments: &str) -> String {
    let node = peers::installed().join("node/node_modules/.bin/node");
    format!("[servers.{name}]\ncommand = {node:?}\nargs = [{script:?}, {arguments}]\n\n")
}

/// The script with the servers of these tests.
fn own_servers() -> PathBuf {
    console_folder().join("test/browser/servers.mjs")
}

/// The gateway, or another build of it where figures are taken.
fn gateway() -> Command {
    let Some(other) = std::env::var_os("RIALTO_BINARY") else { return rialto() };
    let mut command = Command::new(other);
    command.kill_on_drop(true).env_remove("RIALTO_LOG").stdin(Stdio::null()).stdout(Stdio::piped());
    command
}

async fn serve(name: &str, setting: Setting) -> Served {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("console-{name}-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let mut command = gateway();
    command.arg("serve").env("XDG_RUNTIME_DIR", &folder).stderr(Stdio::null());
    match setting.file() {
        Some(text) => {
            let file = folder.join("rialto.toml");
            std::fs::write(&file, text).unwrap();
            command.arg("--config").arg(file);
        }
        None => {
            command.args(["--listen", "127.0.0.1:0"]);
        }
    }
    let mut gateway = command.spawn().unwrap();
    let mut lines = BufReader::new(gateway.stdout.take().unwrap()).lines();
    tokio::time::timeout(TEST_TIMEOUT, lines.next_line()).await.unwrap().unwrap().expect("a first line");
    tokio::spawn(async move { while let Ok(Some(_)) = lines.next_line().await {} });
    let printed = rialto().arg("console").env("XDG_RUNTIME_DIR", &folder).output().await.unwrap();
    assert!(printed.status.success(), "{}", String::from_utf8_lossy(&printed.stderr));
    let link = String::from_utf8(printed.stdout).unwrap().trim().to_owned();
    assert!(link.contains("/console#key="), "{link}");
    Served { _gateway: gateway, folder, link }
}

async fn in_the_browser(arguments: &[&str]) {
    at_work(Setting::Bare, arguments).await;
}

/// Runs a script with a browser and a gateway.
async fn at_work(setting: Setting, arguments: &[&str]) {
    install_browser().await;
    let name = Path::new(arguments.last().unwrap()).file_stem().unwrap().to_string_lossy().into_owned();
    let served = serve(&name, setting).await;
    succeeds(script(&served.link, arguments), BROWSER_TIMEOUT).await;
}

async fn install_browser() {
    let install = || {
        install_packages();
        install_chromium();
    };
    tokio::task::spawn_blocking(install).await.unwrap();
}

/// Command that runs a script with a browser for the console at a link.
fn script(link: &str, arguments: &[&str]) -> Command {
    let mut command = node();
    command.args(arguments).env("RIALTO_LINK", link).env("CHROMIUM", peers::installed().join("chromium"));
    command
}

#[tokio::test]
async fn modules_without_a_document_and_the_budgets_of_files() {
    tokio::task::spawn_blocking(peers::installed).await.unwrap();
    let mut command = node();
    let tests = ["files", "json", "lines", "query", "relays", "rest", "turns"];
    command.arg("--test").args(tests.map(|name| format!("console/test/pure/{name}.test.js")));
    succeeds(command, BROWSER_TIMEOUT).await;
}

#[tokio::test]
async fn types_are_those_of_the_api_and_hold_everywhere() {
    tokio::task::spawn_blocking(install_packages).await.unwrap();
    let mut made = node();
    made.args(["console/test/types.mjs", "--check", "src/console/openapi.json", "console/types.d.ts"]);
    succeeds(made, BROWSER_TIMEOUT).await;
    let mut checked = node();
    checked.arg(console_folder().join("test/node_modules/typescript/bin/tsc")).args(["-p", "console/tsconfig.json"]);
    succeeds(checked, BROWSER_TIMEOUT).await;
}

#[tokio::test]
async fn files_are_formatted_and_functions_short() {
    tokio::task::spawn_blocking(install_packages).await.unwrap();
    let mut command = node();
    command.args(["--test", "console/test/format.test.js"]);
    succeeds(command, BROWSER_TIMEOUT).await;
}

#[tokio::test]
async fn the_key_other_origins_and_the_wire() {
    in_the_browser(&["--test", "console/test/browser/access.test.js"]).await;
}

#[tokio::test]
async fn every_page_in_its_states_and_both_schemes() {
    in_the_browser(&["--test", "console/test/browser/pages.test.js"]).await;
}

#[tokio::test]
async fn jobs_by_keyboard_narrow_windows_and_forced_colours() {
    in_the_browser(&["--test", "console/test/browser/keyboard.test.js"]).await;
}

#[tokio::test]
async fn events_and_nodes_that_answer_late_or_not_at_all() {
    in_the_browser(&["--test", "console/test/browser/events.test.js"]).await;
}

#[tokio::test]
async fn pages_show_what_really_happens() {
    at_work(Setting::Office, &["--test", "console/test/browser/real.test.js"]).await;
}

#[tokio::test]
async fn tools_are_tried_and_calls_made_again() {
    at_work(Setting::Office, &["--test", "console/test/browser/try.test.js"]).await;
}

#[tokio::test]
async fn words_of_servers_are_text() {
    at_work(Setting::Office, &["--test", "console/test/browser/odd.test.js"]).await;
}

#[tokio::test]
async fn reading_is_not_disturbed_and_addresses_restore_everything() {
    at_work(Setting::Office, &["--test", "console/test/browser/reading.test.js"]).await;
}

#[tokio::test]
async fn focus_is_seen_and_never_lost() {
    at_work(Setting::Office, &["--test", "console/test/browser/focus.test.js"]).await;
}

#[tokio::test]
async fn callers_sign_in_with_their_own_credentials() {
    at_work(Setting::Guarded, &["--test", "console/test/browser/signin.test.js"]).await;
}

#[tokio::test]
async fn two_nodes_are_shown_and_one_that_is_killed_is_greyed() {
    install_browser().await;
    let store = RedisServer::start(RedisFlavor::Redis).await;
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("console-nodes-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let file = folder.join("rialto.toml");
    let tickets = server("tickets", own_servers(), "\"tickets\"");
    let cluster = format!("[cluster]\nlease = \"{}s\"\ntimeout = \"1s\"\n\n", LEASE.as_secs());
    std::fs::write(&file, format!("{cluster}{ELEMENTS}{tickets}")).unwrap();
    let start = |name: &'static str| Node::start(name, store.url(), file.clone(), folder.join(format!("{name}.log")));
    let (a, b) = (start("a").await, start("b").await);
    for node in [&a, &b] {
        node.wait_ready().await;
    }
    let link = format!("http://{}/console#key={}", a.address, a.console_key().await);
    let mut command = script(&link, &["--test", "console/test/browser/cluster.test.js"]);
    command.env("RIALTO_OTHER", format!("http://{}", b.address)).env("RIALTO_OTHER_PID", b.id().to_string());
    succeeds(command, BROWSER_TIMEOUT).await;
    std::fs::remove_dir_all(&folder).unwrap();
}

#[tokio::test]
#[ignore = "makes pictures to look at: just screenshots"]
async fn screenshots() {
    at_work(Setting::Pictures, &["console/test/browser/screenshots.mjs", "target/screenshots"]).await;
}

#[tokio::test]
#[ignore = "takes figures of a release-like build: just bench-console"]
async fn figures() {
    install_browser().await;
    let served = serve("figures", Setting::Large).await;
    let mut command = script(&served.link, &["console/test/browser/bench.mjs"]);
    let status = tokio::time::timeout(BROWSER_TIMEOUT, command.status()).await.expect("it ends in time").unwrap();
    assert!(status.success());
}
