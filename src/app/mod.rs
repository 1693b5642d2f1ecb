//! Wiring: builds the gateway and its listeners from the settings. The only module that knows every other.

mod cluster;
mod reload;

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use tokio::net::TcpListener;
use tokio::sync::Semaphore;

use crate::admin::Admin;
use crate::gateway::{self, DEFAULT_GROUP, Gateway, GatewayConfig, Group, GroupConfig};
use crate::http::client::set_connections_per_origin;
use crate::inbound::{Inbound, ListenerRole, MAX_REFUSING_CONNECTIONS, StripedLocks};
use crate::policy::Quotas;
use crate::session::Sessions;
use crate::shutdown::Shutdown;
use crate::telemetry::count_panics;
use crate::upstream::{SpecKind, UpstreamSpec};
use crate::workers::Workers;

pub use crate::config::AppSettings;
use cluster::ClusterSetup;
pub use reload::Reloader;

/// A built gateway without listeners.
#[derive(Debug)]
pub struct App {
    inbound: Arc<Inbound>,
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
        let shutdown = Shutdown::default();
        count_panics();
        set_connections_per_origin(settings.connections_per_origin);
        let quotas = Arc::new(Quotas::new(&settings.quotas));
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
                node,
            };
            Arc::new(Gateway::new(&settings.gateway, gateway_settings, shutdown.closing().clone()))
        };
        let inbound = Arc::new(Inbound {
            admin: Admin::new(Arc::clone(&gateway), Arc::clone(&sessions), shutdown.clone(), cluster.clone()),
            gateway,
            sessions,
            policy: ArcSwap::from_pointee(settings.policy),
            settings: ArcSwap::from_pointee(settings.inbound),
            shutdown,
            cluster,
            takeover_locks: StripedLocks::default(),
            refusing: Arc::new(Semaphore::new(MAX_REFUSING_CONNECTIONS)),
        });
        Self { inbound }
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
        Ok(BoundApp {
            app: Self::build(settings, setup),
            listener,
            address,
            admin,
            workers: Arc::new(workers),
            reloader: None,
        })
    }

    /// The gateway with its groups, for programs that embed it.
    pub fn gateway(&self) -> &Arc<Gateway> {
        &self.inbound.gateway
    }

    /// The inbound side: sessions, policy and shutdown.
    pub fn inbound(&self) -> &Arc<Inbound> {
        &self.inbound
    }

    fn spawn_background_tasks(&self) {
        tokio::spawn(Arc::clone(&self.inbound).maintain_sessions());
        cluster::start_tasks(&self.inbound);
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
        self.spawn_background_tasks();
        let draining = self.inbound.shutdown.draining().clone();
        tokio::spawn(async move {
            stop.await;
            draining.cancel();
        });
        let input = tokio::io::BufReader::new(tokio::io::stdin());
        let result = Arc::clone(&self.inbound).serve_stdio(group, input, tokio::io::stdout()).await;
        self.inbound.gateway.stop().await;
        result
    }
}

impl BoundApp {
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
        ended_in_time
    }
}

/// A gateway with only the built-in `elements` server. `spotlight` is the update interval of its changing resource.
pub fn builtin_config(spotlight: Duration) -> GatewayConfig {
    let elements = UpstreamSpec::new("elements", SpecKind::Elements(spotlight));
    let group = GroupConfig::new(DEFAULT_GROUP, [Arc::clone(&elements.name)]);
    GatewayConfig { upstreams: vec![elements], groups: vec![group] }
}
