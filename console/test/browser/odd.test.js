// A server whose names, descriptions, results, errors, questions and standard error are markup, script and characters that
// cannot be seen: all of it is shown as text.

import assert from 'node:assert/strict';
import { after, before, test } from 'node:test';
import { REVISIONS } from './clients.js';
import { callOf, clientOf, watch } from './office.js';
import { checkAxe, finish, open, trouble, visit } from './setup.js';

after(finish);
const SCRIPT = '<script>alert(2)</script>';
let watching;
let oddName;

before(async () => {
    watching = await watch();
    for (const revision of REVISIONS) {
        const client = await clientOf(revision, { name: `client ${SCRIPT}\u202e`, version: '<b>1</b>' });
        const { tools } = (await client.request('tools/list')).result;
        oddName = tools.map(tool => tool.name).find(name => name.startsWith('odd__') && name.includes('script'));
        for (const name of ['odd__markup', 'odd__error', oddName]) await client.call(name, { x: SCRIPT });
    }
});

/** What the page says is there as text, and nothing of it became an element. */
async function isText(page, at, said) {
    await visit(page, at);
    await page.locator('main', { hasText: said }).waitFor();
    assert.equal(await page.locator('main img, main script, main b b').count(), 0, at);
    assert.deepEqual(trouble.dialogs, [], `${at} ran a script`);
}

test('on the pages of the server, its group and Try', async () => {
    const page = await open();
    await isText(page, '/servers/odd', SCRIPT);
    await page.locator('.inv', { hasText: 'U+202E' }).first().waitFor();
    await isText(page, '/servers/odd?tab=log', 'called markup');
    await page.locator('.inv', { hasText: 'U+001B' }).first().waitFor();
    await isText(page, '/servers', 'odd');
    await isText(page, '/', 'odd');
    await isText(page, '/groups/default', SCRIPT);
    await isText(page, '/groups/default?tab=seen', 'What a client of');
    await isText(page, '/sessions', SCRIPT);
    await isText(page, '/try/default/odd__markup', SCRIPT);
    await checkAxe(page, 'Try with odd names');
    await page.context().close();
});

test('in calls: results, errors, clients, names', async () => {
    const page = await open();
    await isText(page, '/traffic', SCRIPT);
    for (const name of ['odd__markup', 'odd__error', oddName]) {
        for (const revision of ['2026-07-28', '2025-06-18']) {
            const { id } = await callOf(name, revision);
            for (const tab of ['wires', 'timeline', 'translation', 'headers', 'raw', 'about'])
                await isText(page, `/calls/${id}?tab=${tab}`, name);
            await isText(page, `/calls/${id}`, SCRIPT);
        }
    }
    await page.locator('.inv', { hasText: 'U+202E' }).first().waitFor();
    await page.context().close();
});

test('in a result and a question of Try', async () => {
    const page = await open();
    await visit(page, '/try/default/odd__asks');
    await page.getByRole('button', { name: /^Run/u }).click();
    await page.locator('dialog[open]').getByRole('button', { name: 'Call it' }).click();
    const question = page.getByRole('region', { name: 'Question' });
    await question.getByText('Who?').waitFor();
    await question.locator('.inv', { hasText: 'U+202E' }).first().waitFor();
    assert.equal(await page.locator('main img, main script').count(), 0);
    await question.getByRole('textbox').first().fill(SCRIPT);
    await question.getByRole('button', { name: 'Accept' }).click();
    const outcome = page.getByRole('region', { name: 'Outcome' });
    await outcome.getByText(SCRIPT).first().waitFor();
    await visit(page, '/try/default/odd__error');
    await page.getByRole('button', { name: /^Run/u }).click();
    await page.locator('dialog[open]').getByRole('button', { name: 'Call it' }).click();
    await outcome.getByText('Refused').first().waitFor();
    assert.equal(await page.locator('main img, main script').count(), 0);
    await page.context().close();
});
