//! libFuzzer target; what is checked is in `fuzz/checks/sse.rs`.

#![no_main]

#[path = "../checks/choices.rs"]
mod choices;
#[path = "../checks/sse.rs"]
mod sse;

use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| sse::check(data));
