//! `rialto serve` and `rialto stdio`.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use clap::Args;
use http::HeaderName;
use tokio::signal::unix::{Signal, SignalKind, signal};

use crate::app::{App, AppSettings, Reloader};
use crate::config::{self, Config, LoadedConfig, StoreLocation};
use crate::gateway::ParkingLimits;
use crate::policy::{HostOriginRules, Limits, Policy, Tokens};
use crate::store::{Retention, StoreSettings};
use crate::{inbound, session};

/// Flags of `rialto serve`. A flag overrides the file, which overrides the default.
#[derive(Debug, Args)]
pub(super) struct ServeArgs {
    /// Configuration file: rialto.toml, or the mcp.json of another client. [default: ./rialto.toml if it exists]
    #[arg(long, env = "RIALTO_CONFIG", value_name = "FILE")]
    config: Option<PathBuf>,
    /// Listen address; port 0 picks a free port. [default: 127.0.0.1:3001]
    #[arg(long, env = "RIALTO_LISTEN", value_name = "ADDRESS")]
    listen: Option<SocketAddr>,
    /// Worker threads. [default: number of CPU cores]
    #[arg(long, env = "RIALTO_WORKERS", value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    workers: Option<u16>,
    /// Session and event store: memory, or a Redis URL. [default: memory]
    #[arg(long, env = "RIALTO_STORE", value_name = "STORE", hide_env_values = true)]
    store: Option<String>,
    /// Node name, unique among the nodes that share a store. [default: host name and port]
    #[arg(long, env = "RIALTO_NODE", value_name = "NAME")]
    node: Option<String>,
    /// Allowed Host header value besides loopback; * allows any. Can be repeated.
    #[arg(long, env = "RIALTO_ALLOW_HOST", value_delimiter = ',', value_name = "HOST")]
    allow_host: Vec<String>,
    /// Allowed Origin header value besides loopback; * allows any. Can be repeated.
    #[arg(long, env = "RIALTO_ALLOW_ORIGIN", value_delimiter = ',', value_name = "ORIGIN")]
    allow_origin: Vec<String>,
    /// Caller name and bearer token. If any is set, every request needs one. Can be repeated.
    #[arg(long, env = "RIALTO_TOKEN", value_delimiter = ',', value_name = "NAME=TOKEN", hide_env_values = true)]
    token: Vec<String>,
    /// Request header of the client to forward to upstream servers. Can be repeated.
    #[arg(long, env = "RIALTO_FORWARD_HEADER", value_delimiter = ',', value_name = "NAME")]
    forward_header: Vec<HeaderName>,
    /// Maximum bytes of a request body, or of a line on stdio. [default: 4194304]
    #[arg(long, env = "RIALTO_MAX_BODY_BYTES", value_name = "N", help_heading = "Limits")]
    max_body_bytes: Option<usize>,
    /// Maximum number of headers in a request. [default: 100]
    #[arg(long, env = "RIALTO_MAX_HEADERS", value_name = "N", help_heading = "Limits")]
    max_headers: Option<usize>,
    /// Maximum total bytes of the headers of a request. [default: 65536]
    #[arg(long, env = "RIALTO_MAX_HEADER_BYTES", value_name = "N", help_heading = "Limits")]
    max_header_bytes: Option<usize>,
    /// Maximum JSON nesting depth. [default: 128]
    #[arg(long, env = "RIALTO_MAX_JSON_DEPTH", value_name = "N", help_heading = "Limits")]
    max_json_depth: Option<usize>,
    /// Maximum messages in a batch. [default: 100]
    #[arg(long, env = "RIALTO_MAX_BATCH", value_name = "N", help_heading = "Limits")]
    max_batch: Option<usize>,
    /// Maximum number of sessions. [default: 100000]
    #[arg(long, env = "RIALTO_MAX_SESSIONS", value_name = "N", help_heading = "Limits")]
    max_sessions: Option<usize>,
    /// Maximum open SSE streams per session. [default: 32]
    #[arg(long, env = "RIALTO_MAX_STREAMS", value_name = "N", help_heading = "Limits")]
    max_streams: Option<usize>,
    /// Maximum calls in flight per session. [default: 1000]
    #[arg(long, env = "RIALTO_MAX_CALLS", value_name = "N", help_heading = "Limits")]
    max_calls: Option<usize>,
    /// Maximum resource subscriptions per session. [default: 1000]
    #[arg(long, env = "RIALTO_MAX_SUBSCRIPTIONS", value_name = "N", help_heading = "Limits")]
    max_subscriptions: Option<usize>,
    /// Maximum events retained per session for resumption. [default: 1000]
    #[arg(long, env = "RIALTO_MAX_EVENTS", value_name = "N", help_heading = "Limits")]
    max_events: Option<usize>,
    /// Maximum bytes of events retained per session. [default: 8388608]
    #[arg(long, env = "RIALTO_MAX_EVENT_BYTES", value_name = "N", help_heading = "Limits")]
    max_event_bytes: Option<usize>,
    /// Seconds for which events are retained. [default: 600]
    #[arg(long, env = "RIALTO_EVENT_AGE", value_name = "SECONDS", help_heading = "Limits")]
    event_age: Option<u64>,
    /// Seconds after which an idle session expires. [default: 900]
    #[arg(long, env = "RIALTO_SESSION_IDLE", value_name = "SECONDS", help_heading = "Limits")]
    session_idle: Option<u64>,
    /// Milliseconds without a response after which a call is answered with an SSE stream. [default: 1000]
    #[arg(long, env = "RIALTO_SSE_AFTER_MS", value_name = "MS", help_heading = "SSE streams")]
    sse_after_ms: Option<u64>,
    /// Milliseconds after which a heartbeat comment is sent on an idle SSE stream. [default: 15000]
    #[arg(long, env = "RIALTO_SSE_HEARTBEAT_MS", value_name = "MS", help_heading = "SSE streams")]
    sse_heartbeat_ms: Option<u64>,
    /// Reconnection delay in milliseconds sent to clients (the SSE retry field). [default: 3000]
    #[arg(long, env = "RIALTO_SSE_RETRY_MS", value_name = "MS", help_heading = "SSE streams")]
    sse_retry_ms: Option<u64>,
    /// Refuse DELETE: sessions only end when they expire.
    #[arg(long, env = "RIALTO_NO_SESSION_DELETE")]
    no_session_delete: bool,
    /// Seconds that calls in flight may take to finish at shutdown. [default: 10]
    #[arg(long, env = "RIALTO_SHUTDOWN_TIMEOUT", value_name = "SECONDS")]
    shutdown_timeout: Option<u64>,
}

/// Flags of `rialto stdio`.
#[derive(Debug, Args)]
pub(super) struct StdioArgs {
    #[command(flatten)]
    serve: ServeArgs,
    /// The group to serve. [default: default]
    #[arg(long, env = "RIALTO_GROUP", value_name = "GROUP")]
    group: Option<String>,
}

impl StdioArgs {
    /// The flags shared with `rialto serve`.
    pub(super) fn serve(&self) -> &ServeArgs {
        &self.serve
    }
}

impl ServeArgs {
    /// The file given by `--config`, or `./rialto.toml` if it exists.
    fn file(&self) -> Option<PathBuf> {
        let default_file = || Some(PathBuf::from(config::DEFAULT_CONFIG_FILE)).filter(|file| file.is_file());
        self.config.clone().or_else(default_file)
    }

    /// Store and cluster settings from flags and file.
    fn store_settings(&self, config: &Config, defaults: StoreSettings) -> Result<StoreSettings, String> {
        let store = match self.store.as_deref().map(StoreLocation::parse) {
            Some(Ok(store)) => store,
            Some(Err((why, hint))) => return Err(format!("--store {why}; {hint}")),
            None => config.store.clone(),
        };
        let cluster = &config.cluster;
        Ok(StoreSettings {
            url: match store {
                StoreLocation::Memory => None,
                StoreLocation::Redis(url) => Some(url),
            },
            prefix: cluster.prefix.clone().unwrap_or(defaults.prefix),
            timeout: cluster.timeout.unwrap_or(defaults.timeout),
            lease: cluster.lease.unwrap_or(defaults.lease),
            node: self.node.clone().or_else(|| cluster.node.clone()),
            sealing_key: cluster.sealing_key.clone(),
        })
    }

    /// Loads the configuration file, or the defaults if there is none. Prints diagnostics to stderr.
    pub(super) fn load(&self) -> Result<Config, ExitCode> {
        let Some(file) = self.file() else { return Ok(Config::default()) };
        match load(&file) {
            Ok(LoadedConfig { config, warnings, secrets }) => {
                secrets.install();
                warnings.iter().for_each(|warning| eprintln!("{warning}"));
                Ok(config)
            }
            Err(diagnostics) => {
                diagnostics.iter().for_each(|diagnostic| eprintln!("{diagnostic}"));
                Err(ExitCode::from(super::EXIT_USAGE))
            }
        }
    }

    /// Merges flags, file and defaults, in this order of precedence.
    pub(super) fn settings(self, config: &Config) -> Result<AppSettings, String> {
        let defaults = AppSettings::default();
        let (inbound, sessions) = (defaults.inbound, defaults.sessions);
        let limits = &config.limits;
        let seconds = |value: Option<u64>| value.map(Duration::from_secs);
        let millis = |value: Option<u64>| value.map(Duration::from_millis);
        let positive = |value: Option<Duration>, name: &str| match value {
            Some(Duration::ZERO) => Err(format!("{name} must be more than 0")),
            value => Ok(value),
        };
        let retry = millis(self.sse_retry_ms).or(limits.sse_retry).map(|retry| u64::try_from(retry.as_millis()));
        Ok(AppSettings {
            cluster_store: None,
            listen: self.listen.or(config.listen).unwrap_or(defaults.listen),
            workers: self.workers.map(usize::from).or(config.workers).unwrap_or_else(cores),
            admin_listen: config.admin,
            inbound: inbound::InboundSettings {
                limits: Limits {
                    body_bytes: self.max_body_bytes.or(limits.body_bytes).unwrap_or(inbound.limits.body_bytes),
                    header_count: self.max_headers.or(limits.headers).unwrap_or(inbound.limits.header_count),
                    header_bytes: self.max_header_bytes.or(limits.header_bytes).unwrap_or(inbound.limits.header_bytes),
                    json_depth: self.max_json_depth.or(limits.json_depth).unwrap_or(inbound.limits.json_depth),
                    batch_length: self.max_batch.or(limits.batch).unwrap_or(inbound.limits.batch_length),
                },
                sse_after: millis(self.sse_after_ms).or(limits.sse_after).unwrap_or(inbound.sse_after),
                sse_heartbeat: positive(millis(self.sse_heartbeat_ms), "--sse-heartbeat-ms")?
                    .or(limits.sse_heartbeat)
                    .unwrap_or(inbound.sse_heartbeat),
                allow_session_delete: !self.no_session_delete
                    && config.access.allow_session_delete.unwrap_or(inbound.allow_session_delete),
                shutdown_timeout: seconds(self.shutdown_timeout)
                    .or(limits.shutdown_timeout)
                    .unwrap_or(inbound.shutdown_timeout),
                ..inbound
            },
            sessions: session::SessionSettings {
                max_sessions: self.max_sessions.or(limits.sessions).unwrap_or(sessions.max_sessions),
                max_streams: self.max_streams.or(limits.streams).unwrap_or(sessions.max_streams),
                max_calls: self.max_calls.or(limits.calls).unwrap_or(sessions.max_calls),
                max_subscriptions: self
                    .max_subscriptions
                    .or(limits.subscriptions)
                    .unwrap_or(sessions.max_subscriptions),
                idle_timeout: positive(seconds(self.session_idle), "--session-idle")?
                    .or(limits.session_idle)
                    .unwrap_or(sessions.idle_timeout),
                retention: Retention {
                    max_events: self.max_events.or(limits.events).unwrap_or(sessions.retention.max_events),
                    max_bytes: self.max_event_bytes.or(limits.event_bytes).unwrap_or(sessions.retention.max_bytes),
                    max_age: seconds(self.event_age).or(limits.event_age).unwrap_or(sessions.retention.max_age),
                },
                sse_retry_ms: retry.and_then(Result::ok).unwrap_or(sessions.sse_retry_ms),
            },
            policy: Policy {
                host_origin: HostOriginRules::new(
                    flags_or_file(&self.allow_host, &config.access.hosts),
                    flags_or_file(&self.allow_origin, &config.access.origins),
                ),
                tokens: match self.token.is_empty() {
                    true => Tokens::new(config.access.tokens.iter().cloned().map(|token| (token.name, token.secret))),
                    false => Tokens::parse(&self.token)?,
                },
                forward_headers: flags_or_file(&self.forward_header, &config.access.forward_headers).to_vec(),
            },
            parking: ParkingLimits {
                total: limits.parked_calls.unwrap_or(defaults.parking.total),
                per_caller: limits.parked_calls_per_caller.unwrap_or(defaults.parking.per_caller),
                elicitation_timeout: limits.elicitation_timeout.unwrap_or(defaults.parking.elicitation_timeout),
                sampling_timeout: limits.sampling_timeout.unwrap_or(defaults.parking.sampling_timeout),
            },
            gateway: config.gateway_config(),
            store: self.store_settings(config, defaults.store)?,
        })
    }
}

/// Number of CPU cores available to this process.
fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, std::num::NonZero::get)
}

/// A list given by flags replaces the one in the file.
fn flags_or_file<'l, T>(flags: &'l [T], file: &'l [T]) -> &'l [T] {
    if flags.is_empty() { file } else { flags }
}

/// Loads a file with variables from the environment.
pub(super) fn load(file: &Path) -> Result<LoadedConfig, Vec<config::Diagnostic>> {
    config::load(file, &config::environment)
}

/// Serves over HTTP until SIGTERM or SIGINT.
pub(super) async fn http(arguments: ServeArgs, config: &Config) -> ExitCode {
    let reloader = arguments.file().map(|file| Reloader::new(file, config.clone()));
    let settings = match arguments.settings(config) {
        Ok(settings) => settings,
        Err(message) => return usage_error(&message),
    };
    let listen = settings.listen;
    let admin = settings.admin_listen.map(|admin| format!(" and {admin}")).unwrap_or_default();
    let bound = match App::bind(settings).await {
        Ok(bound) => bound.with_reloader(reloader),
        Err(error) => {
            use std::io::ErrorKind::{AddrInUse, AddrNotAvailable, PermissionDenied};
            let hint = match error.kind() {
                AddrInUse | AddrNotAvailable | PermissionDenied => "; choose another address with --listen",
                _ => "",
            };
            eprintln!("rialto: cannot listen on {listen}{admin}: {error}{hint}");
            return ExitCode::FAILURE;
        }
    };
    let address = bound.address();
    // Install the handlers before printing the address: a reader may send a signal right away.
    let stop = stop_signal();
    println!("Rialto serves MCP at http://{address}/mcp (older clients: http://{address}/sse)");
    if let Some(admin) = bound.admin_address() {
        println!("Health, metrics and status are at http://{admin}");
    }
    let clean = bound.run(stop).await;
    if !clean {
        tracing::warn!("shutdown timeout reached; remaining calls were cancelled");
    }
    ExitCode::SUCCESS
}

/// Serves one client on standard input and output.
pub(super) async fn stdio(arguments: StdioArgs, config: &Config) -> ExitCode {
    let group = arguments.group;
    if config.group(group.as_deref()).is_none() {
        let known: Vec<&str> = config.groups.iter().map(|group| &*group.name).collect();
        return usage_error(&format!("unknown group {:?}; groups: {}", group.unwrap_or_default(), known.join(", ")));
    }
    let settings = match arguments.serve.settings(config) {
        Ok(settings) => settings,
        Err(message) => return usage_error(&message),
    };
    match App::new(settings).serve_stdio(group.as_deref(), stop_signal()).await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("rialto: {error}");
            ExitCode::FAILURE
        }
    }
}

fn usage_error(message: &str) -> ExitCode {
    eprintln!("rialto: {message}");
    ExitCode::from(super::EXIT_USAGE)
}

/// Resolves at the first SIGTERM or SIGINT; a second one exits immediately. The handlers are installed by this call.
fn stop_signal() -> impl Future<Output = ()> + Send + 'static {
    let mut signals = StopSignals::new();
    async move {
        signals.next().await;
        tokio::spawn(async move {
            signals.next().await;
            eprintln!("rialto: second signal, exiting immediately");
            std::process::exit(130);
        });
    }
}

/// SIGTERM and SIGINT; `None` where the handler could not be installed.
struct StopSignals([Option<Signal>; 2]);

impl StopSignals {
    fn new() -> Self {
        Self([SignalKind::terminate(), SignalKind::interrupt()].map(|kind| {
            signal(kind).inspect_err(|error| tracing::warn!(%error, "signal handler failed; this signal will not stop the process cleanly")).ok()
        }))
    }

    async fn next(&mut self) {
        let [terminate, interrupt] = &mut self.0;
        let one = async |signal: &mut Option<Signal>| match signal {
            Some(signal) => drop(signal.recv().await),
            None => std::future::pending().await,
        };
        tokio::select! {
            () = one(terminate) => {}
            () = one(interrupt) => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Debug, Parser)]
    struct TestCommand {
        #[command(flatten)]
        serve: ServeArgs,
    }

    fn settings(arguments: &[&str], file: &str) -> AppSettings {
        let line = TestCommand::try_parse_from([&["rialto"], arguments].concat()).unwrap();
        let loaded = config::parse(file, Path::new("rialto.toml"), config::ConfigFormat::Toml, &|_| None).unwrap();
        line.serve.settings(&loaded.config).unwrap()
    }

    #[test]
    fn flags_override_the_file_and_the_file_overrides_defaults() {
        let file = r#"
            listen = "127.0.0.1:4000"
            workers = 3
            access = { hosts = ["a.example"], tokens = { ann = "s3cret" }, allow_session_delete = false }
            limits = { calls = 7, sse_retry = "2s", session_idle = "1m", body_bytes = "1MiB" }
        "#;
        let from_file = settings(&[], file);
        assert_eq!(from_file.listen.port(), 4000);
        assert_eq!((from_file.sessions.max_calls, from_file.sessions.sse_retry_ms), (7, 2000));
        assert_eq!(from_file.sessions.idle_timeout, Duration::from_secs(60));
        assert_eq!(from_file.inbound.limits.body_bytes, 1 << 20);
        assert!(!from_file.inbound.allow_session_delete);
        assert!(format!("{:?}", from_file.policy).contains("ann"));
        let flags = ["--listen", "127.0.0.1:0", "--max-calls", "9", "--token", "bob=x", "--workers", "5"];
        let from_flags = settings(&flags, file);
        assert_eq!(
            (from_flags.listen.port(), from_flags.sessions.max_calls, from_flags.sessions.sse_retry_ms),
            (0, 9, 2000)
        );
        assert_eq!((from_file.workers, from_flags.workers), (3, 5));
        let policy = format!("{:?}", from_flags.policy);
        assert!(policy.contains("bob") && !policy.contains("ann") && policy.contains("a.example"), "{policy}");
    }

    #[test]
    fn store_settings_come_from_flags_and_file() {
        let file = r#"
            store = "redis://:s3cret@file"
            cluster = { node = "b", prefix = "p", lease = "9s", timeout = "1s", sealing_key = "s3cret of sixteen letters" }
        "#;
        let from_file = settings(&[], file).store;
        assert_eq!(from_file.url.as_deref(), Some("redis://:s3cret@file"));
        assert_eq!((from_file.node.as_deref(), from_file.prefix.as_str()), (Some("b"), "p"));
        assert_eq!((from_file.lease, from_file.timeout), (Duration::from_secs(9), Duration::from_secs(1)));
        assert!(!format!("{from_file:?}").contains("s3cret"));
        let from_flags = settings(&["--store", "memory", "--node", "a"], file).store;
        assert_eq!((from_flags.url, from_flags.node.as_deref(), from_flags.prefix.as_str()), (None, Some("a"), "p"));
        let line = TestCommand::try_parse_from(["rialto", "--store", "redis://:s3cret@a,b"]).unwrap();
        let error = line.serve.settings(&Config::default()).unwrap_err();
        assert!(error.contains("--store names several hosts") && !error.contains("s3cret"), "{error}");
    }

    #[test]
    fn empty_file_and_no_flags_give_the_defaults() {
        let (nothing, defaults) = (settings(&[], ""), AppSettings { workers: cores(), ..AppSettings::default() });
        assert_eq!(format!("{nothing:?}"), format!("{defaults:?}"));
        let explicit_defaults = r#"
            store = "memory"
            cluster = { prefix = "rialto", lease = "6s", timeout = "2s" }
        "#;
        assert_eq!(settings(&[], explicit_defaults).store, defaults.store);
        // The defaults in the key tables match the code.
        let file = config::limits_section_with_defaults();
        assert_eq!(format!("{:?}", settings(&[], &file).inbound), format!("{:?}", defaults.inbound), "{file}");
        assert_eq!(format!("{:?}", settings(&[], &file).sessions), format!("{:?}", defaults.sessions), "{file}");
    }

    #[test]
    fn help_shows_the_defaults() {
        use clap::CommandFactory;
        let defaults = AppSettings::default();
        let (inbound, sessions) = (defaults.inbound, defaults.sessions);
        let help = TestCommand::command().term_width(0).render_long_help().to_string();
        for (flag, default) in [
            ("listen", defaults.listen.to_string()),
            ("max-body-bytes", inbound.limits.body_bytes.to_string()),
            ("max-headers", inbound.limits.header_count.to_string()),
            ("max-header-bytes", inbound.limits.header_bytes.to_string()),
            ("max-json-depth", inbound.limits.json_depth.to_string()),
            ("max-batch", inbound.limits.batch_length.to_string()),
            ("max-sessions", sessions.max_sessions.to_string()),
            ("max-streams", sessions.max_streams.to_string()),
            ("max-calls", sessions.max_calls.to_string()),
            ("max-subscriptions", sessions.max_subscriptions.to_string()),
            ("max-events", sessions.retention.max_events.to_string()),
            ("max-event-bytes", sessions.retention.max_bytes.to_string()),
            ("event-age", sessions.retention.max_age.as_secs().to_string()),
            ("session-idle", sessions.idle_timeout.as_secs().to_string()),
            ("sse-after-ms", inbound.sse_after.as_millis().to_string()),
            ("sse-heartbeat-ms", inbound.sse_heartbeat.as_millis().to_string()),
            ("sse-retry-ms", sessions.sse_retry_ms.to_string()),
            ("shutdown-timeout", inbound.shutdown_timeout.as_secs().to_string()),
        ] {
            let (_, after) = help.split_once(&format!("--{flag} <")).expect(flag);
            let shown = after.split_once("[default: ").and_then(|(_, rest)| rest.split_once(']'));
            assert_eq!(shown.map(|(default, _)| default), Some(default.as_str()), "--{flag}");
        }
    }
}
