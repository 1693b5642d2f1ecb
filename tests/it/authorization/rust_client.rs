//! The official Rust SDK logs in through a gateway that nginx serves below a path.

use rmcp::model::CallToolRequestParams;
use rmcp::transport::auth::{AuthClient, AuthorizationRequest, OAuthState};
use rmcp::transport::streamable_http_client::StreamableHttpClientTransportConfig;
use rmcp::transport::{AuthorizationManager, StreamableHttpClientTransport};
use rmcp::{ClientLifecycleMode, ClientServiceExt, ServiceError};

use super::scopes::with_rules;
use super::*;
use crate::authorization_server::{CALLBACK, fill_in_pages};
use crate::harness::{HttpRequest, TEST_TIMEOUT};
use crate::nginx::{Nginx, serving_below};
use crate::ports::ReservedPort;
use crate::scripted_server::{ScriptedServer, ServerTransport};

/// nginx that serves a gateway below `/gate`, and the URL of the gateway there.
async fn below_a_path(port: u16, gateway: std::net::SocketAddr) -> Nginx {
    let folder = TempFolder::new("nginx-rust-client");
    folder.write("nginx.conf", &serving_below("/gate", &format!("127.0.0.1:{port}"), "", gateway));
    let nginx = Nginx::start(folder).await;
    let serving = async {
        let probe = || HttpRequest::to(([127, 0, 0, 1], port).into(), "GET", "/gate/healthz").attempt();
        while !probe().await.is_ok_and(|received| received.status == 200) {
            tokio::time::sleep(std::time::Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(3 * TEST_TIMEOUT, serving).await.expect("nginx serves");
    nginx
}

fn tool(name: &'static str) -> CallToolRequestParams {
    CallToolRequestParams::new(name).with_arguments(serde_json::Map::new())
}

/// From the challenge to a token: the SDK discovers and registers, a person fills in the pages.
async fn logged_in(url: &str, challenge: &str) -> AuthorizationManager {
    let mut state = OAuthState::new(url, None).await.unwrap();
    let wanted =
        AuthorizationRequest::new(CALLBACK).with_client_name("a client of the tests").with_challenge(challenge);
    state.start_authorization(wanted).await.unwrap();
    let request = state.get_authorization_url().await.unwrap();
    state.handle_callback_url(fill_in_pages(&request, "ann").await.as_str()).await.unwrap();
    state.into_authorization_manager().expect("a token")
}

#[tokio::test]
async fn rmcp_logs_in_and_steps_up_below_a_path() {
    let server = AuthorizationServer::oidc_provider(&[("LATER_SCOPES", "1")]).await;
    let upstream = ScriptedServer::start("db", ServerTransport::Http).await;
    let reserved = ReservedPort::new();
    let port = reserved.number();
    let base = format!("http://127.0.0.1:{port}/gate");
    let gateway = Configured::with("rust-client", &with_rules(&server, &upstream), |settings| {
        settings.policy.public_url = Some(rialto::policy::PublicUrl::parse(&base).unwrap());
    })
    .await;
    let _nginx = below_a_path(port, gateway.rialto.address).await;
    let url = format!("{base}/mcp");

    let stranger = StreamableHttpClientTransport::from_uri(&*url);
    let refused = ().serve_with_lifecycle(stranger, ClientLifecycleMode::Initialize).await.unwrap_err();
    let challenge = refused.auth_challenge().unwrap_or_else(|| panic!("no challenge: {refused}")).to_owned();
    assert!(challenge.contains(&format!("\"{base}/.well-known/oauth-protected-resource/mcp\"")), "{challenge}");

    let authorized = AuthClient::new(reqwest::Client::new(), logged_in(&url, &challenge).await);
    let config = StreamableHttpClientTransportConfig::with_uri(&*url);
    let transport = StreamableHttpClientTransport::with_client(authorized.clone(), config);
    let client = ().serve_with_lifecycle(transport, ClientLifecycleMode::Initialize).await.unwrap();
    assert_eq!(gateway.principals(), [format!("{}|ann", server.issuer)]);
    let offered = client.list_all_tools().await.unwrap();
    assert!(offered.iter().any(|tool| tool.name == "do"), "{offered:?}");
    client.call_tool(tool("do")).await.unwrap();
    assert_eq!((server.requests("POST /reg"), server.requests("POST /token")), (1, 1));
    assert_eq!(upstream.count("tools/call"), 1);

    let refused = client.call_tool(tool("echo")).await.unwrap_err();
    let ServiceError::TransportSend(_) = &refused else { panic!("{refused:?}") };
    assert_eq!(upstream.count("tools/call"), 1, "{refused}");
    let manager = authorized.auth_manager.lock().await;
    let request = manager.request_scope_upgrade("mcp:read mcp:write").await.unwrap();
    let callback = fill_in_pages(&request, "ann").await;
    let callback = rmcp::transport::auth::AuthorizationCallback::from_redirect_url(callback.as_str()).unwrap();
    let issuer = callback.issuer.as_deref();
    manager.exchange_code_for_token_with_issuer(&callback.code, &callback.csrf_token, issuer).await.unwrap();
    drop(manager);
    client.call_tool(tool("echo")).await.unwrap();
    assert_eq!(upstream.count("tools/call"), 2);
    client.cancel().await.unwrap();
    let sessions = &gateway.rialto.inbound.sessions;
    crate::harness::until("its session is ended", || sessions.count() == 0).await;
}
