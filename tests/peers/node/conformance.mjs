// A server for the official conformance suite on @modelcontextprotocol/server 2.x:
// conformance.mjs stdio | http, then both | modern | handshake.
//
// `both` (default) serves both eras at one URL, `modern` 2026-07-28 only, `handshake` the earlier revisions only. It has
// the tools, resources and prompts that the suite calls; examples/conformance_server is the same on the Rust SDK. The
// tasks extension is not implemented.

import { setTimeout as sleep } from 'node:timers/promises';

import {
    McpServer,
    ResourceTemplate,
    completable,
    createMcpHandler,
    createRequestStateCodec,
    fromJsonSchema,
    hostHeaderValidationResponse,
    inputRequired,
    isLegacyRequest,
    localhostAllowedHostnames,
    localhostAllowedOrigins,
    originValidationResponse
} from '@modelcontextprotocol/server';
import { StdioServerTransport, serveStdio } from '@modelcontextprotocol/server/stdio';
import { z } from 'zod';

import { inSessions, listen } from './web.mjs';

// One grey pixel, and four samples of silence.
const IMAGE = 'iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAAAAAA6fptVAAAACklEQVR4nGNoAAAAggCBd81ytgAAAABJRU5ErkJggg==';
const AUDIO = 'UklGRigAAABXQVZFZm10IBAAAAABAAEAQB8AAEAfAAABAAgAZGF0YQQAAACAgICA';
// Delay between two notifications of a call, so that they arrive in separate chunks.
const PAUSE_MS = 50;
const WORDS = ['paragraph', 'parallel', 'path'];

const states = createRequestStateCodec({ key: 'nothing here is worth to be kept from anybody' });

const said = text => ({ content: [{ type: 'text', text }] });
const image = { type: 'image', data: IMAGE, mimeType: 'image/png' };
const resource = (uri, mimeType, text) => ({ type: 'resource', resource: { uri, mimeType, text } });
const user = content => ({ role: 'user', content });

const form = (message, properties, required) =>
    inputRequired.elicit({ message, requestedSchema: { type: 'object', properties, required } });
const nameForm = () => form('Who is there?', { name: { type: 'string' } }, ['name']);
const sample = text =>
    inputRequired.createMessage({ messages: [user({ type: 'text', text })], maxTokens: 100 });

// A JSON Schema 2020-12 with keywords that must be preserved.
const RICH_SCHEMA = {
    $schema: 'https://json-schema.org/draft/2020-12/schema',
    type: 'object',
    $defs: { address: { $anchor: 'place', type: 'object', properties: { town: { type: 'string' } } } },
    properties: {
        home: { $ref: '#/$defs/address' },
        by: { enum: ['letter', 'wire'] },
        stamp: { type: 'string' },
        key: { type: 'string' }
    },
    allOf: [{ anyOf: [{ required: ['stamp'] }, { required: ['key'] }] }],
    if: { properties: { by: { const: 'letter' } } },
    then: { required: ['stamp'] },
    else: { required: ['key'] },
    additionalProperties: false
};

function formWithDefaults() {
    return form('Anything to change?', {
        name: { type: 'string', default: 'John Doe' },
        age: { type: 'integer', default: 30 },
        score: { type: 'number', default: 95.5 },
        status: { type: 'string', enum: ['active', 'inactive', 'pending'], default: 'active' },
        verified: { type: 'boolean', default: true }
    });
}

function formWithChoices() {
    const plain = ['option1', 'option2', 'option3'];
    const titled = ['One', 'Two', 'Three'].map((title, index) => ({ const: `value${index + 1}`, title }));
    return form('Which ones?', {
        untitledSingle: { type: 'string', enum: plain },
        titledSingle: { type: 'string', oneOf: titled },
        legacyEnum: { type: 'string', enum: ['opt1', 'opt2'], enumNames: ['First', 'Second'] },
        untitledMulti: { type: 'array', items: { type: 'string', enum: plain } },
        titledMulti: { type: 'array', items: { anyOf: titled } }
    });
}

// Requests input with an input_required result; for handshake clients the SDK turns it into server requests during the
// call. Returns the responses once complete, otherwise the result to return.
function ask(context, questions) {
    const given = context.mcpReq.inputResponses ?? {};
    const isAnswer = key => typeof given[key] === 'object' && given[key] !== null;
    const open = Object.fromEntries(Object.entries(questions).filter(([key]) => !isAnswer(key)));
    if (Object.keys(open).length > 0) return { asks: inputRequired({ inputRequests: open }) };
    return { answers: Object.fromEntries(Object.keys(questions).map(key => [key, given[key]])) };
}

function askAndTell(context, questions) {
    const { asks, answers } = ask(context, questions);
    return asks ?? said(`answers: ${JSON.stringify(answers)}`);
}

// One input round per step, linked by request state.
async function askInSteps(context, steps) {
    const state = context.mcpReq.requestState();
    let at = state?.step ?? 0;
    if (state !== undefined && ask(context, steps[at]).answers) at += 1;
    if (at === steps.length) return said('state-ok');
    return inputRequired({ inputRequests: steps[at], requestState: await states.mint({ step: at }) });
}

async function logThrice(context) {
    for (const text of ['begun', 'half way', 'done']) {
        await context.mcpReq.log('info', text, 'conformance');
        await sleep(PAUSE_MS);
    }
}

async function progress(context) {
    const { _meta, notify } = context.mcpReq;
    for (const step of [0, 50, 100]) {
        if (_meta?.progressToken !== undefined) {
            const params = { progressToken: _meta.progressToken, progress: step, total: 100 };
            await notify({ method: 'notifications/progress', params });
        }
        await sleep(PAUSE_MS);
    }
}

// `changed` has two functions that send list changes; without it the server notifies its own connection.
function build(changed) {
    const listChanged = true;
    const capabilities = {
        logging: {},
        completions: {},
        tools: { listChanged },
        prompts: { listChanged },
        resources: { subscribe: true }
    };
    // Distinct TTLs, long enough not to expire during a run.
    const cacheHints = {
        'tools/list': { ttlMs: 100_000, cacheScope: 'public' },
        'resources/list': { ttlMs: 200_000, cacheScope: 'public' },
        'resources/templates/list': { ttlMs: 300_000, cacheScope: 'public' },
        'resources/read': { ttlMs: 400_000, cacheScope: 'private' },
        'prompts/list': { ttlMs: 500_000, cacheScope: 'public' }
    };
    const options = { capabilities, cacheHints, requestState: { verify: states.verify } };
    const server = new McpServer({ name: 'conformance-typescript', version: '1' }, options);
    const clientCan = context =>
        context.mcpReq.envelope?.['io.modelcontextprotocol/clientCapabilities'] ??
        server.server.getClientCapabilities() ??
        {};
    const tellTools = changed?.tools ?? (() => server.sendToolListChanged());
    const tellPrompts = changed?.prompts ?? (() => server.sendPromptListChanged());

    addTools(server, tellTools, tellPrompts);
    addQuestions(server, clientCan);
    addResources(server);
    addPrompts(server);
    return server;
}

// Adds a tool. `texts` are its required string arguments.
function tool(server, name, description, run, texts = []) {
    const properties = Object.fromEntries(texts.map(text => [text, z.string()]));
    server.registerTool(name, { description, inputSchema: z.object(properties) }, run);
}

// The tool without arguments comes first, because the suite calls the first one.
function addTools(server, tellTools, tellPrompts) {
    tool(server, 'test_simple_text', 'Gives text', () => said('plain text'));
    tool(server, 'test_image_content', 'Gives an image', () => ({ content: [image] }));
    const audio = { type: 'audio', data: AUDIO, mimeType: 'audio/wav' };
    tool(server, 'test_audio_content', 'Gives a sound', () => ({ content: [audio] }));
    const embedded = resource('test://embedded-resource', 'text/plain', 'embedded');
    tool(server, 'test_embedded_resource', 'Gives a resource', () => ({ content: [embedded] }));
    const mixed = resource('test://mixed-content-resource', 'application/json', '{"number":1}');
    tool(server, 'test_multiple_content_types', 'Gives text, an image and a resource', () => ({
        content: [{ type: 'text', text: 'three kinds' }, image, mixed]
    }));
    for (const name of ['test_tool_with_logging', 'test_logging_tool']) {
        tool(server, name, 'Logs three times', async (_, context) => {
            await logThrice(context);
            return said(name);
        });
    }
    tool(server, 'test_error_handling', 'Fails', () => ({ ...said('on purpose'), isError: true }));
    tool(server, 'test_tool_with_progress', 'Reports progress three times', async (_, context) => {
        await progress(context);
        return said('test_tool_with_progress');
    });
    tool(server, 'test_reconnection', 'Closes its stream before it answers', async (_, context) => {
        context.http?.closeSSE?.();
        await sleep(PAUSE_MS);
        return said('test_reconnection');
    });
    tool(server, 'test_trigger_tool_change', 'Says that the tools have changed', async () => {
        await tellTools();
        return said('test_trigger_tool_change');
    });
    tool(server, 'test_trigger_prompt_change', 'Says that the prompts have changed', async () => {
        await tellPrompts();
        return said('test_trigger_prompt_change');
    });
    const raw = (name, description, schema, run) =>
        server.registerTool(name, { description, inputSchema: fromJsonSchema(schema) }, run);
    raw('json_schema_2020_12_tool', 'Has a schema with everything', RICH_SCHEMA, () => said('json_schema_2020_12_tool'));
    const value = { type: 'string', 'x-mcp-header': 'Value' };
    const header = { type: 'object', properties: { value }, required: ['value'] };
    raw('test_custom_header', 'Gives what its header says', header, arguments_ => said(arguments_.value));
}

function addQuestions(server, clientCan) {
    const asking = (name, description, questions, texts) =>
        tool(server, name, description, (given, context) => askAndTell(context, questions(given, context)), texts);
    const inSteps = (name, description, steps) =>
        tool(server, name, description, (_, context) => askInSteps(context, steps()));
    const prefix = 'test_input_required_result_';

    asking('test_sampling', 'Asks for a sample', ({ prompt }) => ({ question: sample(prompt) }), ['prompt']);
    const fields = { username: { type: 'string' }, email: { type: 'string' } };
    const userForm = ({ message }) => ({ question: form(message, fields, ['username', 'email']) });
    asking('test_elicitation', 'Asks for a form', userForm, ['message']);
    asking('test_elicitation_sep1034_defaults', 'Asks for a form with defaults', () => ({
        question: formWithDefaults()
    }));
    asking('test_elicitation_sep1330_enums', 'Asks for a form with choices', () => ({ question: formWithChoices() }));
    asking('test_streaming_elicitation', 'Asks for a form, on a stream', () => ({ question: nameForm() }));
    // The SDK turns exceptions into error results, also when the client cannot sample.
    asking('test_missing_capability', 'Needs a client that can sample', () => ({ question: sample('Say anything.') }));
    asking(`${prefix}elicitation`, 'Asks for a name', () => ({ user_name: nameForm() }));
    asking(`${prefix}sampling`, 'Asks for a capital', () => ({ capital_question: sample('Name a capital.') }));
    asking(`${prefix}list_roots`, 'Asks for the roots', () => ({ client_roots: inputRequired.listRoots() }));
    asking(`${prefix}capabilities`, 'Asks for what the client can do', (_, context) => {
        const can = clientCan(context);
        return {
            ...(can.elicitation && { name: nameForm() }),
            ...(can.sampling && { thought: sample('Say something.') }),
            ...(can.roots && { roots: inputRequired.listRoots() })
        };
    });
    const confirm = () => [{ confirm: form('Is that right?', { ok: { type: 'boolean' } }, ['ok']) }];
    inSteps(`${prefix}request_state`, 'Asks, and keeps a state', confirm);
    inSteps(`${prefix}tampered_state`, 'Asks, and keeps an eye on its state', confirm);
    inSteps(`${prefix}multiple_inputs`, 'Asks three things at once', () => [
        { user_name: nameForm(), greeting: sample('Greet.'), client_roots: inputRequired.listRoots() }
    ]);
    inSteps(`${prefix}multi_round`, 'Asks twice', () => [
        { step1: nameForm() },
        { step2: form('Which color?', { color: { type: 'string' } }, ['color']) }
    ]);
}

function addResources(server) {
    const text = (name, uri, value) => {
        const about = { description: 'Text', mimeType: 'text/plain' };
        const contents = [{ uri, mimeType: 'text/plain', text: value }];
        server.registerResource(name, uri, about, () => ({ contents }));
    };
    text('text', 'test://static-text', 'always the same');
    const binary = { description: 'An image', mimeType: 'image/png' };
    server.registerResource('binary', 'test://static-binary', binary, uri => ({
        contents: [{ uri: uri.href, mimeType: 'image/png', blob: IMAGE }]
    }));
    text('watched', 'test://watched-resource', 'watched');
    const template = new ResourceTemplate('test://template/{id}/data', { list: undefined });
    const about = { description: 'Says which one it is', mimeType: 'application/json' };
    server.registerResource('template', template, about, (uri, { id }) => ({
        contents: [{ uri: uri.href, mimeType: 'application/json', text: JSON.stringify({ id }) }]
    }));
    // The resource never changes, so subscriptions are not recorded.
    server.server.setRequestHandler('resources/subscribe', () => ({}));
    server.server.setRequestHandler('resources/unsubscribe', () => ({}));
}

function addPrompts(server) {
    const text = value => user({ type: 'text', text: value });
    const prompt = (name, description, run, argsSchema) =>
        server.registerPrompt(name, { description, ...(argsSchema && { argsSchema: z.object(argsSchema) }) }, run);

    prompt('test_simple_prompt', 'Says one thing', () => ({ messages: [text('one thing')] }));
    const arg1 = completable(z.string(), value => WORDS.filter(word => word.startsWith(value)));
    prompt(
        'test_prompt_with_arguments',
        'Says what it is given',
        given => ({ messages: [text(`${given.arg1} and ${given.arg2}`)] }),
        { arg1, arg2: z.string() }
    );
    prompt(
        'test_prompt_with_embedded_resource',
        'Shows a resource',
        ({ resourceUri }) => ({
            messages: [user(resource(resourceUri, 'text/plain', 'embedded')), text('See above.')]
        }),
        { resourceUri: z.string() }
    );
    prompt('test_prompt_with_image', 'Shows an image', () => ({ messages: [user(image), text('See above.')] }));
    const about = () => form('What is it about?', { context: { type: 'string' } }, ['context']);
    prompt('test_input_required_result_prompt', 'Asks what it is about', context => {
        const { asks, answers } = ask(context, { user_context: about() });
        return asks ?? { messages: [text(JSON.stringify(answers))] };
    });
}

// Event store of one session, for resumption.
function eventStore() {
    const events = [];
    return {
        async storeEvent(stream, message) {
            events.push({ stream, message });
            return String(events.length);
        },
        async getStreamIdForEventId(id) {
            return events[id - 1]?.stream;
        },
        async replayEventsAfter(last, { send }) {
            const { stream } = events[last - 1];
            for (let index = Number(last); index < events.length; index += 1) {
                const event = events[index];
                if (event.stream === stream) await send(String(index + 1), event.message);
            }
            return stream;
        }
    };
}

async function overStdio(eras) {
    if (eras === 'handshake') {
        await build().connect(new StdioServerTransport());
        return;
    }
    serveStdio(() => build(), { legacy: eras === 'modern' ? 'reject' : 'serve' });
}

async function overHttp(eras) {
    const options = () => ({ eventStore: eventStore(), retryInterval: 100 });
    const inSession = inSessions(transport => build().connect(transport), options);
    // A server instance lives for one request, so the handler tracks listeners.
    const changed = { tools: () => modern.notify.toolsChanged(), prompts: () => modern.notify.promptsChanged() };
    const modern = createMcpHandler(() => build(changed), { legacy: 'reject' });
    const answer = async request => {
        const rejected =
            hostHeaderValidationResponse(request, localhostAllowedHostnames()) ??
            originValidationResponse(request, localhostAllowedOrigins());
        if (rejected) return rejected;
        if (eras === 'handshake') return inSession(request);
        if (eras === 'both' && (await isLegacyRequest(request))) return inSession(request);
        return modern.fetch(request);
    };
    console.log(`listening on http://127.0.0.1:${await listen(answer, 0)}/mcp`);
}

const [transport, eras = 'both'] = process.argv.slice(2);
if (!['stdio', 'http'].includes(transport) || !['both', 'modern', 'handshake'].includes(eras)) {
    console.error('usage: conformance.mjs stdio | http, then both | modern | handshake');
    process.exit(2);
}
await (transport === 'http' ? overHttp(eras) : overStdio(eras));
