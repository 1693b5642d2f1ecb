//! Tokens that must not be accepted, and those at the edge that must.

use super::*;

use TokenError::{Expired, NotYetValid, Unverifiable, WrongAudience};

/// An issuer with one key of P-256, that key, and the same as an RSA key under another id.
fn fixture() -> (Issuers, Signer, Signer, KeyFile) {
    let (signer, rsa) = (Signer::new(SigningAlgorithm::Es256, "k1"), Signer::new(SigningAlgorithm::Rs256, "rsa"));
    let keys = KeyFile::new(&[signer.jwk(), rsa.jwk()]);
    (Issuers::new(vec![settings(&keys)]), signer, rsa, keys)
}

#[tokio::test]
async fn claims_are_checked() {
    let (issuers, signer, _, _keys) = fixture();
    let now = seconds_now();
    let fraction = |seconds: u64| f64::from(u32::try_from(seconds).unwrap()) + 0.75;
    for (changes, expected) in [
        // Issuer.
        (json!({"iss": null}), Err(Unverifiable)),
        (json!({"iss": 5}), Err(Unverifiable)),
        (json!({"iss": format!("{ISSUER}/")}), Err(Unverifiable)),
        (json!({"iss": "https://login.example/realms"}), Err(Unverifiable)),
        (json!({"iss": ISSUER.to_uppercase()}), Err(Unverifiable)),
        (json!({"iss": [ISSUER]}), Err(Unverifiable)),
        // Times, with a leeway of 30 s.
        (json!({"exp": null}), Err(Unverifiable)),
        (json!({"exp": "soon"}), Err(Unverifiable)),
        (json!({"exp": (now + 600).to_string()}), Err(Unverifiable)),
        (json!({"exp": -1}), Err(Unverifiable)),
        (json!({"exp": 1e300}), Err(Unverifiable)),
        (json!({"exp": {}}), Err(Unverifiable)),
        (json!({"exp": 0}), Err(Expired)),
        (json!({"exp": now - 32}), Err(Expired)),
        (json!({"exp": now - 20}), Ok(())),
        (json!({"exp": fraction(now - 32)}), Err(Expired)),
        (json!({"exp": fraction(now + 5)}), Ok(())),
        (json!({"nbf": now + 20}), Ok(())),
        (json!({"nbf": now + 60}), Err(NotYetValid)),
        (json!({"nbf": fraction(now + 60)}), Err(NotYetValid)),
        (json!({"nbf": "now"}), Err(Unverifiable)),
        (json!({"iat": now + 20}), Ok(())),
        (json!({"iat": now + 60}), Err(NotYetValid)),
        (json!({"iat": -5}), Err(Unverifiable)),
        (json!({"iat": 0, "nbf": 0}), Ok(())),
        // Audience.
        (json!({"aud": null}), Err(WrongAudience)),
        (json!({"aud": 5}), Err(WrongAudience)),
        (json!({"aud": []}), Err(WrongAudience)),
        (json!({"aud": [5, ADDRESS]}), Err(WrongAudience)),
        (json!({"aud": "https://gate.example/mcp/research"}), Err(WrongAudience)),
        (json!({"aud": "https://gate.example"}), Err(WrongAudience)),
        (json!({"aud": "desktop"}), Err(WrongAudience)),
        (json!({"aud": ["https://other.example", ADDRESS]}), Ok(())),
        (json!({"aud": null, "exp": 0}), Err(Expired)),
        // Subject and client.
        (json!({"sub": ""}), Err(Unverifiable)),
        (json!({"sub": 5}), Err(Unverifiable)),
        (json!({"sub": "a".repeat(10 << 10)}), Err(Unverifiable)),
        (json!({"sub": "ann\nbob"}), Err(Unverifiable)),
        (json!({"sub": "ann\u{2028}bob"}), Err(Unverifiable)),
        (json!({"sub": "|desktop"}), Err(Unverifiable)),
        (json!({"sub": "auth0|5f"}), Ok(())),
        (json!({"sub": null}), Ok(())),
        (json!({"sub": null, "client_id": null}), Err(Unverifiable)),
        (json!({"sub": null, "client_id": null, "azp": "desktop"}), Ok(())),
        (json!({"client_id": ["a"]}), Err(Unverifiable)),
        (json!({"client_id": "a\nb"}), Err(Unverifiable)),
        (json!({"client_id": null}), Ok(())),
        // Bound to a key that the bearer would have to show.
        (json!({"cnf": {"jkt": "x"}}), Err(Unverifiable)),
        (json!({"at_hash": "x"}), Err(Unverifiable)),
        (json!({"events": {}}), Err(Unverifiable)),
        (json!({"typ": "ID"}), Err(Unverifiable)),
        (json!({"token_use": "id"}), Err(Unverifiable)),
        (json!({"typ": "Bearer", "token_use": "access"}), Ok(())),
        (json!({"jti": "\n", "name": 5, "scope": 5, "roles": {"a": 1}}), Ok(())),
    ] {
        let token = signer.token(&changed(&changes));
        let outcome = issuers.validate(&token, &is_address).await.map(|_| ());
        assert_eq!(outcome, expected, "{changes}");
    }
}

#[tokio::test]
async fn headers_are_checked() {
    let (issuers, signer, rsa, _keys) = fixture();
    for (header, is_accepted) in [
        (json!({"alg": "ES256", "kid": "k1"}), true),
        (json!({"alg": "ES256", "kid": "k1", "typ": "JWT"}), true),
        (json!({"alg": "ES256", "kid": "k1", "typ": "application/AT+JWT"}), true),
        (json!({"alg": "ES256", "kid": "k1", "typ": "dpop+jwt"}), false),
        (json!({"alg": "ES256", "kid": "k1", "typ": "oauth-id-jag+jwt"}), false),
        (json!({"alg": "ES256", "kid": "k1", "typ": ""}), false),
        (json!({"alg": "ES256", "kid": "k1", "typ": null}), false),
        (json!({"alg": "ES256", "kid": "k1", "crit": ["exp"], "exp": 1}), false),
        (json!({"alg": "ES256", "kid": "k1", "crit": []}), false),
        (json!({"alg": "ES256", "kid": 5}), false),
        (json!({"alg": "ES256", "kid": "k2"}), false),
        (json!({"alg": "ES256", "kid": "rsa"}), false),
        (json!({"alg": "ES384", "kid": "k1"}), false),
        (json!({"alg": "es256", "kid": "k1"}), false),
        (json!({"alg": "none", "kid": "k1"}), false),
        (json!({"alg": ["ES256"], "kid": "k1"}), false),
        (json!({"kid": "k1"}), false),
    ] {
        let outcome = issuers.validate(&signer.token_with(&header, &good()), &is_address).await.map(|_| ());
        assert_eq!(outcome, if is_accepted { Ok(()) } else { Err(Unverifiable) }, "{header}");
    }
    // A key for RS256 does not verify PS256, though the numbers are the same.
    let pss = Signer::new(SigningAlgorithm::Ps256, "rsa");
    assert_eq!(issuers.validate(&pss.token(&good()), &is_address).await, Err(Unverifiable));
    assert!(issuers.validate(&rsa.token(&good()), &is_address).await.is_ok());
}

/// The public key as the secret of an HMAC, and no signature at all.
#[tokio::test]
async fn symmetric_and_unsigned_tokens_are_refused() {
    let (issuers, _, rsa, _keys) = fixture();
    let secret = rsa.jwk().to_string();
    let header = json!({"alg": "HS256", "kid": "rsa"}).to_string();
    let signed =
        format!("{}.{}", signer::base64url(header.as_bytes()), signer::base64url(good().to_string().as_bytes()));
    let key = ring::hmac::Key::new(ring::hmac::HMAC_SHA256, secret.as_bytes());
    let tag = ring::hmac::sign(&key, signed.as_bytes());
    let hmac = format!("{signed}.{}", signer::base64url(tag.as_ref()));
    for header in [json!({"alg": "none"}), json!({"alg": "NONE"}), json!({"alg": ""})] {
        let token = rsa.token_with(&header, &good());
        let unsigned = &token[..=token.rfind('.').unwrap()];
        for token in [&token, unsigned] {
            assert_eq!(issuers.validate(token, &is_address).await, Err(Unverifiable), "{header}");
        }
    }
    assert_eq!(issuers.validate(&hmac, &is_address).await, Err(Unverifiable));
    assert_eq!(issuers.figures()[0].verifications, 0, "no key was used for any of them");
}

#[tokio::test]
async fn malformed_tokens_are_refused() {
    let (issuers, signer, _, _keys) = fixture();
    let token = signer.token(&good());
    let parts: Vec<&str> = token.split('.').collect();
    let (header, payload, signature) = (parts[0], parts[1], parts[2]);
    let es256 = r#"{"alg":"ES256","kid":"k1"}"#;
    let twice = good().to_string().replacen('{', r#"{"aud":"https://other.example","#, 1);
    let nested = format!(r#"{{"a":{}{}}}"#, "[".repeat(5000), "]".repeat(5000));
    let long = changed(&json!({"pad": "a".repeat(17 << 10)}));
    let other = signer.token(&changed(&json!({"sub": "bob"})));
    let mut flipped = signature.as_bytes().to_vec();
    flipped[10] = if flipped[10] == b'A' { b'B' } else { b'A' };
    for (what, bad) in [
        ("empty", String::new()),
        ("no Base64", "a!.b.c".to_owned()),
        ("no JSON", "YQ.YQ.YQ".to_owned()),
        ("opaque, and nobody to ask", "5f0c6f".to_owned()),
        ("a list as header", signer.token_of("[]", &good().to_string())),
        ("a list as payload", signer.token_of(es256, "[]")),
        ("a string as payload", signer.token_of(es256, "\"x\"")),
        ("`aud` twice", signer.token_of(es256, &twice)),
        ("`alg` twice", signer.token_of(r#"{"alg":"none","alg":"ES256","kid":"k1"}"#, &good().to_string())),
        ("nested deeply", signer.token_of(es256, &nested)),
        ("17 KiB", signer.token(&long)),
        ("no UTF-8", format!("{header}.{}.{signature}", signer::base64url(b"{\"a\":\"\xff\"}"))),
        ("cut signature", token[..token.len() - 4].to_owned()),
        ("no signature", format!("{header}.{payload}.")),
        ("changed signature", format!("{header}.{payload}.{}", String::from_utf8(flipped).unwrap())),
        ("signature in DER", format!("{header}.{payload}.{}", signer::base64url(&[0x30; 70]))),
        ("payload of another", format!("{header}.{}.{signature}", other.split('.').nth(1).unwrap())),
        ("padding", format!("{token}==")),
        ("four parts", format!("{token}.x")),
        ("five parts", "a.b.c.d.e".to_owned()),
        ("line break", format!("{token}\n")),
    ] {
        assert_eq!(issuers.validate(&bad, &is_address).await, Err(Unverifiable), "{what}");
        assert!(issuers.cached(&bad, &is_address).is_none(), "{what}: failures are not kept");
    }
    assert!(issuers.validate(&token, &is_address).await.is_ok());
}

/// A key in the header is whoever wrote the header's.
#[tokio::test]
async fn keys_in_the_header_are_ignored() {
    let (issuers, signer, _, _keys) = fixture();
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    listener.set_nonblocking(true).unwrap();
    let url = format!("http://{}/keys", listener.local_addr().unwrap());
    let mallory = Signer::new(SigningAlgorithm::Es256, "k1");
    for extra in [
        json!({"jwk": mallory.jwk()}),
        json!({"jku": url}),
        json!({"x5u": url}),
        json!({"x5c": ["MIIB"], "jku": url, "jwk": mallory.jwk()}),
    ] {
        let mut header = json!({"alg": "ES256", "kid": "k1"});
        header.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
        let refused = issuers.validate(&mallory.token_with(&header, &good()), &is_address).await;
        assert_eq!(refused, Err(Unverifiable), "{header}");
        assert!(issuers.validate(&signer.token_with(&header, &good()), &is_address).await.is_ok(), "{header}");
    }
    let accepted = listener.accept().map(|_| ());
    assert_eq!(accepted.unwrap_err().kind(), std::io::ErrorKind::WouldBlock, "nothing was fetched");
}

#[tokio::test]
async fn listed_audiences_are_accepted() {
    let signer = Signer::new(SigningAlgorithm::Es256, "k1");
    let keys = KeyFile::new(&[signer.jwk()]);
    let audiences = ["api://rialto", "https://Gate.example:443/api/"].map(str::to_owned).to_vec();
    let issuers = Issuers::new(vec![IssuerSettings { audiences: audiences.clone(), ..settings(&keys) }]);
    for (audience, expected) in [
        (json!("api://rialto"), Ok(())),
        (json!("https://gate.example/api"), Ok(())),
        (json!("https://GATE.example/api/"), Ok(())),
        (json!(["x", "api://rialto"]), Ok(())),
        (json!(ADDRESS), Ok(())),
        (json!("api://rialto/"), Err(WrongAudience)),
        (json!("API://rialto"), Err(WrongAudience)),
        (json!("https://gate.example/api/v2"), Err(WrongAudience)),
        (json!("https://gate.example/api#x"), Err(WrongAudience)),
        (json!("https://u@gate.example/api"), Err(WrongAudience)),
    ] {
        let token = signer.token(&changed(&json!({"aud": audience})));
        assert_eq!(issuers.validate(&token, &is_address).await.map(|_| ()), expected, "{audience}");
    }
    // An issuer without `aud`: only what is listed counts, and `aud` is not looked at.
    let audience_claim = AudienceClaim::ClientId;
    let audiences = vec!["desktop".to_owned()];
    let issuers = Issuers::new(vec![IssuerSettings { audiences, audience_claim, ..settings(&keys) }]);
    for (changes, expected) in [
        (json!({"aud": null}), Ok(())),
        (json!({"aud": null, "client_id": "other"}), Err(WrongAudience)),
        (json!({"client_id": ADDRESS}), Err(WrongAudience)),
        (json!({"client_id": null}), Err(WrongAudience)),
    ] {
        let token = signer.token(&changed(&changes));
        assert_eq!(issuers.validate(&token, &is_address).await.map(|_| ()), expected, "{changes}");
    }
}

#[tokio::test]
async fn roles_and_scopes_are_read_and_bounded() {
    let signer = Signer::new(SigningAlgorithm::Es256, "k1");
    let keys = KeyFile::new(&[signer.jwk()]);
    let many: Vec<String> = (0..5000).map(|number| format!("r{number}")).collect();
    let few = json!({"roles": null, "groups": null});
    for (roles_claim, changes, roles) in [
        (None, json!({}), vec!["staff", "admins"]),
        (None, json!({"roles": {"a": 1}}), vec!["admins"]),
        (None, json!({"roles": ["a", 5, "b"], "groups": null}), vec!["a", "b"]),
        (None, json!({"roles": ["a".repeat(129), ""], "groups": null}), vec![]),
        (Some("realm_access.roles"), json!({"realm_access": {"roles": ["a"]}}), vec!["a"]),
        (Some("realm_access.roles"), json!({"realm_access": ["roles"]}), vec![]),
        (Some("https://corp.example/roles"), json!({"https://corp.example/roles": "a"}), vec!["a"]),
        (Some("nothing"), json!({}), vec![]),
        (None, few, vec![]),
    ] {
        let settings = IssuerSettings { roles_claim: roles_claim.map(str::to_owned), ..settings(&keys) };
        let issuers = Issuers::new(vec![settings]);
        let identity = issuers.validate(&signer.token(&changed(&changes)), &is_address).await.unwrap();
        let found: Vec<&str> = identity.roles.iter().map(|role| &**role).collect();
        assert_eq!(found, roles, "{changes}");
    }
    let issuers = Issuers::new(vec![settings(&keys)]);
    let short: Vec<&String> = many.iter().take(1500).collect();
    let identity = issuers.validate(&signer.token(&changed(&json!({"roles": short}))), &is_address).await.unwrap();
    assert_eq!((identity.roles.len(), &*identity.roles[199]), (200, "r199"));
    for (changes, scopes) in [
        (json!({"scope": "a  b"}), vec!["a", "b"]),
        (json!({"scope": null, "scp": "a b"}), vec!["a", "b"]),
        (json!({"scope": null, "scp": ["a", "b"]}), vec!["a", "b"]),
        (json!({"scope": ["a"]}), vec![]),
        (json!({"scope": null}), vec![]),
    ] {
        let identity = issuers.validate(&signer.token(&changed(&changes)), &is_address).await.unwrap();
        let found: Vec<&str> = identity.scopes.iter().map(|scope| &**scope).collect();
        assert_eq!(found, scopes, "{changes}");
    }
    let named = signer.token(&changed(&json!({"name": format!("A\r\n{}", "n".repeat(1 << 10))})));
    let identity = issuers.validate(&named, &is_address).await.unwrap();
    assert_eq!(identity.name.as_deref(), Some(format!("A{}", "n".repeat(255)).as_str()));
}

#[tokio::test]
async fn a_client_without_a_subject_is_the_principal() {
    let (issuers, signer, _, _keys) = fixture();
    let token = signer.token(&changed(&json!({"sub": null, "client_id": null, "azp": "robot"})));
    let identity = issuers.validate(&token, &is_address).await.unwrap();
    assert_eq!(&*identity.principal, format!("{ISSUER}||robot"));
    assert_eq!(identity.client_id.as_deref(), Some("robot"));
}

/// Whatever is changed in a token or in a header and payload that anybody can write: nothing but the token itself counts.
#[test]
fn no_change_of_a_token_is_accepted() {
    use proptest::prelude::*;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let (issuers, signer, _, _keys) = fixture();
    let token = signer.token(&good());
    runtime.block_on(issuers.validate(&token, &is_address)).unwrap();
    let change = (0..token.len(), "[A-Za-z0-9_.=-]{0,3}", 0..4_usize);
    proptest!(|((at, inserted, removed) in change, header in "\\PC{0,60}", payload in "\\PC{0,60}")| {
        let mut changed = token.clone();
        changed.replace_range(at..(at + removed).min(token.len()), &inserted);
        let foreign = format!("{}.{}.{inserted}", signer::base64url(header.as_bytes()), signer::base64url(payload.as_bytes()));
        for other in [changed, foreign, header] {
            let outcome = runtime.block_on(issuers.validate(&other, &is_address)).map(|_| ());
            prop_assert_eq!(outcome, if other == token { Ok(()) } else { Err(Unverifiable) }, "{}", other);
        }
    });
}
