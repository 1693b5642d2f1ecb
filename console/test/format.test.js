// How files are written: formatted, and with functions that can be seen at a glance.

import assert from 'node:assert/strict';
import { execFileSync } from 'node:child_process';
import { readdirSync, readFileSync } from 'node:fs';
import { fileURLToPath } from 'node:url';
import { test } from 'node:test';
import ts from 'typescript';

const FUNCTION_LINES_MAX = 40;
const root = new URL('../', import.meta.url);
const folders = ['./', 'pages/', 'parts/', 'pure/'];
const names = folders.flatMap(folder =>
    readdirSync(new URL(folder, root))
        .filter(name => name.endsWith('.js'))
        .map(name => folder + name)
);

test('every file is formatted', () => {
    const prettier = fileURLToPath(new URL('node_modules/prettier/bin/prettier.cjs', import.meta.url));
    const options = { cwd: fileURLToPath(root), encoding: /** @type {'utf8'} */ ('utf8') };
    // Throws with the names of files that are not.
    execFileSync(process.execPath, [prettier, '--check', '**/*.{js,mjs}'], options);
});

/** @param {string} name @returns {string[]} Functions of a file that are too long. */
function longFunctions(name) {
    const text = readFileSync(new URL(name, root), 'utf8');
    const source = ts.createSourceFile(name, text, ts.ScriptTarget.ES2022, true, ts.ScriptKind.JS);
    const line = (/** @type {number} */ position) => source.getLineAndCharacterOfPosition(position).line;
    const found = [];
    const walk = node => {
        const lines = line(node.end) - line(node.getStart()) + 1;
        if (ts.isFunctionLike(node) && node.body && lines > FUNCTION_LINES_MAX)
            found.push(`${name}:${line(node.getStart()) + 1} has ${lines} lines`);
        ts.forEachChild(node, walk);
    };
    walk(source);
    return found;
}

test('functions stay short', () => {
    assert.ok(names.length > 30, `only ${names.length} files were found`);
    assert.deepEqual(names.flatMap(longFunctions), []);
});
