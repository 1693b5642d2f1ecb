import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';
import { test } from 'node:test';
import { matches, parse, split, toggle, write } from '../../pure/query.js';

const { rows, cases } = JSON.parse(readFileSync(new URL('../filter.json', import.meta.url), 'utf8'));

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
