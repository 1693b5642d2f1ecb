//! Wiring: builds the gateway and its listeners from the settings. The only module that knows every other.

mod cluster;
mod reload;

use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::{Arc, OnceLock, Weak};
use std::time::{Duration, SystemTime};

use arc_swap::{ArcSwap, ArcSwapOption};
use tokio::net::TcpListener;
use tokio::sync::{Notify, Semaphore};

use crate::access_log::{AccessLog, AccessSettings};
use crate::admin::Admin;
use crate::audit::{AuditOutput, AuditSettings};
use crate::console::{Console, ConsoleSettings};
use crate::gateway::{self, DEFAULT_GROUP, Gateway, GatewayConfig, Group, GroupConfig};
use crate::http::client::set_connections_per_origin;
use crate::inbound::{Inbound, ListenerRole, MAX_REFUSING_CONNECTIONS, StripedLocks};
use crate::issuers::IssuerSettings;
use crate::metrics::measure_loop_lag;
use crate::metrics_export::{MetricSource, MetricsExportSettings};
use crate::otlp::OtlpSettings;
use crate::policy::{FailedCredentials, Policy, Quotas, RateLimits};
use crate::recording::CallLog;
use crate::session::Sessions;
use crate::shutdown::Shutdown;
use crate::telemetry::count_panics;
use crate::trace::TraceSettings;
use crate::upstream::{SpecKind, UpstreamSpec};
use crate::workers::Workers;

pub use crate::config::AppSettings;
use cluster::ClusterSetup;
pub use reload::Reloader;

/// How long a shutdown waits for the collector of spans and metrics.
const EXPORT_FLUSH_TIME: Duration = Duration::from_secs(3);
/// How long a shutdown waits for the audit log to take its last lines.
const AUDIT_FLUSH_TIME: Duration = Duration::from_secs(1);
/// How often the certificate of clients' listener is looked at.
const EXPIRY_CHECK_INTERVAL: Duration = Duration::from_secs(6 * 3600);

/// A built gateway without listeners.
#[derive(Debug)]
pub struct App {
    inbound: Arc<Inbound>,
    /// The audit log, opened when something is served.
    audit: AuditSettings,
    /// The access log, begun when something is served.
    access_log: AccessSettings,
    /// Tracing and the export of metrics, begun when something is served.
    trace: TraceSettings,
    metrics_export: MetricsExportSettings,
    otlp: OtlpSettings,
    /// What the console is started with when something is served.
    console_settings: ConsoleSettings,
    /// The console, once something is served.
    console: Option<Arc<Console>>,
}

/// A gateway with bound listeners, not accepting yet.
#[derive(Debug)]
pub struct BoundApp {
    app: App,
    listener: TcpListener,
    address: SocketAddr,
    admin: Option<(TcpListener, SocketAddr)>,
    workers: Arc<Workers>,
    reloader: Option<Reloader>,
}

impl App {
    /// Builds a gateway with sessions in memory; the store settings are ignored.
    pub fn new(settings: AppSettings) -> Self {
        Self::build(settings, None)
    }

    fn build(settings: AppSettings, setup: Option<ClusterSetup>) -> Self {
        let (shutdown, audit, access_log) = (Shutdown::default(), settings.audit, settings.access_log);
        let (trace, metrics_export, otlp) = (settings.trace, settings.metrics_export, settings.otlp);
        let console_settings = ConsoleSettings {
            folder: settings.console_folder,
            is_admin_exposed: settings.admin_listen.is_some_and(|listen| !listen.ip().is_loopback()),
        };
        count_panics();
        set_connections_per_origin(settings.connections_per_origin);
        let quotas = Arc::new(Quotas::new(&settings.quotas));
        let store = setup.as_ref().map(|setup| Arc::clone(&setup.store));
        let rate_limits = Arc::new(RateLimits::new(settings.rate_limits, store));
        let (cluster, sessions, node) = match setup {
            None => (None, Sessions::new(settings.sessions, Arc::clone(&quotas)), "".into()),
            Some(setup) => {
                let node = setup.node.as_str().into();
                let (cluster, sessions) = setup.build(settings.sessions, Arc::clone(&quotas));
                (Some(cluster), sessions, node)
            }
        };
        let sessions = Arc::new(sessions);
        let gateway = {
            let gateway_settings = gateway::GatewaySettings {
                drain: settings.inbound.shutdown_timeout,
                parking: settings.parking,
                quotas,
                rate_limits,
                node,
            };
            Arc::new(Gateway::new(&settings.gateway, gateway_settings, shutdown.closing().clone()))
        };
        sessions.set_metrics(gateway.metrics());
        let tls = Arc::new(ArcSwapOption::new(settings.tls));
        let admin = Admin::new(
            Arc::clone(&gateway),
            Arc::clone(&sessions),
            shutdown.clone(),
            cluster.clone(),
            Arc::clone(&tls),
        );
        let mut policy = settings.policy;
        install_issuers(&admin, &mut policy, settings.issuers);
        let access = AccessLog::default();
        let inbound = Arc::new(Inbound {
            admin,
            tls,
            client_ca_revoked: ArcSwap::default(),
            gateway,
            sessions,
            policy: ArcSwap::from_pointee(policy),
            policy_changed: Notify::new(),
            failed_credentials: FailedCredentials::default(),
            settings: ArcSwap::from_pointee(settings.inbound),
            shutdown,
            cluster,
            takeover_locks: StripedLocks::default(),
            calls: CallLog::new(Arc::clone(access.recorder()), settings.recording),
            access_log: access,
            console: OnceLock::new(),
            refusing: Arc::new(Semaphore::new(MAX_REFUSING_CONNECTIONS)),
        });
        Self { inbound, audit, access_log, trace, metrics_export, otlp, console_settings, console: None }
    }

    /// Binds the listeners and starts the worker threads.
    ///
    /// # Errors
    /// When an address cannot be bound, a thread cannot be started or the store settings are invalid.
    pub async fn bind(settings: AppSettings) -> io::Result<BoundApp> {
        let listener = TcpListener::bind(settings.listen).await?;
        let address = listener.local_addr()?;
        let admin = match settings.admin_listen {
            None => None,
            Some(admin_listen) => {
                let listener = TcpListener::bind(admin_listen).await?;
                let address = listener.local_addr()?;
                Some((listener, address))
            }
        };
        let setup = ClusterSetup::from_settings(&settings, address)?;
        let workers = Workers::start(settings.workers);
        let workers = workers.map_err(|error| io::Error::other(format!("starting a worker thread failed: {error}")))?;
        let mut app = Self::build(settings, setup);
        app.install_console(workers.runtimes())?;
        app.configure_logs()?;
        Ok(BoundApp { app, listener, address, admin, workers: Arc::new(workers), reloader: None })
    }

    /// Begins the audit log, the access log, tracing and the export of metrics.
    fn configure_logs(&self) -> io::Result<()> {
        let gateway = &self.inbound.gateway;
        gateway.configure_audit(&self.audit)?;
        self.inbound.access_log.configure(self.access_log);
        gateway.tracer().start(&self.trace, &self.otlp, gateway.node()).map_err(io::Error::other)?;
        let inbound = Arc::downgrade(&self.inbound);
        let source: MetricSource = Arc::new(move || Some(inbound.upgrade()?.admin.metric_families()));
        let exporter = self.inbound.admin.metrics_exporter();
        exporter.start(&self.metrics_export, &self.otlp, gateway.node(), source).map_err(io::Error::other)
    }

    /// The gateway with its groups, for programs that embed it.
    pub fn gateway(&self) -> &Arc<Gateway> {
        &self.inbound.gateway
    }

    /// The inbound side: sessions, policy and shutdown.
    pub fn inbound(&self) -> &Arc<Inbound> {
        &self.inbound
    }

    /// The console, once something is served.
    pub fn console(&self) -> Option<&Arc<Console>> {
        self.console.as_ref()
    }

    /// Serves the console on a free port of this machine, for a client on standard input and output.
    ///
    /// # Errors
    /// When no port can be had.
    pub async fn serve_console(&mut self) -> io::Result<(Arc<Console>, SocketAddr)> {
        self.install_console(Vec::new())?;
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
        let address = listener.local_addr()?;
        let workers = Arc::new(Workers::start(0)?);
        tokio::spawn(Arc::clone(&self.inbound).listen(ListenerRole::Operators, listener, workers));
        let console = self.console.clone().ok_or_else(|| io::Error::other("there is no console"))?;
        Ok((console, address))
    }

    fn install_console(&mut self, workers: Vec<tokio::runtime::Handle>) -> io::Result<()> {
        self.console = Some(Console::install(&self.inbound, self.console_settings.clone(), workers)?);
        Ok(())
    }

    fn spawn_background_tasks(&self) {
        self.inbound.admin.issuers().start();
        tokio::spawn(Arc::clone(&self.inbound).maintain_sessions());
        cluster::start_tasks(&self.inbound);
        tokio::spawn(warn_of_expiry(Arc::clone(&self.inbound)));
    }

    /// Serves one client on standard input and output until its input ends or `stop` completes.
    ///
    /// # Errors
    /// When reading or writing fails, or the group does not exist.
    pub async fn serve_stdio(
        self,
        group: Option<&str>,
        stop: impl Future<Output = ()> + Send + 'static,
    ) -> io::Result<()> {
        let group: Arc<Group> = match self.inbound.gateway.group(group) {
            Some(group) => group,
            None => return Err(io::Error::other("no such group")),
        };
        if self.audit.output == AuditOutput::Stdout {
            let why = "the audit log cannot go to stdout, which is for messages here; use a file or stderr";
            return Err(io::Error::other(why));
        }
        self.configure_logs()?;
        self.spawn_background_tasks();
        let draining = self.inbound.shutdown.draining().clone();
        tokio::spawn(async move {
            stop.await;
            draining.cancel();
        });
        let input = tokio::io::BufReader::new(tokio::io::stdin());
        let result = Arc::clone(&self.inbound).serve_stdio(group, input, tokio::io::stdout()).await;
        self.inbound.gateway.stop().await;
        stop_exports(&self.inbound).await;
        self.inbound.gateway.audit().flush(AUDIT_FLUSH_TIME).await;
        result
    }
}

/// Sends the spans that wait and the last values of metrics.
async fn stop_exports(inbound: &Inbound) {
    let (tracer, exporter) = (inbound.gateway.tracer(), inbound.admin.metrics_exporter());
    tokio::join!(tracer.stop(EXPORT_FLUSH_TIME), exporter.stop(EXPORT_FLUSH_TIME));
}

/// Lets the tokens of these issuers be accepted.
fn install_issuers(admin: &Admin, policy: &mut Policy, settings: Vec<IssuerSettings>) {
    let issuers = admin.replace_issuers(settings);
    // A validator that an embedding program has set stays.
    if !issuers.is_empty() {
        policy.issuers = Some(issuers);
    }
}

impl BoundApp {
    /// Scheme of the client listener: `https` with a certificate.
    pub fn scheme(&self) -> &'static str {
        if self.app.inbound.tls.load().is_some() { "https" } else { "http" }
    }

    /// Address of the client listener.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Address of the operators' listener, if there is one.
    pub fn admin_address(&self) -> Option<SocketAddr> {
        self.admin.as_ref().map(|(_, address)| *address)
    }

    /// Reloads the configuration file when it changes.
    #[must_use]
    pub fn with_reloader(mut self, reloader: Option<Reloader>) -> Self {
        if let Some(reloader) = &reloader {
            reloader.report_file(&self.app.inbound.admin);
        }
        self.reloader = reloader;
        self
    }

    /// The gateway behind the listeners.
    pub fn app(&self) -> &App {
        &self.app
    }

    /// Serves until `stop` completes, then shuts down in stages; returns whether all calls and connections ended
    /// within the shutdown timeout.
    pub async fn run(self, stop: impl Future<Output = ()>) -> bool {
        let inbound = Arc::clone(&self.app.inbound);
        self.app.spawn_background_tasks();
        cluster::wait_joined(&inbound).await;
        let mut tasks = tokio::task::JoinSet::new();
        let role = if self.admin.is_some() { ListenerRole::Clients } else { ListenerRole::Combined };
        let metrics = Arc::downgrade(inbound.gateway.metrics());
        tokio::spawn(measure_loop_lag(Weak::clone(&metrics)));
        for worker in self.workers.iter() {
            worker.runtime().spawn(measure_loop_lag(Weak::clone(&metrics)));
        }
        tasks.spawn(Arc::clone(&inbound).listen(role, self.listener, Arc::clone(&self.workers)));
        if let Some((listener, _)) = self.admin {
            tasks.spawn(Arc::clone(&inbound).listen(ListenerRole::Operators, listener, Arc::clone(&self.workers)));
        }
        let reload_task = self.reloader.map(|reloader| tasks.spawn(reloader.run(Arc::clone(&inbound))));
        stop.await;
        tracing::info!("stopping: waiting for running calls");
        if let Some(reload_task) = reload_task {
            reload_task.abort();
        }
        let sessions = Arc::clone(&inbound.sessions);
        let end = tokio::time::Instant::now() + inbound.settings().shutdown_timeout;
        let time_left = cluster::hand_over_sessions(&inbound, end).await;
        let ended_in_time = inbound.shutdown.stop(time_left, || sessions.close_all()).await;
        tasks.shutdown().await;
        // Last: other nodes relay requests to this one until it has left.
        cluster::leave_cluster(&inbound, end).await;
        inbound.gateway.stop().await;
        stop_exports(&inbound).await;
        inbound.gateway.audit().flush(AUDIT_FLUSH_TIME).await;
        ended_in_time
    }
}

/// Warns again and again of a certificate that expires or has expired: a renewal may have failed without a word.
async fn warn_of_expiry(inbound: Arc<Inbound>) {
    while tokio::time::timeout(EXPIRY_CHECK_INTERVAL, inbound.shutdown.closing().cancelled()).await.is_err() {
        let warning = inbound.tls.load().as_ref().and_then(|tls| tls.expiry_warning(SystemTime::now()));
        if let Some(warning) = warning {
            tracing::warn!("{warning}; renew it");
        }
    }
}

/// A gateway with only the built-in `elements` server. `spotlight` is the update interval of its changing resource.
pub fn builtin_config(spotlight: Duration) -> GatewayConfig {
    let elements = UpstreamSpec::new("elements", SpecKind::Elements(spotlight));
    let group = GroupConfig::new(DEFAULT_GROUP, [Arc::clone(&elements.name)]);
    GatewayConfig { upstreams: vec![elements], groups: vec![group] }
}
