//! `rialto check --as`: what it prints is what such a caller sees.

use std::collections::BTreeSet;

use proptest::prelude::*;

use super::*;
use crate::config::TempFolder;
use crate::process::rialto;

async fn check(arguments: &[&str]) -> (bool, String, String) {
    let output = tokio::time::timeout(TEST_TIMEOUT, rialto().arg("check").args(arguments).output());
    let output = output.await.expect("the command exits in time").unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    (output.status.success(), text(output.stdout), text(output.stderr))
}

const SERVERS: &str = "[access.tokens]\nann = \"ann\"\nbob = \"bob\"\n[servers.one]\nbuiltin = \"elements\"\n\
                       [servers.two]\nbuiltin = \"elements\"\n[groups.single]\nservers = [\"two\"]\n";

#[tokio::test]
async fn check_prints_what_a_caller_sees_and_by_which_rule() {
    let folder = TempFolder::new("rules-check");
    let rules = "[[policy.rules]]\nname = \"reading\"\nprincipals = [\"token:ann\"]\nallow = { tools = [\"*/get*\"], resources = [\"one/*\"] }\n\
                 [[policy.rules]]\nname = \"never\"\nprincipals = [\"*\"]\ndeny = { tools = [\"one/getElement\"] }\n\
                 [[policy.rules]]\nname = \"lost\"\nprincipals = [\"token:kim\"]\nallow = { tools = [\"one/fly\"], methods = [\"one/x\"] }\n\
                 [[policy.rules]]\nname = \"some\"\nprincipals = [\"role:x\"]\nallow = { tools = [\"two/survey*\"] }\nwhen = { \"/count\" = [\"?\"] }\n";
    folder.write("rialto.toml", &format!("{SERVERS}{rules}"));
    let path = folder.0.join("rialto.toml");
    let file = path.to_str().unwrap();
    let (is_ok, output, errors) = check(&[file, "--as", "token:ann", "--as", "role:x"]).await;
    assert!(is_ok, "{errors}");
    for (name, expected) in [
        ("two__getElement ", "reading"),
        ("one__getElementByPosition", "reading"),
        ("two__surveyElements", "some"),
        ("rialto://one/elements://table", "reading"),
    ] {
        let row = output.lines().find(|line| line.contains(name)).unwrap_or_else(|| panic!("{name}: {output}"));
        assert!(row.trim_end().ends_with(expected), "{row}");
    }
    assert!(output.contains("by arguments") && !output.contains("one__getElement "), "{output}");
    let (_, output, _) = check(&[file, "--as", "token:bob", "--group", "single"]).await;
    assert_eq!(output.trim(), "token:bob may not use the group single.");
    for (arguments, part) in [
        (&["--as", "ann"][..], "names no caller"),
        (&["--as", "token:ann", "--group", "nowhere"], "there is no group \"nowhere\""),
    ] {
        let (is_ok, _, errors) = check(&[&[file], arguments].concat()).await;
        assert!(!is_ok && errors.contains(part), "{errors}");
    }
    let (is_ok, _, warnings) = check(&[file]).await;
    assert!(is_ok);
    for part in [
        "the rule \"lost\" is for \"token:kim\", which the file does not have",
        "the rule \"lost\" is about tools \"one/fly\", which match nothing",
        "the rule \"lost\" is about methods \"one/x\", which match nothing",
    ] {
        assert!(warnings.contains(part), "{part} is not in {warnings}");
    }
    assert_eq!(warnings.matches("the rule").count(), 3, "{warnings}");
}

/// A rule as text of the file.
fn any_rule() -> impl Strategy<Value = String> {
    let principal = prop::sample::select(vec!["*", "token:ann", "token:bob", "anonymous"]);
    let group = prop::sample::select(vec!["", "groups = [\"single\"]\n", "groups = [\"default\"]\n"]);
    let verb = prop::sample::select(vec!["allow", "allow", "deny"]);
    let target = prop::sample::select(vec![
        "tools = [\"*\"]",
        "tools = [\"one/get*\"]",
        "tools = [\"two/surveyElements\", \"one/*Position\"]",
        "prompts = [\"*/describe*\"]",
        "resources = [\"two/*\"]",
        "resources = [\"*/elements://t????\", \"one/elements://element/{symbol}\"]",
        "tools = [\"two/*\"], prompts = [\"two/*\"], resources = [\"two/*\"], methods = [\"two/*\"]",
    ]);
    (principal, group, verb, target).prop_map(|(principal, group, verb, target)| {
        format!("[[policy.rules]]\nprincipals = [\"{principal}\"]\n{group}{verb} = {{ {target} }}\n")
    })
}

/// What a client of a group is shown: kind and name of everything, or that it may not use the group.
async fn shown_to_client(rialto: &Rialto, path: &str) -> Option<BTreeSet<(String, String)>> {
    let mut shown = BTreeSet::new();
    for (kind, method, list, key) in [
        ("tool", "tools/list", "tools", "name"),
        ("prompt", "prompts/list", "prompts", "name"),
        ("resource", "resources/list", "resources", "uri"),
        ("template", "resources/templates/list", "resourceTemplates", "uriTemplate"),
    ] {
        let sending = rialto.post(path, &modern(1.into(), method, json!({}))).modern_headers(method, &json!({}));
        let (status, answer) = sending.header("authorization", "Bearer ann").answer().await;
        if status == 403 {
            return None;
        }
        let items = answer["result"][list].as_array().unwrap_or_else(|| panic!("{status} {answer}"));
        shown.extend(items.iter().map(|item| (kind.to_owned(), item[key].as_str().unwrap().to_owned())));
    }
    Some(shown)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 12, max_shrink_iters: 8, ..ProptestConfig::default() })]

    #[test]
    fn check_agrees_with_what_a_client_sees(
        rules in prop::collection::vec(any_rule(), 0..4),
        default in prop::sample::select(vec!["", "[policy]\ndefault = \"allow\"\n", "[policy]\ndefault = \"deny\"\n"]),
    ) {
        let text = format!("{SERVERS}{default}{}", rules.concat());
        let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let folder = TempFolder::new("rules-check-property");
            folder.write("rialto.toml", &text);
            let path = folder.0.join("rialto.toml");
            let loaded = rialto::config::load(&path, &|_| None).unwrap();
            let rialto = Rialto::with(|settings| {
                *settings = AppSettings { listen: settings.listen, workers: 1, ..loaded.config.app_settings() };
            })
            .await;
            for (group, address) in [("default", "/mcp"), ("single", "/mcp/single")] {
                let arguments = [path.to_str().unwrap(), "--json", "--as", "token:ann", "--group", group];
                let (is_ok, output, errors) = check(&arguments).await;
                assert!(is_ok, "{errors}");
                let report: Value = serde_json::from_str(&output).unwrap();
                let name = |item: &Value, key: &str| item[key].as_str().unwrap().to_owned();
                let items = report["shown"].as_array().unwrap();
                let printed = items.iter().map(|item| (name(item, "kind"), name(item, "name"))).collect();
                let printed = Some(printed).filter(|_| report["mayUse"] == true);
                assert_eq!(shown_to_client(&rialto, address).await, printed, "{text}");
            }
        });
    }
}
