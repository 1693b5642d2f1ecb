//! What must outlive a connection.

mod events;

pub use events::{EventId, EventLog, Retention};
