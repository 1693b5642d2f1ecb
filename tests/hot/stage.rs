//! What stands around the gateway: the servers behind it, and the file that names them.

use std::fs;
use std::path::{Path, PathBuf};

use super::{Era, upstream};

/// The servers, and a folder for files, which goes with this value.
#[derive(Debug)]
pub struct Stage {
    folder: PathBuf,
}

impl Stage {
    /// Starts the servers. The one on standard input and output is `program`, with its built-in server.
    pub fn set(program: &Path) -> Self {
        let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("hot-{}", std::process::id()));
        fs::create_dir_all(&folder).expect("there is room for files");
        let stage = Self { folder };
        fs::write(stage.file("child.toml"), "[servers.elements]\nbuiltin = \"elements\"\n").expect("there is room");
        let arguments = ["stdio", "--config", "child.toml"];
        let (older, newer) = (upstream::start(Era::Handshake), upstream::start(Era::PerRequest));
        let text = format!(
            r#"listen = "127.0.0.1:0"
log = {{ filter = "warn" }}

[servers]
older = {{ url = "http://{older}/mcp", revision = "2025-11-25" }}
newer = {{ url = "http://{newer}/mcp", revision = "2026-07-28" }}
child = {{ command = {program:?}, args = {arguments:?}, cwd = {:?}, connection = "shared", revision = "2025-11-25" }}
table = {{ builtin = "elements" }}

[groups]
older = {{ servers = ["older"] }}
newer = {{ servers = ["newer"] }}
child = {{ servers = ["child"] }}
table = {{ servers = ["table"] }}
both = {{ servers = ["older", "newer"] }}
"#,
            stage.folder
        );
        fs::write(stage.config(), text).expect("there is room");
        stage
    }

    /// Where a file of that name is, or would be.
    pub fn file(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }

    /// The file that names the servers.
    pub fn config(&self) -> PathBuf {
        self.file("rialto.toml")
    }
}

impl Drop for Stage {
    fn drop(&mut self) {
        // What is left of it is in the folder for passing things.
        let _ = fs::remove_dir_all(&self.folder);
    }
}
