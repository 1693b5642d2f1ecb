//! Redis and Valkey servers started by tests, which can stop, restart and pause them and limit their memory.

use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use redis::{AsyncConnectionConfig, Client, FromRedisValue, TlsCertificates};
use rialto::store::RedisStore;
use rialto::store::redis::RedisOptions;
use rustix::process::{Pid, Signal, kill_process};

use crate::harness::TEST_TIMEOUT;
use crate::peers::source;
use crate::ports::ReservedPort;

/// Server program.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RedisFlavor {
    Redis,
    Valkey,
}

/// Running server process. Dropping it kills the process.
#[derive(Debug)]
pub struct RedisServer {
    flavor: RedisFlavor,
    child: Option<Child>,
    port: ReservedPort,
    /// Other ports that the process listens on.
    more_ports: Vec<ReservedPort>,
    folder: PathBuf,
    file: Option<PathBuf>,
    arguments: Vec<String>,
    credentials: String,
    tls: Option<Vec<u8>>,
}

/// Command timeout of stores whose server does not answer.
pub const STORE_TIMEOUT: Duration = Duration::from_millis(500);

/// Installs the server programs once per test run and returns the path of one.
fn installed(flavor: RedisFlavor) -> PathBuf {
    static PLACE: OnceLock<PathBuf> = OnceLock::new();
    let place = PLACE.get_or_init(|| {
        let place = Path::new(env!("CARGO_TARGET_TMPDIR")).join("peers");
        let status = Command::new("bash").arg(source().join("setup.sh")).arg(&place).arg("redis").status();
        assert!(status.expect("bash runs").success(), "Redis could not be installed; the lines above say why");
        place
    });
    place.join(match flavor {
        RedisFlavor::Redis => "redis-server",
        RedisFlavor::Valkey => "valkey-server",
    })
}

impl RedisServer {
    pub async fn start(flavor: RedisFlavor) -> Self {
        Self::with(flavor, &[]).await
    }

    pub async fn with(flavor: RedisFlavor, arguments: &[&str]) -> Self {
        let arguments = arguments.iter().map(|&argument| argument.to_owned()).collect();
        Self::begin(flavor, arguments, "", false).await
    }

    pub async fn with_password(password: &str) -> Self {
        let arguments = vec!["--requirepass".to_owned(), password.to_owned()];
        Self::begin(RedisFlavor::Redis, arguments, &format!(":{password}@"), false).await
    }

    /// Server that listens with TLS and a self-signed certificate for `localhost`.
    pub async fn with_tls() -> Self {
        Self::begin(RedisFlavor::Redis, Vec::new(), "", true).await
    }

    /// Sentinel with the given configuration file.
    pub async fn sentinel(file: &Path) -> Self {
        let arguments = vec!["--sentinel".to_owned()];
        let mut server = Self::blank(RedisFlavor::Redis, arguments, "", false).await;
        server.file = Some(file.to_owned());
        server.started().await
    }

    async fn begin(flavor: RedisFlavor, arguments: Vec<String>, credentials: &str, tls: bool) -> Self {
        Self::blank(flavor, arguments, credentials, tls).await.started().await
    }

    /// Server that is configured but not started.
    async fn blank(flavor: RedisFlavor, arguments: Vec<String>, credentials: &str, tls: bool) -> Self {
        tokio::task::spawn_blocking(move || installed(flavor)).await.unwrap();
        let mut id = [0; 8];
        getrandom::fill(&mut id).unwrap();
        let folder = std::env::temp_dir().join(format!("rialto-redis-{:016x}", u64::from_be_bytes(id)));
        std::fs::create_dir_all(&folder).unwrap();
        let tls = tls.then(|| certificate(&folder));
        let credentials = credentials.to_owned();
        Self {
            flavor,
            child: None,
            port: ReservedPort::new(),
            more_ports: Vec::new(),
            folder,
            file: None,
            arguments,
            credentials,
            tls,
        }
    }

    async fn started(mut self) -> Self {
        self.restart().await;
        self
    }

    /// Keeps a port that the process listens on beside its own for as long as the server.
    pub fn keep_port(&mut self, port: ReservedPort) {
        self.more_ports.push(port);
    }

    /// Starts the process, on the same port each time.
    pub async fn restart(&mut self) {
        let port = self.port.number().to_string();
        let mut command = Command::new(installed(self.flavor));
        // `argv[0]` selects between server, Sentinel and CLI in one binary.
        command.arg0("redis-server").args(&self.file);
        command.args(["--bind", "127.0.0.1", "--save", "", "--appendonly", "no"]);
        command.arg("--dir").arg(&self.folder).args(["--loglevel", "warning"]);
        match self.tls {
            Some(_) => {
                let file = |name: &str| self.folder.join(name).display().to_string();
                command.args(["--port", "0", "--tls-port", &port, "--tls-auth-clients", "no"]);
                command.args(["--tls-cert-file", &file("cert.pem"), "--tls-key-file", &file("key.pem")]);
                command.args(["--tls-ca-cert-file", &file("cert.pem")]);
            }
            None => drop(command.args(["--port", &port])),
        }
        let output = std::fs::File::create(self.folder.join("output")).unwrap();
        command.args(&self.arguments).stdin(Stdio::null()).stderr(output.try_clone().unwrap()).stdout(output);
        self.child = Some(command.spawn().unwrap());
        let started = Instant::now();
        while started.elapsed() < TEST_TIMEOUT {
            if self.child.as_mut().unwrap().try_wait().unwrap().is_some() {
                break;
            }
            let info = self.try_ask::<String>(redis::cmd("INFO").arg("server")).await;
            let own = format!("process_id:{}\r\n", self.pid().as_raw_nonzero());
            if info.is_ok_and(|info| info.contains(&own)) {
                return;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        panic!("the server does not answer: {}", std::fs::read_to_string(self.folder.join("output")).unwrap());
    }

    fn pid(&self) -> Pid {
        Pid::from_child(self.child.as_ref().unwrap())
    }

    /// Kills the process with SIGKILL.
    pub fn stop(&mut self) {
        if let Some(mut child) = self.child.take() {
            child.kill().unwrap();
            child.wait().unwrap();
        }
    }

    /// Suspends the process with SIGSTOP: connections stay open and nothing is answered.
    pub fn pause(&self) {
        kill_process(self.pid(), Signal::STOP).unwrap();
    }

    pub fn resume(&self) {
        kill_process(self.pid(), Signal::CONT).unwrap();
    }

    pub fn port(&self) -> u16 {
        self.port.number()
    }

    pub fn url(&self) -> String {
        let (scheme, host) = if self.tls.is_some() { ("rediss", "localhost") } else { ("redis", "127.0.0.1") };
        format!("{scheme}://{}{host}:{}", self.credentials, self.port.number())
    }

    /// New store client for one node. Its commands do not fail because the machine is busy.
    pub fn store(&self) -> Arc<RedisStore> {
        self.store_at(&self.url(), TEST_TIMEOUT)
    }

    /// Store client with a timeout of [`STORE_TIMEOUT`].
    pub fn impatient_store(&self) -> Arc<RedisStore> {
        self.store_at(&self.url(), STORE_TIMEOUT)
    }

    pub fn store_at(&self, url: &str, timeout: Duration) -> Arc<RedisStore> {
        RedisStore::connect(url, "rialto", RedisOptions { timeout, root_certificates: self.tls.clone() }).unwrap()
    }

    /// Runs a command on a connection of its own.
    pub async fn ask<T: FromRedisValue>(&self, command: &mut redis::Cmd) -> T {
        // A server that others keep busy may be slower than the default limit of half a second.
        let patient = AsyncConnectionConfig::new()
            .set_connection_timeout(Some(TEST_TIMEOUT))
            .set_response_timeout(Some(TEST_TIMEOUT));
        self.ask_with(command, &patient).await.unwrap()
    }

    pub async fn try_ask<T: FromRedisValue>(&self, command: &mut redis::Cmd) -> redis::RedisResult<T> {
        self.ask_with(command, &AsyncConnectionConfig::new()).await
    }

    async fn ask_with<T: FromRedisValue>(
        &self,
        command: &mut redis::Cmd,
        config: &AsyncConnectionConfig,
    ) -> redis::RedisResult<T> {
        let client = match &self.tls {
            Some(roots) => {
                let certificates = TlsCertificates { client_tls: None, root_cert: Some(roots.clone()) };
                Client::build_with_tls(self.url(), certificates)?
            }
            None => Client::open(self.url())?,
        };
        let mut connection = client.get_multiplexed_async_connection_with_config(config).await?;
        command.query_async(&mut connection).await
    }

    /// `INFO` output of one section; empty when the server is unreachable.
    pub async fn info(&self, section: &str) -> String {
        self.try_ask(redis::cmd("INFO").arg(section)).await.unwrap_or_default()
    }

    /// Number of keys.
    pub async fn size(&self) -> u64 {
        self.ask(&mut redis::cmd("DBSIZE")).await
    }

    /// All keys with their remaining TTL in milliseconds.
    pub async fn key_ttls(&self) -> Vec<(String, i64)> {
        let keys: Vec<String> = self.ask(redis::cmd("KEYS").arg("*")).await;
        let mut ttls = Vec::new();
        for key in keys {
            let ttl = self.ask(redis::cmd("PTTL").arg(&key)).await;
            ttls.push((key, ttl));
        }
        ttls
    }

    /// Like [`Self::key_ttls`], without the tombstones of deleted sessions.
    pub async fn ttls_without_tombstones(&self) -> Vec<(String, i64)> {
        let mut there = Vec::new();
        for (key, ttl) in self.key_ttls().await {
            let session = key.contains(":s:{");
            if !session || self.ask::<bool>(redis::cmd("HEXISTS").arg(&key).arg("record")).await {
                there.push((key, ttl));
            }
        }
        there
    }
}

impl Drop for RedisServer {
    fn drop(&mut self) {
        if let Some(mut child) = self.child.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

/// Generates a self-signed certificate for `localhost`.
pub fn certificate(folder: &Path) -> Vec<u8> {
    let wanted = "[req]\nprompt = no\ndistinguished_name = name\nx509_extensions = more\n[name]\nCN = localhost\n\
        [more]\nsubjectAltName = DNS:localhost\nbasicConstraints = CA:FALSE\n";
    std::fs::write(folder.join("wanted"), wanted).unwrap();
    let made = Command::new("openssl")
        .args(["req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2"])
        .arg("-config")
        .arg(folder.join("wanted"))
        .arg("-keyout")
        .arg(folder.join("key.pem"))
        .arg("-out")
        .arg(folder.join("cert.pem"))
        .output()
        .expect("openssl runs");
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    std::fs::read(folder.join("cert.pem")).unwrap()
}
