//! Published OpenAPI documents: every operation becomes a tool, and a call becomes the expected HTTP request.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use rialto::local::rest::{DocumentSource, Rest, RestSpec};
use serde_json::{Value, json};

use crate::peers::source;
use crate::rest::{Api, call_tool, limits, listed};

/// Maximum bytes of the input schema of one tool.
const MAX_SCHEMA_BYTES: usize = 64 << 10;

/// Downloads the documents once and returns their folder.
fn download_documents() -> &'static Path {
    static FOLDER: OnceLock<PathBuf> = OnceLock::new();
    FOLDER.get_or_init(|| {
        let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("peers");
        let script = source().join("setup.sh");
        let status = std::process::Command::new("bash").arg(script).arg(&folder).arg("documents").status();
        assert!(status.expect("bash runs").success(), "the documents could not be downloaded; see the output above");
        folder.join("documents")
    })
}

async fn load(name: &str, api: &Api) -> Rest {
    let folder = tokio::task::spawn_blocking(download_documents).await.unwrap();
    let document = Some(DocumentSource::File(folder.join(name)));
    let started = Instant::now();
    let rest = Rest::load(&RestSpec { document, ..api.spec() }, &limits()).await.unwrap();
    let took = started.elapsed();
    println!("{name}: {} tools, {} bytes, in {took:?}", listed(&rest).len(), rest.tools().as_bytes().len());
    assert!(took < Duration::from_secs(30), "{name} took {took:?}");
    check_tools(name, &rest);
    rest
}

/// Invariants of every generated tool: name, description, schema size, resolved references.
fn check_tools(document: &str, rest: &Rest) {
    let mut names = BTreeSet::new();
    for tool in listed(rest) {
        let name = tool["name"].as_str().unwrap().to_owned();
        let allowed = |name: &str| name.chars().all(|c| c.is_ascii_alphanumeric() || "_.-".contains(c));
        assert!((1..=64).contains(&name.len()) && allowed(&name), "{document}: {name}");
        assert!(names.insert(name.clone()), "{document}: {name} twice");
        assert!(
            tool["description"].as_str().is_some_and(|description| !description.is_empty() && description.len() < 2000)
        );
        let schema = &tool["inputSchema"];
        let text = schema.to_string();
        assert_eq!(schema["type"], "object");
        assert!(text.len() <= MAX_SCHEMA_BYTES, "{document}: {name} has {} bytes", text.len());
        let properties = schema["properties"].as_object().unwrap();
        assert!(properties.keys().all(|key| key.len() <= 64 && allowed(key)), "{document}: {name}: {properties:?}");
        for required in schema["required"].as_array().into_iter().flatten() {
            assert!(properties.contains_key(required.as_str().unwrap()), "{document}: {name}: {required}");
        }
        for target in text.split("\"$ref\":\"").skip(1).map(|rest| rest.split('"').next().unwrap()) {
            let target = target.strip_prefix("#/$defs/").unwrap();
            assert!(schema["$defs"].get(target).is_some(), "{document}: {name}: {target}");
        }
        assert!(tool["annotations"]["openWorldHint"].as_bool().unwrap());
    }
}

/// Calls a tool and checks the request that the API received: `METHOD target` and the body.
async fn assert_sends(rest: &Rest, api: &Api, tool: &str, arguments: Value, expected: &str, body: &str) {
    let result = call_tool(rest, tool, arguments).await;
    assert_eq!(result["isError"], false, "{tool}: {result}");
    let seen = api.take_only_request();
    assert_eq!(format!("{} {}", seen.verb, seen.target), expected, "{tool}");
    let sent = String::from_utf8(seen.body.to_vec()).unwrap();
    if let Some(boundary) =
        seen.headers.get("content-type").and_then(|media| media.to_str().ok()?.split_once("boundary="))
    {
        let sent = sent.replace(boundary.1, "B").replace("\r\n", "\n");
        assert_eq!(sent, body, "{tool}");
    } else {
        assert_eq!(sent, body, "{tool}");
    }
}

#[tokio::test]
async fn petstore_in_openapi_2_0_3_0_and_3_1() {
    let api = Api::json("{}").await;
    for name in ["petstore-2.0.json", "petstore-3.0.json", "petstore-3.1.yaml"] {
        let rest = load(name, &api).await;
        assert_eq!(listed(&rest).len(), 20, "{name}");
        assert_sends(&rest, &api, "getPetById", json!({ "petId": 7 }), "GET /pet/7", "").await;
        let status = json!({ "status": ["available", "sold"] });
        let query = "status=available&status=sold";
        assert_sends(&rest, &api, "findPetsByStatus", status, &format!("GET /pet/findByStatus?{query}"), "").await;
        let pet = json!({ "name": "Rex", "photoUrls": ["a"], "category": { "id": 1, "name": "dogs" } });
        let body = r#"{"category":{"id":1,"name":"dogs"},"name":"Rex","photoUrls":["a"]}"#;
        assert_sends(&rest, &api, "addPet", pet, "POST /pet", body).await;
        let user = json!({ "username": "a b", "password": "c&d" });
        assert_sends(&rest, &api, "loginUser", user, "GET /user/login?username=a%20b&password=c%26d", "").await;
        let form = json!({ "petId": 7, "name": "Rex & Co", "status": "sold" });
        assert_sends(&rest, &api, "updatePetWithForm", form, "POST /pet/7", "name=Rex%20%26%20Co&status=sold").await;
        let users = json!({ "body": [{ "username": "x" }] });
        assert_sends(
            &rest,
            &api,
            "createUsersWithArrayInput",
            users,
            "POST /user/createWithArray",
            r#"[{"username":"x"}]"#,
        )
        .await;
        assert_sends(&rest, &api, "deleteOrder", json!({ "orderId": 3 }), "DELETE /store/order/3", "").await;
    }
}

#[tokio::test]
async fn every_openapi_parameter_style_is_serialized() {
    let api = Api::json("{}").await;
    let rest = load("styles.json", &api).await;
    let all = json!({ "primitive": "buster", "array": ["blue", "black"], "object": { "bar": "y z", "foo": "x" } });
    let most = json!({ "array": ["blue", "black"], "object": { "bar": "y z", "foo": "x" } });
    for (tool, arguments, expected) in [
        ("query_standard", &all, "GET /anything/query?primitive=buster&array=blue&array=black&bar=y%20z&foo=x"),
        (
            "query_form_nonExploded",
            &all,
            "GET /anything/query/form?primitive=buster&array=blue,black&object=bar,y%20z,foo,x",
        ),
        (
            "query_form_exploded",
            &all,
            "POST /anything/query/form?primitive=buster&array=blue&array=black&bar=y%20z&foo=x",
        ),
        (
            "query_spaceDelimited_nonExploded",
            &most,
            "GET /anything/query/spaceDelimited?array=blue%20black&object=bar%20y%20z%20foo%20x",
        ),
        (
            "query_pipeDelimited_nonExploded",
            &most,
            "GET /anything/query/pipeDelimited?array=blue%7Cblack&object=bar%7Cy%20z%7Cfoo%7Cx",
        ),
        ("paths_standard", &all, "GET /anything/path/buster/blue,black/bar,y%20z,foo,x"),
        (
            "paths_matrix_nonExploded",
            &all,
            "GET /anything/path/matrix/;primitive=buster/;array=blue,black/;object=bar,y%20z,foo,x",
        ),
        (
            "paths_matrix_exploded",
            &all,
            "POST /anything/path/matrix/;primitive=buster/;array=blue;array=black/;bar=y%20z;foo=x",
        ),
        ("paths_label_nonExploded", &all, "GET /anything/path/label/.buster/.blue,black/.bar,y%20z,foo,x"),
        ("paths_label_exploded", &all, "POST /anything/path/label/.buster/.blue.black/.bar=y%20z.foo=x"),
        ("paths_simple_exploded", &all, "POST /anything/path/simple/buster/blue,black/bar=y%20z,foo=x"),
    ] {
        assert_sends(&rest, &api, tool, arguments.clone(), expected, "").await;
    }
    let deep = json!({ "object": { "bar": "y", "foo": "x" } });
    let expected = "GET /anything/query/deepObject?object%5Bbar%5D=y&object%5Bfoo%5D=x";
    assert_sends(&rest, &api, "query_deepObject_nonExploded", deep, expected, "").await;
    call_tool(&rest, "headers_simple_exploded", all.clone()).await;
    let seen = api.take_only_request();
    assert_eq!(
        (&seen.headers["array"], &seen.headers["object"]),
        (&"blue,black".parse().unwrap(), &"bar=y z,foo=x".parse().unwrap())
    );
    call_tool(&rest, "cookies_form_nonExploded", all.clone()).await;
    let seen = api.take_only_request();
    assert_eq!(seen.target, "/cookies");
    assert_eq!(seen.headers["cookie"], "primitive=buster; array=blue,black; object=bar,y%20z,foo,x");
    let part = |name: &str, text: &str| format!("--B\nContent-Disposition: form-data; name=\"{name}\"\n\n{text}\n");
    let json = "--B\nContent-Disposition: form-data; name=\"object\"\nContent-Type: application/json\n\n";
    let parts = format!(
        "{}{}{json}{{\"bar\":\"y z\",\"foo\":\"x\"}}\n{}--B--\n",
        part("array", "blue"),
        part("array", "black"),
        part("primitive", "buster")
    );
    assert_sends(&rest, &api, "formData_standard", all, "POST /anything/form-data", &parts).await;
}

#[tokio::test]
async fn the_trains_netlify_and_figma_apis_load() {
    let api = Api::json("[]").await;
    let trains = load("trains.yaml", &api).await;
    assert!(listed(&trains).len() >= 6);
    let netlify = load("netlify.json", &api).await;
    assert_eq!(listed(&netlify).len(), 181);
    let site = json!({ "site_id": "s/1", "page": 2 });
    assert_sends(&netlify, &api, "listSiteDeploys", site, "GET /sites/s%2F1/deploys?page=2", "").await;
    let figma = load("figma.yaml", &api).await;
    assert_eq!(listed(&figma).len(), 54);
    let file = json!({ "file_key": "k", "ids": "1:2,1:3", "depth": 2 });
    assert_sends(&figma, &api, "getFile", file, "GET /v1/files/k?ids=1%3A2%2C1%3A3&depth=2", "").await;
    let comment = json!({ "file_key": "k", "message": "hello" });
    assert_sends(&figma, &api, "postComment", comment, "POST /v1/files/k/comments", r#"{"message":"hello"}"#).await;
}

#[tokio::test]
async fn the_github_api_loads_in_full() {
    let api = Api::json("{}").await;
    let rest = load("github.json", &api).await;
    assert_eq!(listed(&rest).len(), 1223, "every operation is a tool");
    let repository = json!({ "owner": "octo cat", "repo": "hello/world" });
    assert_sends(&rest, &api, "repos_get", repository, "GET /repos/octo%20cat/hello%2Fworld", "").await;
    let listing = json!({ "owner": "o", "repo": "r", "state": "closed", "labels": "a,b", "per_page": 5 });
    let expected = "GET /repos/o/r/issues?state=closed&labels=a%2Cb&per_page=5";
    assert_sends(&rest, &api, "issues_list-for-repo", listing, expected, "").await;
    let made = json!({ "owner": "o", "repo": "r", "title": "T", "labels": ["x", { "name": "y" }], "assignee": null });
    let body = r#"{"assignee":null,"labels":["x",{"name":"y"}],"title":"T"}"#;
    assert_sends(&rest, &api, "issues_create", made, "POST /repos/o/r/issues", body).await;
    let search = json!({ "q": "is:open repo:o/r", "sort": "stars" });
    assert_sends(
        &rest,
        &api,
        "search_repos",
        search,
        "GET /search/repositories?q=is%3Aopen%20repo%3Ao%2Fr&sort=stars",
        "",
    )
    .await;
    let content = json!({ "owner": "o", "repo": "r", "path": "docs/a b.md", "message": "m", "content": "YQ==" });
    let expected = "PUT /repos/o/r/contents/docs%2Fa%20b.md";
    let body = r#"{"content":"YQ==","message":"m"}"#;
    assert_sends(&rest, &api, "repos_create-or-update-file-contents", content, expected, body).await;
}
