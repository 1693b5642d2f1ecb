// Numbered calls on @modelcontextprotocol/sdk 1.x: calls1.mjs URL

import { Client } from '@modelcontextprotocol/sdk/client/index.js';
import { StreamableHTTPClientTransport } from '@modelcontextprotocol/sdk/client/streamableHttp.js';
import * as types from '@modelcontextprotocol/sdk/types.js';
import { CAPABILITIES, changed, elicit, main, opened, OPTIONS, RESOURCE, updated } from './calls.mjs';
import { CLIENT_INFO } from './scenario.mjs';

await main(async url => {
    const client = new Client(CLIENT_INFO, { capabilities: CAPABILITIES });
    client.setRequestHandler(types.ElicitRequestSchema, elicit);
    client.setNotificationHandler(types.ResourceUpdatedNotificationSchema, updated);
    client.setNotificationHandler(types.ToolListChangedNotificationSchema, changed);
    const transport = new StreamableHTTPClientTransport(new URL(url));
    const opening = async () => {
        await client.connect(transport, OPTIONS);
        await client.subscribeResource({ uri: RESOURCE }, OPTIONS);
    };
    return opened(client, transport, opening, {
        call: (params, options) => client.callTool(params, undefined, options),
        list: () => client.listTools(undefined, OPTIONS)
    });
});
