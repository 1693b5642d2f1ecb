// One call on @modelcontextprotocol/client 2.x with OpenTelemetry: traced2.mjs URL COLLECTOR TOOL ARGUMENTS
//
// The SDK has no instrumentation of its own. A span is made around the call, as one would by hand, and its context is
// put into `_meta` by the propagator of the SDK of OpenTelemetry. PEER_REVISION pins 2026-07-28; without it the client
// uses a handshake. Prints {"trace", "span", "result"}.

import { context, propagation, SpanKind, trace } from '@opentelemetry/api';
import { OTLPTraceExporter } from '@opentelemetry/exporter-trace-otlp-proto';
import { NodeTracerProvider, SimpleSpanProcessor } from '@opentelemetry/sdk-trace-node';
import { Client, StreamableHTTPClientTransport } from '@modelcontextprotocol/client';
import { CLIENT_INFO, wantedRevision } from './scenario.mjs';

const [url, collector, name, given] = process.argv.slice(2);
process.env.OTEL_SERVICE_NAME = 'node-client';
const provider = new NodeTracerProvider({ spanProcessors: [new SimpleSpanProcessor(new OTLPTraceExporter({ url: collector }))] });
provider.register();
const tracer = trace.getTracer('peers');

const negotiation = wantedRevision ? { versionNegotiation: { mode: { pin: wantedRevision } } } : {};
const client = new Client(CLIENT_INFO, { capabilities: { elicitation: { form: {} } }, ...negotiation });
client.setRequestHandler('elicitation/create', () => ({ action: 'accept', content: { confirmed: true, ok: true } }));
await client.connect(new StreamableHTTPClientTransport(new URL(url)));
const result = await tracer.startActiveSpan('agent', async root => {
    const attributes = { 'mcp.method.name': 'tools/call', 'gen_ai.tool.name': name };
    const span = tracer.startSpan(`tools/call ${name}`, { kind: SpanKind.CLIENT, attributes });
    const _meta = {};
    propagation.inject(trace.setSpan(context.active(), span), _meta);
    const answer = await client.callTool({ name, arguments: JSON.parse(given), _meta });
    span.end();
    root.end();
    const { traceId, spanId } = span.spanContext();
    return { trace: traceId, span: spanId, root: root.spanContext().spanId, result: answer };
});
await provider.forceFlush();
await client.close();
await provider.shutdown();
process.stdout.write(`${JSON.stringify(result)}\n`);
