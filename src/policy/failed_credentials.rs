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
}

/// Invalid credentials of one address within [`WINDOW`] that are told why they are invalid.
const MAX_FAILURES: u32 = 20;
const WINDOW: Duration = Duration::from_secs(60);
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
        let window = windows.entry(key).or_insert(FailureWindow { began: now, failures: 0 });
        if now.duration_since(window.began) >= WINDOW {
            *window = FailureWindow { began: now, failures: 0 };
        }
        window.failures = window.failures.saturating_add(1);
        (window.failures > self.max_failures).then(|| WINDOW - now.duration_since(window.began))
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
    async fn the_number_of_addresses_is_bounded() {
        let failed = FailedCredentials::default();
        for n in 0..u32::try_from(MAX_ADDRESSES).unwrap() + 10 {
            failed.record(SocketAddr::new(std::net::Ipv4Addr::from(n).into(), 1));
        }
        assert_eq!(failed.windows.lock().len(), MAX_ADDRESSES);
    }
}
