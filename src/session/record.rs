//! Serialized form of a session in the shared store, from which another node adopts it.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use super::outbox::StreamsRecord;
use super::{SessionId, SessionTransport};
use crate::call::{ClientInfo, ListFingerprints};
use crate::dialect::Revision;
use crate::identity::Identity;
use crate::protocol::{Level, Raw};
use crate::store::traits::StoredSession;

/// The stored state of a session except its events.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct SessionRecord {
    /// Format version; records with another one are ignored.
    shape: u32,
    /// Who opened the session.
    pub identity: Arc<Identity>,
    /// Group that the session was opened on.
    pub group: String,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    revision: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    capabilities: Option<Box<RawValue>>,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    info: Option<Box<RawValue>>,
    pub(super) progress: SessionProgress,
}

/// What changes in the course of a session. It is written without the rest, which is what the client said of itself and
/// may be long.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(super) struct SessionProgress {
    /// Number of takeovers so far. It is the high half of event positions and record versions, so both grow across
    /// owners.
    pub(super) takeovers: u32,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    level: Option<String>,
    pub(super) initialized: bool,
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub(super) subscriptions: Vec<String>,
    /// Fingerprints of the lists that the client has seen or was notified of.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub(super) lists: Option<ListFingerprints>,
    /// Resumable upstream sessions by upstream name.
    #[serde(skip_serializing_if = "BTreeMap::is_empty", default)]
    pub(super) upstreams: BTreeMap<String, String>,
    /// Stream state; `None` for single-connection sessions.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub(super) streams: Option<StreamsRecord>,
}

/// Format version that this build writes and reads.
const RECORD_SHAPE: u32 = 3;

impl SessionRecord {
    pub(super) fn new(identity: Arc<Identity>, group: &str) -> Self {
        Self {
            shape: RECORD_SHAPE,
            identity,
            group: group.to_owned(),
            revision: None,
            capabilities: None,
            info: None,
            progress: SessionProgress::default(),
        }
    }

    /// Decodes a record; `None` when it is malformed or has another format version.
    pub fn decode(stored: &StoredSession) -> Option<Self> {
        let mut record: Self = serde_json::from_slice(&stored.record).ok()?;
        if let Some(changes) = &stored.changes {
            record.progress = serde_json::from_slice(changes).ok()?;
        }
        (record.shape == RECORD_SHAPE).then_some(record)
    }

    pub(super) fn encode(&self) -> Bytes {
        serde_json::to_vec(self).unwrap_or_default().into()
    }

    /// Whether it has what the client said of itself, which does not change after that.
    pub(super) fn has_client(&self) -> bool {
        self.revision.is_some()
    }

    /// Whether another node can adopt the session. Single-connection sessions end with their connection.
    pub fn can_be_adopted(&self, id: SessionId) -> bool {
        id.transport() == SessionTransport::Http && self.progress.streams.is_some() && self.client().is_some()
    }

    pub(super) fn set_client(&mut self, client: &ClientInfo, level: Option<Level>) {
        let raw = |raw: &Raw| serde_json::from_slice(raw.as_bytes()).ok();
        self.revision = Some(client.revision.to_string());
        self.capabilities = raw(&client.capabilities);
        self.info = client.info.as_ref().and_then(raw);
        self.progress.level = level.map(|level| level.as_str().to_owned());
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
        self.progress.level.as_deref().and_then(Level::parse)
    }
}

impl SessionProgress {
    pub(super) fn encode(&self) -> Bytes {
        serde_json::to_vec(self).unwrap_or_default().into()
    }
}
