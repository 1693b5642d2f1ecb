import assert from 'node:assert/strict';
import { test } from 'node:test';
import { at, NotJson, scan, splice, textAt } from '../../pure/json.js';

test('values are found by pointer, as they were written', () => {
    const text = '{"a/b": [1.0, 12345678901234567890], "~": {"x": "\\u0041"}}';
    const root = scan(text);
    const slice = pointer => {
        const node = at(root, pointer);
        return node && text.slice(node.start, node.end);
    };
    assert.equal(slice('/a~1b/0'), '1.0');
    assert.equal(slice('/a~1b/1'), '12345678901234567890');
    assert.equal(slice('/~0/x'), '"\\u0041"');
    assert.equal(slice('/nothing'), null);
});

test('the text of a value is what came', () => {
    const text = '{"z": {"b": 1.0, "a": 12345678901234567890}, "a": []}';
    assert.equal(textAt(text, '/z'), '{"b": 1.0, "a": 12345678901234567890}');
    assert.equal(textAt(text, '/b'), null);
});

test('what is not JSON is refused', () => {
    for (const text of ['', '{', '{"a"}', '[1,]', '{"a":1,}', '1 2', '"open', 'nul', '[1 2]', '{a:1}']) {
        assert.throws(() => scan(text), NotJson, text);
    }
});

test('deep nesting does not overflow the stack', () => {
    const text = '['.repeat(200_000) + ']'.repeat(200_000);
    assert.equal(scan(text).end, text.length);
});

test('ten megabytes are scanned', () => {
    const text = JSON.stringify({ text: 'x'.repeat(10_000_000) });
    assert.equal(scan(text).members.length, 1);
});

test('an edit leaves every other byte', () => {
    const text = '{ "n":1.0,"s" : "a" , "o":{"k":[1, 2]} }';
    assert.equal(splice(text, '/s', '"b"'), '{ "n":1.0,"s" : "b" , "o":{"k":[1, 2]} }');
    assert.equal(splice(text, '/o/k/1', '3'), '{ "n":1.0,"s" : "a" , "o":{"k":[1, 3]} }');
    assert.equal(splice(text, '/new', 'true'), '{ "n":1.0,"s" : "a" , "o":{"k":[1, 2]}, "new": true }');
    assert.equal(splice(text, '/n', null), '{ "s" : "a" , "o":{"k":[1, 2]} }');
    assert.equal(splice(text, '/o', null), '{ "n":1.0,"s" : "a" }');
    assert.equal(splice('{}', '/a/b', '1'), '{"a": {"b": 1}}');
    assert.equal(splice('{"a":1}', '/a', null), '{}');
});
