//! Request ids, to correlate the log lines of client, gateway and upstream.

use std::cell::RefCell;
use std::sync::LazyLock;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;
use http::HeaderValue;

use crate::call::REQUEST_ID;
use crate::http::codec::HeaderFields;

/// Longest request id accepted from a client.
const MAX_CLIENT_ID_LENGTH: usize = 128;

/// Digits of a generated id.
const ID_LENGTH: usize = 16;
/// Ids that are generated together, as parts of one text: to allocate and free each alone costs more than to make it.
const BLOCK_LENGTH: u64 = 64;

/// Random start of this process's ids.
static SEED: LazyLock<u64> = LazyLock::new(|| {
    let mut bytes = [0; 8];
    // Without randomness, ids of two processes may collide; within one they stay unique.
    let _ = getrandom::fill(&mut bytes);
    u64::from_le_bytes(bytes)
});
static SEQUENCE: AtomicU64 = AtomicU64::new(0);
/// An odd number, so that the sequence visits every 64-bit value before it repeats.
const STRIDE: u64 = 0x9e37_79b9_7f4a_7c15;

thread_local! {
    /// The ids of a block that were not given away yet.
    static SPARE_IDS: RefCell<Bytes> = const { RefCell::new(Bytes::new()) };
}

/// The id of a request: the client's own, if it is short printable ASCII, or a generated one.
pub(super) fn of(headers: &HeaderFields) -> HeaderValue {
    let is_valid = |value: &&[u8]| value.len() <= MAX_CLIENT_ID_LENGTH && value.iter().all(u8::is_ascii_graphic);
    let own = headers.get(&REQUEST_ID).filter(is_valid).and_then(|own| HeaderValue::from_bytes(own).ok());
    own.unwrap_or_else(generate)
}

fn generate() -> HeaderValue {
    let digits = SPARE_IDS.with_borrow_mut(|spare| {
        if spare.is_empty() {
            *spare = new_block();
        }
        spare.split_to(ID_LENGTH)
    });
    HeaderValue::from_maybe_shared(digits).unwrap_or(HeaderValue::from_static("-"))
}

fn new_block() -> Bytes {
    let first = SEQUENCE.fetch_add(BLOCK_LENGTH, Ordering::Relaxed);
    let number = |n: u64| SEED.wrapping_add(first.wrapping_add(n).wrapping_mul(STRIDE));
    (0..BLOCK_LENGTH).flat_map(|n| hex_digits(number(n))).collect()
}

fn hex_digits(number: u64) -> [u8; ID_LENGTH] {
    std::array::from_fn(|n| b"0123456789abcdef"[(number >> (60 - 4 * n)) as usize & 15])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn request_id_is_kept_if_valid_and_generated_otherwise() {
        let none = HeaderFields::default();
        let first = of(&none);
        assert_eq!(first.len(), 16);
        assert_eq!(hex_digits(0x0123_4567_89ab_cdef), *b"0123456789abcdef");
        let many: std::collections::HashSet<_> = (0..3 * BLOCK_LENGTH).map(|_| of(&none)).collect();
        assert_eq!(many.len() as u64, 3 * BLOCK_LENGTH);
        assert!(!many.contains(&first));
        assert_eq!(of(&HeaderFields::of(&[("x-request-id", "mine-1")])), "mine-1");
        assert_ne!(of(&HeaderFields::of(&[("x-request-id", "a b")])), "a b");
    }
}
