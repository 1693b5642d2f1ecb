//! Who may use the console: from where, by which page, with which key, and what each right is good for.

use rialto::console::ApiRoute;
use rialto::policy::{ConsoleAccess, OperatorRight, OperatorTokens, TrustedProxies};
use serde_json::json;
use tokio::io::AsyncBufReadExt;

use super::{DOCUMENT, asked, get};
use crate::config::TempFolder;
use crate::harness::{HttpRequest, Rialto, TEST_TIMEOUT, until};
use crate::process::spawn_gateway;

const RIGHTS: [&str; 4] = ["look", "bodies", "act", "edit"];

/// A gateway with an operator for each right, whose token is `token-of-RIGHT`.
async fn with_operators(edit: bool) -> Rialto {
    Rialto::with(|settings| {
        let tokens =
            OperatorRight::ALL.map(|right| (right.as_str().to_owned(), format!("token-of-{}", right.as_str()), right));
        settings.policy.console =
            ConsoleAccess { edit, tokens: OperatorTokens::new(tokens), ..ConsoleAccess::default() };
    })
    .await
}

fn example(route: &ApiRoute) -> String {
    let parts = route.path.split('/').map(|part| if part.starts_with('{') { "absent" } else { part });
    format!("/admin/v1/{}", parts.collect::<Vec<_>>().join("/"))
}

fn to(rialto: &Rialto, route: &ApiRoute, token: &str) -> HttpRequest {
    let verb = match route.verb.as_str() {
        "GET" => "GET",
        "POST" => "POST",
        "PUT" => "PUT",
        _ => "DELETE",
    };
    let request = rialto.send(verb, &example(route)).header("authorization", &format!("Bearer {token}"));
    if verb == "GET" { request } else { request.header("content-type", "application/json").body("null") }
}

#[tokio::test]
async fn every_route_needs_its_right_and_a_key() {
    for edit in [false, true] {
        let rialto = with_operators(edit).await;
        for route in rialto.console.routes().to_vec() {
            let Some(needed) = route.may else { continue };
            let without = to(&rialto, &route, "").without("authorization").go().await;
            assert_eq!((without.status, without.header("www-authenticate")), (401, Some("Bearer")), "{}", route.path);
            for right in OperatorRight::ALL {
                let status = to(&rialto, &route, &format!("token-of-{}", right.as_str())).status().await;
                let effective = if edit { right } else { right.min(OperatorRight::Act) };
                let what = format!("{} {} as {}", route.verb, route.path, right.as_str());
                assert_eq!(status == 403, effective < needed, "{what}: {status}");
                assert!(status != 401 && status < 500, "{what}: {status}");
            }
        }
    }
}

#[tokio::test]
async fn every_route_is_in_the_document_with_its_right() {
    let rialto = Rialto::start().await;
    let paths = DOCUMENT["paths"].as_object().unwrap();
    for route in rialto.console.routes() {
        let operation = &paths[&format!("/{}", route.path)][route.verb.as_str().to_lowercase()];
        assert!(operation.is_object(), "{} {} is not in the document", route.verb, route.path);
        assert_eq!(operation["x-may"], json!(route.may.map(OperatorRight::as_str)), "{}", route.path);
    }
    let (status, served) = rialto.send("GET", "/admin/v1/openapi.json").json().await;
    assert_eq!((status, &served), (200, &*DOCUMENT));
}

#[tokio::test]
async fn me_says_what_an_operator_may_do() {
    let rialto = Rialto::start().await;
    let me = get(&rialto, "me").await;
    assert_eq!((&me["operator"], &me["rights"]), (&json!("local"), &json!(RIGHTS[..3])), "the key may act");
    let operators = with_operators(false).await;
    let request = operators.send("GET", "/admin/v1/me").header("authorization", "Bearer token-of-edit");
    assert_eq!(request.json().await.1["rights"], json!(RIGHTS[..3]), "editing is off");
}

#[tokio::test]
async fn foreign_pages_hosts_and_forms_are_refused_without_cors() {
    let rialto = Rialto::start().await;
    let port = rialto.address.port();
    let own = format!("http://127.0.0.1:{port}");
    for (headers, status) in [
        (vec![("origin", own.as_str()), ("sec-fetch-site", "same-origin")], 200),
        (vec![("sec-fetch-site", "none")], 200),
        (vec![("origin", "https://evil.example")], 403),
        (vec![("origin", "http://127.0.0.1:1")], 403),
        (vec![("origin", "http://localhost")], 403),
        (vec![("origin", "null")], 403),
        (vec![("sec-fetch-site", "cross-site")], 403),
        (vec![("sec-fetch-site", "same-site")], 403),
        (vec![("host", "evil.example")], 403),
        (vec![("x-forwarded-for", "10.0.0.1")], 404),
        (vec![("forwarded", "for=10.0.0.1")], 404),
        (vec![("via", "1.1 proxy")], 404),
        (vec![("host", "evil.example"), ("origin", "http://127.0.0.1:1")], 403),
    ] {
        let request = headers.iter().fold(asked(&rialto, "GET", "me"), |request, (name, value)| {
            if *name == "host" { request.replace(name, value) } else { request.header(name, value) }
        });
        let answer = request.go().await;
        assert_eq!(answer.status, status, "{headers:?}");
        for (name, _) in &answer.headers {
            assert!(!name.as_str().starts_with("access-control") && name != "set-cookie", "{headers:?}: {name}");
        }
    }
    let form = asked(&rialto, "POST", "servers/elements/reconnect").without("content-type");
    let form = form.header("content-type", "application/x-www-form-urlencoded").body("a=b");
    assert_eq!(form.status().await, 415);
}

#[tokio::test]
async fn a_link_may_open_the_page_and_nothing_may_frame_it() {
    let rialto = Rialto::start().await;
    let page = || rialto.send("GET", "/console");
    let answer = page().go().await;
    assert_eq!(answer.status, 200);
    for (name, value) in [
        ("x-frame-options", "DENY"),
        ("x-content-type-options", "nosniff"),
        ("referrer-policy", "no-referrer"),
        ("cross-origin-opener-policy", "same-origin"),
        ("cross-origin-resource-policy", "same-origin"),
    ] {
        assert_eq!(answer.header(name), Some(value));
    }
    let policy = answer.header("content-security-policy").unwrap();
    for part in ["default-src 'none'", "frame-ancestors 'none'", "require-trusted-types-for 'script'"] {
        assert!(policy.contains(part), "{policy}");
    }
    let cross = |dest| {
        page()
            .header("sec-fetch-site", "cross-site")
            .header("sec-fetch-mode", "navigate")
            .header("sec-fetch-dest", dest)
    };
    assert_eq!((cross("document").status().await, cross("iframe").status().await), (200, 403));
    assert_eq!(rialto.send("POST", "/console").status().await, 405);
    let api = asked(&rialto, "GET", "me").go().await;
    assert_eq!(api.header("cache-control"), Some("no-store"));
}

#[tokio::test]
async fn without_tokens_the_console_is_for_this_machine_and_no_proxy() {
    let proxied = Rialto::with(|settings| {
        let network = TrustedProxies::parse_network("127.0.0.1").unwrap();
        settings.policy.trusted_proxies = TrustedProxies::new(vec![network]);
    })
    .await;
    assert_eq!(asked(&proxied, "GET", "me").status().await, 404);
    assert_eq!(proxied.send("GET", "/console").status().await, 404);
    let off = Rialto::with(|settings| settings.policy.console.enabled = false).await;
    assert_eq!(asked(&off, "GET", "me").status().await, 404);
    let tokens = with_operators(false).await;
    let remote = |token: &str| {
        let request = tokens.send("GET", "/admin/v1/me").header("x-forwarded-for", "10.0.0.1");
        request.header("authorization", &format!("Bearer {token}"))
    };
    assert_eq!(remote("token-of-look").status().await, 200);
    assert_eq!(remote(tokens.console.key().reveal()).status().await, 401, "the key counts on this machine only");
}

#[tokio::test]
async fn a_listener_of_its_own_has_the_console_alone_and_none_without_tokens_beyond_loopback() {
    let apart = Rialto::with(|settings| settings.admin_listen = Some(([127, 0, 0, 1], 0).into())).await;
    assert_eq!(asked(&apart, "GET", "me").status().await, 404, "clients have another listener");
    for (tokens, status) in [(false, 404), (true, 200)] {
        let settings = rialto::app::AppSettings {
            listen: ([127, 0, 0, 1], 0).into(),
            admin_listen: Some(([0, 0, 0, 0], 0).into()),
            ..Default::default()
        };
        let bound = rialto::app::App::bind(settings).await.unwrap();
        let address = ([127, 0, 0, 1], bound.admin_address().unwrap().port()).into();
        if tokens {
            let named = OperatorTokens::new([("ann".to_owned(), "token-of-ann".to_owned(), OperatorRight::Look)]);
            let console = ConsoleAccess { tokens: named, ..ConsoleAccess::default() };
            let policy = rialto::policy::Policy { console, ..rialto::policy::Policy::default() };
            bound.app().inbound().set_policy(policy);
        }
        let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
        let running = tokio::spawn(bound.run(async {
            let _ = stopped.await;
        }));
        let request = HttpRequest::to(address, "GET", "/admin/v1/me").header("authorization", "Bearer token-of-ann");
        assert_eq!(request.status().await, status);
        let _ = stop.send(());
        running.await.unwrap();
    }
}

#[tokio::test]
async fn wrong_keys_have_to_wait() {
    let rialto = Rialto::start().await;
    let wrong = || rialto.send("GET", "/admin/v1/me").header("authorization", "Bearer 0123456789abcdef");
    for _ in 0..10 {
        assert_eq!(wrong().status().await, 401);
    }
    let waits = wrong().go().await;
    assert_eq!(waits.status, 429);
    assert!(waits.header("retry-after").is_some());
    assert_eq!(asked(&rialto, "GET", "me").status().await, 200, "the right one is let in");
}

#[tokio::test]
async fn limits_have_their_status() {
    let rialto = Rialto::start().await;
    assert_eq!(asked(&rialto, "GET", "servers?limit=501").status().await, 400);
    assert_eq!(asked(&rialto, "GET", "servers?limit=0").status().await, 400);
    assert_eq!(asked(&rialto, "GET", "servers?cursor=made-up").status().await, 400);
    let large = asked(&rialto, "POST", "config/check").body(vec![b' '; (1 << 20) + 1]);
    assert_eq!(large.status().await, 413);
    let mut streams = Vec::new();
    for _ in 0..4 {
        let stream = asked(&rialto, "GET", "live?topics=server").go().await;
        assert_eq!(stream.status, 200);
        streams.push(stream.events());
    }
    assert_eq!(asked(&rialto, "GET", "live?topics=server").status().await, 429);
    for stream in &mut streams {
        assert_eq!(stream.next().await.unwrap().name.as_deref(), Some("beat"));
    }
    assert_eq!(asked(&rialto, "GET", "live?topics=weather").status().await, 400);
    assert_eq!(asked(&rialto, "GET", "live").status().await, 400);
    drop(streams);
    let live = rialto.console.live().viewers(rialto::console::Topic::Server);
    until("the streams are let go of", || *live.borrow() == 0).await;
    assert_eq!(asked(&rialto, "GET", "live?topics=server").status().await, 200);
}

#[tokio::test]
async fn a_start_without_a_console_says_why_in_one_line() {
    let folder = TempFolder::new("no-console");
    folder.write("rialto.toml", "[admin]\nlisten = \"0.0.0.0:0\"\n");
    let config = folder.0.join("rialto.toml");
    let (child, mut output, _) = spawn_gateway(&["--config", config.to_str().unwrap()]).await;
    let mut lines = [String::new(), String::new()];
    for line in &mut lines {
        tokio::time::timeout(TEST_TIMEOUT, output.read_line(line)).await.unwrap().unwrap();
    }
    let [health, why] = lines;
    let admin = health.trim_end().rsplit_once("http://").unwrap().1;
    let expected = "can be reached from other machines, and [admin.tokens] names nobody";
    assert_eq!(why, format!("There is no console: {admin} {expected}\n"));
    drop(child);
}
