// Pictures of every page of a gateway at work, light and dark, into the folder that is given: screenshots.mjs FOLDER. Those of the
// documentation are among them, as console-*.png.

import { mkdirSync } from 'node:fs';
import { accept, api, callOf, clientOf, watch, work } from './office.js';
import { browser, open, page_url, until, visit } from './setup.js';

/** How long the office works, so that figures have a history. */
const WORK_TIME = 50_000;
const folder = process.argv[2];
mkdirSync(folder, { recursive: true });
await watch();
for (const end = Date.now() + WORK_TIME; Date.now() < end;) await work();
// Somebody thinks for a while before they answer, and somebody else does not answer at all.
const slowly = async () => {
    await new Promise(resolve => setTimeout(resolve, 2400));
    return accept();
};
await (
    await clientOf('2026-07-28', { answer: slowly }, 'support')
).call('tickets__close_ticket', { ticket: 'OPS-112' });
await (
    await clientOf('2026-07-28', { answer: undefined }, 'support')
).call('tickets__close_ticket', { ticket: 'OPS-7' });
await until(async () => (await api('calls?q=rounds&limit=1')).items !== null, 'calls can be asked for');
await until(async () => (await callOf('tickets__close_ticket', '2026-07-28')).rounds === 2, 'the call is recorded');
const { id } = await callOf('tickets__close_ticket', '2026-07-28');

const PAGES = {
    overview: '/',
    traffic: '/traffic',
    opened: `/traffic?open=${id}`,
    ...Object.fromEntries(
        ['wires', 'timeline', 'translation', 'headers', 'raw', 'about'].map(tab => [
            `call-${tab}`,
            `/calls/${id}?tab=${tab}`
        ])
    ),
    questions: '/questions',
    servers: '/servers',
    server: '/servers/tickets',
    'server-log': '/servers/everything?tab=log',
    'server-connections': '/servers/everything?tab=connections',
    'server-down': '/servers/search',
    groups: '/groups',
    group: '/groups/support?why=tickets__clsoe_ticket',
    sessions: '/sessions',
    bridge: '/bridge?open=2026-07-28+tickets+2025-06-18',
    try: '/try/support/tickets__close_ticket',
    config: '/config?add=1',
    cluster: '/cluster',
    gone: '/calls/none.1'
};

/** @param {any} page */
async function tryTool(page) {
    await page.getByLabel('ticket').fill('OPS-112');
    await page.getByRole('button', { name: /^Run/u }).click();
    const dialog = page.locator('dialog[open]');
    const question = page.getByRole('region', { name: 'Question' });
    await dialog.or(question).first().waitFor();
    if (await dialog.count()) await dialog.getByRole('button', { name: 'Call it' }).click();
    await question.waitFor();
}

for (const colorScheme of ['light', 'dark']) {
    const page = await open({ colorScheme });
    await page.addInitScript(() => localStorage.setItem('rialto.range', '1m'));
    for (const [name, at] of Object.entries(PAGES)) {
        await visit(page, at);
        await page.waitForFunction(() => !document.querySelector('.bones') && document.querySelector('.live .dot.ok'));
        if (name === 'try') await tryTool(page);
        await page.mouse.move(0, 0);
        await page.waitForTimeout(300);
        await page.screenshot({ path: `${folder}/${name}-${colorScheme}.png` });
    }
    await page.context().close();
    const stranger = await open({ colorScheme });
    await stranger.goto(page_url);
    await stranger.getByRole('heading', { name: 'Sign in to the console' }).waitFor();
    await stranger.screenshot({ path: `${folder}/signin-${colorScheme}.png` });
    await stranger.context().close();
}
await browser.close();
