//! `[log]`: levels by target, and the filter that they make.

use serde_json::Value;

use super::reader::{TableReader, suggestion};
use super::setting_value::Choice;
use super::settings::LogSection;
use super::spanned_value::SpannedValue;
use crate::access_log::SampleRate;
use crate::telemetry::{LogLevel, SERVING_FILTER};

/// Log levels by target, in the order of the file.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TargetLevels(Vec<(String, LogLevel)>);

/// The target of the access log.
const ACCESS_TARGET: &str = "access";
/// Modules whose lines have the target `rialto::{module}`.
const MODULES: [&str; 25] = [
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
    "session",
    "store",
    "telemetry",
    "trace",
    "upstream",
];

impl TargetLevels {
    /// Reads a table of levels.
    pub(super) fn read(table: &TableReader<'_>, key: &str) -> Option<Self> {
        let entry = table.entry(key)?;
        let SpannedValue::Table(entries) = &entry.node.value else {
            let hint = "write something like { upstream = \"debug\", access = \"off\" }".to_owned();
            let message = format!("{} must be a table of levels, not {}", table.subject(key), entry.node.type_name());
            table.reader.error(&entry.node.span, message, Some(hint));
            return None;
        };
        let mut levels = Vec::new();
        for pair in entries {
            let is_target = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b':');
            if pair.key.is_empty() || !pair.key.bytes().all(is_target) {
                let message = format!("{:?} in {} is no log target", pair.key, table.subject(key));
                let hint = "write a module such as `upstream`, `access`, or a crate such as `hyper`".to_owned();
                table.reader.error(&pair.key_span, message, Some(hint));
                continue;
            }
            let word = match &pair.node.value {
                SpannedValue::String(word) => word.as_str(),
                _ => "",
            };
            let known = LogLevel::WORDS.iter().zip(LogLevel::VALUES).find(|(known, _)| **known == word);
            match known {
                Some((_, level)) => levels.push((pair.key.clone(), *level)),
                None => {
                    let message = format!("the level of `{}` must be one of {}", pair.key, LogLevel::WORDS.join(", "));
                    table.reader.error(&pair.node.span, message, suggestion(word, LogLevel::WORDS));
                }
            }
        }
        Some(Self(levels))
    }

    /// The levels as they are written in the file.
    pub(super) fn to_json(&self) -> Value {
        self.0.iter().map(|(target, level)| (target.clone(), Value::from(level.as_str()))).collect()
    }
}

/// Reads a part from 0 to 1.
pub(super) fn read_fraction(table: &TableReader<'_>, key: &str) -> Option<SampleRate> {
    let entry = table.entry(key)?;
    let part = match entry.node.value {
        SpannedValue::Float(part) => Some(part),
        SpannedValue::Integer(part) => u8::try_from(part).ok().map(f64::from),
        _ => None,
    };
    let part = part.and_then(SampleRate::new);
    if part.is_none() {
        let hint = "write 1 for all requests, 0.1 for one in ten".to_owned();
        table.reader.error(&entry.node.span, format!("{} must be from 0 to 1", table.subject(key)), Some(hint));
    }
    part
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
            let module = if MODULES.contains(&target.as_str()) { "rialto::" } else { "" };
            filter.push_str(&format!(",{module}{target}={}", level.as_str()));
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
