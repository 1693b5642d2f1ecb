//! Random ids of traces and spans.

use std::cell::Cell;

thread_local! {
    /// The state of the generator of this thread; 0 until it was seeded.
    static STATE: Cell<u64> = const { Cell::new(0) };
}

/// The step of the generator, an odd number near the golden ratio.
const STEP: u64 = 0x9e37_79b9_7f4a_7c15;

/// A random number (SplitMix64), seeded once for each thread: ids must be unique, not secret.
fn random() -> u64 {
    let mut state = STATE.get();
    if state == 0 {
        let mut seed = [0; 8];
        // Without randomness the address of the state still tells threads apart.
        if getrandom::fill(&mut seed).is_err() {
            seed = STATE.with(|state| (std::ptr::from_ref(state) as usize as u64).to_be_bytes());
        }
        state = u64::from_be_bytes(seed);
    }
    state = state.wrapping_add(STEP);
    STATE.set(state);
    let mixed = (state ^ (state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ (mixed >> 31)
}

/// The id of a new span.
pub(super) fn span_id() -> [u8; 8] {
    random().max(1).to_be_bytes()
}

/// The id of a new trace.
pub(super) fn trace_id() -> [u8; 16] {
    (u128::from(random()) << 64 | u128::from(random().max(1))).to_be_bytes()
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    #[test]
    fn ids_do_not_repeat_within_or_between_threads() {
        let one = || (0..1000).map(|_| super::trace_id()).collect::<Vec<_>>();
        let threads: Vec<_> = (0..4).map(|_| std::thread::spawn(one)).collect();
        let all: HashSet<_> = threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect();
        assert_eq!(all.len(), 4000);
        assert!(!all.contains(&[0; 16]));
    }
}
