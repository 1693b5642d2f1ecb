// MCP servers on standard input and output for tests of the console: servers.mjs tickets | many | odd.
//
// `tickets` asks in the middle of a call. What `odd` says is markup, script, and characters that cannot be seen, wherever a
// server has a say: names, descriptions, results, errors, questions, standard error.

import { createInterface } from 'node:readline';

export const MARKUP = '<img src=x onerror="alert(1)"><script>alert(2)</script>';
/** Tools of `many`. */
const MANY = 1000;
const BIDI = '\u202egnp.exe\u200b';
const ODD = `${MARKUP}${BIDI}`;
const TICKET = {
    type: 'object',
    properties: { ticket: { type: 'string', description: 'Number of the ticket' } },
    required: ['ticket']
};

const text = value => ({ content: [{ type: 'text', text: value }] });
const isKnown = ticket => /^OPS-\d+$/u.test(ticket);

const PERSONS = {
    tickets: {
        info: { name: 'tickets-mcp', version: '1.4' },
        tools: [
            {
                name: 'close_ticket',
                description: 'Closes a ticket. Asks first if subtasks are open.',
                inputSchema: TICKET,
                annotations: { destructiveHint: true }
            },
            {
                name: 'show_ticket',
                description: 'Shows a ticket.',
                inputSchema: TICKET,
                annotations: { readOnlyHint: true }
            }
        ],
        async call(name, { ticket }, ask) {
            if (!isKnown(ticket)) return { ...text(`There is no ticket ${ticket}.`), isError: true };
            if (name === 'show_ticket')
                return {
                    ...text(`${ticket}: the lamp on the third floor is out. Open, 2 subtasks.`),
                    structuredContent: { ticket, state: 'open', subtasks: 2 }
                };
            const requestedSchema = {
                type: 'object',
                properties: { confirm: { type: 'boolean', title: 'Close it anyway' } },
                required: ['confirm']
            };
            const answer = await ask('elicitation/create', {
                message: `Close ${ticket} although 2 subtasks are open?`,
                requestedSchema
            });
            const isClosed = answer?.action === 'accept' && answer.content?.confirm === true;
            return {
                ...text(isClosed ? `${ticket} is closed.` : `${ticket} stays open.`),
                structuredContent: { ticket, state: isClosed ? 'closed' : 'open' }
            };
        }
    },
    many: {
        info: { name: 'many-mcp', version: '1.0' },
        tools: Array.from({ length: MANY }, (_, n) => ({
            name: `tool_${n}`,
            description: `Does what tool ${n} of ${MANY} does.`,
            inputSchema: { type: 'object', properties: { text: { type: 'string' }, count: { type: 'integer' } } }
        })),
        call: async name => text(`${name} was called.`)
    },
    odd: {
        info: { name: `odd ${ODD}`, version: MARKUP },
        tools: [
            {
                name: 'markup',
                title: ODD,
                description: `Says ${ODD}`,
                inputSchema: { type: 'object', properties: { [MARKUP]: { type: 'string', description: ODD } } }
            },
            { name: 'error', description: ODD, inputSchema: { type: 'object' } },
            { name: 'asks', description: ODD, inputSchema: { type: 'object' } },
            { name: MARKUP, description: 'Its name is markup.', inputSchema: { type: 'object' } }
        ],
        async call(name, args, ask) {
            console.error(`called ${name} ${ODD} \u001b[31mred`);
            if (name === 'error') throw Object.assign(new Error(`Refused ${ODD}`), { code: -32050 });
            if (name === 'asks')
                return text(
                    JSON.stringify(
                        await ask('elicitation/create', {
                            message: `Who? ${ODD}`,
                            requestedSchema: { type: 'object', properties: { name: { type: 'string', title: ODD } } }
                        })
                    )
                );
            return { ...text(`Result ${ODD}`), structuredContent: { [MARKUP]: ODD }, isError: name === MARKUP };
        }
    }
};

const person = PERSONS[process.argv[2]];
const send = message => process.stdout.write(`${JSON.stringify({ jsonrpc: '2.0', ...message })}\n`);
const waiting = new Map();
let asked = 0;

/** Asks the client, and waits for its answer. */
function ask(method, params) {
    const id = `ask-${++asked}`;
    send({ id, method, params });
    return new Promise(resolve => waiting.set(id, resolve));
}

async function answer({ id, method, params }) {
    switch (method) {
        case 'initialize':
            return { protocolVersion: '2025-06-18', capabilities: { tools: {} }, serverInfo: person.info };
        case 'ping':
            return {};
        case 'tools/list':
            return { tools: person.tools };
        case 'tools/call':
            return person.call(params.name, params.arguments ?? {}, ask);
        default:
            throw Object.assign(new Error(`${method} is not known`), { code: -32601 });
    }
}

console.error(`${person.info.name} listens`);
for await (const line of createInterface({ input: process.stdin })) {
    const message = JSON.parse(line);
    if (message.method === undefined) {
        waiting.get(message.id)?.(message.result);
    } else if (message.id !== undefined) {
        answer(message).then(
            result => send({ id: message.id, result }),
            error => send({ id: message.id, error: { code: error.code ?? -32603, message: error.message } })
        );
    }
}
