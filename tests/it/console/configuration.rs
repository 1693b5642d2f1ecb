//! Reading, checking and writing the configuration file.

use std::path::PathBuf;

use serde_json::{Value, json};

use super::{asked, get, post, validate, wait};
use crate::harness::{HttpRequest, Rialto, until};

const TOKEN: &str = "token-of-an-editor";
const SECRET: &str = "s3cret-of-a-caller";

/// A folder with a file; removed in the end.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str, text: &str) -> Self {
        let folder = std::env::temp_dir().join(format!("rialto-console-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        std::fs::write(folder.join("rialto.toml"), text).unwrap();
        Self(folder)
    }

    fn file(&self) -> PathBuf {
        self.0.join("rialto.toml")
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn text(edit: bool) -> String {
    format!(
        "# a comment that stays\nlisten = \"127.0.0.1:0\"\n\n[admin]\nedit = {edit}\ntokens = {{ ann = {{ token = \"{TOKEN}\", may = \"edit\" }} }}\n\n\
         [access.tokens]\nbob = \"{SECRET}\" # his\n"
    )
}

fn put(rialto: &Rialto, tag: &str, text: &str) -> HttpRequest {
    let request = rialto.send("PUT", "/admin/v1/config").header("authorization", &format!("Bearer {TOKEN}"));
    let request = request.header("content-type", "application/json").header("if-match", tag);
    request.body(json!({ "text": text }).to_string())
}

#[tokio::test]
async fn a_file_is_written_whole_keeps_comments_and_secrets_and_is_not_overwritten() {
    let folder = Folder::new("write", &text(true));
    let rialto = Rialto::from_file(&folder.file(), |settings| settings.workers = 2).await;
    let shown = get(&rialto, "config").await;
    let (tag, masked) = (shown["etag"].as_str().unwrap(), shown["text"].as_str().unwrap());
    assert!(
        !masked.contains(SECRET) && !masked.contains(TOKEN) && masked.contains("# a comment that stays"),
        "{masked}"
    );
    let added = format!("{masked}\n[groups.more]\nservers = []\n");
    let stale = put(&rialto, "\"0000\"", &added).json().await;
    assert_eq!((stale.0, &stale.1["error"]["code"]), (412, &json!("changed")));
    let wrong = put(&rialto, tag, "listen = 7\n").json().await;
    assert_eq!(wrong.0, 422);
    assert_eq!(std::fs::read_to_string(folder.file()).unwrap(), text(true), "nothing was written");
    let changed = masked.replace("# a comment that stays", "# a comment that stays\n# and another one");
    let (status, written) = put(&rialto, tag, &changed).json().await;
    assert_eq!(status, 200, "{written}");
    validate("put", "config", "200", &written);
    let now = std::fs::read_to_string(folder.file()).unwrap();
    assert_eq!(now, text(true).replace("that stays", "that stays\n# and another one"));
    let left: Vec<_> = std::fs::read_dir(&folder.0).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(left, ["rialto.toml"], "no other file is left");
    assert_eq!(put(&rialto, tag, &changed).status().await, 412, "it has changed meanwhile");
    until("the file is applied", || !rialto.inbound.admin.reloads().is_empty()).await;
    let reload = &get(&rialto, "config").await["reloads"][0];
    assert_eq!((&reload["outcome"], &reload["settings"]), (&json!("applied"), &json!([])), "{reload}");
    let rules = format!("{now}ada = \"token-of-ada\"\n\n[policy]\ndefault = \"deny\"\n");
    std::fs::write(folder.file(), rules).unwrap();
    until("the rules are applied", || rialto.inbound.admin.reloads().len() == 2).await;
    let shown = get(&rialto, "config").await;
    let reload = &shown["reloads"][0];
    assert_eq!(reload["settings"], json!(["access.tokens", "policy.default"]), "{reload}");
    assert_eq!((&reload["changed"], &reload["outcome"]), (&json!([]), &json!("applied")));
    assert!(!shown.to_string().contains("token-of-ada"), "{shown}");
}

#[tokio::test]
async fn a_file_is_checked_without_being_used() {
    let folder = Folder::new("check", &text(false));
    let rialto = Rialto::from_file(&folder.file(), |settings| settings.workers = 2).await;
    let (status, checked) = post(&rialto, "config/check", &json!({ "text": "listen = 7\n[serves.x]\n" })).await;
    assert_eq!((status, &checked["valid"]), (200, &json!(false)));
    assert_eq!(checked["problems"].as_array().unwrap().len(), 2, "{checked}");
    assert_eq!(checked["problems"][0]["line"], 1);
    let add = json!({ "add": "https://mcp.notes.example/mcp" });
    let (_, checked) = post(&rialto, "config/check", &add).await;
    assert_eq!((&checked["valid"], &checked["added"]), (&json!(true), &json!(["notes"])), "{checked}");
    let difference = checked["difference"].as_str().unwrap();
    assert!(difference.contains("+[servers.notes]") && !difference.contains('-'), "{difference}");
    assert!(!checked.to_string().contains(SECRET), "{checked}");
    let shown = get(&rialto, "config").await;
    let moved = shown["text"].as_str().unwrap().replace("listen = \"127.0.0.1:0\"", "listen = \"127.0.0.1:1\"");
    let (_, checked) = post(&rialto, "config/check", &json!({ "text": moved })).await;
    assert_eq!(checked["restart"], json!(["listen"]), "{checked}");
    assert_eq!(post(&rialto, "config/check", &json!({})).await.0, 400);
    let denied = put(&rialto, shown["etag"].as_str().unwrap(), "").json().await;
    assert_eq!((denied.0, &denied.1["error"]["hint"]), (403, &Value::from("[admin] edit is off")));
    assert_eq!(asked(&rialto, "PUT", "config").body("{}").status().await, 403, "the key may act, not edit");
}

#[tokio::test]
async fn secrets_of_a_file_that_was_refused_are_shown_nowhere() {
    let notes = "[servers.notes]\nurl = \"http://127.0.0.1:1/mcp\"\n";
    let folder = Folder::new("refused", &(text(false) + notes));
    let rialto = Rialto::from_file(&folder.file(), |settings| settings.workers = 2).await;
    let changed = text(false).replace(SECRET, "new-s3cret-of-bob") + notes + "headers = { X-Team = \"new-s3cret\" }\n";
    for mistake in ["urll = 7\n", "urll = \n"] {
        std::fs::write(folder.file(), changed.clone() + mistake).unwrap();
        let [shown, server] = [get(&rialto, "config").await, get(&rialto, "servers/notes").await];
        assert!(!shown["problems"].as_array().unwrap().is_empty(), "{shown}");
        assert!(server["configuration"]["text"].as_str().unwrap().contains("urll"), "{server}");
        assert!(!format!("{shown}{server}").contains("new-s3cret"), "{shown} {server}");
    }
}

#[tokio::test]
async fn settings_that_wait_for_a_restart_are_named() {
    let folder = Folder::new("restart", &text(false));
    let rialto = Rialto::from_file(&folder.file(), |settings| settings.workers = 2).await;
    assert_eq!(get(&rialto, "config").await["restart"], json!([]));
    std::fs::write(folder.file(), text(false).replace(":0\"", ":1\"")).unwrap();
    let config = wait(&rialto, "config", |config| config["restart"] != json!([])).await;
    assert_eq!((&config["restart"], config["refused"].is_string()), (&json!(["listen"]), true), "{config}");
    let code = async || get(&rialto, "overview").await["attention"][0]["code"].clone();
    assert_eq!(code().await, "restart_needed");
    // A mistake whose words are those of a restart is none.
    let mistake = text(false).replace("# his", "\n[servers.x]\n\"restart to change\" = 1");
    std::fs::write(folder.file(), mistake).unwrap();
    wait(&rialto, "config", |config| config["refused"].is_string() && config["restart"] == json!([])).await;
    assert_eq!(code().await, "config_refused");
    std::fs::write(folder.file(), text(false)).unwrap();
    let config = wait(&rialto, "config", |config| config["refused"].is_null()).await;
    assert_eq!(config["restart"], json!([]));
}
