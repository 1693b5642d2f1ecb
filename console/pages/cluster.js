// Nodes: leases, sessions, what is relayed between them, and the store that they share.

import { get, useLoaded } from '../api.js';
import { resynced, useLive } from '../live.js';
import { CopyLine, Dot, Empty, ErrorStrip, shapeOf } from '../parts/common.js';
import { counted, duration, figure, since } from '../pure/time.js';
import { paused } from '../state.js';
import { html } from '../ui.js';

/** Beyond this many sessions a node shows a count in place of dots. */
const DOTS_MAX = 500;

/** @param {{ Page: any }} props */
export function Cluster({ Page }) {
    const loaded = useLoaded(() => get('nodes'), [], resynced.value);
    useLive(['node'], {
        node: () => {
            if (!paused.peek()) loaded.reload();
        }
    });
    const nodes = /** @type {any[] | null} */ (loaded.data?.items ?? null);
    const store = loaded.data?.store;
    const isAlone = nodes && nodes.length < 2 && !store;
    return html`<${Page} title="Cluster" sub=${nodes && counted(nodes.length, 'node')}><${ErrorStrip} error=${loaded.error} at=${loaded.at} retry=${loaded.reload} />
        <div class="page">
        ${
            store &&
            html`<section class="panel" aria-label="Store"><header><${Dot} state=${store.connected ? (store.full ? 'warn' : 'ok') : 'bad'} /><h2>Store</h2>
        <span class="mono">${store.address}</span>
        <span class="muted">${store.connected ? `connected, ${duration(store.latency_us)}` : 'away'}${store.full ? ', full: it refuses writes' : ''}</span></header>
        </section>`
        }
        <div class="nodes">${(nodes ?? []).map(node => html`<${Node} key=${node.name} node=${node} />`)}</div>
        ${
            isAlone &&
            html`<section class="panel"><${Empty} title="One node, everything in its memory"><p>To have more, give each the same store:</p>
        <${CopyLine} text=${'[cluster]\nstore = "redis://127.0.0.1:6379"'} what="Lines" /><p class="muted">A node that ends then hands its sessions to the others.</p><//>
        </section>`
        }</div><//>`;
}

/** @param {{ node: any }} props */
function Node({ node }) {
    const isAway = node.state === 'away';
    const facts = [
        ['Lease', node.lease_us === null ? '–' : duration(node.lease_us)],
        ['Sessions', figure(node.sessions)],
        ['Calls at work', figure(node.calls_in_flight)],
        ['Relayed to others', figure(node.relayed)],
        ['Serving for others', figure(node.relaying)],
        ['Sessions taken over', figure(node.adopted)],
        ['Version', node.version ?? '–'],
        ['Up for', node.started ? since(node.started) : '–']
    ];
    return html`<section class=${`panel${isAway ? ' away' : ''}`} aria-label=${`Node ${node.name}`}><header><${Dot} state=${shapeOf(node.state)} />
        <h2 class=${isAway ? 'muted' : ''}>${node.name}</h2>${node.own && html`<span class="tag">this one</span>`}<span class="gap"></span>
        <span class=${isAway ? 'tag bad' : 'muted'}>${isAway ? `away for ${since(node.since)}` : node.state === 'here' ? 'answers you' : 'alive'}</span></header>
        <div class="body"><dl class="facts">${facts.map(
            ([name, value]) => html`<dt>${name}</dt>
        <dd class="num">${value}</dd>`
        )}</dl>${node.sessions > 0 && node.sessions <= DOTS_MAX && html`<${Dots} count=${node.sessions} />`}</div></section>`;
}

/** @param {{ count: number }} props Sessions as dots at their owner. */
const Dots = ({ count }) => html`<svg class="dots" viewBox=${`0 0 300 ${Math.ceil(count / 30) * 10}`} role="img"
    aria-label=${counted(count, 'session')}>${Array.from(
        { length: count },
        (_, index) =>
            html`<circle key=${index} cx=${(index % 30) * 10 + 5} cy=${Math.floor(index / 30) * 10 + 5} r="3" />`
    )}</svg>`;
