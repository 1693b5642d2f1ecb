//! `rialto probe`: what is at a target, and what would be translated if a gateway stood in front of it.

use std::process::ExitCode;
use std::time::{Duration, Instant};

use super::client::Plain;
use super::output;
use crate::client::Client;
use crate::dialect::{FACTS, Revision, translation};
use crate::error::Result;
use crate::mcp_client::Target;
use crate::protocol::Raw;

/// What was found out beside what the client knows.
struct Measured {
    /// How long the server took to answer, where it can be asked.
    round_trip: Option<Duration>,
    oddities: Vec<String>,
}

/// Finds out, and shows it.
pub(super) async fn run(mut plain: Plain) -> Result<ExitCode> {
    let target = plain.reach.target(&mut plain.words)?;
    let (client, _) = plain.reach.connect(&target).await?;
    let begun = Instant::now();
    let pinged = client.ping().await;
    let round_trip = begun.elapsed();
    let mut oddities = client.found().oddities.clone();
    if let Err(error) = &pinged {
        oddities.push(format!("it does not answer `ping`: {error}"));
    }
    let round_trip = matches!(pinged, Ok(Some(()))).then_some(round_trip);
    let measured = Measured { round_trip, oddities };
    match plain.reach.json {
        true => output::line(&json(&target, &client, &measured).to_string()),
        false => people(&client, &measured),
    }
    client.close().await;
    Ok(ExitCode::SUCCESS)
}

/// What would be translated for clients of each revision, oldest first.
fn translated(server: Revision) -> impl Iterator<Item = (&'static str, Vec<&'static str>)> {
    FACTS.iter().map(move |client| (client.name, translation(client.revision, server)))
}

fn milliseconds(time: Duration) -> f64 {
    time.as_secs_f64() * 1000.0
}

fn json(target: &Target, client: &Client, measured: &Measured) -> Raw {
    let (found, server) = (client.found(), client.server());
    let one = |(client, words)| serde_json::json!({ "client": client, "translated": words });
    let translated: Vec<_> = translated(client.revision()).map(one).collect();
    let empty = Raw::empty();
    let mut shown = empty.edit();
    for (key, value) in [
        ("target", Raw::of(&target.to_string())),
        ("transport", Raw::of(found.transport)),
        ("revision", Raw::of(&client.revision().to_string())),
        ("offered", Raw::of(client.offered())),
        ("why", Raw::of(&found.why)),
        ("session", Raw::of(&client.session_id().is_some())),
        ("server", server.info.clone()),
        ("capabilities", server.capabilities.clone()),
        ("instructions", server.instructions.clone().unwrap_or(Raw::constant("null"))),
        ("connectMs", Raw::of(&milliseconds(found.took))),
        ("roundTripMs", Raw::of(&measured.round_trip.map(milliseconds))),
        ("oddities", Raw::of(&measured.oddities)),
        ("clients", Raw::of(&translated)),
    ] {
        shown = shown.set(key, value);
    }
    shown.finish()
}

fn people(client: &Client, measured: &Measured) {
    let (found, server) = (client.found(), client.server());
    let session = if client.session_id().is_some() { "kept, by Mcp-Session-Id" } else { "none" };
    let capabilities: Vec<String> =
        server.capabilities.entries().map(|(key, value)| format!("{key} {value}")).collect();
    let mut rows = vec![
        ("server", format!("{} {}", output::text(&server.info, "name"), output::text(&server.info, "version"))),
        ("transport", found.transport.to_owned()),
        ("revision", format!("{}, because {}", client.revision(), found.why)),
        ("offered", client.offered().join(", ")),
        ("session", session.to_owned()),
        ("capabilities", capabilities.join(", ")),
        ("connected in", format!("{:.1} ms", milliseconds(found.took))),
    ];
    rows.extend(measured.round_trip.map(|took| ("round trip", format!("{:.1} ms", milliseconds(took)))));
    rows.extend(measured.oddities.iter().map(|oddity| ("note", oddity.clone())));
    for (key, value) in rows {
        output::line(&format!("{key:<14}{}", output::plain(&value)));
    }
    let row = |(client, words): (&str, Vec<&str>)| {
        let words = if words.is_empty() { "nothing".to_owned() } else { words.join(", ") };
        vec![client.to_owned(), words]
    };
    let table =
        output::table(&["CLIENT", "TRANSLATED IF RIALTO STANDS IN FRONT"], translated(client.revision()).map(row));
    output::line(&format!("\n{table}"));
}
