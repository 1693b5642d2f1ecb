//! The server: its responses in either era.

use std::borrow::Cow;
use std::collections::{BTreeMap, HashSet};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use rmcp::model::{
    CallToolRequestParams, CallToolResponse, CallToolResult, CancelTaskParams, ClientCapabilities,
    CompleteRequestParams, CompleteResult, GetPromptRequestParams, GetPromptResponse, GetPromptResult, GetTaskParams,
    GetTaskResult, Implementation, InputRequest, InputRequests, InputRequiredResult, InputResponses, ListPromptsResult,
    ListResourceTemplatesResult, ListResourcesResult, ListToolsResult, LoggingLevel, LoggingMessageNotificationParam,
    PaginatedRequestParams, ProgressNotificationParam, ProtocolVersion, ReadResourceRequestParams,
    ReadResourceResponse, ReadResourceResult, ServerCapabilities, ServerConfig, SetLevelRequestParams,
    SubscribeRequestParams, SubscriptionFilter, Tool, UnsubscribeRequestParams, UpdateTaskParams,
};
use rmcp::service::{RequestContext, SubscriptionContext, SubscriptionSink};
use rmcp::task_manager::TaskManager;
use rmcp::{ErrorData, RoleServer, ServerHandler};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use super::offers::{
    contents, fixed, form, form_with_choices, form_with_defaults, messages, name_form, prompts, resources, roots,
    sample, tools, user_form,
};
use super::{Shape, tasks};

/// Pause between two notifications of one call, so that they arrive in separate packets.
const PAUSE: Duration = Duration::from_millis(50);

pub(crate) type Result<T> = std::result::Result<T, ErrorData>;
pub(crate) type Context = RequestContext<RoleServer>;
/// Input requests of a tool, by key.
type Questions = Vec<(&'static str, Value)>;
type Answers = BTreeMap<String, Value>;

/// State of one session; in the per-request era, of one request.
pub(crate) struct Fixture {
    shape: Shape,
    /// Level set by `logging/setLevel`.
    level: Mutex<LoggingLevel>,
    shared: Arc<Shared>,
}

/// State shared by all sessions.
#[derive(Default)]
pub(crate) struct Shared {
    listeners: Mutex<BTreeMap<u64, SubscriptionSink>>,
    last_listener: AtomicU64,
    /// Request states that were issued and not yet returned.
    states: Mutex<HashSet<String>>,
    last_state: AtomicU64,
    tasks: TaskManager,
}

// === impl Fixture ===

/// Converts JSON to an SDK type.
pub(crate) fn typed<T: DeserializeOwned>(value: Value) -> Result<T> {
    serde_json::from_value(value).map_err(failed)
}

/// Converts JSON to an SDK result. The SDK omits members that the handshake era does not have.
pub(crate) fn result<T: DeserializeOwned>(mut value: Value) -> Result<T> {
    value["resultType"] = "complete".into();
    typed(value)
}

fn failed(error: impl std::fmt::Display) -> ErrorData {
    ErrorData::internal_error(error.to_string(), None)
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

pub(crate) fn said(text: impl Into<String>) -> Value {
    json!({ "content": [{ "type": "text", "text": text.into() }] })
}

fn is_modern(context: &Context) -> bool {
    context.protocol_version() == Some(ProtocolVersion::V_2026_07_28)
}

impl Fixture {
    pub(crate) fn new(shape: Shape, shared: Arc<Shared>) -> Self {
        Self { shape, level: Mutex::new(LoggingLevel::Info), shared }
    }

    /// The answers to all input requests, or the requests that are still open.
    async fn ask(
        &self,
        questions: Questions,
        given: Option<&InputResponses>,
        context: &Context,
    ) -> Result<std::result::Result<Answers, InputRequests>> {
        let mut answers = Answers::new();
        let mut open = InputRequests::new();
        for (name, question) in questions {
            let question: InputRequest = typed(question)?;
            if !is_modern(context) {
                answers.insert(name.into(), put(question, context).await?);
            } else if let Some(answer) = given.and_then(|given| given.get(name)).filter(|answer| answer.is_object()) {
                answers.insert(name.into(), answer.clone());
            } else {
                open.insert(name.into(), question);
            }
        }
        Ok(if open.is_empty() { Ok(answers) } else { Err(open) })
    }

    /// A tool that requests input once and returns the answer.
    async fn ask_and_tell(
        &self,
        questions: Questions,
        request: &CallToolRequestParams,
        context: &Context,
    ) -> Result<CallToolResponse> {
        match self.ask(questions, request.input_responses.as_ref(), context).await? {
            Ok(answers) => Ok(CallToolResponse::Complete(result(said(format!("answers: {}", json!(answers))))?)),
            Err(open) => Ok(InputRequiredResult::from_input_requests(open).into()),
        }
    }

    /// A tool that requests input in several steps, with a request state in between.
    async fn ask_in_steps(
        &self,
        steps: Vec<Questions>,
        request: &CallToolRequestParams,
        context: &Context,
    ) -> Result<CallToolResponse> {
        let mut at = match request.request_state.as_deref() {
            Some(state) => self.shared.take_state(state)?,
            None => 0,
        };
        let mut given = request.input_responses.as_ref();
        while let Some(questions) = steps.get(at) {
            // An answer belongs to the request state that it comes with.
            let given = given.take().filter(|_| request.request_state.is_some());
            if let Err(open) = self.ask(questions.clone(), given, context).await? {
                return Ok(InputRequiredResult::new(Some(open), Some(self.shared.new_state(at))).into());
            }
            at += 1;
        }
        Ok(CallToolResponse::Complete(result(said("state-ok"))?))
    }

    /// Sends a log message if the client's level allows it.
    async fn log(&self, text: &str, context: &Context) -> Result<()> {
        let wanted = if is_modern(context) { context.meta.log_level() } else { Some(*lock(&self.level)) };
        if !matches!(wanted, Some(LoggingLevel::Debug | LoggingLevel::Info)) {
            return Ok(());
        }
        let message = LoggingMessageNotificationParam::new(LoggingLevel::Info, json!(text)).with_logger("conformance");
        context.peer.notify_logging_message(message).await.map_err(failed)
    }

    async fn log_thrice(&self, context: &Context) -> Result<()> {
        for text in ["begun", "half way", "done"] {
            self.log(text, context).await?;
            tokio::time::sleep(PAUSE).await;
        }
        Ok(())
    }

    async fn progress(&self, context: &Context) -> Result<()> {
        for step in [0.0, 50.0, 100.0] {
            if let Some(token) = context.meta.get_progress_token() {
                let progress = ProgressNotificationParam::new(token, step).with_total(100.0);
                context.peer.notify_progress(progress).await.map_err(failed)?;
            }
            tokio::time::sleep(PAUSE).await;
        }
        Ok(())
    }

    /// Notifies all listeners of a changed list.
    async fn changed(&self, tools: bool, context: &Context) -> Result<()> {
        let listeners: Vec<SubscriptionSink> = lock(&self.shared.listeners).values().cloned().collect();
        for listener in listeners {
            // Skips listeners that did not subscribe or have disconnected.
            let _ = if tools {
                listener.notify_tool_list_changed().await
            } else {
                listener.notify_prompt_list_changed().await
            };
        }
        if is_modern(context) {
            return Ok(());
        }
        let peer = &context.peer;
        if tools { peer.notify_tool_list_changed().await } else { peer.notify_prompt_list_changed().await }
            .map_err(failed)
    }

    /// Input requests that the client's capabilities allow.
    fn within_capabilities(context: &Context) -> Questions {
        let can = context.client_capabilities().unwrap_or_default();
        let mut questions = Questions::new();
        if can.elicitation.is_some() {
            questions.push(("name", name_form()));
        }
        if can.sampling.is_some() {
            questions.push(("thought", sample("Say something.")));
        }
        if can.roots.is_some() {
            questions.push(("roots", roots()));
        }
        questions
    }

    async fn call(&self, request: &CallToolRequestParams, context: &Context) -> Result<CallToolResponse> {
        let argument = |name: &str| {
            let value = request.arguments.as_ref().and_then(|arguments| arguments.get(name));
            value.and_then(Value::as_str).unwrap_or_default().to_owned()
        };
        let questions: Questions = match request.name.as_ref() {
            name if tasks::TOOLS.iter().any(|(known, _)| *known == name) => {
                return tasks::call(&self.shared.tasks, request, context).await;
            }
            "test_sampling" => vec![("question", sample(&argument("prompt")))],
            "test_elicitation" => vec![("question", user_form(&argument("message")))],
            "test_elicitation_sep1034_defaults" => vec![("question", form_with_defaults())],
            "test_elicitation_sep1330_enums" => vec![("question", form_with_choices())],
            "test_streaming_elicitation" => vec![("question", name_form())],
            "test_input_required_result_elicitation" => vec![("user_name", name_form())],
            "test_input_required_result_sampling" => {
                vec![("capital_question", sample("Name a capital."))]
            }
            "test_input_required_result_list_roots" => vec![("client_roots", roots())],
            "test_input_required_result_capabilities" => Self::within_capabilities(context),
            "test_input_required_result_request_state" | "test_input_required_result_tampered_state" => {
                let confirm = form("Is that right?", &json!({ "ok": { "type": "boolean" } }), &["ok"]);
                return self.ask_in_steps(vec![vec![("confirm", confirm)]], request, context).await;
            }
            "test_input_required_result_multiple_inputs" => {
                let all = vec![("user_name", name_form()), ("greeting", sample("Greet.")), ("client_roots", roots())];
                return self.ask_in_steps(vec![all], request, context).await;
            }
            "test_input_required_result_multi_round" => {
                let color = form("Which color?", &json!({ "color": { "type": "string" } }), &["color"]);
                return self
                    .ask_in_steps(vec![vec![("step1", name_form())], vec![("step2", color)]], request, context)
                    .await;
            }
            other => return self.answer(other, &argument("value"), context).await.map(CallToolResponse::Complete),
        };
        self.ask_and_tell(questions, request, context).await
    }

    /// A tool without input requests.
    async fn answer(&self, name: &str, value: &str, context: &Context) -> Result<CallToolResult> {
        match name {
            "test_tool_with_logging" | "test_logging_tool" => self.log_thrice(context).await?,
            "test_tool_with_progress" => self.progress(context).await?,
            "test_reconnection" => tokio::time::sleep(PAUSE).await,
            "test_trigger_tool_change" => self.changed(true, context).await?,
            "test_trigger_prompt_change" => self.changed(false, context).await?,
            "test_missing_capability" if context.client_capabilities().is_none_or(|can| can.sampling.is_none()) => {
                let needed = ClientCapabilities::builder().enable_sampling().build();
                return Err(ErrorData::missing_required_client_capability(needed));
            }
            "test_custom_header" => return result(said(value)),
            _ => {}
        }
        result(fixed(name).ok_or_else(|| ErrorData::invalid_params(format!("there is no tool {name}"), None))?)
    }
}

/// Sends a server request to a handshake-era client.
async fn put(question: InputRequest, context: &Context) -> Result<Value> {
    let answer = match question {
        InputRequest::CreateMessage(asked) => {
            serde_json::to_value(context.peer.create_message(asked.params).await.map_err(failed)?)
        }
        InputRequest::Elicitation(asked) => {
            serde_json::to_value(context.peer.create_elicitation(asked.params).await.map_err(failed)?)
        }
        _ => serde_json::to_value(context.peer.list_roots().await.map_err(failed)?),
    };
    answer.map_err(failed)
}

// === impl Shared ===

impl Shared {
    /// Issues an unguessable request state.
    fn new_state(&self, step: usize) -> String {
        let state = format!("step-{step}-{}", self.last_state.fetch_add(1, Ordering::Relaxed));
        lock(&self.states).insert(state.clone());
        state
    }

    /// Consumes a request state and returns its step. Each state is valid once.
    fn take_state(&self, state: &str) -> Result<usize> {
        let step = state.split('-').nth(1).and_then(|step| step.parse().ok());
        let known = lock(&self.states).remove(state);
        step.filter(|_| known).ok_or_else(|| ErrorData::invalid_params("this state was not handed out here", None))
    }
}

// === impl ServerHandler ===

impl ServerHandler for Fixture {
    fn get_info(&self) -> ServerConfig {
        let capabilities = ServerCapabilities::builder()
            .enable_completions()
            .enable_logging()
            .enable_prompts()
            .enable_prompts_list_changed()
            .enable_resources()
            .enable_resources_subscribe()
            .enable_tools()
            .enable_tool_list_changed()
            .enable_tasks()
            .build();
        ServerConfig::new(capabilities).with_server_info(Implementation::new("conformance-rmcp", "1"))
    }

    fn supported_protocol_versions(&self) -> Cow<'static, [ProtocolVersion]> {
        Cow::Borrowed(self.shape.versions())
    }

    /// The SDK reads the mirrored header parameters from here.
    fn get_tool(&self, name: &str) -> Option<Tool> {
        tools().into_iter().find(|tool| tool["name"] == name).and_then(|tool| typed(tool).ok())
    }

    async fn list_tools(&self, _: Option<PaginatedRequestParams>, _: Context) -> Result<ListToolsResult> {
        result(json!({ "tools": tools(), "ttlMs": 100_000, "cacheScope": "public" }))
    }

    async fn call_tool(&self, request: CallToolRequestParams, context: Context) -> Result<CallToolResponse> {
        self.call(&request, &context).await
    }

    async fn list_resources(&self, _: Option<PaginatedRequestParams>, _: Context) -> Result<ListResourcesResult> {
        result(json!({ "resources": resources(), "ttlMs": 200_000, "cacheScope": "public" }))
    }

    async fn list_resource_templates(
        &self,
        _: Option<PaginatedRequestParams>,
        _: Context,
    ) -> Result<ListResourceTemplatesResult> {
        let template = json!({
            "uriTemplate": "test://template/{id}/data",
            "name": "template",
            "description": "Says which one it is",
            "mimeType": "application/json",
        });
        result(json!({ "resourceTemplates": [template], "ttlMs": 300_000, "cacheScope": "public" }))
    }

    async fn read_resource(&self, request: ReadResourceRequestParams, _: Context) -> Result<ReadResourceResponse> {
        let missing =
            || ErrorData::resource_not_found("there is no such resource", Some(json!({ "uri": request.uri })));
        let contents = contents(&request.uri).ok_or_else(missing)?;
        let read: ReadResourceResult =
            result(json!({ "contents": contents, "ttlMs": 400_000, "cacheScope": "private" }))?;
        Ok(read.into())
    }

    async fn list_prompts(&self, _: Option<PaginatedRequestParams>, _: Context) -> Result<ListPromptsResult> {
        result(json!({ "prompts": prompts(), "ttlMs": 500_000, "cacheScope": "public" }))
    }

    async fn get_prompt(&self, request: GetPromptRequestParams, context: Context) -> Result<GetPromptResponse> {
        let arguments = json!(request.arguments);
        let messages = if request.name == "test_input_required_result_prompt" {
            let about = form("What is it about?", &json!({ "context": { "type": "string" } }), &["context"]);
            match self.ask(vec![("user_context", about)], request.input_responses.as_ref(), &context).await? {
                Ok(answers) => {
                    json!([{ "role": "user", "content": { "type": "text", "text": json!(answers).to_string() } }])
                }
                Err(open) => return Ok(InputRequiredResult::from_input_requests(open).into()),
            }
        } else {
            let missing = || ErrorData::invalid_params(format!("there is no prompt {}", request.name), None);
            messages(&request.name, &arguments).ok_or_else(missing)?
        };
        let prompt: GetPromptResult = result(json!({ "messages": messages }))?;
        Ok(prompt.into())
    }

    async fn complete(&self, request: CompleteRequestParams, _: Context) -> Result<CompleteResult> {
        let words = ["paragraph", "parallel", "path"];
        let values: Vec<&str> = words.into_iter().filter(|word| word.starts_with(&request.argument.value)).collect();
        result(json!({ "completion": { "values": values, "total": values.len(), "hasMore": false } }))
    }

    async fn set_level(&self, request: SetLevelRequestParams, _: Context) -> Result<()> {
        *lock(&self.level) = request.level;
        Ok(())
    }

    /// Resources never change, so subscriptions are not stored.
    async fn subscribe(&self, _: SubscribeRequestParams, _: Context) -> Result<()> {
        Ok(())
    }

    async fn unsubscribe(&self, _: UnsubscribeRequestParams, _: Context) -> Result<()> {
        Ok(())
    }

    fn accepted_subscription_filter(&self, requested: &SubscriptionFilter) -> Option<SubscriptionFilter> {
        Some(requested.clone())
    }

    async fn listen(&self, context: SubscriptionContext) -> Result<()> {
        let number = self.shared.last_listener.fetch_add(1, Ordering::Relaxed);
        lock(&self.shared.listeners).insert(number, context.sink().clone());
        context.cancelled().await;
        lock(&self.shared.listeners).remove(&number);
        Ok(())
    }

    async fn get_task(&self, request: GetTaskParams, _: Context) -> Result<GetTaskResult> {
        Ok(GetTaskResult::new(self.shared.tasks.get_task(&request.task_id)?))
    }

    async fn update_task(&self, request: UpdateTaskParams, _: Context) -> Result<()> {
        self.shared.tasks.update_task(&request.task_id, request.input_responses)
    }

    async fn cancel_task(&self, request: CancelTaskParams, _: Context) -> Result<()> {
        self.shared.tasks.cancel_task(&request.task_id)
    }
}
