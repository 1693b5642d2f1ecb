//! Event streams of calls: resumed after a break, limited, and read by somebody who is slow or does not read.

use std::collections::BTreeSet;

use rialto::console::Topic;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::{DOCUMENT, asked, get, mistakes};
use crate::harness::{Events, Rialto, TEST_TIMEOUT, until};

async fn call(rialto: &Rialto, number: usize) {
    let params = json!({ "name": "getElement", "arguments": { "name": "Fe", "number": number } });
    assert_eq!(rialto.modern("tools/call", params).status().await, 200);
}

/// The next event and its data, which must be as the document says.
async fn next(events: &mut Events) -> (String, Option<String>, Value) {
    let event = events.next().await.expect("the stream goes on");
    let (name, data) = (event.name.unwrap(), serde_json::from_str(&event.data).unwrap());
    assert_eq!(mistakes(&DOCUMENT["x-events"][&name], &data, ""), [""; 0], "{name}: {data}");
    (name, event.id, data)
}

async fn watching(rialto: &Rialto) -> Events {
    let events = asked(rialto, "GET", "live?topics=call").go().await.events();
    until("calls are recorded", || rialto.inbound.calls.state().is_on).await;
    events
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stream_that_breaks_resumes_and_what_is_gone_is_told() {
    let rialto = Rialto::start().await;
    let mut events = watching(&rialto).await;
    call(&rialto, 0).await;
    let last = loop {
        let (name, id, row) = next(&mut events).await;
        if name == "call" && row["done"] == true {
            break id.unwrap();
        }
    };
    drop(events);
    let viewers = rialto.console.live().viewers(Topic::Call);
    until("the stream is let go", || *viewers.borrow() == 0).await;
    for number in 1..=30 {
        call(&rialto, number).await;
    }
    let resume = |id: &str| asked(&rialto, "GET", "live?topics=call").header("last-event-id", id);
    let mut resumed = resume(&last).go().await.events();
    let (mut seen, mut newest) = (BTreeSet::new(), String::new());
    while seen.len() < 30 {
        let (name, id, row) = next(&mut resumed).await;
        assert_ne!(name, "lost", "nothing was lost: {row}");
        if name == "call" && row["done"] == true {
            assert!(seen.insert(row["id"].to_string()), "each once: {row}");
            newest = id.unwrap();
        }
    }
    drop(resumed);
    until("the stream is let go", || *viewers.borrow() == 0).await;
    // More than are kept for those who come back.
    let filler = "x".repeat(1000);
    for number in 0..3000 {
        rialto.console.live().publish(Topic::Call, &json!({ "number": number, "filler": filler }));
    }
    let mut late = resume(&newest).go().await.events();
    let (mut lost, mut shown) = (0, 0);
    while lost + shown < 3000 {
        let event = late.next().await.unwrap();
        let data: Value = serde_json::from_str(&event.data).unwrap();
        match event.name.as_deref() {
            Some("lost") => lost += data["count"].as_u64().unwrap(),
            Some("call") if !data["filler"].is_null() => shown += 1,
            _ => {}
        }
    }
    assert!(lost > 2000 && shown >= 100, "{lost} lost, {shown} shown");
}

/// A viewer that reads nothing for long: what it is sent then is bounded, and all the rest is told as lost.
#[tokio::test(flavor = "multi_thread")]
async fn a_viewer_that_does_not_read_is_told_how_much_it_lost() {
    const EVENTS: u64 = 60_000;
    let rialto = Rialto::start().await;
    let socket = tokio::net::TcpSocket::new_v4().unwrap();
    socket.set_recv_buffer_size(32 << 10).unwrap();
    let mut stream = socket.connect(rialto.address).await.unwrap();
    let head = format!(
        "GET /admin/v1/live?topics=call HTTP/1.1\r\nhost: {}\r\nauthorization: Bearer {}\r\n\r\n",
        rialto.address,
        rialto.console.key().reveal()
    );
    stream.write_all(head.as_bytes()).await.unwrap();
    let viewers = rialto.console.live().viewers(Topic::Call);
    until("the stream is attached", || *viewers.borrow() == 1).await;
    let filler = "x".repeat(2000);
    for number in 0..EVENTS {
        rialto.console.live().publish(Topic::Call, &json!({ "flood": number, "filler": filler }));
        if number % 200 == 0 {
            tokio::time::sleep(std::time::Duration::from_millis(1)).await;
        }
    }
    let (mut text, mut bytes) = (Vec::new(), vec![0; 1 << 16]);
    let count = |text: &[u8]| -> (u64, u64) {
        let text = String::from_utf8_lossy(text);
        let lost = text.split("event: lost\ndata: ").skip(1).map(|rest| {
            let data = rest.split('\n').next().unwrap_or_default();
            serde_json::from_str::<Value>(data).map_or(0, |data| data["count"].as_u64().unwrap())
        });
        (text.matches("{\"filler\":\"x").count() as u64, lost.sum())
    };
    let reading = async {
        loop {
            let length = stream.read(&mut bytes).await.unwrap();
            assert!(length > 0, "the stream goes on");
            text.extend_from_slice(&bytes[..length]);
            let (shown, lost) = count(&text);
            if shown + lost >= EVENTS {
                return (shown, lost);
            }
        }
    };
    let (shown, lost) = tokio::time::timeout(3 * TEST_TIMEOUT, reading).await.expect("all is shown or told as lost");
    assert_eq!(shown + lost, EVENTS);
    assert!(lost > EVENTS / 2, "{shown} shown: the gateway kept them for a viewer that does not read");
}

#[tokio::test(flavor = "multi_thread")]
async fn calls_above_the_rate_are_told_as_lost_and_need_attention() {
    let rialto = Rialto::with(|settings| settings.recording.rate = 5).await;
    let mut events = watching(&rialto).await;
    let made = 400;
    for number in 0..made {
        call(&rialto, number).await;
    }
    let lost = loop {
        let (name, _, data) = next(&mut events).await;
        if name == "lost" {
            break data;
        }
    };
    assert!(lost["count"].as_u64().unwrap() > 0, "{lost}");
    assert!(lost["why"].as_str().unwrap().contains("more than 5 calls a second"), "{lost}");
    let overview = get(&rialto, "overview").await;
    let codes: Vec<&Value> = overview["attention"].as_array().unwrap().iter().map(|item| &item["code"]).collect();
    assert!(codes.contains(&&json!("sampling")), "{codes:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn lists_streams_and_bodies_have_their_limits() {
    let rialto = Rialto::start().await;
    assert_eq!(asked(&rialto, "GET", "calls?limit=500").status().await, 200);
    assert_eq!(asked(&rialto, "GET", "calls?limit=501").status().await, 400);
    assert_eq!(asked(&rialto, "GET", "calls?limit=0").status().await, 400);
    let large = format!("{{\"text\":\"{}\"}}", "x".repeat(1 << 20));
    assert_eq!(asked(&rialto, "POST", "config/check").body(large).status().await, 413);
    let open = || asked(&rialto, "GET", "live?topics=call").go();
    let mut streams = Vec::new();
    for _ in 0..4 {
        let stream = open().await;
        assert_eq!(stream.status, 200);
        streams.push(stream);
    }
    let refused = open().await;
    assert_eq!((refused.status, refused.header("retry-after").is_some()), (429, true), "the fifth of one operator");
    drop(streams);
    let viewers = rialto.console.live().viewers(Topic::Call);
    until("the streams are let go", || *viewers.borrow() == 0).await;
    assert_eq!(open().await.status, 200);
}
