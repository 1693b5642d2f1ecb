//! The built-in `elements` server, called through the gateway.

use rialto::local::elements::data::ELEMENTS;
use serde_json::{Value, json};

use crate::harness::Rialto;

async fn call(rialto: &Rialto, tool: &str, arguments: Value) -> Value {
    let (status, answer) = rialto.modern("tools/call", json!({ "name": tool, "arguments": arguments })).json().await;
    assert_eq!(status, 200, "{answer}");
    answer["result"].clone()
}

#[tokio::test]
async fn every_element_is_found_by_position_name_and_symbol() {
    let rialto = Rialto::start().await;
    let (_, tools) = rialto.modern("tools/list", json!({})).json().await;
    let schema = &tools["result"]["tools"][0]["outputSchema"];
    for element in &ELEMENTS {
        let by_position = call(&rialto, "getElementByPosition", json!({ "position": element.number })).await;
        let found = &by_position["structuredContent"];
        assert_eq!(found["symbol"], element.symbol);
        assert_eq!(found["content"], by_position["content"][0]["text"]);
        assert_eq!(found["atomicMass"].as_f64(), element.mass.parse().ok());
        for required in schema["required"].as_array().unwrap() {
            assert!(found.get(required.as_str().unwrap()).is_some(), "{required}");
        }
        for name in [element.chinese, element.english, element.symbol] {
            let by_name = call(&rialto, "getElement", json!({ "name": name })).await;
            assert_eq!(by_name["structuredContent"], *found, "{name}");
        }
    }
}

#[tokio::test]
async fn unknown_elements_and_positions_are_tool_errors() {
    let rialto = Rialto::start().await;
    for name in [json!("Unobtainium"), json!(""), json!(5), Value::Null] {
        let result = call(&rialto, "getElement", json!({ "name": name })).await;
        assert_eq!((&result["isError"], &result["content"][0]["text"]), (&json!(true), &json!("元素不存在")), "{name}");
        assert!(result["content"][1]["text"].as_str().unwrap().contains("Hydrogen"), "{result}");
    }
    for position in [json!(0), json!(119), json!(-1), json!("26"), json!(1.5), json!(1e30), Value::Null] {
        let result = call(&rialto, "getElementByPosition", json!({ "position": position })).await;
        assert_eq!(
            (&result["isError"], &result["content"][0]["text"]),
            (&json!(true), &json!("位置无效")),
            "{position}"
        );
        assert!(result["content"][1]["text"].as_str().unwrap().contains("1 to 118"), "{result}");
    }
}

#[tokio::test]
async fn completion_offers_names_and_symbols() {
    let rialto = Rialto::start().await;
    for (reference, argument, value, expected) in [
        (json!({ "type": "ref/prompt", "name": "describeElement" }), "name", "hy", json!(["Hydrogen"])),
        (json!({ "type": "ref/prompt", "name": "describeElement" }), "name", "铁", json!(["Iron"])),
        (json!({ "type": "ref/resource", "uri": "elements://symbol/{symbol}" }), "symbol", "X", json!(["Xe"])),
        (json!({ "type": "ref/prompt", "name": "describeElement" }), "name", "zzz", json!([])),
    ] {
        let params = json!({ "ref": reference, "argument": { "name": argument, "value": value } });
        let (_, answer) = rialto.modern("completion/complete", params).json().await;
        assert_eq!(answer["result"]["completion"]["values"], expected, "{answer}");
    }
    let all = json!({ "ref": { "type": "ref/prompt", "name": "describeElement" }, "argument": { "name": "name", "value": "" } });
    let (_, answer) = rialto.modern("completion/complete", all).json().await;
    let completion = &answer["result"]["completion"];
    assert_eq!(
        (completion["values"].as_array().unwrap().len(), &completion["total"], &completion["hasMore"]),
        (100, &json!(118), &json!(true))
    );
}
