//! `node=all`: the answers of all nodes as one.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde_json::{Value, json};

use super::Console;
use super::api::{ApiAnswer, ApiError, ApiResult, ApiRoute};
use super::nodes::{NodeRequest, ask};
use crate::cluster::Cluster;
use crate::inbound::ResponseContent;
use crate::policy::Operator;
use crate::recording::decode_number;

/// The list whose rows of all nodes are sorted by time, and whose pages are those of all nodes together.
const CALLS: &str = "calls";
/// Rows of a page where none is asked for.
const DEFAULT_LIMIT: usize = 100;
/// Stands in a cursor for a node of which everything was shown.
const SHOWN: &str = "-";

/// Where the next page of each node begins.
type NodeCursors = BTreeMap<String, String>;

impl Console {
    /// Serves a request at this node and all others, and makes one answer of theirs.
    pub(super) async fn serve_everywhere(
        self: &Arc<Self>,
        cluster: &Arc<Cluster>,
        route: &ApiRoute,
        operator: &Operator,
        request: NodeRequest,
    ) -> ApiResult {
        let own = self.node();
        let cursors = match route.path {
            CALLS => request.query.iter().find(|(key, _)| key == "cursor").map(|(_, cursor)| read_cursors(cursor)),
            _ => None,
        };
        let cursors = cursors.transpose()?;
        let for_node = |node: &str| -> Option<NodeRequest> {
            let Some(cursors) = &cursors else { return Some(request.clone()) };
            // A node that has joined since the first page has nothing older than that.
            let cursor = cursors.get(node).filter(|cursor| *cursor != SHOWN)?;
            let mut request = request.clone();
            request.query.retain(|(key, _)| key != "cursor");
            if !cursor.is_empty() {
                request.query.push(("cursor".to_owned(), cursor.clone()));
            }
            Some(request)
        };
        let members = self.refresh_nodes(cluster).await;
        let others = members.into_iter().filter(|node| **node.name() != *own);
        let asked = others.filter_map(|node| Some((for_node(node.name())?, node)));
        let asked = asked.map(|(request, node)| ask(Arc::clone(cluster), node, operator, request));
        let mine = async {
            match for_node(&own) {
                Some(request) => Some(self.serve_own(route, operator, request).await),
                None => None,
            }
        };
        let (mine, answers) = tokio::join!(mine, futures_util::future::join_all(asked));
        let mut all: BTreeMap<String, Value> = BTreeMap::new();
        if let Some(mine) = mine {
            all.insert(own.clone(), read_json(&mine?)?);
        }
        let mut away = self.seen_nodes.away();
        for (node, answer) in answers {
            match answer {
                Ok(answer) => drop(all.insert(node.name().to_string(), answer)),
                // It holds its lease and does not answer.
                Err(_) => away.push(json!({ "node": node.name(), "since": null })),
            }
        }
        let mut joined = match route.path {
            CALLS => self.join_calls(&all, cursors.unwrap_or_default(), limit_of(&request))?,
            _ => join(&own, &all),
        };
        joined["away"] = away.into();
        Ok(ApiAnswer::json(&joined))
    }

    /// The newest rows of all nodes, with a cursor behind the last one of each.
    fn join_calls(&self, all: &BTreeMap<String, Value>, before: NodeCursors, limit: usize) -> Result<Value, ApiError> {
        let mut rows: Vec<&Value> = all.values().filter_map(|page| page["items"].as_array()).flatten().collect();
        let time = |row: &Value| row["at"].as_str().unwrap_or_default().to_owned();
        rows.sort_by_key(|row| std::cmp::Reverse(time(row)));
        rows.truncate(limit);
        let mut next = before;
        for (node, page) in all {
            let items = page["items"].as_array().map(Vec::as_slice).unwrap_or_default();
            let last = rows.iter().rfind(|row| row["node"] == **node);
            let is_shown = page["next"].is_null() && last.map(|row| &row["id"]) == items.last().map(|row| &row["id"]);
            let number = last.and_then(|row| decode_number(row["id"].as_str()?.rsplit_once('.')?.1));
            match (is_shown, number) {
                (true, _) => drop(next.insert(node.clone(), SHOWN.to_owned())),
                (false, Some(number)) => {
                    let cursor = self.seal_cursor(usize::try_from(number).unwrap_or(0));
                    next.insert(node.clone(), cursor);
                }
                // Nothing of it was new enough: its page is asked for again.
                (false, None) => drop(next.entry(node.clone()).or_default()),
            }
        }
        let has_more = next.values().any(|cursor| cursor != SHOWN);
        let next = has_more.then(|| write_cursors(&next));
        Ok(json!({ "items": rows, "next": next }))
    }
}

fn limit_of(request: &NodeRequest) -> usize {
    let limit = request.query.iter().find(|(key, _)| key == "limit");
    limit.and_then(|(_, limit)| limit.parse().ok()).unwrap_or(DEFAULT_LIMIT)
}

fn read_json(answer: &ApiAnswer) -> Result<Value, ApiError> {
    match &answer.body {
        ResponseContent::Full(body) => Ok(serde_json::from_slice(body).unwrap_or_default()),
        _ => Err(ApiError::invalid("this address does not take node=all")),
    }
}

/// Cursors of nodes as one text. Each part is sealed by itself.
fn write_cursors(cursors: &NodeCursors) -> String {
    let parts: Vec<String> = cursors.iter().map(|(node, cursor)| format!("{node}:{cursor}")).collect();
    parts.join(",")
}

fn read_cursors(text: &str) -> Result<NodeCursors, ApiError> {
    let part = |part: &str| part.rsplit_once(':').map(|(node, cursor)| (node.to_owned(), cursor.to_owned()));
    let read: Option<NodeCursors> = text.split(',').map(part).collect();
    read.ok_or_else(|| ApiError::invalid("the cursor is not valid").hint("begin without a cursor"))
}

/// Items of lists one behind the other, and sums of figures.
fn join(own: &str, all: &BTreeMap<String, Value>) -> Value {
    let mut joined = all.get(own).cloned().unwrap_or_default();
    for (node, other) in all.iter().filter(|(node, _)| *node != own) {
        merge(&mut joined, other, node);
    }
    joined
}

/// Adds the answer of another node.
fn merge(all: &mut Value, other: &Value, node: &str) {
    for key in ["items", "attention"] {
        let items = all.get_mut(key).and_then(Value::as_array_mut);
        if let (Some(items), Some(more)) = (items, other[key].as_array()) {
            items.extend(more.iter().cloned());
        }
    }
    // The pages of all nodes have the same length, so that the cursor of one is that of all.
    if all.get("next").is_some_and(Value::is_null) {
        all["next"] = other["next"].clone();
    }
    if let Some(nodes) = all.get_mut("nodes").and_then(Value::as_array_mut) {
        nodes.push(node.into());
        for key in ["sessions", "streams", "calls_in_flight", "parked"] {
            let sum =
                all["figures"][key].as_u64().unwrap_or_default() + other["figures"][key].as_u64().unwrap_or_default();
            all["figures"][key] = sum.into();
        }
        let rate = |value: &Value| value["figures"]["calls_per_s"].as_f64().unwrap_or_default();
        all["figures"]["calls_per_s"] = json!(rate(all) + rate(other));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cursors_of_nodes_are_read_as_they_were_written() {
        let cursors = NodeCursors::from([
            ("a".to_owned(), "xyz-_".to_owned()),
            ("b:1".to_owned(), SHOWN.to_owned()),
            ("c".to_owned(), String::new()),
        ]);
        assert_eq!(read_cursors(&write_cursors(&cursors)).unwrap(), cursors);
        assert!(read_cursors("nothing").is_err());
    }
}
