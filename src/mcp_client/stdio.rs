//! Stdio transport: a child process that exchanges newline-delimited JSON.

use std::sync::Arc;

use tokio::io::{AsyncWriteExt, BufReader};
use tokio::process::{ChildStdin, ChildStdout};
use tokio::sync::{mpsc, oneshot};

use parking_lot::Mutex;

use super::Unsolicited;
use super::batch::MessageParser;
use super::child::ChildProcess;
use super::duplex::{Duplex, OutgoingMessages};
use super::target::{Command, ConnectionSettings};
use crate::error::Result;
use crate::failure::{Failure, FailureKind};
use crate::ndjson::{LineReader, TextLine};

/// A child process and the JSON-RPC connection to it.
#[derive(Debug)]
pub(super) struct StdioClient {
    pub(super) duplex: Arc<Duplex>,
    /// The process id of the child.
    pub(super) process: Option<u32>,
    /// Asks the child task to stop the child; the inner sender is signalled when it has exited.
    stop: Mutex<Option<oneshot::Sender<oneshot::Sender<()>>>>,
}

impl StdioClient {
    /// Starts the child and the tasks that read, write and watch it.
    pub(super) fn start(
        command: &Command,
        settings: &ConnectionSettings,
        unsolicited: mpsc::Sender<Unsolicited>,
    ) -> Result<Self> {
        let (process, stdin, stdout) = ChildProcess::start(command)?;
        let id = process.id();
        let parser = MessageParser::new(settings.json_depth, command.program.clone());
        let (duplex, messages) = Duplex::new(parser, unsolicited);
        let duplex = Arc::new(duplex.asking_newest_call(settings.asks_newest_call));
        let (stop, stopped) = oneshot::channel();
        let writer = tokio::spawn(write_messages(stdin, messages));
        let reader = read_messages(Arc::clone(&duplex), stdout, settings.message_bytes);
        let task = ChildTask { process, duplex: Arc::clone(&duplex), writer, program: command.program.clone() };
        tokio::spawn(task.run(reader, stopped, settings.stop_timeout));
        Ok(Self { duplex, process: id, stop: Mutex::new(Some(stop)) })
    }

    /// Stops the child and waits for its exit.
    pub(super) async fn close(&self) {
        let (done, ended) = oneshot::channel();
        let stop = self.stop.lock().take();
        let requested = stop.is_some_and(|stop| stop.send(done).is_ok());
        if requested {
            let _ = ended.await;
        }
    }
}

/// Watches one child until it exits or is stopped.
struct ChildTask {
    process: ChildProcess,
    duplex: Arc<Duplex>,
    writer: tokio::task::JoinHandle<()>,
    program: String,
}

impl ChildTask {
    async fn run(
        self,
        reader: impl Future<Output = ()>,
        stopped: oneshot::Receiver<oneshot::Sender<()>>,
        stop_timeout: std::time::Duration,
    ) {
        let Self { mut process, duplex, mut writer, program } = self;
        let done = tokio::select! {
            () = reader => None,
            // A child that closed its stdin will not respond any more.
            _ = &mut writer => None,
            // A dropped `StdioClient` stops the child as well.
            done = stopped => Some(done.ok()),
        };
        match done {
            Some(done) => {
                duplex.close(Failure::new(FailureKind::Broken, "the connection was closed"));
                writer.abort(); // closes the child's stdin
                process.stop(stop_timeout).await;
                if let Some(done) = done {
                    let _ = done.send(());
                }
            }
            None => {
                // Its stdout ended: it exits soon, or it cannot be talked to any more.
                let status =
                    tokio::time::timeout(stop_timeout + stop_timeout, process.wait_for_exit()).await.ok().flatten();
                let (kind, how) = match status {
                    Some(status) => (FailureKind::ChildExited, format!("exited ({status})")),
                    None => (FailureKind::Broken, "closed its stdout".to_owned()),
                };
                let stderr = process.stderr_tail().summary();
                duplex.close(Failure::new(kind, format!("child {program:?} {how}{stderr}")));
                writer.abort();
                process.stop(stop_timeout).await;
            }
        }
    }
}

async fn write_messages(mut stdin: ChildStdin, mut messages: OutgoingMessages) {
    while let Some(message) = messages.next().await {
        let line = crate::ndjson::to_single_line(message);
        let written = async {
            stdin.write_all(&line).await?;
            stdin.write_all(b"\n").await?;
            stdin.flush().await
        };
        if let Err(error) = written.await {
            // The reader sees the end of stdout and closes the connection with the reason.
            tracing::debug!(%error, "writing to the child's stdin failed");
            return;
        }
    }
}

async fn read_messages(duplex: Arc<Duplex>, stdout: ChildStdout, max_line_bytes: usize) {
    let mut lines = LineReader::new(BufReader::new(stdout), max_line_bytes);
    while let Ok(Some(line)) = lines.next().await {
        match line {
            TextLine::Text(text) => {
                for message in duplex.parser.messages_or_log(&text, "stdout") {
                    duplex.dispatch(message, &text).await;
                }
            }
            TextLine::TooLong(id) => {
                if duplex.parser.log.admits(0) {
                    tracing::warn!(max_line_bytes, "child wrote a line over the limit; line skipped");
                }
                let message = format!("the server wrote a message of more than {max_line_bytes} bytes");
                duplex.fail_skipped(id, &Failure::new(FailureKind::TooLarge(max_line_bytes), message));
            }
        }
    }
}
