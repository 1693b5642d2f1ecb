//! Figures of the limits, for metrics and status.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::RateLimits;
use super::buckets::TokenSource;
use super::shared_tokens::SharedTokens;

/// The figures of one limit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LimitUsage {
    /// Name of the limit.
    pub name: Arc<str>,
    /// Requests that it rejected.
    pub rejections: u64,
    /// What it counts.
    pub measures: Vec<LimitMeasure>,
}

/// One thing that a limit counts, on this node, for the bucket with the most.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LimitMeasure {
    /// `rate`, `quota` or `in_flight`.
    pub name: &'static str,
    /// How much is in use.
    pub used: u64,
    /// How much may be.
    pub limit: u64,
}

/// Figures of limits that nodes share.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SharedLimitsUsage {
    /// Whether the store is away and this node enforces its share.
    pub is_away: bool,
    /// Requests that were decided without the store.
    pub decided_alone: u64,
}

impl RateLimits {
    /// The figures of every limit, in the order of the file.
    pub fn usage(&self) -> Vec<LimitUsage> {
        let (set, now) = (self.limits.load_full(), self.now());
        let limits = &set.limits;
        let (TokenSource::Here(nodes) | TokenSource::Store(nodes)) = self.source();
        // By limit: tokens missing, requests in the window, requests in flight.
        let mut most = vec![[0_u64; 3]; limits.len()];
        self.buckets.for_each(|bucket| {
            let Some(place) = limits.iter().position(|limit| limit.number == bucket.limit) else { return };
            let rate = limits[place].rule.gcra().map(|rate| rate.divided_by(nodes));
            let missing = rate.map_or(0, |rate| bucket.missing(rate, now));
            let used = if now.unix < bucket.window.1 { bucket.used } else { 0 };
            let in_flight = u64::try_from(bucket.in_flight).unwrap_or(u64::MAX);
            for (most, here) in most[place].iter_mut().zip([missing, used, in_flight]) {
                *most = here.max(*most);
            }
        });
        let figures = |(limit, [missing, used, in_flight]): (&Arc<super::ActiveLimit>, [u64; 3])| {
            let rule = &limit.rule;
            let rate = rule.gcra().map(|rate| rate.divided_by(nodes).burst);
            let most_in_flight = rule.max_in_flight.map(|most| u64::try_from(most).unwrap_or(u64::MAX));
            let measures = [
                ("rate", missing, rate),
                ("quota", used, rule.quota.map(|quota| quota.count)),
                ("in_flight", in_flight, most_in_flight),
            ];
            let measures = measures
                .into_iter()
                .filter_map(|(name, used, limit)| limit.map(|limit| LimitMeasure { name, used, limit }));
            LimitUsage {
                name: Arc::clone(&rule.name),
                rejections: limit.rejections.load(Ordering::Relaxed),
                measures: measures.collect(),
            }
        };
        limits.iter().zip(most).map(figures).collect()
    }

    /// The figures of limits that nodes share; `None` without a store.
    pub fn shared_usage(&self) -> Option<SharedLimitsUsage> {
        let figures = |shared: &SharedTokens| SharedLimitsUsage {
            is_away: shared.is_away(),
            decided_alone: shared.decided_alone(),
        };
        self.shared.as_ref().map(figures)
    }
}
