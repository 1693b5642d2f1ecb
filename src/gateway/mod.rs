//! The heart: which group serves an address, and which upstream answers a call.

mod listen;

use std::collections::HashMap;
use std::sync::Arc;

use tokio::sync::broadcast;
use tokio_util::sync::CancellationToken;

use crate::dialect::headers::{self, Mirror};
use crate::dialect::lift::method_not_found;
use crate::dialect::lower::{self, CacheHint, Server};
use crate::exchange::{Answer, Call, Change, Replies};
use crate::protocol::method::{Family, Route};
use crate::protocol::{Method, Raw};
use crate::upstream::Upstream;

/// The name of the group that is served where an address names none.
pub const DEFAULT_GROUP: &str = "default";

/// All groups.
#[derive(Debug)]
pub struct Gateway {
    groups: HashMap<Box<str>, Arc<Group>>,
}

/// A named set of upstreams, served at one address.
#[derive(Debug)]
pub struct Group {
    name: Arc<str>,
    server: Server,
    upstream: Upstream,
    /// Which capabilities the group has, by their place in [`Family::ALL`].
    families: [bool; Family::ALL.len()],
    mirrors: HashMap<String, Vec<Mirror>>,
    changes: broadcast::Sender<Change>,
    closing: CancellationToken,
}

/// What a client may keep of what we say of ourselves.
const DISCOVERY_HINT: CacheHint = CacheHint { ttl: 60_000, public: true };
/// How many changes may wait for those who listen; who falls behind is told that all changed.
const CHANGES_WAITING: usize = 256;

// === impl Gateway ===

impl Gateway {
    /// A gateway with one group, the default one, of one upstream.
    pub fn new(upstream: Upstream, closing: CancellationToken) -> Self {
        let group = Arc::new(Group::new(DEFAULT_GROUP, upstream, closing));
        let groups = HashMap::from([(DEFAULT_GROUP.into(), group)]);
        Self { groups }
    }

    /// The group of that name; the default one when there is no name.
    pub fn group(&self, name: Option<&str>) -> Option<&Arc<Group>> {
        self.groups.get(name.unwrap_or(DEFAULT_GROUP))
    }

    /// Every group.
    pub fn groups(&self) -> impl Iterator<Item = &Arc<Group>> {
        self.groups.values()
    }
}

// === impl Group ===

impl Group {
    fn new(name: &str, upstream: Upstream, closing: CancellationToken) -> Self {
        let server = changeable(upstream.server());
        Self {
            name: name.into(),
            families: Family::ALL.map(|family| server.capabilities.get(family.as_str()).is_some()),
            server,
            mirrors: upstream.tools().as_ref().map(headers::mirrors_of_tools).unwrap_or_default(),
            upstream,
            changes: broadcast::Sender::new(CHANGES_WAITING),
            closing,
        }
    }

    /// The group's name.
    pub fn name(&self) -> &Arc<str> {
        &self.name
    }

    /// What the group says of itself.
    pub fn server(&self) -> &Server {
        &self.server
    }

    /// What changes in the group, as it changes.
    pub fn changes(&self) -> broadcast::Receiver<Change> {
        self.changes.subscribe()
    }

    /// Tells everybody who listens of a change.
    pub fn publish(&self, change: Change) {
        // Nobody may be listening; that is no fault.
        let _ = self.changes.send(change);
    }

    /// Passes on what changes at the upstream, for as long as it lives.
    pub async fn run(self: Arc<Self>) {
        let mut changes = self.upstream.changes();
        let follow = async {
            loop {
                match changes.recv().await {
                    Ok(change) => self.publish(change),
                    Err(broadcast::error::RecvError::Lagged(_)) => {
                        for change in [Change::Tools, Change::Prompts, Change::Resources] {
                            self.publish(change);
                        }
                    }
                    Err(broadcast::error::RecvError::Closed) => return,
                }
            }
        };
        tokio::join!(follow, self.upstream.clone().run());
    }

    /// Whether the group has a capability.
    pub fn offers(&self, family: Family) -> bool {
        self.families[family as usize]
    }

    /// Whether the group tells of changes to single resources.
    pub fn offers_updates(&self) -> bool {
        let subscribe = self.server.capabilities.at(&["resources", "subscribe"]);
        subscribe.is_some_and(|raw| raw.as_bytes() == b"true")
    }

    /// The arguments of a tool that headers mirror.
    pub fn mirrors(&self, tool: &str) -> &[Mirror] {
        self.mirrors.get(tool).map_or(&[], Vec::as_slice)
    }

    /// Answers a call, or passes it on to the upstream that can.
    pub fn handle(&self, call: &Call) -> Replies {
        if call.method.family().is_some_and(|family| !self.offers(family)) {
            return method_not_found(&call.method).into();
        }
        match call.method.route() {
            Route::Here => match call.method {
                Method::Ping => Answer::result(Raw::empty()).into(),
                Method::Discover => Answer::result(lower::discovery(&self.server, DISCOVERY_HINT)).into(),
                Method::Listen => self.listen(call),
                _ => method_not_found(&call.method).into(),
            },
            Route::List | Route::ByName | Route::ByUri | Route::ByReference | Route::Unknown => {
                self.upstream.call(call)
            }
        }
    }
}

/// A server as a group presents it: whatever the upstream says, the group's lists may change.
fn changeable(server: &Server) -> Server {
    let mut capabilities = server.capabilities.clone();
    for family in [Family::Tools, Family::Prompts, Family::Resources] {
        if let Some(offered) = capabilities.get(family.as_str()) {
            let offered = offered.edit().set("listChanged", Raw::constant("true")).finish();
            capabilities = capabilities.edit().set(family.as_str(), offered).finish();
        }
    }
    Server { capabilities, ..server.clone() }
}
