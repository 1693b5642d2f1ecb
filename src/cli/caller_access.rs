//! `rialto check --as`: what a caller may do by the rules of a file, and which rules are about nothing that is known.

use std::collections::BTreeSet;
use std::sync::Arc;

use serde_json::{Map, Value, json};

use super::output;
use crate::app::App;
use crate::config::{AppSettings, Config};
use crate::dialect::Revision;
use crate::gateway::{DescribedTarget, GatewayConfig, Group};
use crate::identity::{Credential, Identity};
use crate::policy::rules::{Access, AccessRule, PrincipalPattern, RuleTargets, TargetKind, TargetPattern};
use crate::upstream::List;

/// What a caller may do in a group.
pub(super) struct CallerReport {
    caller: String,
    group: String,
    may_use: bool,
    /// Everything that the group has, in the order of its lists.
    targets: Vec<DescribedTarget>,
    /// Servers whose lists are not known.
    unreached: Vec<Arc<str>>,
    rules: Vec<AccessRule>,
}

impl CallerReport {
    /// Asks the servers of a group for their lists, and judges what is on them for the caller that these words describe.
    ///
    /// # Errors
    /// What is wrong with the words or the group.
    pub(super) fn new(config: &Config, words: &[String], group: Option<&str>) -> Result<Self, String> {
        let identity = describe_identity(words)?;
        let name = config.group(group).map(|group| group.name.to_string());
        let name = name.ok_or_else(|| format!("there is no group {:?} in the file", group.unwrap_or_default()))?;
        let rules = config.rule_book().map(|book| book.rules().to_vec()).unwrap_or_default();
        let (may_use, targets, unreached) = with_group(config.app_settings(), &name, |group| {
            let (targets, unreached) = group.describe_targets(Revision::NEWEST, &identity);
            (identity.may_use_group(group.name()) && group.may_use(&identity), targets, unreached)
        })?;
        Ok(Self { caller: words.join(" and "), group: name, may_use, targets, unreached, rules })
    }

    fn shown(&self) -> impl Iterator<Item = &DescribedTarget> {
        self.targets.iter().filter(|target| self.may_use && target.judgement.access != Access::Hidden)
    }

    /// The rule that decided, or the default.
    fn rule_name(&self, target: &DescribedTarget) -> &str {
        target.judgement.rule.and_then(|rule| self.rules.get(rule)).map_or("default", |rule| &rule.name)
    }

    /// The scopes that a target needs.
    fn scopes(&self, target: &DescribedTarget) -> Vec<&str> {
        let rule = target.judgement.rule.and_then(|rule| self.rules.get(rule));
        let rule = rule.filter(|_| target.judgement.access == Access::StepUp);
        rule.map(|rule| rule.require_scopes.iter().map(|scope| &**scope).collect()).unwrap_or_default()
    }

    /// Prints the report for people.
    pub(super) fn print(&self) {
        for server in &self.unreached {
            eprintln!("warning: {server} was not reached; what it has is not shown");
        }
        let (caller, group) = (output::strip_control_chars(&self.caller), &self.group);
        if !self.may_use {
            return output::print_line(&format!("{caller} may not use the group {group}."));
        }
        let rows = self.shown().map(|target| {
            let access = match self.scopes(target).as_slice() {
                [] => target.judgement.access.as_str().to_owned(),
                scopes => format!("{} {}", target.judgement.access.as_str(), scopes.join(" ")),
            };
            let text = output::strip_control_chars;
            let own = format!("{}/{}", target.upstream, target.own);
            vec![kind(target.list).to_owned(), text(&target.exposed), text(&own), access, text(self.rule_name(target))]
        });
        output::print_line(&format!("{caller} sees in the group {group}:\n"));
        output::print_line(&output::table(&["KIND", "NAME", "TARGET", "ACCESS", "RULE"], rows));
        let hidden = self.targets.len() - self.shown().count();
        output::print_line(&format!("\n{hidden} of {} are hidden.", self.targets.len()));
    }

    /// The report as JSON.
    pub(super) fn to_json(&self) -> Value {
        let target = |target: &DescribedTarget| {
            json!({
                "kind": kind(target.list), "name": &*target.exposed, "server": &*target.upstream, "ownName": &*target.own,
                "access": target.judgement.access.as_str(), "rule": self.rule_name(target),
                "scopes": self.scopes(target),
            })
        };
        json!({
            "as": self.caller, "group": self.group, "mayUse": self.may_use,
            "shown": self.shown().map(target).collect::<Vec<_>>(),
            "hidden": self.targets.len() - self.shown().count(),
            "unreached": self.unreached.iter().map(|name| &**name).collect::<Vec<_>>(),
        })
    }
}

/// One item of a list, in the singular.
fn kind(list: List) -> &'static str {
    match list {
        List::Tools => "tool",
        List::Prompts => "prompt",
        List::Resources => "resource",
        List::Templates => "template",
    }
}

/// Starts the servers of a configuration, and has a look at one group once they are connected.
fn with_group<T>(settings: AppSettings, group: &str, look: impl FnOnce(&Group) -> T) -> Result<T, String> {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build();
    let runtime = runtime.map_err(|error| format!("Tokio runtime failed to start: {error}"))?;
    runtime.block_on(async {
        let app = App::new(settings);
        let found = app.gateway().group(Some(group)).ok_or_else(|| format!("there is no group {group:?}"))?;
        found.wait_ready(Revision::NEWEST).await;
        let seen = look(&found);
        app.gateway().stop().await;
        Ok(seen)
    })
}

/// The caller that `--as` describes.
fn describe_identity(words: &[String]) -> Result<Identity, String> {
    let mut identity = Identity::anonymous();
    let mut claims = Map::new();
    for word in words {
        if let Some(scope) = word.strip_prefix("scope:") {
            identity.scopes.push(scope.into());
            continue;
        }
        PrincipalPattern::parse(word).map_err(|why| format!("--as {word:?} {why}"))?;
        match word.split_once(':') {
            Some(("role", role)) => identity.roles.push(role.into()),
            Some(("key", name)) => set_credential(&mut identity, format!("key|{name}"), Credential::Key(name.into())),
            Some(("token", name)) => {
                set_credential(&mut identity, format!("token|{name}"), Credential::Token(name.into()));
            }
            Some(("issuer", name)) => {
                set_credential(&mut identity, format!("{name}|"), Credential::Jwt(name.into()));
            }
            Some(("client", id)) => identity.client_id = Some(id.into()),
            Some(("user", user)) => {
                let (issuer, subject) = user.split_once('/').unwrap_or((user, ""));
                claims.insert("sub".into(), subject.into());
                set_credential(&mut identity, format!("{issuer}|{subject}"), Credential::Jwt(issuer.into()));
            }
            Some(("email", address)) => {
                claims.insert("email".into(), address.into());
                claims.insert("email_verified".into(), true.into());
            }
            Some(("claim", claim)) => {
                let (path, value) = claim.split_once('=').unwrap_or((claim, ""));
                claims.insert(path.into(), value.into());
            }
            _ if word == "local" => identity.credential = Credential::Local,
            _ => {}
        }
    }
    if !claims.is_empty() {
        identity.claims = Some(claims.into());
    }
    Ok(identity)
}

fn set_credential(identity: &mut Identity, principal: String, credential: Credential) {
    identity.principal = principal.into();
    identity.caller_id = Arc::clone(&identity.principal);
    identity.credential = credential;
}

/// Warnings about rules that match nothing known: no token of the file, nothing that a built-in server has. What other
/// servers have is not known without asking them.
pub(super) fn unmatched_rules(config: &Config) -> Vec<String> {
    let Some(book) = config.rule_book() else { return Vec::new() };
    let known = built_in_targets(config);
    let mut warnings = Vec::new();
    for rule in book.rules() {
        for pattern in rule.principals.iter().chain(&rule.require) {
            let is_known = |name: &str| config.settings.access.tokens.iter().any(|token| token.name == name);
            if pattern.token_name().is_some_and(|name| !is_known(name)) {
                warnings.push(format!(
                    "the rule {:?} is for {:?}, which the file does not have",
                    rule.name,
                    pattern.as_str()
                ));
            }
        }
        let each = |targets: &RuleTargets, kind: TargetKind| targets.of(kind).to_vec();
        for kind in TargetKind::ALL {
            for pattern in each(&rule.allow, kind).into_iter().chain(each(&rule.deny, kind)) {
                if !may_match(config, &known, kind, &pattern) {
                    let (kind, pattern) = (kind.as_str(), pattern.as_str());
                    warnings.push(format!("the rule {:?} is about {kind} {pattern:?}, which match nothing", rule.name));
                }
            }
        }
    }
    warnings
}

/// What built-in servers have, as patterns see it.
type KnownTargets = BTreeSet<(&'static str, String)>;

/// Whether a pattern names a server whose targets are not known, or something that is known.
fn may_match(config: &Config, known: &KnownTargets, kind: TargetKind, pattern: &TargetPattern) -> bool {
    let named = config.servers.iter().filter(|server| pattern.names_server(&server.name));
    let mut named = named.filter(|server| !server.disabled).peekable();
    named.peek().is_none()
        || named.any(|server| !server.kind.is_built_in())
        || known.iter().any(|(of_kind, path)| *of_kind == kind.as_str() && pattern.matches(path))
}

fn built_in_targets(config: &Config) -> KnownTargets {
    let mut settings = AppSettings::default();
    let upstreams = config.gateway_config().upstreams;
    let upstreams: Vec<_> = upstreams.into_iter().filter(|spec| spec.is_built_in()).collect();
    if upstreams.is_empty() {
        return KnownTargets::new();
    }
    let names = upstreams.iter().map(|spec| Arc::clone(&spec.name));
    let group = crate::gateway::GroupConfig::new(crate::gateway::DEFAULT_GROUP, names);
    settings.gateway = GatewayConfig { upstreams, groups: vec![group] };
    let found = with_group(settings, crate::gateway::DEFAULT_GROUP, |group| {
        let (targets, _) = group.describe_targets(Revision::NEWEST, &Identity::anonymous());
        let path = |target: DescribedTarget| (target.kind().as_str(), format!("{}/{}", target.upstream, target.own));
        targets.into_iter().map(path).collect()
    });
    found.unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_describe_a_caller_that_rules_know() {
        let words = ["user:corp/ann", "role:a", "client:desktop", "email:ann@x.example", "claim:team=blue", "scope:s"];
        let words = words.map(ToOwned::to_owned);
        let identity = describe_identity(&words).unwrap();
        for word in words.iter().filter(|word| !word.starts_with("scope:")) {
            assert!(PrincipalPattern::parse(word).unwrap().matches(&identity), "{word}");
        }
        assert_eq!(identity.scopes.join(" "), "s");
        for word in ["key:ci", "token:ci", "issuer:corp", "local", "anonymous", "*"] {
            let identity = describe_identity(&[word.to_owned()]).unwrap();
            assert!(PrincipalPattern::parse(word).unwrap().matches(&identity), "{word}");
        }
        assert!(describe_identity(&["ann".to_owned()]).is_err());
    }
}
