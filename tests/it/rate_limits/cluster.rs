//! Limits that three nodes share through Redis.

use std::sync::Arc;
use std::time::{Duration, Instant};

use rialto::policy::{LimitRule, Rate};
use rialto::store::ClusterStore;
use serde_json::json;

use super::{only, patterns, per_caller, usage};
use crate::cluster::node_with;
use crate::harness::{Rialto, until};
use crate::redis::{RedisFlavor, RedisServer};

/// A node with a connection of its own to the store.
async fn node(server: &RedisServer, name: &str, rule: &LimitRule) -> Rialto {
    let store: Arc<dyn ClusterStore> = server.store();
    node_with(&store, name, |settings| settings.rate_limits = vec![rule.clone()]).await
}

async fn three_nodes(server: &RedisServer, rule: &LimitRule) -> [Rialto; 3] {
    [node(server, "a", rule).await, node(server, "b", rule).await, node(server, "c", rule).await]
}

/// Calls a tool without a session; whether it was admitted.
async fn is_admitted(rialto: &Rialto) -> bool {
    let params = json!({ "name": "getElement", "arguments": { "name": "H" } });
    let (status, answer) = rialto.modern("tools/call", params).answer().await;
    assert_eq!(status, 200, "{answer}");
    let text = answer["result"]["content"][0]["text"].as_str().unwrap_or_else(|| panic!("{answer}"));
    !text.starts_with("Rate limit")
}

/// How many calls are admitted one after the other.
async fn admitted(rialto: &Rialto) -> u32 {
    let mut count = 0;
    while is_admitted(rialto).await {
        count += 1;
    }
    count
}

fn metric(rialto: &Rialto, name: &str) -> u64 {
    let metrics = rialto.inbound.admin.metrics();
    let line = metrics.lines().find_map(|line| line.strip_prefix(&format!("{name} ")));
    line.unwrap_or_else(|| panic!("{name} is not in\n{metrics}")).parse().unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn three_nodes_together_stay_within_the_rate() {
    const RATE: u32 = 40;
    const BATCHES: u32 = 3 * 4;
    let server = RedisServer::start(RedisFlavor::Redis).await;
    let rate = Rate { count: RATE, period: Duration::from_secs(1), burst: RATE };
    let rule = LimitRule { tools: patterns(&["*"]), rate: Some(rate), ..per_caller("shared") };
    let nodes = three_nodes(&server, &rule).await;
    let started = Instant::now();
    let until = started + Duration::from_secs(10);
    let flood = async |rialto: &Rialto| {
        let (mut admitted, mut asked) = (0, 0);
        while Instant::now() < until {
            asked += 1;
            match is_admitted(rialto).await {
                true => admitted += 1,
                false => tokio::time::sleep(Duration::from_millis(5)).await,
            }
        }
        (admitted, asked)
    };
    let [a, b, c] = &nodes;
    let floods: [(u32, u32); 3] = tokio::join!(flood(a), flood(b), flood(c)).into();
    let (counts, asked) = (floods.map(|flood| flood.0), floods.iter().map(|flood| flood.1).sum::<u32>());
    let (all, elapsed) = (counts.iter().sum::<u32>(), started.elapsed().as_secs_f64());
    let most = f64::from(RATE) + f64::from(RATE) * elapsed + f64::from(BATCHES);
    println!("{counts:?} in {elapsed:.1} s, at most {most:.0}");
    assert!(f64::from(all) <= most, "{counts:?} are more than {most}");
    // A starved machine asks for fewer tokens than there are.
    assert!(all >= (RATE + 5 * RATE).min(asked / 2), "{counts:?} of {asked}: tokens were lost");
    assert!(counts.iter().all(|count| *count > 0), "{counts:?}");
    assert_eq!(nodes.each_ref().map(|node| metric(node, "rialto_rate_limits_unshared")), [0; 3]);
    // Nothing stays in the store for ever.
    for (key, life) in server.key_ttls().await {
        assert!(life > 0, "{key} has no TTL");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_call_normally_costs_no_command_of_the_store() {
    const CALLS: u64 = 200;
    let server = RedisServer::start(RedisFlavor::Redis).await;
    for exact in [false, true] {
        let rate = Rate { count: 100_000, period: Duration::from_secs(1), burst: 10_000 };
        let rule = LimitRule { tools: patterns(&["*"]), rate: Some(rate), exact, ..per_caller("shared") };
        let rialto = node(&server, if exact { "exact" } else { "batches" }, &rule).await;
        assert!(is_admitted(&rialto).await);
        let before = metric(&rialto, "rialto_store_commands_total");
        let started = Instant::now();
        for _ in 0..CALLS {
            assert!(is_admitted(&rialto).await);
        }
        let commands = metric(&rialto, "rialto_store_commands_total") - before;
        println!("exact: {exact}, {CALLS} calls, {commands} commands in {:?}", started.elapsed());
        match exact {
            true => assert!(commands >= CALLS, "{commands}"),
            // Heartbeats, mailboxes and batches that are given back take some each second.
            false => assert!(commands <= 20 + 20 * started.elapsed().as_secs(), "{commands}"),
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_the_store_each_node_enforces_its_share_until_it_is_back() {
    let mut server = RedisServer::start(RedisFlavor::Redis).await;
    let rule = LimitRule { tools: patterns(&["*"]), rate: only(30), ..per_caller("shared") };
    let nodes = three_nodes(&server, &rule).await;
    let share = |node: &Rialto| usage(node, "shared").measures[0].limit;
    until("each knows of three nodes", || nodes.iter().all(|node| share(node) == 10)).await;
    for node in &nodes {
        assert!(is_admitted(node).await);
    }
    server.stop();
    for node in &nodes {
        let count = admitted(node).await;
        assert!((1..=10).contains(&count), "{count} calls of a third of 30");
        assert_eq!(metric(node, "rialto_rate_limits_unshared"), 1);
        assert_eq!(metric(node, "rialto_rate_limits_unshared_requests_total"), u64::from(count));
    }
    server.restart().await;
    until("the limits are shared again", || nodes.iter().all(|node| metric(node, "rialto_rate_limits_unshared") == 0))
        .await;
    // The store has begun with a full bucket, which all of them share again.
    let mut counts = Vec::new();
    for node in &nodes {
        counts.push(admitted(node).await);
    }
    assert_eq!(counts.iter().sum::<u32>(), 30, "{counts:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nodes_share_a_quota() {
    let server = RedisServer::start(RedisFlavor::Redis).await;
    let quota = rialto::policy::CallQuota { count: 25, window: rialto::policy::QuotaWindow::Month };
    let rule = LimitRule { tools: patterns(&["*"]), quota: Some(quota), ..per_caller("shared") };
    let nodes = three_nodes(&server, &rule).await;
    let mut counts = Vec::new();
    for node in &nodes {
        counts.push(admitted(node).await);
    }
    assert_eq!(counts, [25, 0, 0]);
    // A node that comes later finds what was used.
    let later = node(&server, "d", &rule).await;
    assert_eq!(admitted(&later).await, 0);
}
