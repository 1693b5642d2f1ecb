// Rows of Traffic: which are kept, which wait until one wants to see them, and what is in their cells.

import { useLive } from '../live.js';
import { Outcome, Text } from '../parts/common.js';
import { TimeBar } from '../parts/spark.js';
import { bytes, duration, exactClock } from '../pure/time.js';
import { otherNode } from '../parts/nodes.js';
import { me, paused } from '../state.js';
import { html, useRef, useState } from '../ui.js';

const KEPT_ROWS = 5000;
const BRIDGES = { none: 'as it is', names: 'names only', era: 'same era', across: 'across eras' };
/** What "Calls" leaves out: the talk around them. */
const AROUND = ['ping', 'initialize', 'server/discover', 'logging/setLevel'];
/** Rows whose time sets the length of the bars. */
const SCALE_ROWS = 200;

/** @param {boolean} withNode @returns {{ label: string, right?: boolean }[]} */
export const columns = withNode => [
    { label: 'Time' },
    ...(withNode ? [{ label: 'Node' }] : []),
    { label: 'Client' },
    { label: 'Call' },
    { label: 'Server' },
    { label: 'Translated' },
    { label: 'Outcome' },
    { label: 'Took', right: true },
    { label: 'Whose time' },
    { label: 'Answer', right: true }
];

/** @param {any} row @param {string} show */
export function isShown(row, show) {
    if (show === 'all') return true;
    if (show === 'failed') return row.done && row.outcome !== 'ok';
    if (!row.mcp || AROUND.includes(row.method)) return false;
    return !row.method.startsWith('notifications/') && !row.method.endsWith('/list');
}

/** @typedef {{ rows: any[], waiting: any[] }} Kept */

const NOTHING_LOST = { isAny: false, count: 0, why: '' };

/** @param {Kept} kept @param {string} id @returns {Kept} Marks a call that the gateway keeps no longer. */
function letGo(kept, id) {
    const mark = (/** @type {any[]} */ rows) => {
        const at = rows.findIndex(one => one.id === id);
        return at < 0 ? rows : rows.with(at, { ...rows[at], gone: true });
    };
    return { rows: mark(kept.rows), waiting: mark(kept.waiting) };
}

/** @param {any[]} into @param {any} row */
const put = (into, row) => [row, ...into.filter(one => one.id !== row.id)].slice(0, KEPT_ROWS);

/** @param {Kept} kept @param {any} row @param {boolean} isHeld @returns {Kept} A row that is there is changed in its place. */
function take({ rows, waiting }, row, isHeld) {
    const at = rows.findIndex(one => one.id === row.id);
    if (at >= 0) return { rows: rows.with(at, row), waiting };
    return isHeld ? { rows, waiting: put(waiting, row) } : { rows: put(rows, row), waiting };
}

/** @param {Kept} kept @param {any[]} items @returns {Kept} Rows of a list, among those that came as events. */
function join({ rows, waiting }, items) {
    const given = new Set(items.map(one => one.id));
    const all = [...rows.filter(row => !given.has(row.id)), ...items];
    return {
        rows: all.sort((a, b) => (a.at < b.at ? 1 : -1)).slice(0, KEPT_ROWS),
        waiting: waiting.filter(row => !given.has(row.id))
    };
}

/** @param {Kept} kept @param {any[]} items @param {boolean} isHeld @returns {Kept} Rows of a list that was read again; new ones wait while one reads. */
const merge = (kept, items, isHeld) =>
    isHeld ? items.toReversed().reduce((all, row) => take(all, row, true), kept) : join(kept, items);

/**
 * Rows by id, newest first. While one reads (`isHeld`), new ones wait behind "12 new", so that nothing moves.
 * @param {string} q @param {string | null} node Whose calls they are; the stream may have those of other nodes, too.
 * @param {() => void} reload When the events of another node begin to come: what was before them is asked for.
 */
export function useRows(q, node, reload) {
    const [kept, setKept] = useState(/** @type {Kept} */ ({ rows: [], waiting: [] }));
    const [lost, setLost] = useState(NOTHING_LOST);
    const isHeld = useRef(false);
    const isStill = () => isHeld.current || paused.peek();
    const on = {
        call: (/** @type {any} */ row) => {
            row.found = q;
            if (node === null || node === 'all' || row.node === node) setKept(before => take(before, row, isStill()));
        },
        lost: (/** @type {any} */ { count, why }) => {
            setLost(before => ({ isAny: true, count: before.count + (count ?? 0), why: why ?? '' }));
        },
        gone: (/** @type {any} */ { topic, id }) => {
            // Its line stays, but there is nothing left to open.
            if (!topic) setKept(before => letGo(before, id));
        },
        node: (/** @type {any} */ { name, state }) => {
            if (state === 'alive' && otherNode(name) && node !== me.peek()?.node) reload();
        }
    };
    useLive(['call', 'gone'], on, { q, node });
    // The filter that the gateway found a call by: it may have looked where this page cannot.
    const found = (/** @type {any[]} */ items) => items.map(row => ({ ...row, found: q }));
    return {
        ...kept,
        lost,
        isHeld,
        release: () => setKept(({ rows, waiting }) => join({ rows, waiting: [] }, waiting)),
        add: (/** @type {any[]} */ items) => setKept(before => join(before, found(items))),
        update: (/** @type {any[]} */ items) => setKept(before => merge(before, found(items), isStill())),
        hideLost: () => setLost(NOTHING_LOST),
        clear: () => {
            setKept({ rows: [], waiting: [] });
            setLost(NOTHING_LOST);
        }
    };
}

/** @param {any[]} rows @returns {number} The longest time among the newest rows, at least a second. */
export const longest = rows => Math.max(...rows.slice(0, SCALE_ROWS).map(row => row.took_us ?? 0), 1e6);

/** @param {any} row */
function Translated({ row }) {
    const rounds = row.rounds > 1 ? `, ${row.rounds} rounds` : '';
    const isUnsent = row.done && row.outcome !== 'ok' && !row.server?.revision;
    const relay = row.relayed_to
        ? `relayed to ${row.relayed_to}`
        : row.hop && `by ${row.hop.node}, +${duration(row.hop.took_us)}`;
    const word = isUnsent ? 'not sent' : BRIDGES[/** @type {'none'} */ (row.bridge)];
    return html`${row.server && html`<span class=${`tag ${row.bridge === 'across' ? 'era' : ''}`}>${word}${rounds}</span>`}
        ${relay && html` <span class="tag">${relay}</span>`}${row.one_of > 1 && html` <span class="tag warn">1 of ${row.one_of}</span>`}${row.kept && html` <span class="tag">kept</span>`}${row.gone && html` <span class="tag">no longer kept</span>`}`;
}

/** @param {any} row @param {number} most @param {boolean} withNode */
export function cells(row, most, withNode) {
    const { client, server } = row;
    const who = [client.name ?? client.transport, client.version].filter(Boolean).join(' ');
    return html`<td class="num muted">${exactClock(row.at)}</td>${withNode && html`<td>${row.node}</td>`}
        <td class="who"><${Text} text=${who} most=${60} /> <span class="muted mono rev">${client.revision}</span></td>
        <td class="what"><span class="m">${row.method}</span> <${Text} text=${row.name} most=${120} /></td>
        <td class="who">${
            server
                ? html`${server.name} <span class="muted mono rev">${server.revision}</span>`
                : html`<span class="muted">${row.relayed_to ? `at ${row.relayed_to}` : 'Rialto itself'}</span>`
        }</td>
        <td><${Translated} row=${row} /></td>
        <td><${Outcome} outcome=${row.outcome} done=${row.done} /></td><td class="r">${row.done ? duration(row.took_us) : ''}</td>
        <td><${TimeBar} time=${row.time} took=${row.took_us} most=${most} /></td>
        <td class="r muted">${bytes(row.bytes?.answered)}</td>`;
}
