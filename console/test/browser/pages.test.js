// Every page in its states: loading, empty, full, error, and with a stream that is lost. axe in both schemes.

import assert from 'node:assert/strict';
import { after, test } from 'node:test';
import { answer, api, call, row } from './canned.js';
import { answerWith, checkAxe, finish, open, PAGES, until, visit } from './setup.js';

after(finish);
const refuse = {
    status: 503,
    body: { error: { code: 'ending', message: 'The gateway is shutting down.', hint: 'Try again in a moment.' } }
};
const lists = { items: [], next: null };
const EMPTY = {
    overview: { ...api.overview, servers: [], pairs: [], attention: [] },
    servers: lists,
    groups: lists,
    sessions: lists,
    questions: lists,
    calls: lists,
    bridge: { ...api.bridge, servers: [], cells: [] },
    config: { ...api.config, file: null, text: null, problems: [], refused: null, reloads: [] },
    nodes: { items: [api.nodes.items[0]], next: null, store: null }
};
const SAID = {
    overview: 'No server is configured yet',
    traffic: 'Nothing is recorded while nobody watches',
    questions: 'No server is waiting for an answer.',
    servers: 'No server is configured',
    groups: 'There is no group',
    sessions: 'No session is open',
    bridge: 'No server is configured',
    try: 'Choose a tool',
    config: 'There is no file',
    cluster: 'One node, everything in its memory'
};

for (const colorScheme of ['light', 'dark']) {
    test(`full pages in ${colorScheme}`, async () => {
        const page = await open({ colorScheme });
        await answerWith(page);
        for (const [name, at] of Object.entries(PAGES)) {
            await visit(page, at);
            await page.waitForFunction(
                () =>
                    !document.querySelector('.bones') && document.querySelector('main .panel, main .calls, main .call')
            );
            await page.waitForTimeout(50);
            await checkAxe(page, `${name} in ${colorScheme}`);
        }
        await page.context().close();
    });
}

test('empty pages say what would be there', async () => {
    const page = await open();
    await answerWith(page, path => (EMPTY[path] ? { status: 200, body: EMPTY[path] } : answer(path)));
    for (const [name, said] of Object.entries(SAID)) {
        await visit(page, name === 'overview' ? '/' : `/${name}`);
        await page.getByText(said, { exact: false }).first().waitFor();
        await checkAxe(page, `${name}, empty`);
    }
    await page.context().close();
});

test('an error is told with its hint', async () => {
    const page = await open();
    let broken = true;
    await answerWith(page, path => (broken && !['me', 'recording'].includes(path) ? refuse : answer(path)));
    for (const name of EVERY) {
        await visit(page, `/${name}`);
        await page.getByText('The gateway is shutting down.').first().waitFor();
        await page.getByRole('button', { name: 'Try again' }).first().waitFor();
    }
    await checkAxe(page, 'error');
    broken = false;
    await visit(page, '/servers');
    await page.getByRole('link', { name: 'github' }).first().waitFor();
    await page.context().close();
});

/** What is seen on each page, to be told from what is there without an answer. */
const THERE = {
    '': 'search is down',
    traffic: 'github__search_issues',
    questions: 'Close OPS-112?',
    servers: 'github',
    'servers/tickets': 'close_ticket',
    'servers/tickets?tab=log': 'starting',
    groups: '/mcp/support',
    'groups/support': 'tickets__close_ticket',
    sessions: 'http:7f3a…c2',
    bridge: 'github',
    'try/support/tickets__close_ticket': 'Does close_ticket.',
    config: '/etc/rialto.toml',
    cluster: 'rialto-2',
    'calls/rialto-1.rv': 'OPS-112 is closed.'
};

test('what was there stays while an error is told, with when it was read', async () => {
    const page = await open();
    let [broken, stream] = [false, /** @type {any} */ (null)];
    await answerWith(page, path => (broken && path !== 'me' ? refuse : answer(path)));
    await page.route('**/admin/v1/live**', route => {
        stream = route;
    });
    const there = Object.entries(THERE);
    for (const name of EVERY)
        assert.ok(
            there.some(([at]) => `${at}/`.startsWith(`${name.replace('x.1', '')}`)),
            name
        );
    for (const [name, text] of there) {
        await visit(page, `/${name}`);
        const content = page.locator('main').getByText(text).first();
        await content.waitFor();
        broken = true;
        // Every page reads again once its stream comes back.
        await until(async () => stream !== null, `${name} has a stream`);
        const last = stream;
        await last.fulfill({ status: 200, contentType: 'text/event-stream', body: '' });
        await page.locator('.strip-note', { hasText: 'Not live' }).getByRole('button').click();
        const strip = page.locator('main [role="alert"]', { hasText: 'The gateway is shutting down.' }).first();
        await until(() => strip.isVisible(), `${name || 'overview'} tells the error`);
        await strip.getByText(/What is shown is as of \d\d:\d\d:\d\d\./u).waitFor();
        assert.ok(await content.isVisible(), `${name} still shows what was there`);
        broken = false;
        const again = page.locator('main [role="alert"]').getByRole('button', { name: 'Try again' });
        await until(async () => {
            // Parts of a page that are read by themselves have strips of their own.
            for (const button of await again.all()) await button.click({ timeout: 1000 }).catch(() => {});
            return (await again.count()) === 0;
        }, `${name} is read again`);
        await page.goto('about:blank');
        stream = null;
    }
    await page.context().close();
});

const EVERY = [
    '',
    'traffic',
    'questions',
    'servers',
    'servers/tickets',
    'groups',
    'groups/support',
    'sessions',
    'bridge',
    'try',
    'config',
    'cluster',
    'calls/x.1'
];

test('while a page loads, its frame and the heads of its tables are there', async () => {
    const page = await open();
    await answerWith(page, path => (path === 'me' ? answer(path) : { wait: true }));
    for (const name of EVERY) {
        await visit(page, `/${name}`);
        assert.equal(
            await page.locator('main .empty').count(),
            0,
            `${name} says that nothing is there before it knows`
        );
    }
    for (const name of ['', 'servers', 'groups', 'sessions', 'questions']) {
        await visit(page, `/${name}`);
        await page.waitForSelector('thead th');
        await page.waitForSelector('.bones', { state: 'attached' });
    }
    await visit(page, '/traffic');
    await page.waitForSelector('.calls thead th');
    await page.context().close();
});

test('a stream that is lost is told with when it is tried again', async () => {
    const page = await open();
    await answerWith(page);
    await page.route('**/admin/v1/live**', route => route.abort());
    for (const name of EVERY) {
        await visit(page, `/${name}`);
        await page.getByText(/Not live since \d\d:\d\d:\d\d/u).waitFor();
    }
    await checkAxe(page, 'lost stream');
    await page.context().close();
});

test('live regions say at most one sentence in five seconds', async () => {
    const page = await open();
    await page.clock.install();
    await answerWith(page);
    await page.route('**/admin/v1/live**', route => route.abort());
    const regions = () =>
        page
            .locator('[role="status"], [role="alert"], [role="log"], [aria-live]:not([aria-live="off"])')
            .allTextContents();
    for (const at of Object.values(PAGES)) {
        await visit(page, at);
        await page.getByText(/Not live since/u).waitFor();
        await page.waitForFunction(() => !document.querySelector('.bones'));
        await page.clock.runFor(1000);
        const said = [await regions()];
        for (let second = 0; second < 10; second++) {
            await page.clock.runFor(1000);
            said.push(await regions());
        }
        const changes = said.slice(1).filter((texts, index) => texts.join('|') !== said[index].join('|'));
        assert.ok(changes.length <= 2, `${at}: ${JSON.stringify(said, null, 1)}`);
    }
    await page.context().close();
});

test('text of servers and clients is text', async () => {
    const page = await open();
    const evil = '<img src=x onerror=alert(1)><script>alert(2)</script>\u202e\u200b';
    const big = 'x'.repeat(10_000_000);
    await answerWith(page, path => {
        if (path.startsWith('calls/'))
            return {
                status: 200,
                body: {
                    ...row(0),
                    name: evil,
                    ...call,
                    messages: call.messages.map((message, n) => ({
                        ...message,
                        text: n ? evil : JSON.stringify({ method: evil, params: { evil, big } })
                    })),
                    translated: [evil]
                }
            };
        if (path.endsWith('/lists/tools'))
            return {
                status: 200,
                body: {
                    items: [
                        {
                            name: evil,
                            title: evil,
                            description: big,
                            entry: {
                                name: evil,
                                inputSchema: { properties: { [evil]: { type: 'string', description: evil } } }
                            },
                            groups: []
                        }
                    ],
                    next: null
                }
            };
        if (path === 'servers/tickets/log')
            return { status: 200, body: { items: [{ at: new Date().toISOString(), text: evil }], next: null } };
        return answer(path);
    });
    for (const at of [
        '/calls/a.1',
        '/calls/a.1?tab=raw',
        '/calls/a.1?tab=translation',
        '/servers/tickets',
        '/servers/tickets?tab=log',
        `/try/tickets/${encodeURIComponent(evil)}`,
        '/traffic',
        '/overview'
    ]) {
        await visit(page, at);
        await page.waitForTimeout(150);
        assert.equal(await page.locator('main img, main script').count(), 0, at);
    }
    await visit(page, '/calls/a.1');
    await page.locator('.inv', { hasText: 'U+202E' }).first().waitFor();
    assert.ok((await page.evaluate(() => document.body.textContent.length)) < 1_000_000);
    await page.context().close();
});

test('new rows never move what one reads', async () => {
    const page = await open();
    await answerWith(page);
    const events = Array.from(
        { length: 20 },
        (_, n) => `id: ${n}\nevent: call\ndata: ${JSON.stringify(row(-n - 1, { id: `rialto-1.new${n}` }))}\n\n`
    ).join('');
    let send = false;
    await page.route('**/admin/v1/live**', route =>
        send ? route.fulfill({ status: 200, contentType: 'text/event-stream', body: events }) : route.abort()
    );
    await visit(page, '/traffic');
    await page.waitForSelector('.calls tbody tr');
    await page.keyboard.press('j');
    await page.keyboard.press('j');
    const place = async () =>
        page
            .locator('tr[aria-selected="true"]')
            .evaluate(element => [element.getBoundingClientRect().top, element.textContent]);
    const before = await place();
    send = true;
    await page.getByRole('button', { name: 'Try now' }).click();
    await page.getByRole('button', { name: /\d+ new/u }).waitFor();
    const after = await place();
    assert.equal(after[1], before[1]);
    await until(
        async () =>
            page
                .locator('.calls tbody tr')
                .count()
                .then(count => count < 80),
        'few rows are in the document'
    );
    await page.context().close();
});

test('settings that wait for a restart are named', async () => {
    const page = await open();
    const config = { ...api.config, problems: [], restart: ['listen', 'workers'] };
    await answerWith(page, path => (path === 'config' ? { status: 200, body: config } : answer(path)));
    await visit(page, '/config');
    await page.getByText(/waits for a restart since/u).waitFor();
    const panel = page.getByRole('region', { name: 'Waits for a restart' });
    assert.deepEqual(await panel.locator('code').allTextContents(), ['listen', 'workers']);
    await checkAxe(page, 'a restart');
    await page.context().close();
});

test('a command is run by a click only, and its lines are shown afterwards', async () => {
    const page = await open();
    const me = { ...api.me, may: 'edit', rights: ['look', 'bodies', 'act', 'edit'] };
    const checked = {
        valid: true,
        problems: [],
        settings: [],
        added: ['files'],
        changed: [],
        removed: [],
        restart: [],
        lines: '[servers.files]\ncommand = "npx"\n',
        commands: ['files'],
        text: '',
        difference: ''
    };
    const failed = { error: { code: 'unreachable', message: 'npx could not be started', hint: '' } };
    const asked = [];
    await answerWith(page, path => {
        asked.push(path);
        if (path === 'me') return { status: 200, body: me };
        if (path === 'config/check') return { status: 200, body: checked };
        return path === 'probe' ? { status: 422, body: failed } : answer(path);
    });
    await visit(page, '/config?add=1');
    for (const button of ['Run files once', 'Skip']) {
        await page.getByLabel(/^An address/u).fill(`npx files ${button}`);
        await page.getByRole('button', { name: 'Check' }).click();
        await page.getByRole('button', { name: 'Run files once' }).waitFor();
        assert.equal(await page.getByLabel('Lines to add').count(), 0, 'no lines before the probe');
        await page.getByRole('button', { name: button }).click();
        await page.getByLabel('Lines to add').waitFor();
        assert.equal(asked.filter(path => path === 'probe').length, 1, 'skipped is not asked');
        if (button !== 'Skip') await page.getByText('npx could not be started').waitFor();
        await checkAxe(page, `a command, ${button}`);
    }
    await page.context().close();
});

test('a tool shows how often it was called, and that its description changed', async () => {
    const page = await open();
    await answerWith(page);
    await visit(page, '/servers/tickets');
    await page.locator('tbody tr', { hasText: 'close_ticket' }).locator('td', { hasText: /^41×$/u }).waitFor();
    await page.locator('tbody tr', { hasText: 'open_ticket' }).locator('.tag', { hasText: 'changed' }).waitFor();
    assert.equal(await page.locator('tbody .tag', { hasText: 'changed' }).count(), 1);
    await page.context().close();
});

test('small things: what a revision sees, streams, lines of one server, and that nothing is recorded', async () => {
    const page = await open();
    await answerWith(page, path => {
        if (path === 'calls') return { status: 200, body: lists };
        if (path !== 'recording') return answer(path);
        return { status: 200, body: { ...api.recording, on: false, mode: 'off', bodies: false, bodies_until: null } };
    });
    await visit(page, '/groups/support');
    await page.locator('th', { hasText: 'Seen by 2026-07-28 as' }).waitFor();
    await page.locator('tbody tr', { hasText: 'close_ticket' }).getByText('no title, no output schema').waitFor();
    await visit(page, `/sessions?open=${encodeURIComponent(api.sessions.items[0].id)}`);
    await page.locator('.steps li', { hasText: '38 events kept' }).getByRole('link', { name: 'rialto-1.rv' }).waitFor();
    await visit(page, '/servers/tickets');
    await page.locator('.lines dt', { hasText: 'p99' }).waitFor();
    assert.equal(await page.locator('.lines svg path.fill').count(), 2);
    await visit(page, '/traffic');
    await page.getByText('Nothing is recorded', { exact: true }).waitFor();
    assert.equal(await page.getByText('Calls appear here from now on').count(), 0);
    await page.context().close();
});

test('ten thousand rows, a thousand tools and a hundred servers', async () => {
    const page = await open();
    const servers = Array.from({ length: 100 }, (_, n) => ({ ...api.servers.items[0], name: `server${n}` }));
    const rows = Array.from({ length: 10_000 }, (_, n) => row(n));
    const entry = n => ({ name: `t${n}`, title: null, description: 'd', entry: {}, groups: [] });
    const tools = { items: Array.from({ length: 1000 }, (_, n) => entry(n)), next: null };
    await answerWith(page, (path, query) => {
        const from = Number(query.get('cursor') ?? 0);
        const next = from + 500 < rows.length ? String(from + 500) : null;
        if (path === 'calls') return { status: 200, body: { items: rows.slice(from, from + 500), next } };
        if (path === 'servers') return { status: 200, body: { items: servers, next: null } };
        if (path.endsWith('/lists/tools')) return { status: 200, body: tools };
        return answer(path);
    });
    const isBounded = async at => {
        await visit(page, at);
        await page.waitForSelector('tbody tr td:not([colspan])');
        const made = await page.locator('tbody tr').count();
        assert.ok(made <= 62, `${at} makes ${made} rows`);
    };
    for (const at of ['/traffic', '/servers', '/servers/tickets']) {
        await isBounded(at);
        await page.reload();
    }
    await until(async () => {
        await page.evaluate(() => scrollTo(0, document.documentElement.scrollHeight));
        return (await page.locator('tbody tr').count()) > 200;
    }, 'the end of the list brings more');
    await visit(page, '/traffic');
    await page.waitForSelector('.calls tbody tr');
    const grid = page.locator('.calls');
    const count = async () => Number(await page.locator('table[role="grid"]').getAttribute('aria-rowcount')) - 1;
    await until(async () => {
        await grid.evaluate(element => element.scrollTo(0, element.scrollHeight));
        return (await count()) === 5000;
    }, 'older calls are brought, as many as are kept');
    assert.ok((await page.locator('tbody tr').count()) <= 62);
    // The last page may have come after the last time that the end was scrolled to.
    await until(async () => {
        await grid.evaluate(element => element.scrollTo(0, element.scrollHeight));
        return (await page.locator('tr#row-4999').count()) === 1;
    }, 'the last row is there');
    await page.context().close();
});
