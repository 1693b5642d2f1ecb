//! What goes wrong with Redis, in words.

use std::fmt::Display;

use redis::{ErrorKind, RedisError, ServerErrorKind};

use super::connection::RedisServer;
use crate::store::StoreError;

/// Why something was not done.
#[derive(Debug)]
pub(super) struct RedisFailure {
    pub(super) away: StoreError,
    /// Whether the connection is of no more use.
    pub(super) lost: bool,
    /// Whether there was no memory for it.
    pub(super) full: bool,
}

/// The first version of Redis that has all the commands that we need.
const NEEDED: (u32, u32) = (7, 0);

impl RedisFailure {
    fn new(server: &RedisServer, lost: bool, what: impl Display) -> Self {
        let text = server.address.hide(&format!("{}: {what}", server.address));
        Self { away: StoreError { why: text.into(), maybe_applied: false }, lost, full: false }
    }

    /// It did not answer in time.
    pub(super) fn silent(server: &RedisServer) -> Self {
        Self::new(server, true, format_args!("no answer within {:?}", server.timeout))
    }

    /// It said something else than it should.
    pub(super) fn unexpected(server: &RedisServer) -> Self {
        Self::new(server, true, "the answer cannot be understood")
    }

    /// It is too old.
    pub(super) fn old(version: &str, server: &RedisServer) -> Self {
        let (major, minor) = NEEDED;
        let what = format!("this is Redis {version}; it takes Redis {major}.{minor} or later, or Valkey");
        Self::new(server, true, what)
    }

    /// What the library or the server says.
    pub(super) fn of(error: &RedisError, server: &RedisServer) -> Self {
        let (lost, what) = match (error.code(), error.kind()) {
            (Some("OOM"), _) => (false, "Redis has used all the memory that its `maxmemory` allows".to_owned()),
            (Some("WRONGPASS"), _) | (_, ErrorKind::AuthenticationFailed) => {
                (true, "the user name or the password is refused".to_owned())
            }
            (Some("NOAUTH"), _) => (true, "a password is needed".to_owned()),
            (Some("NOPERM"), _) => (false, format!("the user may not do this: {error}")),
            // Another server has taken over.
            (_, ErrorKind::Server(ServerErrorKind::ReadOnly)) => (true, "this is a replica now".to_owned()),
            (_, ErrorKind::Server(ServerErrorKind::BusyLoading)) => (false, "it is still starting".to_owned()),
            (_, ErrorKind::Server(ServerErrorKind::ClusterDown)) => (false, "the Cluster is not complete".to_owned()),
            (_, ErrorKind::Server(_) | ErrorKind::Extension) => (false, error.to_string()),
            _ => (true, error.to_string()),
        };
        Self { full: error.code() == Some("OOM"), ..Self::new(server, lost, what) }
    }
}

/// The version of a server that is too old, from what it tells of itself. Valkey counts on from 7.2.
pub(super) fn old_version(told: &str) -> Option<&str> {
    let version = told.lines().find_map(|line| line.strip_prefix("redis_version:"))?.trim();
    let mut numbers = version.split('.').map(|number| number.parse::<u32>().ok());
    let known = (numbers.next()??, numbers.next()??);
    (known < NEEDED).then_some(version)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn old_versions_are_known() {
        for (told, old) in [
            ("# Server\r\nredis_version:6.2.14\r\nredis_git:0\r\n", Some("6.2.14")),
            ("redis_version:7.0.15\r\n", None),
            ("redis_version:7.2.4\r\nserver_name:valkey\r\nvalkey_version:8.0.1\r\n", None),
            ("redis_version:10.0\r\n", None),
            ("redis_version:new\r\n", None),
            ("", None),
        ] {
            assert_eq!(old_version(told), old, "{told}");
        }
    }
}
