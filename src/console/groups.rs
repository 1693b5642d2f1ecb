//! `groups`: what clients of each revision see of a group.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde_json::{Map, Value, json};

use super::api::{AdminRequest, ApiAnswer, ApiError, ApiResult, ApiRoute};
use super::{sessions, text_member, why};
use crate::dialect::Revision;
use crate::gateway::{Group, ListPage, View};
use crate::inbound::Inbound;
use crate::policy::OperatorRight::Look;
use crate::protocol::Raw;
use crate::upstream::List;

pub(super) fn routes() -> Vec<ApiRoute> {
    vec![
        ApiRoute::get("groups", Look, |request| Box::pin(async move { all(&request) })),
        ApiRoute::get("groups/{group}", Look, |request| Box::pin(async move { one(&request) })),
        ApiRoute::get("groups/{group}/why", Look, |request| Box::pin(async move { why::why(&request) })),
    ]
}

/// The revision that `as` names, or the newest.
pub(super) fn asked_revision(request: &AdminRequest) -> Result<Revision, ApiError> {
    let Some(word) = request.query("as") else { return Ok(Revision::NEWEST) };
    parse_revision(word)
}

/// The revision of that name.
pub(super) fn parse_revision(word: &str) -> Result<Revision, ApiError> {
    let hint = || format!("revisions: {}", revision_names().join(", "));
    Revision::parse(word).ok_or_else(|| ApiError::invalid(format!("{word:?} is no revision")).hint(hint()))
}

/// The names of all revisions.
pub(super) fn revision_names() -> Vec<&'static str> {
    Revision::all().map(Revision::as_str).collect()
}

fn all(request: &AdminRequest) -> ApiResult {
    let inbound = request.console.inbound()?;
    request.page(inbound.gateway.groups().iter().map(|group| row(group, &group.view(Revision::NEWEST))).collect())
}

fn row(group: &Group, view: &View) -> Value {
    let name = group.name();
    let is_default = **name == *crate::gateway::DEFAULT_GROUP;
    let paths = match is_default {
        true => vec!["/mcp".to_owned(), "/sse".to_owned()],
        false => vec![format!("/mcp/{name}"), format!("/sse/{name}")],
    };
    let stdio = if is_default { "rialto stdio".to_owned() } else { format!("rialto stdio --group {name}") };
    json!({
        "name": name,
        "paths": paths,
        "stdio": stdio,
        "servers": view.config.servers,
        "naming": view.config.naming.as_str(),
        "lists": {
            "tools": view.count(List::Tools), "prompts": view.count(List::Prompts),
            "resources": view.count(List::Resources), "templates": view.count(List::Templates),
        },
        "collisions": view.collisions,
    })
}

/// A group by name.
pub(super) fn find(inbound: &Inbound, name: &str) -> Result<Arc<Group>, ApiError> {
    inbound.gateway.group(Some(name)).ok_or_else(|| {
        let known: Vec<String> = inbound.gateway.groups().iter().map(|group| group.name().to_string()).collect();
        ApiError::not_found(format!("there is no group {name:?}")).hint(format!("groups: {}", known.join(", ")))
    })
}

fn one(request: &AdminRequest) -> ApiResult {
    let inbound = request.console.inbound()?;
    let group = find(&inbound, request.parameter(0))?;
    let revision = asked_revision(request)?;
    let view = Arc::clone(&group.view(revision));
    let session = request.query("session").map(|short| sessions::find(&inbound, short)).transpose()?;
    let permissions = session.and_then(|session| view.permissions(&session.latest_identity()));
    let is_shown = |list, n: &usize| permissions.as_ref().is_none_or(|permissions| permissions.shows(list, *n));
    let mut answer = row(&group, &view);
    answer["as"] = revision.as_str().into();
    let mut seen = Map::new();
    for (list, key) in [
        (List::Tools, "tools"),
        (List::Prompts, "prompts"),
        (List::Resources, "resources"),
        (List::Templates, "templates"),
    ] {
        let page = |offset| ListPage { list, offset, permissions: permissions.as_deref() };
        let pages: Vec<Raw> = (0..)
            .map_while(|n| view.page(&page(n * view.config.page_size.max(1)), revision, inbound.gateway.seal()).ok())
            .collect();
        let sent = sent_items(&pages, list);
        let entry = |entry: crate::gateway::ViewEntry<'_>| {
            json!({
                "name": entry.exposed,
                "own": entry.own,
                "server": entry.member.upstream.name(),
                "title": text_member(entry.item, "title"),
                "description": text_member(entry.item, "description"),
                "bytes": entry.item.as_bytes().len(),
                "left_out": sent.get(entry.exposed).map(|sent| left_out(entry.item, sent)),
            })
        };
        let shown = view.entries(list).enumerate().filter(|(n, _)| is_shown(list, n));
        answer[key] = shown.map(|(_, one)| entry(one)).collect();
        if let Some(first) = pages.first() {
            let text = String::from_utf8_lossy(first.as_bytes()).into_owned();
            seen.insert(list.method().to_string(), text.into());
        }
    }
    answer["seen"] = seen.into();
    ApiAnswer::json(&answer).with_etag(request)
}

/// The items of a list as they are sent, by what identifies them.
fn sent_items(pages: &[Raw], list: List) -> BTreeMap<String, Value> {
    let items = pages.iter().filter_map(|page| page.get(list.result_key())?.read::<Vec<Value>>().ok()).flatten();
    items.filter_map(|item| Some((item[list.item_key()].as_str()?.to_owned(), item))).collect()
}

/// Members of an item that are not sent to clients of a revision.
fn left_out(own: &Raw, sent: &Value) -> Vec<String> {
    let names = own.entries().map(|(name, _)| name.into_owned());
    names.filter(|name| sent.get(name.as_str()).is_none()).collect()
}
