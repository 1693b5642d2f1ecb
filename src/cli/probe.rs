//! `rialto probe`: what a server supports, and what Rialto would translate for clients of each revision.

use std::process::ExitCode;

use super::client::TargetArgs;
use super::output;
use crate::client::{Client, ProbeMeasurements, milliseconds};
use crate::error::Result;

/// Probes the target and prints the report.
pub(super) async fn run(mut args: TargetArgs) -> Result<ExitCode> {
    let target = args.connect.target(&mut args.words)?;
    let (client, _) = args.connect.connect(&target).await?;
    let other = args.connect.connect_other_leg(&target, &client).await;
    let measured = ProbeMeasurements::take(&client, other).await;
    match args.connect.json {
        true => output::print_line(&measured.report_json(&target, &client).to_string()),
        false => print_report(&client, &measured),
    }
    client.close().await;
    Ok(ExitCode::SUCCESS)
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
