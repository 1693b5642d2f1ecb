//! What stands between the client and the upstream: nothing, nginx, or Rialto. Another contender is
//! another [`Front`], with a way to start it.

use std::net::{SocketAddr, TcpListener};

use tokio::process::Command;

use crate::client::Era;
use crate::folder::Folder;
use crate::process::Server;
use crate::spread::version;
use crate::upstream::{self, Wire};
use crate::{Failure, Plan};

/// What stands between.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Front {
    /// Nothing: the client calls the upstream, and the upstream's own time is shown.
    Direct,
    /// nginx as a plain reverse proxy that keeps connections open.
    Nginx,
    /// Rialto, with a file that names the one upstream.
    Rialto,
    /// Another build of Rialto, to see what a change does.
    Beside,
}

/// The processes of one contender. The one that is called is the one that is measured.
pub(crate) struct Standing {
    pub(crate) measured: Server,
    _behind: Option<Server>,
}

impl Front {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Direct => "direct",
            Self::Nginx => "nginx",
            Self::Rialto => "rialto",
            Self::Beside => "beside",
        }
    }

    pub(crate) fn is_rialto(self) -> bool {
        matches!(self, Self::Rialto | Self::Beside)
    }

    /// Whether it can be started here.
    pub(crate) fn is_there(self, plan: &Plan) -> bool {
        match self {
            Self::Direct | Self::Rialto => true,
            Self::Nginx => version("nginx", "-v").is_some(),
            Self::Beside => plan.beside.is_some(),
        }
    }

    /// Starts it in front of an upstream.
    pub(crate) async fn start(self, wire: Wire, era: Era, folder: &Folder, plan: &Plan) -> Result<Standing, Failure> {
        let behind = match wire {
            Wire::Http => Some(upstream::start(era, plan.bytes).await?),
            Wire::Stdio => None,
        };
        let address = behind.as_ref().map(|server| server.address);
        let measured = match (self, behind, address) {
            (Self::Direct, Some(upstream), _) => return Ok(Standing { measured: upstream, _behind: None }),
            (Self::Nginx, behind, Some(address)) => (nginx(address, folder).await?, behind),
            (Self::Rialto | Self::Beside, behind, address) => {
                let beside = plan.beside.as_ref().filter(|_| self == Self::Beside);
                let program = beside.map_or_else(Server::rialto, Command::new);
                (rialto(program, address, era, folder, plan).await?, behind)
            }
            _ => return Err(format!("{} speaks no stdio", self.name()).into()),
        };
        Ok(Standing { measured: measured.0, _behind: measured.1 })
    }
}

async fn rialto(
    program: Command,
    upstream: Option<SocketAddr>,
    era: Era,
    folder: &Folder,
    plan: &Plan,
) -> Result<Server, Failure> {
    let revision = era.revision();
    let reached = match upstream {
        Some(address) => format!("url = \"http://{address}/mcp\"\n"),
        None => {
            let child = std::env::current_exe()?;
            let arguments = upstream::arguments(Wire::Stdio, era, plan.bytes);
            // One child for all, or there would be one for each session.
            format!("command = {child:?}\nargs = {arguments:?}\nisolation = \"shared\"\n")
        }
    };
    let log = "[log]\nfilter = \"warn\"\n\n";
    let text = format!("listen = \"127.0.0.1:0\"\n\n{log}[servers.upstream]\n{reached}revision = \"{revision}\"\n");
    let file = folder.write("rialto.toml", &text)?;
    let mut command = match plan.under.split_first() {
        None => program,
        Some((outer, arguments)) => {
            let mut command = Command::new(outer);
            command.args(arguments).arg(program.as_std().get_program());
            command
        }
    };
    command.args(["serve", "--config"]).arg(file);
    Server::start(command).await
}

async fn nginx(upstream: SocketAddr, folder: &Folder) -> Result<Server, Failure> {
    // Free just now; nobody else is asked to listen anywhere in particular.
    let address = TcpListener::bind("127.0.0.1:0")?.local_addr()?;
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
