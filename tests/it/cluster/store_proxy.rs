//! TCP proxy between a node and its store. It can partition them, and act on single commands and mailbox messages.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::time::Instant;

use super::resp::{StoreCommand, take_reply};

/// Running proxy.
pub struct StoreProxy {
    pub address: SocketAddr,
    state: Arc<watch::Sender<StoreProxyState>>,
    held: Arc<AtomicU64>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum StoreProxyState {
    Forwarding,
    /// Connections are closed immediately.
    Closed,
    /// Connections stay open and no bytes are forwarded.
    Silent,
}

/// What happens to a command. A command that sends several mailbox messages is asked about once for each, as if it sent
/// only that one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StoreFault {
    /// Forwarded as it is.
    None,
    /// Not forwarded, and reported to the node as done.
    Lose,
    /// Carried out twice, and reported once.
    Repeat,
    /// This and all that follows on its connection is forwarded later.
    Delay(Duration),
    /// This and all that follows on its connection is not forwarded while the rule says so.
    Hold,
    /// The connection breaks before the command reaches the store.
    BreakBefore,
    /// The connection breaks after the store has carried it out and before the node knows.
    BreakAfter,
}

/// Decides what happens to each command and reply.
pub trait StoreRule: Send + Sync {
    fn fault(&self, command: &StoreCommand) -> StoreFault;

    /// Whether a reply, and all that follow on its connection, have to wait.
    fn holds_reply(&self, _command: &StoreCommand, _reply: &Bytes) -> bool {
        false
    }
}

impl<F: Fn(&StoreCommand) -> StoreFault + Send + Sync> StoreRule for F {
    fn fault(&self, command: &StoreCommand) -> StoreFault {
        self(command)
    }
}

/// How often a held command is offered to the rule again.
const HOLD_POLL: Duration = Duration::from_millis(10);

// === impl StoreProxy ===

impl StoreProxy {
    pub async fn to(port: u16) -> Self {
        Self::with_rule(port, |_: &StoreCommand| StoreFault::None).await
    }

    pub async fn with_rule(port: u16, rule: impl StoreRule + 'static) -> Self {
        let rule: Arc<dyn StoreRule> = Arc::new(rule);
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let state = Arc::new(watch::Sender::new(StoreProxyState::Forwarding));
        let held = Arc::new(AtomicU64::new(0));
        let (shared, shared_held) = (Arc::clone(&state), Arc::clone(&held));
        tokio::spawn(async move {
            for number in 0.. {
                let Ok((client, _)) = listener.accept().await else { return };
                let (rule, held) = (Arc::clone(&rule), Arc::clone(&shared_held));
                tokio::spawn(pass(client, port, ProxiedConnection::new(number, rule, held), shared.subscribe()));
            }
        });
        Self { address, state, held }
    }

    /// URL for a node.
    pub fn url(&self) -> String {
        format!("redis://{}", self.address)
    }

    /// Partitions node and store, silently or by closing connections.
    pub fn cut(&self, silent: bool) {
        self.state.send_replace(if silent { StoreProxyState::Silent } else { StoreProxyState::Closed });
    }

    /// Ends the partition.
    pub fn mend(&self) {
        self.state.send_replace(StoreProxyState::Forwarding);
    }

    /// Number of commands and replies that were held so far.
    pub fn held(&self) -> u64 {
        self.held.load(Ordering::SeqCst)
    }
}

async fn pass(
    client: TcpStream,
    port: u16,
    connection: ProxiedConnection,
    mut state: watch::Receiver<StoreProxyState>,
) {
    let mut client = Some(client);
    let now = *state.borrow_and_update();
    if now == StoreProxyState::Forwarding
        && let Ok(store) = TcpStream::connect(("127.0.0.1", port)).await
    {
        tokio::select! {
            () = connection.forward(client.as_mut().unwrap(), store) => return,
            _ = state.changed() => {}
        }
    }
    // A connection that was silent stays dead: bytes were lost on it.
    if *state.borrow_and_update() == StoreProxyState::Silent {
        let _ = state.changed().await;
    }
}

/// What the node is sent for a command, in the order of the commands.
enum Reply {
    FromStore(StoreCommand),
    /// The reply to a repetition.
    Discarded,
    /// The reply to a command that the store did not get.
    Made,
    /// The connection breaks instead.
    Break,
}

/// One connection of a node.
struct ProxiedConnection {
    number: u64,
    rule: Arc<dyn StoreRule>,
    held: Arc<AtomicU64>,
    replies: VecDeque<Reply>,
    held_reply: Option<Bytes>,
}

/// A connection that was broken on purpose or by one of its ends.
struct Broken;

impl ProxiedConnection {
    fn new(number: u64, rule: Arc<dyn StoreRule>, held: Arc<AtomicU64>) -> Self {
        Self { number, rule, held, replies: VecDeque::new(), held_reply: None }
    }

    async fn forward(mut self, client: &mut TcpStream, store: TcpStream) {
        let (mut from_client, mut to_client) = client.split();
        let (mut from_store, mut to_store) = store.into_split();
        let (mut commands, mut answers) = (BytesMut::new(), BytesMut::new());
        // The command that waits, and until when.
        let mut waiting: Option<(StoreCommand, Instant)> = None;
        loop {
            if let Some((command, _)) = waiting.take_if(|(_, until)| *until <= Instant::now()) {
                waiting = match self.send(command, &mut to_store, true).await {
                    Ok(waiting) => waiting,
                    Err(Broken) => return,
                };
            }
            while waiting.is_none()
                && let Some(command) = StoreCommand::take(self.number, &mut commands)
            {
                waiting = match self.send(command, &mut to_store, false).await {
                    Ok(waiting) => waiting,
                    Err(Broken) => return,
                };
            }
            if self.answer(&mut answers, &mut to_client).await.is_err() {
                return;
            }
            let wake = match &waiting {
                _ if self.held_reply.is_some() => Instant::now() + HOLD_POLL,
                Some((_, until)) => *until,
                None => Instant::now() + Duration::from_secs(3600),
            };
            tokio::select! {
                read = from_client.read_buf(&mut commands) => if !matches!(read, Ok(1..)) { return },
                read = read_some(&mut from_store, &mut answers) => if read.is_err() { return },
                () = tokio::time::sleep_until(wake) => {}
            }
        }
    }

    /// Sends a command as the rule says; returns it when it has to wait.
    async fn send(
        &mut self,
        command: StoreCommand,
        store: &mut OwnedWriteHalf,
        has_waited: bool,
    ) -> Result<Option<(StoreCommand, Instant)>, Broken> {
        let mut copy = command.clone();
        let mut faults = Vec::new();
        match command.first_message() {
            None => faults.push(self.rule.fault(&command)),
            Some(first) => {
                copy.arguments.truncate(first);
                for message in &command.arguments[first..] {
                    let mut alone = StoreCommand { arguments: command.arguments[..first].to_vec(), ..command };
                    alone.arguments.push(message.clone());
                    let fault = self.rule.fault(&alone);
                    let times = match fault {
                        StoreFault::Lose => 0,
                        StoreFault::Repeat => 2,
                        _ => 1,
                    };
                    copy.arguments.extend(std::iter::repeat_n(message.clone(), times));
                    faults.push(fault);
                }
            }
        }
        for fault in &faults {
            match fault {
                StoreFault::Delay(time) if !has_waited => return Ok(Some((command, Instant::now() + *time))),
                StoreFault::Hold => {
                    self.held.fetch_add(u64::from(!has_waited), Ordering::SeqCst);
                    return Ok(Some((command, Instant::now() + HOLD_POLL)));
                }
                StoreFault::BreakBefore => return Err(Broken),
                _ => {}
            }
        }
        let sends = command.first_message().is_some();
        let is_lost = if sends { copy.messages().is_empty() } else { faults.contains(&StoreFault::Lose) };
        if is_lost {
            self.replies.push_back(Reply::Made);
            return Ok(None);
        }
        self.write(&copy.encode(), store).await?;
        let breaks = faults.contains(&StoreFault::BreakAfter);
        self.replies.push_back(if breaks { Reply::Break } else { Reply::FromStore(command) });
        if !sends && faults.contains(&StoreFault::Repeat) {
            self.write(&copy.encode(), store).await?;
            self.replies.push_back(Reply::Discarded);
        }
        Ok(None)
    }

    async fn write(&self, frame: &Bytes, store: &mut OwnedWriteHalf) -> Result<(), Broken> {
        store.write_all(frame).await.map_err(|_| Broken)
    }

    /// Sends the node the replies that are there, in order.
    async fn answer(
        &mut self,
        answers: &mut BytesMut,
        client: &mut tokio::net::tcp::WriteHalf<'_>,
    ) -> Result<(), Broken> {
        loop {
            let reply = match self.replies.front() {
                Some(Reply::Made) => Some(Bytes::from_static(b":1\r\n")),
                Some(expected) => {
                    let was_held = self.held_reply.is_some();
                    let Some(reply) = self.held_reply.take().or_else(|| take_reply(answers)) else { return Ok(()) };
                    match expected {
                        Reply::FromStore(command) if self.rule.holds_reply(command, &reply) => {
                            self.held.fetch_add(u64::from(!was_held), Ordering::SeqCst);
                            self.held_reply = Some(reply);
                            return Ok(());
                        }
                        Reply::Discarded => None,
                        Reply::Break => return Err(Broken),
                        Reply::FromStore(_) | Reply::Made => Some(reply),
                    }
                }
                None => return Ok(()),
            };
            self.replies.pop_front();
            if let Some(reply) = reply {
                client.write_all(&reply).await.map_err(|_| Broken)?;
            }
        }
    }
}

async fn read_some(store: &mut OwnedReadHalf, answers: &mut BytesMut) -> Result<(), Broken> {
    match store.read_buf(answers).await {
        Ok(1..) => Ok(()),
        _ => Err(Broken),
    }
}
