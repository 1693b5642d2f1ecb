// A person at a client that logs in by itself: keeps what the SDK gives it, and fills in the pages of the authorization
// server in place of a browser.

const CALLBACK = 'http://127.0.0.1:9/callback';
const MAX_STEPS = 30;

function attribute(tag, name) {
    return tag.match(new RegExp(`\\s${name}="([^"]*)"`))?.[1].replaceAll('&amp;', '&');
}

/** Follows redirects and posts forms until the code is sent to the callback; returns the parameters of that. */
async function logIn(url, user) {
    const cookies = new Map();
    let request = { url: new URL(url) };
    for (let step = 0; step < MAX_STEPS; step++) {
        const cookie = [...cookies].map(([name, value]) => `${name}=${value}`).join('; ');
        const { url, form } = request;
        const response = await fetch(url, {
            method: form ? 'POST' : 'GET',
            body: form,
            headers: cookie ? { cookie } : {},
            redirect: 'manual'
        });
        for (const line of response.headers.getSetCookie()) {
            const [, name, value] = line.match(/^([^=]+)=([^;]*)/);
            value ? cookies.set(name, value) : cookies.delete(name);
        }
        const location = response.headers.get('location');
        const page = await response.text();
        if (location) {
            const next = new URL(location, url);
            if (next.href.startsWith(CALLBACK)) return next.searchParams;
            request = { url: next };
            continue;
        }
        const tag = page.match(/<form[^>]*method="post"[^>]*>/i);
        if (!tag) throw new Error(`no form at ${url}: ${response.status} ${page}`);
        const fields = new URLSearchParams();
        const inside = page.slice(tag.index).split('</form')[0];
        for (const [input] of inside.matchAll(/<input[^>]*>/g)) {
            const name = attribute(input, 'name');
            const given = { login: user, password: 'any' }[name];
            if (name) fields.set(name, given ?? attribute(input, 'value') ?? '');
        }
        request = { url: new URL(attribute(tag[0], 'action') ?? '', url), form: fields };
    }
    throw new Error(`no code after ${MAX_STEPS} steps`);
}

/** The provider of the SDK's OAuth client. With `clientId` it was registered before; else it registers itself. */
export class Person {
    redirectUrl = CALLBACK;
    clientMetadata = {
        client_name: 'a client of the tests',
        redirect_uris: [CALLBACK],
        grant_types: ['authorization_code'],
        response_types: ['code'],
        token_endpoint_auth_method: 'none',
        application_type: 'native'
    };
    /** Scopes of each time that the person was asked. */
    askedScopes = [];

    constructor(user, clientId) {
        this.user = user;
        this.client = clientId && { client_id: clientId };
    }

    state() {
        return 'state-of-the-tests';
    }
    clientInformation() {
        return this.client;
    }
    saveClientInformation(client) {
        this.client = client;
    }
    tokens() {
        return this.given;
    }
    saveTokens(tokens) {
        this.given = tokens;
    }
    saveCodeVerifier(verifier) {
        this.verifier = verifier;
    }
    codeVerifier() {
        return this.verifier;
    }
    async redirectToAuthorization(url) {
        this.askedScopes.push(url.searchParams.get('scope'));
        this.callback = await logIn(url, this.user);
    }
}

/**
 * Connects and makes the calls (names of tools), logging in whenever the SDK wants that, and prints a report.
 *
 * `open` makes a client and a transport; `isLogin` tells the SDK's error; `finish` gives the transport the callback.
 */
export async function main({ open, isLogin, finish }) {
    const [url, user, clientId, ...tools] = process.argv.slice(2);
    const person = new Person(user, clientId === '-' ? undefined : clientId);
    let { client, transport } = open(url, person);
    try {
        await client.connect(transport);
    } catch (error) {
        if (!isLogin(error)) throw error;
        await finish(transport, person.callback);
        ({ client, transport } = open(url, person));
        await client.connect(transport);
    }
    const session = transport.sessionId;
    const offered = (await client.listTools()).tools.map(tool => tool.name);
    const calls = [];
    for (const name of tools) {
        const call = () => client.callTool({ name, arguments: {} });
        const result = await call().catch(async error => {
            if (!isLogin(error)) throw error;
            await finish(transport, person.callback);
            return call();
        });
        calls.push({ name, isError: result.isError ?? false, text: result.content[0].text });
    }
    const report = { offered, calls, askedScopes: person.askedScopes, clientId: person.client.client_id };
    console.log(JSON.stringify({ ...report, sameSession: session === transport.sessionId }));
    await client.close();
    process.exit(0);
}
