// The revisions of the protocol, newest first, and the names of ways to a server or client.

export const REVISIONS = ['2026-07-28', '2025-11-25', '2025-06-18', '2025-03-26', '2024-11-05'];

/** @type {Record<string, string>} */
const TRANSPORTS = {
    http: 'Streamable HTTP',
    'streamable-http': 'Streamable HTTP',
    sse: 'HTTP+SSE',
    stdio: 'stdio',
    rest: 'HTTP API',
    builtin: 'in this process',
    local: 'in this process'
};

/** @param {string} name @returns {string} As people call it. */
export const transportName = name => TRANSPORTS[name] ?? name;
