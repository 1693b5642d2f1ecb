//! What a change of keys or of the configuration does to tokens that are known.

use super::*;

#[tokio::test]
async fn unchanged_issuers_keep_what_they_know() {
    let signer = Signer::new(SigningAlgorithm::Es256, "k1");
    let keys = KeyFile::new(&[signer.jwk()]);
    let before = Issuers::new(vec![settings(&keys)]);
    let token = signer.token(&good());
    before.validate(&token, &is_address).await.unwrap();
    let mut after = Issuers::new(vec![settings(&keys), IssuerSettings::new("other", "https://other.example")]);
    after.succeed(&before);
    assert_eq!(after.urls(), [ISSUER, "https://other.example"]);
    assert!(after.cached(&token, &is_address).unwrap().is_ok());
    assert_eq!((after.figures()[0].verifications, after.figures()[0].fetches), (1, 1));
}

#[tokio::test]
async fn changed_and_removed_issuers_know_nothing() {
    let signer = Signer::new(SigningAlgorithm::Es256, "k1");
    let keys = KeyFile::new(&[signer.jwk()]);
    let before = Issuers::new(vec![settings(&keys)]);
    let token = signer.token(&good());
    before.validate(&token, &is_address).await.unwrap();
    let stricter = IssuerSettings { algorithms: vec![SigningAlgorithm::Rs256], ..settings(&keys) };
    let mut after = Issuers::new(vec![stricter]);
    after.succeed(&before);
    // A request that began before may still finish by the settings of then, without making the token known again.
    assert!(before.validate(&token, &is_address).await.is_ok());
    assert!(after.cached(&token, &is_address).is_none());
    assert_eq!(after.validate(&token, &is_address).await, Err(TokenError::Unverifiable));
    assert_eq!(after.figures()[0].accepted, 2, "counters go on");
    let mut none = Issuers::new(Vec::new());
    none.succeed(&after);
    assert!(none.is_empty() && none.cached(&token, &is_address).is_none() && none.readings().is_empty());
    assert_eq!(none.validate(&token, &is_address).await, Err(TokenError::Unverifiable));
}

#[tokio::test]
async fn what_a_withdrawn_key_verified_is_forgotten() {
    let [old, kept, new] = ["old", "kept", "new"].map(|id| Signer::new(SigningAlgorithm::Es256, id));
    let keys = KeyFile::new(&[old.jwk(), kept.jwk()]);
    let issuers = Issuers::new(vec![settings(&keys)]);
    let [old_token, kept_token, new_token] = [&old, &kept, &new].map(|signer| signer.token(&good()));
    for token in [&old_token, &kept_token] {
        issuers.validate(token, &is_address).await.unwrap();
    }
    keys.write(&[kept.jwk(), new.jwk()]);
    // The unknown key has the keys fetched again.
    issuers.validate(&new_token, &is_address).await.unwrap();
    assert!(issuers.cached(&old_token, &is_address).is_none());
    assert_eq!(issuers.validate(&old_token, &is_address).await, Err(TokenError::Unverifiable));
    assert!(issuers.cached(&kept_token, &is_address).unwrap().is_ok());
    assert_eq!(issuers.figures()[0].fetches, 2);
    // The same id with other numbers is another key.
    let replaced = Signer::new(SigningAlgorithm::Es256, "kept");
    keys.write(&[replaced.jwk()]);
    assert_eq!(issuers.validate(&replaced.token(&good()), &is_address).await, Err(TokenError::Unverifiable));
}

#[tokio::test]
async fn a_reload_reads_key_files_again() {
    let [old, new] = ["old", "new"].map(|id| Signer::new(SigningAlgorithm::Es256, id));
    let keys = KeyFile::new(&[old.jwk()]);
    let before = Issuers::new(vec![settings(&keys)]);
    let token = old.token(&good());
    before.validate(&token, &is_address).await.unwrap();
    keys.write(&[new.jwk()]);
    let mut after = Issuers::new(vec![settings(&keys)]);
    after.succeed(&before);
    let forgotten = async {
        while after.cached(&token, &is_address).is_some() {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(Duration::from_secs(20), forgotten).await.expect("the file is read again");
    assert!(after.validate(&new.token(&good()), &is_address).await.is_ok());
}

#[tokio::test]
async fn keys_are_kept_for_a_day_while_none_can_be_had() {
    let signer = Signer::new(SigningAlgorithm::Es256, "k1");
    let keys = KeyFile::new(&[signer.jwk()]);
    let clock = IssuerClock::default();
    let issuers = Issuers::with_clock(vec![settings(&keys)], clock.clone());
    let lasting = |subject: &str| signer.token(&changed(&json!({"exp": seconds_now() + 200_000, "sub": subject})));
    issuers.validate(&lasting("ann"), &is_address).await.unwrap();
    std::fs::write(&keys.0, "<html></html>").unwrap();
    clock.advance(Duration::from_secs(23 * 3600));
    // A token with an unknown key finds that no new keys can be had; those at hand stay.
    let unknown = Signer::new(SigningAlgorithm::Es256, "k2").token(&good());
    let _ = issuers.validate(&unknown, &is_address).await;
    assert!(issuers.figures()[0].failed_fetches > 0);
    assert!(issuers.validate(&lasting("bob"), &is_address).await.is_ok());
    assert!(issuers.cached(&lasting("ann"), &is_address).is_none(), "ECDSA signatures differ");
    let cached = lasting("cleo");
    assert!(issuers.validate(&cached, &is_address).await.is_ok());
    clock.advance(Duration::from_secs(2 * 3600));
    assert!(issuers.cached(&cached, &is_address).is_none());
    assert_eq!(issuers.validate(&cached, &is_address).await, Err(TokenError::Unavailable));
    keys.write(&[signer.jwk()]);
    clock.advance(Duration::from_secs(10));
    assert!(issuers.validate(&cached, &is_address).await.is_ok());
}

#[test]
fn metrics_name_issuers_and_outcomes() {
    let issuers = Issuers::new(vec![IssuerSettings::new("corp", ISSUER)]);
    let text =
        crate::metrics::TextFormat::OpenMetrics.render(&crate::metrics::Metrics::new().families(issuers.readings()));
    for line in [
        r#"rialto_token_validations_total{issuer="corp",outcome="accepted"} 0"#,
        r#"rialto_token_validations_total{issuer="corp",outcome="wrong_audience"} 0"#,
        r#"rialto_issuer_fetches_total{issuer="corp",outcome="failed"} 0"#,
        r#"rialto_issuer_keys{issuer="corp"} 0"#,
        "rialto_cached_tokens 0",
    ] {
        assert!(text.contains(line), "{line} is not in {text}");
    }
}

#[test]
fn secrets_are_not_printed() {
    let secret = Some("s3cret".to_owned().into());
    let settings = IssuerSettings { client_secret: secret, ..IssuerSettings::new("corp", ISSUER) };
    let printed = format!("{settings:?} {:?}", Issuers::new(vec![settings.clone()]));
    assert!(printed.contains(ISSUER) && !printed.contains("s3cret"), "{printed}");
}
