//! A session as it is kept in a shared store, so that another node can go on with it.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use super::outbox::StreamsRecord;
use super::{SessionId, SessionTransport};
use crate::call::{ClientInfo, ListFingerprints, Principal};
use crate::dialect::Revision;
use crate::protocol::{Level, Raw};

/// A session as it is kept.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Record {
    /// Tells records of this shape from later ones.
    shape: u32,
    /// Who opened it.
    pub principal: String,
    /// At which group.
    pub group: String,
    /// How often it was taken over.
    pub(super) takeovers: u32,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    revision: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    capabilities: Option<Box<RawValue>>,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    info: Option<Box<RawValue>>,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    level: Option<String>,
    pub(super) initialized: bool,
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub(super) subscriptions: Vec<String>,
    /// The lists that its client knows.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub(super) lists: Option<ListFingerprints>,
    /// The sessions that upstreams keep for it.
    #[serde(skip_serializing_if = "BTreeMap::is_empty", default)]
    pub(super) upstreams: BTreeMap<String, String>,
    /// Its streams; nothing where everything goes to one connection.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub(super) streams: Option<StreamsRecord>,
}

/// The shape that is written and read.
const SHAPE: u32 = 1;

impl Record {
    /// A record of who opened a session, and where.
    pub(super) fn new(principal: &Principal, group: &str) -> Self {
        Self {
            shape: SHAPE,
            principal: principal.to_string(),
            group: group.to_owned(),
            takeovers: 0,
            revision: None,
            capabilities: None,
            info: None,
            level: None,
            initialized: false,
            subscriptions: Vec::new(),
            lists: None,
            upstreams: BTreeMap::new(),
            streams: None,
        }
    }

    /// Reads a record; nothing when it is none that we know.
    pub fn read(bytes: &[u8]) -> Option<Self> {
        serde_json::from_slice(bytes).ok().filter(|record: &Self| record.shape == SHAPE)
    }

    /// As it is kept.
    pub(super) fn write(&self) -> Bytes {
        serde_json::to_vec(self).unwrap_or_default().into()
    }

    /// Whether another node can go on with the session: not when it lives by one connection.
    pub fn can_move(&self, id: SessionId) -> bool {
        id.transport() == SessionTransport::Http && self.streams.is_some() && self.client().is_some()
    }

    pub(super) fn describe(&mut self, client: &ClientInfo, level: Option<Level>) {
        let raw = |raw: &Raw| serde_json::from_slice(raw.as_bytes()).ok();
        self.revision = Some(client.revision.to_string());
        self.capabilities = raw(&client.capabilities);
        self.info = client.info.as_ref().and_then(raw);
        self.level = level.map(|level| level.as_str().to_owned());
    }

    pub(super) fn client(&self) -> Option<Arc<ClientInfo>> {
        let raw = |raw: &RawValue| Raw::parse(&Bytes::copy_from_slice(raw.get().as_bytes())).ok();
        Some(Arc::new(ClientInfo {
            revision: Revision::parse(self.revision.as_deref()?)?,
            capabilities: self.capabilities.as_deref().and_then(raw)?,
            info: self.info.as_deref().and_then(raw),
        }))
    }

    pub(super) fn level(&self) -> Option<Level> {
        self.level.as_deref().and_then(Level::parse)
    }
}
