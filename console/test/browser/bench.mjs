// How soon pages of a large gateway are painted, and how soon they answer a key: bench.mjs, with RIALTO_LINK of a gateway
// that keeps all calls. Prints medians and the worst; whether they are good is for the reader to say.

import { Client } from './clients.js';
import { api, mcp } from './office.js';
import { browser, open, until, visit } from './setup.js';

const [SERVERS, CALLS, AT_ONCE, LOADS] = [100, 10_000, 16, 9];
/** Rows that Traffic keeps in the page. */
const KEPT_ROWS = 5000;
const [PAINT_LIMIT, KEY_LIMIT] = [300, 50];

/** Makes the calls that Traffic shows, of which some fail. */
async function makeCalls() {
    let left = CALLS;
    const work = async () => {
        const client = await Client.open(mcp(), '2026-07-28', { name: 'bench', version: '1' });
        while (left-- > 0) {
            const name = left % 50 ? 'Fe' : 'no such element';
            await client.call(`server${1 + (left % (SERVERS - 1))}__getElement`, { name });
        }
    };
    await Promise.all(Array.from({ length: AT_ONCE }, work));
}

const sorted = (/** @type {number[]} */ times) => times.toSorted((a, b) => a - b);
const median = (/** @type {number[]} */ times) => sorted(times)[Math.floor(times.length / 2)];
const ms = (/** @type {number} */ time) => `${time.toFixed(1)} ms`.padStart(10);

/** @param {string} what @param {number[]} times @param {string} [more] */
function tell(what, times, more = '') {
    console.log(`  ${what.padEnd(34)}${ms(median(times))}${ms(Math.max(...times))}${more}`);
}

const PAGES = {
    '/': '.panel tbody td:not([colspan])',
    '/traffic': '.calls tbody tr[id]',
    '/servers': 'tbody td:not([colspan])',
    '/servers/many': '.server-tab tbody td:not([colspan])',
    '/groups/default': '.group-tab tbody td:not([colspan])'
};

/** A page in a browser that has nothing of it yet. @param {string} at @param {string} shown Its first row. @returns {Promise<number[]>} First paint, and its rows. */
async function load(at, shown) {
    const page = await open();
    await visit(page, at);
    await page.waitForSelector(shown);
    const times = await page.evaluate(async () => {
        const rows = await new Promise(resolve => requestAnimationFrame(resolve));
        return [performance.getEntriesByName('first-contentful-paint')[0].startTime, rows];
    });
    await page.context().close();
    return times;
}

/** Measures from a key to the end of the frame in which the page has changed. */
function watchKeys() {
    globalThis.answered = [];
    globalThis.expectChange = state => {
        const before = state();
        const wait = began => {
            if (state() === before) return requestAnimationFrame(() => wait(began));
            const { port1, port2 } = new MessageChannel();
            port1.onmessage = () => globalThis.answered.push(performance.now() - began);
            return port2.postMessage('');
        };
        // Asked in a frame, the page is as it is painted then; the message comes after that.
        addEventListener('keydown', ({ timeStamp }) => requestAnimationFrame(() => wait(timeStamp)), {
            capture: true,
            once: true
        });
    };
}

const STATES = {
    chosen: () => document.querySelector('tr[aria-selected="true"]')?.id,
    count: () => document.querySelector('[role="grid"]')?.getAttribute('aria-rowcount') + location.hash,
    dialog: () => document.querySelectorAll('dialog[open]').length,
    title: () => document.querySelector('h1')?.textContent
};

/** @param {any} page @param {string} what @param {string[]} keys @param {keyof typeof STATES} state That each of them changes. */
async function press(page, what, keys, state) {
    await page.evaluate(() => globalThis.answered.splice(0));
    for (const [n, key] of keys.entries()) {
        await page.evaluate(`expectChange(${STATES[state]})`);
        await page.keyboard.press(key);
        await page.waitForFunction(count => globalThis.answered.length === count, n + 1);
    }
    tell(what, await page.evaluate(() => globalThis.answered));
}

const times = (/** @type {number} */ count, /** @type {string} */ key) => Array(count).fill(key);

/** Keys of a table with as many rows as are kept. */
async function pressKeys() {
    const page = await open();
    await page.addInitScript(watchKeys);
    await visit(page, '/traffic');
    const grid = page.locator('.calls');
    await until(async () => {
        await grid.evaluate(element => element.scrollTo(0, element.scrollHeight));
        return (await page.locator('[role="grid"]').getAttribute('aria-rowcount')) === String(KEPT_ROWS + 1);
    }, 'all rows are there');
    await grid.evaluate(element => element.scrollTo(0, 0));
    await press(page, 'j: next call, with both wires', times(20, 'j'), 'chosen');
    await press(page, 'e: next failure', times(10, 'e'), 'chosen');
    await press(page, '?: keys', ['?', 'Escape', '?', 'Escape'], 'dialog');
    await press(page, '/: find, and close', ['/', 'Escape', '/', 'Escape'], 'dialog');
    await page.keyboard.press('Escape');
    await page.locator('#filter').focus();
    await press(
        page,
        'letters of a filter',
        [...'server:server7 outcome:ok'].filter(letter => letter !== ' '),
        'count'
    );
    await page.context().close();
}

await until(async () => {
    const { items } = await api('servers?limit=500');
    return items.length === SERVERS && items.every(({ phase }) => phase === 'ready');
}, 'the servers are there');
await makeCalls();
console.log(`  ${'first paint'.padEnd(34)}    median     worst  rows, median (limit ${PAINT_LIMIT} ms)`);
for (const [at, shown] of Object.entries(PAGES)) {
    const all = [];
    for (let n = 0; n < LOADS; n++) all.push(await load(at, shown));
    tell(
        at,
        all.map(([paint]) => paint),
        ms(median(all.map(([, rows]) => rows)))
    );
}
console.log(`  ${'a key answered'.padEnd(34)}    median     worst  (limit ${KEY_LIMIT} ms)`);
await pressKeys();
await browser.close();
