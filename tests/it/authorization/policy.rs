//! Rules and rate limits of the file, for callers with real tokens.

use super::*;
use crate::authorization_server::OTHER_CLIENT;

/// What each of the claims of a token allows.
const RULES: &str = r#"
[[policy.rules]]
principals = ["role:admins"]
allow = { tools = ["elements/surveyElements"] }

[[policy.rules]]
principals = ["client:desktop"]
allow = { tools = ["elements/getElementByPosition"] }

[[policy.rules]]
principals = ["user:corp/bob"]
allow = { tools = ["elements/getElement"] }
"#;

const LIMITS: &str = r#"
[[policy.limits]]
name = "people"
principals = ["issuer:corp"]
per = ["caller"]
rate = "1/h"
burst = 3
"#;

#[tokio::test]
async fn rules_follow_the_claims_of_the_token() {
    let [corp, other] = [AuthorizationServer::oidc_provider(&[]).await, AuthorizationServer::oidc_provider(&[]).await];
    let text = format!("{}{}{RULES}", issuer("corp", &corp), issuer("other", &other));
    let gateway = Configured::start("rules", &text).await;
    let resource = gateway.resource();
    let list = async |token: &str| {
        let sending = gateway.rialto.modern("tools/list", json!({})).header("authorization", &bearer(token));
        let (status, listed) = sending.json().await;
        let tools = listed["result"]["tools"].as_array().cloned().unwrap_or_default();
        let names: Vec<String> = tools.iter().map(|tool| tool["name"].as_str().unwrap().to_owned()).collect();
        (status, names.join(" "))
    };
    let ann = corp.log_in("ann", SCOPE, Some(&resource)).await.access_token;
    let bob = corp.log_in("bob", SCOPE, Some(&resource)).await.access_token;
    let at_desktop = corp.log_in_with(OTHER_CLIENT, "ann", SCOPE, Some(&resource)).await.access_token;
    let other_bob = other.log_in("bob", SCOPE, Some(&resource)).await.access_token;
    assert_eq!(list(&ann).await, (200, "surveyElements".to_owned()));
    assert_eq!(list(&bob).await, (200, "getElement".to_owned()));
    assert_eq!(list(&at_desktop).await, (200, "getElementByPosition surveyElements".to_owned()));
    // The same name at another issuer may do nothing here.
    assert_eq!(list(&other_bob).await, (403, String::new()));
}

#[tokio::test]
async fn limits_count_a_caller_whatever_its_token() {
    let server = AuthorizationServer::oidc_provider(&[]).await;
    let gateway = Configured::start("limits", &format!("{}{LIMITS}", issuer("corp", &server))).await;
    let resource = gateway.resource();
    let ann = server.log_in("ann", SCOPE, Some(&resource)).await;
    let bob = server.log_in("bob", SCOPE, Some(&resource)).await.access_token;
    for _ in 0..3 {
        assert_eq!(gateway.status(&ann.access_token).await, 200);
    }
    let renewed = server.refresh(ann.refresh_token.as_deref().unwrap()).await.access_token;
    for token in [&ann.access_token, &renewed] {
        let refused = gateway.initialize(token).await;
        assert_eq!(refused.status, 429);
        assert!(refused.header("retry-after").is_some());
    }
    assert_eq!(gateway.status(&bob).await, 200);
}
