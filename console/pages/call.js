// One call: both wires, its timeline, what was translated, headers and raw bytes.

import { ApiError, attempt, get, request, send, useLoaded } from '../api.js';
import { useKeys } from '../keys.js';
import { useLive } from '../live.js';
import { Empty, ErrorStrip, Outcome, TabPanel, Tabs, Text, TextBlock } from '../parts/common.js';
import { Dialog } from '../parts/dialog.js';
import { Icon } from '../parts/icons.js';
import { TimeParts } from '../parts/spark.js';
import { Timeline } from '../parts/timeline.js';
import { titleOf, Wires } from '../parts/wires.js';
import { bytes, counted, duration, exactClock } from '../pure/time.js';
import { address, copy, go, may, route, say, setQuery } from '../state.js';
import { html, useState } from '../ui.js';

/** @typedef {import('../parts/wires.js').Call} Call */

const REVISIONS = ['2026-07-28', '2025-11-25', '2025-06-18', '2025-03-26', '2024-11-05'];
const TRANSPORTS = { http: 'Streamable HTTP', sse: 'HTTP+SSE', stdio: 'stdio', rest: 'HTTP API', local: 'in this process' };

/** @param {string} transport */
const transportName = transport => TRANSPORTS[/** @type {'http'} */ (transport)] ?? transport;

/** @param {{ Page: any }} props */
export function CallPage({ Page }) {
    const id = route.value.parts[1] ?? '';
    return html`<${Page} title="Call" sub=${html`<span class="mono">${id}</span>`}><${CallView} key=${id} id=${id} whole=${true} close=${() => go('#/traffic')} /><//>`;
}

/** @param {{ id: string, close: () => void, whole?: boolean }} props */
export function CallView({ id, close, whole = false }) {
    const loaded = useLoaded(() => get(`calls/${encodeURIComponent(id)}`), [id]);
    useLive(['call'], { call: (/** @type {any} */ row) => { if (row.id === id) loaded.reload(); } }, whole ? `id:${id}` : route.value.query.get('q') ?? '');
    const call = /** @type {Call | null} */ (loaded.data);
    const chosen = route.value.query.get('tab') ?? 'wires';
    useCallKeys(id, call, close, whole);
    if (loaded.error && !call) return html`<${Gone} error=${loaded.error} reload=${loaded.reload} close=${close} />`;
    return html`<section class=${`call${whole ? ' whole' : ''}`} aria-label=${`Call ${call?.name ?? id}`}>${call ? html`<${Head} call=${call} close=${close} whole=${whole} reload=${loaded.reload} />
        <${ErrorStrip} error=${loaded.error} at=${loaded.at} retry=${loaded.reload} /><${Ends} call=${call} /><${CallTabs} call=${call} chosen=${chosen} />`
        : html`<header><h2 class="muted">${id}</h2></header>`}</section>`;
}

/** @param {{ error: ApiError, reload: () => void, close: () => void }} props */
function Gone({ error, reload, close }) {
    const isGone = error.status === 404 || error.status === 410;
    return html`<section class="call" aria-label="Call"><${Empty} title=${isGone ? 'This call is no longer kept' : error.message}>
        <p>${isGone ? html`<${Text} text=${error.message} /> Keep a call before you share it.` : ''} <${Text} text=${error.hint} /></p>
        <div class="row"><button type="button" class="btn" onClick=${reload}>Try again</button><button type="button" class="btn" onClick=${close}>Close</button></div><//>
        </section>`;
}

/** @param {string} id @param {Call | null} call */
const linkTo = (id, call) => new URL(address(['calls', call?.id ?? id]), document.baseURI).href;

/** @param {{ call: Call, close: () => void, whole: boolean, reload: () => void }} props */
function Head({ call, close, whole, reload }) {
    const [exporting, setExporting] = useState(false);
    const [replaying, setReplaying] = useState(false);
    const keep = async () => {
        await attempt(() => send(call.kept ? 'DELETE' : 'PUT', `calls/${encodeURIComponent(call.id)}/kept`, call.kept ? undefined : {}));
        say(call.kept ? 'No longer kept' : 'Kept until the gateway ends');
        reload();
    };
    const asked = call.messages.filter(message => message.wire === 'server' && message.way === 'out' && message.kind === 'request').length;
    return html`<header><h2><${Text} text=${call.name ?? call.method ?? 'request'} most=${200} /></h2><${Outcome} outcome=${call.outcome} done=${call.done} />
        <span class="muted">${call.rounds > 1 ? `${call.rounds} rounds${asked === 1 ? ', one call to the server' : ''}` : call.method}</span><span class="gap"></span>
        ${may('act') && call.server && html`<button type="button" class="btn" id="replay" onClick=${() => setReplaying(true)}><${Icon} name="replay" />Replay<kbd>R</kbd>
        </button>`}
        <button type="button" class="btn" onClick=${() => copy(linkTo(call.id, call), 'Link')}><${Icon} name="link" />Copy link<kbd>L</kbd></button>
        ${may('bodies') && html`<button type="button" class="btn" aria-pressed=${call.kept ? 'true' : 'false'} onClick=${keep}>
        <${Icon} name="pin" />${call.kept ? 'Kept' : 'Keep'}</button>
        <button type="button" class="btn" id="export" onClick=${() => setExporting(true)}><${Icon} name="export" />Export</button>`}
        ${!whole && html`<a class="btn quiet" href=${address(['calls', call.id])} aria-label="The call as the whole page" title="The whole page (f)">
        <${Icon} name="whole" /></a>`}
        <button type="button" class="btn quiet" aria-label="Close" onClick=${close}><${Icon} name="close" /></button></header>
        ${exporting && html`<${ExportDialog} call=${call} close=${() => setExporting(false)} />`}${replaying && html`<${ReplayDialog} call=${call} close=${() => setReplaying(false)} />`}`;
}

/** @param {{ call: Call, close: () => void }} props */
function ExportDialog({ call, close }) {
    const save = async (/** @type {string} */ as, /** @type {string} */ ending) => {
        const response = await attempt(() => request(`calls/${encodeURIComponent(call.id)}/export`, { query: { as } }));
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
function download(blob, name) {
    const link = Object.assign(document.createElement('a'), { href: URL.createObjectURL(blob), download: name });
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
}

/** @param {{ call: Call, close: () => void }} props */
function ReplayDialog({ call, close }) {
    const [side, setSide] = useState('client');
    const [as, setAs] = useState('');
    const run = async (/** @type {Event} */ event) => {
        event.preventDefault();
        close();
        const made = await attempt(() => send('POST', `calls/${encodeURIComponent(call.id)}/replay`, { side, ...(as && side === 'client' ? { as } : {}) }));
        if (made?.call) go(route.peek().parts[0] === 'traffic' ? address(['traffic'], { ...Object.fromEntries(route.peek().query), open: made.call }) : address(['calls', made.call]));
    };
    const choice = (/** @type {string} */ value, /** @type {string} */ label) => html`<label>
        <input type="radio" name="side" checked=${side === value} onChange=${() => setSide(value)} />${label}</label>`;
    return html`<${Dialog} label="Replay" close=${close}><form onSubmit=${run}><h2>Replay this call</h2>
        <p class="soft">It is made again, as the console’s own caller, and appears in Traffic.</p>
        <div class="form">${choice('client', 'As the client said it, through the gateway')}${choice('server', 'As the server heard it')}</div>
        ${side === 'client' && html`<div class="field"><label for="replay-as">Speak as</label>
        <select id="replay-as" value=${as} onChange=${(/** @type {any} */ event) => setAs(event.target.value)}>
            <option value="">the same revision${call.client.revision ? `, ${call.client.revision}` : ''}</option>${REVISIONS.map(revision => html`<option value=${revision}>${revision}</option>`)}</select></div>`}
        <div class="acts"><button type="button" class="btn" onClick=${close}>Cancel</button><button type="submit" class="btn primary" autofocus>Replay</button></div>
        </form><//>`;
}

/** @param {{ call: Call }} props Who is at either end, and whose time it was. */
function Ends({ call }) {
    const { client, server } = call;
    const parts = [transportName(client.transport), call.group && `group ${call.group}`, client.caller && `caller ${client.caller}`, client.session && `session ${client.session}`].filter(Boolean).join(', ');
    return html`<div class="split"><div class="end"><span class="tag client">client</span><b>
        <${Text} text=${[client.name ?? 'unnamed', client.version].filter(Boolean).join(' ')} most=${60} /></b><span class="mono">${client.revision}</span><p>${parts}</p>
        </div>
        <${TimeParts} time=${call.time} took=${call.took_us} server=${server?.name ?? 'the server'} />
        <div class="end right">${server ? html`<span class="mono">${server.revision}</span><b>${server.name}</b><span class="tag server">server</span>
        <p>${transportName(server.transport)}${server.leased ? ', leased to this client' : ', shared'}</p>`
            : html`<b>Rialto itself</b><p>nothing was sent to a server</p>`}</div></div>`;
}

const VIEWS = { translation: Translation, headers: Headers, raw: Raw, about: About };

/** @param {{ call: Call, chosen: string }} props */
function CallTabs({ call, chosen }) {
    const tabs = [{ id: 'wires', label: 'Both wires' }, { id: 'timeline', label: 'Timeline' }, { id: 'translation', label: 'Translation', count: call.translated.length }, { id: 'headers', label: 'Headers' }, { id: 'raw', label: 'Raw bytes' }, { id: 'about', label: 'About' }];
    return html`<${Tabs} tabs=${tabs} chosen=${chosen} choose=${(/** @type {string} */ id) => setQuery({ tab: id === 'wires' ? null : id })} label="Views of the call" panel="call-panel">
        <div class="legend"><span><span class="mark ch">~</span>changed</span><span><span class="mark rm">−</span>stays here</span><span>
        <span class="mark ad">+</span>added here</span></div><//>
        ${chosen === 'wires' ? html`<${Wires} call=${call} />` : chosen === 'timeline' ? html`<${Timeline} call=${call} />`
            : html`<${TabPanel} panel="call-panel" chosen=${chosen}><${VIEWS[/** @type {keyof typeof VIEWS} */ (chosen)] ?? About} call=${call} /><//>`}`;
}

/** @param {{ call: Call }} props */
function Translation({ call }) {
    const reasons = new Map();
    for (const change of call.changes) reasons.set(change.why, [...(reasons.get(change.why) ?? []), change]);
    if (!call.translated.length && !reasons.size) return html`<p class="muted">Nothing was translated: the messages were passed on as they came.</p>`;
    return html`${call.translated.length > 0 && html`<ul class="steps">${call.translated.map(word => html`<li><span class="sign ok" aria-hidden="true">✓</span>
        <b>${word}</b></li>`)}</ul>`}
        ${reasons.size > 0 && html`<div class="scroll"><table><thead><tr><th scope="col">Why</th><th scope="col">What</th><th scope="col">Members</th></tr></thead>
        <tbody>${[...reasons].map(([why, changes]) => html`<tr key=${why}><td class="wrap">${why}</td>
            <td>${[...new Set(changes.map((/** @type {any} */ change) => ({ changed: 'changed', stays: 'stays here', added: 'added here' }[/** @type {'changed'} */ (change.kind)])))].join(', ')}</td>
            <td class="wrap mono">${[...new Set(changes.map((/** @type {any} */ change) => change.path || '(the whole message)'))].slice(0, 20).join('  ')}</td>
            </tr>`)}</tbody></table></div>`}`;
}

/** @param {{ call: Call }} props */
function Headers({ call }) {
    const withHeaders = call.messages.filter(message => /** @type {any} */ (message.http)?.headers?.length);
    if (!withHeaders.length) return html`<p class="muted">No message of this call came with headers.</p>`;
    return html`${withHeaders.map(message => {
        const http = /** @type {any} */ (message.http);
        return html`<section key=${message.n}><h3>${message.wire}: ${http.verb ? `${http.verb} ${http.path}` : (http.status ?? titleOf(message))}</h3>
            <dl class="facts">${http.headers.map((/** @type {[string, string]} */ [name, value]) => html`<dt class="mono">${name}</dt><dd class="mono">
            <${Text} text=${value} most=${2000} /></dd>`)}</dl></section>`;
    })}`;
}

/** @param {{ call: Call }} props */
function Raw({ call }) {
    const save = async (/** @type {number} */ n) => {
        const response = await attempt(() => request(`calls/${encodeURIComponent(call.id)}/messages/${n}`));
        if (response) download(await response.blob(), `${call.id}-${n}.json`);
    };
    return html`${call.messages.map(message => html`<section key=${message.n}><div class="row"><h3>${message.wire} ${message.way}: ${titleOf(message)}</h3>
        <span class="muted">${bytes(message.bytes)}</span>
        ${may('bodies') && message.text !== null && html`<button type="button" class="btn quiet" onClick=${() => save(message.n)}>
        <${Icon} name="export" />Save</button>`}</div>
        ${message.text === null ? html`<p class="muted">Not kept.</p>` : html`<${TextBlock} text=${message.text} most=${8000} label=${`Message ${message.n}`} />`}</section>`)}`;
}

/** @param {{ call: Call }} props */
function About({ call }) {
    const facts = [['Call', call.id], ['Began', exactClock(call.at)], ['Took', duration(call.took_us)], ['Requests', call.requests.join(', ')], ['Trace', call.trace ?? 'none'], ['Node', call.node],
        ['Session lives on', call.owner], ['Session', call.client.session ?? 'none'], ['Own name of the server', call.server?.own ?? '–'], ['Bodies', call.bodies], ['Recorded', call.one_of > 1 ? `one of ${call.one_of}` : 'every call'],
        ['Error', call.error ? JSON.stringify(call.error) : 'none'], ['Messages', counted(call.messages.length, 'message')]];
    return html`<dl class="facts">${facts.map(([name, value]) => html`<dt>${name}</dt><dd><${Text} text=${String(value)} most=${2000} /></dd>`)}</dl>
        ${call.client.session && html`<p>
        <a class="link" href=${address(['traffic'], { q: `session:${call.client.session}`, show: 'all' })}>Other calls of this session</a></p>`}`;
}

/** @param {string} selector @param {number} step Focuses the next or previous of what matches. */
function focusNext(selector, step) {
    const all = /** @type {HTMLElement[]} */ ([...document.querySelectorAll(selector)]);
    if (!all.length) return;
    const at = all.indexOf(/** @type {HTMLElement} */ (document.activeElement));
    const next = all[at < 0 ? (step > 0 ? 0 : all.length - 1) : (at + step + all.length) % all.length];
    next.focus();
    next.scrollIntoView({ block: 'center' });
}

/** @param {string} id @param {Call | null} call @param {() => void} close @param {boolean} whole */
function useCallKeys(id, call, close, whole) {
    const copyAs = (/** @type {string} */ as, /** @type {string} */ what) => async () => {
        if (as === 'rialto call') return copy(`rialto call --group ${call?.group ?? 'default'} ${call?.name ?? ''}`, what);
        const response = await attempt(() => request(`calls/${encodeURIComponent(id)}/export`, { query: { as } }));
        return response && copy(await response.text(), what);
    };
    useKeys({
        r: () => document.getElementById('replay')?.click(), l: () => { copy(linkTo(id, call), 'Link'); },
        w: () => focusNext('.wires [data-message]', 1), n: () => focusNext('.wires [data-change]', 1), p: () => focusNext('.wires [data-change]', -1),
        c: () => { copyAs('curl', 'curl command')(); }, 'Shift+c': () => { copyAs('rialto call', 'Command')(); },
        ...(whole ? { Escape: () => close() } : {})
    }, [['r', 'Replay'], ['l', 'Copy link'], ['w', 'Next message'], ['n p', 'Next and previous change'], ['c', 'Copy as curl'], ['C', 'Copy as rialto call']]);
}
