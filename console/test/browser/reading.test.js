// Reading: nothing moves under one's eyes, addresses restore everything, every job is done by keyboard, and nothing is told by
// colour alone. With the gateway's own answers.

import assert from 'node:assert/strict';
import { after, before, test } from 'node:test';
import { addresses, api, callOf, clientOf, mcp, watch, work } from './office.js';
import { chooseByKeys, finish, open, page_url, pressInTurn, tabTo, until, visit } from './setup.js';

after(finish);
let call;

before(async () => {
    await watch();
    await work();
    await until(async () => (await api('calls?q=client:old-ide&limit=500')).items.length > 7, 'the calls are recorded');
    call = await callOf('tickets__close_ticket', '2026-07-28');
});

const heading = (page, name) => page.getByRole('heading', { name, level: 1 }).waitFor();

test('new rows never move what one reads', async () => {
    const page = await open();
    await visit(page, `/traffic?open=${call.id}`);
    const chosen = page.locator('tr[aria-selected="true"]');
    await chosen.waitFor();
    await page.locator('.live', { hasText: 'Live' }).waitFor();
    const place = () => chosen.evaluate(element => [element.getBoundingClientRect().top, element.textContent]);
    const before = await place();
    const client = await clientOf('2026-07-28', { name: 'hurry' });
    for (let n = 0; n < 12; n++) await client.call('elements__getElement', { name: 'Fe' });
    await page.getByRole('button', { name: '12 new' }).waitFor();
    assert.deepEqual(await place(), before);
    await page.keyboard.press('Escape');
    await page.locator('section.call').waitFor({ state: 'detached' });
    const fresh = page.getByRole('button', { name: '12 new' });
    if (await fresh.count()) await fresh.click();
    await page.locator('.calls tbody tr', { hasText: 'hurry' }).first().waitFor();
    // Scrolled, the table is held as well.
    await page.locator('.calls').evaluate(element => element.scrollTo(0, 300));
    const seen = () =>
        page
            .locator('.calls')
            .evaluate(box =>
                [...box.querySelectorAll('tbody tr[id]')].map(row => row.textContent + row.getBoundingClientRect().top)
            );
    await until(async () => page.locator('.calls').evaluate(box => box.scrollTop > 0), 'the table is scrolled');
    await page.waitForFunction(
        () => document.querySelector('tbody tr.pad') || document.querySelector('.calls').scrollTop > 0
    );
    const rows = await seen();
    await client.call('elements__getElement', { name: 'Fe' });
    await page.getByRole('button', { name: '1 new' }).waitFor();
    assert.deepEqual(await seen(), rows);
    await page.context().close();
});

test('back, forward and reload restore page, filter, opened call and tab', async () => {
    const page = await open();
    await visit(page, '/traffic?q=tool%3Aclose_ticket');
    await page.locator('.calls tbody tr[id]').first().click();
    await page.locator('.msg').first().waitFor();
    await page.getByRole('tab', { name: 'Headers' }).click();
    const state = async () => [
        page.url(),
        await page.locator('#filter').inputValue(),
        await page.locator('tr[aria-selected="true"]').textContent(),
        await page.getByRole('tab', { selected: true }).textContent()
    ];
    const before = await state();
    await page.reload();
    await page.locator('tr[aria-selected="true"]').waitFor();
    assert.deepEqual(await state(), before);
    await page.goBack();
    await page.locator('.call').waitFor({ state: 'detached' });
    assert.equal(await page.locator('#filter').inputValue(), 'tool:close_ticket');
    await page.goForward();
    await page.locator('tr[aria-selected="true"]').waitFor();
    assert.deepEqual(await state(), before);
    for (const [at, loaded] of /** @type {[string, RegExp][]} */ ([
        ['/servers/tickets?tab=log', /^Standard error$/u],
        ['/groups/support?as=2024-11-05&why=x', /^Tools[1-9][0-9]*$/u],
        ['/bridge?open=2026-07-28+tickets+2025-06-18', /./u]
    ])) {
        await visit(page, at);
        await page.locator('main .panel').first().waitFor();
        const text = async () => [
            page.url(),
            await page.locator('[aria-selected="true"], [aria-expanded="true"]').allTextContents()
        ];
        // Tabs are drawn before what they count.
        const shown = async () => {
            await page.waitForFunction(() => !document.querySelector('.bones'));
            return (await text())[1].some(one => loaded.test(one));
        };
        await until(shown, `${at} shows what is chosen`);
        const was = await text();
        await page.reload();
        await until(shown, `${at} shows what was chosen`);
        assert.deepEqual(await text(), was);
    }
    await page.context().close();
});

test('a hidden tab lets go of its stream, and takes it up again', async () => {
    const page = await open();
    await page.clock.install();
    await visit(page, '/');
    await page.locator('.live', { hasText: 'Live' }).waitFor();
    const ended = page.waitForEvent('requestfailed', request => request.url().includes('/live?'));
    const turn = state =>
        page.evaluate(value => {
            Object.defineProperty(document, 'visibilityState', { value, configurable: true });
            document.dispatchEvent(new Event('visibilitychange'));
        }, state);
    await turn('hidden');
    await page.clock.fastForward(31_000);
    await ended;
    await page.locator('.live', { hasText: 'Asleep' }).waitFor();
    await turn('visible');
    await page.locator('.live', { hasText: 'Live' }).waitFor();
    await page.context().close();
});

test('six tabs load', async () => {
    const first = await open();
    await visit(first, '/servers');
    const tabs = [first];
    for (let n = 1; n < 6; n++) {
        const tab = await first.context().newPage();
        await tab.goto(`${page_url}#/servers`);
        tabs.push(tab);
    }
    for (const tab of tabs) await tab.locator('tbody tr', { hasText: 'tickets' }).first().waitFor();
    await first.context().close();
});

/** @param {any} page @param {string} letter @param {string} name */
async function goTo(page, letter, name) {
    await page.evaluate(() => /** @type {HTMLElement} */ (document.activeElement).blur());
    await pressInTurn(page, 'g', letter);
    await heading(page, name);
}

test('every job is done by keyboard alone', async () => {
    const page = await open();
    const { keyboard } = page;
    await visit(page, '/');
    // What did my client send, what did the server get; show it to somebody; do it again.
    await goTo(page, 't', 'Traffic');
    await tabTo(page, page.locator('#filter'));
    await keyboard.type('tool:close_ticket client:2026-07-28');
    await until(async () => {
        const rows = await page.locator('.calls tbody tr[id]').allTextContents();
        return rows.length > 0 && rows.every(row => row.includes('close_ticket') && row.includes('2026-07-28'));
    }, 'the filter is applied');
    await keyboard.press('Tab');
    await tabTo(page, page.getByRole('grid'));
    await keyboard.press('j');
    await page.locator('.msg.s mark', { hasText: 'close_ticket' }).first().waitFor();
    await keyboard.press('w');
    await keyboard.press('n');
    assert.ok(await page.evaluate(() => document.activeElement?.hasAttribute('data-change')));
    await keyboard.press('l');
    await page.getByText('Link copied').waitFor();
    await keyboard.press('c');
    await page.getByText('curl command copied').waitFor();
    assert.match(await page.evaluate(() => navigator.clipboard.readText()), /^curl /mu);
    await keyboard.press('Shift+C');
    await page.getByText('Command copied', { exact: true }).waitFor();
    const command = await page.evaluate(() => navigator.clipboard.readText());
    assert.equal(command, `rialto call ${mcp()} tickets__close_ticket 'ticket:="OPS-112"'`);
    const shownCall = () => new URL(page.url().replace('#', '')).searchParams.get('open');
    const before = shownCall();
    await keyboard.press('r');
    const replay = page.locator('dialog[open]').getByRole('button', { name: 'Replay' });
    await tabTo(page, page.getByLabel('As the client said it'));
    await keyboard.press('ArrowDown');
    assert.ok(await page.getByLabel('As the server heard it').isChecked());
    await keyboard.press('ArrowUp');
    await tabTo(page, replay);
    await keyboard.press('Enter');
    await until(async () => (shownCall() ?? before) !== before, 'the call was made again, and is opened');
    await page.locator('.msg.c', { hasText: 'tickets__close_ticket' }).first().waitFor();
    const [again, first] = await Promise.all([shownCall(), before].map(id => api(`calls/${id}`)));
    assert.match(again.messages[0].text, /"arguments":\{"ticket":"OPS-112"\}/u);
    assert.ok(again.at > first.at, 'it is another call');
    // Why does my client not see it.
    await goTo(page, 'g', 'Groups');
    await tabTo(page, page.getByRole('link', { name: 'support' }));
    await keyboard.press('Enter');
    await heading(page, 'support');
    await tabTo(page, page.getByLabel('Why is'));
    await keyboard.type('tickets__clsoe_ticket');
    await keyboard.press('Enter');
    await page.getByText('it has "close_ticket"').waitFor();
    // Is anything broken, and what do I do; which server is slow.
    await goTo(page, 'o', 'Overview');
    await tabTo(
        page,
        page
            .locator('.todo')
            .getByRole('button', { name: /Try now|Reconnect/u })
            .first()
    );
    await keyboard.press('Enter');
    await page.getByText('Asked for').waitFor();
    await tabTo(page, page.getByRole('link', { name: 'everything' }).last());
    await keyboard.press('Enter');
    await heading(page, 'everything');
    // What a server asks, who is to answer, and for how long the call has been parked; sessions.
    const asker = await clientOf('2026-07-28', { name: 'asker', answer: undefined });
    await asker.call('tickets__close_ticket', { ticket: 'OPS-9' });
    await goTo(page, 'q', 'Questions');
    const question = page.locator('tbody tr', { hasText: 'asker' });
    await question.getByText('Close OPS-9 although 2 subtasks are open?').waitFor();
    await question.getByText(/^of \d/u).waitFor();
    await tabTo(page, question.getByRole('link', { name: 'Call' }));
    await keyboard.press('Enter');
    await heading(page, 'Call');
    await page.locator('.msg.s', { hasText: 'elicitation/create' }).first().waitFor();
    await goTo(page, 'e', 'Sessions');
    await page.locator('tbody tr').first().waitFor();
    await page.locator('.bones').first().waitFor({ state: 'detached' });
    await keyboard.press('j');
    await page.getByRole('link', { name: 'Its calls' }).waitFor();
    // Try a tool.
    await goTo(page, 'y', 'Try a tool');
    await chooseByKeys(page, page.getByLabel('call', { exact: true }), 'elements__getElement');
    await tabTo(page, page.getByLabel('Arguments, as they are sent'));
    await keyboard.press('Control+a');
    await keyboard.type('{"name": "Fe"}');
    await keyboard.press('Control+Enter');
    const outcome = page.getByRole('region', { name: 'Outcome' });
    const dialog = page.locator('dialog[open]');
    await dialog.or(outcome).first().waitFor();
    if (await dialog.count()) await keyboard.press('Enter');
    await outcome.getByText('Iron').first().waitFor();
    // Add a server.
    await goTo(page, 'c', 'Configuration');
    await tabTo(page, page.getByRole('button', { name: 'Add a server' }));
    await keyboard.press('Enter');
    await page.getByLabel(/^An address/u).waitFor();
    await tabTo(page, page.getByLabel(/^An address/u));
    await keyboard.type('https://example.com/mcp');
    await tabTo(page, page.getByRole('button', { name: 'Check' }));
    await keyboard.press('Enter');
    await page.locator('.tag', { hasText: /^valid$/u }).waitFor();
    await page.context().close();
});

test('focus is seen wherever it is, and is never lost', async () => {
    const page = await open();
    for (const at of addresses(call)) {
        await visit(page, at);
        await page.waitForFunction(() => !document.querySelector('.bones'));
        // From the top: what had the focus on the page before may have been its last place.
        await page.evaluate(() => {
            document.body.tabIndex = -1;
            document.body.focus();
            document.body.removeAttribute('tabindex');
        });
        const stops = new Set();
        for (let n = 0; n < 40; n++) {
            await page.keyboard.press('Tab');
            const stop = await page.evaluate(() => {
                const element = /** @type {HTMLElement} */ (document.activeElement);
                if (element === document.body) return null;
                const { outlineStyle, outlineWidth } = getComputedStyle(element);
                return {
                    is: element.outerHTML.slice(0, 120),
                    seen: outlineStyle !== 'none' && parseFloat(outlineWidth) >= 1
                };
            });
            if (!stop) break;
            assert.ok(stop.seen, `${at}: focus is not seen at ${stop.is}`);
            stops.add(stop.is);
        }
        assert.ok(stops.size > 8, `${at}: Tab comes to ${stops.size} places`);
    }
    await page.context().close();
});

test('tables are tables, and live regions are polite and seldom speak', async () => {
    const page = await open();
    for (const at of addresses(call)) {
        await visit(page, at);
        await page.waitForFunction(() => !document.querySelector('.bones'));
        const wrong = await page.evaluate(() => [
            ...[...document.querySelectorAll('main table')]
                .filter(table => !table.querySelector('thead th[scope]'))
                .map(table => table.outerHTML.slice(0, 100)),
            ...[...document.querySelectorAll('[aria-live]')]
                .filter(one => one.getAttribute('aria-live') !== 'polite')
                .map(one => one.outerHTML.slice(0, 100))
        ]);
        assert.deepEqual(wrong, [], at);
    }
    await visit(page, `/traffic?open=${call.id}`);
    await page.locator('.msg').first().waitFor();
    await page.locator('.live', { hasText: 'Live' }).waitFor();
    await page.evaluate(() => {
        globalThis.said = [];
        const region = document.querySelector('body .hidden[aria-live="polite"]');
        new MutationObserver(() => globalThis.said.push(region.textContent)).observe(region, {
            childList: true,
            characterData: true,
            subtree: true
        });
    });
    const client = await clientOf('2026-07-28', { name: 'talker' });
    const said = () => page.evaluate(() => globalThis.said.length);
    const start = Date.now() + 60_000;
    let calls = 0;
    // At a time of its own, however long the calls and the drawing take.
    for (const [after, sentences] of [
        [0, 1],
        [1000, 1],
        [4999, 1],
        [5000, 2],
        [9999, 2],
        [10_000, 3]
    ]) {
        await page.clock.setFixedTime(start + after);
        for (let n = 0; n < 5; n++) {
            await client.call('elements__getElement', { name: 'Fe' });
            await page.getByRole('button', { name: `${++calls} new` }).waitFor();
            // Effects of what was drawn have run after the second frame.
            await page.evaluate(async () => {
                for (let frame = 0; frame < 3; frame++) await new Promise(requestAnimationFrame);
            });
        }
        await until(async () => (await said()) >= sentences, 'new calls are told');
        assert.equal(await said(), sentences, `at most one sentence in five seconds, after ${after} ms`);
    }
    await page.context().close();
});

for (const [name, options] of Object.entries({
    '320 pixels': { viewport: { width: 320, height: 640 } },
    '200% zoom': { viewport: { width: 720, height: 450 }, deviceScaleFactor: 2 }
})) {
    test(`at ${name} nothing is cut off`, async () => {
        const page = await open(options);
        for (const at of addresses(call)) {
            await visit(page, at);
            await page.waitForFunction(() => !document.querySelector('.bones'));
            const cut = await page.evaluate(() => {
                const wide = document.documentElement.clientWidth;
                const scrolls = element => {
                    for (let up = element; up; up = up.parentElement)
                        if (/auto|scroll/u.test(getComputedStyle(up).overflowX)) return true;
                    return false;
                };
                const outside = [
                    ...document.querySelectorAll('h1, h2, h3, p, button, a, input, select, textarea, dd, dt, label')
                ].filter(element => {
                    const { left, right, width } = element.getBoundingClientRect();
                    return (
                        width > 1 &&
                        (left < -1 || right > wide + 1) &&
                        !scrolls(element) &&
                        !element.closest('.hidden, .skip, svg')
                    );
                });
                return [
                    document.documentElement.scrollWidth > wide
                        ? `the page is ${document.documentElement.scrollWidth} wide`
                        : '',
                    ...outside.map(element => element.outerHTML.slice(0, 120))
                ].filter(Boolean);
            });
            assert.deepEqual(cut, [], `${at} at ${name}`);
        }
        await visit(page, `/calls/${call.id}`);
        await page.locator('.msg').nth(1).waitFor();
        const [one, two] = await page
            .locator('.msg')
            .evaluateAll(all => all.slice(0, 2).map(element => element.getBoundingClientRect().left));
        assert.equal(one, two, 'wires stack');
        await page.context().close();
    });
}

test('no meaning by colour alone', async () => {
    const page = await open();
    for (const at of addresses(call)) {
        await visit(page, at);
        await page.waitForFunction(() => !document.querySelector('.bones'));
        const bare = await page.evaluate(() => {
            const text = element => element?.textContent?.trim() || element?.getAttribute('aria-label') || '';
            const wordless = [...document.querySelectorAll('.dot, .mark')].filter(
                element => !text(element.parentElement)
            );
            const marked = [...document.querySelectorAll('.json .l.ch, .json .l.ad, .json .l.rm')].filter(
                line => !text(line.querySelector('.sign'))
            );
            const ribbons = [...document.querySelectorAll('.bridge a')].filter(
                ribbon =>
                    !/as it is|names only|same era|across eras/u.test(text(ribbon) + ribbon.getAttribute('aria-label'))
            );
            const tags = [...document.querySelectorAll('.tag, .outcome, .count')].filter(element => !text(element));
            return [...wordless, ...marked, ...ribbons, ...tags].map(element => element.outerHTML.slice(0, 120));
        });
        assert.deepEqual(bare, [], at);
    }
    const shapes = await page.evaluate(() =>
        ['ok', 'warn', 'bad', 'wait'].map(state => {
            const dot = Object.assign(document.createElement('span'), { className: `dot ${state}` });
            document.body.append(dot);
            const { borderRadius, boxShadow, width, backgroundColor } = getComputedStyle(dot);
            return [borderRadius, boxShadow === 'none', width, backgroundColor === 'rgba(0, 0, 0, 0)'].join(' ');
        })
    );
    assert.equal(new Set(shapes).size, 4, `states have shapes of their own: ${shapes.join('; ')}`);
    await page.context().close();
});
