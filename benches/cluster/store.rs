//! A Redis that is started for the nodes of this benchmark, and what it says of itself.

use std::net::TcpListener;

use redis::aio::MultiplexedConnection;
use tokio::process::Command;

use crate::Failure;
use crate::process::Server;
use crate::spread::version;

/// A Redis that keeps nothing on disk.
pub(crate) struct Store {
    pub(crate) server: Server,
    connection: MultiplexedConnection,
}

const PROGRAM: &str = "redis-server";

/// Whether it can be started here.
pub(crate) fn is_there() -> bool {
    version(PROGRAM, "--version").is_some()
}

/// What it says of its version.
pub(crate) fn named() -> String {
    let said = version(PROGRAM, "--version").unwrap_or_default();
    let number = said.split_whitespace().find_map(|word| word.strip_prefix("v=")).unwrap_or("?").to_owned();
    format!("redis {number}")
}

impl Store {
    pub(crate) async fn start() -> Result<Self, Failure> {
        // Free just now; nobody else is asked to listen anywhere in particular.
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

    /// Commands that were carried out so far, those inside of scripts, too. Looking is not counted.
    pub(crate) async fn commands(&self) -> Result<u64, Failure> {
        let told: String = redis::cmd("INFO").arg("commandstats").query_async(&mut self.connection.clone()).await?;
        let others = told.lines().filter(|line| !line.starts_with("cmdstat_info"));
        let calls = others.filter_map(|line| line.split_once(":calls=")?.1.split(',').next()?.parse::<u64>().ok());
        Ok(calls.sum())
    }

    /// The keys that begin so, each with the bytes that it takes.
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

    /// Bytes that Redis has taken in all.
    pub(crate) async fn used(&self) -> Result<u64, Failure> {
        let told: String = redis::cmd("INFO").arg("memory").query_async(&mut self.connection.clone()).await?;
        let used = told.lines().find_map(|line| line.strip_prefix("used_memory:"));
        Ok(used.ok_or("Redis does not say what it uses")?.trim().parse()?)
    }
}
