// Client that logs in by itself, on @modelcontextprotocol/sdk 1.x: login1.mjs URL USER CLIENT_ID|- TOOL...

import { UnauthorizedError } from '@modelcontextprotocol/sdk/client/auth.js';
import { Client } from '@modelcontextprotocol/sdk/client/index.js';
import { StreamableHTTPClientTransport } from '@modelcontextprotocol/sdk/client/streamableHttp.js';
import { main } from './person.mjs';
import { CLIENT_INFO } from './scenario.mjs';

await main({
    open: (url, authProvider) => {
        // With a refresh token this SDK would refresh where more scopes are needed, and get no more.
        authProvider.saveTokens = ({ refresh_token, ...tokens }) => (authProvider.given = tokens);
        const transport = new StreamableHTTPClientTransport(new URL(url), { authProvider });
        return { client: new Client(CLIENT_INFO), transport };
    },
    isLogin: error => error instanceof UnauthorizedError,
    finish: (transport, callback) => transport.finishAuth(callback.get('code'))
});
