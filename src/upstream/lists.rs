//! The lists of an upstream: tools, prompts, resources, templates, each read whole.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use crate::call::ChangeEvent;
use crate::dialect::to_client::CacheHint;
use crate::dialect::{Revision, tasks};
use crate::error::{Error, ErrorKind, Result};
use crate::mcp_client::Connection;
use crate::protocol::method::Family;
use crate::protocol::{Method, Notice, Raw};

/// Which list.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum List {
    /// The tools.
    Tools,
    /// The prompts.
    Prompts,
    /// The resources.
    Resources,
    /// The resource templates.
    Templates,
}

/// A list as an upstream gave it.
#[derive(Debug, Clone)]
pub struct Listed {
    /// What is on it, as it came, each name once.
    pub items: Vec<Raw>,
    /// The result that brought it, without the list itself.
    pub envelope: Raw,
    /// The revision whose shapes it has.
    pub revision: Revision,
    /// How long it may be kept, where the upstream says so.
    pub hint: Option<CacheHint>,
    /// When it was read.
    pub read: Instant,
    /// The tools on it that can be called as tasks only.
    pub tasks: HashSet<Box<str>>,
}

/// How many pages of a list are read.
const PAGES: usize = 100;
/// How many items a list may have.
const ITEMS: usize = 10_000;
/// How large a list may be.
const LIST_BYTES: usize = 64 << 20;

// === impl List ===

impl List {
    /// Every list, in the order of their values.
    pub const ALL: [Self; 4] = [Self::Tools, Self::Prompts, Self::Resources, Self::Templates];

    /// The method that asks for it.
    pub fn method(self) -> Method {
        match self {
            Self::Tools => Method::ToolsList,
            Self::Prompts => Method::PromptsList,
            Self::Resources => Method::ResourcesList,
            Self::Templates => Method::TemplatesList,
        }
    }

    /// The list that a method asks for.
    pub fn asked_by(method: &Method) -> Option<Self> {
        Self::ALL.into_iter().find(|list| list.method() == *method)
    }

    /// The member of the result that holds it.
    pub fn member(self) -> &'static str {
        match self {
            Self::Tools => "tools",
            Self::Prompts => "prompts",
            Self::Resources => "resources",
            Self::Templates => "resourceTemplates",
        }
    }

    /// The member of an item that names it.
    pub fn key(self) -> &'static str {
        match self {
            Self::Tools | Self::Prompts => "name",
            Self::Resources => "uri",
            Self::Templates => "uriTemplate",
        }
    }

    /// The capability that a server must have for the list to exist.
    pub fn family(self) -> Family {
        match self {
            Self::Tools => Family::Tools,
            Self::Prompts => Family::Prompts,
            Self::Resources | Self::Templates => Family::Resources,
        }
    }

    /// What tells that it is another now.
    pub fn change(self) -> ChangeEvent {
        match self {
            Self::Tools => ChangeEvent::Tools,
            Self::Prompts => ChangeEvent::Prompts,
            Self::Resources | Self::Templates => ChangeEvent::Resources,
        }
    }

    /// The lists that a notice tells of.
    pub fn told_by(notice: &Notice) -> &'static [Self] {
        match notice {
            Notice::ToolsChanged => &[Self::Tools],
            Notice::PromptsChanged => &[Self::Prompts],
            Notice::ResourcesChanged => &[Self::Resources, Self::Templates],
            _ => &[],
        }
    }
}

// === impl Listed ===

impl Listed {
    /// A list that was made here, from the result of its method.
    pub fn whole(list: List, result: &Raw, revision: Revision) -> Self {
        let mut listed = Self::empty(revision, envelope(list, result), hint(result));
        listed.add(list, result, &mut HashSet::new());
        listed
    }

    fn empty(revision: Revision, envelope: Raw, hint: Option<CacheHint>) -> Self {
        Self { items: Vec::new(), envelope, revision, hint, read: Instant::now(), tasks: HashSet::new() }
    }

    /// Adds the items of a page; those without a name, and those whose name was there, are left out.
    fn add(&mut self, list: List, page: &Raw, seen: &mut HashSet<String>) {
        for item in page.get(list.member()).map(|list| list.items()).unwrap_or_default() {
            let name = item.get(list.key());
            let Some(name) = name.as_ref().and_then(Raw::text) else {
                tracing::warn!(list = list.member(), "an item without a name is left out");
                continue;
            };
            if seen.insert(name.clone().into_owned()) {
                if list == List::Tools && tasks::needed_by(&item) {
                    self.tasks.insert(name.as_ref().into());
                }
                self.items.push(item);
            } else {
                tracing::warn!(list = list.member(), %name, "a name is on the list twice; the second is left out");
            }
        }
    }

    /// When it has to be read again, where the upstream says so.
    pub fn expires(&self) -> Option<Instant> {
        let hint = self.hint.filter(|hint| hint.ttl > 0)?;
        self.read.checked_add(Duration::from_millis(hint.ttl))
    }
}

/// Reads a list through all its pages.
///
/// # Errors
/// When the upstream does not give it, or it has no end.
pub async fn read(connection: &Arc<Connection>, list: List) -> Result<Listed> {
    let mut listed: Option<Listed> = None;
    let mut seen = HashSet::new();
    let mut bytes = 0;
    let mut cursor: Option<Raw> = None;
    for _ in 0..PAGES {
        let params = cursor.as_ref().map(|cursor| Raw::empty().edit().set("cursor", cursor.clone()).finish());
        let mut page = connection.request(list.method(), params).await?;
        if list == List::Tools {
            page = connection.note_tools(&page);
        }
        if !page.is_object() || page.get(list.member()).is_some_and(|items| !items.is_array()) {
            return Err(wrong(format!("the answer to `{}` is no list", list.method())));
        }
        bytes += page.as_bytes().len();
        let first = || Listed::empty(connection.revision(), envelope(list, &page), hint(&page));
        let all = listed.get_or_insert_with(first);
        all.add(list, &page, &mut seen);
        if all.items.len() > ITEMS || bytes > LIST_BYTES {
            return Err(wrong(format!("the list has more than {ITEMS} items or {LIST_BYTES} bytes")));
        }
        let next = page.get("nextCursor").filter(|cursor| !cursor.is_null());
        if next.is_none() || next == cursor {
            return listed.take().ok_or_else(|| wrong("the list has no page".into()));
        }
        cursor = next;
    }
    Err(wrong(format!("the list has more than {PAGES} pages")))
}

fn wrong(why: String) -> Error {
    Error::new(ErrorKind::Protocol, why)
}

/// A result without its list and its cursor, in memory of its own.
fn envelope(list: List, page: &Raw) -> Raw {
    let rest = page.edit().remove(list.member()).remove("nextCursor").finish();
    Raw::trusted(bytes::Bytes::copy_from_slice(rest.as_bytes()))
}

fn hint(page: &Raw) -> Option<CacheHint> {
    let ttl = page.get("ttlMs")?.read().ok()?;
    let scope = page.get("cacheScope");
    Some(CacheHint { ttl, public: scope.as_ref().and_then(Raw::text).as_deref() == Some("public") })
}
