//! `[log]`: levels and samples by target, and the filter that the levels make.

use serde_json::Value;

use super::reader::{TableReader, suggestion};
use super::setting_value::Choice;
use super::settings::LogSection;
use super::spanned_value::{SpannedNode, SpannedValue};
use crate::telemetry::{LogLevel, SERVING_FILTER, SampleRate};

/// Log levels by target, in the order of the file.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TargetLevels(Vec<(String, LogLevel)>);

/// The parts of the lines of targets that are logged, in the order of the file.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct TargetSamples(Vec<(String, SampleRate)>);

/// The target of the access log.
const ACCESS_TARGET: &str = "access";
/// Modules whose lines have the target `rialto::{module}`.
const MODULES: [&str; 26] = [
    "admin",
    "app",
    "audit",
    "call",
    "cli",
    "client",
    "cluster",
    "config",
    "console",
    "dialect",
    "gateway",
    "http",
    "inbound",
    "issuers",
    "local",
    "mcp_client",
    "metrics_export",
    "otlp",
    "policy",
    "protocol",
    "recording",
    "session",
    "store",
    "telemetry",
    "trace",
    "upstream",
];

impl TargetLevels {
    /// Reads a table of levels.
    pub(super) fn read(table: &TableReader<'_>, key: &str) -> Option<Self> {
        let levels = read_targets(table, key, ("levels", "upstream = \"debug\", access = \"off\""), |target, node| {
            let word = match &node.value {
                SpannedValue::String(word) => word.as_str(),
                _ => "",
            };
            let known = LogLevel::WORDS.iter().zip(LogLevel::VALUES).find(|(known, _)| **known == word);
            if known.is_none() {
                let message = format!("the level of `{target}` must be one of {}", LogLevel::WORDS.join(", "));
                table.reader.error(&node.span, message, suggestion(word, LogLevel::WORDS));
            }
            known.map(|(_, level)| *level)
        });
        levels.map(Self)
    }

    /// The levels as they are written in the file.
    pub(super) fn to_json(&self) -> Value {
        self.0.iter().map(|(target, level)| (target.clone(), Value::from(level.as_str()))).collect()
    }
}

impl TargetSamples {
    /// Reads a table of parts.
    pub(super) fn read(table: &TableReader<'_>, key: &str) -> Option<Self> {
        let samples = read_targets(table, key, ("parts", "access = 0.1, http = 0.01"), |target, node| {
            let rate = fraction(&node.value);
            if rate.is_none() {
                let message = format!("the part of `{target}` must be from 0 to 1");
                table.reader.error(&node.span, message, Some("write 0.1 for one line in ten".to_owned()));
            }
            rate
        });
        samples.map(Self)
    }

    /// The part of the requests that succeed which the access log has.
    pub(super) fn of_access_log(&self) -> SampleRate {
        self.0.iter().find(|(target, _)| target == ACCESS_TARGET).map(|(_, rate)| *rate).unwrap_or_default()
    }

    /// The parts of the lines of the log itself, by the targets that its lines have.
    pub(crate) fn of_log(&self) -> impl Iterator<Item = (String, SampleRate)> {
        let of_log = self.0.iter().filter(|(target, _)| target != ACCESS_TARGET);
        of_log.map(|(target, rate)| (format!("{}{target}", crate_prefix(target)), *rate))
    }

    /// The parts as they are written in the file.
    pub(super) fn to_json(&self) -> Value {
        self.0.iter().map(|(target, rate)| (target.clone(), Value::from(rate.get()))).collect()
    }
}

/// What stands before the name of a module of Rialto in a target.
fn crate_prefix(target: &str) -> &'static str {
    if MODULES.contains(&target) { "rialto::" } else { "" }
}

/// Reads a table of something by log target.
fn read_targets<T>(
    table: &TableReader<'_>,
    key: &str,
    (what, example): (&str, &str),
    read: impl Fn(&str, &SpannedNode) -> Option<T>,
) -> Option<Vec<(String, T)>> {
    let entry = table.entry(key)?;
    let SpannedValue::Table(entries) = &entry.node.value else {
        let hint = format!("write something like {{ {example} }}");
        let message = format!("{} must be a table of {what}, not {}", table.subject(key), entry.node.type_name());
        table.reader.error(&entry.node.span, message, Some(hint));
        return None;
    };
    let mut targets = Vec::new();
    for pair in entries {
        let is_target = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b':');
        if pair.key.is_empty() || !pair.key.bytes().all(is_target) {
            let message = format!("{:?} in {} is no log target", pair.key, table.subject(key));
            let hint = "write a module such as `upstream`, `access`, or a crate such as `hyper`".to_owned();
            table.reader.error(&pair.key_span, message, Some(hint));
            continue;
        }
        targets.extend(read(&pair.key, &pair.node).map(|value| (pair.key.clone(), value)));
    }
    Some(targets)
}

/// Reads a part from 0 to 1.
pub(super) fn read_fraction(table: &TableReader<'_>, key: &str) -> Option<SampleRate> {
    let entry = table.entry(key)?;
    let part = fraction(&entry.node.value);
    if part.is_none() {
        let hint = "write 1 for all, 0.1 for one in ten".to_owned();
        table.reader.error(&entry.node.span, format!("{} must be from 0 to 1", table.subject(key)), Some(hint));
    }
    part
}

fn fraction(value: &SpannedValue) -> Option<SampleRate> {
    let part = match value {
        SpannedValue::Float(part) => *part,
        SpannedValue::Integer(part) => f64::from(u8::try_from(*part).ok()?),
        _ => return None,
    };
    SampleRate::new(part)
}

impl LogSection {
    /// The filter of what is logged; `None` if nothing says it.
    pub(crate) fn tracing_filter(&self) -> Option<String> {
        let is_explicit = self.access == Some(true) && !self.levels.0.iter().any(|(target, _)| target == ACCESS_TARGET);
        let base = self.filter.clone().or_else(|| self.level.map(|level| level.as_str().to_owned()));
        if base.is_none() && self.levels.0.is_empty() && !is_explicit {
            return None;
        }
        let mut filter = base.unwrap_or_else(|| SERVING_FILTER.to_owned());
        for (target, level) in &self.levels.0 {
            filter.push_str(&format!(",{}{target}={}", crate_prefix(target), level.as_str()));
        }
        if is_explicit {
            filter.push_str(&format!(",{ACCESS_TARGET}=info"));
        }
        Some(filter)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn levels_by_target_make_a_filter() {
        let levels = |levels: &[(&str, LogLevel)]| {
            TargetLevels(levels.iter().map(|(target, level)| ((*target).to_owned(), *level)).collect())
        };
        let log = LogSection::default();
        assert_eq!(log.tracing_filter(), None);
        let log = LogSection {
            level: Some(LogLevel::Warn),
            levels: levels(&[("upstream", LogLevel::Debug), ("hyper", LogLevel::Trace), ("access", LogLevel::Off)]),
            access: Some(true),
            ..log
        };
        let expected = "warn,rialto::upstream=debug,hyper=trace,access=off";
        assert_eq!(log.tracing_filter().as_deref(), Some(expected));
        assert!(crate::telemetry::is_valid_filter(expected));
        let log = LogSection { filter: Some("rialto=debug".to_owned()), levels: levels(&[]), ..log };
        assert_eq!(log.tracing_filter().as_deref(), Some("rialto=debug,access=info"));
        let log =
            LogSection { filter: None, level: None, access: None, levels: levels(&[("http", LogLevel::Off)]), ..log };
        assert_eq!(log.tracing_filter().as_deref(), Some("info,rialto::http=off"));
    }
}
