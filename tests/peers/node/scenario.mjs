// The scenario of the TypeScript peers and its report. The two SDK generations differ in how a client is created and in
// a few calls; ts1.mjs and ts2.mjs hide that behind the `peer` object that `connect` returns.

import { readFileSync, writeSync } from 'node:fs';

const WATCHDOG_MS = 60_000;
const STEP_MS = 15_000;
const REQUEST_MS = 10_000;
const CANCEL_MS = 2_000;
const UPDATE_MS = 10_000;
const LOG_MS = 1_000;
// Error code of the 2.x SDK for methods that the negotiated revision lacks.
const UNSUPPORTED = 'METHOD_NOT_SUPPORTED_BY_PROTOCOL_VERSION';
const SPOTLIGHT = 'elements://spotlight';

export const CLIENT_INFO = { name: 'rialto-peer', version: '1.0.0' };
export const REQUEST_OPTIONS = { timeout: REQUEST_MS };

/** The requested revision, or `auto` to probe; undefined for the SDK default. */
export const wantedRevision = process.env.PEER_REVISION || undefined;

/** A plan to run instead of the scenario: see `carryOut`. */
const plan = process.env.PEER_PLAN && JSON.parse(process.env.PEER_PLAN);

/** Client capabilities and the answers to server requests. */
export const CAPABILITIES = { elicitation: { form: {} }, sampling: {} };
export const answers = {
    elicit: () => ({ action: 'accept', content: { name: 'Ada', sure: true } }),
    sample: ({ params }) => {
        const content = [params.messages[0].content].flat()[0];
        return { role: 'assistant', model: 'none', content: { type: 'text', text: `thoughts on ${content.text}` } };
    }
};

export const isModern = revision => revision >= '2026-07-28';

/** The version of a package, as installed beside this file. */
export function packageVersion(name) {
    return JSON.parse(readFileSync(new URL(`node_modules/${name}/package.json`, import.meta.url), 'utf8')).version;
}

/** Creates a transport of this kind from the SDK's classes. A spawned server inherits the environment. */
export function open({ Http, Sse, Stdio }, kind, [first, ...rest]) {
    switch (kind) {
        case 'http':
            return new Http(new URL(first));
        case 'sse':
            return new Sse(new URL(first));
        case 'stdio':
            return new Stdio({ command: first, args: rest, env: process.env });
    }
}

/** Received notifications, with a way to wait for the first. */
export class Inbox {
    items = [];
    #waiting = [];

    push(item) {
        this.items.push(item);
        for (const wake of this.#waiting.splice(0)) wake();
    }

    /** Resolves at the first item, or after `ms` without one. */
    async first(ms) {
        if (this.items.length > 0) return;
        let timer;
        await new Promise(resolve => {
            this.#waiting.push(resolve);
            timer = setTimeout(resolve, ms);
        });
        clearTimeout(timer);
    }
}

/**
 * Runs the scenario and ends the process.
 *
 * `connect({ kind, target, logs, updates, follow, complain })` shows its transport to `follow`, tells `complain` of
 * whatever the SDK reports outside a call, and returns `{ client, revision, call, setLevel, watch, close }`.
 */
export async function main({ sdk, version, connect }) {
    const [kind, ...target] = process.argv.slice(2);
    if (!['http', 'sse', 'stdio'].includes(kind) || target.length === 0) {
        console.error(`usage: ${process.argv[1]} http|sse URL  or  ${process.argv[1]} stdio COMMAND [ARGUMENT...]`);
        process.exit(2);
    }

    const report = { sdk, version, complaints: [] };
    let child;
    const finish = code => {
        writeSync(1, `${JSON.stringify(report)}\n`);
        if (code !== 0) end(child);
        process.exit(code);
    };
    setTimeout(() => {
        report.timeout = true;
        finish(1);
    }, WATCHDOG_MS);

    // A transport drops its child when connecting fails, so the child is tracked here for clean-up.
    const follow = transport => {
        const start = transport.start.bind(transport);
        transport.start = async () => {
            await start();
            child = transport.pid;
        };
    };

    let closing = false;
    const complain = error => {
        console.error(error);
        // Closing aborts open requests, which the SDKs report as errors.
        if (!closing) report.complaints.push(describe(error));
    };
    // An unhandled rejection inside an SDK must not lose the report.
    process.on('unhandledRejection', complain);

    const logs = new Inbox();
    const updates = new Inbox();
    try {
        const peer = await connect({ kind, target, logs, updates, follow, complain });
        const { client } = peer;
        report.revision = peer.revision;
        report.server = client.getServerVersion() ?? null;
        report.capabilities = client.getServerCapabilities() ?? null;
        report.instructions = client.getInstructions() ?? null;
        await (plan ? carryOut(peer, report) : play(peer, report, logs, updates));
        closing = true;
        await step(report, 'closed', async () => {
            await peer.close();
            return true;
        });
    } catch (error) {
        report.connection = { failed: describe(error) };
        finish(1);
    }
    finish(0);
}

async function play(peer, report, logs, updates) {
    const { client } = peer;
    const tool = async (name, args, options) => {
        const result = await peer.call({ name, arguments: args }, { ...REQUEST_OPTIONS, ...options });
        return {
            text: firstText(result.content),
            structured: result.structuredContent ?? null,
            isError: result.isError ?? false
        };
    };
    const read = async uri => {
        const { contents } = await client.readResource({ uri }, REQUEST_OPTIONS);
        return { text: contents[0]?.text ?? null };
    };

    await step(report, 'tools', () => names(c => client.listTools(c, REQUEST_OPTIONS), 'tools', 'name'));
    await step(report, 'call', () => tool('getElement', { name: 'H' }));
    await step(report, 'position', () => tool('getElementByPosition', { position: 26 }));
    await step(report, 'unknown', () => tool('getElement', { name: 'Unobtainium' }));
    await step(report, 'protocolError', () => refusal(tool('noSuchTool', {})));

    const seen = [];
    await step(report, 'surveyText', async () => {
        const onprogress = ({ progress }) => seen.push(progress);
        return (await tool('surveyElements', { count: 5, delayMs: 20 }, { onprogress })).text;
    });
    report.progress = seen;
    await step(report, 'cancelled', () => cancelled(tool));

    await step(report, 'logs', async () => {
        const meta = await peer.setLevel('debug');
        logs.items.length = 0;
        await peer.call({ name: 'getElement', arguments: { name: 'H' }, ...meta }, REQUEST_OPTIONS);
        // In the handshake era a notification may use another stream and arrive after the response.
        await logs.first(LOG_MS);
        await delay(50);
        return logs.items.map(({ level, data, logger }) => ({ level, data, logger: logger ?? null }));
    });

    await step(report, 'resources', () => names(c => client.listResources(c, REQUEST_OPTIONS), 'resources', 'uri'));
    await step(report, 'templates', () =>
        names(c => client.listResourceTemplates(c, REQUEST_OPTIONS), 'resourceTemplates', 'uriTemplate')
    );
    await step(report, 'read', () => read('elements://symbol/Fe'));
    await step(report, 'resourceError', () => refusal(read('elements://symbol/Nope')));

    await step(report, 'prompts', () => names(c => client.listPrompts(c, REQUEST_OPTIONS), 'prompts', 'name'));
    await step(report, 'prompt', async () => {
        const params = { name: 'describeElement', arguments: { name: 'Fe' } };
        const { messages } = await client.getPrompt(params, REQUEST_OPTIONS);
        return messages[0]?.content.text ?? null;
    });
    await step(report, 'completion', async () => {
        const ref = { type: 'ref/prompt', name: 'describeElement' };
        const answer = await client.complete({ ref, argument: { name: 'name', value: 'Hy' } }, REQUEST_OPTIONS);
        return answer.completion.values;
    });

    await step(report, 'updated', async () => {
        updates.items.length = 0;
        const stop = await peer.watch(SPOTLIGHT);
        await updates.first(UPDATE_MS);
        const uris = [...updates.items];
        await stop();
        return uris;
    });
    await step(report, 'ping', async () => {
        await client.ping(REQUEST_OPTIONS);
        return true;
    });
    await step(report, 'unicode', () => tool('getElement', { name: '氢' }));
}

/** Lists everything, then calls, reads and gets what the plan names: pairs of a name and arguments, or URIs. */
async function carryOut(peer, report) {
    const { client } = peer;
    const each = async (key, run) => {
        report[key] = {};
        for (const [name, args] of plan[key]) await step(report[key], name, () => run(name, args));
    };
    await step(report, 'tools', () => names(c => client.listTools(c, REQUEST_OPTIONS), 'tools', 'name'));
    await step(report, 'resources', () => names(c => client.listResources(c, REQUEST_OPTIONS), 'resources', 'uri'));
    await step(report, 'prompts', () => names(c => client.listPrompts(c, REQUEST_OPTIONS), 'prompts', 'name'));
    await each('calls', async (name, args) => {
        const progress = [];
        const onprogress = notice => progress.push(notice.progress);
        const { content, isError = false } = await peer.call({ name, arguments: args }, { ...REQUEST_OPTIONS, onprogress });
        return { text: firstText(content), isError, progress };
    });
    await each('reads', async uri => (await client.readResource({ uri }, REQUEST_OPTIONS)).contents[0].text);
    await each('gets', async (name, args) => {
        const { messages } = await client.getPrompt({ name, arguments: args }, REQUEST_OPTIONS);
        return messages[0].content.text;
    });
}

async function step(report, key, run) {
    try {
        report[key] = await within(STEP_MS, run());
    } catch (error) {
        report[key] = error.code === UNSUPPORTED ? 'unsupported' : { failed: describe(error) };
    }
}

/** True if a long call, cancelled at its first progress notification, ends at once without a response. */
async function cancelled(tool) {
    const abort = new AbortController();
    let noticed;
    const notice = new Promise(resolve => (noticed = resolve));
    const survey = tool('surveyElements', { count: 118, delayMs: 200 }, { onprogress: noticed, signal: abort.signal });
    const outcome = survey.then(
        () => 'answered',
        () => 'ended'
    );
    const premature = survey.then(() => {
        throw new Error('the survey was answered before its first progress notice');
    });
    premature.catch(() => {});
    await within(5_000, Promise.race([notice, premature]));
    abort.abort('seen enough');
    return (await within(CANCEL_MS, outcome)) === 'ended';
}

/** The error that a request must end with. */
async function refusal(request) {
    let answer;
    try {
        answer = await request;
    } catch (error) {
        if (Number.isInteger(error.code)) return { code: error.code, message: error.message };
        throw error;
    }
    throw new Error(`answered: ${JSON.stringify(answer)}`);
}

/** One field of each entry of a list, over all its pages. */
async function names(list, key, field) {
    const found = [];
    let cursor;
    do {
        const page = await list(cursor === undefined ? undefined : { cursor });
        found.push(...page[key].map(entry => entry[field]));
        cursor = page.nextCursor;
    } while (cursor !== undefined);
    return found;
}

function firstText(content) {
    return content.find(block => block.type === 'text')?.text ?? null;
}

function end(pid) {
    try {
        if (pid) process.kill(pid);
    } catch {
        // Already exited.
    }
}

function delay(ms) {
    return new Promise(resolve => setTimeout(resolve, ms));
}

async function within(ms, promise) {
    let timer;
    const late = new Promise((_, reject) => {
        timer = setTimeout(() => reject(new Error(`nothing within ${ms} ms`)), ms);
    });
    try {
        return await Promise.race([promise, late]);
    } finally {
        clearTimeout(timer);
    }
}

function describe(error) {
    const cause = error.cause ? ` (${error.cause.message ?? error.cause})` : '';
    return `${error.name}: ${error.message}${cause}`;
}
