//! How revisions differ. The only place that compares them.
//!
//! Pure, like [`protocol`](crate::protocol). [`FACTS`] holds what is true of each revision;
//! [`lift`] reads what a client sends, [`lower`] writes what it gets, [`headers`] holds the headers that
//! mirror a body, [`tasks`] what each era calls a task. Everything else asks a fact by its name and never which revision it is.

pub mod classify;
mod describe;
mod downgrade;
pub mod headers;
pub mod meta;
pub mod server_requests;
pub mod tasks;
pub mod to_client;
pub mod to_upstream;

use std::fmt;

use crate::protocol::Method;

pub use describe::translation;

/// A dated version of the protocol.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Revision {
    /// 2024-11-05: HTTP+SSE.
    V2024_11_05,
    /// 2025-03-26: Streamable HTTP, batches, audio, tool annotations.
    V2025_03_26,
    /// 2025-06-18: structured content, elicitation, no batches.
    V2025_06_18,
    /// 2025-11-25: priming events, icons, url elicitation.
    V2025_11_25,
    /// 2026-07-28: stateless, every request describes itself.
    V2026_07_28,
}

/// The two families of revisions.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Era {
    /// Opened by `initialize`, remembered as a session, requests both ways.
    Handshake,
    /// Every request stands by itself, requests from the client only.
    PerRequest,
}

/// What is true of one revision.
#[derive(Debug)]
pub struct RevisionFeatures {
    /// The revision itself.
    pub revision: Revision,
    /// Its name on the wire.
    pub name: &'static str,
    /// The family it belongs to.
    pub era: Era,
    /// It opens with a handshake, and what follows belongs to a session.
    pub sessions: bool,
    /// A body or a line may hold an array of messages.
    pub batches: bool,
    /// A stream opens with an event that has an id and no data.
    pub primed: bool,
    /// The server names its completion as a capability.
    pub completions_capability: bool,
    /// Progress may carry a text.
    pub progress_message: bool,
    /// Tools may carry annotations.
    pub tool_annotations: bool,
    /// Content may be audio.
    pub audio: bool,
    /// Things have a `title` for people beside their name.
    pub titles: bool,
    /// Results of tools may have structured content, tools an output schema.
    pub structured: bool,
    /// Content may be a link to a resource.
    pub resource_links: bool,
    /// Things may have icons; implementations a description and a site.
    pub icons: bool,
    /// Tools say whether they may run as tasks.
    pub tool_tasks: bool,
    /// Servers may ask people to fill in a form.
    pub elicitation: bool,
    /// Questions may send people to an address, give choices titles, and sample with tools.
    pub rich_questions: bool,
    /// Structured content and output schemas may be of any type, not objects only.
    pub any_structured: bool,
    /// The code that says that a resource does not exist.
    pub resource_not_found: i64,
}

/// Every revision, oldest first.
pub const FACTS: [RevisionFeatures; 5] = [
    RevisionFeatures {
        revision: Revision::V2024_11_05,
        name: "2024-11-05",
        era: Era::Handshake,
        sessions: true,
        batches: false,
        primed: false,
        completions_capability: false,
        progress_message: false,
        tool_annotations: false,
        audio: false,
        titles: false,
        structured: false,
        resource_links: false,
        icons: false,
        tool_tasks: false,
        elicitation: false,
        rich_questions: false,
        any_structured: false,
        resource_not_found: -32002,
    },
    RevisionFeatures {
        revision: Revision::V2025_03_26,
        name: "2025-03-26",
        era: Era::Handshake,
        sessions: true,
        batches: true,
        primed: false,
        completions_capability: true,
        progress_message: true,
        tool_annotations: true,
        audio: true,
        titles: false,
        structured: false,
        resource_links: false,
        icons: false,
        tool_tasks: false,
        elicitation: false,
        rich_questions: false,
        any_structured: false,
        resource_not_found: -32002,
    },
    RevisionFeatures {
        revision: Revision::V2025_06_18,
        name: "2025-06-18",
        era: Era::Handshake,
        sessions: true,
        batches: false,
        primed: false,
        completions_capability: true,
        progress_message: true,
        tool_annotations: true,
        audio: true,
        titles: true,
        structured: true,
        resource_links: true,
        icons: false,
        tool_tasks: false,
        elicitation: true,
        rich_questions: false,
        any_structured: false,
        resource_not_found: -32002,
    },
    RevisionFeatures {
        revision: Revision::V2025_11_25,
        name: "2025-11-25",
        era: Era::Handshake,
        sessions: true,
        batches: false,
        primed: true,
        completions_capability: true,
        progress_message: true,
        tool_annotations: true,
        audio: true,
        titles: true,
        structured: true,
        resource_links: true,
        icons: true,
        tool_tasks: true,
        elicitation: true,
        rich_questions: true,
        any_structured: false,
        resource_not_found: -32002,
    },
    RevisionFeatures {
        revision: Revision::V2026_07_28,
        name: "2026-07-28",
        era: Era::PerRequest,
        sessions: false,
        batches: false,
        primed: false,
        completions_capability: true,
        progress_message: true,
        tool_annotations: true,
        audio: true,
        titles: true,
        structured: true,
        resource_links: true,
        icons: true,
        tool_tasks: false,
        elicitation: true,
        rich_questions: true,
        any_structured: true,
        resource_not_found: -32602,
    },
];

// === impl Revision ===

impl Revision {
    /// Whether what is said in the one has to be translated across eras for the other.
    pub fn is_bridged_to(self, other: Self) -> bool {
        self.era() != other.era()
    }

    /// How many there are.
    pub const COUNT: usize = FACTS.len();
    /// The newest revision.
    pub const NEWEST: Self = Self::V2026_07_28;
    /// The newest revision that opens with a handshake.
    pub const NEWEST_HANDSHAKE: Self = Self::V2025_11_25;

    /// What is true of this revision.
    pub fn facts(self) -> &'static RevisionFeatures {
        &FACTS[self as usize]
    }

    /// The revision of that name.
    pub fn parse(name: &str) -> Option<Self> {
        let facts = FACTS.iter().find(|facts| facts.name == name);
        facts.map(|facts| facts.revision)
    }

    /// The family it belongs to.
    pub fn era(self) -> Era {
        self.facts().era
    }

    /// The revisions of one family, oldest first.
    pub fn of(era: Era) -> impl Iterator<Item = Self> {
        FACTS.iter().filter(move |facts| facts.era == era).map(|facts| facts.revision)
    }
}

impl fmt::Display for Revision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.facts().name)
    }
}

/// The revision to answer a handshake with: the proposed one where it has a handshake, the newest
/// that has one otherwise.
pub fn negotiate(proposed: &str) -> Revision {
    Revision::parse(proposed).filter(|revision| revision.era() == Era::Handshake).unwrap_or(Revision::NEWEST_HANDSHAKE)
}

/// Whether a method exists for clients of an era. A method that we do not know may be an
/// extension's, so it exists as far as we can tell.
pub fn has_method(era: Era, method: &Method) -> bool {
    match era {
        Era::Handshake => !matches!(method, Method::Discover | Method::Listen),
        Era::PerRequest => match method {
            Method::Initialize | Method::Ping | Method::SetLevel | Method::Subscribe | Method::Unsubscribe => false,
            Method::Other(name) => !matches!(name.as_ref(), "tasks/list" | "tasks/result"),
            _ => true,
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_is_in_order() {
        for (n, facts) in FACTS.iter().enumerate() {
            assert_eq!(facts.revision as usize, n);
            assert_eq!(Revision::parse(facts.name), Some(facts.revision));
            assert_eq!(facts.revision.facts().name, facts.name);
        }
        assert!(FACTS.is_sorted_by_key(|facts| facts.name));
    }

    #[test]
    fn a_handshake_is_answered_with_what_was_proposed_or_the_newest() {
        for (proposed, answered) in [
            ("2024-11-05", "2024-11-05"),
            ("2025-03-26", "2025-03-26"),
            ("2025-06-18", "2025-06-18"),
            ("2025-11-25", "2025-11-25"),
            ("2026-07-28", "2025-11-25"),
            ("1999-01-01", "2025-11-25"),
            ("", "2025-11-25"),
        ] {
            assert_eq!(negotiate(proposed).to_string(), answered, "{proposed}");
        }
    }
}
