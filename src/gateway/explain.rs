//! What a view shows and where it comes from, for operators.

use std::borrow::Cow;

use super::names;
use super::view::{GroupMember, View};
use crate::protocol::Raw;
use crate::upstream::List;

/// One item on a list of a group.
#[derive(Debug)]
pub struct ViewEntry<'v> {
    /// The name or URI that clients see.
    pub exposed: &'v str,
    /// The server's own name or URI.
    pub own: Cow<'v, str>,
    /// The server.
    pub member: &'v GroupMember,
    /// The item as the server sent it.
    pub item: &'v Raw,
}

impl View {
    /// The items on a list, in their order.
    pub fn entries(&self, list: List) -> impl Iterator<Item = ViewEntry<'_>> {
        self.lists[list as usize].entries.iter().filter_map(move |(member, position, exposed)| {
            let member = &self.members[*member];
            let item = member.state.list(list)?.items.get(*position)?;
            let own = item.get(list.item_key())?.text()?.into_owned();
            Some(ViewEntry { exposed, own: own.into(), member, item })
        })
    }

    /// The name that an item of a server would have, were it not too long or taken.
    pub fn plain_name(&self, list: List, server: &str, own: &str) -> String {
        match list {
            List::Tools | List::Prompts if self.config.uses_prefixes() => names::prefixed_name(server, own),
            List::Tools | List::Prompts => own.to_owned(),
            List::Resources | List::Templates => {
                let member = self.members.iter().find(|member| **member.upstream.name() == *server);
                member.map_or_else(|| own.to_owned(), |member| member.name_mapping.expose_uri(own))
            }
        }
    }
}
