// Writes types.d.ts from the OpenAPI document: types.mjs OPENAPI OUT, or types.mjs --check OPENAPI FILE.

import { readFileSync, writeFileSync } from 'node:fs';

/** @param {any} schema @param {string} pad @returns {string} */
function type(schema, pad) {
    if (!schema || typeof schema !== 'object') return 'any';
    if (schema.$ref) return `components['schemas']['${schema.$ref.split('/').at(-1)}']`;
    if (schema.const !== undefined) return JSON.stringify(schema.const);
    if (schema.enum) return schema.enum.map(one => JSON.stringify(one)).join(' | ');
    for (const [key, sign] of [
        ['oneOf', ' | '],
        ['anyOf', ' | '],
        ['allOf', ' & ']
    ]) {
        if (schema[key]) return schema[key].map(one => type(one, pad)).join(sign);
    }
    if (Array.isArray(schema.type)) return schema.type.map(one => type({ ...schema, type: one }, pad)).join(' | ');
    switch (schema.type) {
        case 'array':
            return `(${type(schema.items, pad)})[]`;
        case 'object':
            return object(schema, pad);
        case 'integer':
            return 'number';
        case 'string':
        case 'number':
        case 'boolean':
        case 'null':
            return schema.type;
        default:
            return schema.properties ? object(schema, pad) : 'any';
    }
}

/** @param {any} schema @param {string} pad */
function object(schema, pad) {
    const members = Object.entries(schema.properties ?? {});
    if (!members.length) return 'Record<string, any>';
    const needed = new Set(schema.required ?? []);
    const name = key => (/^[A-Za-z_]\w*$/u.test(key) ? key : JSON.stringify(key));
    const each = members.map(
        ([key, value]) => `${pad}    ${name(key)}${needed.has(key) ? '' : '?'}: ${type(value, `${pad}    `)};\n`
    );
    return `{\n${each.join('')}${pad}}`;
}

const isCheck = process.argv[2] === '--check';
const [openapi, out] = process.argv.slice(isCheck ? 3 : 2);
const { components } = JSON.parse(readFileSync(openapi, 'utf8'));
const schemas = Object.entries(components.schemas)
    .map(([name, schema]) => `        ${name}: ${type(schema, '        ')};\n`)
    .join('');
const text = `// Made from src/console/openapi.json by console/test/types.mjs. Do not edit.\n\nexport interface components {\n    schemas: {\n${schemas}    };\n}\n`;
if (!isCheck) writeFileSync(out, text);
else if (readFileSync(out, 'utf8') !== text) {
    console.error(
        `${out} is not what ${openapi} says; run: node console/test/types.mjs src/console/openapi.json console/types.d.ts`
    );
    process.exit(1);
}
