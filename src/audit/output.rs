//! Where the audit log goes.

use std::fmt;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// Where the lines of the audit log go.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum AuditOutput {
    /// Nowhere.
    #[default]
    Off,
    /// Standard output.
    Stdout,
    /// Standard error, where the log goes, too.
    Stderr,
    /// To the end of a file.
    File(PathBuf),
}

impl AuditOutput {
    /// Reads `off`, `stdout`, `stderr` or `file:PATH`.
    pub fn parse(text: &str) -> Option<Self> {
        match text {
            "off" => Some(Self::Off),
            "stdout" => Some(Self::Stdout),
            "stderr" => Some(Self::Stderr),
            _ => text.strip_prefix("file:").filter(|path| !path.is_empty()).map(|path| Self::File(path.into())),
        }
    }

    /// Opens it; `None` if it is off.
    pub(super) fn open(&self) -> io::Result<Option<File>> {
        // Copies of the descriptors, because a blocked write must not hold the lock of the standard streams.
        let copy = |stream: std::os::fd::BorrowedFd<'_>| stream.try_clone_to_owned().map(File::from);
        match self {
            Self::Off => Ok(None),
            Self::Stdout => copy(io::stdout().as_fd()).map(Some),
            Self::Stderr => copy(io::stderr().as_fd()).map(Some),
            Self::File(path) => open_file(path).map(Some).map_err(|error| {
                io::Error::other(format!("the audit log {} cannot be opened: {error}", path.display()))
            }),
        }
    }
}

impl AuditOutput {
    /// Opens a file again by its name; `None` for what cannot move away.
    pub(super) fn reopen(&self) -> io::Result<Option<File>> {
        match self {
            Self::File(_) => self.open(),
            Self::Off | Self::Stdout | Self::Stderr => Ok(None),
        }
    }
}

/// Opens a file for appending; a new one can be read by its owner alone. A named pipe is opened for reading, too, because
/// otherwise this would wait for a reader.
fn open_file(path: &Path) -> io::Result<File> {
    let is_pipe = std::fs::metadata(path).is_ok_and(|metadata| metadata.file_type().is_fifo());
    OpenOptions::new().append(true).create(true).read(is_pipe).mode(0o600).open(path)
}

impl fmt::Display for AuditOutput {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Off => f.write_str("off"),
            Self::Stdout => f.write_str("stdout"),
            Self::Stderr => f.write_str("stderr"),
            Self::File(path) => write!(f, "file:{}", path.display()),
        }
    }
}
