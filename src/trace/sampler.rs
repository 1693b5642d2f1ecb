//! Which calls are traced.

use super::context::{SAMPLED, SpanContext};

/// Who decides whether a call is traced: the client, where it says so, or the root rule.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Sampler {
    /// Whether the sampled flag of a parent decides.
    pub(super) follows_parent: bool,
    /// What decides otherwise.
    pub(super) root: SamplerRule,
}

/// The rule of a sampler.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum SamplerRule {
    /// Every call.
    AlwaysOn,
    /// No call.
    AlwaysOff,
    /// This part of the traces, from 0 to 1, chosen by their ids.
    Ratio(f64),
}

/// The names of samplers, as `OTEL_TRACES_SAMPLER` has them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SamplerName {
    /// Every call.
    AlwaysOn,
    /// No call.
    AlwaysOff,
    /// A part of the traces.
    TraceIdRatio,
    /// Every call, unless its parent is not sampled.
    ParentBasedAlwaysOn,
    /// No call, unless its parent is sampled.
    ParentBasedAlwaysOff,
    /// As the parent; a part of the traces that begin here.
    ParentBasedTraceIdRatio,
}

const TWO_TO_THE_63: f64 = 9_223_372_036_854_775_808.0;

impl SamplerName {
    /// Every name with its value.
    pub const ALL: [(&'static str, Self); 6] = [
        ("always_on", Self::AlwaysOn),
        ("always_off", Self::AlwaysOff),
        ("traceidratio", Self::TraceIdRatio),
        ("parentbased_always_on", Self::ParentBasedAlwaysOn),
        ("parentbased_always_off", Self::ParentBasedAlwaysOff),
        ("parentbased_traceidratio", Self::ParentBasedTraceIdRatio),
    ];

    /// The sampler with that ratio, where it has one.
    pub(super) fn with_ratio(self, ratio: f64) -> Sampler {
        let (follows_parent, root) = match self {
            Self::AlwaysOn => (false, SamplerRule::AlwaysOn),
            Self::AlwaysOff => (false, SamplerRule::AlwaysOff),
            Self::TraceIdRatio => (false, SamplerRule::Ratio(ratio)),
            Self::ParentBasedAlwaysOn => (true, SamplerRule::AlwaysOn),
            Self::ParentBasedAlwaysOff => (true, SamplerRule::AlwaysOff),
            Self::ParentBasedTraceIdRatio => (true, SamplerRule::Ratio(ratio)),
        };
        Sampler { follows_parent, root }
    }
}

impl Sampler {
    /// Whether a span of this trace is recorded.
    pub(super) fn samples(&self, parent: Option<&SpanContext>, trace_id: &[u8; 16]) -> bool {
        match parent {
            Some(parent) if self.follows_parent => parent.flags & SAMPLED != 0,
            _ => match self.root {
                SamplerRule::AlwaysOn => true,
                SamplerRule::AlwaysOff => false,
                SamplerRule::Ratio(ratio) => is_within(ratio, trace_id),
            },
        }
    }
}

/// Whether a trace is among this part of all. Every SDK looks at the last eight bytes, so that all decide alike.
#[allow(clippy::cast_precision_loss, reason = "a rounded bound changes no ratio that anybody can tell")]
fn is_within(ratio: f64, trace_id: &[u8; 16]) -> bool {
    let mut last = [0; 8];
    last.copy_from_slice(&trace_id[8..]);
    ratio >= 1.0 || ((u64::from_be_bytes(last) >> 1) as f64) < ratio * TWO_TO_THE_63
}

#[cfg(test)]
mod tests {
    use super::*;

    fn context(last: u8, flags: u8) -> SpanContext {
        SpanContext { trace_id: [0, 0, 0, 0, 0, 0, 0, 1, last, 0, 0, 0, 0, 0, 0, 0], span_id: [1; 8], flags }
    }

    #[test]
    fn each_sampler_decides_by_parent_or_ratio() {
        let (low, high) = (context(0x20, 0), context(0xa0, 0));
        let (sampled, unsampled) = (context(0xa0, SAMPLED), context(0x20, 0));
        // Without a parent: a trace id in the lower and in the upper half. Then a sampled and an unsampled parent.
        for (name, expected) in [
            ("always_on", [true, true, true, true]),
            ("always_off", [false, false, false, false]),
            ("traceidratio", [true, false, false, true]),
            ("parentbased_always_on", [true, true, true, false]),
            ("parentbased_always_off", [false, false, true, false]),
            ("parentbased_traceidratio", [true, false, true, false]),
        ] {
            let (_, kind) = SamplerName::ALL.iter().find(|(known, _)| *known == name).unwrap();
            let sampler = kind.with_ratio(0.5);
            let root = |context: &SpanContext| sampler.samples(None, &context.trace_id);
            let child = |context: &SpanContext| sampler.samples(Some(context), &context.trace_id);
            assert_eq!([root(&low), root(&high), child(&sampled), child(&unsampled)], expected, "{name}");
        }
    }

    #[test]
    fn a_ratio_takes_about_its_part_of_random_traces() {
        for (ratio, least, most) in [(0.0, 0, 0), (0.01, 50, 160), (0.25, 2300, 2700), (1.0, 10_000, 10_000)] {
            let sampler = SamplerName::TraceIdRatio.with_ratio(ratio);
            let taken = (0..10_000).filter(|_| sampler.samples(None, &crate::trace::ids::trace_id())).count();
            assert!((least..=most).contains(&taken), "{taken} of 10,000 at {ratio}");
        }
    }
}
