//! What needs somebody: a fixed list of rules, worst first.

use std::time::{Duration, SystemTime};

use serde_json::{Value, json};

use super::Console;
use super::api::rfc3339;
use super::figures::{self, CounterSample};
use crate::inbound::Inbound;
use crate::redact::redact;
use crate::upstream::HealthPhase;

/// One thing that needs somebody.
#[derive(Default)]
struct AttentionItem {
    is_bad: bool,
    code: &'static str,
    /// What it is about, where the rule can hold for several.
    subject: String,
    text: String,
    detail: Option<String>,
    since: Option<SystemTime>,
    link: String,
    act: Option<Value>,
}

/// Part of calls that may fail.
const MAX_ERROR_RATIO: f64 = 0.05;
/// Time before its end at which a certificate is told.
const CERTIFICATE_WARNING: Duration = Duration::from_secs(14 * 86_400);

/// Everything that needs somebody now, worst first.
pub(super) fn items(console: &Console, inbound: &Inbound, samples: &[CounterSample]) -> Vec<Value> {
    let mut items = Vec::new();
    servers(inbound, &mut items);
    configuration(inbound, &mut items);
    store(inbound, &mut items);
    silent_nodes(console, &mut items);
    calls(inbound, samples, &mut items);
    recording(inbound, &mut items);
    items.sort_by_key(|item: &AttentionItem| !item.is_bad);
    let node = console.node();
    items.into_iter().map(|item| item.to_json(&node)).collect()
}

impl AttentionItem {
    fn to_json(&self, node: &str) -> Value {
        json!({
            "id": format!("{}:{}", self.code, self.subject),
            "level": if self.is_bad { "bad" } else { "warn" },
            "code": self.code,
            "text": redact(&self.text),
            "detail": self.detail.as_ref().map(|detail| redact(detail).into_owned()),
            "since": self.since.map(rfc3339),
            "link": self.link,
            "act": self.act,
            "node": node,
        })
    }
}

fn servers(inbound: &Inbound, items: &mut Vec<AttentionItem>) {
    for upstream in inbound.gateway.upstreams() {
        let (name, state) = (upstream.name(), upstream.state());
        let (is_bad, code) = match state.health.phase {
            HealthPhase::Down => (true, "server_down"),
            HealthPhase::Degraded => (false, "server_degraded"),
            HealthPhase::Starting | HealthPhase::Ready => continue,
        };
        items.push(AttentionItem {
            is_bad,
            code,
            subject: name.to_string(),
            text: format!("{name} is {}", state.health.phase),
            detail: state.health.failure.as_ref().map(ToString::to_string),
            since: Some(state.health.since),
            link: format!("#/servers/{name}"),
            act: Some(json!({ "label": "Try now", "verb": "POST", "path": format!("servers/{name}/reconnect") })),
        });
    }
    for group in inbound.gateway.groups() {
        let view = group.view(crate::dialect::Revision::NEWEST);
        if let Some(first) = view.collisions.first() {
            items.push(AttentionItem {
                code: "collision",
                subject: group.name().to_string(),
                text: format!("{} names collide in {}", view.collisions.len(), group.name()),
                detail: Some(first.clone()),
                link: format!("#/groups/{}", group.name()),
                ..AttentionItem::default()
            });
        }
    }
}

fn configuration(inbound: &Inbound, items: &mut Vec<AttentionItem>) {
    let status = inbound.admin.status();
    let last = inbound.admin.reloads().into_iter().next().filter(|last| !last.is_applied);
    if status.configuration.refused.is_some() {
        let problem = status.configuration.problems.first().cloned();
        let needs_restart = !status.configuration.restart.is_empty();
        items.push(AttentionItem {
            code: if needs_restart { "restart_needed" } else { "config_refused" },
            text: match needs_restart {
                true => "the configuration waits for a restart".to_owned(),
                false => "the configuration was refused".to_owned(),
            },
            detail: problem,
            since: last.map(|last| last.at),
            link: "#/config".to_owned(),
            ..AttentionItem::default()
        });
    }
    let ends = status.tls.map(|tls| SystemTime::UNIX_EPOCH + Duration::from_secs(tls.expires));
    if let Some(ends) = ends.filter(|ends| *ends < SystemTime::now() + CERTIFICATE_WARNING) {
        items.push(AttentionItem {
            is_bad: ends <= SystemTime::now(),
            code: "certificate",
            text: format!("the certificate for clients expires on {}", &rfc3339(ends)[..10]),
            link: "#/config".to_owned(),
            ..AttentionItem::default()
        });
    }
}

fn store(inbound: &Inbound, items: &mut Vec<AttentionItem>) {
    let Some(cluster) = &inbound.cluster else { return };
    let link = "#/cluster".to_owned();
    if !cluster.holds_lease() {
        let text = "the store is away: this node serves no sessions".to_owned();
        items.push(AttentionItem {
            is_bad: true,
            code: "store_away",
            text,
            link: link.clone(),
            ..AttentionItem::default()
        });
    }
    if cluster.store().is_full() {
        let text = "the store has no room".to_owned();
        items.push(AttentionItem { is_bad: true, code: "store_full", text, link, ..AttentionItem::default() });
    }
}

fn silent_nodes(console: &Console, items: &mut Vec<AttentionItem>) {
    for (name, last) in console.seen_nodes.silent() {
        items.push(AttentionItem {
            is_bad: true,
            code: "node_silent",
            text: format!("{name} is silent: it holds no lease any more"),
            since: Some(last),
            link: "#/cluster".to_owned(),
            subject: name,
            ..AttentionItem::default()
        });
    }
}

fn recording(inbound: &Inbound, items: &mut Vec<AttentionItem>) {
    let state = inbound.calls.state();
    if state.is_sampling {
        items.push(AttentionItem {
            code: "sampling",
            text: format!("more than {} calls a second: a part of them is not recorded", state.rate),
            detail: Some("calls that fail are recorded all the same".to_owned()),
            link: "#/traffic".to_owned(),
            ..AttentionItem::default()
        });
    }
}

fn calls(inbound: &Inbound, samples: &[CounterSample], items: &mut Vec<AttentionItem>) {
    let parked = inbound.gateway.parked_reports();
    let late: Vec<_> = parked.iter().filter(|parked| parked.age > parked.left).collect();
    if let Some(oldest) = late.iter().map(|parked| parked.age).max() {
        items.push(AttentionItem {
            code: "parked_long",
            text: format!("{} calls have waited for people for more than half of their time", late.len()),
            since: SystemTime::now().checked_sub(oldest),
            link: "#/questions".to_owned(),
            ..AttentionItem::default()
        });
    }
    for upstream in inbound.gateway.upstreams() {
        let name = upstream.name();
        let Some(ratio) = figures::recent_error_ratio(samples, Some(name)).filter(|ratio| *ratio > MAX_ERROR_RATIO)
        else {
            continue;
        };
        items.push(AttentionItem {
            code: "error_rate",
            subject: name.to_string(),
            text: format!("{:.0} % of the calls to {name} failed in the last minute", ratio * 100.0),
            link: format!("#/traffic?q=server:{name} outcome:error,unavailable"),
            ..AttentionItem::default()
        });
    }
}
