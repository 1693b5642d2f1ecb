//! Temporary directory for the configuration files of servers.

use std::fs;
use std::path::{Path, PathBuf};

use crate::Failure;

/// A temporary directory, removed on drop.
pub(crate) struct Folder(PathBuf);

impl Folder {
    pub(crate) fn new(name: &str) -> Result<Self, Failure> {
        let place = std::env::temp_dir().join(format!("rialto-bench-{}-{name}", std::process::id()));
        fs::create_dir_all(&place)?;
        Ok(Self(place))
    }

    pub(crate) fn place(&self) -> &Path {
        &self.0
    }

    pub(crate) fn write(&self, name: &str, text: &str) -> Result<PathBuf, Failure> {
        let file = self.0.join(name);
        fs::write(&file, text)?;
        Ok(file)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        // A failure only leaves files in the temporary directory.
        let _ = fs::remove_dir_all(&self.0);
    }
}
