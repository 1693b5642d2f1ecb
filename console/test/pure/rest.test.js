import assert from 'node:assert/strict';
import { test } from 'node:test';
import { fields, initial, outline, problems } from '../../pure/schema.js';
import { commandOf, commandOfCall, curlOf, quote } from '../../pure/shell.js';
import { cut, visible } from '../../pure/text.js';
import {
    bytes,
    counted,
    date,
    duration,
    exactClock,
    figure,
    keptPart,
    percent,
    span,
    waitingSpans
} from '../../pure/time.js';

test('what is kept of a message is told as it is', () => {
    const kept = { first: 49_152, last: 16_384 };
    assert.equal(keptPart({ kept, bytes: 600_000 }), 'The first 49.2 KB and the last 16.4 KB of 600 KB.');
    assert.equal(keptPart({ kept: { first: 300, last: 0 }, bytes: 4_000 }), 'The first 0.3 KB of 4.0 KB.');
    assert.equal(keptPart({ bytes: 4_000 }), 'A part of 4.0 KB.');
});

test('durations', () => {
    const cases = [
        [0, '0 ms'],
        [4, '0 ms'],
        [40, '0.04 ms'],
        [310, '0.3 ms'],
        [2_900, '2.9 ms'],
        [84_000, '84 ms'],
        [219_040, '219 ms'],
        [6_420_113, '6.42 s'],
        [999_600, '1 s'],
        [9_999_000, '10 s'],
        [59_970_000, '1 min'],
        [61_000_000, '1 min 1 s'],
        [null, '–']
    ];
    for (const [us, text] of cases) assert.equal(duration(us), text, String(us));
    assert.deepEqual(
        [span(12), span(200), span(7500), span(86_400), span(600_000)],
        ['12 s', '3 min 20 s', '2 h 5 min', '1 day', '6 days']
    );
    assert.deepEqual([span(-1), span(59.6), span(599.7), span(3599.6)], ['0 s', '1 min', '10 min', '1 h']);
});

test('sizes and figures', () => {
    assert.deepEqual([bytes(91), bytes(291), bytes(12_400), bytes(2_100_000)], ['91 B', '0.3 KB', '12.4 KB', '2.1 MB']);
    assert.deepEqual([figure(1234), figure(0.061), figure(38.25), figure(undefined)], ['1,234', '0.06', '38.3', '–']);
    assert.deepEqual([percent(0.007), percent(0.44), percent(0), percent(0.0001)], ['0.7%', '44%', '0.0%', '<0.1%']);
    assert.deepEqual([counted(1, 'call'), counted(2, 'call')], ['1 call', '2 calls']);
});

test('times', () => {
    assert.match(exactClock('2026-11-16T10:47:24.790Z'), /^\d\d:\d\d:24\.790$/);
    assert.equal(exactClock('never'), '–');
    assert.equal(date(1_700_000_000)?.getTime(), 1_700_000_000_000);
});

test('invisible and turning characters are made visible', () => {
    assert.deepEqual(visible('plain'), ['plain']);
    assert.deepEqual(visible('a\u202eb\u200bc'), ['a', { code: 'U+202E' }, 'b', { code: 'U+200B' }, 'c']);
    assert.deepEqual(visible('\u{e0041}'), [{ code: 'U+E0041' }]);
    assert.deepEqual(visible('氢 é 👩\n'), ['氢 é 👩\n']);
    assert.deepEqual(cut('ab👩', 3), { text: 'ab', more: 2 });
});

const SCHEMA = {
    type: 'object',
    required: ['ticket'],
    additionalProperties: false,
    properties: {
        ticket: { type: 'string', minLength: 3, description: 'Which' },
        force: { type: 'boolean', default: false },
        level: { enum: ['low', 'high'] },
        n: { type: 'integer', minimum: 1 },
        tags: { type: 'array', items: { type: 'string' } },
        where: { type: 'object', properties: { city: { type: 'string' } } }
    }
};

test('a schema becomes fields', () => {
    assert.deepEqual(
        fields(SCHEMA).map(field => [field.pointer, field.kind, field.required]),
        [
            ['/ticket', 'text', true],
            ['/force', 'boolean', false],
            ['/level', 'choice', false],
            ['/n', 'number', false],
            ['/tags', 'json', false],
            ['/where', 'group', false]
        ]
    );
    assert.deepEqual(initial(SCHEMA), { ticket: '', force: false });
    assert.equal(
        outline(SCHEMA),
        '{ticket*: string, force: boolean, level: any, n: integer, tags: array, where: object}'
    );
});

test('values are checked against it', () => {
    assert.deepEqual(problems({ ticket: 'OPS-1', n: 2 }, SCHEMA), []);
    assert.deepEqual(
        problems({ ticket: 'x', n: 0, level: 'mid', other: 1 }, SCHEMA).map(one => one.path),
        ['/other', '/ticket', '/n', '/level']
    );
    assert.deepEqual(problems({}, SCHEMA), [{ path: '/ticket', what: 'is missing' }]);
    assert.deepEqual(problems({ ticket: 1 }, SCHEMA)[0].what, 'should be string, is integer');
});

test('hostile schemas are survived', () => {
    for (const schema of [
        null,
        1,
        [],
        'x',
        { properties: null },
        { properties: { a: null, b: 3 } },
        { type: {} },
        { required: 5 },
        { enum: [] }
    ]) {
        fields(schema);
        initial(schema);
        problems({ a: 1 }, schema);
        outline(schema);
    }
    const loop = { type: 'object', properties: {} };
    loop.properties.again = loop;
    assert.ok(fields(loop).length);
    assert.ok(initial({ ...loop, required: ['again'] }));
});

test('words of others are quoted for a shell', () => {
    assert.deepEqual(['getElement', "a'b", '$(x)', 'a b', ''].map(quote), [
        'getElement',
        "'a'\\''b'",
        "'$(x)'",
        "'a b'",
        "''"
    ]);
    assert.equal(
        commandOf('http://x/mcp', "a'; rm", '{\n  "n": 1.0,\n  "who is": "it\'s \\u00e9",\n  "all": [\n1, {}]\n}'),
        `rialto call http://x/mcp 'a'\\''; rm' n:=1.0 'who is:="it'\\''s \\u00e9"' 'all:=[ 1, {}]'`
    );
    for (const odd of ['{"a=b": 1}', '{"-v": true}', '{"": 1}', '[1]'])
        assert.equal(commandOf('u', 'n', odd), `printf %s ${quote(odd)} | rialto call u n --args -`);
    assert.ok(curlOf('http://x/mcp', "a'b", '{}').includes(`-H 'mcp-name: a'\\''b'`));
});

test('a recorded call as a command, with the arguments that are shown', () => {
    const text = '{"method":"tools/call","params":{"name":"t__close","arguments":{"n":12345678901234567890}}}';
    const message = { wire: 'client', way: 'in', text, hidden: [] };
    const call = { method: 'tools/call', name: 't__close', bodies: 'whole', messages: [message] };
    const whole = { command: 'rialto call u t__close n:=12345678901234567890', isWhole: true };
    assert.deepEqual(commandOfCall('u', call), whole);
    const bare = { command: 'rialto call u t__close', isWhole: false };
    for (const bodies of ['shape', 'cut', 'none']) assert.deepEqual(commandOfCall('u', { ...call, bodies }), bare);
    const masked = { ...call, messages: [{ ...message, hidden: ['/params/arguments/n'] }] };
    assert.equal(commandOfCall('u', masked)?.isWhole, false);
    assert.equal(commandOfCall('u', { ...call, method: 'prompts/get', name: 'p' })?.command.split(' ')[1], 'prompt');
    assert.equal(commandOfCall('u', { ...call, method: 'resources/read', name: 'a:b' })?.command, 'rialto read u a:b');
    assert.equal(commandOfCall('u', { ...call, method: 'tools/list', name: null }), null);
});

test('a call waits for its client while questions are open, and while it is parked', () => {
    const at = (at_us, way, kind, round = 1, wire = 'client') => ({ at_us, way, kind, round, wire });
    const spans = (messages, done = true) => waitingSpans({ messages, done, took_us: 900 });
    const call = at(0, 'in', 'request');
    const answer = at(900, 'out', 'response');
    assert.deepEqual(spans([call, answer]), []);
    // In a session: two questions at a time.
    const asked = [at(100, 'out', 'request'), at(150, 'out', 'notification'), at(200, 'out', 'request')];
    const answered = [at(400, 'in', 'response'), at(700, 'in', 'response')];
    const server = [at(90, 'in', 'request', 1, 'server'), at(710, 'out', 'response', 1, 'server')];
    assert.deepEqual(spans([answer, ...answered, ...server, ...asked, call]), [{ from: 100, to: 700 }]);
    // Parked: the result asks, and the call comes again.
    const parked = at(300, 'out', 'response');
    assert.deepEqual(spans([call, parked, at(500, 'in', 'request', 2), answer]), [{ from: 300, to: 500 }]);
    for (const open of [
        [call, asked[0]],
        [call, at(100, 'out', 'response')]
    ])
        assert.deepEqual(spans(open, false), [{ from: 100, to: 900 }], 'nobody has answered yet');
});
