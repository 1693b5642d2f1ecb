//! Sessions and their events in Redis.

use std::time::Duration;

use bytes::Bytes;
use redis::{Cmd, Value};

use super::error::RedisFailure;
use super::scripts::{CLAIM, CREATE, DELETE, TOUCH, WRITE};
use super::{Redis, millis};
use crate::store::traits::{
    EventStore, SessionDelta, SessionStore, StoreFuture, StoredEvent, StoredSession, WriteOutcome,
};
use crate::store::{EventId, NodeId, StoreError};

/// An event as Redis tells it: its entry, and the names and values in it.
type StreamEntry = (String, (String, u32, String, u64, String, Bytes));

impl Redis {
    fn written(&self, value: Value) -> Result<WriteOutcome, StoreError> {
        match self.read::<u8>(value)? {
            0 => Ok(WriteOutcome::NotFound),
            1 => Ok(WriteOutcome::Applied),
            2 => Ok(WriteOutcome::NotOwner),
            _ => Err(RedisFailure::unexpected(&self.server).away),
        }
    }

    fn all_written(&self, values: Vec<Value>) -> Result<Vec<WriteOutcome>, StoreError> {
        values.into_iter().map(|value| self.written(value)).collect()
    }

    /// What is written of one session.
    fn write_one(&self, owner: &str, id: &str, news: &SessionDelta) -> Cmd {
        let mut command = WRITE.on(&[&self.keys.session(id), &self.keys.events(id)]);
        command.arg(owner).arg(millis(news.life)).arg(news.keep_from);
        match &news.record {
            Some(record) => command.arg(news.version).arg(&record[..]),
            None => command.arg("").arg(""),
        };
        for StoredEvent { id, at, event } in &news.events {
            command.arg(format_args!("{}-0", id.position).to_string()).arg(id.stream).arg(*at).arg(&event[..]);
        }
        command
    }
}

/// How an owner is written down.
fn name(owner: Option<&NodeId>) -> String {
    owner.map(ToString::to_string).unwrap_or_default()
}

impl SessionStore for Redis {
    fn create<'a>(&'a self, id: &'a str, owner: &'a NodeId, record: Bytes, life: Duration) -> StoreFuture<'a, bool> {
        Box::pin(async move {
            let mut command = CREATE.on(&[&self.keys.session(id), &self.keys.events(id)]);
            command.arg(owner.to_string()).arg(&record[..]).arg(millis(life));
            self.only(self.link.ask(vec![command]).await?)
        })
    }

    fn load<'a>(&'a self, id: &'a str) -> StoreFuture<'a, Option<StoredSession>> {
        Box::pin(async move {
            let mut command = redis::cmd("HMGET");
            command.arg(self.keys.session(id)).arg("owner").arg("record");
            let (owner, record): (Option<String>, Option<Bytes>) = self.only(self.link.ask(vec![command]).await?)?;
            let (Some(owner), Some(record)) = (owner, record) else { return Ok(None) };
            Ok(Some(StoredSession { owner: NodeId::parse(&owner), record }))
        })
    }

    fn claim<'a>(
        &'a self,
        id: &'a str,
        from: Option<&'a NodeId>,
        to: Option<&'a NodeId>,
    ) -> StoreFuture<'a, WriteOutcome> {
        Box::pin(async move {
            let mut command = CLAIM.on(&[&self.keys.session(id)]);
            command.arg(name(from)).arg(name(to));
            let answers = self.link.ask(vec![command]).await?;
            self.written(self.only(answers)?)
        })
    }

    fn touch<'a>(&'a self, ids: &'a [String], owner: &'a NodeId, life: Duration) -> StoreFuture<'a, Vec<WriteOutcome>> {
        Box::pin(async move {
            let owner = owner.to_string();
            let one = |id: &String| {
                let mut command = TOUCH.on(&[&self.keys.session(id), &self.keys.events(id)]);
                command.arg(&owner).arg(millis(life));
                command
            };
            self.all_written(self.link.ask(ids.iter().map(one).collect()).await?)
        })
    }

    fn delete<'a>(&'a self, id: &'a str, owner: &'a NodeId) -> StoreFuture<'a, WriteOutcome> {
        Box::pin(async move {
            let mut command = DELETE.on(&[&self.keys.session(id), &self.keys.events(id)]);
            command.arg(owner.to_string());
            let answers = self.link.ask(vec![command]).await?;
            self.written(self.only(answers)?)
        })
    }
}

impl EventStore for Redis {
    fn write<'a>(
        &'a self,
        owner: &'a NodeId,
        news: &'a [(String, SessionDelta)],
    ) -> StoreFuture<'a, Vec<WriteOutcome>> {
        Box::pin(async move {
            let owner = owner.to_string();
            let commands = news.iter().map(|(id, news)| self.write_one(&owner, id, news)).collect();
            self.all_written(self.link.ask(commands).await?)
        })
    }

    fn read<'a>(&'a self, id: &'a str) -> StoreFuture<'a, Vec<StoredEvent>> {
        Box::pin(async move {
            let mut command = redis::cmd("XRANGE");
            command.arg(self.keys.events(id)).arg("-").arg("+");
            let entries: Vec<StreamEntry> = self.only(self.link.ask(vec![command]).await?)?;
            let one = |(entry, (_, stream, _, at, _, event)): StreamEntry| {
                let position = entry.strip_suffix("-0").and_then(|position| position.parse().ok());
                let position = position.ok_or_else(|| RedisFailure::unexpected(&self.server).away)?;
                Ok(StoredEvent { id: EventId { stream, position }, at, event })
            };
            entries.into_iter().map(one).collect()
        })
    }
}
