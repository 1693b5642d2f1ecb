//! Durations and sizes with units, and dates.

use std::fmt;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

const DURATION_UNITS_MS: [(&str, u64); 5] =
    [("ms", 1), ("s", 1000), ("m", 60_000), ("h", 3_600_000), ("d", 86_400_000)];
const SIZE_UNITS_BYTES: [(&str, u64); 8] = [
    ("", 1),
    ("b", 1),
    ("kib", 1 << 10),
    ("mib", 1 << 20),
    ("gib", 1 << 30),
    ("kb", 1000),
    ("mb", 1_000_000),
    ("gb", 1_000_000_000),
];

/// When something ends: the end of a day (UTC), or a moment.
#[derive(Clone, PartialEq, Eq)]
pub struct ExpiryDate {
    /// The first moment after it.
    pub at: SystemTime,
    text: String,
}

const DAY_SECONDS: i64 = 86_400;

impl ExpiryDate {
    /// Parses `2027-06-30`, or `2027-06-30T12:00:00Z` with any offset.
    pub fn parse(text: &str) -> Option<Self> {
        let (date, time) = text.split_at_checked(10)?;
        let mut parts = date.split('-').map(|part| digits(part, if part.len() == 4 { 4 } else { 2 }));
        let (year, month, day) = (parts.next()??, parts.next()??, parts.next()??);
        if date.as_bytes()[4] != b'-' || !(1..=12).contains(&month) || day < 1 || day > days_of_month(year, month) {
            return None;
        }
        let days = days_from_epoch(year, month, day);
        let seconds = match time {
            "" => (days + 1) * DAY_SECONDS,
            time => days * DAY_SECONDS + seconds_of_time(time)?,
        };
        let at = UNIX_EPOCH.checked_add(Duration::from_secs(u64::try_from(seconds).ok()?))?;
        Some(Self { at, text: text.to_owned() })
    }
}

/// The text of the file.
impl fmt::Display for ExpiryDate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl fmt::Debug for ExpiryDate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

/// Seconds from midnight UTC of `T12:00:00Z` or `T12:00:00+02:00`; a fraction is dropped.
fn seconds_of_time(text: &str) -> Option<i64> {
    let text = text.strip_prefix(['T', 't', ' '])?;
    let (clock, rest) = text.split_at_checked(8)?;
    let rest =
        rest.strip_prefix('.').map_or(rest, |rest| rest.trim_start_matches(|digit: char| digit.is_ascii_digit()));
    let mut parts = clock.split(':').map(|part| digits(part, 2));
    let (hour, minute, second) = (parts.next()??, parts.next()??, parts.next()??);
    if hour > 23 || minute > 59 || second > 60 {
        return None;
    }
    let offset = match rest {
        "Z" | "z" => 0,
        _ => {
            let sign = if rest.starts_with('-') { -1 } else { 1 };
            let (hours, minutes) = rest.strip_prefix(['+', '-'])?.split_once(':')?;
            sign * (digits(hours, 2)? * 3600 + digits(minutes, 2)? * 60)
        }
    };
    Some(hour * 3600 + minute * 60 + second - offset)
}

/// A number of exactly that many digits.
fn digits(text: &str, count: usize) -> Option<i64> {
    let is_number = text.len() == count && text.bytes().all(|digit| digit.is_ascii_digit());
    is_number.then(|| text.parse().ok())?
}

fn days_of_month(year: i64, month: i64) -> i64 {
    match month {
        2 if year % 4 == 0 && (year % 100 != 0 || year % 400 == 0) => 29,
        2 => 28,
        4 | 6 | 9 | 11 => 30,
        _ => 31,
    }
}

/// Days since 1970-01-01 in the Gregorian calendar; years begin in March, so that the leap day is the last.
fn days_from_epoch(year: i64, month: i64, day: i64) -> i64 {
    let (year, month) = if month > 2 { (year, month - 3) } else { (year - 1, month + 9) };
    let leap_days = year / 4 - year / 100 + year / 400;
    year * 365 + leap_days + (month * 153 + 2) / 5 + day - 1 - 719_468
}

/// Parses a duration such as `30s`, `250ms` or `1h30m`.
pub(super) fn parse_duration(text: &str) -> Option<Duration> {
    let mut rest = text.trim();
    let mut total: Option<u64> = None;
    while !rest.is_empty() {
        let (number, after) = split_leading_number(rest)?;
        let unit_length = after.find(|character: char| !character.is_ascii_alphabetic()).unwrap_or(after.len());
        let (unit, after) = after.split_at(unit_length);
        let (_, scale) = DURATION_UNITS_MS.iter().find(|(name, _)| *name == unit)?;
        total = Some(total.unwrap_or(0).checked_add(number.checked_mul(*scale)?)?);
        rest = after;
    }
    total.map(Duration::from_millis)
}

/// Parses a size such as `16MiB` or `500kB`; without a unit it is bytes.
pub(super) fn parse_size(text: &str) -> Option<u64> {
    let (number, unit) = split_leading_number(text.trim())?;
    let unit = unit.trim().to_ascii_lowercase();
    let (_, scale) = SIZE_UNITS_BYTES.iter().find(|(name, _)| *name == unit)?;
    number.checked_mul(*scale)
}

fn split_leading_number(text: &str) -> Option<(u64, &str)> {
    let end = text.find(|character: char| !character.is_ascii_digit()).unwrap_or(text.len());
    let (number, rest) = text.split_at(end);
    Some((number.parse().ok()?, rest))
}

/// Formats a duration in the largest unit that divides it, in the syntax of the file.
pub fn format_duration(duration: Duration) -> String {
    let millis = u64::try_from(duration.as_millis()).unwrap_or(u64::MAX);
    let fits = |&&(_, scale): &&(&str, u64)| millis >= scale && millis.is_multiple_of(scale);
    match DURATION_UNITS_MS.iter().rev().find(fits) {
        Some((unit, scale)) => format!("{}{unit}", millis / scale),
        None => "0s".to_owned(),
    }
}

/// Formats a size in the largest binary unit that divides it, in the syntax of the file.
pub(super) fn format_size(bytes: usize) -> String {
    const UNITS: [(&str, usize); 3] = [("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)];
    match UNITS.iter().find(|(_, scale)| bytes >= *scale && bytes.is_multiple_of(*scale)) {
        Some((unit, scale)) => format!("{}{unit}", bytes / scale),
        None => format!("{bytes}B"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_need_a_unit() {
        for (text, millis) in [
            ("250ms", Some(250)),
            ("30s", Some(30_000)),
            ("5m", Some(300_000)),
            ("1h", Some(3_600_000)),
            ("1h30m", Some(5_400_000)),
            ("2d", Some(172_800_000)),
            ("0s", Some(0)),
            ("30", None),
            ("", None),
            ("s", None),
            ("1.5s", None),
            ("-1s", None),
            ("30 s", None),
            ("30S", None),
            ("5min", None),
            ("99999999999999999999s", None),
            ("18446744073709551615d", None),
        ] {
            assert_eq!(parse_duration(text), millis.map(Duration::from_millis), "{text}");
            if let Some(millis) = millis {
                let formatted = format_duration(Duration::from_millis(millis));
                assert_eq!(parse_duration(&formatted), Some(Duration::from_millis(millis)), "{formatted}");
            }
        }
        assert_eq!(format_duration(Duration::from_secs(300)), "5m");
        assert_eq!(format_duration(Duration::from_millis(1500)), "1500ms");
    }

    #[test]
    fn a_date_ends_with_its_day_and_a_moment_at_once() {
        let seconds = |text: &str| {
            let date = ExpiryDate::parse(text)?;
            Some(date.at.duration_since(UNIX_EPOCH).unwrap().as_secs())
        };
        for (text, end) in [
            ("1970-01-01", Some(86_400)),
            ("2000-02-29", Some(951_868_800)),
            ("2027-06-30", Some(1_814_400_000)),
            ("2027-06-30T00:00:00Z", Some(1_814_313_600)),
            ("2027-06-30T02:00:00+02:00", Some(1_814_313_600)),
            ("2027-06-29 19:00:00.5-05:00", Some(1_814_313_600)),
            ("2027-06-30T00:00:00", None),
            ("2027-02-29", None),
            ("2027-13-01", None),
            ("2027-00-01", None),
            ("2027-1-01", None),
            ("27-06-30", None),
            ("2027-06-30T25:00:00Z", None),
            ("2027-06-30x", None),
            ("tomorrow", None),
            ("", None),
        ] {
            assert_eq!(seconds(text), end, "{text}");
        }
        assert_eq!(ExpiryDate::parse("2027-06-30").unwrap().to_string(), "2027-06-30");
    }

    #[test]
    fn sizes_take_an_optional_unit() {
        for (text, bytes) in [
            ("16MiB", Some(16 << 20)),
            ("64 KiB", Some(64 << 10)),
            ("1GiB", Some(1 << 30)),
            ("5MB", Some(5_000_000)),
            ("10", Some(10)),
            ("10B", Some(10)),
            ("MiB", None),
            ("1TiB", None),
            ("-1", None),
            ("99999999999GiB", None),
        ] {
            assert_eq!(parse_size(text), bytes, "{text}");
            if let Some(bytes) = bytes {
                let formatted = format_size(usize::try_from(bytes).unwrap());
                assert_eq!(parse_size(&formatted), Some(bytes), "{formatted}");
            }
        }
    }
}
