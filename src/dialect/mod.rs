//! How revisions differ. The only module that compares revisions or eras.
//!
//! Pure, like [`protocol`](crate::protocol). [`FEATURES`] is the table of revisions; [`classify`] checks
//! client messages, [`to_client`] and [`to_upstream`] convert payloads, [`headers`] mirrors a body in
//! headers, [`tasks`] covers the two kinds of tasks. Other modules ask a [`Revision`] for a property by name,
//! never which revision it is.

pub mod classify;
mod describe;
mod downgrade;
pub mod explain;
pub mod headers;
mod legs;
pub mod meta;
pub mod server_requests;
pub mod task_details;
pub mod tasks;
pub mod to_client;
pub mod to_upstream;

use std::fmt;

use crate::protocol::Method;

pub use describe::{bridge_of, describe_translation};
pub use legs::{LegFacts, LegRule};

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

/// The two eras of the protocol.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Era {
    /// Opened by `initialize`; sessions; requests in both directions.
    Handshake,
    /// Every request carries its own context; requests from the client only.
    PerRequest,
}

/// The features of one revision.
#[derive(Debug)]
pub struct RevisionFeatures {
    /// The revision.
    pub revision: Revision,
    /// The name on the wire.
    pub name: &'static str,
    /// The era.
    pub era: Era,
    /// Opened by `initialize`, followed by messages of a session.
    pub sessions: bool,
    /// A body or line may hold a batch.
    pub batches: bool,
    /// An SSE stream begins with a priming event: an id and no data.
    pub priming_events: bool,
    /// Servers declare the capability `completions`.
    pub completions_capability: bool,
    /// Progress notifications may have a `message`.
    pub progress_message: bool,
    /// Tools may have `annotations`.
    pub tool_annotations: bool,
    /// Content may be audio.
    pub audio: bool,
    /// Tools, prompts, resources and implementations may have a `title`.
    pub titles: bool,
    /// Tool results may have `structuredContent`, tools an `outputSchema`.
    pub structured_content: bool,
    /// Content may be a resource link.
    pub resource_links: bool,
    /// Items may have `icons`; implementations a description and a website.
    pub icons: bool,
    /// Tools declare whether they run as tasks.
    pub tool_tasks: bool,
    /// Servers may send `elicitation/create` with a form.
    pub elicitation: bool,
    /// Elicitation has URL mode and titled choices; sampling has tools.
    pub rich_server_requests: bool,
    /// Structured content and output schemas may be of any type, not only objects.
    pub any_structured_content: bool,
    /// A missing scope is told by HTTP status 403 and a challenge, so that the client asks for it.
    pub scope_challenges: bool,
    /// The error code for a resource that does not exist.
    pub resource_not_found: i64,
}

/// Every revision, oldest first.
pub const FEATURES: [RevisionFeatures; 5] = [
    RevisionFeatures {
        revision: Revision::V2024_11_05,
        name: "2024-11-05",
        era: Era::Handshake,
        sessions: true,
        batches: false,
        priming_events: false,
        completions_capability: false,
        progress_message: false,
        tool_annotations: false,
        audio: false,
        titles: false,
        structured_content: false,
        resource_links: false,
        icons: false,
        tool_tasks: false,
        elicitation: false,
        rich_server_requests: false,
        any_structured_content: false,
        scope_challenges: false,
        resource_not_found: -32002,
    },
    RevisionFeatures {
        revision: Revision::V2025_03_26,
        name: "2025-03-26",
        era: Era::Handshake,
        sessions: true,
        batches: true,
        priming_events: false,
        completions_capability: true,
        progress_message: true,
        tool_annotations: true,
        audio: true,
        titles: false,
        structured_content: false,
        resource_links: false,
        icons: false,
        tool_tasks: false,
        elicitation: false,
        rich_server_requests: false,
        any_structured_content: false,
        scope_challenges: false,
        resource_not_found: -32002,
    },
    RevisionFeatures {
        revision: Revision::V2025_06_18,
        name: "2025-06-18",
        era: Era::Handshake,
        sessions: true,
        batches: false,
        priming_events: false,
        completions_capability: true,
        progress_message: true,
        tool_annotations: true,
        audio: true,
        titles: true,
        structured_content: true,
        resource_links: true,
        icons: false,
        tool_tasks: false,
        elicitation: true,
        rich_server_requests: false,
        any_structured_content: false,
        scope_challenges: false,
        resource_not_found: -32002,
    },
    RevisionFeatures {
        revision: Revision::V2025_11_25,
        name: "2025-11-25",
        era: Era::Handshake,
        sessions: true,
        batches: false,
        priming_events: true,
        completions_capability: true,
        progress_message: true,
        tool_annotations: true,
        audio: true,
        titles: true,
        structured_content: true,
        resource_links: true,
        icons: true,
        tool_tasks: true,
        elicitation: true,
        rich_server_requests: true,
        any_structured_content: false,
        scope_challenges: true,
        resource_not_found: -32002,
    },
    RevisionFeatures {
        revision: Revision::V2026_07_28,
        name: "2026-07-28",
        era: Era::PerRequest,
        sessions: false,
        batches: false,
        priming_events: false,
        completions_capability: true,
        progress_message: true,
        tool_annotations: true,
        audio: true,
        titles: true,
        structured_content: true,
        resource_links: true,
        icons: true,
        tool_tasks: false,
        elicitation: true,
        rich_server_requests: true,
        any_structured_content: true,
        scope_challenges: true,
        resource_not_found: -32602,
    },
];

// === impl Revision ===

impl Revision {
    /// Whether messages between the two revisions are translated across eras.
    pub fn is_bridged_to(self, other: Self) -> bool {
        self.era() != other.era()
    }

    /// The number of revisions.
    pub const COUNT: usize = FEATURES.len();
    /// The newest revision.
    pub const NEWEST: Self = Self::V2026_07_28;
    /// The newest handshake-era revision.
    pub const NEWEST_HANDSHAKE: Self = Self::V2025_11_25;

    /// The row of this revision in [`FEATURES`].
    pub fn features(self) -> &'static RevisionFeatures {
        &FEATURES[self as usize]
    }

    /// The dated name on the wire.
    pub fn as_str(self) -> &'static str {
        self.features().name
    }

    /// Whether a connection is opened by `initialize`.
    pub fn opens_with_handshake(self) -> bool {
        self.features().sessions
    }

    /// Whether the server keeps state for one client from request to request.
    pub fn has_sessions(self) -> bool {
        self.features().sessions
    }

    /// Whether a server may send requests to the client while a call runs.
    pub fn accepts_server_requests(self) -> bool {
        self.features().sessions
    }

    /// Whether a server asks for input by ending the call with an `input_required` result.
    pub fn asks_by_result(self) -> bool {
        !self.features().sessions
    }

    /// Whether changes are announced on the stream of a `subscriptions/listen` call, not by
    /// `resources/subscribe` and notifications of the session.
    pub fn listens_by_call(self) -> bool {
        !self.features().sessions
    }

    /// Whether `logging/setLevel` sets the log level of a session; otherwise each request carries one.
    pub fn has_session_log_level(self) -> bool {
        self.features().sessions
    }

    /// Whether the method `ping` exists.
    pub fn has_ping(self) -> bool {
        self.features().sessions
    }

    /// Whether every result carries `resultType`, the server's identity and, on lists, a cache hint.
    pub fn has_result_envelope(self) -> bool {
        !self.features().sessions
    }

    /// Whether HTTP headers repeat the method, the name and annotated arguments of a body.
    pub fn mirrors_body_in_headers(self) -> bool {
        !self.features().sessions
    }

    /// Whether a server creates a task only for a call that asks for one.
    pub fn creates_tasks_on_request(self) -> bool {
        self.features().sessions
    }

    /// Whether a tool call may ask for a task with the member `task`.
    pub fn creates_tool_tasks(self) -> bool {
        self.features().tool_tasks
    }

    /// Whether a body or a line may hold a batch of messages.
    pub fn allows_batches(self) -> bool {
        self.features().batches
    }

    /// Whether a client that lacks a scope is told by HTTP status 403 and a challenge.
    pub fn knows_scope_challenges(self) -> bool {
        self.features().scope_challenges
    }

    /// Whether an SSE stream begins with a priming event: an id and no data.
    pub fn sends_priming_events(self) -> bool {
        self.features().priming_events
    }

    /// Whether a server that completes arguments declares the capability `completions`.
    pub fn declares_completions(self) -> bool {
        self.features().completions_capability
    }

    /// The revision with that name.
    pub fn parse(name: impl AsRef<[u8]>) -> Option<Self> {
        let features = FEATURES.iter().find(|features| features.name.as_bytes() == name.as_ref());
        features.map(|features| features.revision)
    }

    /// The era of the revision.
    pub fn era(self) -> Era {
        self.features().era
    }

    /// Every revision, oldest first.
    pub fn all() -> impl Iterator<Item = Self> {
        FEATURES.iter().map(|features| features.revision)
    }

    /// The revisions of one era, oldest first.
    pub fn in_era(era: Era) -> impl Iterator<Item = Self> {
        FEATURES.iter().filter(move |features| features.era == era).map(|features| features.revision)
    }
}

impl fmt::Display for Revision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.features().name)
    }
}

/// The revision to answer `initialize` with: the proposed one if it is of the handshake era, else the newest
/// of that era.
pub fn negotiate(proposed: &str) -> Revision {
    Revision::parse(proposed).filter(|revision| revision.era() == Era::Handshake).unwrap_or(Revision::NEWEST_HANDSHAKE)
}

/// Whether a method exists in an era. Unknown methods may belong to extensions, so they exist in both.
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
    fn features_table_is_in_revision_order() {
        for (n, features) in FEATURES.iter().enumerate() {
            assert_eq!(features.revision as usize, n);
            assert_eq!(Revision::parse(features.name), Some(features.revision));
            assert_eq!(features.revision.as_str(), features.name);
        }
        assert!(FEATURES.is_sorted_by_key(|features| features.name));
    }

    #[test]
    fn handshake_negotiates_the_proposed_revision_or_the_newest() {
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
