// What is in the binary: size, sums of vendored files, licences, budgets of files, and that no file was forgotten.

import assert from 'node:assert/strict';
import { createHash } from 'node:crypto';
import { readdirSync, readFileSync } from 'node:fs';
import { test } from 'node:test';
import { gzipSync } from 'node:zlib';

const root = new URL('../../', import.meta.url);
const read = name => readFileSync(new URL(name, root));
const names = ['', 'pages/', 'parts/', 'pure/', 'style/', 'vendor/'].flatMap(folder =>
    readdirSync(new URL(folder || './', root))
        .filter(name => /\.(?:js|css|html|svg)$/u.test(name))
        .map(name => folder + name)
);
const [PLAIN_MAX, GZIP_MAX, LINES_MAX, WIDTH_MAX] = [400_000, 150_000, 300, 300];

test('all files together stay within the budget', () => {
    const plain = names.reduce((sum, name) => sum + read(name).length, 0);
    const gzipped = names.reduce((sum, name) => sum + gzipSync(read(name)).length, 0);
    assert.ok(plain <= PLAIN_MAX && gzipped <= GZIP_MAX, `${plain} bytes, ${gzipped} gzipped`);
});

test('every file is in the binary', () => {
    const embedded = [
        ...readFileSync(new URL('../src/console/assets.rs', root), 'utf8').matchAll(/^ {4}"([^"]+)",$/gmu)
    ].map(found => found[1]);
    assert.deepEqual(embedded.filter(name => name !== 'vendor/LICENSES').sort(), names.sort());
});

test('every module is asked for at once', () => {
    const asked = [
        ...read('index.html')
            .toString()
            .matchAll(/(?:modulepreload" href|script type="module" src)="console\/assets\/([^"]+)"/gu)
    ];
    assert.deepEqual(asked.map(found => found[1]).sort(), names.filter(name => name.endsWith('.js')).sort());
});

test('vendored files are what their sums say, and have their licences', () => {
    const table = [
        ...read('vendor/README.md')
            .toString()
            .matchAll(/^\| (\S+\.js) \|.*\| ([0-9a-f]{64}) \|$/gmu)
    ];
    assert.equal(table.length, 5);
    for (const [, name, sum] of table)
        assert.equal(
            createHash('sha256')
                .update(read(`vendor/${name}`))
                .digest('hex'),
            sum,
            name
        );
    const licences = read('vendor/LICENSES').toString();
    for (const name of ['preact', '@preact/signals', '@preact/signals-core', 'htm'])
        assert.ok(licences.includes(name), name);
});

test('files stay small, import only one another, and have no inline style, markup or code', () => {
    for (const name of names.filter(one => !one.startsWith('vendor/'))) {
        const text = read(name).toString();
        assert.ok(text.split('\n').length <= LINES_MAX, `${name} has more than ${LINES_MAX} lines`);
        assert.ok(!/\t| +$/mu.test(text), `${name} has tabs or spaces at the end of a line`);
        for (const line of text.split('\n'))
            assert.ok(line.length <= WIDTH_MAX, `${name}: a line of ${line.length} characters`);
        for (const [, from] of text.matchAll(/from '([^']+)'/gu))
            assert.ok(from.startsWith('./') || from.startsWith('../'), `${name} imports ${from}`);
        if (name.endsWith('.js'))
            assert.ok(
                !/innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|new Function|dangerouslySet| style=/u.test(
                    text
                ),
                name
            );
    }
    for (const name of names.filter(one => one.startsWith('pure/')))
        assert.ok(
            !/\b(?:document|window|fetch|localStorage)\b/u.test(
                read(name)
                    .toString()
                    .replace(/\/\/.*|\/\*[^]*?\*\//gu, '')
            ),
            `${name} touches the document`
        );
});
