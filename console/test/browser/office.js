// A day at the office in a moment: clients of every revision call the servers of the gateway, well and badly.

import assert from 'node:assert/strict';
import { Client, REVISIONS } from './clients.js';
import { key, link, open, until, visit } from './setup.js';

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

/** @param {string} path Of the API. @param {any} [init] */
export async function api(path, init = {}) {
    const headers = { authorization: `Bearer ${key}`, 'content-type': 'application/json' };
    const response = await fetch(new URL(`/admin/v1/${path}`, link), { ...init, headers });
    assert.ok(response.ok, `${path}: ${response.status}`);
    return response.json();
}

/** Opens Traffic with bodies once every server has been reached or not, so that calls are recorded from then on. */
export async function watch() {
    await settled();
    const page = await open();
    await visit(page, '/traffic');
    await page.locator('.live', { hasText: 'Live' }).waitFor();
    await showBodies(page);
    return page;
}

/** Waits until every server has been reached or not. */
const settled = () =>
    until(async () => {
        const { items } = await api('servers');
        return items.every(({ name, phase }) => phase === (name === 'search' ? 'down' : 'ready'));
    }, 'the servers are there');

/** Allows bodies, where they are not shown yet. @param {any} page That shows Traffic. */
export async function showBodies(page) {
    await page.locator('.sub', { hasText: 'Recording' }).waitFor();
    const button = page.getByRole('button', { name: /^Show bodies/u });
    if (await button.count()) await button.click();
    await page.locator('.sub', { hasText: 'with bodies' }).waitFor();
}

/** The newest recorded call of a tool by clients of a revision. @param {string} name @param {string} revision */
export async function callOf(name, revision) {
    const { items } = await api(`calls?${new URLSearchParams({ q: `tool:${name} client:${revision}` })}`);
    const found = items.find(row => row.done && row.name === name);
    assert.ok(found, `${name} of ${revision} was recorded`);
    return found;
}

/** An address of every page. @param {{ id: string }} call That is opened. @param {string} tool That is tried. */
export const addresses = (call, tool = 'tickets__close_ticket') => [
    '/',
    '/traffic',
    `/traffic?open=${call.id}`,
    `/calls/${call.id}`,
    '/questions',
    '/servers',
    '/servers/tickets',
    '/groups',
    '/groups/support?why=tickets__clsoe_ticket',
    '/sessions',
    '/bridge',
    `/try/support/${tool}`,
    '/config?add=1',
    '/cluster'
];
