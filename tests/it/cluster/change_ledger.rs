//! Notifications outside of calls: publishes numbered changes of a resource and of the tools list, and records which
//! listener was notified of which.
//!
//! A broken upstream stream may lose a notification, so not every change has to arrive. The guarantee is that the last
//! one does: after it, every listener is notified that there was a change.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde_json::{Value, json};

use super::load_driver::{RESOURCE, SeededRng};
use super::processes::eventually;
use crate::scripted_server::{ScriptedServer, tool};

/// Publisher of changes, and the state of every listener.
pub struct ChangeLedger {
    http_server: Arc<ScriptedServer>,
    resource: AtomicU64,
    tools: AtomicU64,
    listeners: Mutex<BTreeMap<String, ListenerState>>,
    /// While set, no changes are published.
    is_paused: AtomicBool,
    /// No node fails in this run, so every single change must arrive.
    complete: bool,
}

/// Notifications received by one listener.
#[derive(Debug)]
struct ListenerState {
    /// Newest known change of the resource; `None` without a subscription.
    resource: Option<u64>,
    /// Version of the tools it listed last.
    tools: u64,
    /// Change number at the subscription, the last one received, missed changes, gaps they form, and updates without a
    /// number, which the gateway synthesizes after a gap.
    from: u64,
    last: u64,
    missed: u64,
    gaps: u64,
    synthetic_updates: u64,
}

/// Interval between changes.
const CHANGE_INTERVAL: Duration = Duration::from_millis(40);
/// Prefix of the tool whose name carries the version of the tools list.
const VERSIONED_TOOL_PREFIX: &str = "version-";

// === impl ChangeLedger ===

impl ChangeLedger {
    /// With `complete`, a missed change is a failure.
    pub fn of(http_server: &Arc<ScriptedServer>, complete: bool) -> Arc<Self> {
        Arc::new(Self {
            http_server: Arc::clone(http_server),
            resource: AtomicU64::new(0),
            tools: AtomicU64::new(0),
            listeners: Mutex::default(),
            is_paused: AtomicBool::new(false),
            complete,
        })
    }

    /// Publishes changes in bursts and waits between bursts until all listeners are up to date.
    pub async fn publish(self: Arc<Self>, mut rng: SeededRng) {
        loop {
            for _ in 0..=rng.below(25) {
                tokio::time::sleep(CHANGE_INTERVAL).await;
                if self.is_paused.load(Ordering::SeqCst) {
                    continue;
                }
                match rng.below(8) {
                    0 => self.change_tools(),
                    _ => self.change_resource(),
                }
            }
            while !self.outdated_listeners().is_empty() {
                tokio::time::sleep(CHANGE_INTERVAL).await;
            }
        }
    }

    pub fn change_resource(&self) {
        let number = self.resource.fetch_add(1, Ordering::SeqCst) + 1;
        self.http_server
            .notify("notifications/resources/updated", &json!({ "uri": RESOURCE, "_meta": { "number": number } }));
    }

    pub fn change_tools(&self) {
        let number = self.tools.fetch_add(1, Ordering::SeqCst) + 1;
        self.http_server.change("notifications/tools/list_changed", |catalog| {
            catalog.tools.retain(|tool| !tool["name"].as_str().unwrap().starts_with(VERSIONED_TOOL_PREFIX));
            catalog.tools.push(tool(&format!("{VERSIONED_TOOL_PREFIX}{number}")));
        });
    }

    /// Stops publishing and waits until all listeners know the last change; a listener with a gap must have been given
    /// a synthetic update.
    pub async fn end(&self) {
        self.is_paused.store(true, Ordering::SeqCst);
        self.wait_all_notified("the changes during the fault").await;
        self.change_resource();
        self.change_tools();
        self.wait_all_notified("the last change").await;
        for (who, state) in &*self.listeners.lock().unwrap() {
            println!("{who} heard {state:?}");
            assert!(
                state.gaps == 0 || state.synthetic_updates > 0 || !has_session(who),
                "{who} is not told of a gap: {state:?}"
            );
        }
    }

    /// Waits until all listeners know the last changes.
    pub async fn wait_all_notified(&self, what: &str) {
        eventually(&format!("all listeners are notified of {what}"), async || match self.outdated_listeners() {
            behind if behind.is_empty() => Ok(()),
            behind => Err(format!("{behind:?}")),
        })
        .await;
    }

    /// Current version of the tools list.
    pub fn tools(&self) -> u64 {
        self.tools.load(Ordering::SeqCst)
    }

    /// Listeners that do not know the last changes yet.
    pub fn outdated_listeners(&self) -> Vec<String> {
        let (resource, tools) = (self.resource.load(Ordering::SeqCst), self.tools.load(Ordering::SeqCst));
        let listeners = self.listeners.lock().unwrap();
        let level =
            |state: &ListenerState| state.resource.is_none_or(|state| state >= resource) && state.tools >= tools;
        let behind = listeners.iter().filter(|(_, state)| !level(state));
        behind.map(|(who, state)| format!("{who}: {state:?} of {resource}, {tools}")).collect()
    }

    /// Number of listeners.
    pub fn listeners(&self) -> usize {
        self.listeners.lock().unwrap().len()
    }

    /// Registers a listener that has read the current state.
    pub fn add_listener(&self, who: &str, resource: bool, tools: u64) {
        let from = self.resource.load(Ordering::SeqCst);
        let state = ListenerState {
            resource: resource.then_some(from),
            tools,
            from,
            last: 0,
            missed: 0,
            gaps: 0,
            synthetic_updates: 0,
        };
        self.listeners.lock().unwrap().insert(who.into(), state);
    }

    /// Removes a listener.
    pub fn remove_listener(&self, who: &str) {
        self.listeners.lock().unwrap().remove(who);
    }

    /// Records a `resources/updated` notification. One without a number covers every change up to now.
    pub fn record_update(&self, who: &str, number: Option<u64>) {
        let now = self.resource.load(Ordering::SeqCst);
        let mut listeners = self.listeners.lock().unwrap();
        let Some(state) = listeners.get_mut(who) else { return };
        let Some(number) = number else {
            // Per-request listeners get every update without its `_meta`.
            assert!(!self.complete || !has_session(who), "{who} is told once more after {}", state.last);
            state.synthetic_updates += 1;
            state.resource = Some(now);
            return;
        };
        assert!(number > state.last, "{who}: {number} comes after {}", state.last);
        let missed = number.saturating_sub(state.last.max(state.from) + 1);
        state.missed += missed;
        state.gaps += u64::from(missed > 0);
        assert!(!self.complete || state.missed == 0, "{who}: {number} comes after {}", state.last);
        state.last = number;
        state.resource = state.resource.max(Some(number));
    }

    /// Records a tools list that was read after a list-changed notification.
    pub fn record_list(&self, who: &str, tools: u64) {
        if let Some(state) = self.listeners.lock().unwrap().get_mut(who) {
            state.tools = tools;
        }
    }
}

/// Whether a listener is a Streamable HTTP session.
fn has_session(who: &str) -> bool {
    who.starts_with("http:")
}

/// Version of a tools list, from the name of its versioned tool.
pub fn tools_version<'t>(names: impl IntoIterator<Item = &'t str>) -> u64 {
    let numbers: Vec<u64> =
        names.into_iter().filter_map(|name| name.strip_prefix(VERSIONED_TOOL_PREFIX)?.parse().ok()).collect();
    assert!(numbers.len() <= 1, "tools of two lists: {numbers:?}");
    numbers.first().copied().unwrap_or(0)
}

/// Version of the tools list in a `tools/list` result.
pub fn tools_version_in(result: &Value) -> u64 {
    tools_version(result["tools"].as_array().unwrap().iter().map(|tool| tool["name"].as_str().unwrap()))
}
