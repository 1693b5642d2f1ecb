//! Arguments that a per-request server wants mirrored in headers, and that it may change at any time.

use super::*;
use crate::scripted_server::{InjectedFault, ReceivedMessage};

/// The value of the mirrored argument in each call, and the number of lists that were read.
fn mirrored(server: &ScriptedServer) -> Vec<Option<String>> {
    let header = |message: &ReceivedMessage| {
        let found = message.headers.iter().find(|(name, _)| name == "mcp-param-city");
        (message.kind == "tools/call").then(|| found.map(|(_, value)| value.clone()))
    };
    server.read_received(header)
}

/// A server that has changed its tools without saying so answers a call with `-32020`, which has run nothing.
#[tokio::test]
async fn a_header_mismatch_refreshes_the_list_and_the_call_is_sent_again_once() {
    let server = ScriptedServer::start("one", ServerTransport::PerRequest).await;
    let rialto = group(&[&server]).await;
    let (client, _) = client(&rialto, ClientTransport::Http, "ada").await;
    let lists = server.count("tools/list");
    let mismatch = json!({ "code": -32020, "message": "Header mismatch: Mcp-Param-City is missing" });
    server.inject_fault("tools/call", InjectedFault::Error(mismatch.clone()));
    server.hold_responses("tools/list");
    let calling = call(&client, "echo", json!({ "city": "Oslo", "message": "hi" }));
    let changing = async {
        server.wait_received("tools/list", lists + 1).await;
        server.change("", |catalog| {
            let schema =
                json!({ "type": "object", "properties": { "city": { "type": "string", "x-mcp-header": "City" } } });
            catalog.tools[0]["inputSchema"] = schema;
        });
        server.clear_faults();
        server.open("tools/list");
    };
    let (reported, ()) = within_timeout("a response", async { tokio::join!(calling, changing) }).await;
    assert_eq!(reported["message"], "hi");
    assert_eq!(mirrored(&server), [None, Some("Oslo".to_owned())]);
    // A server that is never content is asked twice.
    server.inject_fault("tools/call", InjectedFault::Error(mismatch));
    let (code, _) = refused(&client, "tools/call", json!({ "name": "echo", "arguments": { "city": "Bonn" } })).await;
    assert_ne!(code, 0);
    assert_eq!(mirrored(&server)[2..], [Some("Bonn".to_owned()), Some("Bonn".to_owned())]);
}
