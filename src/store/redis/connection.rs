//! A Redis connection that is opened on first use and reopened after a failure, with back-off.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use futures_util::future::join_all;
use redis::aio::{ConnectionLike, MultiplexedConnection};
use redis::cluster::ClusterClient;
use redis::cluster_async::ClusterConnection;
use redis::cluster_routing::{RoutingInfo, SingleNodeRoutingInfo};
use redis::sentinel::{SentinelClientBuilder, SentinelServerType};
use redis::{
    AsyncConnectionConfig, Client, Cmd, ConnectionAddr, IntoConnectionInfo, Pipeline, RedisConnectionInfo, RedisError,
    RedisResult, RetryMethod, TlsCertificates, TlsMode, Value,
};
use tokio::runtime::Handle;
use tokio::sync::Mutex;
use tokio::time::{Instant, timeout_at};
use tokio_util::task::AbortOnDropHandle;

use super::address::{RedisAddress, RedisTopology};
use super::error::{RedisFailure, find_unsupported_version};
use super::scripts::Script;
use crate::metrics::{Histogram, SharedCounter};
use crate::store::StoreError;

/// Address, options and counters shared by all connections of a store.
#[derive(Debug)]
pub(super) struct RedisServer {
    pub(super) address: RedisAddress,
    /// Timeout of an operation.
    pub(super) timeout: Duration,
    /// Runtime that drives the connections. It is not a worker's, since all workers depend on them.
    pub(super) runtime: Option<Handle>,
    /// Trusted root certificates in PEM, in place of the system's.
    pub(super) root_certificates: Option<Vec<u8>>,
    /// Round trips so far.
    pub(super) round_trips: AtomicU64,
    /// How long commands took, without blocking reads.
    pub(super) durations: Histogram,
    /// Commands that failed, and connections that could not be opened.
    pub(super) errors: SharedCounter,
    /// Connections opened again so far, without the blocking ones of mailboxes.
    pub(super) reconnects: AtomicU64,
    /// A command was refused for lack of memory, and none of its kind succeeded since.
    pub(super) out_of_memory: AtomicBool,
}

/// One connection slot, open or not.
#[derive(Debug)]
pub(super) struct LazyConnection {
    server: Arc<RedisServer>,
    role: ConnectionRole,
    state: Mutex<ConnectionState>,
}

/// What a connection is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ConnectionRole {
    /// Everything else.
    Data,
    /// Joins and heartbeats.
    Heartbeat,
    /// Blocking reads, which wait for `max_block` in addition to the timeout.
    Mailbox { max_block: Duration },
}

#[derive(Debug, Default)]
struct ConnectionState {
    connection: Option<RedisConnection>,
    /// Generation of the connection: a failure of an older one must not close its successor.
    generation: u64,
    /// Failed connection attempts since the last success.
    failures: u32,
    /// Time of the next attempt, and the error to return until then.
    back_off: Option<(Instant, StoreError)>,
}

#[derive(Clone)]
enum RedisConnection {
    Server(MultiplexedConnection),
    Cluster(ClusterConnection),
}

/// Back-off after the first failed attempt; doubles with each further one.
const REDIS_INITIAL_BACKOFF: Duration = Duration::from_millis(50);
/// Longest back-off.
const REDIS_MAX_BACKOFF: Duration = Duration::from_secs(1);

impl ConnectionRole {
    fn max_block(self) -> Duration {
        match self {
            Self::Data | Self::Heartbeat => Duration::ZERO,
            Self::Mailbox { max_block } => max_block,
        }
    }
}

// === impl LazyConnection ===

impl LazyConnection {
    /// A connection that is opened on first use.
    pub(super) fn new(server: Arc<RedisServer>, role: ConnectionRole) -> Self {
        Self { server, role, state: Mutex::default() }
    }

    /// Runs commands in one pipeline; fails if any of them failed.
    pub(super) async fn execute(&self, commands: Vec<Cmd>) -> Result<Vec<Value>, StoreError> {
        self.execute_each(commands).await?.into_iter().collect()
    }

    /// Runs commands in one pipeline and returns the result of each.
    pub(super) async fn execute_each(&self, commands: Vec<Cmd>) -> Result<Vec<Result<Value, StoreError>>, StoreError> {
        if commands.is_empty() {
            return Ok(Vec::new());
        }
        let deadline = Instant::now() + self.server.timeout + self.role.max_block();
        let (mut connection, generation) = self.get_or_connect(deadline).await?;
        let commands = pipeline(commands);
        let mut replies = self.send(&mut connection, generation, &commands, deadline).await?;
        // A `NOSCRIPT` reply means that nothing ran, so these commands are sent again as `EVAL`.
        let uncached = |(at, (command, reply)): (usize, (&Cmd, &RedisResult<Value>))| match reply {
            Err(error) if error.code() == Some("NOSCRIPT") => Some((at, Script::eval_for(command)?)),
            _ => None,
        };
        let found = commands.cmd_iter().zip(&replies).enumerate().filter_map(uncached);
        let (indices, eval_commands): (Vec<usize>, Vec<Cmd>) = found.unzip();
        if !eval_commands.is_empty() {
            let retried = self.send(&mut connection, generation, &pipeline(eval_commands), deadline).await?;
            indices.into_iter().zip(retried).for_each(|(index, reply)| replies[index] = reply);
        }
        let mut results = Vec::with_capacity(replies.len());
        for reply in replies {
            results.push(match reply {
                Ok(value) => Ok(value),
                Err(error) => {
                    let store_error =
                        self.on_failure(generation, RedisFailure::from_redis_error(&error, &self.server)).await;
                    Err(if connection.maybe_applied(&error) { store_error.into_maybe_applied() } else { store_error })
                }
            });
        }
        Ok(results)
    }

    async fn send(
        &self,
        connection: &mut RedisConnection,
        generation: u64,
        commands: &Pipeline,
        deadline: Instant,
    ) -> Result<Vec<RedisResult<Value>>, StoreError> {
        self.server.round_trips.fetch_add(connection.round_trips_for(commands.len()), Ordering::Relaxed);
        let started = Instant::now();
        let sent = timeout_at(deadline, connection.send(commands)).await;
        if !matches!(self.role, ConnectionRole::Mailbox { .. }) {
            self.server.durations.observe(started.elapsed());
        }
        match sent {
            Ok(Ok(replies)) if replies.len() == commands.len() => Ok(replies),
            // The commands were sent; whether they were applied is unknown.
            Ok(Ok(_)) => Err(self
                .on_failure(generation, RedisFailure::unexpected_reply(&self.server))
                .await
                .into_maybe_applied()),
            Ok(Err(error)) => Err(self
                .on_failure(generation, RedisFailure::from_redis_error(&error, &self.server))
                .await
                .into_maybe_applied()),
            Err(_) => {
                Err(self.on_failure(generation, RedisFailure::timed_out(&self.server)).await.into_maybe_applied())
            }
        }
    }

    /// Returns the open connection and its generation, connecting if necessary.
    async fn get_or_connect(&self, deadline: Instant) -> Result<(RedisConnection, u64), StoreError> {
        let timed_out_error = || RedisFailure::timed_out(&self.server).error;
        let mut state = timeout_at(deadline, self.state.lock()).await.map_err(|_| timed_out_error())?;
        if let Some(connection) = &state.connection {
            return Ok((connection.clone(), state.generation));
        }
        if let Some((until, error)) = &state.back_off
            && Instant::now() < *until
        {
            return Err(error.clone());
        }
        let connected = timeout_at(deadline, self.connect()).await;
        let failure = match connected {
            Ok(Ok(connection)) => {
                state.generation += 1;
                let is_reconnect = state.generation > 1 && !matches!(self.role, ConnectionRole::Mailbox { .. });
                self.server.reconnects.fetch_add(u64::from(is_reconnect), Ordering::Relaxed);
                (state.failures, state.back_off) = (0, None);
                state.connection = Some(connection.clone());
                return Ok((connection, state.generation));
            }
            Ok(Err(failure)) => failure,
            Err(_) => RedisFailure::timed_out(&self.server),
        };
        self.server.errors.add(1);
        let delay = backoff_delay(state.failures);
        state.failures = state.failures.saturating_add(1);
        state.back_off = Some((Instant::now() + delay, failure.error.clone()));
        Err(failure.error)
    }

    async fn connect(&self) -> Result<RedisConnection, RedisFailure> {
        let (server, max_block) = (Arc::clone(&self.server), self.role.max_block());
        let Some(runtime) = &self.server.runtime else { return connect(&server, max_block).await };
        let connecting = AbortOnDropHandle::new(runtime.spawn(async move { connect(&server, max_block).await }));
        connecting.await.unwrap_or_else(|_| Err(RedisFailure::timed_out(&self.server)))
    }

    /// Records a failure, and closes the connection if it is lost.
    async fn on_failure(&self, generation: u64, failure: RedisFailure) -> StoreError {
        self.server.errors.add(1);
        if failure.out_of_memory {
            self.server.out_of_memory.store(true, Ordering::Relaxed);
        }
        if failure.connection_lost {
            let mut state = self.state.lock().await;
            if state.generation == generation {
                state.connection = None;
            }
        }
        failure.error
    }
}

fn pipeline(commands: Vec<Cmd>) -> Pipeline {
    let mut pipeline = Pipeline::with_capacity(commands.len());
    for command in commands {
        pipeline.add_command(command);
    }
    pipeline
}

/// Exponential back-off with jitter of 50 to 100 %: all nodes lose Redis at the same moment.
fn backoff_delay(failures: u32) -> Duration {
    let upper_bound = REDIS_INITIAL_BACKOFF.saturating_mul(1 << failures.min(10)).min(REDIS_MAX_BACKOFF);
    let jitter = getrandom::u32().unwrap_or(0) % 512;
    upper_bound.mul_f64(0.5 + f64::from(jitter) / 1024.0)
}

// === impl RedisConnection ===

impl RedisConnection {
    /// Round trips for a pipeline: in a Redis Cluster each command goes to the node of its key.
    fn round_trips_for(&self, commands: usize) -> u64 {
        match self {
            Self::Server(_) => 1,
            Self::Cluster(_) => commands as u64,
        }
    }

    /// Whether a failed command may have been applied: the Redis Cluster client retries on a broken connection, and
    /// reports the last attempt only.
    fn maybe_applied(&self, error: &RedisError) -> bool {
        match self {
            Self::Server(_) => false,
            Self::Cluster(_) => error.code().is_none() || !matches!(error.retry_method(), RetryMethod::NoRetry),
        }
    }

    async fn send(&mut self, commands: &Pipeline) -> RedisResult<Vec<RedisResult<Value>>> {
        match self {
            Self::Server(connection) => {
                let values = connection.req_packed_commands(commands, 0, commands.len()).await?;
                Ok(values.into_iter().map(Value::extract_error).collect())
            }
            Self::Cluster(connection) => {
                let send_one = |command| {
                    let mut connection = connection.clone();
                    async move { connection.req_packed_command(command).await.and_then(Value::extract_error) }
                };
                Ok(join_all(commands.cmd_iter().map(send_one)).await)
            }
        }
    }
}

impl std::fmt::Debug for RedisConnection {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Server(_) => "Server",
            Self::Cluster(_) => "Cluster",
        })
    }
}

// === Connecting ===

/// Opens a connection and checks the server version.
async fn connect(server: &RedisServer, max_block: Duration) -> Result<RedisConnection, RedisFailure> {
    if server.address.tls {
        install_ring_provider();
    }
    let opened = match &server.address.topology {
        RedisTopology::Cluster => connect_cluster(server, max_block).await.map(RedisConnection::Cluster),
        RedisTopology::Sentinel(name) => connect_via_sentinel(server, name).await.map(RedisConnection::Server),
        RedisTopology::Server => connect_server(server).await.map(RedisConnection::Server),
    };
    let mut connection = opened.map_err(|error| RedisFailure::from_redis_error(&error, server))?;
    let mut info_command = redis::cmd("INFO");
    info_command.arg("server");
    let info = match &mut connection {
        RedisConnection::Server(connection) => connection.req_packed_command(&info_command).await,
        RedisConnection::Cluster(connection) => {
            connection.route_command(info_command, RoutingInfo::SingleNode(SingleNodeRoutingInfo::Random)).await
        }
    };
    match info.and_then(Value::extract_error).and_then(|info| Ok(redis::from_redis_value::<String>(info)?)) {
        Ok(info) => find_unsupported_version(&info)
            .map_or(Ok(connection), |version| Err(RedisFailure::unsupported_version(version, server))),
        // The user may not run `INFO`; skip the version check.
        Err(error) if error.code() == Some("NOPERM") => Ok(connection),
        Err(error) => Err(RedisFailure::from_redis_error(&error, server)),
    }
}

async fn connect_server(server: &RedisServer) -> RedisResult<MultiplexedConnection> {
    let Some(address) = connection_addresses(server).pop() else { return Err(no_address_error()) };
    let information = address.into_connection_info()?.set_redis_settings(connection_settings(server));
    let client = match tls_certificates(server) {
        Some(certificates) => Client::build_with_tls(information, certificates)?,
        None => Client::open(information)?,
    };
    client.get_multiplexed_async_connection_with_config(&without_timeouts()).await
}

async fn connect_cluster(server: &RedisServer, max_block: Duration) -> RedisResult<ClusterConnection> {
    let mut builder = ClusterClient::builder(connection_addresses(server))
        .connection_timeout(server.timeout)
        .response_timeout(server.timeout + max_block)
        .retries(3);
    if let Some(user) = &server.address.user {
        builder = builder.username(user);
    }
    if let Some(password) = &server.address.password {
        builder = builder.password(password);
    }
    if server.address.tls {
        builder = builder.tls(TlsMode::Secure);
    }
    if let Some(certificates) = tls_certificates(server) {
        builder = builder.certs(certificates);
    }
    builder.build()?.get_async_connection().await
}

/// Connects to the master that the Sentinels report. The credentials are for the master, not for the Sentinels.
async fn connect_via_sentinel(server: &RedisServer, name: &str) -> RedisResult<MultiplexedConnection> {
    let mut builder = SentinelClientBuilder::new(connection_addresses(server), name, SentinelServerType::Master)?
        .set_client_to_redis_db(server.address.database);
    if let Some(user) = &server.address.user {
        builder = builder.set_client_to_redis_username(user);
    }
    if let Some(password) = &server.address.password {
        builder = builder.set_client_to_redis_password(password);
    }
    if server.address.tls {
        builder =
            builder.set_client_to_redis_tls_mode(TlsMode::Secure).set_client_to_sentinel_tls_mode(TlsMode::Secure);
    }
    if let Some(certificates) = tls_certificates(server) {
        builder = builder.set_client_to_redis_certificates(certificates.clone());
        builder = builder.set_client_to_sentinel_certificates(certificates);
    }
    builder.build()?.get_async_connection_with_config(&without_timeouts()).await
}

fn connection_addresses(server: &RedisServer) -> Vec<ConnectionAddr> {
    let address = |(host, port): &(String, u16)| match server.address.tls {
        true => ConnectionAddr::TcpTls { host: host.clone(), port: *port, insecure: false, tls_params: None },
        false => ConnectionAddr::Tcp(host.clone(), *port),
    };
    server.address.hosts.iter().map(address).collect()
}

fn connection_settings(server: &RedisServer) -> RedisConnectionInfo {
    let mut settings = RedisConnectionInfo::default().set_db(server.address.database);
    if let Some(user) = &server.address.user {
        settings = settings.set_username(user);
    }
    if let Some(password) = &server.address.password {
        settings = settings.set_password(password);
    }
    settings
}

fn tls_certificates(server: &RedisServer) -> Option<TlsCertificates> {
    let roots = server.root_certificates.clone().filter(|_| server.address.tls)?;
    Some(TlsCertificates { client_tls: None, root_cert: Some(roots) })
}

/// Disables the library's own timeouts: [`LazyConnection`] enforces one deadline per operation.
fn without_timeouts() -> AsyncConnectionConfig {
    AsyncConnectionConfig::new().set_connection_timeout(None).set_response_timeout(None)
}

fn no_address_error() -> RedisError {
    RedisError::from((redis::ErrorKind::InvalidClientConfig, "Redis address has no host"))
}

/// The client library uses the process-wide rustls provider; install ring, the only one compiled in.
fn install_ring_provider() {
    static ONCE: OnceLock<()> = OnceLock::new();
    ONCE.get_or_init(|| drop(rustls::crypto::ring::default_provider().install_default()));
}
