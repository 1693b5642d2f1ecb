//! nginx in front of the gateway. `setup.sh` installs it on first use.

use std::path::Path;
use std::process::{Child, Command, Stdio};

use crate::config::TempFolder;
use crate::peers::source;

/// Running nginx. Dropping it kills the process.
pub struct Nginx {
    child: Child,
    pub folder: TempFolder,
}

impl Nginx {
    /// Runs nginx with the `nginx.conf` of a folder. It may not listen yet when this returns.
    pub async fn start(folder: TempFolder) -> Self {
        let peers = Path::new(env!("CARGO_TARGET_TMPDIR")).join("peers");
        let to = peers.clone();
        let setup = move || Command::new("bash").arg(source().join("setup.sh")).arg(to).arg("nginx").status();
        let status = tokio::task::spawn_blocking(setup).await.unwrap();
        assert!(status.expect("bash runs").success(), "nginx could not be installed; the lines above say why");
        let own = "daemon off; master_process off; pid nginx.pid; error_log stderr warn;";
        let child = Command::new(peers.join("nginx"))
            .arg("-p")
            .arg(&folder.0)
            .args(["-c", "nginx.conf", "-e", "stderr", "-g", own])
            .stdin(Stdio::null())
            .spawn()
            .unwrap();
        Self { child, folder }
    }
}

impl Drop for Nginx {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The server of a configuration that serves a gateway below `path`, which it does not forward. `listen` has what follows
/// the word, and `more` further directives.
pub fn serving_below(path: &str, listen: &str, more: &str, gateway: std::net::SocketAddr) -> String {
    format!(
        "events {{}}\nhttp {{\n  access_log off;\n  server {{\n    listen {listen};\n    {more}\n    \
         location {path}/ {{\n      proxy_pass http://{gateway}/;\n      proxy_http_version 1.1;\n      \
         proxy_buffering off;\n      proxy_set_header Host $http_host;\n      \
         proxy_set_header X-Forwarded-Proto $scheme;\n      \
         proxy_set_header X-Forwarded-For $proxy_add_x_forwarded_for;\n    }}\n  }}\n}}\n"
    )
}
