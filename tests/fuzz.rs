//! Fuzzing without coverage feedback, on the stable compiler: mutates the seeds in `fuzz/seeds` and runs the checks of
//! `fuzz/checks`, which the libFuzzer targets run too.
//!
//! One second for each target, or `FUZZ_SECONDS`. The seed of the mutations is fixed, so that a change is judged by the same
//! inputs as the one before it; `FUZZ_SEED` sets another, `FUZZ_SEED=clock` a new one each time. `FUZZ_INPUT` runs one file
//! instead. Arguments select targets by name.

#![allow(missing_docs, unreachable_pub, reason = "a test has no outside users")]
#![allow(clippy::unwrap_used, reason = "a test that cannot go on should panic")]

#[path = "../fuzz/checks/choices.rs"]
mod choices;
#[path = "../fuzz/checks/differential/mod.rs"]
mod differential;
#[path = "../fuzz/checks/envelope.rs"]
mod envelope;
#[path = "../fuzz/checks/headers.rs"]
mod headers;
#[path = "../fuzz/checks/http1.rs"]
mod http1;
#[path = "../fuzz/checks/splice.rs"]
mod splice;
#[path = "../fuzz/checks/sse.rs"]
mod sse;

use std::env;
use std::fs;
use std::panic;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant, SystemTime};

/// Mutated inputs are cut to this length: longer ones are slower and rarely say more.
const MAX_INPUT_BYTES: usize = 4 << 10;
/// Mutations of one input.
const MAX_MUTATIONS: u64 = 6;
/// Seed of the mutations unless `FUZZ_SEED` sets another.
const DEFAULT_SEED: u64 = 1;
/// Longest range that a mutation copies or removes.
const MAX_RANGE: usize = 64;

struct Target {
    name: &'static str,
    check: fn(&[u8]),
    /// What mutations insert beside random bytes.
    fragments: &'static [&'static [u8]],
}

const JSON_FRAGMENTS: &[&[u8]] = &[
    b"{",
    b"}",
    b"[",
    b"]",
    b",",
    b":",
    b"\"",
    b"\\",
    b"\\u0000",
    b"\\ud800",
    b"null",
    b"true",
    b"-0",
    b"1e999",
    b"{}",
    b"\"\":",
    b"\"id\":",
    b"\"method\":\"ping\"",
    b"\"jsonrpc\":\"2.0\"",
    b"\xff",
    b" ",
    b"\n",
    b"\xc3\xa9",
    b"[[[[[[[[",
    b"\"type\":\"string\"",
    b"\"properties\":{",
    b"=?base64?",
    b"?=",
];

const TARGETS: &[Target] = &[
    Target { name: "envelope", check: envelope::check, fragments: JSON_FRAGMENTS },
    Target { name: "splice", check: splice::check, fragments: JSON_FRAGMENTS },
    Target { name: "headers", check: headers::check, fragments: JSON_FRAGMENTS },
    Target {
        name: "sse",
        check: sse::check,
        fragments: &[
            b"\n",
            b"\r",
            b"\r\n",
            b"\n\n",
            b"data:",
            b"data: ",
            b"id:",
            b"event:",
            b"retry:",
            b":",
            b" ",
            b"\0",
            b"\xff",
            b"\xef\xbb\xbf",
            b"\xc3",
            b"9999999999999999999999",
        ],
    },
    Target {
        name: "http1",
        check: http1::check,
        fragments: &[
            b"\r\n",
            b"\n",
            b"\r",
            b"\r\n\r\n",
            b" ",
            b"\t",
            b"\0",
            b"\x0b",
            b"\xff",
            b":",
            b",",
            b";",
            b";x=\"y\"",
            b"0x",
            b"+",
            b"-",
            b"0",
            b"0\r\n\r\n",
            b"ffffffffffffffff",
            b"Host: a\r\n",
            b"Content-Length: 3\r\n",
            b"Content-Length: ",
            b"Transfer-Encoding: chunked\r\n",
            b"Transfer-Encoding: ",
            b"chunked",
            b"identity",
            b"Connection: close\r\n",
            b"Connection: keep-alive\r\n",
            b"HTTP/1.0",
            b"HTTP/1.1",
            b"HTTP/1.1 100 Continue\r\n\r\n",
            b"HEAD",
            b"CONNECT",
            b"http://a",
            b"204",
            b"304",
            b"X: y\r\n z\r\n",
            b"GET / HTTP/1.1\r\nHost: a\r\n\r\n",
        ],
    },
];

/// Pseudo-random numbers (SplitMix64): the same seed gives the same inputs.
struct Random(u64);

fn main() -> ExitCode {
    let arguments: Vec<String> = env::args().skip(1).collect();
    let filters: Vec<&String> = arguments.iter().filter(|argument| !argument.starts_with('-')).collect();
    let is_selected = |target: &&Target| {
        !arguments.iter().any(|argument| argument == "--list")
            && (filters.is_empty() || filters.iter().any(|filter| target.name.contains(filter.as_str())))
    };
    // Every target runs, also after one has failed.
    let failed = TARGETS.iter().filter(is_selected).filter(|target| !run(target)).count();
    match failed == 0 {
        true => ExitCode::SUCCESS,
        false => ExitCode::FAILURE,
    }
}

/// Runs one target; false when a check failed.
fn run(target: &Target) -> bool {
    if let Some(path) = env::var_os("FUZZ_INPUT") {
        let passed = passes(target, &fs::read(&path).expect("FUZZ_INPUT names a readable file"));
        println!("fuzz {}: {} {}", target.name, path.display(), if passed { "passed" } else { "FAILED" });
        return passed;
    }
    let seconds = number("FUZZ_SECONDS").unwrap_or(1);
    let seed = match env::var("FUZZ_SEED") {
        Ok(text) if text == "clock" => clock_seed(),
        _ => number("FUZZ_SEED").unwrap_or(DEFAULT_SEED),
    };
    let seeds = seeds(target.name);
    // Printed first: a stack overflow ends the process, and then only the seed leads back to the input.
    println!("fuzz {}: {seconds} s, FUZZ_SEED={seed}", target.name);
    let end = Instant::now() + Duration::from_secs(seconds);
    let (mut random, mut inputs) = (Random(seed), 0_u64);
    loop {
        let input = match seeds.get(inputs as usize) {
            Some(seed) => seed.clone(),
            None if Instant::now() >= end => break,
            None => random.mutated(&seeds, target.fragments),
        };
        inputs += 1;
        if !passes(target, &input) {
            let path = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("fuzz-{}-{seed}", target.name));
            fs::write(&path, &input).expect("the target folder is writable");
            println!("fuzz {}: FAILED with input {inputs}", target.name);
            println!("  again: FUZZ_INPUT={} cargo test --test fuzz {}", path.display(), target.name);
            return false;
        }
    }
    println!("fuzz {}: {inputs} inputs passed", target.name);
    true
}

fn passes(target: &Target, input: &[u8]) -> bool {
    panic::catch_unwind(|| (target.check)(input)).is_ok()
}

fn number(variable: &str) -> Option<u64> {
    let text = env::var(variable).ok()?;
    Some(text.parse().unwrap_or_else(|_| panic!("{variable} is a number, not {text:?}")))
}

fn clock_seed() -> u64 {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    now.map_or(0, |now| now.as_micros() as u64)
}

/// The committed inputs of a target, sorted by name so that a seed of the generator means the same everywhere.
fn seeds(target: &str) -> Vec<Vec<u8>> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz/seeds").join(target);
    let mut paths: Vec<PathBuf> = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    paths.sort();
    assert!(!paths.is_empty(), "no seeds for {target}");
    paths.iter().map(|path| fs::read(path).unwrap()).collect()
}

// === impl Random ===

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// A number below `end`, or 0 when there is none.
    fn below(&mut self, end: usize) -> usize {
        (self.next() % end.max(1) as u64) as usize
    }

    fn pick<'t, T>(&mut self, items: &'t [T]) -> &'t T {
        &items[self.below(items.len())]
    }

    /// A range of an input, of at most [`MAX_RANGE`] bytes.
    fn range(&mut self, input: &[u8]) -> std::ops::Range<usize> {
        let start = self.below(input.len() + 1);
        start..start + self.below((input.len() - start).min(MAX_RANGE) + 1)
    }

    /// A seed with some mutations.
    fn mutated(&mut self, seeds: &[Vec<u8>], fragments: &[&[u8]]) -> Vec<u8> {
        let mut input = self.pick(seeds).clone();
        for _ in 0..=self.next() % MAX_MUTATIONS {
            self.mutate(&mut input, seeds, fragments);
        }
        input.truncate(MAX_INPUT_BYTES);
        input
    }

    fn mutate(&mut self, input: &mut Vec<u8>, seeds: &[Vec<u8>], fragments: &[&[u8]]) {
        let at = self.below(input.len() + 1);
        match self.next() % 8 {
            0 => {
                let range = self.range(input);
                input.drain(range);
            }
            1 if at < input.len() => input[at] = self.next() as u8,
            2 if at < input.len() => input[at] ^= 1 << (self.next() % 8),
            3 => {
                let range = self.range(input);
                let copied = input[range].to_vec();
                input.splice(at..at, copied);
            }
            4 => {
                let other = self.pick(seeds);
                let range = self.range(other);
                input.splice(at..at, other[range].iter().copied());
            }
            5 => {
                let other = self.pick(seeds);
                let from = self.below(other.len() + 1);
                input.truncate(at);
                input.extend_from_slice(&other[from..]);
            }
            _ => {
                let fragment = self.pick(fragments);
                input.splice(at..at, fragment.iter().copied());
            }
        }
    }
}
