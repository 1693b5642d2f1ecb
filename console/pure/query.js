// The filter of calls. The server reads the same grammar; `query-cases.json` is the table of cases for both.
//
// Terms are separated by spaces and must all hold. `key:value` compares one column, other text is looked for in all of
// them and in the texts of messages, which only the server has; `-` before a term negates it, a comma separates alternatives, quotes keep spaces together, `*` stands for anything.

/** @typedef {{ key: string, values: string[], not: boolean }} Term */

export const KEYS = [
    'client',
    'server',
    'tool',
    'method',
    'outcome',
    'took',
    'era',
    'node',
    'group',
    'caller',
    'session',
    'id'
];
export const ERAS = ['none', 'names', 'era', 'across'];
const DURATION = /^([<>]=?)?(\d+(?:\.\d+)?)(us|ms|s|m)?$/;
const MICROS = { us: 1, ms: 1e3, s: 1e6, m: 60e6 };

/** @param {string} text @returns {string[]} Terms as they were written; quotes keep spaces together. */
export function split(text) {
    const terms = [];
    let term = '';
    let quoted = false;
    for (const letter of text) {
        if (letter === '"') quoted = !quoted;
        if (!quoted && /\s/u.test(letter)) {
            if (term) terms.push(term);
            term = '';
        } else term += letter;
    }
    if (term) terms.push(term);
    return terms;
}

/** @param {string} written @returns {Term | null} Null for a term without a value, as while one types. */
function term(written) {
    const not = written.startsWith('-') && written.length > 1;
    const rest = not ? written.slice(1) : written;
    const colon = rest.indexOf(':');
    const key = colon > 0 ? rest.slice(0, colon).toLowerCase() : '';
    const known = KEYS.includes(key);
    const value = (known ? rest.slice(colon + 1) : rest).toLowerCase();
    const values = (known && !value.includes('"') ? value.split(',') : [value.replaceAll('"', '')]).filter(Boolean);
    return values.length ? { key: known ? key : '', values, not } : null;
}

/** @param {string} text @returns {{ terms: Term[], error: string | null }} */
export function parse(text) {
    const terms = [];
    for (const written of split(text)) {
        const one = term(written);
        if (!one) continue;
        const wrong = one.values.find(value => !valid(one.key, value));
        if (wrong !== undefined) return { terms: [], error: complaint(one.key, wrong) };
        terms.push(one);
    }
    return { terms, error: null };
}

/** @param {string} key @param {string} value */
function valid(key, value) {
    if (key === 'took') return DURATION.test(value);
    return key !== 'era' || ERAS.includes(value);
}

/** @param {string} key @param {string} value */
function complaint(key, value) {
    return key === 'took'
        ? `took:${value} is not a duration; write took:>1s, took:<20ms or took:>=500us`
        : `era:${value} is not known; write era:none, era:names, era:era or era:across`;
}

/** A word with a colon that is no address. */
const NAMED = /^-?([\p{L}_-]+):(?!\/\/)/u;

/** @param {string} text @returns {string | null} What becomes of a word that looks like a field and is none. */
export function explain(text) {
    const name = split(text).map(written => NAMED.exec(written)?.[1]);
    const unknown = name.find(one => one !== undefined && !KEYS.includes(one.toLowerCase()));
    if (unknown === undefined) return null;
    return `${unknown}: is no field, so it is looked for as text; fields are ${KEYS.join(', ')}`;
}

/** @param {Term[]} terms @returns {boolean} Whether text is looked for, wherever it stands. */
export const isFree = terms => terms.some(one => one.key === '');

/** @param {any} row @param {string} key @returns {(string | null | undefined)[]} What a term with that key is compared with. */
export function columns(row, key) {
    const { client = {}, server = {} } = row;
    switch (key) {
        case 'client':
            return [client.name, client.version, client.revision];
        case 'server':
            return [server?.name, server?.revision];
        case 'tool':
            return [row.name, server?.own];
        case 'outcome':
            return [row.outcome, row.error?.code === undefined ? null : String(row.error?.code)];
        case 'method':
        case 'node':
        case 'group':
            return [row[key]];
        case 'caller':
            return [client.caller];
        case 'session':
            return [client.session];
        case 'id':
            return [row.id, ...(row.requests ?? [])];
        default:
            return [
                row.method,
                row.name,
                server?.own,
                client.name,
                client.revision,
                client.caller,
                server?.name,
                server?.revision,
                row.group,
                row.outcome,
                row.error?.message,
                row.id,
                ...(row.texts ?? [])
            ];
    }
}

/** @param {number} micros @param {string} value */
function took(micros, value) {
    const found = DURATION.exec(value);
    if (!found) return false;
    const [, sign = '>=', number, unit = 'ms'] = found;
    const limit = Number(number) * MICROS[/** @type {keyof typeof MICROS} */ (unit)];
    if (sign === '>') return micros > limit;
    if (sign === '<') return micros < limit;
    return sign === '<=' ? micros <= limit : micros >= limit;
}

/** @param {string | null | undefined} text @param {string} value With `*`, all of the text is compared; without, a part of it. */
function isLike(text, value) {
    const lower = text?.toLowerCase();
    if (lower === undefined || !value.includes('*')) return lower?.includes(value) ?? false;
    const parts = value.split('*');
    const [first, last] = [parts[0], /** @type {string} */ (parts.at(-1))];
    if (!lower.startsWith(first) || !lower.endsWith(last) || lower.length < first.length + last.length) return false;
    let from = first.length;
    for (const part of parts.slice(1, -1)) {
        const found = lower.indexOf(part, from);
        if (found < 0 || found + part.length > lower.length - last.length) return false;
        from = found + part.length;
    }
    return true;
}

/** @param {Term[]} terms @param {any} row @returns {boolean} */
export function matches(terms, row) {
    return terms.every(({ key, values, not }) => {
        const holds = values.some(value => {
            if (key === 'took') return took(row.took_us ?? 0, value);
            if (key === 'era') return row.bridge === value;
            return columns(row, key).some(text => isLike(text, value));
        });
        return holds !== not;
    });
}

/** @param {string} text @param {string} written Adds a term, or takes it out where it is there. @returns {string} */
export function toggle(text, written) {
    const terms = split(text);
    const at = terms.indexOf(written);
    if (at < 0) terms.push(written);
    else terms.splice(at, 1);
    return terms.join(' ');
}

/** @param {string} key @param {string} value @returns {string} A term, quoted where it must be. */
export const write = (key, value) =>
    /[\s,]/u.test(value) ? `${key}:"${value.replaceAll('"', '')}"` : `${key}:${value}`;
