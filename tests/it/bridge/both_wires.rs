//! What is recorded of a call is what its client sent and its server got, byte for byte, and every difference between the
//! two has a reason.

use std::sync::Arc;

use rialto::dialect::Revision;
use rialto::inbound::Inbound;
use rialto::recorder::{SummaryField, Way, Wire};
use rialto::recording::{
    BodyAccess, CallLog, ChangeKind, MessageChange, RecordedMessage, RowEvents, RowMaker, StoredCall, changes_of,
    messages_of,
};
use serde_json::Value;

use super::Testbed;
use super::feature_checks::{Cell, until};
use super::server_endpoint::ServerEndpoint;
use super::variants::{Feature, Transport, VARIANTS, Variant};

/// Features that are looked at: calls of every kind, what comes in between, and what is asked back.
const FEATURES: [Feature; 11] = [
    Feature::Tools,
    Feature::Structured,
    Feature::Progress,
    Feature::Resources,
    Feature::Templates,
    Feature::Prompts,
    Feature::Completion,
    Feature::Sampling,
    Feature::FormElicitation,
    Feature::UnknownFields,
    Feature::ErrorCodes,
];

/// Methods that servers answer.
const FORWARDED: [&str; 4] = ["tools/call", "prompts/get", "resources/read", "completion/complete"];

/// Nobody wants rows.
struct NoEvents;

impl RowEvents for NoEvents {
    fn is_watched(&self) -> bool {
        false
    }

    fn changed(&self, _: &[StoredCall], _: RowMaker) {}

    fn gone(&self, _: &str) {}

    fn lost(&self, count: Option<u64>, why: &str) {
        panic!("{count:?} lost: {why}");
    }
}

/// Records the calls of a gateway from now on.
async fn record(inbound: &Arc<Inbound>, has_console: bool) -> Arc<CallLog> {
    let calls = Arc::clone(&inbound.calls);
    if !has_console {
        tokio::spawn(Arc::clone(&calls).run(Vec::new(), Arc::new(NoEvents)));
    }
    calls.wait_until_on().await;
    calls
}

/// What differs between what is recorded and what was really sent, in one cell.
async fn check_cell(testbed: &Testbed, variant: Variant, endpoint: &ServerEndpoint) -> Vec<String> {
    let server = endpoint.scripted.variant;
    let mut client = testbed.client(variant, server.name).await.unwrap();
    let is_stdio = variant.transport == Transport::Stdio;
    let inbound = client.own_gateway().unwrap_or_else(|| Arc::clone(&testbed.rialto.inbound));
    let calls = record(&inbound, !is_stdio).await;
    let _watching = calls.watch();
    let before = calls.newest(u64::MAX, |_| true, 1).first().map_or(0, |call| call.number);
    let (sent_before, received_before) = (client.sent.len(), client.received.len());
    endpoint.scripted.received.lock().unwrap().clear();
    endpoint.scripted.sent.lock().unwrap().clear();
    for feature in FEATURES {
        Cell { client: &mut client, server: &endpoint.scripted, feature }.check().await.unwrap();
    }
    let of_cell = |call: &StoredCall| {
        call.number > before && call.field(SummaryField::Group).is_none_or(|group| group == server.name)
    };
    let recorded = || calls.newest(u64::MAX, of_cell, 10_000);
    let has_all = || {
        let texts: Vec<Vec<u8>> = all_messages(&recorded()).iter().map(|(_, one)| one.text.to_vec()).collect();
        let is_recorded = |text: &String| texts.iter().any(|one| one == text.trim_end().as_bytes());
        requests(&client.sent[sent_before..]).all(is_recorded)
            && responses(&client.received[received_before..]).all(is_recorded)
            && of_calls(&endpoint.scripted.sent.lock().unwrap()).all(is_recorded)
    };
    let _ = until("all calls are recorded", has_all).await;
    let seen = Seen {
        sent: &client.sent,
        sent_now: &client.sent[sent_before..],
        received: &client.received,
        received_now: &client.received[received_before..],
        at_server: endpoint.scripted.received.lock().unwrap().clone(),
        by_server: endpoint.scripted.sent.lock().unwrap().clone(),
    };
    let mut faults = seen.differences(&recorded());
    faults.extend(shown_otherwise(&calls, &recorded()));
    client.close().await.unwrap();
    faults
}

fn all_messages(calls: &[StoredCall]) -> Vec<(usize, RecordedMessage)> {
    calls.iter().enumerate().flat_map(|(n, call)| messages_of(call).into_iter().map(move |one| (n, one))).collect()
}

/// Texts of requests.
fn requests(texts: &[String]) -> impl Iterator<Item = &String> {
    let is_request = |text: &&String| text.contains("\"method\"") && text.contains("\"id\"");
    texts.iter().filter(is_request)
}

/// Texts of responses.
fn responses(texts: &[String]) -> impl Iterator<Item = &String> {
    texts.iter().filter(|text| text.contains("\"result\"") || text.contains("\"error\""))
}

/// Texts of a server that belong to calls: its answers to what is forwarded, what it asks the client, and its notifications
/// of progress.
fn of_calls(texts: &[String]) -> impl Iterator<Item = &String> {
    let is_of_call = |text: &&String| {
        let message: Value = serde_json::from_str(text).unwrap();
        let has = |key: &str| message["result"].get(key).is_some();
        ["content", "contents", "messages", "completion"].into_iter().any(has)
            // Probes are told that there is no such method.
            || message["error"]["code"].as_i64().is_some_and(|code| code != -32601)
            || message["method"] == "notifications/progress"
            || message["method"].is_string() && message["id"] != Value::Null
    };
    texts.iter().filter(is_of_call)
}

/// Messages that the API shows otherwise than they were recorded, although it says that nothing is hidden.
fn shown_otherwise(calls: &CallLog, recorded: &[StoredCall]) -> Vec<String> {
    let (rows, mut faults) = (calls.rows("node".to_owned()), Vec::new());
    for call in recorded {
        let detail = rows.detail(call, BodyAccess::Shown);
        for (one, shown) in messages_of(call).iter().zip(detail["messages"].as_array().unwrap()) {
            let text = shown["text"].as_str().unwrap_or_default();
            if shown["hidden"] == Value::Array(Vec::new()) && text.as_bytes() != one.text {
                faults.push(format!("recorded as {:?}, shown as {text}", one.text));
            }
        }
    }
    faults
}

/// What client and server saw.
struct Seen<'s> {
    sent: &'s [String],
    /// What the client sent while it was recorded.
    sent_now: &'s [String],
    received: &'s [String],
    received_now: &'s [String],
    at_server: Vec<String>,
    by_server: Vec<String>,
}

impl Seen<'_> {
    fn differences(&self, calls: &[StoredCall]) -> Vec<String> {
        let (mut faults, messages) = (Vec::new(), all_messages(calls));
        let recorded = |wire, way| {
            messages
                .iter()
                .map(|(_, one)| one)
                .filter(move |one| one.wire == wire && one.way == way && !one.text.is_empty())
        };
        let is_among = |text: &[u8], all: &[String]| all.iter().any(|one| one.trim_end().as_bytes() == text);
        for text in requests(self.sent_now) {
            if !recorded(Wire::Client, Way::In).any(|one| one.text == text.as_bytes()) {
                faults.push(format!("the client sent, and it is not recorded: {text}"));
            }
        }
        let is_forwarded = |text: &&String| FORWARDED.iter().any(|method| text.contains(&format!("\"{method}\"")));
        for text in self.at_server.iter().filter(is_forwarded) {
            if !recorded(Wire::Server, Way::Out).any(|one| one.text == text.as_bytes()) {
                faults.push(format!("the server got, and it is not recorded: {text}"));
            }
        }
        for text in responses(self.received_now) {
            if !recorded(Wire::Client, Way::Out).any(|one| one.text == text.trim_end().as_bytes()) {
                faults.push(format!("the client got, and it is not recorded: {text}"));
            }
        }
        for text in of_calls(&self.by_server) {
            if !recorded(Wire::Server, Way::In).any(|one| one.text == text.as_bytes()) {
                faults.push(format!("the server sent, and it is not recorded: {text}"));
            }
        }
        for (wire, way, all) in [
            (Wire::Client, Way::In, self.sent),
            (Wire::Client, Way::Out, self.received),
            (Wire::Server, Way::In, &self.by_server[..]),
            (Wire::Server, Way::Out, &self.at_server[..]),
        ] {
            for one in recorded(wire, way) {
                if !is_among(&one.text, all) {
                    faults.push(format!(
                        "recorded on the {wire:?} wire, {way:?}, and never sent: {}",
                        String::from_utf8_lossy(&one.text)
                    ));
                }
            }
        }
        for call in calls {
            let revision = |field| call.field(field).and_then(Revision::parse);
            let revisions = revision(SummaryField::ClientRevision).zip(revision(SummaryField::ServerRevision));
            let messages = messages_of(call);
            let changes = changes_of(&messages, revisions);
            faults.extend(not_reproduced(&messages, &changes));
            for change in changes.iter().filter(|change| change.why.is_none()) {
                let text = |n: Option<usize>| n.map(|n| String::from_utf8_lossy(&messages[n].text).into_owned());
                let [client, server] = change.messages.map(text);
                faults.push(format!("no reason for {} {:?}\n    {client:?}\n    {server:?}", change.path, change.kind));
            }
        }
        faults
    }
}

/// Pairs of messages of which one, with the changes applied, is not the other.
fn not_reproduced(messages: &[RecordedMessage], changes: &[MessageChange]) -> Vec<String> {
    let mut faults = Vec::new();
    let pairs = messages.iter().enumerate().filter(|(_, one)| one.wire == Wire::Server);
    for (at, (server, client)) in pairs.filter_map(|(at, one)| Some((at, (one, one.with?)))) {
        let parsed = |one: &RecordedMessage| serde_json::from_slice::<Value>(&one.text).ok();
        let Some((to_server, to_client)) = parsed(server).zip(parsed(&messages[client])) else { continue };
        let (from, to) = if server.way == Way::Out { (to_client, to_server) } else { (to_server, to_client) };
        let of_pair = changes.iter().filter(|change| change.messages == [Some(client), Some(at)]);
        let mut made = from.clone();
        for change in of_pair {
            apply(&mut made, &to, change);
        }
        if made != to {
            faults.push(format!("with its changes applied\n    {from}\n  is\n    {made}\n  and not\n    {to}"));
        }
    }
    faults
}

/// Applies a change to the message that came; what was put in or changed is taken from the message that was sent.
fn apply(made: &mut Value, sent: &Value, change: &MessageChange) {
    let Some((parent, key)) = change.path.rsplit_once('/') else {
        *made = sent.clone();
        return;
    };
    let key = key.replace("~1", "/").replace("~0", "~");
    match (made.pointer_mut(parent), change.kind) {
        (Some(Value::Object(members)), ChangeKind::Stays) => {
            members.remove(&key).unwrap_or_else(|| panic!("{} does not come", change.path));
        }
        (Some(Value::Object(members)), kind) => {
            let value = sent.pointer(&change.path).unwrap_or_else(|| panic!("{} is not sent", change.path));
            let before = members.insert(key, value.clone());
            assert_eq!(before.is_some(), kind == ChangeKind::Changed, "{change:?}");
        }
        (Some(Value::Array(items)), ChangeKind::Changed) => {
            items[key.parse::<usize>().unwrap()] = sent.pointer(&change.path).unwrap().clone();
        }
        (other, _) => panic!("{change:?} of {other:?}"),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn both_wires_are_recorded_byte_for_byte_in_every_cell_and_every_difference_has_a_reason() {
    let testbed = Testbed::open(&VARIANTS).await;
    let mut faults = Vec::new();
    for endpoint in &testbed.endpoints {
        for variant in VARIANTS {
            let server = endpoint.scripted.variant;
            let wrong = check_cell(&testbed, variant, endpoint).await;
            faults.extend(wrong.into_iter().map(|why| format!("{} → {}: {why}", variant.label(), server.label())));
        }
    }
    let count = faults.len();
    faults.truncate(60);
    assert!(faults.is_empty(), "{count} faults:\n{}", faults.join("\n"));
    testbed.close().await;
}
