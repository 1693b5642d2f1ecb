// Numbered calls on @modelcontextprotocol/client 2.x: calls2.mjs URL
//
// PEER_REVISION pins 2026-07-28; without it the client uses a handshake.

import { Client, StreamableHTTPClientTransport } from '@modelcontextprotocol/client';
import { CAPABILITIES, changed, elicit, main, opened, OPTIONS, RESOURCE, updated } from './calls.mjs';
import { CLIENT_INFO, wantedRevision } from './scenario.mjs';

await main(async url => {
    const negotiation = wantedRevision ? { versionNegotiation: { mode: { pin: wantedRevision } } } : {};
    const client = new Client(CLIENT_INFO, { capabilities: CAPABILITIES, ...negotiation });
    client.setRequestHandler('elicitation/create', elicit);
    client.setNotificationHandler('notifications/resources/updated', updated);
    client.setNotificationHandler('notifications/tools/list_changed', changed);
    const transport = new StreamableHTTPClientTransport(new URL(url));
    const opening = async () => {
        await client.connect(transport, OPTIONS);
        if (client.getProtocolEra() !== 'modern') await client.subscribeResource({ uri: RESOURCE }, OPTIONS);
    };
    return opened(client, transport, opening, {
        call: (params, options) => client.callTool(params, options),
        list: () => client.listTools(undefined, OPTIONS)
    });
});
