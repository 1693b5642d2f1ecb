//! Servers of Redis and Valkey that tests start for themselves and can stop, restart, halt and starve.

use std::net::TcpListener;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use redis::{Client, FromRedisValue, TlsCertificates};
use rialto::store::Redis;
use rialto::store::redis::RedisOptions;
use rustix::process::{Pid, Signal, kill_process};

use crate::harness::PATIENCE;
use crate::peers::source;

/// What is started.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Program {
    Redis,
    Valkey,
}

/// A server. It is killed when it is dropped.
#[derive(Debug)]
pub struct Server {
    program: Program,
    child: Option<Child>,
    port: u16,
    folder: PathBuf,
    file: Option<PathBuf>,
    arguments: Vec<String>,
    credentials: String,
    tls: Option<Vec<u8>>,
}

/// How long a store may take in tests.
pub const TIMEOUT: Duration = Duration::from_millis(500);

/// Brings the programs, once.
fn installed(program: Program) -> PathBuf {
    static PLACE: OnceLock<PathBuf> = OnceLock::new();
    let place = PLACE.get_or_init(|| {
        let place = Path::new(env!("CARGO_TARGET_TMPDIR")).join("peers");
        let status = Command::new("bash").arg(source().join("setup.sh")).arg(&place).arg("redis").status();
        assert!(status.expect("bash runs").success(), "Redis could not be installed; the lines above say why");
        place
    });
    place.join(match program {
        Program::Redis => "redis-server",
        Program::Valkey => "valkey-server",
    })
}

impl Server {
    pub async fn start(program: Program) -> Self {
        Self::with(program, &[]).await
    }

    pub async fn with(program: Program, arguments: &[&str]) -> Self {
        let arguments = arguments.iter().map(|&argument| argument.to_owned()).collect();
        Self::begin(program, arguments, "", false).await
    }

    pub async fn with_password(password: &str) -> Self {
        let arguments = vec!["--requirepass".to_owned(), password.to_owned()];
        Self::begin(Program::Redis, arguments, &format!(":{password}@"), false).await
    }

    /// One that speaks TLS, with a certificate of its own for `localhost`.
    pub async fn with_tls() -> Self {
        Self::begin(Program::Redis, Vec::new(), "", true).await
    }

    /// A Sentinel with a file of its own.
    pub async fn sentinel(file: &Path) -> Self {
        let arguments = vec!["--sentinel".to_owned()];
        let mut server = Self::blank(Program::Redis, arguments, "", false).await;
        server.file = Some(file.to_owned());
        server.find_port().await
    }

    async fn begin(program: Program, arguments: Vec<String>, credentials: &str, tls: bool) -> Self {
        Self::blank(program, arguments, credentials, tls).await.find_port().await
    }

    /// One that is not started yet.
    async fn blank(program: Program, arguments: Vec<String>, credentials: &str, tls: bool) -> Self {
        tokio::task::spawn_blocking(move || installed(program)).await.unwrap();
        let mut id = [0; 8];
        getrandom::fill(&mut id).unwrap();
        let folder = std::env::temp_dir().join(format!("rialto-redis-{:016x}", u64::from_be_bytes(id)));
        std::fs::create_dir_all(&folder).unwrap();
        let tls = tls.then(|| certificate(&folder));
        let credentials = credentials.to_owned();
        Self { program, child: None, port: 0, folder, file: None, arguments, credentials, tls }
    }

    /// Starts it on a port that the system says is free; somebody may be there first.
    async fn find_port(mut self) -> Self {
        for _ in 0..20 {
            self.port = TcpListener::bind(("127.0.0.1", 0)).unwrap().local_addr().unwrap().port();
            if self.again().await {
                return self;
            }
        }
        panic!("no port is free");
    }

    /// Starts it where it was before; false when somebody else is there now.
    pub async fn again(&mut self) -> bool {
        let port = self.port.to_string();
        let mut command = Command::new(installed(self.program));
        // The name decides what the program is.
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
        let begun = Instant::now();
        while begun.elapsed() < PATIENCE {
            if self.child.as_mut().unwrap().try_wait().unwrap().is_some() {
                return false;
            }
            let told = self.try_ask::<String>(redis::cmd("INFO").arg("server")).await;
            let own = format!("process_id:{}\r\n", self.pid().as_raw_nonzero());
            if told.is_ok_and(|told| told.contains(&own)) {
                return true;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        panic!("the server does not answer: {}", std::fs::read_to_string(self.folder.join("output")).unwrap());
    }

    fn pid(&self) -> Pid {
        Pid::from_child(self.child.as_ref().unwrap())
    }

    /// Ends it at once.
    pub fn stop(&mut self) {
        if let Some(mut child) = self.child.take() {
            child.kill().unwrap();
            child.wait().unwrap();
        }
    }

    /// Halts it: connections stay, and nobody answers.
    pub fn pause(&self) {
        kill_process(self.pid(), Signal::STOP).unwrap();
    }

    pub fn resume(&self) {
        kill_process(self.pid(), Signal::CONT).unwrap();
    }

    pub fn port(&self) -> u16 {
        self.port
    }

    pub fn url(&self) -> String {
        let (scheme, host) = if self.tls.is_some() { ("rediss", "localhost") } else { ("redis", "127.0.0.1") };
        format!("{scheme}://{}{host}:{}", self.credentials, self.port)
    }

    /// A store of one node.
    pub fn store(&self) -> Arc<Redis> {
        self.store_at(&self.url())
    }

    pub fn store_at(&self, url: &str) -> Arc<Redis> {
        Redis::connect(url, "rialto", RedisOptions { timeout: TIMEOUT, roots: self.tls.clone() }).unwrap()
    }

    /// Asks for something directly.
    pub async fn ask<T: FromRedisValue>(&self, command: &mut redis::Cmd) -> T {
        self.try_ask(command).await.unwrap()
    }

    pub async fn try_ask<T: FromRedisValue>(&self, command: &mut redis::Cmd) -> redis::RedisResult<T> {
        let client = match &self.tls {
            Some(roots) => {
                let certificates = TlsCertificates { client_tls: None, root_cert: Some(roots.clone()) };
                Client::build_with_tls(self.url(), certificates)?
            }
            None => Client::open(self.url())?,
        };
        let mut connection = client.get_multiplexed_async_connection().await?;
        command.query_async(&mut connection).await
    }

    /// What it tells of itself.
    pub async fn tells(&self, section: &str) -> String {
        self.try_ask(redis::cmd("INFO").arg(section)).await.unwrap_or_default()
    }

    /// How many keys there are.
    pub async fn size(&self) -> u64 {
        self.ask(&mut redis::cmd("DBSIZE")).await
    }

    /// All keys, and how many milliseconds each has left.
    pub async fn lives(&self) -> Vec<(String, i64)> {
        let keys: Vec<String> = self.ask(redis::cmd("KEYS").arg("*")).await;
        let mut lives = Vec::new();
        for key in keys {
            let life = self.ask(redis::cmd("PTTL").arg(&key)).await;
            lives.push((key, life));
        }
        lives
    }

    /// The same, without sessions of which only is known that they were deleted.
    pub async fn lives_of_what_is_there(&self) -> Vec<(String, i64)> {
        let mut there = Vec::new();
        for (key, life) in self.lives().await {
            let session = key.contains(":s:{");
            if !session || self.ask::<bool>(redis::cmd("HEXISTS").arg(&key).arg("record")).await {
                there.push((key, life));
            }
        }
        there
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if let Some(mut child) = self.child.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

/// Makes a certificate for `localhost` that vouches for itself.
fn certificate(folder: &Path) -> Vec<u8> {
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
