// Answers of the API for states of pages that a gateway in a test does not come into by itself. Shapes are those of openapi.json.

const now = Date.now();
const iso = (ago = 0) => new Date(Date.now() - ago).toISOString();
const rev = {
    github: '2026-07-28',
    files: '2025-11-25',
    tickets: '2025-06-18',
    billing: '2025-11-25',
    elements: '2026-07-28',
    warehouse: '2024-11-05',
    search: null,
    maps: null
};
const tr = {
    github: 'http',
    files: 'stdio',
    tickets: 'stdio',
    billing: 'rest',
    elements: 'local',
    warehouse: 'sse',
    search: 'http',
    maps: 'stdio'
};
const wave = (n, a) =>
    Array.from({ length: n }, (_, i) => Math.max(0, a * (1 + 0.3 * Math.sin(i / 3) + 0.2 * Math.sin(i * 1.7))));
const servers = Object.keys(rev).map((name, i) => ({
    name,
    phase: name === 'search' ? 'down' : name === 'maps' ? 'starting' : name === 'warehouse' ? 'degraded' : 'ready',
    since: iso(3e5),
    reason: name === 'search' ? 'Connection refused at https://search.example/mcp; tried 7 times, again in 12 s' : null,
    transport: tr[name],
    target: name === 'files' ? 'npx server-filesystem /srv' : `https://${name}.example/mcp`,
    revision: rev[name],
    server: { name: `${name}-mcp`, version: '1.4' },
    lists: { tools: 93 - i * 11, prompts: 2, resources: 4, templates: 1 },
    list_errors: [],
    leases: [0, 24, 11, 0, 0, 5, 0, 0][i],
    lease_limit: 256,
    calls_in_flight: i,
    connects: 2,
    failed_connects: name === 'search' ? 7 : 0,
    groups: ['default', 'support'],
    figures: {
        calls: 1000 - i * 100,
        failed: i,
        calls_per_s: 3,
        failed_ratio: i * 0.003,
        server_us: { p50: 71000 / (i + 1), p99: 388000 / (i + 1) },
        rialto_us: { p50: 50, p99: 400 },
        series: wave(30, 5)
    },
    login: name === 'search' ? { url: 'https://x' } : null
}));
const revs = ['2024-11-05', '2025-03-26', '2025-06-18', '2025-11-25', '2026-07-28'];
const pairs = [];
for (const [c, w] of [
    ['2026-07-28', 58],
    ['2025-11-25', 25],
    ['2025-06-18', 12],
    ['2024-11-05', 5]
])
    for (const s of servers.slice(0, 6))
        pairs.push({
            client: c,
            server: s.name,
            server_revision: s.revision,
            bridge:
                c === s.revision ? 'none' : (c === '2026-07-28') !== (s.revision === '2026-07-28') ? 'across' : 'era',
            calls: w * (7 - servers.indexOf(s)),
            share: w / 100 / 6,
            words: ['discovery ← handshake']
        });
const overview = {
    node: 'rialto-1',
    nodes: ['rialto-1', 'rialto-2', 'rialto-3'],
    at: iso(),
    range_us: 9e8,
    figures: {
        at: iso(),
        calls_per_s: 142,
        failed: 0.007,
        server_us: { p50: 38000, p99: 388000 },
        rialto_us: { p50: 60, p99: 400 },
        sessions: 128,
        streams: 41,
        calls_in_flight: 31,
        parked: 2
    },
    series: {
        from: iso(9e5),
        step_us: 1e7,
        calls: wave(60, 140),
        failed: wave(60, 0.007),
        server_p50_us: wave(60, 38000),
        server_p99_us: wave(60, 3e5),
        rialto_p50_us: wave(60, 60),
        sessions: wave(60, 128)
    },
    pairs,
    servers,
    attention: [
        {
            id: 'a',
            level: 'bad',
            code: 'down',
            text: 'search is down',
            detail: 'Connection refused. 38 calls failed since.',
            since: iso(24e4),
            link: '#/servers/search',
            act: { label: 'Try now', verb: 'POST', path: 'servers/search/reconnect' },
            node: 'rialto-1'
        },
        {
            id: 'b',
            level: 'warn',
            code: 'refused',
            text: 'rialto.toml was refused',
            detail: '14:21 [groups.ops] names traker; did you mean tracker?',
            since: iso(5e5),
            link: '#/config',
            act: null,
            node: 'rialto-1'
        },
        {
            id: 'c',
            level: 'warn',
            code: 'parked',
            text: '2 calls wait for people',
            detail: 'tickets asks “Close OPS-112?” of desk.',
            since: iso(36e4),
            link: '#/questions',
            act: null,
            node: 'rialto-1'
        }
    ]
};
export const row = (i, o = {}) => ({
    id: `rialto-1.${(1000 + i).toString(36)}`,
    at: iso(i * 830),
    node: 'rialto-1',
    group: 'support',
    client: { name: 'desk', version: '1.9', revision: '2026-07-28', transport: 'http', caller: 'ann', session: null },
    method: 'tools/call',
    mcp: true,
    name: 'github__search_issues',
    server: {
        name: 'github',
        own: 'search_issues',
        revision: '2026-07-28',
        transport: 'http',
        leased: false,
        process: null
    },
    bridge: 'none',
    rounds: 1,
    outcome: 'ok',
    error: null,
    took_us: 84000,
    time: { rialto_us: 310, open_us: 0, server_us: 83000, client_us: 0 },
    bytes: { asked: 412, answered: 12400 },
    bodies: 'whole',
    one_of: 1,
    request: null,
    relayed_to: null,
    relayed: false,
    kept: false,
    done: true,
    ...o
});
const kinds = [
    {},
    {
        client: {
            name: 'code',
            version: '0.42',
            revision: '2025-11-25',
            transport: 'http',
            caller: 'ann',
            session: 'http:7f3a…'
        },
        method: 'resources/read',
        name: 'rialto://files/…/notes.md',
        server: { name: 'files', own: 'x', revision: '2025-11-25', transport: 'stdio', leased: true, process: 4711 },
        bridge: 'names',
        took_us: 2900,
        time: { rialto_us: 300, open_us: 0, server_us: 2600, client_us: 0 }
    },
    {
        client: {
            name: 'agent-kit',
            version: null,
            revision: '2025-06-18',
            transport: 'http',
            caller: 'bob',
            session: null
        },
        name: 'github__create_pull_request',
        bridge: 'across',
        outcome: 'tool_error',
        took_us: 412000
    },
    {
        name: 'tickets__close_ticket',
        server: {
            name: 'tickets',
            own: 'close_ticket',
            revision: '2025-06-18',
            transport: 'stdio',
            leased: true,
            process: 4711
        },
        bridge: 'across',
        rounds: 2,
        took_us: 6420113,
        time: { rialto_us: 310, open_us: 219040, server_us: 31020, client_us: 6169743 }
    },
    {
        client: {
            name: 'old-ide',
            version: null,
            revision: '2024-11-05',
            transport: 'sse',
            caller: 'x',
            session: null
        },
        name: 'search__web',
        server: { name: 'search', own: null, revision: null, transport: 'http', leased: false, process: null },
        outcome: 'unavailable',
        took_us: 200,
        time: { rialto_us: 200, open_us: 0, server_us: 0, client_us: 0 }
    }
];
export const rows = Array.from({ length: 60 }, (_, i) => row(i, kinds[i % 5]));
const m = (n, at, wire, way, kind, w, text, http = null, round = 1) => ({
    n,
    round,
    at_us: at,
    wire,
    way,
    kind,
    with: w,
    http,
    bytes: text.length,
    text,
    hidden: []
});
export const call = {
    requests: ['e860446c53b4ae18', '8697be25d2ff2a2d'],
    trace: null,
    owner: 'rialto-1',
    messages: [
        m(
            0,
            0,
            'client',
            'in',
            'request',
            1,
            '{"jsonrpc":"2.0","id":7,"method":"tools/call","params":{"name":"tickets__close_ticket","arguments":{"ticket":"OPS-112"},"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientInfo":{"name":"desk","version":"1.9"},"io.modelcontextprotocol/clientCapabilities":{"elicitation":{}},"progressToken":"p7"}}}',
            {
                verb: 'POST',
                path: '/mcp/support',
                headers: [
                    ['mcp-method', 'tools/call'],
                    ['authorization', '•••']
                ]
            }
        ),
        m(
            1,
            219000,
            'server',
            'out',
            'request',
            0,
            '{"jsonrpc":"2.0","id":2,"method":"tools/call","params":{"name":"close_ticket","arguments":{"ticket":"OPS-112"},"_meta":{"progressToken":2}}}'
        ),
        m(
            2,
            226000,
            'server',
            'in',
            'request',
            3,
            '{"jsonrpc":"2.0","id":"ask-1","method":"elicitation/create","params":{"message":"Close OPS-112 although 2 subtasks are open?","requestedSchema":{"type":"object","properties":{"confirm":{"type":"boolean"}}}}}'
        ),
        m(
            3,
            226100,
            'client',
            'out',
            'result',
            2,
            '{"jsonrpc":"2.0","id":7,"result":{"resultType":"input_required","inputRequests":{"u1":{"method":"elicitation/create","params":{"message":"[tickets] Close OPS-112 although 2 subtasks are open?","requestedSchema":{"type":"object","properties":{"confirm":{"type":"boolean"}}}}}},"requestState":"h.Vdzz…"}}',
            { status: 200, event: true }
        ),
        m(
            4,
            6370000,
            'client',
            'in',
            'request',
            5,
            '{"jsonrpc":"2.0","id":8,"method":"tools/call","params":{"name":"tickets__close_ticket","requestState":"h.Vdzz…","inputResponses":{"u1":{"action":"accept","content":{"confirm":true}}}}}',
            { verb: 'POST', path: '/mcp/support' },
            2
        ),
        m(
            5,
            6370100,
            'server',
            'out',
            'response',
            4,
            '{"jsonrpc":"2.0","id":"ask-1","result":{"action":"accept","content":{"confirm":true}}}',
            null,
            2
        ),
        m(
            6,
            6420000,
            'server',
            'in',
            'result',
            7,
            '{"jsonrpc":"2.0","id":2,"result":{"content":[{"type":"text","text":"OPS-112 is closed."}],"structuredContent":{"ticket":"OPS-112","state":"closed"}}}',
            null,
            2
        ),
        m(
            7,
            6420100,
            'client',
            'out',
            'result',
            6,
            '{"jsonrpc":"2.0","id":8,"result":{"content":[{"type":"text","text":"OPS-112 is closed."}],"structuredContent":{"ticket":"OPS-112","state":"closed"},"resultType":"complete"}}',
            { status: 200 },
            2
        )
    ],
    changes: [
        { messages: [0, 1], path: '/id', kind: 'changed', why: 'name and id of the server’s own' },
        { messages: [0, 1], path: '/params/name', kind: 'changed', why: 'name and id of the server’s own' },
        ...['protocolVersion', 'clientInfo', 'clientCapabilities'].map(k => ({
            messages: [0, null],
            path: `/params/_meta/io.modelcontextprotocol~1${k}`,
            kind: 'stays',
            why: 'told once, in the handshake'
        })),
        {
            messages: [0, 1],
            path: '/params/_meta/progressToken',
            kind: 'changed',
            why: 'progress token of this connection'
        },
        {
            messages: [null, 3],
            path: '/result/resultType',
            kind: 'added',
            why: 'a request becomes a result that asks for input'
        },
        {
            messages: [null, 3],
            path: '/result/requestState',
            kind: 'added',
            why: 'a request becomes a result that asks for input'
        },
        { messages: [2, null], path: '/id', kind: 'changed', why: 'a request becomes a result that asks for input' },
        { messages: [4, null], path: '/params/requestState', kind: 'stays', why: 'the answer goes to the parked call' },
        {
            messages: [4, null],
            path: '/params/inputResponses',
            kind: 'stays',
            why: 'the answer goes to the parked call'
        },
        { messages: [6, 7], path: '/id', kind: 'changed', why: 'id of the client' },
        { messages: [null, 7], path: '/result/resultType', kind: 'added', why: 'result envelope put in' }
    ],
    translated: ['discovery ← handshake', 'questions: requests → input_required', 'result envelope put in']
};
const schema = {
    type: 'object',
    required: ['ticket'],
    properties: {
        ticket: { type: 'string', description: 'The ticket' },
        force: { type: 'boolean', default: false },
        level: { enum: ['low', 'high'] },
        n: { type: 'integer', minimum: 1 }
    }
};
const tools = ['close_ticket', 'open_ticket', '<b>bold</b>\u200b', 'list_tickets'];
export const api = {
    me: {
        operator: 'ann',
        principal: null,
        may: 'act',
        rights: ['look', 'bodies', 'act'],
        edit: false,
        node: 'rialto-1',
        version: '0.2.0',
        started: iso(5e8),
        clustered: false,
        recording: null
    },
    overview,
    servers: { items: servers, next: null },
    bridge: {
        revisions: revs,
        servers: servers.slice(0, 6).map(s => s.name),
        cells: pairs.map(p => ({
            client: p.client,
            server: p.server,
            server_revision: p.server_revision,
            words: p.bridge === 'none' ? [] : ['discovery ← handshake', 'result envelope put in'],
            calls: p.calls
        }))
    },
    groups: {
        items: [
            {
                name: 'default',
                paths: ['/mcp', '/sse'],
                stdio: 'rialto stdio',
                servers: servers.map(s => s.name),
                naming: 'prefix',
                lists: { tools: 200, prompts: 3, resources: 4, templates: 0 },
                collisions: []
            },
            {
                name: 'support',
                paths: ['/mcp/support', '/sse/support'],
                stdio: 'rialto stdio --group support',
                servers: ['tickets', 'files'],
                naming: 'prefix',
                lists: { tools: 32, prompts: 3, resources: 4, templates: 0 },
                collisions: ['search']
            }
        ],
        next: null
    },
    sessions: {
        items: [
            {
                id: 'http:7f3a…c2',
                group: 'support',
                transport: 'http',
                client: { name: 'desk', version: '1.9' },
                revision: '2025-11-25',
                caller: 'ann',
                node: 'rialto-1',
                owner: 'rialto-2',
                streams: 2,
                calls: 1,
                events: 41,
                event_bytes: 12000,
                idle_us: 1e6,
                expires: new Date(now + 86e4).toISOString()
            }
        ],
        next: null
    },
    questions: {
        items: [
            {
                id: 'q1',
                node: 'rialto-1',
                group: 'support',
                server: 'tickets',
                method: 'elicitation/create',
                kind: 'form',
                text: 'Close OPS-112?',
                client: { name: 'desk', version: '1.9' },
                revision: '2026-07-28',
                caller: 'ann',
                how: 'input_required',
                asked: iso(37e4),
                until: new Date(now + 23e4).toISOString(),
                session: null,
                call: rows[3].id
            }
        ],
        next: null
    },
    recording: { on: true, mode: 'watch', bodies: true, bodies_until: iso(-9e5), may_show_bodies: true, rate: 500 },
    nodes: {
        items: [
            {
                name: 'rialto-1',
                own: true,
                state: 'here',
                lease_us: 4100000,
                version: '0.2.0',
                started: iso(5e8),
                sessions: 52,
                calls_in_flight: 3,
                relayed: 10,
                relaying: 1,
                adopted: 2,
                relays: [{ to: 'rialto-2', requests: 10 }],
                takeovers: [{ at: iso(6e4), session: 'http-7f3ac2', from: 'rialto-3' }],
                since: null
            },
            {
                name: 'rialto-2',
                own: false,
                state: 'alive',
                lease_us: 5000000,
                version: '0.2.0',
                started: iso(4e8),
                sessions: 76,
                calls_in_flight: 3,
                relayed: 10,
                relaying: 1,
                adopted: 2,
                relays: [{ to: 'rialto-1', requests: 10 }],
                takeovers: [{ at: iso(6e4), session: 'http-7f3ac2', from: 'rialto-3' }],
                since: null
            },
            {
                name: 'rialto-3',
                own: false,
                state: 'away',
                lease_us: null,
                version: null,
                started: null,
                sessions: null,
                calls_in_flight: null,
                relayed: null,
                relaying: null,
                adopted: null,
                relays: [],
                takeovers: [],
                since: iso(6e4)
            }
        ],
        next: null,
        store: { address: 'redis:6379', connected: true, full: false, latency_us: 1100 }
    },
    config: {
        file: '/etc/rialto.toml',
        format: 'toml',
        text: '# Rialto\nlisten = "127.0.0.1:3000"\n\n[servers.github]\nurl = "https://github.example/mcp"\nheaders = { Authorization = "•••" }\n\n[groups.ops]\nservers = ["traker"]\n',
        etag: '"x"',
        problems: [
            {
                line: 9,
                column: 13,
                severity: 'error',
                message: '[groups.ops] names traker.',
                hint: 'Did you mean tracker?'
            }
        ],
        applied: iso(1e6),
        refused: iso(5e5),
        restart: [],
        reloads: [
            { at: iso(1e6), outcome: 'applied', added: ['github'], changed: [], removed: [], closed: [], problems: [] }
        ],
        editable: false
    }
};

const answered = (/** @type {any} */ body, status = 200) => ({ status, body });

/** @param {string} path Below /admin/v1/. @returns {{ status: number, body: any }} */
export function answer(path) {
    const part = path.split('/').map(decodeURIComponent);
    if (path === 'calls') return answered({ items: rows, next: null });
    if (part[0] === 'calls') {
        const r = rows.find(r => r.id === part[1]);
        return r
            ? answered({ ...r, ...call })
            : answered({ error: { code: 'not_kept', message: 'The ring holds the last 9 minutes.', hint: '' } }, 410);
    }
    if (part[0] === 'servers' && part[2] === 'lists')
        return answered({
            items:
                part[3] === 'tools'
                    ? tools.map(name => ({
                          name,
                          title: null,
                          description: `Does ${name}. <script>alert(1)</script>`,
                          entry: { name, inputSchema: schema, annotations: { readOnlyHint: true } },
                          groups: [{ group: 'support', name: `tickets__${name}` }],
                          called: name === 'close_ticket' ? 41 : 0,
                          changed: name === 'open_ticket'
                      }))
                    : [],
            next: null
        });
    if (part[0] === 'servers' && part[2] === 'log')
        return answered({ items: [{ at: iso(), text: 'starting \u001b[31mred' }], next: null });
    if (part[0] === 'servers' && part[1])
        return answered({
            ...servers.find(s => s.name === part[1]),
            legs: [{ revision: '2025-06-18', capabilities: ['tools'], reaches_client: true, clients: revs, why: null }],
            calls_by_revision: [
                { client: '2026-07-28', server: '2025-06-18', calls: 41, bridged: ['discovery ← handshake'] }
            ],
            outcomes: { ok: 40, tool_error: 1 },
            series: overview.series,
            found: {
                transport: 'stdio',
                revision: '2025-06-18',
                why: 'it answered `server/discover` with an error',
                offered: [],
                session: false,
                connect_us: 31000,
                oddities: ['it was slow to answer `server/discover`']
            },
            attempts: [
                { at: iso(4e3), ok: false, reason: 'https://search.example/mcp cannot be reached: connection refused' },
                { at: iso(2e5), ok: true, reason: null }
            ],
            next_attempt: iso(-12e3),
            checks: [
                { ok: true, what: 'the name search.example has an address', detail: null, hint: null },
                {
                    ok: false,
                    what: 'search.example takes connections',
                    detail: 'https://search.example/mcp cannot be reached: connection refused',
                    hint: 'start the server, or check host and port in url'
                },
                { ok: null, what: 'TLS is set up, and the certificate is trusted', detail: null, hint: null }
            ],
            configuration: { file: 'rialto.toml', line: 4, text: '[servers.tickets]\ncommand = ["tickets"]' },
            capabilities: ['tools'],
            instructions: null
        });
    if (part[0] === 'groups' && part[2] === 'why')
        return answered({
            name: 'x',
            group: part[1],
            there: false,
            steps: [
                { ok: true, what: 'group support has tickets', where: 'rialto.toml:14' },
                { ok: true, what: 'tickets is ready', where: null },
                { ok: false, what: 'tickets has no tool "clsoe_ticket"; it has close_ticket', where: null },
                { ok: null, what: '2024-11-05 would see it without title', where: null }
            ]
        });
    if (part[0] === 'groups' && part[1])
        return answered({
            ...api.groups.items.find(g => g.name === part[1]),
            as: '2026-07-28',
            tools: tools.map(name => ({
                name: `tickets__${name}`,
                own: name,
                server: 'tickets',
                title: null,
                description: `Does ${name}.`,
                bytes: 412,
                left_out: name === 'close_ticket' ? ['title', 'outputSchema'] : []
            })),
            prompts: [],
            resources: [],
            templates: [],
            seen: {}
        });
    if (part[0] === 'sessions' && part[1])
        return answered({
            ...api.sessions.items[0],
            open_streams: [
                {
                    number: 3,
                    kind: 'call',
                    position: '3-41',
                    kept: 38,
                    read: '3-41',
                    call: rows[3].id,
                    attached: true,
                    resumed: 2,
                    resumed_from: '3-29',
                    resumed_events: 12
                }
            ]
        });
    return api[path]
        ? answered(api[path])
        : answered({ error: { code: 'not_found', message: `Nothing at ${path}`, hint: '' } }, 404);
}
