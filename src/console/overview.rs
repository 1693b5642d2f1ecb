//! `overview` and `bridge`: the state of the gateway in one answer, and who meets whom.

use std::time::{Duration, SystemTime};

use serde_json::{Value, json};

use super::api::{AdminRequest, ApiAnswer, ApiError, ApiResult, ApiRoute, rfc3339};
use super::figures::{self, MAX_RANGE};
use super::groups::revision_names;
use super::{attention, servers};
use crate::dialect::{Revision, describe_translation};
use crate::inbound::Inbound;
use crate::policy::OperatorRight::Look;

pub(super) fn routes() -> Vec<ApiRoute> {
    vec![
        ApiRoute::get("overview", Look, |request| Box::pin(async move { overview(&request) })).on_all_nodes(),
        ApiRoute::get("bridge", Look, |request| Box::pin(async move { bridge(&request) })),
    ]
}

fn overview(request: &AdminRequest) -> ApiResult {
    let (console, inbound) = (&request.console, request.console.inbound()?);
    let range = parse_range(request.query("range").unwrap_or("15m"))?;
    let samples = console.figures.since(range, &inbound);
    Ok(ApiAnswer::json(&json!({
        "node": console.node(),
        "nodes": [console.node()],
        "at": rfc3339(SystemTime::now()),
        "range_us": u64::try_from(range.as_micros()).unwrap_or_default(),
        "figures": figures::gateway_figures(&samples, &inbound),
        "series": figures::series(&samples, None),
        "pairs": pairs(&inbound),
        "servers": servers::rows(&inbound, &samples),
        "attention": attention::items(console, &inbound, &samples),
    })))
}

/// A range such as `90s`, `15m` or `1h`.
fn parse_range(text: &str) -> Result<Duration, ApiError> {
    let unit = text.chars().last().and_then(|unit| match unit {
        's' => Some(1),
        'm' => Some(60),
        'h' => Some(3600),
        _ => None,
    });
    let number: Option<u64> = text.get(..text.len().saturating_sub(1)).and_then(|number| number.parse().ok());
    let range = unit.zip(number).map(|(unit, number)| Duration::from_secs(unit * number.min(86_400)));
    let range = range.filter(|range| *range >= figures::STEP && *range <= MAX_RANGE);
    range.ok_or_else(|| ApiError::invalid("range is a time from 10s to 1h, such as 15m"))
}

/// Clients of each revision and the servers that they met.
fn pairs(inbound: &Inbound) -> Vec<Value> {
    let mut met = Vec::new();
    for upstream in inbound.gateway.upstreams() {
        met.extend(upstream.revision_pairs().into_iter().map(|pair| (std::sync::Arc::clone(upstream.name()), pair)));
    }
    let all: u64 = met.iter().map(|(_, pair)| pair.calls).sum();
    let one = |(server, pair): (std::sync::Arc<str>, crate::upstream::RevisionPair)| {
        json!({
            "client": pair.client.as_str(),
            "server": server,
            "server_revision": pair.server.as_str(),
            "bridge": bridge_kind(pair.client, pair.server),
            "calls": pair.calls,
            "share": figures::ratio(pair.calls, all),
            "words": describe_translation(pair.client, pair.server),
        })
    };
    met.into_iter().map(one).collect()
}

/// How far two revisions are apart.
fn bridge_kind(client: Revision, server: Revision) -> &'static str {
    match client.is_bridged_to(server) {
        true => "across",
        false if client.as_str() == server.as_str() => "none",
        false => "era",
    }
}

fn bridge(request: &AdminRequest) -> ApiResult {
    let inbound = request.console.inbound()?;
    let upstreams = inbound.gateway.upstreams();
    let mut cells = Vec::new();
    for upstream in &upstreams {
        for client in Revision::all() {
            let server = upstream.leg_for(client).leg.state().revision;
            let met = upstream.revision_pairs().into_iter().filter(|pair| pair.client.as_str() == client.as_str());
            let words = server.map(|server| describe_translation(client, server)).unwrap_or_default();
            cells.push(json!({
                "client": client.as_str(),
                "server": upstream.name(),
                "server_revision": server.map(Revision::as_str),
                "words": words,
                "calls": met.map(|pair| pair.calls).sum::<u64>(),
            }));
        }
    }
    let answer = json!({
        "revisions": revision_names(),
        "servers": upstreams.iter().map(|upstream| upstream.name().to_string()).collect::<Vec<_>>(),
        "cells": cells,
    });
    ApiAnswer::json(&answer).with_etag(request)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_range_lies_between_a_step_and_an_hour() {
        assert_eq!(parse_range("15m").unwrap(), Duration::from_secs(900));
        assert_eq!(parse_range("1h").unwrap(), MAX_RANGE);
        for wrong in ["", "m", "2h", "9s", "15", "-1m", "1d", "99999999999999999999h"] {
            assert!(parse_range(wrong).is_err(), "{wrong}");
        }
    }
}
