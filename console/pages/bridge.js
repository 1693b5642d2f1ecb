// Five revisions × servers: what is translated between them, and what came up.

import { attempt, get, send, useLoaded } from '../api.js';
import { resynced, useLive } from '../live.js';
import { Empty, ErrorStrip, TextBlock } from '../parts/common.js';
import { counted } from '../pure/time.js';
import { address, may, me, paused } from '../state.js';
import { html, useState } from '../ui.js';

/** @param {{ Page: any }} props */
export function Bridge({ Page }) {
    const loaded = useLoaded(() => get('bridge'), [resynced.value]);
    useLive(['server'], { server: () => { if (!paused.peek()) loaded.reload(); } });
    const bridge = /** @type {any} */ (loaded.data);
    return html`<${Page} title="Bridge" sub="Clients of every revision, and what is translated for each server">
        <${ErrorStrip} error=${loaded.error} at=${loaded.at} retry=${loaded.reload} /><div class="page">
        <section class="panel" aria-label="Matrix of revisions and servers">
        ${bridge && !bridge.servers.length ? html`<${Empty} title="No server is configured">
        <p>Each server is a column here, each revision that a client can speak a row.</p><//>` : html`<div class="scroll"><table class="matrix"><thead><tr>
        <th scope="col">Client</th>
        ${(bridge?.servers ?? []).map((/** @type {string} */ name) => html`<th scope="col" key=${name}><a class="link" href=${address(['servers', name])}>${name}</a>
        </th>`)}</tr></thead>
        <tbody>${(bridge?.revisions ?? []).map((/** @type {string} */ revision) => html`<tr key=${revision}>
        <th scope="row" class="mono">${revision}</th>${bridge.servers.map((/** @type {string} */ name) => html`<${Cell} key=${name} cells=${bridge.cells.filter((/** @type {any} */ cell) => cell.client === revision && cell.server === name)} />`)}</tr>`)}</tbody></table></div>`}</section>
        ${may('act') && html`<${Check} />`}</div><//>`;
}

/** @param {{ cells: any[] }} props */
function Cell({ cells }) {
    if (!cells.length) return html`<td class="muted">has not come up</td>`;
    return html`<td>${cells.map(cell => html`<div key=${cell.server_revision}><span class="muted mono">${cell.server_revision ?? 'not known yet'}</span>
        <div>${cell.words.length ? cell.words.join(', ') : 'as it is'}</div>
        ${cell.calls ? html`<a class="link" href=${address(['traffic'], { q: `client:${cell.client} server:${cell.server}` })}>${counted(cell.calls, 'call')}</a>` : html`<span class="muted">has not come up</span>`}</div>`)}</td>`;
}

function Check() {
    const [text, setText] = useState('');
    const [found, setFound] = useState('');
    const [busy, setBusy] = useState(false);
    const submit = async (/** @type {Event} */ event) => {
        event.preventDefault();
        setBusy(true);
        const target = /^[a-z]+:\/\//iu.test(text) ? { url: text.trim() } : { server: text.trim() };
        const said = await attempt(() => send('POST', 'probe', target));
        setFound(said ? JSON.stringify(said, null, 2) : '');
        setBusy(false);
    };
    return html`<section class="panel" aria-labelledby="check"><header><h2 id="check">Check a server</h2>
        <span class="muted">what <code>rialto probe</code> says, from ${me.value?.node}</span></header><div class="body"><form class="row" onSubmit=${submit}>
        <label for="probe">Address or name</label>
        <input id="probe" type="text" class="mono why-name" spellcheck="false" value=${text} onInput=${(/** @type {any} */ event) => setText(event.target.value)} placeholder="https://…/mcp, or the name of a server" /><button type="submit" class="btn" disabled=${busy || !text.trim()}>${busy ? 'Asking' : 'Check'}</button></form>
        <div aria-live="polite">${found && html`<${TextBlock} text=${found} label="What was found out" />`}</div></div></section>`;
}
