// Shared by calls1.mjs and calls2.mjs: numbered calls read from stdin, outcomes written to stdout.
//
// Each input line is a call, {"number", "name", "arguments"}, or {"list": true}. Each gets one output line with the
// result text or the error, and the progress received. Messages outside of calls have their own lines:
// {"updated": NUMBER}, {"changed": true} after a tool list change, and {"renewed": WHY} when an unusable client was
// replaced. End of input ends the process.

import { createInterface } from 'node:readline';

export const RESOURCE = 'res://one';
export const CAPABILITIES = { elicitation: { form: {} } };
export const OPTIONS = { timeout: 1000 * Number(process.env.PEER_TIMEOUT_SECONDS ?? 8) };

const PAUSE_MS = 100;
// Consecutive failed calls after which a client is replaced.
const MOST_FAILURES = 2;

export const say = line => process.stdout.write(`${JSON.stringify(line)}\n`);
export const elicit = ({ params }) => ({ action: 'accept', content: { number: Number(params.message) } });
export const updated = ({ params }) => say({ updated: params._meta?.number ?? null });
export const changed = () => say({ changed: true });

/** Opens a client. Its handlers are silenced once connecting fails or the client is closed. */
export async function opened(client, transport, opening, peer) {
    peer.close = async () => {
        // If DELETE is refused, the test ends the session.
        await transport.terminateSession?.().catch(() => {});
        await client.close();
    };
    listenFor(client, peer);
    try {
        await opening();
    } catch (error) {
        await peer.close().catch(() => {});
        throw error;
    }
    return peer;
}

/** Detects that the SDK gave up reconnecting its GET stream, which is permanent and only logged. */
function listenFor(client, peer) {
    const deaf = why => {
        peer.deaf = why;
        say({ deaf: why });
    };
    let first;
    client.onerror = ({ message }) => {
        if (message.startsWith('Maximum reconnection attempts')) deaf(message);
        // The first GET stream is tried once, later ones several times. One SDK generation prefixes the message.
        if (message.includes('Failed to open SSE stream') && !message.startsWith('Failed to reconnect')) first = setTimeout(deaf, PAUSE_MS, message);
        if (message.startsWith('Failed to reconnect SSE stream')) clearTimeout(first);
    };
}

const words = error => `${error?.code ?? ''} ${error?.message ?? error} ${error?.cause ?? ''}`.trim();
const pause = ms => new Promise(resolve => setTimeout(resolve, ms));

export async function main(connect) {
    const [url] = process.argv.slice(2);
    const open = async () => {
        for (;;) {
            try {
                return await connect(url);
            } catch (error) {
                say({ closed: words(error) });
                await pause(PAUSE_MS);
            }
        }
    };
    let client = await open();
    let failures = 0;
    const renew = async why => {
        say({ renewed: why });
        await client.close().catch(() => {});
        client = await open();
        failures = 0;
    };
    for await (const line of createInterface({ input: process.stdin })) {
        const { number, list, name, arguments: args } = JSON.parse(line);
        const progress = [];
        if (client.deaf) await renew(client.deaf);
        try {
            if (list) {
                const { tools } = await client.list();
                say({ tools: tools.map(tool => tool.name) });
            } else {
                const onprogress = told => progress.push(told.progress);
                const result = await client.call({ name, arguments: args }, { ...OPTIONS, onprogress });
                say({ number, answered: result.content[0].text, progress });
            }
            failures = 0;
        } catch (error) {
            failures += 1;
            say(list ? { tools: null } : { number, failed: words(error), progress });
            await pause(PAUSE_MS);
            if (failures >= MOST_FAILURES) await renew(words(error));
        }
    }
    await client.close().catch(() => {});
    process.exit(0);
}
