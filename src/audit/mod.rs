//! The audit log: one line of JSON for each decision, written by a thread of its own, so that no call ever waits for a
//! disk or a reader.

mod arguments;
mod event;
mod output;

use std::fmt;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use arc_swap::ArcSwapOption;
use foldhash::HashMap;
use parking_lot::Mutex;
use sha2::{Digest, Sha256};
use tokio::time::Instant;

use crate::identity::CallerId;
use crate::line_log::{LineLog, LineLogOptions, PendingLines};
use crate::protocol::Raw;
pub use arguments::{ArgumentDetail, RedactedPointers};
pub use event::{AuditEvent, AuditKind, AuditOutcome, cut};
pub use output::AuditOutput;

/// What is written, and where.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct AuditSettings {
    /// Where the lines go.
    pub output: AuditOutput,
    /// What is written of the arguments of a call.
    pub arguments: ArgumentDetail,
    /// Members that are masked where all arguments are written.
    pub redact: RedactedPointers,
    /// Refuse calls that could not be recorded, instead of losing lines.
    pub lossless: bool,
    /// Record lists, too.
    pub lists: bool,
    /// Key of digests of arguments; random for this process without one.
    pub digest_key: Option<String>,
}

/// A handle to the audit log. Where it is off, recording costs one branch.
#[derive(Clone, Default)]
pub struct Audit(Arc<AuditState>);

#[derive(Default)]
struct AuditState {
    is_on: AtomicBool,
    log: ArcSwapOption<AuditLog>,
    /// Lines that could not be written since the start.
    lost: Arc<AtomicU64>,
}

/// An open audit log.
pub struct AuditLog {
    settings: AuditSettings,
    node: Arc<str>,
    digest_key: [u8; 32],
    lines: Arc<LineLog<PendingEvents>>,
    /// When each caller without a session was last recorded as admitted.
    admitted: Mutex<HashMap<(CallerId, Arc<str>), Instant>>,
}

/// Events that wait for the writer, which makes their lines.
#[derive(Default)]
struct PendingEvents(Vec<AuditEvent>);

/// Lines that wait for the writer. More are lost, or calls refused where none may be lost.
pub const QUEUE_CAPACITY: usize = 10_000;
/// Room for events that is kept once a crowd of them was written.
const RETAINED_EVENTS_MAX: usize = 256;
/// A caller without a session is recorded as admitted once in this time.
const ADMISSION_INTERVAL: Duration = Duration::from_secs(300);
/// Callers whose admission is remembered; beyond that all are forgotten and recorded again.
const MAX_REMEMBERED_CALLERS: usize = 10_000;

impl Audit {
    /// Opens the output of these settings in place of the one before, or reopens it. Lines that wait are written to the
    /// output they were meant for. `node` is the name of this node; empty without a cluster.
    ///
    /// # Errors
    /// When the output cannot be opened; the log goes on as before.
    pub fn configure(&self, settings: &AuditSettings, node: &Arc<str>) -> io::Result<()> {
        let before = self.0.log.load_full();
        if before.as_ref().is_some_and(|before| before.settings == *settings) {
            return Ok(());
        }
        let Some(target) = settings.output.open()? else {
            self.0.is_on.store(false, Ordering::Release);
            self.0.log.store(None);
            return Ok(());
        };
        let (output, name) = (settings.output.clone(), settings.output.to_string());
        let options = LineLogOptions {
            name: "audit",
            capacity: QUEUE_CAPACITY,
            lossless: settings.lossless,
            batch_delay: Duration::ZERO,
            lost: Arc::clone(&self.0.lost),
            loss_line,
            reopen: Box::new(move || output.reopen()),
            complain: Box::new(move |error| tracing::error!(%error, output = %name, "writing the audit log failed")),
        };
        let log = AuditLog {
            settings: settings.clone(),
            node: Arc::clone(node),
            digest_key: digest_key(settings)?,
            lines: LineLog::start(target, options)?,
            admitted: Mutex::default(),
        };
        self.0.log.store(Some(Arc::new(log)));
        self.0.is_on.store(true, Ordering::Release);
        Ok(())
    }

    /// The open log; `None` where it is off.
    #[inline]
    pub fn log(&self) -> Option<Arc<AuditLog>> {
        if !self.0.is_on.load(Ordering::Relaxed) {
            return None;
        }
        self.0.log.load_full()
    }

    /// Whether calls must be refused: none may be lost, and the writer cannot keep up or cannot write.
    #[inline]
    pub fn must_refuse(&self) -> bool {
        self.0.is_on.load(Ordering::Relaxed) && self.log().is_some_and(|log| log.must_refuse())
    }

    /// Opens the file again by its name, after a log rotation moved it away.
    pub fn reopen(&self) {
        if let Some(log) = self.log() {
            log.lines.reopen();
        }
    }

    /// Waits until the lines so far are written, at most `timeout`.
    pub async fn flush(&self, timeout: Duration) {
        let Some(log) = self.log() else { return };
        if tokio::time::timeout(timeout, log.lines.flush()).await.is_err() {
            tracing::warn!("the audit log does not take its last lines; they are lost");
        }
    }

    /// Lines that could not be written since the start.
    pub fn lost(&self) -> u64 {
        self.0.lost.load(Ordering::Relaxed)
    }

    /// Whether these settings are in use.
    pub fn has_settings(&self, settings: &AuditSettings) -> bool {
        match self.log() {
            Some(log) => log.settings == *settings,
            None => settings.output == AuditOutput::Off,
        }
    }
}

impl AuditLog {
    /// Records an event. Never blocks: without room it is counted as lost, unless none may be lost.
    pub fn record(&self, mut event: AuditEvent) {
        event.node = (!self.node.is_empty()).then(|| Arc::clone(&self.node));
        self.lines.push(|pending| pending.0.push(event));
    }

    /// Whether lists are recorded.
    pub fn records_lists(&self) -> bool {
        self.settings.lists
    }

    /// What is written of the arguments of a call.
    pub fn arguments(&self, arguments: Option<&Raw>) -> Option<Box<serde_json::value::RawValue>> {
        let arguments = arguments?;
        self.settings.arguments.describe(arguments, &self.settings.redact, &self.digest_key)
    }

    /// Whether the admission of a caller without a session is to be recorded: once in five minutes and group.
    pub fn is_new_admission(&self, caller: &CallerId, group: &Arc<str>) -> bool {
        let now = Instant::now();
        let mut admitted = self.admitted.lock();
        let key = (Arc::clone(caller), Arc::clone(group));
        if admitted.get(&key).is_some_and(|last| now.duration_since(*last) < ADMISSION_INTERVAL) {
            return false;
        }
        if admitted.len() >= MAX_REMEMBERED_CALLERS {
            admitted.clear();
        }
        admitted.insert(key, now);
        true
    }

    fn must_refuse(&self) -> bool {
        self.settings.lossless && self.lines.is_stuck()
    }
}

impl Drop for AuditLog {
    fn drop(&mut self) {
        self.lines.close();
    }
}

impl PendingLines for PendingEvents {
    fn move_into(&mut self, text: &mut String) {
        self.0.drain(..).for_each(|event| text.push_str(&event.line()));
        self.0.shrink_to(RETAINED_EVENTS_MAX);
    }
}

fn loss_line(lost: u64) -> String {
    let mut event = AuditEvent::new(AuditKind::Loss, AuditOutcome::Failed);
    event.lost = Some(lost);
    event.line()
}

/// A session as the audit log names it: it tells sessions apart and opens none. Its first eight digits are those of the log.
pub fn session_digest(key: u128) -> String {
    hex(&Sha256::digest(key.to_be_bytes())[..8])
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn digest_key(settings: &AuditSettings) -> io::Result<[u8; 32]> {
    match &settings.digest_key {
        Some(key) => Ok(Sha256::digest(key).into()),
        None => {
            let mut key = [0; 32];
            getrandom::fill(&mut key).map_err(|error| io::Error::other(error.to_string()))?;
            Ok(key)
        }
    }
}

impl fmt::Debug for Audit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.log().is_some() { "Audit(on)" } else { "Audit(off)" })
    }
}

/// Does not show the key.
impl fmt::Debug for AuditSettings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { output, arguments, redact, lossless, lists, digest_key } = self;
        let key = digest_key.as_ref().map(|_| "***");
        write!(f, "AuditSettings({output}, {arguments:?}, {redact:?}, {lossless}, {lists}, {key:?})")
    }
}
