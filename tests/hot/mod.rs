//! The hot paths of a call, with a client and servers on threads with blocking sockets, so that only the gateway is
//! counted.

mod client;
mod fixture;
mod upstream;
mod wire;

pub use client::Client;
pub use fixture::HotPathFixture;

/// The era of a client or a server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Era {
    /// 2025-11-25: initialize, then calls in a session.
    Handshake,
    /// 2026-07-28: every request is self-contained.
    PerRequest,
}

/// A route through the gateway and the call that takes it.
#[derive(Debug, Clone, Copy)]
pub struct Route {
    /// Name in tables and budgets.
    pub name: &'static str,
    client: Era,
    /// The called group.
    group: &'static str,
    /// The called tool; `None` lists the tools.
    tool: Option<&'static str>,
    /// A text that every response contains.
    mark: &'static str,
}

/// All measured routes.
pub const ROUTES: [Route; 11] = [
    Route::call("2025-11-25 to 2025-11-25", Era::Handshake, "older", upstream::SMALL),
    Route::call("2026-07-28 to 2026-07-28", Era::PerRequest, "newer", upstream::SMALL),
    Route::call("2025-11-25 to 2026-07-28", Era::Handshake, "newer", upstream::SMALL),
    Route::call("2026-07-28 to 2025-11-25", Era::PerRequest, "older", upstream::SMALL),
    Route::call("2025-11-25 to 2025-11-25, events", Era::Handshake, "older", upstream::EVENTS),
    Route::call("2026-07-28 to 2026-07-28, events", Era::PerRequest, "newer", upstream::EVENTS),
    Route::call("2026-07-28 to 2025-11-25, 10 KB", Era::PerRequest, "older", upstream::LARGE),
    Route::elements("2026-07-28 to 2025-11-25, stdio", Era::PerRequest, "child"),
    Route::elements("2025-11-25 to built in", Era::Handshake, "table"),
    Route::elements("2026-07-28 to built in", Era::PerRequest, "table"),
    Route { name: "2025-11-25 merged list", client: Era::Handshake, group: "both", tool: None, mark: "newer__" },
];

impl Route {
    const fn call(name: &'static str, client: Era, group: &'static str, tool: &'static str) -> Self {
        Self { name, client, group, tool: Some(tool), mark: upstream::MARK }
    }

    const fn elements(name: &'static str, client: Era, group: &'static str) -> Self {
        Self { name, client, group, tool: Some("getElement"), mark: "Hydrogen" }
    }
}

impl Era {
    /// The revision of this era.
    pub fn revision(self) -> &'static str {
        match self {
            Self::Handshake => "2025-11-25",
            Self::PerRequest => "2026-07-28",
        }
    }
}
