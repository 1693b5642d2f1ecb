//! Features that cannot be carried unchanged between two revisions: the reason and the fallback. The tests and
//! docs/bridging.md are generated from the same rows.

use rialto::dialect::Revision;

use super::variants::{Feature, VARIANTS, Variant};

/// A feature that cannot be carried unchanged.
pub struct Limit {
    pub feature: Feature,
    clients: RevisionRange,
    servers: RevisionRange,
    pub fallback: Fallback,
    why: &'static str,
    answer: &'static str,
}

/// The behaviour at a limit; `feature_checks` checks each.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fallback {
    /// The server lacks the feature and its own error is forwarded.
    ServerLacksIt,
    /// The server request is refused: the client lacks the capability.
    ClientLacksIt,
    /// The text content of a result without `structuredContent`.
    TextOnly,
    /// Progress without `message`.
    NoProgressMessage,
    /// No log messages before logging/setLevel.
    NoLogsBeforeSetLevel,
    /// The `elicitationId` is replaced or removed.
    ElicitationIdReplaced,
    /// notifications/roots/list_changed is not forwarded.
    NoRootChanges,
    /// Reserved error codes are wrapped in -32603.
    WrappedErrorCode,
}

/// An inclusive range of revisions.
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

/// The first matching row applies.
pub const LIMITS: [Limit; 12] = [
    Limit {
        feature: Feature::Structured,
        clients: ANY,
        servers: TO_2025_03,
        fallback: Fallback::ServerLacksIt,
        why: "the server's revision has no structured content",
        answer: "the server's own error is forwarded",
    },
    Limit {
        feature: Feature::Structured,
        clients: TO_2025_03,
        servers: FROM_2025_06,
        fallback: Fallback::TextOnly,
        why: "the client's revision has no structured content",
        answer: "`structuredContent` and `outputSchema` are removed; if no text block has the same content, it is added as text",
    },
    Limit {
        feature: Feature::Progress,
        clients: OLDEST,
        servers: FROM_2025_03,
        fallback: Fallback::NoProgressMessage,
        why: "progress has no `message` in the client's revision",
        answer: "`message` is removed",
    },
    Limit {
        feature: Feature::Logging,
        clients: HANDSHAKE,
        servers: PER_REQUEST,
        fallback: Fallback::NoLogsBeforeSetLevel,
        why: "the server may log only to requests that name a level",
        answer: "no log messages before the client's first `logging/setLevel`; then messages from that level on, on the stream of their call",
    },
    Limit {
        feature: Feature::FormElicitation,
        clients: ANY,
        servers: TO_2025_03,
        fallback: Fallback::ServerLacksIt,
        why: "the server's revision has no elicitation",
        answer: "the server's own error is forwarded",
    },
    Limit {
        feature: Feature::FormElicitation,
        clients: TO_2025_03,
        servers: FROM_2025_06,
        fallback: Fallback::ClientLacksIt,
        why: "the client's revision has no elicitation",
        answer: "the capability is not declared; a server that asks anyway gets `-32601`. For a 2026-07-28 server, `-32021` or an input request becomes a result with `isError` that names what is missing",
    },
    Limit {
        feature: Feature::UrlElicitation,
        clients: ANY,
        servers: TO_2025_06,
        fallback: Fallback::ServerLacksIt,
        why: "the server's revision has no url elicitation",
        answer: "the server's own error is forwarded",
    },
    Limit {
        feature: Feature::UrlElicitation,
        clients: TO_2025_06,
        servers: FROM_2025_11,
        fallback: Fallback::ClientLacksIt,
        why: "the client's revision has no url elicitation",
        answer: "as for form elicitation; `elicitation` is declared without `url`",
    },
    Limit {
        feature: Feature::UrlElicitation,
        clients: ONLY_2025_11,
        servers: PER_REQUEST,
        fallback: Fallback::ElicitationIdReplaced,
        why: "the server's revision has no `elicitationId` and no `notifications/elicitation/complete`",
        answer: "the URL is used as `elicitationId`; completion is found by calling the server again",
    },
    Limit {
        feature: Feature::UrlElicitation,
        clients: PER_REQUEST,
        servers: ONLY_2025_11,
        fallback: Fallback::ElicitationIdReplaced,
        why: "the client's revision has no `elicitationId`",
        answer: "`elicitationId` is removed",
    },
    Limit {
        feature: Feature::Roots,
        clients: HANDSHAKE,
        servers: PER_REQUEST,
        fallback: Fallback::NoRootChanges,
        why: "the server's revision has no `notifications/roots/list_changed`",
        answer: "the notification is not forwarded; the server gets the current roots whenever it asks",
    },
    Limit {
        feature: Feature::ErrorCodes,
        clients: PER_REQUEST,
        servers: HANDSHAKE,
        fallback: Fallback::WrappedErrorCode,
        why: "codes from -32020 to -32099 are reserved in the client's revision",
        answer: "`-32603` with the original code and data in `data`; `-32042` becomes `input_required`",
    },
];

impl RevisionRange {
    fn contains(self, revision: Revision) -> bool {
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
    /// The symbol in the matrix.
    fn mark(self) -> &'static str {
        match self {
            Self::ServerLacksIt => "–",
            Self::ClientLacksIt => "✗",
            _ => "≈",
        }
    }
}

/// The limit that applies to a feature between a client and a server.
pub fn limit(feature: Feature, client: Variant, server: Variant) -> Option<&'static Limit> {
    LIMITS.iter().find(|limit| {
        limit.feature == feature && limit.clients.contains(client.revision) && limit.servers.contains(server.revision)
    })
}

/// The symbol of a cell in the matrix.
pub fn mark(feature: Feature, client: Variant, server: Variant) -> &'static str {
    limit(feature, client, server).map_or("✓", |limit| limit.fallback.mark())
}

/// The matrix as Markdown, one line per client and server.
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

/// Number of matrix cells per symbol, by era of client and server.
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

/// The limits as a Markdown table.
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
