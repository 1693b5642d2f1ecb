//! Counts invalid credentials by address, so that keys cannot be guessed at speed.

use std::net::SocketAddr;
use std::time::Duration;

use foldhash::HashMap;
use parking_lot::Mutex;
use tokio::time::Instant;

use super::caller_quota::QuotaKey;

/// Invalid credentials of the last minute, by address.
#[derive(Debug)]
pub struct FailedCredentials {
    windows: Mutex<HashMap<QuotaKey, FailureWindow>>,
    max_failures: u32,
}

#[derive(Debug, Clone, Copy)]
struct FailureWindow {
    began: Instant,
    failures: u32,
    /// When the second began in which `validations` were counted.
    validations_since: Instant,
    validations: u32,
}

/// Invalid credentials of one address within [`WINDOW`] that are told why they are invalid.
const MAX_FAILURES: u32 = 20;
const WINDOW: Duration = Duration::from_secs(60);
/// Tokens that are validated per second for an address with more than [`MAX_FAILURES`]. A signature or a question to an
/// issuer costs far more than a refusal; the bound keeps a flood of forged tokens from taking the CPU of others, and is
/// not 0, so that new tokens from behind the same proxy still come through.
const MAX_VALIDATIONS: u32 = 50;
const VALIDATION_WINDOW: Duration = Duration::from_secs(1);
/// Addresses that are remembered. Past it the oldest windows are forgotten.
const MAX_ADDRESSES: usize = 10_000;

impl Default for FailedCredentials {
    fn default() -> Self {
        Self::allowing(MAX_FAILURES)
    }
}

impl FailedCredentials {
    /// Tells an address this many times in a minute that its credential is invalid.
    pub fn allowing(max_failures: u32) -> Self {
        Self { windows: Mutex::default(), max_failures }
    }

    /// Counts an invalid credential; returns how long the address has to wait if it has shown too many.
    pub fn record(&self, peer: SocketAddr) -> Option<Duration> {
        let (now, key) = (Instant::now(), QuotaKey::address(peer));
        let mut windows = self.windows.lock();
        if windows.len() >= MAX_ADDRESSES && !windows.contains_key(&key) {
            windows.retain(|_, window| now.duration_since(window.began) < WINDOW);
            if windows.len() >= MAX_ADDRESSES
                && let Some(oldest) = windows.iter().min_by_key(|(_, window)| window.began).map(|(key, _)| key.clone())
            {
                windows.remove(&oldest);
            }
        }
        let window = windows.entry(key).or_insert_with(|| FailureWindow::new(now));
        if now.duration_since(window.began) >= WINDOW {
            *window = FailureWindow::new(now);
        }
        window.failures = window.failures.saturating_add(1);
        (window.failures > self.max_failures).then(|| WINDOW - now.duration_since(window.began))
    }

    /// Counts the validation of a token that is not known yet, which comes next; returns how long the address has to
    /// wait if it has shown too many invalid credentials and has had its validations of this second.
    pub fn throttle_validation(&self, peer: SocketAddr) -> Option<Duration> {
        let (now, key) = (Instant::now(), QuotaKey::address(peer));
        let mut windows = self.windows.lock();
        let window = windows.get_mut(&key)?;
        if window.failures <= self.max_failures || now.duration_since(window.began) >= WINDOW {
            return None;
        }
        if now.duration_since(window.validations_since) >= VALIDATION_WINDOW {
            (window.validations_since, window.validations) = (now, 0);
        }
        window.validations = window.validations.saturating_add(1);
        (window.validations > MAX_VALIDATIONS).then(|| VALIDATION_WINDOW - now.duration_since(window.validations_since))
    }
}

impl FailureWindow {
    fn new(now: Instant) -> Self {
        Self { began: now, failures: 0, validations_since: now, validations: 0 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn twenty_failures_in_a_minute_are_allowed() {
        let failed = FailedCredentials::default();
        let [one, other] = ["192.0.2.1:1", "192.0.2.2:1"].map(|peer| peer.parse().unwrap());
        assert!((0..20).all(|_| failed.record(one).is_none()));
        tokio::time::advance(Duration::from_secs(10)).await;
        assert_eq!(failed.record(one), Some(Duration::from_secs(50)));
        assert_eq!(failed.record(other), None);
        tokio::time::advance(Duration::from_secs(50)).await;
        assert_eq!(failed.record(one), None);
    }

    #[tokio::test(start_paused = true)]
    async fn validations_are_bounded_after_too_many_failures() {
        let failed = FailedCredentials::default();
        let [one, other] = ["192.0.2.1:1", "192.0.2.2:1"].map(|peer| peer.parse().unwrap());
        let validated =
            || (0..MAX_VALIDATIONS * 2).filter(|_| failed.throttle_validation(one).is_none()).count() as u32;
        (0..MAX_FAILURES).for_each(|_| assert!(failed.record(one).is_none()));
        assert_eq!(validated(), MAX_VALIDATIONS * 2, "nothing is bounded before");
        assert!(failed.record(one).is_some());
        assert_eq!(validated(), MAX_VALIDATIONS);
        assert_eq!(failed.throttle_validation(other), None);
        tokio::time::advance(Duration::from_millis(1000)).await;
        assert_eq!(validated(), MAX_VALIDATIONS, "a new second");
        tokio::time::advance(WINDOW).await;
        assert_eq!(validated(), MAX_VALIDATIONS * 2, "the failures are a minute old");
    }

    #[tokio::test(start_paused = true)]
    async fn the_number_of_addresses_is_bounded() {
        let failed = FailedCredentials::default();
        for n in 0..u32::try_from(MAX_ADDRESSES).unwrap() + 10 {
            failed.record(SocketAddr::new(std::net::Ipv4Addr::from(n).into(), 1));
        }
        assert_eq!(failed.windows.lock().len(), MAX_ADDRESSES);
    }
}
