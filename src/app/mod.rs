//! Wiring: settings become a gateway with listeners. The only file that knows every module.

mod cluster;
mod reload;

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use tokio::net::TcpListener;

use crate::admin::Admin;
use crate::gateway::{self, DEFAULT_GROUP, Gateway, GatewayConfig, Group, GroupConfig, ParkingLimits};
use crate::inbound::{self, Inbound, ListenerRole, StripedLocks};
use crate::local::elements::SPOTLIGHT;
use crate::policy::Policy;
use crate::session::{self, Sessions};
use crate::shutdown::Shutdown;
use crate::store::{ClusterStore, StoreSettings};
use crate::upstream::{SpecKind, UpstreamSpec};
use crate::workers::Workers;

use cluster::Clustered;
pub use reload::Reloader;

/// Everything that can be set.
#[derive(Debug)]
pub struct AppSettings {
    /// Where to listen; port 0 lets the system choose.
    pub listen: SocketAddr,
    /// How many threads serve clients, each those that it has been given; with none, the runtime that is there does.
    pub workers: usize,
    /// Where those who operate the gateway are served; where everybody is when nothing is said.
    pub admin: Option<SocketAddr>,
    /// What governs the transports.
    pub inbound: inbound::InboundSettings,
    /// What governs sessions.
    pub sessions: session::SessionSettings,
    /// Who may do what.
    pub policy: Policy,
    /// What governs calls that wait for answers from their clients.
    pub holding: ParkingLimits,
    /// The upstreams and groups.
    pub layout: GatewayConfig,
    /// Where sessions are kept, and how nodes share them.
    pub store: StoreSettings,
    /// A store that is there already, instead of one that those settings name.
    pub shared: Option<Arc<dyn ClusterStore>>,
}

/// A gateway, built and not yet running.
#[derive(Debug)]
pub struct App {
    inbound: Arc<Inbound>,
}

/// A gateway with its port.
#[derive(Debug)]
pub struct Bound {
    app: App,
    listener: TcpListener,
    address: SocketAddr,
    admin: Option<(TcpListener, SocketAddr)>,
    workers: Arc<Workers>,
    reloader: Option<Reloader>,
}

impl App {
    /// Builds a gateway that is alone, whatever is said of a store.
    pub fn new(settings: AppSettings) -> Self {
        Self::build(settings, None)
    }

    fn build(settings: AppSettings, clustered: Option<Clustered>) -> Self {
        let shutdown = Shutdown::default();
        let (cluster, sessions, node) = match clustered {
            None => (None, Sessions::new(settings.sessions), "".into()),
            Some(clustered) => {
                let node = clustered.node.as_str().into();
                let (cluster, sessions) = clustered.build(settings.sessions);
                (Some(cluster), sessions, node)
            }
        };
        let sessions = Arc::new(sessions);
        let gateway = {
            let governed =
                gateway::GatewaySettings { drain: settings.inbound.shutdown_timeout, holding: settings.holding, node };
            Arc::new(Gateway::new(&settings.layout, governed, shutdown.closing().clone()))
        };
        let inbound = Arc::new(Inbound {
            admin: Admin::new(Arc::clone(&gateway), Arc::clone(&sessions), shutdown.clone(), cluster.clone()),
            gateway,
            sessions,
            policy: settings.policy,
            settings: settings.inbound,
            shutdown,
            cluster,
            adopting: StripedLocks::default(),
        });
        Self { inbound }
    }

    /// Takes the ports.
    ///
    /// # Errors
    /// When they are not to be had, or threads are not.
    pub async fn bind(settings: AppSettings) -> io::Result<Bound> {
        let listener = TcpListener::bind(settings.listen).await?;
        let address = listener.local_addr()?;
        let admin = match settings.admin {
            None => None,
            Some(wanted) => {
                let listener = TcpListener::bind(wanted).await?;
                let address = listener.local_addr()?;
                Some((listener, address))
            }
        };
        let clustered = Clustered::of(&settings, address)?;
        let workers = Workers::start(settings.workers);
        let workers = workers.map_err(|error| io::Error::other(format!("a thread cannot be started: {error}")))?;
        Ok(Bound {
            app: Self::build(settings, clustered),
            listener,
            address,
            admin,
            workers: Arc::new(workers),
            reloader: None,
        })
    }

    /// The groups, for those who embed the gateway.
    pub fn gateway(&self) -> &Arc<Gateway> {
        &self.inbound.gateway
    }

    /// Everything that a request may need.
    pub fn inbound(&self) -> &Arc<Inbound> {
        &self.inbound
    }

    fn start(&self) {
        tokio::spawn(Arc::clone(&self.inbound).look_after_sessions());
        cluster::start(&self.inbound);
    }

    /// Serves one client on standard input and output until that ends or `stop` does.
    ///
    /// # Errors
    /// When reading or writing fails, or there is no such group.
    pub async fn serve_stdio(
        self,
        group: Option<&str>,
        stop: impl Future<Output = ()> + Send + 'static,
    ) -> io::Result<()> {
        let group: Arc<Group> = match self.inbound.gateway.group(group) {
            Some(group) => group,
            None => return Err(io::Error::other("there is no such group")),
        };
        self.start();
        let draining = self.inbound.shutdown.draining().clone();
        tokio::spawn(async move {
            stop.await;
            draining.cancel();
        });
        let input = tokio::io::BufReader::new(tokio::io::stdin());
        let served = Arc::clone(&self.inbound).serve_stdio(group, input, tokio::io::stdout()).await;
        self.inbound.gateway.stop().await;
        served
    }
}

impl Bound {
    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Where those who operate it are served, if not there.
    pub fn admin_address(&self) -> Option<SocketAddr> {
        self.admin.as_ref().map(|(_, address)| *address)
    }

    /// The same, with a configuration that is read again when it changes.
    #[must_use]
    pub fn reloading(mut self, reloader: Option<Reloader>) -> Self {
        if let Some(reloader) = &reloader {
            reloader.introduce(&self.app.inbound.admin);
        }
        self.reloader = reloader;
        self
    }

    /// The gateway.
    pub fn app(&self) -> &App {
        &self.app
    }

    /// Serves until `stop` ends, then stops in order; true when nothing had to be cut off.
    pub async fn run(self, stop: impl Future<Output = ()>) -> bool {
        let inbound = Arc::clone(&self.app.inbound);
        self.app.start();
        cluster::introduced(&inbound).await;
        let mut tasks = tokio::task::JoinSet::new();
        let side = if self.admin.is_some() { ListenerRole::Clients } else { ListenerRole::Everybody };
        tasks.spawn(Arc::clone(&inbound).listen(side, self.listener, Arc::clone(&self.workers)));
        if let Some((listener, _)) = self.admin {
            tasks.spawn(Arc::clone(&inbound).listen(ListenerRole::Operators, listener, Arc::clone(&self.workers)));
        }
        let reloading = self.reloader.map(|reloader| tasks.spawn(reloader.run(Arc::clone(&inbound))));
        stop.await;
        tracing::info!("stopping: running calls may finish");
        if let Some(reloading) = reloading {
            reloading.abort();
        }
        let sessions = Arc::clone(&inbound.sessions);
        let end = tokio::time::Instant::now() + inbound.settings.shutdown_timeout;
        let patience = cluster::leave(&inbound, end).await;
        let clean = inbound.shutdown.stop(patience, || sessions.close_all()).await;
        tasks.shutdown().await;
        // Others bring calls until this node has left.
        cluster::left(&inbound, end).await;
        inbound.gateway.stop().await;
        clean
    }
}

/// The built-in server alone, whose resource that changes does so this often.
pub fn built_in(spotlight: Duration) -> GatewayConfig {
    let elements = UpstreamSpec::new("elements", SpecKind::Elements(spotlight));
    let group = GroupConfig::new(DEFAULT_GROUP, [Arc::clone(&elements.name)]);
    GatewayConfig { upstreams: vec![elements], groups: vec![group] }
}

impl Default for AppSettings {
    fn default() -> Self {
        Self {
            listen: SocketAddr::from(([127, 0, 0, 1], 3001)),
            inbound: inbound::InboundSettings::default(),
            sessions: session::SessionSettings::default(),
            policy: Policy::default(),
            workers: 0,
            admin: None,
            holding: ParkingLimits::default(),
            layout: built_in(SPOTLIGHT),
            store: StoreSettings::default(),
            shared: None,
        }
    }
}
