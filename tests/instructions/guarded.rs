//! What makes callers known in a configuration: an API key, or a token with rules and limits. The guards of instructions
//! and the benchmarks use it.

use std::path::Path;
use std::process::Command;
use std::{fs, io};

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use ring::signature::{Ed25519KeyPair, KeyPair};
use serde_json::{Value, json};

/// Lines of a configuration, and a credential that it accepts.
pub struct GuardedConfig {
    /// What calls are named by that have this credential.
    pub label: &'static str,
    /// What is added to the file.
    pub lines: String,
    /// Value of `Authorization`.
    pub authorization: String,
}

const ISSUER: &str = "https://login.example";
const AUDIENCE: &str = "api://hot";

/// An API key, and nothing else.
pub fn with_api_key(program: &Path) -> io::Result<GuardedConfig> {
    let printed = Command::new(program).args(["key", "new", "hot"]).output()?;
    let printed = String::from_utf8_lossy(&printed.stdout);
    let parts = printed.lines().next().zip(printed.split_once("[access.keys.hot]"));
    let (key, (_, section)) = parts.ok_or_else(|| io::Error::other("no key was printed"))?;
    let lines = format!("[access.keys.hot]{section}");
    Ok(GuardedConfig { label: "API key", lines, authorization: format!("Bearer {key}") })
}

/// A signed token, ten rules of which two match, and two limits with room for every call. The issuer's keys are written
/// to a file.
pub fn with_token_rules_and_limits(keys_file: &Path) -> io::Result<GuardedConfig> {
    let unusable = |_| io::Error::other("no signing key could be made");
    let document = Ed25519KeyPair::generate_pkcs8(&ring::rand::SystemRandom::new()).map_err(unusable)?;
    let key = Ed25519KeyPair::from_pkcs8(document.as_ref()).map_err(|_| io::Error::other("the key cannot be read"))?;
    let public = json!({ "kty": "OKP", "crv": "Ed25519", "x": URL_SAFE_NO_PAD.encode(key.public_key().as_ref()) });
    fs::write(keys_file, json!({ "keys": [public] }).to_string())?;
    let mut lines =
        format!("[access.issuers.hot]\nissuer = {ISSUER:?}\naudiences = [{AUDIENCE:?}]\njwks = {keys_file:?}\n");
    for number in 0..10 {
        let (principal, targets) = match number {
            0 => ("role:staff", "allow = { tools = [\"*\"] }"),
            1 => ("*", "deny = { tools = [\"*/delete_*\"] }"),
            _ => ("role:nobody", "allow = { prompts = [\"*\"] }"),
        };
        lines += &format!("[[policy.rules]]\nprincipals = [{principal:?}]\n{targets}\n");
    }
    lines += "[[policy.limits]]\nname = \"requests\"\nper = [\"caller\"]\nrate = \"1000000/s\"\n";
    lines +=
        "[[policy.limits]]\nname = \"calls\"\ntools = [\"*\"]\nper = [\"caller\", \"tool\"]\nrate = \"1000000/s\"\n";
    let claims = json!({ "iss": ISSUER, "sub": "ann", "aud": AUDIENCE, "exp": 4_000_000_000_u64, "roles": ["staff"] });
    let encode = |part: &Value| URL_SAFE_NO_PAD.encode(part.to_string());
    let signed = format!("{}.{}", encode(&json!({ "alg": "EdDSA", "typ": "at+jwt" })), encode(&claims));
    let signature = URL_SAFE_NO_PAD.encode(key.sign(signed.as_bytes()).as_ref());
    let authorization = format!("Bearer {signed}.{signature}");
    Ok(GuardedConfig { label: "JWT, ten rules, two limits", lines, authorization })
}
