//! What Rialto changed between the two wires of a call, and why.

use serde_json::{Value, json};

use super::json_tree::{JsonKind, JsonNode, step};
use super::messages::{MessageForm, RecordedMessage};
use crate::dialect::Revision;
use crate::dialect::explain::{ChangeContext, PairForm, explain};
use crate::recorder::{Way, Wire};

/// One difference between paired messages.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MessageChange {
    /// The message of the client's wire and that of the server's.
    pub messages: [Option<usize>; 2],
    /// Where.
    pub path: String,
    /// What happened there on the way.
    pub kind: ChangeKind,
    /// The reason; `None` if there is none in the table.
    pub why: Option<&'static str>,
}

/// What happened to a member.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ChangeKind {
    /// It is on both sides, with other values.
    Changed,
    /// It came, and was not passed on.
    Stays,
    /// It was not there, and was put in.
    Added,
}

impl ChangeKind {
    /// The kind as a word.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Changed => "changed",
            Self::Stays => "stays",
            Self::Added => "added",
        }
    }
}

impl MessageChange {
    /// The change as the API shows it.
    pub fn to_json(&self) -> Value {
        json!({
            "messages": self.messages, "path": self.path, "kind": self.kind.as_str(),
            "why": self.why.unwrap_or("changed on the way"),
        })
    }
}

/// The differences between the messages of a call, in the order of the messages.
pub fn changes_of(messages: &[RecordedMessage], revisions: Option<(Revision, Revision)>) -> Vec<MessageChange> {
    let mut changes = Vec::new();
    for (at, server) in messages.iter().enumerate().filter(|(_, one)| one.wire == Wire::Server) {
        let Some(client) = server.with else { continue };
        let other = &messages[client];
        let (Ok(left), Ok(right)) = (str::from_utf8(&other.text), str::from_utf8(&server.text)) else { continue };
        let (Some(left_node), Some(right_node)) = (JsonNode::parse(left), JsonNode::parse(right)) else { continue };
        let mut found = Vec::new();
        // What came is compared with what was sent.
        let (from, to) = match server.way {
            Way::Out => ((left, &left_node), (right, &right_node)),
            Way::In => ((right, &right_node), (left, &left_node)),
        };
        compare(from, to, String::new(), &mut found);
        let form = pair_form(other, server);
        for (path, kind) in found {
            let context =
                ChangeContext { path: &path, kind: kind.as_str(), form, is_to_server: server.way == Way::Out };
            let why = explain(&context, revisions);
            changes.push(MessageChange { messages: [Some(client), Some(at)], path, kind, why });
        }
    }
    changes
}

fn pair_form(client: &RecordedMessage, server: &RecordedMessage) -> PairForm {
    match (client.form, server.form) {
        (MessageForm::Request, MessageForm::Request) => PairForm::Request,
        (MessageForm::Notification, MessageForm::Notification) => PairForm::Notification,
        (MessageForm::InputRequired, MessageForm::Request) | (MessageForm::Request, MessageForm::InputRequired) => {
            PairForm::Question
        }
        (MessageForm::Request, _) | (_, MessageForm::Request) => PairForm::QuestionAnswer,
        _ => PairForm::Response,
    }
}

/// Finds the deepest places in which two values differ.
fn compare(
    (from_text, from): (&str, &JsonNode),
    (to_text, to): (&str, &JsonNode),
    path: String,
    found: &mut Vec<(String, ChangeKind)>,
) {
    match (&from.kind, &to.kind) {
        (JsonKind::Object(before), JsonKind::Object(after)) => {
            for (key, value) in before {
                match to.get(key) {
                    Some(other) => compare((from_text, value), (to_text, other), step(&path, key), found),
                    None => found.push((step(&path, key), ChangeKind::Stays)),
                }
            }
            for (key, _) in after.iter().filter(|(key, _)| from.get(key).is_none()) {
                found.push((step(&path, key), ChangeKind::Added));
            }
        }
        (JsonKind::Array(before), JsonKind::Array(after)) if before.len() == after.len() => {
            for (n, (value, other)) in before.iter().zip(after).enumerate() {
                compare((from_text, value), (to_text, other), step(&path, &n.to_string()), found);
            }
        }
        _ if is_same((from_text, from), (to_text, to)) => {}
        _ => found.push((path, ChangeKind::Changed)),
    }
}

fn is_same((from_text, from): (&str, &JsonNode), (to_text, to): (&str, &JsonNode)) -> bool {
    let (before, after) = (&from_text[from.span.clone()], &to_text[to.span.clone()]);
    before == after || (from.kind == JsonKind::Text && from.text_in(from_text) == to.text_in(to_text))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn differences(from: &str, to: &str) -> Vec<(String, &'static str)> {
        let mut found = Vec::new();
        let (left, right) = (JsonNode::parse(from).unwrap(), JsonNode::parse(to).unwrap());
        compare((from, &left), (to, &right), String::new(), &mut found);
        found.into_iter().map(|(path, kind)| (path, kind.as_str())).collect()
    }

    #[test]
    fn differences_are_found_as_deep_as_they_are() {
        let from = r#"{"id": 1, "params": {"name": "a__b", "x": [1.0, {"y": "\u0041"}], "gone": 1}}"#;
        let to = r#"{"id":2,"params":{"name":"b","x":[1.0,{"y":"A"}],"new":[]}}"#;
        let expected =
            [("/id", "changed"), ("/params/name", "changed"), ("/params/gone", "stays"), ("/params/new", "added")];
        assert_eq!(differences(from, to), expected.map(|(path, kind)| (path.to_owned(), kind)));
        assert_eq!(differences("[1]", "[1.0]"), [("/0".to_owned(), "changed")], "numbers are compared as text");
        assert_eq!(differences("[1]", "[1,2]"), [(String::new(), "changed")]);
        assert_eq!(differences(from, from), []);
    }
}
