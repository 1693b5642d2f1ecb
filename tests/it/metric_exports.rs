//! Metrics by OTLP: an official receiver gets what `/metrics` has, and a collector that fails costs calls nothing.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use rialto::metrics_export::{MetricsExportSettings, MetricsVariables};
use rialto::otlp::{ExportHeaders, OtlpProtocol, ResourceAttributes, VariableReader};
use serde_json::{Value, json};

use crate::config::TempFolder;
use crate::harness::{Rialto, TEST_TIMEOUT, until};
use crate::ports::ReservedPort;
use crate::traces::collector::{Collector, Telemetry};
use crate::traces::{call_element, stop};

const BOTH: [(OtlpProtocol, &str); 2] = [(OtlpProtocol::HttpProtobuf, "http"), (OtlpProtocol::Grpc, "grpc")];
/// A time after which no test expects an export.
const HOUR: Duration = Duration::from_secs(3600);
const CALLS: u64 = 3;

/// Settings that export metrics, and no spans, at this interval.
fn metrics_to(collector: &Collector, protocol: OtlpProtocol, interval: Duration) -> Telemetry {
    let metrics = MetricsExportSettings { interval, ..MetricsExportSettings::default() };
    Telemetry { metrics, ..collector.settings(protocol) }.traces(|trace| trace.enabled = Some(false))
}

async fn exporting(telemetry: Telemetry) -> Rialto {
    Rialto::with(|settings| telemetry.apply(settings)).await
}

/// Exports by outcome, as the gateway counts them: taken, failed, rejected.
fn outcomes(rialto: &Rialto) -> [u64; 3] {
    rialto.inbound.admin.metrics_exporter().counters().by_outcome().map(|(_, count)| count)
}

/// The points of the last whole export over a protocol, and how many exports came before it.
fn last_export(collector: &Collector, protocol: &str) -> (usize, Vec<Value>) {
    let lines = collector.lines();
    let ours: Vec<_> = lines.into_iter().filter(|line| line["protocol"] == protocol).collect();
    let ends: Vec<_> = (0..ours.len()).filter(|at| ours[*at]["points"].is_number()).collect();
    let Some((last, before)) = ends.split_last() else { return (0, Vec::new()) };
    let first = before.last().map_or(0, |end| end + 1);
    let points = ours[first..*last].to_vec();
    assert_eq!(ours[*last]["points"], points.len());
    (ends.len(), points)
}

/// The point of a metric that has these attributes among its own.
fn point_of(points: &[Value], metric: &str, attributes: &[(&str, &str)]) -> Option<Value> {
    let has = |point: &Value| attributes.iter().all(|(key, value)| point["attributes"][key] == *value);
    let found: Vec<_> = points.iter().filter(|point| point["metric"] == metric && has(point)).collect();
    assert!(found.len() <= 1, "{metric} with {attributes:?}: {found:#?}");
    found.first().map(|point| (*point).clone())
}

/// Waits for an export in which a counter or gauge has this value, and returns its points.
async fn export_with(
    collector: &Collector,
    protocol: &str,
    metric: &str,
    labels: &[(&str, &str)],
    value: u64,
) -> Vec<Value> {
    let what = format!("{metric} is {value} in an export over {protocol}");
    let is_there =
        || point_of(&last_export(collector, protocol).1, metric, labels).is_some_and(|point| point["value"] == value);
    collector.until(&what, |_| is_there()).await;
    last_export(collector, protocol).1
}

type Sample = (String, BTreeMap<String, String>, f64);

/// What `/metrics` says.
async fn scrape(rialto: &Rialto) -> Vec<Sample> {
    let text = rialto.send("GET", "/metrics").go().await.text().await;
    let sample = |line: &str| {
        let (series, value) = line.rsplit_once(' ').unwrap();
        let (name, labels) = series.split_once('{').unwrap_or((series, "}"));
        let labels = labels.strip_suffix('}').unwrap();
        let pair = |pair: &str| {
            let (label, value) = pair.split_once("=\"").unwrap();
            (label.to_owned(), value.trim_end_matches('"').to_owned())
        };
        let labels = labels.split("\",").filter(|pairs| !pairs.is_empty()).map(pair).collect();
        (name.to_owned(), labels, value.parse().unwrap())
    };
    text.lines().filter(|line| !line.starts_with('#')).map(sample).collect()
}

/// The value that `/metrics` has for an exported point; `end` is added to its name, and `le` to its labels.
fn scraped(samples: &[Sample], point: &Value, end: &str, le: Option<&str>) -> f64 {
    let name = format!("{}{end}", prometheus_name(point));
    let mut labels: BTreeMap<_, _> = point["attributes"]
        .as_object()
        .unwrap()
        .iter()
        .map(|(key, value)| (key.replace('.', "_"), value.as_str().unwrap().to_owned()))
        .collect();
    labels.extend(le.map(|le| ("le".to_owned(), le.to_owned())));
    let found = samples.iter().find(|(known, pairs, _)| *known == name && *pairs == labels);
    found.unwrap_or_else(|| panic!("/metrics has no {name} {labels:?}")).2
}

/// The name that the rules of OpenTelemetry for Prometheus make of an exported one.
fn prometheus_name(point: &Value) -> String {
    let mut name = point["metric"].as_str().unwrap().replace('.', "_");
    let unit = match point["unit"].as_str().unwrap() {
        "s" => "_seconds",
        "By" => "_bytes",
        "" => "",
        other => panic!("unit {other}"),
    };
    if !name.ends_with(unit) {
        name.push_str(unit);
    }
    if point["monotonic"] == true {
        name.push_str("_total");
    }
    name
}

fn assert_same_histogram(samples: &[Sample], point: &Value) {
    assert_eq!((&point["kind"], &point["unit"], &point["temporality"]), (&json!("histogram"), &json!("s"), &json!(2)));
    assert_eq!(point["count"].as_f64().unwrap(), scraped(samples, point, "_count", None));
    assert_eq!(point["sum"].as_str().unwrap().parse::<f64>().unwrap(), scraped(samples, point, "_sum", None));
    let (bounds, buckets) = (point["bounds"].as_array().unwrap(), point["buckets"].as_array().unwrap());
    assert_eq!(buckets.len(), bounds.len() + 1);
    let mut below = 0.0;
    for (n, bucket) in buckets.iter().enumerate() {
        below += bucket.as_f64().unwrap();
        let le = bounds.get(n).map_or_else(|| "+Inf".to_owned(), |bound| format!("{:?}", bound.as_f64().unwrap()));
        assert_eq!(below, scraped(samples, point, "_bucket", Some(&le)), "bucket {le}");
    }
    let (start, time) = (point["start"].as_u64().unwrap(), point["time"].as_u64().unwrap());
    assert!(0 < start && start < time, "{start} to {time}");
}

#[tokio::test]
async fn an_official_receiver_gets_what_metrics_has_over_http_and_grpc() {
    let collector = Collector::start().await;
    for (protocol, name) in BOTH {
        let mut telemetry = metrics_to(&collector, protocol, Duration::from_millis(50));
        telemetry.otlp.headers = ExportHeaders(vec![("x-key".into(), "of the collector".into())]);
        telemetry.otlp.service_name = Some(format!("over-{name}"));
        telemetry.otlp.resource_attributes = ResourceAttributes(vec![("zone".into(), "z1".into())]);
        let rialto = exporting(telemetry).await;
        let session = rialto.open("2025-11-25").await;
        for _ in 0..CALLS {
            call_element(&rialto, None).await;
        }
        let calls = [("upstream", "elements"), ("method", "tools/call"), ("outcome", "ok"), ("group", "default")];
        let points = export_with(&collector, name, "rialto_calls", &calls, CALLS).await;
        let tool = [("mcp.method.name", "tools/call"), ("gen_ai.tool.name", "getElement")];
        let until_counted = |metric: &'static str| {
            let collector = &collector;
            async move {
                let found = || point_of(&last_export(collector, name).1, metric, &tool);
                collector.until(metric, |_| found().is_some_and(|point| point["count"] == CALLS)).await;
                found().unwrap()
            }
        };
        let server = until_counted("mcp.server.operation.duration").await;
        let client = until_counted("mcp.client.operation.duration").await;
        let samples = scrape(&rialto).await;
        for (point, place) in [(&server, ("group", "default")), (&client, ("upstream", "elements"))] {
            assert_same_histogram(&samples, point);
            assert_eq!(point["attributes"][place.0], place.1);
            assert_eq!(point["attributes"]["gen_ai.operation.name"], "execute_tool");
            assert!(point["attributes"]["mcp.protocol.version"].is_string(), "{point}");
            assert_eq!(point["headers"]["x-key"], "of the collector");
            assert_eq!(
                (&point["resource"]["service.name"], &point["resource"]["zone"]),
                (&json!(format!("over-{name}")), &json!("z1"))
            );
            assert_eq!(
                point["resource"]["service.instance.id"].as_str().unwrap().len(),
                36,
                "a UUID without a cluster"
            );
            assert_eq!(point["scope"], "rialto");
        }
        let counter = point_of(&points, "rialto_calls", &calls).unwrap();
        assert_eq!(
            (&counter["kind"], &counter["monotonic"], &counter["temporality"]),
            (&json!("sum"), &json!(true), &json!(2))
        );
        assert_eq!((&counter["type"], &counter["start"]), (&json!("as_int"), &server["start"]));
        assert_eq!(scraped(&samples, &counter, "", None), CALLS as f64);
        let of_session = [("revision", "2025-11-25"), ("transport", "http")];
        let points = export_with(&collector, name, "rialto_sessions", &of_session, 1).await;
        let gauge = point_of(&points, "rialto_sessions", &of_session).unwrap();
        assert_eq!((&gauge["kind"], &gauge["start"], &gauge["unit"]), (&json!("gauge"), &json!(0), &json!("")));
        assert_eq!(scraped(&samples, &gauge, "", None), 1.0);
        // No family is left out, and no other is there.
        let base = |name: &str| {
            ["_bucket", "_sum", "_count"]
                .iter()
                .fold(name.to_owned(), |name, end| name.strip_suffix(end).unwrap_or(&name).to_owned())
        };
        let deadline = tokio::time::Instant::now() + TEST_TIMEOUT;
        let in_metrics = loop {
            let families: BTreeSet<_> = scrape(&rialto).await.iter().map(|(name, ..)| base(name)).collect();
            // The last one to come: an event loop measures its lag a second after the start.
            if families.contains("rialto_event_loop_lag_seconds") {
                break families;
            }
            assert!(tokio::time::Instant::now() < deadline, "the lag of event loops is measured: {families:?}");
            tokio::time::sleep(Duration::from_millis(10)).await;
        };
        let (seen, _) = last_export(&collector, name);
        collector.until("two more exports", |_| last_export(&collector, name).0 > seen + 1).await;
        let exported: BTreeSet<_> = last_export(&collector, name).1.iter().map(prometheus_name).collect();
        assert_eq!(exported, in_metrics);
        drop(session);
        stop(rialto).await;
    }
}

#[tokio::test]
async fn a_stop_exports_the_last_values() {
    let collector = Collector::start().await;
    for (protocol, name) in BOTH {
        let mut telemetry = metrics_to(&collector, protocol, HOUR);
        (telemetry.otlp.timeout, telemetry.otlp.export_timeout) = (HOUR, HOUR);
        let rialto = exporting(telemetry).await;
        call_element(&rialto, None).await;
        assert_eq!(last_export(&collector, name).0, 0);
        stop(rialto).await;
        export_with(&collector, name, "rialto_calls", &[("outcome", "ok")], 1).await;
        assert_eq!(last_export(&collector, name).0, 1);
    }
}

#[tokio::test]
async fn an_export_is_sent_again_where_that_may_help() {
    let mut collector = Collector::start().await;
    for (protocol, name) in BOTH {
        collector.answer(json!({ "status": 503 })).await;
        let refused = collector.requests_of("metrics", 503);
        let mut telemetry = metrics_to(&collector, protocol, Duration::from_secs(2));
        // Long enough for any second try, however busy the machine is.
        (telemetry.otlp.timeout, telemetry.otlp.export_timeout) = (HOUR, HOUR);
        let rialto = exporting(telemetry).await;
        call_element(&rialto, None).await;
        collector.until("the export was refused", |_| collector.requests_of("metrics", 503) > refused).await;
        call_element(&rialto, None).await;
        collector.answer(json!({})).await;
        until("it is taken", || outcomes(&rialto)[0] > 0).await;
        assert_eq!(outcomes(&rialto)[1..], [0, 0]);
        // Sooner or later the call that was made meanwhile is there, too.
        export_with(&collector, name, "rialto_calls", &[("outcome", "ok")], 2).await;
        stop(rialto).await;
    }
}

#[tokio::test]
async fn a_lost_export_is_counted_and_the_next_one_has_everything() {
    let mut collector = Collector::start().await;
    for (protocol, name) in BOTH {
        collector.answer(json!({ "status": 400 })).await;
        let rialto = exporting(metrics_to(&collector, protocol, Duration::from_millis(50))).await;
        call_element(&rialto, None).await;
        until("an export is lost", || outcomes(&rialto)[1] > 0).await;
        collector.answer(json!({ "reject": 1 })).await;
        until("an export is taken in part", || outcomes(&rialto)[2] > 0).await;
        collector.answer(json!({})).await;
        let points = export_with(&collector, name, "rialto_calls", &[("outcome", "ok")], 1).await;
        let lost = point_of(&points, "rialto_metric_exports", &[("outcome", "failed")]).unwrap();
        assert!(lost["value"].as_u64().unwrap() > 0, "{lost}");
        stop(rialto).await;
    }
}

#[tokio::test]
async fn a_collector_that_is_away_disturbs_no_call_and_no_stop() {
    for (protocol, _) in BOTH {
        let away = ReservedPort::new();
        let mut telemetry = Telemetry::default();
        telemetry.otlp.endpoint = Some(format!("http://{away}").parse().unwrap());
        telemetry.otlp.protocol = Some(protocol);
        telemetry.otlp.export_timeout = Duration::from_millis(100);
        telemetry.metrics.interval = Duration::from_millis(10);
        let rialto = exporting(telemetry).await;
        let lost = rialto.inbound.admin.metrics_exporter().clone();
        until("an export is lost", || outcomes(&rialto)[1] > 0).await;
        call_element(&rialto, None).await;
        stop(rialto).await;
        assert_eq!(lost.counters().by_outcome()[0], ("ok", 0));
    }
}

#[tokio::test]
async fn a_reload_turns_exports_on_and_off() {
    let collector = Collector::start().await;
    let folder = TempFolder::new("metrics-reload");
    let path = folder.0.join("rialto.toml");
    let file = |table: &str| format!("listen = \"127.0.0.1:0\"\n[servers.elements]\nbuiltin = \"elements\"\n{table}");
    let endpoint = collector.endpoint(OtlpProtocol::HttpProtobuf);
    let on = format!("[telemetry]\nendpoint = \"{endpoint}\"\nmetrics_interval = \"20ms\"\ntraces = false\n");
    std::fs::write(&path, file("")).unwrap();
    let rialto = Rialto::from_file(&path, |_| {}).await;
    let exporter = rialto.inbound.admin.metrics_exporter().clone();
    call_element(&rialto, None).await;
    assert!(!exporter.is_on());
    std::fs::write(&path, file(&on)).unwrap();
    until("exports are on", || exporter.is_on()).await;
    // What was counted before is exported as well.
    export_with(&collector, "http", "rialto_calls", &[("outcome", "ok")], 1).await;
    std::fs::write(&path, file(&format!("{on}metrics = false\n"))).unwrap();
    until("exports are off", || !exporter.is_on()).await;
    call_element(&rialto, None).await;
    stop(rialto).await;
    let calls = point_of(&last_export(&collector, "http").1, "rialto_calls", &[("outcome", "ok")]).unwrap();
    assert_eq!(calls["value"], 1, "the last call was made when exports were off");
    assert_eq!(collector.requests(200), 0, "no spans");
}

#[tokio::test]
async fn variables_count_more_than_the_file() {
    let collector = Collector::start().await;
    let endpoint = collector.endpoint(OtlpProtocol::Grpc);
    let find = |name: &str| {
        let value = match name {
            "OTEL_EXPORTER_OTLP_METRICS_ENDPOINT" => endpoint.as_str(),
            "OTEL_EXPORTER_OTLP_METRICS_PROTOCOL" => "grpc",
            "OTEL_EXPORTER_OTLP_METRICS_HEADERS" => "x-key=a%20b",
            "OTEL_METRIC_EXPORT_INTERVAL" => "20",
            "OTEL_SERVICE_NAME" => "by-variables",
            _ => return None,
        };
        Some(value.to_owned())
    };
    let mut reader = VariableReader::new(&find);
    let variables = MetricsVariables::read(&mut reader);
    assert_eq!(reader.into_warnings(), Vec::<String>::new());
    let metrics = MetricsExportSettings { variables, interval: HOUR, ..MetricsExportSettings::default() };
    let rialto = exporting(Telemetry { metrics, ..Telemetry::default() }).await;
    assert!(!rialto.inbound.gateway.tracer().is_on(), "the endpoint is that of metrics alone");
    call_element(&rialto, None).await;
    let points = export_with(&collector, "grpc", "rialto_calls", &[("outcome", "ok")], 1).await;
    assert_eq!(points[0]["resource"]["service.name"], "by-variables");
    assert_eq!(points[0]["headers"]["x-key"], "a b");
    stop(rialto).await;
}
