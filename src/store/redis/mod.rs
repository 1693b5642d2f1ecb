//! Shared store in Redis (7.0 or later) or Valkey.
//!
//! Every operation completes in bounded time, with [`StoreError`] when Redis is unavailable; the connection is
//! reopened on demand. An operation in progress when a connection breaks may have been applied or not, or be
//! applied later. Repeated event writes and late records are harmless. A message is never delivered twice, but may
//! be lost with the connection.
//!
//! In a Redis Cluster the client library retries commands when a connection breaks: a message may be sent twice,
//! and `create` or `claim` may report a conflict with their own first attempt, so callers must load the session to
//! find out.
//!
//! Each operation takes one round trip. `keys.rs` lists the keys.

mod address;
mod connection;
mod error;
mod keys;
mod limits;
mod nodes;
mod scripts;
mod sessions;

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use redis::{FromRedisValue, Value};
use tokio::runtime::Handle;

pub use address::{REDIS_URL_FORMS, RedisAddress};

use super::{ClusterStore, NodeId, StoreError};
use crate::metrics::{Histogram, HistogramPoint, SharedCounter};
use connection::{ConnectionRole, LazyConnection, RedisServer};
use error::RedisFailure;
use keys::RedisKeys;
use nodes::MailboxReceiver;

/// A [`ClusterStore`] in Redis.
pub struct RedisStore {
    server: Arc<RedisServer>,
    keys: RedisKeys,
    connection: LazyConnection,
    /// For heartbeats alone: a lease must not be lost because the other connection is busy.
    heartbeat_connection: LazyConnection,
    /// Mailbox receivers; each blocks a connection of its own.
    receivers: Mutex<HashMap<NodeId, Arc<MailboxReceiver>>>,
}

/// Connection options.
#[derive(Debug, Clone)]
pub struct RedisOptions {
    /// Timeout of an operation.
    pub timeout: Duration,
    /// Trusted root certificates in PEM, in place of the system's.
    pub root_certificates: Option<Vec<u8>>,
}

/// Buckets of the durations of commands, in nanoseconds.
const STORE_BOUNDS: [u64; 12] = [
    250_000,
    500_000,
    1_000_000,
    2_500_000,
    5_000_000,
    10_000_000,
    25_000_000,
    50_000_000,
    100_000_000,
    250_000_000,
    500_000_000,
    1_000_000_000,
];
/// Cap on key expiry (100 years), which keeps the value in Redis's range.
const MAX_TTL: Duration = Duration::from_secs(100 * 365 * 86_400);

// === impl RedisStore ===

impl RedisStore {
    /// Creates a store for a URL; all keys get the prefix. Connects on first use.
    ///
    /// # Errors
    /// When the URL is malformed.
    pub fn connect(url: &str, prefix: &str, options: RedisOptions) -> Result<Arc<Self>, &'static str> {
        let RedisOptions { timeout, root_certificates } = options;
        let (address, round_trips, out_of_memory) =
            (RedisAddress::parse(url)?, AtomicU64::new(0), AtomicBool::new(false));
        let (runtime, reconnects) = (Handle::try_current().ok(), AtomicU64::new(0));
        let server = Arc::new(RedisServer {
            address,
            timeout,
            runtime,
            root_certificates,
            round_trips,
            durations: Histogram::new(&STORE_BOUNDS),
            errors: SharedCounter::new(),
            reconnects,
            out_of_memory,
        });
        let connection = LazyConnection::new(Arc::clone(&server), ConnectionRole::Data);
        let heartbeat_connection = LazyConnection::new(Arc::clone(&server), ConnectionRole::Heartbeat);
        let (keys, receivers) = (RedisKeys::new(prefix), Mutex::default());
        Ok(Arc::new(Self { server, keys, connection, heartbeat_connection, receivers }))
    }

    /// Address of the server; its `Display` redacts the password.
    pub fn address(&self) -> &RedisAddress {
        &self.server.address
    }

    /// Decodes one reply.
    fn decode_reply<T: FromRedisValue>(&self, value: Value) -> Result<T, StoreError> {
        redis::from_redis_value(value).map_err(|_| RedisFailure::unexpected_reply(&self.server).error)
    }

    /// Decodes the reply of a single-command operation.
    fn decode_single<T: FromRedisValue>(&self, mut values: Vec<Value>) -> Result<T, StoreError> {
        self.decode_reply(values.pop().unwrap_or(Value::Nil))
    }
}

impl ClusterStore for RedisStore {
    fn round_trips(&self) -> u64 {
        self.server.round_trips.load(Ordering::Relaxed)
    }

    fn reconnects(&self) -> u64 {
        self.server.reconnects.load(Ordering::Relaxed)
    }

    fn command_durations(&self) -> Option<HistogramPoint> {
        Some(self.server.durations.read())
    }

    fn errors(&self) -> u64 {
        self.server.errors.value()
    }

    fn is_full(&self) -> bool {
        self.server.out_of_memory.load(Ordering::Relaxed)
    }

    fn location(&self) -> String {
        self.server.address.to_string()
    }
}

impl Default for RedisOptions {
    fn default() -> Self {
        Self { timeout: Duration::from_secs(2), root_certificates: None }
    }
}

impl fmt::Debug for RedisStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedisStore")
            .field("address", &self.server.address)
            .field("keys", &self.keys)
            .finish_non_exhaustive()
    }
}

/// Expiry in milliseconds, at least 1: Redis refuses 0.
fn ttl_millis(ttl: Duration) -> u64 {
    u64::try_from(ttl.min(MAX_TTL).as_millis()).unwrap_or(u64::MAX).max(1)
}
