//! The time as HTTP writes it, which changes once a second.

use std::cell::RefCell;
use std::time::{Duration, Instant, SystemTime};

/// What was written last, and until when it holds.
struct CachedDate {
    text: String,
    until: Instant,
}

thread_local! {
    static WRITTEN: RefCell<Option<CachedDate>> = const { RefCell::new(None) };
}

/// Does something with the time that it is.
pub(super) fn with<T>(now: Instant, use_it: impl FnOnce(&str) -> T) -> T {
    WRITTEN.with_borrow_mut(|written| {
        match written {
            Some(written) if now < written.until => {}
            _ => *written = Some(CachedDate::at(SystemTime::now(), now)),
        }
        use_it(written.as_ref().map_or("", |written| &written.text))
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
    fn the_time_is_written_and_holds_for_the_rest_of_its_second() {
        let (time, now) = (SystemTime::UNIX_EPOCH + Duration::from_millis(784_111_777_250), Instant::now());
        let written = CachedDate::at(time, now);
        assert_eq!(written.text, "Sun, 06 Nov 1994 08:49:37 GMT");
        assert_eq!(written.until - now, Duration::from_millis(750));
        with(now, |text| assert_eq!(text.len(), written.text.len()));
    }
}
