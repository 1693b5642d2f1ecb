// A browser, and pages of a running gateway. RIALTO_LINK is what `rialto console` prints, CHROMIUM the browser.

import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';
import { chromium } from 'playwright-core';
import { answer } from './canned.js';

const FLAGS = [
    '--no-sandbox',
    '--disable-gpu',
    '--disable-dev-shm-usage',
    '--no-first-run',
    '--disable-background-networking',
    '--disable-component-update',
    '--disable-sync'
];
export const link = new URL(process.env.RIALTO_LINK ?? 'http://127.0.0.1:3001/console#key=none');
export const page_url = new URL('/console', link).href;
export const key = link.hash.replace('#key=', '');
const axe = readFileSync(new URL('../node_modules/axe-core/axe.min.js', import.meta.url), 'utf8');
export const STEP_TIMEOUT = Number(process.env.STEP_TIMEOUT ?? 60_000);

export const browser = await chromium.launch({
    executablePath: process.env.CHROMIUM,
    headless: true,
    args: FLAGS,
    timeout: STEP_TIMEOUT
});
/** What no page may do, over all tests of a file. */
export const trouble = {
    policy: /** @type {string[]} */ ([]),
    foreign: /** @type {string[]} */ ([]),
    cookies: /** @type {string[]} */ ([]),
    errors: /** @type {string[]} */ ([]),
    dialogs: /** @type {string[]} */ ([])
};

/** Watches a page for what it may not do. */
function watch(page) {
    page.on('pageerror', error => trouble.errors.push(String(error.stack ?? error)));
    page.on('dialog', dialog => {
        trouble.dialogs.push(dialog.message());
        dialog.dismiss();
    });
    page.on('console', message => {
        if (/Content Security Policy|Trusted/iu.test(message.text())) trouble.policy.push(message.text());
    });
    page.on('request', request => {
        if (!/^(?:data|blob):/u.test(request.url()) && new URL(request.url()).origin !== link.origin)
            trouble.foreign.push(request.url());
    });
    page.on('response', async response => {
        if ((await response.allHeaders().catch(() => ({})))['set-cookie']) trouble.cookies.push(response.url());
    });
}

/** @param {any} [options] Of the context. */
export async function open(options = {}) {
    const context = await browser.newContext({
        viewport: { width: 1440, height: 900 },
        reducedMotion: 'reduce',
        permissions: ['clipboard-read', 'clipboard-write'],
        ...options
    });
    context.setDefaultTimeout(STEP_TIMEOUT);
    const page = await context.newPage();
    watch(page);
    await page.addInitScript(() =>
        addEventListener('securitypolicyviolation', event =>
            console.error(`Content Security Policy: ${event.violatedDirective} ${event.blockedURI}`)
        )
    );
    return page;
}

/** Answers the API with what is given in place of the gateway. @param {any} page @param {(path: string, query: URLSearchParams) => any} [give] Null leaves a request to the gateway. */
export async function answerWith(page, give = answer) {
    await page.route('**/admin/v1/**', async route => {
        const { pathname, searchParams } = new URL(route.request().url());
        const path = pathname.replace('/admin/v1/', '');
        const given = path === 'live' ? { status: 200, stream: true } : give(path, searchParams);
        if (!given) return route.continue();
        if (given.abort) return route.abort();
        if (given.wait) return undefined;
        // A stream that ends at once would be told as lost; this one waits for its answer.
        if (given.stream) return undefined;
        return route.fulfill({
            status: given.status,
            contentType: 'application/json',
            body: JSON.stringify(given.body)
        });
    });
}

/** @param {any} page @param {string} at Address within the console. */
export async function visit(page, at) {
    await page.goto(`${page_url}#key=${key}&to=${encodeURIComponent(at)}`);
    await page.waitForSelector('h1');
}

/** Opens a row of a table whose rows move when others come or go: under a pointer there could be another one by then. @param {any} row */
export const openRow = row => row.dispatchEvent('click');

/** @param {any} page @param {string} what */
export async function checkAxe(page, what) {
    await page.evaluate(axe);
    const found = await page.evaluate(() =>
        globalThis.axe.run(document, {
            runOnly: ['wcag2a', 'wcag2aa', 'wcag21a', 'wcag21aa', 'wcag22aa', 'best-practice']
        })
    );
    assert.deepEqual(
        found.violations.map(one => `${one.id}: ${one.nodes[0].html.slice(0, 200)}`),
        [],
        what
    );
}

/** To be called at the end of a file of tests. */
export async function finish() {
    await browser.close();
    assert.deepEqual(trouble, { policy: [], foreign: [], cookies: [], errors: [], dialogs: [] });
}

/** @param {() => Promise<boolean>} holds */
export async function until(holds, what) {
    for (const end = Date.now() + STEP_TIMEOUT; Date.now() < end;) {
        if (await holds()) return;
        await new Promise(resolve => setTimeout(resolve, 50));
    }
    assert.fail(`never: ${what}`);
}

/** Goes with Tab to what is wanted. @param {any} page @param {any} wanted Locator. */
export async function tabTo(page, wanted) {
    await wanted.waitFor();
    for (let left = 120; left > 0; left--) {
        if (await wanted.evaluate(element => element === document.activeElement)) return;
        await page.keyboard.press('Tab');
    }
    assert.fail(`Tab does not come to ${wanted}`);
}

/** Presses keys one after the other, without waiting in between. @param {any} page @param {string[]} keys */
export const pressInTurn = (page, ...keys) => Promise.all(keys.map(one => page.keyboard.press(one)));

/** Goes to a list of options with Tab and chooses one with the arrows. @param {any} page @param {any} list Locator. @param {string} value */
export async function chooseByKeys(page, list, value) {
    await list.getByText(value, { exact: true }).waitFor({ state: 'attached' });
    await tabTo(page, list);
    for (let left = await list.locator('option').count(); left > 0; left--) {
        if ((await list.inputValue()) === value) return;
        await page.keyboard.press('ArrowDown');
    }
    assert.equal(await list.inputValue(), value);
}

export const PAGES = {
    overview: '/',
    traffic: '/traffic',
    opened: '/traffic?open=rialto-1.rv',
    call: '/calls/rialto-1.rv',
    timeline: '/calls/rialto-1.rv?tab=timeline',
    translation: '/calls/rialto-1.rv?tab=translation',
    questions: '/questions',
    servers: '/servers',
    server: '/servers/tickets',
    groups: '/groups',
    group: '/groups/support?why=tickets__clsoe_ticket',
    sessions: '/sessions',
    bridge: '/bridge',
    try: '/try/support/tickets__close_ticket',
    config: '/config?add=1',
    cluster: '/cluster'
};
