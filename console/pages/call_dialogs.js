// Dialogs of a call: exporting it, and making it again.

import { attempt, get, request, send } from '../api.js';
import { Dialog } from '../parts/dialog.js';
import { nodeOfCall } from '../parts/nodes.js';
import { REVISIONS } from '../pure/revisions.js';
import { address, go, route } from '../state.js';
import { html, useState } from '../ui.js';

/** @typedef {import('../parts/wires.js').Call} Call */

/** @param {{ call: Call, close: () => void }} props */
export function ExportDialog({ call, close }) {
    const save = async (/** @type {string} */ as, /** @type {string} */ ending) => {
        const response = await attempt(() =>
            request(`calls/${encodeURIComponent(call.id)}/export`, { query: { as, node: nodeOfCall(call.id) } })
        );
        if (response) download(await response.blob(), `${call.id}.${ending}`);
        close();
    };
    return html`<${Dialog} label="Export" close=${close}><div class="body"><h2>Export this call</h2>
        <p class="soft">Secrets are taken out of it in the same way as on this page.</p>
        <div class="acts"><button type="button" class="btn" autofocus onClick=${() => save('rialto', 'json')}>Rialto JSON</button>
        <button type="button" class="btn" onClick=${() => save('har', 'har')}>HAR</button>
        <button type="button" class="btn" onClick=${() => save('curl', 'sh')}>curl</button><button type="button" class="btn quiet" onClick=${close}>Cancel</button></div>
        </div><//>`;
}

/** @param {Blob} blob @param {string} name */
export function download(blob, name) {
    const link = Object.assign(document.createElement('a'), { href: URL.createObjectURL(blob), download: name });
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
}

/** How long a call that was just made may take to be recorded. */
const [RECORDED_TRIES, RECORDED_INTERVAL] = [30, 100];

/** @param {string} id Waits until a call that was just made can be shown. */
async function recorded(id) {
    for (let left = RECORDED_TRIES; left > 0; left--) {
        const isThere = await get(`calls/${encodeURIComponent(id)}`).then(
            () => true,
            () => false
        );
        if (isThere) return;
        await new Promise(resolve => setTimeout(resolve, RECORDED_INTERVAL));
    }
}

/** @param {{ call: Call, close: () => void }} props */
export function ReplayDialog({ call, close }) {
    const [side, setSide] = useState('client');
    const [as, setAs] = useState('');
    const run = async (/** @type {Event} */ event) => {
        event.preventDefault();
        close();
        const body = { side, ...(as && side === 'client' ? { as } : {}) };
        const made = await attempt(() => send('POST', `calls/${encodeURIComponent(call.id)}/replay`, body));
        if (made?.call) await recorded(made.call);
        const { parts, query } = route.peek();
        const isBeside = parts[0] === 'traffic';
        const there = isBeside ? address(['traffic'], { ...Object.fromEntries(query), open: made?.call }) : null;
        if (made?.call) go(there ?? address(['calls', made.call]));
    };
    const choice = (/** @type {string} */ value, /** @type {string} */ label) => html`<label>
        <input type="radio" name="side" checked=${side === value} onChange=${() => setSide(value)} />${label}</label>`;
    return html`<${Dialog} label="Replay" close=${close}><form onSubmit=${run}><h2>Replay this call</h2>
        <p class="soft">It is made again, as the console’s own caller, and appears in Traffic.</p>
        <div class="form">${choice('client', 'As the client said it, through the gateway')}${choice('server', 'As the server heard it')}</div>
        ${
            side === 'client' &&
            html`<div class="field"><label for="replay-as">Speak as</label>
        <select id="replay-as" value=${as} onChange=${(/** @type {any} */ event) => setAs(event.target.value)}>
            <option value="">the same revision${call.client.revision ? `, ${call.client.revision}` : ''}</option>
            ${REVISIONS.map(revision => html`<option value=${revision}>${revision}</option>`)}</select></div>`
        }
        <div class="acts"><button type="button" class="btn" onClick=${close}>Cancel</button><button type="submit" class="btn primary" autofocus>Replay</button></div>
        </form><//>`;
}
