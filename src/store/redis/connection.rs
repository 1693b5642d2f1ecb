//! A connection that is opened when it is needed, and again when it is lost.

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

use super::address::{Form, RedisAddress};
use super::error::{RedisFailure, old_version};
use super::scripts::Script;
use crate::store::StoreError;

/// What several links have in common.
#[derive(Debug)]
pub(super) struct RedisServer {
    pub(super) address: RedisAddress,
    /// How long it may take to answer.
    pub(super) timeout: Duration,
    /// Where connections are driven: beside the workers, none of which all others should wait for.
    pub(super) runtime: Option<Handle>,
    /// The certificates to trust, instead of those that the system does.
    pub(super) roots: Option<Vec<u8>>,
    /// How often something was sent.
    pub(super) trips: AtomicU64,
    /// How often a connection was opened.
    pub(super) openings: AtomicU64,
    /// Whether something was refused for want of memory, and nothing like it was taken since.
    pub(super) full: AtomicBool,
}

/// One connection, whether it is open or not.
#[derive(Debug)]
pub(super) struct LazyConnection {
    server: Arc<RedisServer>,
    /// How long commands on it may block, beside the time that they take.
    blocks: Duration,
    state: Mutex<ConnectionState>,
}

#[derive(Debug, Default)]
struct ConnectionState {
    open: Option<RedisConnection>,
    /// Counts connections, so that one that is lost is not taken for its successor.
    count: u64,
    /// How often it failed since it was open last.
    failures: u32,
    /// When to try again, and why it failed.
    pause: Option<(Instant, StoreError)>,
}

#[derive(Clone)]
enum RedisConnection {
    Server(MultiplexedConnection),
    Cluster(ClusterConnection),
}

/// How long to wait after the first failure; twice as long after each other one.
const FIRST_PAUSE: Duration = Duration::from_millis(50);
/// How long at most.
const LONGEST_PAUSE: Duration = Duration::from_secs(1);

// === impl Link ===

impl LazyConnection {
    /// A link that is not open yet, and on which commands may block for a while.
    pub(super) fn new(server: Arc<RedisServer>, blocks: Duration) -> Self {
        Self { server, blocks, state: Mutex::default() }
    }

    /// Sends commands at once; tells of each what it answered, if all were done.
    pub(super) async fn ask(&self, commands: Vec<Cmd>) -> Result<Vec<Value>, StoreError> {
        self.ask_each(commands).await?.into_iter().collect()
    }

    /// Sends commands at once; tells of each what became of it.
    pub(super) async fn ask_each(&self, commands: Vec<Cmd>) -> Result<Vec<Result<Value, StoreError>>, StoreError> {
        if commands.is_empty() {
            return Ok(Vec::new());
        }
        let deadline = Instant::now() + self.server.timeout + self.blocks;
        let (mut open, count) = self.open(deadline).await?;
        let commands = together(commands);
        let mut answers = self.send(&mut open, count, &commands, deadline).await?;
        // Scripts that Redis does not know have done nothing, so they can be sent again.
        let unknown = |(at, (command, answer)): (usize, (&Cmd, &RedisResult<Value>))| match answer {
            Err(error) if error.code() == Some("NOSCRIPT") => Some((at, Script::unknown(command)?)),
            _ => None,
        };
        let found = commands.cmd_iter().zip(&answers).enumerate().filter_map(unknown);
        let (at, whole): (Vec<usize>, Vec<Cmd>) = found.unzip();
        if !whole.is_empty() {
            let again = self.send(&mut open, count, &together(whole), deadline).await?;
            at.into_iter().zip(again).for_each(|(at, answer)| answers[at] = answer);
        }
        let mut each = Vec::with_capacity(answers.len());
        for answer in answers {
            each.push(match answer {
                Ok(value) => Ok(value),
                Err(error) => {
                    let away = self.failed(count, RedisFailure::of(&error, &self.server)).await;
                    Err(if open.is_unsure(&error) { away.perhaps_done() } else { away })
                }
            });
        }
        Ok(each)
    }

    async fn send(
        &self,
        open: &mut RedisConnection,
        count: u64,
        commands: &Pipeline,
        deadline: Instant,
    ) -> Result<Vec<RedisResult<Value>>, StoreError> {
        self.server.trips.fetch_add(open.trips(commands.len()), Ordering::Relaxed);
        match timeout_at(deadline, open.send(commands)).await {
            Ok(Ok(answers)) if answers.len() == commands.len() => Ok(answers),
            // It was sent, and what became of it is not known.
            Ok(Ok(_)) => Err(self.failed(count, RedisFailure::unexpected(&self.server)).await.perhaps_done()),
            Ok(Err(error)) => Err(self.failed(count, RedisFailure::of(&error, &self.server)).await.perhaps_done()),
            Err(_) => Err(self.failed(count, RedisFailure::silent(&self.server)).await.perhaps_done()),
        }
    }

    /// The connection, which is opened if need be, and its number.
    async fn open(&self, deadline: Instant) -> Result<(RedisConnection, u64), StoreError> {
        let silent = || RedisFailure::silent(&self.server).away;
        let mut state = timeout_at(deadline, self.state.lock()).await.map_err(|_| silent())?;
        if let Some(open) = &state.open {
            return Ok((open.clone(), state.count));
        }
        if let Some((until, why)) = &state.pause
            && Instant::now() < *until
        {
            return Err(why.clone());
        }
        let connected = timeout_at(deadline, self.connect()).await;
        let trouble = match connected {
            Ok(Ok(open)) => {
                state.count += 1;
                self.server.openings.fetch_add(u64::from(self.blocks.is_zero()), Ordering::Relaxed);
                (state.failures, state.pause) = (0, None);
                state.open = Some(open.clone());
                return Ok((open, state.count));
            }
            Ok(Err(trouble)) => trouble,
            Err(_) => RedisFailure::silent(&self.server),
        };
        let pause = pause(state.failures);
        state.failures = state.failures.saturating_add(1);
        state.pause = Some((Instant::now() + pause, trouble.away.clone()));
        Err(trouble.away)
    }

    async fn connect(&self) -> Result<RedisConnection, RedisFailure> {
        let (server, blocks) = (Arc::clone(&self.server), self.blocks);
        let Some(runtime) = &self.server.runtime else { return connect(&server, blocks).await };
        let connecting = AbortOnDropHandle::new(runtime.spawn(async move { connect(&server, blocks).await }));
        connecting.await.unwrap_or_else(|_| Err(RedisFailure::silent(&self.server)))
    }

    /// Lets go of a connection that is of no more use.
    async fn failed(&self, count: u64, trouble: RedisFailure) -> StoreError {
        if trouble.full {
            self.server.full.store(true, Ordering::Relaxed);
        }
        if trouble.lost {
            let mut state = self.state.lock().await;
            if state.count == count {
                state.open = None;
            }
        }
        trouble.away
    }
}

fn together(commands: Vec<Cmd>) -> Pipeline {
    let mut pipeline = Pipeline::with_capacity(commands.len());
    for command in commands {
        pipeline.add_command(command);
    }
    pipeline
}

/// How long to wait after so many failures: all nodes lose Redis at once, and do not come back so.
fn pause(failures: u32) -> Duration {
    let whole = FIRST_PAUSE.saturating_mul(1 << failures.min(10)).min(LONGEST_PAUSE);
    let share = getrandom::u32().unwrap_or(0) % 512;
    whole.mul_f64(0.5 + f64::from(share) / 1024.0)
}

// === impl Open ===

impl RedisConnection {
    /// How often something is sent for so many commands: a Cluster gets each where its key is.
    fn trips(&self, commands: usize) -> u64 {
        match self {
            Self::Server(_) => 1,
            Self::Cluster(_) => commands as u64,
        }
    }

    /// Whether a command that failed so may have been done: in a Cluster the library says what it can again when a
    /// connection breaks, and tells only what came of the last time.
    fn is_unsure(&self, error: &RedisError) -> bool {
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
                let one = |command| {
                    let mut connection = connection.clone();
                    async move { connection.req_packed_command(command).await.and_then(Value::extract_error) }
                };
                Ok(join_all(commands.cmd_iter().map(one)).await)
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

// === How a connection is opened ===

/// Opens a connection and looks whether what is there can do what it has to.
async fn connect(server: &RedisServer, blocks: Duration) -> Result<RedisConnection, RedisFailure> {
    if server.address.tls {
        trust_ring();
    }
    let opened = match &server.address.form {
        Form::Cluster => cluster(server, blocks).await.map(RedisConnection::Cluster),
        Form::Sentinel(name) => sentinel(server, name).await.map(RedisConnection::Server),
        Form::Server => single(server).await.map(RedisConnection::Server),
    };
    let mut open = opened.map_err(|error| RedisFailure::of(&error, server))?;
    let mut asked = redis::cmd("INFO");
    asked.arg("server");
    let told = match &mut open {
        RedisConnection::Server(connection) => connection.req_packed_command(&asked).await,
        RedisConnection::Cluster(connection) => {
            connection.route_command(asked, RoutingInfo::SingleNode(SingleNodeRoutingInfo::Random)).await
        }
    };
    match told.and_then(Value::extract_error).and_then(|told| Ok(redis::from_redis_value::<String>(told)?)) {
        Ok(told) => old_version(&told).map_or(Ok(open), |version| Err(RedisFailure::old(version, server))),
        // Who may not ask is not told.
        Err(error) if error.code() == Some("NOPERM") => Ok(open),
        Err(error) => Err(RedisFailure::of(&error, server)),
    }
}

async fn single(server: &RedisServer) -> RedisResult<MultiplexedConnection> {
    let Some(address) = addresses(server).pop() else { return Err(nowhere()) };
    let information = address.into_connection_info()?.set_redis_settings(settings(server));
    let client = match certificates(server) {
        Some(certificates) => Client::build_with_tls(information, certificates)?,
        None => Client::open(information)?,
    };
    client.get_multiplexed_async_connection_with_config(&patient()).await
}

async fn cluster(server: &RedisServer, blocks: Duration) -> RedisResult<ClusterConnection> {
    let mut builder = ClusterClient::builder(addresses(server))
        .connection_timeout(server.timeout)
        .response_timeout(server.timeout + blocks)
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
    if let Some(certificates) = certificates(server) {
        builder = builder.certs(certificates);
    }
    builder.build()?.get_async_connection().await
}

/// The server that Sentinels know by a name. The credentials are for it, not for them.
async fn sentinel(server: &RedisServer, name: &str) -> RedisResult<MultiplexedConnection> {
    let mut builder = SentinelClientBuilder::new(addresses(server), name, SentinelServerType::Master)?
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
    if let Some(certificates) = certificates(server) {
        builder = builder.set_client_to_redis_certificates(certificates.clone());
        builder = builder.set_client_to_sentinel_certificates(certificates);
    }
    builder.build()?.get_async_connection_with_config(&patient()).await
}

fn addresses(server: &RedisServer) -> Vec<ConnectionAddr> {
    let one = |(host, port): &(String, u16)| match server.address.tls {
        true => ConnectionAddr::TcpTls { host: host.clone(), port: *port, insecure: false, tls_params: None },
        false => ConnectionAddr::Tcp(host.clone(), *port),
    };
    server.address.hosts.iter().map(one).collect()
}

fn settings(server: &RedisServer) -> RedisConnectionInfo {
    let mut settings = RedisConnectionInfo::default().set_db(server.address.database);
    if let Some(user) = &server.address.user {
        settings = settings.set_username(user);
    }
    if let Some(password) = &server.address.password {
        settings = settings.set_password(password);
    }
    settings
}

fn certificates(server: &RedisServer) -> Option<TlsCertificates> {
    let roots = server.roots.clone().filter(|_| server.address.tls)?;
    Some(TlsCertificates { client_tls: None, root_cert: Some(roots) })
}

/// It is the link that looks at the clock.
fn patient() -> AsyncConnectionConfig {
    AsyncConnectionConfig::new().set_connection_timeout(None).set_response_timeout(None)
}

fn nowhere() -> RedisError {
    RedisError::from((redis::ErrorKind::InvalidClientConfig, "there is no address"))
}

/// The crate takes the provider of the process, and we have only this one.
fn trust_ring() {
    static ONCE: OnceLock<()> = OnceLock::new();
    ONCE.get_or_init(|| drop(rustls::crypto::ring::default_provider().install_default()));
}
