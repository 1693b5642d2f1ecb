//! The upstream servers and the config file of the measured gateway.

use std::fs;
use std::path::{Path, PathBuf};

use super::{Era, upstream};

/// The upstream servers and a temporary folder, removed on drop.
#[derive(Debug)]
pub struct HotPathFixture {
    folder: PathBuf,
}

impl HotPathFixture {
    /// Starts the servers; the stdio server is `program` with its built-in server.
    pub fn start(program: &Path) -> Self {
        let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("hot-{}", std::process::id()));
        fs::create_dir_all(&folder).expect("the folder can be created");
        let fixture = Self { folder };
        fs::write(
            fixture.file("child.toml"),
            "log = { filter = \"warn\" }\n[servers.elements]\nbuiltin = \"elements\"\n",
        )
        .expect("the file can be written");
        let arguments = ["stdio", "--config", "child.toml"];
        let (older, newer) = (upstream::start(Era::Handshake), upstream::start(Era::PerRequest));
        let text = format!(
            r#"listen = "127.0.0.1:0"
log = {{ filter = "warn" }}
# Its figures are read every ten seconds, which is no work of a call.
admin = {{ console = false }}

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
            fixture.folder
        );
        fs::write(fixture.config(), text).expect("the file can be written");
        fixture
    }

    /// Path of a file in the folder.
    pub fn file(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }

    /// Path of the config file.
    pub fn config(&self) -> PathBuf {
        self.file("rialto.toml")
    }
}

impl Drop for HotPathFixture {
    fn drop(&mut self) {
        // A leftover is in the target folder.
        let _ = fs::remove_dir_all(&self.folder);
    }
}
