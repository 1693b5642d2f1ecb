//! The view of a group at one moment: names, merged lists, capabilities. Immutable; rebuilt on a change and
//! shared by all calls until the next one.

use std::collections::HashMap;
use std::collections::hash_map::DefaultHasher;
use std::hash::Hasher;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use serde_json::json;

use super::group_config::GroupConfig;
use super::list_pages::ListPages;
use super::name_mapping::NameMapping;
use super::names::{self, Collision, NameTable};
use super::permissions::{PermissionCache, Permissions};
use crate::call::ListFingerprints;
use crate::dialect::headers::HeaderMirror;
use crate::dialect::to_client::ServerInfo;
use crate::dialect::{Revision, tasks, to_upstream};
use crate::identity::Identity;
use crate::metrics::CallMetrics;
use crate::protocol::Raw;
use crate::protocol::method::Capability;
use crate::upstream::{CatalogState, HealthPhase, Leg, LegChoice, List, Upstream};

/// The view of a group at one moment.
#[derive(Debug)]
pub struct View {
    /// Unique number of this view.
    pub epoch: u64,
    /// The configuration of the group.
    pub config: Arc<GroupConfig>,
    /// The upstreams, in configured order.
    pub members: Vec<GroupMember>,
    /// The group's identity, capabilities and instructions.
    pub server: ServerInfo,
    /// Whether the group has each capability, indexed as [`Capability::ALL`].
    capabilities: [bool; Capability::ALL.len()],
    names: [NameTable; List::ALL.len()],
    pub(super) lists: [MergedList; List::ALL.len()],
    /// What each class of callers may do, where there are rules.
    permissions: PermissionCache,
    header_mirrors: HashMap<Box<str>, Vec<HeaderMirror>>,
    /// Index of the member that lists a resource, by the upstream's own URI.
    own_uris: HashMap<Box<str>, usize>,
    /// The upstream's own URI templates with the index of their member.
    own_templates: Vec<(Box<str>, usize)>,
    /// Descriptions of name collisions, for the log.
    pub collisions: Vec<String>,
}

/// An upstream in a group with a snapshot of its catalog.
#[derive(Debug, Clone)]
pub struct GroupMember {
    /// The upstream.
    pub upstream: Arc<Upstream>,
    /// The leg of the upstream that serves the clients of this view.
    pub leg: Arc<Leg>,
    /// Whether the leg and its lists are known, or the upstream failed to give them.
    pub is_settled: bool,
    /// The catalog when the view was built.
    pub state: Arc<CatalogState>,
    /// The name mapping of the upstream in this group.
    pub name_mapping: NameMapping,
    /// Whether the group has no other upstream.
    pub(super) is_only: bool,
    /// Metrics of the calls from this group to the upstream.
    pub(super) metrics: Arc<CallMetrics>,
}

/// One list merged from all members.
#[derive(Debug, Default)]
pub(super) struct MergedList {
    /// Index of the member, index in its list, and exposed name of each item.
    pub(super) entries: Vec<(usize, usize, Box<str>)>,
    /// Fingerprint of this list, including the change announcements of upstreams.
    fingerprint: u64,
    /// Fingerprint of the content alone, comparable between nodes.
    content_fingerprint: u64,
    /// The pages for each revision, rendered on first use.
    pub(super) pages: ListPages,
}

/// What a name or URI of a call stands for.
#[derive(Debug, Clone, Copy)]
pub(super) struct ResolvedName<'v> {
    /// Index of the member.
    pub(super) member: usize,
    /// The member's own name or URI.
    pub(super) own: &'v str,
    /// The list that has it, and its position there; `None` if no list has it.
    pub(super) listed: Option<(List, usize)>,
}

/// Maximum length of the merged instructions, in bytes.
const MAX_INSTRUCTIONS_BYTES: usize = 16 << 10;

static NEXT_EPOCH: AtomicU64 = AtomicU64::new(1);

impl GroupMember {
    /// Takes a snapshot of the catalog that an upstream has for clients of that revision.
    pub fn new(upstream: Arc<Upstream>, client: Revision, config: &GroupConfig) -> Self {
        let prefix = config.uses_prefixes().then(|| Arc::clone(upstream.name()));
        let LegChoice { leg, is_settled } = upstream.leg_for(client);
        Self {
            state: leg.state(),
            leg,
            is_settled,
            upstream,
            name_mapping: NameMapping { prefix },
            is_only: config.servers.len() == 1,
            metrics: Arc::default(),
        }
    }

    /// Whether both are of the same leg, equally settled.
    pub(super) fn has_same_leg(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.leg, &other.leg) && self.is_settled == other.is_settled
    }

    /// Whether messages between this upstream and a client of that revision are translated across eras.
    pub(super) fn is_bridged_to(&self, client: Revision) -> bool {
        self.state.revision.is_some_and(|revision| revision.is_bridged_to(client))
    }

    /// Whether the upstream is down, or its list is missing or stale.
    pub(super) fn is_unavailable_for(&self, list: List) -> bool {
        let unknown = self.state.has_capability(list.capability()) == Some(true) && self.state.list(list).is_none();
        let troubled = unknown || self.state.list_errors.contains_key(list.result_key());
        troubled || matches!(self.state.health.phase, HealthPhase::Starting | HealthPhase::Down)
    }
}

impl View {
    /// Builds the view of these members.
    pub fn new(config: Arc<GroupConfig>, members: Vec<GroupMember>) -> Self {
        let mut view = Self {
            epoch: NEXT_EPOCH.fetch_add(1, Ordering::Relaxed),
            server: group_server_info(&config, &members),
            capabilities: [false; Capability::ALL.len()],
            names: Default::default(),
            lists: Default::default(),
            permissions: PermissionCache::default(),
            header_mirrors: HashMap::new(),
            own_uris: HashMap::new(),
            own_templates: Vec::new(),
            collisions: Vec::new(),
            config,
            members,
        };
        view.capabilities = Capability::ALL.map(|family| {
            let offers = |member: &GroupMember| member.state.has_capability(family) == Some(true);
            view.server.capabilities.get(family.as_str()).is_some() || view.members.iter().any(offers)
        });
        for list in List::ALL {
            view.merge(list);
        }
        view
    }

    fn merge(&mut self, list: List) {
        let mut names = NameTable::default();
        let mut merged = MergedList::default();
        let mut fingerprint = DefaultHasher::new();
        let mut content = DefaultHasher::new();
        for (n, member) in self.members.iter().enumerate() {
            let Some(listed) = member.state.list(list) else { continue };
            // An announced change counts even if the content is equal.
            fingerprint.write_u64(member.state.list_change_counts[list as usize]);
            for (m, item) in listed.items.iter().enumerate() {
                let own = item.get(list.item_key());
                let Some(own) = own.as_ref().and_then(Raw::text) else { continue };
                let exposed: Box<str> = match (list, &member.name_mapping.prefix) {
                    (List::Tools | List::Prompts, Some(prefix)) => names.unique_name(prefix, &own),
                    (List::Tools | List::Prompts, None) => own.as_ref().into(),
                    (List::Resources | List::Templates, _) => member.name_mapping.expose_uri(&own).into(),
                };
                if !self.is_item_allowed(list, member, &own, &exposed) {
                    continue;
                }
                if let Err(collision) = names.insert(&exposed, n, &own) {
                    self.collisions.push(describe_collision(&collision, list, &self.members));
                    continue;
                }
                for fingerprint in [&mut fingerprint, &mut content] {
                    fingerprint.write(exposed.as_bytes());
                    fingerprint.write_u64(listed.item_hashes[m]);
                }
                match list {
                    List::Tools => {
                        if let Some(mirrors) = listed.header_mirrors.get(own.as_ref()) {
                            self.header_mirrors.insert(exposed.clone(), mirrors.clone());
                        }
                    }
                    List::Prompts => {}
                    List::Resources => {
                        self.own_uris.entry(own.as_ref().into()).or_insert(n);
                    }
                    List::Templates => self.own_templates.push((own.as_ref().into(), n)),
                }
                merged.entries.push((n, m, exposed));
            }
        }
        (merged.fingerprint, merged.content_fingerprint) = (fingerprint.finish(), content.finish());
        self.names[list as usize] = names;
        self.lists[list as usize] = merged;
    }

    /// Whether the filter lets an item pass, by all of its names.
    fn is_item_allowed(&self, list: List, member: &GroupMember, own: &str, exposed: &str) -> bool {
        let filter = self.config.filter(list);
        match (list, &member.name_mapping.prefix) {
            _ if filter.allows_all() => true,
            (List::Tools | List::Prompts, Some(prefix)) => {
                filter.allows_item(&[exposed, own, &names::prefixed_name(prefix, own)])
            }
            _ => filter.allows_item(&[exposed, own]),
        }
    }

    /// The self-description for a client of that revision.
    pub fn server_for(&self, client: Revision) -> ServerInfo {
        // With several upstreams, only capabilities of the newest era are merged beyond the common ones.
        let revision = match self.single_member() {
            Some(only) => only.state.revision.unwrap_or(client),
            None => Revision::NEWEST,
        };
        let mut capabilities = to_upstream::server_capabilities(&self.server.capabilities, revision, client);
        if self.bridges_tasks_to(client) {
            capabilities = tasks::with_tasks_offered(&capabilities, client);
        }
        ServerInfo { capabilities, ..self.server.clone() }
    }

    /// Whether tasks of some upstream reach clients of that revision, which is of the other era.
    pub(super) fn bridges_tasks_to(&self, client: Revision) -> bool {
        self.members.iter().any(|member| member.bridges_tasks_to(client))
    }

    /// Whether the group has a capability.
    pub fn has_capability(&self, family: Capability) -> bool {
        self.capabilities[family as usize]
    }

    /// Whether the group supports resource subscriptions.
    pub fn has_subscriptions(&self) -> bool {
        let subscribe = self.server.capabilities.at(&["resources", "subscribe"]);
        subscribe.is_some_and(|raw| raw.as_bytes() == b"true")
    }

    /// Whether the group declares `listChanged` for a capability.
    pub fn has_list_changes(&self, family: Capability) -> bool {
        let path = [family.as_str(), "listChanged"];
        self.server.capabilities.at(&path).is_some_and(|raw| raw.as_bytes() == b"true")
    }

    /// Whether every upstream connected or failed to.
    pub fn all_settled(&self) -> bool {
        self.members.iter().all(|member| member.is_settled)
    }

    /// The lists whose fingerprints differ from those of another view.
    pub fn changed_lists(&self, other: &Self) -> Vec<List> {
        let differs = |list: &List| self.list_fingerprint(*list) != other.list_fingerprint(*list);
        List::ALL.into_iter().filter(differs).collect()
    }

    /// Whether both views have the same rules.
    pub(super) fn has_same_rules(&self, other: &Self) -> bool {
        match (&self.config.rules, &other.config.rules) {
            (Some(one), Some(other)) => Arc::ptr_eq(one, other),
            (one, other) => one.is_none() && other.is_none(),
        }
    }

    /// The number of items on a list.
    pub fn count(&self, list: List) -> usize {
        self.lists[list as usize].entries.len()
    }

    /// Whether any tool has arguments mirrored in headers.
    pub fn has_header_mirrors(&self) -> bool {
        !self.header_mirrors.is_empty()
    }

    /// The arguments of a tool that are mirrored in headers.
    pub fn header_mirrors(&self, tool: &str) -> &[HeaderMirror] {
        self.header_mirrors.get(tool).map_or(&[], Vec::as_slice)
    }

    /// The member of a group with one upstream.
    pub fn single_member(&self) -> Option<&GroupMember> {
        match self.members.as_slice() {
            [only] => Some(only),
            _ => None,
        }
    }

    /// The member that has a tool or prompt, and its own name for it.
    pub fn find_by_name<'n>(&'n self, list: List, name: &'n str) -> Option<(&'n GroupMember, &'n str)> {
        self.resolve_name(list, name).map(|found| (&self.members[found.member], found.own))
    }

    /// The member that has a resource, and its own URI. The URI need not be listed: upstreams may serve
    /// unlisted resources.
    pub fn find_by_uri<'u>(&'u self, uri: &'u str) -> Option<(&'u GroupMember, &'u str)> {
        self.resolve_uri(uri).map(|found| (&self.members[found.member], found.own))
    }

    /// What the name of a tool or prompt stands for.
    pub(super) fn resolve_name<'n>(&'n self, list: List, name: &'n str) -> Option<ResolvedName<'n>> {
        if let Some(entry) = self.names[list as usize].resolve(name) {
            let listed = Some((list, entry.position));
            return Some(ResolvedName { member: entry.member, own: &entry.own, listed });
        }
        // A single upstream decides itself whether the name exists; it need not be listed.
        let only = self.single_member().filter(|_| self.config.filter(list).allows(name));
        // With rules it must be: what is hidden and what does not exist would be told apart by who answers.
        let only = only.filter(|only| self.config.rules.is_none() || only.state.list(list).is_none());
        only.map(|_| ResolvedName { member: 0, own: name, listed: None })
    }

    /// The name by which clients know what an upstream lists under its own name.
    pub(super) fn exposed_name(&self, list: List, upstream: &str, own: &str) -> Option<&str> {
        let is_own = |(member, position, _): &&(usize, usize, Box<str>)| {
            let member = &self.members[*member];
            let listed = member.state.list(list).filter(|_| **member.upstream.name() == *upstream);
            let named = listed.and_then(|listed| listed.items.get(*position)?.get(list.item_key()));
            named.as_ref().and_then(Raw::text).is_some_and(|name| name == own)
        };
        self.lists[list as usize].entries.iter().find(is_own).map(|(_, _, exposed)| &**exposed)
    }

    /// What the URI of a resource, or a template, stands for.
    pub(super) fn resolve_uri<'u>(&'u self, uri: &'u str) -> Option<ResolvedName<'u>> {
        for list in [List::Resources, List::Templates] {
            if let Some(entry) = self.names[list as usize].resolve(uri) {
                let listed = Some((list, entry.position));
                return Some(ResolvedName { member: entry.member, own: &entry.own, listed });
            }
        }
        let (member, own) = if self.single_member().is_some() {
            (0, uri)
        } else if let Some((name, own)) = names::split_exposed_uri(uri).filter(|_| self.config.uses_prefixes()) {
            (self.members.iter().position(|member| **member.upstream.name() == *name)?, own)
        } else {
            (self.resolve_own_uri(uri)?, uri)
        };
        let is_allowed = self.config.resources.allows_item(&[uri, own]);
        is_allowed.then_some(ResolvedName { member, own, listed: None })
    }

    /// The templates of a member that a URI may be an expansion of.
    pub(super) fn templates_of<'t>(&'t self, member: usize, uri: &'t str) -> impl Iterator<Item = &'t str> {
        let of_member = self.own_templates.iter().filter(move |(_, other)| *other == member);
        of_member.map(|(template, _)| &**template).filter(move |template| names::matches_template(template, uri))
    }

    /// The member's own name of an item on a list.
    pub(super) fn own_name(&self, list: List, exposed: &str) -> &str {
        self.names[list as usize].resolve(exposed).map_or("", |entry| &entry.own)
    }

    /// What a caller may do in this view; `None` where there are no rules.
    pub fn permissions(&self, identity: &Identity) -> Option<Arc<Permissions>> {
        let class = self.config.rules.as_ref()?.class_of(identity);
        Some(self.permissions.get_or_insert(class, |class| Permissions::new(self, class)))
    }

    /// The member that lists the upstream's own URI, or has a template that matches it. A filter on the
    /// exposed URI applies here too.
    fn resolve_own_uri(&self, uri: &str) -> Option<usize> {
        let may_expand = |(template, member): &&(Box<str>, usize)| {
            names::matches_template(template, uri)
                && self.config.resources.allows_item(&[uri, &self.members[*member].name_mapping.expose_uri(uri)])
        };
        let listed = self.own_uris.get(uri).copied();
        listed.or_else(|| self.own_templates.iter().find(may_expand).map(|(_, member)| *member))
    }

    /// Whether the upstream's own URI resolves to this leg.
    pub(super) fn is_own_uri(&self, uri: &str, leg: &Arc<Leg>) -> bool {
        self.resolve_own_uri(uri).is_some_and(|member| Arc::ptr_eq(&self.members[member].leg, leg))
    }

    /// Fingerprint of a list, including the change announcements of upstreams.
    pub(super) fn list_fingerprint(&self, list: List) -> u64 {
        self.lists[list as usize].fingerprint
    }

    /// Fingerprint of the content of a list alone, comparable between nodes.
    pub(super) fn content_fingerprint(&self, list: List) -> u64 {
        self.lists[list as usize].content_fingerprint
    }

    /// Content fingerprints, comparable between nodes.
    pub fn list_fingerprints(&self) -> ListFingerprints {
        combine_fingerprints(List::ALL.map(|list| self.content_fingerprint(list)))
    }
}

/// The fingerprints of the lists that are announced together, from those of all lists.
pub(super) fn combine_fingerprints([tools, prompts, resources, templates]: [u64; 4]) -> ListFingerprints {
    [tools, prompts, resources ^ templates.rotate_left(1)]
}

fn describe_collision(collision: &Collision, list: List, members: &[GroupMember]) -> String {
    let who = |n: usize| members[n].upstream.name();
    let (first, second) = (who(collision.first), who(collision.second));
    format!(
        "name collision: {first} and {second} both have {:?} among their {}; that of {second} is left out",
        collision.name,
        list.result_key()
    )
}

/// The self-description of a group: that of its single upstream, or one merged from all.
fn group_server_info(config: &GroupConfig, members: &[GroupMember]) -> ServerInfo {
    let known: Vec<(&str, &ServerInfo)> = members
        .iter()
        .filter_map(|member| Some((member.upstream.name().as_ref(), member.state.server.as_ref()?)))
        .collect();
    let mut server = match (members, known.as_slice()) {
        ([_], [(_, only)]) => (*only).clone(),
        _ => ServerInfo {
            info: gateway_info(config),
            capabilities: merge_capabilities(&known, members.len()),
            instructions: merge_instructions(&known),
        },
    };
    if let Some(instructions) = &config.instructions {
        server.instructions = Some(Raw::of(instructions));
    }
    server.capabilities = with_list_changed(&server.capabilities);
    server
}

fn gateway_info(config: &GroupConfig) -> Raw {
    let info =
        json!({ "name": "rialto", "title": format!("Rialto: {}", config.name), "version": env!("CARGO_PKG_VERSION") });
    Raw::of(&info)
}

/// Merges the capabilities of all upstreams. While some are unknown, all capabilities are declared: a
/// handshake cannot be amended, and a missing capability becomes an empty list.
fn merge_capabilities(known: &[(&str, &ServerInfo)], members: usize) -> Raw {
    let complete = known.len() == members;
    let mut capabilities = serde_json::Map::new();
    if known.iter().any(|(_, server)| to_upstream::has_tasks(&server.capabilities)) {
        capabilities.insert("extensions".into(), json!({ to_upstream::TASKS: {} }));
    }
    for family in Capability::ALL {
        let offered: Vec<Raw> =
            known.iter().filter_map(|(_, server)| server.capabilities.get(family.as_str())).collect();
        if offered.is_empty() && complete {
            continue;
        }
        let mut capability = serde_json::Map::new();
        let subscribes = |offered: &Raw| offered.get("subscribe").is_some_and(|raw| raw.as_bytes() == b"true");
        if family == Capability::Resources && (!complete || offered.iter().any(subscribes)) {
            capability.insert("subscribe".into(), true.into());
        }
        capabilities.insert(family.as_str().into(), capability.into());
    }
    Raw::of(&capabilities)
}

/// Joins the instructions of the upstreams, each under its name.
fn merge_instructions(known: &[(&str, &ServerInfo)]) -> Option<Raw> {
    let mut all = String::new();
    for (name, server) in known {
        let Some(text) = server.instructions.as_ref().and_then(Raw::text) else { continue };
        let part = format!("# {name}\n\n{text}\n\n");
        if all.len() + part.len() > MAX_INSTRUCTIONS_BYTES {
            tracing::warn!(upstream = name, "instructions left out: the merged instructions would exceed the limit");
            continue;
        }
        all.push_str(&part);
    }
    (!all.is_empty()).then(|| Raw::of(all.trim_end()))
}

/// Declares `listChanged`: the lists of a group can change even if those of its upstreams cannot.
fn with_list_changed(capabilities: &Raw) -> Raw {
    let mut all = capabilities.clone();
    for family in [Capability::Tools, Capability::Prompts, Capability::Resources] {
        if let Some(offered) = all.get(family.as_str()) {
            let offered = offered.edit().set("listChanged", Raw::constant("true")).finish();
            all = all.edit().set(family.as_str(), offered).finish();
        }
    }
    all
}
