//! Tokens of every algorithm, and every lie that a token can tell. Keys come from a file, so no network is needed.

mod fetching;
mod lies;
mod reload;
mod signer;

use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::SystemTime;

use serde_json::{Value, json};

use super::*;
use signer::Signer;

const ISSUER: &str = "https://login.example/realms/corp";
const ADDRESS: &str = "https://gate.example/mcp";

/// A JWK Set in a file, removed at the end.
struct KeyFile(PathBuf);

impl KeyFile {
    fn new(keys: &[Value]) -> Self {
        static COUNT: AtomicUsize = AtomicUsize::new(0);
        let name = format!("rialto-keys-{}-{}.json", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
        let file = Self(std::env::temp_dir().join(name));
        file.write(keys);
        file
    }

    fn write(&self, keys: &[Value]) {
        std::fs::write(&self.0, json!({ "keys": keys }).to_string()).unwrap();
    }
}

impl Drop for KeyFile {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

fn settings(keys: &KeyFile) -> IssuerSettings {
    IssuerSettings { keys: KeySource::File(keys.0.clone()), ..IssuerSettings::new("corp", ISSUER) }
}

fn is_address(value: &str) -> bool {
    value == ADDRESS
}

fn seconds_now() -> u64 {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap().as_secs()
}

/// Claims of a good token.
fn good() -> Value {
    json!({
        "iss": ISSUER, "sub": "ann", "aud": ADDRESS, "exp": seconds_now() + 600, "client_id": "desktop",
        "jti": "t1", "scope": "mcp:read mcp:write", "roles": ["staff"], "groups": "admins", "name": "Ann",
    })
}

/// Good claims with some members changed; `null` removes one.
fn changed(changes: &Value) -> Value {
    let mut claims = good();
    for (name, value) in changes.as_object().unwrap() {
        match value {
            Value::Null => drop(claims.as_object_mut().unwrap().remove(name)),
            value => claims[name] = value.clone(),
        }
    }
    claims
}

#[tokio::test]
async fn tokens_of_every_algorithm_are_validated() {
    for algorithm in SigningAlgorithm::ALL {
        let signer = Signer::new(algorithm, "k1");
        let keys = KeyFile::new(&[signer.jwk()]);
        let issuers = Issuers::new(vec![settings(&keys)]);
        let identity = issuers.validate(&signer.token(&good()), &is_address).await.unwrap();
        assert_eq!(&*identity.principal, "https://login.example/realms/corp|ann");
        assert_eq!(&*identity.caller_id, "https://login.example/realms/corp|ann\ndesktop");
        assert_eq!(identity.credential, Credential::Jwt("corp".into()));
        assert_eq!(identity.roles, ["staff", "admins"].map(Arc::from));
        assert_eq!(identity.scopes, ["mcp:read", "mcp:write"].map(Arc::from));
        assert_eq!(identity.name.as_deref(), Some("Ann"));
        assert_eq!(identity.token_id.as_deref(), Some("t1"));
        assert_eq!(identity.claims.as_ref().unwrap()["sub"], "ann");
        assert!(identity.expires_at.is_some());
        // The same key under another algorithm of its kind, and with another signature.
        let other = Signer::new(algorithm, "k1");
        if algorithm.key_kind() != algorithm::KeyKind::Rsa {
            assert_eq!(issuers.validate(&other.token(&good()), &is_address).await, Err(TokenError::Unverifiable));
        }
        let limited = IssuerSettings { algorithms: Vec::new(), ..settings(&keys) };
        let limited = Issuers::new(vec![limited]);
        assert_eq!(limited.validate(&signer.token(&good()), &is_address).await, Err(TokenError::Unverifiable));
    }
}

#[tokio::test]
async fn a_token_is_verified_once() {
    let signer = Signer::new(SigningAlgorithm::Es256, "k1");
    let keys = KeyFile::new(&[signer.jwk()]);
    let clock = IssuerClock::default();
    let issuers = Issuers::with_clock(vec![settings(&keys)], clock.clone());
    let token = signer.token(&good());
    assert!(issuers.cached(&token, &is_address).is_none());
    for _ in 0..10_000 {
        let identity = issuers.validate(&token, &is_address).await.unwrap();
        let known = issuers.cached(&token, &is_address).unwrap().unwrap();
        assert!(Arc::ptr_eq(&identity, &known));
    }
    assert_eq!(issuers.figures()[0].verifications, 1);
    assert_eq!(issuers.figures()[0].accepted, 1);
    // What is known is judged anew at each use.
    assert_eq!(issuers.cached(&token, &|_| false), Some(Err(TokenError::WrongAudience)));
    assert_eq!(issuers.validate(&token, &|_| false).await, Err(TokenError::WrongAudience));
    clock.advance(Duration::from_secs(600 + 31));
    assert_eq!(issuers.cached(&token, &is_address), Some(Err(TokenError::Expired)));
    assert_eq!(issuers.validate(&token, &is_address).await, Err(TokenError::Expired));
    assert_eq!(issuers.figures()[0].verifications, 2, "an expired token is not kept");
}

#[tokio::test]
async fn keys_are_tried_by_id_and_kind() {
    let [one, two] = ["k1", "k2"].map(|id| Signer::new(SigningAlgorithm::Es256, id));
    let rsa = Signer::new(SigningAlgorithm::Rs256, "k1");
    let mut unnamed = two.jwk();
    unnamed.as_object_mut().unwrap().remove("kid");
    let keys = KeyFile::new(&[rsa.jwk(), one.jwk(), unnamed]);
    let issuers = Issuers::new(vec![settings(&keys)]);
    // Two keys have the same id.
    for signer in [&rsa, &one] {
        assert!(issuers.validate(&signer.token(&good()), &is_address).await.is_ok());
    }
    // A token that names no key may be by any; one that names a key is by that one.
    for signer in [&rsa, &one, &two] {
        let header = json!({"alg": signer.algorithm.as_str()});
        assert!(issuers.validate(&signer.token_with(&header, &good()), &is_address).await.is_ok());
    }
    assert_eq!(issuers.validate(&two.token(&good()), &is_address).await, Err(TokenError::Unverifiable));
}

#[tokio::test]
async fn unusable_keys_are_skipped() {
    let good_key = Signer::new(SigningAlgorithm::Es256, "good");
    let rsa = Signer::new(SigningAlgorithm::Rs256, "rsa");
    let with = |key: Value, changes: Value| {
        let mut key = key;
        changes.as_object().unwrap().iter().for_each(|(name, value)| key[name] = value.clone());
        key
    };
    let small = signer::base64url(&[0xff; 128]);
    let unusable = [
        json!({"kty": "oct", "kid": "rsa", "k": "c2VjcmV0"}),
        json!({"kty": "RSA", "kid": "rsa", "n": small, "e": "AQAB"}),
        json!({"kty": "RSA", "kid": "rsa"}),
        json!("rsa"),
        with(rsa.jwk(), json!({"use": "enc"})),
        with(rsa.jwk(), json!({"key_ops": ["encrypt"]})),
        with(rsa.jwk(), json!({"key_ops": "verify"})),
        with(rsa.jwk(), json!({"alg": "RS1"})),
        with(rsa.jwk(), json!({"alg": "ES256"})),
        with(rsa.jwk(), json!({"kid": 5})),
        with(good_key.jwk(), json!({"kid": "rsa", "crv": "P-384"})),
        with(good_key.jwk(), json!({"kid": "rsa", "crv": "secp256k1"})),
        with(good_key.jwk(), json!({"kid": "rsa", "x": "AAAA"})),
    ];
    for key in &unusable {
        let keys = KeyFile::new(&[key.clone(), good_key.jwk()]);
        let issuers = Issuers::new(vec![settings(&keys)]);
        assert!(issuers.validate(&good_key.token(&good()), &is_address).await.is_ok(), "{key}");
        assert_eq!(issuers.figures()[0].keys, 1, "{key}");
        let refused = issuers.validate(&rsa.token(&good()), &is_address).await;
        assert_eq!(refused, Err(TokenError::Unverifiable), "{key}");
    }
}

#[tokio::test]
async fn without_keys_nothing_is_known_of_a_token() {
    let signer = Signer::new(SigningAlgorithm::EdDsa, "k1");
    let keys = KeyFile::new(&[signer.jwk()]);
    let token = signer.token(&good());
    for content in ["", "<html></html>", "[]", "{}", r#"{"keys":5}"#, r#"{"keys":[],"keys":[]}"#] {
        std::fs::write(&keys.0, content).unwrap();
        let clock = IssuerClock::default();
        let issuers = Issuers::with_clock(vec![settings(&keys)], clock.clone());
        assert_eq!(issuers.validate(&token, &is_address).await, Err(TokenError::Unavailable), "{content}");
        assert!(issuers.figures()[0].failed_fetches > 0);
        keys.write(&[signer.jwk()]);
        clock.advance(Duration::from_secs(1));
        assert!(issuers.validate(&token, &is_address).await.is_ok(), "it heals after {content}");
    }
}
