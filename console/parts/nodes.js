// Which nodes of a cluster a page shows.

import { get, useLoaded } from '../api.js';
import { me, route, setQuery } from '../state.js';
import { html } from '../ui.js';

/** @returns {string | null} Name of a node, `all`, or null where there is but one. */
export const chosenNode = () => (me.value?.clustered ? (route.value.query.get('node') ?? 'all') : null);

/** @param {string | null} node Whether it is the node that answers. */
export const isOwnNode = node => node === null || node === me.value?.node;

/** @param {string} id Of a call. @returns {string | null} The node to ask for it, where that is not the one that answers. */
export function nodeOfCall(id) {
    return otherNode(id.slice(0, Math.max(0, id.lastIndexOf('.'))));
}

/** @param {string} name @returns {string | null} Nothing for the node that answers. */
export const otherNode = name => (name && me.value?.clustered && name !== me.value.node ? name : null);

/** Nothing where there is but one node. */
export const NodeChooser = () => (me.value?.clustered ? html`<${Chooser} />` : null);

function Chooser() {
    const loaded = useLoaded(() => get('nodes'), []);
    const names = (loaded.data?.items ?? []).map((/** @type {any} */ node) => node.name);
    const choose = (/** @type {any} */ event) =>
        setQuery({ node: event.target.value === 'all' ? null : event.target.value });
    return html`<label class="hidden" for="node">Nodes</label><select id="node" value=${chosenNode()} onChange=${choose}>
        <option value="all">all nodes</option>${names.map((/** @type {string} */ name) => html`<option value=${name} key=${name}>${name}</option>`)}</select>`;
}
