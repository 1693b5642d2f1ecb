//! Request handlers of the scripted server: one tool, resource or prompt per feature.

use std::collections::HashMap;
use std::sync::Arc;

use rialto::dialect::Revision;
use serde_json::value::RawValue;
use serde_json::{Map, Value, json};

use super::scripted_server::{CLOCK, LEVELS, Listener, META, STATIC, ScriptedServer, Session, Sink, notification_json};
use super::scripted_tasks::TASK_TOOL;

/// A request being handled.
pub struct RequestCx<'p> {
    pub scripted: &'p Arc<ScriptedServer>,
    pub session: &'p Arc<Session>,
    pub sink: &'p Sink,
    pub method: &'p str,
    pub id: Value,
    pub params: Value,
    pub raw: &'p str,
}

/// A JSON-RPC error to respond with.
#[derive(Debug)]
pub struct RpcError {
    pub code: i64,
    pub message: String,
    /// Raw JSON.
    pub data: Option<String>,
}

/// Why a tool stops before its result.
enum ToolStop {
    /// Input is required: the members of the `input_required` result.
    Input(String),
    /// The client lacks this capability.
    Unable(&'static str),
    /// The client answered the server request with this error code.
    Refused(i64),
    Failed(RpcError),
}

/// An input request: key, method and params.
pub type InputRequest = (&'static str, &'static str, Value);

/// JSON that changes if it is parsed and written again.
pub const NUMBERS: &str = r#"{"price":1.50,"big":12345678901234567890123,"tiny":1e-400,"text":"\u00e9\/"}"#;

impl RpcError {
    pub fn new(code: i64, message: &str) -> Self {
        Self { code, message: message.into(), data: None }
    }
}

impl From<RpcError> for ToolStop {
    fn from(error: RpcError) -> Self {
        Self::Failed(error)
    }
}

/// The raw JSON text of an object member.
pub fn raw_member<'r>(raw: &'r str, key: &str) -> Option<&'r str> {
    let members: HashMap<String, &'r RawValue> = serde_json::from_str(raw).ok()?;
    members.get(key).map(|value| value.get())
}

pub fn object_members(value: &Value) -> String {
    let text = value.to_string();
    text[1..text.len() - 1].to_owned()
}

pub fn text_result(text: &str) -> String {
    object_members(&json!({ "content": [{ "type": "text", "text": text }] }))
}

pub fn error_result(text: &str) -> String {
    object_members(&json!({ "content": [{ "type": "text", "text": text }], "isError": true }))
}

impl RequestCx<'_> {
    pub fn is_per_request(&self) -> bool {
        self.scripted.variant.is_per_request()
    }

    pub async fn handle(&self) -> Result<String, RpcError> {
        let handshake = !self.is_per_request();
        let params = &self.params;
        let done = match self.method {
            "initialize" if handshake => {
                self.scripted.initialize(self.session, params);
                object_members(&json!({
                    "protocolVersion": self.scripted.variant.revision.to_string(),
                    "capabilities": self.capabilities(),
                    "serverInfo": { "name": self.scripted.variant.name, "version": "1" },
                    "instructions": "pull the strings",
                }))
            }
            "server/discover" => {
                let versions = [self.scripted.variant.revision.to_string()];
                let more = json!({ "supportedVersions": versions, "capabilities": self.capabilities() });
                format!("{},{}", object_members(&more), r#""instructions":"pull the strings""#)
            }
            "ping" if handshake => String::new(),
            "logging/setLevel" if handshake => {
                self.scripted.set_level(self.session, &params["level"]);
                String::new()
            }
            "resources/subscribe" | "resources/unsubscribe" if handshake => {
                self.scripted.subscribe(self.session, &params["uri"], self.method == "resources/subscribe");
                String::new()
            }
            "subscriptions/listen" if !handshake => return self.listen().await,
            "tools/list" => object_members(&json!({ "tools": self.tools() })),
            "tools/call" => return self.call().await,
            "tasks/list" if handshake && self.scripted.has_tasks() => self.task_page(),
            "tasks/get" | "tasks/update" | "tasks/result" | "tasks/cancel" if self.scripted.has_tasks() => {
                return self.task_method().await;
            }
            "prompts/list" => {
                let arguments = json!([{ "name": "name", "required": true }]);
                object_members(&json!({ "prompts": [{ "name": "greet", "arguments": arguments }] }))
            }
            "prompts/get" => {
                let text = format!("Hello, {}", params["arguments"]["name"].as_str().unwrap_or("nobody"));
                object_members(
                    &json!({ "messages": [{ "role": "user", "content": { "type": "text", "text": text } }] }),
                )
            }
            "resources/list" => object_members(&json!({ "resources": [
                { "uri": STATIC, "name": "static", "vendorField": 2 }, { "uri": CLOCK, "name": "clock" },
            ] })),
            "resources/templates/list" => object_members(
                &json!({ "resourceTemplates": [{ "uriTemplate": "puppet://item/{id}", "name": "item" }] }),
            ),
            "resources/read" => self.read()?,
            "completion/complete" => {
                if params["ref"] != json!({ "type": "ref/prompt", "name": "greet" }) {
                    self.scripted.report_violation(format!("unknown completion reference: {params}"));
                }
                object_members(&json!({ "completion": { "values": ["Ada", "Alan"], "hasMore": false } }))
            }
            "vendor/echo" => {
                let given =
                    raw_member(self.raw, "params").and_then(|params| raw_member(params, "given")).unwrap_or("null");
                format!(r#""given":{given}"#)
            }
            other => {
                self.scripted.report_violation(format!("unknown method: {other}"));
                return Err(RpcError::new(-32601, "Method not found"));
            }
        };
        Ok(self.complete_result(&done, ""))
    }

    /// A complete result object with `_meta`, `resultType` and cache hints as the revision has them.
    pub fn complete_result(&self, members: &str, meta: &str) -> String {
        let joined =
            |parts: &[&str]| parts.iter().filter(|part| !part.is_empty()).copied().collect::<Vec<_>>().join(",");
        let mut parts = vec![members];
        let own = format!(r#""{META}serverInfo":{{"name":"{}","version":"1"}}"#, self.scripted.variant.name);
        let all = if self.is_per_request() { joined(&[meta, &own]) } else { meta.to_owned() };
        let meta = format!(r#""_meta":{{{all}}}"#);
        if !all.is_empty() {
            parts.push(&meta);
        }
        if self.is_per_request() {
            let input_required = members.contains(r#""inputRequests""#);
            parts.push(if input_required { r#""resultType":"input_required""# } else { r#""resultType":"complete""# });
            let hinted = self.method.ends_with("/list") || matches!(self.method, "resources/read" | "server/discover");
            if hinted {
                parts.push(r#""ttlMs":0,"cacheScope":"private""#);
            }
        }
        format!("{{{}}}", joined(&parts))
    }

    fn capabilities(&self) -> Value {
        let mut capabilities = json!({
            "tools": { "listChanged": true },
            "prompts": { "listChanged": true },
            "resources": { "listChanged": true, "subscribe": true },
            "logging": {},
        });
        if self.scripted.is_at_least(Revision::V2025_03_26) {
            capabilities["completions"] = json!({});
        }
        if self.is_per_request() {
            capabilities["extensions"] = json!({ format!("{META}tasks"): {} });
        } else if self.scripted.has_tasks() {
            capabilities["tasks"] = json!({ "cancel": {}, "requests": { "tools": { "call": {} } } });
        }
        capabilities
    }

    /// The listed tools, with every member that the revision has.
    fn tools(&self) -> Vec<Value> {
        let mut names = vec!["add", "count", "hang", "log", "tick", "grow", "echo", "fail", "think", "where", "insist"];
        names.extend(["parting", "wander", "stubborn", "withdraw", "aside"]);
        if self.scripted.is_at_least(Revision::V2025_06_18) {
            names.extend(["measure", "confirm", "both", "chain"]);
        }
        if self.scripted.is_at_least(Revision::V2025_11_25) {
            names.extend(["visit", TASK_TOOL]);
        }
        if self.scripted.variant.revision == Revision::V2025_11_25 {
            names.push("gate");
        }
        if self.scripted.has_extra_tool() {
            names.push("extra");
        }
        let tool = |name: &str| {
            let mut tool = json!({ "name": name, "description": name, "inputSchema": { "type": "object" } });
            if name == "add" {
                tool["vendorField"] = json!({ "kept": true });
                tool["inputSchema"]["properties"] = json!({ "a": { "type": "integer" }, "b": { "type": "integer" } });
                if self.scripted.is_at_least(Revision::V2025_03_26) {
                    tool["annotations"] = json!({ "readOnlyHint": true });
                }
                if self.scripted.is_at_least(Revision::V2025_06_18) {
                    tool["title"] = json!("Add");
                }
                if self.scripted.is_at_least(Revision::V2025_11_25) {
                    tool["icons"] = json!([{ "src": "https://example.org/add.png" }]);
                }
                if self.scripted.variant.revision == Revision::V2025_11_25 {
                    tool["execution"] = json!({ "taskSupport": "forbidden" });
                }
                if self.is_per_request() {
                    tool["inputSchema"]["properties"]["a"]["x-mcp-header"] = json!("First");
                }
            }
            if name == TASK_TOOL && !self.is_per_request() {
                tool["execution"] = json!({ "taskSupport": "required" });
            }
            if name == "count" && self.scripted.variant.revision == Revision::V2025_11_25 {
                tool["execution"] = json!({ "taskSupport": "optional" });
            }
            if name == "measure" {
                tool["outputSchema"] = json!({ "type": "object" });
            }
            tool
        };
        names.into_iter().map(tool).collect()
    }

    fn read(&self) -> Result<String, RpcError> {
        let uri = self.params["uri"].as_str().unwrap_or_default();
        let text = match uri.strip_prefix("puppet://item/") {
            Some(id) => format!("item {id}"),
            None if uri == STATIC => "always the same".to_owned(),
            None if uri == CLOCK => "twelve".to_owned(),
            None => {
                let code = if self.is_per_request() { -32602 } else { -32002 };
                let data = Some(json!({ "uri": uri }).to_string());
                return Err(RpcError { data, ..RpcError::new(code, "Resource not found") });
            }
        };
        Ok(object_members(&json!({ "contents": [{ "uri": uri, "text": text, "mimeType": "text/plain" }] })))
    }

    async fn listen(&self) -> Result<String, RpcError> {
        let filter = self.params["notifications"].clone();
        if !filter.is_object() {
            self.scripted.report_violation("no listen filter");
        }
        let id = json!({ format!("{META}subscriptionId"): self.id });
        let acknowledged = json!({ "_meta": id, "notifications": filter });
        let acknowledgement = notification_json("notifications/subscriptions/acknowledged", &acknowledged);
        let listener = Listener { id: self.id.clone(), filter, sink: self.sink.clone() };
        self.scripted.listen(self.session, acknowledgement, listener);
        std::future::pending().await
    }

    async fn call(&self) -> Result<String, RpcError> {
        let name = self.params["name"].as_str().unwrap_or_default().to_owned();
        if !self.tools().iter().any(|tool| tool["name"] == *name) {
            return Err(RpcError::new(-32602, &format!("Unknown tool: {name}")));
        }
        self.scripted.count_call(&name);
        let answers = if self.is_per_request() {
            self.scripted.take_input_responses(self.method, &self.params)?
        } else {
            Map::new()
        };
        if name == "echo" {
            return Ok(self.echo());
        }
        if name == TASK_TOOL {
            return self.start_task().await;
        }
        if self.params.get("task").is_some() {
            self.scripted.report_violation(format!("`task` for a tool without tasks: {}", self.raw));
        }
        match self.tool(&name, &answers).await {
            Ok(members) => Ok(self.complete_result(&members, "")),
            Err(ToolStop::Input(members)) => Ok(self.complete_result(&members, "")),
            Err(ToolStop::Unable(what)) if self.is_per_request() => {
                let needed = match what {
                    "url" => json!({ "elicitation": { "url": {} } }),
                    "form" => json!({ "elicitation": { "form": {} } }),
                    other => json!({ other: {} }),
                };
                let data = Some(json!({ "requiredCapabilities": needed }).to_string());
                Err(RpcError { data, ..RpcError::new(-32021, &format!("the client lacks {what}")) })
            }
            Err(ToolStop::Unable(what)) => {
                Ok(self.complete_result(&error_result(&format!("the client cannot be asked: {what}")), ""))
            }
            Err(ToolStop::Refused(code)) => {
                Ok(self.complete_result(&error_result(&format!("the client refused: {code}")), ""))
            }
            Err(ToolStop::Failed(error)) => Err(error),
        }
    }

    fn echo(&self) -> String {
        let params = raw_member(self.raw, "params").unwrap_or("{}");
        let part = |key: &str| raw_member(params, key).unwrap_or("null");
        let vendor = raw_member(part("_meta"), "vendor/key").unwrap_or("null");
        let content = r#""content":[{"type":"text","text":"echoed","vendorBlock":2.50}]"#;
        let (arguments, param) = (part("arguments"), part("vendorParam"));
        let echoed = format!(r#"{content},"vendorArguments":{arguments},"vendorParam":{param}"#);
        self.complete_result(&echoed, &format!(r#""vendor/key":{vendor}"#))
    }

    async fn tool(&self, name: &str, answers: &Map<String, Value>) -> Result<String, ToolStop> {
        let arguments = &self.params["arguments"];
        match name {
            "add" => {
                let sum = arguments["a"].as_i64().unwrap_or_default() + arguments["b"].as_i64().unwrap_or_default();
                Ok(text_result(&sum.to_string()))
            }
            "measure" => Ok(format!("{},\"structuredContent\":{NUMBERS}", text_result("mild"))),
            "count" => {
                (1..=3).for_each(|n| self.progress(&format!("{n}.50")));
                Ok(text_result("counted"))
            }
            "hang" => {
                self.progress("1");
                std::future::pending().await
            }
            "log" => {
                for level in ["debug", "warning", "error"] {
                    self.log(level);
                }
                Ok(text_result("logged"))
            }
            "tick" => {
                self.scripted.update_clock();
                Ok(text_result("ticked"))
            }
            "grow" => {
                self.scripted.toggle_extra_tool();
                Ok(text_result("grown"))
            }
            "fail" => {
                let code = arguments["code"].as_i64().unwrap_or_default();
                Err(RpcError { data: Some(NUMBERS.into()), ..RpcError::new(code, "on purpose") }.into())
            }
            "think" => Ok(self.thought(&self.request_input(answers, vec![self.sampling()]).await?)),
            "where" => {
                let answer = self.request_input(answers, vec![("roots", "roots/list", json!({}))]).await?;
                Ok(text_result(answer[0]["roots"][0]["uri"].as_str().unwrap_or("nowhere")))
            }
            "confirm" => {
                Ok(text_result(&confirmed(&self.request_input(answers, vec![self.form_elicitation()]).await?[0])))
            }
            "visit" => {
                let answer = self.request_input(answers, vec![self.url_elicitation()]).await?;
                Ok(text_result(answer[0]["action"].as_str().unwrap_or("nothing")))
            }
            "insist" => {
                let input_request = match arguments["kind"].as_str() {
                    Some("url") => self.url_elicitation(),
                    _ => self.form_elicitation(),
                };
                Ok(text_result(&confirmed(&self.request_input_unchecked(answers, vec![input_request]).await?[0])))
            }
            "both" => {
                let answer = self.request_input(answers, vec![self.form_elicitation(), self.sampling()]).await?;
                Ok(text_result(&format!(
                    "{} {}",
                    confirmed(&answer[0]),
                    self.thought(&answer[1..]).contains("thoughts")
                )))
            }
            "chain" => {
                self.progress("1");
                self.request_input(answers, vec![self.sampling()]).await?;
                self.progress("2");
                let answer = self.request_input(answers, vec![self.form_elicitation()]).await?;
                self.progress("3");
                Ok(text_result(&confirmed(&answer[0])))
            }
            // Sends a request and finishes without its response once released.
            "parting" => tokio::select! {
                input_request = self.request_input(answers, vec![self.sampling()]) => input_request.map(|_| text_result("answered")),
                () = self.scripted.release.notified() => Ok(text_result("gone on")),
            },
            // Sends a request on the GET stream.
            "aside" => {
                let (_, method, params) = self.sampling();
                let answer = self.session.send_request(&self.session.out, method, &params).await;
                match answer {
                    Ok(Ok(answer)) => Ok(self.thought(&[answer])),
                    _ => Err(ToolStop::Refused(0)),
                }
            }
            // Keeps running after its requests are refused.
            "stubborn" => {
                let input_request = if self.scripted.is_at_least(Revision::V2025_06_18) {
                    self.form_elicitation()
                } else {
                    self.sampling()
                };
                let _ = self.request_input(answers, vec![self.sampling(), input_request]).await;
                std::future::pending().await
            }
            // Cancels its request once released, and runs until released again.
            "withdraw" => {
                {
                    let input_request = self.request_input(answers, vec![self.sampling()]);
                    tokio::select! {
                        input_request = input_request => return input_request.map(|_| text_result("answered")),
                        () = self.scripted.release.notified() => self.session.cancel_last_request(self.sink),
                    }
                }
                self.progress("1");
                self.scripted.release.notified().await;
                Ok(text_result("never mind"))
            }
            // Sends a request, then runs until released.
            "wander" => {
                self.request_input(answers, vec![self.sampling()]).await?;
                self.progress("1");
                self.scripted.release.notified().await;
                Ok(text_result("back"))
            }
            "gate" if self.scripted.call_count("gate") % 2 == 1 => {
                let gate = json!({ "mode": "url", "message": "pay", "url": "https://example.org/pay", "elicitationId": "e-7" });
                let data = Some(json!({ "elicitations": [gate] }).to_string());
                Err(RpcError { data, ..RpcError::new(-32042, "somebody has to go there first") }.into())
            }
            _ => Ok(text_result(name)),
        }
    }

    fn progress(&self, value: &str) {
        let token = raw_member(self.raw, "params").and_then(|params| raw_member(params, "_meta"));
        let Some(token) = token.and_then(|meta| raw_member(meta, "progressToken")) else { return };
        let words = if self.scripted.is_at_least(Revision::V2025_03_26) { r#","message":"on the way""# } else { "" };
        let params = format!(r#"{{"progressToken":{token},"progress":{value},"total":4{words}}}"#);
        let method = "notifications/progress";
        let _ = self.sink.send(format!(r#"{{"jsonrpc":"2.0","method":"{method}","params":{params}}}"#));
    }

    fn log(&self, level: &str) {
        let place = |level: &str| LEVELS.iter().position(|name| *name == level);
        let wanted = match self.is_per_request() {
            true => match self.params["_meta"][format!("{META}logLevel")].as_str() {
                Some(level) => place(level),
                None => return,
            },
            false => self.session.level(),
        };
        if wanted.is_none_or(|wanted| place(level) >= Some(wanted)) {
            let params = json!({ "level": level, "logger": "puppet", "data": { "said": level } });
            let _ = self.sink.send(notification_json("notifications/message", &params));
        }
    }

    pub fn sampling(&self) -> InputRequest {
        let message = json!({ "role": "user", "content": { "type": "text", "text": "bridges" } });
        ("think", "sampling/createMessage", json!({ "messages": [message], "maxTokens": 100 }))
    }

    pub fn form_elicitation(&self) -> InputRequest {
        let name = json!({ "type": "string", "title": "Name" });
        let schema = json!({ "type": "object", "properties": { "name": name }, "required": ["name"] });
        let mut params = json!({ "message": "who?", "requestedSchema": schema });
        if self.scripted.is_at_least(Revision::V2025_11_25) {
            params["mode"] = json!("form");
        }
        ("form", "elicitation/create", params)
    }

    fn url_elicitation(&self) -> InputRequest {
        let mut params = json!({ "mode": "url", "message": "go there", "url": "https://example.org/go" });
        if !self.is_per_request() {
            params["elicitationId"] = json!("e-1");
        }
        ("url", "elicitation/create", params)
    }

    fn thought(&self, answers: &[Value]) -> String {
        text_result(answers[0]["content"]["text"].as_str().unwrap_or("nothing"))
    }

    /// Sends server requests that the client capabilities allow.
    async fn request_input(
        &self,
        answers: &Map<String, Value>,
        input_request: Vec<InputRequest>,
    ) -> Result<Vec<Value>, ToolStop> {
        let declared = match self.is_per_request() {
            true => self.params["_meta"][format!("{META}clientCapabilities")].clone(),
            false => self.session.capabilities(),
        };
        for (key, ..) in &input_request {
            let elicitation = &declared["elicitation"];
            let (is_declared, capability) = match *key {
                "url" => (elicitation["url"].is_object(), "url"),
                "form" => (
                    elicitation.is_object() && (elicitation["form"].is_object() || !elicitation["url"].is_object()),
                    "form",
                ),
                "roots" => (declared["roots"].is_object(), "roots"),
                _ => (declared["sampling"].is_object(), "sampling"),
            };
            if !is_declared {
                return Err(ToolStop::Unable(capability));
            }
        }
        self.request_input_unchecked(answers, input_request).await
    }

    /// Sends server requests regardless of the client capabilities.
    async fn request_input_unchecked(
        &self,
        answers: &Map<String, Value>,
        input_request: Vec<InputRequest>,
    ) -> Result<Vec<Value>, ToolStop> {
        if self.is_per_request() {
            let open: Vec<&InputRequest> =
                input_request.iter().filter(|(key, ..)| !answers.contains_key(*key)).collect();
            if open.is_empty() {
                return Ok(input_request.iter().map(|(key, ..)| answers[*key].clone()).collect());
            }
            let one = |(key, method, params): &&InputRequest| {
                let request = match method {
                    &"roots/list" => json!({ "method": method }),
                    _ => json!({ "method": method, "params": params }),
                };
                ((*key).to_owned(), request)
            };
            let requests: Map<String, Value> = open.iter().map(one).collect();
            let keys = requests.keys().cloned().collect();
            let state = self.scripted.issue_request_state(self.method, &self.params, keys, answers.clone());
            return Err(ToolStop::Input(object_members(&json!({ "inputRequests": requests, "requestState": state }))));
        }
        let waiting: Vec<_> = input_request
            .iter()
            .map(|(_, method, params)| self.session.send_request(self.sink, method, params))
            .collect();
        let mut all = Vec::new();
        for answered in waiting {
            match answered.await {
                Ok(Ok(answer)) => all.push(answer),
                Ok(Err(error)) => return Err(ToolStop::Refused(error["code"].as_i64().unwrap_or_default())),
                Err(_) => return Err(ToolStop::Refused(0)),
            }
        }
        Ok(all)
    }
}

pub fn confirmed(answer: &Value) -> String {
    let name = answer["content"]["name"].as_str().unwrap_or("nobody");
    format!("{} {name}", answer["action"].as_str().unwrap_or("nothing"))
}
