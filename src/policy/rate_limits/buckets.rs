//! The buckets of all limits on this node, found by a digest of the limit and of whom they are for.

use std::time::Duration;

use foldhash::HashMap;
use parking_lot::{Mutex, MutexGuard};

use super::gcra::Gcra;
use super::rule::{CallQuota, LimitRule};

/// Digest of a limit and of whom a bucket is for.
pub(super) type BucketId = u128;

/// What one caller, tool or whatever a limit counts by has used.
#[derive(Debug, Default)]
pub(super) struct Bucket {
    /// The limit, by its number.
    pub(super) limit: u32,
    /// When the bucket is full again, in nanoseconds since the start.
    pub(super) full_at: u64,
    pub(super) in_flight: usize,
    /// The window of the quota: start and end in seconds since the Unix epoch.
    pub(super) window: (u64, u64),
    /// Requests in that window. Where the store counts them, those of this node.
    pub(super) used: u64,
    /// Tokens that were fetched from the store and not spent.
    pub(super) batch: u32,
    /// When they were fetched.
    pub(super) fetched_at: u64,
    /// Until when the store has none, as it said.
    pub(super) empty_until: u64,
    /// When it may be asked again nevertheless: others may give tokens back.
    pub(super) ask_at: u64,
}

/// A moment on both clocks.
#[derive(Debug, Clone, Copy)]
pub(super) struct Moment {
    /// Nanoseconds since the start, on the clock of the runtime.
    pub(super) nanos: u64,
    /// Seconds since the Unix epoch.
    pub(super) unix: u64,
}

/// Where tokens come from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum TokenSource {
    /// This bucket, which stands for one of this many nodes.
    Here(u64),
    /// The store, by batches; this many nodes share it.
    Store(u64),
}

/// Why a bucket has no room.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Shortage {
    /// Try again after this time.
    For(Duration),
    /// The store must be asked.
    NotFetched,
}

/// All buckets, in maps by their digest so that callers seldom wait for one another.
#[derive(Debug)]
pub(super) struct BucketTable {
    shards: Vec<Mutex<HashMap<BucketId, Bucket>>>,
    /// Most buckets in a shard.
    shard_capacity: usize,
}

/// Most buckets of a process.
pub(super) const MAX_BUCKETS: usize = 100_000;
/// Number of maps.
const BUCKET_SHARDS: usize = 64;
/// What is advised where nobody knows when a request will end.
const IN_FLIGHT_RETRY: Duration = Duration::from_secs(1);

impl Bucket {
    /// Takes one request's share; all of it or nothing. It is in flight until [`Self::end`].
    ///
    /// # Errors
    /// When there is no room.
    pub(super) fn take(&mut self, rule: &LimitRule, now: Moment, source: TokenSource) -> Result<(), Shortage> {
        if rule.max_in_flight.is_some_and(|most| self.in_flight >= most) {
            return Err(Shortage::For(IN_FLIGHT_RETRY));
        }
        self.take_tokens(rule, now, source)?;
        self.in_flight += 1;
        Ok(())
    }

    /// Takes the tokens of one request that goes on with one in flight.
    ///
    /// # Errors
    /// When there are none.
    pub(super) fn take_tokens(&mut self, rule: &LimitRule, now: Moment, source: TokenSource) -> Result<(), Shortage> {
        if let Some(quota) = rule.quota {
            self.enter_window(quota, now.unix);
        }
        match source {
            TokenSource::Here(nodes) => self.take_here(rule, now, nodes),
            TokenSource::Store(nodes) if rule.has_tokens() => self.take_fetched(rule, now, nodes),
            TokenSource::Store(_) => Ok(()),
        }
    }

    fn take_here(&mut self, rule: &LimitRule, now: Moment, nodes: u64) -> Result<(), Shortage> {
        if let Some(quota) = rule.quota
            && self.used >= (quota.count / nodes.max(1)).max(1)
        {
            return Err(Shortage::For(Duration::from_secs(self.window.1.saturating_sub(now.unix))));
        }
        if let Some(rate) = rule.gcra() {
            rate.divided_by(nodes).take(&mut self.full_at, now.nanos).map_err(Shortage::For)?;
        }
        self.used += 1;
        Ok(())
    }

    fn take_fetched(&mut self, rule: &LimitRule, now: Moment, nodes: u64) -> Result<(), Shortage> {
        if self.batch == 0 {
            return Err(match now.nanos < self.ask_at {
                true => Shortage::For(Duration::from_nanos(self.empty_until.saturating_sub(now.nanos))),
                false => Shortage::NotFetched,
            });
        }
        self.batch -= 1;
        self.used += 1;
        if let Some(rate) = rule.gcra() {
            rate.divided_by(nodes).follow(&mut self.full_at, now.nanos);
        }
        Ok(())
    }

    /// Gives the tokens of one request back. It stays in flight until [`Self::end`].
    pub(super) fn give_back(&mut self, rule: &LimitRule, source: TokenSource) {
        self.used = self.used.saturating_sub(1);
        let (nodes, is_fetched) = match source {
            TokenSource::Here(nodes) => (nodes, false),
            TokenSource::Store(nodes) => (nodes, true),
        };
        if let Some(rate) = rule.gcra() {
            rate.divided_by(nodes).give_back(&mut self.full_at);
        }
        if is_fetched && rule.has_tokens() {
            self.batch += 1;
        }
    }

    /// A request has ended.
    pub(super) fn end(&mut self) {
        self.in_flight = self.in_flight.saturating_sub(1);
    }

    /// Begins a new window if the last one is over. Tokens of the last one are worth nothing in it.
    pub(super) fn enter_window(&mut self, quota: CallQuota, unix: u64) {
        if unix < self.window.0 || unix >= self.window.1 {
            self.window = quota.window.around(unix);
            (self.used, self.batch, self.ask_at) = (0, 0, 0);
        }
    }

    /// Fills it, for another rate or quota. What is in flight stays so.
    fn refill(&mut self) {
        *self = Self { limit: self.limit, in_flight: self.in_flight, ..Self::default() };
    }

    /// Whether nothing is lost if it is forgotten.
    fn is_unused(&self, now: Moment) -> bool {
        let is_counted = self.used > 0 && now.unix < self.window.1;
        self.in_flight == 0 && self.batch == 0 && self.full_at <= now.nanos && !is_counted
    }

    /// Tokens that are missing from a full bucket of this rate.
    pub(super) fn missing(&self, rate: Gcra, now: Moment) -> u64 {
        rate.missing(self.full_at, now.nanos)
    }
}

impl BucketTable {
    pub(super) fn new(capacity: usize) -> Self {
        let shards = (0..BUCKET_SHARDS).map(|_| Mutex::default()).collect();
        Self { shards, shard_capacity: (capacity / BUCKET_SHARDS).max(1) }
    }

    fn shard(&self, id: BucketId) -> MutexGuard<'_, HashMap<BucketId, Bucket>> {
        let shard = usize::try_from(id % BUCKET_SHARDS as u128).unwrap_or(0);
        self.shards[shard].lock()
    }

    /// Works on a bucket, which is a new and full one if there is none.
    pub(super) fn with<T>(&self, id: BucketId, limit: u32, now: Moment, work: impl FnOnce(&mut Bucket) -> T) -> T {
        let mut buckets = self.shard(id);
        if let Some(bucket) = buckets.get_mut(&id) {
            return work(bucket);
        }
        if buckets.len() >= self.shard_capacity {
            evict(&mut buckets, now);
        }
        work(buckets.entry(id).or_insert_with(|| Bucket { limit, ..Bucket::default() }))
    }

    /// Works on a bucket that is there.
    pub(super) fn with_known<T>(&self, id: BucketId, work: impl FnOnce(&mut Bucket) -> T) -> Option<T> {
        self.shard(id).get_mut(&id).map(work)
    }

    /// Looks at every bucket.
    pub(super) fn for_each(&self, mut look: impl FnMut(&Bucket)) {
        for shard in &self.shards {
            shard.lock().values().for_each(&mut look);
        }
    }

    /// Forgets the buckets of other limits than these, but those that requests are in flight in.
    pub(super) fn retain_limits(&self, is_kept: impl Fn(u32) -> bool) {
        for shard in &self.shards {
            shard.lock().retain(|_, bucket| is_kept(bucket.limit) || bucket.in_flight > 0);
        }
    }

    /// Fills the buckets of a limit.
    pub(super) fn refill(&self, limit: u32) {
        for shard in &self.shards {
            shard.lock().values_mut().filter(|bucket| bucket.limit == limit).for_each(Bucket::refill);
        }
    }

    /// Number of buckets.
    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.shards.iter().map(|shard| shard.lock().len()).sum()
    }
}

/// Makes room: forgets the buckets that are full, or else the one that is full soonest and has nothing in flight.
fn evict(buckets: &mut HashMap<BucketId, Bucket>, now: Moment) {
    let before = buckets.len();
    buckets.retain(|_, bucket| !bucket.is_unused(now));
    if buckets.len() < before {
        return;
    }
    let idle = buckets.iter().filter(|(_, bucket)| bucket.in_flight == 0);
    let soonest = idle.min_by_key(|(_, bucket)| (bucket.full_at, bucket.used)).map(|(id, _)| *id);
    if let Some(soonest) = soonest {
        buckets.remove(&soonest);
    }
}

#[cfg(test)]
mod tests {
    use super::super::rule::Rate;
    use super::*;

    const HERE: TokenSource = TokenSource::Here(1);

    fn at(seconds: u64) -> Moment {
        Moment { nanos: seconds * 1_000_000_000, unix: 1_000_000_000 + seconds }
    }

    #[test]
    fn full_buckets_are_forgotten_first() {
        let rule = LimitRule {
            rate: Some(Rate { count: 1, period: Duration::from_secs(1), burst: 10 }),
            ..LimitRule::new("a")
        };
        let table = BucketTable::new(3 * BUCKET_SHARDS);
        // All in one shard.
        let id = |n: u128| n * BUCKET_SHARDS as u128;
        let take = |n: u128, times: u32, now| {
            for _ in 0..times {
                table.with(id(n), 0, now, |bucket| bucket.take(&rule, now, HERE).map(|()| bucket.end())).unwrap();
            }
        };
        take(1, 8, at(0));
        take(2, 1, at(0));
        take(3, 5, at(0));
        assert_eq!(table.len(), 3);
        take(4, 1, at(2));
        assert!(table.with_known(id(2), |_| ()).is_none(), "it was full again");
        take(5, 9, at(2));
        assert!(table.with_known(id(4), |_| ()).is_none(), "none was full, and this one was nearest to it");
        assert_eq!(table.len(), 3);
        assert_eq!(table.with_known(id(1), |bucket| bucket.missing(rule.gcra().unwrap(), at(2))), Some(6));
    }

    #[test]
    fn a_bucket_with_requests_in_flight_stays() {
        let rule = LimitRule { max_in_flight: Some(1), ..LimitRule::new("a") };
        let table = BucketTable::new(BUCKET_SHARDS);
        let id = |n: u128| n * BUCKET_SHARDS as u128;
        table.with(id(1), 0, at(0), |bucket| bucket.take(&rule, at(0), HERE)).unwrap();
        table.with(id(2), 0, at(9), |bucket| bucket.take(&rule, at(9), HERE)).unwrap();
        let again = table.with(id(1), 0, at(9), |bucket| bucket.take(&rule, at(9), HERE));
        assert_eq!(again, Err(Shortage::For(IN_FLIGHT_RETRY)));
        table.with_known(id(1), Bucket::end);
        table.with(id(1), 0, at(9), |bucket| bucket.take(&rule, at(9), HERE)).unwrap();
        table.retain_limits(|_| false);
        assert_eq!(table.len(), 2, "both have a request in flight");
    }
}
