//! The puppet's tasks, as each revision has them. One tool is nothing without them; how far a task is
//! moves on whenever somebody asks, and by nothing else.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard};

use rialto::dialect::Revision;
use serde_json::{Map, Value, json};
use tokio::sync::Notify;

use super::acts::{Asked, Cx, Failed, NUMBERS, confirmed, failed, members, said};
use super::puppet::{META, Puppet, Session, notice};

/// The tool.
pub const JOB: &str = "job";

/// All tasks, by name.
#[derive(Default)]
pub struct Jobs {
    all: Mutex<HashMap<String, Job>>,
    /// Told whenever one moves on.
    moved: Notify,
}

#[derive(Default)]
struct Job {
    kind: String,
    /// How often it wants to be asked for, as it is written.
    pace: String,
    /// The session and the id of the call.
    call: (usize, Value),
    status: &'static str,
    polls: usize,
    asks: bool,
    answers: Vec<(String, Value)>,
    refused: Option<i64>,
    /// How often it was cancelled.
    cancels: usize,
}

impl Jobs {
    fn lock(&self) -> MutexGuard<'_, HashMap<String, Job>> {
        self.all.lock().unwrap()
    }

    /// How often somebody asked how far a task is.
    pub fn polls(&self) -> usize {
        self.lock().values().map(|job| job.polls).sum()
    }

    /// How many were made.
    pub fn made(&self) -> usize {
        self.lock().len()
    }

    /// How many are not over.
    pub fn open(&self) -> usize {
        let over = |job: &&Job| !matches!(job.status, "completed" | "failed" | "cancelled");
        self.lock().values().filter(over).count()
    }

    /// How often one was cancelled.
    pub fn cancels(&self) -> usize {
        self.lock().values().map(|job| job.cancels).sum()
    }

    /// Whether a call has become a task, or will.
    pub fn has(&self, session: &Session, call: &Value) -> bool {
        let call = (std::ptr::from_ref(session) as usize, call.clone());
        self.lock().values().any(|job| job.call == call)
    }
}

impl Job {
    fn wants(&self) -> usize {
        match self.kind.as_str() {
            "ask" | "aside" => 1,
            "both" => 2,
            _ => 0,
        }
    }

    fn move_on(&mut self, inlined: bool) {
        self.polls += 1;
        if matches!(self.status, "completed" | "failed" | "cancelled") {
            return;
        }
        let waits = self.answers.len() < self.wants() && self.refused.is_none();
        self.status = match self.kind.as_str() {
            _ if self.polls == 1 => "working",
            "hang" | "slow" => "working",
            "ask" | "both" if waits => "input_required",
            "aside" if waits => "working",
            "stopped" => "cancelled",
            "fail" => "failed",
            "wrong" if !inlined => "failed",
            _ => "completed",
        };
    }

    fn answer(&self, key: &str) -> &Value {
        self.answers.iter().find(|(known, _)| known == key).map_or(&Value::Null, |(_, answer)| answer)
    }

    /// What the call would have been answered with.
    fn result(&self) -> Result<String, Failed> {
        let thought = || self.answer("think")["content"]["text"].as_str().unwrap_or("nothing").to_owned();
        match (self.kind.as_str(), self.refused) {
            (_, Some(code)) => Ok(failed(&format!("the client refused: {code}"))),
            ("fail", _) => Err(Failed { data: Some(NUMBERS.into()), ..Failed::new(1234, "on purpose") }),
            ("wrong", _) => Ok(failed("on purpose")),
            ("ask" | "aside", _) => Ok(said(&thought())),
            ("both", _) => Ok(said(&format!("{} {}", confirmed(self.answer("form")), thought().contains("thoughts")))),
            _ => Ok(format!("{},\"structuredContent\":{NUMBERS}", said("done"))),
        }
    }

    fn shown(&self, id: &str, inlined: bool) -> String {
        let (ttl, pace) = if inlined { ("ttlMs", "pollIntervalMs") } else { ("ttl", "pollInterval") };
        let at = "2026-11-25T10:30:00Z";
        let shown = json!({ "taskId": id, "status": self.status, "createdAt": at, "lastUpdatedAt": at, ttl: 60_000 });
        let words = if self.status == "cancelled" { r#","statusMessage":"no time""# } else { "" };
        format!(r#"{}{words},"{pace}":{}"#, members(&shown), self.pace)
    }
}

impl Puppet {
    /// Whether it has tasks of any kind.
    pub fn has_tasks(&self) -> bool {
        self.is_at_least(Revision::V2025_11_25)
    }
}

impl Cx<'_> {
    fn knows_tasks(&self) -> bool {
        let able = &self.params["_meta"][format!("{META}clientCapabilities")];
        able["extensions"][format!("{META}tasks")].is_object()
    }

    /// Makes a task of the call.
    pub async fn begin_job(&self) -> Result<String, Failed> {
        let (inlined, params) = (self.is_per_request(), &self.params);
        let kind = params["arguments"]["kind"].as_str().unwrap_or_default().to_owned();
        if inlined && !self.knows_tasks() && kind != "unasked" {
            let needed = json!({ "extensions": { format!("{META}tasks"): {} } });
            let data = Some(json!({ "requiredCapabilities": needed }).to_string());
            return Err(Failed { data, ..Failed::new(-32021, "nothing without tasks") });
        }
        if inlined && params.get("task").is_some() {
            self.puppet.complain("a task is asked for");
        }
        if !inlined && params["task"]["ttl"].as_u64().is_none_or(|ttl| ttl == 0) {
            return Err(Failed::new(-32601, "Tool job requires task augmentation"));
        }
        let jobs = &self.puppet.jobs;
        let id = format!("t é {}", jobs.made() + 1);
        let pace = params["arguments"].get("pace").map_or("1".to_owned(), Value::to_string);
        let job = Job {
            kind,
            pace,
            call: (Arc::as_ptr(self.session) as usize, self.id.clone()),
            status: "working",
            ..Job::default()
        };
        let (shown, slow) = (job.shown(&id, inlined), job.kind == "slow");
        jobs.lock().insert(id, job);
        if slow {
            self.puppet.release.notified().await;
        }
        match inlined {
            true => Ok(self.done(&shown, "").replace(r#""resultType":"complete""#, r#""resultType":"task""#)),
            false => Ok(self.done(&format!(r#""task":{{{shown}}}"#), "")),
        }
    }

    /// What is said of a task.
    pub async fn job(&self) -> Result<String, Failed> {
        let inlined = self.is_per_request();
        if inlined && !self.knows_tasks() {
            self.puppet.complain(format!("they do not know what a task is: {}", self.raw));
        }
        let id = self.params["taskId"].as_str().unwrap_or_default();
        let unknown = || Failed::new(-32602, "Task not found");
        let jobs = &self.puppet.jobs;
        match self.method {
            "tasks/get" => {
                let kind = {
                    let mut all = jobs.lock();
                    let job = all.get_mut(id).ok_or_else(unknown)?;
                    job.move_on(inlined);
                    if job.polls == 1 { String::new() } else { job.kind.clone() }
                };
                match kind.as_str() {
                    "forget" => return Err(unknown()),
                    "die" => {
                        self.puppet.die();
                        std::future::pending::<()>().await;
                    }
                    _ => {}
                }
                let shown = self.shown(id);
                jobs.moved.notify_waiters();
                Ok(shown)
            }
            "tasks/cancel" => {
                {
                    let mut all = jobs.lock();
                    let job = all.get_mut(id).ok_or_else(unknown)?;
                    if matches!(job.status, "completed" | "failed" | "cancelled") {
                        self.puppet.complain(format!("what is over is cancelled: {}", self.raw));
                    }
                    job.cancels += 1;
                    job.status = "cancelled";
                }
                jobs.moved.notify_waiters();
                if inlined { Ok(self.done("", "")) } else { Ok(self.shown(id)) }
            }
            "tasks/update" if inlined => {
                let mut all = jobs.lock();
                let job = all.get_mut(id).ok_or_else(unknown)?;
                let given = self.params["inputResponses"].as_object().cloned().unwrap_or_default();
                for (key, answer) in given {
                    if !job.asks || job.answers.iter().any(|(known, _)| *known == key) || answer.get("_meta").is_some()
                    {
                        self.puppet.complain(format!("an answer to nothing, or of another hop: {}", self.raw));
                    }
                    job.answers.push((key, answer));
                }
                Ok(self.done("", ""))
            }
            "tasks/result" if !inlined => self.job_result(id).await,
            _ => {
                self.puppet.complain(format!("nothing of this revision: {}", self.raw));
                Err(Failed::new(-32601, "Method not found"))
            }
        }
    }

    /// How far a task is.
    fn shown(&self, id: &str) -> String {
        let inlined = self.is_per_request();
        let mut all = self.puppet.jobs.lock();
        let Some(job) = all.get_mut(id) else { return self.done("", "") };
        let mut shown = job.shown(id, inlined);
        if !inlined && job.polls == 2 {
            // That may be told, too, on whatever stream.
            let told: Value = serde_json::from_str(&format!("{{{shown}}}")).unwrap();
            let _ = self.session.out.send(notice("notifications/tasks/status", &told));
        }
        if !inlined && job.kind == "aside" && job.polls == 2 {
            self.ask_aside(id);
        }
        if inlined && job.status == "input_required" {
            job.asks = true;
            let open = |(key, ..): &&Asked| !job.answers.iter().any(|(known, _)| known == key);
            let asked: Vec<Asked> = self.job_asks(&job.kind);
            let one =
                |(key, method, params): &Asked| ((*key).to_owned(), json!({ "method": method, "params": params }));
            let requests: Map<String, Value> = asked.iter().filter(open).map(one).collect();
            shown = format!(r#"{shown},"inputRequests":{}"#, Value::Object(requests));
        }
        if inlined && matches!(job.status, "completed" | "failed") {
            shown = match job.result() {
                Ok(result) => format!(r#"{shown},"result":{{{result}}}"#),
                Err(Failed { code, message, data }) => {
                    let data = data.unwrap_or_default();
                    format!(r#"{shown},"error":{{"code":{code},"message":"{message}","data":{data}}}"#)
                }
            };
        }
        let whole = self.done(&shown, "");
        whole.replace(r#""resultType":"input_required""#, r#""resultType":"complete""#)
    }

    fn job_asks(&self, kind: &str) -> Vec<Asked> {
        match kind {
            "ask" | "aside" => vec![self.sampling()],
            "both" => vec![self.form(), self.sampling()],
            _ => Vec::new(),
        }
    }

    fn related(&self, id: &str, params: &Value) -> Value {
        let mut params = params.clone();
        params["_meta"] = json!({ format!("{META}related-task"): { "taskId": id } });
        params
    }

    /// Asks on the stream that belongs to nothing.
    fn ask_aside(&self, id: &str) {
        let (key, method, params) = self.sampling();
        let answered = self.session.ask(&self.session.out, method, &self.related(id, &params));
        let (puppet, id) = (Arc::clone(self.puppet), id.to_owned());
        tokio::spawn(async move { note(&puppet, &id, key, answered.await.unwrap_or_else(|_| Err(json!({})))) });
    }

    /// Waits for the result, and asks before.
    async fn job_result(&self, id: &str) -> Result<String, Failed> {
        let jobs = &self.puppet.jobs;
        let asks = {
            let mut all = jobs.lock();
            let job = all.get_mut(id).ok_or_else(|| Failed::new(-32602, "Task not found"))?;
            let asks = job.status == "input_required" && !std::mem::replace(&mut job.asks, true);
            if asks { self.job_asks(&job.kind) } else { Vec::new() }
        };
        let asked: Vec<_> = asks
            .iter()
            .map(|(key, method, params)| (*key, self.session.ask(self.sink, method, &self.related(id, params))))
            .collect();
        for (key, answered) in asked {
            note(self.puppet, id, key, answered.await.unwrap_or_else(|_| Err(json!({}))));
        }
        loop {
            let moved = jobs.moved.notified();
            if let Some(job) = jobs.lock().get(id).filter(|job| matches!(job.status, "completed" | "failed")) {
                let meta = format!(r#""{META}related-task":{{"taskId":"{id}"}}"#);
                return job.result().map(|result| self.done(&result, &meta));
            }
            moved.await;
        }
    }
}

/// Notes what was answered for a task, which has to be named.
fn note(puppet: &Puppet, id: &str, key: &str, answered: Result<Value, Value>) {
    let mut all = puppet.jobs.lock();
    let Some(job) = all.get_mut(id) else { return };
    match answered {
        Ok(answer) => {
            if answer["_meta"][format!("{META}related-task")]["taskId"] != id {
                puppet.complain(format!("an answer that does not name its task: {answer}"));
            }
            job.answers.push((key.to_owned(), answer));
        }
        Err(error) => job.refused = Some(error["code"].as_i64().unwrap_or_default()),
    }
}
