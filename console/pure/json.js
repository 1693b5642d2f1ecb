// JSON text and where its values stand in it. Values are never turned into numbers or objects, so what is shown is what came.

/**
 * @typedef {object} Node
 * @property {'object' | 'array' | 'string' | 'literal' | 'raw'} kind `raw` is nested too deeply to be taken apart.
 * @property {number} start
 * @property {number} end
 * @property {Member[]} members Of an object or array.
 * @typedef {{ key: string, keyStart: number, keyEnd: number, node: Node }} Member
 */

const MAX_DEPTH = 100;
const SPACE = /[ \t\r\n]*/y;
const LITERAL = /-?[0-9][0-9.eE+-]*|true|false|null/y;
const STRING_STOP = /["\\]/g;

/** Thrown for text that is not JSON, with the place where it stops being so. */
export class NotJson extends Error {
    /** @param {number} at */
    constructor(at) {
        super(`not JSON from character ${at + 1}`);
        this.at = at;
    }
}

/** @param {RegExp} pattern @param {string} text @param {number} at @returns {number} End of the match, or -1. */
function end(pattern, text, at) {
    pattern.lastIndex = at;
    return pattern.test(text) ? pattern.lastIndex : -1;
}

/** @param {string} text @param {number} at Of its opening quote. @returns {number} End of the string, or -1. */
function stringEnd(text, at) {
    STRING_STOP.lastIndex = at + 1;
    for (;;) {
        const found = STRING_STOP.exec(text);
        if (!found) return -1;
        if (found[0] === '"') return STRING_STOP.lastIndex;
        STRING_STOP.lastIndex++;
    }
}

/** @param {string} text @param {number} at */
const skip = (text, at) => end(SPACE, text, at);

/** @param {string} text @param {number} start @returns {number} End of a container, found by its brackets. */
function bracketEnd(text, start) {
    let open = 0;
    for (let at = start; at < text.length; at++) {
        const letter = text[at];
        if (letter === '"') {
            at = stringEnd(text, at) - 1;
            if (at < 0) break;
        } else if (letter === '{' || letter === '[') open++;
        else if (letter === '}' || letter === ']') {
            open--;
            if (open === 0) return at + 1;
        }
    }
    throw new NotJson(text.length);
}

/** @param {string} text @param {number} start @param {number} depth @returns {Node} */
function container(text, start, depth) {
    if (depth >= MAX_DEPTH) return { kind: 'raw', start, end: bracketEnd(text, start), members: [] };
    const isObject = text[start] === '{';
    const close = isObject ? '}' : ']';
    const members = [];
    let at = skip(text, start + 1);
    while (text[at] !== close) {
        if (members.length) {
            if (text[at] !== ',') throw new NotJson(at);
            at = skip(text, at + 1);
        }
        const { member, next } = item(text, at, depth, isObject ? null : String(members.length));
        members.push(member);
        at = skip(text, next);
    }
    return { kind: isObject ? 'object' : 'array', start, end: at + 1, members };
}

/** @param {string} text @param {number} at @param {number} depth @param {string | null} index @returns {{ member: Member, next: number }} */
function item(text, at, depth, index) {
    let keyEnd = at;
    let key = index ?? '';
    let start = at;
    if (index === null) {
        keyEnd = text[at] === '"' ? stringEnd(text, at) : -1;
        if (keyEnd < 0) throw new NotJson(at);
        key = unquote(text.slice(at, keyEnd));
        start = skip(text, keyEnd);
        if (text[start] !== ':') throw new NotJson(start);
        start = skip(text, start + 1);
    }
    const node = value(text, start, depth + 1);
    return { member: { key, keyStart: at, keyEnd, node }, next: node.end };
}

/** @param {string} text @param {number} start @param {number} depth @returns {Node} */
function value(text, start, depth) {
    const letter = text[start];
    if (letter === '{' || letter === '[') return container(text, start, depth);
    const stop = letter === '"' ? stringEnd(text, start) : end(LITERAL, text, start);
    if (stop < 0) throw new NotJson(start);
    return { kind: letter === '"' ? 'string' : 'literal', start, end: stop, members: [] };
}

/** @param {string} text @returns {Node} @throws {NotJson} */
export function scan(text) {
    const node = value(text, skip(text, 0), 0);
    const rest = skip(text, node.end);
    if (rest < text.length) throw new NotJson(rest);
    return node;
}

/** @param {string} quoted A JSON string with its quotes. @returns {string} */
export function unquote(quoted) {
    try {
        return JSON.parse(quoted);
    } catch {
        return quoted.slice(1, -1);
    }
}

/** @param {string} pointer @returns {string[]} */
export const tokens = pointer =>
    pointer
        .split('/')
        .slice(1)
        .map(token => token.replaceAll('~1', '/').replaceAll('~0', '~'));

/** @param {string} pointer @param {string} key */
export const child = (pointer, key) => `${pointer}/${key.replaceAll('~', '~0').replaceAll('/', '~1')}`;

/** @param {Node} root @param {string} pointer @returns {Node | null} */
export function at(root, pointer) {
    /** @type {Node | null} */
    let node = root;
    for (const token of tokens(pointer)) {
        node = node?.members.findLast(member => member.key === token)?.node ?? null;
        if (!node) return null;
    }
    return node;
}

/** @param {string} text @param {string} pointer @returns {string | null} The text of one value, as it was written. */
export function textAt(text, pointer) {
    const node = at(scan(text), pointer);
    return node && text.slice(node.start, node.end);
}

/**
 * Replaces, puts in or takes out one value and leaves every other byte as it is.
 * @param {string} text @param {string} pointer @param {string | null} json New value as JSON; null takes it out.
 * @returns {string}
 */
export function splice(text, pointer, json) {
    const root = scan(text);
    const path = tokens(pointer);
    if (!path.length) return json ?? 'null';
    const key = /** @type {string} */ (path.at(-1));
    const parentPointer = pointer.slice(0, pointer.lastIndexOf('/'));
    const parent = at(root, parentPointer);
    if (!parent) return json === null ? text : splice(splice(text, parentPointer, '{}'), pointer, json);
    const index = parent.members.findLastIndex(member => member.key === key);
    if (index < 0) return json === null ? text : insert(text, parent, key, json);
    const member = parent.members[index];
    if (json !== null) return text.slice(0, member.node.start) + json + text.slice(member.node.end);
    const from = index > 0 ? parent.members[index - 1].node.end : member.keyStart;
    const to = index > 0 ? member.node.end : (parent.members[1]?.keyStart ?? member.node.end);
    return text.slice(0, from) + text.slice(to);
}

/** @param {string} text @param {Node} parent @param {string} key @param {string} json */
function insert(text, parent, key, json) {
    const last = parent.members.at(-1);
    const written = parent.kind === 'object' ? `${JSON.stringify(key)}: ${json}` : json;
    const place = last ? last.node.end : parent.start + 1;
    return text.slice(0, place) + (last ? ', ' : '') + written + text.slice(place);
}
