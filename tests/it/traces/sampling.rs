//! Which calls are traced: by parent, by ratio, by variables, and after a reload.

use std::process::Stdio;

use rialto::otlp::{OtlpProtocol, VariableReader};
use rialto::trace::{SamplerName, TraceVariables};
use serde_json::Value;
use tokio::io::{AsyncBufReadExt, BufReader};

use super::collector::{Collector, Telemetry};
use super::{PARENT, UNSAMPLED_PARENT, call_element, stop, traced};
use crate::config::TempFolder;
use crate::harness::{Rialto, TEST_TIMEOUT, until};
use crate::process::rialto;

fn servers(spans: &[Value]) -> usize {
    spans.iter().filter(|span| span["kind"] == "SERVER").count()
}

#[tokio::test]
async fn each_sampler_decides_as_its_name_says() {
    let collector = Collector::start().await;
    // Spans of a call without a parent, with a sampled one and with one that is not sampled; the trace id of the parents is
    // in the upper half.
    for (name, ratio, expected) in [
        ("always_on", 1.0, [1, 1, 1]),
        ("always_off", 1.0, [0, 0, 0]),
        ("traceidratio", 1.0, [1, 1, 1]),
        ("traceidratio", 0.0, [0, 0, 0]),
        ("parentbased_always_on", 1.0, [1, 1, 0]),
        ("parentbased_always_off", 1.0, [0, 1, 0]),
        ("parentbased_traceidratio", 1.0, [1, 1, 0]),
        ("parentbased_traceidratio", 0.0, [0, 1, 0]),
    ] {
        let sampler = SamplerName::ALL.iter().find(|(known, _)| *known == name).unwrap().1;
        let settings = collector
            .settings(OtlpProtocol::HttpProtobuf)
            .traces(|trace| (trace.sampler, trace.sample_ratio) = (sampler, ratio));
        for (parent, expected) in [None, Some(PARENT), Some(UNSAMPLED_PARENT)].into_iter().zip(expected) {
            let before = servers(&collector.spans());
            let rialto = traced(settings.clone()).await;
            call_element(&rialto, parent).await;
            let tracer = rialto.inbound.gateway.tracer().clone();
            let what = format!("what was sampled is exported: {name} {ratio} {parent:?}");
            until(&what, || tracer.counters().exported() >= 2 * expected).await;
            // A stop exports what else was sampled.
            stop(rialto).await;
            assert_eq!(tracer.counters().exported(), 2 * expected, "{name} {ratio} {parent:?}");
            let wanted = before + usize::try_from(expected).unwrap();
            collector.until("the span", |_| servers(&collector.spans()) == wanted).await;
        }
    }
}

#[tokio::test]
async fn variables_turn_tracing_on_and_choose_the_sampler() {
    let collector = Collector::start().await;
    let endpoint = collector.endpoint(OtlpProtocol::Grpc);
    let find = |name: &str| {
        let value = match name {
            "OTEL_EXPORTER_OTLP_ENDPOINT" => &endpoint,
            "OTEL_EXPORTER_OTLP_PROTOCOL" => "grpc",
            "OTEL_SERVICE_NAME" => "by-variables",
            "OTEL_TRACES_SAMPLER" => "parentbased_always_off",
            "OTEL_EXPORTER_OTLP_HEADERS" => "x-key=a%20b",
            _ => return None,
        };
        Some(value.to_owned())
    };
    let mut reader = VariableReader::new(&find);
    let variables = TraceVariables::read(&mut reader);
    assert_eq!(reader.into_warnings(), Vec::<String>::new());
    let rialto = traced(Telemetry::default().traces(|trace| trace.variables = variables)).await;
    call_element(&rialto, None).await;
    call_element(&rialto, Some(PARENT)).await;
    stop(rialto).await;
    let span = collector.span("tools/call getElement", "SERVER").await;
    assert_eq!(span["resource"]["service.name"], "by-variables");
    assert_eq!((span["protocol"].as_str(), span["headers"]["x-key"].as_str()), (Some("grpc"), Some("a b")));
    assert_eq!(servers(&collector.spans()), 1);
}

#[tokio::test]
async fn a_variable_that_cannot_be_used_is_named_at_the_start() {
    let mut command = rialto();
    command.args(["serve", "--listen", "127.0.0.1:0"]).stdin(Stdio::null());
    command.env("OTEL_TRACES_SAMPLER", "xray").env("OTEL_EXPORTER_OTLP_HEADERS", "s3cret-without-a-name");
    let mut child = command.spawn().unwrap();
    let mut errors = BufReader::new(child.stderr.take().unwrap()).lines();
    let mut said = Vec::new();
    for _ in 0..2 {
        let line = tokio::time::timeout(TEST_TIMEOUT, errors.next_line()).await.expect("a warning").unwrap();
        said.push(line.expect("the process runs"));
    }
    for name in ["OTEL_TRACES_SAMPLER", "OTEL_EXPORTER_OTLP_HEADERS"] {
        assert!(said.iter().any(|line| line.starts_with(&format!("warning: the variable {name} must be"))), "{said:?}");
    }
    assert!(!said.concat().contains("s3cret"), "{said:?}");
    // It serves all the same.
    let mut output = BufReader::new(child.stdout.take().unwrap()).lines();
    let line = tokio::time::timeout(TEST_TIMEOUT, output.next_line()).await.unwrap().unwrap().unwrap();
    assert!(line.starts_with("Rialto serves MCP"), "{line}");
}

#[tokio::test]
async fn a_reload_turns_tracing_on_and_off() {
    let collector = Collector::start().await;
    let folder = TempFolder::new("telemetry-reload");
    let path = folder.0.join("rialto.toml");
    let file = |table: &str| format!("listen = \"127.0.0.1:0\"\n[servers.elements]\nbuiltin = \"elements\"\n{table}");
    let endpoint = collector.endpoint(OtlpProtocol::HttpProtobuf);
    let on = format!("[telemetry]\nendpoint = \"{endpoint}\"\ninterval = \"20ms\"\n");
    std::fs::write(&path, file("")).unwrap();
    let rialto = Rialto::from_file(&path, |_| {}).await;
    let tracer = rialto.inbound.gateway.tracer().clone();
    call_element(&rialto, Some(PARENT)).await;
    assert!(!tracer.is_on());
    std::fs::write(&path, file(&on)).unwrap();
    until("tracing is on", || tracer.is_on()).await;
    call_element(&rialto, None).await;
    collector.until("both spans", |_| collector.spans().len() == 2).await;
    // A file that is refused changes nothing.
    std::fs::write(&path, file("[telemetry]\nprotocol = \"smoke\"\n")).unwrap();
    let refused = || async { super::metric(&rialto, "rialto_reloads_total{outcome=\"refused\"}").await };
    while refused().await == 0 {
        tokio::task::yield_now().await;
    }
    assert!(tracer.is_on());
    std::fs::write(&path, file(&format!("{on}traces = false\n"))).unwrap();
    until("tracing is off", || !tracer.is_on()).await;
    let before = collector.spans().len();
    call_element(&rialto, Some(PARENT)).await;
    stop(rialto).await;
    assert_eq!(collector.spans().len(), before);
}
