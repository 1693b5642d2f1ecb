//! Checks of settings that no type can express. They run after a section was read, from the file or from flags.

use super::model::Config;
use super::reader::TableReader;
use super::settings::{
    AccessSection, ApiKeySettings, AuditSection, ClusterSection, FilterSection, LogSection, TelemetrySection,
    UpstreamSettings,
};
use crate::http::server::ClientCertificates;
use http::{HeaderName, HeaderValue};

const MIN_SEALING_KEY_BYTES: usize = 16;
/// Digests of one API key: the one in use, and the one that replaces it.
const MAX_KEY_HASHES: usize = 2;

impl Config {
    /// Warnings about a gateway that others can reach, however its address was set: by a flag, a variable, the file or
    /// by default. One sentence each.
    pub fn exposure_warnings(&self) -> Vec<String> {
        let (settings, mut warnings) = (&self.settings, Vec::new());
        let listen = settings.listen;
        if !listen.ip().is_loopback() {
            let (access, tls) = (&settings.access, &settings.tls);
            let needs_certificate = tls.client_ca.is_some() && tls.client_certificates == ClientCertificates::Required;
            let has_credentials = !(access.tokens.is_empty() && access.keys.is_empty() && access.issuers.is_empty());
            if (!has_credentials || access.allow_anonymous) && !needs_certificate {
                warnings.push(format!(
                    "anyone who can reach {listen} may call; set tokens in [access.tokens] or with --token, or make an \
                     API key with `rialto key new`"
                ));
            }
            if tls.certificate.is_none() && access.trusted_proxies.is_empty() {
                warnings.push(format!(
                    "tokens and answers travel unencrypted to and from {listen}; set a certificate in [tls], or put a \
                     proxy with TLS in front and name it in [access] trusted_proxies or with --trusted-proxy"
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

pub(super) fn check_audit(_: &mut AuditSection, table: &TableReader<'_>) {
    for (pointer, span) in table.strings_with_spans("redact").unwrap_or_default() {
        if !pointer.starts_with('/') {
            let pointer = table.reader.redacted(&pointer, &span);
            let hint = format!("write it as \"/{pointer}\"");
            table.reader.error(&span, format!("{pointer:?} is no JSON Pointer"), Some(hint));
        }
    }
}

pub(super) fn check_telemetry(telemetry: &mut TelemetrySection, table: &TableReader<'_>) {
    for (name, value, span) in table.string_map("headers") {
        let is_valid = HeaderName::from_bytes(name.as_bytes()).is_ok() && HeaderValue::from_str(&value).is_ok();
        if !is_valid {
            table.reader.error(
                &span,
                format!("`{name}` in {} cannot be sent as a header", table.subject("headers")),
                None,
            );
        }
    }
    if let Some(entry) = table.entry("batch").filter(|_| telemetry.batch > telemetry.queue) {
        let hint = format!("write at most {}, or a larger `queue`", telemetry.queue);
        table.reader.error(&entry.node.span, format!("{} is more than `queue`", table.subject("batch")), Some(hint));
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
    for (scope, span) in table.strings_with_spans("scopes").unwrap_or_default() {
        let is_scope = |byte: u8| byte.is_ascii_graphic() && !matches!(byte, b'"' | b'\\');
        let shown = table.reader.redacted(&scope, &span);
        if scope == "offline_access" {
            let hint = "leave it out: clients that want to stay logged in ask for it themselves".to_owned();
            table.reader.error(&span, "`offline_access` is no scope of a server", Some(hint));
        } else if scope.is_empty() || !scope.bytes().all(is_scope) {
            table.reader.error(&span, format!("{shown:?} is not a scope"), Some("write one scope per item".into()));
        }
    }
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

pub(super) fn check_api_key(key: &mut ApiKeySettings, table: &TableReader<'_>) {
    let Some(entry) = table.entry("hashes") else {
        let hint = "`rialto key new NAME` prints the lines for a key".to_owned();
        let message = format!("{} is missing", table.subject("hashes"));
        return table.reader.error_unless_broken(&table.span, message, Some(hint));
    };
    let count = table.strings("hashes").map_or(1, |hashes| hashes.len());
    if count == 0 || count > MAX_KEY_HASHES {
        let hint = "one, or two while the key is being replaced".to_owned();
        table.reader.error(&entry.node.span, format!("{} has {count} values", table.subject("hashes")), Some(hint));
    }
    if let (Some(entry), Some([])) = (table.entry("groups"), key.groups.as_deref()) {
        let hint = "leave it out to allow all".to_owned();
        table.reader.error(&entry.node.span, "a key without `groups` can be used nowhere", Some(hint));
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
        for part in [
            "anyone who can reach 0.0.0.0:3001 may call",
            "Host other than loopback",
            "travel unencrypted",
            "read metrics and status",
        ] {
            assert!(warnings.contains(part), "{part} is not in {warnings}");
        }
        config.settings.access.tokens = vec![super::super::CallerToken { name: "a".into(), secret: "b".into() }];
        config.settings.access.hosts = vec!["gate.example".into()];
        let proxy = crate::policy::TrustedProxies::parse_network("10.0.0.1").unwrap();
        config.settings.access.trusted_proxies = crate::policy::TrustedProxies::new(vec![proxy]);
        config.settings.admin.token = Some(super::super::Secret("s3cret".into()));
        assert!(config.exposure_warnings().is_empty());
        config.settings.access.trusted_proxies = crate::policy::TrustedProxies::default();
        let warnings = config.exposure_warnings();
        assert!(warnings.len() == 1 && warnings[0].contains("unencrypted"), "{warnings:?}");
        config.settings.tls.certificate = Some("chain.pem".into());
        assert!(config.exposure_warnings().is_empty());
        config.settings.access.tokens.clear();
        assert_eq!(config.exposure_warnings().len(), 1, "anyone may call");
        config.settings.tls.client_ca = Some("clients.pem".into());
        assert!(config.exposure_warnings().is_empty(), "only holders of a certificate may call");
    }
}
