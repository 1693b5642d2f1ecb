//! Catalog: cost of lists for the upstreams, pagination, and lists of a single session.

use rialto::upstream::List;

use super::*;
use crate::harness::{call as calling, request};
use crate::scripted_server::tool;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_thousand_clients_are_served_from_the_list_cache() {
    const LISTS: [&str; 4] = ["tools/list", "prompts/list", "resources/list", "resources/templates/list"];
    let many = |catalog: &mut crate::scripted_server::ServerCatalog| {
        catalog.tools = (0..40).map(|n| tool(&format!("t{n}"))).collect();
    };
    let kinds = [ServerTransport::Http, ServerTransport::PerRequest, ServerTransport::Sse];
    let starting = (0..50).map(|n| ScriptedServer::with(["h", "p", "s"][n % 3], kinds[n % 3], many));
    let mut scripted_servers = futures_util::future::join_all(starting).await;
    for (n, scripted) in scripted_servers.iter_mut().enumerate() {
        scripted.name = format!("u{n}");
    }
    let specs = scripted_servers.iter().map(|scripted| {
        let mut spec = spec(scripted);
        spec.settings.ping_interval = Some(Duration::from_secs(600));
        spec
    });
    let rialto = gateway(default_group_of(specs.collect())).await;
    let room = tokio::sync::Semaphore::new(200);
    let pages = [std::sync::OnceLock::<String>::new(), std::sync::OnceLock::new()];
    let clients = (0..1000).map(|n| {
        let (rialto, room, page) = (&rialto, &room, &pages[n % 2]);
        async move {
            let _room = room.acquire().await.unwrap();
            let sending = match n % 2 {
                0 => rialto.open("2025-11-25").await.post(&request(1, "tools/list", json!({}))),
                _ => rialto.modern("tools/list", json!({})),
            };
            let text = sending.go().await.text().await;
            let answer = text.find('{').map(|at| text[at..].trim_end()).unwrap();
            let first = page.get_or_init(|| answer.to_owned());
            let at = first.bytes().zip(answer.bytes()).position(|(one, other)| one != other);
            let shown = |text: &str| at.map(|at| text[at.saturating_sub(60)..text.len().min(at + 60)].to_owned());
            assert!(first == answer, "every client gets the same page: {:?} {:?}", shown(first), shown(answer));
        }
    });
    tokio::time::timeout(TEST_TIMEOUT * 3, futures_util::future::join_all(clients)).await.expect("all in time");
    let session = rialto.open("2025-11-25").await;
    for page in pages {
        let first: Value = serde_json::from_str(page.get().unwrap()).unwrap();
        let names = column(&first["result"], "tools", "name");
        assert_eq!((names.len(), names[0].as_str(), names[999].as_str()), (1000, "u0__t0", "u24__t39"));
        let next = session.ask("tools/list", json!({ "cursor": first["result"]["nextCursor"] })).await;
        let names = column(&next["result"], "tools", "name");
        assert_eq!((names.len(), names[999].as_str()), (1000, "u49__t39"));
    }
    for scripted in &scripted_servers {
        for list in LISTS {
            assert_eq!(scripted.count(list), 1, "{} {list}", scripted.name);
        }
        assert!(scripted.sessions() <= 1);
    }
}

#[tokio::test]
async fn tools_added_in_one_upstream_session_are_listed_for_that_session_only() {
    for transport in [ServerTransport::Http, ServerTransport::Sse, ServerTransport::Stdio] {
        let (a, b) =
            (ScriptedServer::start("a", transport).await, ScriptedServer::start("b", ServerTransport::Http).await);
        let rialto = group(&[&a, &b]).await;
        let (ada, bob) = (rialto.open("2025-11-25").await, rialto.open("2025-11-25").await);
        let (mut ada_events, bob_events) = (ada.get().go().await.events(), bob.get().go().await.events());
        bob.post(&calling(1, "a__echo", json!({}))).go().await.text().await;
        ada.post(&calling(1, "a__do", json!({ "steps": [{ "grow": "more" }] }))).go().await.text().await;
        let notified = within_timeout("a list-changed notification", ada_events.message()).await.unwrap();
        assert_eq!(notified["method"], "notifications/tools/list_changed");
        let has_own_lists =
            || rialto.group().view(Revision::NEWEST).members.iter().any(|member| member.leg.has_own_lists());
        assert!(has_own_lists());
        let common = ["a__echo", "a__do", "b__echo", "b__do"];
        let listed = ada.ask("tools/list", json!({})).await;
        let grown = ["a__echo", "a__do", "a__more", "b__echo", "b__do"];
        assert_eq!(column(&listed["result"], "tools", "name"), grown, "{transport:?}");
        let (_, answer) = ada.post(&calling(2, "a__more", json!({}))).answer().await;
        assert_eq!(report(&answer["result"])["tool"], "more");
        let listed = bob.ask("tools/list", json!({})).await;
        assert_eq!(column(&listed["result"], "tools", "name"), common);
        let (_, refused) = bob.post(&calling(2, "a__more", json!({}))).answer().await;
        assert_eq!(refused["error"]["code"], -32602);
        let (_, modern) = rialto.modern("tools/list", json!({})).answer().await;
        assert_eq!(column(&modern["result"], "tools", "name"), common);
        // A change of the shared catalog also reaches the session with its own list.
        b.change("notifications/tools/list_changed", |catalog| catalog.tools.truncate(1));
        assert_eq!(
            within_timeout("a list-changed notification", ada_events.message()).await.unwrap()["method"],
            notified["method"]
        );
        let listed = ada.ask("tools/list", json!({})).await;
        assert_eq!(column(&listed["result"], "tools", "name"), grown[..4]);
        if transport == ServerTransport::Http {
            // The tools that grew in the lost upstream session are gone in the new one.
            a.forget_sessions();
            ada.post(&calling(3, "a__echo", json!({}))).go().await.text().await;
            assert_eq!(
                within_timeout("a list-changed notification", ada_events.message()).await.unwrap()["method"],
                notified["method"]
            );
            let listed = ada.ask("tools/list", json!({})).await;
            assert_eq!(column(&listed["result"], "tools", "name"), common[..3]);
        }
        bob.delete().go().await;
        let notified: Vec<Value> = bob_events.rest().await;
        assert_eq!(notified.len(), 1, "only the change of the shared catalog: {notified:?}");
        // Whoever is left looks for no lease any more.
        ada.delete().go().await;
        until("no client has lists of its own", || !has_own_lists()).await;
    }
}

async fn page(rialto: &Rialto, group: &str, method: &str, cursor: &Value) -> Value {
    let params = if cursor.is_null() { json!({}) } else { json!({ "cursor": cursor }) };
    let body = crate::harness::modern(1.into(), method, params.clone());
    rialto.post(&format!("/mcp{group}"), &body).modern_headers(method, &params).answer().await.1
}

async fn walk(rialto: &Rialto, method: &str, list: &str, key: &str, mut cursor: Value) -> Vec<String> {
    let mut all = Vec::new();
    loop {
        let answer = page(rialto, "", method, &cursor).await;
        let items = column(&answer["result"], list, key);
        assert!(items.len() <= 3, "{answer}");
        all.extend(items);
        cursor = answer["result"]["nextCursor"].clone();
        if cursor.is_null() {
            return all;
        }
    }
}

#[tokio::test]
async fn pagination_has_no_gaps_and_cursors_are_authenticated() {
    let catalog = |catalog: &mut crate::scripted_server::ServerCatalog| {
        catalog.tools = (0..5).map(|n| tool(&format!("t{n}"))).collect();
        catalog.resources = (0..4).map(|n| json!({ "uri": format!("r:{n}"), "name": "r" })).collect();
    };
    let (a, b) = (
        ScriptedServer::with("a", ServerTransport::Http, catalog).await,
        ScriptedServer::with("b", ServerTransport::PerRequest, catalog).await,
    );
    let mut config = default_group_of(vec![spec(&a), spec(&b)]);
    config.groups[0].page_size = 3;
    config.groups.push(GroupConfig { name: "other".into(), ..config.groups[0].clone() });
    let rialto = gateway(config).await;
    let names = |a: usize, b: usize| -> Vec<String> {
        let of = |server: &'static str, count| (0..count).map(move |n| format!("{server}__t{n}"));
        of("a", a).chain(of("b", b)).collect()
    };
    assert_eq!(walk(&rialto, "tools/list", "tools", "name", Value::Null).await, names(5, 5));
    let uris = walk(&rialto, "resources/list", "resources", "uri", Value::Null).await;
    assert_eq!((uris.len(), uris[7].as_str()), (8, "rialto://b/r:3"));
    assert_eq!(walk(&rialto, "prompts/list", "prompts", "name", Value::Null).await, ["a__hello", "b__hello"]);

    let first = page(&rialto, "", "tools/list", &Value::Null).await;
    let cursor = first["result"]["nextCursor"].clone();
    let text = cursor.as_str().unwrap();
    for at in [0, 10, text.len() - 1] {
        let mut touched = text.as_bytes().to_vec();
        touched[at] = if touched[at] == b'A' { b'B' } else { b'A' };
        let touched = String::from_utf8(touched).unwrap().into();
        assert_eq!(page(&rialto, "", "tools/list", &touched).await["error"]["code"], -32602);
    }
    for (group, method, cursor) in [
        ("", "resources/list", &cursor),
        ("", "prompts/list", &cursor),
        ("/other", "tools/list", &cursor),
        ("", "tools/list", &json!("")),
        ("", "tools/list", &json!("3")),
        ("", "tools/list", &json!(3)),
    ] {
        assert_eq!(page(&rialto, group, method, cursor).await["error"]["code"], -32602, "{group} {method} {cursor}");
    }

    // A cursor stays valid while the list does not change.
    a.wait_received("ping", a.count("ping") + 8).await;
    assert_eq!(walk(&rialto, "tools/list", "tools", "name", cursor.clone()).await, names(5, 5)[3..]);
    // After a change a cursor still pages through the old list, until that version is evicted.
    let mut gone = false;
    for n in 5..15 {
        a.change("notifications/tools/list_changed", |catalog| catalog.tools.push(tool(&format!("t{n}"))));
        let name = format!("a__t{n}");
        until("the new tool is listed", || {
            rialto.group().view(Revision::NEWEST).find_by_name(List::Tools, &name).is_some()
        })
        .await;
        let answer = page(&rialto, "", "tools/list", &cursor).await;
        gone = answer["error"]["code"] == -32602;
        if gone {
            assert!(n > 6, "not at the first change: {answer}");
            break;
        }
        assert_eq!(walk(&rialto, "tools/list", "tools", "name", cursor.clone()).await, names(5, 5)[3..]);
    }
    assert!(gone, "the old version is evicted");
}

#[tokio::test]
async fn a_list_change_between_first_read_and_subscription_is_not_missed() {
    for transport in [ServerTransport::Http, ServerTransport::PerRequest] {
        let (a, b) =
            (ScriptedServer::start("a", transport).await, ScriptedServer::start("b", ServerTransport::Http).await);
        // The list changes right after its first read.
        let changed = Arc::new(std::sync::atomic::AtomicUsize::new(0));
        let counting = Arc::clone(&changed);
        a.inject_fault(
            "tools/list",
            crate::scripted_server::InjectedFault::Result(Arc::new(move |_| {
                let turn = counting.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
                json!({ "tools": [tool(&format!("turn{}", turn.min(1)))] })
            })),
        );
        let rialto = group(&[&a, &b]).await;
        until("the list was read", || changed.load(std::sync::atomic::Ordering::SeqCst) == 1).await;
        a.notify("notifications/tools/list_changed", &json!({}));
        until(&format!("the change is seen {transport:?}"), || {
            rialto.group().view(Revision::NEWEST).find_by_name(List::Tools, "a__turn1").is_some()
        })
        .await;
    }
}
