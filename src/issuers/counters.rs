//! What is counted of an issuer, for the metrics.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::TokenError;
use crate::metrics::{MetricKind, MetricsReading};

/// Counters of one issuer, which a reload keeps.
#[derive(Debug, Default)]
pub(super) struct IssuerCounters {
    accepted: AtomicU64,
    rejected: [AtomicU64; TokenError::ALL.len()],
    pub(super) verifications: AtomicU64,
    pub(super) fetches: AtomicU64,
    pub(super) failed_fetches: AtomicU64,
    pub(super) introspections: AtomicU64,
    pub(super) failed_introspections: AtomicU64,
}

/// What an issuer did since the start. Tokens that were found in the cache are not in it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct IssuerFigures {
    /// Name in the file.
    pub name: Arc<str>,
    /// Tokens that were accepted.
    pub accepted: u64,
    /// Tokens that were not, by the reason.
    pub rejected: Vec<(TokenError, u64)>,
    /// Signatures that were verified.
    pub verifications: u64,
    /// Fetches of keys or metadata that succeeded.
    pub fetches: u64,
    /// Fetches of keys or metadata that failed.
    pub failed_fetches: u64,
    /// Tokens that the issuer was asked about, and answered.
    pub introspections: u64,
    /// Tokens that the issuer was asked about in vain.
    pub failed_introspections: u64,
    /// Keys in use.
    pub keys: usize,
}

impl IssuerCounters {
    pub(super) fn count(&self, result: Result<(), TokenError>) {
        let counter = match result {
            Ok(()) => &self.accepted,
            Err(error) => &self.rejected[error as usize],
        };
        counter.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn read(&self, name: &Arc<str>, keys: usize) -> IssuerFigures {
        let value = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        IssuerFigures {
            name: Arc::clone(name),
            accepted: value(&self.accepted),
            rejected: TokenError::ALL.into_iter().map(|error| (error, value(&self.rejected[error as usize]))).collect(),
            verifications: value(&self.verifications),
            fetches: value(&self.fetches),
            failed_fetches: value(&self.failed_fetches),
            introspections: value(&self.introspections),
            failed_introspections: value(&self.failed_introspections),
            keys,
        }
    }
}

/// The figures as metrics.
pub(super) fn readings(figures: &[IssuerFigures], cached_tokens: usize) -> Vec<MetricsReading> {
    type Samples = Vec<(Vec<(&'static str, String)>, i64)>;
    let number = |count: u64| i64::try_from(count).unwrap_or(i64::MAX);
    let by_outcome = |values: &dyn Fn(&IssuerFigures) -> Vec<(&'static str, u64)>| -> Samples {
        let one = |figures: &IssuerFigures| -> Samples {
            let labels = |outcome: &str| vec![("issuer", figures.name.to_string()), ("outcome", outcome.to_owned())];
            values(figures).into_iter().map(|(outcome, count)| (labels(outcome), number(count))).collect()
        };
        figures.iter().flat_map(one).collect()
    };
    let reading = |name, help, kind, values| MetricsReading { name, help, kind, values };
    let per_issuer = |value: &dyn Fn(&IssuerFigures) -> u64| -> Samples {
        figures.iter().map(|one| (vec![("issuer", one.name.to_string())], number(value(one)))).collect()
    };
    let validations = |one: &IssuerFigures| {
        let rejected = one.rejected.iter().map(|(error, count)| (error.label(), *count));
        std::iter::once(("accepted", one.accepted)).chain(rejected).collect()
    };
    vec![
        reading(
            "token_validations",
            "Tokens of an issuer that were validated, without those that were known already",
            MetricKind::Counter,
            by_outcome(&validations),
        ),
        reading(
            "token_signature_verifications",
            "Signatures of tokens that were verified",
            MetricKind::Counter,
            per_issuer(&|one| one.verifications),
        ),
        reading(
            "issuer_fetches",
            "Fetches of keys or metadata of an issuer",
            MetricKind::Counter,
            by_outcome(&|one| vec![("ok", one.fetches), ("failed", one.failed_fetches)]),
        ),
        reading(
            "token_introspections",
            "Tokens that an issuer was asked about",
            MetricKind::Counter,
            by_outcome(&|one| vec![("ok", one.introspections), ("failed", one.failed_introspections)]),
        ),
        reading(
            "issuer_keys",
            "Keys of an issuer in use",
            MetricKind::Gauge,
            per_issuer(&|one| u64::try_from(one.keys).unwrap_or(u64::MAX)),
        ),
        reading(
            "cached_tokens",
            "Tokens of issuers that are known to be valid",
            MetricKind::Gauge,
            vec![(Vec::new(), i64::try_from(cached_tokens).unwrap_or(i64::MAX))],
        ),
    ]
}
