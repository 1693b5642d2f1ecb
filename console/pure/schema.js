// JSON Schema → fields of a form, a first text of arguments, and what is wrong with a value. Schemas come from servers:
// what is not understood becomes a field for JSON and is not checked.

import { child } from './json.js';

/**
 * @typedef {{ pointer: string, key: string, label: string, help: string, kind: 'text' | 'long' | 'number' | 'boolean' | 'choice' | 'choices' | 'group' | 'json',
 *   required: boolean, options: { value: unknown, label: string }[], fields: Field[], schema: Record<string, any> }} Field
 */

const MAX_DEPTH = 6;
const MAX_FIELDS = 200;

/** @param {any} schema @returns {Record<string, any>} */
const object = schema => (schema && typeof schema === 'object' && !Array.isArray(schema) ? schema : {});

/** @param {any} schema @returns {string} The one type of a schema, null left out; empty where there are several. */
function typeOf(schema) {
    const types = [schema.type].flat().filter(type => type !== 'null');
    return types.length === 1 && typeof types[0] === 'string' ? types[0] : '';
}

/** @param {any} schema @returns {{ value: unknown, label: string }[]} */
function options(schema) {
    if (Array.isArray(schema.enum)) {
        return schema.enum.map((/** @type {unknown} */ value, /** @type {number} */ index) => ({
            value,
            label: String(schema.enumNames?.[index] ?? value)
        }));
    }
    const each = Array.isArray(schema.oneOf) ? schema.oneOf : Array.isArray(schema.anyOf) ? schema.anyOf : [];
    const isChoice =
        each.length > 0 && each.every((/** @type {any} */ one) => one && typeof one === 'object' && 'const' in one);
    return isChoice
        ? each.map((/** @type {any} */ one) => ({ value: one.const, label: String(one.title ?? one.const) }))
        : [];
}

/** @param {Record<string, any>} schema @param {number} depth @returns {Field['kind']} */
function kindOf(schema, depth) {
    if (options(schema).length) return 'choice';
    switch (typeOf(schema)) {
        case 'string':
            return (schema.maxLength ?? 0) > 200 ? 'long' : 'text';
        case 'number':
        case 'integer':
            return 'number';
        case 'boolean':
            return 'boolean';
        case 'array':
            return options(object(schema.items)).length ? 'choices' : 'json';
        case 'object':
            return Object.keys(object(schema.properties)).length && depth < MAX_DEPTH ? 'group' : 'json';
        default:
            return 'json';
    }
}

/** @param {any} schema @param {string} [pointer] @param {number} [depth] @returns {Field[]} Fields of an object's members. */
export function fields(schema, pointer = '', depth = 0) {
    const { properties, required } = object(schema);
    const needed = new Set(Array.isArray(required) ? required : []);
    return Object.entries(object(properties))
        .slice(0, MAX_FIELDS)
        .map(([key, value]) => {
            const below = object(value);
            const kind = kindOf(below, depth);
            const place = child(pointer, key);
            return {
                pointer: place,
                key,
                kind,
                schema: below,
                label: typeof below.title === 'string' && below.title ? below.title : key,
                help: typeof below.description === 'string' ? below.description : '',
                required: needed.has(key),
                options: kind === 'choices' ? options(object(below.items)) : options(below),
                fields: kind === 'group' ? fields(below, place, depth + 1) : []
            };
        });
}

/** @param {any} schema @returns {unknown} What a form begins with: defaults, and what is needed with an empty value. */
export function initial(schema, depth = 0) {
    const { default: preset, type } = object(schema);
    if (preset !== undefined) return preset;
    const choices = options(object(schema));
    if (choices.length) return choices[0].value;
    if ((type === 'object' || schema?.properties) && depth < MAX_DEPTH) {
        const needed = new Set(Array.isArray(schema.required) ? schema.required : []);
        const members = Object.entries(object(schema.properties)).filter(
            ([key, value]) => needed.has(key) || object(value).default !== undefined
        );
        return Object.fromEntries(members.map(([key, value]) => [key, initial(value, depth + 1)]));
    }
    return { number: 0, integer: 0, boolean: false, array: [], object: {} }[typeOf(object(schema))] ?? '';
}

/** @param {unknown} value */
function nameOf(value) {
    if (value === null) return 'null';
    if (Array.isArray(value)) return 'array';
    return typeof value === 'number' && Number.isInteger(value) ? 'integer' : typeof value;
}

/** @param {unknown} value @param {any} schema @param {string} [path] @returns {{ path: string, what: string }[]} */
export function problems(value, schema, path = '', depth = 0) {
    const rules = object(schema);
    if (depth > 20) return [];
    const types = [rules.type].flat().filter(type => typeof type === 'string');
    const name = nameOf(value);
    if (types.length && !types.includes(name) && !(name === 'integer' && types.includes('number'))) {
        return [{ path, what: `should be ${types.join(' or ')}, is ${name}` }];
    }
    const choices = options(rules);
    if (choices.length && !choices.some(one => JSON.stringify(one.value) === JSON.stringify(value))) {
        return [{ path, what: `should be one of ${choices.map(one => JSON.stringify(one.value)).join(', ')}` }];
    }
    return [...limits(value, rules, path), ...below(value, rules, path, depth)];
}

/** @param {any} value @param {Record<string, any>} rules @param {string} path */
function limits(value, rules, path) {
    const wrong = [];
    const length = typeof value === 'string' ? [...value].length : Array.isArray(value) ? value.length : null;
    const least = typeof value === 'string' ? rules.minLength : rules.minItems;
    const most = typeof value === 'string' ? rules.maxLength : rules.maxItems;
    if (length !== null && length < least) wrong.push({ path, what: `is too short, ${least} at least` });
    if (length !== null && length > most) wrong.push({ path, what: `is too long, ${most} at most` });
    if (typeof value === 'number' && value < rules.minimum)
        wrong.push({ path, what: `should be ${rules.minimum} or more` });
    if (typeof value === 'number' && value > rules.maximum)
        wrong.push({ path, what: `should be ${rules.maximum} or less` });
    return wrong;
}

/** @param {any} value @param {Record<string, any>} rules @param {string} path @param {number} depth @returns {{ path: string, what: string }[]} */
function below(value, rules, path, depth) {
    if (Array.isArray(value))
        return value.slice(0, 1000).flatMap((one, index) => problems(one, rules.items, `${path}/${index}`, depth + 1));
    if (!value || typeof value !== 'object') return [];
    const known = object(rules.properties);
    const missing = (Array.isArray(rules.required) ? rules.required : [])
        .filter(key => !Object.hasOwn(value, key))
        .map(key => ({ path: child(path, String(key)), what: 'is missing' }));
    const extra =
        rules.additionalProperties === false
            ? Object.keys(value)
                  .filter(key => !Object.hasOwn(known, key))
                  .map(key => ({ path: child(path, key), what: 'is not known' }))
            : [];
    const each = Object.entries(value)
        .filter(([key]) => Object.hasOwn(known, key))
        .flatMap(([key, one]) => problems(one, known[key], child(path, key), depth + 1));
    return [...missing, ...extra, ...each];
}

/** @param {any} schema @returns {string} "{ticket*: string, force: boolean}" */
export function outline(schema) {
    const { properties, required } = object(schema);
    const needed = new Set(Array.isArray(required) ? required : []);
    const each = Object.entries(object(properties)).map(
        ([key, value]) => `${key}${needed.has(key) ? '*' : ''}: ${typeOf(object(value)) || 'any'}`
    );
    return `{${each.slice(0, 8).join(', ')}${each.length > 8 ? ', …' : ''}}`;
}
