import assert from 'node:assert/strict';
import { test } from 'node:test';
import { lines } from '../../pure/lines.js';

const show = list =>
    list.map(line => `${line.mark || ' '}${'  '.repeat(line.indent)}${line.pieces.map(piece => piece.text).join('')}`);

test('the envelope shares the first line, and short objects one line', () => {
    const text =
        '{"jsonrpc":"2.0","id":7,"method":"tools/call","params":{"name":"a","arguments":{"ticket":"OPS-112"},"_meta":{"progressToken":"p7","io.modelcontextprotocol/clientInfo":{"name":"desk","version":"1.9"}}}}';
    assert.deepEqual(show(lines(text)), [
        ' { "jsonrpc": "2.0", "id": 7,',
        '   "method": "tools/call",',
        '   "params": {',
        '     "name": "a",',
        '     "arguments": { "ticket": "OPS-112" },',
        '     "_meta": {',
        '       "progressToken": "p7",',
        '       "io.modelcontextprotocol/clientInfo": { "name": "desk", "version": "1.9" } } } }'
    ]);
});

test('numbers are shown as they came', () => {
    const text = '{"a":1.0,"b":12345678901234567890,"c":1e400,"d":-0}';
    assert.equal(
        show(lines(text)).join('').replace(/^ /, ''),
        '{ "a": 1.0, "b": 12345678901234567890, "c": 1e400, "d": -0 }'
    );
});

test('marks go to the value that changed and to all lines of what stays', () => {
    const text =
        '{"jsonrpc":"2.0","id":7,"params":{"name":"tickets__x","_meta":{"who":{"name":"desk","list":[1,2,3],"text":"long enough to need a line of its own, surely"},"t":1}}}';
    const list = lines(
        text,
        new Map([
            ['/id', 'ch'],
            ['/params/name', 'ch'],
            ['/params/_meta/who', 'rm']
        ])
    );
    assert.deepEqual(
        show(list).map(line => line.slice(0, 2).trim()),
        ['ch', '', 'ch', '', 'rm', 'rm', 'rm', 'rm', '']
    );
    const marked = list
        .flatMap(line => line.pieces)
        .filter(piece => piece.as === 'mark')
        .map(piece => piece.text);
    assert.deepEqual(marked, ['7', '"tickets__x"']);
});

test('what was taken out is marked as such', () => {
    const pieces = lines('{"params":{"password":"•••"}}', new Map(), ['/params/password']).flatMap(line => line.pieces);
    assert.deepEqual(
        pieces.filter(piece => piece.as === 'out').map(piece => piece.text),
        ['"•••"']
    );
});

test('text that is cut or no JSON at all stays text', () => {
    assert.deepEqual(show(lines('{"a": "cut of')), [' {"a": "cut of']);
    assert.deepEqual(show(lines('one\ntwo')), [' one', ' two']);
});

test('a long value is shortened and counted', () => {
    const shown = show(lines(JSON.stringify({ a: 'x'.repeat(100_000) }))).join('');
    assert.ok(shown.length < 600);
    assert.ok(shown.includes('100,002 characters'));
});

test('deep and wide input is laid out in time', () => {
    const wide = JSON.stringify({ list: Array.from({ length: 20_000 }, (_, n) => ({ n, text: `item ${n}` })) });
    assert.equal(lines(wide).length, 20_002);
    assert.ok(lines('['.repeat(5000) + ']'.repeat(5000)).length > 0);
});
