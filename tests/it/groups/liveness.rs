//! Servers that hang, and listening streams that die silently: both are found and replaced, and what was missed is read
//! again.

use rialto::upstream::List;

use super::*;
use crate::children::{gone, marked, marker, shell, signal_all};
use crate::harness::call as calling;

/// A stdio upstream of one revision, whose children carry the marker.
fn child_spec(marker: &str, revision: Revision) -> UpstreamSpec {
    let mut spec = upstream("child", shell(marker, r#"exec "$RIALTO" stdio"#));
    spec.settings.revision = Some(revision);
    spec.settings.ping_interval = Some(Duration::from_millis(100));
    // A healthy child answers within this, however busy the machine is: one that does not is replaced.
    spec.settings.discovery_timeout = Duration::from_secs(3);
    spec.settings.startup_timeout = Duration::from_secs(10);
    spec.settings.idle_timeout = Duration::from_millis(1500);
    spec.settings.stop_timeout = Duration::from_millis(100);
    spec
}

async fn serve_child(spec: UpstreamSpec) -> Rialto {
    let rialto = gateway(default_group_of(vec![spec])).await;
    until("the tools are known", || upstreams(&rialto)["child"].state().list(List::Tools).is_some()).await;
    rialto
}

async fn get_iron(rialto: &Rialto) -> Value {
    rialto.modern("tools/call", json!({ "name": "getElement", "arguments": { "name": "Fe" } })).answer().await.1
}

/// The processes with this marker, read beside the gateway, whose pings and their answers must not wait for it.
async fn running(marker: &str) -> Vec<u32> {
    let marker = marker.to_owned();
    tokio::task::spawn_blocking(move || marked(&marker)).await.unwrap()
}

/// Waits until the processes with this marker are as wanted.
async fn wait_running(what: &str, marker: &str, is_wanted: impl Fn(&[u32]) -> bool) {
    within_timeout(what, async {
        while !is_wanted(&running(marker).await) {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    })
    .await;
}

/// Waits until none of these processes is left and others are.
async fn wait_replaced(marker: &str, hung: &[u32]) {
    let is_replaced = |ids: &[u32]| !ids.is_empty() && !ids.iter().any(|id| hung.contains(id));
    wait_running("the child is replaced", marker, is_replaced).await;
}

#[tokio::test]
async fn a_hung_per_request_child_is_replaced_while_the_catalog_listens() {
    let marker = marker("hung-catalog");
    let rialto = serve_child(child_spec(&marker, Revision::NEWEST)).await;
    assert!(get_iron(&rialto).await["result"].is_object());
    let hung = running(&marker).await;
    signal_all("-STOP", &hung);
    wait_replaced(&marker, &hung).await;
    until("it is connected again", || upstreams(&rialto)["child"].state().health.connects >= 2).await;
    assert!(get_iron(&rialto).await["result"].is_object());
    drop(rialto);
}

#[tokio::test]
async fn a_hung_child_is_replaced_though_it_always_has_a_call_in_flight() {
    let marker = marker("hung-busy");
    let rialto = serve_child(child_spec(&marker, Revision::NEWEST)).await;
    let hung = running(&marker).await;
    signal_all("-STOP", &hung);
    let calls = async {
        loop {
            // The calls overlap, so that one is always waiting.
            tokio::join!(get_iron(&rialto), async {
                tokio::time::sleep(Duration::from_millis(700)).await;
                get_iron(&rialto).await
            });
        }
    };
    tokio::select! {
        () = calls => {}
        () = wait_replaced(&marker, &hung) => {}
    }
}

#[tokio::test]
async fn a_hung_child_of_a_lease_is_replaced() {
    let marker = marker("hung-lease");
    let rialto = serve_child(child_spec(&marker, Revision::NEWEST_HANDSHAKE)).await;
    let catalog = running(&marker).await;
    let session = rialto.open("2025-11-25").await;
    let get = calling(1, "getElement", json!({ "name": "Fe" }));
    assert!(session.post(&get).answer().await.1["result"].is_object());
    let lease: Vec<u32> = running(&marker).await.into_iter().filter(|id| !catalog.contains(id)).collect();
    signal_all("-STOP", &lease);
    wait_running("the child of the lease is gone", &marker, |ids| !ids.iter().any(|id| lease.contains(id))).await;
    assert_eq!(running(&marker).await, catalog, "the catalog is not disturbed");
    assert!(session.post(&get).answer().await.1["result"].is_object());
    drop(session);
    drop(rialto);
    gone(&marker).await;
}

#[tokio::test]
async fn a_silent_listening_stream_is_opened_again_and_what_was_missed_is_read() {
    for transport in [ServerTransport::Http, ServerTransport::PerRequest] {
        let server = ScriptedServer::start("silent", transport).await;
        let mut spec = spec(&server);
        spec.settings.listen_read_timeout = Some(Duration::from_millis(300));
        let rialto = gateway(default_group_of(vec![spec])).await;
        let (client, host) = client(&rialto, ClientTransport::Http, "ada").await;
        ask(&client, "resources/subscribe", json!({ "uri": "res://one" })).await;
        // The stream stays open and nothing comes.
        let (opens, lists) = match transport {
            ServerTransport::PerRequest => ("subscriptions/listen", server.count("tools/list")),
            _ => ("GET", server.count("tools/list")),
        };
        let before = server.count(opens);
        server.wait_received(opens, before + 2).await;
        let updated = || host.notifications(&NotificationMethod::ResourceUpdated);
        until("the resource is told as updated", || updated().iter().any(|update| update["uri"] == "res://one")).await;
        until("the lists are read again", || server.count("tools/list") > lists).await;
    }
}
