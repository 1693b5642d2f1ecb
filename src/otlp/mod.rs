//! What spans and metrics have in common on their way to a collector: settings, the client, retries and protobuf.
//!
//! The messages are encoded here, and sent by the HTTP clients that are here anyway: the crates that would do it bring a
//! second client and runtime of their own.

mod client;
mod protobuf;
mod resource;
mod sender;
mod settings;
mod signal;
mod variables;

pub use client::{OtlpCompression, OtlpProtocol};
pub use protobuf::{FieldValue, MessageWriter, fields};
pub use resource::{EncodedResource, export_request};
pub use sender::{OtlpSender, RejectedItems};
pub use settings::{CollectorConfig, ExportHeaders, OtlpSettings, ResourceAttributes};
pub use signal::OtlpSignal;
pub use variables::{SignalVariables, VariableReader};
