// JSON text → lines to show, each a list of pieces of that same text. Pure; `parts/wires.js` draws them.

import { child, scan } from './json.js';

/**
 * @typedef {{ text: string, as: 'key' | 'value' | 'plain' | 'mark' | 'out', path?: string }} Piece
 * @typedef {'ch' | 'ad' | 'rm' | ''} Mark changed, added here, stays here
 * @typedef {{ indent: number, pieces: Piece[], mark: Mark }} Line
 */

/** How much of an object goes on one line. */
const WIDTH = 66;
/** Longest text shown of one value; the rest is counted. */
const VALUE_MAX = 400;
/** Members of the envelope that share the first line. */
const ENVELOPE = new Set(['jsonrpc', 'id']);

class Layout {
    /** @param {string} text @param {Map<string, Mark>} marks @param {Set<string>} hidden */
    constructor(text, marks, hidden) {
        this.text = text;
        this.marks = marks;
        this.hidden = hidden;
        /** @type {Line[]} */
        this.lines = [{ indent: 0, pieces: [], mark: '' }];
        const above = new Set();
        for (const path of [...marks.keys(), ...hidden]) {
            for (let up = path; up; up = up.slice(0, up.lastIndexOf('/'))) above.add(up.slice(0, up.lastIndexOf('/')));
        }
        /** Paths that have a mark below them, and are not put on one line. */
        this.above = above;
    }

    get line() {
        return /** @type {Line} */ (this.lines.at(-1));
    }

    /** @param {string} text @param {Piece['as']} as @param {string} [path] */
    put(text, as, path) {
        this.line.pieces.push(path === undefined ? { text, as } : { text, as, path });
    }

    /** @param {number} indent */
    newline(indent) {
        this.lines.push({ indent, pieces: [], mark: '' });
    }

    /** @param {import('./json.js').Node} node @param {string} path @param {number} indent */
    write(node, path, indent) {
        if (!node.members.length) return this.scalar(node, path);
        const [open, close] = node.kind === 'object' ? ['{', '}'] : ['[', ']'];
        const flat = !this.above.has(path) && this.isShort(node) ? this.flat(node) : '';
        if (flat) return this.inline(node, path);
        this.put(open, 'plain');
        node.members.forEach((member, index) => this.member(node, member, index, path, indent));
        this.put(` ${close}`, 'plain');
    }

    /** @param {import('./json.js').Node} node @param {import('./json.js').Member} member @param {number} index @param {string} path @param {number} indent */
    member(node, member, index, path, indent) {
        const below = child(path, member.key);
        const before = node.members[index - 1];
        const shares =
            path === '' && node.kind === 'object' && ENVELOPE.has(member.key) && (!before || ENVELOPE.has(before.key));
        if (shares) this.put(' ', 'plain');
        else this.newline(indent + 1);
        const first = this.lines.length - 1;
        if (node.kind === 'object') {
            this.put(this.text.slice(member.keyStart, member.keyEnd), 'key', below);
            this.put(': ', 'plain');
        }
        this.write(member.node, below, indent + 1);
        const mark = this.marks.get(below);
        if (mark === 'ad' || mark === 'rm') for (const line of this.lines.slice(first)) line.mark = mark;
        else if (mark === 'ch') this.lines[first].mark ||= 'ch';
        if (index < node.members.length - 1) this.put(',', 'plain');
    }

    /** @param {import('./json.js').Node} node @param {string} path */
    scalar(node, path) {
        const as = this.marks.get(path) === 'ch' ? 'mark' : this.hidden.has(path) ? 'out' : 'value';
        this.put(shorten(this.text.slice(node.start, node.end)), as, path);
    }

    /** @param {import('./json.js').Node} node @param {string} path */
    inline(node, path) {
        const isChanged = this.marks.get(path) === 'ch';
        const [open, close] = node.kind === 'object' ? ['{ ', ' }'] : ['[', ']'];
        if (isChanged) return this.put(this.flat(node), 'mark', path);
        this.put(open, 'plain');
        node.members.forEach((member, index) => {
            const below = child(path, member.key);
            if (index) this.put(', ', 'plain');
            if (node.kind === 'object') {
                this.put(this.text.slice(member.keyStart, member.keyEnd), 'key', below);
                this.put(': ', 'plain');
            }
            if (member.node.members.length) this.inline(member.node, below);
            else this.scalar(member.node, below);
        });
        this.put(close, 'plain');
    }

    /** @param {import('./json.js').Node} node Cheap refusal of what cannot fit, before it is put together. */
    isShort(node) {
        return node.end - node.start <= WIDTH * 2 && this.flat(node).length <= WIDTH;
    }

    /** @param {import('./json.js').Node} node @returns {string} */
    flat(node) {
        if (!node.members.length) return this.text.slice(node.start, node.end);
        const parts = node.members.map(
            ({ keyStart, keyEnd, node: below }) =>
                (node.kind === 'object' ? `${this.text.slice(keyStart, keyEnd)}: ` : '') + this.flat(below)
        );
        return node.kind === 'object' ? `{ ${parts.join(', ')} }` : `[${parts.join(', ')}]`;
    }
}

/** @param {string} text */
function shorten(text) {
    if (text.length <= VALUE_MAX) return text;
    return `${text.slice(0, VALUE_MAX)}… (${text.length.toLocaleString('en')} characters)`;
}

/**
 * @param {string} text @param {Map<string, Mark>} [marks] By JSON pointer. @param {Iterable<string>} [hidden] Pointers of what was taken out.
 * @returns {Line[]} Text that is not JSON becomes lines as they are.
 */
export function lines(text, marks = new Map(), hidden = []) {
    let root;
    try {
        root = scan(text);
    } catch {
        return text
            .split(/\r\n|\r|\n/u)
            .map(line => ({ indent: 0, pieces: [{ text: shorten(line), as: 'value' }], mark: '' }));
    }
    const layout = new Layout(text, marks, new Set(hidden));
    layout.write(root, '', 0);
    const whole = marks.get('');
    if (whole === 'ad' || whole === 'rm') for (const line of layout.lines) line.mark = whole;
    return layout.lines;
}
