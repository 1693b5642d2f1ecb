//! The commands that use a server: probe, tools, call, resources, read, prompts, prompt, listen.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args, Subcommand};

use super::arguments;
use super::connect_args::Reach;
use super::output;
use super::probe;
use crate::client::{Client, ListenRequest};
use crate::error::{Error, ErrorKind, Result};
use crate::protocol::Raw;

/// The commands of the client. Each takes a URL, or a command to start after `--`.
#[derive(Debug, Subcommand)]
pub(super) enum ClientCommand {
    /// Say what is there: transport, revisions, capabilities, oddities.
    Probe(Plain),
    /// List the tools of a server.
    Tools(Plain),
    /// Call a tool: `rialto call URL TOOL key=value key:=json`.
    Call(CallArgs),
    /// List the resources and templates of a server.
    Resources(Plain),
    /// Read a resource: `rialto read URL RESOURCE-URI`.
    Read(Plain),
    /// List the prompts of a server.
    Prompts(Plain),
    /// Get a prompt: `rialto prompt URL PROMPT key=value`.
    Prompt(CallArgs),
    /// Print changes as they come; `rialto listen URL RESOURCE-URI…` subscribes to resources.
    Listen(Plain),
}

/// A target and words.
#[derive(Debug, Args)]
pub(super) struct Plain {
    /// The URL of a server, unless a command follows --, and what else the command takes.
    #[arg(value_name = "URL [WORD]")]
    pub(super) words: Vec<String>,
    #[command(flatten)]
    pub(super) reach: Reach,
}

/// A target, a name and arguments.
#[derive(Debug, Args)]
pub(super) struct CallArgs {
    /// The URL of a server, unless a command follows --; a name; arguments as key=value or key:=json.
    #[arg(value_name = "URL NAME [ARGUMENT]")]
    words: Vec<String>,
    /// A file with the arguments as one JSON object; - for standard input.
    #[arg(long, value_name = "FILE")]
    args: Option<PathBuf>,
    /// Send the arguments without comparing them with the schema.
    #[arg(long)]
    unchecked: bool,
    #[command(flatten)]
    reach: Reach,
}

/// The tool itself says that it failed.
const TOOL_FAILED: u8 = 1;
/// The server cannot be reached, or broke off.
const UNREACHABLE: u8 = 3;
/// The server answered with an error, or with something that the protocol does not allow.
const REFUSED: u8 = 4;
/// An interrupt ended the call.
const INTERRUPTED: u8 = 130;

/// Runs a command of the client.
pub(super) async fn run(command: ClientCommand) -> ExitCode {
    let running = async {
        match command {
            ClientCommand::Probe(plain) => probe::run(plain).await,
            ClientCommand::Tools(plain) => tools(plain).await,
            ClientCommand::Call(call) => self::call(call).await,
            ClientCommand::Resources(plain) => resources(plain).await,
            ClientCommand::Read(plain) => read(plain).await,
            ClientCommand::Prompts(plain) => prompts(plain).await,
            ClientCommand::Prompt(call) => prompt(call).await,
            ClientCommand::Listen(plain) => listen(plain).await,
        }
    };
    match running.await {
        Ok(code) => code,
        Err(error) => {
            eprintln!("rialto: {}", output::plain(&error.to_string()));
            ExitCode::from(match error.kind() {
                ErrorKind::Usage => super::USAGE,
                ErrorKind::Unreachable
                | ErrorKind::Timeout
                | ErrorKind::Broken
                | ErrorKind::Status(_)
                | ErrorKind::Credentials => UNREACHABLE,
                ErrorKind::Protocol | ErrorKind::Revision | ErrorKind::Answer(_) => REFUSED,
            })
        }
    }
}

/// Does something with a client and closes it, also when an interrupt comes: dropping what is
/// under way cancels it at the server.
async fn with<T>(client: Client, act: impl AsyncFnOnce(&Client) -> Result<T>) -> Result<Option<T>> {
    let done = tokio::select! {
        done = act(&client) => Some(done),
        _ = tokio::signal::ctrl_c() => None,
    };
    // What was dropped is told to the server by a task; let it run before the connection goes.
    tokio::task::yield_now().await;
    client.close().await;
    done.transpose()
}

/// The exit code of what was done, or that of an interrupt.
fn code(done: Option<ExitCode>) -> ExitCode {
    done.unwrap_or_else(|| ExitCode::from(INTERRUPTED))
}

fn print_list(json: bool, name: &str, items: &[Raw], table: impl FnOnce() -> String) {
    match json {
        true => output::line(&Raw::empty().edit().set(name, Raw::of(items)).finish().to_string()),
        false => output::line(&table()),
    }
}

async fn tools(mut plain: Plain) -> Result<ExitCode> {
    let target = plain.reach.target(&mut plain.words)?;
    let (client, _) = plain.reach.connect(&target).await?;
    let listed = with(client, async |client| client.tools().await).await?;
    let Some(tools) = listed else { return Ok(code(None)) };
    print_list(plain.reach.json, "tools", &tools, || {
        let row = |tool: &Raw| {
            vec![output::text(tool, "name"), output::signature(tool.get("inputSchema").as_ref()), output::summary(tool)]
        };
        output::table(&["TOOL", "ARGUMENTS", "DESCRIPTION"], tools.iter().map(row))
    });
    Ok(ExitCode::SUCCESS)
}

async fn call(mut call: CallArgs) -> Result<ExitCode> {
    let target = call.reach.target(&mut call.words)?;
    if call.words.is_empty() {
        return Err(Error::new(ErrorKind::Usage, "say which tool to call; `rialto tools` lists them"));
    }
    let name = call.words.remove(0);
    let (client, terminal) = call.reach.connect(&target).await?;
    let done = with(client, async |client| {
        let schema = if call.unchecked { None } else { Some(schema_of(client, &name).await?) };
        let arguments = arguments::read(&call.words, call.args.as_deref(), schema.as_ref())?;
        client.call_tool(&name, Raw::of(&arguments)).await
    })
    .await;
    terminal.finish();
    let Some(result) = done? else { return Ok(code(None)) };
    let failed = result.get("isError").is_some_and(|raw| raw.as_bytes() == b"true");
    match call.reach.json {
        true => output::line(&result.to_string()),
        false if failed => eprintln!("{}", output::content(&result)),
        false => output::line(&output::content(&result)),
    }
    Ok(if failed { ExitCode::from(TOOL_FAILED) } else { ExitCode::SUCCESS })
}

async fn schema_of(client: &Client, name: &str) -> Result<Raw> {
    let tools = client.tools().await?;
    let names: Vec<String> = tools.iter().map(|tool| output::text(tool, "name")).collect();
    let Some(at) = names.iter().position(|known| known == name) else {
        let known: Vec<&str> = names.iter().map(String::as_str).collect();
        let hint = match crate::config::nearest(name, &known) {
            Some(near) => format!("did you mean {near:?}?"),
            None => format!("there are {}", known.join(", ")),
        };
        return Err(Error::new(ErrorKind::Usage, format!("there is no tool {name:?}; {hint}")));
    };
    Ok(tools[at].get("inputSchema").unwrap_or_else(Raw::empty))
}

async fn resources(mut plain: Plain) -> Result<ExitCode> {
    let target = plain.reach.target(&mut plain.words)?;
    let (client, _) = plain.reach.connect(&target).await?;
    let listed =
        with(client, async |client| Ok((client.resources().await?, client.templates().await.unwrap_or_default())))
            .await?;
    let Some((resources, templates)) = listed else { return Ok(code(None)) };
    if plain.reach.json {
        let empty = Raw::empty();
        let both = empty.edit().set("resources", Raw::of(&resources)).set("resourceTemplates", Raw::of(&templates));
        output::line(&both.finish().to_string());
        return Ok(ExitCode::SUCCESS);
    }
    let row = |key: &'static str| {
        move |item: &Raw| {
            vec![
                output::text(item, key),
                output::text(item, "name"),
                output::text(item, "mimeType"),
                output::summary(item),
            ]
        }
    };
    let rows = resources.iter().map(row("uri")).chain(templates.iter().map(row("uriTemplate")));
    output::line(&output::table(&["URI", "NAME", "TYPE", "DESCRIPTION"], rows));
    Ok(ExitCode::SUCCESS)
}

async fn read(mut plain: Plain) -> Result<ExitCode> {
    let target = plain.reach.target(&mut plain.words)?;
    let Some(uri) = plain.words.first().cloned() else {
        return Err(Error::new(ErrorKind::Usage, "say which resource to read; `rialto resources` lists them"));
    };
    let (client, _) = plain.reach.connect(&target).await?;
    let Some(result) = with(client, async |client| client.read(&uri).await).await? else { return Ok(code(None)) };
    if plain.reach.json {
        output::line(&result.to_string());
        return Ok(ExitCode::SUCCESS);
    }
    for content in result.get("contents").map(|contents| contents.items()).unwrap_or_default() {
        output::line(&output::resource_text(&content));
    }
    Ok(ExitCode::SUCCESS)
}

async fn prompts(mut plain: Plain) -> Result<ExitCode> {
    let target = plain.reach.target(&mut plain.words)?;
    let (client, _) = plain.reach.connect(&target).await?;
    let listed = with(client, async |client| client.prompts().await).await?;
    let Some(prompts) = listed else { return Ok(code(None)) };
    print_list(plain.reach.json, "prompts", &prompts, || {
        let row = |prompt: &Raw| {
            let arguments = prompt.get("arguments").map(|list| list.items()).unwrap_or_default();
            let names: Vec<String> = arguments.iter().map(|argument| output::text(argument, "name")).collect();
            vec![output::text(prompt, "name"), names.join(" "), output::summary(prompt)]
        };
        output::table(&["PROMPT", "ARGUMENTS", "DESCRIPTION"], prompts.iter().map(row))
    });
    Ok(ExitCode::SUCCESS)
}

async fn prompt(mut call: CallArgs) -> Result<ExitCode> {
    let target = call.reach.target(&mut call.words)?;
    if call.words.is_empty() {
        return Err(Error::new(ErrorKind::Usage, "say which prompt to get; `rialto prompts` lists them"));
    }
    let name = call.words.remove(0);
    let arguments = Raw::of(&arguments::read(&call.words, call.args.as_deref(), None)?);
    let (client, _) = call.reach.connect(&target).await?;
    let done = with(client, async |client| client.prompt(&name, arguments).await).await?;
    let Some(result) = done else { return Ok(code(None)) };
    if call.reach.json {
        output::line(&result.to_string());
        return Ok(ExitCode::SUCCESS);
    }
    for message in result.get("messages").map(|messages| messages.items()).unwrap_or_default() {
        let content = message.get("content").map(|content| output::block(&content)).unwrap_or_default();
        output::line(&format!("{}: {content}", output::text(&message, "role")));
    }
    Ok(ExitCode::SUCCESS)
}

async fn listen(mut plain: Plain) -> Result<ExitCode> {
    let target = plain.reach.target(&mut plain.words)?;
    let (client, _) = plain.reach.connect(&target).await?;
    let wishes = ListenRequest { lists: true, resources: plain.words.clone() };
    let json = plain.reach.json;
    let done = with(client, async |client| {
        let mut listening = client.listen(wishes).await?;
        eprintln!("listening; an interrupt ends it");
        while let Some(notification) = listening.next().await {
            match json {
                true => output::line(&String::from_utf8_lossy(&notification.encode())),
                false => {
                    let uri =
                        notification.params.as_ref().map(|params| output::text(params, "uri")).unwrap_or_default();
                    output::line(&format!("{} {uri}", output::plain(notification.notice.as_str())));
                }
            }
        }
        Ok(())
    })
    .await?;
    // An interrupt is the usual way to end this.
    Ok(done.map_or(ExitCode::SUCCESS, |()| ExitCode::from(UNREACHABLE)))
}
