// Client that answers server requests during calls, on @modelcontextprotocol/client 2.x: ask2.mjs URL...
//
// PEER_REVISION pins 2026-07-28, or makes it probe (`auto`); without it the client uses a handshake.

import { Client, StreamableHTTPClientTransport } from '@modelcontextprotocol/client';
import { answers, CAPABILITIES, main } from './ask.mjs';
import { CLIENT_INFO, wantedRevision } from './scenario.mjs';

await main(async url => {
    const mode = wantedRevision === 'auto' ? 'auto' : { pin: wantedRevision };
    const negotiation = wantedRevision ? { versionNegotiation: { mode } } : {};
    const client = new Client(CLIENT_INFO, { capabilities: CAPABILITIES, ...negotiation });
    for (const [method, answer] of Object.entries(answers)) {
        client.setRequestHandler(method, async request => answer(request.params));
    }
    await client.connect(new StreamableHTTPClientTransport(new URL(url)));
    return {
        revision: () => client.getNegotiatedProtocolVersion(),
        call: params => client.callTool(params),
        close: () => client.close()
    };
});
