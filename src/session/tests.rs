use super::*;
use crate::call::ClientSink;
use crate::dialect::Revision;
use crate::protocol::{Method, Raw};

fn client() -> Arc<ClientInfo> {
    let capabilities = Raw::empty();
    Arc::new(ClientInfo { revision: Revision::parse("2025-06-18").unwrap(), capabilities, info: None })
}

fn opening() -> SessionOwner {
    SessionOwner { principal: "me".into(), group: "default".into() }
}

fn sessions() -> Sessions {
    Sessions::new(SessionSettings { streams: 2, ..SessionSettings::default() })
}

fn open(sessions: &Sessions) -> Arc<Session> {
    sessions.open(opening(), client()).unwrap()
}

async fn text(attachment: &mut Attachment) -> String {
    String::from_utf8_lossy(&attachment.next().await.unwrap()).into_owned()
}

#[tokio::test]
async fn what_was_sent_while_nobody_listened_arrives_later() {
    let sessions = sessions();
    let session = open(&sessions);
    session.send(StreamTarget::Listening, Bytes::from_static(b"1"));
    let mut first = session.listen().unwrap();
    assert_eq!(text(&mut first).await, "event: message\nid: 0.1\ndata: 1\n\n");
    drop(first);
    session.send(StreamTarget::Listening, Bytes::from_static(b"2"));
    let mut second = session.listen().unwrap();
    assert_eq!(text(&mut second).await, "event: message\nid: 0.2\ndata: 2\n\n");
}

#[tokio::test]
async fn the_newest_connection_listens_and_the_one_before_follows_it() {
    let sessions = sessions();
    let session = open(&sessions);
    let mut first = session.listen().unwrap();
    let mut second = session.listen().unwrap();
    assert_eq!(session.open_stream().unwrap_err(), StreamError::TooMany);
    session.send(StreamTarget::Listening, Bytes::from_static(b"1"));
    assert!(text(&mut second).await.contains("data: 1"));
    drop(second);
    session.send(StreamTarget::Listening, Bytes::from_static(b"2"));
    assert!(text(&mut first).await.contains("data: 2"));
}

#[tokio::test]
async fn a_finished_stream_can_be_read_again_from_any_event() {
    let sessions = sessions();
    let session = open(&sessions);
    let (stream, attachment) = session.open_stream().unwrap();
    drop(attachment);
    for n in 0..3u8 {
        session.send(stream, Bytes::from(n.to_string()));
    }
    session.finish(stream);
    let mut again = session.resume(EventId { stream: 1, position: 1 }).unwrap();
    assert!(text(&mut again).await.contains("id: 1.2"));
    assert!(text(&mut again).await.contains("id: 1.3"));
    assert!(again.next().await.is_none());
    let unknown = EventId { stream: 7, position: 1 };
    assert_eq!(session.resume(unknown).unwrap_err(), StreamError::Unknown);
    let ahead = EventId { stream: 1, position: 9 };
    assert_eq!(session.resume(ahead).unwrap_err(), StreamError::Unknown);
}

#[tokio::test]
async fn a_slow_connection_loses_nothing_that_is_kept() {
    let sessions = sessions();
    let session = open(&sessions);
    let kept = sessions.settings().retention.count;
    let mut slow = session.listen().unwrap();
    for n in 1..=kept {
        session.send(StreamTarget::Listening, Bytes::from(n.to_string()));
    }
    for n in 1..=kept {
        assert!(text(&mut slow).await.contains(&format!("id: 0.{n}\n")));
    }
    // One that lags further behind than is kept is let go, and told so when it resumes.
    for n in 1..=kept + 1 {
        session.send(StreamTarget::Listening, Bytes::from(n.to_string()));
    }
    assert!(slow.next().await.is_none());
    let last = EventId { stream: 0, position: kept as u64 };
    assert_eq!(session.resume(last).unwrap_err(), StreamError::Gone);
}

#[tokio::test]
async fn what_a_dead_connection_had_not_read_goes_to_the_one_before() {
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
        assert!(text(&mut first).await.contains(&format!("data: {n}\n")));
    }
}

#[tokio::test]
async fn a_call_waits_for_a_client_that_is_behind() {
    let sessions = sessions();
    let session = open(&sessions);
    let (stream, mut attachment) = session.open_stream().unwrap();
    let sender = Arc::clone(&session);
    let sending = tokio::spawn(async move {
        for n in 0..900 {
            sender.deliver(stream, Bytes::from(n.to_string())).await;
        }
        sender.finish(stream);
    });
    for n in 0..900 {
        assert!(text(&mut attachment).await.contains(&format!("data: {n}\n")));
    }
    assert!(attachment.next().await.is_none());
    sending.await.unwrap();
}

#[tokio::test]
async fn a_notice_does_not_end_a_busy_connection() {
    let sessions = sessions();
    let (session, mut attachment) = sessions.open_single(SessionTransport::Sse, opening()).unwrap();
    session.introduce(client());
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
        match text(&mut attachment).await.contains("list_changed") {
            true => notices += 1,
            false => answers += 1,
        }
    }
    assert!((1..100).contains(&notices), "told at least once, not five thousand times: {notices}");
    sending.await.unwrap();
}

#[tokio::test]
async fn an_id_can_be_used_again_at_once() {
    let sessions = sessions();
    let session = open(&sessions);
    let mut old = session.begin(1.into()).unwrap();
    assert_eq!(session.begin(1.into()).unwrap_err(), NotBegun::Duplicate);
    session.cancel(&1.into());
    old.unwanted().await;
    let mut new = session.begin(1.into()).unwrap();
    drop(old);
    let waited = tokio::time::timeout(Duration::from_millis(20), new.unwanted()).await;
    assert!(waited.is_err(), "the new call is still wanted");
    drop(new);
    assert!(session.begin(1.into()).is_ok());
}

#[tokio::test(start_paused = true)]
async fn changes_do_not_keep_an_abandoned_session() {
    let sessions = sessions();
    let settings = sessions.settings();
    let (age, idle) = (settings.retention.age, settings.idle);
    let session = open(&sessions);
    session.subscribed("a:b", Some(Box::new(())));
    let end = Instant::now() + age + age + idle + Duration::from_secs(60);
    while sessions.count() > 0 {
        assert!(Instant::now() < end, "it never ends");
        tokio::time::advance(Duration::from_secs(30)).await;
        sessions.publish("default", &ChangeEvent::Updated("a:b".into()));
        sessions.sweep();
    }
}

#[tokio::test]
async fn what_a_server_tells_a_session_itself_is_not_told_by_all_once_more() {
    let sessions = sessions();
    let session = open(&sessions);
    session.subscribed("own:1", None);
    session.subscribed("shared:1", Some(Box::new(())));
    for uri in ["own:1", "shared:1", "other:1"] {
        sessions.publish("default", &ChangeEvent::Updated(uri.into()));
    }
    sessions.publish("default", &ChangeEvent::Tools);
    let mut listening = session.listen().unwrap();
    assert!(text(&mut listening).await.contains("shared:1"));
    assert!(text(&mut listening).await.contains("list_changed"));
}

#[tokio::test]
async fn another_node_tells_of_lists_unless_it_has_those_that_the_client_knows() {
    let node = Arc::new(arc_swap::ArcSwap::from_pointee(crate::store::NodeId::begin("a")));
    let keeper = Persister::new(crate::store::Memory::new(), node, Duration::from_secs(60));
    let session = open(&Sessions::with_persister(SessionSettings::default(), keeper));
    let position = || match &session.lock().outbox {
        outbox::Outbox::Streams(streams) => streams.log().position(),
        outbox::Outbox::Single(_) => unreachable!("it is no such session"),
    };
    let told = |prints| {
        let before = position();
        session.compare_lists(&prints);
        position() - before
    };
    session.knows_lists(None, &[1, 2, 3]);
    assert_eq!(told([1, 2, 3]), 0);
    assert_eq!(told([1, 5, 6]), 2);
    assert_eq!(told([1, 5, 6]), 0, "it was told");
    // Of what it alone sees, no other node knows anything.
    session.notify(ChangeEvent::Tools.notification());
    assert_eq!(told([1, 5, 6]), 1);
}

#[tokio::test(start_paused = true)]
async fn a_session_expires_only_when_nothing_holds_it() {
    let sessions = sessions();
    let idle = sessions.settings().idle;
    let age = sessions.settings().retention.age;
    let with_stream = open(&sessions);
    let attachment = with_stream.listen().unwrap();
    let with_call = open(&sessions);
    let running = with_call.begin(1.into()).unwrap();
    let with_event = open(&sessions);
    open(&sessions);
    assert_eq!(sessions.count(), 4);

    tokio::time::advance(idle - Duration::from_secs(1)).await;
    with_event.send(StreamTarget::Listening, Bytes::from_static(b"1"));
    sessions.sweep();
    assert_eq!(sessions.count(), 4);
    tokio::time::advance(Duration::from_secs(1)).await;
    sessions.sweep();
    assert_eq!(sessions.count(), 3, "the unused one is gone");
    tokio::time::advance(age).await;
    sessions.sweep();
    assert_eq!(sessions.count(), 2, "the event is no longer kept");
    drop(attachment);
    drop(running);
    tokio::time::advance(idle).await;
    sessions.sweep();
    assert_eq!(sessions.count(), 0);
}

#[tokio::test]
async fn closing_gives_everything_up() {
    let sessions = sessions();
    let session = open(&sessions);
    let mut attachment = session.listen().unwrap();
    let mut running = session.begin(1.into()).unwrap();
    let (answer, asked) = oneshot::channel();
    session
        .ask_in(StreamTarget::Listening, &running, ServerRequest { method: Method::Ping, params: None, answer })
        .await;
    assert!(attachment.next().await.is_some());
    sessions.close(&session);
    running.unwanted().await;
    assert!(asked.await.is_err());
    assert!(attachment.next().await.is_none());
    assert!(sessions.find(session.id(), &"me".into(), "default").is_none());
    assert!(session.begin(2.into()).is_err());
}

#[tokio::test]
async fn questions_are_answered_once_and_withdrawn_with_their_call() {
    let sessions = sessions();
    let session = open(&sessions);
    let mut attachment = session.listen().unwrap();
    let running = session.begin(1.into()).unwrap();
    let (answer, asked) = oneshot::channel();
    session
        .ask_in(StreamTarget::Listening, &running, ServerRequest { method: Method::Ping, params: None, answer })
        .await;
    assert!(text(&mut attachment).await.contains(r#""id":1,"method":"ping""#));
    assert!(session.answer(&1.into(), Ok(Raw::empty())));
    assert!(!session.answer(&1.into(), Ok(Raw::empty())));
    assert!(asked.await.unwrap().is_ok());
    let (answer, asked) = oneshot::channel();
    session
        .ask_in(StreamTarget::Listening, &running, ServerRequest { method: Method::Ping, params: None, answer })
        .await;
    drop(running);
    assert!(asked.await.is_err());
    assert!(text(&mut attachment).await.contains(r#""method":"ping""#));
    assert!(text(&mut attachment).await.contains(r#""method":"notifications/cancelled""#));
}

#[test]
fn sessions_are_bounded_and_private() {
    let sessions = Sessions::new(SessionSettings { sessions: 1, ..SessionSettings::default() });
    let session = open(&sessions);
    assert!(sessions.open(opening(), client()).is_err());
    assert!(sessions.find(session.id(), &"me".into(), "default").is_some());
    assert!(sessions.find(session.id(), &"you".into(), "default").is_none());
    assert!(sessions.find(session.id(), &"me".into(), "other").is_none());
}

#[test]
fn a_session_is_small() {
    assert!(size_of::<Session>() < 640, "{}", size_of::<Session>());
}
