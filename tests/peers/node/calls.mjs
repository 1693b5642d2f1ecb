// What calls1.mjs and calls2.mjs share: calls that are numbered by whoever reads and writes this process's lines.
//
// Each line that comes in is a call, {"number", "name", "arguments"}, or {"list": true}; each brings one line back, with
// the text that a call was answered with, or the words with which it failed, and the progress that was told of. What
// belongs to no call has lines of its own: {"updated": NUMBER}, {"changed": true} when there are other tools, and
// {"renewed": WHY} when a client was of no use any more and another was opened. The end of the lines is the end.

import { createInterface } from 'node:readline';

export const RESOURCE = 'res://one';
export const CAPABILITIES = { elicitation: { form: {} } };
export const OPTIONS = { timeout: 8_000 };

const PAUSE_MS = 100;
// A client whose calls fail this often in a row is of no use any more.
const MOST_FAILURES = 2;

export const say = line => process.stdout.write(`${JSON.stringify(line)}\n`);
export const elicit = ({ params }) => ({ action: 'accept', content: { number: Number(params.message) } });
export const updated = ({ params }) => say({ updated: params._meta?.number ?? null });
export const changed = () => say({ changed: true });

/** Opens a client; one that fails on the way hears nothing more, and neither does one that is closed later. */
export async function opened(client, transport, opening, peer) {
    peer.close = async () => {
        // Where that is refused, the session is left to whoever runs this.
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

/** Notes when an SDK gives up listening: it does so for good, and says it nowhere else. */
function listenFor(client, peer) {
    const deaf = why => {
        peer.deaf = why;
        say({ deaf: why });
    };
    let first;
    client.onerror = ({ message }) => {
        if (message.startsWith('Maximum reconnection attempts')) deaf(message);
        // The first stream is asked for once, those after it several times. One generation puts its name before that.
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
