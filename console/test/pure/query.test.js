import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';
import { test } from 'node:test';
import { complete } from '../../pure/complete.js';
import { explain, isFree, matches, parse, split, toggle, write } from '../../pure/query.js';

const { rows, cases } = JSON.parse(readFileSync(new URL('../../pure/query-cases.json', import.meta.url), 'utf8'));

for (const { q, shows, error } of cases) {
    test(`filter ${JSON.stringify(q)}`, () => {
        const parsed = parse(q);
        assert.equal(parsed.error !== null, error === true, parsed.error ?? 'no error');
        if (error) return;
        const shown = Object.keys(rows).filter(name => matches(parsed.terms, rows[name]));
        assert.deepEqual(shown, shows);
    });
}

test('terms are toggled and quoted', () => {
    assert.equal(toggle('a outcome:ok', 'outcome:ok'), 'a');
    assert.equal(toggle('a', 'outcome:ok'), 'a outcome:ok');
    assert.equal(write('client', 'old ide'), 'client:"old ide"');
    assert.deepEqual(split('a "b c" d:"e f"'), ['a', '"b c"', 'd:"e f"']);
    assert.deepEqual(parse(write('server', 'a,b')).terms, [{ key: 'server', values: ['a,b'], not: false }]);
});

test('a word that looks like a field and is none is explained', () => {
    for (const fine of ['', 'tool:x', 'took:', 'http://x/y', '"foo: bar"', 'TOOL:x', 'foo :'])
        assert.equal(explain(fine), null, fine);
    assert.match(
        explain('tool:x colour:red') ?? '',
        /^colour: is no field, so it is looked for as text; fields are client, /u
    );
    assert.match(explain('-colour:') ?? '', /^colour: is no field/u);
    assert.ok(isFree(parse('tool:x colour:red').terms));
    assert.ok(!isFree(parse('tool:x -era:none').terms));
});

test('fields and values that were seen complete what one types', () => {
    const all = Object.values(rows);
    const texts = (text, at = text.length) => complete(text, at, all).options.map(option => option.text);
    assert.deepEqual(texts('to'), ['tool:', 'took:']);
    assert.deepEqual(texts('-o'), ['outcome:']);
    assert.deepEqual(texts(''), []);
    assert.deepEqual(texts('server:tickets '), []);
    assert.deepEqual(texts('colour:'), []);
    assert.deepEqual(texts('outcome:'), ['outcome:ok', 'outcome:unavailable', 'outcome:-32603']);
    assert.deepEqual(texts('OUTCOME:un'), ['outcome:unavailable']);
    assert.deepEqual(texts('outcome:ok'), [], 'nothing is left to add');
    assert.deepEqual(texts('outcome:ok,un'), ['outcome:ok,unavailable']);
    assert.deepEqual(texts('client:old'), ['client:"old ide"']);
    assert.deepEqual(texts('client:"old'), ['client:"old ide"']);
    assert.deepEqual(texts('client:desk,old'), [], 'an alternative cannot have spaces');
    assert.deepEqual(texts('era:ac'), ['era:across']);
    assert.deepEqual(complete('a -tool:we b', 10, all), {
        from: 3,
        to: 10,
        options: [
            { text: 'tool:search__web', about: '' },
            { text: 'tool:web', about: '' }
        ]
    });
});
