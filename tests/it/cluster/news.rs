//! What belongs to no call: a resource and a list of tools that change, with a number each time, and the books
//! of who has heard of what.
//!
//! A server that loses a stream may lose what it said there, so a change need not be told by itself. What holds
//! is that nobody misses the last one: after it, everybody who listens is told that there was one.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde_json::{Value, json};

use super::driver::{Dice, RESOURCE};
use super::real::eventually;
use crate::puppet::{Puppet, tool};

/// What changes, and who has heard of it.
pub struct News {
    web: Arc<Puppet>,
    resource: AtomicU64,
    tools: AtomicU64,
    listeners: Mutex<BTreeMap<String, Heard>>,
    /// Nothing changes while this holds.
    quiet: AtomicBool,
    /// The server speaks to nobody who is gone, so no change is lost.
    complete: bool,
}

/// What one listener has heard.
#[derive(Debug)]
struct Heard {
    /// The newest change of the resource that it knows, if it wants to.
    resource: Option<u64>,
    /// The newest tools that it has listed.
    tools: u64,
    /// Where it began, the last number that came, how many were left out at how many places, and how often it was told without one.
    from: u64,
    last: u64,
    missed: u64,
    gaps: u64,
    made_up: u64,
}

/// How often something changes.
const CHANGES: Duration = Duration::from_millis(40);
/// What the tool is called that says how often tools have changed.
const TOOL: &str = "news-";

// === impl News ===

impl News {
    /// No change is left out if nobody goes, and `complete` says that.
    pub fn of(web: &Arc<Puppet>, complete: bool) -> Arc<Self> {
        Arc::new(Self {
            web: Arc::clone(web),
            resource: AtomicU64::new(0),
            tools: AtomicU64::new(0),
            listeners: Mutex::default(),
            quiet: AtomicBool::new(false),
            complete,
        })
    }

    /// Changes something again and again, and waits every now and then until everybody knows.
    pub async fn publish(self: Arc<Self>, mut dice: Dice) {
        loop {
            for _ in 0..=dice.below(25) {
                tokio::time::sleep(CHANGES).await;
                if self.quiet.load(Ordering::SeqCst) {
                    continue;
                }
                match dice.below(8) {
                    0 => self.change_tools(),
                    _ => self.change_resource(),
                }
            }
            while !self.behind().is_empty() {
                tokio::time::sleep(CHANGES).await;
            }
        }
    }

    pub fn change_resource(&self) {
        let number = self.resource.fetch_add(1, Ordering::SeqCst) + 1;
        self.web.notify("notifications/resources/updated", &json!({ "uri": RESOURCE, "_meta": { "number": number } }));
    }

    pub fn change_tools(&self) {
        let number = self.tools.fetch_add(1, Ordering::SeqCst) + 1;
        self.web.change("notifications/tools/list_changed", |offers| {
            offers.tools.retain(|tool| !tool["name"].as_str().unwrap().starts_with(TOOL));
            offers.tools.push(tool(&format!("{TOOL}{number}")));
        });
    }

    /// Changes nothing more; everybody has heard of the last change, or hears of it.
    pub async fn end(&self) {
        self.quiet.store(true, Ordering::SeqCst);
        self.known("what changed while something went wrong").await;
        self.change_resource();
        self.change_tools();
        self.known("the last change").await;
        for (who, heard) in &*self.listeners.lock().unwrap() {
            println!("{who} heard {heard:?}");
            assert!(heard.gaps == 0 || heard.made_up > 0 || !has_session(who), "{who} is not told of a gap: {heard:?}");
        }
    }

    /// Waits until everybody knows of the last changes.
    pub async fn known(&self, what: &str) {
        eventually(&format!("everybody has heard of {what}"), async || match self.behind() {
            behind if behind.is_empty() => Ok(()),
            behind => Err(format!("{behind:?}")),
        })
        .await;
    }

    /// How often the tools have changed.
    pub fn tools(&self) -> u64 {
        self.tools.load(Ordering::SeqCst)
    }

    /// Who does not know of the last changes.
    pub fn behind(&self) -> Vec<String> {
        let (resource, tools) = (self.resource.load(Ordering::SeqCst), self.tools.load(Ordering::SeqCst));
        let listeners = self.listeners.lock().unwrap();
        let level = |heard: &Heard| heard.resource.is_none_or(|heard| heard >= resource) && heard.tools >= tools;
        let behind = listeners.iter().filter(|(_, heard)| !level(heard));
        behind.map(|(who, heard)| format!("{who}: {heard:?} of {resource}, {tools}")).collect()
    }

    /// How many listen.
    pub fn listeners(&self) -> usize {
        self.listeners.lock().unwrap().len()
    }

    /// Somebody begins to listen, and has looked at everything.
    pub fn listens(&self, who: &str, resource: bool, tools: u64) {
        let from = self.resource.load(Ordering::SeqCst);
        let heard = Heard { resource: resource.then_some(from), tools, from, last: 0, missed: 0, gaps: 0, made_up: 0 };
        self.listeners.lock().unwrap().insert(who.into(), heard);
    }

    /// Somebody listens no more.
    pub fn leaves(&self, who: &str) {
        self.listeners.lock().unwrap().remove(who);
    }

    /// Somebody was told that the resource has changed. Without a number nobody knows how often, and who looks
    /// now sees everything until now.
    pub fn updated(&self, who: &str, number: Option<u64>) {
        let now = self.resource.load(Ordering::SeqCst);
        let mut listeners = self.listeners.lock().unwrap();
        let Some(heard) = listeners.get_mut(who) else { return };
        let Some(number) = number else {
            // Who has no session hears of every change without its number.
            assert!(!self.complete || !has_session(who), "{who} is told once more after {}", heard.last);
            heard.made_up += 1;
            heard.resource = Some(now);
            return;
        };
        assert!(number > heard.last, "{who}: {number} comes after {}", heard.last);
        let missed = number.saturating_sub(heard.last.max(heard.from) + 1);
        heard.missed += missed;
        heard.gaps += u64::from(missed > 0);
        assert!(!self.complete || heard.missed == 0, "{who}: {number} comes after {}", heard.last);
        heard.last = number;
        heard.resource = heard.resource.max(Some(number));
    }

    /// Somebody has looked at the tools, because there were said to be others.
    pub fn listed(&self, who: &str, tools: u64) {
        if let Some(heard) = self.listeners.lock().unwrap().get_mut(who) {
            heard.tools = tools;
        }
    }
}

/// Whether this is a session, by its id.
fn has_session(who: &str) -> bool {
    who.starts_with("http:")
}

/// Which tools these are.
pub fn number_of<'t>(names: impl IntoIterator<Item = &'t str>) -> u64 {
    let numbers: Vec<u64> = names.into_iter().filter_map(|name| name.strip_prefix(TOOL)?.parse().ok()).collect();
    assert!(numbers.len() <= 1, "tools of two lists: {numbers:?}");
    numbers.first().copied().unwrap_or(0)
}

/// The same, of the result of a request.
pub fn number_in(result: &Value) -> u64 {
    number_of(result["tools"].as_array().unwrap().iter().map(|tool| tool["name"].as_str().unwrap()))
}
