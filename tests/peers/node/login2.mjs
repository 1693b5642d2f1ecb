// Client that logs in by itself, on @modelcontextprotocol/client 2.x: login2.mjs URL USER CLIENT_ID|- TOOL...
// With PEER_REVISION=2026-07-28 that revision is pinned; else it uses a handshake.

import { Client, StreamableHTTPClientTransport, UnauthorizedError } from '@modelcontextprotocol/client';
import { main } from './person.mjs';
import { CLIENT_INFO, isModern, wantedRevision } from './scenario.mjs';

const negotiation = isModern(wantedRevision) ? { versionNegotiation: { mode: { pin: wantedRevision } } } : {};

await main({
    open: (url, authProvider) => ({
        client: new Client(CLIENT_INFO, negotiation),
        transport: new StreamableHTTPClientTransport(new URL(url), { authProvider })
    }),
    isLogin: error => error instanceof UnauthorizedError,
    finish: (transport, callback) => transport.finishAuth(callback)
});
