//! Rate limits, quotas and bounds of calls, by caller and target.
//!
//! A limit without targets counts every request, before it is routed; one with targets counts the calls of them, after
//! routing, where the upstream's own name is known. All limits that match must have room, and a request that one of them
//! rejects takes from none. Tokens come from buckets here or, in a cluster, in batches from the store.

mod buckets;
mod caller_limits;
mod gcra;
mod permit;
mod rule;
mod shared_tokens;
#[cfg(test)]
mod tests;
mod usage;
mod window;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use arc_swap::ArcSwap;
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use parking_lot::Mutex;
use sha2::{Digest, Sha256};
use tokio::time::Instant;

pub use permit::RatePermit;
pub use rule::{CallQuota, CalledTarget, LimitRule, LimitScope, Rate};
pub use usage::{LimitMeasure, LimitUsage, SharedLimitsUsage};
pub use window::QuotaWindow;

use crate::call::{CallLimits, Caller};
use crate::store::ClusterStore;
use buckets::{BucketTable, MAX_BUCKETS, Moment, Shortage, TokenSource};
use caller_limits::{CallerLimit, DigestKeys, LimitSet};
use permit::TakenShare;
use shared_tokens::{SharedTokens, shared_bucket};

/// The limits of a gateway with what is used of them.
#[derive(Debug)]
pub struct RateLimits {
    limits: ArcSwap<LimitSet>,
    /// Whether any limit counts requests, or counts or bounds calls: all that is read where none does.
    counts_requests: AtomicBool,
    judges_calls: AtomicBool,
    buckets: BucketTable,
    digest_keys: DigestKeys,
    started_at: Instant,
    unix_time: fn() -> u64,
    shared: Option<SharedTokens>,
    next_limit: AtomicU32,
    /// Serializes changes of the rules.
    changing: Mutex<()>,
}

/// A limit in use.
#[derive(Debug)]
struct ActiveLimit {
    /// Stays the same when a reload changes what the limit allows.
    number: u32,
    rule: LimitRule,
    rejections: Arc<AtomicU64>,
}

/// A request, or a call after routing, that limits are asked about.
#[derive(Debug, Clone, Copy)]
pub struct LimitedRequest<'c> {
    /// Who calls.
    pub caller: &'c Caller,
    /// The group that is called.
    pub group: &'c str,
    /// What is called; `None` before routing.
    pub target: Option<CalledTarget<'c>>,
    /// Whether it goes on with a call that is in flight already.
    pub resumes: bool,
}

/// A limit that does not admit a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LimitExceeded {
    /// The name of the limit.
    pub limit: Arc<str>,
    /// What there is too much of.
    pub excess: LimitExcess,
}

/// Why a limit does not admit a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LimitExcess {
    /// There are too many; try again after this time.
    Rate(Duration),
    /// The arguments have more bytes than this.
    ArgumentBytes(usize),
}

/// Why a request is not admitted at once.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NotAdmitted {
    /// It is rejected.
    Exceeded(LimitExceeded),
    /// The store must be asked, by [`RateLimits::admit`].
    StoreNeeded,
}

/// The share of an admitted request; `None` where no limit matches.
pub type AdmittedShare = Option<Arc<dyn CallLimits>>;

/// How often a request asks the store anew because others were faster to spend what it fetched.
const MAX_FETCH_ROUNDS: usize = 8;
/// How long an empty bucket in the store is not asked again.
const EMPTY_BUCKET_PAUSE: Duration = Duration::from_secs(1);
/// How often batches are given back, and a store that was away is asked again.
const UPKEEP_INTERVAL: Duration = Duration::from_millis(200);
/// How often nodes are counted.
const NODE_COUNT_INTERVAL: Duration = Duration::from_secs(5);

impl RateLimits {
    /// Limits with full buckets, in this process or in a store that nodes share.
    pub fn new(rules: Vec<LimitRule>, store: Option<Arc<dyn ClusterStore>>) -> Self {
        let limits = Self {
            limits: ArcSwap::default(),
            counts_requests: AtomicBool::new(false),
            judges_calls: AtomicBool::new(false),
            buckets: BucketTable::new(MAX_BUCKETS),
            digest_keys: DigestKeys::default(),
            started_at: Instant::now(),
            unix_time: system_time,
            shared: store.map(SharedTokens::new),
            next_limit: AtomicU32::new(0),
            changing: Mutex::default(),
        };
        limits.set_rules(rules);
        limits
    }

    /// Applies other rules to what comes from now on. A limit that has the same rate and quota keeps its levels, and what
    /// is in flight stays counted.
    pub fn set_rules(&self, rules: Vec<LimitRule>) {
        let _one_at_a_time = self.changing.lock();
        let before = self.limits.load_full();
        let now: Vec<Arc<ActiveLimit>> = rules.into_iter().map(|rule| self.activate(&before.limits, rule)).collect();
        self.counts_requests
            .store(now.iter().any(|limit| limit.rule.counts() && !limit.rule.has_targets()), Ordering::Relaxed);
        let judges_calls = |limit: &Arc<ActiveLimit>| limit.rule.bounds_calls() || limit.rule.has_targets();
        self.judges_calls.store(now.iter().any(judges_calls), Ordering::Relaxed);
        let numbers: Vec<u32> = now.iter().map(|limit| limit.number).collect();
        self.limits.store(Arc::new(LimitSet::new(now)));
        self.buckets.retain_limits(|number| numbers.contains(&number));
    }

    /// The limit of a rule, which takes the place of one that counts by the same.
    fn activate(&self, before: &[Arc<ActiveLimit>], rule: LimitRule) -> Arc<ActiveLimit> {
        let same = before.iter().find(|limit| limit.rule.name == rule.name && limit.rule.per == rule.per);
        match same {
            Some(limit) if limit.rule == rule => Arc::clone(limit),
            Some(limit) => {
                if (limit.rule.rate, limit.rule.quota) != (rule.rate, rule.quota) {
                    self.buckets.refill(limit.number);
                }
                Arc::new(ActiveLimit { number: limit.number, rule, rejections: Arc::clone(&limit.rejections) })
            }
            None => {
                let number = self.next_limit.fetch_add(1, Ordering::Relaxed);
                Arc::new(ActiveLimit { number, rule, rejections: Arc::default() })
            }
        }
    }

    /// Whether requests have to be admitted before they are routed.
    pub fn counts_requests(&self) -> bool {
        self.counts_requests.load(Ordering::Relaxed)
    }

    /// Whether calls have to be admitted after they are routed.
    pub fn judges_calls(&self) -> bool {
        self.judges_calls.load(Ordering::Relaxed)
    }

    /// Takes the share of a request in all limits that match, or in none. `outer` is the share that the request has already.
    ///
    /// # Errors
    /// When a limit has no room, or the store must be asked first.
    pub fn try_admit(
        self: &Arc<Self>,
        asked: &LimitedRequest<'_>,
        outer: AdmittedShare,
    ) -> Result<AdmittedShare, NotAdmitted> {
        let set = self.limits.load();
        let limits = set.of(&asked.caller.identity, &self.digest_keys);
        let (now, source) = (self.moment(set.has_quotas), self.source());
        let mut permit = RatePermit::new(self, outer);
        for matched in limits.matched.iter().filter(|matched| matched.limit.rule.is_for_group(asked.group)) {
            let limit = &matched.limit;
            if let Err(excess) = permit.apply_bounds(&limit.rule, asked) {
                permit.give_back_own();
                return Err(NotAdmitted::Exceeded(limit.reject(excess)));
            }
            if !limit.counts_this(asked) {
                continue;
            }
            let id = matched.bucket_id(asked, &self.digest_keys);
            let taken = self.buckets.with(id, limit.number, now, |bucket| match asked.resumes {
                true => bucket.take_tokens(&limit.rule, now, source),
                false => bucket.take(&limit.rule, now, source),
            });
            match taken {
                Ok(()) => permit.add(TakenShare { limit: Arc::clone(limit), id, source, in_flight: !asked.resumes }),
                Err(shortage) => {
                    permit.give_back_own();
                    return Err(match shortage {
                        Shortage::NotFetched => NotAdmitted::StoreNeeded,
                        Shortage::For(wait) => NotAdmitted::Exceeded(limit.reject(LimitExcess::Rate(wait))),
                    });
                }
            }
        }
        if let Some(shared) = &self.shared
            && permit.has_tokens()
        {
            shared.count_decision();
        }
        Ok(permit.finish())
    }

    /// Takes the share of a request, and asks the store where it must.
    ///
    /// # Errors
    /// When a limit has no room.
    pub async fn admit(
        self: &Arc<Self>,
        asked: &LimitedRequest<'_>,
        outer: AdmittedShare,
    ) -> Result<AdmittedShare, LimitExceeded> {
        let mut contended: Option<Arc<str>> = None;
        for _ in 0..MAX_FETCH_ROUNDS {
            match self.try_admit(asked, outer.clone()) {
                Ok(share) => return Ok(share),
                Err(NotAdmitted::Exceeded(exceeded)) => return Err(exceeded),
                Err(NotAdmitted::StoreNeeded) => contended = self.fetch_missing(asked).await?.or(contended),
            }
        }
        let limit = contended.unwrap_or_default();
        Err(LimitExceeded { limit, excess: LimitExcess::Rate(EMPTY_BUCKET_PAUSE) })
    }

    /// Fetches a batch for each limit of a request that has none. Returns the last limit that it fetched for.
    async fn fetch_missing(&self, asked: &LimitedRequest<'_>) -> Result<Option<Arc<str>>, LimitExceeded> {
        let mut fetched = None;
        let Some(shared) = &self.shared else { return Ok(fetched) };
        let limits = self.limits.load().of(&asked.caller.identity, &self.digest_keys);
        let needs_tokens = |matched: &&CallerLimit| {
            let limit = &matched.limit;
            limit.rule.has_tokens() && limit.counts_this(asked) && limit.rule.is_for_group(asked.group)
        };
        for matched in limits.matched.iter().filter(needs_tokens) {
            let (limit, id) = (&matched.limit, matched.bucket_id(asked, &self.digest_keys));
            let has_tokens = || self.buckets.with_known(id, |bucket| bucket.batch > 0) == Some(true);
            if has_tokens() {
                continue;
            }
            let _one_fetch = shared.fetch_lock(id).lock().await;
            if has_tokens() || shared.is_away() {
                continue;
            }
            let (key, bucket) = (store_key(limit, asked), shared_bucket(&limit.rule, self.now().unix));
            let grant = match shared.store.take_tokens(&key, bucket, limit.rule.batch()).await {
                Ok(grant) => grant,
                Err(error) => {
                    shared.set_away(&error);
                    return Ok(fetched);
                }
            };
            let now = self.now();
            self.buckets.with(id, limit.number, now, |here| {
                if let Some(quota) = limit.rule.quota {
                    here.enter_window(quota, now.unix);
                }
                here.batch += grant.granted;
                here.fetched_at = now.nanos;
                if grant.granted == 0 && !limit.rule.exact {
                    here.empty_until = now.nanos.saturating_add(nanos(grant.retry_after));
                    here.ask_at = now.nanos.saturating_add(nanos(grant.retry_after.min(EMPTY_BUCKET_PAUSE)));
                }
            });
            if grant.granted == 0 {
                return Err(limit.reject(LimitExcess::Rate(grant.retry_after)));
            }
            shared.remember(id, key, bucket);
            fetched = Some(Arc::clone(&limit.rule.name));
        }
        Ok(fetched)
    }

    /// Counts the nodes and gives unspent tokens back, for as long as the process runs. Returns at once without a store.
    pub async fn run_upkeep(self: Arc<Self>) {
        let Some(shared) = &self.shared else { return };
        let mut counted_at: Option<Instant> = None;
        loop {
            let is_idle = self.limits.load().limits.is_empty();
            if !is_idle && (shared.is_away() || counted_at.is_none_or(|at| at.elapsed() >= NODE_COUNT_INTERVAL)) {
                shared.count_nodes().await;
                counted_at = Some(Instant::now());
            }
            while let Some(batch) = shared.next_due() {
                self.return_batch(&batch, |fetched_at, now| {
                    now.saturating_sub(fetched_at) >= nanos(EMPTY_BUCKET_PAUSE)
                })
                .await;
            }
            tokio::time::sleep(UPKEEP_INTERVAL).await;
        }
    }

    /// Gives all unspent tokens back, because this node leaves.
    pub async fn return_all(&self) {
        let Some(shared) = &self.shared else { return };
        while let Some(batch) = shared.next_of_all() {
            self.return_batch(&batch, |_, _| true).await;
        }
    }

    /// Gives back what is left of a batch, unless a newer one was fetched since.
    async fn return_batch(&self, batch: &shared_tokens::FetchedBatch, is_due: impl Fn(u64, u64) -> bool) {
        let (Some(shared), now) = (&self.shared, self.now()) else { return };
        let unspent = self.buckets.with_known(batch.id, |bucket| match is_due(bucket.fetched_at, now.nanos) {
            true => std::mem::take(&mut bucket.batch),
            false => 0,
        });
        if let Some(unspent) = unspent.filter(|unspent| *unspent > 0 && !shared.is_away())
            && let Err(error) = shared.store.return_tokens(&batch.key, batch.bucket, unspent).await
        {
            shared.set_away(&error);
        }
    }

    fn source(&self) -> TokenSource {
        self.shared.as_ref().map_or(TokenSource::Here(1), SharedTokens::source)
    }

    fn now(&self) -> Moment {
        self.moment(true)
    }

    /// This moment; the calendar's clock is read only where somebody counts by it.
    fn moment(&self, by_calendar: bool) -> Moment {
        let unix = if by_calendar { (self.unix_time)() } else { 0 };
        Moment { nanos: nanos(self.started_at.elapsed()), unix }
    }
}

impl ActiveLimit {
    /// Whether it counts this request: one without targets before routing, one with targets after it.
    fn counts_this(&self, asked: &LimitedRequest<'_>) -> bool {
        self.rule.counts()
            && match &asked.target {
                None => !self.rule.has_targets(),
                Some(target) => self.rule.has_targets() && self.rule.covers(target),
            }
    }

    fn reject(&self, excess: LimitExcess) -> LimitExceeded {
        self.rejections.fetch_add(1, Ordering::Relaxed);
        LimitExceeded { limit: Arc::clone(&self.rule.name), excess }
    }
}

/// The name of a bucket in the store: a digest, which is short, is the same on all nodes, and shows no caller. Another rate
/// or quota has another bucket.
fn store_key(limit: &ActiveLimit, asked: &LimitedRequest<'_>) -> String {
    let mut digest = Sha256::new();
    let mut write = |bytes: &[u8]| {
        digest.update(bytes.len().to_be_bytes());
        digest.update(bytes);
    };
    write(limit.rule.name.as_bytes());
    write(format!("{:?} {:?} {:?}", limit.rule.rate, limit.rule.quota, limit.rule.per).as_bytes());
    caller_limits::write_owner(&limit.rule, asked, &mut write);
    URL_SAFE_NO_PAD.encode(&digest.finalize()[..18])
}

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

fn system_time() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}
