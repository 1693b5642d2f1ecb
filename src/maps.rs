//! Maps that every call looks into.

/// A map whose hashes cost little. They are seeded, so that nobody can tell beforehand which keys collide, but not
/// made to withstand somebody who watches them; what clients name in such a map is bounded in number.
pub type Map<K, V> = std::collections::HashMap<K, V, foldhash::fast::RandomState>;
