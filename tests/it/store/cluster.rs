//! Redis Cluster, and Sentinels.

use std::sync::Arc;

use bytes::Bytes;
use rialto::store::redis::RedisOptions;
use rialto::store::traits::{NodeStore, SessionStore};
use rialto::store::{NodeId, Redis};

use super::{LONG, nodes, sessions, until};
use crate::redis::{Program, Server, TIMEOUT};

/// A port for what servers tell one another.
fn bus() -> String {
    std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port().to_string()
}

/// Three servers that share the slots.
pub async fn cluster(arguments: &[&str]) -> Vec<Server> {
    let mut servers = Vec::new();
    for slots in [[0, 5460], [5461, 10922], [10923, 16383]] {
        let bus = bus();
        let more = ["--cluster-enabled", "yes", "--cluster-port", &bus];
        let server = Server::with(Program::Redis, &[&more, arguments].concat()).await;
        let () = server.ask(redis::cmd("CLUSTER").arg("ADDSLOTSRANGE").arg(&slots)).await;
        let first: &Server = servers.first().map_or(&server, |(first, _)| first);
        let () = server.ask(redis::cmd("CLUSTER").arg("SET-CONFIG-EPOCH").arg(servers.len() + 1)).await;
        if !servers.is_empty() {
            let bus = &servers[0].1;
            let meet = &mut redis::cmd("CLUSTER");
            let () = server.ask(meet.arg("MEET").arg("127.0.0.1").arg(first.port()).arg(bus)).await;
        }
        servers.push((server, bus));
    }
    for (server, _) in &servers {
        let whole = async || {
            let told: String = server.ask(redis::cmd("CLUSTER").arg("INFO")).await;
            told.contains("cluster_state:ok") && told.contains("cluster_known_nodes:3")
        };
        until("the nodes know one another", whole).await;
    }
    servers.into_iter().map(|(server, _)| server).collect()
}

/// One more, which follows the first and can take its place.
pub async fn whole(servers: &[Server], arguments: &[&str]) -> Server {
    let bus = bus();
    let more = ["--cluster-enabled", "yes", "--cluster-port", &bus];
    let replica = Server::with(Program::Redis, &[&more, arguments].concat()).await;
    let first: String = servers[0].ask(redis::cmd("CLUSTER").arg("MYID")).await;
    let () = servers[0].ask(redis::cmd("CLUSTER").arg("MEET").arg("127.0.0.1").arg(replica.port()).arg(&bus)).await;
    until("it knows the first", async || {
        replica.ask::<String>(redis::cmd("CLUSTER").arg("NODES")).await.contains(&first)
    })
    .await;
    until("it may follow", async || {
        replica.try_ask::<()>(redis::cmd("CLUSTER").arg("REPLICATE").arg(&first)).await.is_ok()
    })
    .await;
    until("it follows", async || replica.tells("replication").await.contains("master_link_status:up")).await;
    for server in servers {
        let knows = async || server.ask::<String>(redis::cmd("CLUSTER").arg("NODES")).await.contains("slave");
        until("all know it", knows).await;
    }
    replica
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cluster_does_the_same() {
    let servers = cluster(&[]).await;
    let url = format!("redis-cluster://127.0.0.1:{},127.0.0.1:{}", servers[1].port(), servers[2].port());
    let new = |prefix: &str| Redis::connect(&url, prefix, RedisOptions { timeout: TIMEOUT * 4, roots: None }).unwrap();
    sessions::only_the_owner_of_the_moment_can_be_replaced(new("a")).await;
    sessions::touching_keeps_sessions(new("b")).await;
    sessions::writing_is_for_the_owner(new("c")).await;
    sessions::old_events_go(new("d")).await;
    sessions::events_may_be_large_and_of_any_bytes(new("e")).await;
    sessions::many_sessions_are_written_at_once(new("f")).await;
    nodes::a_node_lives_as_long_as_it_beats(new("g")).await;
    nodes::a_name_has_one_node(new("h")).await;
    nodes::members_are_those_who_are_there(new("i")).await;
    nodes::messages_come_in_order_and_once(new("j")).await;
    nodes::one_who_waits_is_woken(new("k")).await;
    nodes::one_who_gave_up_waiting_loses_nothing(new("l")).await;
    nodes::the_first_secret_is_the_secret(new("m")).await;
    for server in &servers {
        let lives = server.lives().await;
        assert!(lives.len() > 10, "{lives:?}");
        assert!(lives.iter().all(|(_, life)| *life > 0), "{lives:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sentinels_say_where_the_server_is() {
    let server = Server::start(Program::Redis).await;
    let folder = std::env::temp_dir().join(format!("rialto-sentinel-{}", server.port()));
    std::fs::create_dir_all(&folder).unwrap();
    let file = folder.join("sentinel.conf");
    std::fs::write(&file, format!("sentinel monitor main 127.0.0.1 {} 1\n", server.port())).unwrap();
    let sentinel = Server::sentinel(&file).await;
    let url = format!("redis-sentinel://127.0.0.1:1,127.0.0.1:{}/main", sentinel.port());
    let store = Redis::connect(&url, "rialto", RedisOptions { timeout: TIMEOUT * 4, roots: None }).unwrap();
    assert!(store.create("s", &NodeId::begin("a"), Bytes::new(), LONG).await.unwrap());
    assert!(server.store().load("s").await.unwrap().is_some());
    nodes::messages_come_in_order_and_once(Arc::clone(&store) as _).await;
    let unknown = Redis::connect(&url.replace("/main", "/other"), "rialto", RedisOptions::default()).unwrap();
    assert!(unknown.members().await.is_err());
    std::fs::remove_dir_all(folder).unwrap();
}
