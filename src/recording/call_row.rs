//! The row of a call, as the API shows it.

use std::borrow::Cow;

use serde::Serialize;

/// What is shown of a call in a list.
#[derive(Debug, Serialize)]
pub struct CallRow<'c> {
    pub(super) id: String,
    pub(super) at: String,
    pub(super) node: &'c str,
    pub(super) group: Option<&'c str>,
    pub(super) client: RowClient<'c>,
    /// The method, or the verb and path of an HTTP request without a message.
    pub(super) method: Cow<'c, str>,
    /// Whether it is a method of MCP.
    pub(super) mcp: bool,
    pub(super) name: Option<Cow<'c, str>>,
    pub(super) server: Option<RowServer<'c>>,
    pub(super) bridge: &'static str,
    pub(super) rounds: usize,
    pub(super) outcome: Option<&'c str>,
    pub(super) error: Option<RowError>,
    pub(super) took_us: u64,
    pub(super) time: RowTime,
    pub(super) bytes: RowBytes,
    pub(super) bodies: &'static str,
    pub(super) one_of: u16,
    /// The request id, which a relayed call has at both of its nodes.
    pub(super) request: Option<&'c str>,
    /// The node that served the call for this one.
    pub(super) relayed_to: Option<&'c str>,
    /// Whether another node relayed the call to this one.
    pub(super) relayed: bool,
    pub(super) kept: bool,
    pub(super) done: bool,
}

/// Who calls.
#[derive(Debug, Serialize)]
pub(super) struct RowClient<'c> {
    pub(super) name: Option<&'c str>,
    pub(super) version: Option<&'c str>,
    pub(super) revision: Option<&'c str>,
    pub(super) transport: &'c str,
    pub(super) caller: &'c str,
    pub(super) session: Option<&'c str>,
}

/// Who answers.
#[derive(Debug, Serialize)]
pub(super) struct RowServer<'c> {
    pub(super) name: &'c str,
    /// What the server calls the target.
    pub(super) own: Option<String>,
    pub(super) revision: Option<&'c str>,
    pub(super) transport: &'c str,
    pub(super) leased: bool,
    /// The process id of the child that the server is.
    pub(super) process: Option<u32>,
}

/// Why there is no result.
#[derive(Debug, Serialize)]
pub(super) struct RowError {
    pub(super) code: Option<i64>,
    pub(super) status: Option<u16>,
    pub(super) message: String,
}

/// Whose time it was.
#[derive(Debug, Serialize)]
#[allow(clippy::struct_field_names, reason = "durations name their unit in the API")]
pub(super) struct RowTime {
    pub(super) rialto_us: u64,
    pub(super) open_us: u64,
    pub(super) server_us: u64,
    pub(super) client_us: u64,
}

/// The sizes of request and response.
#[derive(Debug, Serialize)]
pub(super) struct RowBytes {
    pub(super) asked: u64,
    pub(super) answered: u64,
}
