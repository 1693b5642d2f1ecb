// Jobs by keyboard alone, focus, history, narrow windows, forced colours.

import assert from 'node:assert/strict';
import { after, test } from 'node:test';
import { answer } from './canned.js';
import { answerWith, checkAxe, finish, open, PAGES, pressInTurn, until, visit } from './setup.js';

after(finish);

/** @param {any} page @param {string} name */
const heading = (page, name) => page.getByRole('heading', { name, level: 1 }).waitFor();

test('g and a letter go to every page', async () => {
    const page = await open();
    await answerWith(page);
    await visit(page, '/');
    for (const [letter, name] of [
        ['t', 'Traffic'],
        ['q', 'Questions'],
        ['s', 'Servers'],
        ['g', 'Groups'],
        ['e', 'Sessions'],
        ['b', 'Bridge'],
        ['y', 'Try a tool'],
        ['c', 'Configuration'],
        ['n', 'Cluster'],
        ['o', 'Overview']
    ]) {
        await pressInTurn(page, 'g', letter);
        await heading(page, name);
    }
    await page.context().close();
});

test('a call is found, opened, read, and left by keys; back and reload restore it', async () => {
    const page = await open();
    await answerWith(page);
    await visit(page, '/traffic');
    await page.waitForSelector('.calls tbody tr');
    await page.locator('#filter').focus();
    await page.keyboard.type('tool:close_ticket');
    await until(
        async () => (await page.locator('.calls tbody tr').first().textContent()).includes('close_ticket'),
        'the filter is applied'
    );
    await page.keyboard.press('Escape');
    await page.evaluate(() => /** @type {HTMLElement} */ (document.activeElement).blur());
    await page.keyboard.press('j');
    await page.waitForSelector('.wires .msg');
    await page.keyboard.press('w');
    assert.equal(await page.evaluate(() => document.activeElement?.hasAttribute('data-message')), true);
    await page.keyboard.press('n');
    assert.equal(await page.evaluate(() => document.activeElement?.hasAttribute('data-change')), true);
    const opened = page.url();
    await page.reload();
    await page.waitForSelector('.wires .msg');
    assert.equal(page.url(), opened);
    await page.keyboard.press('f');
    await heading(page, 'Call');
    await page.goBack();
    await page.waitForSelector('tr[aria-selected="true"]');
    await page.keyboard.press('Escape');
    await page.waitForSelector('.wires', { state: 'detached' });
    await page.context().close();
});

test('the palette finds a server, and a dialog gives focus back', async () => {
    const page = await open();
    await answerWith(page);
    await visit(page, '/');
    await page.keyboard.press('/');
    await page.locator('dialog[open] input:focus').waitFor();
    await page.keyboard.type('warehouse');
    await page
        .locator('[role="option"]', { has: page.locator('.kind', { hasText: /^server$/u }) })
        .first()
        .waitFor();
    await checkAxe(page, 'palette');
    await page.keyboard.press('Enter');
    await heading(page, 'warehouse');
    await visit(page, '/sessions');
    const end = page.getByRole('button', { name: /^End session/u }).first();
    await end.focus();
    await page.keyboard.press('Enter');
    await page.waitForSelector('dialog[open]');
    await checkAxe(page, 'dialog');
    await page.keyboard.press('Escape');
    await page.waitForSelector('dialog', { state: 'detached' });
    assert.equal(await end.evaluate(element => element === document.activeElement), true);
    await page.context().close();
});

test('"Why not?" is asked and answered by keys', async () => {
    const page = await open();
    await answerWith(page);
    await visit(page, '/groups/support');
    await page.getByLabel('Why is').focus();
    await page.keyboard.type('tickets__clsoe_ticket');
    await page.keyboard.press('Enter');
    await page.getByText('it has close_ticket').waitFor();
    await page.context().close();
});

test('a tool is tried, asked and answered by keys', async () => {
    const page = await open();
    let state = 'asking';
    const sent = [];
    page.on('request', request => {
        if (request.method() === 'POST') sent.push([new URL(request.url()).pathname, request.postData()]);
    });
    await answerWith(page, path => {
        if (path === 'try') return { status: 202, body: { try: 't1', call: null } };
        if (path === 'try/t1/answer') {
            state = 'done';
            return { status: 204, body: null };
        }
        if (path === 'try/t1') {
            return {
                status: 200,
                body: {
                    try: 't1',
                    call: null,
                    state,
                    group: 'support',
                    server: null,
                    method: 'tools/call',
                    name: 'x',
                    revision: '2026-07-28',
                    started: new Date().toISOString(),
                    took_us: 1,
                    notifications: [],
                    questions:
                        state === 'asking'
                            ? [
                                  {
                                      id: 'q',
                                      method: 'elicitation/create',
                                      params: {
                                          message: 'Close it?',
                                          requestedSchema: {
                                              type: 'object',
                                              properties: { confirm: { type: 'boolean' } }
                                          }
                                      }
                                  }
                              ]
                            : [],
                    result: state === 'done' ? '{"content":[{"type":"text","text":"<b>closed</b>"}]}' : null,
                    error: null
                }
            };
        }
        return answer(path);
    });
    await visit(page, '/try/support/tickets__close_ticket');
    await page.getByLabel('Arguments, as they are sent').fill('{"ticket": "OPS-1", "n": 12345678901234567890}');
    await page.keyboard.press('Control+Enter');
    await page.getByText('Close it?').waitFor();
    assert.ok(sent[0][1].includes('12345678901234567890'));
    await page.getByRole('button', { name: 'Accept' }).focus();
    await page.keyboard.press('Enter');
    await page.getByText('<b>closed</b>').waitFor();
    await page.context().close();
});

test('single keys can be turned off', async () => {
    const page = await open();
    await answerWith(page);
    await visit(page, '/');
    await page.keyboard.press('?');
    await page.getByLabel('Keys without Ctrl act').uncheck();
    await page.keyboard.press('Escape');
    await page.keyboard.press('/');
    assert.equal(await page.locator('dialog[open]').count(), 0);
    await page.context().close();
});

test('at 320 pixels nothing but wires and tables is wider than the window', async () => {
    const page = await open({ viewport: { width: 320, height: 640 } });
    await answerWith(page);
    for (const [name, at] of Object.entries(PAGES)) {
        await visit(page, at);
        await page.waitForFunction(() => !document.querySelector('.bones'));
        const wide = await page.evaluate(() => document.documentElement.scrollWidth);
        assert.ok(wide <= 320, `${name} is ${wide} wide`);
    }
    await page.context().close();
});

test('forced colours, and motion only where it is wanted', async () => {
    const page = await open({ forcedColors: 'active' });
    await answerWith(page);
    for (const at of ['/', '/traffic?open=rialto-1.rv']) {
        await visit(page, at);
        await page.waitForSelector('main .dot');
        await checkAxe(page, `forced colours ${at}`);
    }
    assert.equal(
        await page.evaluate(
            () => document.getAnimations().filter(one => one.effect?.getComputedTiming().duration !== 0).length
        ),
        0
    );
    await page.context().close();
});
