// "Who meets whom": ribbons between the revisions of clients and the servers, as wide as their share of the calls.

import { address } from '../state.js';
import { percent } from '../pure/time.js';
import { html } from '../ui.js';

const [TOP, HEIGHT, GAP] = [4, 214, 10];
const [LEFT, RIGHT] = [156, 540];
const CLASSES = { none: 'asis', names: 'asis', era: 'within', across: 'era' };
const ERAS = { '2026-07-28': 'per request' };

/** @param {{ key: string, sum: number }[]} ends @param {number} total Places on one side, by share; a small one is still seen. */
function place(ends, total) {
    const least = 3;
    const room = HEIGHT - GAP * Math.max(0, ends.length - 1) - least * ends.length;
    let y = TOP;
    return new Map(
        ends.map(({ key, sum }) => {
            const tall = least + Math.max(0, room) * (total ? sum / total : 0);
            const end = { y, tall, used: 0, sum };
            y += tall + GAP;
            return [key, end];
        })
    );
}

/** @param {any[]} pairs @param {(pair: any) => string} of */
function sums(pairs, of) {
    /** @type {Map<string, number>} */
    const found = new Map();
    for (const pair of pairs) found.set(of(pair), (found.get(of(pair)) ?? 0) + pair.calls);
    return [...found].map(([key, sum]) => ({ key, sum }));
}

/** @param {{ pairs: any[], servers: any[] }} props */
export function Ribbons({ pairs, servers }) {
    const total = pairs.reduce((sum, pair) => sum + pair.calls, 0);
    const clients = sums(pairs, pair => pair.client).sort((a, b) => b.key.localeCompare(a.key));
    const order = new Map(servers.map((server, index) => [server.name, index]));
    const known = sums(pairs, pair => pair.server);
    for (const { name, phase } of servers)
        if (phase !== 'ready' && !known.some(one => one.key === name)) known.push({ key: name, sum: 0 });
    known.sort((a, b) => b.sum - a.sum || (order.get(a.key) ?? 0) - (order.get(b.key) ?? 0));
    const left = place(clients, total);
    const right = place(known.slice(0, 14), total);
    const drawn = pairs
        .filter(pair => right.has(pair.server))
        .sort((a, b) => (order.get(a.server) ?? 0) - (order.get(b.server) ?? 0));
    return html`<svg viewBox="36 0 664 226" role="group" aria-label="Calls by the revision of the client and by server"><defs><linearGradient id="across">
        <stop class="from" /><stop class="to" offset="1" /></linearGradient></defs>
        ${drawn.map(pair => ribbon(pair, left, right))}
        ${[...left].map(
            ([
                key,
                end
            ]) => html`<g key=${key}><rect class="c" x=${LEFT - 5} y=${end.y} width="5" height=${end.tall} rx="1.5" />
            <text class="end" x=${LEFT - 12} y=${end.y + end.tall / 2 + 4}>${key} <tspan class="m">${percent(total ? end.sum / total : 0).replace('.0', '')}</tspan>
            </text>
            ${end.tall > 34 && html`<text class="m end" x=${LEFT - 12} y=${end.y + end.tall / 2 + 19}>${ERAS[/** @type {keyof typeof ERAS} */ (key)] ?? 'handshake'}</text>`}</g>`
        )}
        ${[...right].map(([key, end]) =>
            serverEnd(
                key,
                end,
                servers.find(server => server.name === key)
            )
        )}</svg>`;
}

/** @param {any} pair @param {Map<string, any>} left @param {Map<string, any>} right */
function ribbon(pair, left, right) {
    const [from, to] = [left.get(pair.client), right.get(pair.server)];
    const [a, b] = [from.tall * (pair.calls / (from.sum || 1)), to.tall * (pair.calls / (to.sum || 1))];
    const [y, z] = [from.y + from.used, to.y + to.used];
    from.used += a;
    to.used += b;
    const middle = (LEFT + RIGHT) / 2;
    const d = `M${LEFT} ${y.toFixed(1)}C${middle} ${y.toFixed(1)} ${middle} ${z.toFixed(1)} ${RIGHT} ${z.toFixed(1)}V${(z + b).toFixed(1)}C${middle} ${(z + b).toFixed(1)} ${middle} ${(y + a).toFixed(1)} ${LEFT} ${(y + a).toFixed(1)}Z`;
    const said = `${pair.client} to ${pair.server}, ${percent(pair.share)} of the calls, ${{ none: 'as it is', names: 'names only', era: 'same era', across: 'across eras' }[/** @type {'none'} */ (pair.bridge)]}`;
    return html`<a key=${`${pair.client} ${pair.server} ${pair.server_revision}`} href=${address(['traffic'], { q: `client:${pair.client} server:${pair.server}` })} aria-label=${said}>
        <path class=${CLASSES[/** @type {'none'} */ (pair.bridge)]} d=${d}><title>${said}</title></path></a>`;
}

/** @param {string} key @param {any} end @param {any} server */
function serverEnd(key, end, server) {
    const isDown = server?.phase === 'down';
    const y = end.y + end.tall / 2 + 4;
    return html`<g key=${`s${key}`}><rect class=${isDown ? 'off' : 's'} x=${RIGHT} y=${end.y} width="5" height=${end.tall} rx="1.5" />
        <text x=${RIGHT + 12} y=${y}>${key.length > 14 ? `${key.slice(0, 13)}…` : key}</text>
        <text class="m" x=${RIGHT + 88} y=${y}>${isDown ? 'down' : (server?.revision ?? '')}</text></g>`;
}
