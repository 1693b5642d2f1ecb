// What can stand at the place in a filter where one types: fields, and values that were seen.

import { columns, ERAS, KEYS, write } from './query.js';

/** @typedef {{ text: string, about: string }} Option `text` takes the place from `from` to `to`. */

const OPTIONS_MAX = 8;
const ABOUT = {
    client: 'name, version or revision of the client',
    server: 'name or revision of the server',
    tool: 'what is called, as either side names it',
    method: 'of the protocol',
    outcome: 'how it ended, or the code of its error',
    took: 'how long: >1s, <20ms',
    era: 'what was translated',
    node: 'of the cluster',
    group: 'where it was called',
    caller: 'who called',
    session: 'of the client',
    id: 'of the call, or of its request'
};
/** Fields whose values are not taken from rows. */
const FIXED = { took: ['>100ms', '>1s', '>10s', '<20ms'], era: ERAS, id: [] };

/** @param {string} text @param {number} at @returns {number} Where the term at that place begins. */
function beginOf(text, at) {
    let [from, isQuoted] = [0, false];
    for (let n = 0; n < at; n++) {
        if (text[n] === '"') isQuoted = !isQuoted;
        else if (!isQuoted && /\s/u.test(text[n])) from = n + 1;
    }
    return from;
}

/** @param {any[]} rows @param {string} key @returns {string[]} Values of a field, the most frequent first. */
function valuesOf(rows, key) {
    if (key in FIXED) return FIXED[/** @type {keyof typeof FIXED} */ (key)];
    const seen = new Map();
    for (const row of rows)
        for (const value of columns(row, key)) if (value) seen.set(value, (seen.get(value) ?? 0) + 1);
    return [...seen].sort(([, a], [, b]) => b - a).map(([value]) => value);
}

/** @param {string} text @param {number} at Where one types. @param {any[]} rows @returns {{ from: number, to: number, options: Option[] }} */
export function complete(text, at, rows) {
    const begin = beginOf(text, at);
    const from = begin + (text[begin] === '-' && begin < at ? 1 : 0);
    const typed = text.slice(from, at).toLowerCase();
    const end = text.slice(at).search(/\s/u);
    const to = end < 0 ? text.length : at + end;
    const colon = typed.indexOf(':');
    if (colon < 0) {
        const keys = typed ? KEYS.filter(key => key.startsWith(typed)) : [];
        const options = keys.map(key => ({ text: `${key}:`, about: ABOUT[/** @type {keyof typeof ABOUT} */ (key)] }));
        return { from, to, options };
    }
    const key = typed.slice(0, colon);
    if (!KEYS.includes(key)) return { from, to, options: [] };
    // After a comma it is another alternative, which cannot be a quoted one.
    const last = typed.includes('"') ? colon : Math.max(colon, typed.lastIndexOf(','));
    const [before, part] = [text.slice(from + colon + 1, from + last + 1), typed.slice(last + 1).replaceAll('"', '')];
    const options = valuesOf(rows, key)
        .filter(value => value.toLowerCase().includes(part) && value.toLowerCase() !== part)
        .map(value => ({ text: last > colon ? `${key}:${before}${value}` : write(key, value), about: '' }))
        .filter(option => last === colon || !/[\s"]/u.test(option.text))
        .slice(0, OPTIONS_MAX);
    return { from, to, options };
}
