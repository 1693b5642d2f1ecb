//! "Why not?": the ten steps by which something of a server comes to be seen by a client, and which of them fails.

use std::sync::Arc;

use serde_json::{Value, json};

use super::api::{AdminRequest, ApiAnswer, ApiError, ApiResult};
use super::config_file::FileText;
use super::groups::asked_revision;
use super::{sessions, text_member};
use crate::config::nearest;
use crate::dialect::{Revision, describe_translation};
use crate::gateway::{Group, GroupMember, View};
use crate::inbound::Inbound;
use crate::upstream::{HealthPhase, List, Upstream};

/// The steps so far. After the first that fails, the others are not asked.
#[derive(Debug, Default)]
struct Steps {
    steps: Vec<Value>,
    has_failed: bool,
    /// The file that decides.
    file: Option<FileText>,
}

/// A table of the file, and a key in it.
type Place<'p> = (&'p str, Option<&'p str>);

/// What is looked for.
struct Sought {
    list: List,
    server: Arc<Upstream>,
    own: String,
}

/// The steps in their order, for those that are not asked.
const STEPS: [&str; 10] = [
    "the group exists",
    "the group has the server",
    "the server is ready",
    "the list was read",
    "the list has it",
    "no filter leaves it out",
    "nothing else has its name",
    "it keeps its name",
    "clients of the revision see it",
    "this session sees it",
];

impl Steps {
    fn pass(&mut self, what: impl Into<String>, place: Place<'_>) {
        self.push(true, &what.into(), place);
    }

    fn fail(&mut self, what: impl Into<String>, place: Place<'_>) {
        self.push(false, &what.into(), place);
    }

    fn push(&mut self, ok: bool, what: &str, (table, key): Place<'_>) {
        self.has_failed |= !ok;
        let place = self.file.as_ref().and_then(|file| file.place(table, key));
        self.steps.push(json!({ "ok": ok, "what": what, "where": place }));
    }

    /// A step that nobody asked for.
    fn leave_out(&mut self, what: &str) {
        self.steps.push(json!({ "ok": null, "what": what, "where": null }));
    }

    fn finish(mut self, group: &str, name: &str) -> Value {
        for what in STEPS.iter().skip(self.steps.len()) {
            self.leave_out(what);
        }
        json!({ "group": group, "name": name, "there": !self.has_failed, "steps": self.steps })
    }
}

pub(super) fn why(request: &AdminRequest) -> ApiResult {
    let inbound = request.console.inbound()?;
    let (group_name, revision) = (request.parameter(0), asked_revision(request)?);
    let name = request.query("name").ok_or_else(|| ApiError::invalid("name is missing"))?;
    let mut steps = Steps { file: FileText::read(&request.console), ..Steps::default() };
    let table = format!("groups.{group_name}");
    let servers: Place<'_> = (&table, Some("servers"));
    let Some(group) = inbound.gateway.group(Some(group_name)) else {
        let groups = inbound.gateway.groups();
        let known: Vec<&str> = groups.iter().map(|group| &**group.name()).collect();
        let near = nearest(group_name, &known).map(|near| format!("; did you mean {near}?"));
        steps.fail(format!("there is no group {group_name}{}", near.unwrap_or_default()), ("groups", None));
        return Ok(ApiAnswer::json(&steps.finish(group_name, name)));
    };
    steps.pass(format!("there is a group {group_name}"), (&table, None));
    let asked_view = Arc::clone(&group.view(revision));
    let Some(sought) = seek(&inbound, &asked_view, name) else {
        let what = format!("no server has {name:?}, and it begins with the name of none");
        steps.fail(what, servers);
        return Ok(ApiAnswer::json(&steps.finish(group_name, name)));
    };
    let server = sought.server.name();
    if !asked_view.config.servers.contains(server) {
        let what = format!("{server} is not among the servers of {group_name}");
        steps.fail(what, servers);
        return Ok(ApiAnswer::json(&steps.finish(group_name, name)));
    }
    steps.pass(format!("{group_name} has {server}"), servers);
    // Where only clients of the other era see it, all steps but that of the revision are passed.
    let other = Revision::all().find(|other| other.is_bridged_to(revision));
    let other_view = other.map(|other| Arc::clone(&group.view(other)));
    let is_shown = |view: &View| exposed_name(view, &sought).is_some();
    let only_other = other_view.filter(|other| !is_shown(&asked_view) && is_shown(other));
    let view = only_other.as_ref().unwrap_or(&asked_view);
    let found = walk_lists(&mut steps, view, &sought, name);
    if let Some(exposed) = found {
        walk_client(&mut steps, request, &group, (revision, only_other.is_some()), &sought, &exposed)?;
    }
    Ok(ApiAnswer::json(&steps.finish(group_name, name)))
}

/// Which item of which server a name stands for, as a client or a server has it.
fn seek(inbound: &Inbound, view: &View, name: &str) -> Option<Sought> {
    for list in List::ALL {
        if let Some(entry) = view.entries(list).find(|entry| entry.exposed == name) {
            return Some(Sought { list, server: Arc::clone(&entry.member.upstream), own: entry.own.into_owned() });
        }
    }
    let upstreams = inbound.gateway.upstreams();
    let guess = if name.contains("://") { List::Resources } else { List::Tools };
    let split = name.strip_prefix("rialto://").and_then(|rest| rest.split_once('/')).or_else(|| name.split_once("__"));
    if let Some((server, own)) = split
        && let Some(server) = upstreams.iter().find(|upstream| **upstream.name() == *server)
    {
        let list = lists_with(server, own).next().unwrap_or(guess);
        return Some(Sought { list, server: Arc::clone(server), own: own.to_owned() });
    }
    // Those of the group first: another server may have the same name.
    let is_member = |upstream: &&Arc<Upstream>| view.config.servers.contains(upstream.name());
    let (members, others): (Vec<_>, Vec<_>) = upstreams.iter().partition(is_member);
    for server in members.iter().chain(&others) {
        if let Some(list) = lists_with(server, name).next() {
            return Some(Sought { list, server: Arc::clone(server), own: name.to_owned() });
        }
    }
    let is_near = |server: &&&Arc<Upstream>| nearest_item(server, guess, name).is_some();
    let only = members.first().filter(|_| members.len() == 1);
    let server = only.or_else(|| members.iter().find(is_near))?;
    Some(Sought { list: guess, server: Arc::clone(server), own: name.to_owned() })
}

/// The lists of a server that have an item.
fn lists_with<'s>(server: &'s Upstream, own: &'s str) -> impl Iterator<Item = List> + 's {
    let has = move |list: &List| {
        server.open_legs().iter().any(|leg| {
            let state = leg.state();
            let listed = state.list(*list);
            listed.is_some_and(|listed| {
                listed.items.iter().any(|item| text_member(item, list.item_key()).as_deref() == Some(own))
            })
        })
    };
    List::ALL.into_iter().filter(has)
}

fn nearest_item(server: &Upstream, list: List, name: &str) -> Option<String> {
    let state = server.state();
    let names: Vec<String> =
        state.list(list)?.items.iter().filter_map(|item| text_member(item, list.item_key())).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    nearest(name, &names).map(str::to_owned)
}

fn exposed_name(view: &View, sought: &Sought) -> Option<String> {
    let is_it = |entry: &crate::gateway::ViewEntry<'_>| {
        entry.own == sought.own && entry.member.upstream.name() == sought.server.name()
    };
    view.entries(sought.list).find(is_it).map(|entry| entry.exposed.to_owned())
}

/// The steps of the server and its lists; the name that clients see, if all are passed.
fn walk_lists(steps: &mut Steps, view: &View, sought: &Sought, name: &str) -> Option<String> {
    let member = view.members.iter().find(|member| member.upstream.name() == sought.server.name())?;
    let (server, state, list) = (sought.server.name(), &member.state, sought.list);
    let (kind, table) = (list.result_key(), format!("servers.{server}"));
    let place: Place<'_> = (&table, None);
    let listed = state.list(list);
    let is_away = matches!(state.health.phase, HealthPhase::Starting | HealthPhase::Down);
    let reason = state.health.failure.as_ref().map(|failure| format!(": {failure}")).unwrap_or_default();
    match (is_away, listed) {
        (true, None) => {
            steps.fail(format!("{server} is {}{reason}", state.health.phase), place);
            return None;
        }
        (true, Some(_)) => {
            steps.pass(format!("{server} is {}; its lists of before are served", state.health.phase), place);
        }
        (false, _) => steps.pass(format!("{server} is {}", state.health.phase), place),
    }
    let Some(listed) = listed else {
        let what = match state.list_errors.get(kind) {
            Some(why) => format!("{server} did not return its {kind}: {why}"),
            None if state.has_capability(list.capability()) == Some(false) => format!("{server} declares no {kind}"),
            None => format!("{server} has not returned its {kind} yet"),
        };
        steps.fail(what, place);
        return None;
    };
    steps.pass(format!("{server} returned {} {kind}", listed.items.len()), place);
    let is_listed = listed.items.iter().any(|item| text_member(item, list.item_key()).as_deref() == Some(&sought.own));
    if !is_listed {
        let near = nearest_item(&sought.server, list, &sought.own);
        let near = near.map(|near| format!("; it has {near:?}")).unwrap_or_default();
        steps.fail(format!("{server} has no {:?} among its {kind}{near}", sought.own), place);
        return None;
    }
    steps.pass(format!("{server} lists {:?}", sought.own), place);
    walk_names(steps, view, member, sought, name)
}

/// The steps of filters and names.
fn walk_names(steps: &mut Steps, view: &View, member: &GroupMember, sought: &Sought, name: &str) -> Option<String> {
    let (list, group) = (sought.list, &view.config.name);
    let plain = view.plain_name(list, member.upstream.name(), &sought.own);
    let filter_key = match list {
        List::Tools => "tools",
        List::Prompts => "prompts",
        List::Resources | List::Templates => "resources",
    };
    let table = format!("groups.{group}");
    let (filter, naming): (Place<'_>, Place<'_>) = ((&table, Some(filter_key)), (&table, Some("naming")));
    if let Some((key, pattern)) = view.config.filter(list).keeps_out(&[&plain, &sought.own]) {
        let what = match pattern {
            Some(pattern) => format!("{filter_key}.{key} of {group} leaves it out by {pattern:?}"),
            None => format!("{filter_key}.{key} of {group} does not name it"),
        };
        steps.fail(what, filter);
        return None;
    }
    steps.pass(format!("no filter of {group} leaves it out"), filter);
    let Some(exposed) = exposed_name(view, sought) else {
        let winner = view.entries(list).find(|entry| entry.exposed == plain);
        let winner = winner.map_or_else(|| "another server".into(), |entry| Arc::clone(entry.member.upstream.name()));
        steps.fail(format!("{winner} has the same name, {plain:?}, and comes first"), naming);
        return None;
    };
    steps.pass("nothing else has its name", naming);
    match exposed == plain {
        false if name != exposed && name != sought.own => {
            steps.fail(format!("{plain:?} is too long or has unusual characters; clients see {exposed:?}"), naming);
            return None;
        }
        _ if exposed == name => steps.pass("clients see it by this name", naming),
        _ => steps.pass(format!("clients see it as {exposed:?}"), naming),
    }
    Some(exposed)
}

/// The steps of the client: its revision and its session.
fn walk_client(
    steps: &mut Steps,
    request: &AdminRequest,
    group: &Group,
    (revision, is_only_other): (Revision, bool),
    sought: &Sought,
    exposed: &str,
) -> Result<(), ApiError> {
    let server = sought.server.name();
    let table = format!("servers.{server}");
    if is_only_other {
        let what = format!("{server} does not list it on the leg that serves clients of {revision}");
        steps.fail(what, (&table, None));
        return Ok(());
    }
    let spoken = sought.server.leg_for(revision).leg.state().revision;
    let words = spoken.map(|spoken| describe_translation(revision, spoken)).unwrap_or_default();
    let what = match words.is_empty() {
        true => format!("clients of {revision} see it as it is"),
        false => format!("clients of {revision} see it; translated: {}", words.join(", ")),
    };
    steps.pass(what, (&table, None));
    let Some(session) = request.query("session") else {
        steps.leave_out("no session was named");
        return Ok(());
    };
    let session = sessions::find(&*request.console.inbound()?, session)?;
    let identity = session.latest_identity();
    let is_shown = match sought.list {
        List::Tools => group.shows_tool(revision, &identity, exposed),
        List::Resources | List::Templates => group.shows_resource(revision, &identity, exposed),
        List::Prompts => true,
    };
    let own_table = format!("groups.{}", session.group());
    match **session.group() == **group.name() {
        false => steps.fail(format!("the session is in group {}", session.group()), (&own_table, None)),
        true if !is_shown => {
            steps.fail(format!("the rules do not let {} see it", identity.principal), ("policy", None));
        }
        true => steps.pass("this session sees it", ("policy", None)),
    }
    Ok(())
}
