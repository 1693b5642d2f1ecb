//! `node=all`: the answers of all nodes as one.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde_json::{Value, json};

use super::Console;
use super::api::{ApiAnswer, ApiError, ApiResult, ApiRoute, DEFAULT_LIMIT};
use super::figures::ratio;
use super::nodes::{NodeRequest, ask};
use crate::cluster::Cluster;
use crate::inbound::ResponseContent;
use crate::policy::Operator;
use crate::recording::decode_number;

/// The list whose rows of all nodes are sorted by time, and whose pages are those of all nodes together.
const CALLS: &str = "calls";
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
    let items = all.get_mut("items").and_then(Value::as_array_mut);
    if let (Some(items), Some(more)) = (items, other["items"].as_array()) {
        items.extend(more.iter().cloned());
    }
    // The pages of all nodes have the same length, so that the cursor of one is that of all.
    if all.get("next").is_some_and(Value::is_null) {
        all["next"] = other["next"].clone();
    }
    if let Some(nodes) = all.get_mut("nodes").and_then(Value::as_array_mut) {
        nodes.push(node.into());
        merge_overview(all, other, node);
    }
}

/// Adds the figures of another node. Quantiles of two nodes cannot be joined, so those of the node that was asked stay.
fn merge_overview(all: &mut Value, other: &Value, node: &str) {
    merge_rates(&mut all["figures"], &other["figures"], "failed");
    add(&mut all["figures"], &other["figures"], &["sessions", "streams", "calls_in_flight", "parked"]);
    for key in ["calls", "failed", "sessions"] {
        merge_series(&mut all["series"][key], &other["series"][key]);
    }
    merge_pairs(&mut all["pairs"], &other["pairs"]);
    for server in all["servers"].as_array_mut().into_iter().flatten() {
        let Some(more) = items_of(&other["servers"]).iter().find(|more| more["name"] == server["name"]) else {
            continue;
        };
        add(server, more, &["leases", "calls_in_flight"]);
        merge_rates(&mut server["figures"], &more["figures"], "failed_ratio");
        add(&mut server["figures"], &more["figures"], &["calls", "failed"]);
        merge_series(&mut server["figures"]["series"], &more["figures"]["series"]);
    }
    merge_attention(&mut all["attention"], &other["attention"], node);
}

fn items_of(list: &Value) -> &[Value] {
    list.as_array().map(Vec::as_slice).unwrap_or_default()
}

/// Sums members that are counts.
fn add(all: &mut Value, other: &Value, keys: &[&str]) {
    for key in keys {
        let sum = all[key].as_u64().unwrap_or_default() + other[key].as_u64().unwrap_or_default();
        all[key] = sum.into();
    }
}

/// Sums calls per second; the part of them that failed counts by how many calls it is of.
fn merge_rates(all: &mut Value, other: &Value, failed: &str) {
    let number = |value: &Value, key: &str| value[key].as_f64().unwrap_or_default();
    let (own, more) = (number(all, "calls_per_s"), number(other, "calls_per_s"));
    if own + more > 0.0 {
        all[failed] = json!((number(all, failed) * own + number(other, failed) * more) / (own + more));
    }
    all["calls_per_s"] = json!(own + more);
}

/// Sums two series, both of which end now.
fn merge_series(all: &mut Value, other: &Value) {
    let (own, more) = (items_of(all), items_of(other));
    let length = own.len().max(more.len());
    let at = |series: &[Value], index: usize| {
        let index = (index + series.len()).checked_sub(length);
        index.and_then(|index| series.get(index)?.as_u64()).unwrap_or_default()
    };
    *all = (0..length).map(|index| at(own, index) + at(more, index)).collect();
}

/// Sums the calls of pairs that both nodes have seen, and adds those that one has.
fn merge_pairs(all: &mut Value, other: &Value) {
    let Some(pairs) = all.as_array_mut() else { return };
    for pair in items_of(other) {
        let is_same =
            |one: &&mut Value| ["client", "server", "server_revision"].iter().all(|key| one[key] == pair[key]);
        match pairs.iter_mut().find(is_same) {
            Some(own) => add(own, pair, &["calls"]),
            None => pairs.push(pair.clone()),
        }
    }
    let calls = |pair: &Value| pair["calls"].as_u64().unwrap_or_default();
    let sum = pairs.iter().map(calls).sum();
    for pair in pairs {
        pair["share"] = json!(ratio(calls(pair), sum));
    }
}

/// Adds what needs attention at another node only; what both tell is told once.
fn merge_attention(all: &mut Value, other: &Value, node: &str) {
    let Some(items) = all.as_array_mut() else { return };
    let own: Vec<Value> = items.iter().map(|item| item["id"].clone()).collect();
    for item in items_of(other).iter().filter(|item| !own.contains(&item["id"])) {
        let mut item = item.clone();
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        item["id"] = format!("{node} {}", text(&item["id"])).into();
        item["text"] = format!("{node}: {}", text(&item["text"])).into();
        if item["act"].is_object() {
            item["act"]["path"] = format!("{}?node={node}", text(&item["act"]["path"])).into();
        }
        items.push(item);
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

    #[test]
    fn figures_of_two_nodes_are_summed() {
        let overview = |calls: u64, rate: f64, failed: f64, series: &[u64]| {
            json!({
                "nodes": ["a"],
                "figures": { "calls_per_s": rate, "failed": failed, "sessions": 2, "streams": 1, "calls_in_flight": 0, "parked": 0 },
                "series": { "calls": series, "failed": [], "sessions": series },
                "pairs": [{ "client": "2025-11-25", "server": "s", "server_revision": "2025-06-18", "calls": calls, "share": 1.0 }],
                "servers": [{
                    "name": "s", "leases": 1, "calls_in_flight": 0,
                    "figures": { "calls": calls, "failed": 1, "calls_per_s": rate, "failed_ratio": failed, "series": series },
                }],
                "attention": [
                    { "id": "both", "text": "known", "act": null },
                    { "id": format!("only-{calls}"), "text": "s is down", "act": { "path": "servers/s/reconnect" } },
                ],
            })
        };
        let mut all = overview(30, 3.0, 0.0, &[5, 6]);
        let mut other = overview(10, 1.0, 0.4, &[1]);
        let unknown = json!({ "client": "2024-11-05", "server": "s", "server_revision": "2025-06-18", "calls": 10 });
        other["pairs"].as_array_mut().unwrap().push(unknown);
        merge(&mut all, &other, "b");
        assert_eq!(all["nodes"], json!(["a", "b"]));
        assert_eq!((&all["figures"]["calls_per_s"], &all["figures"]["failed"]), (&json!(4.0), &json!(0.1)));
        assert_eq!((&all["figures"]["sessions"], &all["series"]["calls"]), (&json!(4), &json!([5, 7])));
        let pairs: Vec<_> = items_of(&all["pairs"]).iter().map(|pair| (&pair["calls"], &pair["share"])).collect();
        assert_eq!(pairs, [(&json!(40), &json!(0.8)), (&json!(10), &json!(0.2))]);
        let server = &all["servers"][0];
        assert_eq!(
            (&server["leases"], &server["figures"]["calls"], &server["figures"]["failed"]),
            (&json!(2), &json!(40), &json!(2))
        );
        assert_eq!(server["figures"]["failed_ratio"], json!(0.1));
        let told: Vec<_> = items_of(&all["attention"]).iter().map(|item| item["text"].as_str().unwrap()).collect();
        assert_eq!(told, ["known", "s is down", "b: s is down"]);
        assert_eq!(all["attention"][2]["act"]["path"], "servers/s/reconnect?node=b");
    }
}
