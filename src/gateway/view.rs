//! What a group shows at one moment: its names, its lists, what it says of itself. Made anew when
//! something changes, and shared by everybody until then.

use std::collections::HashMap;
use std::collections::hash_map::DefaultHasher;
use std::hash::Hasher;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use serde_json::json;
use tokio::time::Instant;

use super::cursor::Cursor;
use super::group_config::GroupConfig;
use super::name_mapping::NameMapping;
use super::names::{self, Collision, NameTable};
use super::sealing::Seal;
use crate::call::ListFingerprints;
use crate::dialect::headers::{self, HeaderMirror};
use crate::dialect::to_client::{self, CacheHint, ServerInfo};
use crate::dialect::{Revision, meta, to_upstream};
use crate::metrics::CallMetrics;
use crate::protocol::method::Family;
use crate::protocol::{ErrorObject, Raw, code};
use crate::upstream::{CatalogState, HealthPhase, List, Listed, Upstream};

/// What a group shows at one moment.
#[derive(Debug)]
pub struct View {
    /// Tells it from every other.
    pub epoch: u64,
    /// How the group is configured.
    pub plan: Arc<GroupConfig>,
    /// Its upstreams, in order.
    pub members: Vec<GroupMember>,
    /// What it says of itself.
    pub server: ServerInfo,
    /// Which capabilities it has, by their place in [`Family::ALL`].
    families: [bool; Family::ALL.len()],
    names: [NameTable; List::ALL.len()],
    lists: [Merged; List::ALL.len()],
    mirrors: HashMap<Box<str>, Vec<HeaderMirror>>,
    /// Which member has a resource, by the URI that the upstream knows it by.
    own_uris: HashMap<Box<str>, usize>,
    /// The same for templates.
    own_templates: Vec<(Box<str>, usize)>,
    /// Names that two upstreams have, in words.
    pub collisions: Vec<String>,
}

/// An upstream, and what was known of it.
#[derive(Debug, Clone)]
pub struct GroupMember {
    /// The upstream.
    pub upstream: Arc<Upstream>,
    /// What was known of it.
    pub state: Arc<CatalogState>,
    /// How its names look here.
    pub rename: NameMapping,
    /// What is counted of its calls.
    pub(super) tallies: Arc<CallMetrics>,
}

/// One list of all upstreams together.
#[derive(Debug, Default)]
struct Merged {
    /// What is shown: whose it is, which of its items, and under what name.
    shown: Vec<(usize, usize, Box<str>)>,
    /// Tells whether two lists are the same.
    print: u64,
    /// The same, whatever node has read them.
    content: u64,
    /// The pages, in the shapes of each revision, once somebody asked.
    pages: [OnceLock<Vec<Raw>>; Revision::COUNT],
}

/// The `_meta` of a list that tells which upstreams are missing from it.
const ABSENT: &str = "rialto/absent";
/// How long what upstreams say of themselves may be together.
const INSTRUCTIONS: usize = 16 << 10;

static EPOCHS: AtomicU64 = AtomicU64::new(1);

impl GroupMember {
    /// An upstream as it is now.
    pub fn new(upstream: Arc<Upstream>, plan: &GroupConfig) -> Self {
        let prefix = plan.prefixes().then(|| Arc::clone(upstream.name()));
        let tasks = (plan.servers.len() > 1).then(|| Arc::clone(upstream.name()));
        Self { state: upstream.state(), upstream, rename: NameMapping { prefix, tasks }, tallies: Arc::default() }
    }

    /// Whether what a client of that revision says has to be translated across eras.
    pub(super) fn is_bridged_to(&self, client: Revision) -> bool {
        self.state.revision.is_some_and(|revision| revision.is_bridged_to(client))
    }

    /// Whether it is not there, or what it shows of a list is not what it has now.
    fn is_absent(&self, list: List) -> bool {
        let unknown = self.state.offers(list.family()) == Some(true) && self.state.list(list).is_none();
        let troubled = unknown || self.state.troubles.contains_key(list.member());
        troubled || matches!(self.state.health.phase, HealthPhase::Starting | HealthPhase::Down)
    }
}

impl View {
    /// What a group of these members shows.
    pub fn new(plan: Arc<GroupConfig>, members: Vec<GroupMember>) -> Self {
        let mut view = Self {
            epoch: EPOCHS.fetch_add(1, Ordering::Relaxed),
            server: introduce(&plan, &members),
            families: [false; Family::ALL.len()],
            names: Default::default(),
            lists: Default::default(),
            mirrors: HashMap::new(),
            own_uris: HashMap::new(),
            own_templates: Vec::new(),
            collisions: Vec::new(),
            plan,
            members,
        };
        view.families = Family::ALL.map(|family| {
            let offers = |member: &GroupMember| member.state.offers(family) == Some(true);
            view.server.capabilities.get(family.as_str()).is_some() || view.members.iter().any(offers)
        });
        for list in List::ALL {
            view.merge(list);
        }
        view
    }

    fn merge(&mut self, list: List) {
        let mut names = NameTable::default();
        let mut merged = Merged::default();
        let mut print = DefaultHasher::new();
        let mut content = DefaultHasher::new();
        for (n, member) in self.members.iter().enumerate() {
            let Some(listed) = member.state.list(list) else { continue };
            // What an upstream says to be another is told, whether or not it looks the same.
            print.write_u64(member.state.announced[list as usize]);
            for (m, item) in listed.items.iter().enumerate() {
                let own = item.get(list.key());
                let Some(own) = own.as_ref().and_then(Raw::text) else { continue };
                let given: Box<str> = match (list, &member.rename.prefix) {
                    (List::Tools | List::Prompts, Some(prefix)) => names.fresh(prefix, &own),
                    (List::Tools | List::Prompts, None) => own.as_ref().into(),
                    (List::Resources | List::Templates, _) => member.rename.uri(&own).into(),
                };
                if !self.plan.filter(list).passes(&given) {
                    continue;
                }
                if let Err(collision) = names.give(&given, n, &own) {
                    self.collisions.push(in_words(&collision, list, &self.members));
                    continue;
                }
                for print in [&mut print, &mut content] {
                    print.write(given.as_bytes());
                    print.write(item.as_bytes());
                }
                match list {
                    List::Tools => {
                        let mirrors = item.get("inputSchema").and_then(|schema| headers::mirrors(&schema).ok());
                        if let Some(mirrors) = mirrors.filter(|mirrors| !mirrors.is_empty()) {
                            self.mirrors.insert(given.clone(), mirrors);
                        }
                    }
                    List::Prompts => {}
                    List::Resources => {
                        self.own_uris.entry(own.as_ref().into()).or_insert(n);
                    }
                    List::Templates => self.own_templates.push((own.as_ref().into(), n)),
                }
                merged.shown.push((n, m, given));
            }
        }
        (merged.print, merged.content) = (print.finish(), content.finish());
        self.names[list as usize] = names;
        self.lists[list as usize] = merged;
    }

    /// What it says of itself to a client of that revision.
    pub fn server_for(&self, client: Revision) -> ServerInfo {
        // Of several, only what is of the newest era is merged beyond what all eras have.
        let revision = match self.only() {
            Some(only) => only.state.revision.unwrap_or(client),
            None => Revision::NEWEST,
        };
        let capabilities = to_upstream::offers(&self.server.capabilities, revision, client);
        ServerInfo { capabilities, ..self.server.clone() }
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

    /// Whether a list of the group may change while it is served.
    pub fn lists_change(&self, family: Family) -> bool {
        let path = [family.as_str(), "listChanged"];
        self.server.capabilities.at(&path).is_some_and(|raw| raw.as_bytes() == b"true")
    }

    /// Whether every upstream was reached, or could not be.
    pub fn is_settled(&self) -> bool {
        self.members.iter().all(|member| member.state.settled)
    }

    /// The lists that are not the same in another view.
    pub fn differences(&self, other: &Self) -> Vec<List> {
        let differs = |list: &List| self.print(*list) != other.print(*list);
        List::ALL.into_iter().filter(differs).collect()
    }

    /// How many things are on a list.
    pub fn count(&self, list: List) -> usize {
        self.lists[list as usize].shown.len()
    }

    /// Whether any tool wants arguments mirrored in headers.
    pub fn mirrors_any(&self) -> bool {
        !self.mirrors.is_empty()
    }

    /// The arguments of a tool that headers mirror.
    pub fn mirrors(&self, tool: &str) -> &[HeaderMirror] {
        self.mirrors.get(tool).map_or(&[], Vec::as_slice)
    }

    /// The member at the only place there is.
    pub fn only(&self) -> Option<&GroupMember> {
        match self.members.as_slice() {
            [only] => Some(only),
            _ => None,
        }
    }

    /// Who has a tool or a prompt, and what it calls it.
    pub fn by_name<'n>(&'n self, list: List, name: &'n str) -> Option<(&'n GroupMember, &'n str)> {
        if let Some((member, own)) = self.names[list as usize].resolve(name) {
            return Some((&self.members[member], own));
        }
        // A single upstream knows best what it has.
        self.only().filter(|_| self.plan.filter(list).passes(name)).map(|only| (only, name))
    }

    /// Who has a resource, and its URI there. One that is on no list may still be read: an upstream
    /// need not list everything.
    pub fn by_uri<'u>(&'u self, uri: &'u str) -> Option<(&'u GroupMember, &'u str)> {
        for list in [List::Resources, List::Templates] {
            if let Some((member, own)) = self.names[list as usize].resolve(uri) {
                return Some((&self.members[member], own));
            }
        }
        if !self.plan.resources.passes(uri) {
            return None;
        }
        if let Some(only) = self.only() {
            return Some((only, uri));
        }
        if let Some((name, own)) = names::uri_in(uri).filter(|_| self.plan.prefixes()) {
            let named = self.members.iter().find(|member| **member.upstream.name() == *name);
            return named.map(|member| (member, own));
        }
        self.by_own_uri(uri).map(|member| (member, uri))
    }

    /// Who knows a URI as it is: whoever lists it, or has a template that it may come from. What a
    /// filter hides under the name that is shown is hidden under this one, too.
    fn by_own_uri(&self, uri: &str) -> Option<&GroupMember> {
        let may_expand = |(template, member): &&(Box<str>, usize)| {
            names::expands(template, uri) && self.plan.resources.passes(&self.members[*member].rename.uri(uri))
        };
        let listed = self.own_uris.get(uri).copied();
        let member = listed.or_else(|| self.own_templates.iter().find(may_expand).map(|(_, member)| *member));
        member.map(|member| &self.members[member])
    }

    /// Whether a URI as it is means what this upstream has.
    pub(super) fn is_own_uri(&self, uri: &str, upstream: &Arc<Upstream>) -> bool {
        self.by_own_uri(uri).is_some_and(|member| Arc::ptr_eq(&member.upstream, upstream))
    }

    /// Tells whether two lists are the same.
    pub(super) fn print(&self, list: List) -> u64 {
        self.lists[list as usize].print
    }

    /// Tells whether the lists on another node are the same.
    pub fn prints(&self) -> ListFingerprints {
        let [tools, prompts, resources, templates] = List::ALL.map(|list| self.lists[list as usize].content);
        [tools, prompts, resources ^ templates.rotate_left(1)]
    }

    /// A page of a list, in the shapes of a revision.
    ///
    /// # Errors
    /// When there is no such page.
    pub fn page(&self, list: List, offset: usize, to: Revision, seal: &Seal) -> Result<Raw, ErrorObject> {
        let merged = &self.lists[list as usize];
        let pages = merged.pages[to as usize].get_or_init(|| self.pages(list, to, seal));
        let size = self.plan.page_size.max(1);
        let Some(page) = pages.get(offset / size).filter(|_| offset.is_multiple_of(size)) else {
            return Err(ErrorObject::new(code::INVALID_PARAMS, "Invalid params: the list has no such page"));
        };
        if to.facts().sessions {
            return Ok(page.clone());
        }
        let hint = self.hint(list);
        let ttl = Raw::of(&hint.ttl);
        let scope = Raw::constant(if hint.public { r#""public""# } else { r#""private""# });
        Ok(page.edit().set("ttlMs", ttl).set("cacheScope", scope).finish())
    }

    /// How long a list may be kept: as long as the part of it that may be kept for the shortest.
    fn hint(&self, list: List) -> CacheHint {
        let now = Instant::now();
        let mut whole = CacheHint { ttl: u64::MAX, public: true };
        for member in &self.members {
            if member.is_absent(list) {
                whole.ttl = 0;
            }
            let Some(listed) = member.state.list(list) else { continue };
            let hint = listed.hint.unwrap_or(CacheHint { ttl: 0, public: false });
            let left = match listed.expires() {
                // What is in this process is always fresh.
                Some(_) if member.upstream.spec().is_built_in() => hint.ttl,
                Some(expires) => expires.saturating_duration_since(now).as_millis().try_into().unwrap_or(u64::MAX),
                None => 0,
            };
            whole.ttl = whole.ttl.min(left);
            whole.public &= hint.public;
        }
        if whole.ttl == u64::MAX { CacheHint { ttl: 0, public: false } } else { whole }
    }

    fn pages(&self, list: List, to: Revision, seal: &Seal) -> Vec<Raw> {
        let items = self.items(list, to);
        let size = self.plan.page_size.max(1);
        let count = items.len().div_ceil(size).max(1);
        let envelope = self.envelope(list, to);
        let page = |n: usize| {
            let from = n * size;
            let items = Raw::of(&items[from..items.len().min(from + size)]);
            let page = envelope.edit().set(list.member(), items).finish();
            if n + 1 == count {
                return page;
            }
            let offset = u32::try_from(from + size).unwrap_or(u32::MAX);
            let cursor = Cursor { list, print: self.print(list), offset }.seal(seal, &self.plan.name);
            page.edit().set("nextCursor", Raw::of(&cursor)).finish()
        };
        (0..count).map(page).collect()
    }

    /// Everything on a list, renamed, in the shapes of a revision.
    fn items(&self, list: List, to: Revision) -> Vec<Raw> {
        let projected: Vec<Vec<Raw>> = self
            .members
            .iter()
            .map(|member| member.state.list(list).map(|l| project(list, l, to)).unwrap_or_default())
            .collect();
        let item = |(n, m, given): &(usize, usize, Box<str>)| {
            projected[*n].get(*m).map(|item| self.members[*n].rename.item(list, item, given))
        };
        self.lists[list as usize].shown.iter().filter_map(item).collect()
    }

    /// What stands around a list.
    fn envelope(&self, list: List, to: Revision) -> Raw {
        let absent: Vec<&str> = self
            .members
            .iter()
            .filter(|member| member.is_absent(list))
            .map(|member| member.upstream.name().as_ref())
            .collect();
        let only = self.only().and_then(|only| only.state.list(list));
        let mut envelope = match only {
            Some(listed) => {
                let result = Ok(listed.envelope.clone());
                to_client::outcome(result, &list.method(), listed.revision, to, &self.server)
                    .unwrap_or_else(|_| Raw::empty())
            }
            None => Raw::empty(),
        };
        if !to.facts().sessions {
            envelope = envelope.edit().set("resultType", Raw::constant(r#""complete""#)).finish();
            if envelope.at(&["_meta", meta::SERVER_INFO]).is_none() {
                envelope = meta::with(Some(&envelope), meta::SERVER_INFO, self.server.info.clone());
            }
        }
        if absent.is_empty() {
            return envelope;
        }
        meta::with(Some(&envelope), ABSENT, Raw::of(&absent))
    }
}

fn in_words(collision: &Collision, list: List, members: &[GroupMember]) -> String {
    let who = |n: usize| members[n].upstream.name();
    let (first, second) = (who(collision.first), who(collision.second));
    format!(
        "{first} and {second} both have {:?} among their {}; that of {second} is left out",
        collision.name,
        list.member()
    )
}

/// The items of one upstream in the shapes of a revision.
fn project(list: List, listed: &Listed, to: Revision) -> Vec<Raw> {
    if listed.revision == to {
        return listed.items.clone();
    }
    let nobody = ServerInfo { info: Raw::empty(), capabilities: Raw::empty(), instructions: None };
    let result = Raw::empty().edit().set(list.member(), Raw::of(&listed.items)).finish();
    let projected = to_client::outcome(Ok(result), &list.method(), listed.revision, to, &nobody);
    projected.ok().and_then(|result| result.get(list.member())).map(|items| items.items()).unwrap_or_default()
}

/// What a group says of itself: what its only upstream says, or what all of them are together.
fn introduce(plan: &GroupConfig, members: &[GroupMember]) -> ServerInfo {
    let known: Vec<(&str, &ServerInfo)> = members
        .iter()
        .filter_map(|member| Some((member.upstream.name().as_ref(), member.state.server.as_ref()?)))
        .collect();
    let mut server = match (members, known.as_slice()) {
        ([_], [(_, only)]) => (*only).clone(),
        _ => ServerInfo {
            info: ourselves(plan),
            capabilities: merged(&known, members.len()),
            instructions: instructions(&known),
        },
    };
    if let Some(instructions) = &plan.instructions {
        server.instructions = Some(Raw::of(instructions));
    }
    server.capabilities = changeable(&server.capabilities);
    server
}

fn ourselves(plan: &GroupConfig) -> Raw {
    let info =
        json!({ "name": "rialto", "title": format!("Rialto: {}", plan.name), "version": env!("CARGO_PKG_VERSION") });
    Raw::of(&info)
}

/// What all upstreams can do together. While some are not known, everything: a handshake cannot be
/// taken back, and what is missing later is an empty list.
fn merged(known: &[(&str, &ServerInfo)], members: usize) -> Raw {
    let complete = known.len() == members;
    let mut capabilities = serde_json::Map::new();
    if known.iter().any(|(_, server)| to_upstream::has_tasks(&server.capabilities)) {
        capabilities.insert("extensions".into(), json!({ to_upstream::TASKS: {} }));
    }
    for family in Family::ALL {
        let offered: Vec<Raw> =
            known.iter().filter_map(|(_, server)| server.capabilities.get(family.as_str())).collect();
        if offered.is_empty() && complete {
            continue;
        }
        let mut capability = serde_json::Map::new();
        let subscribes = |offered: &Raw| offered.get("subscribe").is_some_and(|raw| raw.as_bytes() == b"true");
        if family == Family::Resources && (!complete || offered.iter().any(subscribes)) {
            capability.insert("subscribe".into(), true.into());
        }
        capabilities.insert(family.as_str().into(), capability.into());
    }
    Raw::of(&capabilities)
}

/// What upstreams say of how to use them, each under its name.
fn instructions(known: &[(&str, &ServerInfo)]) -> Option<Raw> {
    let mut all = String::new();
    for (name, server) in known {
        let Some(text) = server.instructions.as_ref().and_then(Raw::text) else { continue };
        let part = format!("# {name}\n\n{text}\n\n");
        if all.len() + part.len() > INSTRUCTIONS {
            tracing::warn!(upstream = name, "its instructions are too long to be passed on with the others");
            continue;
        }
        all.push_str(&part);
    }
    (!all.is_empty()).then(|| Raw::of(all.trim_end()))
}

/// Whatever upstreams say, the lists of a group may change.
fn changeable(capabilities: &Raw) -> Raw {
    let mut all = capabilities.clone();
    for family in [Family::Tools, Family::Prompts, Family::Resources] {
        if let Some(offered) = all.get(family.as_str()) {
            let offered = offered.edit().set("listChanged", Raw::constant("true")).finish();
            all = all.edit().set(family.as_str(), offered).finish();
        }
    }
    all
}
