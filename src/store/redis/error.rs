//! Redis failures, classified and described for operators.

use std::fmt::Display;

use redis::{ErrorKind, RedisError, ServerErrorKind};

use super::connection::RedisServer;
use crate::store::StoreError;

/// A failed operation and what it means for the connection.
#[derive(Debug)]
pub(super) struct RedisFailure {
    pub(super) error: StoreError,
    /// The connection must be reopened.
    pub(super) connection_lost: bool,
    /// Redis refused the command for lack of memory.
    pub(super) out_of_memory: bool,
}

/// Oldest supported Redis version (`BLMPOP`, script flags).
const MIN_REDIS_VERSION: (u32, u32) = (7, 0);

impl RedisFailure {
    fn new(server: &RedisServer, connection_lost: bool, what: impl Display) -> Self {
        let text = server.address.redact(&format!("{}: {what}", server.address));
        Self { error: StoreError { reason: text.into(), maybe_applied: false }, connection_lost, out_of_memory: false }
    }

    pub(super) fn timed_out(server: &RedisServer) -> Self {
        Self::new(server, true, format_args!("no answer within {:?}", server.timeout))
    }

    pub(super) fn unexpected_reply(server: &RedisServer) -> Self {
        Self::new(server, true, "unexpected reply")
    }

    pub(super) fn unsupported_version(version: &str, server: &RedisServer) -> Self {
        let (major, minor) = MIN_REDIS_VERSION;
        let what =
            format!("unsupported version: Redis {version}; Redis {major}.{minor} or later, or Valkey, is required");
        Self::new(server, true, what)
    }

    /// Classifies an error of the server or the client library.
    pub(super) fn from_redis_error(error: &RedisError, server: &RedisServer) -> Self {
        let (connection_lost, what) = match (error.code(), error.kind()) {
            (Some("OOM"), _) => (false, "out of memory: Redis reached its `maxmemory` limit".to_owned()),
            (Some("WRONGPASS"), _) | (_, ErrorKind::AuthenticationFailed) => {
                (true, "authentication failed: user name or password refused".to_owned())
            }
            (Some("NOAUTH"), _) => (true, "authentication required: no password is configured".to_owned()),
            (Some("NOPERM"), _) => (false, format!("permission denied for this Redis user: {error}")),
            // A failover demoted this server; the next connection finds the new master.
            (_, ErrorKind::Server(ServerErrorKind::ReadOnly)) => {
                (true, "the server became a read-only replica".to_owned())
            }
            (_, ErrorKind::Server(ServerErrorKind::BusyLoading)) => {
                (false, "the server is still loading its data".to_owned())
            }
            (_, ErrorKind::Server(ServerErrorKind::ClusterDown)) => {
                (false, "the Redis Cluster is down: not all slots are served".to_owned())
            }
            (_, ErrorKind::Server(_) | ErrorKind::Extension) => (false, error.to_string()),
            _ => (true, error.to_string()),
        };
        Self { out_of_memory: error.code() == Some("OOM"), ..Self::new(server, connection_lost, what) }
    }
}

/// The version in an `INFO` reply if it is unsupported. Valkey reports a compatible `redis_version` of 7.2 or
/// later.
pub(super) fn find_unsupported_version(info: &str) -> Option<&str> {
    let version = info.lines().find_map(|line| line.strip_prefix("redis_version:"))?.trim();
    let mut numbers = version.split('.').map(|number| number.parse::<u32>().ok());
    let version_numbers = (numbers.next()??, numbers.next()??);
    (version_numbers < MIN_REDIS_VERSION).then_some(version)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unsupported_versions_are_detected() {
        for (info, expected) in [
            ("# Server\r\nredis_version:6.2.14\r\nredis_git:0\r\n", Some("6.2.14")),
            ("redis_version:7.0.15\r\n", None),
            ("redis_version:7.2.4\r\nserver_name:valkey\r\nvalkey_version:8.0.1\r\n", None),
            ("redis_version:10.0\r\n", None),
            ("redis_version:new\r\n", None),
            ("", None),
        ] {
            assert_eq!(find_unsupported_version(info), expected, "{info}");
        }
    }
}
