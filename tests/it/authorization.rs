//! Authorization as a whole: a gateway with a configuration file, authorization servers and clients of others.

mod binding;
mod clients;
mod policy;
mod rust_client;
mod scopes;
mod secrets;
mod tokens;
mod web_page;

use std::sync::atomic::{AtomicUsize, Ordering};

use rialto::app::AppSettings;
use serde_json::json;

use crate::authorization_server::AuthorizationServer;
use crate::config::TempFolder;
use crate::harness::{HttpResponse, Rialto, initialize, request};

/// What people ask for when they log in.
const SCOPE: &str = "openid offline_access mcp:read";

/// A gateway that serves a file.
struct Configured {
    rialto: Rialto,
    folder: TempFolder,
}

impl Configured {
    /// Serves the built-in server to callers with tokens of the given issuers.
    async fn start(name: &str, text: &str) -> Self {
        Self::with(name, text, |_| {}).await
    }

    /// Like [`Self::start`], with settings that no file has.
    async fn with(name: &str, text: &str, change: impl FnOnce(&mut AppSettings)) -> Self {
        static STARTED: AtomicUsize = AtomicUsize::new(0);
        // Tests that share a name run at the same time.
        let folder = TempFolder::new(&format!("authorization-{name}-{}", STARTED.fetch_add(1, Ordering::Relaxed)));
        folder.write("rialto.toml", &file(text));
        let rialto = Rialto::from_file(&folder.0.join("rialto.toml"), change).await;
        Self { rialto, folder }
    }

    /// Replaces the file while it is served.
    fn rewrite(&self, text: &str) {
        self.folder.write("rialto.toml", &file(text));
    }

    /// The address for which tokens are asked.
    fn resource(&self) -> String {
        self.rialto.url("/mcp")
    }

    /// Principals of all sessions.
    fn principals(&self) -> Vec<String> {
        let sessions = self.rialto.inbound.sessions.all();
        sessions.iter().map(|session| session.identity().principal.to_string()).collect()
    }

    /// Tries to open a session.
    async fn initialize(&self, token: &str) -> HttpResponse {
        let sending = self.rialto.post("/mcp", &initialize("2025-11-25"));
        sending.header("authorization", &bearer(token)).go().await
    }

    /// Status of a call of the per-request era.
    async fn status(&self, token: &str) -> u16 {
        let params = json!({ "name": "getElement", "arguments": { "name": "金" } });
        let sending = self.rialto.modern("tools/call", params).header("mcp-param-name", "=?base64?6YeR?=");
        sending.header("authorization", &bearer(token)).status().await
    }
}

fn file(text: &str) -> String {
    format!("listen = \"127.0.0.1:0\"\nworkers = 1\n\n[access]\nscopes = [\"mcp:read\"]\n\n{text}")
}

/// The table of an issuer with signed tokens, whose clock is ours.
fn issuer(name: &str, server: &AuthorizationServer) -> String {
    format!("[access.issuers.{name}]\nissuer = \"{}\"\nleeway = \"0s\"\n", server.issuer)
}

fn bearer(token: &str) -> String {
    format!("Bearer {token}")
}

fn ping() -> serde_json::Value {
    request(1, "ping", json!({}))
}

/// The value of a parameter of a challenge.
fn parameter(response: &HttpResponse, name: &str) -> Option<String> {
    let challenge = response.header("www-authenticate").expect("a challenge");
    let (_, rest) = challenge.split_once(&format!("{name}=\""))?;
    Some(rest.split('"').next()?.to_owned())
}
