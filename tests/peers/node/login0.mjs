// Client that logs in by itself, on the last @modelcontextprotocol/sdk of 2025-03-26, which looks for the metadata of the
// authorization server at the origin of the server: login0.mjs URL USER CLIENT_ID|- TOOL...

import { UnauthorizedError } from 'mcp-sdk-2025-03-26/client/auth.js';
import { Client } from 'mcp-sdk-2025-03-26/client/index.js';
import { StreamableHTTPClientTransport } from 'mcp-sdk-2025-03-26/client/streamableHttp.js';
import { main } from './person.mjs';
import { CLIENT_INFO } from './scenario.mjs';

await main({
    open: (url, authProvider) => ({
        client: new Client(CLIENT_INFO),
        transport: new StreamableHTTPClientTransport(new URL(url), { authProvider })
    }),
    isLogin: error => error instanceof UnauthorizedError,
    finish: (transport, callback) => transport.finishAuth(callback.get('code'))
});
