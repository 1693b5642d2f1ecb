//! Reads what we need of an X.509 certificate: the name of its holder and how long it is valid. Signatures and chains
//! are verified by rustls.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// What a certificate says of its holder.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CertificateInfo {
    /// The common name of the subject; without one the first DNS name or URI of the alternative names. `None` if there
    /// is none, or only one with control characters or of more than 256 bytes.
    pub name: Option<String>,
    /// When it begins to be valid.
    pub not_before: SystemTime,
    /// When it ceases to be valid.
    pub not_after: SystemTime,
}

/// Longest name that is taken from a certificate, in bytes.
const MAX_NAME_BYTES: usize = 256;

// DER tags (X.690) of the members that are read.
const BOOLEAN: u8 = 0x01;
const OCTET_STRING: u8 = 0x04;
const OBJECT_ID: u8 = 0x06;
const UTF8_STRING: u8 = 0x0c;
const PRINTABLE_STRING: u8 = 0x13;
const TELETEX_STRING: u8 = 0x14;
const IA5_STRING: u8 = 0x16;
const UTC_TIME: u8 = 0x17;
const GENERALIZED_TIME: u8 = 0x18;
const SEQUENCE: u8 = 0x30;
const SET: u8 = 0x31;
const VERSION: u8 = 0xa0;
const EXTENSIONS: u8 = 0xa3;
const SAN_DNS: u8 = 0x82;
const SAN_URI: u8 = 0x86;

/// 2.5.4.3, the common name in a subject.
const COMMON_NAME: &[u8] = &[0x55, 0x04, 0x03];
/// 2.5.29.17, the extension with alternative names.
const SUBJECT_ALT_NAME: &[u8] = &[0x55, 0x1d, 0x11];

/// The rest of a DER encoding.
struct Der<'d>(&'d [u8]);

impl<'d> Der<'d> {
    /// The next element: its tag and content.
    fn next(&mut self) -> Option<(u8, &'d [u8])> {
        let (&tag, rest) = self.0.split_first()?;
        let (&first, rest) = rest.split_first()?;
        let (length, rest) = match first {
            0..=0x7f => (usize::from(first), rest),
            0x81..=0x84 => {
                let (bytes, rest) = rest.split_at_checked(usize::from(first & 0x7f))?;
                (bytes.iter().fold(0, |length, byte| length << 8 | usize::from(*byte)), rest)
            }
            _ => return None,
        };
        let (content, rest) = rest.split_at_checked(length)?;
        self.0 = rest;
        Some((tag, content))
    }

    /// The content of the next element, which must have this tag.
    fn expect(&mut self, tag: u8) -> Option<&'d [u8]> {
        self.next().filter(|(found, _)| *found == tag).map(|(_, content)| content)
    }
}

impl CertificateInfo {
    /// Reads a certificate in DER; `None` if it is malformed.
    pub fn read(der: &[u8]) -> Option<Self> {
        let mut signed = Der(Der(der).expect(SEQUENCE)?);
        let mut fields = Der(signed.expect(SEQUENCE)?);
        if fields.0.first() == Some(&VERSION) {
            fields.next()?;
        }
        let (_serial, _algorithm, _issuer) = (fields.next()?, fields.next()?, fields.next()?);
        let mut validity = Der(fields.expect(SEQUENCE)?);
        let (not_before, not_after) = (read_time(validity.next()?)?, read_time(validity.next()?)?);
        let common_name = common_name(fields.expect(SEQUENCE)?);
        let _public_key = fields.next()?;
        let mut alternative = None;
        while let Some((tag, content)) = fields.next() {
            if tag == EXTENSIONS {
                alternative = alternative_name(content);
            }
        }
        let is_usable = |name: &String| {
            !name.trim().is_empty() && name.len() <= MAX_NAME_BYTES && !name.chars().any(char::is_control)
        };
        Some(Self { name: common_name.or(alternative).filter(is_usable), not_before, not_after })
    }
}

/// The last common name of a subject, which is the most specific one.
fn common_name(subject: &[u8]) -> Option<String> {
    let (mut sets, mut name) = (Der(subject), None);
    while let Some(set) = sets.expect(SET) {
        let mut attributes = Der(set);
        while let Some(attribute) = attributes.expect(SEQUENCE) {
            let mut attribute = Der(attribute);
            if attribute.expect(OBJECT_ID) == Some(COMMON_NAME)
                && let Some((UTF8_STRING | PRINTABLE_STRING | TELETEX_STRING | IA5_STRING, text)) = attribute.next()
            {
                name = String::from_utf8(text.to_vec()).ok();
            }
        }
    }
    name
}

/// The first DNS name or URI among the alternative names.
fn alternative_name(extensions: &[u8]) -> Option<String> {
    let mut extensions = Der(Der(extensions).expect(SEQUENCE)?);
    while let Some(extension) = extensions.expect(SEQUENCE) {
        let mut extension = Der(extension);
        if extension.expect(OBJECT_ID) != Some(SUBJECT_ALT_NAME) {
            continue;
        }
        if extension.0.first() == Some(&BOOLEAN) {
            extension.next()?;
        }
        let mut names = Der(Der(extension.expect(OCTET_STRING)?).expect(SEQUENCE)?);
        while let Some((tag, name)) = names.next() {
            if matches!(tag, SAN_DNS | SAN_URI) {
                return String::from_utf8(name.to_vec()).ok();
            }
        }
    }
    None
}

/// `YYMMDDHHMMSSZ` or `YYYYMMDDHHMMSSZ`, the only forms that RFC 5280 allows.
fn read_time((tag, text): (u8, &[u8])) -> Option<SystemTime> {
    let text = str::from_utf8(text).ok()?.strip_suffix('Z')?;
    let (year, rest) = match tag {
        UTC_TIME => text.split_at_checked(2)?,
        GENERALIZED_TIME => text.split_at_checked(4)?,
        _ => return None,
    };
    let year: i64 = year.parse().ok()?;
    let year = match tag {
        UTC_TIME if year < 50 => 2000 + year,
        UTC_TIME => 1900 + year,
        _ => year,
    };
    if rest.len() != 10 {
        return None;
    }
    let part = |at: usize| rest.get(at..at + 2)?.parse::<i64>().ok();
    let (month, day, hour, minute, second) = (part(0)?, part(2)?, part(4)?, part(6)?, part(8)?);
    if !(1..=12).contains(&month) || !(1..=31).contains(&day) {
        return None;
    }
    let seconds = days_since_epoch(year, month, day) * 86_400 + hour * 3600 + minute * 60 + second;
    match u64::try_from(seconds) {
        Ok(seconds) => Some(UNIX_EPOCH + Duration::from_secs(seconds)),
        Err(_) => UNIX_EPOCH.checked_sub(Duration::from_secs(seconds.unsigned_abs())),
    }
}

/// Days from 1970-01-01 to a date of the Gregorian calendar. Years begin in March here, so that a leap day is the last.
fn days_since_epoch(year: i64, month: i64, day: i64) -> i64 {
    let year = if month <= 2 { year - 1 } else { year };
    let (era, of_era) = (year.div_euclid(400), year.rem_euclid(400));
    let of_year = (153 * ((month + 9) % 12) + 2) / 5 + day - 1;
    era * 146_097 + of_era * 365 + of_era / 4 - of_era / 100 + of_year - 719_468
}

#[cfg(test)]
mod tests {
    use super::*;

    fn certificate(common_name: Option<&str>, names: &[&str]) -> CertificateInfo {
        let key = rcgen::KeyPair::generate().unwrap();
        let mut parameters = rcgen::CertificateParams::new(Vec::<String>::new()).unwrap();
        parameters.distinguished_name = rcgen::DistinguishedName::new();
        if let Some(name) = common_name {
            parameters.distinguished_name.push(rcgen::DnType::OrganizationName, "Example");
            parameters.distinguished_name.push(rcgen::DnType::CommonName, name);
        }
        let san = |name: &&str| match name.contains("://") {
            true => rcgen::SanType::URI((*name).try_into().unwrap()),
            false => rcgen::SanType::DnsName((*name).try_into().unwrap()),
        };
        parameters.subject_alt_names = names.iter().map(san).collect();
        parameters.not_before = rcgen::date_time_ymd(2024, 2, 29);
        parameters.not_after = rcgen::date_time_ymd(2051, 1, 1);
        CertificateInfo::read(parameters.self_signed(&key).unwrap().der()).unwrap()
    }

    #[test]
    fn common_name_wins_over_alternative_names() {
        for (common_name, names, expected) in [
            (Some("ann"), &["a.example"][..], Some("ann")),
            (None, &["a.example", "b.example"], Some("a.example")),
            (None, &["spiffe://corp/agent"], Some("spiffe://corp/agent")),
            (Some("Zoë Müller"), &[], Some("Zoë Müller")),
            (Some("two\nlines"), &[], None),
            (Some(&"x".repeat(257)), &[], None),
            (None, &[], None),
        ] {
            assert_eq!(certificate(common_name, names).name.as_deref(), expected);
        }
    }

    #[test]
    fn validity_is_read_in_both_forms() {
        let info = certificate(Some("ann"), &[]);
        assert_eq!(info.not_before, UNIX_EPOCH + Duration::from_secs(1_709_164_800), "UTCTime of 2024-02-29");
        assert_eq!(info.not_after, UNIX_EPOCH + Duration::from_secs(2_556_144_000), "GeneralizedTime of 2051-01-01");
    }

    #[test]
    fn malformed_certificates_are_refused_without_a_panic() {
        let key = rcgen::KeyPair::generate().unwrap();
        let whole = rcgen::CertificateParams::new(["a.example".to_owned()]).unwrap().self_signed(&key).unwrap();
        let whole: &[u8] = whole.der();
        assert!(CertificateInfo::read(whole).is_some());
        for end in 0..whole.len() {
            assert!(CertificateInfo::read(&whole[..end]).is_none(), "cut at {end}");
        }
        for at in 0..whole.len() {
            for value in [0, 0x30, 0x80, 0x84, 0xff] {
                let mut changed = whole.to_vec();
                changed[at] = value;
                let _ = CertificateInfo::read(&changed);
            }
        }
    }
}
