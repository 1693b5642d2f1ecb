//! The file that says which servers there are.

mod import;
mod variables;

pub use import::{find, targets};
