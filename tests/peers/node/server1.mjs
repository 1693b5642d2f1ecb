// A server on @modelcontextprotocol/sdk 1.x: server1.mjs stdio | http PORT, then nothing or aside.
//
// Handshake era only. With `aside` it sends requests and notifications on the GET stream, like servers that do not name
// the related call; otherwise on the stream of the call.

import { randomUUID } from 'node:crypto';
import http from 'node:http';
import { setTimeout as sleep } from 'node:timers/promises';

import { completable } from '@modelcontextprotocol/sdk/server/completable.js';
import { McpServer, ResourceTemplate } from '@modelcontextprotocol/sdk/server/mcp.js';
import { StdioServerTransport } from '@modelcontextprotocol/sdk/server/stdio.js';
import { StreamableHTTPServerTransport } from '@modelcontextprotocol/sdk/server/streamableHttp.js';
import * as types from '@modelcontextprotocol/sdk/types.js';
import { z } from 'zod';

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

async function count({ to, delayMs }, extra) {
    running += 1;
    try {
        for (let step = 1; step <= to; step += 1) {
            await sleep(delayMs, undefined, { signal: extra.signal });
            const progressToken = extra._meta?.progressToken;
            if (progressToken !== undefined) {
                const params = { progressToken, progress: step, total: to };
                await extra.sendNotification({ method: 'notifications/progress', params });
            }
        }
    } finally {
        running -= 1;
    }
    return text(`counted to ${to}`);
}

function build(aside) {
    const capabilities = { logging: {}, resources: { subscribe: true }, tools: {}, prompts: {}, completions: {} };
    const server = new McpServer({ name: 'server1', version: '1' }, { capabilities, instructions: 'For tests.' });
    const tool = (name, inputSchema, run) =>
        server.registerTool(name, { description: `The tool ${name}`, inputSchema }, run);
    const ask = (extra, request, schema) =>
        aside ? server.server.request(request, schema) : extra.sendRequest(request, schema);

    tool('echo', { message: z.string() }, async ({ message }, extra) => {
        const params = { level: 'info', data: `echo: ${message}` };
        await extra.sendNotification({ method: 'notifications/message', params });
        return text(message);
    });
    tool('count', { to: z.number().int(), delayMs: z.number().int() }, count);
    tool('confirm', {}, async (_, extra) => {
        const params = { message: 'Who are you?', requestedSchema: FORM };
        const answer = await ask(extra, { method: 'elicitation/create', params }, types.ElicitResultSchema);
        return text(JSON.stringify({ action: answer.action, content: answer.content }));
    });
    tool('think', { prompt: z.string() }, async ({ prompt }, extra) => {
        const params = { messages: [{ role: 'user', content: { type: 'text', text: prompt } }], maxTokens: 100 };
        const answer = await ask(extra, { method: 'sampling/createMessage', params }, types.CreateMessageResultSchema);
        return text(answer.content.text);
    });
    tool('where', {}, async (_, extra) => {
        const answer = await ask(extra, { method: 'roots/list' }, types.ListRootsResultSchema);
        return text(JSON.stringify(answer.roots.map(root => root.uri)));
    });
    tool('fail', {}, () => ({ ...text('on purpose'), isError: true }));
    tool('crash', {}, () => process.exit(3));
    const outputSchema = { running: z.number().int() };
    server.registerTool('structured', { description: 'Gives structured content', inputSchema: {}, outputSchema }, () => {
        const structuredContent = { running };
        return { ...text(JSON.stringify(structuredContent)), structuredContent };
    });

    const contents = (uri, value) => ({ contents: [{ uri: uri.href, text: value }] });
    server.registerResource('static', 'test://static', {}, uri => contents(uri, 'always the same'));
    server.registerResource('clock', CLOCK, {}, uri => contents(uri, 'tick'));
    const template = new ResourceTemplate('test://item/{id}', { list: undefined });
    server.registerResource('item', template, {}, (uri, { id }) => contents(uri, `item ${id}`));

    const name = completable(z.string(), value => NAMES.filter(candidate => candidate.startsWith(value)));
    server.registerPrompt('greet', { description: 'Greets somebody', argsSchema: { name } }, args => ({
        messages: [{ role: 'user', content: { type: 'text', text: `Hello, ${args.name}` } }]
    }));

    const tell = () => server.server.sendResourceUpdated({ uri: CLOCK }).catch(() => watchers.delete(tell));
    server.server.setRequestHandler(types.SubscribeRequestSchema, ({ params }) => {
        if (params.uri === CLOCK) watchers.add(tell);
        return {};
    });
    server.server.setRequestHandler(types.UnsubscribeRequestSchema, () => {
        watchers.delete(tell);
        return {};
    });
    server.server.onclose = () => watchers.delete(tell);
    return server;
}

async function overHttp(aside, port) {
    const sessions = new Map();
    const listener = http.createServer(async (request, response) => {
        if (request.url !== '/mcp') {
            response.writeHead(404).end();
            return;
        }
        const id = request.headers['mcp-session-id'];
        if (id !== undefined && !sessions.has(id)) {
            const error = { code: -32001, message: 'Session not found' };
            response.writeHead(404, { 'content-type': 'application/json' });
            response.end(JSON.stringify({ jsonrpc: '2.0', id: null, error }));
            return;
        }
        let transport = sessions.get(id);
        if (!transport) {
            transport = new StreamableHTTPServerTransport({
                sessionIdGenerator: randomUUID,
                onsessioninitialized: opened => void sessions.set(opened, transport),
                onsessionclosed: closed => void sessions.delete(closed)
            });
            await build(aside).connect(transport);
        }
        await transport.handleRequest(request, response);
    });
    await new Promise(resolve => listener.listen(port, '127.0.0.1', resolve));
    console.log(`listening on ${listener.address().port}`);
}

const [transport, ...rest] = process.argv.slice(2);
const port = transport === 'http' ? Number(rest.shift()) : 0;
const manner = rest.shift();
if (!['stdio', 'http'].includes(transport) || ![undefined, 'aside'].includes(manner) || Number.isNaN(port)) {
    console.error('usage: server1.mjs stdio | http PORT, then nothing or aside');
    process.exit(2);
}
const aside = manner === 'aside';
await (transport === 'http' ? overHttp(aside, port) : build(aside).connect(new StdioServerTransport()));
