//! State that outlives a connection or a node.
//!
//! [`EventLog`] belongs to one session in memory. The traits in [`traits`] are for state that several nodes share.

mod events;
mod memory;
mod node_id;
pub mod redis;
mod settings;
pub mod traits;

pub use events::{EventId, EventLog, Retention};
pub use memory::MemoryStore;
pub use node_id::NodeId;
pub use redis::RedisStore;
pub use settings::StoreSettings;
pub use traits::{ClusterStore, StoreError};
