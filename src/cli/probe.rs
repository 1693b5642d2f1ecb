//! `rialto probe`: what a server supports, and what Rialto would translate for clients of each revision.

use std::process::ExitCode;
use std::time::{Duration, Instant};

use super::client::TargetArgs;
use super::output;
use crate::client::Client;
use crate::dialect::{FEATURES, Revision, describe_translation};
use crate::error::Result;
use crate::mcp_client::Target;
use crate::protocol::Raw;

/// Measurements in addition to the probe report.
struct ProbeMeasurements {
    /// Round-trip time of a ping, where the revision has `ping`.
    round_trip: Option<Duration>,
    oddities: Vec<String>,
}

/// Probes the target and prints the report.
pub(super) async fn run(mut args: TargetArgs) -> Result<ExitCode> {
    let target = args.connect.target(&mut args.words)?;
    let (client, _) = args.connect.connect(&target).await?;
    let started = Instant::now();
    let ping = client.ping().await;
    let round_trip = started.elapsed();
    let mut oddities = client.probe_report().oddities.clone();
    if let Err(error) = &ping {
        oddities.push(format!("`ping` failed: {error}"));
    }
    let round_trip = matches!(ping, Ok(Some(()))).then_some(round_trip);
    let measured = ProbeMeasurements { round_trip, oddities };
    match args.connect.json {
        true => output::print_line(&report_json(&target, &client, &measured).to_string()),
        false => print_report(&client, &measured),
    }
    client.close().await;
    Ok(ExitCode::SUCCESS)
}

/// What Rialto would translate for clients of each revision, oldest first.
fn translations(server: Revision) -> impl Iterator<Item = (&'static str, Vec<&'static str>)> {
    FEATURES.iter().map(move |client| (client.name, describe_translation(client.revision, server)))
}

fn milliseconds(time: Duration) -> f64 {
    time.as_secs_f64() * 1000.0
}

fn report_json(target: &Target, client: &Client, measured: &ProbeMeasurements) -> Raw {
    let (report, server) = (client.probe_report(), client.server());
    let one = |(client, words)| serde_json::json!({ "client": client, "translated": words });
    let translated: Vec<_> = translations(client.revision()).map(one).collect();
    let empty = Raw::empty();
    let mut json = empty.edit();
    for (key, value) in [
        ("target", Raw::of(&target.to_string())),
        ("transport", Raw::of(report.transport)),
        ("revision", Raw::of(&client.revision().to_string())),
        ("offered", Raw::of(client.offered())),
        ("why", Raw::of(&report.why)),
        ("session", Raw::of(&client.session_id().is_some())),
        ("server", server.info.clone()),
        ("capabilities", server.capabilities.clone()),
        ("instructions", server.instructions.clone().unwrap_or(Raw::constant("null"))),
        ("connectMs", Raw::of(&milliseconds(report.elapsed))),
        ("roundTripMs", Raw::of(&measured.round_trip.map(milliseconds))),
        ("oddities", Raw::of(&measured.oddities)),
        ("clients", Raw::of(&translated)),
    ] {
        json = json.set(key, value);
    }
    json.finish()
}

fn print_report(client: &Client, measured: &ProbeMeasurements) {
    let (report, server) = (client.probe_report(), client.server());
    let session = if client.session_id().is_some() { "yes, Mcp-Session-Id" } else { "none" };
    let capabilities: Vec<String> =
        server.capabilities.entries().map(|(key, value)| format!("{key} {value}")).collect();
    let mut rows = vec![
        (
            "server",
            format!("{} {}", output::member_text(&server.info, "name"), output::member_text(&server.info, "version")),
        ),
        ("transport", report.transport.to_owned()),
        ("revision", format!("{}, because {}", client.revision(), report.why)),
        ("offered", client.offered().join(", ")),
        ("session", session.to_owned()),
        ("capabilities", capabilities.join(", ")),
        ("connected in", format!("{:.1} ms", milliseconds(report.elapsed))),
    ];
    rows.extend(measured.round_trip.map(|took| ("round trip", format!("{:.1} ms", milliseconds(took)))));
    rows.extend(measured.oddities.iter().map(|oddity| ("note", oddity.clone())));
    for (key, value) in rows {
        output::print_line(&format!("{key:<14}{}", output::strip_control_chars(&value)));
    }
    let row = |(client, words): (&str, Vec<&str>)| {
        let words = if words.is_empty() { "nothing".to_owned() } else { words.join(", ") };
        vec![client.to_owned(), words]
    };
    let table = output::table(&["CLIENT", "TRANSLATED BY RIALTO"], translations(client.revision()).map(row));
    output::print_line(&format!("\n{table}"));
}
