//! What must outlive a connection, and what must outlive a node.
//!
//! [`EventLog`] is in the session itself. The three contracts in [`contract`] are for what several nodes
//! share.

pub mod contract;
mod events;
mod memory;
mod node;
pub mod redis;
mod settings;

pub use contract::{Away, Shared};
pub use events::{EventId, EventLog, Retention};
pub use memory::Memory;
pub use node::NodeId;
pub use redis::Redis;
pub use settings::StoreSettings;
