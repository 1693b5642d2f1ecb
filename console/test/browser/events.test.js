// What pages make of events and of nodes that answer late or not at all.

import assert from 'node:assert/strict';
import { after, test } from 'node:test';
import { answer, api, row } from './canned.js';
import { answerWith, checkAxe, finish, open, until, visit } from './setup.js';

after(finish);

/**
 * A page of a cluster. `push` sends events on a stream with a topic and ends it; the page opens it again.
 * @param {(path: string, query: URLSearchParams) => any} [give] @param {boolean} [clustered]
 */
async function cluster(give = () => null, clustered = true) {
    const page = await open();
    const asked = /** @type {string[]} */ ([]);
    const resumed = /** @type {(string | undefined)[]} */ ([]);
    let stream;
    let number = 0;
    const me = { status: 200, body: { ...api.me, node: 'rialto-1', clustered } };
    await answerWith(page, (path, query) => give(path, query) ?? (path === 'me' ? me : answer(path)));
    await page.route('**/admin/v1/live**', route => {
        asked.push(new URL(route.request().url()).search);
        resumed.push(route.request().headers()['last-event-id']);
        stream = route;
    });
    const push = async (/** @type {string} */ topic, /** @type {[string, any][]} */ ...events) => {
        await until(async () => asked.at(-1)?.includes(topic) ?? false, `the stream has ${topic}`);
        const text = ([name, data]) => `event: ${name}\nid: 1-${++number}\ndata: ${JSON.stringify(data)}\n\n`;
        const body = events.map(text).join('');
        await stream.fulfill({ status: 200, contentType: 'text/event-stream', body });
    };
    return { page, push, asked, resumed };
}

/** @param {any} page @returns {Promise<number>} Calls in the table, of which the document has but those that are seen. */
const countOf = async page => Number(await page.locator('table[role="grid"]').getAttribute('aria-rowcount')) - 1;

/** Answers that wait until they are let go. */
function gate() {
    const waiting = [];
    return {
        waiting,
        give: answered => new Promise(resolve => waiting.push(() => resolve(answered))),
        letGo: () => waiting.splice(0).forEach(resolve => resolve())
    };
}

const ok = body => ({ status: 200, body });
const silent = { status: 503, body: { error: { code: 'silent', message: 'node rialto-2 does not answer' } } };

test('the overview is shown though events come faster than nodes answer', async () => {
    const { waiting, give, letGo } = gate();
    const { page, push } = await cluster();
    let asked = 0;
    await page.route('**/admin/v1/overview**', async route => {
        asked++;
        await route.fulfill({ json: await give(api.overview) });
    });
    await visit(page, '/');
    await until(async () => waiting.length === 1, 'the overview is asked for');
    const many = Array.from({ length: 20 }, () => /** @type {[string, any]} */ (['server', api.servers.items[0]]));
    await push('figures', ...many, ['figures', api.overview.figures], ['attention', {}]);
    await page.getByText(/Not live since/u).waitFor();
    assert.equal(asked, 1, 'nothing more is asked for before there is an answer');
    letGo();
    await page.getByText('Needs attention').waitFor();
    await page.locator('.todo li').first().waitFor();
    await until(async () => waiting.length === 1, 'all those events are one more look');
    letGo();
    await page.context().close();
});

test('figures are those of the range, and are read again while they are looked at', async () => {
    let rate = 142;
    const figures = () => ({ ...api.overview.figures, calls_per_s: rate });
    const ofServer = server => ({
        ...server,
        figures: { ...server.figures, server_us: { p50: rate * 1000, p99: 4e5 } }
    });
    const { page, push } = await cluster(path => {
        if (path === 'overview') return ok({ ...api.overview, figures: figures() });
        if (path === 'servers') return ok({ items: api.servers.items.map(ofServer), next: null });
        return path === 'servers/tickets' ? ok(ofServer(answer(path).body)) : null;
    }, false);
    await page.clock.install();
    const shown = (/** @type {RegExp | string} */ text) => page.locator('main dd, main td', { hasText: text }).first();
    await visit(page, '/');
    await shown(/^142/u).waitFor();
    // The figures of the stream are of another time; what is of the moment is taken from them.
    await push('figures', ['figures', { ...figures(), calls_per_s: 9.5, sessions: 64 }]);
    await shown(/^64/u).waitFor();
    assert.equal(await shown(/^142/u).count(), 1);
    for (const at of ['/', '/servers', '/servers/tickets']) {
        await visit(page, at);
        await shown(new RegExp(`${rate}`, 'u')).waitFor();
        rate += 35;
        await page.clock.runFor(10_000);
        await shown(new RegExp(`${rate}`, 'u')).waitFor();
    }
    await page.context().close();
});

test('calls of a page that comes late are not shown among those of another node', async () => {
    const { waiting, give, letGo } = gate();
    const first = Array.from({ length: 60 }, (_, n) => row(n));
    const { page } = await cluster();
    const asked = [];
    await page.route('**/admin/v1/calls?**', async route => {
        const { searchParams: query } = new URL(route.request().url());
        asked.push(query.toString());
        if (query.get('node') !== 'all') return route.fulfill({ json: { items: [row(500)], next: null } });
        if (!query.get('cursor')) return route.fulfill({ json: { items: first, next: 'of-all' } });
        return route.fulfill({ json: await give({ items: [row(900, { name: 'behind' })], next: 'more-of-all' }) });
    });
    await visit(page, '/traffic');
    await page.locator('tr#row-20').waitFor();
    await page.locator('.calls').evaluate(element => element.scrollTo(0, element.scrollHeight));
    await until(async () => waiting.length === 1, 'older calls are asked for');
    await page.getByLabel('Nodes').selectOption('rialto-1');
    const count = () => countOf(page);
    await until(async () => (await count()) === 1, 'the calls of that node are shown');
    const came = page.waitForResponse(response => response.url().includes('cursor=of-all'));
    letGo();
    await (await came).finished();
    await page.evaluate(async () => {
        for (let n = 0; n < 5; n++) await new Promise(requestAnimationFrame);
    });
    assert.equal(await count(), 1);
    assert.equal(await page.getByText('behind').count(), 0);
    assert.ok(
        asked.every(query => !query.includes('more-of-all')),
        asked.join('\n')
    );
    await page.context().close();
});

test('a node that does not answer does not keep others from showing bodies', async () => {
    const changed = /** @type {(string | null)[]} */ ([]);
    const { page } = await cluster((path, query) => {
        if (path !== 'recording') return null;
        if (query.get('node') === 'rialto-2') return silent;
        return ok({ ...api.recording, bodies: changed.length > 0 });
    });
    page.on('request', request => {
        if (request.method() === 'PUT') changed.push(new URL(request.url()).searchParams.get('node'));
    });
    await visit(page, '/traffic');
    await page.getByRole('button', { name: 'Show bodies for 15 minutes' }).click();
    await page.getByRole('button', { name: 'Show bodies for 15 minutes' }).waitFor({ state: 'detached' });
    assert.ok(changed.includes('rialto-2'), 'every node is asked');
    assert.equal(await page.locator('[role="alert"]', { hasText: 'does not answer' }).count(), 0);
    await page.context().close();
});

test('bodies are hidden again when their time is over, and not offered where they are never shown', async () => {
    let recording = { ...api.recording, bodies: false, bodies_until: null };
    const { page } = await cluster(path => (path === 'recording' ? ok(recording) : null), false);
    await page.clock.install();
    page.on('request', request => {
        if (request.method() !== 'PUT') return;
        recording = { ...recording, bodies: true, bodies_until: new Date(Date.now() + 9e5).toISOString() };
    });
    await visit(page, '/traffic');
    const show = page.getByRole('button', { name: 'Show bodies for 15 minutes' });
    await show.click();
    await page.locator('.sub', { hasText: /with bodies until \d\d:\d\d/u }).waitFor();
    await show.waitFor({ state: 'detached' });
    recording = { ...api.recording, bodies: false, bodies_until: null };
    await page.clock.fastForward(9e5);
    await page.locator('.sub', { hasText: 'without bodies' }).waitFor();
    await show.waitFor();
    recording.may_show_bodies = false;
    await page.reload();
    await page.getByText('bodies is “never” in the configuration').waitFor();
    assert.equal(await show.count(), 0);
    await page.context().close();
});

test('reconnecting asks where calls are at work by now', async () => {
    let busy = 0;
    const { page } = await cluster(
        path => (path === 'servers/tickets' ? ok({ ...answer(path).body, calls_in_flight: busy }) : null),
        false
    );
    const made = /** @type {string[]} */ ([]);
    await page.route('**/reconnect', route => {
        made.push(route.request().method());
        return route.fulfill({ status: 202, json: { server: 'tickets' } });
    });
    await visit(page, '/servers/tickets');
    const button = page.getByRole('button', { name: 'Reconnect', exact: true });
    await button.waitFor();
    // So that what is shown is not read again by itself.
    await page.keyboard.press('.');
    await page.locator('.live', { hasText: 'Held still' }).waitFor();
    busy = 3;
    await button.click();
    const dialog = page.getByRole('dialog');
    await dialog.getByText('3 calls are at work there. Calls in flight may finish').waitFor();
    await dialog.getByRole('button', { name: 'Cancel' }).click();
    await dialog.waitFor({ state: 'detached' });
    busy = 0;
    await button.click();
    await page.getByText('tickets is being reconnected').waitFor();
    assert.deepEqual(made, ['POST']);
    await page.context().close();
});

test('a node that is no more is in no list', async () => {
    let left = api.nodes.items;
    const { page, push } = await cluster(path => (path === 'nodes' ? ok({ ...api.nodes, items: left }) : null));
    await visit(page, '/traffic');
    const option = page.getByLabel('Nodes').locator('option', { hasText: 'rialto-2' });
    await option.waitFor({ state: 'attached' });
    left = left.filter(node => node.name !== 'rialto-2');
    await push('node', ['gone', { topic: 'node', id: 'rialto-2' }]);
    await option.waitFor({ state: 'detached' });
    await page.context().close();
});

test('typing over an opened call opens no stream at each letter', async () => {
    const { page, asked } = await cluster();
    await page.clock.install();
    await visit(page, '/traffic?open=rialto-1.rv');
    await page.locator('.msg').first().waitFor();
    await until(async () => asked.at(-1)?.includes('call') ?? false, 'the stream is open');
    const before = asked.length;
    // By the page's clock, so that a busy machine makes no pause between two letters.
    await page.clock.pauseAt(Date.now() + 5000);
    await page.locator('#filter').focus();
    for (const letter of 'took:<1s') {
        await page.keyboard.type(letter);
        await page.clock.runFor(50);
    }
    assert.equal(asked.length, before);
    await page.clock.runFor(500);
    await until(async () => asked.at(-1)?.includes(encodeURIComponent('took:<1s')) ?? false, 'the filter is asked for');
    const partly = asked.slice(before).filter(query => !query.includes(encodeURIComponent('took:<1s')));
    assert.deepEqual(partly, []);
    await page.context().close();
});

test('what was lost is told though nobody knows how much, and a call that is let go says so', async () => {
    const { page, push } = await cluster();
    await visit(page, '/traffic?show=all');
    const first = page.locator('.calls tbody tr').first();
    await first.waitFor();
    await push(
        'call',
        ['lost', { count: null, why: 'the gateway was started again' }],
        ['gone', { id: (await answer('calls')).body.items[0].id }]
    );
    await page.getByText('Some calls are not shown').waitFor();
    await page.getByText('the gateway was started again').waitFor();
    await first.locator('.tag', { hasText: 'no longer kept' }).waitFor();
    const count = await countOf(page);
    await page.getByRole('button', { name: 'Hide' }).click();
    await page.getByText('Some calls are not shown').waitFor({ state: 'detached' });
    assert.equal(await countOf(page), count, 'calls that are shown stay');
    await page.context().close();
});

test('to record more hides what was lost, and no call', async () => {
    const { page, push } = await cluster(() => null, false);
    await visit(page, '/traffic');
    await push('call', ['lost', { count: 38, why: 'more than 500 a second' }]);
    await page.getByText('38 calls are not shown').waitFor();
    const count = await countOf(page);
    assert.ok(count > 0);
    const changed = page.waitForRequest(request => request.method() === 'PUT');
    await page.getByRole('button', { name: 'Record more' }).click();
    assert.deepEqual((await changed).postDataJSON(), { rate: 1000 });
    await page.getByText('calls are not shown').waitFor({ state: 'detached' });
    assert.equal(await countOf(page), count);
    await page.context().close();
});

test('a stream is resumed where the same is asked for, and other pages load anew', async () => {
    const { page, push, asked, resumed } = await cluster();
    const lists = /** @type {string[]} */ ([]);
    page.on('request', request => {
        if (/\/calls\?/u.test(request.url())) lists.push(request.url());
    });
    await visit(page, '/');
    await push('figures', ['figures', api.overview.figures]);
    await until(async () => asked.length > 1 && asked.at(-1) === asked.at(-2), 'the stream is opened again');
    assert.equal(resumed.at(-1), '1-1', 'the same is asked for');
    const count = resumed.length;
    await page.locator('nav').getByRole('link', { name: 'Traffic' }).click();
    await until(async () => asked.at(-1)?.includes('call') ?? false, 'calls are asked for');
    await page.locator('.calls tbody tr').first().waitFor();
    assert.deepEqual(resumed.slice(count), [undefined], 'of calls nothing was read before');
    const before = lists.length;
    await push('call', ['beat', {}]);
    await until(async () => lists.length > before, 'calls between the list and the stream are asked for');
    await page.context().close();
});

test('the focus does not go to a control of another row that has the same name', async () => {
    const [one] = api.questions.items;
    // Of one age, so that nothing but what is asked tells one row from the other.
    const question = (id, server) => ({ ...one, id, server, node: 'rialto-1' });
    let left = [question('1', 'tickets'), question('2', 'desk')];
    const { page, push } = await cluster(path => (path === 'questions' ? ok({ items: left, next: null }) : null));
    await visit(page, '/questions');
    const rows = page.locator('main tbody tr');
    await rows.nth(1).waitFor();
    await rows.nth(0).getByRole('button', { name: 'Cancel call' }).focus();
    left = left.slice(1);
    await push('question', ['gone', { topic: 'question', id: '1' }]);
    await until(async () => (await rows.count()) === 1, 'the question is answered');
    await page.waitForFunction(() => document.activeElement !== document.body);
    const focused = await page.evaluate(() => document.activeElement?.textContent);
    assert.notEqual(focused, 'Cancel call');
    await page.context().close();
});

test('the filter completes fields and values, and explains words that are no fields', async () => {
    const { page } = await cluster();
    await visit(page, '/traffic');
    await page.locator('.calls tbody tr').first().waitFor();
    const [filter, options] = [page.locator('#filter'), page.locator('#filter-options [role=option]')];
    await filter.focus();
    await page.keyboard.type('ser');
    await options.filter({ hasText: 'server:' }).waitFor();
    await page.keyboard.press('ArrowDown');
    assert.equal(await filter.getAttribute('aria-activedescendant'), 'filter-option-0');
    await checkAxe(page, 'completion');
    await page.keyboard.press('Enter');
    assert.equal(await filter.inputValue(), 'server:');
    await page.keyboard.type('git');
    await options.filter({ hasText: 'server:github' }).waitFor();
    await page.keyboard.press('ArrowDown');
    await page.keyboard.press('Tab');
    assert.equal(await filter.inputValue(), 'server:github ');
    assert.equal(await options.count(), 0);
    await page.keyboard.type('took');
    await options.filter({ hasText: 'took:' }).waitFor();
    await page.keyboard.press('Escape');
    assert.equal(await options.count(), 0);
    assert.equal(await filter.inputValue(), 'server:github took', 'Esc closes the list first');
    await page.keyboard.press('Escape');
    assert.equal(await filter.inputValue(), '');
    await filter.fill('colour:red');
    await page.getByText(/^colour: is no field/u).waitFor();
    await checkAxe(page, 'a word that is explained');
    await page.context().close();
});
