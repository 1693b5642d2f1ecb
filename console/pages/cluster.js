// Nodes: leases, sessions, what is relayed between them, and the store that they share.

import { get, useLoaded } from '../api.js';
import { resynced, useLive } from '../live.js';
import { CopyLine, Dot, Empty, ErrorStrip, shapeOf } from '../parts/common.js';
import { chosenOther, isOwnNode, NodeChooser } from '../parts/nodes.js';
import { clock, counted, duration, figure, since } from '../pure/time.js';
import { me, paused } from '../state.js';
import { html, useEffect } from '../ui.js';

/** Beyond this many sessions a node shows a count in place of dots. */
const DOTS_MAX = 500;
/** Between more nodes no arrows are drawn. */
const ARROW_NODES_MAX = 8;
/** How often relays are read while they are shown. */
const RELAYS_INTERVAL = 5000;

/** @param {{ Page: any }} props */
export function Cluster({ Page }) {
    const from = chosenOther();
    const loaded = useLoaded(() => get('nodes', { node: from }), [from], resynced.value);
    useLive(['node'], {
        node: () => {
            if (!paused.peek()) loaded.reload();
        }
    });
    // Relays come all the time and are no events.
    useEffect(() => {
        const timer = setInterval(() => {
            if (!paused.peek() && document.visibilityState === 'visible') loaded.reload();
        }, RELAYS_INTERVAL);
        return () => clearInterval(timer);
    }, [from]);
    const nodes = /** @type {any[] | null} */ (loaded.data?.items ?? null);
    const store = loaded.data?.store;
    const isAlone = nodes && nodes.length < 2 && !store;
    return html`<${Page} title="Cluster" sub=${nodes && counted(nodes.length, 'node')} tools=${html`<${SeenFrom} />`}><${ErrorStrip} error=${loaded.error} at=${loaded.at} retry=${loaded.reload} />
        <div class="page">
        ${
            store &&
            html`<section class="panel" aria-label="Store"><header><${Dot} state=${store.connected ? (store.full ? 'warn' : 'ok') : 'bad'} /><h2>Store</h2>
        <span class="mono">${store.address}</span>
        <span class="muted">${store.connected ? `connected, ${duration(store.latency_us)}` : 'away'}${store.full ? ', full: it refuses writes' : ''}</span></header>
        </section>`
        }
        <div class="nodes">${(nodes ?? []).map(node => html`<${Node} key=${node.name} node=${node} />`)}</div>
        ${nodes && store && html`<${Relays} nodes=${nodes} /><${Takeovers} nodes=${nodes} />`}
        ${
            isAlone &&
            html`<section class="panel"><${Empty} title="One node, everything in its memory"><p>To have more, give each the same store:</p>
        <${CopyLine} text=${'[cluster]\nstore = "redis://127.0.0.1:6379"'} what="Lines" /><p class="muted">A node that ends then hands its sessions to the others.</p><//>
        </section>`
        }</div><//>`;
}

const SeenFrom = () =>
    me.value?.clustered ? html`<span class="muted">seen from</span><${NodeChooser} all=${false} />` : null;

/** @param {{ nodes: any[] }} props Who relays to whom. */
function Relays({ nodes }) {
    const relays = nodes.flatMap(({ name, relays: to }) =>
        to.map((/** @type {any} */ one) => ({ from: name, ...one }))
    );
    const most = Math.max(1, ...relays.map(one => one.requests));
    const ends = [...new Set([...nodes.map(node => node.name), ...relays.map(one => one.to)])];
    return html`<section class="panel" aria-labelledby="relays"><header><h2 id="relays">Relayed requests</h2>
        <span class="muted">of clients, since each node started</span></header>${
            relays.length
                ? html`${ends.length <= ARROW_NODES_MAX && html`<${Arrows} ends=${ends} relays=${relays} most=${most} />`}
            <div class="scroll"><table><thead><tr><th scope="col">From</th><th scope="col">To the owner of the session</th>
            <th scope="col" class="r">Requests</th></tr></thead><tbody>${relays.map(
                one =>
                    html`<tr key=${`${one.from} ${one.to}`}><td>${one.from}</td><td>→ ${one.to}</td><td class="r">${figure(one.requests)}</td></tr>`
            )}</tbody></table></div>`
                : html`<${Empty} level=${3} title="None yet"><p>A request that comes to another node than the owner of its session appears here.</p><//>`
        }</section>`;
}

/** @param {{ ends: string[], relays: any[], most: number }} props Nodes as columns, and an arrow for each pair; the table has the figures. */
function Arrows({ ends, relays, most }) {
    const at = (/** @type {string} */ name) => ends.indexOf(name) * 140 + 70;
    return html`<svg class="relays" viewBox=${`0 0 ${ends.length * 140} ${relays.length * 16 + 30}`} aria-hidden="true">
        ${ends.map(
            name => html`<text key=${name} x=${at(name)} y="14" text-anchor="middle">${name}</text>
            <line class="lane" key=${`lane ${name}`} x1=${at(name)} y1="20" x2=${at(name)} y2=${relays.length * 16 + 26} />`
        )}${relays.map(({ from, to, requests }, index) => {
            const [begin, end, y] = [at(from), at(to), index * 16 + 30];
            const back = end > begin ? -7 : 7;
            return html`<path key=${`${from} ${to}`} stroke-width=${1 + (3 * requests) / most}
                d=${`M${begin} ${y}H${end}M${end + back} ${y - 4}L${end} ${y}L${end + back} ${y + 4}`} />`;
        })}</svg>`;
}

/** @param {{ nodes: any[] }} props Newest first. */
function Takeovers({ nodes }) {
    const events = nodes
        .flatMap(({ name, takeovers }) => takeovers.map((/** @type {any} */ one) => ({ by: name, ...one })))
        .sort((one, other) => other.at.localeCompare(one.at));
    return html`<section class="panel" aria-labelledby="takeovers"><header><h2 id="takeovers">Sessions taken over</h2></header>${
        events.length
            ? html`<ul class="todo">${events.map(
                  one => html`<li key=${one.at + one.session}><${Dot} state="warn" /><div><b>${one.by} took over <code>${one.session}</code></b>
            <span class="muted"> at ${clock(one.at)}</span><p>${one.from ? `Its owner ${one.from} held no lease any more.` : 'Its owner had released it.'}</p></div></li>`
              )}</ul>`
            : html`<${Empty} level=${3} title="None"><p>Sessions of a node that ended or was lost go on at another one, and are named here.</p><//>`
    }</section>`;
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
        <h2 class=${isAway ? 'muted' : ''}>${node.name}</h2>${node.own && html`<span class="tag">${isOwnNode(node.name) ? 'this one' : 'seen from here'}</span>`}<span class="gap"></span>
        <span class=${isAway ? 'tag bad' : 'muted'}>${isAway ? `away for ${since(node.since)}` : isOwnNode(node.name) ? 'answers you' : 'alive'}</span></header>
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
