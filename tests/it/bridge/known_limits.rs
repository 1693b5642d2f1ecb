//! What does not pass as it is, why, and what is answered instead. The page about bridging and the
//! tests are made from the same rows.

use rialto::dialect::Revision;

use super::variants::{Feature, VARIANTS, Variant};

/// Something that does not pass as it is.
pub struct Limit {
    pub feature: Feature,
    clients: RevisionRange,
    servers: RevisionRange,
    pub fallback: Fallback,
    why: &'static str,
    answer: &'static str,
}

/// What happens instead. Each has a check of its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fallback {
    /// The server does not have it, and says so itself.
    NotThere,
    /// The server learns that the client cannot be asked.
    NotAsked,
    /// The text of a result without its structured part.
    TextOnly,
    /// Progress without its words.
    NoWords,
    /// Nothing is logged before the client chooses a level.
    SilentAtFirst,
    /// A visit has another name, or none.
    Renamed,
    /// Changes of roots are not passed on.
    RootsStay,
    /// Reserved codes are wrapped.
    Wrapped,
}

/// Some revisions, from the first to the last.
#[derive(Clone, Copy)]
struct RevisionRange(Revision, Revision);

const ANY: RevisionRange = RevisionRange(Revision::V2024_11_05, Revision::V2026_07_28);
const HANDSHAKE: RevisionRange = RevisionRange(Revision::V2024_11_05, Revision::V2025_11_25);
const PER_REQUEST: RevisionRange = RevisionRange(Revision::V2026_07_28, Revision::V2026_07_28);
const OLDEST: RevisionRange = RevisionRange(Revision::V2024_11_05, Revision::V2024_11_05);
const TO_2025_03: RevisionRange = RevisionRange(Revision::V2024_11_05, Revision::V2025_03_26);
const TO_2025_06: RevisionRange = RevisionRange(Revision::V2024_11_05, Revision::V2025_06_18);
const FROM_2025_03: RevisionRange = RevisionRange(Revision::V2025_03_26, Revision::V2026_07_28);
const FROM_2025_06: RevisionRange = RevisionRange(Revision::V2025_06_18, Revision::V2026_07_28);
const FROM_2025_11: RevisionRange = RevisionRange(Revision::V2025_11_25, Revision::V2026_07_28);
const ONLY_2025_11: RevisionRange = RevisionRange(Revision::V2025_11_25, Revision::V2025_11_25);

/// The first row that fits counts.
pub const LIMITS: [Limit; 12] = [
    Limit {
        feature: Feature::Structured,
        clients: ANY,
        servers: TO_2025_03,
        fallback: Fallback::NotThere,
        why: "the server's revision has no structured content",
        answer: "whatever the server says, as it says it",
    },
    Limit {
        feature: Feature::Structured,
        clients: TO_2025_03,
        servers: FROM_2025_06,
        fallback: Fallback::TextOnly,
        why: "the client's revision has no structured content",
        answer: "`structuredContent` and `outputSchema` are taken out; where no text says the same, the content is added as text",
    },
    Limit {
        feature: Feature::Progress,
        clients: OLDEST,
        servers: FROM_2025_03,
        fallback: Fallback::NoWords,
        why: "progress has no `message` in the client's revision",
        answer: "progress without `message`",
    },
    Limit {
        feature: Feature::Logging,
        clients: HANDSHAKE,
        servers: PER_REQUEST,
        fallback: Fallback::SilentAtFirst,
        why: "the server may log only to requests that name a level",
        answer: "no log messages before the client's first `logging/setLevel`; from then on all that it chose, each on its call's stream",
    },
    Limit {
        feature: Feature::FormElicitation,
        clients: ANY,
        servers: TO_2025_03,
        fallback: Fallback::NotThere,
        why: "the server's revision has no elicitation",
        answer: "whatever the server says, as it says it",
    },
    Limit {
        feature: Feature::FormElicitation,
        clients: TO_2025_03,
        servers: FROM_2025_06,
        fallback: Fallback::NotAsked,
        why: "the client's revision has no elicitation",
        answer: "the server is not told of any; if it asks all the same, it gets `-32601`. A server of 2026-07-28 that answers `-32021`, or asks all the same, becomes a result with `isError` that says what is missing",
    },
    Limit {
        feature: Feature::UrlElicitation,
        clients: ANY,
        servers: TO_2025_06,
        fallback: Fallback::NotThere,
        why: "the server's revision cannot send people to an address",
        answer: "whatever the server says, as it says it",
    },
    Limit {
        feature: Feature::UrlElicitation,
        clients: TO_2025_06,
        servers: FROM_2025_11,
        fallback: Fallback::NotAsked,
        why: "the client's revision cannot send people to an address",
        answer: "as for forms; the server sees `elicitation` without `url`",
    },
    Limit {
        feature: Feature::UrlElicitation,
        clients: ONLY_2025_11,
        servers: PER_REQUEST,
        fallback: Fallback::Renamed,
        why: "the server's revision has no `elicitationId` and no `notifications/elicitation/complete`",
        answer: "the address stands in for `elicitationId`; whether the visit is over is found out by asking the server again",
    },
    Limit {
        feature: Feature::UrlElicitation,
        clients: PER_REQUEST,
        servers: ONLY_2025_11,
        fallback: Fallback::Renamed,
        why: "the client's revision has no `elicitationId`",
        answer: "`elicitationId` is taken out",
    },
    Limit {
        feature: Feature::Roots,
        clients: HANDSHAKE,
        servers: PER_REQUEST,
        fallback: Fallback::RootsStay,
        why: "the server's revision has no `notifications/roots/list_changed`",
        answer: "the notification ends at the gateway; the server gets the roots of the moment whenever it asks",
    },
    Limit {
        feature: Feature::ErrorCodes,
        clients: PER_REQUEST,
        servers: HANDSHAKE,
        fallback: Fallback::Wrapped,
        why: "codes from -32020 to -32099 mean something else in the client's revision, or nothing",
        answer: "`-32603` with the code and its data in `data`; `-32042` becomes a result that asks for input",
    },
];

impl RevisionRange {
    fn has(self, revision: Revision) -> bool {
        self.0 <= revision && revision <= self.1
    }

    fn label(self) -> String {
        match self {
            Self(Revision::V2024_11_05, Revision::V2026_07_28) => "any".into(),
            Self(first, last) if first == last => first.to_string(),
            Self(Revision::V2024_11_05, last) => format!("up to {last}"),
            Self(first, _) => format!("from {first}"),
        }
    }
}

impl Fallback {
    /// The mark in the matrix.
    fn mark(self) -> &'static str {
        match self {
            Self::NotThere => "–",
            Self::NotAsked => "✗",
            _ => "≈",
        }
    }
}

/// What is to be expected where a client meets a server.
pub fn limit(feature: Feature, client: Variant, server: Variant) -> Option<&'static Limit> {
    LIMITS.iter().find(|limit| {
        limit.feature == feature && limit.clients.has(client.revision) && limit.servers.has(server.revision)
    })
}

/// The mark of a cell.
pub fn mark(feature: Feature, client: Variant, server: Variant) -> &'static str {
    limit(feature, client, server).map_or("✓", |limit| limit.fallback.mark())
}

/// The whole matrix, a line for each client and server.
pub fn matrix(mark: impl Fn(Feature, Variant, Variant) -> &'static str) -> String {
    let heads: Vec<&str> = Feature::ALL.iter().map(|feature| feature.label()).collect();
    let mut text = format!("| client | server | {} |\n|---|---|{}\n", heads.join(" | "), ":-:|".repeat(heads.len()));
    for client in VARIANTS {
        for server in VARIANTS {
            let marks: Vec<&str> = Feature::ALL.iter().map(|feature| mark(*feature, client, server)).collect();
            text += &format!("| {} | {} | {} |\n", client.label(), server.label(), marks.join(" | "));
        }
    }
    text
}

/// The matrix by era: how many cells have which mark.
pub fn summary() -> String {
    let eras = [("up to 2025-11-25", false), ("2026-07-28", true)];
    let mut text = String::from(
        "| client | server | works `✓` | approximated `≈` | client's revision lacks it `✗` | server's revision lacks it `–` |\n\
        |---|---|:-:|:-:|:-:|:-:|\n",
    );
    for (client_era, client_is_new) in eras {
        for (server_era, server_is_new) in eras {
            let of = |is_new: bool| VARIANTS.into_iter().filter(move |variant| variant.is_per_request() == is_new);
            let marks: Vec<&str> = of(client_is_new)
                .flat_map(|client| of(server_is_new).map(move |server| (client, server)))
                .flat_map(|(client, server)| Feature::ALL.map(|feature| mark(feature, client, server)))
                .collect();
            let count = |wanted: &str| marks.iter().filter(|mark| **mark == wanted).count();
            let counts = ["✓", "≈", "✗", "–"].map(|wanted| count(wanted).to_string());
            text += &format!("| {client_era} | {server_era} | {} |\n", counts.join(" | "));
        }
    }
    text
}

/// The rows as a table.
pub fn table() -> String {
    let mut text =
        String::from("| feature | client | server | | why | what happens instead |\n|---|---|---|:-:|---|---|\n");
    for limit in &LIMITS {
        let Limit { feature, clients, servers, fallback, why, answer } = limit;
        let (clients, servers) = (clients.label(), servers.label());
        text += &format!("| {} | {clients} | {servers} | {} | {why} | {answer} |\n", feature.label(), fallback.mark());
    }
    text
}
