//! `rialto console`: the link to the console of a running gateway, found by a file that the gateway leaves for its user.

use std::fs;
use std::io::{self, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Args;
use serde::{Deserialize, Serialize};

use crate::console::Console;

/// Flags of `rialto console`.
#[derive(Debug, Args)]
pub(super) struct ConsoleArgs {
    /// Open the console in the browser, too.
    #[arg(long)]
    open: bool,
}

/// What a running gateway leaves for `rialto console`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct RunningConsole {
    /// Address of the page.
    url: String,
    /// The key of this start.
    key: String,
    /// Process id of the gateway.
    pid: i32,
}

/// The file of a running gateway; removed when this is dropped.
#[derive(Debug)]
pub(super) struct ConsoleFile(PathBuf);

/// Begin of the names of the files.
const FILE_PREFIX: &str = "console-";

impl RunningConsole {
    fn link(&self) -> String {
        format!("{}#key={}", self.url, self.key)
    }
}

/// The link to a console that is served at this address.
pub(super) fn link(scheme: &str, address: SocketAddr, console: &Console) -> String {
    running(scheme, address, console).link()
}

fn running(scheme: &str, address: SocketAddr, console: &Console) -> RunningConsole {
    let ip = match address.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => Ipv4Addr::LOCALHOST.into(),
        IpAddr::V6(ip) if ip.is_unspecified() => Ipv6Addr::LOCALHOST.into(),
        ip => ip,
    };
    let url = format!("{scheme}://{}/console", SocketAddr::new(ip, address.port()));
    let pid = i32::try_from(std::process::id()).unwrap_or_default();
    RunningConsole { url, key: console.key().reveal().to_owned(), pid }
}

/// Leaves the link for `rialto console`, readable by this user only.
pub(super) fn announce(scheme: &str, address: SocketAddr, console: &Console) -> Option<ConsoleFile> {
    let running = running(scheme, address, console);
    let written = runtime_folder().and_then(|folder| {
        let file = folder.join(format!("{FILE_PREFIX}{}.json", running.pid));
        write_private(&file, &serde_json::to_vec(&running)?)?;
        Ok(ConsoleFile(file))
    });
    written
        .inspect_err(|error| tracing::warn!(%error, "console link not written: `rialto console` will not find it"))
        .ok()
}

impl Drop for ConsoleFile {
    fn drop(&mut self) {
        // It may have been removed by hand; `rialto console` passes over files of processes that have ended.
        let _ = fs::remove_file(&self.0);
    }
}

/// The folder for files of running processes, of this user alone.
fn runtime_folder() -> io::Result<PathBuf> {
    let user = rustix::process::getuid().as_raw();
    let given = std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from).filter(|folder| folder.is_absolute());
    let folder = match given.filter(|folder| folder.is_dir()) {
        Some(folder) => folder.join("rialto"),
        None => std::env::temp_dir().join(format!("rialto-{user}")),
    };
    match fs::DirBuilder::new().mode(0o700).create(&folder) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
        _ => {}
    }
    // In a shared folder somebody else may have made it first.
    let found = fs::symlink_metadata(&folder)?;
    match found.is_dir() && found.uid() == user && found.mode() & 0o077 == 0 {
        true => Ok(folder),
        false => Err(io::Error::other(format!("{} is not a folder of this user alone", folder.display()))),
    }
}

fn write_private(file: &Path, content: &[u8]) -> io::Result<()> {
    // A file of an earlier process with the same id may still be there.
    let _ = fs::remove_file(file);
    let mut opened = fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(file)?;
    opened.write_all(content)
}

/// The consoles of this user's running gateways. Files of processes that have ended are removed.
fn find_running() -> io::Result<Vec<RunningConsole>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(runtime_folder()?)? {
        let path = entry?.path();
        let is_ours = path.file_name().and_then(|name| name.to_str()).is_some_and(|name| name.starts_with(FILE_PREFIX));
        let read = || serde_json::from_slice::<RunningConsole>(&fs::read(&path).ok()?).ok();
        let Some(console) = is_ours.then(read).flatten() else { continue };
        let is_running = rustix::process::Pid::from_raw(console.pid)
            .is_some_and(|pid| rustix::process::test_kill_process(pid).is_ok());
        match is_running {
            true => found.push(console),
            false => drop(fs::remove_file(&path)),
        }
    }
    found.sort_by_key(|console| console.pid);
    Ok(found)
}

/// Prints the links of the running gateways.
pub(super) fn run(arguments: &ConsoleArgs) -> ExitCode {
    let found = match find_running() {
        Ok(found) => found,
        Err(error) => {
            eprintln!("rialto: looking for running gateways failed: {error}");
            return ExitCode::FAILURE;
        }
    };
    let Some(first) = found.first() else {
        eprintln!(
            "rialto: no gateway of this user runs with a console on this machine; start one with `rialto serve`, or give \
             one in a container or on another machine [admin.tokens] and open its /console"
        );
        return ExitCode::FAILURE;
    };
    for console in &found {
        match found.len() {
            1 => println!("{}", console.link()),
            _ => println!("{}  (process {})", console.link(), console.pid),
        }
    }
    match arguments.open.then(|| open(first)) {
        Some(Err(error)) => {
            eprintln!("rialto: opening a browser failed: {error}; open the link by hand");
            ExitCode::FAILURE
        }
        _ => ExitCode::SUCCESS,
    }
}

/// Opens the link in the browser by a file that leads there: what a process is started with can be seen by everybody on
/// the machine, and the link has the key.
fn open(console: &RunningConsole) -> io::Result<()> {
    let file = runtime_folder()?.join(format!("open-{}.html", console.pid));
    let page = format!(
        "<!doctype html><meta charset=\"utf-8\"><meta http-equiv=\"refresh\" content=\"0;url={}\"><title>Rialto</title>",
        console.link()
    );
    write_private(&file, page.as_bytes())?;
    let opener = if cfg!(target_os = "macos") { "open" } else { "xdg-open" };
    let status = std::process::Command::new(opener).arg(&file).status()?;
    match status.success() {
        true => Ok(()),
        false => Err(io::Error::other(format!("{opener} ended with {status}"))),
    }
}
