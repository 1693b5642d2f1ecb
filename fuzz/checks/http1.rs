//! HTTP/1.1: whatever we accept, hyper reads in the same way; see the module `differential`.
//!
//! The input is what one side of a connection sends. It is read as requests and as a response, in one piece, byte by byte
//! and in two pieces.

use crate::differential::{ClientRequest, Role, check_split, compare};

pub fn check(input: &[u8]) {
    // A place that depends on the whole input, so that mutations move it.
    let sum = input.iter().fold(0_usize, |sum, byte| sum.wrapping_mul(31).wrapping_add(usize::from(*byte)));
    let (first, second) = input.split_at(sum.checked_rem(input.len()).unwrap_or_default());
    let bytes: Vec<&[u8]> = input.chunks(1).collect();
    let roles =
        [Role::Server, Role::Client { request: ClientRequest::Post }, Role::Client { request: ClientRequest::Head }];
    for role in roles {
        let whole = compare(role, &[input]);
        for pieces in [&bytes[..], &[first, second]] {
            check_split(&whole, &compare(role, pieces), pieces);
        }
    }
}
