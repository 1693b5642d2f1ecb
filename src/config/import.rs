//! `mcp.json` as other clients have it: `mcpServers` or `servers`, each with a command or a URL.

use std::path::{Path, PathBuf};

use serde::Deserialize;
use std::collections::BTreeMap;

use super::variables::expand;
use crate::error::{Error, Kind, Result};
use crate::upstream::{HttpTransport, Target};

/// Where such a file is looked for, in this order.
const USUAL: [&str; 3] = ["mcp.json", ".mcp.json", ".vscode/mcp.json"];

/// The file. Other members are other clients' matters.
#[derive(Debug, Deserialize)]
struct File {
    #[serde(default, alias = "servers", rename = "mcpServers")]
    servers: BTreeMap<String, Entry>,
}

/// One server.
#[derive(Debug, Deserialize)]
struct Entry {
    command: Option<String>,
    #[serde(default)]
    args: Vec<String>,
    #[serde(default)]
    env: BTreeMap<String, String>,
    cwd: Option<String>,
    #[serde(alias = "serverUrl")]
    url: Option<String>,
    #[serde(default)]
    headers: BTreeMap<String, String>,
    #[serde(alias = "transport")]
    r#type: Option<String>,
}

/// The file that was named, or the first of the usual ones that is there.
pub fn find(named: Option<&Path>) -> Option<PathBuf> {
    match named {
        Some(path) => Some(path.to_owned()),
        None => USUAL.iter().map(PathBuf::from).find(|path| path.is_file()),
    }
}

/// The servers of a file, by name.
///
/// # Errors
/// When the file cannot be read, or an entry makes no sense.
pub fn targets(file: &Path) -> Result<BTreeMap<String, Target>> {
    let usage = |why: String| Error::new(Kind::Usage, format!("{}: {why}", file.display()));
    let text = std::fs::read_to_string(file).map_err(|error| usage(error.to_string()))?;
    let parsed: File = serde_json::from_str(&text).map_err(|error| usage(error.to_string()))?;
    let lookup = |name: &str| std::env::var(name).ok();
    let one = |(name, entry): (String, Entry)| {
        let target = entry.target(&lookup).map_err(|error| usage(format!("the server {name:?}: {error}")))?;
        Ok((name, target))
    };
    parsed.servers.into_iter().map(one).collect()
}

impl Entry {
    fn target(self, lookup: &dyn Fn(&str) -> Option<String>) -> Result<Target> {
        let fill = |text: &str| {
            expand(text, lookup).map_err(|name| Error::new(Kind::Usage, format!("the variable {name} is not set")))
        };
        match (&self.command, &self.url) {
            (Some(program), None) => {
                let arguments = self.args.iter().map(|argument| fill(argument)).collect::<Result<Vec<_>>>()?;
                let mut target = Target::command(fill(program)?, arguments);
                if let Target::Command(command) = &mut target {
                    let pair = |(name, value): (&String, &String)| Ok((name.clone(), fill(value)?));
                    command.environment = self.env.iter().map(pair).collect::<Result<_>>()?;
                    command.folder = self.cwd.as_deref().map(fill).transpose()?.map(PathBuf::from);
                }
                Ok(target)
            }
            (None, Some(url)) => {
                let mut target = Target::url(&fill(url)?)?;
                for (name, value) in &self.headers {
                    target = target.with_header(name, &fill(value)?)?;
                }
                if let (Target::Url(address), Some(kind)) = (&mut target, &self.r#type) {
                    address.transport = match kind.as_str() {
                        "sse" => Some(HttpTransport::Sse),
                        "http" | "streamable-http" | "streamableHttp" => None, // found out, as either era may be there
                        other => {
                            return Err(Error::new(
                                Kind::Usage,
                                format!("the type {other:?} is not known; it is http, sse or stdio"),
                            ));
                        }
                    };
                }
                Ok(target)
            }
            (Some(_), Some(_)) => Err(Error::new(Kind::Usage, "it has a command and a url; one of them has to go")),
            (None, None) => Err(Error::new(Kind::Usage, "it has neither a command nor a url")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> std::result::Result<Vec<String>, String> {
        let file: File = serde_json::from_str(text).map_err(|error| error.to_string())?;
        let lookup = |name: &str| (name == "TOKEN").then(|| "t0ken".to_owned());
        let shown = file.servers.into_iter().map(|(name, entry)| Ok(format!("{name}: {:?}", entry.target(&lookup)?)));
        shown.collect::<Result<_>>().map_err(|error| error.to_string())
    }

    #[test]
    fn the_forms_of_other_clients_are_read() {
        let desktop =
            r#"{"mcpServers":{"files":{"command":"npx","args":["-y","x"],"env":{"K":"${TOKEN}"},"cwd":"/tmp"}}}"#;
        let shown = read(desktop).unwrap();
        assert!(shown[0].starts_with("files: Command") && !shown[0].contains("t0ken"), "{shown:?}");
        let editor = r#"{"inputs":[],"servers":{"web":{"type":"http","url":"https://h/mcp","headers":{"Authorization":"Bearer ${env:TOKEN}"}}}}"#;
        let shown = read(editor).unwrap();
        assert!(shown[0].contains("https://h/mcp") && !shown[0].contains("t0ken"), "{shown:?}");
        assert!(read(r#"{"mcpServers":{"a":{"type":"sse","url":"http://h/sse"}}}"#).unwrap()[0].contains("Sse"));
        assert_eq!(read("{}").unwrap().len(), 0);
    }

    #[test]
    fn mistakes_are_named() {
        for (text, word) in [
            (r#"{"mcpServers":{"a":{}}}"#, "neither"),
            (r#"{"mcpServers":{"a":{"command":"x","url":"http://h"}}}"#, "one of them"),
            (r#"{"mcpServers":{"a":{"url":"h"}}}"#, "no HTTP address"),
            (r#"{"mcpServers":{"a":{"url":"http://h","type":"carrier-pigeon"}}}"#, "carrier-pigeon"),
            (r#"{"mcpServers":{"a":{"command":"${NOPE}"}}}"#, "NOPE is not set"),
        ] {
            let error = read(text).unwrap_err();
            assert!(error.contains(word), "{text}: {error}");
        }
    }
}
