//! The `Date` header value, formatted once per second and thread.

use std::cell::RefCell;
use std::time::{Duration, Instant, SystemTime};

/// A formatted date and the end of the second in which it is valid.
struct CachedDate {
    text: String,
    until: Instant,
}

thread_local! {
    static CACHED: RefCell<Option<CachedDate>> = const { RefCell::new(None) };
}

/// Calls `write` with the current date.
pub(super) fn with_date<T>(now: Instant, write: impl FnOnce(&str) -> T) -> T {
    CACHED.with_borrow_mut(|cached| {
        match cached {
            Some(cached) if now < cached.until => {}
            _ => *cached = Some(CachedDate::at(SystemTime::now(), now)),
        }
        write(cached.as_ref().map_or("", |cached| &cached.text))
    })
}

impl CachedDate {
    fn at(time: SystemTime, now: Instant) -> Self {
        let since = time.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        let rest = Duration::from_secs(1) - Duration::from_nanos(since.subsec_nanos().into());
        Self { text: httpdate::fmt_http_date(time), until: now + rest }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cached_date_expires_at_the_end_of_its_second() {
        let (time, now) = (SystemTime::UNIX_EPOCH + Duration::from_millis(784_111_777_250), Instant::now());
        let cached = CachedDate::at(time, now);
        assert_eq!(cached.text, "Sun, 06 Nov 1994 08:49:37 GMT");
        assert_eq!(cached.until - now, Duration::from_millis(750));
        with_date(now, |text| assert_eq!(text.len(), cached.text.len()));
    }
}
