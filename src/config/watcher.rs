//! When to read the configuration again: its file changed, or somebody sent SIGHUP.

use std::collections::{BTreeMap, BTreeSet};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};
use std::time::Duration;

use notify::{EventKind, RecommendedWatcher, RecursiveMode, Watcher as _};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::mpsc;
use tokio::time::{Instant, Interval, MissedTickBehavior};

/// Why the configuration is to be read again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Trigger {
    /// The file, or one that it names, is not what it was.
    File,
    /// Somebody asked for it by SIGHUP.
    Signal,
}

/// Watches a file of configuration.
///
/// It is the folder that is watched, because editors put a new file in the place of the old one, and
/// Kubernetes swaps a link beside it. Whatever happens there, only other content counts.
#[derive(Debug)]
pub struct Watcher {
    path: PathBuf,
    /// What every file that counts looked like; nothing for one that was not there.
    seen: BTreeMap<PathBuf, Option<u64>>,
    /// Whether somebody sent a signal and was not told of yet.
    asked: bool,
    /// When to look, because something happened.
    due: Option<Instant>,
    happened: mpsc::Receiver<()>,
    system: Option<RecommendedWatcher>,
    folders: BTreeSet<PathBuf>,
    hangups: Option<Signal>,
    ticks: Interval,
}

/// How long things may go on happening before we look: saving a file is several steps.
const SETTLE: Duration = Duration::from_millis(200);
/// How often we look where the system tells of changes. It does not on every file system.
const RARELY: Duration = Duration::from_secs(30);
/// How often we look where it does not.
const OFTEN: Duration = Duration::from_secs(2);

impl Watcher {
    /// Watches a file; do so before it is read, so that nothing comes between. SIGHUP is heard from now
    /// on, instead of ending the process.
    ///
    /// Must be called within a runtime.
    pub fn new(path: impl Into<PathBuf>) -> Self {
        // One slot: that something happened is all there is to know.
        let (tell, happened) = mpsc::channel(1);
        let told = move |event: notify::Result<notify::Event>| {
            // Our own reading is no change.
            if !event.is_ok_and(|event| matches!(event.kind, EventKind::Access(_))) {
                let _ = tell.try_send(());
            }
        };
        let system = notify::recommended_watcher(told)
            .inspect_err(|error| tracing::warn!(%error, "the system tells of no changed files; they are looked at"))
            .ok();
        let hangups =
            signal(SignalKind::hangup()).inspect_err(|error| tracing::warn!(%error, "SIGHUP is not heard")).ok();
        let path = path.into();
        let mut watcher = Self {
            seen: BTreeMap::from([(path.clone(), fingerprint(&path))]),
            path,
            asked: false,
            due: None,
            happened,
            ticks: ticks(if system.is_some() { RARELY } else { OFTEN }),
            system,
            folders: BTreeSet::new(),
            hangups,
        };
        watcher.watch_folders();
        watcher
    }

    /// Watches these other files too, from now on, and no longer those of before: the files that the
    /// configuration names.
    pub fn follow(&mut self, others: Vec<PathBuf>) {
        let path = self.path.clone();
        self.seen.retain(|file, _| *file == path || others.contains(file));
        for other in others {
            self.seen.entry(other).or_insert_with_key(|other| fingerprint(other));
        }
        self.watch_folders();
    }

    /// Waits until the configuration is to be read again. It may be dropped at any time, and nothing
    /// is missed.
    pub async fn changed(&mut self) -> Trigger {
        loop {
            if self.asked {
                self.catch_up().await;
                self.asked = false;
                return Trigger::Signal;
            }
            let due = self.due;
            tokio::select! {
                () = hangup(&mut self.hangups) => self.asked = true,
                Some(()) = self.happened.recv() => self.due = self.due.or_else(|| Some(Instant::now() + SETTLE)),
                () = until(due) => {
                    let differs = self.look().await;
                    self.due = None;
                    if differs {
                        return Trigger::File;
                    }
                }
                _ = self.ticks.tick() => self.due = self.due.or_else(|| Some(Instant::now())),
            }
        }
    }

    /// What is there now, even if that is nothing, is about to be read: only what differs from it is a
    /// change.
    pub async fn catch_up(&mut self) {
        self.seen = self.found().await;
    }

    /// Looks whether the content is another. A file that is away for now is not looked at.
    async fn look(&mut self) -> bool {
        let found = self.found().await;
        let differs = found.get(&self.path).is_some_and(Option::is_some) && found != self.seen;
        if differs {
            self.seen = found;
        }
        differs
    }

    /// What the files look like now.
    async fn found(&mut self) -> BTreeMap<PathBuf, Option<u64>> {
        let files: Vec<PathBuf> = self.seen.keys().cloned().collect();
        let look = move || files.into_iter().map(|file| (fingerprint(&file), file)).map(|(print, file)| (file, print));
        let found = tokio::task::spawn_blocking(move || look().collect::<BTreeMap<_, _>>()).await;
        self.watch_folders();
        found.unwrap_or_else(|_| self.seen.clone())
    }

    /// Watches the folders where the files are, and where they really are if they are links.
    fn watch_folders(&mut self) {
        let Some(system) = &mut self.system else { return };
        let mut folders = BTreeSet::new();
        for file in self.seen.keys() {
            // By its real name: two names of one folder are one watch, and letting go of one would end both.
            let folder = folder_of(file);
            folders.insert(std::fs::canonicalize(&folder).unwrap_or(folder));
            folders.extend(std::fs::canonicalize(file).ok().map(|file| folder_of(&file)));
        }
        for gone in self.folders.difference(&folders) {
            // It may be gone for good.
            let _ = system.unwatch(gone);
        }
        let mut watched = BTreeSet::new();
        let mut complete = true;
        for folder in folders {
            let new = !self.folders.contains(&folder);
            match if new { system.watch(&folder, RecursiveMode::NonRecursive) } else { Ok(()) } {
                Ok(()) => drop(watched.insert(folder)),
                Err(error) => {
                    complete = false;
                    tracing::debug!(%error, folder = %folder.display(), "this folder cannot be watched");
                }
            }
        }
        self.folders = watched;
        let period = if complete { RARELY } else { OFTEN };
        if self.ticks.period() != period {
            self.ticks = ticks(period);
        }
    }
}

fn ticks(period: Duration) -> Interval {
    let mut ticks = tokio::time::interval_at(Instant::now() + period, period);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    ticks
}

async fn hangup(hangups: &mut Option<Signal>) {
    if let Some(hangups) = hangups
        && hangups.recv().await.is_some()
    {
        return;
    }
    std::future::pending::<()>().await;
}

async fn until(due: Option<Instant>) {
    match due {
        Some(due) => tokio::time::sleep_until(due).await,
        None => std::future::pending().await,
    }
}

fn folder_of(file: &Path) -> PathBuf {
    match file.parent().filter(|folder| !folder.as_os_str().is_empty()) {
        Some(folder) => folder.to_owned(),
        None => PathBuf::from("."),
    }
}

/// What tells content from other content; nothing when the file cannot be read.
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

    const PATIENCE: Duration = Duration::from_secs(20);

    /// A folder of its own for each test, gone at the end.
    struct Folder(PathBuf);

    impl Folder {
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

    impl Drop for Folder {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    /// A watcher that does not hear the signal that another test sends to the whole process.
    fn deaf(path: impl Into<PathBuf>) -> Watcher {
        Watcher { hangups: None, ..Watcher::new(path) }
    }

    async fn file_changed(watcher: &mut Watcher) {
        let trigger = tokio::time::timeout(PATIENCE, watcher.changed()).await.expect("the change is noticed");
        assert_eq!(trigger, Trigger::File);
    }

    #[tokio::test]
    async fn a_file_may_be_rewritten_replaced_or_come_back() {
        let folder = Folder::new();
        let path = folder.write("rialto.toml", "one");
        let mut watcher = deaf(&path);
        folder.write("rialto.toml", "two");
        file_changed(&mut watcher).await;
        fs::rename(folder.write("rialto.toml.new", "three"), &path).unwrap();
        file_changed(&mut watcher).await;
        fs::remove_file(&path).unwrap();
        assert!(!watcher.look().await, "that it is away says nothing");
        folder.write("rialto.toml", "three");
        assert!(!watcher.look().await, "the same content is no change");
        folder.write("rialto.toml", "four");
        file_changed(&mut watcher).await;
        assert!(!watcher.look().await, "and is told once");
    }

    #[tokio::test]
    async fn one_that_was_away_is_watched_by_whatever_name() {
        let folder = Folder::new();
        folder.write("rialto.toml", "one");
        let path = folder.0.join("..").join(folder.0.file_name().unwrap()).join("rialto.toml");
        let mut watcher = deaf(&path);
        fs::remove_file(&path).unwrap();
        tokio::time::timeout(PATIENCE, watcher.happened.recv()).await.expect("the removal is heard of");
        assert!(!watcher.look().await);
        while watcher.happened.try_recv().is_ok() {}
        folder.write("rialto.toml", "two");
        file_changed(&mut watcher).await;
    }

    #[tokio::test]
    async fn a_link_may_be_swapped() {
        // As Kubernetes mounts a map: rialto.toml → ..data/rialto.toml, ..data → ..first.
        use std::os::unix::fs::symlink;
        let folder = Folder::new();
        folder.write("..first/rialto.toml", "one");
        symlink("..first", folder.0.join("..data")).unwrap();
        symlink("..data/rialto.toml", folder.0.join("rialto.toml")).unwrap();
        let mut watcher = deaf(folder.0.join("rialto.toml"));
        for (name, text) in [("..second", "two"), ("..third", "three")] {
            folder.write(&format!("{name}/rialto.toml"), text);
            symlink(name, folder.0.join("..data_tmp")).unwrap();
            fs::rename(folder.0.join("..data_tmp"), folder.0.join("..data")).unwrap();
            file_changed(&mut watcher).await;
        }
        // As somebody links to a file that is elsewhere.
        let elsewhere = Folder::new();
        let real = elsewhere.write("real.toml", "one");
        symlink(&real, folder.0.join("linked.toml")).unwrap();
        let mut watcher = deaf(folder.0.join("linked.toml"));
        fs::write(real, "two").unwrap();
        file_changed(&mut watcher).await;
    }

    #[tokio::test]
    async fn files_that_the_file_names_count_too() {
        let folder = Folder::new();
        let path = folder.write("rialto.toml", "one");
        let document = folder.write("documents/api.json", "{}");
        let mut watcher = deaf(&path);
        watcher.follow(vec![document.clone()]);
        assert!(!watcher.look().await, "that it is followed is no change");
        fs::write(&document, "{ }").unwrap();
        file_changed(&mut watcher).await;
        watcher.follow(Vec::new());
        fs::write(&document, "{  }").unwrap();
        assert!(!watcher.look().await, "and no longer");
    }

    #[tokio::test]
    async fn waiting_may_be_given_up_and_begun_again() {
        let folder = Folder::new();
        let path = folder.write("rialto.toml", "one");
        let mut watcher = deaf(&path);
        folder.write("rialto.toml", "two");
        let begun = Instant::now();
        loop {
            // Given up long before things have settled, over and over.
            match tokio::time::timeout(Duration::from_millis(5), watcher.changed()).await {
                Ok(Trigger::File) => break,
                _ => assert!(begun.elapsed() < PATIENCE, "the change is noticed"),
            }
        }
    }

    #[tokio::test]
    async fn a_signal_always_counts() {
        let folder = Folder::new();
        let mut watcher = Watcher::new(folder.write("rialto.toml", "one"));
        rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::HUP).unwrap();
        let trigger = tokio::time::timeout(PATIENCE, watcher.changed()).await.unwrap();
        assert_eq!(trigger, Trigger::Signal);
    }

    #[tokio::test]
    async fn without_help_of_the_system_the_file_is_looked_at() {
        let folder = Folder::new();
        let path = folder.write("rialto.toml", "one");
        let mut watcher = deaf(&path);
        watcher.system = None;
        watcher.ticks = ticks(Duration::from_millis(10));
        folder.write("rialto.toml", "two");
        file_changed(&mut watcher).await;
    }
}
