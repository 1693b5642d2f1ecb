//! What belongs to no call: a resource that changes, with a number each time, and those who hear of it.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};

use super::balancer::AGAIN;
use super::clients::{Session, shown};
use super::driver::RESOURCE;
use crate::puppet::Puppet;

/// Tells of a change again and again.
pub async fn publish(web: Arc<Puppet>, pause: Duration) {
    for number in 1_u64.. {
        tokio::time::sleep(pause).await;
        web.notify("notifications/resources/updated", &json!({ "uri": RESOURCE, "number": number }));
    }
}

/// Listens until the session has ended, and goes on at another node when a stream does not.
pub async fn listen(session: Session) {
    let mut last: Option<String> = None;
    let mut seen = HashSet::new();
    let mut heard = 0;
    loop {
        let received = session.balancer.insist(|node| session.get(node, last.as_deref())).await;
        match received {
            Ok(received) if received.status == 200 => {
                let mut stream = received.events();
                while let Some(event) = stream.next().await {
                    let message = (!event.data.is_empty()).then(|| serde_json::from_str::<Value>(&event.data).unwrap());
                    if let Some(id) = event.id {
                        assert!(message.is_none() || seen.insert(id.clone()), "{id} comes twice");
                        last = Some(id);
                    }
                    let number = message.as_ref().and_then(|message| message["params"]["number"].as_u64());
                    if let Some(number) = number {
                        assert!(number > heard, "{number} comes after {heard}");
                        heard = number;
                    }
                }
            }
            Ok(received) if received.status == 404 => break,
            Ok(received) if received.status != 502 => panic!("{last:?}: {}", shown(received).await),
            _ => {}
        }
        tokio::time::sleep(AGAIN / 4).await;
    }
    println!("a listener heard {} events, the last of change {heard}", seen.len());
}
