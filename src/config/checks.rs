//! Checks of settings that no type can express. They run after a section was read, from the file or from flags.

use super::reader::TableReader;
use super::settings::{AccessSection, ClusterSection, FilterSection, LogSection, UpstreamSettings};

const MIN_SEALING_KEY_BYTES: usize = 16;

pub(super) fn check_cluster(cluster: &mut ClusterSection, table: &TableReader<'_>) {
    let is_valid = |character: char| character.is_ascii_alphanumeric() || matches!(character, '-' | '_' | '.' | ':');
    if let Some(entry) = table.entry("prefix")
        && !cluster.prefix.chars().all(is_valid)
    {
        let hint = "use letters, digits, and any of - _ . :".to_owned();
        let message = format!("{} has invalid characters", table.subject("prefix"));
        table.reader.error(&entry.node.span, message, Some(hint));
    }
    if let (Some(sealing_key), Some(entry)) = (&cluster.sealing_key, table.entry("sealing_key"))
        && sealing_key.0.len() < MIN_SEALING_KEY_BYTES
    {
        let subject = table.subject("sealing_key");
        let message = format!("{subject} has fewer than {MIN_SEALING_KEY_BYTES} characters");
        table.reader.error(&entry.node.span, message, Some("generate one: openssl rand -hex 32".into()));
    }
}

pub(super) fn check_log(log: &mut LogSection, table: &TableReader<'_>) {
    if let (Some(filter), Some(entry)) = (&log.filter, table.entry("filter"))
        && !crate::telemetry::is_valid_filter(filter)
    {
        let hint = "write a level such as \"info\", or targets as in \"rialto=debug,hyper=warn\"".to_owned();
        let message = format!("{} is not a log filter", table.subject("filter"));
        table.reader.error(&entry.node.span, message, Some(hint));
    }
}

pub(super) fn check_access(_: &mut AccessSection, table: &TableReader<'_>) {
    for (origin, span) in table.strings_with_spans("origins").unwrap_or_default() {
        if !(origin == "*" || origin == "null" || origin.contains("://")) {
            let origin = table.reader.redacted(&origin, &span);
            let hint = format!("write it as \"https://{origin}\"");
            table.reader.error(&span, format!("{origin:?} is not an origin"), Some(hint));
        }
    }
    for (host, span) in table.strings_with_spans("hosts").unwrap_or_default() {
        if host.contains('/') {
            let host = table.reader.redacted(&host, &span);
            let bare = host.split_once("://").map_or(host, |(_, rest)| rest).split('/').next().unwrap_or("");
            table.reader.error(&span, format!("{host:?} is not a host name"), Some(format!("write it as \"{bare}\"")));
        }
    }
}

/// If only one of the two timeouts is set, the other follows it, so that the total is never the shorter one.
pub(super) fn check_timeouts(settings: &mut UpstreamSettings, table: &TableReader<'_>) {
    if settings.total_timeout < settings.idle_timeout {
        match (table.entry("idle_timeout"), table.entry("total_timeout")) {
            (Some(_), Some(total)) => {
                table.reader.error(&total.node.span, "`total_timeout` is shorter than `idle_timeout`", None);
            }
            (Some(_), None) => settings.total_timeout = settings.idle_timeout,
            (None, _) => settings.idle_timeout = settings.total_timeout,
        }
    }
}

pub(super) fn check_filter(filter: &mut FilterSection, table: &TableReader<'_>) {
    if let (Some(entry), []) = (table.entry("allow"), filter.allow.as_slice())
        && let Some([]) = table.strings("allow").as_deref()
    {
        let hint = "leave it out to allow all, or write deny = [\"*\"]".to_owned();
        table.reader.error(&entry.node.span, "an empty `allow` allows nothing", Some(hint));
    }
}
