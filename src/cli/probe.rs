//! `rialto probe`: what a server supports, and what Rialto would translate for clients of each revision.

use std::process::ExitCode;
use std::time::{Duration, Instant};

use super::client::TargetArgs;
use super::output;
use crate::client::Client;
use crate::dialect::{LegFacts, Revision, describe_translation};
use crate::error::Result;
use crate::mcp_client::Target;
use crate::protocol::Raw;

/// Measurements in addition to the probe report.
struct ProbeMeasurements {
    /// The leg that was found first, and the handshake leg of a server that speaks both eras.
    legs: Vec<LegFacts>,
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
    let mut legs = vec![client.leg_facts()];
    if let Some(other) = args.connect.connect_other_leg(&target, &client).await {
        legs.push(other.leg_facts());
        other.close().await;
    }
    let measured = ProbeMeasurements { legs, round_trip, oddities };
    match args.connect.json {
        true => output::print_line(&report_json(&target, &client, &measured).to_string()),
        false => print_report(&client, &measured),
    }
    client.close().await;
    Ok(ExitCode::SUCCESS)
}

impl ProbeMeasurements {
    /// Why the handshake leg serves nobody, as a clause.
    fn why_unused(&self, leg: &LegFacts) -> Option<&'static str> {
        self.legs
            .iter()
            .filter(|other| other.revision.is_bridged_to(leg.revision))
            .find_map(|other| leg.replaced_by(other))
    }

    /// The leg that would serve clients of that revision.
    fn leg_for(&self, client: Revision) -> &LegFacts {
        let suits = |leg: &&LegFacts| !leg.revision.is_bridged_to(client) && self.why_unused(leg).is_none();
        self.legs.iter().find(suits).unwrap_or(&self.legs[0])
    }

    /// The revisions of the clients that a leg would serve.
    fn clients(&self, leg: &LegFacts) -> Vec<&'static str> {
        let serves = |client: &Revision| std::ptr::eq(self.leg_for(*client), leg);
        Revision::all().filter(serves).map(Revision::as_str).collect()
    }

    /// What Rialto would translate for clients of each revision, oldest first.
    fn translations(&self) -> impl Iterator<Item = (&'static str, Vec<&'static str>)> {
        let translated = |client: Revision| describe_translation(client, self.leg_for(client).revision);
        Revision::all().map(move |client| (client.as_str(), translated(client)))
    }

    fn legs_json(&self) -> Vec<serde_json::Value> {
        let one = |leg: &LegFacts| {
            let capabilities: Vec<_> = leg.capabilities.entries().map(|(name, _)| name.into_owned()).collect();
            serde_json::json!({
                "revision": leg.revision.as_str(), "capabilities": capabilities,
                "reachesClient": leg.reaches_client, "clients": self.clients(leg), "why": self.why_unused(leg),
            })
        };
        self.legs.iter().map(one).collect()
    }

    /// One line per leg of a server that speaks both eras.
    fn leg_lines(&self) -> impl Iterator<Item = String> {
        let line = |leg: &LegFacts| {
            let names: Vec<_> = leg.capabilities.entries().map(|(name, _)| name.into_owned()).collect();
            let serves = match (self.why_unused(leg), self.clients(leg)) {
                (Some(why), _) => format!("serves nobody: {why}"),
                (None, clients) => format!("serves clients of {}", clients.join(", ")),
            };
            format!("{} with {}; {serves}", leg.revision, names.join(", "))
        };
        self.legs.iter().filter(|_| self.legs.len() > 1).map(line)
    }
}

fn milliseconds(time: Duration) -> f64 {
    time.as_secs_f64() * 1000.0
}

fn report_json(target: &Target, client: &Client, measured: &ProbeMeasurements) -> Raw {
    let (report, server) = (client.probe_report(), client.server());
    let one = |(client, words)| serde_json::json!({ "client": client, "translated": words });
    let translated: Vec<_> = measured.translations().map(one).collect();
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
        ("legs", Raw::of(&measured.legs_json())),
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
    rows.extend(measured.leg_lines().map(|line| ("leg", line)));
    rows.extend(measured.round_trip.map(|took| ("round trip", format!("{:.1} ms", milliseconds(took)))));
    rows.extend(measured.oddities.iter().map(|oddity| ("note", oddity.clone())));
    for (key, value) in rows {
        output::print_line(&format!("{key:<14}{}", output::strip_control_chars(&value)));
    }
    let row = |(client, words): (&str, Vec<&str>)| {
        let words = if words.is_empty() { "nothing".to_owned() } else { words.join(", ") };
        vec![client.to_owned(), words]
    };
    let table = output::table(&["CLIENT", "TRANSLATED BY RIALTO"], measured.translations().map(row));
    output::print_line(&format!("\n{table}"));
}
