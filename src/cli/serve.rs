//! `rialto serve` and `rialto stdio`.

use std::net::SocketAddr;
use std::process::ExitCode;
use std::time::Duration;

use clap::Args;
use http::HeaderName;

use crate::app::{self, App, Settings};
use crate::policy::{Doors, Limits, Policy, Tokens};
use crate::store::Retention;
use crate::{inbound, session};

/// What can be set for serving. Durations are in milliseconds or seconds, as their names say.
#[derive(Debug, Args)]
pub(super) struct ServeArgs {
    /// Where to listen; port 0 lets the system choose.
    #[arg(long, env = "RIALTO_LISTEN", default_value = "127.0.0.1:3001", value_name = "ADDRESS")]
    listen: SocketAddr,
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
    /// Bytes that a body, or a line on stdio, may have.
    #[arg(long, env = "RIALTO_MAX_BODY_BYTES", default_value_t = Limits::default().body_bytes, value_name = "N", help_heading = "Limits")]
    max_body_bytes: usize,
    /// Headers that a request may have.
    #[arg(long, env = "RIALTO_MAX_HEADERS", default_value_t = Limits::default().header_count, value_name = "N", help_heading = "Limits")]
    max_headers: usize,
    /// Bytes that the headers of a request may have together.
    #[arg(long, env = "RIALTO_MAX_HEADER_BYTES", default_value_t = Limits::default().header_bytes, value_name = "N", help_heading = "Limits")]
    max_header_bytes: usize,
    /// How deep JSON may nest.
    #[arg(long, env = "RIALTO_MAX_JSON_DEPTH", default_value_t = Limits::default().json_depth, value_name = "N", help_heading = "Limits")]
    max_json_depth: usize,
    /// Messages that a batch may hold.
    #[arg(long, env = "RIALTO_MAX_BATCH", default_value_t = Limits::default().batch_length, value_name = "N", help_heading = "Limits")]
    max_batch: usize,
    /// Sessions that there may be in all.
    #[arg(long, env = "RIALTO_MAX_SESSIONS", default_value_t = session::Settings::default().sessions, value_name = "N", help_heading = "Limits")]
    max_sessions: usize,
    /// Open streams that one session may have.
    #[arg(long, env = "RIALTO_MAX_STREAMS", default_value_t = session::Settings::default().streams, value_name = "N", help_heading = "Limits")]
    max_streams: usize,
    /// Calls that may run in one session.
    #[arg(long, env = "RIALTO_MAX_CALLS", default_value_t = session::Settings::default().calls, value_name = "N", help_heading = "Limits")]
    max_calls: usize,
    /// Resources that one session may be subscribed to.
    #[arg(long, env = "RIALTO_MAX_SUBSCRIPTIONS", default_value_t = session::Settings::default().subscriptions, value_name = "N", help_heading = "Limits")]
    max_subscriptions: usize,
    /// Events that are kept for one session, for clients that resume.
    #[arg(long, env = "RIALTO_MAX_EVENTS", default_value_t = Retention::default().count, value_name = "N", help_heading = "Limits")]
    max_events: usize,
    /// Bytes of events that are kept for one session.
    #[arg(long, env = "RIALTO_MAX_EVENT_BYTES", default_value_t = Retention::default().bytes, value_name = "N", help_heading = "Limits")]
    max_event_bytes: usize,
    /// Seconds for which events are kept.
    #[arg(long, env = "RIALTO_EVENT_AGE", default_value_t = Retention::default().age.as_secs(), value_name = "SECONDS", help_heading = "Limits")]
    event_age: u64,
    /// Seconds after which an unused session ends.
    #[arg(long, env = "RIALTO_SESSION_IDLE", default_value_t = session::Settings::default().idle.as_secs(), value_name = "SECONDS", help_heading = "Limits")]
    session_idle: u64,
    /// Milliseconds after which a call that is still quiet is answered with a stream.
    #[arg(long, env = "RIALTO_STREAM_AFTER_MS", default_value_t = 1000, value_name = "MS", help_heading = "Streams")]
    stream_after_ms: u64,
    /// Milliseconds after which a quiet stream gets a comment that keeps it open.
    #[arg(long, env = "RIALTO_KEEP_ALIVE_MS", default_value_t = 15_000, value_name = "MS", help_heading = "Streams")]
    keep_alive_ms: u64,
    /// Milliseconds that clients are told to wait before they reconnect.
    #[arg(long, env = "RIALTO_RETRY_MS", default_value_t = session::Settings::default().retry, value_name = "MS", help_heading = "Streams")]
    retry_ms: u64,
    /// Refuse DELETE: clients cannot end their sessions, these only expire.
    #[arg(long, env = "RIALTO_NO_DELETE")]
    no_delete: bool,
    /// Seconds that running calls may take to finish when the process stops.
    #[arg(long, env = "RIALTO_DRAIN", default_value_t = 10, value_name = "SECONDS")]
    drain: u64,
    /// Milliseconds between changes of the resource elements://spotlight.
    #[arg(long, env = "RIALTO_SPOTLIGHT_MS", default_value_t = 60_000, value_name = "MS")]
    spotlight_ms: u64,
}

impl ServeArgs {
    /// The arguments as settings.
    fn settings(self) -> Result<Settings, String> {
        let positive = |value: u64, name: &str| match value {
            0 => Err(format!("{name} must be more than 0")),
            value => Ok(Duration::from_millis(value)),
        };
        Ok(Settings {
            listen: self.listen,
            inbound: inbound::Settings {
                limits: Limits {
                    body_bytes: self.max_body_bytes,
                    header_count: self.max_headers,
                    header_bytes: self.max_header_bytes,
                    json_depth: self.max_json_depth,
                    batch_length: self.max_batch,
                },
                stream_after: Duration::from_millis(self.stream_after_ms),
                keep_alive: positive(self.keep_alive_ms, "--keep-alive-ms")?,
                allow_delete: !self.no_delete,
                drain: Duration::from_secs(self.drain),
                ..inbound::Settings::default()
            },
            sessions: session::Settings {
                sessions: self.max_sessions,
                streams: self.max_streams,
                calls: self.max_calls,
                subscriptions: self.max_subscriptions,
                idle: positive(self.session_idle.saturating_mul(1000), "--session-idle")?,
                retention: Retention {
                    count: self.max_events,
                    bytes: self.max_event_bytes,
                    age: Duration::from_secs(self.event_age),
                },
                retry: self.retry_ms,
            },
            policy: Policy {
                doors: Doors::new(&self.allow_host, &self.allow_origin),
                tokens: Tokens::parse(&self.token)?,
                caller_headers: self.caller_header,
            },
            layout: app::built_in(positive(self.spotlight_ms, "--spotlight-ms")?),
        })
    }
}

/// Serves over HTTP until a signal asks to stop.
pub(super) async fn http(arguments: ServeArgs) -> ExitCode {
    let settings = match arguments.settings() {
        Ok(settings) => settings,
        Err(why) => return usage(&why),
    };
    let wanted = settings.listen;
    let bound = match App::bind(settings).await {
        Ok(bound) => bound,
        Err(error) => {
            eprintln!("rialto: cannot listen on {wanted}: {error}; choose another address with --listen");
            return ExitCode::FAILURE;
        }
    };
    let address = bound.address();
    println!("Rialto serves MCP at http://{address}/mcp (older clients: http://{address}/sse)");
    let clean = bound.run(stop_signal()).await;
    if !clean {
        tracing::warn!("the deadline passed; what still ran was cut off");
    }
    ExitCode::SUCCESS
}

/// Serves one client on standard input and output.
pub(super) async fn stdio(arguments: ServeArgs) -> ExitCode {
    let settings = match arguments.settings() {
        Ok(settings) => settings,
        Err(why) => return usage(&why),
    };
    match App::new(settings).serve_stdio(None, stop_signal()).await {
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

/// Ends at the first signal to stop. A second one ends the process at once.
async fn stop_signal() {
    signal().await;
    tokio::spawn(async {
        signal().await;
        eprintln!("rialto: stopped at once");
        std::process::exit(130);
    });
}

/// Waits for an interrupt or a request to terminate.
async fn signal() {
    use tokio::signal::unix::{SignalKind, signal};
    let mut terminate = match signal(SignalKind::terminate()) {
        Ok(terminate) => terminate,
        Err(error) => {
            tracing::warn!(%error, "signals to terminate are not heard");
            let _ = tokio::signal::ctrl_c().await;
            return;
        }
    };
    tokio::select! {
        _ = tokio::signal::ctrl_c() => {}
        _ = terminate.recv() => {}
    }
}
