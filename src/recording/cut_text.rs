//! What is kept of a message as text, and what may be shown of one whose middle is not kept.
//!
//! The beginning is read as far as it goes. Of the end it is not known what it lies in, so less of it is shown: nothing
//! up to the first comma or bracket that is not within something that begins there, but for the end of a text too long
//! to be a secret; no items of arrays that were open before it, and no values at all where `redact` names anything.

use super::json_tree::{JsonKind, JsonNode};
use super::messages::RecordedMessage;
use super::redaction::{Edited, MASK, RedactionRules, ShownText, hide_in_text, is_word, masked, with_edits};
use crate::redact::parts_at_cut;

/// What is kept of a message, as text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeptText {
    /// All of it, or its beginning.
    pub beginning: String,
    /// Its end, where what is between is not kept.
    pub end: Option<String>,
    /// Bytes that are not kept.
    pub missing: usize,
}

/// The end of a JSON text, with brackets before it that are those it closes.
struct JsonEnd {
    text: String,
    /// Bytes that were put before it.
    added: usize,
    node: JsonNode,
    /// Where the text begins of which the rest is read, and where the string ends that the cut is in.
    first: usize,
    cut_string: Option<usize>,
}

/// How the last line of a private key ends.
const KEY_END: &str = "PRIVATE KEY-----";
/// Bytes at either side of a cut that are never shown: they may be parts of what would be hidden as a whole.
const CUT_EDGE: usize = 128;
/// Most bytes of a string that may be a secret by its name, which is not known. Longer ones end with text.
const MAX_SECRET_STRING: usize = 4096;
/// Bytes of a word at a cut that are not shown beside these: half a key does not look like one.
const MAX_CUT_WORD: usize = 1024;

impl KeptText {
    /// What is kept of a message; `None` if nothing is.
    pub fn of(message: &RecordedMessage) -> Option<Self> {
        if message.text.is_empty() {
            return None;
        }
        let (beginning, end) = message.parts();
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        Some(Self {
            beginning: text(beginning),
            end: message.is_cut().then(|| text(end)),
            missing: message.length.saturating_sub(message.text.len()),
        })
    }
}

impl RedactionRules {
    /// What is kept of a message, as it may be shown to who may see bodies.
    pub fn show_kept(&self, kept: &KeptText) -> ShownText {
        let Some(end) = &kept.end else { return self.show(&kept.beginning) };
        let (before, after) = parts_at_cut(&kept.beginning, end, CUT_EDGE);
        let mut shown = self.show(&kept.beginning);
        // What can be told to be hidden is, before bytes at the cut are left out: half of it could not be told.
        shown.text.truncate(end_before_cut(&shown.text, before));
        let is_json = kept.beginning.trim_start().chars().next().is_none_or(|first| matches!(first, '{' | '['));
        let end = match is_json {
            true => self.show_end(&end[after..]),
            false => {
                let mut end = self.show_no_json(end);
                end.text.drain(..start_after_cut(&end.text, after));
                end
            }
        };
        shown.text.push_str(&format!("\n… {} bytes are not kept …\n{}", kept.missing, end.text));
        shown.hidden.extend(end.hidden);
        // Which bytes at the cut are left out is not told apart from what is hidden.
        shown.hidden.push(String::new());
        shown.hidden.dedup();
        shown
    }

    /// The end of a message of JSON; nothing where it cannot be told what is a name and what is a value.
    fn show_end(&self, text: &str) -> ShownText {
        if text.is_empty() {
            return ShownText::default();
        }
        let Some(end) = JsonEnd::read(text) else { return ShownText { text: MASK.to_owned(), hidden: Vec::new() } };
        let mut edits = Vec::new();
        self.walk_end(&end, &end.node, &mut edits);
        let edits = edits
            .into_iter()
            .map(|(span, shown, _): Edited| (span.start - end.added..span.end - end.added, shown, String::new()));
        let mut shown = with_edits(&end.text[end.added..], edits.collect());
        if let Some(close) = end.cut_string.filter(|_| !self.has_more()) {
            let string = end_of_long_string(&text[..close]);
            if !string.is_empty() {
                shown.text.insert_str(0, &format!("{}{}", hide_in_text(string), &text[close..end.first]));
            }
        }
        shown
    }

    fn walk_end(&self, end: &JsonEnd, node: &JsonNode, edits: &mut Vec<Edited>) {
        let is_added = |node: &JsonNode| node.span.start < end.added;
        match &node.kind {
            JsonKind::Object(members) => {
                for (key, value) in members {
                    match is_added(value) {
                        true => self.walk_end(end, value, edits),
                        false => self.walk(&end.text, value, ("", key, self.has_more()), edits),
                    }
                }
            }
            JsonKind::Array(items) => {
                for item in items {
                    match &item.kind {
                        _ if is_added(item) => self.walk_end(end, item, edits),
                        JsonKind::Object(_) | JsonKind::Array(_) => {
                            self.walk(&end.text, item, ("", "", self.has_more()), edits);
                        }
                        // Its array has a name that is not kept.
                        _ => edits.push((item.span.clone(), masked(&end.text, item), String::new())),
                    }
                }
            }
            _ => {}
        }
    }
}

/// What is shown of a string that began before the cut: nothing of what may be a secret, no word that goes on from there,
/// and nothing of a private key.
fn end_of_long_string(string: &str) -> &str {
    let start = string.ceil_char_boundary(MAX_SECRET_STRING.min(string.len()));
    let start = string.rfind(KEY_END).map_or(start, |key| start.max(key + KEY_END.len()));
    string[start..].trim_start_matches(is_word)
}

/// Where a text ends that has this many bytes less at its end, and no word there that goes on.
fn end_before_cut(text: &str, bytes: usize) -> usize {
    let end = text.floor_char_boundary(text.len().saturating_sub(bytes));
    let word = end - text[..end].trim_end_matches(is_word).len();
    end - word.min(MAX_CUT_WORD)
}

/// Where a text begins that has this many bytes less at its beginning, and no word there that began before.
fn start_after_cut(text: &str, bytes: usize) -> usize {
    let start = text.ceil_char_boundary(bytes.min(text.len()));
    let word = text.len() - start - text[start..].trim_start_matches(is_word).len();
    start + word.min(MAX_CUT_WORD)
}

impl JsonEnd {
    /// Reads the end of a JSON text. Where it begins outside of strings, within one, or behind a backslash in one, is
    /// found out: the end of the whole text is outside of strings, so at most one of these fits.
    fn read(text: &str) -> Option<Self> {
        [(false, false), (true, false), (true, true)].into_iter().find_map(|begin| Self::read_from(text, begin))
    }

    fn read_from(text: &str, (mut is_in_string, mut is_escaped): (bool, bool)) -> Option<Self> {
        // What closes each thing that is open, and what closes those that were open before.
        let (mut open, mut closers, mut first) = (Vec::new(), Vec::new(), None);
        let mut cut_string = None;
        let begins_in_string = is_in_string;
        for (at, byte) in text.bytes().enumerate() {
            match byte {
                _ if is_escaped => is_escaped = false,
                b'\\' if is_in_string => is_escaped = true,
                b'"' => {
                    is_in_string = !is_in_string;
                    if begins_in_string && !is_in_string {
                        cut_string.get_or_insert(at);
                    }
                }
                _ if is_in_string => {}
                b'\\' => return None,
                b'{' => open.push(b'}'),
                b'[' => open.push(b']'),
                b',' if open.is_empty() => _ = first.get_or_insert(at),
                b'}' | b']' => match open.pop() {
                    Some(closer) if closer == byte => {}
                    Some(_) => return None,
                    None => {
                        first.get_or_insert(at);
                        closers.push(byte);
                    }
                },
                _ => {}
            }
        }
        let mut whole = String::new();
        for (depth, closer) in closers.iter().enumerate().rev() {
            whole.push_str(match (closer, depth) {
                (b'}', 0) => "{\"\":null",
                (b'}', _) => "{\"\":",
                (_, 0) => "[null",
                _ => "[",
            });
        }
        let added = whole.len();
        let first = first.filter(|_| !is_in_string)?;
        whole.push_str(&text[first..]);
        let node = JsonNode::parse(&whole)?;
        // What is behind the string must be the boundary: else it is a name.
        let is_value = |close: &usize| text[close + 1..first].trim_ascii().is_empty();
        Some(Self { text: whole, added, node, first, cut_string: cut_string.filter(is_value) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rules(more: &[&str]) -> RedactionRules {
        RedactionRules::new(&more.iter().map(|&one| one.to_owned()).collect::<Vec<_>>(), &[])
    }

    /// What is shown of a text whose middle is not kept, from `cut` on.
    fn cut(rules: &RedactionRules, text: &str, cut: usize) -> ShownText {
        let (beginning, end) = text.split_at(cut);
        rules.show_kept(&KeptText { beginning: beginning.to_owned(), end: Some(end.to_owned()), missing: 7 })
    }

    fn filler() -> String {
        "x ".repeat(CUT_EDGE)
    }

    #[test]
    fn secrets_are_hidden_on_both_sides_of_a_cut_and_what_is_beside_them_is_shown() {
        let secrets = r#""password":"hunter2","apiKey":["hunter2"],"requestState":"hunter2hunter2","pin":{"token":12345},"shown":"friend","tokenizer":"friendly","token":null"#;
        let text = format!(r#"{{"result":{{{secrets},"text":"{}{}",{secrets}}}}}"#, filler(), filler());
        let shown = cut(&rules(&[]), &text, text.len() / 2).text;
        assert!(!shown.contains("hunter2") && !shown.contains("12345"), "{shown}");
        for (friend, count) in [("\"friend\"", 2), ("\"friendly\"", 2), ("\"token\":null", 2), ("hunter…", 2)] {
            assert_eq!(shown.matches(friend).count(), count, "{friend}: {shown}");
        }
        assert!(shown.contains("\n… 7 bytes are not kept …\n,\"password\":\"••• 7\""), "{shown}");
    }

    #[test]
    fn nothing_of_a_secret_is_shown_wherever_the_cut_falls() {
        // Longer than what is left out at each side of a cut.
        let secret = format!(r#"{}\"\\hunter2"#, "hunter2 ".repeat(40));
        let members = format!(
            r#"{{"a":[1,{{"password":"{secret}","b":"x\\"}},"t",["token"]],"secret":["{secret}","{secret}"],"c":"\"password\":1"}}"#
        );
        let text = format!(r#"{{"id":1,"result":{{"of":{members},"more":[{members}],"last":true}}}}"#);
        for at in 0..=text.len() {
            let shown = cut(&rules(&[]), &text, at).text;
            assert!(!shown.contains("hunter") && !shown.contains("unter2"), "at {at}: {shown}");
        }
    }

    #[test]
    fn a_text_too_long_to_be_a_secret_is_shown_to_its_end() {
        let words = "word ".repeat(MAX_SECRET_STRING);
        let token = "k".repeat(2 * MAX_SECRET_STRING);
        let key = format!("{}-----END PRIVATE KEY-----", r"line\n".repeat(MAX_SECRET_STRING));
        for inner in [&words, &token, &key] {
            let text = format!(r#"{{"result":{{"text":"{inner} the end, with AKIAABCDEFGHIJKLMNOP"}},"id":7}}"#);
            let shown = cut(&rules(&[]), &text, 30).text;
            assert!(shown.ends_with(r#" the end, with ••• AWS key"},"id":7}"#), "{shown}");
            assert_eq!(shown.contains("word word"), *inner == words);
            assert!(!shown.contains("kkk") && !shown.contains("line"), "a part of a key: {shown}");
            let named = cut(&rules(&["absent"]), &text, 30).text;
            assert!(!named.contains("the end"), "what it lies in is not known: {named}");
        }
    }

    #[test]
    fn where_the_file_names_more_the_end_has_no_values() {
        let members = r#""customer":{"name":"Ann","of":["Bob"]},"x":"Cid","n":41"#;
        let text = format!(r#"{{"params":{{{members},"text":"{}{}",{members}}}}}"#, filler(), filler());
        for (more, beside) in [("customer", 1), ("/params/customer", 1), ("/params/absent", 1)] {
            let shown = cut(&rules(&[more]), &text, text.len() / 2).text;
            assert_eq!(shown.matches("\"Cid\"").count(), beside, "{more}: {shown}");
            assert_eq!(shown.matches("41").count(), beside, "{more}: {shown}");
            assert_eq!(shown.contains("Ann"), more == "/params/absent", "{more}: {shown}");
            assert_eq!(shown.matches("\"customer\":{\"name\":").count(), 2, "names stay: {shown}");
        }
        let shown = cut(&rules(&["customer"]), &format!(r#"{{"customer":{{"a":"{}Ann"#, filler()), 2).text;
        assert!(!shown.contains("Ann"), "{shown}");
    }

    #[test]
    fn ends_are_read_wherever_they_begin() {
        let whole = r#"{"a":[{"b":"c\"d\\"},["e"],{"f":{"g":1.50}}],"h":{"i":"j, k}"},"l":true}"#;
        for at in 1..whole.len() {
            let end = JsonEnd::read(&whole[at..]).unwrap_or_else(|| panic!("{}", &whole[at..]));
            assert!(whole.ends_with(&end.text[end.added..]), "{}", end.text);
        }
        let beginning = format!("{{\"a\":\"b\",\"c\":\"{}", filler());
        let ended = rules(&[]).show_kept(&KeptText { beginning, end: Some(String::new()), missing: 7 });
        assert!(ended.text.ends_with("\n… 7 bytes are not kept …\n"), "{}", ended.text);
        for wrong in ["", "no JSON", "\"", "}{", "],}", "{\"a\":1}", &"]".repeat(1000)] {
            assert!(JsonEnd::read(wrong).is_none(), "{wrong:.20}");
        }
    }

    #[test]
    fn text_that_is_no_json_is_shown_on_both_sides() {
        let text = format!("<p>{}</p> \"password\": \"hunter2\" <b>friend</b>", filler().repeat(4));
        let shown = cut(&rules(&[]), &text, text.len() / 2).text;
        assert!(shown.starts_with("<p>") && shown.ends_with("<b>friend</b>") && !shown.contains("hunter2"), "{shown}");
    }
}
