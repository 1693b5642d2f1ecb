//! A view as one caller sees it. What the caller may not use is not found, as if it did not exist.

use std::sync::Arc;

use super::list_pages::ListPage;
use super::permissions::{Permissions, target_kind, with_target};
use super::sealing::Seal;
use super::view::{GroupMember, ResolvedName, View, combine_fingerprints};
use crate::call::{Answer, Call, ListFingerprints};
use crate::dialect::Revision;
use crate::dialect::classify::method_not_found;
use crate::failure::Failure;
use crate::identity::Identity;
use crate::policy::rules::{Access, Decision, JudgedArguments, RuleTarget, TargetKind};
use crate::protocol::{ErrorObject, Key, Method, Raw, code};
use crate::upstream::List;

/// A view as one caller sees it.
#[derive(Debug)]
pub(super) struct CallerView<'v> {
    view: &'v Arc<View>,
    /// `None` where there are no rules.
    permissions: Option<Arc<Permissions>>,
}

/// Something that the caller may use, perhaps with other arguments or with more scopes.
#[derive(Debug, Clone, Copy)]
pub(super) struct FoundTarget<'v> {
    pub(super) member: &'v GroupMember,
    /// The member's own name or URI.
    pub(super) own: &'v str,
    name: ResolvedName<'v>,
    kind: TargetKind,
    access: Access,
}

/// A call that may not be made, and by what.
#[derive(Debug)]
pub(super) struct RefusedCall {
    /// What the client is told.
    pub(super) answer: Answer,
    /// The rule that decided; `None` for the default.
    pub(super) rule: Option<Arc<str>>,
    /// The server of the target, and its own name there.
    pub(super) target: (Arc<str>, Box<str>),
}

/// A target that exists and that the caller may not know of.
#[derive(Debug)]
pub(super) struct HiddenTarget<'v> {
    pub(super) server: &'v Arc<str>,
    pub(super) own: Box<str>,
    /// The rule that hides it; `None` for the default.
    pub(super) rule: Option<Arc<str>>,
}

impl<'v> CallerView<'v> {
    pub(super) fn new(view: &'v Arc<View>, identity: &Identity) -> Self {
        Self { view, permissions: view.permissions(identity) }
    }

    /// The view as it is for everybody.
    pub(super) fn view(&self) -> &'v Arc<View> {
        self.view
    }

    /// Whether there are rules.
    pub(super) fn has_rules(&self) -> bool {
        self.permissions.is_some()
    }

    /// The tool or prompt of that name.
    pub(super) fn find_by_name<'n>(&'n self, list: List, name: &'n str) -> Option<FoundTarget<'n>> {
        self.admit(target_kind(list), self.view.resolve_name(list, name)?)
    }

    /// The resource or template of that URI.
    pub(super) fn find_by_uri<'n>(&'n self, uri: &'n str) -> Option<FoundTarget<'n>> {
        self.admit(TargetKind::Resources, self.view.resolve_uri(uri)?)
    }

    /// The extension method of that name, at the only member.
    pub(super) fn find_method<'n>(&'n self, method: &'n str) -> Option<FoundTarget<'n>> {
        self.view.single_member()?;
        self.admit(TargetKind::Methods, ResolvedName { member: 0, own: method, listed: None })
    }

    fn admit<'n>(&'n self, kind: TargetKind, name: ResolvedName<'n>) -> Option<FoundTarget<'n>> {
        let access = match &self.permissions {
            None => Access::Allowed,
            Some(permissions) => permissions.access(self.view, kind, &name),
        };
        let found = || FoundTarget { member: &self.view.members[name.member], own: name.own, name, kind, access };
        (access != Access::Hidden).then(found)
    }

    /// Whether the caller may do anything with the member at this index.
    pub(super) fn may_use_member(&self, member: usize) -> bool {
        self.permissions.as_ref().is_none_or(|permissions| permissions.may_use_member(member))
    }

    /// The members of which the caller may use something.
    pub(super) fn members(&self) -> impl Iterator<Item = &'v GroupMember> {
        let members = self.view.members.iter().enumerate();
        members.filter(|(n, _)| self.may_use_member(*n)).map(|(_, member)| member)
    }

    /// The answer to a call that may not be made as it is: it lacks scopes, or has arguments that no rule allows.
    pub(super) fn refusal(&self, call: &Call, found: &FoundTarget<'_>) -> Option<RefusedCall> {
        if found.access == Access::Allowed {
            return None;
        }
        let (decision, rule) = self.decide(call, found)?;
        let answer = match decision {
            Decision::Allowed => return None,
            Decision::StepUp(scopes) => Answer::error(Failure::insufficient_scope(scopes).into()),
            Decision::Denied(pointer) => denied(call, &pointer),
            Decision::Hidden => Answer::error(method_not_found(&call.method)),
        };
        Some(RefusedCall { answer, rule, target: (Arc::clone(found.member.upstream.name()), found.own.into()) })
    }

    /// The rule by which a call may be made or not; `None` for the default, and where there are no rules.
    pub(super) fn deciding_rule(&self, call: &Call, found: &FoundTarget<'_>) -> Option<Arc<str>> {
        self.decide(call, found)?.1
    }

    /// What the rules say of a call; `None` where there are none.
    fn decide(&self, call: &Call, found: &FoundTarget<'_>) -> Option<(Decision, Option<Arc<str>>)> {
        let permissions = self.permissions.as_ref()?;
        let has_arguments = matches!(call.method, Method::ToolsCall | Method::PromptsGet);
        let params = call.params.as_ref().filter(|_| has_arguments);
        let given = params.and_then(|params| params.member(Key::Arguments));
        let arguments = match params.and_then(|params| params.find_duplicate(&[Key::Arguments])) {
            _ if !has_arguments => JudgedArguments::Assumed,
            Some(_) => JudgedArguments::Ambiguous,
            None => JudgedArguments::Given(given.as_ref()),
        };
        let group = &*self.view.config.name;
        let decide = |target: &RuleTarget<'_>| {
            let (decision, rule) = permissions.class().decide_by_rule(group, target, arguments);
            (decision, rule.cloned())
        };
        Some(with_target(self.view, found.kind, &found.name, decide))
    }

    /// Whether the caller may use an extension method as it is, without another scope.
    pub(super) fn may_use_method(&self, method: &str) -> bool {
        self.find_method(method).is_some_and(|found| found.access == Access::Allowed)
    }

    /// The target of a call if it exists and is hidden from the caller.
    pub(super) fn hidden_target(&self, call: &Call) -> Option<HiddenTarget<'v>> {
        let permissions = self.permissions.as_ref()?;
        let text = |key| call.params.as_ref().and_then(|params| params.text_of(key));
        let by_name = |list| text(Key::Name).map(|name| (list, name));
        let named = match call.method {
            Method::ToolsCall => Some(by_name(List::Tools)?),
            Method::PromptsGet => Some(by_name(List::Prompts)?),
            _ => None,
        };
        let uri = if named.is_none() { text(Key::Uri)? } else { "".into() };
        let (kind, name) = match &named {
            Some((list, name)) => (target_kind(*list), self.view.resolve_name(*list, name)?),
            None => (TargetKind::Resources, self.view.resolve_uri(&uri)?),
        };
        let group = &*self.view.config.name;
        let hides = |target: &RuleTarget<'_>| {
            permissions.class().decide_by_rule(group, target, JudgedArguments::Assumed).1.cloned()
        };
        let rule = with_target(self.view, kind, &name, hides);
        Some(HiddenTarget { server: self.view.members[name.member].upstream.name(), own: name.own.into(), rule })
    }

    /// A page of a list.
    ///
    /// # Errors
    /// When `offset` is not the start of a page.
    pub(super) fn page(&self, list: List, offset: usize, to: Revision, seal: &Seal) -> Result<Raw, ErrorObject> {
        self.view.page(&ListPage { list, offset, permissions: self.permissions.as_deref() }, to, seal)
    }

    /// Fingerprint of what the caller sees of a list, including the change announcements of upstreams.
    pub(super) fn list_fingerprint(&self, list: List) -> u64 {
        match &self.permissions {
            None => self.view.list_fingerprint(list),
            Some(permissions) => permissions.list_fingerprint(self.view, list),
        }
    }

    /// Content fingerprints of what the caller sees, comparable between nodes.
    pub(super) fn list_fingerprints(&self) -> ListFingerprints {
        match &self.permissions {
            None => self.view.list_fingerprints(),
            Some(permissions) => {
                combine_fingerprints(List::ALL.map(|list| permissions.content_fingerprint(self.view, list)))
            }
        }
    }
}

/// The answer to a call with an argument that no rule allows. A tool result, so that the model reads it; it does not say
/// which values are allowed.
fn denied(call: &Call, pointer: &str) -> Answer {
    let text = format!("Denied: the argument at {pointer:?} has a value that you may not use here");
    if call.method != Method::ToolsCall {
        return Answer::error(ErrorObject::new(code::INVALID_PARAMS, format!("Invalid params: {text}")));
    }
    let content = serde_json::json!([{ "type": "text", "text": text }]);
    Answer::result(Raw::of(&serde_json::json!({ "content": content, "isError": true, "resultType": "complete" })))
}
