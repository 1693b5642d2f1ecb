//! Durations and sizes with units.

use std::time::Duration;

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
