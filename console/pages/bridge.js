// Five revisions × servers: what is translated between them, and what came up.

import { attempt, get, send, useLoaded } from '../api.js';
import { resynced, useLive } from '../live.js';
import { Empty, ErrorStrip, TextBlock } from '../parts/common.js';
import { REVISIONS } from '../pure/revisions.js';
import { counted } from '../pure/time.js';
import { address, may, me, paused, route, setQuery } from '../state.js';
import { html, useState } from '../ui.js';

const BRIDGES = { none: 'as it is', era: 'same era', across: 'across eras' };
const NEWEST = REVISIONS[0];

/** @param {any} cell @returns {'none' | 'era' | 'across'} */
function kindOf(cell) {
    if (!cell.words.length) return 'none';
    return (cell.client === NEWEST) === (cell.server_revision === NEWEST) ? 'era' : 'across';
}

/** @param {{ Page: any }} props */
export function Bridge({ Page }) {
    const loaded = useLoaded(() => get('bridge'), [], resynced.value);
    const reload = () => {
        if (!paused.peek()) loaded.reload();
    };
    useLive(['server'], { server: reload });
    const bridge = /** @type {BridgeData | null} */ (loaded.data);
    const open = route.value.query.get('open');
    const chosen = bridge?.cells.find(cell => keyOf(cell) === open);
    return html`<${Page} title="Bridge" sub="Clients of every revision, and what is translated for each server">
        <${ErrorStrip} error=${loaded.error} at=${loaded.at} retry=${loaded.reload} /><div class="page">
        <section class="panel" aria-label="Matrix of revisions and servers">${
            bridge && !bridge.servers.length
                ? html`<${Empty} title="No server is configured">
                <p>Each server is a column here, each revision that a client can speak a row.</p><//>`
                : html`<${Matrix} bridge=${bridge} open=${open} />`
        }</section>${chosen && html`<${Pair} cell=${chosen} />`}${may('act') && html`<${Check} />`}</div><//>`;
}

/** @typedef {import('../types.d.ts').components['schemas']['Bridge']} BridgeData */
/** @typedef {BridgeData['cells'][number]} BridgeCell */

/** @param {BridgeCell} cell */
const keyOf = cell => `${cell.client} ${cell.server} ${cell.server_revision ?? ''}`;

/** @param {{ bridge: BridgeData | null, open: string | null }} props */
function Matrix({ bridge, open }) {
    const of = (/** @type {string} */ client, /** @type {string} */ server) =>
        (bridge?.cells ?? []).filter(cell => cell.client === client && cell.server === server);
    const servers = bridge?.servers ?? [];
    return html`<div class="scroll"><table class="matrix"><thead><tr><th scope="col">Client</th>
        ${servers.map(name => html`<th scope="col" key=${name}><a class="link" href=${address(['servers', name])}>${name}</a></th>`)}</tr></thead>
        <tbody>${(bridge?.revisions ?? []).toReversed().map(
            revision => html`<tr key=${revision}><th scope="row" class="mono">${revision}</th>
            ${servers.map(name => html`<td key=${name}>${of(revision, name).map(cell => html`<${Cell} key=${keyOf(cell)} cell=${cell} open=${open} />`)}</td>`)}</tr>`
        )}</tbody></table></div>`;
}

/** @param {{ cell: BridgeCell, open: string | null }} props */
function Cell({ cell, open }) {
    if (!cell.server_revision) return html`<span class="muted">not known yet</span>`;
    const [kind, isOpen] = [kindOf(cell), keyOf(cell) === open];
    const toggle = () => setQuery({ open: isOpen ? null : keyOf(cell) });
    return html`<button type="button" class="cell" aria-expanded=${isOpen ? 'true' : 'false'} onClick=${toggle}>
        <span class=${`tag ${kind === 'across' ? 'era' : ''}`}>${BRIDGES[kind]}</span>
        <span class="muted mono rev">${cell.server_revision}</span>
        <span class="muted">${cell.calls ? counted(cell.calls, 'call') : 'has not come up'}</span></button>`;
}

/** @param {{ cell: BridgeCell }} props What is translated between one client and one server. */
const Pair = ({ cell }) => html`<section class="panel" aria-label="What is translated"><header>
    <h2>A client of ${cell.client}, and ${cell.server}, which speaks ${cell.server_revision}</h2><span class="gap"></span>${
        cell.calls > 0 &&
        html`<a class="btn" href=${address(['traffic'], { q: `client:${cell.client} server:${cell.server}` })}>${counted(cell.calls, 'call')}</a>`
    }</header><div class="body">${
        cell.words.length
            ? html`<ul class="steps">${cell.words.map(
                  word =>
                      html`<li key=${word}><span class="sign none" aria-hidden="true">·</span><span>${word}</span></li>`
              )}</ul>`
            : html`<p class="muted">Nothing: messages are passed on as they come, but for names and ids.</p>`
    }</div></section>`;

function Check() {
    const [text, setText] = useState('');
    const [found, setFound] = useState('');
    const [busy, setBusy] = useState(false);
    const isIdle = !busy && text.trim() !== '';
    const submit = async (/** @type {Event} */ event) => {
        event.preventDefault();
        if (!isIdle) return;
        setBusy(true);
        const target = /^[a-z]+:\/\//iu.test(text) ? { url: text.trim() } : { server: text.trim() };
        const said = await attempt(() => send('POST', 'probe', target));
        setFound(said ? JSON.stringify(said, null, 2) : '');
        setBusy(false);
    };
    return html`<section class="panel" aria-labelledby="check"><header><h2 id="check">Check a server</h2>
        <span class="muted">what <code>rialto probe</code> says, from ${me.value?.node}</span></header><div class="body"><form class="row" onSubmit=${submit}>
        <label for="probe">Address or name</label>
        <input id="probe" type="text" class="mono why-name" spellcheck="false" value=${text}
        onInput=${(/** @type {any} */ event) => setText(event.target.value)} placeholder="https://…/mcp, or the name of a server" />
        <button type="submit" class="btn" aria-disabled=${isIdle ? undefined : 'true'}>${busy ? 'Asking' : 'Check'}</button></form>
        <div aria-live="polite">${found && html`<${TextBlock} text=${found} label="What was found out" />`}</div></div></section>`;
}
