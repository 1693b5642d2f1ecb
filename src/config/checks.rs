//! Checks of settings that no type can express. They run after a section was read, from the file or from flags.

use super::model::Config;
use super::reader::TableReader;
use super::settings::{AccessSection, ClusterSection, FilterSection, LogSection, UpstreamSettings};

const MIN_SEALING_KEY_BYTES: usize = 16;

impl Config {
    /// Warnings about a gateway that others can reach, however its address was set: by a flag, a variable, the file or
    /// by default. One sentence each.
    pub fn exposure_warnings(&self) -> Vec<String> {
        let (settings, mut warnings) = (&self.settings, Vec::new());
        let listen = settings.listen;
        if !listen.ip().is_loopback() {
            if settings.access.tokens.is_empty() {
                warnings.push(format!(
                    "anyone who can reach {listen} may call; set tokens in [access.tokens] or with --token"
                ));
            }
            if settings.access.hosts.is_empty() {
                warnings.push(
                    "requests with a Host other than loopback will be refused; list the allowed hosts in \
                     [access] hosts or with --allow-host"
                        .to_owned(),
                );
            }
        }
        if let Some(admin) = settings.admin.listen.filter(|admin| !admin.ip().is_loopback())
            && settings.admin.token.is_none()
        {
            warnings.push(format!("anyone who can reach {admin} may read metrics and status; set a token in [admin]"));
        }
        warnings
    }
}

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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_open_gateway_is_warned_about_by_its_settings_alone() {
        let mut config = Config::default();
        assert!(config.exposure_warnings().is_empty());
        config.settings.listen = "0.0.0.0:3001".parse().unwrap();
        config.settings.admin.listen = Some("0.0.0.0:3002".parse().unwrap());
        let warnings = config.exposure_warnings().join("\n");
        for part in
            ["anyone who can reach 0.0.0.0:3001 may call", "Host other than loopback", "read metrics and status"]
        {
            assert!(warnings.contains(part), "{part} is not in {warnings}");
        }
        config.settings.access.tokens = vec![super::super::CallerToken { name: "a".into(), secret: "b".into() }];
        config.settings.access.hosts = vec!["gate.example".into()];
        config.settings.admin.token = Some(super::super::Secret("s3cret".into()));
        assert!(config.exposure_warnings().is_empty());
    }
}
