//! Redis Cluster and Sentinel.

use std::sync::Arc;

use bytes::Bytes;
use rialto::store::redis::RedisOptions;
use rialto::store::traits::{NodeStore, SessionStore};
use rialto::store::{NodeId, RedisStore};

use super::{LONG_TTL, nodes, sessions, until};
use crate::ports::ReservedPort;
use crate::redis::{RedisFlavor, RedisServer, STORE_TIMEOUT};

/// Starts a server of a Redis Cluster; also returns the port of its cluster bus.
async fn start_member(arguments: &[&str]) -> (RedisServer, String) {
    let bus = ReservedPort::new();
    let bus_port = bus.number().to_string();
    let more = ["--cluster-enabled", "yes", "--cluster-port", &bus_port];
    let mut server = RedisServer::with(RedisFlavor::Redis, &[&more, arguments].concat()).await;
    server.keep_port(bus);
    (server, bus_port)
}

/// Starts a Redis Cluster of three primaries.
pub async fn start_cluster(arguments: &[&str]) -> Vec<RedisServer> {
    let mut servers = Vec::new();
    for slots in [[0, 5460], [5461, 10922], [10923, 16383]] {
        let (server, bus_port) = start_member(arguments).await;
        let () = server.ask(redis::cmd("CLUSTER").arg("ADDSLOTSRANGE").arg(&slots)).await;
        let first: &RedisServer = servers.first().map_or(&server, |(first, _)| first);
        let () = server.ask(redis::cmd("CLUSTER").arg("SET-CONFIG-EPOCH").arg(servers.len() + 1)).await;
        if !servers.is_empty() {
            let bus_port = &servers[0].1;
            let meet = &mut redis::cmd("CLUSTER");
            let () = server.ask(meet.arg("MEET").arg("127.0.0.1").arg(first.port()).arg(bus_port)).await;
        }
        servers.push((server, bus_port));
    }
    for (server, _) in &servers {
        let whole = async || {
            let info: String = server.ask(redis::cmd("CLUSTER").arg("INFO")).await;
            info.contains("cluster_state:ok") && info.contains("cluster_known_nodes:3")
        };
        until("the cluster is formed", whole).await;
    }
    servers.into_iter().map(|(server, _)| server).collect()
}

/// Adds a replica of the first primary.
pub async fn add_replica(servers: &[RedisServer], arguments: &[&str]) -> RedisServer {
    let (replica, bus_port) = start_member(arguments).await;
    let first: String = servers[0].ask(redis::cmd("CLUSTER").arg("MYID")).await;
    let () =
        servers[0].ask(redis::cmd("CLUSTER").arg("MEET").arg("127.0.0.1").arg(replica.port()).arg(&bus_port)).await;
    until("the replica knows the first primary", async || {
        replica.ask::<String>(redis::cmd("CLUSTER").arg("NODES")).await.contains(&first)
    })
    .await;
    until("the replica accepts REPLICATE", async || {
        replica.try_ask::<()>(redis::cmd("CLUSTER").arg("REPLICATE").arg(&first)).await.is_ok()
    })
    .await;
    until("replication is up", async || replica.info("replication").await.contains("master_link_status:up")).await;
    for server in servers {
        let knows = async || server.ask::<String>(redis::cmd("CLUSTER").arg("NODES")).await.contains("slave");
        until("all primaries know the replica", knows).await;
    }
    replica
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn redis_cluster_passes_the_store_contract() {
    let servers = start_cluster(&[]).await;
    let url = format!("redis-cluster://127.0.0.1:{},127.0.0.1:{}", servers[1].port(), servers[2].port());
    let new = |prefix: &str| {
        RedisStore::connect(&url, prefix, RedisOptions { timeout: STORE_TIMEOUT * 4, root_certificates: None }).unwrap()
    };
    sessions::claim_is_a_compare_and_set_on_the_owner(new("a")).await;
    sessions::touch_renews_the_ttl_of_owned_sessions(new("b")).await;
    sessions::only_the_owner_can_write(new("c")).await;
    sessions::events_before_keep_from_are_trimmed(new("d")).await;
    sessions::events_may_be_large_and_binary(new("e")).await;
    sessions::a_batch_write_reports_each_session(new("f")).await;
    nodes::a_node_is_alive_until_its_lease_expires(new("g")).await;
    nodes::a_new_incarnation_replaces_the_old_one(new("h")).await;
    nodes::members_are_the_nodes_with_a_lease(new("i")).await;
    nodes::messages_are_received_in_order_and_once(new("j")).await;
    nodes::a_waiting_receiver_is_woken_by_a_send(new("k")).await;
    nodes::a_cancelled_receive_loses_no_message(new("l")).await;
    nodes::the_first_shared_key_wins(new("m")).await;
    for server in &servers {
        let lives = server.key_ttls().await;
        assert!(lives.len() > 10, "{lives:?}");
        assert!(lives.iter().all(|(_, life)| *life > 0), "{lives:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sentinel_resolves_the_primary() {
    let server = RedisServer::start(RedisFlavor::Redis).await;
    let folder = std::env::temp_dir().join(format!("rialto-sentinel-{}", server.port()));
    std::fs::create_dir_all(&folder).unwrap();
    let file = folder.join("sentinel.conf");
    std::fs::write(&file, format!("sentinel monitor main 127.0.0.1 {} 1\n", server.port())).unwrap();
    let sentinel = RedisServer::sentinel(&file).await;
    let url = format!("redis-sentinel://127.0.0.1:1,127.0.0.1:{}/main", sentinel.port());
    let store =
        RedisStore::connect(&url, "rialto", RedisOptions { timeout: STORE_TIMEOUT * 4, root_certificates: None })
            .unwrap();
    assert!(store.create("s", &NodeId::generate("a"), Bytes::new(), LONG_TTL).await.unwrap());
    assert!(server.store().load("s").await.unwrap().is_some());
    nodes::messages_are_received_in_order_and_once(Arc::clone(&store) as _).await;
    let unknown = RedisStore::connect(&url.replace("/main", "/other"), "rialto", RedisOptions::default()).unwrap();
    assert!(unknown.members().await.is_err());
    std::fs::remove_dir_all(folder).unwrap();
}
