//! One check per feature for a client and a server.

use rialto::dialect::Revision;
use serde_json::{Value, json};

use super::client::{Checked, Client, Params, Response, ensure};
use super::handlers::{NUMBERS, raw_member};
use super::known_limits::{Fallback, limit};
use super::scripted_server::{CLOCK, META, STATIC, ScriptedServer};
use super::variants::{Feature, Variant};

/// One cell of the matrix: a client, a server and a feature.
pub struct Cell<'c> {
    pub client: &'c mut Client,
    pub server: &'c ScriptedServer,
    pub feature: Feature,
}

/// Polls a condition for up to 5 seconds.
pub async fn until(what: &str, mut holds: impl FnMut() -> bool) -> Checked<()> {
    for _ in 0..1000 {
        if holds() {
            return Ok(());
        }
        tokio::time::sleep(std::time::Duration::from_millis(5)).await;
    }
    Err(format!("never: {what}"))
}

fn text(answer: &Response) -> &str {
    answer.message["result"]["content"][0]["text"].as_str().unwrap_or_default()
}

pub fn expect_text(answer: &Response, expected: &str) -> Checked<()> {
    let fine = text(answer) == expected && answer.message["result"]["isError"] != true;
    ensure(fine, &format!("not {expected:?}"), &answer.message)
}

fn expect_tool_error(answer: &Response, expected: &str) -> Checked<()> {
    let fine = text(answer) == expected && answer.message["result"]["isError"] == true;
    ensure(fine, &format!("no failure {expected:?}"), &answer.message)
}

fn expect_error_code(answer: &Response, code: i64) -> Checked<()> {
    ensure(answer.message["error"]["code"] == code, &format!("not {code}"), &answer.message)
}

/// The raw JSON text at a path of a response.
fn raw_path<'a>(answer: &'a Response, path: &[&str]) -> &'a str {
    let mut raw = answer.raw.as_str();
    for key in path {
        raw = raw_member(raw, key).unwrap_or_default();
    }
    raw
}

fn expect_raw(found: &str, expected: &str) -> Checked<()> {
    ensure(found == expected, &format!("not {expected}"), &json!(found))
}

impl Cell<'_> {
    fn handshake_client(&self) -> bool {
        !self.client.variant.is_per_request()
    }

    fn handshake_server(&self) -> bool {
        !self.server.variant.is_per_request()
    }

    pub async fn check(&mut self) -> Checked<()> {
        let (client, server): (Variant, Variant) = (self.client.variant, self.server.variant);
        let fallback = limit(self.feature, client, server).map(|limit| limit.fallback);
        if fallback == Some(Fallback::ServerLacksIt) {
            return self.check_unknown_tool().await;
        }
        if fallback == Some(Fallback::ClientLacksIt) {
            return self.check_client_not_asked().await;
        }
        match self.feature {
            Feature::Tools => self.tools().await,
            Feature::Structured => self.structured(fallback).await,
            Feature::Progress => self.progress().await,
            Feature::Cancellation => self.cancellation().await,
            Feature::Logging => self.logging(fallback).await,
            Feature::Resources => self.resources().await,
            Feature::Templates => self.templates().await,
            Feature::Subscription => self.subscription().await,
            Feature::ListChanges => self.list_changes().await,
            Feature::Prompts => self.prompts().await,
            Feature::Completion => self.completion().await,
            Feature::Sampling => {
                self.check_server_request("think", "thoughts on bridges", "sampling/createMessage").await
            }
            Feature::FormElicitation => self.check_server_request("confirm", "accept Ada", "elicitation/create").await,
            Feature::UrlElicitation => self.check_server_request("visit", "accept", "elicitation/create").await,
            Feature::Roots => self.roots(fallback).await,
            Feature::Extension => self.extension().await,
            Feature::UnknownFields => self.unknown_fields().await,
            Feature::ErrorCodes => self.error_codes(fallback).await,
        }
    }

    fn tool(&self) -> &'static str {
        match self.feature {
            Feature::Structured => "measure",
            Feature::FormElicitation => "confirm",
            _ => "visit",
        }
    }

    /// The server lacks the feature; its own error reaches the client.
    async fn check_unknown_tool(&mut self) -> Checked<()> {
        let tool = self.tool();
        let answer = self.client.call(tool, json!({})).await?;
        expect_error_code(&answer, -32602)?;
        expect_raw(raw_path(&answer, &["error", "message"]), &format!("\"Unknown tool: {tool}\""))
    }

    /// The client lacks the capability; the server request is refused.
    async fn check_client_not_asked(&mut self) -> Checked<()> {
        let (tool, kind) = (self.tool(), if self.feature == Feature::UrlElicitation { "url" } else { "form" });
        self.server.take_refusals();
        let conforming = self.client.call(tool, json!({})).await?;
        let unconditional = self.client.call("insist", json!({ "kind": kind })).await?;
        for answer in [&conforming, &unconditional] {
            ensure(
                answer.server_requests.is_empty(),
                "the client got a server request",
                &json!(answer.server_requests),
            )?;
        }
        if self.handshake_server() {
            expect_tool_error(&conforming, &format!("the client cannot be asked: {kind}"))?;
            expect_tool_error(&unconditional, "the client refused: -32601")?;
            return ensure(self.server.take_refusals() == [-32601], "another refusal", &Value::Null);
        }
        let needed = format!(r#"{{"elicitation":{{"{kind}":{{}}}}}}"#);
        expect_tool_error(&conforming, &format!("the client lacks {kind}: the server needs {needed}"))?;
        expect_tool_error(&unconditional, "the client did not answer: the client cannot be asked this")
    }

    async fn tools(&mut self) -> Checked<()> {
        let listed = self.client.request("tools/list", json!({})).await?;
        let tools = &listed.message["result"]["tools"];
        self.client.record_header_mirrors(tools);
        let revision = self.client.variant.revision;
        let allowed = |key: &str| match key {
            "name" | "description" | "inputSchema" | "vendorField" => true,
            "annotations" => revision >= Revision::V2025_03_26,
            "title" | "outputSchema" => revision >= Revision::V2025_06_18,
            "icons" => revision >= Revision::V2025_11_25,
            "execution" => revision == Revision::V2025_11_25,
            _ => false,
        };
        for tool in tools.as_array().into_iter().flatten() {
            let strange = tool.as_object().into_iter().flatten().find(|(key, _)| !allowed(key));
            ensure(strange.is_none(), "a member that the revision does not have", tool)?;
        }
        let add = tools.as_array().and_then(|tools| tools.iter().find(|tool| tool["name"] == "add"));
        ensure(add.is_some_and(|add| add["vendorField"]["kept"] == true), "no tool as it was", tools)?;
        self.check_cache_hint(&listed)?;
        expect_text(&self.client.call("add", json!({ "a": 2, "b": 3 })).await?, "5")
    }

    /// Cache hints are present exactly where the client revision has them.
    fn check_cache_hint(&self, answer: &Response) -> Checked<()> {
        let result = &answer.message["result"];
        let has_hint = result["ttlMs"].is_u64() && matches!(result["cacheScope"].as_str(), Some("public" | "private"));
        ensure(has_hint != self.handshake_client(), "a cache hint is missing or unexpected", result)
    }

    async fn structured(&mut self, fallback: Option<Fallback>) -> Checked<()> {
        let answer = self.client.call("measure", json!({})).await?;
        expect_text(&answer, "mild")?;
        let expected = if fallback == Some(Fallback::TextOnly) { "" } else { NUMBERS };
        expect_raw(raw_path(&answer, &["result", "structuredContent"]), expected)
    }

    async fn progress(&mut self) -> Checked<()> {
        let has_message = self.client.variant.revision >= Revision::V2025_03_26
            && self.server.variant.revision >= Revision::V2025_03_26;
        for token in [r#""token""#, "7"] {
            let params = Params::from(json!({ "name": "count", "arguments": {} }));
            let params = params.with_meta(&format!(r#""progressToken":{token}"#));
            let answer = self.client.request("tools/call", params).await?;
            expect_text(&answer, "counted")?;
            ensure(answer.notifications.len() == 3, "other notices", &json!(answer.notifications))?;
            for (n, raw) in answer.raw_notifications.iter().enumerate() {
                let params = raw_member(raw, "params").unwrap_or_default();
                expect_raw(raw_member(params, "progressToken").unwrap_or_default(), token)?;
                expect_raw(raw_member(params, "progress").unwrap_or_default(), &format!("{}.50", n + 1))?;
                expect_raw(
                    raw_member(params, "message").unwrap_or_default(),
                    if has_message { "\"on the way\"" } else { "" },
                )?;
            }
        }
        let silent = self.client.call("count", json!({})).await?;
        ensure(silent.notifications.is_empty(), "progress without a progress token", &json!(silent.notifications))
    }

    async fn cancellation(&mut self) -> Checked<()> {
        let before = self.server.cancelled_calls();
        let params = Params::from(json!({ "name": "hang", "arguments": {} })).with_meta(r#""progressToken":1"#);
        let id = self.client.send("tools/call", params).await?;
        self.client.wait_for_progress(&id).await?;
        self.client.cancel(&id).await?;
        until("the server has cancelled it", || self.server.cancelled_calls() == before + 1).await?;
        self.client.check_silent(&id).await
    }

    async fn logging(&mut self, fallback: Option<Fallback>) -> Checked<()> {
        let levels = |answer: &Response| -> Vec<String> {
            answer
                .notifications
                .iter()
                .map(|notice| notice["params"]["level"].as_str().unwrap_or("").to_owned())
                .collect()
        };
        let first = levels(&self.client.call("log", json!({})).await?);
        let unasked = self.handshake_client() && fallback != Some(Fallback::NoLogsBeforeSetLevel);
        let expected: &[&str] = if unasked { &["debug", "warning", "error"] } else { &[] };
        ensure(first == expected, "other levels before one was chosen", &json!(first))?;
        let mut params = Params::from(json!({ "name": "log", "arguments": {} }));
        if self.handshake_client() {
            let chosen = self.client.request("logging/setLevel", json!({ "level": "warning" })).await?;
            ensure(chosen.message["result"].is_object(), "no level was chosen", &chosen.message)?;
        } else {
            params = params.with_meta(&format!(r#""{META}logLevel":"warning""#));
        }
        let answer = self.client.request("tools/call", params).await?;
        ensure(levels(&answer) == ["warning", "error"], "other levels", &json!(answer.notifications))?;
        ensure(
            answer.notifications[0]["params"]["data"]["said"] == "warning",
            "wrong log data",
            &json!(answer.notifications),
        )
    }

    async fn resources(&mut self) -> Checked<()> {
        let listed = self.client.request("resources/list", json!({})).await?;
        let resources = &listed.message["result"]["resources"];
        ensure(resources[0]["uri"] == STATIC && resources[0]["vendorField"] == 2, "another list", resources)?;
        self.check_cache_hint(&listed)?;
        let read = self.client.request("resources/read", json!({ "uri": STATIC })).await?;
        let contents = &read.message["result"]["contents"];
        ensure(contents[0]["text"] == "always the same" && contents[0]["uri"] == STATIC, "other contents", contents)?;
        self.check_cache_hint(&read)
    }

    async fn templates(&mut self) -> Checked<()> {
        let listed = self.client.request("resources/templates/list", json!({})).await?;
        let template = &listed.message["result"]["resourceTemplates"][0]["uriTemplate"];
        ensure(template == "puppet://item/{id}", "another template", template)?;
        self.check_cache_hint(&listed)?;
        let read = self.client.request("resources/read", json!({ "uri": "puppet://item/7" })).await?;
        ensure(read.message["result"]["contents"][0]["text"] == "item 7", "other contents", &read.message)
    }

    /// Opens subscriptions/listen and checks its acknowledgement.
    async fn listen(&mut self, filter: Value) -> Checked<Value> {
        let id = self.client.send("subscriptions/listen", json!({ "notifications": filter })).await?;
        let first = self.client.wait_for_notification("notifications/subscriptions/acknowledged").await?;
        ensure(first["params"]["notifications"] == filter, "not all is granted", &first)?;
        ensure(first["params"]["_meta"][format!("{META}subscriptionId")] == id, "of another request", &first)?;
        Ok(id)
    }

    async fn subscription(&mut self) -> Checked<()> {
        let handshake = self.handshake_client();
        let id = if handshake {
            let subscribed = self.client.request("resources/subscribe", json!({ "uri": CLOCK })).await?;
            ensure(subscribed.message["result"].is_object(), "not subscribed", &subscribed.message)?;
            Value::Null
        } else {
            self.listen(json!({ "resourceSubscriptions": [CLOCK] })).await?
        };
        until("the server has the subscription", || self.server.subscriber_count() > 0).await?;
        self.client.clear_notifications();
        expect_text(&self.client.call("tick", json!({})).await?, "ticked")?;
        let notification = self.client.wait_for_notification("notifications/resources/updated").await?;
        ensure(notification["params"]["uri"] == CLOCK, "another resource", &notification)?;
        self.check_subscription_id(&notification, &id)?;
        if handshake {
            let ended = self.client.request("resources/unsubscribe", json!({ "uri": CLOCK })).await?;
            ensure(ended.message["result"].is_object(), "still subscribed", &ended.message)?;
        } else {
            self.client.cancel(&id).await?;
        }
        until("the subscription has ended", || self.server.subscriber_count() == 0).await
    }

    /// The notification carries the id of its listen request in the per-request era.
    fn check_subscription_id(&self, notification: &Value, id: &Value) -> Checked<()> {
        let subscription_id = notification["params"]["_meta"].get(format!("{META}subscriptionId"));
        ensure(subscription_id == Some(id).filter(|id| !id.is_null()), "of another request", notification)
    }

    async fn list_changes(&mut self) -> Checked<()> {
        let id = match self.handshake_client() {
            true => Value::Null,
            false => self.listen(json!({ "toolsListChanged": true })).await?,
        };
        self.client.clear_notifications();
        expect_text(&self.client.call("grow", json!({})).await?, "grown")?;
        loop {
            // A gateway that has just started may send an earlier list change, too.
            let notification = self.client.wait_for_notification("notifications/tools/list_changed").await?;
            self.check_subscription_id(&notification, &id)?;
            let listed = self.client.request("tools/list", json!({})).await?;
            let tools = listed.message["result"]["tools"].as_array().cloned().unwrap_or_default();
            if tools.iter().any(|tool| tool["name"] == "extra") == self.server.has_extra_tool() {
                break;
            }
        }
        if !id.is_null() {
            self.client.cancel(&id).await?;
        }
        Ok(())
    }

    async fn prompts(&mut self) -> Checked<()> {
        let listed = self.client.request("prompts/list", json!({})).await?;
        ensure(listed.message["result"]["prompts"][0]["name"] == "greet", "another list", &listed.message)?;
        self.check_cache_hint(&listed)?;
        let got =
            self.client.request("prompts/get", json!({ "name": "greet", "arguments": { "name": "Ada" } })).await?;
        let text = &got.message["result"]["messages"][0]["content"]["text"];
        ensure(text == "Hello, Ada", "another prompt", &got.message)
    }

    async fn completion(&mut self) -> Checked<()> {
        let of = json!({ "type": "ref/prompt", "name": "greet" });
        let params = json!({ "ref": of, "argument": { "name": "name", "value": "A" } });
        let answer = self.client.request("completion/complete", params).await?;
        let values = &answer.message["result"]["completion"]["values"];
        ensure(*values == json!(["Ada", "Alan"]), "other values", &answer.message)
    }

    /// A tool sends one server request during a call.
    async fn check_server_request(&mut self, tool: &str, expected: &str, method: &str) -> Checked<()> {
        let before = self.server.call_count(tool);
        let answer = self.client.call(tool, json!({ "n": 1 })).await?;
        expect_text(&answer, expected)?;
        let methods: Vec<&str> = answer.server_requests.iter().map(|(method, _)| method.as_str()).collect();
        ensure(methods == [method], "unexpected server requests", &json!(methods))?;
        let rounds = if self.handshake_server() { 1 } else { 2 };
        ensure(self.server.call_count(tool) == before + rounds, "it was called more often", &json!(before))
    }

    async fn roots(&mut self, fallback: Option<Fallback>) -> Checked<()> {
        self.check_server_request("where", "file:///somewhere", "roots/list").await?;
        if self.handshake_client() {
            let changed = "notifications/roots/list_changed";
            let before = self.server.notification_count(changed);
            self.client.notify(changed, json!({})).await?;
            if fallback == Some(Fallback::NoRootChanges) {
                // Messages stay in order: once this round trip is done, the notification would have arrived.
                self.check_server_request("where", "file:///somewhere", "roots/list").await?;
                return ensure(self.server.notification_count(changed) == before, "it was passed on", &Value::Null);
            }
            until("the server gets the roots change", || self.server.notification_count(changed) == before + 1).await?;
        }
        Ok(())
    }

    async fn extension(&mut self) -> Checked<()> {
        let params = Params { members: format!(r#""given":{NUMBERS}"#), meta: String::new() };
        let answer = self.client.request("vendor/echo", params).await?;
        expect_raw(raw_path(&answer, &["result", "given"]), NUMBERS)
    }

    async fn unknown_fields(&mut self) -> Checked<()> {
        let param = r#"{"deep":[1.0,-0.0,{"é":"\u00e9"}]}"#;
        let members = format!(r#""name":"echo","arguments":{NUMBERS},"vendorParam":{param}"#);
        let params = Params { members, meta: r#""vendor/key":1.50e3"#.into() };
        let answer = self.client.request("tools/call", params).await?;
        expect_text(&answer, "echoed")?;
        expect_raw(raw_path(&answer, &["result", "vendorArguments"]), NUMBERS)?;
        expect_raw(raw_path(&answer, &["result", "vendorParam"]), param)?;
        expect_raw(raw_path(&answer, &["result", "_meta", "vendor/key"]), "1.50e3")?;
        ensure(raw_path(&answer, &["result", "content"]).contains("2.50"), "another block", &answer.message)
    }

    async fn error_codes(&mut self, fallback: Option<Fallback>) -> Checked<()> {
        let answer = self.client.call("fail", json!({ "code": 1234 })).await?;
        expect_error_code(&answer, 1234)?;
        expect_raw(raw_path(&answer, &["error", "message"]), "\"on purpose\"")?;
        expect_raw(raw_path(&answer, &["error", "data"]), NUMBERS)?;
        expect_error_code(&self.client.call("nothing", json!({})).await?, -32602)?;
        let missing = if self.handshake_client() { -32002 } else { -32602 };
        expect_error_code(
            &self.client.request("resources/read", json!({ "uri": "puppet://missing" })).await?,
            missing,
        )?;
        if !self.handshake_server() {
            return Ok(());
        }
        let answer = self.client.call("fail", json!({ "code": -32050 })).await?;
        if fallback == Some(Fallback::WrappedErrorCode) {
            expect_error_code(&answer, -32603)?;
            expect_raw(raw_path(&answer, &["error", "data", "code"]), "-32050")?;
            return expect_raw(raw_path(&answer, &["error", "data", "data"]), NUMBERS);
        }
        expect_error_code(&answer, -32050)?;
        expect_raw(raw_path(&answer, &["error", "data"]), NUMBERS)
    }
}
