//! nginx with `deploy/nginx.conf` in front of three nodes, and the official SDKs as clients.

use std::path::Path;

use super::processes::{Node, eventually};
use crate::config::TempFolder;
use crate::harness::HttpRequest;
use crate::nginx::Nginx;
use crate::peers::{PY1, PY2, Peer, TS1, TS2, carry_out, check};
use crate::ports::ReservedPort;
use crate::redis::{RedisFlavor, RedisServer};

/// nginx in front of the nodes, and its port.
async fn in_front_of(nodes: &[Node]) -> (Nginx, ReservedPort) {
    let folder = TempFolder::new("nginx-cluster");
    let port = ReservedPort::new();
    folder.write("nginx.conf", &configuration(nodes, port.number()));
    let nginx = Nginx::start(folder).await;
    eventually("nginx serves", async || match HttpRequest::to(port.address, "GET", "/readyz").attempt().await {
        Ok(received) if received.status == 200 => Ok(()),
        other => Err(format!("{:?}", other.map(|received| received.status))),
    })
    .await;
    (nginx, port)
}

/// `deploy/nginx.conf` with the ports of the marked lines replaced.
fn configuration(nodes: &[Node], port: u16) -> String {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("deploy/nginx.conf");
    let mut text = std::fs::read_to_string(file).unwrap();
    let marked = nodes.iter().map(|node| (format!("# node {}", node.name), node.address.port()));
    for (mark, port) in marked.chain([("# address".to_owned(), port)]) {
        let line = text.lines().find(|line| line.ends_with(&mark)).unwrap_or_else(|| panic!("no line {mark}"));
        let (before, rest) = line.split_once("127.0.0.1:").unwrap();
        let after = rest.trim_start_matches(|letter: char| letter.is_ascii_digit());
        text = text.replace(line, &format!("{before}127.0.0.1:{port}{after}"));
    }
    text
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn official_sdks_work_with_three_nodes_behind_nginx() {
    let store = RedisServer::start(RedisFlavor::Redis).await;
    let folder = std::env::temp_dir().join(format!("rialto-front-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let config = folder.join("rialto.toml");
    std::fs::write(&config, "[cluster]\nlease = \"2s\"\n").unwrap();
    let mut nodes = Vec::new();
    for name in ["a", "b", "c"] {
        let log = folder.join(format!("{name}.log"));
        let node = Node::start(name, store.url(), config.clone(), log).await;
        node.wait_ready().await;
        nodes.push(node);
    }
    let (nginx, port) = in_front_of(&nodes).await;
    let address = format!("http://{port}");
    let both = async |peer: Peer, newest: &'static str| {
        for (transport, path, revision) in
            [("http", "/mcp", "2025-11-25"), ("http", "/mcp", newest), ("sse", "/sse", "")]
        {
            let seen = carry_out(peer, revision, transport, &[format!("{address}{path}")], None).await;
            check(peer, revision, transport, &seen);
        }
    };
    for (peer, newest) in [(TS1, "2025-06-18"), (TS2, "2026-07-28"), (PY1, "2025-06-18"), (PY2, "2026-07-28")] {
        both(peer, newest).await;
    }
    for node in &nodes {
        let status = node.status().await;
        let calls: u64 = status["upstreams"][0]["calls_by_revision"]
            .as_array()
            .unwrap()
            .iter()
            .map(|pair| pair["calls"].as_u64().unwrap())
            .sum();
        println!("{} made {calls} calls", node.name);
        assert!(calls > 0, "{status}");
        assert_eq!(status["sessions"], serde_json::json!([]), "{status}");
    }
    drop(nginx);
    let _ = std::fs::remove_dir_all(folder);
}
