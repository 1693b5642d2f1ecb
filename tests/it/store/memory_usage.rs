//! Redis memory per session and per event, for capacity planning.

use bytes::Bytes;
use rialto::store::NodeId;
use rialto::store::traits::{EventStore, SessionStore};

use super::{LONG_TTL, batch, delta, event};
use crate::redis::{RedisFlavor, RedisServer};

#[tokio::test]
async fn memory_per_session_and_event_is_bounded() {
    let server = RedisServer::start(RedisFlavor::Redis).await;
    let (store, a) = (server.store(), NodeId::generate("gateway-1:3001"));
    let id = "0123456789abcdef0123456789abcdef";
    store.create(id, &a, Bytes::from(vec![b'r'; 500]), LONG_TTL).await.unwrap();
    let usage = async |kind: &str| -> u64 {
        let key = format!("rialto:{kind}:{{{id}}}");
        server.ask(redis::cmd("MEMORY").arg("USAGE").arg(key).arg("SAMPLES").arg(0)).await
    };
    let session = usage("s").await;
    let events = (1..1001).map(|position| event(1, position, vec![b'e'; 200])).collect();
    store.write_deltas(&a, &batch(id, delta(events))).await.unwrap();
    let each = usage("e").await / 1000;
    println!("a session with a record of 500 bytes takes {session} bytes, an event of 200 bytes {each}");
    assert!(session < 1500 && each < 400, "{session} {each}");
}
