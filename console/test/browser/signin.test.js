// Signing in where callers have credentials of their own, and some of them are operators.

import assert from 'node:assert/strict';
import { after, test } from 'node:test';
import { clientOf, mcp } from './office.js';
import { checkAxe, finish, open, page_url, until } from './setup.js';

after(finish);

/** @param {any} page @param {string} value */
async function signIn(page, value) {
    await page.getByLabel('Key').fill(value);
    await page.keyboard.press('Enter');
}

test('a wrong key and a caller who is no operator are refused, with the reason', async () => {
    const page = await open();
    await page.goto(`${page_url}#/servers`);
    for (const value of ['not-a-key', 'token-of-bob-who-calls']) {
        await signIn(page, value);
        await until(async () => (await page.locator('#why').textContent()) !== '', 'the refusal is told');
        await page.getByRole('heading', { name: 'Sign in to the console' }).waitFor();
    }
    await page.context().close();
});

test('a caller who may look looks, and one who may act acts', async () => {
    const page = await open();
    await page.goto(`${page_url}#/servers/tickets`);
    await signIn(page, 'token-of-lou-who-looks');
    await page.getByRole('heading', { name: 'tickets', level: 1 }).waitFor();
    await page.getByText('Signed in as').waitFor();
    await page.getByRole('tab', { name: /^Tools/u }).waitFor();
    assert.equal(await page.getByRole('button', { name: 'Reconnect' }).count(), 0, 'looking is not acting');
    await page.context().close();
    const other = await open();
    await other.goto(`${page_url}#/servers/tickets`);
    await signIn(other, 'token-of-ann-who-acts');
    await other.getByRole('button', { name: 'Reconnect' }).waitFor();
    await other.context().close();
});

test('requests without a message are among everything, and no calls', async () => {
    const page = await open();
    await page.goto(`${page_url}#/traffic`);
    await signIn(page, 'token-of-ann-who-acts');
    await page.locator('.live', { hasText: 'Live' }).waitFor();
    assert.equal((await fetch(mcp(), { method: 'POST', body: '{}' })).status, 401);
    const headers = { authorization: 'Bearer token-of-bob-who-calls' };
    const listener = await clientOf('2025-11-25', { name: 'listener', headers });
    const accept = { accept: 'text/event-stream', 'mcp-session-id': listener.session };
    const stop = new AbortController();
    const stream = await fetch(mcp(), { headers: { ...headers, ...accept }, signal: stop.signal });
    assert.equal(stream.status, 200);
    await listener.call('elements__getElement', { name: 'Fe' });
    const rows = page.locator('.calls tbody tr .what');
    await page.getByRole('button', { name: 'Everything' }).click();
    for (const text of ['POST /mcp', 'GET /mcp', 'elements__getElement'])
        await rows.filter({ hasText: text }).waitFor();
    await page.getByRole('button', { name: 'Calls', exact: true }).click();
    await rows.filter({ hasText: 'initialize' }).waitFor({ state: 'detached' });
    assert.deepEqual(await rows.allTextContents(), ['tools/call elements__getElement']);
    stop.abort();
    await page.context().close();
});

for (const colorScheme of ['light', 'dark']) {
    test(`everybody can sign in, in ${colorScheme}`, async () => {
        const page = await open({ colorScheme });
        await page.goto(page_url);
        await page.getByRole('heading', { name: 'Sign in to the console' }).waitFor();
        await checkAxe(page, 'sign-in');
        await page.locator(':focus').and(page.getByLabel('Key')).waitFor();
        await page.keyboard.type('not-a-key');
        await page.keyboard.press('Enter');
        await until(async () => (await page.locator('#why').textContent()) !== '', 'the refusal is told');
        await checkAxe(page, 'sign-in, refused');
        await page.context().close();
    });
}
