//! Tasks of the scripted server, in the form of its revision. One tool requires them; a task advances only when it is
//! polled.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard};

use rialto::dialect::Revision;
use serde_json::{Map, Value, json};
use tokio::sync::Notify;

use super::handlers::{
    InputRequest, NUMBERS, RequestCx, RpcError, confirmed, error_result, object_members, text_result,
};
use super::scripted_server::{META, ScriptedServer, Session, notification_json};

/// The tool that runs as a task.
pub const TASK_TOOL: &str = "job";

/// All tasks by id.
#[derive(Default)]
pub struct ScriptedTasks {
    all: Mutex<HashMap<String, ScriptedTask>>,
    /// Notified whenever a task advances.
    advanced: Notify,
}

#[derive(Default)]
struct ScriptedTask {
    kind: String,
    /// The poll interval as raw JSON.
    poll_interval: String,
    /// Address of the session and id of the call.
    call: (usize, Value),
    status: &'static str,
    polls: usize,
    input_requested: bool,
    answers: Vec<(String, Value)>,
    refused: Option<i64>,
    /// Cancel requests received.
    cancels: usize,
}

impl ScriptedTasks {
    fn lock(&self) -> MutexGuard<'_, HashMap<String, ScriptedTask>> {
        self.all.lock().unwrap()
    }

    /// Polls of all tasks.
    pub fn poll_count(&self) -> usize {
        self.lock().values().map(|task| task.polls).sum()
    }

    /// Created tasks.
    pub fn created(&self) -> usize {
        self.lock().len()
    }

    /// Tasks that have not ended.
    pub fn open_count(&self) -> usize {
        let over = |task: &&ScriptedTask| !matches!(task.status, "completed" | "failed" | "cancelled");
        self.lock().values().filter(over).count()
    }

    /// Cancel requests of all tasks.
    pub fn cancel_count(&self) -> usize {
        self.lock().values().map(|task| task.cancels).sum()
    }

    /// Forgets all tasks.
    pub fn clear(&self) {
        self.lock().clear();
    }

    /// Whether a task belongs to this call.
    pub fn has(&self, session: &Session, call: &Value) -> bool {
        let call = (std::ptr::from_ref(session) as usize, call.clone());
        self.lock().values().any(|task| task.call == call)
    }
}

impl ScriptedTask {
    fn inputs_needed(&self) -> usize {
        match self.kind.as_str() {
            "ask" | "aside" => 1,
            "both" => 2,
            _ => 0,
        }
    }

    fn advance(&mut self, per_request: bool) {
        self.polls += 1;
        if matches!(self.status, "completed" | "failed" | "cancelled") {
            return;
        }
        let waits = self.answers.len() < self.inputs_needed() && self.refused.is_none();
        self.status = match self.kind.as_str() {
            _ if self.polls == 1 => "working",
            "hang" | "slow" => "working",
            "ask" | "both" if waits => "input_required",
            "aside" if waits => "working",
            "stopped" => "cancelled",
            "fail" => "failed",
            "wrong" if !per_request => "failed",
            _ => "completed",
        };
    }

    fn answer(&self, key: &str) -> &Value {
        self.answers.iter().find(|(known, _)| known == key).map_or(&Value::Null, |(_, answer)| answer)
    }

    /// The result or error of the underlying call.
    fn result(&self) -> Result<String, RpcError> {
        let thought = || self.answer("think")["content"]["text"].as_str().unwrap_or("nothing").to_owned();
        match (self.kind.as_str(), self.refused) {
            (_, Some(code)) => Ok(error_result(&format!("the client refused: {code}"))),
            ("fail", _) => Err(RpcError { data: Some(NUMBERS.into()), ..RpcError::new(1234, "on purpose") }),
            ("wrong", _) => Ok(error_result("on purpose")),
            ("ask" | "aside", _) => Ok(text_result(&thought())),
            ("both", _) => {
                Ok(text_result(&format!("{} {}", confirmed(self.answer("form")), thought().contains("thoughts"))))
            }
            _ => Ok(format!("{},\"structuredContent\":{NUMBERS}", text_result("done"))),
        }
    }

    fn describe(&self, id: &str, per_request: bool) -> String {
        let (ttl, poll_interval) = if per_request { ("ttlMs", "pollIntervalMs") } else { ("ttl", "pollInterval") };
        let at = "2026-11-25T10:30:00Z";
        let description =
            json!({ "taskId": id, "status": self.status, "createdAt": at, "lastUpdatedAt": at, ttl: 60_000 });
        let status_message = if self.status == "cancelled" { r#","statusMessage":"no time""# } else { "" };
        format!(r#"{}{status_message},"{poll_interval}":{}"#, object_members(&description), self.poll_interval)
    }
}

impl ScriptedServer {
    /// Whether the revision has tasks.
    pub fn has_tasks(&self) -> bool {
        self.is_at_least(Revision::V2025_11_25)
    }
}

impl RequestCx<'_> {
    fn knows_tasks(&self) -> bool {
        let capabilities = &self.params["_meta"][format!("{META}clientCapabilities")];
        capabilities["extensions"][format!("{META}tasks")].is_object()
    }

    /// Creates a task for the call.
    pub async fn start_task(&self) -> Result<String, RpcError> {
        let (per_request, params) = (self.is_per_request(), &self.params);
        let kind = params["arguments"]["kind"].as_str().unwrap_or_default().to_owned();
        if per_request && !self.knows_tasks() && kind != "unasked" {
            let needed = json!({ "extensions": { format!("{META}tasks"): {} } });
            let data = Some(json!({ "requiredCapabilities": needed }).to_string());
            return Err(RpcError { data, ..RpcError::new(-32021, "nothing without tasks") });
        }
        if per_request && params.get("task").is_some() {
            self.scripted.report_violation("`task` in a per-request call");
        }
        if !per_request && params["task"]["ttl"].as_u64().is_none_or(|ttl| ttl == 0) {
            return Err(RpcError::new(-32601, "Tool job requires task augmentation"));
        }
        let tasks = &self.scripted.tasks;
        let id = format!("t é {}", tasks.created() + 1);
        let poll_interval = params["arguments"].get("pace").map_or("1".to_owned(), Value::to_string);
        let task = ScriptedTask {
            kind,
            poll_interval,
            call: (Arc::as_ptr(self.session) as usize, self.id.clone()),
            status: "working",
            ..ScriptedTask::default()
        };
        let (description, slow) = (task.describe(&id, per_request), task.kind == "slow");
        tasks.lock().insert(id, task);
        if slow {
            self.scripted.release.notified().await;
        }
        match per_request {
            true => Ok(self
                .complete_result(&description, "")
                .replace(r#""resultType":"complete""#, r#""resultType":"task""#)),
            false => Ok(self.complete_result(&format!(r#""task":{{{description}}}"#), "")),
        }
    }

    /// Handles tasks/get, tasks/update, tasks/result and tasks/cancel.
    pub async fn task_method(&self) -> Result<String, RpcError> {
        let per_request = self.is_per_request();
        if per_request && !self.knows_tasks() {
            self.scripted.report_violation(format!("a task method without the tasks extension: {}", self.raw));
        }
        let id = self.params["taskId"].as_str().unwrap_or_default();
        let unknown = || RpcError::new(-32602, "Task not found");
        let tasks = &self.scripted.tasks;
        match self.method {
            "tasks/get" => {
                let kind = {
                    let mut all = tasks.lock();
                    let task = all.get_mut(id).ok_or_else(unknown)?;
                    task.advance(per_request);
                    if task.polls == 1 { String::new() } else { task.kind.clone() }
                };
                match kind.as_str() {
                    "forget" => return Err(unknown()),
                    "die" => {
                        self.scripted.crash();
                        std::future::pending::<()>().await;
                    }
                    _ => {}
                }
                let description = self.describe(id);
                tasks.advanced.notify_waiters();
                let polls = tasks.lock().get(id).map_or(0, |task| task.polls);
                if per_request && polls == 2 {
                    let mut task: Value = serde_json::from_str(&description).unwrap();
                    task.as_object_mut().unwrap().retain(|key, _| key != "resultType" && key != "_meta");
                    self.scripted.publish_task(id, &task);
                }
                Ok(description)
            }
            "tasks/cancel" => {
                {
                    let mut all = tasks.lock();
                    let task = all.get_mut(id).ok_or_else(unknown)?;
                    if matches!(task.status, "completed" | "failed" | "cancelled") {
                        self.scripted.report_violation(format!("tasks/cancel of an ended task: {}", self.raw));
                    }
                    task.cancels += 1;
                    task.status = "cancelled";
                }
                tasks.advanced.notify_waiters();
                if per_request { Ok(self.complete_result("", "")) } else { Ok(self.describe(id)) }
            }
            "tasks/update" if per_request => {
                let mut all = tasks.lock();
                let task = all.get_mut(id).ok_or_else(unknown)?;
                let given = self.params["inputResponses"].as_object().cloned().unwrap_or_default();
                for (key, answer) in given {
                    if !task.input_requested
                        || task.answers.iter().any(|(known, _)| *known == key)
                        || answer.get("_meta").is_some()
                    {
                        self.scripted.report_violation(format!("an invalid input response: {}", self.raw));
                    }
                    task.answers.push((key, answer));
                }
                Ok(self.complete_result("", ""))
            }
            "tasks/result" if !per_request => self.task_result(id).await,
            _ => {
                self.scripted.report_violation(format!("unknown task method in this revision: {}", self.raw));
                Err(RpcError::new(-32601, "Method not found"))
            }
        }
    }

    /// A page of the tasks of all sessions, two at a time. The cursor is the last task before the page.
    pub fn task_page(&self) -> String {
        let all = self.scripted.tasks.lock();
        let mut ids: Vec<&String> = all.keys().collect();
        ids.sort();
        let after = self.params["cursor"].as_str();
        let start = after.map_or(0, |after| ids.iter().position(|id| *id == after).map_or(ids.len(), |at| at + 1));
        let page = &ids[start..(start + 2).min(ids.len())];
        let tasks: Vec<String> = page.iter().map(|id| format!("{{{}}}", all[*id].describe(id, false))).collect();
        let next = page.last().filter(|_| start + 2 < ids.len()).map(|last| json!({ "nextCursor": last }));
        let next = next.map_or_else(String::new, |next| format!(",{}", object_members(&next)));
        format!(r#""tasks":[{}]{next}"#, tasks.join(","))
    }

    /// The tasks/get result, which may carry input requests or the outcome.
    fn describe(&self, id: &str) -> String {
        let per_request = self.is_per_request();
        let mut all = self.scripted.tasks.lock();
        let Some(task) = all.get_mut(id) else { return self.complete_result("", "") };
        let mut description = task.describe(id, per_request);
        if !per_request && task.polls == 2 && task.kind != "gossip" {
            // A status notification may be sent on any stream.
            let status: Value = serde_json::from_str(&format!("{{{description}}}")).unwrap();
            let _ = self.session.out.send(notification_json("notifications/tasks/status", &status));
        }
        if !per_request && task.kind == "gossip" && task.polls == 2 {
            let mut ids: Vec<&String> = all.keys().collect();
            ids.sort();
            for id in ids {
                let status: Value = serde_json::from_str(&format!("{{{}}}", all[id].describe(id, false))).unwrap();
                let _ = self.session.out.send(notification_json("notifications/tasks/status", &status));
            }
            return self.complete_result(&description, "");
        }
        if !per_request && task.kind == "aside" && task.polls == 2 {
            self.send_request_on_get_stream(id);
        }
        if per_request && task.status == "input_required" {
            task.input_requested = true;
            let open = |(key, ..): &&InputRequest| !task.answers.iter().any(|(known, _)| known == key);
            let all_requests: Vec<InputRequest> = self.task_input_requests(&task.kind);
            let one = |(key, method, params): &InputRequest| {
                ((*key).to_owned(), json!({ "method": method, "params": params }))
            };
            let requests: Map<String, Value> = all_requests.iter().filter(open).map(one).collect();
            description = format!(r#"{description},"inputRequests":{}"#, Value::Object(requests));
        }
        if per_request && matches!(task.status, "completed" | "failed") {
            description = match task.result() {
                Ok(result) => format!(r#"{description},"result":{{{result}}}"#),
                Err(RpcError { code, message, data }) => {
                    let data = data.unwrap_or_default();
                    format!(r#"{description},"error":{{"code":{code},"message":"{message}","data":{data}}}"#)
                }
            };
        }
        let whole = self.complete_result(&description, "");
        whole.replace(r#""resultType":"input_required""#, r#""resultType":"complete""#)
    }

    fn task_input_requests(&self, kind: &str) -> Vec<InputRequest> {
        match kind {
            "ask" | "aside" => vec![self.sampling()],
            "both" => vec![self.form_elicitation(), self.sampling()],
            _ => Vec::new(),
        }
    }

    fn with_related_task(&self, id: &str, params: &Value) -> Value {
        let mut params = params.clone();
        params["_meta"] = json!({ format!("{META}related-task"): { "taskId": id } });
        params
    }

    /// Sends the input request on the GET stream.
    fn send_request_on_get_stream(&self, id: &str) {
        let (key, method, params) = self.sampling();
        let answered = self.session.send_request(&self.session.out, method, &self.with_related_task(id, &params));
        let (scripted, id) = (Arc::clone(self.scripted), id.to_owned());
        tokio::spawn(
            async move { record_input(&scripted, &id, key, answered.await.unwrap_or_else(|_| Err(json!({})))) },
        );
    }

    /// Sends the input requests and waits for the outcome (handshake era).
    async fn task_result(&self, id: &str) -> Result<String, RpcError> {
        let tasks = &self.scripted.tasks;
        let input_requested = {
            let mut all = tasks.lock();
            let task = all.get_mut(id).ok_or_else(|| RpcError::new(-32602, "Task not found"))?;
            let input_requested =
                task.status == "input_required" && !std::mem::replace(&mut task.input_requested, true);
            if input_requested { self.task_input_requests(&task.kind) } else { Vec::new() }
        };
        let pending: Vec<_> = input_requested
            .iter()
            .map(|(key, method, params)| {
                (*key, self.session.send_request(self.sink, method, &self.with_related_task(id, params)))
            })
            .collect();
        for (key, answered) in pending {
            record_input(self.scripted, id, key, answered.await.unwrap_or_else(|_| Err(json!({}))));
        }
        loop {
            let advanced = tasks.advanced.notified();
            if let Some(task) = tasks.lock().get(id).filter(|task| matches!(task.status, "completed" | "failed")) {
                let meta = format!(r#""{META}related-task":{{"taskId":"{id}"}}"#);
                return task.result().map(|result| self.complete_result(&result, &meta));
            }
            advanced.await;
        }
    }
}

/// Records an input response, which must name its task.
fn record_input(scripted: &ScriptedServer, id: &str, key: &str, answered: Result<Value, Value>) {
    let mut all = scripted.tasks.lock();
    let Some(task) = all.get_mut(id) else { return };
    match answered {
        Ok(answer) => {
            if answer["_meta"][format!("{META}related-task")]["taskId"] != id {
                scripted.report_violation(format!("a response without related-task: {answer}"));
            }
            task.answers.push((key.to_owned(), answer));
        }
        Err(error) => task.refused = Some(error["code"].as_i64().unwrap_or_default()),
    }
}
