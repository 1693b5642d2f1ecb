//! Sessions and events in Redis.

use std::time::Duration;

use bytes::Bytes;
use redis::{Cmd, Value};

use super::error::RedisFailure;
use super::scripts::{CLAIM, CREATE, DELETE, TOUCH, WRITE};
use super::{RedisStore, ttl_millis};
use crate::store::traits::{
    EventStore, RecordWrite, SessionDelta, SessionStore, StoreFuture, StoredEvent, StoredSession, WriteOutcome,
};
use crate::store::{EventId, NodeId, StoreError};

/// An `XRANGE` entry: id, then field names and values in turn.
type StreamEntry = (String, (String, u32, String, u64, String, Bytes));

impl RedisStore {
    fn write_outcome(&self, value: Value) -> Result<WriteOutcome, StoreError> {
        match self.decode_reply::<u8>(value)? {
            0 => Ok(WriteOutcome::NotFound),
            1 => Ok(WriteOutcome::Applied),
            2 => Ok(WriteOutcome::NotOwner),
            _ => Err(RedisFailure::unexpected_reply(&self.server).error),
        }
    }

    fn write_outcomes(&self, values: Vec<Value>) -> Result<Vec<WriteOutcome>, StoreError> {
        values.into_iter().map(|value| self.write_outcome(value)).collect()
    }

    /// Command that writes the delta of one session.
    fn write_command(&self, owner: &str, id: &str, delta: &SessionDelta) -> Cmd {
        let mut command = WRITE.evalsha(&[&self.keys.session(id), &self.keys.events(id)]);
        command.arg(owner).arg(ttl_millis(delta.ttl)).arg(delta.trim_before);
        match &delta.record {
            Some(RecordWrite::Whole(record)) => command.arg(delta.version).arg("record").arg(&record[..]),
            Some(RecordWrite::Changes(changes)) => command.arg(delta.version).arg("changes").arg(&changes[..]),
            None => command.arg("").arg("").arg(""),
        };
        for StoredEvent { id, at_ms, event } in &delta.events {
            command.arg(format_args!("{}-0", id.position).to_string()).arg(id.stream).arg(*at_ms).arg(&event[..]);
        }
        command
    }
}

/// The `owner` field of a session; empty for no owner.
fn owner_field(owner: Option<&NodeId>) -> String {
    owner.map(ToString::to_string).unwrap_or_default()
}

impl SessionStore for RedisStore {
    fn create<'a>(&'a self, id: &'a str, owner: &'a NodeId, record: Bytes, ttl: Duration) -> StoreFuture<'a, bool> {
        Box::pin(async move {
            let mut command = CREATE.evalsha(&[&self.keys.session(id), &self.keys.events(id)]);
            command.arg(owner.to_string()).arg(&record[..]).arg(ttl_millis(ttl));
            self.decode_single(self.connection.execute(vec![command]).await?)
        })
    }

    fn load<'a>(&'a self, id: &'a str) -> StoreFuture<'a, Option<StoredSession>> {
        Box::pin(async move {
            let mut command = redis::cmd("HMGET");
            command.arg(self.keys.session(id)).arg("owner").arg("record").arg("changes");
            let (owner, record, changes): (Option<String>, Option<Bytes>, Option<Bytes>) =
                self.decode_single(self.connection.execute(vec![command]).await?)?;
            let (Some(owner), Some(record)) = (owner, record) else { return Ok(None) };
            Ok(Some(StoredSession { owner: NodeId::parse(&owner), record, changes }))
        })
    }

    fn claim<'a>(
        &'a self,
        id: &'a str,
        from: Option<&'a NodeId>,
        to: Option<&'a NodeId>,
    ) -> StoreFuture<'a, WriteOutcome> {
        Box::pin(async move {
            let mut command = CLAIM.evalsha(&[&self.keys.session(id)]);
            command.arg(owner_field(from)).arg(owner_field(to));
            let replies = self.connection.execute(vec![command]).await?;
            self.write_outcome(self.decode_single(replies)?)
        })
    }

    fn touch<'a>(&'a self, ids: &'a [String], owner: &'a NodeId, ttl: Duration) -> StoreFuture<'a, Vec<WriteOutcome>> {
        Box::pin(async move {
            let owner = owner.to_string();
            let one = |id: &String| {
                let mut command = TOUCH.evalsha(&[&self.keys.session(id), &self.keys.events(id)]);
                command.arg(&owner).arg(ttl_millis(ttl));
                command
            };
            self.write_outcomes(self.connection.execute(ids.iter().map(one).collect()).await?)
        })
    }

    fn delete<'a>(&'a self, id: &'a str, owner: &'a NodeId) -> StoreFuture<'a, WriteOutcome> {
        Box::pin(async move {
            let mut command = DELETE.evalsha(&[&self.keys.session(id), &self.keys.events(id)]);
            command.arg(owner.to_string());
            let replies = self.connection.execute(vec![command]).await?;
            self.write_outcome(self.decode_single(replies)?)
        })
    }
}

impl EventStore for RedisStore {
    fn write_deltas<'a>(
        &'a self,
        owner: &'a NodeId,
        deltas: &'a [(String, SessionDelta)],
    ) -> StoreFuture<'a, Vec<WriteOutcome>> {
        Box::pin(async move {
            let owner = owner.to_string();
            let commands = deltas.iter().map(|(id, delta)| self.write_command(&owner, id, delta)).collect();
            self.write_outcomes(self.connection.execute(commands).await?)
        })
    }

    fn read_events<'a>(&'a self, id: &'a str) -> StoreFuture<'a, Vec<StoredEvent>> {
        Box::pin(async move {
            let mut command = redis::cmd("XRANGE");
            command.arg(self.keys.events(id)).arg("-").arg("+");
            let entries: Vec<StreamEntry> = self.decode_single(self.connection.execute(vec![command]).await?)?;
            let one = |(entry, (_, stream, _, at, _, event)): StreamEntry| {
                let position = entry.strip_suffix("-0").and_then(|position| position.parse().ok());
                let position = position.ok_or_else(|| RedisFailure::unexpected_reply(&self.server).error)?;
                Ok(StoredEvent { id: EventId { stream, position }, at_ms: at, event })
            };
            entries.into_iter().map(one).collect()
        })
    }
}
