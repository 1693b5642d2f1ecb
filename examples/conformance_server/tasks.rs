//! The tools of the tasks extension.
//!
//! A call becomes a task if the client declares support for tasks. Otherwise some tools run without a task and the
//! others fail.

use std::time::Duration;

use rmcp::ErrorData;
use rmcp::model::{
    CallToolRequestParams, CallToolResponse, CallToolResult, ClientCapabilities, CreateTaskResult, InputRequest,
    InputRequests, InputRequiredResult,
};
use rmcp::task_manager::{TaskContext, TaskExit, TaskManager, TaskOptions};
use serde_json::{Value, json};

use super::fixture::{Context, Result, result, said, typed};
use super::offers::{form, name_form};

pub(crate) const TOOLS: [(&str, &str); 7] = [
    ("greet", "Greets at once"),
    ("slow_compute", "Takes its time"),
    ("failing_job", "Fails as a task"),
    ("protocol_error_job", "Breaks as a task"),
    ("confirm_delete", "Asks in the middle of a task"),
    ("multi_input", "Asks twice in the middle of a task"),
    ("test_tool_with_task", "Asks, and then becomes a task"),
];
/// Tools that require task support.
const TASKS_ONLY: [&str; 4] = ["failing_job", "confirm_delete", "multi_input", "test_tool_with_task"];
/// Duration of a simulated job.
const WORK: Duration = Duration::from_millis(200);

/// Calls one of the tools, as a task if the client supports it.
pub(crate) async fn call(
    tasks: &TaskManager,
    request: &CallToolRequestParams,
    context: &Context,
) -> Result<CallToolResponse> {
    let name = request.name.as_ref();
    let arguments = json!(request.arguments);
    let knows_tasks = context.client_capabilities().is_some_and(|can| can.supports_tasks());
    if TASKS_ONLY.contains(&name) && !knows_tasks {
        let needed = ClientCapabilities::builder().enable_tasks().build();
        return Err(ErrorData::missing_required_client_capability(needed));
    }
    if name == "greet" {
        let whom = arguments["name"].as_str().unwrap_or("you");
        return Ok(CallToolResponse::Complete(result(said(format!("Hello, {whom}!")))?));
    }
    let given = request.input_responses.as_ref().and_then(|given| given.get("user_name"));
    if name == "test_tool_with_task" && given.is_none() {
        let question: InputRequest = typed(name_form())?;
        return Ok(
            InputRequiredResult::from_input_requests(InputRequests::from([("user_name".into(), question)])).into()
        );
    }
    let job = Job { name: name.to_owned(), arguments, told: json!(given) };
    if !knows_tasks {
        return job.work().await.map(CallToolResponse::Complete);
    }
    let task = tasks.spawn(TaskOptions::default(), move |task| Box::pin(async move { job.run(&task).await }));
    Ok(CreateTaskResult::new(task).into())
}

struct Job {
    name: String,
    arguments: Value,
    /// Answers received so far.
    told: Value,
}

impl Job {
    /// Runs the job as a task.
    async fn run(&self, task: &TaskContext) -> std::result::Result<CallToolResult, TaskExit> {
        let question = || typed(form("Go on?", &json!({ "confirm": { "type": "boolean" } }), &["confirm"]));
        let answers = match self.name.as_str() {
            "confirm_delete" => json!([task.request_input("confirm", question()?).await?]),
            "multi_input" => {
                let (one, other) =
                    tokio::join!(task.request_input("one", question()?), task.request_input("other", question()?));
                json!([one?, other?])
            }
            _ => {
                return tokio::select! {
                    () = task.cancelled() => Err(TaskExit::Cancelled),
                    done = self.work() => Ok(done?),
                };
            }
        };
        Ok(result(said(answers.to_string()))?)
    }

    /// The work itself, with or without a task.
    async fn work(&self) -> Result<CallToolResult> {
        let time = self.arguments["seconds"].as_f64().map_or(WORK, Duration::from_secs_f64);
        tokio::time::sleep(time).await;
        match self.name.as_str() {
            "failing_job" => {
                let mut failed = said("on purpose");
                failed["isError"] = true.into();
                result(failed)
            }
            "protocol_error_job" => Err(ErrorData::internal_error("on purpose", None)),
            _ => result(said(format!("done {}", self.told))),
        }
    }
}
