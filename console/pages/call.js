// One call: both wires, its timeline, what was translated, headers and raw bytes.

import { ApiError, attempt, get, request, send, useLoaded } from '../api.js';
import { useKeys } from '../keys.js';
import { resynced, useLive } from '../live.js';
import { Empty, ErrorStrip, Outcome, sentence, Text } from '../parts/common.js';
import { Icon } from '../parts/icons.js';
import { nodeOfCall } from '../parts/nodes.js';
import { TimeParts } from '../parts/spark.js';
import { transportName } from '../pure/revisions.js';
import { commandOfCall } from '../pure/shell.js';
import { address, copy, go, groupUrl, may, route, say } from '../state.js';
import { html, useState } from '../ui.js';
import { ExportDialog, ReplayDialog } from './call_dialogs.js';
import { CallTabs } from './call_tabs.js';

/** @typedef {import('../parts/wires.js').Call} Call */

/** @param {{ Page: any }} props */
export function CallPage({ Page }) {
    const id = route.value.parts[1] ?? '';
    return html`<${Page} title="Call" sub=${html`<span class="mono">${id}</span>`}>
        <${CallView} key=${id} id=${id} whole=${true} close=${() => go('#/traffic')} /><//>`;
}

/** @param {{ id: string, close: () => void, whole?: boolean }} props */
export function CallView({ id, close, whole = false }) {
    const loaded = useLoaded(
        () => get(`calls/${encodeURIComponent(id)}`, { node: nodeOfCall(id) }),
        [id],
        resynced.value
    );
    const changed = (/** @type {any} */ row) => {
        if (row.id === id) loaded.reload();
    };
    // Beside a table the stream has what the table asks for.
    const q = whole ? `id:${id}` : '';
    useLive(['call'], { call: changed }, { q, node: nodeOfCall(id) });
    const call = /** @type {Call | null} */ (loaded.data);
    const chosen = route.value.query.get('tab') ?? 'wires';
    useCallKeys(id, call, close, whole);
    if (loaded.error && !call) return html`<${Gone} error=${loaded.error} reload=${loaded.reload} close=${close} />`;
    return html`<section class=${`call${whole ? ' whole' : ''}`} aria-label=${`Call ${call?.name ?? id}`}>${
        call
            ? html`<${Head} call=${call} close=${close} whole=${whole} reload=${loaded.reload} />
        <${ErrorStrip} error=${loaded.error} at=${loaded.at} retry=${loaded.reload} /><${Ends} call=${call} /><${CallTabs} call=${call} chosen=${chosen} />`
            : html`<header><h2 class="muted">${id}</h2></header>`
    }</section>`;
}

/** @param {{ error: ApiError, reload: () => void, close: () => void }} props */
function Gone({ error, reload, close }) {
    const isGone = error.status === 404 || error.status === 410;
    return html`<section class="call" aria-label="Call"><${Empty} title=${isGone ? 'This call is no longer kept' : error.message}>
        <p>${isGone && html`<${Text} text=${sentence(error.message)} /> `}
        <${Text} text=${sentence(error.hint || (isGone ? 'Keep a call before you share it' : ''))} /></p>
        <div class="row"><button type="button" class="btn" onClick=${reload}>Try again</button>
        <button type="button" class="btn" onClick=${close}>Close</button></div><//></section>`;
}

/** @param {string} id @param {Call | null} call */
const linkTo = (id, call) => new URL(address(['calls', call?.id ?? id]), document.baseURI).href;

/** @param {{ call: Call, close: () => void, whole: boolean, reload: () => void }} props */
function Head({ call, close, whole, reload }) {
    const asked = call.messages.filter(
        message => message.wire === 'server' && message.way === 'out' && message.kind === 'request'
    ).length;
    const rounds = `${call.rounds} rounds${asked === 1 ? ', one call to the server' : ''}`;
    return html`<header><h2><${Text} text=${call.name ?? call.method ?? 'request'} most=${200} /></h2>
        <${Outcome} outcome=${call.outcome} done=${call.done} />
        <span class="muted">${call.rounds > 1 ? rounds : call.method}</span><span class="gap"></span>
        <${Acts} call=${call} reload=${reload} />${
            !whole &&
            html`<a class="btn quiet" href=${address(['calls', call.id])} aria-label="The call as the whole page" title="The whole page (f)">
            <${Icon} name="whole" /></a>`
        }<button type="button" class="btn quiet" aria-label="Close" onClick=${close}><${Icon} name="close" /></button></header>`;
}

/** @param {{ call: Call, reload: () => void }} props */
function Acts({ call, reload }) {
    const [shown, setShown] = useState(/** @type {'export' | 'replay' | null} */ (null));
    const keep = async () => {
        const [verb, body, said] = call.kept
            ? ['DELETE', undefined, 'No longer kept']
            : ['PUT', {}, 'Kept until the gateway ends'];
        const path = `calls/${encodeURIComponent(call.id)}/kept`;
        if (await attempt(() => send(verb, path, body).then(() => true))) say(said);
        reload();
    };
    const close = () => setShown(null);
    return html`${
        may('act') &&
        call.server &&
        html`<button type="button" class="btn" id="replay" onClick=${() => setShown('replay')}>
            <${Icon} name="replay" />Replay<kbd>R</kbd></button>`
    }<button type="button" class="btn" onClick=${() => copy(linkTo(call.id, call), 'Link')}>
        <${Icon} name="link" />Copy link<kbd>L</kbd></button>${
            may('bodies') &&
            html`<button type="button" class="btn" aria-pressed=${call.kept ? 'true' : 'false'} onClick=${keep}>
            <${Icon} name="pin" />${call.kept ? 'Kept' : 'Keep'}</button>
            <button type="button" class="btn" id="export" onClick=${() => setShown('export')}><${Icon} name="export" />Export</button>`
        }
        ${shown === 'export' && html`<${ExportDialog} call=${call} close=${close} />`}
        ${shown === 'replay' && html`<${ReplayDialog} call=${call} close=${close} />`}`;
}

/** @param {{ call: Call }} props Who is at either end, and whose time it was. */
function Ends({ call }) {
    const { client, server } = call;
    const parts = [
        transportName(client.transport),
        call.group && `group ${call.group}`,
        client.caller && `caller ${client.caller}`,
        client.session && `session ${client.session}`,
        call.relayed && 'relayed by another node'
    ]
        .filter(Boolean)
        .join(', ');
    return html`<div class="split"><div class="end"><span class="tag client">client</span><b>
        <${Text} text=${[client.name ?? 'unnamed', client.version].filter(Boolean).join(' ')} most=${60} /></b><span class="mono">${client.revision}</span><p>${parts}</p>
        </div>
        <${TimeParts} time=${call.time} took=${call.took_us} server=${server?.name ?? 'the server'} />
        <div class="end right">${
            server
                ? html`<span class="mono">${server.revision}</span><b>${server.name}</b><span class="tag server">server</span>
        <p>${transportName(server.transport)}${server.leased ? ', leased to this client' : ', shared'}${server.process ? `, process ${server.process}` : ''}</p>`
                : call.relayed_to
                  ? html`<b>${call.relayed_to}</b><p>served the call; what went to the server is recorded there</p>`
                  : html`<b>Rialto itself</b><p>nothing was sent to a server</p>`
        }</div></div>`;
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
    const copyAs = async (/** @type {string} */ as, /** @type {string} */ what) => {
        const response = await attempt(() =>
            request(`calls/${encodeURIComponent(id)}/export`, { query: { as, node: nodeOfCall(id) } })
        );
        return response && copy(await response.text(), what);
    };
    const copyCommand = () => {
        const made = call && commandOfCall(groupUrl(call.group ?? 'default'), call);
        if (!made) say('No rialto command makes this call');
        else copy(made.command, made.isWhole ? 'Command' : 'Command without the values that are not shown here,');
    };
    useKeys(
        {
            r: () => document.getElementById('replay')?.click(),
            l: () => {
                copy(linkTo(id, call), 'Link');
            },
            w: () => focusNext('.wires [data-message]', 1),
            n: () => focusNext('.wires [data-change]', 1),
            p: () => focusNext('.wires [data-change]', -1),
            c: () => {
                copyAs('curl', 'curl command');
            },
            'Shift+c': () => {
                copyCommand();
            },
            ...(whole ? { Escape: () => close() } : {})
        },
        [
            ['r', 'Replay'],
            ['l', 'Copy link'],
            ['w', 'Next message'],
            ['n p', 'Next and previous change'],
            ['c', 'Copy as curl'],
            ['C', 'Copy as rialto call']
        ]
    );
}
