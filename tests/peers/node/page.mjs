// A web page of another origin whose client logs in by itself, in Chromium.
//
// Prints `listening on ORIGIN`, then takes plans on stdin, one line of JSON each: {"url", "user", "revision"?, "tools"}.
// A page in a fresh context carries each out; `user` fills in the pages of the authorization server. Prints one report per
// plan as one line of JSON.

import { createServer } from 'node:http';
import { createInterface } from 'node:readline';
import { fileURLToPath } from 'node:url';
import { build } from 'esbuild';
import { STEP_TIMEOUT, openBrowser, openPage } from './browser.mjs';

const MAX_STEPS = 30;
const HTML = '<!doctype html><title>client</title><body><script type="module" src="/client.js"></script></body>';

const bundle = await build({
    entryPoints: [fileURLToPath(new URL('page_client.mjs', import.meta.url))],
    bundle: true,
    format: 'esm',
    platform: 'browser',
    write: false,
    logLevel: 'error'
});
const script = bundle.outputFiles[0].text;

const server = createServer((request, response) => {
    const isScript = request.url === '/client.js';
    response.setHeader('content-type', isScript ? 'text/javascript' : 'text/html');
    response.end(isScript ? script : HTML);
});
await new Promise(resolve => server.listen(0, '127.0.0.1', resolve));
// A name of this machine to the browser, which grants it what https gets, and a foreign one to the gateway.
const origin = `http://app.localhost:${server.address().port}`;

const browser = await openBrowser();
console.log(`listening on ${origin}`);

/** Fills in the pages of the authorization server until the client has something to report. */
async function carryOut({ user, ...plan }) {
    const page = await openPage(browser);
    await page.goto(`${origin}/#${encodeURIComponent(JSON.stringify(plan))}`);
    const pages = [];
    for (let step = 0; step < MAX_STEPS; step++) {
        await page.locator('#report, form[method=post] button[type=submit]').first().waitFor();
        const report = page.locator('#report');
        if (await report.count()) {
            const outcome = JSON.parse(await report.textContent());
            await page.context().close();
            return { ...outcome, pages };
        }
        const name = page.locator('input[name=login]');
        const isLogin = (await name.count()) > 0;
        pages.push(isLogin ? 'login' : 'consent');
        if (isLogin) {
            await name.fill(user);
            await page.locator('input[name=password]').fill('any');
        }
        const left = page.waitForEvent('framenavigated', { timeout: STEP_TIMEOUT });
        await page.locator('form[method=post] button[type=submit]').first().click();
        await left;
    }
    throw new Error(`no report after ${MAX_STEPS} pages; the last is ${page.url()}`);
}

for await (const line of createInterface({ input: process.stdin })) {
    console.log(JSON.stringify(await carryOut(JSON.parse(line))));
}
await browser.close();
server.close();
server.closeAllConnections();
