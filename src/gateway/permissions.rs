//! What one class of callers may do in a view: one value for each name, and the fingerprints and pages of what they see.

use std::collections::hash_map::DefaultHasher;
use std::hash::Hasher;
use std::sync::Arc;

use arc_swap::ArcSwap;
use foldhash::HashMap;

use super::list_pages::ListPages;
use super::names::{has_dot_segment, is_expansion};
use super::view::{ResolvedName, View};
use crate::identity::Identity;
use crate::policy::rules::{Access, AccessClass, Judgement, RuleTarget, TargetKind};
use crate::upstream::List;

/// What one class of callers may do in a view.
#[derive(Debug)]
pub struct Permissions {
    class: Arc<AccessClass>,
    lists: [ListPermissions; List::ALL.len()],
    /// Whether the callers may do anything with each member.
    usable_members: Box<[bool]>,
}

/// What one class of callers sees of a list.
#[derive(Debug, Default)]
struct ListPermissions {
    /// By the position on the list.
    access: Box<[Access]>,
    /// Whether every item is shown.
    is_whole: bool,
    /// Fingerprint of the content that is shown. What an upstream announces without changing it is told only to callers
    /// who see the whole list.
    fingerprint: u64,
    pages: ListPages,
}

/// Something that a group has, and what a caller may do with it.
#[derive(Debug, Clone)]
pub struct DescribedTarget {
    /// The list that it is on.
    pub list: List,
    /// The name or URI that clients see.
    pub exposed: Box<str>,
    /// The name of its upstream.
    pub upstream: Arc<str>,
    /// The upstream's own name or URI.
    pub own: Box<str>,
    /// What the caller may do with it.
    pub judgement: Judgement,
}

/// The permissions of the classes that used a view.
#[derive(Debug, Default)]
pub(super) struct PermissionCache(ArcSwap<HashMap<u64, Arc<Permissions>>>);

/// Classes whose permissions a view keeps; when there are more, all are computed again as they are needed.
const MAX_CACHED_CLASSES: usize = 256;

impl PermissionCache {
    /// The permissions of a class, computed on first use.
    pub(super) fn get_or_insert(
        &self,
        class: Arc<AccessClass>,
        compute: impl FnOnce(Arc<AccessClass>) -> Permissions,
    ) -> Arc<Permissions> {
        let id = class.id();
        if let Some(known) = self.0.load().get(&id) {
            return Arc::clone(known);
        }
        let computed = Arc::new(compute(class));
        self.0.rcu(|known| {
            let mut known = if known.len() < MAX_CACHED_CLASSES { (**known).clone() } else { HashMap::default() };
            known.insert(id, Arc::clone(&computed));
            known
        });
        computed
    }
}

/// The kind of target that a list has.
pub(super) fn target_kind(list: List) -> TargetKind {
    match list {
        List::Tools => TargetKind::Tools,
        List::Prompts => TargetKind::Prompts,
        List::Resources | List::Templates => TargetKind::Resources,
    }
}

impl Permissions {
    pub(super) fn new(view: &View, class: Arc<AccessClass>) -> Self {
        let usable = view.members.iter().map(|member| class.may_use(&view.config.name, member.upstream.name()));
        let mut permissions = Self { usable_members: usable.collect(), class, lists: Default::default() };
        permissions.lists = List::ALL.map(|list| permissions.judge_list(view, list));
        permissions
    }

    fn judge_list(&self, view: &View, list: List) -> ListPermissions {
        let mut fingerprint = DefaultHasher::new();
        let mut access = Vec::new();
        for (position, (n, m, exposed)) in view.lists[list as usize].entries.iter().enumerate() {
            let own = view.own_name(list, exposed);
            let name = ResolvedName { member: *n, own, listed: Some((list, position)) };
            let judged = self.judge(view, target_kind(list), &name).access;
            access.push(judged);
            let (Some(listed), false) = (view.members[*n].state.list(list), judged == Access::Hidden) else { continue };
            fingerprint.write(exposed.as_bytes());
            fingerprint.write_u64(listed.item_hashes[*m]);
        }
        let is_whole = access.iter().all(|access| *access != Access::Hidden) && !self.usable_members.contains(&false);
        ListPermissions {
            access: access.into(),
            is_whole,
            fingerprint: fingerprint.finish(),
            pages: ListPages::default(),
        }
    }

    /// What the callers may do with something, and by which rule. A URI is judged by itself and by the templates that it
    /// may be an expansion of, listed or not.
    pub(super) fn judge(&self, view: &View, kind: TargetKind, name: &ResolvedName<'_>) -> Judgement {
        with_target(view, kind, name, |target| self.class.judge(&view.config.name, target))
    }

    /// What the callers may do with something that was resolved in this view.
    pub(super) fn access(&self, view: &View, kind: TargetKind, name: &ResolvedName<'_>) -> Access {
        match name.listed {
            Some((list, position)) => self.lists[list as usize].access.get(position).copied().unwrap_or(Access::Hidden),
            None => self.judge(view, kind, name).access,
        }
    }

    /// The class of the callers.
    pub(super) fn class(&self) -> &AccessClass {
        &self.class
    }

    /// Whether the callers may do anything with a member.
    pub(super) fn may_use_member(&self, member: usize) -> bool {
        self.usable_members.get(member).is_none_or(|usable| *usable)
    }

    /// Whether the callers may do anything with some member.
    pub(super) fn may_use_any(&self) -> bool {
        self.usable_members.is_empty() || self.usable_members.contains(&true)
    }

    /// Whether the callers see all of a list.
    pub(super) fn shows_all(&self, list: List) -> bool {
        self.lists[list as usize].is_whole
    }

    /// Whether the callers see the item at a position of a list.
    pub fn shows(&self, list: List, position: usize) -> bool {
        self.lists[list as usize].access.get(position).is_some_and(|access| *access != Access::Hidden)
    }

    /// The pages of what the callers see of a list.
    pub(super) fn pages(&self, list: List) -> &ListPages {
        &self.lists[list as usize].pages
    }

    /// Fingerprint of what the callers see of a list, including the change announcements of upstreams.
    pub(super) fn list_fingerprint(&self, view: &View, list: List) -> u64 {
        let part = &self.lists[list as usize];
        if part.is_whole { view.list_fingerprint(list) } else { part.fingerprint }
    }

    /// Fingerprint of the content of what the callers see of a list, comparable between nodes.
    pub(super) fn content_fingerprint(&self, view: &View, list: List) -> u64 {
        let part = &self.lists[list as usize];
        if part.is_whole { view.content_fingerprint(list) } else { part.fingerprint }
    }
}

impl DescribedTarget {
    /// The kind that rules know it by.
    pub fn kind(&self) -> TargetKind {
        target_kind(self.list)
    }
}

impl View {
    /// All that is on the lists, and what a caller may do with it.
    pub(super) fn describe_targets(&self, identity: &Identity) -> Vec<DescribedTarget> {
        let permissions = self.permissions(identity);
        let describe = |(list, position, (n, _, exposed)): (List, usize, &(usize, usize, Box<str>))| {
            let own = self.own_name(list, exposed);
            let name = ResolvedName { member: *n, own, listed: Some((list, position)) };
            let judgement = match &permissions {
                None => Judgement { access: Access::Allowed, rule: None },
                Some(permissions) => permissions.judge(self, target_kind(list), &name),
            };
            let upstream = Arc::clone(self.members[*n].upstream.name());
            DescribedTarget { list, exposed: exposed.clone(), upstream, own: own.into(), judgement }
        };
        let entries = List::ALL.into_iter().flat_map(|list| {
            self.lists[list as usize].entries.iter().enumerate().map(move |(position, entry)| (list, position, entry))
        });
        entries.map(describe).collect()
    }
}

/// Calls `judge` with a name as rules see it.
pub(super) fn with_target<T>(
    view: &View,
    kind: TargetKind,
    name: &ResolvedName<'_>,
    judge: impl FnOnce(&RuleTarget<'_>) -> T,
) -> T {
    let mut names = vec![name.own];
    let is_template = matches!(name.listed, Some((List::Templates, _)));
    let mut granting = names.len();
    if kind == TargetKind::Resources && !is_template {
        // A template denies what it may expand to in any way, and grants only what it can mean.
        let (strict, loose): (Vec<&str>, Vec<&str>) =
            view.templates_of(name.member, name.own).partition(|template| is_expansion(template, name.own));
        granting += strict.len();
        names.extend(strict.into_iter().chain(loose));
        // Servers resolve dot segments, patterns compare text: nothing grants a path that leaves its folder.
        if name.listed.is_none() && has_dot_segment(name.own) {
            granting = 0;
        }
    }
    judge(&RuleTarget { kind, upstream: view.members[name.member].upstream.name(), names: &names, granting })
}
