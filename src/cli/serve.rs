//! `rialto serve` and `rialto stdio`.

use std::io::IsTerminal;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Args;
use tokio::signal::unix::{Signal, SignalKind, signal};

use super::console::{self, ConsoleFile};
use super::setting_flags::ServeFlags;
use crate::app::{App, AppSettings, BoundApp, Reloader};
use crate::config::{self, Config, GivenFlag, LoadedConfig};
use crate::metrics_export::MetricsVariables;
use crate::otlp::VariableReader;
use crate::redact::Secrets;
use crate::trace::TraceVariables;

/// Flags of `rialto serve`. A flag overrides the file, which overrides the default.
#[derive(Debug, Args)]
pub(super) struct ServeArgs {
    /// Configuration file: rialto.toml, or the mcp.json of another client. [default: ./rialto.toml if it exists]
    #[arg(long, env = "RIALTO_CONFIG", value_name = "FILE")]
    config: Option<PathBuf>,
    /// Serve the files of the console from this directory instead of those in the binary, for work on the page.
    #[arg(long, value_name = "DIR")]
    console_dir: Option<PathBuf>,
    #[command(flatten)]
    flags: ServeFlags,
}

/// Flags of `rialto stdio`.
#[derive(Debug, Args)]
pub(super) struct StdioArgs {
    #[command(flatten)]
    serve: ServeArgs,
    /// The group to serve. [default: default]
    #[arg(long, env = "RIALTO_GROUP", value_name = "GROUP")]
    group: Option<String>,
    /// Serve the console on a free port of this machine; `rialto console` prints its link.
    #[arg(long)]
    console: bool,
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
    pub(super) fn settings(&self, config: &Config) -> Result<AppSettings, Vec<String>> {
        let settings = self.effective(config)?.app_settings();
        Ok(AppSettings { console_folder: self.console_dir.clone(), ..settings })
    }

    /// The configuration with the flags, whose secrets are masked from now on.
    pub(super) fn effective(&self, config: &Config) -> Result<Config, Vec<String>> {
        let (config, secrets) = config.with_flags(&self.flags.0)?;
        secrets.install_also();
        Ok(config)
    }
}

/// Loads a file with variables from the environment.
pub(super) fn load(file: &Path) -> Result<LoadedConfig, Vec<config::Diagnostic>> {
    config::load(file, &config::environment)
}

/// Serves over HTTP until SIGTERM or SIGINT. `global` are the flags of every command.
pub(super) async fn http(arguments: ServeArgs, global: &[GivenFlag], config: &Config) -> ExitCode {
    let effective = match arguments.effective(config) {
        Ok(effective) => effective,
        Err(mistakes) => return usage_error(&mistakes),
    };
    effective.exposure_warnings().iter().for_each(|warning| eprintln!("warning: {warning}"));
    let flags = [&arguments.flags.0, global].concat();
    let reloader = arguments.file().map(|file| Reloader::new(file, config.clone()).with_flags(&flags));
    let mut settings = AppSettings { console_folder: arguments.console_dir.clone(), ..effective.app_settings() };
    read_otel_variables(&mut settings);
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
            match error.kind() {
                std::io::ErrorKind::Other => eprintln!("rialto: cannot start: {error}"),
                _ => eprintln!("rialto: cannot listen on {listen}{admin}: {error}{hint}"),
            }
            return ExitCode::FAILURE;
        }
    };
    let address = bound.address();
    // Install the handlers before printing the address: a reader may send a signal right away.
    let stop = stop_signal();
    let scheme = bound.scheme();
    // Before the first line as well: a reader may run `rialto console` right away.
    let (_link, console_line) = announce_console(&bound);
    println!("Rialto serves MCP at {scheme}://{address}/mcp (older clients: {scheme}://{address}/sse)");
    if let Some(admin) = bound.admin_address() {
        println!("Health, metrics and status are at http://{admin}");
    }
    console_line.iter().for_each(|line| println!("{line}"));
    let clean = bound.run(stop).await;
    if !clean {
        tracing::warn!("shutdown timeout reached; remaining calls were cancelled");
    }
    ExitCode::SUCCESS
}

/// Leaves the link to the console for `rialto console`. Also returns what is to be printed: the link on a terminal, or why
/// there is no console.
fn announce_console(bound: &BoundApp) -> (Option<ConsoleFile>, Option<String>) {
    let (app, admin) = (bound.app(), bound.admin_address());
    let access = app.inbound().policy().console.clone();
    if !access.enabled {
        return (None, None);
    }
    if let Some(admin) = admin.filter(|admin| !admin.ip().is_loopback() && !access.has_operators()) {
        let why = "can be reached from other machines, and [admin.tokens] names nobody";
        return (None, Some(format!("There is no console: {admin} {why}")));
    }
    let Some(console) = app.console() else { return (None, None) };
    let (scheme, address) = match admin {
        Some(admin) => ("http", admin),
        None => (bound.scheme(), bound.address()),
    };
    let link = || format!("The console is at {}", console::link(scheme, address, console));
    (console::announce(scheme, address, console), std::io::stdout().is_terminal().then(link))
}

/// Serves one client on standard input and output.
pub(super) async fn stdio(arguments: StdioArgs, config: &Config) -> ExitCode {
    let group = arguments.group;
    if config.group(group.as_deref()).is_none() {
        let known: Vec<&str> = config.groups.iter().map(|group| &*group.name).collect();
        let mistake = format!("unknown group {:?}; groups: {}", group.unwrap_or_default(), known.join(", "));
        return usage_error(&[mistake]);
    }
    let mut settings = match arguments.serve.settings(config) {
        Ok(settings) => settings,
        Err(mistakes) => return usage_error(&mistakes),
    };
    read_otel_variables(&mut settings);
    let mut app = App::new(settings);
    let _link = match arguments.console {
        false => None,
        true => match app.serve_console().await {
            Ok((console, address)) => console::announce("http", address, &console),
            Err(error) => return usage_error(&[format!("the console cannot be served: {error}")]),
        },
    };
    match app.serve_stdio(group.as_deref(), stop_signal()).await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("rialto: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Lets the `OTEL_*` variables count more than the file, and warns of those that cannot be used.
fn read_otel_variables(settings: &mut AppSettings) {
    let mut reader = VariableReader::new(&config::environment);
    let (traces, metrics) = (TraceVariables::read(&mut reader), MetricsVariables::read(&mut reader));
    reader.into_warnings().iter().for_each(|warning| eprintln!("warning: {warning}"));
    Secrets::new(traces.secrets().chain(metrics.secrets()).map(str::to_owned)).install_also();
    settings.trace.variables = traces;
    settings.metrics_export.variables = metrics;
}

/// Prints what is wrong with the command line.
pub(super) fn usage_error(mistakes: &[String]) -> ExitCode {
    mistakes.iter().for_each(|mistake| eprintln!("rialto: {mistake}"));
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
            crate::telemetry::flush();
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
    use std::time::Duration;

    use clap::Parser;

    use super::*;

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
        let error = line.serve.settings(&Config::default()).unwrap_err().join("\n");
        assert!(error.contains("--store names several hosts") && !error.contains("s3cret"), "{error}");
    }

    #[test]
    fn empty_file_and_no_flags_give_the_defaults() {
        let (nothing, defaults) = (settings(&[], ""), AppSettings::default());
        // Embedded, a gateway has no worker threads of its own.
        let defaults = AppSettings { workers: nothing.workers, ..defaults };
        assert_eq!(format!("{nothing:?}"), format!("{defaults:?}"));
        let explicit_defaults = r#"
            store = "memory"
            cluster = { prefix = "rialto", lease = "6s", timeout = "2s" }
        "#;
        assert_eq!(settings(&[], explicit_defaults).store, defaults.store);
    }
}
