//! Cluster affinity: which calls must run on the same node.

use std::fmt::Write;

use sha2::{Digest, Sha256};

use super::group::Group;
use super::route::string_param;
use crate::call::Call;
use crate::protocol::{Key, Method};
use crate::upstream::{ConnectionMode, List};

impl Group {
    /// The affinity key of a call without a session; `None` where any node may make the call. A stdio child
    /// with sessions runs on one node per key, so that its callers find their state there whichever node they
    /// reach. A call in a session runs on the node that owns the session.
    pub fn affinity_key(&self, call: &Call) -> Option<String> {
        if call.sink.is_some() {
            return None;
        }
        let view = self.view(call.client.revision);
        let name;
        let (member, _) = match call.method {
            Method::ToolsCall | Method::PromptsGet => {
                name = string_param(call, Key::Name).ok()?;
                let list = if call.method == Method::ToolsCall { List::Tools } else { List::Prompts };
                view.find_by_name(list, &name)?
            }
            Method::ResourcesRead => {
                name = string_param(call, Key::Uri).ok()?;
                view.find_by_uri(&name)?
            }
            // What is heard and listed of a child comes from where its calls go, if it is the only one.
            Method::Listen
            | Method::ToolsList
            | Method::PromptsList
            | Method::ResourcesList
            | Method::TemplatesList => {
                let mut children = view.members.iter().filter(|member| member.leg.is_child_with_sessions());
                match (children.next(), children.next()) {
                    (Some(only), None) => (only, ""),
                    _ => return None,
                }
            }
            _ => return None,
        };
        let upstream = &member.upstream;
        if !member.leg.is_child_with_sessions() {
            return None;
        }
        let mut key = upstream.name().to_string();
        if upstream.spec().connection_mode == ConnectionMode::PerClient {
            let mut hash = Sha256::new();
            hash.update(call.caller.id().as_bytes());
            hash.update([0]);
            hash.update([member.leg.accepted_requests(call).bits()]);
            key.push('/');
            for byte in &hash.finalize()[..16] {
                // Writing to a string cannot fail.
                let _ = write!(key, "{byte:02x}");
            }
        }
        Some(key)
    }
}
