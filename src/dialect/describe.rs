//! Describes, for operators, what is translated between a client and a server of two revisions.
//! `docs/bridging.md` explains each entry.

use super::{Revision, RevisionFeatures};

/// A translation between two revisions, or a feature that cannot be translated.
struct Rule {
    text: &'static str,
    /// Whether the rule applies to this client and this server.
    applies: fn(&RevisionFeatures, &RevisionFeatures) -> bool,
}

/// All rules: translations between eras, then converted content, then dropped features.
const RULES: [Rule; 31] = [
    rule("handshake ← discovery", handshake_to_per_request),
    rule("discovery ← handshake", per_request_to_handshake),
    rule("questions: input_required → requests", handshake_to_per_request),
    rule("questions: requests → input_required", per_request_to_handshake),
    rule("subscriptions → listen", handshake_to_per_request),
    rule("listen → subscriptions", per_request_to_handshake),
    rule("log level per request", handshake_to_per_request),
    rule("log level per session", per_request_to_handshake),
    rule("result envelope taken out", handshake_to_per_request),
    rule("result envelope put in", per_request_to_handshake),
    rule("reserved error codes wrapped", across_eras),
    rule("code of missing resources", |client, server| client.resource_not_found != server.resource_not_found),
    rule("client's batches taken apart", |client, server| client.batches && !server.batches),
    rule("server's batches taken apart", |client, server| !client.batches && server.batches),
    rule("completion left unsaid", |client, server| !client.completions_capability && server.completions_capability),
    rule("structured content as text", |client, server| !client.structured_content && server.structured_content),
    rule("structured content wrapped", |client, server| {
        client.structured_content && !client.any_structured_content && server.any_structured_content
    }),
    rule("audio as resources", |client, server| !client.audio && server.audio),
    rule("resource links as text", |client, server| !client.resource_links && server.resource_links),
    rule("questions made plain", |client, server| !client.rich_server_requests && server.rich_server_requests),
    rule("elicitation ids replaced", |client, server| {
        client.rich_server_requests && server.rich_server_requests && across_eras(client, server)
    }),
    rule("progress messages dropped", |client, server| !client.progress_message && server.progress_message),
    rule("tool annotations dropped", |client, server| !client.tool_annotations && server.tool_annotations),
    rule("titles dropped", |client, server| !client.titles && server.titles),
    rule("icons dropped", |client, server| !client.icons && server.icons),
    rule("task hints of tools dropped", |client, server| !client.tool_tasks && server.tool_tasks),
    rule("changes of roots not passed on", handshake_to_per_request),
    rule("elicitation not available", |client, server| !client.elicitation && server.elicitation),
    rule("url elicitation not available", |client, server| !client.rich_server_requests && server.rich_server_requests),
    rule("tasks translated", |client, server| across_eras(client, server) && (client.tool_tasks || server.tool_tasks)),
    rule("tasks seen through here", |client, server| handshake_to_per_request(client, server) && !client.tool_tasks),
];

const fn rule(text: &'static str, applies: fn(&RevisionFeatures, &RevisionFeatures) -> bool) -> Rule {
    Rule { text, applies }
}

/// The client has a session and the server has none.
fn handshake_to_per_request(client: &RevisionFeatures, server: &RevisionFeatures) -> bool {
    client.sessions && !server.sessions
}

/// The server has sessions and the client has none.
fn per_request_to_handshake(client: &RevisionFeatures, server: &RevisionFeatures) -> bool {
    !client.sessions && server.sessions
}

fn across_eras(client: &RevisionFeatures, server: &RevisionFeatures) -> bool {
    client.era != server.era
}

/// How far client and server are apart: `none`, `names`, `era` (another revision of the same era) or `across` eras.
pub fn bridge_of(client: Revision, server: Revision, is_renamed: bool) -> &'static str {
    match (across_eras(client.features(), server.features()), client == server) {
        (true, _) => "across",
        (false, false) => "era",
        (false, true) if is_renamed => "names",
        (false, true) => "none",
    }
}

/// The translations between a client and a server; empty when both speak the same revision.
pub fn describe_translation(client: Revision, server: Revision) -> Vec<&'static str> {
    let (client, server) = (client.features(), server.features());
    RULES.iter().filter(|rule| (rule.applies)(client, server)).map(|rule| rule.text).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dialect::FEATURES;

    const PAGE: &str = include_str!("../../docs/bridging.md");

    fn pairs() -> impl Iterator<Item = (Revision, Revision)> {
        FEATURES.iter().flat_map(|client| FEATURES.iter().map(|server| (client.revision, server.revision)))
    }

    /// Whether a cell of the table, such as `up to 2025-06-18`, includes a revision.
    fn includes(text: &str, revision: Revision) -> bool {
        let of = |name: &str| Revision::parse(name).unwrap_or_else(|| panic!("no revision: {name:?}"));
        match text.split_once(' ') {
            _ if text == "any" => true,
            Some(("up", rest)) => revision <= of(rest.trim_start_matches("to ")),
            Some(("from", rest)) => revision >= of(rest),
            _ => revision == of(text),
        }
    }

    /// The rows of the table: rule, clients, servers.
    fn rows() -> Vec<[&'static str; 3]> {
        let (_, rest) = PAGE.split_once("<!-- translations -->").expect("the page has the table");
        let (table, _) = rest.split_once("<!-- end of translations -->").expect("the table ends");
        let row = |line: &'static str| {
            let mut cells = line.trim_matches('|').split('|').map(|cell| cell.trim().trim_matches('`'));
            [cells.next().unwrap(), cells.next().unwrap(), cells.next().unwrap()]
        };
        table.trim().lines().skip(2).map(row).collect()
    }

    #[test]
    fn same_revision_needs_no_translation() {
        for features in &FEATURES {
            assert_eq!(describe_translation(features.revision, features.revision), Vec::<&str>::new());
        }
    }

    #[test]
    fn newer_client_needs_no_translation_within_an_era() {
        for (client, server) in pairs().filter(|(client, server)| client > server && !client.is_bridged_to(*server)) {
            let batches = client.features().batches || server.features().batches;
            assert_eq!(describe_translation(client, server).len(), usize::from(batches), "{client} {server}");
        }
        for (client, server) in pairs().filter(|(client, server)| client < server) {
            assert_ne!(describe_translation(client, server), Vec::<&str>::new(), "{client} {server}");
        }
    }

    #[test]
    fn bridged_pairs_start_with_the_handshake_rule() {
        for (client, server) in pairs() {
            let opened = ["handshake ← discovery", "discovery ← handshake"];
            let first = describe_translation(client, server).first().copied().unwrap_or_default();
            assert_eq!(opened.contains(&first), client.is_bridged_to(server), "{client} {server}");
        }
    }

    #[test]
    fn documentation_matches_every_pair() {
        for (client, server) in pairs().filter(|(client, server)| client != server) {
            let applies = |[_, clients, servers]: &[&str; 3]| includes(clients, client) && includes(servers, server);
            let mut documented: Vec<&str> = rows().iter().filter(|row| applies(row)).map(|[text, ..]| *text).collect();
            documented.dedup();
            assert_eq!(documented, describe_translation(client, server), "client {client}, server {server}");
        }
    }

    #[test]
    fn every_rule_is_documented_and_applies() {
        for rule in &RULES {
            assert!(rows().iter().any(|[text, ..]| *text == rule.text), "{} is not on the page", rule.text);
            assert!(pairs().any(|(client, server)| describe_translation(client, server).contains(&rule.text)));
        }
    }

    #[test]
    fn selected_pairs() {
        let between = |client: &str, server: &str| {
            describe_translation(Revision::parse(client).unwrap(), Revision::parse(server).unwrap())
        };
        assert_eq!(between("2025-06-18", "2025-03-26"), ["server's batches taken apart"]);
        assert_eq!(
            between("2025-03-26", "2025-06-18"),
            [
                "client's batches taken apart",
                "structured content as text",
                "resource links as text",
                "titles dropped",
                "elicitation not available",
            ]
        );
        assert!(between("2026-07-28", "2025-11-25").contains(&"questions: requests → input_required"));
        assert!(between("2025-11-25", "2026-07-28").contains(&"questions: input_required → requests"));
    }
}
