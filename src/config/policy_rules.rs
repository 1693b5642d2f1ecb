//! Reads `[[policy.rules]]`.

use std::sync::Arc;

use super::build::PartialConfig;
use super::model::Config;
use super::reader::{TableReader, quoted_list, suggestion};
use super::spanned_value::{Span, SpannedValue};
use crate::policy::rules::{
    AccessRule, ArgumentCondition, DefaultAccess, PRINCIPAL_FORMS, PrincipalPattern, RuleBook, RuleTargets, TargetKind,
    TargetPattern,
};

/// The rules of a table. One with mistakes is left out; the file is refused then.
pub(super) fn read_rules(table: &TableReader<'_>, key: &str) -> Option<Vec<AccessRule>> {
    table.entry(key)?;
    let tables = table.table_list(key);
    Some(tables.iter().enumerate().filter_map(|(n, table)| read_rule(table, n + 1)).collect())
}

fn read_rule(table: &TableReader<'_>, number: usize) -> Option<AccessRule> {
    let reader = table.reader;
    let errors = reader.error_count();
    let name = table.string("name").unwrap_or_else(|| format!("rule {number}"));
    let mut rule = AccessRule::new(&name);
    rule.principals = read_principals(table, "principals");
    rule.require = read_principals(table, "require");
    if rule.principals.is_empty() && reader.error_count() == errors {
        let span = table.entry("principals").map_or(&table.span, |entry| &entry.node.span);
        let hint = "principals = [\"*\"] is everybody".to_owned();
        reader.error_unless_broken(span, format!("{name:?} is for nobody"), Some(hint));
    }
    rule.groups = table.strings("groups").map(|groups| groups.iter().map(|group| group.as_str().into()).collect());
    rule.allow = read_targets(table, "allow");
    rule.deny = read_targets(table, "deny");
    rule.require_scopes = read_scopes(table);
    rule.when = read_conditions(table);
    if rule.allow.is_empty() && rule.deny.is_empty() && reader.error_count() == errors {
        let hint = "write what it is about: allow = { tools = [\"server/*\"] }".to_owned();
        reader.error_unless_broken(&table.span, format!("{name:?} allows and denies nothing"), Some(hint));
    }
    check_conditions(table, &rule);
    (reader.error_count() == errors).then_some(rule)
}

/// Scopes and arguments are conditions of what is allowed; a denial has none.
fn check_conditions(table: &TableReader<'_>, rule: &AccessRule) {
    let reader = table.reader;
    for key in ["require_scopes", "when"] {
        let Some(entry) = table.entry(key) else { continue };
        if !rule.deny.is_empty() {
            let hint = "put `deny` into a rule of its own".to_owned();
            reader.error(&entry.key_span, format!("`{key}` is a condition of `allow`; `deny` has none"), Some(hint));
        }
    }
    let has_others = [TargetKind::Resources, TargetKind::Methods].iter().any(|kind| !rule.allow.of(*kind).is_empty());
    if let (Some(entry), true) = (table.entry("when"), has_others) {
        let hint = "put what it allows of them into a rule of its own".to_owned();
        let message = "`when` reads the arguments of tools and prompts; resources and methods have none";
        reader.error(&entry.key_span, message, Some(hint));
    }
}

/// Reads patterns of callers.
pub(super) fn read_principals(table: &TableReader<'_>, key: &str) -> Vec<PrincipalPattern> {
    let parse = |(text, span): (String, Span)| match PrincipalPattern::parse(&text) {
        Ok(pattern) => Some(pattern),
        Err(why) => {
            let text = table.reader.redacted(&text, &span);
            let kinds: Vec<&str> = PRINCIPAL_FORMS.iter().map(|form| form.split(':').next().unwrap_or(form)).collect();
            let near = super::suggest::nearest(text.split(':').next().unwrap_or(text), &kinds);
            let near = near.and_then(|near| PRINCIPAL_FORMS.into_iter().find(|form| form.starts_with(near)));
            let hint = match near {
                Some(near) => format!("did you mean `{near}`?"),
                None => format!("valid: {}", quoted_list(&PRINCIPAL_FORMS)),
            };
            table.reader.error(&span, format!("`{key}`: {text:?} {why}"), Some(hint));
            None
        }
    };
    table.strings_with_spans(key).unwrap_or_default().into_iter().filter_map(parse).collect()
}

/// The texts of the targets of a rule, with their kind and position.
fn target_texts(table: &TableReader<'_>, key: &str) -> Vec<(TargetKind, String, Span)> {
    let Some(targets) = table.subtable(key) else { return Vec::new() };
    let of_kind = |kind: TargetKind| {
        let texts = targets.strings_with_spans(kind.as_str()).unwrap_or_default();
        texts.into_iter().map(move |(text, span)| (kind, text, span))
    };
    TargetKind::ALL.into_iter().flat_map(of_kind).collect()
}

fn read_targets(table: &TableReader<'_>, key: &str) -> RuleTargets {
    let mut targets = RuleTargets::default();
    for (kind, text, span) in target_texts(table, key) {
        match TargetPattern::parse(&text) {
            Ok(pattern) => targets.push(kind, pattern),
            Err(why) => {
                let text = table.reader.redacted(&text, &span);
                let hint = "write server/name, with the server's own name or URI; * matches any characters, ? one";
                table.reader.error(&span, format!("`{key}`: {text:?} {why}"), Some(hint.to_owned()));
            }
        }
    }
    targets
}

/// Scopes stand in a header, between quotes and separated by spaces.
fn read_scopes(table: &TableReader<'_>) -> Vec<Arc<str>> {
    let scopes = table.strings_with_spans("require_scopes").unwrap_or_default();
    for (scope, span) in &scopes {
        if !is_scope(scope) {
            let scope = table.reader.redacted(scope, span);
            let hint = "write one scope per string, without spaces, quotes and backslashes".to_owned();
            table.reader.error(span, format!("{scope:?} is not a scope"), Some(hint));
        }
    }
    scopes.iter().map(|(scope, _)| scope.as_str().into()).collect()
}

/// Whether this is one scope of RFC 6749.
pub(super) fn is_scope(scope: &str) -> bool {
    !scope.is_empty() && scope.bytes().all(|byte| byte.is_ascii_graphic() && byte != b'"' && byte != b'\\')
}

fn read_conditions(table: &TableReader<'_>) -> Vec<ArgumentCondition> {
    let mut conditions = Vec::new();
    for (pointer, patterns, span) in table.string_lists("when") {
        match ArgumentCondition::parse(&pointer, &patterns) {
            Ok(_) if patterns.is_empty() => {
                table.reader.error(&span, format!("`when`: no value of {pointer:?} is allowed"), None);
            }
            Ok(condition) => conditions.push(condition),
            Err(why) => {
                let hint = match pointer.starts_with('/') {
                    true => "~0 stands for ~ and ~1 for /".to_owned(),
                    false => format!("write \"/{pointer}\""),
                };
                table.reader.error(&span, format!("`when`: {pointer:?} {why}"), Some(hint));
            }
        }
    }
    conditions
}

/// Checks what rules say about the rest of the file. `known` are all server names of the file, including servers with
/// errors.
pub(super) fn check_rules(file: &TableReader<'_>, partial: &PartialConfig, known: &[&str]) {
    let Some(policy) = file.subtable("policy").filter(|policy| policy.entry("rules").is_some()) else { return };
    let (reader, config) = (file.reader, &partial.config);
    let groups: Vec<&str> = config.groups.iter().map(|group| &*group.name).collect();
    for rule in policy.table_list("rules") {
        for key in ["allow", "deny"] {
            for (_, text, span) in target_texts(&rule, key) {
                let is_known = |pattern: &TargetPattern| known.iter().any(|server| pattern.names_server(server));
                if TargetPattern::parse(&text).is_ok_and(|pattern| !is_known(&pattern)) {
                    let server = reader.redacted(&text, &span).split('/').next().unwrap_or_default().to_owned();
                    let message = format!("`{key}` names the unknown server `{server}`");
                    reader.error_unless_broken(&span, message, suggestion(&server, known));
                }
            }
        }
        for (group, span) in rule.strings_with_spans("groups").unwrap_or_default() {
            if !groups.contains(&group.as_str()) {
                let group = reader.redacted(&group, &span);
                let message = format!("the rule holds in the unknown group `{group}`");
                reader.error_unless_broken(&span, message, suggestion(group, &groups));
            }
        }
        if let Some(entry) = rule.entry("require_scopes").filter(|_| !has_issuers(file)) {
            let hint = "add [access.issuers.NAME], or remove it".to_owned();
            let message = "`require_scopes` needs an issuer: no other credential has scopes";
            reader.error_unless_broken(&entry.key_span, message, Some(hint));
        }
    }
}

fn has_issuers(file: &TableReader<'_>) -> bool {
    let Some(SpannedValue::Table(access)) = file.entry("access").map(|entry| &entry.node.value) else { return false };
    access.iter().any(|entry| {
        entry.key == "issuers" && matches!(&entry.node.value, SpannedValue::Table(issuers) if !issuers.is_empty())
    })
}

impl Config {
    /// What callers may do; `None` if everybody may do everything.
    pub fn rule_book(&self) -> Option<Arc<RuleBook>> {
        let policy = &self.settings.policy;
        let default = match policy.default {
            Some(default) => default,
            None if policy.rules.is_empty() => DefaultAccess::Allow,
            None => DefaultAccess::Deny,
        };
        let says_something = !policy.rules.is_empty() || default == DefaultAccess::Deny;
        let hierarchy = self.settings.access.scope_hierarchy.0.clone();
        says_something.then(|| Arc::new(RuleBook::new(policy.rules.clone(), default, hierarchy)))
    }
}
