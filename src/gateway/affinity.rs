//! Which calls have to meet on one node.

use std::fmt::Write;

use sha2::{Digest, Sha256};

use super::group::Group;
use super::route::text;
use crate::call::Call;
use crate::protocol::Method;
use crate::upstream::{ConnectionMode, List};

impl Group {
    /// The name of the place where a call without a session has to be made; nothing where any node will
    /// do. A child that keeps sessions runs on one node for those it is for, so that they find there what
    /// it keeps for them, whichever node they ask. A session's own child is where the session is.
    pub fn place_of(&self, call: &Call) -> Option<String> {
        if call.sink.is_some() {
            return None;
        }
        let view = self.view();
        let named = |path: &[&str]| text(call, path).ok();
        let name;
        let (member, _) = match call.method {
            Method::ToolsCall | Method::PromptsGet => {
                name = named(&["name"])?;
                let list = if call.method == Method::ToolsCall { List::Tools } else { List::Prompts };
                view.by_name(list, &name)?
            }
            Method::ResourcesRead => {
                name = named(&["uri"])?;
                view.by_uri(&name)?
            }
            _ => return None,
        };
        let upstream = &member.upstream;
        if !upstream.is_child_with_sessions() {
            return None;
        }
        let mut place = upstream.name().to_string();
        if upstream.spec().connection_mode == ConnectionMode::PerClient {
            let mut hash = Sha256::new();
            hash.update(call.caller.principal.as_bytes());
            hash.update([0]);
            hash.update(call.client.capabilities.as_bytes());
            place.push('/');
            for byte in &hash.finalize()[..16] {
                // A text takes whatever is written to it.
                let _ = write!(place, "{byte:02x}");
            }
        }
        Some(place)
    }
}
