//! Store contract: one suite, run against the in-memory store, Redis and Valkey.

mod limits;
mod memory_usage;
mod model_check;
mod nodes;
mod redis_cluster;
pub mod redis_failover;
mod redis_faults;
mod sessions;

use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use rialto::store::traits::{SessionDelta, StoredEvent};
use rialto::store::{ClusterStore, EventId, MemoryStore};

use crate::harness::TEST_TIMEOUT;
use crate::redis::{RedisFlavor, RedisServer};

/// TTL that outlives every test.
const LONG_TTL: Duration = Duration::from_secs(60);
/// TTL whose expiry a test waits for.
const SHORT_TTL: Duration = Duration::from_millis(150);
/// TTL whose expiry a test waits for, after commands that take their time on a busy machine.
const EXPIRING_TTL: Duration = Duration::from_secs(3);

/// Polls an async condition every 10 ms; panics with `what` after [`TEST_TIMEOUT`].
async fn until<F: Future<Output = bool>>(what: &str, holds: impl Fn() -> F) {
    let started = Instant::now();
    while !holds().await {
        assert!(started.elapsed() < TEST_TIMEOUT, "never: {what}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

fn event(stream: u32, position: u64, bytes: impl Into<Bytes>) -> StoredEvent {
    StoredEvent {
        id: EventId { stream, position },
        at_ms: 1_700_000_000_000_u64.wrapping_add(position),
        event: bytes.into(),
    }
}

fn delta(events: Vec<StoredEvent>) -> SessionDelta {
    SessionDelta { record: None, version: 0, events, trim_before: 0, ttl: LONG_TTL }
}

fn batch(id: &str, delta: SessionDelta) -> Vec<(String, SessionDelta)> {
    vec![(id.to_owned(), delta)]
}

/// Runs each contract test against every store. On a server, every key must have a TTL afterwards.
macro_rules! for_every_store {
    ($($module:ident::$name:ident),* $(,)?) => {
        mod memory {
            $(#[tokio::test]
            async fn $name() {
                let store: Arc<dyn super::ClusterStore> = super::MemoryStore::new();
                super::$module::$name(store).await;
            })*
            use super::Arc;
        }
        for_every_store!(redis, Redis, $($module::$name),*);
        for_every_store!(valkey, Valkey, $($module::$name),*);
    };
    ($server:ident, $program:ident, $($module:ident::$name:ident),*) => {
        mod $server {
            $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $name() {
                let server = super::RedisServer::start(super::RedisFlavor::$program).await;
                super::$module::$name(server.store()).await;
                for (key, life) in server.key_ttls().await {
                    assert!(life > 0, "{key} has no TTL");
                }
            })*
        }
    };
}

for_every_store! {
    sessions::create_is_refused_for_an_existing_session,
    sessions::claim_is_a_compare_and_set_on_the_owner,
    sessions::touch_renews_the_ttl_of_owned_sessions,
    sessions::a_session_expires_with_its_events,
    sessions::delete_leaves_a_tombstone_and_no_events,
    sessions::only_the_owner_can_write,
    sessions::a_record_with_an_older_version_is_ignored,
    sessions::changes_are_kept_beside_the_record_until_it_is_written_whole,
    sessions::events_before_keep_from_are_trimmed,
    sessions::events_may_be_large_and_binary,
    sessions::a_batch_write_reports_each_session,
    sessions::ids_and_node_names_may_contain_any_character,
    limits::a_bucket_gives_its_burst_and_what_comes_back,
    limits::a_quota_is_counted_by_window,
    limits::tokens_are_given_by_the_lesser_of_rate_and_quota,
    nodes::a_node_is_alive_until_its_lease_expires,
    nodes::a_new_incarnation_replaces_the_old_one,
    nodes::a_full_mailbox_refuses_requests_and_takes_replies,
    nodes::leave_ends_the_lease_at_once,
    nodes::a_place_is_held_by_one_node,
    nodes::members_are_the_nodes_with_a_lease,
    nodes::messages_are_received_in_order_and_once,
    nodes::replies_share_the_mailbox_with_messages,
    nodes::two_receivers_share_a_mailbox_without_duplicates,
    nodes::a_waiting_receiver_is_woken_by_a_send,
    nodes::a_cancelled_receive_loses_no_message,
    nodes::unsend_removes_a_message_that_was_not_received,
    nodes::messages_expire,
    nodes::heartbeat_renews_the_mailbox,
    nodes::the_first_shared_key_wins,
}
