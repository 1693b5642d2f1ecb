//! `me`: who is asking and what the console can do for them. `openapi.json`: the description of the API.

use http::{Method as Verb, StatusCode};
use serde_json::json;

use super::api::{AdminRequest, ApiAnswer, ApiResult, ApiRoute, JSON, rfc3339};
use super::calls::recording_json;
use super::openapi;
use crate::inbound::ResponseContent;
use crate::policy::OperatorRight;

pub(super) fn routes() -> Vec<ApiRoute> {
    vec![
        ApiRoute::get("me", OperatorRight::Look, |request| Box::pin(async move { me(&request) })),
        ApiRoute {
            verb: &Verb::GET,
            path: "openapi.json",
            may: None,
            gathers: false,
            is_heavy: false,
            handler: |_| Box::pin(async { Ok(document()) }),
        },
    ]
}

fn me(request: &AdminRequest) -> ApiResult {
    let (console, operator) = (&request.console, &request.operator);
    let inbound = console.inbound()?;
    let rights: Vec<&str> =
        OperatorRight::ALL.into_iter().filter(|right| *right <= operator.may).map(OperatorRight::as_str).collect();
    let (policy, status) = (inbound.policy(), inbound.admin.status());
    Ok(ApiAnswer::json(&json!({
        "operator": operator.name,
        "principal": operator.principal,
        "may": operator.may.as_str(),
        "rights": rights,
        "edit": policy.console.edit,
        "node": console.node(),
        "version": status.version,
        "started": rfc3339(console.started_at),
        "clustered": inbound.cluster.is_some(),
        "recording": recording_json(&inbound.calls),
    })))
}

fn document() -> ApiAnswer {
    let body = ResponseContent::Full(openapi());
    ApiAnswer { status: StatusCode::OK, media_type: JSON, headers: Vec::new(), body }
}
