//! Reads the limits of `[[policy.limits]]`.

use std::time::Duration;

use serde_json::Value;
use wildmatch::WildMatch;

use super::keys::ValueType;
use super::model::Config;
use super::policy_rules::read_principals;
use super::reader::{TableReader, quoted_list, suggestion};
use super::setting_value::SettingValue;
use super::spanned_value::{Span, SpannedEntry};
use crate::policy::{CallQuota, LimitRule, LimitScope, QuotaWindow, Rate};

/// What a limit can count by.
const SCOPES: [(&str, LimitScope); 6] = [
    ("caller", LimitScope::Caller),
    ("client", LimitScope::Client),
    ("role", LimitScope::Role),
    ("group", LimitScope::Group),
    ("server", LimitScope::Server),
    ("tool", LimitScope::Tool),
];
/// Units of a rate.
const RATE_UNITS: [(&str, Duration); 3] =
    [("s", Duration::from_secs(1)), ("m", Duration::from_secs(60)), ("h", Duration::from_secs(3600))];
/// Windows of a quota.
const QUOTA_UNITS: [QuotaWindow; 4] = [QuotaWindow::Minute, QuotaWindow::Hour, QuotaWindow::Day, QuotaWindow::Month];
/// Keys that list what is called.
const TARGET_KEYS: [&str; 3] = ["tools", "prompts", "resources"];
/// Keys that limit something; a limit has at least one of them.
const LIMITING_KEYS: [&str; 5] = ["rate", "quota", "max_in_flight", "max_argument_bytes", "total_timeout"];
/// Most requests per second.
const MAX_PER_SECOND: u32 = 1_000_000;

impl SettingValue for Vec<LimitRule> {
    fn read(&mut self, table: &TableReader<'_>, key: &str) {
        let limits = table.table_list(key);
        for (i, limit) in limits.iter().enumerate() {
            if let Some(rule) = read_limit(limit) {
                check_name_is_unique(limit, &limits[..i], &rule.name);
                self.push(rule);
            }
        }
    }

    /// The names.
    fn to_json(&self, _: ValueType) -> Value {
        self.iter().map(|limit| &*limit.name).collect()
    }
}

/// Checks the servers and groups that limits name, once all are known. `servers` are all of the file, including those with
/// errors.
pub(super) fn check_limit_references(file: &TableReader<'_>, config: &Config, servers: &[&str]) {
    let groups: Vec<&str> = config.groups.iter().map(|group| &*group.name).collect();
    let limits = file.subtable("policy").map(|policy| policy.table_list("limits")).unwrap_or_default();
    for limit in limits {
        for (name, span) in limit.strings_with_spans("groups").unwrap_or_default() {
            check_known(&limit, (&name, &span), ("group", &name), &groups);
        }
        for (pattern, span) in TARGET_KEYS.iter().flat_map(|key| limit.strings_with_spans(key).unwrap_or_default()) {
            let Some((server, _)) = pattern.split_once('/') else { continue };
            if !server.contains(['*', '?']) {
                check_known(&limit, (&pattern, &span), ("server", server), servers);
            }
        }
    }
}

fn check_known(table: &TableReader<'_>, written: (&str, &Span), (what, name): (&str, &str), known: &[&str]) {
    if !known.contains(&name) {
        let shown = table.reader.redacted(written.0, written.1);
        let message = format!("{shown:?} in [[policy.limits]] names the unknown {what} `{name}`");
        table.reader.error_unless_broken(written.1, message, suggestion(name, known));
    }
}

fn check_name_is_unique(table: &TableReader<'_>, before: &[TableReader<'_>], name: &str) {
    let has_same_name = |other: &TableReader<'_>| other.string("name").is_some_and(|other| other == name);
    if let Some(entry) = table.entry("name").filter(|_| before.iter().any(has_same_name)) {
        let name = table.reader.redacted(name, &entry.node.span);
        let hint = "metrics and status show limits by name".to_owned();
        table.reader.error(&entry.node.span, format!("two limits are named {name:?}"), Some(hint));
    }
}

fn read_limit(table: &TableReader<'_>) -> Option<LimitRule> {
    let name = table.string("name");
    let [tools, prompts, resources] = TARGET_KEYS.map(|key| read_targets(table, key));
    let (rate, quota) = (read_rate(table), read_quota(table));
    let rule = LimitRule {
        principals: read_principals(table, "principals"),
        groups: table.strings("groups").unwrap_or_default().iter().map(|name| name.as_str().into()).collect(),
        tools,
        prompts,
        resources,
        per: read_scopes(table),
        rate,
        quota,
        max_in_flight: table.integer("max_in_flight"),
        max_argument_bytes: table.size("max_argument_bytes"),
        total_timeout: table.duration("total_timeout"),
        exact: table.boolean("exact").unwrap_or(false),
        ..LimitRule::new(name?)
    };
    check_limit(table, &rule);
    Some(rule)
}

/// Checks what the keys of a limit say together.
fn check_limit(table: &TableReader<'_>, rule: &LimitRule) {
    let reader = table.reader;
    if LIMITING_KEYS.iter().all(|key| table.entry(key).is_none()) {
        let hint = format!("set one of {}", quoted_list(&LIMITING_KEYS));
        reader.error_unless_broken(&table.span, format!("the limit {:?} limits nothing", rule.name), Some(hint));
    }
    if let (Some(burst), None) = (table.entry("burst"), table.entry("rate")) {
        let hint = "set `rate`, such as \"20/s\"".to_owned();
        reader.error(&burst.key_span, "`burst` in [policy.limits] has no `rate`", Some(hint));
    }
    if let Some(entry) = table.entry("exact")
        && rule.exact
        && table.entry("rate").is_none()
        && table.entry("quota").is_none()
    {
        let hint = "only `rate` and `quota` are shared by nodes".to_owned();
        reader.warn(&entry.key_span, "`exact` in [policy.limits] does nothing", Some(hint));
    }
    let needs_target = |scope: &&LimitScope| matches!(scope, LimitScope::Server | LimitScope::Tool);
    if let (Some(entry), Some(_)) = (table.entry("per"), rule.per.iter().find(needs_target))
        && !rule.has_targets()
        && TARGET_KEYS.iter().all(|key| table.entry(key).is_none())
    {
        let message = "`per` in [policy.limits]: `server` and `tool` are known only of a limit with targets";
        reader.error(&entry.node.span, message, Some("add tools = [\"*\"] to count the calls of all tools".into()));
    }
}

fn read_targets(table: &TableReader<'_>, key: &str) -> Vec<WildMatch> {
    let mut patterns = Vec::new();
    for (text, span) in table.strings_with_spans(key).unwrap_or_default() {
        if text != "*" && !text.contains('/') {
            let shown = table.reader.redacted(&text, &span);
            let hint = format!("write the server and its own name, such as \"*/{shown}\"");
            table.reader.error(&span, format!("`{key}` in [policy.limits]: {shown:?} has no server"), Some(hint));
        }
        patterns.push(WildMatch::new(&text));
    }
    if let (Some(entry), true) = (table.entry(key), patterns.is_empty()) {
        let hint = "list patterns, or remove the key to count every request".to_owned();
        table.reader.error_unless_broken(&entry.key_span, format!("`{key}` in [policy.limits] is empty"), Some(hint));
    }
    patterns
}

fn read_scopes(table: &TableReader<'_>) -> Vec<LimitScope> {
    let words: Vec<&str> = SCOPES.iter().map(|(word, _)| *word).collect();
    let mut scopes = Vec::new();
    for (text, span) in table.strings_with_spans("per").unwrap_or_default() {
        match SCOPES.iter().find(|(word, _)| *word == text) {
            Some((_, scope)) if scopes.contains(scope) => {
                table.reader.error(&span, format!("`per` in [policy.limits] names `{text}` twice"), None);
            }
            Some((_, scope)) => scopes.push(*scope),
            None => {
                let shown = table.reader.redacted(&text, &span);
                let message = format!("`per` in [policy.limits]: {shown:?} is unknown");
                table.reader.error(&span, message, suggestion(&text, &words));
            }
        }
    }
    scopes
}

fn read_rate(table: &TableReader<'_>) -> Option<Rate> {
    let burst = table.integer("burst").and_then(|burst| u32::try_from(burst).ok());
    let written = read_count_per_unit(table, "rate")?;
    let found = RATE_UNITS.iter().find(|(unit, _)| *unit == written.unit);
    let Some((_, period)) = found else {
        written.error(
            table,
            &format!("has the unknown unit `{}`", written.unit),
            "write \"20/s\", \"30/m\" or \"500/h\"",
        );
        return None;
    };
    let most = u64::from(MAX_PER_SECOND) * period.as_secs();
    let Some(count) = u32::try_from(written.count).ok().filter(|count| u64::from(*count) <= most) else {
        written.error(table, "is too much", "a rate is at most 1000000/s");
        return None;
    };
    Some(Rate { count, period: *period, burst: burst.unwrap_or(count) })
}

fn read_quota(table: &TableReader<'_>) -> Option<CallQuota> {
    let written = read_count_per_unit(table, "quota")?;
    let Some(window) = QUOTA_UNITS.into_iter().find(|window| window.unit() == written.unit) else {
        let hint = "write \"10/m\", \"100/h\", \"1000/d\" or \"10000/month\"";
        written.error(table, &format!("has the unknown unit `{}`", written.unit), hint);
        return None;
    };
    Some(CallQuota { count: written.count, window })
}

/// A number and a unit, such as `20/s`.
struct CountPerUnit<'t> {
    entry: &'t SpannedEntry,
    text: String,
    count: u64,
    unit: String,
}

impl CountPerUnit<'_> {
    fn error(&self, table: &TableReader<'_>, why: &str, hint: &str) {
        let (key, span) = (&self.entry.key, &self.entry.node.span);
        let shown = table.reader.redacted(&self.text, span);
        table.reader.error(span, format!("`{key}` in [policy.limits]: {shown:?} {why}"), Some(hint.to_owned()));
    }
}

fn read_count_per_unit<'t>(table: &TableReader<'t>, key: &str) -> Option<CountPerUnit<'t>> {
    let (text, entry) = (table.string(key)?, table.entry(key)?);
    let parts =
        text.split_once('/').and_then(|(count, unit)| Some((count.trim().parse().ok()?, unit.trim().to_owned())));
    let (count, unit) = parts.clone().unwrap_or_default();
    let written = CountPerUnit { entry, text, count, unit };
    let example = if key == "rate" { "write it as \"20/s\"" } else { "write it as \"1000/d\"" };
    match (parts, count) {
        (None, _) => written.error(table, "is no number per time", example),
        (Some(_), 0) => written.error(table, "allows nothing", "the least is 1; to forbid calls, write a rule"),
        _ => return Some(written),
    }
    None
}
