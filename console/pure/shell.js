// Commands to paste into a shell. Every word of a server or operator is quoted.

import { at, scan } from './json.js';

/** @param {string} word @returns {string} */
export const quote = word => (/^[\w@%+=:,./-]+$/u.test(word) ? word : `'${word.replaceAll("'", "'\\''")}'`);

/** @param {string} text JSON, on one line. Line ends between its members are no part of any string. */
const onOneLine = text => text.replace(/\s*\n\s*/gu, ' ');

/**
 * @param {string} url @param {string} name @param {string | null} text Arguments as JSON; null where they are not known.
 * @param {string} [verb] Command of `rialto`.
 */
export function commandOf(url, name, text, verb = 'call') {
    const command = `rialto ${verb} ${quote(url)} ${quote(name)}`;
    if (text === null) return command;
    const { kind, members } = scan(text);
    const isWords = kind === 'object' && members.every(({ key }) => /^[^=-]/u.test(key) && !key.includes('='));
    // Words cannot have every name; standard input can.
    if (!isWords) return `printf %s ${quote(onOneLine(text))} | ${command} --args -`;
    const word = (/** @type {import('./json.js').Member} */ { key, node }) =>
        quote(`${key}:=${onOneLine(text.slice(node.start, node.end))}`);
    return [command, ...members.map(word)].join(' ');
}

/** Commands that make a call, by its method. */
const VERBS = { 'tools/call': 'call', 'prompts/get': 'prompt', 'resources/read': 'read' };

/**
 * @param {string} url Of the group. @param {any} call As recorded.
 * @returns {{ command: string, isWhole: boolean } | null} Not whole where an argument is not shown; null for what no command makes.
 */
export function commandOfCall(url, { method, name, bodies, messages }) {
    const verb = VERBS[/** @type {keyof typeof VERBS} */ (method)];
    if (!verb || !name) return null;
    if (verb === 'read') return { command: commandOf(url, name, null, verb), isWhole: true };
    const said = messages.find((/** @type {any} */ one) => one.wire === 'client' && one.way === 'in');
    const text = bodies === 'whole' ? argumentsIn(said?.text ?? '') : null;
    const isHidden = (/** @type {string} */ path) => path.startsWith('/params/arguments');
    const isWhole = text !== null && !said.hidden.some(isHidden);
    return { command: commandOf(url, name, text, verb), isWhole };
}

/** @param {string} text Of a request. @returns {string | null} Its arguments, as they were written. */
function argumentsIn(text) {
    try {
        const node = at(scan(text), '/params/arguments');
        return node ? text.slice(node.start, node.end) : '{}';
    } catch {
        return null;
    }
}

/** @param {string} url @param {string} name @param {string} text Arguments as JSON. */
export function curlOf(url, name, text) {
    const meta = {
        'io.modelcontextprotocol/protocolVersion': '2026-07-28',
        'io.modelcontextprotocol/clientInfo': { name: 'curl', version: '1' },
        'io.modelcontextprotocol/clientCapabilities': {}
    };
    const params = `{"name":${JSON.stringify(name)},"arguments":${onOneLine(text)},"_meta":${JSON.stringify(meta)}}`;
    const headers = {
        'content-type': 'application/json',
        accept: 'application/json, text/event-stream',
        'mcp-protocol-version': '2026-07-28',
        'mcp-method': 'tools/call',
        'mcp-name': name
    };
    const given = Object.entries(headers).map(([key, value]) => `-H ${quote(`${key}: ${value}`)}`);
    const body = `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":${params}}`;
    return `curl -s ${quote(url)} ${given.join(' ')} -d ${quote(body)}`;
}
