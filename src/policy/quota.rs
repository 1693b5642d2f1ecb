//! One quota: how much of a resource is in use, how much may be, and how often more was refused.
//!
//! A permit is taken before anything is done, and gives its share back when it is dropped.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use crate::failure::{QuotaReached, QuotaScope};

/// A bound on one resource. Taking and giving back is one atomic operation each.
#[derive(Debug)]
pub struct Quota {
    reached: QuotaReached,
    limit: AtomicUsize,
    used: AtomicUsize,
    refusals: AtomicU64,
}

/// A share of a quota, given back on drop.
#[derive(Debug)]
pub struct Permit {
    quota: Arc<Quota>,
    amount: usize,
}

/// A share of a quota that is given back before the quota goes, so that no reference is counted for it.
#[derive(Debug)]
pub struct ScopedPermit<'q> {
    quota: &'q Quota,
    amount: usize,
}

impl Quota {
    pub(super) fn new(scope: QuotaScope, resource: &'static str, limit: usize) -> Self {
        Self {
            reached: QuotaReached { scope, resource },
            limit: AtomicUsize::new(limit),
            used: AtomicUsize::new(0),
            refusals: AtomicU64::new(0),
        }
    }

    /// Takes a share.
    ///
    /// # Errors
    /// When the limit would be exceeded. The refusal is counted.
    pub fn acquire(self: &Arc<Self>, amount: usize) -> Result<Permit, QuotaReached> {
        self.take(amount)?;
        Ok(Permit { quota: Arc::clone(self), amount })
    }

    /// Takes a share for the time that the quota is borrowed.
    ///
    /// # Errors
    /// When the limit would be exceeded. The refusal is counted.
    pub fn acquire_scoped(&self, amount: usize) -> Result<ScopedPermit<'_>, QuotaReached> {
        self.take(amount)?;
        Ok(ScopedPermit { quota: self, amount })
    }

    /// Takes a share for what has begun already and cannot be refused any more, such as the stream of a running call.
    #[must_use]
    pub fn acquire_begun(self: &Arc<Self>, amount: usize) -> Permit {
        self.used.fetch_add(amount, Ordering::Relaxed);
        Permit { quota: Arc::clone(self), amount }
    }

    /// Checks that there is room for one more, without taking it.
    ///
    /// # Errors
    /// When the limit is reached. The refusal is counted.
    pub fn check_room(&self) -> Result<(), QuotaReached> {
        if self.used() < self.limit() { Ok(()) } else { Err(self.refuse()) }
    }

    fn take(&self, amount: usize) -> Result<(), QuotaReached> {
        let limit = self.limit();
        let fits = |used: usize| used.checked_add(amount).filter(|sum| *sum <= limit);
        match self.used.fetch_update(Ordering::Relaxed, Ordering::Relaxed, fits) {
            Ok(_) => Ok(()),
            Err(_) => Err(self.refuse()),
        }
    }

    /// Counts a refusal.
    pub(super) fn refuse(&self) -> QuotaReached {
        self.refusals.fetch_add(1, Ordering::Relaxed);
        self.reached
    }

    fn give_back(&self, amount: usize) {
        self.used.fetch_sub(amount, Ordering::Relaxed);
    }

    /// How much is in use.
    pub fn used(&self) -> usize {
        self.used.load(Ordering::Relaxed)
    }

    /// How much may be in use.
    pub fn limit(&self) -> usize {
        self.limit.load(Ordering::Relaxed)
    }

    /// How often more was refused.
    pub fn refusals(&self) -> u64 {
        self.refusals.load(Ordering::Relaxed)
    }

    /// Sets the limit. Permits above a lower one stay valid.
    pub fn set_limit(&self, limit: usize) {
        self.limit.store(limit, Ordering::Relaxed);
    }
}

impl Permit {
    /// Changes the share to `amount`, without a check: what it is for is there already.
    pub fn resize(&mut self, amount: usize) {
        if amount != self.amount {
            self.quota.used.fetch_add(amount, Ordering::Relaxed);
            self.quota.give_back(self.amount);
            self.amount = amount;
        }
    }

    /// Whether the quota that this is a share of is exceeded.
    pub fn is_exceeded(&self) -> bool {
        self.quota.used() > self.quota.limit()
    }

    /// Counts a refusal of the quota that this is a share of.
    pub fn count_refusal(&self) {
        self.quota.refuse();
    }
}

impl ScopedPermit<'_> {
    /// Gives back what turned out not to be needed.
    pub fn shrink_to(&mut self, amount: usize) {
        if let Some(surplus) = self.amount.checked_sub(amount) {
            self.quota.give_back(surplus);
            self.amount = amount;
        }
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        self.quota.give_back(self.amount);
    }
}

impl Drop for ScopedPermit<'_> {
    fn drop(&mut self) {
        self.quota.give_back(self.amount);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn permits_are_refused_past_the_limit_and_given_back_on_drop() {
        let quota = Arc::new(Quota::new(QuotaScope::Gateway, "calls in flight", 3));
        let two = quota.acquire(2).unwrap();
        let one = quota.acquire_scoped(1).unwrap();
        assert_eq!((quota.used(), quota.refusals()), (3, 0));
        assert_eq!(quota.acquire(1).unwrap_err().resource, "calls in flight");
        assert!(quota.check_room().is_err());
        drop(one);
        assert!(quota.check_room().is_ok() && quota.acquire(2).is_err());
        assert_eq!((quota.used(), quota.refusals()), (2, 3));
        let begun = quota.acquire_begun(5);
        assert_eq!(quota.used(), 7);
        assert!(begun.is_exceeded());
        drop((two, begun));
        let mut body = quota.acquire_scoped(3).unwrap();
        body.shrink_to(1);
        assert_eq!(quota.used(), 1);
        body.shrink_to(2);
        assert_eq!(quota.used(), 1);
        drop(body);
        quota.set_limit(0);
        assert!(quota.acquire(1).is_err() && quota.acquire(0).is_ok());
        assert_eq!(quota.used(), 0);
    }
}
