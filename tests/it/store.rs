//! What every store does: one suite, for the store in memory, for Redis and for Valkey.

mod cluster;
pub mod failover;
mod faults;
mod model;
mod nodes;
mod sessions;
mod sizes;

use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use rialto::store::traits::{SessionDelta, StoredEvent};
use rialto::store::{ClusterStore, EventId, Memory};

use crate::harness::PATIENCE;
use crate::redis::{Program, Server};

/// Longer than any test takes.
const LONG: Duration = Duration::from_secs(60);
/// A life whose end a test waits for.
const SHORT: Duration = Duration::from_millis(150);

/// Waits until something holds.
async fn until<F: Future<Output = bool>>(what: &str, holds: impl Fn() -> F) {
    let begun = Instant::now();
    while !holds().await {
        assert!(begun.elapsed() < PATIENCE, "it never came to be that {what}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

fn event(stream: u32, position: u64, bytes: impl Into<Bytes>) -> StoredEvent {
    StoredEvent {
        id: EventId { stream, position },
        at: 1_700_000_000_000_u64.wrapping_add(position),
        event: bytes.into(),
    }
}

fn news(events: Vec<StoredEvent>) -> SessionDelta {
    SessionDelta { record: None, version: 0, events, keep_from: 0, life: LONG }
}

fn one(id: &str, news: SessionDelta) -> Vec<(String, SessionDelta)> {
    vec![(id.to_owned(), news)]
}

/// Runs each of these for every store. With a server, nothing may be there without an end to its life.
macro_rules! for_every_store {
    ($($module:ident::$name:ident),* $(,)?) => {
        mod memory {
            $(#[tokio::test]
            async fn $name() {
                let store: Arc<dyn super::ClusterStore> = super::Memory::new();
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
                let server = super::Server::start(super::Program::$program).await;
                super::$module::$name(server.store()).await;
                for (key, life) in server.lives().await {
                    assert!(life > 0, "{key} is kept for ever");
                }
            })*
        }
    };
}

for_every_store! {
    sessions::a_session_is_created_once,
    sessions::only_the_owner_of_the_moment_can_be_replaced,
    sessions::touching_keeps_sessions,
    sessions::a_session_ends_with_its_life,
    sessions::deleting_takes_the_events_along,
    sessions::writing_is_for_the_owner,
    sessions::a_record_that_comes_late_is_not_kept,
    sessions::old_events_go,
    sessions::events_may_be_large_and_of_any_bytes,
    sessions::many_sessions_are_written_at_once,
    sessions::names_may_have_any_letters,
    nodes::a_node_lives_as_long_as_it_beats,
    nodes::a_name_has_one_node,
    nodes::leaving_frees_the_name,
    nodes::a_place_has_one_node,
    nodes::members_are_those_who_are_there,
    nodes::messages_come_in_order_and_once,
    nodes::replies_come_like_other_messages,
    nodes::two_who_receive_share_the_messages,
    nodes::one_who_waits_is_woken,
    nodes::one_who_gave_up_waiting_loses_nothing,
    nodes::what_was_not_taken_can_be_taken_back,
    nodes::messages_do_not_wait_for_ever,
    nodes::beating_keeps_the_mailbox,
    nodes::the_first_secret_is_the_secret,
}
