//! An upstream that is a child process.

use std::sync::{Arc, Mutex, PoisonError};

use bytes::Bytes;
use tokio::io::{AsyncWriteExt, BufReader};
use tokio::process::{ChildStdin, ChildStdout};
use tokio::sync::{mpsc, oneshot};

use super::Unsolicited;
use super::batch::messages;
use super::child::Process;
use super::duplex::{Duplex, MESSAGES_WAITING};
use super::target::{Command, ConnectionSettings};
use crate::error::{Error, ErrorKind, Result};
use crate::ndjson::{Lines, TextLine};

/// A child and the connection to it.
#[derive(Debug)]
pub(super) struct StdioClient {
    pub(super) duplex: Arc<Duplex>,
    stop: Mutex<Option<oneshot::Sender<oneshot::Sender<()>>>>,
}

impl StdioClient {
    /// Starts the child.
    pub(super) fn start(
        command: &Command,
        settings: &ConnectionSettings,
        unsolicited: mpsc::Sender<Unsolicited>,
    ) -> Result<Self> {
        let (process, input, output) = Process::start(command)?;
        let (outgoing, messages) = mpsc::channel(MESSAGES_WAITING);
        let duplex = Arc::new(Duplex::new(outgoing, unsolicited));
        let (stop, stopped) = oneshot::channel();
        let writer = tokio::spawn(write(input, messages));
        let reader = read(Arc::clone(&duplex), output, settings.message_bytes);
        let keeper = Keeper { process, duplex: Arc::clone(&duplex), writer, program: command.program.clone() };
        tokio::spawn(keeper.run(reader, stopped, settings.stop_timeout));
        Ok(Self { duplex, stop: Mutex::new(Some(stop)) })
    }

    /// Ends the child, step by step, and waits for it.
    pub(super) async fn close(&self) {
        let (done, ended) = oneshot::channel();
        let stop = self.stop.lock().unwrap_or_else(PoisonError::into_inner).take();
        let told = stop.is_some_and(|stop| stop.send(done).is_ok());
        if told {
            let _ = ended.await;
        }
    }
}

/// Looks after one child until it ends.
struct Keeper {
    process: Process,
    duplex: Arc<Duplex>,
    writer: tokio::task::JoinHandle<()>,
    program: String,
}

impl Keeper {
    async fn run(
        self,
        reader: impl Future<Output = ()>,
        stopped: oneshot::Receiver<oneshot::Sender<()>>,
        grace: std::time::Duration,
    ) {
        let Self { mut process, duplex, mut writer, program } = self;
        let done = tokio::select! {
            () = reader => None,
            // What it does not read it will not answer.
            _ = &mut writer => None,
            // A dropped handle asks for the end as well.
            done = stopped => Some(done.ok()),
        };
        match done {
            Some(done) => {
                duplex.close(Error::new(ErrorKind::Broken, "the connection was closed"));
                writer.abort(); // closes the child's input
                process.stop(grace).await;
                if let Some(done) = done {
                    let _ = done.send(());
                }
            }
            None => {
                // Its output ended: it exits now, or it cannot be talked to any more.
                let status = tokio::time::timeout(grace + grace, process.ended()).await.ok().flatten();
                let how = status.map_or_else(|| "closed its output".to_owned(), |status| format!("ended ({status})"));
                let words = process.last_words().explained();
                duplex.close(Error::new(ErrorKind::Broken, format!("the command {program:?} {how}{words}")));
                writer.abort();
                process.stop(grace).await;
            }
        }
    }
}

async fn write(mut input: ChildStdin, mut messages: mpsc::Receiver<Bytes>) {
    while let Some(message) = messages.recv().await {
        let line = crate::ndjson::one_line(message);
        let written = async {
            input.write_all(&line).await?;
            input.write_all(b"\n").await?;
            input.flush().await
        };
        if let Err(error) = written.await {
            // The reader sees the end of the child and tells everybody why.
            tracing::debug!(%error, "the child does not read any more");
            return;
        }
    }
}

async fn read(duplex: Arc<Duplex>, output: ChildStdout, limit: usize) {
    let mut lines = Lines::new(BufReader::new(output), limit);
    while let Ok(Some(line)) = lines.next().await {
        match line {
            TextLine::Text(text) => take(&duplex, &text),
            TextLine::TooLong => {
                tracing::warn!(limit, "the child wrote a line that is too long; it was skipped");
                let why = format!("the server wrote a message of more than {limit} bytes");
                duplex.fail_all(&Error::new(ErrorKind::Protocol, why));
            }
        }
    }
}

fn take(duplex: &Duplex, text: &Bytes) {
    match messages(text) {
        Ok(messages) => messages.into_iter().for_each(|message| duplex.take(message)),
        Err(invalid) => {
            let shown = String::from_utf8_lossy(&text[..text.len().min(200)]).into_owned();
            tracing::warn!(why = %invalid.why, line = %shown, "the child wrote something that is no message; it was skipped");
        }
    }
}
