//! What an issuer may answer when it is asked for keys, metadata or about a token.

use std::collections::BTreeMap;

use parking_lot::Mutex;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpStream};

use super::*;

/// An issuer whose answers are set by path; others are 404.
struct ScriptedIssuer {
    url: String,
    answers: Mutex<BTreeMap<String, String>>,
    /// Paths in the order of the requests, with the form of a POST.
    requests: Mutex<Vec<String>>,
}

const METADATA: &str = "/.well-known/oauth-authorization-server";

impl ScriptedIssuer {
    async fn start() -> Arc<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let issuer = Arc::new(Self { url, answers: Mutex::default(), requests: Mutex::default() });
        let serving = Arc::clone(&issuer);
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                tokio::spawn(Arc::clone(&serving).serve(stream));
            }
        });
        issuer
    }

    async fn serve(self: Arc<Self>, stream: TcpStream) {
        let mut stream = BufReader::new(stream);
        let (mut path, mut length) = (String::new(), 0);
        loop {
            let mut line = String::new();
            if stream.read_line(&mut line).await.unwrap_or(0) == 0 {
                return;
            }
            match line.trim().split_once(' ') {
                None if line.trim().is_empty() => break,
                Some((name, value)) if name.eq_ignore_ascii_case("content-length:") => length = value.parse().unwrap(),
                Some((_, rest)) if path.is_empty() => path = rest.split(' ').next().unwrap().to_owned(),
                _ => {}
            }
        }
        let mut form = vec![0; length];
        stream.read_exact(&mut form).await.unwrap();
        self.requests.lock().push(format!("{path} {}", String::from_utf8(form).unwrap()).trim().to_owned());
        let answer = self.answers.lock().get(&path).cloned();
        let answer = answer.unwrap_or_else(|| "HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\n".to_owned());
        if answer == "silence" {
            return std::future::pending().await;
        }
        let (head, body) = answer.split_once("\r\n\r\n").unwrap_or((answer.trim_end(), ""));
        let _ = stream.write_all(format!("{head}\r\nconnection: close\r\n\r\n{body}").as_bytes()).await;
    }

    fn answer(&self, path: &str, answer: String) {
        self.answers.lock().insert(path.to_owned(), answer);
    }

    fn ok(&self, path: &str, body: &str) {
        self.answer(path, format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n{body}", body.len()));
    }

    fn serve_metadata(&self) {
        let metadata = json!({
            "issuer": self.url, "jwks_uri": format!("{}/keys", self.url),
            "introspection_endpoint": format!("{}/ask", self.url),
        });
        self.ok(METADATA, &metadata.to_string());
    }

    fn settings(&self) -> IssuerSettings {
        IssuerSettings::new("corp", &self.url)
    }

    fn opaque(&self) -> IssuerSettings {
        IssuerSettings {
            token_format: TokenFormat::Opaque,
            client_id: Some("rialto".into()),
            client_secret: Some("s3cret".to_owned().into()),
            ..self.settings()
        }
    }

    fn claims(&self) -> Value {
        changed(&json!({"iss": self.url}))
    }
}

fn key_set(signers: &[&Signer]) -> String {
    json!({"keys": signers.iter().map(|signer| signer.jwk()).collect::<Vec<_>>()}).to_string()
}

#[tokio::test]
async fn documents_that_are_no_keys_change_nothing() {
    let issuer = ScriptedIssuer::start().await;
    let (signer, other) = (Signer::new(SigningAlgorithm::Es256, "k1"), Signer::new(SigningAlgorithm::Es256, "k2"));
    issuer.serve_metadata();
    issuer.ok("/keys", &key_set(&[&signer]));
    let clock = IssuerClock::default();
    let issuers = Issuers::with_clock(vec![issuer.settings()], clock.clone());
    let token = signer.token(&issuer.claims());
    issuers.validate(&token, &is_address).await.unwrap();
    let ok = |body: &str| format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n{body}", body.len());
    let padded = key_set(&[&other]).replace("{\"keys\"", &format!("{{\"pad\":\"{}\",\"keys\"", "a".repeat(5 << 20)));
    for answer in [
        ok("<html></html>"),
        ok(&padded),
        ok("{\"keys\":{}}"),
        ok(&format!("{{\"keys\":[],\"deep\":{}{}}}", "[".repeat(40), "]".repeat(40))),
        "HTTP/1.1 500 Internal Server Error\r\ncontent-length: 0\r\n\r\n".to_owned(),
        "HTTP/1.1 302 Found\r\nlocation: http://127.0.0.1:9/keys\r\ncontent-length: 0\r\n\r\n".to_owned(),
        "HTTP/1.1 302 Found\r\nlocation: /keys\r\ncontent-length: 0\r\n\r\n".to_owned(),
        "HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\n{\"keys\":[".to_owned(),
        "garbage\r\n\r\n".to_owned(),
    ] {
        issuer.answer("/keys", answer.clone());
        clock.advance(Duration::from_secs(10));
        // Nobody knows whether the key is new, so it is not called wrong.
        let unknown = issuers.validate(&other.token(&issuer.claims()), &is_address).await;
        assert_eq!(unknown, Err(TokenError::Unavailable), "{}", &answer[..answer.len().min(100)]);
        assert!(issuers.cached(&token, &is_address).unwrap().is_ok());
    }
    // A redirect within the origin is followed.
    issuer.answer("/keys", "HTTP/1.1 307 Temporary Redirect\r\nlocation: /k\r\ncontent-length: 0\r\n\r\n".to_owned());
    issuer.ok("/k", &key_set(&[&other]));
    clock.advance(Duration::from_secs(10));
    assert!(issuers.validate(&other.token(&issuer.claims()), &is_address).await.is_ok());
    assert!(issuers.cached(&token, &is_address).is_none(), "its key is gone");
}

#[tokio::test]
async fn metadata_is_fetched_in_order_and_checked() {
    let issuer = ScriptedIssuer::start().await;
    let signer = Signer::new(SigningAlgorithm::Es256, "k1");
    issuer.ok("/keys", &key_set(&[&signer]));
    let tenant = IssuerSettings::new("corp", &format!("{}/t", issuer.url));
    let token = signer.token(&changed(&json!({"iss": tenant.issuer})));
    let paths = ["/.well-known/oauth-authorization-server/t", "/.well-known/openid-configuration/t"];
    issuer.ok(paths[0], "<html></html>");
    let metadata = json!({"issuer": tenant.issuer, "jwks_uri": format!("{}/keys", issuer.url)}).to_string();
    issuer.ok("/t/.well-known/openid-configuration", &metadata);
    let issuers = Issuers::new(vec![tenant.clone()]);
    assert!(issuers.validate(&token, &is_address).await.is_ok());
    let expected = [paths[0], paths[1], "/t/.well-known/openid-configuration", "/keys"];
    assert_eq!(*issuer.requests.lock(), expected);
    // Nothing of a document that is another issuer's, or that leads elsewhere, is used.
    for (document, why) in [
        (json!({"issuer": issuer.url, "jwks_uri": format!("{}/keys", issuer.url)}), "another issuer"),
        (json!({"issuer": tenant.issuer, "jwks_uri": "http://127.0.0.2.nip.example/keys"}), "plain HTTP elsewhere"),
        (json!({"issuer": tenant.issuer, "jwks_uri": "file:///etc/keys"}), "no HTTP"),
        (json!({"issuer": tenant.issuer}), "no keys"),
    ] {
        issuer.ok(paths[0], &document.to_string());
        issuer.requests.lock().clear();
        let issuers = Issuers::new(vec![tenant.clone()]);
        assert_eq!(issuers.validate(&token, &is_address).await, Err(TokenError::Unavailable), "{why}");
        assert!(issuer.requests.lock().iter().all(|path| path == paths[0]), "{why}");
    }
    let given = IssuerSettings { keys: KeySource::Url(format!("{}/keys", issuer.url).parse().unwrap()), ..tenant };
    issuer.requests.lock().clear();
    assert!(Issuers::new(vec![given]).validate(&token, &is_address).await.is_ok());
    assert_eq!(*issuer.requests.lock(), ["/keys"]);
}

/// A request waits two seconds for keys at most, and the fetch goes on without it.
#[tokio::test]
async fn a_silent_issuer_holds_nobody() {
    let issuer = ScriptedIssuer::start().await;
    issuer.answer(METADATA, "silence".to_owned());
    let issuers = Issuers::new(vec![issuer.settings()]);
    let token = Signer::new(SigningAlgorithm::Es256, "k1").token(&issuer.claims());
    let validating = (0..100).map(|_| issuers.validate(&token, &is_address));
    let outcomes = tokio::time::timeout(Duration::from_secs(20), futures_util::future::join_all(validating)).await;
    assert!(outcomes.expect("bounded").iter().all(|outcome| *outcome == Err(TokenError::Unavailable)));
    assert_eq!(issuer.requests.lock().len(), 1, "one fetch for all of them");
}

#[tokio::test]
async fn answers_about_tokens_are_checked() {
    let issuer = ScriptedIssuer::start().await;
    issuer.serve_metadata();
    let issuers = Issuers::new(vec![issuer.opaque()]);
    let now = seconds_now();
    let active = |changes: Value| {
        let mut answer = changed(&json!({"iss": null, "active": true}));
        answer.as_object_mut().unwrap().extend(changes.as_object().unwrap().clone());
        answer.to_string()
    };
    let without = |name: &str| {
        let mut answer: Value = serde_json::from_str(&active(json!({}))).unwrap();
        answer.as_object_mut().unwrap().remove(name);
        answer.to_string()
    };
    let (unverifiable, unavailable) = (Err(TokenError::Unverifiable), Err(TokenError::Unavailable));
    for (number, (answer, expected)) in [
        (active(json!({})), Ok(())),
        (active(json!({"exp": 1e9 * 3.0 + 0.25})), Ok(())),
        (active(json!({"iss": issuer.url})), Ok(())),
        (active(json!({"iss": "https://other.example"})), unverifiable),
        (active(json!({"aud": "https://other.example"})), Err(TokenError::WrongAudience)),
        (without("aud"), Err(TokenError::WrongAudience)),
        (without("exp"), unverifiable),
        (active(json!({"exp": now - 60})), Err(TokenError::Expired)),
        (active(json!({"nbf": now + 600})), Err(TokenError::NotYetValid)),
        (active(json!({"sub": "a\nb"})), unverifiable),
        (active(json!({"cnf": {"jkt": "x"}})), unverifiable),
        (json!({"active": false}).to_string(), unverifiable),
        (active(json!({"active": "true"})), unavailable),
        (without("active"), unavailable),
        ("[]".to_owned(), unavailable),
        ("<html></html>".to_owned(), unavailable),
        (format!("{{\"active\":true,\"active\":false,\"pad\":\"{}\"}}", "a"), unavailable),
        (active(json!({"pad": "a".repeat(100 << 10)})), unavailable),
    ]
    .into_iter()
    .enumerate()
    {
        issuer.ok("/ask", &answer);
        let outcome = issuers.validate(&format!("token-{number}"), &is_address).await.map(|_| ());
        assert_eq!(outcome, expected, "{}", &answer[..answer.len().min(200)]);
    }
    for head in ["401 Unauthorized", "500 Internal Server Error", "307 Temporary Redirect\r\nlocation: /elsewhere"] {
        issuer.answer("/ask", format!("HTTP/1.1 {head}\r\ncontent-length: 0\r\n\r\n"));
        assert_eq!(issuers.validate(head, &is_address).await.map(|_| ()), unavailable, "{head}");
    }
    assert!(issuer.requests.lock().iter().all(|path| path != "/elsewhere"), "a POST is not redirected");
    issuer.ok("/ask", &active(json!({})));
    issuer.requests.lock().clear();
    assert!(issuers.validate("a&b=c d", &is_address).await.is_ok());
    assert_eq!(*issuer.requests.lock(), ["/ask token=a%26b%3Dc+d&token_type_hint=access_token"]);
    // A token that has the form of a JWT and names this issuer is asked about as well.
    let signed = Signer::new(SigningAlgorithm::Es256, "k1").token(&issuer.claims());
    assert!(issuers.validate(&signed, &is_address).await.is_ok());
}

/// Strangers with tokens of their own make neither more questions than the bound nor a queue without end.
#[tokio::test]
async fn questions_about_tokens_are_bounded() {
    let issuer = ScriptedIssuer::start().await;
    issuer.serve_metadata();
    issuer.answer("/ask", "silence".to_owned());
    let issuers = Issuers::new(vec![issuer.opaque()]);
    let tokens: Vec<String> = (0..1200).map(|number| format!("token-{number}")).collect();
    let asking = tokens.iter().map(|token| issuers.validate(token, &is_address));
    let outcomes = tokio::time::timeout(Duration::from_secs(20), futures_util::future::join_all(asking)).await;
    assert!(outcomes.expect("bounded").iter().all(|outcome| *outcome == Err(TokenError::Unavailable)));
    let asked = issuer.requests.lock().iter().filter(|request| request.starts_with("/ask")).count();
    // When the first 64 give up, some of those that waited are still asked in their last moments.
    assert!((1..=128).contains(&asked), "{asked} questions");
    // Nothing of it stays behind.
    issuer.ok("/ask", &changed(&json!({"iss": null, "active": true})).to_string());
    assert!(issuers.validate("a good one", &is_address).await.is_ok());
}
