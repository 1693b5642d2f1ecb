// A server on @modelcontextprotocol/server 2.x whose two eras differ: legs.mjs stdio | http PORT.
//
// Both eras have the tool `do`, each with a property and an answer of its own, and one tool that the other lacks. Only
// the handshake leg, which has sessions over HTTP, offers prompts, completions and logging; only the per-request leg
// offers resources.

import { McpServer, completable, createMcpHandler, inputRequired, isLegacyRequest } from '@modelcontextprotocol/server';
import { serveStdio } from '@modelcontextprotocol/server/stdio';
import { z } from 'zod';

import { inSessions, listen } from './web.mjs';

const FORM = { type: 'object', properties: { name: { type: 'string' } }, required: ['name'] };
const text = value => ({ content: [{ type: 'text', text: JSON.stringify(value) }] });

// A server whose tool `do` reports which leg was called, after it has asked for a name.
function leg(name, capabilities) {
    const server = new McpServer(
        { name: `${name} leg`, version: '2' },
        { capabilities: { tools: {}, ...capabilities }, instructions: `the ${name} leg` }
    );
    const inputSchema = z.object({ [name]: z.string() });
    server.registerTool('do', { description: `Of the ${name} leg`, inputSchema }, (given, context) => {
        const answer = context.mcpReq.inputResponses?.question;
        if (answer) return text({ leg: name, given, answer: answer.content });
        const question = inputRequired.elicit({ message: `${name}: who?`, requestedSchema: FORM });
        return inputRequired({ inputRequests: { question } });
    });
    server.registerTool(`${name}Only`, { inputSchema: z.object({}) }, () => text({ leg: name }));
    return server;
}

function handshake() {
    const server = leg('old', { logging: {}, prompts: {}, completions: {} });
    const word = completable(z.string(), () => ['older', 'oldest']);
    server.registerPrompt('greet', { argsSchema: z.object({ word }) }, given => ({
        messages: [{ role: 'user', content: { type: 'text', text: given.word } }]
    }));
    return server;
}

function perRequest() {
    const server = leg('new', { resources: {} });
    server.registerResource('news', 'test://news', {}, uri => ({ contents: [{ uri: uri.href, text: 'news' }] }));
    return server;
}

async function overHttp(port) {
    const inSession = inSessions(transport => handshake().connect(transport));
    const modern = createMcpHandler(perRequest, { legacy: 'reject' });
    const answer = async request => ((await isLegacyRequest(request)) ? inSession(request) : modern.fetch(request));
    console.log(`listening on ${await listen(answer, port)}`);
}

const [transport, port] = process.argv.slice(2);
if (transport === 'stdio') {
    serveStdio(({ era }) => (era === 'modern' ? perRequest() : handshake()), { legacy: 'serve' });
} else if (transport === 'http') {
    await overHttp(Number(port));
} else {
    console.error('usage: legs.mjs stdio | http PORT');
    process.exit(2);
}
