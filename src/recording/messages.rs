//! The messages of a call, from its records: on both wires, paired with what became of them on the other one.

use bytes::{Bytes, BytesMut};

use super::store::{StoredCall, StoredRecord};
use crate::protocol::{Incoming, Message, Raw};
use crate::recorder::{NoteKind, Way, Wire, tail_of};

/// A message of a recorded call.
#[derive(Debug, Clone)]
pub struct RecordedMessage {
    /// When, by the clock of records.
    pub nanos: u64,
    /// Which request of the client it belongs to, from 1.
    pub round: usize,
    /// Which wire.
    pub wire: Wire,
    /// Which way.
    pub way: Way,
    /// What it is.
    pub form: MessageForm,
    /// The method of a request or a notification.
    pub method: String,
    /// The message on the other wire that it became, or was made of.
    pub with: Option<usize>,
    /// The HTTP head, where it has one.
    pub head: Option<RecordedHead>,
    /// Bytes that the message had.
    pub length: usize,
    /// What is kept of it.
    pub text: Bytes,
    /// How many bytes of the text are the last ones of the message, where it is cut.
    pub tail: usize,
}

/// What a message is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MessageForm {
    /// A request.
    Request,
    /// A response with a result.
    Response,
    /// A response that asks the client for input.
    InputRequired,
    /// A response with an error.
    Error,
    /// A notification.
    Notification,
    /// An HTTP status without a message.
    Status,
    /// Something else.
    Other,
}

/// The HTTP head of a message as it was noted. It is read where it is shown; rows of calls do without.
#[derive(Debug, Clone)]
pub struct RecordedHead {
    status: u16,
    text: Bytes,
}

/// The HTTP head of a message.
#[derive(Debug, Clone, Default)]
pub struct HttpPart {
    /// The verb and the path of a request.
    pub target: Option<(String, String)>,
    /// The status of a response.
    pub status: Option<u16>,
    /// The header fields.
    pub headers: Vec<(String, String)>,
}

/// Messages of one batch that are shown.
const MAX_BATCH: usize = 1000;

impl MessageForm {
    /// The form as a word.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Request => "request",
            Self::Response | Self::InputRequired | Self::Error => "response",
            Self::Notification => "notification",
            Self::Status => "status",
            Self::Other => "text",
        }
    }

    fn is_response(self) -> bool {
        matches!(self, Self::Response | Self::InputRequired | Self::Error)
    }

    /// The form and the method of a text.
    fn of(text: &Bytes) -> (Self, String) {
        match Message::parse(text) {
            Ok(Message::Request(request)) => (Self::Request, request.method.as_str().to_owned()),
            Ok(Message::Notification(notification)) => (Self::Notification, notification.method.as_str().to_owned()),
            Ok(Message::Response(response)) => match response.outcome {
                Ok(result) if result.get("resultType").is_some_and(|kind| kind.as_bytes() == b"\"input_required\"") => {
                    (Self::InputRequired, String::new())
                }
                Ok(_) => (Self::Response, String::new()),
                Err(_) => (Self::Error, String::new()),
            },
            Err(_) => (Self::Other, String::new()),
        }
    }
}

impl RecordedMessage {
    /// Whether a part of it is missing.
    pub fn is_cut(&self) -> bool {
        self.text.len() < self.length
    }

    /// What is kept of the beginning, and of the end of a message that is cut.
    pub fn parts(&self) -> (&[u8], &[u8]) {
        self.text.split_at(self.text.len() - if self.is_cut() { self.tail.min(self.text.len()) } else { 0 })
    }
}

/// The messages of a call in the order of time.
pub fn messages_of(call: &StoredCall) -> Vec<RecordedMessage> {
    let mut messages = Vec::new();
    // The message that pieces are added to, for each wire.
    let mut open: [Option<usize>; 2] = [None, None];
    let mut pieces: Vec<(usize, BytesMut)> = Vec::new();
    let mut unsent: Vec<usize> = Vec::new();
    for record in &call.records {
        let wire = record.wire as usize;
        match record.kind {
            NoteKind::Message => {
                open[wire] = None;
                push_messages(record, &mut messages);
            }
            NoteKind::Head => messages.push(message(record, MessageForm::Status, String::new(), Bytes::new())),
            NoteKind::Piece => {
                let at = *open[wire].get_or_insert_with(|| {
                    let begun = message(record, MessageForm::Other, String::new(), Bytes::new());
                    messages.push(RecordedMessage { length: 0, tail: 0, ..begun });
                    pieces.push((messages.len() - 1, BytesMut::new()));
                    messages.len() - 1
                });
                messages[at].length += record.length;
                if let Some((_, text)) = pieces.iter_mut().find(|(of, _)| *of == at) {
                    text.extend_from_slice(&record.body);
                }
            }
            NoteKind::Tail => {
                let tail = open[wire].and_then(|at| Some((at, pieces.iter_mut().find(|(of, _)| *of == at)?)));
                if let Some((at, (_, text))) = tail {
                    text.extend_from_slice(&record.body);
                    messages[at].tail = record.body.len();
                }
            }
            NoteKind::Unsent => {
                let is_it = |one: &RecordedMessage| one.wire == record.wire && one.way == record.way;
                unsent.extend(messages.iter().rposition(is_it));
            }
            NoteKind::Opening | NoteKind::Opened | NoteKind::Joins | NoteKind::End => {}
        }
    }
    for (at, text) in pieces {
        let text = text.freeze();
        let (form, method) = MessageForm::of(&text);
        let form = if form == MessageForm::Other { MessageForm::Response } else { form };
        (messages[at].form, messages[at].method, messages[at].text) = (form, method, text);
    }
    let mut at = 0..;
    messages.retain(|_| at.next().is_none_or(|at| !unsent.contains(&at)));
    number_rounds(&mut messages);
    pair(&mut messages);
    messages
}

fn push_messages(record: &StoredRecord, messages: &mut Vec<RecordedMessage>) {
    let is_whole = record.body.len() == record.length;
    let batch = if is_whole { Incoming::batch_texts(&record.body, MAX_BATCH).ok().flatten() } else { None };
    let texts = match batch {
        Some(texts) if !texts.is_empty() => texts,
        _ => vec![record.body.clone()],
    };
    let is_batch = texts.len() > 1 || texts[0].len() != record.body.len();
    for text in texts {
        let (form, method) = match text.is_empty() {
            true if record.length == 0 => (MessageForm::Status, String::new()),
            true => (MessageForm::Other, String::new()),
            false => MessageForm::of(&text),
        };
        let mut one = message(record, form, method, text);
        if is_batch {
            one.length = one.text.len();
        }
        messages.push(one);
    }
}

fn message(record: &StoredRecord, form: MessageForm, method: String, text: Bytes) -> RecordedMessage {
    RecordedMessage {
        nanos: record.nanos,
        round: 1,
        wire: record.wire,
        way: record.way,
        form,
        method,
        with: None,
        head: RecordedHead::of(record),
        length: record.length,
        tail: tail_of(record.body.len()),
        text,
    }
}

impl RecordedHead {
    fn of(record: &StoredRecord) -> Option<Self> {
        let is_there = !record.head.is_empty() || record.status != 0;
        is_there.then(|| Self { status: record.status, text: record.head.clone() })
    }

    /// The status, the verb and path, and the fields.
    pub fn read(&self) -> HttpPart {
        let text = String::from_utf8_lossy(&self.text);
        let mut part = HttpPart { status: (self.status != 0).then_some(self.status), ..HttpPart::default() };
        for line in text.lines() {
            match line.split_once(": ") {
                Some((name, value)) => part.headers.push((name.to_owned(), value.to_owned())),
                None => {
                    let mut words = line.split(' ');
                    part.target = words.next().map(str::to_owned).zip(words.next().map(str::to_owned));
                }
            }
        }
        part
    }
}

/// A further request of the client begins a further round.
fn number_rounds(messages: &mut [RecordedMessage]) {
    let (mut round, mut method) = (0, None);
    for message in messages {
        if message.wire == Wire::Client && message.way == Way::In && message.form == MessageForm::Request {
            let first = method.get_or_insert_with(|| message.method.clone());
            if round == 0 || *first == message.method {
                round += 1;
            }
        }
        message.round = round.max(1);
    }
}

/// Finds for each message of the server's wire the one of the client's wire.
fn pair(messages: &mut [RecordedMessage]) {
    let keys = PairKeys::of(messages);
    for at in 0..messages.len() {
        if messages[at].wire != Wire::Server || messages[at].with.is_some() {
            continue;
        }
        if let Some(other) = counterpart(messages, &keys, at) {
            messages[at].with = Some(other);
            messages[other].with.get_or_insert(at);
        }
    }
}

/// What tells several requests of one call from one another.
#[derive(Default)]
struct PairKeys {
    id: Option<Bytes>,
    /// Arguments, resource and reference: what stays the same on both wires.
    about: Option<[Option<Bytes>; 3]>,
}

impl PairKeys {
    /// The keys of each message; none where a call has one request, which needs them not.
    fn of(messages: &[RecordedMessage]) -> Vec<Self> {
        let said = messages.iter().filter(|one| one.wire == Wire::Client && one.way == Way::In);
        match said.filter(|one| one.form == MessageForm::Request).count() {
            0 | 1 => messages.iter().map(|_| Self::default()).collect(),
            _ => messages.iter().map(|one| Self::read(&one.text).unwrap_or_default()).collect(),
        }
    }

    fn read(text: &Bytes) -> Option<Self> {
        let message = Raw::parse(text).ok()?;
        let bytes = |value: Raw| Bytes::copy_from_slice(value.as_bytes());
        let params = message.get("params");
        let about = params.map(|params| ["arguments", "uri", "ref"].map(|key| params.get(key).map(bytes)));
        Some(Self { id: message.get("id").map(bytes), about })
    }
}

/// The response to the client whose request became the one that a server's response is for.
fn response_by_id(messages: &[RecordedMessage], keys: &[PairKeys], at: usize) -> Option<usize> {
    let id = keys[at].id.as_ref()?;
    let is_asked = |n: &usize| {
        messages[*n].wire == Wire::Server
            && messages[*n].form == MessageForm::Request
            && keys[*n].id.as_ref() == Some(id)
    };
    let asked = (0..at).rev().find(is_asked)?;
    let own = keys[messages[asked].with?].id.as_ref()?;
    let is_response = |one: &RecordedMessage| {
        one.wire == Wire::Client && one.way == Way::Out && one.with.is_none() && one.form.is_response()
    };
    (at..messages.len()).find(|n| is_response(&messages[*n]) && keys[*n].id.as_ref() == Some(own))
}

fn counterpart(messages: &[RecordedMessage], keys: &[PairKeys], at: usize) -> Option<usize> {
    let server = &messages[at];
    let is_free = |message: &RecordedMessage| message.wire == Wire::Client && message.with.is_none();
    let is_other_way = |message: &RecordedMessage| message.way != server.way;
    let before = || messages[..at].iter().enumerate().rev().filter(|(_, one)| is_free(one) && is_other_way(one));
    let after = || messages[at..].iter().enumerate().filter(|(_, one)| is_free(one) && is_other_way(one));
    let found_after = |fits: &dyn Fn(&RecordedMessage) -> bool| after().find(|(_, one)| fits(one)).map(|(n, _)| at + n);
    match (server.way, server.form) {
        (Way::Out, MessageForm::Request) => {
            let is_same = |one: &RecordedMessage| one.form == MessageForm::Request && one.method == server.method;
            let same: Vec<usize> = before().filter(|(_, one)| is_same(one)).map(|(n, _)| n).collect();
            // Requests of a batch may be sent in another order.
            let exact = same.iter().rev().find(|n| keys[at].about.is_some() && keys[**n].about == keys[at].about);
            exact.or(same.last()).copied().or_else(|| before().find(|(_, one)| one.form.is_response()).map(|(n, _)| n))
        }
        (Way::Out, _) if server.form.is_response() => {
            let answer = before().find(|(_, one)| one.form.is_response()).map(|(n, _)| n);
            let is_round = |one: &RecordedMessage| one.form == MessageForm::Request && one.round > 1;
            answer.or_else(|| before().find(|(_, one)| is_round(one)).map(|(n, _)| n))
        }
        (Way::In, MessageForm::Request) => {
            let same = found_after(&|one| one.form == MessageForm::Request && one.method == server.method);
            same.or_else(|| found_after(&|one| one.form == MessageForm::InputRequired))
        }
        (Way::In, MessageForm::Notification) => {
            found_after(&|one| one.form == MessageForm::Notification && one.method == server.method)
        }
        (Way::In, MessageForm::InputRequired) => {
            let request = found_after(&|one| one.form == MessageForm::Request);
            request.or_else(|| found_after(&|one| one.form.is_response()))
        }
        (Way::In, form) if form.is_response() => {
            response_by_id(messages, keys, at).or_else(|| found_after(&|one| one.form.is_response()))
        }
        _ => None,
    }
}
