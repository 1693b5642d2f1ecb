//! Lists of an upstream (tools, prompts, resources, resource templates), each read through all its pages.

use std::collections::hash_map::DefaultHasher;
use std::collections::{HashMap, HashSet};
use std::hash::Hasher;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

use crate::call::ChangeEvent;
use crate::dialect::headers::{self, HeaderMirror};
use crate::dialect::to_client::CacheHint;
use crate::dialect::{Revision, tasks};
use crate::error::{Error, Result};
use crate::failure::FailureKind;
use crate::mcp_client::Connection;
use crate::protocol::method::Capability;
use crate::protocol::{Method, NotificationMethod, Raw};

/// One of the lists that a server can have; also its index in per-list arrays.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum List {
    /// `tools/list`.
    Tools,
    /// `prompts/list`.
    Prompts,
    /// `resources/list`.
    Resources,
    /// `resources/templates/list`.
    Templates,
}

/// A complete list as the upstream sent it.
#[derive(Debug, Clone)]
pub struct CatalogList {
    /// The items as raw JSON, without duplicates.
    pub items: Vec<Raw>,
    /// The other members of the result, without the list and its cursor.
    pub envelope: Raw,
    /// Revision whose schema the items follow.
    pub revision: Revision,
    /// The upstream's cache hint.
    pub cache_hint: Option<CacheHint>,
    /// When the first page was read, the last time that all of this was found unchanged.
    read_at: Arc<Mutex<Instant>>,
    /// Hash of each item, comparable between nodes.
    pub item_hashes: Vec<u64>,
    /// Arguments that are mirrored in headers, by tool.
    pub header_mirrors: HashMap<Box<str>, Vec<HeaderMirror>>,
    /// Names of tools that can be called as tasks only.
    pub task_only_tools: HashSet<Box<str>>,
}

/// Pages read before a list counts as endless.
const MAX_LIST_PAGES: usize = 100;
/// Items that a list may have.
const MAX_LIST_ITEMS: usize = 10_000;
/// Total bytes that the pages of a list may have.
const MAX_LIST_BYTES: usize = 64 << 20;

// === impl List ===

impl List {
    /// Every list, in the order of the discriminants.
    pub const ALL: [Self; 4] = [Self::Tools, Self::Prompts, Self::Resources, Self::Templates];

    /// The method that reads the list.
    pub fn method(self) -> Method {
        match self {
            Self::Tools => Method::ToolsList,
            Self::Prompts => Method::PromptsList,
            Self::Resources => Method::ResourcesList,
            Self::Templates => Method::TemplatesList,
        }
    }

    /// The list that a method reads.
    pub fn from_method(method: &Method) -> Option<Self> {
        Self::ALL.into_iter().find(|list| list.method() == *method)
    }

    /// The member of the result that holds the items.
    pub fn result_key(self) -> &'static str {
        match self {
            Self::Tools => "tools",
            Self::Prompts => "prompts",
            Self::Resources => "resources",
            Self::Templates => "resourceTemplates",
        }
    }

    /// The member of an item that identifies it.
    pub fn item_key(self) -> &'static str {
        match self {
            Self::Tools | Self::Prompts => "name",
            Self::Resources => "uri",
            Self::Templates => "uriTemplate",
        }
    }

    /// The server capability that announces the list.
    pub fn capability(self) -> Capability {
        match self {
            Self::Tools => Capability::Tools,
            Self::Prompts => Capability::Prompts,
            Self::Resources | Self::Templates => Capability::Resources,
        }
    }

    /// The change event to send when the list differs.
    pub fn change_event(self) -> ChangeEvent {
        match self {
            Self::Tools => ChangeEvent::Tools,
            Self::Prompts => ChangeEvent::Prompts,
            Self::Resources | Self::Templates => ChangeEvent::Resources,
        }
    }

    /// The lists that a list-changed notification refers to.
    pub fn changed_by(notice: &NotificationMethod) -> &'static [Self] {
        match notice {
            NotificationMethod::ToolsChanged => &[Self::Tools],
            NotificationMethod::PromptsChanged => &[Self::Prompts],
            NotificationMethod::ResourcesChanged => &[Self::Resources, Self::Templates],
            _ => &[],
        }
    }
}

// === impl CatalogList ===

impl CatalogList {
    /// A list from a single result of its method, for servers in this process.
    pub fn from_result(list: List, result: &Raw, revision: Revision) -> Self {
        let mut listed = Self::empty(revision, envelope(list, result), cache_hint(result));
        listed.add_page(list, result, &mut HashSet::new());
        listed
    }

    fn empty(revision: Revision, envelope: Raw, cache_hint: Option<CacheHint>) -> Self {
        Self {
            items: Vec::new(),
            envelope,
            revision,
            cache_hint,
            read_at: Arc::new(Mutex::new(Instant::now())),
            item_hashes: Vec::new(),
            header_mirrors: HashMap::new(),
            task_only_tools: HashSet::new(),
        }
    }

    /// Adds the items of a page; items without an identifier and duplicates are skipped.
    fn add_page(&mut self, list: List, page: &Raw, seen: &mut HashSet<String>) {
        for item in page.get(list.result_key()).map(|list| list.items()).unwrap_or_default() {
            let name = item.get(list.item_key());
            let Some(name) = name.as_ref().and_then(Raw::text) else {
                tracing::warn!(list = list.result_key(), "list item without a name skipped");
                continue;
            };
            if seen.insert(name.clone().into_owned()) {
                if list == List::Tools {
                    self.scan_tool(&name, &item);
                }
                let mut hasher = DefaultHasher::new();
                hasher.write(item.as_bytes());
                self.item_hashes.push(hasher.finish());
                self.items.push(item);
            } else {
                tracing::warn!(list = list.result_key(), %name, "duplicate list item skipped");
            }
        }
    }

    /// Looks for what calls of the tool depend on.
    fn scan_tool(&mut self, name: &str, tool: &Raw) {
        if tasks::tool_requires_task(tool) {
            self.task_only_tools.insert(name.into());
        }
        let mirrors = tool.get("inputSchema").and_then(|schema| headers::parse_mirrors(&schema).ok());
        if let Some(mirrors) = mirrors.filter(|mirrors| !mirrors.is_empty()) {
            self.header_mirrors.insert(name.into(), mirrors);
        }
    }

    /// When the cache hint expires; `None` without a positive TTL.
    pub fn expires_at(&self) -> Option<Instant> {
        let hint = self.cache_hint.filter(|hint| hint.ttl > 0)?;
        self.read_at.lock().checked_add(Duration::from_millis(hint.ttl))
    }

    /// Whether another read brought the same; if so, this list counts as read then.
    pub(super) fn confirm(&self, other: &Self) -> bool {
        let is_same = self.items == other.items
            && self.envelope == other.envelope
            && self.revision == other.revision
            && self.cache_hint == other.cache_hint;
        if is_same {
            *self.read_at.lock() = *other.read_at.lock();
        }
        is_same
    }
}

/// Reads a list through all its pages.
///
/// # Errors
/// The request fails, the result is not a list, or a bound on pages, items or bytes is exceeded.
pub async fn read_all_pages(connection: &Arc<Connection>, list: List) -> Result<CatalogList> {
    let mut listed: Option<CatalogList> = None;
    let mut seen = HashSet::new();
    let mut bytes = 0;
    let mut cursor: Option<Raw> = None;
    for _ in 0..MAX_LIST_PAGES {
        let params = cursor.as_ref().map(|cursor| Raw::empty().edit().set("cursor", cursor.clone()).finish());
        let mut page = connection.request(list.method(), params).await?;
        if list == List::Tools {
            page = connection.record_mirrors(&page);
        }
        if !page.is_object() || page.get(list.result_key()).is_some_and(|items| !items.is_array()) {
            return Err(protocol_error(format!("the answer to `{}` is no list", list.method())));
        }
        bytes += page.as_bytes().len();
        let first = || CatalogList::empty(connection.revision(), envelope(list, &page), cache_hint(&page));
        let list_so_far = listed.get_or_insert_with(first);
        list_so_far.add_page(list, &page, &mut seen);
        if list_so_far.items.len() > MAX_LIST_ITEMS || bytes > MAX_LIST_BYTES {
            return Err(protocol_error(format!(
                "the list has more than {MAX_LIST_ITEMS} items or {MAX_LIST_BYTES} bytes"
            )));
        }
        let next = page.get("nextCursor").filter(|cursor| !cursor.is_null());
        if next.is_none() || next == cursor {
            return listed.take().ok_or_else(|| protocol_error("the list has no page".into()));
        }
        cursor = next;
    }
    Err(protocol_error(format!("the list has more than {MAX_LIST_PAGES} pages")))
}

fn protocol_error(why: String) -> Error {
    Error::failure(FailureKind::Protocol, why)
}

/// A result without its list and cursor, copied so that it does not keep the page's buffer alive.
fn envelope(list: List, page: &Raw) -> Raw {
    let rest = page.edit().remove(list.result_key()).remove("nextCursor").finish();
    Raw::trusted(bytes::Bytes::copy_from_slice(rest.as_bytes()))
}

fn cache_hint(page: &Raw) -> Option<CacheHint> {
    let ttl = page.get("ttlMs")?.read().ok()?;
    let scope = page.get("cacheScope");
    Some(CacheHint { ttl, public: scope.as_ref().and_then(Raw::text).as_deref() == Some("public") })
}
