//! Event streams of calls: resumed after a break, limited, and read by somebody who is slow or does not read.

use std::collections::BTreeSet;

use rialto::console::Topic;
use rialto::policy::{ConsoleAccess, OperatorRight, OperatorTokens};
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
async fn sixteen_streams_are_open_at_most() {
    let names = ["a", "b", "c", "d", "e"];
    let rialto = Rialto::with(|settings| {
        let tokens = names.map(|name| (name.to_owned(), format!("token-of-{name}"), OperatorRight::Look));
        settings.policy.console = ConsoleAccess { tokens: OperatorTokens::new(tokens), ..ConsoleAccess::default() };
    })
    .await;
    let open = |name: &str| {
        let request = rialto.send("GET", "/admin/v1/live?topics=call");
        request.header("authorization", &format!("Bearer token-of-{name}")).go()
    };
    let mut streams = Vec::new();
    for name in &names[..4] {
        for _ in 0..4 {
            let stream = open(name).await;
            assert_eq!(stream.status, 200, "{name}");
            streams.push(stream);
        }
        let fifth = open(name).await;
        assert_eq!((fifth.status, fifth.header("retry-after").is_some()), (429, true), "the fifth of {name}");
    }
    assert_eq!(open("e").await.status, 429, "the seventeenth of all");
    streams.truncate(15);
    let viewers = rialto.console.live().viewers(Topic::Call);
    until("a place is free", || *viewers.borrow() == 15).await;
    assert_eq!(open("e").await.status, 200);
}

#[tokio::test(flavor = "multi_thread")]
async fn cursors_page_through_ten_thousand_calls_while_new_ones_come() {
    const CALLS: usize = 10_000;
    let rialto = Rialto::with(|settings| {
        settings.recording.bytes = 256 << 20;
        settings.recording.rate = u32::MAX;
    })
    .await;
    rialto.wait_recording().await;
    let _watching = rialto.inbound.calls.watch();
    let make = |count: usize| {
        let rialto = &rialto;
        async move {
            let lanes = (0..8).map(|lane| async move {
                let ping = crate::harness::request(lane, "ping", json!({}));
                let (head, body) = (rialto.address.to_string(), ping.to_string());
                let mut stream = tokio::net::TcpStream::connect(rialto.address).await.unwrap();
                let request = format!(
                    "POST /mcp HTTP/1.1\r\nhost: {head}\r\ncontent-type: application/json\r\n\
                     accept: application/json, text/event-stream\r\ncontent-length: {}\r\n\r\n{body}",
                    body.len()
                );
                let mut answer = vec![0; 1 << 14];
                for _ in 0..count / 8 {
                    stream.write_all(request.as_bytes()).await.unwrap();
                    assert!(stream.read(&mut answer).await.unwrap() > 0);
                }
            });
            futures_util::future::join_all(lanes).await;
        }
    };
    make(CALLS).await;
    until("all are collected", || rialto.inbound.calls.newest(u64::MAX, |_| true, CALLS).len() == CALLS).await;
    let newest = rialto.inbound.calls.newest(u64::MAX, |_| true, 1)[0].number;
    let (mut seen, mut path) = (Vec::new(), "calls?limit=500".to_owned());
    loop {
        let page = asked(&rialto, "GET", &path).json().await.1;
        let numbers = page["items"].as_array().unwrap().iter().map(|row| {
            rialto::recording::decode_number(row["id"].as_str().unwrap().rsplit_once('.').unwrap().1).unwrap()
        });
        seen.extend(numbers);
        make(16).await;
        match page["next"].as_str() {
            Some(next) => path = format!("calls?limit=500&cursor={next}"),
            None => break,
        }
    }
    let before: Vec<u64> = seen.iter().copied().filter(|number| *number <= newest).collect();
    assert_eq!(before, (newest + 1 - CALLS as u64..=newest).rev().collect::<Vec<_>>(), "each once, in order");
}

#[tokio::test(flavor = "multi_thread")]
async fn text_is_looked_for_in_messages_by_those_who_may_see_them() {
    let rialto = Rialto::with(|settings| {
        let token = |right: OperatorRight| (right.as_str().to_owned(), format!("token-of-{}", right.as_str()), right);
        let tokens = OperatorTokens::new([OperatorRight::Look, OperatorRight::Bodies].map(token));
        settings.policy.console = ConsoleAccess { tokens, ..ConsoleAccess::default() };
    })
    .await;
    let ask = |right: &str, path: &str| {
        let request = rialto.send("GET", &format!("/admin/v1/{path}"));
        request.header("authorization", &format!("Bearer token-of-{right}"))
    };
    let stream = "live?topics=call&q=in-the-note";
    let looking = ask("look", stream).go().await.events();
    let reading = ask("bodies", stream).go().await.events();
    rialto.wait_recording().await;
    rialto.inbound.calls.show_bodies(Some(TEST_TIMEOUT));
    let arguments = json!({ "name": "Fe", "note": "is In-The-Note", "password": "hunter2-and-more" });
    // The second call has the text in its name, which everybody sees.
    for name in ["getElement", "in-the-note"] {
        rialto.modern("tools/call", json!({ "name": name, "arguments": arguments })).status().await;
    }
    for (mut events, first) in [(reading, "getElement"), (looking, "in-the-note")] {
        let row = loop {
            let row = next(&mut events).await.2;
            if row["done"] == true {
                break row;
            }
        };
        assert_eq!(row["name"], first);
    }
    until("both have ended", || rialto.inbound.calls.newest(u64::MAX, |call| call.last_end().is_some(), 9).len() == 2)
        .await;
    let found = async |right: &str, q: &str| -> usize {
        ask(right, &format!("calls?q={q}")).json().await.1["items"].as_array().unwrap().len()
    };
    assert_eq!((found("bodies", "in-the-note").await, found("look", "in-the-note").await), (2, 1));
    assert_eq!((found("bodies", "-in-the-note").await, found("look", "-in-the-note").await), (0, 1));
    assert_eq!(found("bodies", "hunter2").await, 0, "what is taken out cannot be found out");
    rialto.inbound.calls.show_bodies(None);
    assert_eq!(found("bodies", "in-the-note").await, 1, "bodies are not shown any more");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_call_that_is_gone_says_how_far_back_calls_are_kept() {
    let rialto = Rialto::start().await;
    let gone = format!("calls/{}.zzzzzz", rialto.console.node());
    let said = async || {
        let (status, answer) = asked(&rialto, "GET", &gone).json().await;
        assert_eq!(status, 410);
        answer["error"]["message"].as_str().unwrap().to_owned()
    };
    assert_eq!(said().await, "this call is no longer kept");
    let _watching = watching(&rialto).await;
    call(&rialto, 1).await;
    until("it is recorded", || !rialto.inbound.calls.newest(u64::MAX, |_| true, 1).is_empty()).await;
    let said = said().await;
    assert!(
        said.starts_with("this call is no longer kept; the ring holds the last ") && said.ends_with(" s"),
        "{said}"
    );
}
