//! The share of one request in the limits that matched.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use super::buckets::{Bucket, BucketId, TokenSource};
use super::rule::LimitRule;
use super::{ActiveLimit, AdmittedShare, LimitExcess, LimitedRequest, RateLimits};
use crate::call::CallLimits;

/// What a request took of the limits. It is in flight until this is dropped.
#[derive(Debug)]
pub struct RatePermit {
    limits: Arc<RateLimits>,
    /// The first share; most requests have one, and it needs no list.
    first: Option<TakenShare>,
    others: Vec<TakenShare>,
    is_given_back: AtomicBool,
    total_timeout: Option<Duration>,
    /// The share that the request took before it was routed.
    outer: AdmittedShare,
}

/// The share of a request in one limit.
#[derive(Debug)]
pub(super) struct TakenShare {
    pub(super) limit: Arc<ActiveLimit>,
    pub(super) id: BucketId,
    pub(super) source: TokenSource,
    /// Whether it counts as in flight.
    pub(super) in_flight: bool,
}

impl RatePermit {
    pub(super) fn new(limits: &Arc<RateLimits>, outer: AdmittedShare) -> Self {
        let total_timeout = outer.as_ref().and_then(|outer| outer.total_timeout());
        Self {
            limits: Arc::clone(limits),
            first: None,
            others: Vec::new(),
            is_given_back: AtomicBool::new(false),
            total_timeout,
            outer,
        }
    }

    /// Applies what a limit says of single calls.
    ///
    /// # Errors
    /// When the arguments are too long.
    pub(super) fn apply_bounds(&mut self, rule: &LimitRule, asked: &LimitedRequest<'_>) -> Result<(), LimitExcess> {
        let Some(target) = asked.target.filter(|target| rule.bounds_calls() && rule.covers(target)) else {
            return Ok(());
        };
        if let Some(most) = rule.max_argument_bytes.filter(|most| target.argument_bytes > *most) {
            return Err(LimitExcess::ArgumentBytes(most));
        }
        self.total_timeout = self.total_timeout.into_iter().chain(rule.total_timeout).min();
        Ok(())
    }

    pub(super) fn add(&mut self, share: TakenShare) {
        match self.first {
            None => self.first = Some(share),
            Some(_) => self.others.push(share),
        }
    }

    fn taken(&self) -> impl Iterator<Item = &TakenShare> {
        self.first.iter().chain(&self.others)
    }

    /// Whether any limit gave a token.
    pub(super) fn has_tokens(&self) -> bool {
        self.taken().any(|share| share.limit.rule.has_tokens())
    }

    /// The share of the whole request; that which it had before if no limit matched.
    pub(super) fn finish(mut self) -> AdmittedShare {
        let adds_timeout = self.total_timeout != self.outer.as_ref().and_then(|outer| outer.total_timeout());
        match self.first.is_none() && !adds_timeout {
            true => self.outer.take(),
            false => Some(Arc::new(self)),
        }
    }

    /// Gives back what was taken here, once.
    pub(super) fn give_back_own(&self) {
        if !self.is_given_back.swap(true, Ordering::Relaxed) {
            for share in self.taken() {
                self.limits.buckets.with_known(share.id, |bucket| bucket.give_back(&share.limit.rule, share.source));
            }
        }
    }
}

impl CallLimits for RatePermit {
    fn give_back(&self) {
        self.give_back_own();
        if let Some(outer) = &self.outer {
            outer.give_back();
        }
    }

    fn total_timeout(&self) -> Option<Duration> {
        self.total_timeout
    }
}

impl Drop for RatePermit {
    fn drop(&mut self) {
        for share in self.taken().filter(|share| share.in_flight) {
            self.limits.buckets.with_known(share.id, Bucket::end);
        }
    }
}
