// A day at the office in a moment: clients of every revision call the servers of the gateway, well and badly.

import { Client, REVISIONS } from './clients.js';
import { link } from './setup.js';

export const mcp = (/** @type {string} */ group = '') => new URL(group ? `/mcp/${group}` : '/mcp', link).href;
export const accept = async () => ({ action: 'accept', content: { confirm: true } });

const CLIENTS = {
    '2026-07-28': ['desk', '1.9'],
    '2025-11-25': ['code', '0.42'],
    '2025-06-18': ['agent-kit', '2.1'],
    '2025-03-26': ['pilot', '3'],
    '2024-11-05': ['old-ide', '7.0']
};

/** A client of a revision, under the name that such clients have here. @param {string} revision @param {any} [options] @param {string} [group] */
export function clientOf(revision, options = {}, group = '') {
    const [name, version] = CLIENTS[revision];
    return Client.open(mcp(group), revision, { name, version, answer: accept, ...options });
}

/** Every revision meets every server that is there. */
export async function work() {
    for (const revision of REVISIONS) {
        const client = await clientOf(revision);
        await client.request('tools/list');
        await client.call('elements__getElement', { name: 'Fe' });
        await client.call('everything__get-sum', { a: 2, b: 40 });
        await client.call('everything__echo', { message: `hello from ${revision}` });
        await client.call('tickets__show_ticket', { ticket: 'OPS-112' });
        await client.call('tickets__show_ticket', { ticket: 'none' });
        await client.call('desk__structured');
        await client.call('tickets__close_ticket', { ticket: 'OPS-112' });
        await client.call('search__web', { text: 'lamps' });
    }
}
