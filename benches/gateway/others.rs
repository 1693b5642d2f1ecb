//! The other gateways: how each is installed and started.

use std::fs::File;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use tokio::process::Command;

use crate::Failure;
use crate::client::Era;
use crate::folder::Folder;
use crate::fronts::free_address;
use crate::process::Server;
use crate::upstream::{ToolSet, UpstreamTransport};

/// Another gateway.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Other {
    McpProxyRust,
    /// Default: one upstream session per request.
    FastMcp,
    /// With one upstream session for all requests.
    FastMcpShared,
    McpProxyPython,
    McpProxyNode,
    Supergateway,
}

impl Other {
    pub(crate) const ALL: [Self; 6] = [
        Self::McpProxyRust,
        Self::FastMcp,
        Self::FastMcpShared,
        Self::McpProxyPython,
        Self::McpProxyNode,
        Self::Supergateway,
    ];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::McpProxyRust => "mcp-proxy (crates.io)",
            Self::FastMcp => "fastmcp",
            Self::FastMcpShared => "fastmcp, one session",
            Self::McpProxyPython => "mcp-proxy (PyPI)",
            Self::McpProxyNode => "mcp-proxy (npm)",
            Self::Supergateway => "supergateway",
        }
    }

    /// The installed version.
    pub(crate) fn version(self) -> &'static str {
        match self {
            Self::McpProxyRust => "0.6.0",
            Self::FastMcp | Self::FastMcpShared => "4.1.2",
            Self::McpProxyPython => "0.13.0",
            Self::McpProxyNode => "6.7.19",
            Self::Supergateway => "4.0.0",
        }
    }

    /// Its transport to the upstream; some only support stdio.
    pub(crate) fn transport(self) -> UpstreamTransport {
        match self {
            Self::McpProxyRust | Self::FastMcp | Self::FastMcpShared => UpstreamTransport::Http,
            Self::McpProxyPython | Self::McpProxyNode | Self::Supergateway => UpstreamTransport::Stdio,
        }
    }

    /// The era used with the upstream for a client of an era; `None` if such clients are not supported.
    pub(crate) fn upstream_era(self, client: Era) -> Option<Era> {
        match (self, client) {
            (Self::McpProxyPython, Era::PerRequest) => None,
            (Self::McpProxyRust, _) => Some(Era::Handshake),
            _ => Some(client),
        }
    }

    /// Prefix that it adds to tool names.
    pub(crate) fn prefix(self) -> &'static str {
        if self == Self::McpProxyRust { "upstream/" } else { "" }
    }

    /// Whether it can hold thousands of sessions: not if each is a process.
    pub(crate) fn supports_many_sessions(self) -> bool {
        self != Self::Supergateway
    }

    fn package(self) -> &'static str {
        match self {
            Self::McpProxyRust => "mcp-proxy-rust",
            Self::FastMcp | Self::FastMcpShared => "fastmcp",
            Self::McpProxyPython => "mcp-proxy-python",
            Self::McpProxyNode | Self::Supergateway => "node",
        }
    }

    /// Installs it if necessary.
    pub(crate) fn install(self) -> Result<(), Failure> {
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("benches/gateway/others/setup.sh");
        let mut command = std::process::Command::new(script);
        command.arg(installed()).arg(self.package()).stdout(Stdio::inherit());
        let output = command.stderr(Stdio::piped()).spawn()?.wait_with_output()?;
        if output.status.success() {
            return Ok(());
        }
        let said = String::from_utf8_lossy(&output.stderr).trim().lines().last().unwrap_or_default().to_owned();
        Err(format!("cannot be installed: {said}").into())
    }

    /// Starts it in front of an upstream at an address, or one that it starts itself over stdio.
    pub(crate) async fn start(
        self,
        upstream: Option<SocketAddr>,
        era: Era,
        offer: &ToolSet,
        folder: &Folder,
    ) -> Result<Server, Failure> {
        let address = free_address()?;
        let port = address.port().to_string();
        let url = upstream.map(|address| format!("http://{address}/mcp")).unwrap_or_default();
        let program = std::env::current_exe()?;
        let child = offer.arguments(UpstreamTransport::Stdio, era);
        let mut command = match self {
            Self::McpProxyRust => {
                let listen =
                    format!("[proxy]\nname = \"proxy\"\n[proxy.listen]\nhost = \"127.0.0.1\"\nport = {port}\n");
                let backend = format!("[[backends]]\nname = \"upstream\"\ntransport = \"http\"\nurl = \"{url}\"\n");
                let log = "[observability]\nlog_level = \"error\"\n";
                let file = folder.write("proxy.toml", &format!("{listen}{backend}{log}"))?;
                let mut command = self.program("bin/mcp-proxy");
                command.arg("--config").arg(file);
                command
            }
            Self::FastMcp | Self::FastMcpShared => {
                let script =
                    Path::new(env!("CARGO_MANIFEST_DIR")).join("benches/gateway/others/python/fastmcp_proxy.py");
                let mode = if era == Era::Handshake { "legacy" } else { era.revision() };
                let sessions = if self == Self::FastMcp { "fresh" } else { "shared" };
                let mut command = self.program("bin/python");
                command.arg(script).args([&url, &port, mode, sessions]);
                command
            }
            Self::McpProxyPython => {
                let mut command = self.program("bin/mcp-proxy");
                command.args(["--log-level", "ERROR", "--port", &port, "--"]).arg(program).args(child);
                command
            }
            Self::McpProxyNode => {
                let upstream = if era == Era::Handshake { "legacy" } else { "modern" };
                let mut command = self.node("mcp-proxy");
                command.args(["--host", "127.0.0.1", "--port", &port, "--server", "stream"]);
                command.args(["--upstreamProtocol", upstream, "--"]).arg(program).args(child);
                command
            }
            Self::Supergateway => {
                let line = format!("{} {}", program.display(), child.join(" "));
                let mut command = self.node("supergateway");
                command.args(["--outputTransport", "streamableHttp", "--stateful", "--logLevel", "none"]);
                command.args(["--port", &port, "--stdio", &line]);
                command
            }
        };
        command.stderr(File::create(self.log())?).current_dir(folder.place());
        let mut server = Server::start_at(command, address).await?;
        if self == Self::McpProxyRust {
            server.path = "/";
        }
        Ok(server)
    }

    /// Path of its log file.
    pub(crate) fn log(self) -> PathBuf {
        installed().join(format!("{}.log", self.name().replace(['(', ')', ',', ' ', '.'], "")))
    }

    fn program(self, path: &str) -> Command {
        Command::new(installed().join(self.package()).join(path))
    }

    /// A Node.js program.
    fn node(self, name: &str) -> Command {
        let programs = installed().join(self.package()).join("node_modules/.bin");
        let mut command = Command::new(programs.join("node"));
        command.arg(programs.join(name));
        command
    }
}

/// Directory with all installed gateways.
fn installed() -> PathBuf {
    Path::new(env!("CARGO_TARGET_TMPDIR")).join("gateways")
}
