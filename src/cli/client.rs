//! The client commands: probe, tools, call, resources, read, prompts, prompt, listen.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args, Subcommand};
use tokio::signal::unix::{Signal, SignalKind, signal};

use super::arguments;
use super::connect_args::ConnectArgs;
use super::output;
use super::probe;
use crate::client::{Client, ListenRequest};
use crate::error::{Error, Result};
use crate::failure::FailureKind;
use crate::mcp_client::Target;
use crate::protocol::Raw;

/// The client commands. Each takes a URL or a server name, or a command after `--`.
#[derive(Debug, Subcommand)]
pub(super) enum ClientCommand {
    /// Show what a server supports: transport, revisions, capabilities, protocol deviations.
    Probe(TargetArgs),
    /// List the tools of a server.
    Tools(TargetArgs),
    /// Call a tool: `rialto call URL TOOL key=value key:=json`.
    Call(CallArgs),
    /// List the resources and templates of a server.
    Resources(TargetArgs),
    /// Read a resource: `rialto read URL RESOURCE-URI`.
    Read(TargetArgs),
    /// List the prompts of a server.
    Prompts(TargetArgs),
    /// Get a prompt: `rialto prompt URL PROMPT key=value`.
    Prompt(CallArgs),
    /// Print change notifications; `rialto listen URL RESOURCE-URI…` subscribes to resources.
    Listen(TargetArgs),
}

/// A target and further words.
#[derive(Debug, Args)]
pub(super) struct TargetArgs {
    /// URL or name of a server (unless a command follows --), then the other arguments.
    #[arg(value_name = "URL [WORD]")]
    pub(super) words: Vec<String>,
    #[command(flatten)]
    pub(super) connect: ConnectArgs,
}

/// A target, the name of a tool or prompt, and its arguments.
#[derive(Debug, Args)]
pub(super) struct CallArgs {
    /// URL or name of a server (unless a command follows --); the tool or prompt; arguments as key=value or
    /// key:=json.
    #[arg(value_name = "URL NAME [ARGUMENT]")]
    words: Vec<String>,
    /// File with the arguments as one JSON object; - for standard input.
    #[arg(long, value_name = "FILE")]
    args: Option<PathBuf>,
    /// Do not check the arguments against the input schema.
    #[arg(long)]
    unchecked: bool,
    #[command(flatten)]
    connect: ConnectArgs,
}

/// Exit code: the tool returned `isError`.
const EXIT_TOOL_FAILED: u8 = 1;
/// Exit code: the server is unreachable, timed out or closed the connection.
const EXIT_UNREACHABLE: u8 = 3;
/// Exit code: the server returned a JSON-RPC error or violated the protocol.
const EXIT_SERVER_ERROR: u8 = 4;
/// Exit code: interrupted by SIGINT.
const EXIT_INTERRUPTED: u8 = 130;

/// Runs a client command and maps errors to exit codes.
pub(super) async fn run(command: ClientCommand) -> ExitCode {
    let running = async {
        match command {
            ClientCommand::Probe(args) => probe::run(args).await,
            ClientCommand::Tools(args) => tools(args).await,
            ClientCommand::Call(call) => self::call(call).await,
            ClientCommand::Resources(args) => resources(args).await,
            ClientCommand::Read(args) => read(args).await,
            ClientCommand::Prompts(args) => prompts(args).await,
            ClientCommand::Prompt(call) => prompt(call).await,
            ClientCommand::Listen(args) => listen(args).await,
        }
    };
    match running.await {
        Ok(code) => code,
        Err(error) => {
            eprintln!("rialto: {}", output::strip_control_chars(&error.to_string()));
            ExitCode::from(error_code(&error))
        }
    }
}

fn error_code(error: &Error) -> u8 {
    match error {
        Error::Usage(_) => super::EXIT_USAGE,
        Error::ErrorResponse(_) => EXIT_SERVER_ERROR,
        Error::Failure(failure) => match failure.kind() {
            FailureKind::HandshakeRefused(_)
            | FailureKind::NoCommonRevision
            | FailureKind::TooLarge(_)
            | FailureKind::TooDeep(_)
            | FailureKind::Protocol
            | FailureKind::ClientUnanswered => EXIT_SERVER_ERROR,
            _ => EXIT_UNREACHABLE,
        },
    }
}

/// Connects, runs `act` with the client and closes it. SIGINT ends either; a request that is running is dropped, which
/// cancels it at the server.
async fn with_client<T>(
    connect: &ConnectArgs,
    target: &Target,
    act: impl AsyncFnOnce(&Client) -> Result<T>,
) -> Result<Option<T>> {
    // One handler from the start: between two of them a signal would be lost.
    let mut interrupts = signal(SignalKind::interrupt()).ok();
    let (client, terminal) = tokio::select! {
        connected = connect.connect(target) => connected?,
        () = interrupted(&mut interrupts) => return Ok(None),
    };
    let outcome = tokio::select! {
        result = act(&client) => Some(result),
        () = interrupted(&mut interrupts) => None,
    };
    // The cancellation is sent by a task: let it run before the connection is closed.
    tokio::task::yield_now().await;
    client.close().await;
    terminal.clear_progress();
    outcome.transpose()
}

/// Completes with SIGINT; never where it cannot be handled, and then it ends the process.
async fn interrupted(interrupts: &mut Option<Signal>) {
    match interrupts {
        Some(signal) => drop(signal.recv().await),
        None => std::future::pending().await,
    }
}

/// The exit code, or [`EXIT_INTERRUPTED`] after SIGINT.
fn exit_code(outcome: Option<ExitCode>) -> ExitCode {
    outcome.unwrap_or_else(|| ExitCode::from(EXIT_INTERRUPTED))
}

fn print_list(json: bool, name: &str, items: &[Raw], table: impl FnOnce() -> String) {
    match json {
        true => output::print_line(&Raw::empty().edit().set(name, Raw::of(items)).finish().to_string()),
        false => output::print_line(&table()),
    }
}

async fn tools(mut args: TargetArgs) -> Result<ExitCode> {
    let target = args.connect.target(&mut args.words)?;
    let listed = with_client(&args.connect, &target, async |client| client.tools().await).await?;
    let Some(tools) = listed else { return Ok(exit_code(None)) };
    print_list(args.connect.json, "tools", &tools, || {
        let row = |tool: &Raw| {
            vec![
                output::member_text(tool, "name"),
                output::signature(tool.get("inputSchema").as_ref()),
                output::summary(tool),
            ]
        };
        output::table(&["TOOL", "ARGUMENTS", "DESCRIPTION"], tools.iter().map(row))
    });
    Ok(ExitCode::SUCCESS)
}

async fn call(mut args: CallArgs) -> Result<ExitCode> {
    let target = args.connect.target(&mut args.words)?;
    if args.words.is_empty() {
        return Err(Error::usage("specify which tool to call; `rialto tools` lists them"));
    }
    let name = args.words.remove(0);
    let outcome = with_client(&args.connect, &target, async |client| {
        let schema = if args.unchecked { None } else { Some(schema_of(client, &name).await?) };
        let arguments = arguments::read(&args.words, args.args.as_deref(), schema.as_ref())?;
        client.call_tool(&name, Raw::of(&arguments)).await
    })
    .await?;
    let Some(result) = outcome else { return Ok(exit_code(None)) };
    let failed = result.get("isError").is_some_and(|raw| raw.as_bytes() == b"true");
    match args.connect.json {
        true => output::print_line(&result.to_string()),
        false if failed => eprintln!("{}", output::content_text(&result)),
        false => output::print_text(&output::content_text(&result)),
    }
    Ok(if failed { ExitCode::from(EXIT_TOOL_FAILED) } else { ExitCode::SUCCESS })
}

async fn schema_of(client: &Client, name: &str) -> Result<Raw> {
    let tools = client.tools().await?;
    let names: Vec<String> = tools.iter().map(|tool| output::member_text(tool, "name")).collect();
    let Some(at) = names.iter().position(|known| known == name) else {
        let known: Vec<&str> = names.iter().map(String::as_str).collect();
        let hint = match crate::config::nearest(name, &known) {
            Some(near) => format!("did you mean {near:?}?"),
            None => format!("tools: {}", known.join(", ")),
        };
        return Err(Error::usage(format!("there is no tool {name:?}; {hint}")));
    };
    Ok(tools[at].get("inputSchema").unwrap_or_else(Raw::empty))
}

async fn resources(mut args: TargetArgs) -> Result<ExitCode> {
    let target = args.connect.target(&mut args.words)?;
    let listed = with_client(&args.connect, &target, async |client| {
        Ok((client.resources().await?, client.templates().await.unwrap_or_default()))
    })
    .await?;
    let Some((resources, templates)) = listed else { return Ok(exit_code(None)) };
    if args.connect.json {
        let empty = Raw::empty();
        let both = empty.edit().set("resources", Raw::of(&resources)).set("resourceTemplates", Raw::of(&templates));
        output::print_line(&both.finish().to_string());
        return Ok(ExitCode::SUCCESS);
    }
    let row = |key: &'static str| {
        move |item: &Raw| {
            vec![
                output::member_text(item, key),
                output::member_text(item, "name"),
                output::member_text(item, "mimeType"),
                output::summary(item),
            ]
        }
    };
    let rows = resources.iter().map(row("uri")).chain(templates.iter().map(row("uriTemplate")));
    output::print_line(&output::table(&["URI", "NAME", "TYPE", "DESCRIPTION"], rows));
    Ok(ExitCode::SUCCESS)
}

async fn read(mut args: TargetArgs) -> Result<ExitCode> {
    let target = args.connect.target(&mut args.words)?;
    let Some(uri) = args.words.first().cloned() else {
        return Err(Error::usage("specify which resource to read; `rialto resources` lists them"));
    };
    let Some(result) = with_client(&args.connect, &target, async |client| client.read(&uri).await).await? else {
        return Ok(exit_code(None));
    };
    if args.connect.json {
        output::print_line(&result.to_string());
        return Ok(ExitCode::SUCCESS);
    }
    for content in result.get("contents").map(|contents| contents.items()).unwrap_or_default() {
        output::print_line(&output::resource_text(&content));
    }
    Ok(ExitCode::SUCCESS)
}

async fn prompts(mut args: TargetArgs) -> Result<ExitCode> {
    let target = args.connect.target(&mut args.words)?;
    let listed = with_client(&args.connect, &target, async |client| client.prompts().await).await?;
    let Some(prompts) = listed else { return Ok(exit_code(None)) };
    print_list(args.connect.json, "prompts", &prompts, || {
        let row = |prompt: &Raw| {
            let arguments = prompt.get("arguments").map(|list| list.items()).unwrap_or_default();
            let names: Vec<String> = arguments.iter().map(|argument| output::member_text(argument, "name")).collect();
            vec![output::member_text(prompt, "name"), names.join(" "), output::summary(prompt)]
        };
        output::table(&["PROMPT", "ARGUMENTS", "DESCRIPTION"], prompts.iter().map(row))
    });
    Ok(ExitCode::SUCCESS)
}

async fn prompt(mut args: CallArgs) -> Result<ExitCode> {
    let target = args.connect.target(&mut args.words)?;
    if args.words.is_empty() {
        return Err(Error::usage("specify which prompt to get; `rialto prompts` lists them"));
    }
    let name = args.words.remove(0);
    let arguments = Raw::of(&arguments::read(&args.words, args.args.as_deref(), None)?);
    let outcome = with_client(&args.connect, &target, async |client| client.prompt(&name, arguments).await).await?;
    let Some(result) = outcome else { return Ok(exit_code(None)) };
    if args.connect.json {
        output::print_line(&result.to_string());
        return Ok(ExitCode::SUCCESS);
    }
    for message in result.get("messages").map(|messages| messages.items()).unwrap_or_default() {
        let content = message.get("content").map(|content| output::block_text(&content)).unwrap_or_default();
        output::print_line(&format!("{}: {content}", output::member_text(&message, "role")));
    }
    Ok(ExitCode::SUCCESS)
}

async fn listen(mut args: TargetArgs) -> Result<ExitCode> {
    let target = args.connect.target(&mut args.words)?;
    let request = ListenRequest { lists: true, resources: args.words.clone() };
    let json = args.connect.json;
    let outcome = with_client(&args.connect, &target, async |client| {
        let mut listening = client.listen(request).await?;
        eprintln!("listening; press Ctrl-C to stop");
        while let Some(notification) = listening.next().await {
            match json {
                true => output::print_line(&String::from_utf8_lossy(&notification.encode())),
                false => {
                    let uri = notification
                        .params
                        .as_ref()
                        .map(|params| output::member_text(params, "uri"))
                        .unwrap_or_default();
                    output::print_line(&format!("{} {uri}", output::strip_control_chars(notification.method.as_str())));
                }
            }
        }
        Ok(())
    })
    .await?;
    // SIGINT is the normal way to stop listening.
    Ok(outcome.map_or(ExitCode::SUCCESS, |()| ExitCode::from(EXIT_UNREACHABLE)))
}
