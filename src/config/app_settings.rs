//! The settings of a whole gateway process, as the configuration fills them.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;

use super::model::{Config, GroupSection, ServerKind};
use super::secrets::PUBLIC_HEADERS;
use super::setting_value::SettingValue;
use super::settings::TopLevelSection;
use crate::access_log::AccessSettings;
use crate::audit::AuditSettings;
use crate::gateway::{GatewayConfig, ParkingTimeouts};
use crate::http::client::DEFAULT_CONNECTIONS_PER_ORIGIN;
use crate::http::server::TlsServer;
use crate::inbound::InboundSettings;
use crate::issuers::IssuerSettings;
use crate::mcp_client::Target;
use crate::metrics_export::MetricsExportSettings;
use crate::otlp::OtlpSettings;
use crate::policy::{HostOriginRules, LimitRule, Policy, QuotaLimits};
use crate::recording::RecordingSettings;
use crate::session::SessionSettings;
use crate::store::{ClusterStore, StoreSettings};
use crate::telemetry::SampleRate;
use crate::trace::TraceSettings;

/// Settings of a whole gateway process.
#[derive(Debug)]
pub struct AppSettings {
    /// Client listener address; port 0 lets the system choose.
    pub listen: SocketAddr,
    /// Number of worker threads, each with its own runtime and connections. With 0, connections run on the calling
    /// runtime.
    pub workers: usize,
    /// Operators' listener address. Without one, operators use the client listener.
    pub admin_listen: Option<SocketAddr>,
    /// Directory with the files of the console, in place of those in the binary.
    pub console_folder: Option<PathBuf>,
    /// Transport settings.
    pub inbound: InboundSettings,
    /// Session limits and retention.
    pub sessions: SessionSettings,
    /// Host, origin and token rules.
    pub policy: Policy,
    /// Authorization servers whose tokens are accepted.
    pub issuers: Vec<IssuerSettings>,
    /// Limits of what may be in use at one time.
    pub quotas: QuotaLimits,
    /// Rate limits of requests and calls.
    pub rate_limits: Vec<LimitRule>,
    /// Most connections of this process to one origin of HTTP servers.
    pub connections_per_origin: usize,
    /// How long parked calls wait.
    pub parking: ParkingTimeouts,
    /// Upstreams and groups.
    pub gateway: GatewayConfig,
    /// Session store and cluster settings.
    pub store: StoreSettings,
    /// The audit log.
    pub audit: AuditSettings,
    /// The access log.
    pub access_log: AccessSettings,
    /// How calls are recorded.
    pub recording: RecordingSettings,
    /// The collector of spans and metrics.
    pub otlp: OtlpSettings,
    /// Tracing by OpenTelemetry.
    pub trace: TraceSettings,
    /// Metrics by OTLP.
    pub metrics_export: MetricsExportSettings,
    /// What is logged, as a `tracing` filter; `None` for the default of the command.
    pub log_filter: Option<String>,
    /// The parts of the lines of targets that are logged.
    pub log_samples: Vec<(String, SampleRate)>,
    /// The certificate with its key, if clients speak TLS.
    pub tls: Option<Arc<TlsServer>>,
    /// A store to use instead of the one in `store`; tests share one between nodes.
    pub cluster_store: Option<Arc<dyn ClusterStore>>,
}

impl Config {
    /// The settings of a process that serves this configuration.
    pub fn app_settings(&self) -> AppSettings {
        let settings = &self.settings;
        let mut app = AppSettings { gateway: self.gateway_config(), ..AppSettings::default() };
        settings.fill(&mut app);
        settings.cluster.fill(&mut app);
        settings.admin.fill(&mut app);
        settings.access.fill(&mut app);
        settings.limits.fill(&mut app);
        settings.policy.fill(&mut app);
        settings.audit.fill(&mut app);
        settings.log.fill(&mut app);
        settings.telemetry.fill(&mut app);
        app.recording.headers = self.secret_headers();
        app.log_filter = settings.log.tracing_filter();
        app.log_samples = settings.log.samples.of_log().collect();
        app.tls.clone_from(&self.tls);
        app.policy.host_origin = HostOriginRules::new(&settings.access.hosts, &settings.access.origins);
        app
    }
}

impl Config {
    /// Names of what `other` has otherwise, beside servers: settings, the certificate, and groups that are in both.
    pub fn changed_names(&self, other: &Self) -> Vec<String> {
        let mut names = self.settings.changed_settings(&other.settings);
        // The files may be the same, and have other content.
        if self.tls != other.tls && !names.iter().any(|name| name.starts_with("tls")) {
            names.push("tls".to_owned());
        }
        let after = |group: &GroupSection| other.groups.iter().find(|after| after.name == group.name);
        let differs = |group: &&GroupSection| after(group).is_some_and(|after| after != *group);
        names.extend(self.groups.iter().filter(differs).map(|group| format!("groups.{}", group.name)));
        names
    }

    /// The headers that the file gives to servers, in small letters, but for those that are the same for everybody.
    fn secret_headers(&self) -> Vec<String> {
        let given = self.servers.iter().filter_map(|server| match &server.kind {
            ServerKind::Target(Target::Url(address)) => Some(&address.headers),
            ServerKind::Target(_) | ServerKind::Elements | ServerKind::Rest(_) => None,
        });
        let names = given.flat_map(|headers| headers.keys().map(ToString::to_string));
        names.filter(|name| !PUBLIC_HEADERS.contains(&name.as_str())).collect()
    }
}

/// Settings, or tables with a dot, that only a restart can change: sockets, threads, the store and the format of the log.
const FIXED_SETTINGS: [&str; 6] = ["listen", "admin.listen", "workers", "store", "cluster.", "log.format"];

/// Whether only a restart can change a setting, by its dotted name.
pub fn needs_restart(name: &str) -> bool {
    FIXED_SETTINGS.iter().any(|fixed| name == *fixed || fixed.ends_with('.') && name.starts_with(fixed))
}

impl TopLevelSection {
    /// Dotted names of the settings that differ from `other`.
    pub fn changed_settings(&self, other: &Self) -> Vec<String> {
        self.changes(other, "")
    }
}

/// Serves the built-in server, on the calling runtime.
impl Default for AppSettings {
    fn default() -> Self {
        let config = Config::default();
        Self {
            listen: config.settings.listen,
            workers: 0,
            admin_listen: None,
            console_folder: None,
            inbound: InboundSettings::default(),
            sessions: SessionSettings::default(),
            policy: Policy::default(),
            issuers: Vec::new(),
            quotas: QuotaLimits::default(),
            rate_limits: Vec::new(),
            connections_per_origin: DEFAULT_CONNECTIONS_PER_ORIGIN,
            parking: ParkingTimeouts::default(),
            gateway: config.gateway_config(),
            store: StoreSettings::default(),
            audit: AuditSettings::default(),
            access_log: AccessSettings::default(),
            recording: RecordingSettings::default(),
            otlp: OtlpSettings::default(),
            trace: TraceSettings::default(),
            metrics_export: MetricsExportSettings::default(),
            log_filter: None,
            log_samples: Vec::new(),
            tls: None,
            cluster_store: None,
        }
    }
}
