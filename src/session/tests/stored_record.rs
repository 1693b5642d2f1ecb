//! What of a session's record is written to a shared store.

use super::*;
use crate::store::traits::{RecordWrite, SessionStore};
use crate::store::{MemoryStore, NodeId};

fn client_of_many_words() -> Arc<ClientInfo> {
    let info = Raw::parse(&Bytes::from(format!(r#"{{"name":"{}","version":"1"}}"#, "x".repeat(3000)))).unwrap();
    Arc::new(ClientInfo { info: Some(info), ..ClientInfo::clone(&client()) })
}

#[tokio::test]
async fn what_the_client_said_of_itself_is_written_once() {
    let (store, node) = (MemoryStore::new(), Arc::new(ArcSwap::from_pointee(NodeId::generate("a"))));
    let persister = Persister::new(Arc::<MemoryStore>::clone(&store), node, Duration::from_secs(60));
    let sessions = Sessions::with_persister(SessionSettings::default(), Arc::default(), Arc::clone(&persister));
    let session = sessions.open(owner(), client_of_many_words()).unwrap();
    persister.create(&session).await.unwrap();
    session.add_subscription("one:1", Some(Box::new(())));
    let (delta, _) = session.delta(false, Duration::from_secs(60)).unwrap();
    let Some(RecordWrite::Changes(changes)) = &delta.record else { panic!("{delta:?}") };
    assert!(changes.len() < 300, "{changes:?}");
    session.nack();
    persister.write_pending(&sessions).await.unwrap();
    let stored = store.load(&session.id().to_string()).await.unwrap().unwrap();
    let record = SessionRecord::decode(&stored).unwrap();
    assert_eq!(record.progress.subscriptions, ["one:1"]);
    assert!(record.client().unwrap().info.as_ref().unwrap().as_bytes().len() > 3000);
    // After a store lost it, everything is written.
    store.forget(&session.id().to_string());
    persister.restore(&session).await.unwrap();
    assert!(SessionRecord::decode(&store.load(&session.id().to_string()).await.unwrap().unwrap()).is_some());
}
