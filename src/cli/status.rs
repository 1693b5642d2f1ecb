//! `rialto status`: what a running gateway holds, by asking it.

use std::process::ExitCode;
use std::time::{Duration, SystemTime};

use clap::Args;
use comfy_table::{ContentArrangement, Table, presets};

use crate::admin::{ListCounts, SessionStatus, StatusReport, seconds};
use crate::error::{Error, ErrorKind, Result};
use crate::mcp_client::{ConnectionSettings, Target, fetch};

/// Whom to ask, and how to show it.
#[derive(Debug, Args)]
pub(super) struct StatusArgs {
    /// Where the gateway listens, or where its operators' listener does.
    #[arg(default_value = "http://127.0.0.1:3001", value_name = "URL")]
    url: String,
    /// A header to send along, such as `Authorization: Bearer …`. May be repeated.
    #[arg(long, value_name = "NAME: VALUE")]
    header: Vec<String>,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

/// Asks, and shows the answer.
pub(super) async fn run(arguments: StatusArgs) -> ExitCode {
    match ask(&arguments).await {
        Ok(text) if arguments.json => {
            println!("{text}");
            ExitCode::SUCCESS
        }
        Ok(text) => match serde_json::from_str(&text) {
            Ok(status) => {
                print!("{}", shown(&status));
                ExitCode::SUCCESS
            }
            Err(error) => failed(&format!("{} answered with something else than a status: {error}", arguments.url)),
        },
        Err(error) => failed(&error.to_string()),
    }
}

fn failed(why: &str) -> ExitCode {
    eprintln!("rialto: {why}");
    ExitCode::FAILURE
}

async fn ask(arguments: &StatusArgs) -> Result<String> {
    let mut target = Target::url(&format!("{}/admin/status", arguments.url.trim_end_matches('/')))?;
    for header in &arguments.header {
        let (name, value) =
            header.split_once(':').ok_or_else(|| Error::new(ErrorKind::Usage, "a header is given as `Name: value`"))?;
        target = target.with_header(name.trim(), value.trim())?;
    }
    let Target::Url(address) = target else { return Err(Error::new(ErrorKind::Usage, "give the gateway's URL")) };
    let settings = ConnectionSettings { discovery_timeout: Duration::from_secs(5), ..ConnectionSettings::default() };
    let body = fetch(&address, &settings).await?;
    Ok(String::from_utf8_lossy(&body).into_owned())
}

/// A status for people.
fn shown(status: &StatusReport) -> String {
    let now = seconds(SystemTime::now());
    let state = if status.ready { "ready" } else { "not ready" };
    let mut out = format!("Rialto {} is {state}, up for {}\n", status.version, ago(now, status.started));
    let configuration = &status.configuration;
    out.push_str(&match (&configuration.file, configuration.taken) {
        (Some(file), Some(taken)) => format!("Configuration {file}, taken {} ago\n", ago(now, taken)),
        _ => "No configuration file\n".to_owned(),
    });
    if let Some(refused) = configuration.refused {
        out.push_str(&format!("A later one was refused {} ago:\n", ago(now, refused)));
    }
    for problem in &configuration.problems {
        out.push_str(&format!("  {problem}\n"));
    }
    let sessions: usize = status.sessions.iter().map(|alike| alike.count).sum();
    out.push_str(&format!(
        "{sessions} sessions, {} open streams, {} events ({} bytes), {} running calls, {} held, {} children\n\n",
        status.streams, status.events, status.event_bytes, status.calls, status.held, status.children
    ));
    if let Some(cluster) = &status.cluster {
        let sure = match (cluster.sure, cluster.full) {
            (false, _) => ", which is away: sessions are not served",
            (true, true) => ", which has no room: nothing new is kept",
            (true, false) => "",
        };
        out.push_str(&format!(
            "Node {} at {}{sure}; {} requests carried to others, {} sessions taken over\n\n",
            cluster.node, cluster.store, cluster.carried, cluster.taken_over
        ));
    }
    let mut groups = table(&["group", "servers", "tools", "prompts", "resources", "templates"]);
    for group in &status.groups {
        let mut row = vec![group.name.clone(), group.servers.join(", ")];
        row.extend(counted(&group.lists));
        groups.add_row(row);
    }
    out.push_str(&format!("{}\n\n", groups.trim_fmt()));
    let mut upstreams =
        table(&["upstream", "state", "since", "transport", "revision", "tools", "lent", "calls", "why"]);
    for upstream in &status.upstreams {
        let mut why: Vec<String> = upstream.reason.iter().cloned().collect();
        why.extend(upstream.troubles.iter().cloned());
        upstreams.add_row(vec![
            upstream.name.clone(),
            upstream.phase.clone(),
            ago(now, upstream.since),
            upstream.transport.clone(),
            upstream.revision.clone().unwrap_or_default(),
            upstream.lists.tools.to_string(),
            upstream.lent.to_string(),
            upstream.calls.to_string(),
            why.join("; "),
        ]);
    }
    out.push_str(&format!("{}\n", upstreams.trim_fmt()));
    for collision in status.groups.iter().flat_map(|group| &group.collisions) {
        out.push_str(&format!("{collision}\n"));
    }
    if !status.sessions.is_empty() {
        out.push_str(&format!("\n{}\n", sessions_table(&status.sessions).trim_fmt()));
    }
    let met = status.upstreams.iter().flat_map(|upstream| upstream.clients.iter().map(|met| (&upstream.name, met)));
    let mut calls = table(&["upstream", "client", "server", "calls", "translated"]);
    for (upstream, met) in met {
        let words = words(&met.translated);
        calls.add_row(vec![upstream.clone(), met.client.clone(), met.server.clone(), met.calls.to_string(), words]);
    }
    if !calls.is_empty() {
        out.push_str(&format!("\n{}\n", calls.trim_fmt()));
    }
    out
}

/// A row for each kind of session and each upstream that it has to do with.
fn sessions_table(sessions: &[SessionStatus]) -> Table {
    let mut shown = table(&["sessions", "group", "transport", "client", "upstream", "server", "translated"]);
    for alike in sessions {
        let client = alike.revision.clone().unwrap_or_default();
        let mut heads = vec![alike.count.to_string(), alike.group.clone(), alike.transport.clone(), client];
        for facing in &alike.upstreams {
            let known = alike.revision.is_some() && facing.revision.is_some();
            heads.push(facing.upstream.clone());
            heads.push(facing.revision.clone().unwrap_or_default());
            heads.push(if known { words(&facing.translated) } else { String::new() });
            shown.add_row(std::mem::replace(&mut heads, vec![String::new(); 4]));
        }
        if alike.upstreams.is_empty() {
            shown.add_row(heads);
        }
    }
    shown
}

/// What is translated, for people.
fn words(translated: &[String]) -> String {
    match translated {
        [] => "nothing".to_owned(),
        some => some.join(", "),
    }
}

fn table(heads: &[&str]) -> Table {
    let mut table = Table::new();
    table.load_style(presets::NOTHING).set_content_arrangement(ContentArrangement::Dynamic);
    table.set_header(heads.to_vec());
    table
}

fn counted(lists: &ListCounts) -> [String; 4] {
    [lists.tools, lists.prompts, lists.resources, lists.templates].map(|count| count.to_string())
}

/// How long ago something was, in one unit.
fn ago(now: u64, then: u64) -> String {
    match now.saturating_sub(then) {
        seconds @ 0..120 => format!("{seconds} s"),
        seconds @ 120..7200 => format!("{} min", seconds / 60),
        seconds @ 7200..172_800 => format!("{} h", seconds / 3600),
        seconds => format!("{} days", seconds / 86_400),
    }
}
