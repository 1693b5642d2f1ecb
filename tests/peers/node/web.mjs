// HTTP helpers of the servers on @modelcontextprotocol/server: a listener, and sessions for the handshake era.

import { randomUUID } from 'node:crypto';
import http from 'node:http';
import { Readable } from 'node:stream';

import { WebStandardStreamableHTTPServerTransport } from '@modelcontextprotocol/server';

const refusal = message => ({ jsonrpc: '2.0', id: null, error: { code: -32001, message } });

// A handler for handshake-era requests. `connect` gets the transport of each new session, created with `options`.
export function inSessions(connect, options = () => ({})) {
    const sessions = new Map();
    return async request => {
        const id = request.headers.get('mcp-session-id');
        if (id !== null) {
            const known = sessions.get(id);
            return known ? known.handleRequest(request) : Response.json(refusal('Session not found'), { status: 404 });
        }
        const transport = new WebStandardStreamableHTTPServerTransport({
            ...options(),
            sessionIdGenerator: randomUUID,
            onsessioninitialized: opened => void sessions.set(opened, transport),
            onsessionclosed: closed => void sessions.delete(closed)
        });
        await connect(transport);
        return transport.handleRequest(request);
    };
}

// Serves /mcp with a fetch-style handler; returns the port.
export async function listen(answer, port) {
    const listener = http.createServer(async (incoming, outgoing) => {
        if (incoming.url !== '/mcp') {
            outgoing.writeHead(404).end();
            return;
        }
        const gone = new AbortController();
        outgoing.on('close', () => gone.abort());
        const bodied = incoming.method === 'POST';
        const request = new Request(`http://${incoming.headers.host}/mcp`, {
            method: incoming.method,
            headers: incoming.headers,
            body: bodied ? Readable.toWeb(incoming) : undefined,
            duplex: 'half',
            signal: gone.signal
        });
        const response = await answer(request);
        outgoing.writeHead(response.status, Object.fromEntries(response.headers));
        outgoing.flushHeaders();
        if (!response.body) {
            outgoing.end();
            return;
        }
        const body = Readable.fromWeb(response.body);
        // Aborts the SDK's work for a disconnected client.
        outgoing.on('close', () => body.destroy());
        body.on('error', () => outgoing.destroy()).pipe(outgoing);
    });
    await new Promise(resolve => listener.listen(port, '127.0.0.1', resolve));
    return listener.address().port;
}
