//! MCP servers inside this process: the built-in periodic table, and HTTP APIs described by a document.

pub mod elements;
pub mod rest;

use std::fmt;

use crate::call::{Call, Replies};
use crate::dialect::to_client::ServerInfo;
use crate::protocol::{Method, Raw};

/// A server inside this process. It needs no connection, keeps no sessions and sends no server requests.
pub trait LocalServer: fmt::Debug + Send + Sync {
    /// Server info and capabilities.
    fn server_info(&self) -> &ServerInfo;

    /// Complete result of a list method; `None` for a list that the server does not have.
    fn list(&self, method: &Method) -> Option<&Raw>;

    /// Answers a call in the newest revision. Dropping the replies cancels the call.
    fn call(&self, call: &Call) -> Replies;
}
