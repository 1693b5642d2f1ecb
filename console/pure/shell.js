// Commands to paste into a shell. Every word of a server or operator is quoted.

/** @param {string} word @returns {string} */
export const quote = word => (/^[\w@%+=:,./-]+$/u.test(word) ? word : `'${word.replaceAll("'", "'\\''")}'`);

/** @param {string} text JSON, on one line. Line ends between its members are no part of any string. */
const onOneLine = text => text.replace(/\s*\n\s*/gu, ' ');

/** @param {string} url @param {string} name @param {string} text Arguments as JSON. */
export const commandOf = (url, name, text) => `rialto call ${quote(url)} ${quote(name)} ${quote(onOneLine(text))}`;

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
