// Which nodes of a cluster a page shows, and which of them are away.

import { getPages, useLoaded } from '../api.js';
import { resynced } from '../live.js';
import { since } from '../pure/time.js';
import { me, route, setQuery } from '../state.js';
import { html, signal, useRef } from '../ui.js';

/** @typedef {{ name: string, state: string, since: string | null }} NodeState */

/** Nodes by name, as they were last heard of. */
export const nodes = signal(/** @type {Map<string, NodeState>} */ (new Map()));

/** @param {NodeState} heard Of an event. */
export function noteNode(heard) {
    nodes.value = new Map([...nodes.peek(), /** @type {const} */ ([heard.name, heard])]);
}

/** @param {NodeState[]} all The whole list: a node that is not in it is no more. */
export function setNodes(all) {
    nodes.value = new Map(all.map(node => /** @type {const} */ ([node.name, node])));
}

/** @param {string} name @returns {boolean} */
export const isAway = name => nodes.value.get(name)?.state === 'away';

/** @returns {string | null} Name of a node, `all`, or null where there is but one. */
export const chosenNode = () => (me.value?.clustered ? (route.value.query.get('node') ?? 'all') : null);

/** @returns {string | null} The one node that is chosen, where that is not the one that answers. */
export function chosenOther() {
    const node = chosenNode();
    return node === null || node === 'all' ? null : otherNode(node);
}

/** @param {string | null} node Whether it is the node that answers. */
export const isOwnNode = node => node === null || node === me.value?.node;

/** @param {string | null} node As chosen. @returns {(string | null)[]} The nodes that are meant and not away, as requests name them. */
export function meantNodes(node) {
    if (node !== 'all') return [otherNode(node ?? '')];
    const others = [...nodes.value.keys()].filter(name => name !== me.value?.node && !isAway(name));
    return [null, ...others];
}

/** @param {string} id Of a call. @returns {string | null} The node to ask for it, where that is not the one that answers. */
export function nodeOfCall(id) {
    return otherNode(id.slice(0, Math.max(0, id.lastIndexOf('.'))));
}

/** @param {string} name @returns {string | null} Nothing for the node that answers. */
export const otherNode = name => (name && me.value?.clustered && name !== me.value.node ? name : null);

/** @param {string} path Of a list. All rows of the chosen nodes; those of a node that does not answer stay, marked `away`. */
export function useNodeRows(path) {
    const node = chosenNode();
    const seen = useRef(/** @type {any[]} */ ([]));
    const load = async () => {
        const { items, away } = await getPages(path, { node });
        const [ids, silent] = [new Set(items.map(row => row.id)), new Set(away.map(one => one.node))];
        const stay = seen.current.filter(row => silent.has(row.node) && !ids.has(row.id));
        seen.current = [...items, ...stay.map(row => ({ ...row, away: true }))];
        return seen.current;
    };
    return useLoaded(load, [node], resynced.value);
}

/** Nothing where there is but one node. @param {{ all?: boolean }} props Whether a page can show all nodes at once. */
export const NodeChooser = ({ all = true }) => (me.value?.clustered ? html`<${Chooser} all=${all} />` : null);

/** @param {{ all: boolean }} props */
function Chooser({ all }) {
    const [known, own] = [[...nodes.value.values()], me.value?.node];
    const otherwise = all ? 'all' : own;
    const chosen = route.value.query.get('node') ?? otherwise;
    const names = [...new Set([own, ...known.map(node => node.name), ...(all || !chosen ? [] : [chosen])])];
    const choose = (/** @type {any} */ event) =>
        setQuery({ node: event.target.value === otherwise ? null : event.target.value });
    return html`${known
        .filter(node => node.state === 'away')
        .map(node => html`<span class="tag bad" key=${node.name}>${node.name} away for ${since(node.since)}</span>`)}
        <label class="hidden" for="node">Nodes</label><select id="node" value=${chosen} onChange=${choose}>
        ${all && html`<option value="all">all nodes</option>`}
        ${names.map(name => html`<option value=${name} key=${name}>${name}</option>`)}</select>`;
}
