// Client that answers server requests during calls, on @modelcontextprotocol/sdk 1.x: ask1.mjs URL...

import { Client } from '@modelcontextprotocol/sdk/client/index.js';
import { StreamableHTTPClientTransport } from '@modelcontextprotocol/sdk/client/streamableHttp.js';
import * as types from '@modelcontextprotocol/sdk/types.js';
import { answers, CAPABILITIES, main } from './ask.mjs';
import { CLIENT_INFO } from './scenario.mjs';

const SCHEMAS = {
    'sampling/createMessage': types.CreateMessageRequestSchema,
    'elicitation/create': types.ElicitRequestSchema,
    'roots/list': types.ListRootsRequestSchema
};

await main(async url => {
    const client = new Client(CLIENT_INFO, { capabilities: CAPABILITIES });
    for (const [method, answer] of Object.entries(answers)) {
        client.setRequestHandler(SCHEMAS[method], async request => answer(request.params));
    }
    const transport = new StreamableHTTPClientTransport(new URL(url));
    await client.connect(transport);
    return { revision: () => transport.protocolVersion, call: params => client.callTool(params), close: () => client.close() };
});
