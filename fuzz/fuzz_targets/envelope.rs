//! libFuzzer target; what is checked is in `fuzz/checks/envelope.rs`.

#![no_main]

#[path = "../checks/envelope.rs"]
mod envelope;

use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| envelope::check(data));
