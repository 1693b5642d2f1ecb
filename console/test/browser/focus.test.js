// Focus by keyboard alone, on every page of a gateway at work: it is seen wherever it is, and it is never lost, whatever is
// opened, closed, taken away or replaced.

import assert from 'node:assert/strict';
import { after, before, test } from 'node:test';
import { addresses, api, callOf, clientOf, watch, work } from './office.js';
import { finish, open, pressInTurn, tabTo, until, visit } from './setup.js';

after(finish);
let [page, call] = /** @type {any[]} */ ([]);

/** Notes when nothing has the focus that something had, and when what has it does not look like it. */
function watchFocus() {
    const trouble = (globalThis.focusTrouble = { lost: [], unseen: [] });
    const FRAMES = 3;
    let [held, empty] = [null, 0];
    const is = element => `${location.hash} ${element.outerHTML.slice(0, 160)}`;
    const isOutlined = element => {
        const { outlineStyle, outlineWidth } = getComputedStyle(element);
        return outlineStyle !== 'none' && parseFloat(outlineWidth) >= 1;
    };
    const look = () => {
        const now = document.activeElement;
        if (now && now !== document.body) {
            empty = 0;
            if (now !== held && ![now, ...now.querySelectorAll('.json')].some(isOutlined)) trouble.unseen.push(is(now));
            held = now;
        } else if (held && ++empty === FRAMES) {
            trouble.lost.push(is(held));
            held = null;
        }
        requestAnimationFrame(look);
    };
    requestAnimationFrame(look);
    // Whoever goes on with Tab lets go of what had the focus, and after the last place nothing has it.
    addEventListener('keydown', ({ key }) => {
        if (key === 'Tab') held = null;
    });
}

/** @param {string} what Was done, after which everything has been drawn. */
async function stillHeld(what) {
    await page.waitForFunction(() => !document.querySelector('.bones'));
    await page.evaluate(async () => {
        for (let n = 0; n < 5; n++) await new Promise(requestAnimationFrame);
    });
    assert.deepEqual(await page.evaluate(() => globalThis.focusTrouble), { lost: [], unseen: [] }, what);
    assert.ok(await page.evaluate(() => document.activeElement !== document.body), `${what}: nothing has the focus`);
}

const heading = name => page.getByRole('heading', { name, level: 1 }).waitFor();
const press = key => page.keyboard.press(key);
const isIn = selector => page.evaluate(within => Boolean(document.activeElement?.closest(within)), selector);

/** Goes to another page from a control of the one that is shown. @param {string} letter @param {string} name */
async function goBy(letter, name) {
    await tabTo(page, page.getByRole('button', { name: 'Find or go to' }));
    await pressInTurn(page, 'g', letter);
    await heading(name);
    await stillHeld(`g ${letter}`);
    assert.ok(await isIn('main'), `the focus is on the page that one went to, ${name}`);
}

before(async () => {
    // Another page sees to it that calls are recorded and kept, however long this one is elsewhere.
    await watch();
    page = await open();
    await page.addInitScript(watchFocus);
    await work();
    await until(async () => (await api('calls?q=client:old-ide&limit=500')).items.length > 7, 'the calls are recorded');
    call = await callOf('tickets__close_ticket', '2026-07-28');
    await visit(page, '/traffic');
    await heading('Traffic');
});

const PAGES = {
    o: 'Overview',
    t: 'Traffic',
    q: 'Questions',
    s: 'Servers',
    g: 'Groups',
    e: 'Sessions',
    b: 'Bridge',
    y: 'Try a tool',
    c: 'Configuration',
    n: 'Cluster'
};

test('from page to page', async () => {
    for (const [letter, name] of [...Object.entries(PAGES), ['o', 'Overview']]) await goBy(letter, name);
    for (const server of ['tickets', 'everything']) {
        await goBy('s', 'Servers');
        await tabTo(page, page.locator('main').getByRole('link', { name: server }));
        await press('Enter');
        await heading(server);
        await stillHeld(`opening ${server}`);
        await tabTo(page, page.getByRole('button', { name: 'Reconnect' }));
        await press('Escape');
        await heading('Servers');
        await stillHeld(`closing ${server}`);
    }
    await press('/');
    await page.locator('dialog[open]').waitFor();
    await page.keyboard.type('sessions');
    await press('Enter');
    await heading('Sessions');
    await stillHeld('found');
});

/** What has the focus, and whether Tab leads further within the page. */
const stopHere = () =>
    page.evaluate(() => {
        const element = /** @type {HTMLElement} */ (document.activeElement);
        const all = [...document.querySelectorAll('main *')].filter(
            one => /** @type {HTMLElement} */ (one).tabIndex >= 0 && one.checkVisibility()
        );
        const name = `${element.id} ${element.getAttribute('aria-label') ?? ''} ${element.textContent}`;
        const isButton = element.matches('main button, main [role="tab"]');
        return { name, isButton, isLast: element === all.at(-1), hash: location.hash.split('?')[0] };
    });

/** Presses what has the focus, and looks into the dialog that it opens. @param {string} what */
async function tryButton(what) {
    await press('Enter');
    await stillHeld(what);
    if (await isIn('main [role="tab"]')) return goAround();
    if (!(await page.locator('dialog[open]').count())) return undefined;
    await press('Tab');
    await press('Escape');
    await page.locator('dialog').waitFor({ state: 'detached' });
    await stillHeld(`${what}, closed`);
    assert.equal((await stopHere()).name, what, 'the focus is back where the dialog was opened');
    return undefined;
}

/** Goes through all tabs with the arrows, back to the first one. */
async function goAround() {
    for (let left = await page.getByRole('tab').count(); left > 0; left--) {
        await press('ArrowRight');
        await stillHeld('the next tab');
        assert.ok(await isIn('[role="tab"][aria-selected="true"]'), 'the chosen tab has the focus');
    }
}

/** Goes to a page, at whose beginning nothing need have the focus, and to its first control. @param {string} at */
async function begin(at) {
    await visit(page, at);
    await page.waitForFunction(() => !document.querySelector('.bones'));
    await tabTo(page, page.getByRole('button', { name: 'Find or go to' }));
}

/** Presses every button of a page. @param {string} at @returns {Promise<number>} How many there were. */
async function pressAll(at) {
    await begin(at);
    const seen = new Set();
    for (let left = 100; left > 0; left--) {
        const { name, isButton, isLast, hash } = await stopHere();
        if (isButton && !seen.has(name)) {
            seen.add(name);
            await tryButton(name);
            // Held still, the page would show nothing that happens from here on.
            if (/^\s*(?:Pause|Go on)/u.test(name)) await press('Enter');
        }
        const now = await stopHere();
        if (now.hash !== hash) await begin(at);
        else if (isLast || now.isLast) return seen.size;
        else await press('Tab');
        await stillHeld(`after ${name}`);
    }
    return seen.size;
}

test('every button of every page', async () => {
    for (const at of addresses(call, 'elements__getElement')) {
        assert.ok((await pressAll(at)) > 0, at);
    }
});

/**
 * Does what leads to a filter, and waits until its rows are there and those to come are told: what the list brings is not new.
 * @param {string} q @param {() => Promise<void>} act
 */
async function filterBy(q, act) {
    const listed = page.waitForResponse(response => {
        const { pathname, searchParams } = new URL(response.url());
        return pathname.endsWith('/admin/v1/calls') && (searchParams.get('q') ?? '') === q;
    });
    await act();
    await listed;
    await page.locator('.live', { hasText: /^Live$/u }).waitFor();
    await page.locator('.calls tbody tr[id]').first().waitFor();
}

test('tabs and filters of Traffic, and rows that come meanwhile', async () => {
    await goBy('t', 'Traffic');
    await tabTo(page, page.locator('#filter'));
    await filterBy('tool:close_ticket', () => page.keyboard.type('tool:close_ticket'));
    await tabTo(page, page.getByRole('grid'));
    await press('j');
    await page.locator('.msg').first().waitFor();
    await press('w');
    await press('n');
    await stillHeld('a change');
    assert.ok(await isIn('.call'));
    await press('j');
    await stillHeld('the next call');
    await tabTo(page, page.getByRole('tab', { selected: true }));
    for (let n = 0; n < 6; n++) {
        await press('ArrowRight');
        await stillHeld(`tab ${n}`);
        assert.ok(await isIn('[role="tab"][aria-selected="true"]'));
    }
    await press('Escape');
    await page.locator('.call').waitFor({ state: 'detached' });
    await stillHeld('closed');
    assert.ok(await isIn('.calls'), 'the focus is in the table again');
    await tabTo(page, page.locator('#filter'));
    await page.keyboard.type(' client:nobody');
    await tabTo(page, page.getByRole('button', { name: 'Clear the filter' }));
    await filterBy('', () => press('Enter'));
    await stillHeld('the filter is cleared');
    await tabTo(page, page.getByRole('grid'));
    await press('j');
    const client = await clientOf('2026-07-28', { name: 'hurry' });
    for (let n = 0; n < 3; n++) await client.call('elements__getElement', { name: 'Fe' });
    await tabTo(page, page.getByRole('button', { name: '3 new' }));
    await press('Enter');
    await page.locator('.calls tbody tr', { hasText: 'hurry' }).first().waitFor();
    await stillHeld('new rows are shown');
    await tabTo(page, page.getByRole('grid'));
    await client.call('elements__getElement', { name: 'Au' });
    await stillHeld('a row came');
    await press('f');
    await heading('Call');
    await stillHeld('the call as the whole page');
    await press('Escape');
    await heading('Traffic');
    await stillHeld('back');
});

test('rows that are taken away: sessions and questions', async () => {
    await goBy('e', 'Sessions');
    for (const name of ['leaver', 'guest']) await clientOf('2025-11-25', { name });
    const row = name => page.locator('main tbody tr', { hasText: name });
    await tabTo(page, row('leaver').getByRole('button', { name: /^End session/u }));
    const { items } = await api('sessions?limit=500');
    await api(`sessions/${items.find(one => one.client.name === 'leaver').id}`, { method: 'DELETE' }).catch(() => {});
    await row('leaver').waitFor({ state: 'detached' });
    await stillHeld('the row is gone');
    assert.ok(await isIn('main table'), 'the focus is in the table');
    await tabTo(page, row('guest').getByRole('button', { name: /^End session/u }));
    await press('Enter');
    await page.locator('dialog[open]').waitFor();
    await press('Enter');
    await row('guest').waitFor({ state: 'detached' });
    await stillHeld('a session was ended');
    await goBy('q', 'Questions');
    const client = await clientOf('2026-07-28', { name: 'asker', answer: undefined });
    await client.call('tickets__close_ticket', { ticket: 'OPS-9' });
    await tabTo(page, row('asker').getByRole('button', { name: 'Cancel call' }));
    await press('Enter');
    await page.locator('dialog[open]').waitFor();
    await press('Enter');
    await row('asker').waitFor({ state: 'detached' });
    await stillHeld('a call was cancelled');
});

test('panels, forms and strips that go by themselves', async () => {
    await goBy('c', 'Configuration');
    await tabTo(page, page.getByRole('button', { name: 'Add a server' }));
    await press('Enter');
    await page.getByLabel(/^An address/u).waitFor();
    await stillHeld('the panel is open');
    await page.keyboard.type('https://example.com/mcp');
    await tabTo(page, page.getByRole('button', { name: 'Check' }));
    await press('Enter');
    await page.locator('.tag', { hasText: /^valid$/u }).waitFor();
    await stillHeld('checked');
    await tabTo(page, page.getByRole('button', { name: 'Close' }));
    await press('Enter');
    await stillHeld('the panel is closed');
    assert.match((await stopHere()).name, /Add a server/u);
    await visit(page, '/try/support/tickets__close_ticket');
    await tabTo(page, page.getByLabel('Arguments, as they are sent'));
    await press('Control+a');
    await page.keyboard.type('{"ticket": "OPS-112"}');
    await tabTo(page, page.getByRole('button', { name: /^Run/u }));
    await press('Enter');
    await page.locator('dialog[open]').waitFor();
    await press('Enter');
    await page.locator('main').getByRole('button', { name: 'Accept' }).waitFor();
    await stillHeld('it asks');
    const confirm = page.getByRole('checkbox').first();
    await tabTo(page, confirm);
    await press('Space');
    await tabTo(page, page.getByRole('button', { name: 'Accept' }));
    await press('Enter');
    await page.getByRole('region', { name: 'Outcome' }).waitFor();
    await stillHeld('it was answered');
    await page.route('**/admin/v1/live**', route => route.abort());
    await goBy('s', 'Servers');
    await page.getByText(/Not live since/u).waitFor();
    await tabTo(page, page.getByRole('button', { name: 'Try now' }));
    await page.unroute('**/admin/v1/live**');
    await press('Enter');
    await page.locator('.live', { hasText: 'Live' }).waitFor();
    await page.getByText(/Not live since/u).waitFor({ state: 'detached' });
    await stillHeld('the strip is gone');
});
