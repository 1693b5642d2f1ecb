//! What is translated between a client of one revision and a server of another, in words for those who
//! operate a gateway. The page about bridging explains each of them.

use super::{Revision, RevisionFeatures};

/// Something that is said in another way on the other side, or that cannot be said there.
struct Rule {
    words: &'static str,
    /// Whether it comes up between this client and this server.
    applies: fn(&RevisionFeatures, &RevisionFeatures) -> bool,
}

/// Everything that is translated: the eras first, then shapes, then what is missing.
const RULES: [Rule; 30] = [
    rule("handshake ← discovery", to_newer_era),
    rule("discovery ← handshake", to_older_era),
    rule("questions: input_required → requests", to_newer_era),
    rule("questions: requests → input_required", to_older_era),
    rule("subscriptions → listen", to_newer_era),
    rule("listen → subscriptions", to_older_era),
    rule("log level per request", to_newer_era),
    rule("log level per session", to_older_era),
    rule("result envelope taken out", to_newer_era),
    rule("result envelope put in", to_older_era),
    rule("reserved error codes wrapped", across_eras),
    rule("code of missing resources", |client, server| client.resource_not_found != server.resource_not_found),
    rule("client's batches taken apart", |client, server| client.batches && !server.batches),
    rule("server's batches taken apart", |client, server| !client.batches && server.batches),
    rule("completion left unsaid", |client, server| !client.completions_capability && server.completions_capability),
    rule("structured content as text", |client, server| !client.structured && server.structured),
    rule("structured content wrapped", |client, server| {
        client.structured && !client.any_structured && server.any_structured
    }),
    rule("audio as resources", |client, server| !client.audio && server.audio),
    rule("resource links as text", |client, server| !client.resource_links && server.resource_links),
    rule("questions made plain", |client, server| !client.rich_questions && server.rich_questions),
    rule("elicitation ids replaced", |client, server| {
        client.rich_questions && server.rich_questions && across_eras(client, server)
    }),
    rule("progress messages dropped", |client, server| !client.progress_message && server.progress_message),
    rule("tool annotations dropped", |client, server| !client.tool_annotations && server.tool_annotations),
    rule("titles dropped", |client, server| !client.titles && server.titles),
    rule("icons dropped", |client, server| !client.icons && server.icons),
    rule("task hints of tools dropped", |client, server| !client.tool_tasks && server.tool_tasks),
    rule("changes of roots not passed on", to_newer_era),
    rule("elicitation not available", |client, server| !client.elicitation && server.elicitation),
    rule("url elicitation not available", |client, server| !client.rich_questions && server.rich_questions),
    rule("tasks seen through here", across_eras),
];

const fn rule(words: &'static str, applies: fn(&RevisionFeatures, &RevisionFeatures) -> bool) -> Rule {
    Rule { words, applies }
}

/// The client keeps a session, and the server has none.
fn to_newer_era(client: &RevisionFeatures, server: &RevisionFeatures) -> bool {
    client.sessions && !server.sessions
}

/// The server keeps a session, and the client has none.
fn to_older_era(client: &RevisionFeatures, server: &RevisionFeatures) -> bool {
    !client.sessions && server.sessions
}

fn across_eras(client: &RevisionFeatures, server: &RevisionFeatures) -> bool {
    client.era != server.era
}

/// What is translated between a client and a server, a few words for each matter; nothing where both speak
/// the same revision.
pub fn translation(client: Revision, server: Revision) -> Vec<&'static str> {
    let (client, server) = (client.facts(), server.facts());
    RULES.iter().filter(|rule| (rule.applies)(client, server)).map(|rule| rule.words).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dialect::FACTS;

    const PAGE: &str = include_str!("../../docs/bridging.md");

    fn pairs() -> impl Iterator<Item = (Revision, Revision)> {
        FACTS.iter().flat_map(|client| FACTS.iter().map(|server| (client.revision, server.revision)))
    }

    /// Some revisions, as the page names them.
    fn named(words: &str, revision: Revision) -> bool {
        let of = |name: &str| Revision::parse(name).unwrap_or_else(|| panic!("no revision: {name:?}"));
        match words.split_once(' ') {
            _ if words == "any" => true,
            Some(("up", rest)) => revision <= of(rest.trim_start_matches("to ")),
            Some(("from", rest)) => revision >= of(rest),
            _ => revision == of(words),
        }
    }

    /// The rows of the page: words, clients and servers.
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
    fn who_speaks_the_same_needs_no_translation() {
        for facts in &FACTS {
            assert_eq!(translation(facts.revision, facts.revision), Vec::<&str>::new());
        }
    }

    #[test]
    fn who_knows_more_than_the_other_says_needs_none_within_an_era() {
        for (client, server) in pairs().filter(|(client, server)| client > server && !client.is_bridged_to(*server)) {
            let batches = client.facts().batches || server.facts().batches;
            assert_eq!(translation(client, server).len(), usize::from(batches), "{client} {server}");
        }
        for (client, server) in pairs().filter(|(client, server)| client < server) {
            assert_ne!(translation(client, server), Vec::<&str>::new(), "{client} {server}");
        }
    }

    #[test]
    fn what_is_bridged_begins_with_how_it_is_opened() {
        for (client, server) in pairs() {
            let opened = ["handshake ← discovery", "discovery ← handshake"];
            let first = translation(client, server).first().copied().unwrap_or_default();
            assert_eq!(opened.contains(&first), client.is_bridged_to(server), "{client} {server}");
        }
    }

    #[test]
    fn the_page_says_the_same_of_every_pair() {
        for (client, server) in pairs().filter(|(client, server)| client != server) {
            let applies = |[_, clients, servers]: &[&str; 3]| named(clients, client) && named(servers, server);
            let mut told: Vec<&str> = rows().iter().filter(|row| applies(row)).map(|[words, ..]| *words).collect();
            told.dedup();
            assert_eq!(told, translation(client, server), "client {client}, server {server}");
        }
    }

    #[test]
    fn every_rule_is_explained_and_comes_up() {
        for rule in &RULES {
            assert!(rows().iter().any(|[words, ..]| *words == rule.words), "{} is not on the page", rule.words);
            assert!(pairs().any(|(client, server)| translation(client, server).contains(&rule.words)));
        }
    }

    #[test]
    fn a_few_pairs() {
        let between = |client: &str, server: &str| {
            translation(Revision::parse(client).unwrap(), Revision::parse(server).unwrap())
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
