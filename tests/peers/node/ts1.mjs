// Peer on @modelcontextprotocol/sdk 1.x: the handshake revisions, over Streamable HTTP, HTTP+SSE and stdio.

import { Client } from '@modelcontextprotocol/sdk/client/index.js';
import { SSEClientTransport } from '@modelcontextprotocol/sdk/client/sse.js';
import { StdioClientTransport } from '@modelcontextprotocol/sdk/client/stdio.js';
import { StreamableHTTPClientTransport } from '@modelcontextprotocol/sdk/client/streamableHttp.js';
import * as types from '@modelcontextprotocol/sdk/types.js';
import {
    answers,
    CAPABILITIES,
    CLIENT_INFO,
    main,
    open,
    packageVersion,
    REQUEST_OPTIONS,
    wantedRevision
} from './scenario.mjs';

const NAME = '@modelcontextprotocol/sdk';
const TRANSPORTS = { Http: StreamableHTTPClientTransport, Sse: SSEClientTransport, Stdio: StdioClientTransport };

/** This SDK always proposes its newest revision; another is written into the outgoing `initialize`. */
function askFor(revision, transport) {
    const send = transport.send.bind(transport);
    transport.send = (message, options) => {
        if (message.method !== 'initialize') return send(message, options);
        return send({ ...message, params: { ...message.params, protocolVersion: revision } }, options);
    };
}

async function connect({ kind, target, logs, updates, follow, complain }) {
    const transport = open(TRANSPORTS, kind, target);
    if (wantedRevision && wantedRevision !== 'auto') askFor(wantedRevision, transport);
    // The client does not expose the negotiated revision; a handler set before `connect` sees the response first.
    let revision;
    transport.onmessage = message => {
        revision ??= message.result?.protocolVersion;
    };

    const client = new Client(CLIENT_INFO, { capabilities: CAPABILITIES });
    client.setRequestHandler(types.ElicitRequestSchema, answers.elicit);
    client.setRequestHandler(types.CreateMessageRequestSchema, answers.sample);
    client.onerror = complain;
    client.setNotificationHandler(types.LoggingMessageNotificationSchema, ({ params }) => logs.push(params));
    client.setNotificationHandler(types.ResourceUpdatedNotificationSchema, ({ params }) => updates.push(params.uri));
    follow(transport);
    await client.connect(transport, REQUEST_OPTIONS);

    return {
        client,
        revision,
        call: (params, options) => client.callTool(params, undefined, options),
        async setLevel(level) {
            await client.setLoggingLevel(level, REQUEST_OPTIONS);
            return {};
        },
        async watch(uri) {
            await client.subscribeResource({ uri }, REQUEST_OPTIONS);
            return () => client.unsubscribeResource({ uri }, REQUEST_OPTIONS);
        },
        async close() {
            await transport.terminateSession?.();
            await client.close();
        }
    };
}

await main({ sdk: NAME, version: packageVersion(NAME), connect });
