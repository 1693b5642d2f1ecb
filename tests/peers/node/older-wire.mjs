// Makes the conformance suite open its sessions at an older revision than its own newest:
// OLDER_WIRE=2025-06-18 node --import ./older-wire.mjs node_modules/.bin/conformance server ...
//
// The suite's `--spec-version` chooses scenarios only; its `initialize` always proposes the same revision. This rewrites
// the proposal; the rest of the session follows the negotiated revision.

const wanted = process.env.OLDER_WIRE;
if (!wanted) throw new Error('OLDER_WIRE names the revision');

const { fetch } = globalThis;

function older(body) {
    if (typeof body !== 'string' || !body.includes('"initialize"')) return body;
    const message = JSON.parse(body);
    if (message.method !== 'initialize' || message.params?.protocolVersion === undefined) return body;
    message.params.protocolVersion = wanted;
    return JSON.stringify(message);
}

globalThis.fetch = (resource, options) =>
    fetch(resource, options?.body === undefined ? options : { ...options, body: older(options.body) });
