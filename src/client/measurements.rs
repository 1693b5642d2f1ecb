//! What is found out about a server by probing it, and what Rialto would translate for clients of each revision.

use std::time::{Duration, Instant};

use super::Client;
use crate::dialect::{LegFacts, Revision, describe_translation};
use crate::mcp_client::Target;
use crate::protocol::Raw;

/// Measurements in addition to the probe report.
#[derive(Debug)]
pub struct ProbeMeasurements {
    /// The leg that was found first, and the handshake leg of a server that speaks both eras.
    legs: Vec<LegFacts>,
    /// Round-trip time of a ping, where the revision has `ping`.
    pub round_trip: Option<Duration>,
    /// What is unusual.
    pub oddities: Vec<String>,
}

impl ProbeMeasurements {
    /// Measures a server that a client is connected to. `other` is connected to its other leg, if it has one.
    pub async fn take(client: &Client, other: Option<Client>) -> Self {
        let started = Instant::now();
        let ping = client.ping().await;
        let round_trip = started.elapsed();
        let mut oddities = client.probe_report().oddities.clone();
        if let Err(error) = &ping {
            oddities.push(format!("`ping` failed: {error}"));
        }
        let round_trip = matches!(ping, Ok(Some(()))).then_some(round_trip);
        let mut legs = vec![client.leg_facts()];
        if let Some(other) = other {
            legs.push(other.leg_facts());
            other.close().await;
        }
        Self { legs, round_trip, oddities }
    }

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
    pub fn translations(&self) -> impl Iterator<Item = (&'static str, Vec<&'static str>)> {
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
    pub fn leg_lines(&self) -> impl Iterator<Item = String> {
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

    /// The report as `rialto probe --json` prints it.
    pub fn report_json(&self, target: &Target, client: &Client) -> Raw {
        let (report, server) = (client.probe_report(), client.server());
        let one = |(client, words)| serde_json::json!({ "client": client, "translated": words });
        let translated: Vec<_> = self.translations().map(one).collect();
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
            ("legs", Raw::of(&self.legs_json())),
            ("instructions", server.instructions.clone().unwrap_or(Raw::constant("null"))),
            ("connectMs", Raw::of(&milliseconds(report.elapsed))),
            ("roundTripMs", Raw::of(&self.round_trip.map(milliseconds))),
            ("oddities", Raw::of(&self.oddities)),
            ("clients", Raw::of(&translated)),
        ] {
            json = json.set(key, value);
        }
        json.finish()
    }
}

/// A duration in milliseconds, for people.
pub fn milliseconds(time: Duration) -> f64 {
    time.as_secs_f64() * 1000.0
}
