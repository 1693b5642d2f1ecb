// Peer on @modelcontextprotocol/client 2.x. Without PEER_REVISION it uses a handshake, the SDK default; `auto`
// probes first, a handshake revision is proposed, and 2026-07-28 is pinned.

import {
    Client,
    LOG_LEVEL_META_KEY,
    SSEClientTransport,
    StreamableHTTPClientTransport,
    SUPPORTED_PROTOCOL_VERSIONS
} from '@modelcontextprotocol/client';
import { StdioClientTransport } from '@modelcontextprotocol/client/stdio';
import {
    answers,
    CAPABILITIES,
    CLIENT_INFO,
    isModern,
    main,
    open,
    packageVersion,
    REQUEST_OPTIONS,
    wantedRevision
} from './scenario.mjs';

const NAME = '@modelcontextprotocol/client';
const TRANSPORTS = { Http: StreamableHTTPClientTransport, Sse: SSEClientTransport, Stdio: StdioClientTransport };

function negotiation() {
    if (wantedRevision === undefined) return {};
    if (wantedRevision === 'auto') return { versionNegotiation: { mode: 'auto' } };
    if (isModern(wantedRevision)) return { versionNegotiation: { mode: { pin: wantedRevision } } };
    // The client proposes the first handshake revision of the list.
    const others = SUPPORTED_PROTOCOL_VERSIONS.filter(revision => revision !== wantedRevision);
    return { supportedProtocolVersions: [wantedRevision, ...others] };
}

async function connect({ kind, target, logs, updates, follow, complain }) {
    const transport = open(TRANSPORTS, kind, target);
    const client = new Client(CLIENT_INFO, { capabilities: CAPABILITIES, ...negotiation() });
    client.setRequestHandler('elicitation/create', answers.elicit);
    client.setRequestHandler('sampling/createMessage', answers.sample);
    client.onerror = complain;
    client.setNotificationHandler('notifications/message', ({ params }) => logs.push(params));
    client.setNotificationHandler('notifications/resources/updated', ({ params }) => updates.push(params.uri));
    follow(transport);
    await client.connect(transport, REQUEST_OPTIONS);
    const modern = client.getProtocolEra() === 'modern';

    return {
        client,
        revision: client.getNegotiatedProtocolVersion(),
        call: (params, options) => client.callTool(params, options),
        // The log level belongs to the session in the handshake era and to each request in the per-request era.
        async setLevel(level) {
            if (modern) return { _meta: { [LOG_LEVEL_META_KEY]: level } };
            await client.setLoggingLevel(level, REQUEST_OPTIONS);
            return {};
        },
        async watch(uri) {
            if (modern) {
                const subscription = await client.listen({ resourceSubscriptions: [uri] }, REQUEST_OPTIONS);
                return () => subscription.close();
            }
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
