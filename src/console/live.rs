//! The event stream of the console: one log of recent events, read by each stream at its own pace.

use std::collections::VecDeque;
use std::fmt;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use bytes::{Bytes, BytesMut};
use foldhash::HashMap;
use http::StatusCode;
use parking_lot::Mutex;
use serde::Serialize;
use serde_json::json;
use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, MissedTickBehavior};

use super::api::{AdminRequest, ApiAnswer, ApiError, ApiResult, ApiRoute, rfc3339};
use crate::inbound::ResponseContent;
use crate::policy::{Operator, OperatorRight};
use crate::recording::MASK;
use crate::redact::secrets_in;

/// What an event is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Topic {
    /// A recorded call began, went on or ended.
    Call,
    /// Something that was shown is no more.
    Gone,
    /// Figures of the gateway, each second.
    Figures,
    /// A server changed.
    Server,
    /// A server request was made or answered.
    Question,
    /// A session began, changed or ended.
    Session,
    /// A node of the cluster changed.
    Node,
    /// What needs attention changed.
    Attention,
    /// A configuration was applied or refused.
    Reload,
    /// A call that an operator tries went on; that operator alone is told.
    Try,
    /// Calls that are not shown; whoever asks for calls is told.
    Lost,
}

/// One event.
pub struct LiveEvent {
    /// Its number in the log.
    pub number: u64,
    /// What it is about.
    pub topic: Topic,
    /// Its content, as JSON.
    pub data: Bytes,
    /// Its content for those who may see bodies, where it is another.
    private_data: Option<Bytes>,
    /// The only operator who gets it, where it is not for all.
    recipient: Option<Operator>,
}

/// Whether a stream is to have an event.
pub type EventFilter = Box<dyn Fn(&LiveEvent) -> bool + Send + Sync>;

/// The events of the last while, and who reads them.
#[derive(Debug)]
pub struct LiveHub {
    /// Tells the ids of this start from those of another.
    epoch: u32,
    log: Mutex<LiveLog>,
    /// The number of the next event, for readers that wait.
    newest: watch::Sender<u64>,
    /// Streams that ask for each topic.
    viewers: [watch::Sender<usize>; Topic::ALL.len()],
    /// Open streams by operator.
    streams: Mutex<HashMap<Arc<str>, usize>>,
}

#[derive(Debug, Default)]
struct LiveLog {
    events: VecDeque<Arc<LiveEvent>>,
    bytes: usize,
    next: u64,
    /// Until when events of each topic are kept though nobody reads them: somebody may come back.
    kept_until: [Option<Instant>; Topic::ALL.len()],
    /// The number from which on each topic is complete.
    complete_from: [u64; Topic::ALL.len()],
}

/// One open stream; its place is free when this is dropped.
#[derive(Debug)]
struct StreamPlace {
    hub: Arc<LiveHub>,
    operator: Arc<str>,
    topics: Vec<Topic>,
}

/// What one stream reads.
struct StreamReading {
    position: u64,
    topics: Vec<Topic>,
    filter: Option<EventFilter>,
    operator: Operator,
}

/// Events are gathered for this long before they are sent.
const GATHER_TIME: Duration = Duration::from_millis(100);
/// Rows of calls that are sent at once; the oldest are told as lost.
const MAX_ROWS: usize = 200;
/// Bytes that a reader may be behind before it is sent on to the newest.
const MAX_BEHIND_BYTES: usize = 256 << 10;
/// Bytes of events that are kept for readers that come back.
const MAX_LOG_BYTES: usize = 1 << 20;
/// Bytes that each event counts for beside its content.
const EVENT_OVERHEAD: usize = 64;
/// How long events are kept for after the last reader has gone.
const KEPT_TIME: Duration = Duration::from_secs(30);
/// How often a stream without events says that it is alive.
const BEAT_INTERVAL: Duration = Duration::from_secs(10);
/// Open streams.
const MAX_STREAMS: usize = 16;
/// Open streams of one operator.
const MAX_OPERATOR_STREAMS: usize = 4;

pub(super) fn routes() -> Vec<ApiRoute> {
    vec![ApiRoute::get("live", OperatorRight::Look, |request| Box::pin(async move { open(&request) })).on_all_nodes()]
}

impl Topic {
    /// Every topic.
    pub const ALL: [Self; 11] = [
        Self::Call,
        Self::Gone,
        Self::Figures,
        Self::Server,
        Self::Question,
        Self::Session,
        Self::Node,
        Self::Attention,
        Self::Reload,
        Self::Try,
        Self::Lost,
    ];

    /// The name of its events.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Call => "call",
            Self::Gone => "gone",
            Self::Figures => "figures",
            Self::Server => "server",
            Self::Question => "question",
            Self::Session => "session",
            Self::Node => "node",
            Self::Attention => "attention",
            Self::Reload => "reload",
            Self::Try => "try",
            Self::Lost => "lost",
        }
    }

    fn parse(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|topic| topic.as_str() == word)
    }
}

impl fmt::Debug for LiveEvent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.number, self.topic.as_str())
    }
}

impl LiveHub {
    pub(super) fn new() -> Self {
        let mut epoch = [0; 4];
        // Ids are no secrets: should there be no random bytes, the time tells one start from another.
        if getrandom::fill(&mut epoch).is_err() {
            epoch = SystemTime::now().elapsed().unwrap_or_default().subsec_nanos().to_le_bytes();
        }
        Self {
            epoch: u32::from_le_bytes(epoch),
            log: Mutex::default(),
            newest: watch::Sender::new(0),
            viewers: std::array::from_fn(|_| watch::Sender::new(0)),
            streams: Mutex::default(),
        }
    }

    /// Whether events of a topic are to be published. Topics that nobody asks for need not be computed.
    pub fn is_watched(&self, topic: Topic) -> bool {
        *self.viewers[topic as usize].borrow() > 0
            || self.log.lock().kept_until[topic as usize].is_some_and(|until| until > Instant::now())
    }

    /// How many streams ask for a topic, as it changes.
    pub fn viewers(&self, topic: Topic) -> watch::Receiver<usize> {
        self.viewers[topic as usize].subscribe()
    }

    /// Publishes an event, if anybody asks for its topic.
    pub fn publish(&self, topic: Topic, content: &impl Serialize) {
        if self.is_watched(topic) {
            self.push(LiveEvent::new(topic, encode(content)));
        }
    }

    /// Publishes an event for the streams of one operator.
    pub fn publish_to(&self, recipient: &Operator, topic: Topic, content: &impl Serialize) {
        if self.is_watched(topic) {
            let recipient = Some(recipient.clone());
            self.push(LiveEvent { recipient, ..LiveEvent::new(topic, encode(content)) });
        }
    }

    /// Publishes an event with the content of messages, which only those get who may see it.
    pub fn publish_private(&self, topic: Topic, public: &impl Serialize, private: &impl Serialize) {
        if self.is_watched(topic) {
            let private_data = Some(encode(private));
            self.push(LiveEvent { private_data, ..LiveEvent::new(topic, encode(public)) });
        }
    }

    fn push(&self, event: LiveEvent) {
        let next = self.log.lock().push(event);
        self.newest.send_replace(next);
    }

    /// The id of the last event before this number.
    fn id(&self, next: u64) -> String {
        format!("{:08x}-{next}", self.epoch)
    }

    /// Where a reader goes on that was given this id; `None` for one of another start.
    fn position(&self, id: &str) -> Option<u64> {
        let (epoch, number) = id.split_once('-')?;
        (u32::from_str_radix(epoch, 16).ok()? == self.epoch).then(|| number.parse().ok()).flatten()
    }

    fn take_place(self: &Arc<Self>, operator: &Arc<str>, topics: &[Topic]) -> Result<StreamPlace, ApiError> {
        let mut streams = self.streams.lock();
        let own = streams.get(operator).copied().unwrap_or_default();
        let refused = |message: String| {
            let error = ApiError::new(StatusCode::TOO_MANY_REQUESTS, "too_many_streams", message);
            ApiError { retry_after: Some(BEAT_INTERVAL), ..error }.hint("close another page of the console")
        };
        if own >= MAX_OPERATOR_STREAMS {
            return Err(refused(format!("{operator} has {own} streams open, which is the most for one operator")));
        }
        let all: usize = streams.values().sum();
        if all >= MAX_STREAMS {
            return Err(refused(format!("{all} streams are open, which is the most")));
        }
        streams.insert(Arc::clone(operator), own + 1);
        drop(streams);
        for topic in topics {
            self.log.lock().begin_topic(*topic, *self.viewers[*topic as usize].borrow() > 0);
            self.viewers[*topic as usize].send_modify(|viewers| *viewers += 1);
        }
        Ok(StreamPlace { hub: Arc::clone(self), operator: Arc::clone(operator), topics: topics.to_vec() })
    }
}

/// The content of an event, without secrets of the configuration.
fn encode(content: &impl Serialize) -> Bytes {
    let data = serde_json::to_string(content).unwrap_or_default();
    Bytes::from(secrets_in(&data, MASK).into_owned())
}

impl LiveEvent {
    fn new(topic: Topic, data: Bytes) -> Self {
        Self { number: 0, topic, data, private_data: None, recipient: None }
    }

    /// Bytes that it counts for.
    fn size(&self) -> usize {
        self.data.len() + self.private_data.as_ref().map_or(0, Bytes::len) + EVENT_OVERHEAD
    }
}

impl LiveLog {
    fn push(&mut self, event: LiveEvent) -> u64 {
        self.bytes += event.size();
        self.events.push_back(Arc::new(LiveEvent { number: self.next, ..event }));
        self.next += 1;
        while self.bytes > MAX_LOG_BYTES
            && let Some(oldest) = self.events.pop_front()
        {
            self.bytes -= oldest.size();
        }
        self.next
    }

    /// Notes that events of a topic are published from now on, unless they were all the time.
    fn begin_topic(&mut self, topic: Topic, is_viewed: bool) {
        let kept_until = &mut self.kept_until[topic as usize];
        if !is_viewed && kept_until.take().is_none_or(|until| until <= Instant::now()) {
            self.complete_from[topic as usize] = self.next;
        }
    }
}

impl Drop for StreamPlace {
    fn drop(&mut self) {
        let mut streams = self.hub.streams.lock();
        if let Some(open) = streams.get_mut(&self.operator) {
            *open -= 1;
            if *open == 0 {
                streams.remove(&self.operator);
            }
        }
        drop(streams);
        for topic in &self.topics {
            self.hub.log.lock().kept_until[*topic as usize] = Some(Instant::now() + KEPT_TIME);
            self.hub.viewers[*topic as usize].send_modify(|viewers| *viewers -= 1);
        }
    }
}

/// Opens a stream.
fn open(request: &AdminRequest) -> ApiResult {
    let console = &request.console;
    let topics = asked_topics(request)?;
    let filter = match request.query("q") {
        Some(query) => Some(console.event_filter(query, request.operator.may >= OperatorRight::Bodies)?),
        None => None,
    };
    let hub = console.live();
    let given = request.headers.get_text("last-event-id");
    let resumed = given.as_deref().map(|id| hub.position(id));
    let place = hub.take_place(&request.operator.name, &topics)?;
    tracing::info!(operator = %request.operator.name, topics = ?topics, "console attached");
    let (sender, receiver) = mpsc::channel(1);
    let position = resumed.flatten().unwrap_or_else(|| hub.log.lock().next);
    let reading = StreamReading { position, topics, filter, operator: request.operator.clone() };
    let lost = match resumed {
        Some(None) => Some("the gateway was started again"),
        Some(Some(position)) => hub.missed_while_away(&reading.topics, position),
        None => None,
    };
    let stream = run(Arc::clone(hub), reading, lost, sender, place);
    let closing = console.closing();
    tokio::spawn(async move {
        tokio::select! {
            () = stream => {}
            () = closing.cancelled() => {}
        }
    });
    let answer = ApiAnswer {
        status: StatusCode::OK,
        media_type: "text/event-stream",
        headers: vec![("x-accel-buffering", "no".to_owned())],
        body: ResponseContent::Parts(receiver),
    };
    Ok(answer)
}

fn asked_topics(request: &AdminRequest) -> Result<Vec<Topic>, ApiError> {
    let known = || Topic::ALL.map(Topic::as_str).join(", ");
    let words = request.query("topics").ok_or_else(|| {
        ApiError::invalid("topics is missing").hint(format!("any of these, separated by commas: {}", known()))
    })?;
    let mut topics = Vec::new();
    for word in words.split(',') {
        let topic = Topic::parse(word.trim())
            .ok_or_else(|| ApiError::invalid(format!("{word:?} is no topic")).hint(format!("topics: {}", known())))?;
        if !topics.contains(&topic) {
            topics.push(topic);
        }
    }
    // What is no more concerns whoever was shown it.
    if !topics.contains(&Topic::Gone) {
        topics.push(Topic::Gone);
    }
    if topics.contains(&Topic::Call) && !topics.contains(&Topic::Lost) {
        topics.push(Topic::Lost);
    }
    Ok(topics)
}

impl LiveHub {
    /// Why a reader that comes back may have missed events that were never published.
    fn missed_while_away(&self, topics: &[Topic], position: u64) -> Option<&'static str> {
        let log = self.log.lock();
        let is_incomplete = topics.iter().any(|topic| log.complete_from[*topic as usize] > position);
        is_incomplete.then_some("nobody was watching for a while")
    }

    /// The frames of what is new for a reader.
    fn read(&self, reading: &mut StreamReading) -> Bytes {
        let (events, gone, next) = {
            let log = self.log.lock();
            let first = log.events.front().map_or(log.next, |event| event.number);
            let gone = first.saturating_sub(reading.position);
            let skipped = usize::try_from(reading.position.saturating_sub(first)).unwrap_or(usize::MAX);
            let events: Vec<Arc<LiveEvent>> = log.events.iter().skip(skipped).cloned().collect();
            (events, gone, log.next)
        };
        reading.position = next;
        let is_wanted = |event: &&Arc<LiveEvent>| {
            reading.topics.contains(&event.topic)
                && event.recipient.as_ref().is_none_or(|recipient| recipient.is(&reading.operator))
                && reading.filter.as_ref().is_none_or(|filter| filter(event))
        };
        let wanted: Vec<&Arc<LiveEvent>> = events.iter().filter(is_wanted).collect();
        let may_see_bodies = reading.operator.may >= OperatorRight::Bodies;
        let mut out = BytesMut::new();
        if gone > 0 {
            push_lost(&mut out, gone, "no longer kept");
        }
        let newest = newest_within(&wanted);
        if newest > 0 {
            push_lost(&mut out, newest as u64, "more than this stream can take");
        }
        for event in &wanted[newest..] {
            let data = event.private_data.as_ref().filter(|_| may_see_bodies).unwrap_or(&event.data);
            push_event(&mut out, event.topic.as_str(), &self.id(event.number + 1), data);
        }
        out.freeze()
    }
}

/// The index of the first event from which on all can be sent.
fn newest_within(events: &[&Arc<LiveEvent>]) -> usize {
    let (mut bytes, mut rows) = (0, 0);
    for (index, event) in events.iter().enumerate().rev() {
        bytes += event.data.len() + EVENT_OVERHEAD;
        rows += usize::from(event.topic == Topic::Call);
        if bytes > MAX_BEHIND_BYTES || rows > MAX_ROWS {
            return index + 1;
        }
    }
    0
}

fn push_event(out: &mut BytesMut, name: &str, id: &str, data: &[u8]) {
    for part in [b"event: ", name.as_bytes(), b"\nid: ", id.as_bytes(), b"\ndata: ", data, b"\n\n"] {
        out.extend_from_slice(part);
    }
}

fn push_lost(out: &mut BytesMut, count: u64, why: &str) {
    out.extend_from_slice(format!("event: lost\ndata: {}\n\n", json!({ "count": count, "why": why })).as_bytes());
}

/// Sends what is new until the reader has gone.
async fn run(
    hub: Arc<LiveHub>,
    mut reading: StreamReading,
    lost: Option<&'static str>,
    sender: mpsc::Sender<Bytes>,
    _place: StreamPlace,
) {
    let mut newest = hub.newest.subscribe();
    let mut beat = tokio::time::interval(BEAT_INTERVAL);
    beat.set_missed_tick_behavior(MissedTickBehavior::Delay);
    if let Some(why) = lost {
        let event = format!("event: lost\ndata: {}\n\n", json!({ "count": null, "why": why }));
        if sender.send(event.into()).await.is_err() {
            return;
        }
    }
    loop {
        let frames = hub.read(&mut reading);
        if !frames.is_empty() && sender.send(frames).await.is_err() {
            return;
        }
        tokio::select! {
            changed = newest.changed() => match changed {
                Ok(()) => tokio::time::sleep(GATHER_TIME).await,
                Err(_) => return,
            },
            _ = beat.tick() => {
                let mut out = BytesMut::new();
                let data = json!({ "at": rfc3339(SystemTime::now()) }).to_string();
                push_event(&mut out, "beat", &hub.id(reading.position), data.as_bytes());
                if sender.send(out.freeze()).await.is_err() {
                    return;
                }
            }
            () = sender.closed() => return,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reading(position: u64) -> StreamReading {
        StreamReading { position, topics: vec![Topic::Call, Topic::Gone], filter: None, operator: operator(None) }
    }

    fn operator(principal: Option<&str>) -> Operator {
        Operator { name: "ann".into(), may: OperatorRight::Look, principal: principal.map(Into::into) }
    }

    fn text(hub: &LiveHub, reading: &mut StreamReading) -> String {
        String::from_utf8(hub.read(reading).to_vec()).unwrap()
    }

    #[tokio::test]
    async fn a_reader_gets_its_topics_and_goes_on_where_it_was() {
        let hub = Arc::new(LiveHub::new());
        hub.publish(Topic::Call, &json!({"id": "before"}));
        let place = hub.take_place(&"ann".into(), &[Topic::Call]).unwrap();
        let mut from_start = reading(0);
        assert_eq!(text(&hub, &mut from_start), "", "what nobody watched was not published");
        hub.publish(Topic::Call, &json!({"id": "a"}));
        hub.publish(Topic::Server, &json!({"id": "unwatched"}));
        hub.publish(Topic::Call, &json!({"id": "b"}));
        let all = text(&hub, &mut from_start);
        assert!(all.contains("\"a\"") && all.contains("\"b\"") && !all.contains("unwatched"), "{all}");
        assert_eq!(text(&hub, &mut from_start), "");
        let first_id = all.lines().find_map(|line| line.strip_prefix("id: ")).unwrap();
        let mut resumed = reading(hub.position(first_id).unwrap());
        let rest = text(&hub, &mut resumed);
        assert!(!rest.contains("\"a\"") && rest.contains("\"b\""), "{rest}");
        assert_eq!(hub.position("0-1"), None, "another start");
        assert_eq!(hub.missed_while_away(&[Topic::Call], 0), None);
        drop(place);
        assert!(hub.is_watched(Topic::Call) && !hub.is_watched(Topic::Server), "somebody may come back");
    }

    #[tokio::test]
    async fn what_is_for_one_operator_is_read_by_no_other() {
        let hub = Arc::new(LiveHub::new());
        let _place = hub.take_place(&"ann".into(), &[Topic::Call]).unwrap();
        hub.publish_to(&operator(Some("issuer|1")), Topic::Call, &json!({"id": "own"}));
        for (principal, gets) in [(Some("issuer|1"), true), (Some("issuer|2"), false), (None, false)] {
            let mut of_one = StreamReading { operator: operator(principal), ..reading(0) };
            assert_eq!(text(&hub, &mut of_one).contains("own"), gets, "{principal:?}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn what_was_not_published_is_told() {
        let hub = Arc::new(LiveHub::new());
        drop(hub.take_place(&"ann".into(), &[Topic::Call]).unwrap());
        tokio::time::advance(KEPT_TIME + GATHER_TIME).await;
        assert!(!hub.is_watched(Topic::Call));
        let _other = hub.take_place(&"ann".into(), &[Topic::Server]).unwrap();
        hub.publish(Topic::Server, &json!({}));
        let _again = hub.take_place(&"ann".into(), &[Topic::Call]).unwrap();
        assert!(hub.missed_while_away(&[Topic::Call], 0).is_some());
        assert_eq!(hub.missed_while_away(&[Topic::Call], 1), None);
    }

    #[tokio::test]
    async fn a_slow_reader_is_told_what_it_lost_and_memory_is_bounded() {
        let hub = Arc::new(LiveHub::new());
        let _place = hub.take_place(&"ann".into(), &[Topic::Call]).unwrap();
        let mut slow = reading(0);
        for number in 0..300 {
            hub.publish(Topic::Call, &json!({ "id": number }));
        }
        let rows = text(&hub, &mut slow);
        assert!(rows.starts_with("event: lost\ndata: {\"count\":100,"), "{}", &rows[..80]);
        assert_eq!(rows.matches("event: call").count(), MAX_ROWS);
        for number in 0..3000 {
            hub.publish(Topic::Call, &json!({ "id": number, "text": "x".repeat(1000) }));
        }
        assert!(hub.log.lock().bytes <= MAX_LOG_BYTES);
        let rows = text(&hub, &mut slow);
        assert!(rows.len() <= MAX_BEHIND_BYTES + 1000 && rows.matches("event: lost").count() == 2, "{}", rows.len());
    }

    #[tokio::test]
    async fn streams_are_limited_in_all_and_by_operator() {
        let hub = Arc::new(LiveHub::new());
        let mut places = Vec::new();
        for operator in ["a", "b", "c", "d"] {
            for _ in 0..MAX_OPERATOR_STREAMS {
                places.push(hub.take_place(&operator.into(), &[Topic::Call]).unwrap());
            }
        }
        for operator in ["a", "e"] {
            let error = hub.take_place(&operator.into(), &[Topic::Call]).unwrap_err();
            assert_eq!((error.status, error.code), (StatusCode::TOO_MANY_REQUESTS, "too_many_streams"));
        }
        places.clear();
        assert!(hub.take_place(&"a".into(), &[Topic::Call]).is_ok() && hub.streams.lock().is_empty());
    }
}
