//! Recorded calls: what the [recorder](crate::recorder) noted, put together by call, and made fit to be shown.

mod call_row;
mod changes;
mod cut_text;
mod export;
mod filter;
mod json_tree;
mod messages;
mod redaction;
mod row;
mod service;
mod store;
mod time_parts;

pub use call_row::CallRow;
pub use changes::{ChangeKind, MessageChange, changes_of};
pub use cut_text::KeptText;
pub use export::{ExportForm, export};
pub use filter::CallFilter;
pub use messages::{HttpPart, MessageForm, RecordedHead, RecordedMessage, messages_of};
pub use redaction::{MASK, RedactionRules, ShownText, hide_in_text, shape_of, shortened, shown_path};
pub use row::{BodyAccess, RowMaker, decode_number, encode_number};
pub use service::{BodyRule, CallLog, RecordMode, RecordingSettings, RecordingState, RowEvents, ViewerGuard};
pub use store::{CallStore, KeepError, StoreChanges, StoredCall, StoredRecord};
pub use time_parts::TimeParts;
