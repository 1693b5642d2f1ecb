// Asked in the middle of calls, on @modelcontextprotocol/client 2.x: ask2.mjs URL...
//
// PEER_REVISION pins 2026-07-28; without it the client opens with a handshake.

import { Client, StreamableHTTPClientTransport } from '@modelcontextprotocol/client';
import { answers, CAPABILITIES, main } from './ask.mjs';
import { CLIENT_INFO, wantedRevision } from './scenario.mjs';

await main(async url => {
    const pinned = wantedRevision ? { versionNegotiation: { mode: { pin: wantedRevision } } } : {};
    const client = new Client(CLIENT_INFO, { capabilities: CAPABILITIES, ...pinned });
    for (const [method, answer] of Object.entries(answers)) {
        client.setRequestHandler(method, async request => answer(request.params));
    }
    await client.connect(new StreamableHTTPClientTransport(new URL(url)));
    return { call: params => client.callTool(params), close: () => client.close() };
});
