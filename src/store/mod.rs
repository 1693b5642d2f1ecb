//! What must outlive a connection, and what must outlive a node.
//!
//! [`EventLog`] is in the session itself. The three contracts in [`contract`] are for what several nodes
//! share.

mod events;
mod memory;
mod node_id;
pub mod redis;
mod settings;
pub mod traits;

pub use events::{EventId, EventLog, Retention};
pub use memory::Memory;
pub use node_id::NodeId;
pub use redis::Redis;
pub use settings::StoreSettings;
pub use traits::{ClusterStore, StoreError};
