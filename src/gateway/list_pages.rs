//! The pages of a view's lists, for all callers or for those who see a part of a list.

use std::sync::OnceLock;

use tokio::time::Instant;

use super::cursor::Cursor;
use super::permissions::Permissions;
use super::sealing::Seal;
use super::view::View;
use crate::dialect::to_client::{self, CacheHint, ServerInfo};
use crate::dialect::{Revision, meta, tasks};
use crate::protocol::{ErrorObject, Payload, Raw, code};
use crate::upstream::{CatalogList, List};

/// The pages of a list for each revision, rendered on first use.
pub(super) type ListPages = [OnceLock<Vec<Raw>>; Revision::COUNT];

/// Which page of which list is wanted, and by whom.
#[derive(Debug, Clone, Copy)]
pub struct ListPage<'p> {
    /// The list.
    pub list: List,
    /// The number of items before the page.
    pub offset: usize,
    /// What the caller may do; `None` where there are no rules.
    pub permissions: Option<&'p Permissions>,
}

/// The `_meta` key of a list result that names the servers missing from it.
const UNAVAILABLE_SERVERS: &str = "rialto/unavailableServers";

impl View {
    /// A page of a list, converted to a revision.
    ///
    /// # Errors
    /// When `offset` is not the start of a page.
    pub fn page(&self, page: &ListPage, to: Revision, seal: &Seal) -> Result<Raw, ErrorObject> {
        let (list, offset) = (page.list, page.offset);
        // Callers who see all of a list share its pages.
        let part = page.permissions.filter(|permissions| !permissions.shows_all(list));
        let pages = part.map_or(&self.lists[list as usize].pages, |permissions| permissions.pages(list));
        let pages = pages[to as usize].get_or_init(|| self.render_pages(list, to, part, seal));
        let size = self.config.page_size.max(1);
        let Some(page) = pages.get(offset / size).filter(|_| offset.is_multiple_of(size)) else {
            return Err(ErrorObject::new(code::INVALID_PARAMS, "Invalid params: the list has no such page"));
        };
        if !to.has_result_envelope() {
            return Ok(page.clone());
        }
        let hint = self.cache_hint(list);
        let ttl = Raw::of(&hint.ttl);
        let scope = Raw::constant(if hint.public { r#""public""# } else { r#""private""# });
        Ok(page.edit().set("ttlMs", ttl).set("cacheScope", scope).finish())
    }

    /// Cache hint of a merged list: the minimum TTL of its parts. Where there are rules, callers see different lists.
    fn cache_hint(&self, list: List) -> CacheHint {
        let now = Instant::now();
        let mut whole = CacheHint { ttl: u64::MAX, public: self.config.rules.is_none() };
        for member in &self.members {
            if member.is_unavailable_for(list) {
                whole.ttl = 0;
            }
            let Some(listed) = member.state.list(list) else { continue };
            let hint = listed.cache_hint.unwrap_or(CacheHint { ttl: 0, public: false });
            let left = match listed.expires_at() {
                // Lists of built-in servers never expire.
                Some(_) if member.upstream.spec().is_built_in() => hint.ttl,
                Some(expires) => expires.saturating_duration_since(now).as_millis().try_into().unwrap_or(u64::MAX),
                None => 0,
            };
            whole.ttl = whole.ttl.min(left);
            whole.public &= hint.public;
        }
        if whole.ttl == u64::MAX { CacheHint { ttl: 0, public: false } } else { whole }
    }

    fn render_pages(&self, list: List, to: Revision, part: Option<&Permissions>, seal: &Seal) -> Vec<Raw> {
        let items = self.render_items(list, to, part);
        let fingerprint = part.map_or_else(|| self.list_fingerprint(list), |part| part.list_fingerprint(self, list));
        let size = self.config.page_size.max(1);
        let count = items.len().div_ceil(size).max(1);
        let envelope = self.envelope(list, to, part);
        let page = |n: usize| {
            let from = n * size;
            let items = Raw::of(&items[from..items.len().min(from + size)]);
            let page = envelope.edit().set(list.result_key(), items).finish();
            if n + 1 == count {
                return page;
            }
            let offset = u32::try_from(from + size).unwrap_or(u32::MAX);
            let cursor = Cursor { list, fingerprint, offset }.seal(seal, &self.config.name);
            page.edit().set("nextCursor", Raw::of(&cursor)).finish()
        };
        (0..count).map(page).collect()
    }

    /// The items of a list with exposed names, converted to a revision: all of them, or those that are shown.
    fn render_items(&self, list: List, to: Revision, part: Option<&Permissions>) -> Vec<Raw> {
        let converted: Vec<Vec<Raw>> = self
            .members
            .iter()
            .map(|member| member.state.list(list).map(|l| convert_items(list, l, to)).unwrap_or_default())
            .collect();
        let offers_tasks: Vec<bool> = self.members.iter().map(|member| member.bridges_tasks_to(to)).collect();
        let item = |(n, m, exposed): &(usize, usize, Box<str>)| {
            let item = converted[*n].get(*m)?;
            let item = self.members[*n].name_mapping.map_item(list, item, exposed);
            Some(match list == List::Tools && to.creates_tool_tasks() {
                true if offers_tasks[*n] => tasks::with_optional_task(&item),
                // A group with several upstreams declares no tasks of this revision.
                true if self.members.len() > 1 => tasks::without_task_hint(&item),
                _ => item,
            })
        };
        let is_shown = |position: usize| part.is_none_or(|part| part.shows(list, position));
        let shown = self.lists[list as usize].entries.iter().enumerate().filter(|(position, _)| is_shown(*position));
        shown.filter_map(|(_, entry)| item(entry)).collect()
    }

    /// The members of a list result around its items.
    fn envelope(&self, list: List, to: Revision, part: Option<&Permissions>) -> Raw {
        // A server of which the caller may use nothing does not exist for it.
        let is_known = |n: usize| part.is_none_or(|part| part.may_use_member(n));
        let unavailable: Vec<&str> = self
            .members
            .iter()
            .enumerate()
            .filter(|(n, member)| is_known(*n) && member.is_unavailable_for(list))
            .map(|(_, member)| member.upstream.name().as_ref())
            .collect();
        let only = self.single_member().and_then(|only| only.state.list(list));
        let mut envelope = match only {
            Some(listed) => {
                let result = Ok(listed.envelope.clone().into());
                to_client::convert_outcome(result, &list.method(), listed.revision, to, &self.server)
                    .map_or_else(|_| Raw::empty(), Payload::into_raw)
            }
            None => Raw::empty(),
        };
        if to.has_result_envelope() {
            envelope = envelope.edit().set("resultType", Raw::constant(r#""complete""#)).finish();
            if envelope.at(&["_meta", meta::SERVER_INFO]).is_none() {
                envelope = meta::with_member(Some(&envelope), meta::SERVER_INFO, self.server.info.clone());
            }
        }
        if unavailable.is_empty() {
            return envelope;
        }
        meta::with_member(Some(&envelope), UNAVAILABLE_SERVERS, Raw::of(&unavailable))
    }
}

/// Converts the items of one upstream to a revision.
fn convert_items(list: List, listed: &CatalogList, to: Revision) -> Vec<Raw> {
    if listed.revision == to {
        return listed.items.clone();
    }
    let unnamed = ServerInfo { info: Raw::empty(), capabilities: Raw::empty(), instructions: None };
    let result = Raw::empty().edit().set(list.result_key(), Raw::of(&listed.items)).finish();
    let converted = to_client::convert_outcome(Ok(result.into()), &list.method(), listed.revision, to, &unnamed);
    converted.ok().and_then(|result| result.get(list.result_key())).map(|items| items.items()).unwrap_or_default()
}
