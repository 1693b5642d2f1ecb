//! Those who hear of what belongs to no call.

use std::collections::HashSet;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use serde_json::{Value, json};

use super::balancer::{AGAIN, Balancer};
use super::clients::{Session, post, shown};
use super::driver::{Books, RESOURCE};
use super::news::{News, number_in};
use super::real::eventually;
use crate::harness::{modern, request};

/// Listens until the session has ended, and goes on at another node when a stream does not.
pub async fn listen(news: Arc<News>, session: Session) {
    let mut last: Option<String> = None;
    let mut seen = HashSet::new();
    loop {
        let received = session.balancer.insist(|node| session.get(node, last.as_deref())).await;
        match received {
            Ok(received) if received.status == 200 => {
                let mut stream = received.events();
                if last.is_none() {
                    let Some(tools) = tools(&session).await else { break };
                    news.listens(&session.id, true, tools);
                }
                while let Some(event) = stream.next().await {
                    let message = (!event.data.is_empty()).then(|| serde_json::from_str::<Value>(&event.data).unwrap());
                    if let Some(id) = event.id {
                        assert!(message.is_none() || seen.insert(id.clone()), "{id} comes twice");
                        last = Some(id);
                    }
                    let Some(message) = message else { continue };
                    if !hear(&news, &session, &message).await {
                        break;
                    }
                }
            }
            Ok(received) if received.status == 404 => break,
            Ok(received) if received.status != 502 => panic!("{last:?}: {}", shown(received).await),
            _ => {}
        }
        tokio::time::sleep(AGAIN / 4).await;
    }
    news.leaves(&session.id);
}

/// Takes a notice; false when the session is over.
async fn hear(news: &News, session: &Session, message: &Value) -> bool {
    match message["method"].as_str() {
        Some("notifications/resources/updated") => {
            news.updated(&session.id, message["params"]["_meta"]["number"].as_u64());
        }
        Some("notifications/tools/list_changed") => match tools(session).await {
            Some(tools) => news.listed(&session.id, tools),
            None => return false,
        },
        _ => panic!("{message}"),
    }
    true
}

/// Which tools a session lists; nothing when it is over.
async fn tools(session: &Session) -> Option<u64> {
    loop {
        let body = request(format!("list-{}", session.next()), "tools/list", json!({}));
        match session.balancer.insist(|node| session.post(node, &body)).await {
            Ok(received) if received.status == 404 => return None,
            Ok(received) if received.status == 200 && received.is_events() => {
                if let Some(answer) = received.events().rest().await.pop()
                    && answer["result"].is_object()
                {
                    return Some(number_in(&answer["result"]));
                }
            }
            Ok(received) if received.status == 200 => {
                if let Ok(text) = received.try_text().await {
                    let answer: Value = serde_json::from_str(&text).unwrap();
                    if answer["result"].is_object() {
                        return Some(number_in(&answer["result"]));
                    }
                }
            }
            _ => {}
        }
        tokio::time::sleep(AGAIN / 4).await;
    }
}

/// Listens without a session until the clients leave. Who begins to listen anew has to look at everything.
pub async fn listen_per_request(books: Arc<Books>, place: usize) {
    let who = format!("listener {place}");
    tokio::select! {
        () = hear_per_request(&books, &who, place) => {}
        () = books.leave.cancelled() => {}
    }
    books.news.leaves(&who);
}

async fn hear_per_request(books: &Books, who: &str, place: usize) {
    let wishes = json!({ "toolsListChanged": true, "resourceSubscriptions": [RESOURCE] });
    let body = modern(place.into(), "subscriptions/listen", json!({ "notifications": wishes }));
    let asked = Mutex::new(None);
    let listening = |node| {
        *asked.lock().unwrap() = Some(node);
        post(node, "/mcp", &body).modern_headers("subscriptions/listen", &json!({}))
    };
    loop {
        if let Ok(received) = books.balancer.insist(listening).await
            && received.is_events()
        {
            // Another node may hear of new tools a moment later.
            let node = asked.lock().unwrap().unwrap();
            let mut stream = received.events();
            while let Some(message) = stream.message().await {
                match message["method"].as_str() {
                    Some("notifications/resources/updated") => {
                        books.news.updated(who, message["params"]["_meta"]["number"].as_u64());
                    }
                    Some(
                        method @ ("notifications/subscriptions/acknowledged" | "notifications/tools/list_changed"),
                    ) => {
                        let Some(tools) = listed(node).await else { break };
                        match method.ends_with("acknowledged") {
                            true => books.news.listens(who, true, tools),
                            false => books.news.listed(who, tools),
                        }
                    }
                    _ => break, // it ends in order
                }
            }
        }
        tokio::time::sleep(AGAIN / 4).await;
    }
}

/// Every node lists these tools, sooner or later.
pub async fn all_list(balancer: &Balancer, tools: u64) {
    for node in balancer.nodes() {
        eventually("every node has the newest tools", async || match listed(node).await {
            Some(listed) if listed == tools => Ok(()),
            listed => Err(format!("{node} has {listed:?} instead of {tools}")),
        })
        .await;
    }
}

/// Which tools a node lists; nothing when it does not answer.
async fn listed(node: SocketAddr) -> Option<u64> {
    let body = modern(1.into(), "tools/list", json!({}));
    let received = post(node, "/mcp", &body).modern_headers("tools/list", &json!({})).attempt().await.ok()?;
    let answer: Value = serde_json::from_str(&received.try_text().await.ok()?).ok()?;
    answer["result"].is_object().then(|| number_in(&answer["result"]))
}
