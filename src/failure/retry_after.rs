//! The `Retry-After` header.

use std::time::{Duration, SystemTime};

/// Longest delay that is believed; a server that names a longer one is asked again after this time.
const MAX_RETRY_AFTER: Duration = Duration::from_secs(24 * 3600);

/// The delay that a `Retry-After` value names, in seconds or as an HTTP date. A date in the past is no delay.
pub fn parse_retry_after(value: &[u8], now: SystemTime) -> Option<Duration> {
    let value = std::str::from_utf8(value).ok()?.trim();
    let delay = if !value.is_empty() && value.bytes().all(|digit| digit.is_ascii_digit()) {
        // More digits than fit are a very long time.
        Duration::from_secs(value.parse().unwrap_or(u64::MAX))
    } else {
        let at = httpdate::parse_http_date(value).ok()?;
        at.duration_since(now).unwrap_or_default()
    };
    Some(delay.min(MAX_RETRY_AFTER))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn retry_after_is_seconds_or_a_date() {
        let now = httpdate::parse_http_date("Sun, 06 Nov 1994 08:49:37 GMT").unwrap();
        for (value, seconds) in [
            ("3", Some(3)),
            (" 3 ", Some(3)),
            ("0", Some(0)),
            ("Sun, 06 Nov 1994 08:50:07 GMT", Some(30)),
            ("Sunday, 06-Nov-94 08:50:07 GMT", Some(30)),
            ("Sun Nov  6 08:50:07 1994", Some(30)),
            ("Sun, 06 Nov 1994 08:49:00 GMT", Some(0)),
            ("999999999", Some(86400)),
            ("99999999999999999999999", Some(86400)),
            ("", None),
            ("-3", None),
            ("1.5", None),
            ("soon", None),
        ] {
            assert_eq!(parse_retry_after(value.as_bytes(), now), seconds.map(Duration::from_secs), "{value}");
        }
        assert_eq!(parse_retry_after(b"\xff", now), None);
    }
}
