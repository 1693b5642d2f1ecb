//! `rialto status`: the status of a running gateway.

use std::process::ExitCode;
use std::time::{Duration, SystemTime};

use clap::Args;
use comfy_table::{ContentArrangement, Table, presets};

use crate::admin::{
    LimitMeasureStatus, LimitStatus, ListCounts, SessionStatus, StatusReport, TlsStatus, UpstreamStatus, unix_seconds,
};
use crate::error::{Error, Result};
use crate::mcp_client::{ConnectionSettings, Target, fetch};

/// Arguments of `rialto status`.
#[derive(Debug, Args)]
pub(super) struct StatusArgs {
    /// URL of the gateway or of its admin listener.
    #[arg(default_value = "http://127.0.0.1:3001", value_name = "URL")]
    url: String,
    /// Header to send, such as `Authorization: Bearer …`. Can be repeated.
    #[arg(long, value_name = "NAME: VALUE")]
    header: Vec<String>,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

/// Fetches the status and prints it.
pub(super) async fn run(arguments: StatusArgs) -> ExitCode {
    match fetch_status(&arguments).await {
        Ok(text) if arguments.json => {
            println!("{text}");
            ExitCode::SUCCESS
        }
        Ok(text) => match serde_json::from_str(&text) {
            Ok(status) => {
                print!("{}", render_status(&status));
                ExitCode::SUCCESS
            }
            Err(error) => failed(&format!("{} returned an invalid status: {error}", arguments.url)),
        },
        Err(error) => failed(&error.to_string()),
    }
}

fn failed(why: &str) -> ExitCode {
    eprintln!("rialto: {why}");
    ExitCode::FAILURE
}

async fn fetch_status(arguments: &StatusArgs) -> Result<String> {
    let mut target = Target::url(&format!("{}/admin/status", arguments.url.trim_end_matches('/')))?;
    for header in &arguments.header {
        let (name, value) = header.split_once(':').ok_or_else(|| Error::usage("write a header as `Name: value`"))?;
        target = target.with_header(name.trim(), value.trim())?;
    }
    let Target::Url(address) = target else { return Err(Error::usage("give the gateway's URL")) };
    let settings = ConnectionSettings { discovery_timeout: Duration::from_secs(5), ..ConnectionSettings::default() };
    let body = fetch(&address, &settings).await?;
    Ok(String::from_utf8_lossy(&body).into_owned())
}

/// The status as text.
fn render_status(status: &StatusReport) -> String {
    let now = unix_seconds(SystemTime::now());
    let state = if status.ready { "ready" } else { "not ready" };
    let mut out = format!("Rialto {} is {state}, up for {}\n", status.version, format_elapsed(now, status.started));
    let configuration = &status.configuration;
    out.push_str(&match (&configuration.file, configuration.applied) {
        (Some(file), Some(applied)) => format!("Configuration {file}, applied {} ago\n", format_elapsed(now, applied)),
        _ => "No configuration file\n".to_owned(),
    });
    if let Some(refused) = configuration.refused {
        out.push_str(&format!("A newer version was refused {} ago:\n", format_elapsed(now, refused)));
    }
    for problem in &configuration.problems {
        out.push_str(&format!("  {problem}\n"));
    }
    let sessions: usize = status.sessions.iter().map(|kind| kind.count).sum();
    out.push_str(&format!(
        "{sessions} sessions, {} open streams, {} events ({} bytes), {} calls in flight, {} parked, {} children\n\n",
        status.streams, status.events, status.event_bytes, status.calls_in_flight, status.parked_calls, status.children
    ));
    out.extend(status.limits.iter().map(render_limit));
    out.push_str(&status.tls.as_ref().map(|tls| tls_text(tls, now)).unwrap_or_default());
    if let Some(cluster) = &status.cluster {
        let problem = match (cluster.store_connected, cluster.store_full) {
            (false, _) => " (lease lost: sessions are not served)",
            (true, true) => " (out of memory: new sessions and events are refused)",
            (true, false) => "",
        };
        out.push_str(&format!(
            "Node {} with store {}{problem}; {} requests relayed to other nodes, {} sessions adopted\n\n",
            cluster.node, cluster.store, cluster.relayed_requests, cluster.adopted_sessions
        ));
    }
    let mut groups = table(&["group", "servers", "tools", "prompts", "resources", "templates"]);
    for group in &status.groups {
        let mut row = vec![group.name.clone(), group.servers.join(", ")];
        row.extend(list_counts(&group.lists));
        groups.add_row(row);
    }
    out.push_str(&format!("{}\n\n", groups.trim_fmt()));
    let mut upstreams =
        table(&["upstream", "state", "since", "transport", "revision", "tools", "leases", "calls", "reason"]);
    for upstream in &status.upstreams {
        let mut reasons: Vec<String> = upstream.reason.iter().cloned().collect();
        reasons.extend(upstream.list_errors.iter().cloned());
        upstreams.add_row(vec![
            upstream.name.clone(),
            upstream.phase.clone(),
            format_elapsed(now, upstream.since),
            upstream.transport.clone(),
            upstream.revision.clone().unwrap_or_default(),
            upstream.lists.tools.to_string(),
            upstream.leases.to_string(),
            upstream.calls_in_flight.to_string(),
            reasons.join("; "),
        ]);
    }
    out.push_str(&format!("{}\n{}", upstreams.trim_fmt(), legs_text(&status.upstreams)));
    for collision in status.groups.iter().flat_map(|group| &group.collisions) {
        out.push_str(&format!("{collision}\n"));
    }
    if !status.sessions.is_empty() {
        out.push_str(&format!("\n{}\n", sessions_table(&status.sessions).trim_fmt()));
    }
    let pairs = status
        .upstreams
        .iter()
        .flat_map(|upstream| upstream.calls_by_revision.iter().map(|pair| (&upstream.name, pair)));
    let mut calls = table(&["upstream", "client", "server", "calls", "bridged"]);
    for (upstream, pair) in pairs {
        let bridged = features(&pair.bridged);
        calls.add_row(vec![
            upstream.clone(),
            pair.client_revision.clone(),
            pair.server_revision.clone(),
            pair.calls.to_string(),
            bridged,
        ]);
    }
    if !calls.is_empty() {
        out.push_str(&format!("\n{}\n", calls.trim_fmt()));
    }
    out
}

/// The certificate that clients see, and how long it is valid.
fn tls_text(tls: &TlsStatus, now: u64) -> String {
    let validity = match tls.expires.checked_sub(now) {
        Some(_) => format!("expires in {}", format_elapsed(tls.expires, now)),
        None => "has expired".to_owned(),
    };
    let name = tls.certificate.as_deref().unwrap_or("without a name");
    format!("TLS with the certificate {name}, which {validity}; client certificates: {}\n\n", tls.client_certificates)
}

/// One row per leg of each upstream that speaks both eras.
fn legs_text(upstreams: &[UpstreamStatus]) -> String {
    let mut rows = table(&["upstream", "leg", "serves", "capabilities", "why"]);
    for upstream in upstreams.iter().filter(|upstream| upstream.legs.len() > 1) {
        for leg in &upstream.legs {
            let clients = if leg.clients.is_empty() { "nobody".to_owned() } else { leg.clients.join(", ") };
            let why = leg.why.clone().unwrap_or_default();
            rows.add_row(vec![upstream.name.clone(), leg.revision.clone(), clients, leg.capabilities.join(", "), why]);
        }
    }
    if rows.is_empty() { String::new() } else { format!("\n{}\n", rows.trim_fmt()) }
}

/// One row per kind of session and upstream.
fn sessions_table(sessions: &[SessionStatus]) -> Table {
    let mut rows = table(&["sessions", "group", "transport", "client", "upstream", "server", "bridged"]);
    for kind in sessions {
        let client = kind.revision.clone().unwrap_or_default();
        let mut cells = vec![kind.count.to_string(), kind.group.clone(), kind.transport.clone(), client];
        for upstream in &kind.upstreams {
            let known = kind.revision.is_some() && upstream.revision.is_some();
            cells.push(upstream.upstream.clone());
            cells.push(upstream.revision.clone().unwrap_or_default());
            cells.push(if known { features(&upstream.bridged) } else { String::new() });
            rows.add_row(std::mem::replace(&mut cells, vec![String::new(); 4]));
        }
        if kind.upstreams.is_empty() {
            rows.add_row(cells);
        }
    }
    rows
}

/// The bridged features as text.
fn features(bridged: &[String]) -> String {
    match bridged {
        [] => "nothing".to_owned(),
        some => some.join(", "),
    }
}

fn table(columns: &[&str]) -> Table {
    let mut table = Table::new();
    table.load_style(presets::NOTHING).set_content_arrangement(ContentArrangement::Dynamic);
    table.set_header(columns.to_vec());
    table
}

fn list_counts(lists: &ListCounts) -> [String; 4] {
    [lists.tools, lists.prompts, lists.resources, lists.templates].map(|count| count.to_string())
}

/// Elapsed time in one unit.
fn format_elapsed(now: u64, then: u64) -> String {
    match now.saturating_sub(then) {
        seconds @ 0..120 => format!("{seconds} s"),
        seconds @ 120..7200 => format!("{} min", seconds / 60),
        seconds @ 7200..172_800 => format!("{} h", seconds / 3600),
        seconds => format!("{} days", seconds / 86_400),
    }
}

/// One line for a rate limit.
fn render_limit(limit: &LimitStatus) -> String {
    let counted = |one: &LimitMeasureStatus| format!(", {} {} of {}", one.name, one.used, one.limit);
    let counted: String = limit.counted.iter().map(counted).collect();
    format!("Limit {:?}: {} rejected{counted}\n", limit.name, limit.rejected)
}
