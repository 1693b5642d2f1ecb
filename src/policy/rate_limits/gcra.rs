//! Token buckets by the generic cell rate algorithm: a bucket is one number, the time at which it is full again.
//!
//! Written here and not taken from a crate, because tokens are given back, many are taken at once, and the same arithmetic
//! runs in the store.

use std::time::Duration;

/// A rate: a bucket holds `burst` tokens and gains one each `interval` nanoseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Gcra {
    pub(super) interval: u64,
    pub(super) burst: u64,
}

impl Gcra {
    /// The share of one of several nodes: the rate divided by their number, and at least one token.
    pub(super) fn divided_by(self, nodes: u64) -> Self {
        let nodes = nodes.max(1);
        Self { interval: self.interval.saturating_mul(nodes), burst: (self.burst / nodes).max(1) }
    }

    /// Takes one token at `now` from the bucket that is full at `full_at`.
    ///
    /// # Errors
    /// The time until there is one.
    pub(super) fn take(self, full_at: &mut u64, now: u64) -> Result<(), Duration> {
        let after = (*full_at).max(now).saturating_add(self.interval);
        let latest = now.saturating_add(self.capacity());
        if after > latest {
            return Err(Duration::from_nanos(after - latest));
        }
        *full_at = after;
        Ok(())
    }

    /// Takes one token that was had elsewhere, so that the level is known if this bucket has to do. Never below empty.
    pub(super) fn follow(self, full_at: &mut u64, now: u64) {
        let after = (*full_at).max(now).saturating_add(self.interval);
        *full_at = after.min(now.saturating_add(self.capacity()));
    }

    /// Gives one token back.
    pub(super) fn give_back(self, full_at: &mut u64) {
        *full_at = full_at.saturating_sub(self.interval);
    }

    /// Tokens that the bucket lacks, rounded up.
    pub(super) fn missing(self, full_at: u64, now: u64) -> u64 {
        full_at.saturating_sub(now).div_ceil(self.interval.max(1)).min(self.burst)
    }

    /// Time in which an empty bucket fills.
    fn capacity(self) -> u64 {
        self.interval.saturating_mul(self.burst)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000_000;

    fn take_all(rate: Gcra, full_at: &mut u64, now: u64) -> u64 {
        let mut count = 0;
        while rate.take(full_at, now).is_ok() {
            count += 1;
        }
        count
    }

    #[test]
    fn a_bucket_gives_its_burst_and_then_its_rate() {
        let rate = Gcra { interval: SECOND / 20, burst: 60 };
        let mut full_at = 0;
        let start = 5 * SECOND;
        assert_eq!(take_all(rate, &mut full_at, start), 60);
        assert_eq!(rate.take(&mut full_at, start), Err(Duration::from_millis(50)));
        assert_eq!(take_all(rate, &mut full_at, start + SECOND / 20 - 1), 0);
        assert_eq!(take_all(rate, &mut full_at, start + SECOND / 20), 1);
        assert_eq!(take_all(rate, &mut full_at, start + SECOND), 19);
        assert_eq!(rate.missing(full_at, start + SECOND), 60);
        assert_eq!(take_all(rate, &mut full_at, start + 100 * SECOND), 60, "it holds no more than its burst");
    }

    #[test]
    fn what_is_given_back_can_be_taken_again() {
        let rate = Gcra { interval: SECOND, burst: 2 };
        let mut full_at = 0;
        assert_eq!(take_all(rate, &mut full_at, SECOND), 2);
        rate.give_back(&mut full_at);
        assert_eq!((rate.missing(full_at, SECOND), take_all(rate, &mut full_at, SECOND)), (1, 1));
    }

    #[test]
    fn a_node_has_its_share_and_at_least_one_token() {
        let rate = Gcra { interval: SECOND / 30, burst: 2 };
        assert_eq!(rate.divided_by(3), Gcra { interval: SECOND / 30 * 3, burst: 1 });
        assert_eq!(rate.divided_by(0), rate);
    }

    #[test]
    fn following_never_goes_below_empty() {
        let rate = Gcra { interval: SECOND, burst: 3 };
        let mut full_at = 0;
        (0..10).for_each(|_| rate.follow(&mut full_at, SECOND));
        assert_eq!(rate.missing(full_at, SECOND), 3);
        assert_eq!(rate.take(&mut full_at, SECOND), Err(Duration::from_secs(1)));
    }
}
