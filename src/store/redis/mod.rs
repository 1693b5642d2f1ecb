//! A store in Redis or Valkey, which nodes on many machines share. It takes Redis 7.0 or later.
//!
//! Nothing here fails because Redis is not there: each thing that is asked of it is answered in bounded
//! time, if need be by [`Away`], and the connection comes back by itself. What was asked when a connection
//! broke may have been done or not, or be done later. Writing the same events again is harmless, and so is a
//! record that comes late; a message is never handed out twice, and may be lost with the connection. In a Cluster the library repeats what it asked when a
//! connection breaks: there a message may be sent twice, and one who created or claimed a session may hear
//! that it was there already, or another's, and has to look.
//!
//! All that belongs to one call goes in one round trip. What is kept where is told in `keys.rs`.

mod address;
mod connection;
mod error;
mod keys;
mod nodes;
mod scripts;
mod sessions;

use std::collections::HashMap;
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use redis::{FromRedisValue, Value};
use tokio::runtime::Handle;

pub use address::{FORMS, RedisAddress};

use super::{ClusterStore, NodeId, StoreError};
use connection::{LazyConnection, RedisServer};
use error::RedisFailure;
use keys::RedisKeys;
use nodes::Receiver;

/// A store in Redis.
pub struct Redis {
    server: Arc<RedisServer>,
    keys: RedisKeys,
    link: LazyConnection,
    /// Those who wait for messages: each blocks a connection of its own.
    receivers: Mutex<HashMap<NodeId, Arc<Receiver>>>,
}

/// How Redis is used.
#[derive(Debug, Clone)]
pub struct RedisOptions {
    /// How long it may take to answer.
    pub timeout: Duration,
    /// Certificates to trust, in PEM, instead of those that the system does.
    pub roots: Option<Vec<u8>>,
}

/// The longest that anything is kept: what is meant to last has no end that a person would see.
const LONGEST: Duration = Duration::from_secs(100 * 365 * 86_400);

// === impl Redis ===

impl Redis {
    /// The store at a URL, with a prefix for all its keys. Nothing is connected yet.
    ///
    /// # Errors
    /// When the URL is none; whether anybody is there shows when something is asked.
    pub fn connect(url: &str, prefix: &str, options: RedisOptions) -> Result<Arc<Self>, &'static str> {
        let RedisOptions { timeout, roots } = options;
        let (address, trips, full) = (RedisAddress::parse(url)?, AtomicU64::new(0), AtomicBool::new(false));
        let (runtime, openings) = (Handle::try_current().ok(), AtomicU64::new(0));
        let server = Arc::new(RedisServer { address, timeout, runtime, roots, trips, openings, full });
        let link = LazyConnection::new(Arc::clone(&server), Duration::ZERO);
        Ok(Arc::new(Self { server, keys: RedisKeys::new(prefix), link, receivers: Mutex::default() }))
    }

    /// Where it is, without the password.
    pub fn address(&self) -> &RedisAddress {
        &self.server.address
    }

    /// Reads an answer.
    fn read<T: FromRedisValue>(&self, value: Value) -> Result<T, StoreError> {
        redis::from_redis_value(value).map_err(|_| RedisFailure::unexpected(&self.server).away)
    }

    /// Reads the answer to the only command.
    fn only<T: FromRedisValue>(&self, mut values: Vec<Value>) -> Result<T, StoreError> {
        self.read(values.pop().unwrap_or(Value::Nil))
    }
}

impl ClusterStore for Redis {
    fn round_trips(&self) -> u64 {
        self.server.trips.load(Ordering::Relaxed)
    }

    fn connects(&self) -> u64 {
        self.server.openings.load(Ordering::Relaxed)
    }

    fn is_full(&self) -> bool {
        self.server.full.load(Ordering::Relaxed)
    }

    fn place_name(&self) -> String {
        self.server.address.to_string()
    }
}

impl Default for RedisOptions {
    fn default() -> Self {
        Self { timeout: Duration::from_secs(2), roots: None }
    }
}

impl fmt::Debug for Redis {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Redis").field("address", &self.server.address).field("keys", &self.keys).finish_non_exhaustive()
    }
}

/// A time as Redis takes it; nothing can be kept for no time at all.
fn millis(life: Duration) -> u64 {
    u64::try_from(life.min(LONGEST).as_millis()).unwrap_or(u64::MAX).max(1)
}
