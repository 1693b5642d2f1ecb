//! Why a member of a message is another on the other wire: one table for people who look at both.

use super::{Revision, RevisionFeatures};

/// A difference between a message and what became of it.
#[derive(Debug, Clone, Copy)]
pub struct ChangeContext<'c> {
    /// Where, as a JSON pointer.
    pub path: &'c str,
    /// `changed`, `stays` or `added`.
    pub kind: &'c str,
    /// What is compared.
    pub form: PairForm,
    /// Whether the message goes to the server.
    pub is_to_server: bool,
}

/// What two messages have to do with each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PairForm {
    /// A request that is passed on.
    Request,
    /// A response that is passed on.
    Response,
    /// A notification that is passed on.
    Notification,
    /// A request of the server and a result that asks for input, in either direction.
    Question,
    /// The answer to such a question.
    QuestionAnswer,
}

/// A reason, and where it is one.
struct Reason {
    forms: &'static [PairForm],
    /// A pointer; with `*` at its end everything below and beside it.
    path: &'static str,
    /// The kinds of change; empty for all.
    kinds: &'static [&'static str],
    /// Whether it is one between these revisions.
    between: fn(&RevisionFeatures, &RevisionFeatures) -> bool,
    why: &'static str,
}

use PairForm::{Notification, Question, QuestionAnswer, Request, Response};

const ALL: &[PairForm] = &[Request, Response, Notification, Question, QuestionAnswer];
const MCP_META: &str = "/params/_meta/io.modelcontextprotocol~1*";

/// Every reason; the first that fits is told.
const REASONS: &[Reason] = &[
    reason(ALL, "/id", &[], always, "each connection numbers its own requests"),
    reason(&[Request], "/params/name", &["changed"], always, "name of the group"),
    reason(&[Request], "/params/uri", &["changed"], always, "address of the group"),
    reason(&[Request], "/params/ref/*", &["changed"], always, "name of the group"),
    reason(&[Request], "/params/_meta/progressToken", &[], always, "each connection has its own progress tokens"),
    reason(&[Request], MCP_META, &["stays"], to_handshake, "told once, in the handshake"),
    reason(&[Request], MCP_META, &["added"], to_per_request, "each request describes its client"),
    reason(&[Request], MCP_META, &["changed"], always, "what this server can be asked for"),
    reason(&[Request], MCP_META, &["added"], always, "each request describes its client"),
    reason(&[Request], "/params/_meta/traceparent", &[], always, "trace context"),
    reason(&[Request], "/params/_meta/tracestate", &[], always, "trace context"),
    reason(&[Request], "/params/_meta/baggage", &[], always, "trace context"),
    reason(&[Request], "/params/_meta", &["added"], to_per_request, "each request describes its client"),
    reason(&[Request], "/params/_meta", &["stays"], to_handshake, "told once, in the handshake"),
    reason(&[Request], "/params", &["added"], to_per_request, "each request describes its client"),
    reason(&[Request], "/params", &["stays"], to_handshake, "told once, in the handshake"),
    reason(&[Request], "/params/inputResponses", &[], always, "answers of the client"),
    reason(&[Request], "/params/requestState", &[], always, "state that only its maker can read"),
    reason(&[Request], "/params/cursor", &["changed"], always, "cursors of Rialto are its own"),
    reason(&[Request], "/params/task*", &[], always, "tasks translated"),
    reason(
        &[Request],
        "/params/_meta/io.modelcontextprotocol~1related-task*",
        &[],
        always,
        "tasks belong to their caller",
    ),
    reason(&[Request], "/params/mode", &[], always, "questions made plain"),
    reason(&[Request], "/params/requestedSchema*", &[], always, "questions made plain"),
    reason(&[Request], "/params/elicitationId", &[], always, "elicitation ids replaced"),
    reason(&[Request], "/params/tools*", &["stays"], always, "questions made plain"),
    reason(&[Request], "/params/toolChoice*", &["stays"], always, "questions made plain"),
    reason(&[Request], "/method", &["changed"], across_eras, "questions: input_required → requests"),
    reason(&[Response], "/result/resultType", &["added"], always, "result envelope put in"),
    reason(&[Response], "/result/resultType", &["stays"], always, "result envelope taken out"),
    reason(&[Response], "/result/_meta/io.modelcontextprotocol~1*", &["added"], always, "result envelope put in"),
    reason(&[Response], "/result/_meta/io.modelcontextprotocol~1*", &[], always, "result envelope of the group"),
    reason(&[Response], "/result/_meta", &["added"], across_eras, "result envelope put in"),
    reason(&[Response], "/result/_meta", &["stays"], across_eras, "result envelope taken out"),
    reason(&[Response], "/result/ttlMs", &[], always, "how long the result may be kept"),
    reason(&[Response], "/result/cacheScope", &[], always, "how long the result may be kept"),
    reason(&[Response], "/result/structuredContent*", &[], always, "structured content as the revision has it"),
    reason(&[Response], "/result/content*", &[], always, "content as the revision has it"),
    reason(&[Response], "/result/contents*", &[], always, "address of the group"),
    reason(&[Response], "/result/messages*", &[], always, "content as the revision has it"),
    reason(&[Response], "/result/completion*", &[], always, "names of the group"),
    reason(&[Response], "/result/task*", &[], always, "tasks translated"),
    reason(&[Response], "/result/requestState", &[], always, "state that only its maker can read"),
    reason(&[Response], "/result/inputRequests*", &[], always, "questions: requests → input_required"),
    reason(&[Response], "/result/isError", &[], across_eras, "errors as the revision has them"),
    reason(&[Response], "/result/action", &[], always, "answers of the client"),
    reason(&[Response], "/result", &[], always, "errors as the revision has them"),
    reason(&[Response], "/error*", &[], always, "errors as the revision has them"),
    reason(
        &[Notification],
        "/params/progressToken",
        &["changed"],
        always,
        "each connection has its own progress tokens",
    ),
    reason(&[Notification], "/params/message", &["stays"], always, "progress messages dropped"),
    reason(&[Notification], "/params/_meta*", &[], always, "subscriptions of Rialto are its own"),
    reason(&[Notification], "/params/uri", &["changed"], always, "address of the group"),
    reason(&[Notification], "/params/task*", &[], always, "tasks belong to their caller"),
    reason(&[Question], "*", &[], always, "questions: input_required and requests"),
    reason(&[QuestionAnswer], "*", &[], always, "the answer of the client, for who asked"),
];

const fn reason(
    forms: &'static [PairForm],
    path: &'static str,
    kinds: &'static [&'static str],
    between: fn(&RevisionFeatures, &RevisionFeatures) -> bool,
    why: &'static str,
) -> Reason {
    Reason { forms, path, kinds, between, why }
}

fn always(_: &RevisionFeatures, _: &RevisionFeatures) -> bool {
    true
}

fn across_eras(client: &RevisionFeatures, server: &RevisionFeatures) -> bool {
    client.era != server.era
}

/// The client describes itself in each request, and the server was told in a handshake.
fn to_handshake(client: &RevisionFeatures, server: &RevisionFeatures) -> bool {
    !client.sessions && server.sessions
}

/// The client told who it is in a handshake, and the server wants it in each request.
fn to_per_request(client: &RevisionFeatures, server: &RevisionFeatures) -> bool {
    client.sessions && !server.sessions
}

impl Reason {
    fn fits(&self, change: &ChangeContext<'_>, revisions: Option<(Revision, Revision)>) -> bool {
        let is_there = match self.path.strip_suffix('*') {
            Some(prefix) => change.path.starts_with(prefix),
            None => change.path == self.path,
        };
        is_there
            && self.forms.contains(&change.form)
            && (self.kinds.is_empty() || self.kinds.contains(&change.kind))
            && revisions.is_none_or(|(client, server)| (self.between)(client.features(), server.features()))
    }
}

/// Why a member was changed between a client and a server of these revisions; `None` if the table has no reason.
pub fn explain(change: &ChangeContext<'_>, revisions: Option<(Revision, Revision)>) -> Option<&'static str> {
    REASONS.iter().find(|reason| reason.fits(change, revisions)).map(|reason| reason.why)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn why(path: &str, kind: &str, client: Revision, server: Revision) -> Option<&'static str> {
        let change = ChangeContext { path, kind, form: Request, is_to_server: true };
        explain(&change, Some((client, server)))
    }

    #[test]
    fn reasons_depend_on_the_revisions() {
        let info = "/params/_meta/io.modelcontextprotocol~1clientInfo";
        let (old, new) = (Revision::NEWEST_HANDSHAKE, Revision::NEWEST);
        assert_eq!(why(info, "stays", new, old), Some("told once, in the handshake"));
        assert_eq!(why(info, "added", old, new), Some("each request describes its client"));
        assert_eq!(why(info, "stays", new, new), None, "nothing is taken out between equals");
    }

    #[test]
    fn what_nobody_changes_has_no_reason() {
        for path in ["/params/arguments/x", "/method", "/jsonrpc", "/params/extra"] {
            assert_eq!(why(path, "changed", Revision::NEWEST, Revision::NEWEST), None, "{path}");
        }
    }
}
