//! What is between the client and the upstream: nothing, nginx, Rialto or another gateway.

use std::net::{SocketAddr, TcpListener};

use tokio::process::Command;

use crate::client::Era;
use crate::folder::Folder;
use crate::others::Other;
use crate::process::Server;
use crate::spread::version;
use crate::upstream::{self, ToolSet, UpstreamTransport};
use crate::{Failure, Plan};

/// What is between the client and the upstream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Frontend {
    /// Nothing: the client calls the upstream directly, and the upstream's CPU time is shown.
    Direct,
    /// nginx as a plain reverse proxy with keep-alive.
    Nginx,
    /// Rialto with one configured upstream.
    Rialto,
    /// Another build of Rialto, to see the effect of a change.
    Beside,
    /// Another gateway.
    Other(Other),
}

/// The processes of one contender. CPU time and memory are measured on the process that is called.
pub(crate) struct Deployment {
    pub(crate) measured: Server,
    _behind: Option<Server>,
}

impl Frontend {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Direct => "direct",
            Self::Nginx => "nginx",
            Self::Rialto => "rialto",
            Self::Beside => "beside",
            Self::Other(other) => other.name(),
        }
    }

    /// Name and version.
    pub(crate) fn title(self) -> String {
        match self {
            Self::Direct => "direct".to_owned(),
            Self::Nginx => version("nginx", "-v").unwrap_or_else(|| "nginx".to_owned()).replace('/', " "),
            Self::Rialto => format!("Rialto {}", env!("CARGO_PKG_VERSION")),
            Self::Beside => "Rialto, the other build".to_owned(),
            Self::Other(other) => format!("{} {}", other.name(), other.version()),
        }
    }

    pub(crate) fn is_rialto(self) -> bool {
        matches!(self, Self::Rialto | Self::Beside)
    }

    /// Whether it is installed.
    pub(crate) fn is_available(self, plan: &Plan) -> bool {
        match self {
            Self::Direct | Self::Rialto => true,
            Self::Nginx => version("nginx", "-v").is_some(),
            Self::Beside => plan.beside.is_some(),
            Self::Other(other) => other.install().is_ok(),
        }
    }

    /// Prefix that it adds to tool names.
    pub(crate) fn prefix(self) -> &'static str {
        match self {
            Self::Other(other) => other.prefix(),
            _ => "",
        }
    }

    /// Starts it in front of an upstream with these tools.
    pub(crate) async fn start(
        self,
        transport: UpstreamTransport,
        era: Era,
        offer: &ToolSet,
        folder: &Folder,
        plan: &Plan,
    ) -> Result<Deployment, Failure> {
        let behind = match transport {
            UpstreamTransport::Http => Some(upstream::start(era, offer).await?),
            UpstreamTransport::Stdio => None,
        };
        let address = behind.as_ref().map(|server| server.address);
        let measured = match (self, behind, address) {
            (Self::Direct, Some(upstream), _) => return Ok(Deployment { measured: upstream, _behind: None }),
            (Self::Nginx, behind, Some(address)) => (nginx(address, folder).await?, behind),
            (Self::Rialto | Self::Beside, behind, address) => {
                let beside = plan.beside.as_ref().filter(|_| self == Self::Beside);
                let program = beside.map_or_else(Server::rialto, Command::new);
                let reached = server_section(address, era, offer)?;
                (rialto(program, &[reached], folder, plan).await?, behind)
            }
            (Self::Other(other), behind, address) => (other.start(address, era, offer, folder).await?, behind),
            _ => return Err(format!("{} speaks no stdio", self.name()).into()),
        };
        Ok(Deployment { measured: measured.0, _behind: measured.1 })
    }
}

/// The configuration lines for an upstream server.
pub(crate) fn server_section(upstream: Option<SocketAddr>, era: Era, offer: &ToolSet) -> Result<String, Failure> {
    let revision = era.revision();
    let reached = match upstream {
        Some(address) => format!("url = \"http://{address}/mcp\"\n"),
        None => {
            let child = std::env::current_exe()?;
            let arguments = offer.arguments(UpstreamTransport::Stdio, era);
            // One child process for all, instead of one per session.
            format!("command = {child:?}\nargs = {arguments:?}\nconnection = \"shared\"\n")
        }
    };
    Ok(format!("{reached}revision = \"{revision}\"\n"))
}

/// Starts Rialto with these server sections.
pub(crate) async fn rialto(
    program: Command,
    servers: &[String],
    folder: &Folder,
    plan: &Plan,
) -> Result<Server, Failure> {
    rialto_with("", program, servers, folder, plan).await
}

/// The same with more lines at the end of the file.
pub(crate) async fn rialto_with(
    more: &str,
    program: Command,
    servers: &[String],
    folder: &Folder,
    plan: &Plan,
) -> Result<Server, Failure> {
    let mut text = "listen = \"127.0.0.1:0\"\n\n[log]\nfilter = \"warn\"\n".to_owned();
    for (n, reached) in servers.iter().enumerate() {
        text += &format!("\n[servers.upstream{n}]\n{reached}");
    }
    text += &format!("\n{more}");
    let file = folder.write("rialto.toml", &text)?;
    let mut command = match plan.under.split_first() {
        None => program,
        Some((outer, arguments)) => {
            let mut command = Command::new(outer);
            command.args(arguments).arg(program.as_std().get_program());
            command
        }
    };
    // nginx writes no access log either.
    command.args(["serve", "--log", "warn", "--config"]).arg(file);
    Server::start(command).await
}

/// A free address for a server that needs a fixed one. No other process of the benchmark asks for a fixed port.
pub(crate) fn free_address() -> Result<SocketAddr, Failure> {
    Ok(TcpListener::bind("127.0.0.1:0")?.local_addr()?)
}

async fn nginx(upstream: SocketAddr, folder: &Folder) -> Result<Server, Failure> {
    let address = free_address()?;
    let place = folder.place().display();
    let text = format!(
        "daemon off;
worker_processes auto;
pid {place}/nginx.pid;
events {{ worker_connections 4096; }}
http {{
    access_log off;
    tcp_nodelay on;
    keepalive_requests 1000000000;
    client_max_body_size 16m;
    client_body_buffer_size 2m;
    proxy_max_temp_file_size 0;
    client_body_temp_path {place}/body;
    proxy_temp_path {place}/proxy;
    fastcgi_temp_path {place}/fastcgi;
    uwsgi_temp_path {place}/uwsgi;
    scgi_temp_path {place}/scgi;
    upstream behind {{
        server {upstream};
        keepalive 1024;
        keepalive_requests 1000000000;
    }}
    server {{
        listen {address};
        location / {{
            proxy_pass http://behind;
            proxy_http_version 1.1;
            proxy_set_header Connection \"\";
            proxy_set_header Host $host;
        }}
    }}
}}
"
    );
    let file = folder.write("nginx.conf", &text)?;
    let mut command = Command::new("nginx");
    command.args(["-e", "stderr", "-p"]).arg(folder.place()).arg("-c").arg(file);
    Server::start_at(command, address).await
}
