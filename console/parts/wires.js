// Both wires of one call, message by message, with what Rialto changed between them and why.

import { at as nodeAt, scan, unquote } from '../pure/json.js';
import { lines } from '../pure/lines.js';
import { bytes, duration, keptPart } from '../pure/time.js';
import { html, useMemo, useState } from '../ui.js';
import { Text } from './common.js';

/** @typedef {import('../types.d.ts').components['schemas']['Call']} Call */
/** @typedef {import('../types.d.ts').components['schemas']['Message']} Message */
/** @typedef {{ client: Message | null, server: Message | null, way: 'go' | 'back', at: number }} Row */

/** Lines of one message that are shown before somebody asks for the rest. */
const LINES_MAX = 60;
const MARKS = /** @type {const} */ ({ changed: 'ch', stays: 'rm', added: 'ad' });
const SIGNS = { ch: '~', ad: '+', rm: '−', '': '' };
const SAID = { ch: 'changed: ', ad: 'added here: ', rm: 'stays here: ', '': '' };

/** @param {Message} message @returns {'go' | 'back'} */
const wayOf = message => ((message.wire === 'client') === (message.way === 'in') ? 'go' : 'back');

/** @param {Message[]} messages @returns {Row[]} Messages that belong together share a row. */
export function pair(messages) {
    const byNumber = new Map(messages.map(message => [message.n, message]));
    const done = new Set();
    /** @type {Row[]} */
    const rows = [];
    for (const message of [...messages].sort((a, b) => a.at_us - b.at_us || a.n - b.n)) {
        if (done.has(message.n)) continue;
        const found = message.with === null || message.with === undefined ? undefined : byNumber.get(message.with);
        const other = found && !done.has(found.n) && found.wire !== message.wire ? found : null;
        done.add(message.n);
        if (other) done.add(other.n);
        const [client, server] = message.wire === 'client' ? [message, other] : [other, message];
        rows.push({ client: client ?? null, server: server ?? null, way: wayOf(message), at: message.at_us });
    }
    return rows;
}

/** @param {Message} message @returns {string} "tools/call", "result: input_required", "error −32602" */
export function titleOf(message) {
    const text = message.text ?? '';
    try {
        const root = scan(text);
        const slice = (/** @type {string} */ pointer) => {
            const node = nodeAt(root, pointer);
            return node && text.slice(node.start, node.end);
        };
        const method = slice('/method');
        if (method) return unquote(method);
        const type = slice('/result/resultType');
        if (nodeAt(root, '/result'))
            return type && unquote(type) !== 'complete' ? `result: ${unquote(type)}` : 'result';
        const code = slice('/error/code');
        if (code) return `error ${code}`;
    } catch {
        /* Cut or no JSON: its kind will do. */
    }
    return message.kind;
}

/** @param {Message} message @param {string} transport */
function whereOf(message, transport) {
    const http = /** @type {any} */ (message.http);
    if (http?.verb) return `${http.verb} ${http.path ?? ''}`;
    if (http?.status) return `${http.status}${http.event ? ', event of the stream' : ''}`;
    if (transport === 'stdio') return wayOf(message) === 'go' ? 'standard input' : 'standard output';
    return message.kind.startsWith('event') ? 'event of the stream' : '';
}

/** @param {{ call: Call }} props */
export function Wires({ call }) {
    const rows = useMemo(() => pair(call.messages), [call.messages]);
    const server = call.server;
    return html`<div class="wires" id="call-panel" role="tabpanel" tabindex="0" aria-labelledby="tab-call-panel-wires">
        <div class="head c"><b>As the client said it</b>${call.client.revision ? `, ${call.client.revision}` : ''}</div>
        <div class="head mid">Rialto, node ${call.node}</div>
        <div class="head s"><b>As the server heard it</b>${server?.revision ? `, ${server.revision}` : ''}</div>
        ${Boolean(call.omitted) && html`<p class="muted omitted">Records that are not kept: ${call.omitted}. Calls that are kept on purpose have no more room.</p>`}
        ${rows.map((row, index) => html`<${WireRow} key=${`${row.client?.n}-${row.server?.n}`} call=${call} row=${row} next=${rows.slice(index + 1).find(one => one.client && one.way === 'go')} />`)}</div>`;
}

/** @param {{ call: Call, row: Row, next?: Row }} props */
function WireRow({ call, row, next }) {
    const touched = call.changes.filter(({ messages }) =>
        messages.some(n => n !== null && (n === row.client?.n || n === row.server?.n))
    );
    return html`<${Side} call=${call} message=${row.client} side="c" transport=${call.client.transport} changes=${touched} />
        <${Rail} row=${row} changes=${touched} next=${next} client=${call.client.name ?? 'the client'} />
        <${Side} call=${call} message=${row.server} side="s" transport=${call.server?.transport ?? ''} changes=${touched} />`;
}

/** @param {{ call: Call, message: Message | null, side: 'c' | 's', transport: string, changes: Call['changes'] }} props */
function Side({ call, message, side, transport, changes }) {
    if (!message) return html`<div class=${`msg ${side}`}></div>`;
    const way = wayOf(message) === 'go' ? '→' : '←';
    const round =
        message.round > 1 && message.wire === 'client' && message.way === 'in' ? `, round ${message.round}` : '';
    const marks = new Map();
    for (const change of changes) {
        const place = change.messages.indexOf(message.n);
        if (place >= 0) marks.set(change.path, MARKS[change.kind]);
    }
    return html`<article class=${`msg ${side}`} tabindex="-1" data-message=${message.n}><div class="cap"><h3><span aria-hidden="true">${way} </span>
        <${Text} text=${titleOf(message)} most=${80} />${round}</h3>
        <span class="where"><${Text} text=${whereOf(message, transport)} most=${160} /></span>
        <span class="at">${message.at_us ? `+${duration(message.at_us)}` : '0'}</span></div>
        ${
            message.text === null
                ? html`<p class="muted">${bytes(message.bytes)}, ${call.bodies === 'none' ? 'not kept' : 'without a body'}</p>`
                : html`<${Json} text=${message.text} marks=${marks} hidden=${message.hidden} />`
        }
        ${message.text !== null && call.bodies === 'cut' && message.cut && html`<p class="muted">${keptPart(message)}</p>`}</article>`;
}

/** @param {{ text: string, marks?: Map<string, any>, hidden?: string[], wrap?: boolean }} props JSON as it came. */
export function Json({ text, marks = new Map(), hidden = [], wrap = false }) {
    const all = useMemo(() => lines(text, marks, hidden), [text, marks.size, hidden.length]);
    const [most, setMost] = useState(LINES_MAX);
    return html`<pre class=${wrap ? 'json wrap' : 'json'}>${all.slice(0, most).map((line, index) => html`<${JsonLine} key=${index} line=${line} />`)}
        ${all.length > most && html`<button type="button" class="btn more" onClick=${() => setMost(most + 2000)}>Show ${Math.min(2000, all.length - most).toLocaleString('en')} more lines</button>`}</pre>`;
}

/** @param {{ line: import('../pure/lines.js').Line }} props */
function JsonLine({ line: { indent, pieces, mark } }) {
    return html`<span class=${`l ${mark}`} data-change=${mark ? '' : undefined} tabindex=${mark ? -1 : undefined}>${
        mark &&
        html`<span class="sign" aria-hidden="true">${SIGNS[mark]}</span><span class="hidden">${SAID[mark]}</span>`
    }${'  '.repeat(indent)}${pieces.map(piece => {
        const shown = html`<${Text} text=${piece.text} />`;
        if (piece.as === 'key') return html`<span class="k">${shown}</span>`;
        if (piece.as === 'mark') return html`<mark>${shown}</mark>`;
        return piece.as === 'out'
            ? html`<span class="out" title="Taken out before it left the gateway">${shown}</span>`
            : shown;
    })}</span>`;
}

/** @param {{ row: Row, changes: Call['changes'], next?: Row, client: string }} props */
function Rail({ row, changes, next, client }) {
    const reasons = [...new Set(changes.map(change => change.why))];
    const both = row.client && row.server;
    const isCut = row.client?.cut || row.server?.cut;
    const gap = both ? Math.abs(/** @type {any} */ (row.server).at_us - /** @type {any} */ (row.client).at_us) : 0;
    const parked =
        row.client && row.way === 'back' && next?.client && next.client.round > row.client.round
            ? next.client.at_us - row.client.at_us
            : 0;
    return html`<div class="rail"><${Arrow} way=${row.way} both=${Boolean(both)} />
        ${reasons.slice(0, 6).map((why, index) => html`<p class=${index ? 'd' : ''} key=${why}>${why}</p>`)}
        ${both && !reasons.length && html`<p class="d">${isCut ? 'not compared: a part is not kept' : 'passed on as it is'}</p>`}
        ${!both && !reasons.length && html`<p class="d">${row.client ? 'between the client and Rialto' : 'between Rialto and the server'}</p>`}
        ${gap > 0 && html`<p class="d">${duration(gap)}</p>`}
        ${parked > 0 && html`<div class="hold">Parked for ${duration(parked)}, until ${client} calls again</div>`}</div>`;
}

/** @param {{ way: 'go' | 'back', both: boolean }} props */
function Arrow({ way, both }) {
    const line = html`<svg viewBox="0 0 100 10" preserveAspectRatio="none" aria-hidden="true"><path d="M0 5h100" vector-effect="non-scaling-stroke" /></svg>`;
    if (!both) return html`<div class="way none">${line}</div>`;
    const tip = html`<svg class="tip" viewBox="0 0 8 10" aria-hidden="true"><polygon points=${way === 'go' ? '0,1 8,5 0,9' : '8,1 0,5 8,9'} /></svg>`;
    return html`<div class=${`way ${way}`}>${way === 'go' ? [line, tip] : [tip, line]}</div>`;
}
