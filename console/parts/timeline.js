// One call on an axis of time, in two lanes: the client's wire above, the server's below.

import { duration, waitingSpans } from '../pure/time.js';
import { html } from '../ui.js';
import { titleOf } from './wires.js';

const [LEFT, WIDTH] = [70, 820];
const ROW = 17;
const TICKS = 5;

/** @param {{ call: import('./wires.js').Call }} props */
export function Timeline({ call }) {
    const most = Math.max(call.took_us ?? 0, ...call.messages.map(message => message.at_us), 1);
    const x = (/** @type {number} */ us) => LEFT + (us / most) * WIDTH;
    const lanes = /** @type {const} */ ([
        ['client', 'c'],
        ['server', 's']
    ]).map(([wire, name]) => ({ wire, name, messages: call.messages.filter(message => message.wire === wire) }));
    const [above, below] = lanes.map(lane => Math.max(1, lane.messages.length) * ROW);
    const height = above + below + 62;
    const waits = waitingSpans(call);
    return html`<div class="lanes" id="call-panel" role="tabpanel" tabindex="0" aria-labelledby="tab-call-panel-timeline">
        <svg viewBox=${`0 0 960 ${height}`} role="img" aria-label=${`${call.messages.length} messages in ${duration(most)}`}>
        <defs><pattern id="hatch" width="6" height="6" patternUnits="userSpaceOnUse" patternTransform="rotate(45)"><path class="hatch" d="M0 0V6" /></pattern></defs>
        ${Array.from(
            { length: TICKS + 1 },
            (_, tick) => html`<g key=${tick}><path class="axis" d=${`M${x((most / TICKS) * tick)} 18V${height - 4}`} />
        <text x=${x((most / TICKS) * tick) + 3} y="12">${duration((most / TICKS) * tick)}</text></g>`
        )}
        ${waits.map(
            wait => html`<rect class="p" x=${x(wait.from)} y="20" width=${Math.max(2, x(wait.to) - x(wait.from))} height=${height - 26}>
        <title>a person, ${duration(wait.to - wait.from)}</title></rect>`
        )}
        ${lanes.map(
            (
                lane,
                index
            ) => html`<g key=${lane.wire}><text class="b" x="4" y=${index ? above + 58 : 34}>${lane.wire}</text>
            ${lane.messages.map((message, row) => bar(message, lane.name, x, (index ? above + 46 : 22) + row * ROW))}</g>`
        )}</svg>
        ${waits.length > 0 && html`<p class="muted">Hatched: waiting for a person.</p>`}</div>`;
}

/** @param {any} message @param {string} name @param {(us: number) => number} x @param {number} y */
function bar(message, name, x, y) {
    const at = x(message.at_us);
    const isLate = at > 700;
    const label = `${(message.wire === 'client') === (message.way === 'in') ? '→' : '←'} ${titleOf(message).slice(0, 40)} ${message.at_us ? `+${duration(message.at_us)}` : '0'}`;
    return html`<g key=${message.n}><rect class=${name} x=${at} y=${y} width="4" height="12" rx="1" />
        <text x=${isLate ? at - 6 : at + 9} y=${y + 10} text-anchor=${isLate ? 'end' : 'start'}>${label}</text></g>`;
}
