//! HTTP+SSE load client: its stream is at one node, its POSTs go to any.

use std::sync::Arc;

use serde_json::{Value, json};

use super::balancer::RETRY_DELAY;
use super::change_ledger::tools_version_in;
use super::load_clients::{initialize_request, post};
use super::load_driver::{CallKind, CallLedger, CallOutcome, ClientKind, reply};
use crate::harness::{Events, HttpRequest, notification, request};

/// Open stream and the endpoint for messages.
struct SseClient<'b> {
    ledger: &'b CallLedger,
    stream: Events,
    endpoint: String,
    /// A list-changed notification arrived since the last `tools/list`.
    changed: bool,
    asked: u64,
}

impl<'b> SseClient<'b> {
    /// Opens a stream and a session; `None` when the stream breaks.
    async fn open(ledger: &'b CallLedger) -> Option<Self> {
        let opening = |node| HttpRequest::to(node, "GET", "/sse").header("accept", "text/event-stream");
        let mut stream = ledger.balancer.send_until_accepted(opening).await.ok()?.events();
        let endpoint = stream.next().await?.data;
        let mut client = Self { ledger, stream, endpoint, changed: false, asked: 0 };
        client.post_message(&initialize_request("2024-11-05")).await.ok()?;
        while client.stream.message().await?["id"] != "init" {}
        client.post_message(&notification("notifications/initialized", json!({}))).await.ok()?;
        let tools = client.tools().await?;
        ledger.changes.add_listener(&client.endpoint, false, tools);
        Some(client)
    }

    /// Version of the tools list; `None` when the stream breaks.
    async fn tools(&mut self) -> Option<u64> {
        self.asked += 1;
        let id = json!(format!("list-{}", self.asked));
        self.post_message(&request(id.clone(), "tools/list", json!({}))).await.ok()?;
        loop {
            let message = self.stream.message().await?;
            match message["method"].as_str() {
                Some("notifications/tools/list_changed") => self.changed = true,
                Some(other) => panic!("{other}: {message}"),
                // A failed list makes the client open another session.
                None if message["id"] == id => return message.get("result").map(tools_version_in),
                None => {}
            }
        }
    }

    /// Reads the tools list if it may have changed; `None` when the stream breaks.
    async fn refresh_tools(&mut self) -> Option<()> {
        while std::mem::take(&mut self.changed) {
            let tools = self.tools().await?;
            self.ledger.changes.record_list(&self.endpoint, tools);
        }
        Some(())
    }

    /// Waits for a list-changed notification and reads the list; `None` when the stream breaks.
    async fn wait_list_changed(&mut self) -> Option<()> {
        self.refresh_tools().await?;
        let message = self.stream.message().await?;
        assert_eq!(message["method"], "notifications/tools/list_changed", "{message}");
        self.changed = true;
        self.refresh_tools().await
    }

    /// POSTs a message; returns the status (0 when the outcome is unknown) and the error when it was not accepted.
    async fn post_message(&self, body: &Value) -> Result<(), (u16, String)> {
        let posted = self.ledger.balancer.send_until_accepted(|node| post(node, &self.endpoint, body)).await;
        let received = posted.map_err(|why| (0, why))?;
        match received.status {
            202 => Ok(()),
            status @ (200 | 404 | 502) => {
                let text = received.try_text().await.map_err(|broken| (status, format!("{broken:?}")))?;
                let answer: Value = serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}: {text}"));
                Err((status, answer["error"].to_string()))
            }
            other => panic!("{other}"),
        }
    }

    /// Makes a call; `None` when the session had already ended.
    async fn call(&mut self, number: u64, call_kind: CallKind) -> Option<CallOutcome> {
        match self.post_message(&request(number, "tools/call", call_kind.params(number))).await {
            Ok(()) => {}
            Err((404, _)) => return None,
            Err((_, why)) => return Some(CallOutcome::Failed(why)),
        }
        let mut progress = 0;
        loop {
            let Some(message) = self.stream.message().await else {
                return Some(CallOutcome::Failed("the stream broke".into()));
            };
            match message["method"].as_str() {
                Some("notifications/progress") => {
                    progress += 1;
                    assert_eq!(message["params"]["progress"], progress, "{number} in order, without a gap");
                }
                Some("elicitation/create") => {
                    let answer = json!({ "jsonrpc": "2.0", "id": message["id"], "result": reply(&message["params"]) });
                    // Retries until a node accepts it; a broken stream is noticed by the next read.
                    while !matches!(self.post_message(&answer).await, Ok(()) | Err((404, _))) {
                        tokio::time::sleep(RETRY_DELAY).await;
                    }
                }
                Some("notifications/tools/list_changed") => self.changed = true,
                Some(other) => panic!("{other}: {message}"),
                None => return Some(call_kind.check_response(number, &message)),
            }
        }
    }
}

pub async fn run(ledger: Arc<CallLedger>, client_index: usize) {
    let mut rng = ledger.rng(client_index);
    let mut client = opened(&ledger).await;
    let mut made = 0;
    while ledger.wants_another_call(made) {
        let (number, call_kind) = ledger.begin(ClientKind::Sse, &mut rng);
        let outcome = loop {
            match client.call(number, call_kind).await {
                Some(outcome) => break outcome,
                None => client = opened(&ledger).await,
            }
        };
        if outcome != CallOutcome::Answered || client.refresh_tools().await.is_none() {
            client = opened(&ledger).await;
        }
        ledger.end(client_index, number, outcome);
        made += 1;
    }
    let listening = async {
        loop {
            if client.wait_list_changed().await.is_none() {
                client = opened(&ledger).await;
            }
        }
    };
    tokio::select! {
        () = listening => {}
        () = ledger.wait_until_all_done() => {}
    }
}

impl Drop for SseClient<'_> {
    fn drop(&mut self) {
        self.ledger.changes.remove_listener(&self.endpoint);
    }
}

async fn opened(ledger: &CallLedger) -> SseClient<'_> {
    loop {
        if let Some(client) = SseClient::open(ledger).await {
            return client;
        }
        tokio::time::sleep(RETRY_DELAY).await;
    }
}
