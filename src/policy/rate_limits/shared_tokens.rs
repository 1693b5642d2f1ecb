//! Tokens of a bucket in the store, which a node fetches in batches, spends here and gives back if it does not need them.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

use super::buckets::{BucketId, TokenSource};
use super::rule::LimitRule;
use crate::store::ClusterStore;
use crate::store::traits::{BucketRate, QuotaUse, SharedBucket};

/// The store's side of the limits of one node.
#[derive(Debug)]
pub(super) struct SharedTokens {
    pub(super) store: Arc<dyn ClusterStore>,
    /// The last known number of nodes.
    nodes: AtomicU64,
    /// The store did not answer; each node enforces its share until it does.
    is_away: AtomicBool,
    /// Requests that were decided without the store.
    decided_alone: AtomicU64,
    /// One fetch at a time for each bucket, or for a few.
    fetch_locks: Vec<tokio::sync::Mutex<()>>,
    /// Batches in the order in which they were fetched.
    fetched: Mutex<VecDeque<FetchedBatch>>,
}

/// A batch that was fetched, of which tokens may be left.
#[derive(Debug)]
pub(super) struct FetchedBatch {
    pub(super) id: BucketId,
    pub(super) key: String,
    pub(super) bucket: SharedBucket,
    fetched_at: Instant,
}

/// How long a node keeps tokens that it does not spend.
const BATCH_LIFETIME: Duration = Duration::from_secs(1);
/// Locks for fetches.
const FETCH_LOCKS: usize = 64;

impl SharedTokens {
    pub(super) fn new(store: Arc<dyn ClusterStore>) -> Self {
        Self {
            store,
            nodes: AtomicU64::new(1),
            is_away: AtomicBool::new(false),
            decided_alone: AtomicU64::new(0),
            fetch_locks: (0..FETCH_LOCKS).map(|_| tokio::sync::Mutex::default()).collect(),
            fetched: Mutex::default(),
        }
    }

    /// Where tokens come from now.
    pub(super) fn source(&self) -> TokenSource {
        let nodes = self.nodes.load(Ordering::Relaxed);
        match self.is_away() {
            true => TokenSource::Here(nodes),
            false => TokenSource::Store(nodes),
        }
    }

    pub(super) fn is_away(&self) -> bool {
        self.is_away.load(Ordering::Relaxed)
    }

    /// Requests that were decided without the store.
    pub(super) fn decided_alone(&self) -> u64 {
        self.decided_alone.load(Ordering::Relaxed)
    }

    /// Counts a request if the store is away.
    pub(super) fn count_decision(&self) {
        if self.is_away() {
            self.decided_alone.fetch_add(1, Ordering::Relaxed);
        }
    }

    pub(super) fn set_away(&self, error: &crate::store::StoreError) {
        if !self.is_away.swap(true, Ordering::Relaxed) {
            let nodes = self.nodes.load(Ordering::Relaxed);
            tracing::warn!(%error, nodes, "rate limits cannot be shared; this node enforces its share of them");
        }
    }

    /// The lock that fetches of a bucket take.
    pub(super) fn fetch_lock(&self, id: BucketId) -> &tokio::sync::Mutex<()> {
        &self.fetch_locks[usize::try_from(id % FETCH_LOCKS as u128).unwrap_or(0)]
    }

    /// Remembers that a batch was fetched, so that what is left of it is given back.
    pub(super) fn remember(&self, id: BucketId, key: String, bucket: SharedBucket) {
        self.fetched.lock().push_back(FetchedBatch { id, key, bucket, fetched_at: Instant::now() });
    }

    /// Takes out a batch that is due to be given back.
    pub(super) fn next_due(&self) -> Option<FetchedBatch> {
        let is_due = |batch: &mut FetchedBatch| batch.fetched_at.elapsed() >= BATCH_LIFETIME;
        self.fetched.lock().pop_front_if(is_due)
    }

    /// Takes out the oldest batch.
    pub(super) fn next_of_all(&self) -> Option<FetchedBatch> {
        self.fetched.lock().pop_front()
    }

    /// Asks how many nodes there are, which also tells whether the store is back.
    pub(super) async fn count_nodes(&self) {
        match self.store.members().await {
            Ok(members) => {
                self.nodes.store(u64::try_from(members.len()).unwrap_or(1).max(1), Ordering::Relaxed);
                // A store without room answers, and yet refuses to give tokens.
                if !self.store.is_full() && self.is_away.swap(false, Ordering::Relaxed) {
                    tracing::info!("rate limits are shared again");
                }
            }
            Err(error) => self.set_away(&error),
        }
    }
}

/// What a limit allows, as the store counts it in this window.
pub(super) fn shared_bucket(rule: &LimitRule, unix: u64) -> SharedBucket {
    let window = rule.quota.map(|quota| {
        let (start, end) = quota.window.around(unix);
        QuotaUse { start, limit: quota.count, ends_in: Duration::from_secs(end.saturating_sub(unix)) }
    });
    let rate =
        rule.rate.map(|rate| BucketRate { interval: Duration::from_nanos(rate.interval_nanos()), burst: rate.burst });
    SharedBucket { rate, window }
}
