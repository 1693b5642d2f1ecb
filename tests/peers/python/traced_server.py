"""server2.py with the OpenTelemetry SDK: traced_server.py COLLECTOR ARGUMENTS...

The Python SDK records spans by itself; they are sent to the OTLP/HTTP endpoint COLLECTOR as they end. No argument goes
beyond what server2.py takes.
"""

from __future__ import annotations

import sys

sys.dont_write_bytecode = True  # no __pycache__ in the source tree

import runpy
import urllib.request
from collections.abc import Sequence
from pathlib import Path

from opentelemetry import trace
from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor, SpanExporter, SpanExportResult

collector = sys.argv.pop(1)


class HttpExporter(SpanExporter):
    """Sends the official encoding of spans; the packaged exporter has dependencies that are not published."""

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        body = encode_spans(spans).SerializeToString()
        headers = {"content-type": "application/x-protobuf"}
        with urllib.request.urlopen(urllib.request.Request(collector, body, headers), timeout=10):
            return SpanExportResult.SUCCESS


provider = TracerProvider(resource=Resource.create({"service.name": "python-server"}))
provider.add_span_processor(SimpleSpanProcessor(HttpExporter()))
trace.set_tracer_provider(provider)
script = Path(__file__).with_name("server2.py")
sys.argv[0] = str(script)
runpy.run_path(str(script), run_name="__main__")
