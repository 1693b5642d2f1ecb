//! `servers`: what each server is, lists and does, and connecting to it anew.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use http::StatusCode;
use serde_json::{Value, json};

use super::api::{AdminRequest, ApiAnswer, ApiError, ApiResult, ApiRoute, rfc3339};
use super::config_file::FileText;
use super::figures::{self, CounterSample, RecordedOverhead};
use super::{Console, server_checks, text_member};
use crate::dialect::{Revision, describe_translation};
use crate::gateway::Gateway;
use crate::inbound::Inbound;
use crate::mcp_client::{Target, stderr_lines};
use crate::policy::OperatorRight;
use crate::protocol::Raw;
use crate::redact::redact;
use crate::upstream::{List, SpecKind, Upstream};

/// How far back the figures of servers go.
const FIGURES_RANGE: Duration = Duration::from_secs(900);

pub(super) fn routes() -> Vec<ApiRoute> {
    use OperatorRight::{Act, Look};
    vec![
        ApiRoute::get("servers", Look, |request| Box::pin(async move { all(&request) })),
        ApiRoute::get("servers/{server}", Look, |request| Box::pin(async move { one(&request) })),
        ApiRoute::get("servers/{server}/lists/{kind}", Look, |request| Box::pin(async move { list(&request) })),
        ApiRoute::get("servers/{server}/log", Look, |request| Box::pin(async move { log(&request) })),
        ApiRoute::post("servers/{server}/reconnect", Act, |request| Box::pin(async move { reconnect(&request) })),
    ]
}

fn all(request: &AdminRequest) -> ApiResult {
    let inbound = request.console.inbound()?;
    let samples = request.console.figures.since(FIGURES_RANGE, &inbound);
    request.page(rows(&inbound, &samples))
}

/// The rows of all servers.
pub(super) fn rows(inbound: &Inbound, samples: &[CounterSample]) -> Vec<Value> {
    let recorded = figures::overheads(samples, inbound);
    inbound.gateway.upstreams().iter().map(|upstream| row(&inbound.gateway, upstream, (samples, &recorded))).collect()
}

fn row(gateway: &Gateway, upstream: &Upstream, (samples, recorded): (&[CounterSample], &[RecordedOverhead])) -> Value {
    let (state, spec) = (upstream.state(), upstream.spec());
    let groups: Vec<String> = gateway
        .groups()
        .iter()
        .filter(|group| group.view(Revision::NEWEST).config.servers.contains(upstream.name()))
        .map(|group| group.name().to_string())
        .collect();
    let count = |list| state.list(list).map_or(0, |listed| listed.items.len());
    let errors = state.list_errors.iter().map(|(list, why)| redact(&format!("{list}: {why}")).into_owned());
    json!({
        "name": upstream.name(),
        "phase": state.health.phase.to_string(),
        "since": rfc3339(state.health.since),
        "reason": state.health.failure.as_ref().map(|failure| redact(&failure.to_string()).into_owned()),
        "transport": state.transport,
        "target": target_text(&spec.kind),
        "revision": state.revision.map(Revision::as_str),
        "server": client_json(state.server.as_ref().map(|server| &server.info)),
        "lists": {
            "tools": count(List::Tools), "prompts": count(List::Prompts),
            "resources": count(List::Resources), "templates": count(List::Templates),
        },
        "list_errors": errors.collect::<Vec<_>>(),
        "leases": upstream.lease_count(),
        "lease_limit": spec.max_leases,
        "calls_in_flight": upstream.calls_in_flight(),
        "connects": state.health.connects,
        "failed_connects": state.health.failed_connects,
        "groups": groups,
        "figures": figures::server_figures(samples, recorded, upstream.name()),
        // Logging in to servers is not there yet; its place is.
        "login": Value::Null,
    })
}

fn target_text(kind: &SpecKind) -> String {
    match kind {
        SpecKind::Elements(_) => "built in".to_owned(),
        SpecKind::Target(target) => redact(&target.to_string()).into_owned(),
        SpecKind::Rest(_) => "HTTP API".to_owned(),
    }
}

/// Name and version as a client or server gave them.
pub(super) fn client_json(info: Option<&Raw>) -> Value {
    json!({
        "name": info.and_then(|info| text_member(info, "name")),
        "version": info.and_then(|info| text_member(info, "version")),
    })
}

/// A server by name.
pub(super) fn find(inbound: &Inbound, name: &str) -> Result<Arc<Upstream>, ApiError> {
    let upstreams = inbound.gateway.upstreams();
    let known: Vec<&str> = upstreams.iter().map(|upstream| &**upstream.name()).collect();
    let hint = match crate::config::nearest(name, &known) {
        Some(near) => format!("did you mean {near}?"),
        None => format!("servers: {}", known.join(", ")),
    };
    let found = upstreams.iter().find(|upstream| **upstream.name() == *name).cloned();
    found.ok_or_else(|| ApiError::not_found(format!("there is no server {name:?}")).hint(hint))
}

fn one(request: &AdminRequest) -> ApiResult {
    let inbound = request.console.inbound()?;
    let upstream = find(&inbound, request.parameter(0))?;
    let samples = request.console.figures.since(FIGURES_RANGE, &inbound);
    let recorded = figures::overheads(&samples, &inbound);
    let mut server = row(&inbound.gateway, &upstream, (&samples, &recorded));
    let state = upstream.state();
    let status = inbound.admin.status();
    let known = status.upstreams.iter().find(|known| known.name == **upstream.name());
    let legs: Vec<Value> = known.map(|known| known.legs.iter().map(|leg| json!(leg)).collect()).unwrap_or_default();
    let pair = |pair: crate::upstream::RevisionPair| {
        json!({
            "client": pair.client.as_str(), "server": pair.server.as_str(), "calls": pair.calls,
            "bridged": describe_translation(pair.client, pair.server),
        })
    };
    let capabilities = state
        .server
        .as_ref()
        .map(|server| server.capabilities.entries().map(|(name, _)| name.into_owned()).collect::<Vec<_>>());
    let instructions = state.server.as_ref().and_then(|server| server.instructions.as_ref()?.text());
    server["legs"] = legs.into();
    server["calls_by_revision"] = upstream.revision_pairs().into_iter().map(pair).collect();
    server["outcomes"] = json!(figures::server_outcomes(&samples, upstream.name()));
    server["series"] = figures::series(&samples, Some(upstream.name()));
    server["found"] = server_checks::found_out(&state);
    server["attempts"] = server_checks::attempts(&state.health);
    server["next_attempt"] = json!(state.health.next_attempt.map(rfc3339));
    server["checks"] = server_checks::checks(&upstream.spec().kind, &state.health);
    server["configuration"] = configuration(&request.console, upstream.name());
    server["capabilities"] = json!(capabilities.unwrap_or_default());
    server["instructions"] = json!(instructions);
    ApiAnswer::json(&server).with_etag(request)
}

fn configuration(console: &Console, server: &str) -> Value {
    // Masked as a whole: a part of a file does not say what is a secret in it.
    let Some(text) = FileText::read(console).map(FileText::masked) else { return Value::Null };
    match text.table(&format!("servers.{server}")) {
        Some((line, part)) => json!({ "file": text.name, "line": line, "text": part }),
        None => Value::Null,
    }
}

/// The list that a word of the API names.
pub(super) fn list_kind(word: &str) -> Result<List, ApiError> {
    match word {
        "tools" => Ok(List::Tools),
        "prompts" => Ok(List::Prompts),
        "resources" => Ok(List::Resources),
        "templates" => Ok(List::Templates),
        _ => Err(ApiError::not_found(format!("there is no list {word:?}"))
            .hint("lists: tools, prompts, resources, templates")),
    }
}

fn list(request: &AdminRequest) -> ApiResult {
    let inbound = request.console.inbound()?;
    let upstream = find(&inbound, request.parameter(0))?;
    let kind = list_kind(request.parameter(1))?;
    let state = upstream.state();
    let views: Vec<_> = inbound
        .gateway
        .groups()
        .iter()
        .map(|group| (group.name().to_string(), group.view(Revision::NEWEST).clone()))
        .collect();
    let calls = inbound.gateway.metrics().operations().tool_calls(upstream.name());
    let item = |item: &Raw| {
        let own = text_member(item, kind.item_key())?;
        let shown = |(group, view): &(String, Arc<crate::gateway::View>)| {
            let is_it = |entry: &crate::gateway::ViewEntry<'_>| {
                entry.own == own && entry.member.upstream.name() == upstream.name()
            };
            let entry = view.entries(kind).find(is_it)?;
            Some(json!({ "group": group, "name": entry.exposed }))
        };
        Some(json!({
            "name": own,
            "title": text_member(item, "title"),
            "description": text_member(item, "description"),
            "entry": item.read::<Value>().unwrap_or_default(),
            "groups": views.iter().filter_map(shown).collect::<Vec<_>>(),
            "called": if kind == List::Tools { calls.of(&own) } else { None },
            "changed": upstream.first_descriptions().has_changed(kind, &own, item),
        }))
    };
    let items = state.list(kind).map(|listed| listed.items.iter().filter_map(item).collect()).unwrap_or_default();
    request.page(items)
}

fn log(request: &AdminRequest) -> ApiResult {
    let inbound = request.console.inbound()?;
    let upstream = find(&inbound, request.parameter(0))?;
    let lines = match &upstream.spec().kind {
        SpecKind::Target(Target::Command(command)) => stderr_lines(command),
        _ => Vec::new(),
    };
    let line = |line: crate::mcp_client::StderrLine| json!({ "at": rfc3339(line.at), "text": redact(&line.text) });
    request.page(lines.into_iter().rev().map(line).collect())
}

fn reconnect(request: &AdminRequest) -> ApiResult {
    let inbound = request.console.inbound()?;
    let upstream = find(&inbound, request.parameter(0))?;
    inbound.gateway.reconnect(upstream.name());
    tracing::info!(upstream = %upstream.name(), operator = %request.operator.name, "reconnecting for an operator");
    Ok(ApiAnswer::json_with(StatusCode::ACCEPTED, &json!({ "server": upstream.name() })))
}

/// A moment of the past, from how long ago it was.
pub(super) fn ago(age: Duration) -> String {
    rfc3339(SystemTime::now().checked_sub(age).unwrap_or(SystemTime::UNIX_EPOCH))
}
