//! Reads the files of `[tls]`, so that mistakes in them are reported with the file that names them.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;

use super::diagnostic::{Diagnostic, Severity, line_and_column};
use super::model::Config;
use super::settings::TlsSection;
use super::spanned_value::{SpannedNode, SpannedValue, from_toml};
use crate::http::server::{TlsOptions, TlsServer};

/// Loads certificate and key of a configuration that was read from `text`, and reports what is wrong with them.
pub(super) fn load_tls(config: &mut Config, text: &str, path: &Path) -> Vec<Diagnostic> {
    let root = from_toml(text).0;
    let diagnostic = |key: &str, severity: Severity, message: String, hint: Option<&str>| {
        let (line, column) = position(&root, key).map_or((1, 1), |start| line_and_column(text, start));
        Diagnostic { file: path.to_owned(), line, column, severity, message, hint: hint.map(str::to_owned) }
    };
    let section = &config.settings.tls;
    let (certificate, key) = match (&section.certificate, &section.key) {
        (Some(certificate), Some(key)) => (certificate, key),
        (None, None) if section.client_ca.is_none() && section.hsts.is_none() => return Vec::new(),
        (None, _) => {
            let message = "[tls] has no `certificate`".to_owned();
            return vec![diagnostic("key", Severity::Error, message, Some("name the PEM file with the certificate"))];
        }
        (Some(_), None) => {
            let message = "[tls] has a `certificate` and no `key`".to_owned();
            return vec![diagnostic("certificate", Severity::Error, message, Some("name the PEM file with its key"))];
        }
    };
    let options = options(section, path, certificate, key);
    match TlsServer::load(&options) {
        Err(error) => {
            let message = format!("`{}` in [tls] {}", error.file.setting(), error.why);
            vec![diagnostic(error.file.setting(), Severity::Error, message, None)]
        }
        Ok(server) => {
            let mut warnings = Vec::new();
            if let Some(warning) = server.expiry_warning(SystemTime::now()) {
                warnings.push(diagnostic("certificate", Severity::Warning, warning, Some("renew it")));
            }
            if others_may_read(&options.key) {
                let message = "the file of `key` in [tls] can be read by every user of this machine".to_owned();
                warnings.push(diagnostic("key", Severity::Warning, message, Some("chmod 600 it")));
            }
            config.tls = Some(Arc::new(server));
            warnings
        }
    }
}

fn options(section: &TlsSection, file: &Path, certificate: &str, key: &str) -> TlsOptions {
    TlsOptions {
        certificate: beside(file, certificate),
        key: beside(file, key),
        client_ca: section.client_ca.as_deref().map(|path| beside(file, path)),
        client_certificates: section.client_certificates,
        min_version: section.min_version,
        hsts: section.hsts,
    }
}

/// The files that `[tls]` names. `file` is that of the configuration.
pub(super) fn tls_files(section: &TlsSection, file: &Path) -> Vec<PathBuf> {
    let named = [&section.certificate, &section.key, &section.client_ca];
    named.into_iter().flatten().map(|path| beside(file, path)).collect()
}

/// A path relative to the directory of the configuration file.
fn beside(file: &Path, path: &str) -> PathBuf {
    file.parent().map_or_else(|| PathBuf::from(path), |folder| folder.join(path))
}

fn others_may_read(path: &Path) -> bool {
    use std::os::unix::fs::PermissionsExt;
    std::fs::metadata(path).is_ok_and(|metadata| metadata.permissions().mode() & 0o004 != 0)
}

/// Where the value of a key of `[tls]` begins.
fn position(root: &SpannedNode, key: &str) -> Option<usize> {
    let entry = |node: &SpannedNode, key: &str| match &node.value {
        SpannedValue::Table(entries) => entries.iter().find(|entry| entry.key == key).map(|entry| entry.node.clone()),
        _ => None,
    };
    let table = entry(root, "tls")?;
    Some(entry(&table, key).unwrap_or(table).span.start)
}
