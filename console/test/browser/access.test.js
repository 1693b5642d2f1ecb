// The key, other origins, and what goes over the wire, with the gateway's own API.

import assert from 'node:assert/strict';
import { createServer } from 'node:http';
import { after, test } from 'node:test';
import { browser, finish, key, link, open, page_url, until, visit } from './setup.js';

after(finish);

test('the key leaves the address, and is in no cookie and no lasting storage', async () => {
    const page = await open();
    const referers = [];
    page.on('request', request => {
        if (request.headers().referer) referers.push(request.headers().referer);
    });
    await page.goto(link.href);
    await page.waitForSelector('nav.side');
    assert.equal(new URL(page.url()).hash, '#/');
    assert.ok(
        !(await page.evaluate(() => JSON.stringify([document.cookie, { ...localStorage }, history.state]))).includes(
            key
        )
    );
    assert.deepEqual((await page.context().cookies()).length, 0);
    assert.ok(referers.every(referer => !referer.includes(key)));
    await page.reload();
    await page.waitForSelector('nav.side');
    await page.context().close();
});

test('a second tab gets the key from the first', async () => {
    const page = await open();
    await visit(page, '/');
    const second = await page.context().newPage();
    await second.goto(`${page_url}#/servers`);
    await second.getByRole('heading', { name: 'Servers', level: 1 }).waitFor();
    await page.context().close();
});

/** Another tab that has no key itself, and hands over the key when it is told to. @param {any} context */
async function lateTab(context) {
    const tab = await context.newPage();
    await tab.goto(`${page_url}#/`);
    await tab.getByRole('heading', { name: 'Sign in to the console' }).waitFor();
    return () => tab.evaluate(late => new BroadcastChannel('rialto.console').postMessage({ key: late }), key);
}

test('a key that another tab hands over late is taken up by the sign-in page', async () => {
    const page = await open();
    const handOver = await lateTab(page.context());
    await page.goto(`${page_url}#/servers`);
    await page.getByRole('heading', { name: 'Sign in to the console' }).waitFor();
    await handOver();
    await page.getByRole('heading', { name: 'Servers', level: 1 }).waitFor();
    await page.context().close();
});

test('a key that comes while one asks without it is kept', async () => {
    const page = await open();
    const handOver = await lateTab(page.context());
    await page.route(
        '**/admin/v1/me',
        async route => {
            await handOver();
            await page.waitForFunction(() => sessionStorage.getItem('rialto.key'));
            await route.continue();
        },
        { times: 1 }
    );
    await page.goto(`${page_url}#/servers`);
    await page.getByRole('heading', { name: 'Servers', level: 1 }).waitFor();
    await until(() => page.evaluate(() => Boolean(sessionStorage.getItem('rialto.key'))), 'the key is kept');
    await page.getByRole('navigation', { name: 'Console' }).getByText('Signed in as').waitFor();
    await page.context().close();
});

test('without a key, or with a wrong one, the sign-in page asks and goes back to where one was', async () => {
    const page = await open();
    await page.goto(`${page_url}#/config`);
    const field = page.getByLabel('Key');
    await until(() => field.evaluate(element => element === document.activeElement), 'the field has the focus');
    await page.keyboard.type('wrong');
    await page.keyboard.press('Enter');
    await until(async () => (await page.locator('#why').textContent()) !== '', 'the refusal is told');
    await field.fill(link.href);
    await page.keyboard.press('Enter');
    await page.getByRole('heading', { name: 'Configuration', level: 1 }).waitFor();
    await page.context().close();
});

test('the page is live over the real stream, and says when it is not', async () => {
    const page = await open();
    await visit(page, '/');
    await page.locator('.live', { hasText: 'Live' }).waitFor();
    await page.context().close();
});

test('a page of another port can neither read, act nor frame', async () => {
    const server = createServer((request, response) => {
        response.setHeader('content-type', 'text/html');
        response.end('<!doctype html><title>other</title><body>');
    });
    await new Promise(resolve => server.listen(0, '127.0.0.1', () => resolve(undefined)));
    const { port } = /** @type {any} */ (server.address());
    for (const host of ['127.0.0.1', 'localhost']) {
        const context = await browser.newContext();
        const page = await context.newPage();
        await page.goto(`http://${host}:${port}/`);
        const tried = await page.evaluate(
            async ({ origin, key: known }) => {
                const attempt = async (path, init) => {
                    try {
                        const response = await fetch(origin + path, init);
                        return `${response.type} ${response.status}`;
                    } catch {
                        return 'refused';
                    }
                };
                const authorization = `Bearer ${known}`;
                const frame = document.createElement('iframe');
                frame.src = `${origin}/console`;
                document.body.append(frame);
                await new Promise(resolve => {
                    frame.onload = resolve;
                    setTimeout(resolve, 3000);
                });
                let framed = 'refused';
                try {
                    framed = frame.contentDocument?.body?.textContent || 'refused';
                } catch {
                    /* Another origin: nothing can be read. */
                }
                return {
                    read: await attempt('/admin/v1/me', { headers: { authorization } }),
                    bare: await attempt('/admin/v1/me'),
                    act: await attempt('/admin/v1/servers/elements/reconnect', {
                        method: 'POST',
                        headers: { authorization, 'content-type': 'application/json' },
                        body: '{}'
                    }),
                    form: await attempt('/admin/v1/config/check', { method: 'POST', mode: 'no-cors', body: 'text=1' }),
                    live: await attempt('/admin/v1/live?topics=call', { headers: { authorization } }),
                    framed
                };
            },
            { origin: link.origin, key }
        );
        assert.equal(tried.read, 'refused');
        assert.equal(tried.bare, 'refused');
        assert.equal(tried.act, 'refused');
        assert.equal(tried.live, 'refused');
        assert.ok(['refused', 'opaque 0'].includes(tried.form), tried.form);
        assert.equal(tried.framed, 'refused');
        assert.ok(
            page.frames().every(frame => !frame.url().startsWith(link.origin)),
            'no frame of the console'
        );
        await context.close();
    }
    server.close();
});
