//! The paths of a call that are to stay lean, with a client and servers for them that are threads here:
//! plain blocking sockets, so that nothing but the gateway is counted.

mod client;
mod stage;
mod upstream;
mod wire;

pub use client::Client;
pub use stage::Stage;

/// How a client and a server talk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Era {
    /// A handshake, then calls in a session: 2025-11-25.
    Handshake,
    /// Every request by itself: 2026-07-28.
    PerRequest,
}

/// One path through the gateway, and the call that takes it.
#[derive(Debug, Clone, Copy)]
pub struct Route {
    /// What it is called in tables.
    pub name: &'static str,
    client: Era,
    /// The group that is called.
    group: &'static str,
    /// The tool that is called; without one, the tools are listed.
    tool: Option<&'static str>,
    /// Stands in every answer.
    mark: &'static str,
}

/// All of them.
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
    /// The revision that is spoken.
    pub fn revision(self) -> &'static str {
        match self {
            Self::Handshake => "2025-11-25",
            Self::PerRequest => "2026-07-28",
        }
    }
}
