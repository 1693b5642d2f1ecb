//! A collector that is away, slow or refuses: calls are not disturbed, memory is bounded, what is lost is counted.

use std::time::Duration;

use rialto::otlp::{OtlpProtocol, OtlpSettings};
use serde_json::json;

use super::collector::{Collector, Telemetry};
use super::{call_element, dropped, stop, traced};
use crate::harness::until;
use crate::ports::ReservedPort;

const BOTH: [OtlpProtocol; 2] = [OtlpProtocol::HttpProtobuf, OtlpProtocol::Grpc];

#[tokio::test]
async fn a_collector_that_is_away_disturbs_no_call() {
    for protocol in BOTH {
        let away = ReservedPort::new();
        let otlp = OtlpSettings {
            endpoint: Some(format!("http://{away}").parse().unwrap()),
            protocol: Some(protocol),
            export_timeout: Duration::from_millis(100),
            ..OtlpSettings::default()
        };
        let telemetry = Telemetry { otlp, ..Telemetry::default() }.traces(|trace| {
            trace.interval = Duration::from_millis(10);
            (trace.queue_size, trace.batch_size) = (8, 4);
        });
        let rialto = traced(telemetry).await;
        for _ in 0..40 {
            call_element(&rialto, None).await;
        }
        let tracer = rialto.inbound.gateway.tracer().clone();
        // Every span is dropped in the end, for one reason or the other.
        until("all spans are counted", || tracer.counters().dropped().iter().map(|(_, lost)| lost).sum::<u64>() == 80)
            .await;
        assert_eq!(tracer.counters().exported(), 0);
        let counted = dropped(&rialto, "queue_full").await + dropped(&rialto, "export_failed").await;
        assert_eq!(counted, 80);
        stop(rialto).await;
    }
}

#[tokio::test]
async fn a_slow_collector_fills_the_queue_and_no_more() {
    let mut collector = Collector::start().await;
    for protocol in BOTH {
        collector.answer(json!({ "delay": 2000 })).await;
        let small = collector.settings(protocol).traces(|trace| {
            (trace.queue_size, trace.batch_size) = (4, 2);
            // Only a full batch is sent, so the two spans of a call stay together.
            trace.interval = Duration::from_secs(3600);
        });
        let rialto = traced(small).await;
        let seen = collector.requests(200);
        call_element(&rialto, None).await;
        collector.until("the collector has a batch", |_| collector.requests(200) > seen).await;
        for _ in 0..10 {
            call_element(&rialto, None).await;
        }
        // Two spans are being sent, four wait, and the other sixteen are lost.
        assert_eq!(dropped(&rialto, "queue_full").await, 16);
        collector.answer(json!({})).await;
        stop(rialto).await;
    }
}

#[tokio::test]
async fn a_batch_is_sent_again_where_that_may_help() {
    let mut collector = Collector::start().await;
    for (protocol, status) in BOTH.into_iter().flat_map(|protocol| [(protocol, 503), (protocol, 429)]) {
        collector.answer(json!({ "status": status, "retry_after": 0 })).await;
        let (refused, before) = (collector.requests(status), collector.spans().len());
        let rialto = traced(collector.settings(protocol)).await;
        call_element(&rialto, None).await;
        collector.until("the batch was refused", |_| collector.requests(status) > refused).await;
        collector.answer(json!({})).await;
        collector.until("the spans arrive", |_| collector.spans().len() == before + 2).await;
        let tracer = rialto.inbound.gateway.tracer().clone();
        until("they are counted", || tracer.counters().exported() == 2).await;
        assert_eq!(tracer.counters().dropped().iter().map(|(_, lost)| lost).sum::<u64>(), 0);
        stop(rialto).await;
    }
}

#[tokio::test]
async fn a_batch_that_is_refused_for_good_is_dropped_and_counted() {
    let mut collector = Collector::start().await;
    collector.answer(json!({ "status": 400 })).await;
    for protocol in BOTH {
        let before = collector.requests(400);
        let rialto = traced(collector.settings(protocol)).await;
        call_element(&rialto, None).await;
        let tracer = rialto.inbound.gateway.tracer().clone();
        until("the spans are dropped", || tracer.counters().dropped()[1] == ("export_failed", 2)).await;
        assert!((before + 1..=before + 2).contains(&collector.requests(400)), "sent once");
        stop(rialto).await;
    }
}

#[tokio::test]
async fn spans_that_the_collector_rejects_are_counted() {
    let mut collector = Collector::start().await;
    collector.answer(json!({ "reject": 1 })).await;
    for protocol in BOTH {
        let in_twos = collector
            .settings(protocol)
            .traces(|trace| (trace.batch_size, trace.interval) = (2, Duration::from_secs(60)));
        let rialto = traced(in_twos).await;
        call_element(&rialto, None).await;
        let tracer = rialto.inbound.gateway.tracer().clone();
        until("the spans are counted", || tracer.counters().exported() == 1).await;
        assert_eq!(dropped(&rialto, "rejected").await, 1);
        stop(rialto).await;
    }
}
