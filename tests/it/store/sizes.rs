//! How much room things take in Redis, for those who plan.

use bytes::Bytes;
use rialto::store::NodeId;
use rialto::store::traits::{EventStore, SessionStore};

use super::{LONG, event, news, one};
use crate::redis::{Program, Server};

#[tokio::test]
async fn sessions_and_events_take_little_room() {
    let server = Server::start(Program::Redis).await;
    let (store, a) = (server.store(), NodeId::begin("gateway-1:3001"));
    let id = "0123456789abcdef0123456789abcdef";
    store.create(id, &a, Bytes::from(vec![b'r'; 500]), LONG).await.unwrap();
    let usage = async |kind: &str| -> u64 {
        let key = format!("rialto:{kind}:{{{id}}}");
        server.ask(redis::cmd("MEMORY").arg("USAGE").arg(key).arg("SAMPLES").arg(0)).await
    };
    let session = usage("s").await;
    let events = (1..1001).map(|position| event(1, position, vec![b'e'; 200])).collect();
    store.write(&a, &one(id, news(events))).await.unwrap();
    let each = usage("e").await / 1000;
    println!("a session with a record of 500 bytes takes {session} bytes, an event of 200 bytes {each}");
    assert!(session < 1500 && each < 400, "{session} {each}");
}
