//! libFuzzer target; what is checked is in `fuzz/checks/splice.rs`.

#![no_main]

#[path = "../checks/choices.rs"]
mod choices;
#[path = "../checks/splice.rs"]
mod splice;

use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| splice::check(data));
