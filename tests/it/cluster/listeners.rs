//! Listening clients of the load test.

use std::collections::HashSet;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use serde_json::{Value, json};

use super::balancer::{RETRY_DELAY, RoundRobinBalancer};
use super::change_ledger::{ChangeLedger, tools_version_in};
use super::load_clients::{Session, describe, post};
use super::load_driver::{CallLedger, RESOURCE};
use super::processes::eventually;
use crate::harness::modern;

/// Listens until the session ends; resumes at another node whenever the stream breaks.
pub async fn listen(changes: Arc<ChangeLedger>, session: Session) {
    let mut last: Option<String> = None;
    let mut seen = HashSet::new();
    loop {
        let received = session.balancer.send_until_accepted(|node| session.get(node, last.as_deref())).await;
        match received {
            Ok(received) if received.status == 200 => {
                let mut stream = received.events();
                if last.is_none() {
                    let Some(tools) = tools(&session).await else { break };
                    changes.add_listener(&session.id, true, tools);
                }
                while let Some(event) = stream.next().await {
                    let message = (!event.data.is_empty()).then(|| serde_json::from_str::<Value>(&event.data).unwrap());
                    if let Some(id) = event.id {
                        assert!(message.is_none() || seen.insert(id.clone()), "{id} comes twice");
                        last = Some(id);
                    }
                    let Some(message) = message else { continue };
                    if !handle_notification(&changes, &session, &message).await {
                        break;
                    }
                }
            }
            Ok(received) if received.status == 404 => break,
            Ok(received) if received.status != 502 => panic!("{last:?}: {}", describe(received).await),
            _ => {}
        }
        tokio::time::sleep(RETRY_DELAY / 4).await;
    }
    changes.remove_listener(&session.id);
}

/// Handles a notification; false when the session has ended.
async fn handle_notification(changes: &ChangeLedger, session: &Session, message: &Value) -> bool {
    match message["method"].as_str() {
        Some("notifications/resources/updated") => {
            changes.record_update(&session.id, message["params"]["_meta"]["number"].as_u64());
        }
        Some("notifications/tools/list_changed") => match tools(session).await {
            Some(tools) => changes.record_list(&session.id, tools),
            None => return false,
        },
        _ => panic!("{message}"),
    }
    true
}

/// Version of the tools that a session lists; `None` when the session has ended.
async fn tools(session: &Session) -> Option<u64> {
    Some(tools_version_in(&session.result_of("tools/list", json!({})).await?))
}

/// Listens with `subscriptions/listen` until the clients leave. After a reconnect it reads the lists again.
pub async fn listen_per_request(ledger: Arc<CallLedger>, client_index: usize) {
    let who = format!("listener {client_index}");
    tokio::select! {
        () = hear_per_request(&ledger, &who, client_index) => {}
        () = ledger.leave.cancelled() => {}
    }
    ledger.changes.remove_listener(&who);
}

async fn hear_per_request(ledger: &CallLedger, who: &str, client_index: usize) {
    let filter = json!({ "toolsListChanged": true, "resourceSubscriptions": [RESOURCE] });
    let body = modern(client_index.into(), "subscriptions/listen", json!({ "notifications": filter }));
    let asked = Mutex::new(None);
    let listening = |node| {
        *asked.lock().unwrap() = Some(node);
        post(node, "/mcp", &body).modern_headers("subscriptions/listen", &json!({}))
    };
    loop {
        if let Ok(received) = ledger.balancer.send_until_accepted(listening).await
            && received.is_events()
        {
            // Lists at the notifying node: another node may learn of the new tools later.
            let node = asked.lock().unwrap().unwrap();
            let mut stream = received.events();
            while let Some(message) = stream.message().await {
                match message["method"].as_str() {
                    Some("notifications/resources/updated") => {
                        ledger.changes.record_update(who, message["params"]["_meta"]["number"].as_u64());
                    }
                    Some(
                        method @ ("notifications/subscriptions/acknowledged" | "notifications/tools/list_changed"),
                    ) => {
                        let Some(tools) = listed(node).await else { break };
                        match method.ends_with("acknowledged") {
                            true => ledger.changes.add_listener(who, true, tools),
                            false => ledger.changes.record_list(who, tools),
                        }
                    }
                    _ => break, // final result of the listen request
                }
            }
        }
        tokio::time::sleep(RETRY_DELAY / 4).await;
    }
}

/// Waits until every node lists this version of the tools.
pub async fn wait_all_list(balancer: &RoundRobinBalancer, tools: u64) {
    for node in balancer.nodes() {
        eventually("every node has the newest tools", async || match listed(node).await {
            Some(listed) if listed == tools => Ok(()),
            listed => Err(format!("{node} has {listed:?} instead of {tools}")),
        })
        .await;
    }
}

/// Version of the tools that a node lists; `None` without a response.
async fn listed(node: SocketAddr) -> Option<u64> {
    let body = modern(1.into(), "tools/list", json!({}));
    let received = post(node, "/mcp", &body).modern_headers("tools/list", &json!({})).attempt().await.ok()?;
    let answer: Value = serde_json::from_str(&received.try_text().await.ok()?).ok()?;
    answer["result"].is_object().then(|| tools_version_in(&answer["result"]))
}
