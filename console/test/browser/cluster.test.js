// Two nodes that share a store, seen by a browser at one of them: pages show both, and go on when the other one is killed.
// RIALTO_OTHER is the address of the other node, RIALTO_OTHER_PID its process.

import assert from 'node:assert/strict';
import { after, before, test } from 'node:test';
import { Client } from './clients.js';
import { accept, api, mcp, showBodies } from './office.js';
import { finish, open, openRow, until, visit } from './setup.js';

after(finish);
const OTHER = Number(process.env.RIALTO_OTHER_PID);
const URLS = { a: mcp(), b: new URL('/mcp', process.env.RIALTO_OTHER).href };
const PAGES = [
    '/',
    '/traffic',
    '/questions',
    '/servers',
    '/servers/tickets',
    '/groups',
    '/groups/default',
    '/sessions',
    '/bridge',
    '/try/default/elements__getElement',
    '/config',
    '/cluster'
];
/** Requests for a list of calls. */
const LIST = /\/admin\/v1\/calls\?/u;
let page;

/** @param {'a' | 'b'} node @param {string} name @param {string} [revision] @param {any} [options] */
const clientAt = (node, name, revision = '2026-07-28', options = {}) =>
    Client.open(URLS[node], revision, { name, version: '1', answer: accept, ...options });
/** @param {string} at */
async function shown(at) {
    await visit(page, at);
    await page.waitForFunction(() => !document.querySelector('.bones'));
    return page.locator('main');
}
const rowOf = client => page.locator('.calls tbody tr', { hasText: client });

before(async () => {
    for (const node of ['a', 'b'])
        await until(async () => {
            const { items } = await api(`servers?node=${node}`);
            return items.length === 2 && items.every(({ phase }) => phase === 'ready');
        }, `the servers of ${node} are there`);
    page = await open();
});

test('the cluster shows both nodes', async () => {
    const main = await shown('/cluster');
    await main.getByRole('region', { name: 'Node a' }).getByText('answers you').waitFor();
    await main.getByRole('region', { name: 'Node b' }).getByText('alive').waitFor();
    await main.getByRole('region', { name: 'Store' }).getByText('connected').waitFor();
    await page.locator('nav', { hasText: 'of 2 nodes' }).waitFor();
});

test('the cluster shows who relays to whom, and is seen from each node', async () => {
    const client = await clientAt('b', 'traveller', '2025-11-25');
    client.url = URLS.a;
    for (const text of ['one', 'two']) await client.call('getElement', { name: text });
    const main = await shown('/cluster');
    const row = main.getByRole('region', { name: 'Relayed requests' }).locator('tbody tr', { hasText: '→ b' });
    await row.locator('td', { hasText: /^a$/u }).waitFor();
    await row.locator('td', { hasText: /^[1-9][0-9]*$/u }).waitFor();
    await main.getByRole('region', { name: 'Sessions taken over' }).getByText('None').waitFor();
    await page.getByLabel('Nodes').selectOption('b');
    await main.getByRole('region', { name: 'Node b' }).getByText('seen from here').waitFor();
    await main.getByRole('region', { name: 'Node a' }).getByText('answers you').waitFor();
    await page.getByLabel('Nodes').selectOption('a');
    await main.getByRole('region', { name: 'Node a' }).getByText('this one').waitFor();
    await fetch(URLS.b, { method: 'DELETE', headers: { 'mcp-session-id': client.session } });
});

test('calls of both nodes come in by the stream, and are opened with both wires', async () => {
    const resumed = /** @type {(string | undefined)[]} */ ([]);
    page.on('request', request => {
        const topics = new URL(request.url()).searchParams.get('topics') ?? '';
        if (/\bcall\b/u.test(topics)) resumed.push(request.headers()['last-event-id']);
    });
    await shown('/traffic');
    await page.locator('.live', { hasText: 'Live' }).waitFor();
    await showBodies(page);
    assert.equal((await api('recording?node=b')).bodies, true, 'bodies are shown at the other node, too');
    await until(async () => (await api('recording?node=b')).on, 'the other node is watched, too');
    // What comes later is in no list that was asked for: only events can bring it.
    await page.route(LIST, route => route.abort());
    for (const node of /** @type {const} */ (['a', 'b'])) {
        // A call in a session is made by the node that owns the session.
        const client = await clientAt(node, `caller-${node}`, '2025-11-25');
        await client.call('tickets__close_ticket', { ticket: 'OPS-112' });
        const row = rowOf(`caller-${node}`);
        await row.locator('.outcome', { hasText: 'ok' }).waitFor();
        assert.equal(await row.locator('td').nth(1).textContent(), node);
        await openRow(row);
        const call = page.locator('section.call');
        await call.locator('.msg.c mark', { hasText: '"tickets__close_ticket"' }).first().waitFor();
        await call.locator('.msg.s mark', { hasText: '"close_ticket"' }).first().waitFor();
        await call.locator('.json', { hasText: 'OPS-112 is closed.' }).first().waitFor();
        await page.keyboard.press('Escape');
        await call.waitFor({ state: 'detached' });
    }
    assert.equal(resumed[0], undefined, 'of calls nothing was read before');
    // On a machine with much other work a stream may break, and what comes then is told.
    if (!resumed.some(Boolean)) assert.equal(await page.getByText('are not kept for those who come back').count(), 0);
    await page.unroute(LIST);
    await page.getByLabel('Nodes').selectOption('b');
    await rowOf('caller-b').waitFor();
    await rowOf('caller-a').waitFor({ state: 'detached' });
    await (await clientAt('b', 'late-b')).call('elements__getElement', { name: 'Fe' });
    await rowOf('late-b').waitFor();
});

test('a call that one node relays to the other is one row, with both wires', async () => {
    await shown('/traffic');
    await page.getByLabel('Nodes').selectOption('all');
    const roamer = await clientAt('b', 'roamer', '2025-11-25');
    roamer.url = URLS.a;
    await roamer.call('tickets__close_ticket', { ticket: 'OPS-113' });
    const row = page.locator('.calls tbody tr', { hasText: 'close_ticket' }).first();
    await row.locator('.tag', { hasText: /^by a, \+/u }).waitFor();
    assert.equal(await row.locator('td').nth(1).textContent(), 'b', 'the node that owns the session');
    const { items } = await api('calls?node=all&q=method:tools/call');
    const request = items.find(one => one.client.name === 'roamer').request;
    const both = items.filter(one => one.request === request).map(one => [one.node, one.relayed_to, one.relayed]);
    assert.deepEqual(both.sort(), [
        ['a', 'b', false],
        ['b', null, true]
    ]);
    await openRow(row);
    const call = page.locator('section.call');
    await call.locator('.msg.s mark', { hasText: '"close_ticket"' }).first().waitFor();
    await call.getByText('relayed by another node').waitFor();
    const front = items.find(one => one.request === request && one.node === 'a');
    await shown(`/traffic?open=${front.id}&node=a`);
    await page.locator('section.call').getByText('what went to the server is recorded there').waitFor();
    await fetch(URLS.b, { method: 'DELETE', headers: { 'mcp-session-id': roamer.session } });
});

test('sessions of both nodes, and one that is ended at the other', async () => {
    const main = await shown('/sessions');
    for (const node of /** @type {const} */ (['a', 'b'])) {
        await clientAt(node, `dweller-${node}`, '2025-11-25');
        await main
            .locator('tbody tr', { hasText: `dweller-${node}` })
            .locator('td', { hasText: new RegExp(`^${node}$`, 'u') })
            .waitFor();
    }
    const guest = await clientAt('b', 'guest', '2025-11-25');
    const row = main.locator('tbody tr', { hasText: 'guest' });
    await row.getByRole('button', { expanded: false }).click();
    await main.getByText('nobody reads it').waitFor();
    await row.getByRole('button', { name: /^End session/u }).click();
    await page.getByRole('button', { name: 'End it' }).click();
    await row.waitFor({ state: 'detached' });
    assert.equal((await guest.post({ id: 9, method: 'ping' })).status, 404, 'the session is over');
});

test('a question of the other node, cancelled from here', async () => {
    const main = await shown('/questions');
    const client = await clientAt('b', 'asker-b', '2026-07-28', { answer: undefined });
    await client.call('tickets__close_ticket', { ticket: 'OPS-9' });
    const row = main.locator('tbody tr', { hasText: 'asker-b' });
    await row.getByRole('button', { name: 'Cancel call' }).click();
    await page.locator('dialog').getByRole('button', { name: 'Cancel the call' }).click();
    await row.waitFor({ state: 'detached' });
    assert.deepEqual((await api('questions?node=b')).items, []);
});

test('the overview sums both nodes', async () => {
    const met = async node => (await api(`overview?node=${node}`)).pairs.reduce((sum, pair) => sum + pair.calls, 0);
    const [all, a, b] = [await met('all'), await met('a'), await met('b')];
    assert.ok(a > 0 && b > 0 && all === a + b, `${a} and ${b} calls, ${all} in all`);
    const main = await shown('/');
    const clients = main.locator('.strip > div', { hasText: 'Clients' });
    const counted = count =>
        until(async () => (await clients.textContent()).includes(`Clients${count}session`), `${count}`);
    await counted(4);
    await page.getByLabel('Nodes').selectOption('b');
    await counted(2);
});

test('servers as the other node has them', async () => {
    const main = await shown('/servers');
    await page.getByLabel('Nodes').selectOption('b');
    const asked = page.waitForRequest(request => /servers\/tickets\?node=b$/u.test(request.url()));
    await main.getByRole('link', { name: 'tickets' }).click();
    await asked;
    await main.locator('tbody tr', { hasText: 'close_ticket' }).waitFor();
    await page.getByRole('tab', { name: 'Standard error' }).click();
    await main.locator('pre', { hasText: 'tickets-mcp listens' }).waitFor();
});

test('a node that is killed is greyed, and its rows stay', async () => {
    const [traffic, sessionsPage] = [page, await open()];
    await visit(sessionsPage, '/sessions');
    const dweller = sessionsPage.locator('tbody tr', { hasText: 'dweller-b' });
    await dweller.waitFor();
    await shown('/traffic');
    await page.locator('.live', { hasText: 'Live' }).waitFor();
    await rowOf('late-b').waitFor();
    const cluster = await open();
    await visit(cluster, '/cluster');
    const node = cluster.getByRole('region', { name: 'Node b' });
    await node.getByText('alive').waitFor();
    process.kill(OTHER, 'SIGKILL');
    await node.getByText(/away for/u).waitFor();
    const grey = element => getComputedStyle(element).color;
    const colour = await node.locator('h2').evaluate(grey);
    assert.notEqual(colour, await cluster.getByRole('region', { name: 'Node a' }).locator('h2').evaluate(grey));
    await traffic.locator('.top .tag', { hasText: 'b away for' }).waitFor();
    await until(async () => /away/u.test((await rowOf('late-b').getAttribute('class')) ?? ''), 'its rows are marked');
    assert.equal(await rowOf('late-b').locator('td').nth(1).evaluate(grey), colour, 'and greyed');
    assert.notEqual(await rowOf('caller-a').locator('td').nth(1).evaluate(grey), colour);
    await dweller.locator('td', { hasText: 'b, away' }).waitFor();
    await sessionsPage.locator('tbody tr', { hasText: 'dweller-a' }).waitFor();
    await (await clientAt('a', 'after')).call('elements__getElement', { name: 'Fe' });
    await rowOf('after').locator('.outcome', { hasText: 'ok' }).waitFor();
    await openRow(rowOf('late-b'));
    await traffic.getByRole('heading', { name: 'This call is no longer kept' }).waitFor();
    for (const one of [sessionsPage, cluster]) await one.context().close();
});

test('without the other node every page loads, and nothing hangs', async () => {
    for (const at of PAGES) {
        await shown(at);
        await page.waitForFunction(() => document.querySelector('main .panel, main .calls, main .empty'));
        await page.locator('.live', { hasText: 'Live' }).waitFor();
        assert.equal(await page.locator('.strip-note.bad').count(), 0, `${at} tells an error`);
    }
    await shown('/');
    await page.locator('.todo li', { hasText: 'b' }).first().waitFor();
    await shown('/traffic?node=b');
    await page.locator('.strip-note.bad', { hasText: 'There is no node "b"' }).waitFor();
});
