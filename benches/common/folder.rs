//! A folder for files that servers are given.

use std::fs;
use std::path::{Path, PathBuf};

use crate::Failure;

/// A folder for files, which goes with this value.
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
        // What is left of it is in the folder for passing things.
        let _ = fs::remove_dir_all(&self.0);
    }
}
