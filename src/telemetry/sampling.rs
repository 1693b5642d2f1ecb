//! Logging only a part of the lines of some targets.

use std::sync::atomic::{AtomicU64, Ordering};

use arc_swap::ArcSwapOption;
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::layer::{Context, Layer};

/// A part of the whole, from 0 to 1.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct SampleRate(f64);

/// Takes a part of what comes, spread evenly.
#[derive(Debug, Default)]
pub struct SampleCounter {
    rate: SampleRate,
    /// What came so far; not counted where everything is taken.
    seen: AtomicU64,
}

/// The targets of whose lines a part is logged.
#[derive(Debug, Default)]
pub(super) struct SampledTargets(Vec<(String, SampleCounter)>);

/// The layer that leaves lines out. Warnings and errors are always logged.
pub(super) struct LineSampling;

/// An odd number near the golden ratio: its multiples are spread evenly over all 64-bit values.
const SPREAD: u64 = 0x9e37_79b9_7f4a_7c15;
const TWO_TO_THE_32: f64 = 4_294_967_296.0;

static SAMPLED_TARGETS: ArcSwapOption<SampledTargets> = ArcSwapOption::const_empty();

impl SampleRate {
    /// A part from 0 to 1.
    pub fn new(part: f64) -> Option<Self> {
        (0.0..=1.0).contains(&part).then_some(Self(part))
    }

    /// The part as a number.
    pub fn get(self) -> f64 {
        self.0
    }
}

impl Default for SampleRate {
    fn default() -> Self {
        Self(1.0)
    }
}

impl SampleCounter {
    /// A counter that takes such a part.
    pub fn new(rate: SampleRate) -> Self {
        Self { rate, seen: AtomicU64::new(0) }
    }

    /// Whether the next one is taken.
    pub fn takes_next(&self) -> bool {
        if self.rate.0 >= 1.0 {
            return true;
        }
        let number = self.seen.fetch_add(1, Ordering::Relaxed).wrapping_mul(SPREAD);
        f64::from(u32::try_from(number >> 32).unwrap_or(0)) < self.rate.0 * TWO_TO_THE_32
    }
}

impl SampledTargets {
    /// Whether the next line of a target is logged: the entry decides that names most of it.
    fn takes_next(&self, target: &str) -> bool {
        let is_within = |named: &str| {
            let rest = target.strip_prefix(named);
            rest.is_some_and(|rest| rest.is_empty() || rest.starts_with("::"))
        };
        let named = self.0.iter().filter(|(named, _)| is_within(named)).max_by_key(|(named, _)| named.len());
        named.is_none_or(|(_, counter)| counter.takes_next())
    }
}

/// Logs such parts of the lines of these targets from now on, and all lines of others.
pub fn set_samples(samples: impl IntoIterator<Item = (String, SampleRate)>) {
    let targets: Vec<_> = samples.into_iter().map(|(target, rate)| (target, SampleCounter::new(rate))).collect();
    let targets = (!targets.is_empty()).then(|| SampledTargets(targets).into());
    SAMPLED_TARGETS.store(targets);
}

impl<S: Subscriber> Layer<S> for LineSampling {
    fn event_enabled(&self, event: &Event<'_>, _: Context<'_, S>) -> bool {
        let metadata = event.metadata();
        *metadata.level() <= Level::WARN
            || SAMPLED_TARGETS.load().as_ref().is_none_or(|sampled| sampled.takes_next(metadata.target()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn taken(rate: f64, of: u32) -> usize {
        let counter = SampleCounter::new(SampleRate::new(rate).unwrap());
        (0..of).filter(|_| counter.takes_next()).count()
    }

    #[test]
    fn a_part_is_taken_spread_evenly() {
        assert_eq!((taken(0.0, 1000), taken(1.0, 1000)), (0, 1000));
        for rate in [0.01, 0.1, 0.5, 0.9] {
            let expected = (rate * 10_000.0) as usize;
            assert!(taken(rate, 10_000).abs_diff(expected) < 10, "{rate}");
        }
        assert!(
            SampleRate::new(1.1).is_none() && SampleRate::new(-0.1).is_none() && SampleRate::new(f64::NAN).is_none()
        );
    }

    #[test]
    fn the_entry_that_names_most_of_a_target_decides() {
        let counter = |part| SampleCounter::new(SampleRate::new(part).unwrap());
        let sampled = SampledTargets(vec![
            ("rialto::http".to_owned(), counter(0.0)),
            ("rialto::http::server".to_owned(), counter(1.0)),
        ]);
        for (target, is_taken) in [
            ("rialto::http", false),
            ("rialto::http::client::pool", false),
            ("rialto::http::server", true),
            ("rialto::http::server::tls", true),
            ("rialto::httpd", true),
            ("hyper", true),
        ] {
            assert_eq!(sampled.takes_next(target), is_taken, "{target}");
        }
    }
}
