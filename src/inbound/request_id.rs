//! A name for every request, so that its lines in our log, the client's and the upstream's can be
//! found together.

use std::sync::LazyLock;
use std::sync::atomic::{AtomicU64, Ordering};

use http::{HeaderMap, HeaderValue};

use crate::call::REQUEST_ID;

/// The longest name of a client's own that is taken.
const LONGEST: usize = 128;

/// Where the names of this process begin.
static FIRST: LazyLock<u64> = LazyLock::new(|| {
    let mut bytes = [0; 8];
    // Without randomness names are only less distinct.
    let _ = getrandom::fill(&mut bytes);
    u64::from_le_bytes(bytes)
});
static COUNT: AtomicU64 = AtomicU64::new(0);
/// An odd number, so that all values come before one comes again.
const STEP: u64 = 0x9e37_79b9_7f4a_7c15;

/// Makes sure that a request has a name: the client's own, if that is fit to be passed on, or a new
/// one.
pub(super) fn name(headers: &mut HeaderMap) -> HeaderValue {
    let fit = |value: &&HeaderValue| value.len() <= LONGEST && value.as_bytes().iter().all(u8::is_ascii_graphic);
    if let Some(own) = headers.get(&REQUEST_ID).filter(fit) {
        return own.clone();
    }
    let number = FIRST.wrapping_add(COUNT.fetch_add(1, Ordering::Relaxed).wrapping_mul(STEP));
    let name = HeaderValue::from_bytes(&hexadecimal(number)).unwrap_or(HeaderValue::from_static("-"));
    headers.insert(REQUEST_ID, name.clone());
    name
}

fn hexadecimal(number: u64) -> [u8; 16] {
    std::array::from_fn(|n| b"0123456789abcdef"[(number >> (60 - 4 * n)) as usize & 15])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_request_has_a_name() {
        let mut headers = HeaderMap::new();
        let first = name(&mut headers);
        assert_eq!(first.len(), 16);
        assert_eq!(hexadecimal(0x0123_4567_89ab_cdef), *b"0123456789abcdef");
        assert_eq!(name(&mut headers), first, "it keeps the name that it has");
        assert_ne!(name(&mut HeaderMap::new()), first);
        let mut own = HeaderMap::from_iter([(REQUEST_ID, HeaderValue::from_static("mine-1"))]);
        assert_eq!(name(&mut own), "mine-1");
        let mut odd = HeaderMap::from_iter([(REQUEST_ID, HeaderValue::from_static("a b"))]);
        assert_ne!(name(&mut odd), "a b");
    }
}
