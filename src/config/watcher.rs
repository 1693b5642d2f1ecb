//! Watches the configuration file and SIGHUP for reloads.

use std::collections::{BTreeMap, BTreeSet};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};
use std::time::Duration;

use notify::{EventKind, RecommendedWatcher, RecursiveMode, Watcher as _};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::mpsc;
use tokio::time::{Instant, Interval, MissedTickBehavior};

/// Why the configuration must be reloaded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReloadTrigger {
    /// The file, or a file that it references, has changed.
    File,
    /// The process received SIGHUP.
    Signal,
}

/// Watches a configuration file.
///
/// Watches the directory, because editors replace the file and Kubernetes swaps a symbolic link. Only a change of
/// content counts as a change.
#[derive(Debug)]
pub struct ConfigWatcher {
    path: PathBuf,
    /// Fingerprint of each watched file as last seen; `None` for a missing file.
    fingerprints: BTreeMap<PathBuf, Option<u64>>,
    /// Whether SIGHUP arrived and `changed` has not reported it yet.
    signal_pending: bool,
    /// When to compare the content, after file system events.
    check_at: Option<Instant>,
    fs_events: mpsc::Receiver<()>,
    fs_watcher: Option<RecommendedWatcher>,
    watched_dirs: BTreeSet<PathBuf>,
    sighup: Option<Signal>,
    poll_timer: Interval,
}

/// Delay between the first file system event and the comparison: saving a file takes several steps.
const DEBOUNCE_INTERVAL: Duration = Duration::from_millis(200);
/// Polling interval where file system events work; they do not on every file system.
const WATCHED_POLL_INTERVAL: Duration = Duration::from_secs(30);
/// Polling interval where file system events do not work.
const UNWATCHED_POLL_INTERVAL: Duration = Duration::from_secs(2);

impl ConfigWatcher {
    /// Starts watching a file. Call it before reading the file, so that no change is missed. From now on SIGHUP
    /// triggers a reload instead of ending the process.
    ///
    /// Must be called within a Tokio runtime.
    pub fn new(path: impl Into<PathBuf>) -> Self {
        // Capacity 1: several events are one wake-up.
        let (event_sender, fs_events) = mpsc::channel(1);
        let on_event = move |event: notify::Result<notify::Event>| {
            // Reading the file causes access events.
            if !event.is_ok_and(|event| matches!(event.kind, EventKind::Access(_))) {
                let _ = event_sender.try_send(());
            }
        };
        let fs_watcher = notify::recommended_watcher(on_event)
            .inspect_err(
                |error| tracing::warn!(%error, "file system events unavailable; polling the configuration file"),
            )
            .ok();
        let sighup = signal(SignalKind::hangup())
            .inspect_err(|error| tracing::warn!(%error, "SIGHUP handler failed; reload by signal is off"))
            .ok();
        let path = path.into();
        let mut watcher = Self {
            fingerprints: BTreeMap::from([(path.clone(), fingerprint(&path))]),
            path,
            signal_pending: false,
            check_at: None,
            fs_events,
            poll_timer: poll_timer(if fs_watcher.is_some() { WATCHED_POLL_INTERVAL } else { UNWATCHED_POLL_INTERVAL }),
            fs_watcher,
            watched_dirs: BTreeSet::new(),
            sighup,
        };
        watcher.watch_directories();
        watcher
    }

    /// Replaces the set of referenced files that are watched besides the configuration file.
    pub fn set_referenced_files(&mut self, files: Vec<PathBuf>) {
        let path = self.path.clone();
        self.fingerprints.retain(|file, _| *file == path || files.contains(file));
        for file in files {
            self.fingerprints.entry(file).or_insert_with_key(|file| fingerprint(file));
        }
        self.watch_directories();
    }

    /// Waits until the configuration must be reloaded. Cancel safe: no change is lost.
    pub async fn changed(&mut self) -> ReloadTrigger {
        loop {
            if self.signal_pending {
                self.mark_current().await;
                self.signal_pending = false;
                return ReloadTrigger::Signal;
            }
            let check_at = self.check_at;
            tokio::select! {
                () = recv_sighup(&mut self.sighup) => self.signal_pending = true,
                Some(()) = self.fs_events.recv() => self.check_at = self.check_at.or_else(|| Some(Instant::now() + DEBOUNCE_INTERVAL)),
                () = sleep_until_set(check_at) => {
                    let differs = self.check_content().await;
                    self.check_at = None;
                    if differs {
                        return ReloadTrigger::File;
                    }
                }
                _ = self.poll_timer.tick() => self.check_at = self.check_at.or_else(|| Some(Instant::now())),
            }
        }
    }

    /// Records the current content as seen. Call it right before reading the file; only later changes are reported.
    pub async fn mark_current(&mut self) {
        self.fingerprints = self.read_fingerprints().await;
    }

    /// Whether the content has changed. While the configuration file is missing, nothing counts as a change.
    async fn check_content(&mut self) -> bool {
        let current = self.read_fingerprints().await;
        let differs = current.get(&self.path).is_some_and(Option::is_some) && current != self.fingerprints;
        if differs {
            self.fingerprints = current;
        }
        differs
    }

    /// Current fingerprints of all watched files.
    async fn read_fingerprints(&mut self) -> BTreeMap<PathBuf, Option<u64>> {
        let files: Vec<PathBuf> = self.fingerprints.keys().cloned().collect();
        let read_all =
            move || files.into_iter().map(|file| (fingerprint(&file), file)).map(|(print, file)| (file, print));
        let current = tokio::task::spawn_blocking(move || read_all().collect::<BTreeMap<_, _>>()).await;
        self.watch_directories();
        current.unwrap_or_else(|_| self.fingerprints.clone())
    }

    /// Watches the directories of the files and of the targets of symbolic links.
    fn watch_directories(&mut self) {
        let Some(fs_watcher) = &mut self.fs_watcher else { return };
        let mut directories = BTreeSet::new();
        for file in self.fingerprints.keys() {
            // Canonical paths: two names of one directory share a watch, and removing one would end both.
            let directory = parent_directory(file);
            directories.insert(std::fs::canonicalize(&directory).unwrap_or(directory));
            directories.extend(std::fs::canonicalize(file).ok().map(|file| parent_directory(&file)));
        }
        for gone in self.watched_dirs.difference(&directories) {
            // The directory may have been removed.
            let _ = fs_watcher.unwatch(gone);
        }
        let mut watched = BTreeSet::new();
        let mut all_watched = true;
        for directory in directories {
            let new = !self.watched_dirs.contains(&directory);
            match if new { fs_watcher.watch(&directory, RecursiveMode::NonRecursive) } else { Ok(()) } {
                Ok(()) => drop(watched.insert(directory)),
                Err(error) => {
                    all_watched = false;
                    tracing::debug!(%error, directory = %directory.display(), "directory watch failed; polling instead");
                }
            }
        }
        self.watched_dirs = watched;
        let period = if all_watched { WATCHED_POLL_INTERVAL } else { UNWATCHED_POLL_INTERVAL };
        if self.poll_timer.period() != period {
            self.poll_timer = poll_timer(period);
        }
    }
}

fn poll_timer(period: Duration) -> Interval {
    let mut timer = tokio::time::interval_at(Instant::now() + period, period);
    timer.set_missed_tick_behavior(MissedTickBehavior::Delay);
    timer
}

async fn recv_sighup(sighup: &mut Option<Signal>) {
    if let Some(sighup) = sighup
        && sighup.recv().await.is_some()
    {
        return;
    }
    std::future::pending::<()>().await;
}

async fn sleep_until_set(deadline: Option<Instant>) {
    match deadline {
        Some(deadline) => tokio::time::sleep_until(deadline).await,
        None => std::future::pending().await,
    }
}

fn parent_directory(file: &Path) -> PathBuf {
    match file.parent().filter(|folder| !folder.as_os_str().is_empty()) {
        Some(folder) => folder.to_owned(),
        None => PathBuf::from("."),
    }
}

/// Hash of the content; `None` if the file cannot be read.
fn fingerprint(path: &Path) -> Option<u64> {
    let mut hasher = DefaultHasher::new();
    std::fs::read(path).ok()?.hash(&mut hasher);
    Some(hasher.finish())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::sync::atomic::{AtomicUsize, Ordering};

    const TEST_TIMEOUT: Duration = Duration::from_secs(20);

    /// Temporary directory, removed on drop.
    struct TempDir(PathBuf);

    impl TempDir {
        fn new() -> Self {
            static COUNT: AtomicUsize = AtomicUsize::new(0);
            let name = format!("rialto-watch-{}-{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
            let path = std::env::temp_dir().join(name);
            fs::create_dir_all(&path).unwrap();
            Self(path)
        }

        fn write(&self, name: &str, text: &str) -> PathBuf {
            let path = self.0.join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(&path, text).unwrap();
            path
        }
    }

    impl Drop for TempDir {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    /// A watcher that ignores SIGHUP, which another test sends to the whole process.
    fn watcher_without_sighup(path: impl Into<PathBuf>) -> ConfigWatcher {
        ConfigWatcher { sighup: None, ..ConfigWatcher::new(path) }
    }

    async fn expect_file_change(watcher: &mut ConfigWatcher) {
        let trigger = tokio::time::timeout(TEST_TIMEOUT, watcher.changed()).await.expect("the change is noticed");
        assert_eq!(trigger, ReloadTrigger::File);
    }

    #[tokio::test]
    async fn rewritten_replaced_and_recreated_files_are_noticed() {
        let dir = TempDir::new();
        let path = dir.write("rialto.toml", "one");
        let mut watcher = watcher_without_sighup(&path);
        dir.write("rialto.toml", "two");
        expect_file_change(&mut watcher).await;
        fs::rename(dir.write("rialto.toml.new", "three"), &path).unwrap();
        expect_file_change(&mut watcher).await;
        fs::remove_file(&path).unwrap();
        assert!(!watcher.check_content().await, "a missing file is no change");
        dir.write("rialto.toml", "three");
        assert!(!watcher.check_content().await, "the same content is no change");
        dir.write("rialto.toml", "four");
        expect_file_change(&mut watcher).await;
        assert!(!watcher.check_content().await, "a change is reported once");
    }

    #[tokio::test]
    async fn recreated_file_is_noticed_through_a_non_canonical_path() {
        let dir = TempDir::new();
        dir.write("rialto.toml", "one");
        let path = dir.0.join("..").join(dir.0.file_name().unwrap()).join("rialto.toml");
        let mut watcher = watcher_without_sighup(&path);
        fs::remove_file(&path).unwrap();
        tokio::time::timeout(TEST_TIMEOUT, watcher.fs_events.recv()).await.expect("the removal causes an event");
        assert!(!watcher.check_content().await);
        while watcher.fs_events.try_recv().is_ok() {}
        dir.write("rialto.toml", "two");
        expect_file_change(&mut watcher).await;
    }

    #[tokio::test]
    async fn swapped_symlinks_are_noticed() {
        // As Kubernetes mounts a ConfigMap: rialto.toml → ..data/rialto.toml, ..data → ..first.
        use std::os::unix::fs::symlink;
        let dir = TempDir::new();
        dir.write("..first/rialto.toml", "one");
        symlink("..first", dir.0.join("..data")).unwrap();
        symlink("..data/rialto.toml", dir.0.join("rialto.toml")).unwrap();
        let mut watcher = watcher_without_sighup(dir.0.join("rialto.toml"));
        for (name, text) in [("..second", "two"), ("..third", "three")] {
            dir.write(&format!("{name}/rialto.toml"), text);
            symlink(name, dir.0.join("..data_tmp")).unwrap();
            fs::rename(dir.0.join("..data_tmp"), dir.0.join("..data")).unwrap();
            expect_file_change(&mut watcher).await;
        }
        // A link to a file in another directory.
        let elsewhere = TempDir::new();
        let real = elsewhere.write("real.toml", "one");
        symlink(&real, dir.0.join("linked.toml")).unwrap();
        let mut watcher = watcher_without_sighup(dir.0.join("linked.toml"));
        fs::write(real, "two").unwrap();
        expect_file_change(&mut watcher).await;
    }

    #[tokio::test]
    async fn referenced_files_are_watched() {
        let dir = TempDir::new();
        let path = dir.write("rialto.toml", "one");
        let document = dir.write("documents/api.json", "{}");
        let mut watcher = watcher_without_sighup(&path);
        watcher.set_referenced_files(vec![document.clone()]);
        assert!(!watcher.check_content().await, "following a file is no change");
        fs::write(&document, "{ }").unwrap();
        expect_file_change(&mut watcher).await;
        watcher.set_referenced_files(Vec::new());
        fs::write(&document, "{  }").unwrap();
        assert!(!watcher.check_content().await, "the file is no longer watched");
    }

    #[tokio::test]
    async fn changed_is_cancel_safe() {
        let dir = TempDir::new();
        let path = dir.write("rialto.toml", "one");
        let mut watcher = watcher_without_sighup(&path);
        dir.write("rialto.toml", "two");
        let started = Instant::now();
        loop {
            // Cancelled again and again, long before the debounce interval ends.
            match tokio::time::timeout(Duration::from_millis(5), watcher.changed()).await {
                Ok(ReloadTrigger::File) => break,
                _ => assert!(started.elapsed() < TEST_TIMEOUT, "the change is noticed"),
            }
        }
    }

    #[tokio::test]
    async fn sighup_triggers_a_reload() {
        let dir = TempDir::new();
        let mut watcher = ConfigWatcher::new(dir.write("rialto.toml", "one"));
        rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::HUP).unwrap();
        let trigger = tokio::time::timeout(TEST_TIMEOUT, watcher.changed()).await.unwrap();
        assert_eq!(trigger, ReloadTrigger::Signal);
    }

    #[tokio::test]
    async fn file_is_polled_without_file_system_events() {
        let dir = TempDir::new();
        let path = dir.write("rialto.toml", "one");
        let mut watcher = watcher_without_sighup(&path);
        watcher.fs_watcher = None;
        watcher.poll_timer = poll_timer(Duration::from_millis(10));
        dir.write("rialto.toml", "two");
        expect_file_change(&mut watcher).await;
    }
}
