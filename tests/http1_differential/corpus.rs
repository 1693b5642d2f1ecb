//! The corpus of the differential test: requests and responses as data, each with what our codec makes of it.

pub const REQUESTS: &str = include_str!("requests.txt");
pub const RESPONSES: &str = include_str!("responses.txt");

/// One input with what our codec makes of it.
pub struct Case {
    pub name: &'static str,
    pub input: Vec<u8>,
    /// Complete messages.
    pub messages: usize,
    pub end: &'static str,
}

/// The cases of a file of the corpus.
pub fn corpus(text: &'static str) -> Vec<Case> {
    let mut cases: Vec<Case> = Vec::new();
    let mut is_in_case = false;
    for line in text.lines() {
        if let Some(title) = line.strip_prefix("== ") {
            let (name, expected) = title.split_once(" => ").unwrap();
            let (messages, end) = expected.split_once(' ').unwrap();
            cases.push(Case { name, input: Vec::new(), messages: messages.parse().unwrap(), end });
        } else if is_in_case && !line.starts_with("# ") {
            let input = &mut cases.last_mut().unwrap().input;
            match line.strip_suffix("\\c") {
                Some(line) => unescape(line, input),
                None => {
                    unescape(line, input);
                    input.extend_from_slice(b"\r\n");
                }
            }
        }
        is_in_case = (is_in_case || line.starts_with("== ")) && !line.starts_with("# ");
    }
    cases
}

fn unescape(line: &str, out: &mut Vec<u8>) {
    let mut rest = line.as_bytes();
    while let Some((byte, after)) = rest.split_first() {
        rest = after;
        if *byte != b'\\' {
            out.push(*byte);
            continue;
        }
        let (escape, after) = rest.split_first().unwrap();
        rest = after;
        match escape {
            b'r' => out.push(b'\r'),
            b'n' => out.push(b'\n'),
            b't' => out.push(b'\t'),
            b'\\' => out.push(b'\\'),
            b'x' => {
                out.push(u8::from_str_radix(str::from_utf8(&rest[..2]).unwrap(), 16).unwrap());
                rest = &rest[2..];
            }
            other => panic!("unknown escape {:?} in {line:?}", char::from(*other)),
        }
    }
}
