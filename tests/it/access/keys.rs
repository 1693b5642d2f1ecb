//! API keys: made on the command line, read from the file, replaced while the gateway runs.

use std::net::SocketAddr;
use std::process::Stdio;
use std::time::{Duration, SystemTime};

use rialto::policy::{ApiKeySpec, ApiKeys, GeneratedKey, Policy};
use serde_json::json;

use crate::config::TempFolder;
use crate::harness::{HttpRequest, Rialto, Session, TEST_TIMEOUT, initialize, request, until};
use crate::process::{rialto, spawn_gateway};

/// Runs `rialto key new` and returns the key and the lines for the file.
async fn new_key(arguments: &[&str]) -> (String, String) {
    let output = rialto().args(["key", "new"]).args(arguments).stdin(Stdio::null()).output().await.unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let output = String::from_utf8(output.stdout).unwrap();
    let (key, lines) = output.split_once("\n\n").unwrap();
    (key.to_owned(), lines.to_owned())
}

/// Status of an `initialize` with that key, and its session id.
async fn initialize_with(address: SocketAddr, key: &str) -> (u16, Option<String>) {
    let sending = HttpRequest::to(address, "POST", "/mcp")
        .header("content-type", "application/json")
        .header("accept", "application/json, text/event-stream")
        .header("authorization", &format!("Bearer {key}"));
    let received = sending.body(initialize("2025-11-25").to_string()).go().await;
    (received.status, received.header("mcp-session-id").map(str::to_owned))
}

#[tokio::test]
async fn a_new_key_is_printed_with_lines_that_admit_it() {
    let (key, lines) = new_key(&["ci", "--role", "robots", "--group", "default", "--expires", "2999-12-31"]).await;
    assert!(key.starts_with("rlto_") && key.len() == 63, "{key}");
    assert!(!lines.contains(&key[14..]), "the file does not get the key");
    for line in ["[access.keys.ci]", "roles = [\"robots\"]", "groups = [\"default\"]", "expires = 2999-12-31"] {
        assert!(lines.contains(line), "{line}: {lines}");
    }
    let folder = TempFolder::new("new-key");
    folder.write("rialto.toml", &lines);
    let file = folder.0.join("rialto.toml");
    let (_child, _output, address) = spawn_gateway(&["--config", file.to_str().unwrap()]).await;
    let address: SocketAddr = address.parse().unwrap();
    assert_eq!(initialize_with(address, &key).await.0, 200);
    // One letter wrong, cut, and the secret of another key.
    let (other, _) = new_key(&["other"]).await;
    let last = if key.ends_with('x') { "y" } else { "x" };
    for wrong in
        [format!("{}{last}", &key[..62]), key[..62].to_owned(), format!("{}{}", &key[..14], &other[14..]), other]
    {
        assert_eq!(initialize_with(address, &wrong).await.0, 401);
    }
    for (arguments, word) in [
        (&["Bad Name"][..], "is not a name"),
        (&["ci", "--expires", "soon"], "is not a date"),
        (&["ci", "--group", "a b"], "not the name of a group"),
    ] {
        let output = rialto().args(["key", "new"]).args(arguments).output().await.unwrap();
        let error = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.code() == Some(2) && error.contains(word) && output.stdout.is_empty(), "{error}");
    }
}

#[tokio::test]
async fn keys_are_replaced_while_the_gateway_runs() {
    let [(old, old_lines), (new, new_lines), (other, other_lines)] =
        [new_key(&["ci"]).await, new_key(&["ci"]).await, new_key(&["other"]).await];
    let hash = |lines: &str| lines.split('"').nth(1).unwrap().to_owned();
    let file_text = |hashes: &[String]| format!("{other_lines}\n[access.keys.ci]\nhashes = {hashes:?}\n");
    let folder = TempFolder::new("rotation");
    let file = folder.0.join("rialto.toml");
    folder.write("rialto.toml", &file_text(&[hash(&old_lines), hash(&new_lines)]));
    let (_child, _output, address) = spawn_gateway(&["--config", file.to_str().unwrap()]).await;
    let address: SocketAddr = address.parse().unwrap();
    let stream = async |key: &str, session: &str| {
        let sending = HttpRequest::to(address, "GET", "/mcp").header("accept", "text/event-stream");
        let sending = sending.header("authorization", &format!("Bearer {key}")).header("mcp-session-id", session);
        let received = sending.header("mcp-protocol-version", "2025-11-25").go().await;
        assert_eq!(received.status, 200);
        received.events()
    };
    let (status, session) = initialize_with(address, &old).await;
    let (other_status, other_session) = initialize_with(address, &other).await;
    assert_eq!((status, other_status, initialize_with(address, &new).await.0), (200, 200, 200));
    let session = session.unwrap();
    let with_old = stream(&old, &session).await;
    let mut with_other = stream(&other, &other_session.unwrap()).await;
    folder.write("rialto.toml", &file_text(&[hash(&new_lines)]));
    // What was opened with the removed key ends; its session goes on with the new one, and other keys are unharmed.
    tokio::time::timeout(TEST_TIMEOUT, with_old.rest_events()).await.expect("the stream ends");
    assert_eq!(initialize_with(address, &old).await.0, 401);
    assert_eq!(initialize_with(address, &new).await.0, 200);
    drop(stream(&new, &session).await);
    folder.write("rialto.toml", &other_lines);
    let gone = async {
        while initialize_with(address, &new).await.0 != 401 {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(TEST_TIMEOUT, gone).await.expect("the key is removed");
    assert_eq!(initialize_with(address, &other).await.0, 200);
    let quiet = tokio::time::timeout(Duration::from_millis(300), async { while with_other.next().await.is_some() {} });
    assert!(quiet.await.is_err(), "the stream of the other key is open");
}

#[tokio::test]
async fn an_expired_key_ends_its_sessions_and_streams() {
    let [made, lasting] = [GeneratedKey::random().unwrap(), GeneratedKey::random().unwrap()];
    let spec = |name: &str, made: &GeneratedKey, expires| ApiKeySpec {
        name: name.into(),
        hashes: vec![made.hash],
        roles: Vec::new(),
        groups: None,
        expires,
    };
    let rialto = Rialto::start().await;
    let end = SystemTime::now() + Duration::from_secs(3);
    let keys = ApiKeys::new([spec("ci", &made, Some(end)), spec("cd", &lasting, None)]);
    rialto.inbound.set_policy(Policy { keys, ..Policy::default() });
    let session = Session::open(&rialto, "2025-11-25", Some(&made.key)).await;
    let other = Session::open(&rialto, "2025-11-25", Some(&lasting.key)).await;
    let listening = session.get().go().await.events();
    tokio::time::timeout(TEST_TIMEOUT, listening.rest_events()).await.expect("the stream ends");
    until("the session is closed", || rialto.inbound.sessions.count() == 1).await;
    let ping = request(1, "ping", json!({}));
    assert_eq!((session.post(&ping).status().await, other.post(&ping).status().await), (401, 200));
}

#[tokio::test]
async fn the_file_is_refused_with_the_reason() {
    let folder = TempFolder::new("key-mistakes");
    let check = async |text: &str| {
        folder.write("rialto.toml", text);
        let output = rialto().arg("check").current_dir(&folder.0).env_remove("RIALTO_CONFIG").output().await.unwrap();
        (output.status.code(), String::from_utf8(output.stderr).unwrap())
    };
    let (key, _) = new_key(&["ci"]).await;
    let (code, errors) = check(&format!("[access.keys.ci]\nhashes = [\"{key}\"]\n")).await;
    assert!(code == Some(1) && errors.contains("2:11") && errors.contains("this is a key itself"), "{errors}");
    assert!(!errors.contains(&key[14..]), "{errors}");
    let (code, errors) = check("listen = \"0.0.0.0:3001\"\n[access.issuers.corp]\nissuer = \"https://i\"\n").await;
    assert!(code == Some(1) && errors.contains("`public_url` is missing"), "{errors}");
    let (_, errors) = check("listen = \"127.0.0.1:3001\"\n[access.issuers.corp]\nissuer = \"https://i\"\n").await;
    assert!(!errors.contains("`public_url` is missing"), "{errors}");
    let (code, errors) = check("[access]\nscopes = [\"offline_access\"]\n").await;
    assert!(code == Some(1) && errors.contains("2:11") && errors.contains("`offline_access` is no scope"), "{errors}");
    let (code, errors) = check("listen = \"0.0.0.0:3001\"\n").await;
    assert!(code == Some(0) && errors.contains("travel unencrypted"), "{errors}");
}
