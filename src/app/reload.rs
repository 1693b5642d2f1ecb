//! Configuration reload: applies a file whole to the running gateway, or refuses it.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::SystemTime;

use super::cluster::stored_session_ttl;
use crate::admin::{Admin, ReloadReport, unix_seconds};
use crate::audit::{AuditEvent, AuditKind, AuditOutcome, cut};
use crate::config::{self, AppSettings, Config, ConfigWatcher, GivenFlag, LoadedConfig};
use crate::gateway::AppliedChanges;
use crate::http::client::set_connections_per_origin;
use crate::inbound::Inbound;
use crate::telemetry;

/// Reloads the configuration file when it changes on disk or on SIGHUP.
#[derive(Debug)]
pub struct Reloader {
    file: PathBuf,
    watcher: ConfigWatcher,
    /// Flags, which override every version of the file.
    flags: Vec<GivenFlag>,
    /// The configuration in use, with the flags.
    config: Config,
}

impl Reloader {
    /// Watches a file that was loaded as `config`. Must be called within a runtime.
    pub fn new(file: PathBuf, config: Config) -> Self {
        let mut watcher = ConfigWatcher::new(&file);
        watcher.set_referenced_files(config.referenced_files(&file));
        Self { file, watcher, flags: Vec::new(), config }
    }

    /// Lets these flags override the file, as they did at the start.
    #[must_use]
    pub(crate) fn with_flags(mut self, flags: &[GivenFlag]) -> Self {
        // They were accepted at the start.
        if let Ok((config, _)) = self.config.with_flags(flags) {
            self.config = config;
        }
        Self { flags: flags.to_vec(), ..self }
    }

    /// Reports the file and its load time in the status.
    pub(super) fn report_file(&self, admin: &Admin) {
        admin.update_config_status(|status| {
            status.file = Some(self.file.display().to_string());
            status.applied = Some(unix_seconds(SystemTime::now()));
        });
    }

    /// Reloads on every change; never returns.
    pub(super) async fn run(mut self, inbound: Arc<Inbound>) {
        record(&inbound, AuditOutcome::Allowed, &format!("started with {}", self.file.display()));
        // The file may have changed between the first load and the start of the watch.
        if self.has_changed() {
            self.watcher.mark_current().await;
            self.reload(&inbound).await;
        }
        loop {
            let trigger = self.watcher.changed().await;
            tracing::info!(file = %self.file.display(), ?trigger, "reloading configuration");
            inbound.gateway.audit().reopen();
            self.reload(&inbound).await;
        }
    }

    fn has_changed(&self) -> bool {
        let now = config::load(&self.file, &config::environment).ok();
        let now = now.and_then(|loaded| loaded.config.with_flags(&self.flags).ok());
        now.is_none_or(|(config, _)| config != self.config)
    }

    async fn reload(&mut self, inbound: &Inbound) {
        let file = self.file.clone();
        // File I/O blocks, so it runs off the runtime threads.
        let loaded = tokio::task::spawn_blocking(move || config::load(&file, &config::environment)).await;
        let loaded = match loaded {
            Ok(loaded) => loaded,
            Err(error) => return tracing::error!(%error, "configuration reload failed"),
        };
        let LoadedConfig { config, warnings, secrets } = match loaded {
            Ok(loaded) => loaded,
            Err(diagnostics) => return reject(inbound, &to_texts(&diagnostics)),
        };
        let (config, flag_secrets) = match config.with_flags(&self.flags) {
            Ok(config) => config,
            Err(mistakes) => return reject(inbound, &mistakes),
        };
        let fixed = self.changed_fixed_settings(&config);
        if !fixed.is_empty() {
            let file = self.file.display();
            let problem = format!("{file}: restart to change {}; nothing was applied", fixed.join(", "));
            reject(inbound, &[problem]);
            return inbound.admin.update_config_status(|status| status.restart = fixed);
        }
        if let Err(error) = inbound.gateway.configure_audit(&config.app_settings().audit) {
            return reject(inbound, &[error.to_string()]);
        }
        let export_secrets = inbound.gateway.tracer().secrets().and(inbound.admin.metrics_exporter().secrets());
        secrets.and(flag_secrets).and(export_secrets).install();
        let mut warnings = to_texts(&warnings);
        warnings.extend(config.exposure_warnings());
        self.apply(inbound, config, warnings);
    }

    fn apply(&mut self, inbound: &Inbound, config: Config, warnings: Vec<String>) {
        for warning in &warnings {
            tracing::warn!("{warning}");
        }
        let settings = config.app_settings();
        let servers = settings.gateway.clone();
        // Access comes first: no added server is reachable under the rules of the file before.
        apply_settings(inbound, settings);
        let applied = inbound.gateway.apply(&servers);
        let changed = self.config.changed_names(&config);
        tracing::info!(
            added = ?applied.added,
            changed = ?applied.changed,
            removed = ?applied.removed,
            closed = ?applied.closed,
            settings = ?changed,
            "the configuration is served"
        );
        record(inbound, AuditOutcome::Allowed, &format!("applied {}", self.file.display()));
        self.watcher.set_referenced_files(config.referenced_files(&self.file));
        inbound.gateway.metrics().record_reload(true);
        let report = ReloadReport {
            at: SystemTime::now(),
            is_applied: true,
            changes: applied,
            settings: changed,
            problems: warnings.clone(),
        };
        inbound.admin.record_reload(report);
        inbound.admin.update_config_status(|status| {
            status.applied = Some(unix_seconds(SystemTime::now()));
            status.refused = None;
            status.problems = warnings;
            status.restart = Vec::new();
        });
        self.config = config;
    }

    /// Names of the changed settings that only a restart can change.
    fn changed_fixed_settings(&self, new: &Config) -> Vec<String> {
        let turns_tls = self.config.tls.is_some() != new.tls.is_some();
        self.config
            .settings
            .changed_settings(&new.settings)
            .into_iter()
            .filter(|name| config::needs_restart(name))
            .chain(turns_tls.then(|| "tls".to_owned()))
            .collect()
    }
}

/// Applies what does not belong to one server or group: access, limits and timeouts.
fn apply_settings(inbound: &Inbound, settings: AppSettings) {
    let AppSettings {
        mut policy,
        access_log,
        recording,
        otlp,
        trace,
        metrics_export,
        log_filter,
        log_samples,
        issuers,
        sessions,
        quotas,
        rate_limits,
        parking,
        connections_per_origin,
        tls,
        inbound: transports,
        ..
    } = settings;
    if let Err(error) = telemetry::set_filter(log_filter.as_deref().unwrap_or(telemetry::SERVING_FILTER)) {
        tracing::error!("{error}");
    }
    telemetry::set_samples(log_samples);
    inbound.access_log.configure(access_log);
    inbound.calls.configure(recording);
    if let Err(error) = inbound.gateway.tracer().configure(&trace, &otlp, inbound.gateway.node()) {
        tracing::error!("tracing stays as it was: {error}");
    }
    let exporter = inbound.admin.metrics_exporter();
    if let Err(error) = exporter.configure(&metrics_export, &otlp, inbound.gateway.node()) {
        tracing::error!("the export of metrics stays as it was: {error}");
    }
    if tls.as_deref() != inbound.tls.load().as_deref() {
        inbound.set_tls(tls);
    }
    set_connections_per_origin(connections_per_origin);
    inbound.gateway.set_timeouts(transports.shutdown_timeout, parking);
    if let (Some(persister), Some(cluster)) = (inbound.sessions.persister(), &inbound.cluster) {
        persister.set_ttl(stored_session_ttl(&sessions, cluster.lease()));
    }
    inbound.sessions.set_settings(sessions);
    inbound.sessions.quotas().set_limits(&quotas);
    inbound.gateway.rate_limits().set_rules(rate_limits);
    // An embedding program sets the hooks; no file does.
    let hooks = inbound.settings().hooks.clone();
    inbound.set_settings(crate::inbound::InboundSettings { hooks, ..transports });
    super::install_issuers(&inbound.admin, &mut policy, issuers);
    inbound.admin.issuers().start();
    inbound.set_policy(policy);
}

fn to_texts(diagnostics: &[config::Diagnostic]) -> Vec<String> {
    diagnostics.iter().map(ToString::to_string).collect()
}

/// Records a reload in the audit log.
fn record(inbound: &Inbound, outcome: AuditOutcome, detail: &str) {
    if let Some(log) = inbound.gateway.audit().log() {
        let mut event = AuditEvent::new(AuditKind::Config, outcome);
        event.detail = Some(cut(detail));
        log.record(event);
    }
}

fn reject(inbound: &Inbound, problems: &[String]) {
    for problem in problems {
        tracing::error!("{problem}");
    }
    tracing::error!("the configuration is refused; what was served before still is");
    inbound.gateway.metrics().record_reload(false);
    record(inbound, AuditOutcome::Failed, problems.first().map_or("", String::as_str));
    let report = ReloadReport {
        at: SystemTime::now(),
        is_applied: false,
        changes: AppliedChanges::default(),
        settings: Vec::new(),
        problems: problems.to_vec(),
    };
    inbound.admin.record_reload(report);
    inbound.admin.update_config_status(|status| {
        status.refused = Some(unix_seconds(SystemTime::now()));
        status.problems = problems.to_vec();
        status.restart = Vec::new();
    });
}
