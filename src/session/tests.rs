use super::*;
use crate::dialect::Revision;
use crate::protocol::Method;

fn client() -> Arc<Client> {
    let capabilities = Raw::empty();
    Arc::new(Client { revision: Revision::parse("2025-06-18").unwrap(), capabilities, info: None })
}

fn opening() -> Opening {
    Opening { principal: "me".into(), group: "default".into() }
}

fn sessions() -> Sessions {
    Sessions::new(Settings { streams: 2, ..Settings::default() })
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
    session.send(Stream::Listening, Bytes::from_static(b"1"));
    let mut first = session.listen(sessions.settings()).unwrap();
    assert_eq!(text(&mut first).await, "event: message\nid: 0.1\ndata: 1\n\n");
    drop(first);
    session.send(Stream::Listening, Bytes::from_static(b"2"));
    let mut second = session.listen(sessions.settings()).unwrap();
    assert_eq!(text(&mut second).await, "event: message\nid: 0.2\ndata: 2\n\n");
}

#[tokio::test]
async fn the_newest_connection_listens_and_the_one_before_follows_it() {
    let sessions = sessions();
    let session = open(&sessions);
    let mut first = session.listen(sessions.settings()).unwrap();
    let mut second = session.listen(sessions.settings()).unwrap();
    assert_eq!(session.listen(sessions.settings()).unwrap_err(), Unresumable::TooMany);
    session.send(Stream::Listening, Bytes::from_static(b"1"));
    assert!(text(&mut second).await.contains("data: 1"));
    drop(second);
    session.send(Stream::Listening, Bytes::from_static(b"2"));
    assert!(text(&mut first).await.contains("data: 2"));
}

#[tokio::test]
async fn a_finished_stream_can_be_read_again_from_any_event() {
    let sessions = sessions();
    let session = open(&sessions);
    let (stream, attachment) = session.open_stream(sessions.settings()).unwrap();
    drop(attachment);
    for n in 0..3u8 {
        session.send(stream, Bytes::from(n.to_string()));
    }
    session.finish(stream);
    let mut again = session.resume(EventId { stream: 1, position: 1 }, sessions.settings()).unwrap();
    assert!(text(&mut again).await.contains("id: 1.2"));
    assert!(text(&mut again).await.contains("id: 1.3"));
    assert!(again.next().await.is_none());
    let unknown = EventId { stream: 7, position: 1 };
    assert_eq!(session.resume(unknown, sessions.settings()).unwrap_err(), Unresumable::Unknown);
    let ahead = EventId { stream: 1, position: 9 };
    assert_eq!(session.resume(ahead, sessions.settings()).unwrap_err(), Unresumable::Unknown);
}

#[tokio::test]
async fn a_slow_connection_is_let_go_and_loses_nothing() {
    let sessions = sessions();
    let session = open(&sessions);
    let mut slow = session.listen(sessions.settings()).unwrap();
    let total = FRAMES_WAITING as u32 + 40;
    for n in 1..=total {
        session.send(Stream::Listening, Bytes::from(n.to_string()));
    }
    let mut seen = 0;
    while slow.next().await.is_some() {
        seen += 1;
    }
    assert!(seen < total, "it was let go");
    let mut again = session.resume(EventId { stream: 0, position: seen }, sessions.settings()).unwrap();
    for n in seen + 1..=total {
        assert!(text(&mut again).await.contains(&format!("id: 0.{n}\n")));
    }
}

#[tokio::test(start_paused = true)]
async fn a_session_expires_only_when_nothing_holds_it() {
    let sessions = sessions();
    let idle = sessions.settings().idle;
    let age = sessions.settings().retention.age;
    let with_stream = open(&sessions);
    let attachment = with_stream.listen(sessions.settings()).unwrap();
    let with_call = open(&sessions);
    let running = with_call.begin(1.into()).unwrap();
    let with_event = open(&sessions);
    with_event.send(Stream::Listening, Bytes::from_static(b"1"));
    open(&sessions);
    assert_eq!(sessions.count(), 4);

    tokio::time::advance(age - Duration::from_secs(1)).await;
    sessions.sweep();
    assert_eq!(sessions.count(), 4);
    tokio::time::advance(idle - age + Duration::from_secs(1)).await;
    sessions.sweep();
    assert_eq!(sessions.count(), 3, "the unused one is gone");
    tokio::time::advance(age).await;
    sessions.sweep();
    assert_eq!(sessions.count(), 2, "the event was no longer kept, and the session unused since");
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
    let mut attachment = session.listen(sessions.settings()).unwrap();
    let mut running = session.begin(1.into()).unwrap();
    let (answer, asked) = oneshot::channel();
    session.ask(Stream::Listening, &1.into(), Question { method: Method::Ping, params: None, answer });
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
    let mut attachment = session.listen(sessions.settings()).unwrap();
    let running = session.begin(1.into()).unwrap();
    let (answer, asked) = oneshot::channel();
    session.ask(Stream::Listening, running.id(), Question { method: Method::Ping, params: None, answer });
    assert!(text(&mut attachment).await.contains(r#""id":1,"method":"ping""#));
    assert!(session.answer(&1.into(), Ok(Raw::empty())));
    assert!(!session.answer(&1.into(), Ok(Raw::empty())));
    assert!(asked.await.unwrap().is_ok());
    let (answer, asked) = oneshot::channel();
    session.ask(Stream::Listening, running.id(), Question { method: Method::Ping, params: None, answer });
    drop(running);
    assert!(asked.await.is_err());
    assert!(text(&mut attachment).await.contains(r#""method":"ping""#));
    assert!(text(&mut attachment).await.contains(r#""method":"notifications/cancelled""#));
}

#[test]
fn sessions_are_bounded_and_private() {
    let sessions = Sessions::new(Settings { sessions: 1, ..Settings::default() });
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
