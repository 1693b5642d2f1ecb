"""A receiver of OTLP over HTTP and gRPC, on the official messages: prints each span and data point as a line of JSON.

The first line is `listening on HTTP_PORT GRPC_PORT`. Each line of JSON on stdin changes how requests are answered:
{"status": 503, "retry_after": 1, "delay": 2, "reject": 3}; what is left out is as at the start. The change is
confirmed by the line {"set": ...}.
"""

from __future__ import annotations

import sys

sys.dont_write_bytecode = True  # no __pycache__ in the source tree

import gzip
import json
import threading
import time
from concurrent import futures
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import grpc
from opentelemetry.proto.collector.metrics.v1 import metrics_service_pb2, metrics_service_pb2_grpc
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2, trace_service_pb2_grpc

GRPC_STATUSES = {429: grpc.StatusCode.RESOURCE_EXHAUSTED, 503: grpc.StatusCode.UNAVAILABLE, 400: grpc.StatusCode.INVALID_ARGUMENT}

manner: dict[str, Any] = {}
printing = threading.Lock()


def say(line: Any) -> None:
    with printing:
        print(line if isinstance(line, str) else json.dumps(line), flush=True)


def attributes(pairs: Any) -> dict[str, Any]:
    return {pair.key: getattr(pair.value, pair.value.WhichOneof("value")) for pair in pairs}


def report_spans(request: Any, protocol: str, headers: dict[str, str]) -> None:
    """Prints the spans of a request."""
    for resource_spans in request.resource_spans:
        resource = attributes(resource_spans.resource.attributes)
        for scope_spans in resource_spans.scope_spans:
            for span in scope_spans.spans:
                say(
                    {
                        "protocol": protocol,
                        "headers": headers,
                        "resource": resource,
                        "scope": scope_spans.scope.name,
                        "trace": span.trace_id.hex(),
                        "span": span.span_id.hex(),
                        "parent": span.parent_span_id.hex(),
                        "state": span.trace_state,
                        "name": span.name,
                        "kind": type(span).SpanKind.Name(span.kind).removeprefix("SPAN_KIND_"),
                        "start": span.start_time_unix_nano,
                        "end": span.end_time_unix_nano,
                        "flags": span.flags,
                        "attributes": attributes(span.attributes),
                        "links": [{"trace": link.trace_id.hex(), "span": link.span_id.hex()} for link in span.links],
                        "failed": span.status.code == 2,
                        "message": span.status.message,
                    }
                )


def values(kind: str, point: Any) -> dict[str, Any]:
    """The value of a data point."""
    if kind != "histogram":
        which = point.WhichOneof("value")
        return {"type": which, "value": getattr(point, which)}
    return {
        "count": point.count,
        "sum": repr(point.sum),  # as a text: not every parser of JSON is exact to the last bit
        "buckets": list(point.bucket_counts),
        "bounds": list(point.explicit_bounds),
    }


def report_metrics(request: Any, protocol: str, headers: dict[str, str]) -> None:
    """Prints the data points of a request, and then their number."""
    points = 0
    for resource_metrics in request.resource_metrics:
        resource = attributes(resource_metrics.resource.attributes)
        for scope_metrics in resource_metrics.scope_metrics:
            for metric in scope_metrics.metrics:
                kind = metric.WhichOneof("data")
                data = getattr(metric, kind)
                for point in data.data_points:
                    points += 1
                    say(
                        {
                            "protocol": protocol,
                            "headers": headers,
                            "resource": resource,
                            "scope": scope_metrics.scope.name,
                            "metric": metric.name,
                            "description": metric.description,
                            "unit": metric.unit,
                            "kind": kind,
                            # 1 is delta, 2 cumulative.
                            "temporality": 0 if kind == "gauge" else data.aggregation_temporality,
                            "monotonic": kind == "sum" and data.is_monotonic,
                            "attributes": attributes(point.attributes),
                            "start": point.start_time_unix_nano,
                            "time": point.time_unix_nano,
                        }
                        | values(kind, point)
                    )
    say({"points": points, "protocol": protocol})


class Signal:
    """What there is of a signal: its messages, how a request is printed, and what a response counts."""

    def __init__(self, name: str, request: Any, response: Any, report: Any, rejected: str) -> None:
        self.name, self.request, self.response, self.report, self.rejected = name, request, response, report, rejected

    def answer(self) -> Any:
        response = self.response()
        if manner.get("reject"):
            setattr(response.partial_success, self.rejected, manner["reject"])
            response.partial_success.error_message = "told to"
        return response


TRACES = Signal(
    "traces",
    trace_service_pb2.ExportTraceServiceRequest,
    trace_service_pb2.ExportTraceServiceResponse,
    report_spans,
    "rejected_spans",
)
METRICS = Signal(
    "metrics",
    metrics_service_pb2.ExportMetricsServiceRequest,
    metrics_service_pb2.ExportMetricsServiceResponse,
    report_metrics,
    "rejected_data_points",
)
PATHS = {"/v1/traces": TRACES, "/v1/metrics": METRICS}


class Http(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        body = self.body()
        if self.headers["content-encoding"] == "gzip":
            body = gzip.decompress(body)
        signal = PATHS.get(self.path) if self.headers["content-type"] == "application/x-protobuf" else None
        status = manner.get("status", 200) if signal else 404
        say({"request": "http", "signal": signal and signal.name, "status": status})
        time.sleep(manner.get("delay", 0))
        response = b""
        if signal and status == 200:
            headers = {name.lower(): value for name, value in self.headers.items()}
            signal.report(signal.request.FromString(body), "http", headers)
            response = signal.answer().SerializeToString()
        self.send_response(status)
        self.send_header("content-type", "application/x-protobuf")
        self.send_header("content-length", str(len(response)))
        if "retry_after" in manner:
            self.send_header("retry-after", str(manner["retry_after"]))
        self.end_headers()
        self.wfile.write(response)

    def body(self) -> bytes:
        """The whole body; the TypeScript exporter sends it in chunks."""
        if "content-length" in self.headers:
            return self.rfile.read(int(self.headers["content-length"]))
        body = b""
        while size := int(self.rfile.readline(), 16):
            body += self.rfile.read(size)
            self.rfile.readline()
        self.rfile.readline()
        return body

    def log_message(self, *_: Any) -> None:
        pass


def export(signal: Signal, request: Any, context: Any) -> Any:
    """Answers a request over gRPC."""
    status = manner.get("status", 200)
    say({"request": "grpc", "signal": signal.name, "status": status})
    time.sleep(manner.get("delay", 0))
    if status != 200:
        context.abort(GRPC_STATUSES[status], "told to")
    headers = {key: value for key, value in context.invocation_metadata() if isinstance(value, str)}
    signal.report(request, "grpc", headers)
    return signal.answer()


class GrpcTraces(trace_service_pb2_grpc.TraceServiceServicer):
    def Export(self, request: Any, context: Any) -> Any:
        return export(TRACES, request, context)


class GrpcMetrics(metrics_service_pb2_grpc.MetricsServiceServicer):
    def Export(self, request: Any, context: Any) -> Any:
        return export(METRICS, request, context)


def main() -> None:
    http = ThreadingHTTPServer(("127.0.0.1", 0), Http)
    http.daemon_threads = True
    threading.Thread(target=http.serve_forever, daemon=True).start()
    server = grpc.server(futures.ThreadPoolExecutor(max_workers=4))
    trace_service_pb2_grpc.add_TraceServiceServicer_to_server(GrpcTraces(), server)
    metrics_service_pb2_grpc.add_MetricsServiceServicer_to_server(GrpcMetrics(), server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    say(f"listening on {http.server_address[1]} {port}")
    for line in sys.stdin:
        manner.clear()
        manner.update(json.loads(line))
        say({"set": manner})


main()
