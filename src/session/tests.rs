mod expiry_in_store;
mod interleavings;
mod stored_record;

use super::*;
use crate::call::{ClientSink, ServerRequest};
use crate::dialect::Revision;
use crate::policy::QuotaLimits;
use crate::protocol::{Method, Raw};

fn client() -> Arc<ClientInfo> {
    let capabilities = Raw::empty();
    Arc::new(ClientInfo { revision: Revision::parse("2025-06-18").unwrap(), capabilities, info: None })
}

fn owner() -> SessionOwner {
    SessionOwner { identity: crate::identity::Identity::local().into(), group: "default".into(), quota_key: None }
}

fn sessions() -> Sessions {
    Sessions::new(SessionSettings { max_streams: 2, ..SessionSettings::default() }, Arc::default())
}

fn open(sessions: &Sessions) -> Arc<Session> {
    sessions.open(owner(), client()).unwrap()
}

async fn next_event(reader: &mut StreamReader) -> String {
    String::from_utf8_lossy(&reader.next().await.unwrap()).into_owned()
}

#[tokio::test]
async fn events_sent_without_a_reader_reach_the_next_one() {
    let sessions = sessions();
    let session = open(&sessions);
    session.send(StreamTarget::Listening, Bytes::from_static(b"1"));
    let mut first = session.listen().unwrap();
    assert_eq!(next_event(&mut first).await, "event: message\nid: 0.1\ndata: 1\n\n");
    drop(first);
    session.send(StreamTarget::Listening, Bytes::from_static(b"2"));
    let mut second = session.listen().unwrap();
    assert_eq!(next_event(&mut second).await, "event: message\nid: 0.2\ndata: 2\n\n");
}

#[tokio::test]
async fn the_newest_listening_reader_is_served_and_the_previous_one_succeeds_it() {
    let sessions = sessions();
    let session = open(&sessions);
    let mut first = session.listen().unwrap();
    let mut second = session.listen().unwrap();
    let reached = QuotaReached { scope: QuotaScope::Session, resource: "open streams" };
    assert_eq!(session.begin_call(1.into()).unwrap_err(), BeginCallError::QuotaReached(reached));
    session.send(StreamTarget::Listening, Bytes::from_static(b"1"));
    assert!(next_event(&mut second).await.contains("data: 1"));
    drop(second);
    session.send(StreamTarget::Listening, Bytes::from_static(b"2"));
    assert!(next_event(&mut first).await.contains("data: 2"));
}

#[tokio::test]
async fn a_completed_stream_can_be_resumed_from_any_event() {
    let sessions = sessions();
    let session = open(&sessions);
    let (stream, reader) = session.open_stream(Mark::NONE).unwrap();
    drop(reader);
    for n in 0..3u8 {
        session.send(stream, Bytes::from(n.to_string()));
    }
    session.finish_stream(stream);
    let mut again = session.resume(EventId { stream: 1, position: 1 }).unwrap();
    assert!(next_event(&mut again).await.contains("id: 1.2"));
    assert!(next_event(&mut again).await.contains("id: 1.3"));
    assert!(again.next().await.is_none());
    let unknown = EventId { stream: 7, position: 1 };
    assert_eq!(session.resume(unknown).unwrap_err(), StreamError::UnknownEvent);
    let ahead = EventId { stream: 1, position: 9 };
    assert_eq!(session.resume(ahead).unwrap_err(), StreamError::UnknownEvent);
}

#[tokio::test]
async fn a_slow_reader_gets_every_retained_event() {
    let sessions = sessions();
    let session = open(&sessions);
    let retained = sessions.settings().retention.max_events;
    let mut slow = session.listen().unwrap();
    for n in 1..=retained {
        session.send(StreamTarget::Listening, Bytes::from(n.to_string()));
    }
    for n in 1..=retained {
        assert!(next_event(&mut slow).await.contains(&format!("id: 0.{n}\n")));
    }
    // A reader behind the trimmed events is ended, and its resume is refused.
    for n in 1..=retained + 1 {
        session.send(StreamTarget::Listening, Bytes::from(n.to_string()));
    }
    assert!(slow.next().await.is_none());
    let last = EventId { stream: 0, position: retained as u64 };
    assert_eq!(session.resume(last).unwrap_err(), StreamError::EventsTrimmed);
}

#[tokio::test]
async fn unread_events_of_a_detached_reader_go_to_the_previous_one() {
    let sessions = sessions();
    let session = open(&sessions);
    let mut first = session.listen().unwrap();
    let second = session.listen().unwrap();
    for n in 1..=3u8 {
        session.send(StreamTarget::Listening, Bytes::from(n.to_string()));
    }
    drop(second);
    session.send(StreamTarget::Listening, Bytes::from_static(b"4"));
    for n in 1..=4 {
        assert!(next_event(&mut first).await.contains(&format!("data: {n}\n")));
    }
}

#[tokio::test]
async fn a_call_waits_for_a_lagging_reader() {
    let sessions = sessions();
    let session = open(&sessions);
    let (stream, mut reader) = session.open_stream(Mark::NONE).unwrap();
    let sender = Arc::clone(&session);
    let sending = tokio::spawn(async move {
        for n in 0..900 {
            sender.deliver(stream, Bytes::from(n.to_string())).await;
        }
        sender.finish_stream(stream);
    });
    for n in 0..900 {
        assert!(next_event(&mut reader).await.contains(&format!("data: {n}\n")));
    }
    assert!(reader.next().await.is_none());
    sending.await.unwrap();
}

#[tokio::test]
async fn list_changes_do_not_close_a_lagging_connection() {
    let sessions = sessions();
    let (session, mut reader) = sessions.open_single(SessionTransport::Sse, owner()).unwrap();
    session.set_client(client());
    let sender = Arc::clone(&session);
    let sending = tokio::spawn(async move {
        for n in 0..1000 {
            sender.deliver(StreamTarget::Listening, Bytes::from(n.to_string())).await;
        }
    });
    while !session.lock().outbox.is_behind(StreamTarget::Listening) {
        tokio::task::yield_now().await;
    }
    for _ in 0..5000 {
        sessions.publish("default", &ChangeEvent::Tools);
    }
    let mut answers = 0;
    let mut notices = 0;
    while answers < 1000 {
        match next_event(&mut reader).await.contains("list_changed") {
            true => notices += 1,
            false => answers += 1,
        }
    }
    assert!((1..100).contains(&notices), "expected a few notifications, not five thousand: {notices}");
    sending.await.unwrap();
}

#[tokio::test]
async fn a_request_id_can_be_reused_after_cancellation() {
    let sessions = sessions();
    let session = open(&sessions);
    let mut old = session.begin_call(1.into()).unwrap();
    assert_eq!(session.begin_call(1.into()).unwrap_err(), BeginCallError::DuplicateId);
    session.cancel_call(&1.into());
    old.cancelled().await;
    let mut new = session.begin_call(1.into()).unwrap();
    drop(old);
    let waited = tokio::time::timeout(Duration::from_millis(20), new.cancelled()).await;
    assert!(waited.is_err(), "the new call was cancelled");
    drop(new);
    assert!(session.begin_call(1.into()).is_ok());
}

#[tokio::test(start_paused = true)]
async fn change_notifications_do_not_keep_an_idle_session_alive() {
    let sessions = sessions();
    let settings = sessions.settings();
    let (age, idle) = (settings.retention.max_age, settings.idle_timeout);
    let session = open(&sessions);
    session.add_subscription("a:b", Some(Box::new(())));
    let end = Instant::now() + age + age + idle + Duration::from_secs(60);
    while sessions.count() > 0 {
        assert!(Instant::now() < end, "the session never expires");
        tokio::time::advance(Duration::from_secs(30)).await;
        sessions.publish("default", &ChangeEvent::ResourceUpdated("a:b".into()));
        sessions.sweep();
    }
}

#[tokio::test]
async fn updates_of_leased_subscriptions_are_not_published_twice() {
    let sessions = sessions();
    let session = open(&sessions);
    session.add_subscription("own:1", None);
    session.add_subscription("shared:1", Some(Box::new(())));
    for uri in ["own:1", "shared:1", "other:1"] {
        sessions.publish("default", &ChangeEvent::ResourceUpdated(uri.into()));
    }
    sessions.publish("default", &ChangeEvent::Tools);
    let mut listening = session.listen().unwrap();
    assert!(next_event(&mut listening).await.contains("shared:1"));
    assert!(next_event(&mut listening).await.contains("list_changed"));
}

#[tokio::test]
async fn takeover_notifies_only_of_lists_that_differ() {
    let node = Arc::new(arc_swap::ArcSwap::from_pointee(crate::store::NodeId::generate("a")));
    let persister = Persister::new(crate::store::MemoryStore::new(), node, Duration::from_secs(60));
    let session = open(&Sessions::with_persister(SessionSettings::default(), Arc::default(), persister));
    let position = || match &session.lock().outbox {
        outbox::Outbox::Streams(streams) => streams.log().last_position(),
        outbox::Outbox::Single(_) => unreachable!("a Streamable HTTP session has streams"),
    };
    let notifications_for = |fingerprints| {
        let before = position();
        session.notify_changed_lists(&fingerprints);
        position() - before
    };
    session.record_known_lists(None, &[1, 2, 3]);
    assert_eq!(notifications_for([1, 2, 3]), 0);
    assert_eq!(notifications_for([1, 5, 6]), 2);
    assert_eq!(notifications_for([1, 5, 6]), 0, "the client was notified already");
    // The fingerprint of a private list is unknown to other nodes.
    session.notify(ChangeEvent::Tools.notification());
    assert_eq!(notifications_for([1, 5, 6]), 1);
}

#[tokio::test(start_paused = true)]
async fn a_session_expires_only_without_readers_calls_and_unread_events() {
    let sessions = sessions();
    let idle = sessions.settings().idle_timeout;
    let age = sessions.settings().retention.max_age;
    let with_stream = open(&sessions);
    let reader = with_stream.listen().unwrap();
    let with_call = open(&sessions);
    let running = with_call.begin_call(1.into()).unwrap();
    let with_event = open(&sessions);
    open(&sessions);
    assert_eq!(sessions.count(), 4);

    tokio::time::advance(idle - Duration::from_secs(1)).await;
    with_event.send(StreamTarget::Listening, Bytes::from_static(b"1"));
    sessions.sweep();
    assert_eq!(sessions.count(), 4);
    tokio::time::advance(Duration::from_secs(1)).await;
    sessions.sweep();
    assert_eq!(sessions.count(), 3, "the idle session expired");
    tokio::time::advance(age).await;
    sessions.sweep();
    assert_eq!(sessions.count(), 2, "the unread event was trimmed");
    drop(reader);
    drop(running);
    tokio::time::advance(idle).await;
    sessions.sweep();
    assert_eq!(sessions.count(), 0);
}

#[tokio::test]
async fn closing_a_session_cancels_calls_server_requests_and_readers() {
    let sessions = sessions();
    let session = open(&sessions);
    let mut reader = session.listen().unwrap();
    let mut running = session.begin_call(1.into()).unwrap();
    let (answer, response) = oneshot::channel();
    session
        .send_server_request(
            StreamTarget::Listening,
            (&running, Mark::NONE),
            ServerRequest { method: Method::Ping, params: None, responder: answer.into(), asker: None },
        )
        .await;
    assert!(reader.next().await.is_some());
    sessions.close(&session);
    running.cancelled().await;
    assert!(response.await.is_err());
    assert!(reader.next().await.is_none());
    assert!(sessions.find(session.id(), &"local".into(), "default").is_none());
    assert!(session.begin_call(2.into()).is_err());
}

#[tokio::test]
async fn server_requests_are_resolved_once_and_cancelled_with_their_call() {
    let sessions = sessions();
    let session = open(&sessions);
    let mut reader = session.listen().unwrap();
    let running = session.begin_call(1.into()).unwrap();
    let (answer, response) = oneshot::channel();
    session
        .send_server_request(
            StreamTarget::Listening,
            (&running, Mark::NONE),
            ServerRequest { method: Method::Ping, params: None, responder: answer.into(), asker: None },
        )
        .await;
    assert!(next_event(&mut reader).await.contains(r#""id":1,"method":"ping""#));
    assert!(session.resolve_server_request(&1.into(), Ok(Raw::empty().into())).is_some());
    assert!(session.resolve_server_request(&1.into(), Ok(Raw::empty().into())).is_none());
    assert!(response.await.unwrap().is_ok());
    let (answer, response) = oneshot::channel();
    session
        .send_server_request(
            StreamTarget::Listening,
            (&running, Mark::NONE),
            ServerRequest { method: Method::Ping, params: None, responder: answer.into(), asker: None },
        )
        .await;
    drop(running);
    assert!(response.await.is_err());
    assert!(next_event(&mut reader).await.contains(r#""method":"ping""#));
    assert!(next_event(&mut reader).await.contains(r#""method":"notifications/cancelled""#));
}

#[test]
fn sessions_are_bounded_and_found_by_their_caller_and_group_only() {
    let sessions = Sessions::new(
        SessionSettings::default(),
        Arc::new(Quotas::new(&QuotaLimits { sessions: 1, ..QuotaLimits::default() })),
    );
    let session = open(&sessions);
    assert!(sessions.open(owner(), client()).is_err());
    assert!(sessions.find(session.id(), &"local".into(), "default").is_some());
    assert!(sessions.find(session.id(), &"you".into(), "default").is_none());
    assert!(sessions.find(session.id(), &"local".into(), "other").is_none());
}

/// A client that does not read its only connection holds a bounded number of bytes, however large the messages are.
#[tokio::test]
async fn unread_bytes_of_a_single_connection_are_bounded() {
    let sessions = sessions();
    let (session, mut reader) = sessions.open_single(SessionTransport::Sse, owner()).unwrap();
    let large = Bytes::from(vec![b'x'; outbox::MAX_QUEUED_BYTES]);
    session.deliver(StreamTarget::Listening, large.clone()).await;
    let blocked = session.deliver(StreamTarget::Listening, large.clone());
    tokio::pin!(blocked);
    assert!(futures_util::poll!(blocked.as_mut()).is_pending(), "a call waits for the reader");
    assert_eq!(reader.next().await, Some(large.clone()));
    blocked.await;
    // Who cannot wait closes the session instead.
    session.send(StreamTarget::Listening, large.clone());
    assert!(!session.ended.is_cancelled());
    session.send(StreamTarget::Listening, large);
    assert!(session.ended.is_cancelled());
}

#[test]
fn a_session_takes_less_than_640_bytes() {
    assert!(size_of::<Session>() < 640, "{}", size_of::<Session>());
}
