// Signing in where callers have credentials of their own, and some of them are operators.

import assert from 'node:assert/strict';
import { after, test } from 'node:test';
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
