//! A configuration that is read again while it is served: the difference takes effect, and a file
//! that is not right is refused.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use crate::admin::{Admin, seconds};
use crate::config::{self, Config, Diagnostic, Loaded, Watcher};
use crate::inbound::Inbound;

/// Reads a configuration again when it changes.
#[derive(Debug)]
pub struct Reloader {
    file: PathBuf,
    watcher: Watcher,
    /// What is served.
    config: Config,
    spotlight: Duration,
}

impl Reloader {
    /// Watches a file that was read already, and what came of it. Must be called within a runtime.
    pub fn new(file: PathBuf, config: Config, spotlight: Duration) -> Self {
        let mut watcher = Watcher::new(&file);
        watcher.follow(config.files());
        Self { file, watcher, config, spotlight }
    }

    /// Says which file is served.
    pub(super) fn introduce(&self, admin: &Admin) {
        admin.configured(|now| {
            now.file = Some(self.file.display().to_string());
            now.taken = Some(seconds(SystemTime::now()));
        });
    }

    /// Applies what changes, for as long as it is polled.
    pub(super) async fn run(mut self, inbound: Arc<Inbound>) {
        // It may have changed between the first reading and the watch.
        if self.has_changed() {
            self.watcher.catch_up().await;
            self.look_again(&inbound).await;
        }
        loop {
            let trigger = self.watcher.changed().await;
            tracing::info!(file = %self.file.display(), ?trigger, "the configuration is read again");
            self.look_again(&inbound).await;
        }
    }

    fn has_changed(&self) -> bool {
        let now = config::load(&self.file, &config::environment);
        now.map_or(true, |loaded| loaded.config != self.config)
    }

    async fn look_again(&mut self, inbound: &Inbound) {
        let file = self.file.clone();
        // Reading a file may take a while, and nobody is to wait for it.
        let loaded = tokio::task::spawn_blocking(move || config::load(&file, &config::environment)).await;
        let loaded = match loaded {
            Ok(loaded) => loaded,
            Err(error) => return tracing::error!(%error, "the configuration could not be read"),
        };
        match loaded {
            Ok(Loaded { config, warnings }) => self.take(inbound, config, &warnings),
            Err(problems) => refuse(inbound, &problems),
        }
    }

    fn take(&mut self, inbound: &Inbound, config: Config, warnings: &[Diagnostic]) {
        for warning in warnings {
            tracing::warn!("{warning}");
        }
        let later = self.needs_restart(&config);
        if !later.is_empty() {
            tracing::warn!("these take effect after a restart: {}", later.join(", "));
        }
        let applied = inbound.gateway.apply(&config.layout(self.spotlight));
        tracing::info!(
            added = ?applied.added,
            changed = ?applied.changed,
            removed = ?applied.removed,
            closed = ?applied.closed,
            "the configuration is served"
        );
        self.watcher.follow(config.files());
        inbound.gateway.metrics().reloaded(true);
        inbound.admin.configured(|now| {
            now.taken = Some(seconds(SystemTime::now()));
            now.refused = None;
            now.problems = warnings.iter().map(ToString::to_string).collect();
            if !later.is_empty() {
                now.problems.push(format!("these take effect after a restart: {}", later.join(", ")));
            }
        });
        // What needs a restart is still what it was at the start.
        self.config = Config { servers: config.servers, groups: config.groups, ..self.config.clone() };
    }

    /// What of a configuration cannot be changed while it is served.
    fn needs_restart(&self, new: &Config) -> Vec<&'static str> {
        let old = &self.config;
        let changed = [
            ("listen", old.listen != new.listen),
            ("workers", old.workers != new.workers),
            ("admin", old.admin != new.admin),
            ("log", old.log != new.log),
            ("access", old.access != new.access),
            ("limits", old.limits != new.limits),
            ("store", old.store != new.store),
            ("cluster", old.cluster != new.cluster),
        ];
        changed.into_iter().filter(|(_, changed)| *changed).map(|(name, _)| name).collect()
    }
}

fn refuse(inbound: &Inbound, problems: &[Diagnostic]) {
    for problem in problems {
        tracing::error!("{problem}");
    }
    tracing::error!("the configuration is refused; what was served before still is");
    inbound.gateway.metrics().reloaded(false);
    inbound.admin.configured(|now| {
        now.refused = Some(seconds(SystemTime::now()));
        now.problems = problems.iter().map(ToString::to_string).collect();
    });
}
