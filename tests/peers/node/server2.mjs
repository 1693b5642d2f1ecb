// A server on @modelcontextprotocol/server 2.x: server2.mjs stdio | http PORT, then both | modern | handshake.
//
// `both` (default) serves both eras at one URL, `modern` 2026-07-28 only, `handshake` the earlier revisions only. In the
// handshake era HTTP has sessions. The SDK has no HTTP+SSE.

import { setTimeout as sleep } from 'node:timers/promises';

import {
    McpServer,
    ResourceTemplate,
    completable,
    createMcpHandler,
    inputRequired,
    isLegacyRequest
} from '@modelcontextprotocol/server';
import { StdioServerTransport, serveStdio } from '@modelcontextprotocol/server/stdio';
import { z } from 'zod';

import { inSessions, listen } from './web.mjs';

const CLOCK = 'test://clock';
const CLOCK_MS = 300;
const NAMES = ['Ada', 'Alan', 'Barbara'];
const FORM = {
    type: 'object',
    properties: { name: { type: 'string' }, sure: { type: 'boolean' } },
    required: ['name', 'sure']
};

let running = 0;
// Notification functions of the clock subscribers.
const watchers = new Set();
setInterval(() => watchers.forEach(tell => tell()), CLOCK_MS).unref();

const text = value => ({ content: [{ type: 'text', text: value }] });

// Requests input with an input_required result; for handshake clients the SDK turns it into a server request.
function asking(context, question, answered) {
    const answer = context.mcpReq.inputResponses?.question;
    return answer ? text(answered(answer)) : inputRequired({ inputRequests: { question } });
}

async function count({ to, delayMs }, context) {
    const { signal, notify, _meta } = context.mcpReq;
    running += 1;
    try {
        for (let step = 1; step <= to; step += 1) {
            await sleep(delayMs, undefined, { signal });
            if (_meta?.progressToken !== undefined) {
                const params = { progressToken: _meta.progressToken, progress: step, total: to };
                await notify({ method: 'notifications/progress', params });
            }
        }
    } finally {
        running -= 1;
    }
    return text(`counted to ${to}`);
}

function build() {
    const capabilities = { logging: {}, resources: { subscribe: true }, tools: {}, prompts: {}, completions: {} };
    const server = new McpServer({ name: 'server2', version: '2' }, { capabilities, instructions: 'For tests.' });
    const tool = (name, inputSchema, run) => server.registerTool(name, { description: `The tool ${name}`, inputSchema: z.object(inputSchema) }, run);

    tool('echo', { message: z.string() }, async ({ message }, context) => {
        await context.mcpReq.log('info', `echo: ${message}`);
        return text(message);
    });
    tool('count', { to: z.number().int(), delayMs: z.number().int() }, count);
    tool('confirm', {}, (_, context) =>
        asking(
            context,
            inputRequired.elicit({ message: 'Who are you?', requestedSchema: FORM }),
            ({ action, content }) => JSON.stringify({ action, content })
        )
    );
    tool('think', { prompt: z.string() }, ({ prompt }, context) => {
        const messages = [{ role: 'user', content: { type: 'text', text: prompt } }];
        return asking(context, inputRequired.createMessage({ messages, maxTokens: 100 }), ({ content }) => content.text);
    });
    tool('where', {}, (_, context) =>
        asking(context, inputRequired.listRoots(), ({ roots }) => JSON.stringify(roots.map(root => root.uri)))
    );
    tool('fail', {}, () => ({ ...text('on purpose'), isError: true }));
    tool('crash', {}, () => process.exit(3));
    const outputSchema = z.object({ running: z.number().int() });
    server.registerTool('structured', { description: 'Gives structured content', inputSchema: z.object({}), outputSchema }, () => {
        const structuredContent = { running };
        return { ...text(JSON.stringify(structuredContent)), structuredContent };
    });

    const contents = (uri, value) => ({ contents: [{ uri: uri.href, text: value }] });
    server.registerResource('static', 'test://static', {}, uri => contents(uri, 'always the same'));
    server.registerResource('clock', CLOCK, {}, uri => contents(uri, 'tick'));
    const template = new ResourceTemplate('test://item/{id}', { list: undefined });
    server.registerResource('item', template, {}, (uri, { id }) => contents(uri, `item ${id}`));

    const name = completable(z.string(), value => NAMES.filter(candidate => candidate.startsWith(value)));
    server.registerPrompt('greet', { description: 'Greets somebody', argsSchema: z.object({ name }) }, args => ({
        messages: [{ role: 'user', content: { type: 'text', text: `Hello, ${args.name}` } }]
    }));

    const tell = () => server.server.sendResourceUpdated({ uri: CLOCK }).catch(() => watchers.delete(tell));
    server.server.setRequestHandler('resources/subscribe', ({ params }) => {
        if (params.uri === CLOCK) watchers.add(tell);
        return {};
    });
    server.server.setRequestHandler('resources/unsubscribe', () => {
        watchers.delete(tell);
        return {};
    });
    server.server.onclose = () => watchers.delete(tell);
    return { server, tell };
}

async function overStdio(eras) {
    if (eras === 'handshake') {
        await build().server.connect(new StdioServerTransport());
        return;
    }
    const factory = ({ era }) => {
        const { server, tell } = build();
        // In the per-request era the SDK sends updates only to matching listen streams.
        if (era === 'modern') watchers.add(tell);
        return server;
    };
    serveStdio(factory, { legacy: eras === 'modern' ? 'reject' : 'serve' });
}

async function overHttp(eras, port) {
    const inSession = inSessions(transport => build().server.connect(transport));
    const modern = createMcpHandler(() => build().server, { legacy: 'reject' });
    watchers.add(() => modern.notify.resourceUpdated(CLOCK));
    const answer = async request => {
        if (eras === 'handshake') return inSession(request);
        if (eras === 'both' && (await isLegacyRequest(request))) return inSession(request);
        return modern.fetch(request);
    };
    console.log(`listening on ${await listen(answer, port)}`);
}

const [transport, ...rest] = process.argv.slice(2);
const port = transport === 'http' ? Number(rest.shift()) : 0;
const eras = rest.shift() ?? 'both';
if (!['stdio', 'http'].includes(transport) || !['both', 'modern', 'handshake'].includes(eras) || Number.isNaN(port)) {
    console.error('usage: server2.mjs stdio | http PORT, then both | modern | handshake');
    process.exit(2);
}
await (transport === 'http' ? overHttp(eras, port) : overStdio(eras));
