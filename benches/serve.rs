//! First figures of serving.
fn main() {}
