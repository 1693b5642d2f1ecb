//! libFuzzer target; what is checked is in `fuzz/checks/headers.rs`.

#![no_main]

#[path = "../checks/headers.rs"]
mod headers;

use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| headers::check(data));
