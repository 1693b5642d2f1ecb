//! A tour of the library: a gateway in this process, and a client that uses it.
//!
//! Run it with `cargo run --example tour`.

use std::sync::Arc;

use rialto::app::{App, AppSettings};
use rialto::client::{Client, ClientOptions, Host, ServerRequestFuture};
use rialto::mcp_client::Target;
use rialto::protocol::{ErrorObject, Method, Notification, NotificationMethod, Raw, code};
use serde_json::json;

/// Prints progress and refuses server requests.
struct Printer;

impl Host for Printer {
    fn capabilities(&self) -> Raw {
        Raw::empty()
    }

    fn on_notification(&self, notification: &Notification) {
        if let (NotificationMethod::Progress, Some(params)) = (&notification.method, &notification.params) {
            println!("  progress: {params}");
        }
    }

    fn on_server_request<'a>(&'a self, method: &'a Method, _: Option<&'a Raw>) -> ServerRequestFuture<'a> {
        Box::pin(async move { Err(ErrorObject::new(code::METHOD_NOT_FOUND, format!("nobody answers {method} here"))) })
    }
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    // Port 0 picks a free port; the oneshot channel stops the server.
    let gateway = App::bind(AppSettings { listen: ([127, 0, 0, 1], 0).into(), ..AppSettings::default() }).await?;
    let url = format!("http://{}/mcp", gateway.address());
    let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
    let serving = tokio::spawn(gateway.run(async {
        let _ = stopped.await;
    }));

    let options = ClientOptions { host: Arc::new(Printer), ..ClientOptions::default() };
    let client = Client::connect(&Target::url(&url)?, options).await?;
    println!("{url} speaks {} over {}", client.revision(), client.probe_report().transport);
    for tool in client.tools().await? {
        println!("  tool: {}", tool.get("name").unwrap_or_else(Raw::empty));
    }
    let found = client.call_tool("getElement", Raw::of(&json!({ "name": "Au" }))).await?;
    println!("{}", found.at(&["structuredContent", "content"]).unwrap_or_else(Raw::empty));
    client.call_tool("surveyElements", Raw::of(&json!({ "count": 3, "delayMs": 10 }))).await?;
    client.close().await;

    // Dropping the sender would stop the server as well.
    let _ = stop.send(());
    let clean = serving.await?;
    println!("stopped; all calls finished in time: {clean}");
    Ok(())
}
