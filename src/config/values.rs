//! Durations and sizes as people write them.

use std::time::Duration;

/// The units of a duration, in milliseconds.
const DURATIONS: [(&str, u64); 5] = [("ms", 1), ("s", 1000), ("m", 60_000), ("h", 3_600_000), ("d", 86_400_000)];
/// The units of a size, in bytes.
const SIZES: [(&str, u64); 8] = [
    ("", 1),
    ("b", 1),
    ("kib", 1 << 10),
    ("mib", 1 << 20),
    ("gib", 1 << 30),
    ("kb", 1000),
    ("mb", 1_000_000),
    ("gb", 1_000_000_000),
];

/// Reads a duration such as `30s`, `250ms` or `1h30m`.
pub(super) fn duration(text: &str) -> Option<Duration> {
    let mut rest = text.trim();
    let mut total: Option<u64> = None;
    while !rest.is_empty() {
        let (number, after) = digits(rest)?;
        let unit_length = after.find(|letter: char| !letter.is_ascii_alphabetic()).unwrap_or(after.len());
        let (unit, after) = after.split_at(unit_length);
        let (_, scale) = DURATIONS.iter().find(|(name, _)| *name == unit)?;
        total = Some(total.unwrap_or(0).checked_add(number.checked_mul(*scale)?)?);
        rest = after;
    }
    total.map(Duration::from_millis)
}

/// Reads a size such as `16MiB` or `500kB`.
pub(super) fn size(text: &str) -> Option<u64> {
    let (number, unit) = digits(text.trim())?;
    let unit = unit.trim().to_ascii_lowercase();
    let (_, scale) = SIZES.iter().find(|(name, _)| *name == unit)?;
    number.checked_mul(*scale)
}

fn digits(text: &str) -> Option<(u64, &str)> {
    let end = text.find(|letter: char| !letter.is_ascii_digit()).unwrap_or(text.len());
    let (number, rest) = text.split_at(end);
    Some((number.parse().ok()?, rest))
}

/// A duration in the largest unit that fits, as the file has it.
pub fn show_duration(duration: Duration) -> String {
    let millis = u64::try_from(duration.as_millis()).unwrap_or(u64::MAX);
    let fits = |&&(_, scale): &&(&str, u64)| millis >= scale && millis.is_multiple_of(scale);
    match DURATIONS.iter().rev().find(fits) {
        Some((unit, scale)) => format!("{}{unit}", millis / scale),
        None => "0s".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_have_units() {
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
            assert_eq!(duration(text), millis.map(Duration::from_millis), "{text}");
            if let Some(millis) = millis {
                let shown = show_duration(Duration::from_millis(millis));
                assert_eq!(duration(&shown), Some(Duration::from_millis(millis)), "{shown}");
            }
        }
        assert_eq!(show_duration(Duration::from_secs(300)), "5m");
        assert_eq!(show_duration(Duration::from_millis(1500)), "1500ms");
    }

    #[test]
    fn sizes_may_have_units() {
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
            assert_eq!(size(text), bytes, "{text}");
        }
    }
}
