// What pages show of a gateway at work: several servers, clients of every revision, calls that end well and badly.

import assert from 'node:assert/strict';
import { after, before, test } from 'node:test';
import { REVISIONS } from './clients.js';
import { api, callOf, clientOf, watch, work } from './office.js';
import { finish, open, openRow, page_url, until, visit } from './setup.js';

after(finish);

/** A page that watches, so that calls are recorded. */
let watching;

before(async () => {
    watching = await watch();
    await work();
});

/** @param {any} page @param {string} at */
async function shown(page, at) {
    await visit(page, at);
    await page.waitForFunction(() => !document.querySelector('.bones'));
    return page.locator('main');
}

test('the overview: figures, who met whom, and the server that is down', async () => {
    const page = await open();
    const main = await shown(page, '/');
    await main.locator('.todo li', { hasText: 'search is down' }).waitFor();
    for (const name of ['elements', 'everything', 'tickets', 'desk'])
        await main.locator('tbody tr', { hasText: name }).locator('text=ready').first().waitFor();
    await main.locator('tbody tr', { hasText: 'search' }).locator('text=cannot be reached').waitFor();
    await until(async () => {
        await page.reload();
        const button = page.getByRole('button', { name: 'as a table' });
        return button.waitFor({ timeout: 2000 }).then(
            () => true,
            () => false
        );
    }, 'figures are read every ten seconds');
    await page.getByRole('button', { name: 'as a table' }).click();
    for (const revision of REVISIONS)
        await main.locator('tbody tr td:first-child', { hasText: revision }).first().waitFor();
    await page.context().close();
});

test('a call appears while one watches, and is opened with both wires', async () => {
    const page = await open();
    await visit(page, '/traffic');
    await page.locator('.live', { hasText: 'Live' }).waitFor();
    const client = await clientOf('2026-07-28', { name: 'newcomer' });
    await client.call('tickets__close_ticket', { ticket: 'OPS-112' });
    const row = page.locator('.calls tbody tr', { hasText: 'newcomer' });
    await row.locator('text=across eras, 2 rounds').waitFor();
    assert.equal(await row.count(), 1, 'a call over two rounds is one row');
    await openRow(row);
    const call = page.locator('section.call');
    await call.locator('text=2 rounds, one call to the server').waitFor();
    const [client_side, server_side] = [call.locator('.msg.c'), call.locator('.msg.s')];
    await client_side.first().locator('mark', { hasText: '"tickets__close_ticket"' }).waitFor();
    await server_side.first().locator('mark', { hasText: '"close_ticket"' }).waitFor();
    await client_side.locator('text=input_required').first().waitFor();
    await server_side.locator('text=elicitation/create').first().waitFor();
    await call.locator('.hold', { hasText: 'until newcomer calls again' }).waitFor();
    await call.locator('.rail', { hasText: 'told once, in the handshake' }).first().waitFor();
    await call.locator('.json', { hasText: 'OPS-112 is closed.' }).first().waitFor();
    await call.getByRole('tab', { name: 'Timeline' }).click();
    await call.locator('svg text', { hasText: 'elicitation/create' }).waitFor();
    await call.getByRole('tab', { name: /^Translation/u }).click();
    await call.locator('td', { hasText: 'name of the group' }).waitFor();
    await call.getByRole('tab', { name: 'Headers' }).click();
    await call.locator('dd', { hasText: 'tickets__close_ticket' }).first().waitFor();
    await call.getByRole('tab', { name: 'Raw bytes' }).click();
    await call.locator('pre', { hasText: '"method":"tools/call"' }).first().waitFor();
    await call.getByRole('tab', { name: 'About' }).click();
    const requests = await call
        .locator('dt', { hasText: 'Requests' })
        .locator('xpath=following-sibling::dd[1]')
        .textContent();
    assert.equal(requests?.split(',').length, 2, `two requests have two names: ${requests}`);
    await page.context().close();
});

test('a call whose server asks on a stream is one row of its own method', async () => {
    const client = await clientOf('2025-06-18', { name: 'streamer' });
    await client.call('tickets__close_ticket', { ticket: 'OPS-112' });
    const row = watching.locator('.calls tbody tr', { hasText: 'streamer' });
    await row.locator('.outcome', { hasText: 'ok' }).waitFor();
    assert.match(await row.locator('.what').textContent(), /^tools\/call tickets__close_ticket$/u);
});

test('text that stands in messages alone is found, in calls that were and that come', async () => {
    const page = await open();
    await visit(page, '/traffic');
    await page.locator('.live', { hasText: 'Live' }).waitFor();
    await page.locator('#filter').fill('"although 2 subtasks" client:finder');
    await page.getByText('No call matches').waitFor();
    const [finder, other] = await Promise.all([
        clientOf('2026-07-28', { name: 'finder' }),
        clientOf('2026-07-28', { name: 'other' })
    ]);
    await other.call('tickets__close_ticket', { ticket: 'OPS-112' });
    await finder.call('tickets__show_ticket', { ticket: 'OPS-112' });
    await finder.call('tickets__close_ticket', { ticket: 'OPS-112' });
    const rows = page.locator('.calls tbody tr[id]');
    await rows.first().locator('.outcome', { hasText: 'ok' }).waitFor();
    assert.deepEqual(await rows.locator('.what').allTextContents(), ['tools/call tickets__close_ticket']);
    await page.locator('#filter').fill('"although 2 subtasks" tool:close_ticket');
    await until(async () => (await rows.count()) > 1, 'calls of other clients are found, too');
    assert.ok((await rows.allTextContents()).every(row => row.includes('close_ticket')));
    await page.context().close();
});

test('a link to a call opens it in a new tab; one that is gone says so', async () => {
    const { id } = await callOf('tickets__close_ticket', '2025-11-25');
    const page = await open();
    await visit(page, `/traffic?open=${id}`);
    await page.getByRole('button', { name: /^Copy link/u }).click();
    const link = await page.evaluate(() => navigator.clipboard.readText());
    const tab = await page.context().newPage();
    await tab.goto(link);
    await tab.getByRole('heading', { name: 'Call', level: 1 }).waitFor();
    await tab.locator('.msg.s', { hasText: '"close_ticket"' }).first().waitFor();
    await tab.goto(`${page_url}#/calls/${id.split('.')[0]}.zzzz`);
    await tab.getByRole('heading', { name: 'This call is no longer kept' }).waitFor();
    await tab.getByText('Keep a call before you share it.').waitFor();
    await page.context().close();
});

test('servers: lists, standard error, and why one is down', async () => {
    const page = await open();
    let main = await shown(page, '/servers/tickets');
    const tool = main.locator('tbody tr', { hasText: 'close_ticket' });
    await tool.locator('.tag', { hasText: 'destructive' }).waitFor();
    await tool.locator('td', { hasText: /^[1-9][0-9]*×$/u }).waitFor();
    await page.getByRole('tab', { name: 'Standard error' }).click();
    await main.locator('pre', { hasText: 'tickets-mcp listens' }).waitFor();
    await page.getByRole('tab', { name: 'Configuration' }).click();
    await main.locator('pre', { hasText: '[servers.tickets]' }).waitFor();
    await page.getByRole('tab', { name: 'Connections' }).click();
    await main.locator('tbody td', { hasText: '2025-06-18' }).first().waitFor();
    const found = main.locator('dd', { hasText: /2025-06-18, because .*server\/discover/u });
    await found.waitFor();
    main = await shown(page, '/servers/search');
    await main.getByRole('heading', { name: /^down for/u }).waitFor();
    await main.getByText('is the server running?').first().waitFor();
    await main.getByText('Its tools are not known while it is down').waitFor();
    await main.locator('.steps li', { hasText: 'passed: 127.0.0.1 is an address' }).waitFor();
    const failed = main.locator('.steps li.bad', { hasText: 'failed: 127.0.0.1:1 takes connections' });
    await failed.getByText('Start the server, or check host and port in url.').waitFor();
    await main.locator('.steps li', { hasText: 'not known: a POST is answered' }).waitFor();
    await main.getByRole('heading', { name: 'Attempts' }).waitFor();
    await main
        .locator('.steps li', { hasText: /failed: .*cannot be reached.*\d\d:\d\d:\d\d/u })
        .first()
        .waitFor();
    await page.getByRole('button', { name: 'Reconnect' }).click();
    await page.getByText('search is being reconnected').waitFor();
    await page.context().close();
});

test('a tool of a server is tried where clients call it, also of one that has no address of its own', async () => {
    const page = await open();
    for (const [server, tool] of [
        ['elements', 'getElement'],
        ['tickets', 'show_ticket']
    ]) {
        const main = await shown(page, `/servers/${server}`);
        await main.getByRole('link', { name: tool, exact: true }).click();
        await page.getByRole('region', { name: 'Arguments' }).getByText(`${server}__${tool}`).waitFor();
        await until(async () => (await page.getByLabel('Over').inputValue()) === 'default', 'over a group');
    }
    const alone = await page.locator('optgroup[label="Servers alone"] option').allTextContents();
    assert.ok(alone.includes('tickets') && !alone.includes('elements'), alone.join());
    await page.context().close();
});

test('groups: what clients of a revision see, in a session, and why not', async () => {
    const page = await open();
    const main = await shown(page, '/groups/support?why=tickets__clsoe_ticket');
    await main.locator('li.bad', { hasText: 'it has "close_ticket"' }).waitFor();
    await main.locator('tbody tr', { hasText: 'tickets__close_ticket' }).waitFor();
    await clientOf('2025-06-18', { name: 'insider' }, 'support');
    await page.reload();
    const session = page.getByLabel('in session');
    await session.locator('option', { hasText: 'insider' }).waitFor({ state: 'attached' });
    await session.selectOption({
        label: await session.locator('option', { hasText: 'insider' }).first().textContent()
    });
    await until(
        async () => (await page.getByLabel('seen as').inputValue()) === '2025-06-18',
        'the revision is that of the session'
    );
    await main.locator('tbody tr', { hasText: 'tickets__close_ticket' }).waitFor();
    await page.getByLabel('Why is').fill('tickets__close_ticket');
    await page.keyboard.press('Enter');
    await main.locator('li.ok', { hasText: 'this session sees it' }).waitFor();
    await page.getByRole('tab', { name: 'As seen' }).click();
    await main.locator('pre', { hasText: '"tickets__close_ticket"' }).waitFor();
    await page.context().close();
});

/** Reads a stream until it has said something. @param {Response} response @param {RegExp} said @returns {Promise<string>} All of it so far. */
async function readUntil(response, said) {
    let text = '';
    for await (const piece of response.body.pipeThrough(new TextDecoderStream())) {
        text += piece;
        if (said.test(text)) return text;
    }
    return assert.fail(`it ends without ${said}: ${text}`);
}

test('sessions: streams, and where a client resumed', async () => {
    const client = await clientOf('2025-11-25', { name: 'listener' });
    const [broken, stop] = [new AbortController(), new AbortController()];
    const params = { name: 'tickets__close_ticket', arguments: { ticket: 'OPS-112' } };
    const asked = await client.post({ id: 7, method: 'tools/call', params }, broken.signal);
    const begin = /^id: ?(\S+)$/mu.exec(await readUntil(asked, /elicitation\/create/u))?.[1] ?? '';
    broken.abort();
    await readUntil(await client.listen(begin, stop.signal), /elicitation\/create/u);
    const stream = await client.listen(null, stop.signal);
    assert.equal(stream.status, 200);
    const page = await open();
    const main = await shown(page, '/sessions');
    const row = main.locator('tbody tr', { hasText: 'listener' });
    await row.waitFor();
    await row.getByRole('button', { expanded: false }).click();
    await main.getByText('listening').first().waitFor();
    await main.getByText('attached').first().waitFor();
    const from = begin.replace('.', '-');
    await main.getByText(`resumed 1× (last from ${from}, 1 event again)`).waitFor();
    await row.getByRole('button', { name: /^End session/u }).click();
    await page.getByRole('button', { name: 'End it' }).click();
    await row.waitFor({ state: 'detached' });
    stop.abort();
    assert.equal((await client.request('ping')).status ?? 404, 404, 'the session is over');
    await page.context().close();
});

test('the bridge: what is translated for whom, and a check of a server', async () => {
    const page = await open();
    const main = await shown(page, '/bridge');
    const column = await main.locator('thead th', { hasText: 'tickets' }).evaluate(cell => cell.cellIndex);
    const row = main.locator('tbody tr', { hasText: '2026-07-28' }).first();
    await row.locator('th, td').nth(column).getByRole('button').click();
    await main.getByText('questions: requests → input_required').waitFor();
    await page.getByLabel('Address or name').fill('tickets');
    await page.keyboard.press('Enter');
    await main.locator('pre', { hasText: '2025-06-18' }).waitFor();
    await page.context().close();
});

test('questions: one that is open, and cancelled from here', async () => {
    const page = await open();
    const main = await shown(page, '/questions');
    const client = await clientOf('2026-07-28', { name: 'asker', answer: undefined });
    const asked = await client.call('tickets__close_ticket', { ticket: 'OPS-9' });
    assert.equal(asked.result.resultType, 'input_required');
    const row = main.locator('tbody tr', { hasText: 'asker' });
    await row.locator('text=parked, state given').waitFor();
    await row.getByRole('button', { name: 'Cancel call' }).click();
    await page.locator('dialog').getByRole('button', { name: 'Cancel the call' }).click();
    await row.waitFor({ state: 'detached' });
    assert.ok((await api('questions')).items.every(question => question.client.name !== 'asker'));
    await page.context().close();
});

test('the configuration: the file without its secrets, and lines for a new server', async () => {
    const page = await open();
    const main = await shown(page, '/config?add=1');
    await main.locator('.code', { hasText: '[servers.tickets]' }).waitFor();
    assert.ok(!(await main.textContent()).includes('token-of-eve'), 'no secret is shown');
    const add = async (/** @type {string} */ text) => {
        await page.getByLabel(/^An address/u).fill(text);
        await page.getByRole('button', { name: 'Check' }).click();
        await main.locator('.tag', { hasText: /^valid$/u }).waitFor();
    };
    const lines = (/** @type {string} */ text) => main.locator('pre', { hasText: text });
    const address = new URL('/mcp', page_url).href;
    await add(address);
    await main.locator('.add-out li', { hasText: /is rialto .*streamable-http, 2026-07-28, because/u }).waitFor();
    await lines(`url = "${address}"`).waitFor();
    await add('http://127.0.0.1:1/mcp');
    await main
        .locator('.add-out li.bad', { hasText: /did not answer as a server of MCP.*cannot be reached/u })
        .waitFor();
    await lines('url = "http://127.0.0.1:1/mcp"').waitFor();
    await add('npx -y @acme/files');
    await main
        .locator('.add-out li', { hasText: 'was not probed: running a command needs the right to edit' })
        .waitFor();
    await lines('command = "npx"').waitFor();
    assert.equal(await page.getByRole('button', { name: 'Write…' }).count(), 0, 'the key may act, not edit');
    await page.context().close();
});
