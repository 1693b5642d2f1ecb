//! Configuration reload: applies the difference to the running gateway, refuses a file with errors.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::SystemTime;

use crate::admin::{Admin, unix_seconds};
use crate::config::{self, Config, ConfigWatcher, Diagnostic, LoadedConfig};
use crate::inbound::Inbound;

/// Reloads the configuration file when it changes on disk or on SIGHUP.
#[derive(Debug)]
pub struct Reloader {
    file: PathBuf,
    watcher: ConfigWatcher,
    /// The configuration in use.
    config: Config,
}

impl Reloader {
    /// Watches a file that was loaded as `config`. Must be called within a runtime.
    pub fn new(file: PathBuf, config: Config) -> Self {
        let mut watcher = ConfigWatcher::new(&file);
        watcher.set_referenced_files(config.referenced_files());
        Self { file, watcher, config }
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
        // The file may have changed between the first load and the start of the watch.
        if self.has_changed() {
            self.watcher.mark_current().await;
            self.reload(&inbound).await;
        }
        loop {
            let trigger = self.watcher.changed().await;
            tracing::info!(file = %self.file.display(), ?trigger, "reloading configuration");
            self.reload(&inbound).await;
        }
    }

    fn has_changed(&self) -> bool {
        let now = config::load(&self.file, &config::environment);
        now.map_or(true, |loaded| loaded.config != self.config)
    }

    async fn reload(&mut self, inbound: &Inbound) {
        let file = self.file.clone();
        // File I/O blocks, so it runs off the runtime threads.
        let loaded = tokio::task::spawn_blocking(move || config::load(&file, &config::environment)).await;
        let loaded = match loaded {
            Ok(loaded) => loaded,
            Err(error) => return tracing::error!(%error, "configuration reload failed"),
        };
        match loaded {
            Ok(LoadedConfig { config, warnings, secrets }) => {
                secrets.install();
                self.apply(inbound, config, &warnings);
            }
            Err(diagnostics) => reject(inbound, &diagnostics),
        }
    }

    fn apply(&mut self, inbound: &Inbound, config: Config, warnings: &[Diagnostic]) {
        for warning in warnings {
            tracing::warn!("{warning}");
        }
        let needs_restart = self.needs_restart(&config);
        if !needs_restart.is_empty() {
            tracing::warn!("these take effect after a restart: {}", needs_restart.join(", "));
        }
        let applied = inbound.gateway.apply(&config.gateway_config());
        tracing::info!(
            added = ?applied.added,
            changed = ?applied.changed,
            removed = ?applied.removed,
            closed = ?applied.closed,
            "the configuration is served"
        );
        self.watcher.set_referenced_files(config.referenced_files());
        inbound.gateway.metrics().record_reload(true);
        inbound.admin.update_config_status(|status| {
            status.applied = Some(unix_seconds(SystemTime::now()));
            status.refused = None;
            status.problems = warnings.iter().map(ToString::to_string).collect();
            if !needs_restart.is_empty() {
                status.problems.push(format!("these take effect after a restart: {}", needs_restart.join(", ")));
            }
        });
        // Settings that need a restart keep their old value, so the next reload reports them again.
        self.config.servers = config.servers;
        self.config.groups = config.groups;
    }

    /// Names of the changed settings that take effect only after a restart.
    fn needs_restart(&self, new: &Config) -> Vec<String> {
        // Servers carry the values of `[defaults]`, and those are applied.
        let mut changed = self.config.settings.changed_settings(&new.settings);
        changed.retain(|name| !name.starts_with("defaults."));
        changed
    }
}

fn reject(inbound: &Inbound, diagnostics: &[Diagnostic]) {
    for diagnostic in diagnostics {
        tracing::error!("{diagnostic}");
    }
    tracing::error!("the configuration is refused; what was served before still is");
    inbound.gateway.metrics().record_reload(false);
    inbound.admin.update_config_status(|status| {
        status.refused = Some(unix_seconds(SystemTime::now()));
        status.problems = diagnostics.iter().map(ToString::to_string).collect();
    });
}
