//! HTTP/1.1 held against hyper, in both roles: the corpus in `tests/http1_differential` at every split into two pieces and
//! byte by byte, and mutations of it.
//!
//! The codec alone is compared, and with it the loops that drive it: that of the server, and the pooled connections of the
//! client. `fuzz/checks/differential` says what is compared. Our codec may refuse more than hyper, so the corpus also says what ours
//! makes of each case.

#![allow(missing_docs, unreachable_pub, reason = "a test has no outside users")]
#![allow(clippy::unwrap_used, reason = "a test that cannot go on should panic")]

#[path = "http1_differential/corpus.rs"]
mod corpus;
#[path = "../fuzz/checks/differential/mod.rs"]
mod differential;
#[path = "http1_differential/loops.rs"]
mod loops;
#[path = "http1_differential/our_loops.rs"]
mod our_loops;

use corpus::{Case, REQUESTS, RESPONSES, corpus};
use differential::{ClientRequest, End, Role, Transcript, check_split, compare};
use loops::compare_loops;
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};

/// Mutated inputs for each role.
const MUTATIONS: u32 = 3_000;
/// What mutations insert: what parsers disagree on.
const FRAGMENTS: &[&[u8]] = &[
    b"\r\n",
    b"\n",
    b"\r",
    b"\r\n\r\n",
    b"\0",
    b" ",
    b"\t",
    b"\x0b",
    b"\xff",
    b":",
    b",",
    b";",
    b";a=b",
    b"0",
    b"0x",
    b"+",
    b"-",
    b"ffffffffffffffff",
    b"0\r\n\r\n",
    b"Content-Length: 5\r\n",
    b"Content-Length: 0\r\n",
    b"Transfer-Encoding: chunked\r\n",
    b"Transfer-Encoding: identity\r\n",
    b"Connection: close\r\n",
    b"Connection: keep-alive\r\n",
    b"Host: a\r\n",
    b"X: y\r\n",
    b" HTTP/1.0",
    b"HTTP/1.1 100 Continue\r\n\r\n",
    b"GET / HTTP/1.1\r\nHost: a\r\n\r\n",
];

#[derive(Debug, Clone)]
enum Mutation {
    Remove { at: prop::sample::Index, length: usize },
    Insert { at: prop::sample::Index, fragment: usize },
    Replace { at: prop::sample::Index, byte: u8 },
    Repeat { at: prop::sample::Index, length: usize },
}

/// The role that reads a response of this name.
fn client_role(name: &str) -> Role {
    let request = if name.starts_with("head-") { ClientRequest::Head } else { ClientRequest::Post };
    Role::Client { request }
}

fn check_expected(case: &Case, transcript: &Transcript) {
    let messages = transcript.messages.iter().filter(|message| message.is_complete).count();
    let end = match transcript.end {
        End::Open { .. } => "open",
        End::Closed { .. } => "closed",
        End::InHead { .. } => "in-head",
        End::InBody => "in-body",
        End::Refused => "refused",
    };
    assert_eq!((messages, end), (case.messages, case.end), "{}: {transcript:?}", case.name);
}

/// Compares an input in one piece, at every split into two and byte by byte; returns the number of comparisons.
fn compare_at_every_split(role: Role, input: &[u8]) -> (Transcript, usize) {
    let whole = compare(role, &[input]);
    for cut in 1..input.len() {
        let pieces = [&input[..cut], &input[cut..]];
        check_split(&whole, &compare(role, &pieces), &pieces);
    }
    let bytes: Vec<&[u8]> = input.chunks(1).collect();
    check_split(&whole, &compare(role, &bytes), &bytes);
    (whole, input.len().max(1) + 1)
}

fn check_corpus(cases: &[Case], role: impl Fn(&str) -> Role) -> usize {
    let mut comparisons = 0;
    for case in cases {
        let (transcript, count) = compare_at_every_split(role(case.name), &case.input);
        check_expected(case, &transcript);
        comparisons += count;
    }
    comparisons
}

#[test]
fn requests_are_read_as_hyper_reads_them_at_every_split() {
    let cases = corpus(REQUESTS);
    assert!(cases.len() >= 200, "only {} requests", cases.len());
    let comparisons = check_corpus(&cases, |_| Role::Server);
    println!("{} requests, {comparisons} comparisons with hyper", cases.len());
}

#[test]
fn responses_are_read_as_hyper_reads_them_at_every_split() {
    let cases = corpus(RESPONSES);
    assert!(cases.len() >= 100, "only {} responses", cases.len());
    let comparisons = check_corpus(&cases, client_role);
    println!("{} responses, {comparisons} comparisons with hyper", cases.len());
}

/// Inputs at the limits of bytes are too long for every split: they are split at every 509th byte.
#[test]
fn limits_are_no_higher_than_those_of_hyper() {
    let chunked = |body: String| format!("POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n{body}");
    let extended = |length: usize| format!("1;{}\r\nx\r\n", "e".repeat(length - 1));
    let trailer = |length: usize| format!("0\r\nX: {}\r\n\r\n", "y".repeat(length - 7));
    let limit = 16 << 10;
    let mut comparisons = 0;
    for (name, input, messages, end) in [
        ("extensions at the limit", chunked(format!("{}0\r\n\r\n", extended(1024).repeat(16))), 1, "open"),
        (
            "extensions over the limit",
            chunked(format!("{}{}0\r\n\r\n", extended(1024).repeat(16), extended(1))),
            0,
            "refused",
        ),
        ("extension of one chunk over the limit", chunked(format!("{}0\r\n\r\n", extended(4 << 10))), 0, "refused"),
        ("trailers at the limit", chunked(trailer(limit - 1)), 1, "open"),
        ("trailers over the limit", chunked(trailer(limit)), 0, "refused"),
        (
            "trailer fields over the limit, without an end",
            chunked(format!("0\r\n{}", "X: 1\r\n".repeat(101))),
            0,
            "refused",
        ),
        ("long target", format!("GET /{} HTTP/1.1\r\nHost: a\r\n\r\n", "a".repeat(8 << 10)), 1, "open"),
        ("long value", format!("GET / HTTP/1.1\r\nHost: a\r\nX: {}\r\n\r\n", "a".repeat(32 << 10)), 1, "open"),
        (
            "head over the limit",
            format!("GET / HTTP/1.1\r\nHost: a\r\nX: {}\r\n\r\n", "a".repeat(64 << 10)),
            0,
            "refused",
        ),
    ] {
        let input = input.into_bytes();
        let whole = compare(Role::Server, &[&input]);
        for cut in (1..input.len()).step_by(509) {
            let pieces = [&input[..cut], &input[cut..]];
            check_split(&whole, &compare(Role::Server, &pieces), &pieces);
            comparisons += 1;
        }
        check_expected(&Case { name, input, messages, end }, &whole);
    }
    println!("9 inputs at limits, {comparisons} comparisons with hyper");
}

#[test]
fn mutated_messages_are_read_as_hyper_reads_them() {
    for (text, role) in [(REQUESTS, Role::Server), (RESPONSES, client_role("post"))] {
        let inputs: Vec<Vec<u8>> = corpus(text).into_iter().map(|case| case.input).collect();
        let mut runner = TestRunner::new(Config { cases: MUTATIONS, failure_persistence: None, ..Config::default() });
        let strategy = (
            prop::sample::select(inputs.clone()),
            prop::collection::vec(mutation(), 1..4),
            any::<prop::sample::Index>(),
        );
        let outcome = runner.run(&strategy, |(mut input, mutations, cut)| {
            mutations.iter().for_each(|mutation| mutation.apply(&mut input));
            let cut = if input.is_empty() { 0 } else { cut.index(input.len()) };
            let whole = compare(role, &[&input]);
            let bytes: Vec<&[u8]> = input.chunks(1).collect();
            for pieces in [&bytes[..], &[&input[..cut], &input[cut..]]] {
                check_split(&whole, &compare(role, pieces), pieces);
            }
            for pieces in [&[&input[..]][..], &[&input[..cut], &input[cut..]]] {
                compare_loops(role, pieces);
            }
            Ok(())
        });
        outcome.unwrap_or_else(|error| panic!("{error}"));
        println!("{MUTATIONS} mutations for {role:?}, three comparisons with hyper each");
    }
}

/// The server answers, and the client sends its next request, over the same connection.
#[test]
fn loops_read_the_corpus_as_hyper_does_at_every_split() {
    for (text, role) in [(REQUESTS, (|_| Role::Server) as fn(&str) -> Role), (RESPONSES, client_role)] {
        let cases = corpus(text);
        let mut comparisons = 0;
        for Case { name, input, .. } in &cases {
            comparisons += compare_loops(role(name), &[input]);
            for cut in 1..input.len() {
                comparisons += compare_loops(role(name), &[&input[..cut], &input[cut..]]);
            }
            comparisons += compare_loops(role(name), &input.chunks(1).collect::<Vec<_>>());
        }
        println!("{} inputs, {comparisons} comparisons of the loops with hyper", cases.len());
    }
}

fn mutation() -> impl Strategy<Value = Mutation> {
    let at = any::<prop::sample::Index>;
    prop_oneof![
        (at(), 1..20usize).prop_map(|(at, length)| Mutation::Remove { at, length }),
        (at(), 0..FRAGMENTS.len()).prop_map(|(at, fragment)| Mutation::Insert { at, fragment }),
        (at(), any::<u8>()).prop_map(|(at, byte)| Mutation::Replace { at, byte }),
        (at(), 1..40usize).prop_map(|(at, length)| Mutation::Repeat { at, length }),
    ]
}

impl Mutation {
    fn apply(&self, input: &mut Vec<u8>) {
        if input.is_empty() {
            return;
        }
        match *self {
            Self::Remove { at, length } => {
                let at = at.index(input.len());
                input.drain(at..input.len().min(at + length));
            }
            Self::Insert { at, fragment } => {
                let at = at.index(input.len());
                input.splice(at..at, FRAGMENTS[fragment].iter().copied());
            }
            Self::Replace { at, byte } => {
                let at = at.index(input.len());
                input[at] = byte;
            }
            Self::Repeat { at, length } => {
                let at = at.index(input.len());
                let repeated = input[at..input.len().min(at + length)].to_vec();
                input.splice(at..at, repeated);
            }
        }
    }
}
