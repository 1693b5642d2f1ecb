//! A Redis process for this benchmark, and its counters.

use std::net::TcpListener;

use redis::aio::MultiplexedConnection;
use tokio::process::Command;

use crate::Failure;
use crate::process::Server;
use crate::spread::version;

/// A Redis without persistence.
pub(crate) struct Store {
    pub(crate) server: Server,
    connection: MultiplexedConnection,
}

const PROGRAM: &str = "redis-server";

/// Whether `redis-server` is installed.
pub(crate) fn is_available() -> bool {
    version(PROGRAM, "--version").is_some()
}

/// Version of `redis-server`.
pub(crate) fn redis_version() -> String {
    let said = version(PROGRAM, "--version").unwrap_or_default();
    let number = said.split_whitespace().find_map(|word| word.strip_prefix("v=")).unwrap_or("?").to_owned();
    format!("redis {number}")
}

impl Store {
    pub(crate) async fn start() -> Result<Self, Failure> {
        // The port is free now, and no other process of the benchmark asks for a fixed port.
        let address = TcpListener::bind("127.0.0.1:0")?.local_addr()?;
        let mut command = Command::new(PROGRAM);
        command.args(["--bind", "127.0.0.1", "--port", &address.port().to_string()]);
        command.args(["--save", "", "--appendonly", "no", "--loglevel", "warning"]);
        let server = Server::start_at(command, address).await?;
        let client = redis::Client::open(format!("redis://{address}"))?;
        Ok(Self { server, connection: client.get_multiplexed_async_connection().await? })
    }

    pub(crate) fn url(&self) -> String {
        format!("redis://{}", self.server.address)
    }

    /// Commands executed so far, including those in scripts, without the commands of this benchmark.
    pub(crate) async fn commands(&self) -> Result<u64, Failure> {
        let told: String = redis::cmd("INFO").arg("commandstats").query_async(&mut self.connection.clone()).await?;
        let others = told.lines().filter(|line| !line.starts_with("cmdstat_info"));
        let calls = others.filter_map(|line| line.split_once(":calls=")?.1.split(',').next()?.parse::<u64>().ok());
        Ok(calls.sum())
    }

    /// Bytes of every key with this prefix.
    pub(crate) async fn sizes(&self, prefix: &str) -> Result<Vec<u64>, Failure> {
        let mut connection = self.connection.clone();
        let keys: Vec<String> = redis::cmd("KEYS").arg(format!("{prefix}*")).query_async(&mut connection).await?;
        let mut sizes = Vec::with_capacity(keys.len());
        for key in keys {
            let mut command = redis::cmd("MEMORY");
            command.arg("USAGE").arg(key).arg("SAMPLES").arg(0);
            sizes.push(command.query_async::<Option<u64>>(&mut connection).await?.unwrap_or(0));
        }
        Ok(sizes)
    }

    /// Bytes used by Redis in total.
    pub(crate) async fn used(&self) -> Result<u64, Failure> {
        let told: String = redis::cmd("INFO").arg("memory").query_async(&mut self.connection.clone()).await?;
        let used = told.lines().find_map(|line| line.strip_prefix("used_memory:"));
        Ok(used.ok_or("Redis does not say what it uses")?.trim().parse()?)
    }
}
