//! libFuzzer target; what is checked is in `fuzz/checks/http1.rs`.

#![no_main]

#[path = "../checks/differential/mod.rs"]
mod differential;
#[path = "../checks/http1.rs"]
mod http1;

use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| http1::check(data));
