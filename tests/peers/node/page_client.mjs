// Client inside a web page, on @modelcontextprotocol/client 2.x. `page.mjs` bundles and serves it.
//
// Logging in leaves the page and returns to it, so what is to be remembered is in the storage of the tab. The outcome is
// the text of the element `report`.

import { Client, StreamableHTTPClientTransport, UnauthorizedError } from '@modelcontextprotocol/client';

const callback = new URL('/callback', location.origin).href;

const remember = (name, value) => sessionStorage.setItem(name, JSON.stringify(value));
const recall = name => JSON.parse(sessionStorage.getItem(name) ?? 'null') ?? undefined;

const provider = {
    redirectUrl: callback,
    clientMetadata: {
        client_name: 'a page of the tests',
        redirect_uris: [callback],
        grant_types: ['authorization_code'],
        response_types: ['code'],
        token_endpoint_auth_method: 'none',
        application_type: 'web'
    },
    state: () => 'state-of-the-page',
    clientInformation: () => recall('client'),
    saveClientInformation: client => remember('client', client),
    tokens: () => recall('tokens'),
    saveTokens: tokens => remember('tokens', tokens),
    saveCodeVerifier: verifier => remember('verifier', verifier),
    codeVerifier: () => recall('verifier'),
    saveDiscoveryState: state => remember('discovery', state),
    discoveryState: () => recall('discovery'),
    redirectToAuthorization: url => {
        remember('askedScopes', [...(recall('askedScopes') ?? []), url.searchParams.get('scope')]);
        location.assign(url);
    }
};

/** What the browser lets a page of another origin read of each response. */
async function recordingFetch(...request) {
    const response = await fetch(...request);
    const seen = {
        url: response.url,
        status: response.status,
        challenge: response.headers.get('www-authenticate'),
        session: response.headers.get('mcp-session-id') !== null
    };
    remember('responses', [...(recall('responses') ?? []), seen]);
    return response;
}

async function run() {
    const { url, revision, tools } = recall('plan');
    const negotiation = revision ? { versionNegotiation: { mode: { pin: revision } } } : {};
    const client = new Client({ name: 'page', version: '1.0.0' }, negotiation);
    const transport = new StreamableHTTPClientTransport(new URL(url), { authProvider: provider, fetch: recordingFetch });
    if (location.href.startsWith(callback)) {
        const sent = new URLSearchParams(location.search);
        // A code is good for one use, and a reload would send it again.
        history.replaceState(null, '', '/');
        await transport.finishAuth(sent);
    }
    await client.connect(transport);
    const offered = (await client.listTools()).tools.map(tool => tool.name);
    const calls = recall('calls') ?? [];
    for (const name of tools.slice(calls.length)) {
        const result = await client.callTool({ name, arguments: {} });
        calls.push({ name, isError: result.isError ?? false });
        remember('calls', calls);
    }
    await client.close();
    return { offered, calls, askedScopes: recall('askedScopes') ?? [], responses: recall('responses') };
}

function report(outcome) {
    const element = document.createElement('pre');
    element.id = 'report';
    element.textContent = JSON.stringify(outcome);
    document.body.append(element);
}

if (location.hash) {
    sessionStorage.clear();
    remember('plan', JSON.parse(decodeURIComponent(location.hash.slice(1))));
    history.replaceState(null, '', '/');
}
// Whoever has to log in is on the way to another page.
run().then(report, error => {
    if (!(error instanceof UnauthorizedError)) report({ failed: `${error.stack ?? error}` });
});
