// Calls that are made from the page: tools tried as a client of each revision, and recorded calls made again.

import assert from 'node:assert/strict';
import { after, before, test } from 'node:test';
import { REVISIONS } from './clients.js';
import { api, callOf, clientOf, watch } from './office.js';
import { finish, open, until, visit } from './setup.js';

after(finish);
let watching;

before(async () => {
    watching = await watch();
});

/** Runs what is on the page, and allows it where it is asked. @param {any} page */
async function run(page) {
    await page.getByRole('button', { name: /^(?:Run|Send all the same)/u }).click();
    const dialog = page.locator('dialog[open]');
    const outcome = page.getByRole('region', { name: /^(?:Outcome|Question)$/u });
    await dialog.or(outcome.first()).first().waitFor();
    if (await dialog.count()) await dialog.getByRole('button', { name: 'Call it' }).click();
}

for (const revision of REVISIONS) {
    test(`a tool is tried as a client of ${revision}, asks, and is answered in its form`, async () => {
        const page = await open();
        await visit(page, '/try/support/tickets__close_ticket');
        await page.getByLabel('Speak as').selectOption(revision);
        await page.getByLabel('ticket').fill('OPS-55');
        await run(page);
        const question = page.getByRole('region', { name: 'Question' });
        const outcome = page.getByRole('region', { name: 'Outcome' });
        await question.getByText('Close OPS-55 although 2 subtasks are open?').waitFor();
        await question.getByRole('checkbox').check();
        await question.getByRole('button', { name: 'Accept' }).click();
        await outcome.getByText(`, as ${revision}`).waitFor();
        await outcome.getByText('OPS-55 is closed.').first().waitFor();
        await outcome.getByRole('link', { name: 'The call' }).click();
        await page.getByRole('heading', { name: 'Call', level: 1 }).waitFor();
        await page.locator('.msg.s', { hasText: '"close_ticket"' }).first().waitFor();
        await page.locator('.end:not(.right) .mono', { hasText: revision }).waitFor();
        await page.context().close();
    });
}

test('a tool that fails, one that is declined, and one that is cancelled', async () => {
    const page = await open();
    await visit(page, '/try/support/tickets__show_ticket');
    await page.getByLabel('ticket').fill('nothing');
    await run(page);
    await page.getByRole('heading', { name: 'The tool says it failed' }).waitFor();
    await visit(page, '/try/support/tickets__close_ticket');
    await page.getByLabel('ticket').fill('OPS-1');
    await run(page);
    await page.getByRole('region', { name: 'Question' }).getByRole('button', { name: 'Decline' }).click();
    await page.getByText('OPS-1 stays open.').first().waitFor();
    await run(page);
    await page.getByRole('region', { name: 'Arguments' }).getByRole('button', { name: 'Cancel' }).click();
    await page.getByRole('heading', { name: 'Cancelled' }).waitFor();
    await page.context().close();
});

test('the call that was tried is in Traffic, as the console’s own', async () => {
    await watching.locator('.calls tbody tr', { hasText: 'tickets__show_ticket' }).first().waitFor();
});

for (const side of ['client', 'server']) {
    test(`a call is made again as the ${side} had it`, async () => {
        const client = await clientOf('2025-06-18', { name: `once-${side}` });
        const said = (await client.call('tickets__show_ticket', { ticket: 'OPS-3' })).result;
        await until(async () => {
            const { items } = await api(`calls?q=client:once-${side}`);
            return items.some(row => row.done && row.name === 'tickets__show_ticket');
        }, 'it is recorded');
        const { id } = await callOf('tickets__show_ticket', '2025-06-18');
        const page = await open();
        await visit(page, `/calls/${id}`);
        await page.locator('.msg').first().waitFor();
        await page.keyboard.press('r');
        const dialog = page.locator('dialog[open]');
        await dialog.getByLabel(side === 'client' ? /^As the client/u : /^As the server/u).check();
        await dialog.getByRole('button', { name: 'Replay' }).click();
        await until(async () => !page.url().includes(id), 'the new call is shown');
        const made = decodeURIComponent(page.url().split('/').at(-1) ?? '');
        await page.locator('.end', { hasText: 'rialto console' }).waitFor();
        let again;
        await until(async () => {
            again = await api(`calls/${made}`);
            return again.done;
        }, 'the new call ends');
        const answer = again.messages.filter(one => one.wire === 'client' && one.way === 'out').at(-1);
        assert.deepEqual(JSON.parse(answer.text).result.content, said.content);
        await page.context().close();
    });
}
