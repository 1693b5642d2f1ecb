//! `rialto serve` and `rialto stdio`.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use clap::Args;
use http::HeaderName;
use tokio::signal::unix::{Signal, SignalKind, signal};

use crate::app::{App, AppSettings, Reloader};
use crate::config::{self, Config, Loaded, Store};
use crate::gateway::ParkingLimits;
use crate::local::elements::SPOTLIGHT;
use crate::policy::{HostOriginRules, Limits, Policy, Tokens};
use crate::store::{Retention, StoreSettings};
use crate::{inbound, session};

/// What can be set for serving. Durations are in milliseconds or seconds, as their names say. What is
/// not given comes from the file, and else from the defaults.
#[derive(Debug, Args)]
pub(super) struct ServeArgs {
    /// The file that says which servers there are: rialto.toml, or the mcp.json of another client.
    /// [default: ./rialto.toml if it is there]
    #[arg(long, env = "RIALTO_CONFIG", value_name = "FILE")]
    config: Option<PathBuf>,
    /// Where to listen; port 0 lets the system choose. [default: 127.0.0.1:3001]
    #[arg(long, env = "RIALTO_LISTEN", value_name = "ADDRESS")]
    listen: Option<SocketAddr>,
    /// Threads that serve clients. [default: as many as there are cores]
    #[arg(long, env = "RIALTO_WORKERS", value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    workers: Option<u16>,
    /// Where sessions and their events are kept: memory, or a URL of Redis. [default: memory]
    #[arg(long, env = "RIALTO_STORE", value_name = "STORE", hide_env_values = true)]
    store: Option<String>,
    /// The name of this node among those that share a store. [default: the name of the machine, and the port]
    #[arg(long, env = "RIALTO_NODE", value_name = "NAME")]
    node: Option<String>,
    /// A host that requests may name beside those of this machine; * for any. May be repeated.
    #[arg(long, env = "RIALTO_ALLOW_HOST", value_delimiter = ',', value_name = "HOST")]
    allow_host: Vec<String>,
    /// An origin whose pages may call beside those of this machine; * for any. May be repeated.
    #[arg(long, env = "RIALTO_ALLOW_ORIGIN", value_delimiter = ',', value_name = "ORIGIN")]
    allow_origin: Vec<String>,
    /// A caller and its bearer token. Once one is given, every request needs one. May be repeated.
    #[arg(long, env = "RIALTO_TOKEN", value_delimiter = ',', value_name = "NAME=TOKEN", hide_env_values = true)]
    token: Vec<String>,
    /// A header that travels with a call as part of its caller. May be repeated.
    #[arg(long, env = "RIALTO_CALLER_HEADER", value_delimiter = ',', value_name = "NAME")]
    caller_header: Vec<HeaderName>,
    /// Bytes that a body, or a line on stdio, may have. [default: 4194304]
    #[arg(long, env = "RIALTO_MAX_BODY_BYTES", value_name = "N", help_heading = "Limits")]
    max_body_bytes: Option<usize>,
    /// Headers that a request may have. [default: 100]
    #[arg(long, env = "RIALTO_MAX_HEADERS", value_name = "N", help_heading = "Limits")]
    max_headers: Option<usize>,
    /// Bytes that the headers of a request may have together. [default: 65536]
    #[arg(long, env = "RIALTO_MAX_HEADER_BYTES", value_name = "N", help_heading = "Limits")]
    max_header_bytes: Option<usize>,
    /// How deep JSON may nest. [default: 128]
    #[arg(long, env = "RIALTO_MAX_JSON_DEPTH", value_name = "N", help_heading = "Limits")]
    max_json_depth: Option<usize>,
    /// Messages that a batch may hold. [default: 100]
    #[arg(long, env = "RIALTO_MAX_BATCH", value_name = "N", help_heading = "Limits")]
    max_batch: Option<usize>,
    /// Sessions that there may be in all. [default: 100000]
    #[arg(long, env = "RIALTO_MAX_SESSIONS", value_name = "N", help_heading = "Limits")]
    max_sessions: Option<usize>,
    /// Open streams that one session may have. [default: 32]
    #[arg(long, env = "RIALTO_MAX_STREAMS", value_name = "N", help_heading = "Limits")]
    max_streams: Option<usize>,
    /// Calls that may run in one session. [default: 1000]
    #[arg(long, env = "RIALTO_MAX_CALLS", value_name = "N", help_heading = "Limits")]
    max_calls: Option<usize>,
    /// Resources that one session may be subscribed to. [default: 1000]
    #[arg(long, env = "RIALTO_MAX_SUBSCRIPTIONS", value_name = "N", help_heading = "Limits")]
    max_subscriptions: Option<usize>,
    /// Events that are kept for one session, for clients that resume. [default: 1000]
    #[arg(long, env = "RIALTO_MAX_EVENTS", value_name = "N", help_heading = "Limits")]
    max_events: Option<usize>,
    /// Bytes of events that are kept for one session. [default: 8388608]
    #[arg(long, env = "RIALTO_MAX_EVENT_BYTES", value_name = "N", help_heading = "Limits")]
    max_event_bytes: Option<usize>,
    /// Seconds for which events are kept. [default: 600]
    #[arg(long, env = "RIALTO_EVENT_AGE", value_name = "SECONDS", help_heading = "Limits")]
    event_age: Option<u64>,
    /// Seconds after which an unused session ends. [default: 900]
    #[arg(long, env = "RIALTO_SESSION_IDLE", value_name = "SECONDS", help_heading = "Limits")]
    session_idle: Option<u64>,
    /// Milliseconds after which a call that is still quiet is answered with a stream. [default: 1000]
    #[arg(long, env = "RIALTO_STREAM_AFTER_MS", value_name = "MS", help_heading = "Streams")]
    stream_after_ms: Option<u64>,
    /// Milliseconds after which a quiet stream gets a comment that keeps it open. [default: 15000]
    #[arg(long, env = "RIALTO_KEEP_ALIVE_MS", value_name = "MS", help_heading = "Streams")]
    keep_alive_ms: Option<u64>,
    /// Milliseconds that clients are told to wait before they reconnect. [default: 3000]
    #[arg(long, env = "RIALTO_RETRY_MS", value_name = "MS", help_heading = "Streams")]
    retry_ms: Option<u64>,
    /// Refuse DELETE: clients cannot end their sessions, these only expire.
    #[arg(long, env = "RIALTO_NO_DELETE")]
    no_delete: bool,
    /// Seconds that running calls may take to finish when the process stops. [default: 10]
    #[arg(long, env = "RIALTO_DRAIN", value_name = "SECONDS")]
    drain: Option<u64>,
    /// Milliseconds between changes of the resource elements://spotlight. [default: 60000]
    #[arg(long, env = "RIALTO_SPOTLIGHT_MS", value_name = "MS")]
    spotlight_ms: Option<u64>,
}

/// What can be set for serving one client on standard input and output.
#[derive(Debug, Args)]
pub(super) struct StdioArgs {
    #[command(flatten)]
    serve: ServeArgs,
    /// The group to serve. [default: default]
    #[arg(long, env = "RIALTO_GROUP", value_name = "GROUP")]
    group: Option<String>,
}

impl StdioArgs {
    /// What is shared with serving over HTTP.
    pub(super) fn serve(&self) -> &ServeArgs {
        &self.serve
    }
}

impl ServeArgs {
    /// The file that these arguments name, or the one that is here.
    fn file(&self) -> Option<PathBuf> {
        let here = || Some(PathBuf::from(config::FILE)).filter(|file| file.is_file());
        self.config.clone().or_else(here)
    }

    fn spotlight(&self) -> Result<Duration, String> {
        match self.spotlight_ms {
            Some(0) => Err("--spotlight-ms must be more than 0".to_owned()),
            Some(given) => Ok(Duration::from_millis(given)),
            None => Ok(SPOTLIGHT),
        }
    }

    /// Where sessions are kept, and how nodes share them.
    fn shared(&self, config: &Config, defaults: StoreSettings) -> Result<StoreSettings, String> {
        let store = match self.store.as_deref().map(Store::parse) {
            Some(Ok(store)) => store,
            Some(Err((why, hint))) => return Err(format!("--store {why}; {hint}")),
            None => config.store.clone(),
        };
        let cluster = &config.cluster;
        Ok(StoreSettings {
            url: match store {
                Store::Memory => None,
                Store::Redis(url) => Some(url),
            },
            prefix: cluster.prefix.clone().unwrap_or(defaults.prefix),
            timeout: cluster.timeout.unwrap_or(defaults.timeout),
            lease: cluster.lease.unwrap_or(defaults.lease),
            node: self.node.clone().or_else(|| cluster.node.clone()),
            sealing_key: cluster.sealing_key.clone(),
        })
    }

    /// The configuration that these arguments name, or the one that is here, or none at all.
    /// What is wrong with it is said on standard error.
    pub(super) fn load(&self) -> Result<Config, ExitCode> {
        let Some(file) = self.file() else { return Ok(Config::default()) };
        match load(&file) {
            Ok(Loaded { config, warnings }) => {
                warnings.iter().for_each(|warning| eprintln!("{warning}"));
                Ok(config)
            }
            Err(problems) => {
                problems.iter().for_each(|problem| eprintln!("{problem}"));
                Err(ExitCode::from(super::USAGE))
            }
        }
    }

    /// The settings: what was given as an argument, else what the file says, else the defaults.
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
        let retry = millis(self.retry_ms).or(limits.sse_retry).map(|retry| u64::try_from(retry.as_millis()));
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
                sse_after: millis(self.stream_after_ms).or(limits.sse_after).unwrap_or(inbound.sse_after),
                sse_heartbeat: positive(millis(self.keep_alive_ms), "--keep-alive-ms")?
                    .or(limits.sse_heartbeat)
                    .unwrap_or(inbound.sse_heartbeat),
                allow_session_delete: !self.no_delete
                    && config.access.allow_session_delete.unwrap_or(inbound.allow_session_delete),
                shutdown_timeout: seconds(self.drain).or(limits.shutdown_timeout).unwrap_or(inbound.shutdown_timeout),
                ..inbound
            },
            sessions: session::SessionSettings {
                sessions: self.max_sessions.or(limits.sessions).unwrap_or(sessions.sessions),
                streams: self.max_streams.or(limits.streams).unwrap_or(sessions.streams),
                calls: self.max_calls.or(limits.calls).unwrap_or(sessions.calls),
                subscriptions: self.max_subscriptions.or(limits.subscriptions).unwrap_or(sessions.subscriptions),
                idle: positive(seconds(self.session_idle), "--session-idle")?
                    .or(limits.session_idle)
                    .unwrap_or(sessions.idle),
                retention: Retention {
                    count: self.max_events.or(limits.events).unwrap_or(sessions.retention.count),
                    bytes: self.max_event_bytes.or(limits.event_bytes).unwrap_or(sessions.retention.bytes),
                    age: seconds(self.event_age).or(limits.event_age).unwrap_or(sessions.retention.age),
                },
                sse_retry: retry.and_then(Result::ok).unwrap_or(sessions.sse_retry),
            },
            policy: Policy {
                host_origin: HostOriginRules::new(
                    given(&self.allow_host, &config.access.hosts),
                    given(&self.allow_origin, &config.access.origins),
                ),
                tokens: match self.token.is_empty() {
                    true => Tokens::new(config.access.tokens.iter().cloned().map(|token| (token.name, token.secret))),
                    false => Tokens::parse(&self.token)?,
                },
                forward_headers: given(&self.caller_header, &config.access.forward_headers).to_vec(),
            },
            parking: ParkingLimits {
                total: limits.parked_calls.unwrap_or(defaults.parking.total),
                per_caller: limits.parked_calls_per_caller.unwrap_or(defaults.parking.per_caller),
                elicitation_timeout: limits.elicitation_timeout.unwrap_or(defaults.parking.elicitation_timeout),
                sampling_timeout: limits.sampling_timeout.unwrap_or(defaults.parking.sampling_timeout),
            },
            gateway: config.layout(self.spotlight()?),
            store: self.shared(config, defaults.store)?,
        })
    }
}

/// How many threads can run at once.
fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, std::num::NonZero::get)
}

/// A list from the command line takes the place of the one in the file.
fn given<'l, T>(flags: &'l [T], file: &'l [T]) -> &'l [T] {
    if flags.is_empty() { file } else { flags }
}

/// Reads a file, with variables from the environment.
pub(super) fn load(file: &Path) -> Result<Loaded, Vec<config::Diagnostic>> {
    config::load(file, &config::environment)
}

/// Serves over HTTP until a signal asks to stop.
pub(super) async fn http(arguments: ServeArgs, config: &Config) -> ExitCode {
    let spotlight = arguments.spotlight().unwrap_or(SPOTLIGHT);
    let reloader = arguments.file().map(|file| Reloader::new(file, config.clone(), spotlight));
    let settings = match arguments.settings(config) {
        Ok(settings) => settings,
        Err(why) => return usage(&why),
    };
    let wanted = settings.listen;
    let also = settings.admin_listen.map(|admin| format!(" and {admin}")).unwrap_or_default();
    let bound = match App::bind(settings).await {
        Ok(bound) => bound.with_reloader(reloader),
        Err(error) => {
            use std::io::ErrorKind::{AddrInUse, AddrNotAvailable, PermissionDenied};
            let hint = match error.kind() {
                AddrInUse | AddrNotAvailable | PermissionDenied => "; choose another address with --listen",
                _ => "",
            };
            eprintln!("rialto: cannot listen on {wanted}{also}: {error}{hint}");
            return ExitCode::FAILURE;
        }
    };
    let address = bound.address();
    // Whoever reads the address may ask to stop at once.
    let stop = stop_signal();
    println!("Rialto serves MCP at http://{address}/mcp (older clients: http://{address}/sse)");
    if let Some(admin) = bound.admin_address() {
        println!("Health, metrics and status are at http://{admin}");
    }
    let clean = bound.run(stop).await;
    if !clean {
        tracing::warn!("the deadline passed; what still ran was cut off");
    }
    ExitCode::SUCCESS
}

/// Serves one client on standard input and output.
pub(super) async fn stdio(arguments: StdioArgs, config: &Config) -> ExitCode {
    let group = arguments.group;
    if config.group(group.as_deref()).is_none() {
        let known: Vec<&str> = config.groups.iter().map(|group| &*group.name).collect();
        return usage(&format!("there is no group {:?}; there is {}", group.unwrap_or_default(), known.join(", ")));
    }
    let settings = match arguments.serve.settings(config) {
        Ok(settings) => settings,
        Err(why) => return usage(&why),
    };
    match App::new(settings).serve_stdio(group.as_deref(), stop_signal()).await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("rialto: {error}");
            ExitCode::FAILURE
        }
    }
}

fn usage(why: &str) -> ExitCode {
    eprintln!("rialto: {why}");
    ExitCode::from(super::USAGE)
}

/// Ends at the first signal to stop. A second one ends the process at once. Signals are heard from the
/// time of this call.
fn stop_signal() -> impl Future<Output = ()> + Send + 'static {
    let mut asked = Signals::new();
    async move {
        asked.next().await;
        tokio::spawn(async move {
            asked.next().await;
            eprintln!("rialto: stopped at once");
            std::process::exit(130);
        });
    }
}

/// The two signals that ask a process to stop, those of them that can be heard.
struct Signals([Option<Signal>; 2]);

impl Signals {
    fn new() -> Self {
        Self([SignalKind::terminate(), SignalKind::interrupt()].map(|kind| {
            let heard = signal(kind);
            heard.inspect_err(|error| tracing::warn!(%error, "a signal to stop is not heard")).ok()
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
    struct Line {
        #[command(flatten)]
        serve: ServeArgs,
    }

    fn settings(arguments: &[&str], file: &str) -> AppSettings {
        let line = Line::try_parse_from([&["rialto"], arguments].concat()).unwrap();
        let loaded = config::parse(file, Path::new("rialto.toml"), config::Format::Toml, &|_| None).unwrap();
        line.serve.settings(&loaded.config).unwrap()
    }

    #[test]
    fn an_argument_goes_before_the_file_and_the_file_before_the_default() {
        let file = r#"
            listen = "127.0.0.1:4000"
            workers = 3
            access = { hosts = ["a.example"], tokens = { ann = "s3cret" }, allow_session_delete = false }
            limits = { calls = 7, sse_retry = "2s", session_idle = "1m", body_bytes = "1MiB" }
        "#;
        let from_file = settings(&[], file);
        assert_eq!(from_file.listen.port(), 4000);
        assert_eq!((from_file.sessions.calls, from_file.sessions.sse_retry), (7, 2000));
        assert_eq!(from_file.sessions.idle, Duration::from_secs(60));
        assert_eq!(from_file.inbound.limits.body_bytes, 1 << 20);
        assert!(!from_file.inbound.allow_session_delete);
        assert!(format!("{:?}", from_file.policy).contains("ann"));
        let given = ["--listen", "127.0.0.1:0", "--max-calls", "9", "--token", "bob=x", "--workers", "5"];
        let given = settings(&given, file);
        assert_eq!((given.listen.port(), given.sessions.calls, given.sessions.sse_retry), (0, 9, 2000));
        assert_eq!((from_file.workers, given.workers), (3, 5));
        let policy = format!("{:?}", given.policy);
        assert!(policy.contains("bob") && !policy.contains("ann") && policy.contains("a.example"), "{policy}");
    }

    #[test]
    fn the_store_is_read_from_both() {
        let file = r#"
            store = "redis://:s3cret@file"
            cluster = { node = "b", prefix = "p", lease = "9s", timeout = "1s", sealing_key = "s3cret of sixteen letters" }
        "#;
        let from_file = settings(&[], file).store;
        assert_eq!(from_file.url.as_deref(), Some("redis://:s3cret@file"));
        assert_eq!((from_file.node.as_deref(), from_file.prefix.as_str()), (Some("b"), "p"));
        assert_eq!((from_file.lease, from_file.timeout), (Duration::from_secs(9), Duration::from_secs(1)));
        assert!(!format!("{from_file:?}").contains("s3cret"));
        let given = settings(&["--store", "memory", "--node", "a"], file).store;
        assert_eq!((given.url, given.node.as_deref(), given.prefix.as_str()), (None, Some("a"), "p"));
        let line = Line::try_parse_from(["rialto", "--store", "redis://:s3cret@a,b"]).unwrap();
        let error = line.serve.settings(&Config::default()).unwrap_err();
        assert!(error.contains("--store names several hosts") && !error.contains("s3cret"), "{error}");
    }

    #[test]
    fn nothing_given_means_the_defaults() {
        let (nothing, defaults) = (settings(&[], ""), AppSettings { workers: cores(), ..AppSettings::default() });
        assert_eq!(format!("{nothing:?}"), format!("{defaults:?}"));
        let said = r#"
            store = "memory"
            cluster = { prefix = "rialto", lease = "6s", timeout = "2s" }
        "#;
        assert_eq!(settings(&[], said).store, defaults.store);
        // And the tables of keys say the same as the code.
        let file = config::defaults_of_limits();
        assert_eq!(format!("{:?}", settings(&[], &file).inbound), format!("{:?}", defaults.inbound), "{file}");
        assert_eq!(format!("{:?}", settings(&[], &file).sessions), format!("{:?}", defaults.sessions), "{file}");
    }

    #[test]
    fn the_help_tells_the_defaults() {
        use clap::CommandFactory;
        let defaults = AppSettings::default();
        let (inbound, sessions) = (defaults.inbound, defaults.sessions);
        let help = Line::command().term_width(0).render_long_help().to_string();
        for (flag, default) in [
            ("listen", defaults.listen.to_string()),
            ("max-body-bytes", inbound.limits.body_bytes.to_string()),
            ("max-headers", inbound.limits.header_count.to_string()),
            ("max-header-bytes", inbound.limits.header_bytes.to_string()),
            ("max-json-depth", inbound.limits.json_depth.to_string()),
            ("max-batch", inbound.limits.batch_length.to_string()),
            ("max-sessions", sessions.sessions.to_string()),
            ("max-streams", sessions.streams.to_string()),
            ("max-calls", sessions.calls.to_string()),
            ("max-subscriptions", sessions.subscriptions.to_string()),
            ("max-events", sessions.retention.count.to_string()),
            ("max-event-bytes", sessions.retention.bytes.to_string()),
            ("event-age", sessions.retention.age.as_secs().to_string()),
            ("session-idle", sessions.idle.as_secs().to_string()),
            ("stream-after-ms", inbound.sse_after.as_millis().to_string()),
            ("keep-alive-ms", inbound.sse_heartbeat.as_millis().to_string()),
            ("retry-ms", sessions.sse_retry.to_string()),
            ("drain", inbound.shutdown_timeout.as_secs().to_string()),
            ("spotlight-ms", SPOTLIGHT.as_millis().to_string()),
        ] {
            let (_, after) = help.split_once(&format!("--{flag} <")).expect(flag);
            let told = after.split_once("[default: ").and_then(|(_, rest)| rest.split_once(']'));
            assert_eq!(told.map(|(told, _)| told), Some(default.as_str()), "--{flag}");
        }
    }
}
