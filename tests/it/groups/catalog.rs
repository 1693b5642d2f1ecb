//! Lists: what they cost, their pages, and those that one client has for itself.

use rialto::upstream::List;

use super::*;
use crate::harness::{call as calling, request};
use crate::puppet::tool;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_thousand_clients_cost_the_upstreams_nothing() {
    const LISTS: [&str; 4] = ["tools/list", "prompts/list", "resources/list", "resources/templates/list"];
    let many = |offers: &mut crate::puppet::Offers| offers.tools = (0..40).map(|n| tool(&format!("t{n}"))).collect();
    let kinds = [Speaks::Http, Speaks::PerRequest, Speaks::Sse];
    let starting = (0..50).map(|n| Puppet::with(["h", "p", "s"][n % 3], kinds[n % 3], many));
    let mut puppets = futures_util::future::join_all(starting).await;
    for (n, puppet) in puppets.iter_mut().enumerate() {
        puppet.name = format!("u{n}");
    }
    let specs = puppets.iter().map(|puppet| {
        let mut spec = spec(puppet);
        spec.settings.ping_interval = Some(Duration::from_secs(600));
        spec
    });
    let rialto = gateway(together(specs.collect())).await;
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
            assert!(first == answer, "everybody sees the same: {:?} {:?}", shown(first), shown(answer));
        }
    });
    tokio::time::timeout(PATIENCE * 3, futures_util::future::join_all(clients)).await.expect("all in time");
    let session = rialto.open("2025-11-25").await;
    for page in pages {
        let first: Value = serde_json::from_str(page.get().unwrap()).unwrap();
        let names = column(&first["result"], "tools", "name");
        assert_eq!((names.len(), names[0].as_str(), names[999].as_str()), (1000, "u0__t0", "u24__t39"));
        let next = session.ask("tools/list", json!({ "cursor": first["result"]["nextCursor"] })).await;
        let names = column(&next["result"], "tools", "name");
        assert_eq!((names.len(), names[999].as_str()), (1000, "u49__t39"));
    }
    for puppet in &puppets {
        for list in LISTS {
            assert_eq!(puppet.count(list), 1, "{} {list}", puppet.name);
        }
        assert!(puppet.sessions() <= 1);
    }
}

#[tokio::test]
async fn tools_that_grow_in_a_session_are_seen_there_only() {
    for speaks in [Speaks::Http, Speaks::Sse, Speaks::Stdio] {
        let (a, b) = (Puppet::start("a", speaks).await, Puppet::start("b", Speaks::Http).await);
        let rialto = group(&[&a, &b]).await;
        let (ada, bob) = (rialto.open("2025-11-25").await, rialto.open("2025-11-25").await);
        let (mut ada_hears, bob_hears) = (ada.get().go().await.events(), bob.get().go().await.events());
        bob.post(&calling(1, "a__echo", json!({}))).go().await.text().await;
        ada.post(&calling(1, "a__do", json!({ "steps": [{ "grow": "more" }] }))).go().await.text().await;
        let heard = in_time("a change", ada_hears.message()).await.unwrap();
        assert_eq!(heard["method"], "notifications/tools/list_changed");
        let common = ["a__echo", "a__do", "b__echo", "b__do"];
        let listed = ada.ask("tools/list", json!({})).await;
        let grown = ["a__echo", "a__do", "a__more", "b__echo", "b__do"];
        assert_eq!(column(&listed["result"], "tools", "name"), grown, "{speaks:?}");
        let (_, answer) = ada.post(&calling(2, "a__more", json!({}))).answer().await;
        assert_eq!(report(&answer["result"])["tool"], "more");
        let listed = bob.ask("tools/list", json!({})).await;
        assert_eq!(column(&listed["result"], "tools", "name"), common);
        let (_, refused) = bob.post(&calling(2, "a__more", json!({}))).answer().await;
        assert_eq!(refused["error"]["code"], -32602);
        let (_, modern) = rialto.modern("tools/list", json!({})).answer().await;
        assert_eq!(column(&modern["result"], "tools", "name"), common);
        // What changes for all is seen by her, too.
        b.change("notifications/tools/list_changed", |offers| offers.tools.truncate(1));
        assert_eq!(in_time("a change", ada_hears.message()).await.unwrap()["method"], heard["method"]);
        let listed = ada.ask("tools/list", json!({})).await;
        assert_eq!(column(&listed["result"], "tools", "name"), grown[..4]);
        if speaks == Speaks::Http {
            // A new session of the upstream knows nothing of what the one before had.
            a.forget();
            ada.post(&calling(3, "a__echo", json!({}))).go().await.text().await;
            assert_eq!(in_time("a change", ada_hears.message()).await.unwrap()["method"], heard["method"]);
            let listed = ada.ask("tools/list", json!({})).await;
            assert_eq!(column(&listed["result"], "tools", "name"), common[..3]);
        }
        bob.delete().go().await;
        let heard: Vec<Value> = bob_hears.rest().await;
        assert_eq!(heard.len(), 1, "only of what changed for all: {heard:?}");
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
async fn a_list_is_walked_in_pages() {
    let offers = |offers: &mut crate::puppet::Offers| {
        offers.tools = (0..5).map(|n| tool(&format!("t{n}"))).collect();
        offers.resources = (0..4).map(|n| json!({ "uri": format!("r:{n}"), "name": "r" })).collect();
    };
    let (a, b) = (Puppet::with("a", Speaks::Http, offers).await, Puppet::with("b", Speaks::PerRequest, offers).await);
    let mut layout = together(vec![spec(&a), spec(&b)]);
    layout.groups[0].page_size = 3;
    layout.groups.push(GroupConfig { name: "other".into(), ..layout.groups[0].clone() });
    let rialto = gateway(layout).await;
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

    // As long as nothing changes a cursor is good, whatever else happens.
    a.sees("ping", a.count("ping") + 8).await;
    assert_eq!(walk(&rialto, "tools/list", "tools", "name", cursor.clone()).await, names(5, 5)[3..]);
    // A list that changed is walked to its end as it was, until that is forgotten.
    let mut gone = false;
    for n in 5..15 {
        a.change("notifications/tools/list_changed", |offers| offers.tools.push(tool(&format!("t{n}"))));
        let name = format!("a__t{n}");
        until("it is listed", || rialto.group().view().by_name(List::Tools, &name).is_some()).await;
        let answer = page(&rialto, "", "tools/list", &cursor).await;
        gone = answer["error"]["code"] == -32602;
        if gone {
            assert!(n > 6, "not at once: {answer}");
            break;
        }
        assert_eq!(walk(&rialto, "tools/list", "tools", "name", cursor.clone()).await, names(5, 5)[3..]);
    }
    assert!(gone, "not for ever");
}

#[tokio::test]
async fn a_change_between_the_first_list_and_listening_is_not_missed() {
    for speaks in [Speaks::Http, Speaks::PerRequest] {
        let (a, b) = (Puppet::start("a", speaks).await, Puppet::start("b", Speaks::Http).await);
        // It changes as soon as its list was read.
        let changed = Arc::new(std::sync::atomic::AtomicUsize::new(0));
        let counting = Arc::clone(&changed);
        a.misbehave(
            "tools/list",
            crate::puppet::Mischief::Result(Arc::new(move |_| {
                let turn = counting.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
                json!({ "tools": [tool(&format!("turn{}", turn.min(1)))] })
            })),
        );
        let rialto = group(&[&a, &b]).await;
        until("the list was read", || changed.load(std::sync::atomic::Ordering::SeqCst) == 1).await;
        a.notify("notifications/tools/list_changed", &json!({}));
        until(&format!("the change is seen {speaks:?}"), || {
            rialto.group().view().by_name(List::Tools, "a__turn1").is_some()
        })
        .await;
    }
}
