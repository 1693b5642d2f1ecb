// Small MCP clients of every revision, for traffic that the console shows.

const PER_REQUEST = '2026-07-28';
const ACCEPT = 'application/json, text/event-stream';
const CAPABILITIES = { elicitation: {} };
export const REVISIONS = [PER_REQUEST, '2025-11-25', '2025-06-18', '2025-03-26', '2024-11-05'];

/** Messages of a response that is JSON or an event stream, with ids of events. @param {Response} response */
export async function* messages(response) {
    if (!response.headers.get('content-type')?.startsWith('text/event-stream')) {
        const text = await response.text();
        if (text) yield { id: null, message: JSON.parse(text) };
        return;
    }
    let rest = '';
    for await (const piece of response.body.pipeThrough(new TextDecoderStream())) {
        rest += piece;
        for (let end; (end = rest.indexOf('\n\n')) >= 0; rest = rest.slice(end + 2)) {
            const lines = rest.slice(0, end).split('\n');
            const read = name =>
                lines
                    .filter(line => line.startsWith(`${name}:`))
                    .map(line => line.slice(name.length + 1).trim())
                    .join('\n');
            if (read('data')) yield { id: read('id'), message: JSON.parse(read('data')) };
        }
    }
}

/** A client that makes calls. @typedef {{ call: (name: string, args?: any, id?: number) => Promise<any>, request: (method: string, params?: any) => Promise<any> }} McpClient */

export class Client {
    #next = 1;
    #headers = {};

    /** @param {string} url @param {string} revision @param {{ name?: string, version?: string, answer?: (question: any) => any, headers?: Record<string, string> }} [options] */
    constructor(url, revision, { name = 'desk', version = '1.9', answer, headers = {} } = {}) {
        Object.assign(this, { url, revision, info: { name, version }, answer });
        this.#headers = headers;
    }

    /** A client that has begun: of handshake revisions, with its session. */
    static async open(...given) {
        const client = new Client(...given);
        if (client.revision !== PER_REQUEST) await client.#handshake();
        return client;
    }

    async #handshake() {
        const params = { protocolVersion: this.revision, capabilities: CAPABILITIES, clientInfo: this.info };
        const response = await this.post({ id: 0, method: 'initialize', params });
        this.session = response.headers.get('mcp-session-id');
        for await (const _ of messages(response)); // Read to its end.
        await (await this.post({ method: 'notifications/initialized' })).text();
    }

    /** @param {any} message @param {AbortSignal} [signal] */
    post(message, signal) {
        const headers = { 'content-type': 'application/json', accept: ACCEPT, ...this.#headers };
        if (this.session) headers['mcp-session-id'] = this.session;
        if (this.session || this.revision === PER_REQUEST) headers['mcp-protocol-version'] = this.revision;
        if (this.revision === PER_REQUEST) {
            headers['mcp-method'] = message.method;
            if (message.params?.name) headers['mcp-name'] = message.params.name;
        }
        return fetch(this.url, {
            method: 'POST',
            headers,
            body: JSON.stringify({ jsonrpc: '2.0', ...message }),
            signal
        });
    }

    /** @param {string} method @param {any} [params] @param {AbortSignal} [signal] @returns {Promise<any>} The response. */
    async request(method, params = {}, signal) {
        const id = this.#next++;
        const response = await this.post({ id, method, params: this.#withMeta(params) }, signal);
        for await (const { message } of messages(response)) {
            if (message.method && message.id !== undefined) await this.#respond(message);
            else if (message.id === id) return this.#goOn(method, params, message, signal);
        }
        return { status: response.status };
    }

    #withMeta(params) {
        if (this.revision !== PER_REQUEST) return params;
        const meta = { protocolVersion: this.revision, clientInfo: this.info, clientCapabilities: CAPABILITIES };
        const named = Object.fromEntries(
            Object.entries(meta).map(([key, value]) => [`io.modelcontextprotocol/${key}`, value])
        );
        return { ...params, _meta: { ...named, ...params._meta } };
    }

    /** The next round of a call whose result asks for input. */
    async #goOn(method, params, message, signal) {
        const { result } = message;
        if (result?.resultType !== 'input_required' || !this.answer) return message;
        const answers = Object.entries(result.inputRequests).map(async ([key, question]) => [
            key,
            await this.answer(question)
        ]);
        const inputResponses = Object.fromEntries(await Promise.all(answers));
        return this.request(method, { ...params, inputResponses, requestState: result.requestState }, signal);
    }

    async #respond(question) {
        if (this.answer) await (await this.post({ id: question.id, result: await this.answer(question) })).text();
    }

    /** @param {string} name @param {any} [args] @param {AbortSignal} [signal] */
    call(name, args = {}, signal) {
        return this.request('tools/call', { name, arguments: args }, signal);
    }

    /** Reads the stream of a session, from an event on where one is given. @param {string | null} from @param {AbortSignal} signal */
    listen(from, signal) {
        const headers = {
            accept: 'text/event-stream',
            'mcp-session-id': this.session,
            'mcp-protocol-version': this.revision,
            ...this.#headers
        };
        if (from) headers['last-event-id'] = from;
        return fetch(this.url, { headers, signal });
    }
}
