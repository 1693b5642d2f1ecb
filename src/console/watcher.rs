//! Watches the gateway for the event stream: what nobody asks for is not computed.

use std::collections::BTreeMap;
use std::sync::Weak;
use std::time::{Duration, SystemTime};

use serde_json::{Value, json};

use super::config_file::reload_json;
use super::figures::{self, STEP};
use super::{Console, Topic, attention, nodes, servers, sessions};
use crate::inbound::Inbound;
use crate::recording::BodyAccess;

/// What was published last, by topic and id.
#[derive(Debug, Default)]
struct Published {
    rows: BTreeMap<&'static str, BTreeMap<String, Value>>,
    attention: Value,
    last_reload: Option<SystemTime>,
}

/// How often changes are looked for.
const INTERVAL: Duration = Duration::from_secs(1);
/// How often it is looked which nodes hold their leases though nobody watches, in intervals.
const NODES_TICKS: u64 = 5;
/// Over which time the figures of the stream are.
const FIGURES_RANGE: Duration = Duration::from_secs(60);
/// Members that change all the time and are no news.
const VOLATILE: [&str; 8] = ["figures", "idle_us", "expires", "asked", "until", "relayed", "relays", "calls_in_flight"];

/// Runs until the gateway ends.
pub(super) async fn run(console: Weak<Console>) {
    let mut published = Published::default();
    let mut ticks = 0_u64;
    let mut interval = tokio::time::interval(INTERVAL);
    interval.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        interval.tick().await;
        let Some(console) = console.upgrade() else { return };
        let Ok(inbound) = console.inbound() else { return };
        if console.closing.is_cancelled() {
            return;
        }
        if ticks.is_multiple_of(STEP.as_secs()) {
            console.figures.read(&inbound);
        }
        ticks += 1;
        if let Some(cluster) = &inbound.cluster
            && (console.live().is_watched(Topic::Node) || ticks.is_multiple_of(NODES_TICKS))
        {
            let members = console.refresh_nodes(cluster).await;
            if console.live().is_watched(Topic::Node) {
                published.rows(&console, Topic::Node, "name", nodes::rows(&console, &inbound, &members));
            }
        }
        published.look(&console, &inbound);
    }
}

impl Published {
    fn look(&mut self, console: &Console, inbound: &Inbound) {
        let live = console.live();
        if live.is_watched(Topic::Figures) {
            let samples = console.figures.since(FIGURES_RANGE, inbound);
            live.publish(Topic::Figures, &figures::gateway_figures(&samples, inbound));
        }
        if live.is_watched(Topic::Server) {
            let samples = console.figures.since(FIGURES_RANGE, inbound);
            self.rows(console, Topic::Server, "name", servers::rows(inbound, &samples));
        }
        if live.is_watched(Topic::Session) {
            self.rows(console, Topic::Session, "id", sessions::rows(console, inbound));
        }
        if live.is_watched(Topic::Question) {
            let bodies = if inbound.calls.shows_bodies() { BodyAccess::Shown } else { BodyAccess::Shapes };
            self.rows(console, Topic::Question, "id", sessions::question_rows(console, inbound, bodies));
        }
        if live.is_watched(Topic::Attention) {
            let samples = console.figures.since(FIGURES_RANGE, inbound);
            let items = json!({ "items": attention::items(console, inbound, &samples) });
            if items != self.attention {
                live.publish(Topic::Attention, &items);
                self.attention = items;
            }
        }
        if let Some(last) = inbound.admin.reloads().first()
            && self.last_reload != Some(last.at)
        {
            live.publish(Topic::Reload, &reload_json(last));
            self.last_reload = Some(last.at);
        }
    }

    /// Publishes the rows that are new or changed, and those that are gone.
    fn rows(&mut self, console: &Console, topic: Topic, key: &str, rows: Vec<Value>) {
        let before = self.rows.entry(topic.as_str()).or_default();
        let mut now = BTreeMap::new();
        for row in rows {
            let id = row[key].as_str().unwrap_or_default().to_owned();
            let mut steady = row.clone();
            if let Some(members) = steady.as_object_mut() {
                members.retain(|name, _| !VOLATILE.contains(&name.as_str()));
            }
            if before.get(&id) != Some(&steady) {
                match row["text"].is_string() {
                    true => {
                        let mut public = row.clone();
                        public["text"] = Value::Null;
                        console.live().publish_private(topic, &public, &row);
                    }
                    false => console.live().publish(topic, &row),
                }
            }
            now.insert(id, steady);
        }
        for id in before.keys().filter(|id| !now.contains_key(*id)) {
            console.live().publish(Topic::Gone, &json!({ "topic": topic.as_str(), "id": id }));
        }
        *before = now;
    }
}
