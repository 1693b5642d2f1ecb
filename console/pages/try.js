// Calls any tool as a client of any revision, and answers what it asks.

import { attempt, get, getAll, send, useLoaded } from '../api.js';
import { useKeys } from '../keys.js';
import { useLive } from '../live.js';
import { CopyLine, Empty, ErrorStrip, Segments, TabPanel, Tabs, Text } from '../parts/common.js';
import { confirm } from '../parts/dialog.js';
import { checkText, SchemaForm } from '../parts/form.js';
import { Icon } from '../parts/icons.js';
import { Json } from '../parts/wires.js';
import { initial } from '../pure/schema.js';
import { duration } from '../pure/time.js';
import { address, go, may, route } from '../state.js';
import { html, useEffect, useRef, useState } from '../ui.js';
import { CallView } from './call.js';
import { REVISIONS } from './groups.js';
import { TryAnswerForm, TryResult } from './try_result.js';

/** Tools that were allowed once, by group and name; asked for again after a reload. */
const allowed = new Set();
const POLL_INTERVAL = 1000;

/** @param {{ Page: any }} props */
export function Try({ Page }) {
    const [, where = '', tool = ''] = route.value.parts;
    const places = useLoaded(async () => {
        const [groups, servers] = await Promise.all([getAll('groups'), getAll('servers')]);
        return { groups: groups.map(one => one.name), servers: servers.map(one => one.name) };
    }, []);
    const place = where || places.data?.groups[0] || '';
    const isGroup = places.data ? places.data.groups.includes(place) : true;
    const tools = useLoaded(() => (place && places.data ? toolsOf(place, isGroup) : Promise.resolve(/** @type {any[]} */ ([]))), [place, isGroup, places.data]);
    const entry = tools.data?.find(one => one.name === tool);
    const pick = (/** @type {string} */ value) => go(address(['try', place, value]));
    return html`<${Page} title="Try a tool"><${ErrorStrip} error=${places.error ?? tools.error} retry=${() => { places.reload(); tools.reload(); }} /><div class="page">
        <section class="panel" aria-label="What to try"><header>
        <label for="try-place">Over</label><select id="try-place" value=${place} onChange=${(/** @type {any} */ event) => go(address(['try', event.target.value]))}>
        <optgroup label="Groups">${(places.data?.groups ?? []).map(name => html`<option value=${name}>${name}</option>`)}</optgroup>
        <optgroup label="Servers alone">${(places.data?.servers ?? []).filter(name => !places.data?.groups.includes(name)).map(name => html`<option value=${name}>${name}</option>`)}</optgroup></select>
        <label for="try-tool">call</label><select id="try-tool" value=${tool} onChange=${(/** @type {any} */ event) => pick(event.target.value)}>
        <option value="">a tool…</option>${(tools.data ?? []).map(one => html`<option value=${one.name}>${one.name}</option>`)}</select></header></section>
        ${entry ? html`<${Runner} key=${`${place} ${tool}`} place=${place} isGroup=${isGroup} entry=${entry} />` : html`<section class="panel">
        <${Empty} title=${tool && tools.data?.length ? `${place} has no tool ${tool}` : 'Choose a tool'}>
            <p>${tools.data && !tools.data.length && places.data ? 'No tool is served here yet.' : 'Its arguments appear here as a form and as JSON; the call is made as the console’s own caller and appears in Traffic.'}</p>
            ${tool && tools.data?.length ? html`<a class="link" href=${address(['groups', place], { why: tool })}>Why not?</a>` : ''}<//></section>`}</div><//>`;
}

/** @param {string} place @param {boolean} isGroup @returns {Promise<any[]>} */
async function toolsOf(place, isGroup) {
    const name = encodeURIComponent(place);
    if (!isGroup) return (await getAll(`servers/${name}/lists/tools`)).map(one => ({ ...one.entry, name: one.name }));
    const group = await get(`groups/${name}`);
    const seen = group.seen?.tools?.tools ?? group.seen?.tools ?? [];
    const full = new Map(seen.map?.((/** @type {any} */ tool) => [tool.name, tool]));
    const servers = await Promise.all([...new Set(group.tools.map((/** @type {any} */ tool) => tool.server))].map(async server => [server, new Map((await getAll(`servers/${encodeURIComponent(String(server))}/lists/tools`).catch(() => [])).map(one => [one.name, one.entry]))]));
    const byServer = new Map(/** @type {any} */ (servers));
    return group.tools.map((/** @type {any} */ tool) => ({ ...tool, ...byServer.get(tool.server)?.get(tool.own), ...full.get(tool.name), name: tool.name }));
}

/** @param {string | null} id Follows a running call by events and, in case one is missed, by asking. */
function useTry(id) {
    const [state, setState] = useState(/** @type {any} */ (null));
    const read = async () => { if (id) setState(await get(`try/${encodeURIComponent(id)}`).catch(() => null)); };
    useLive(['try', 'call'], { try: (/** @type {any} */ one) => { if (one.try === id) read(); } });
    useEffect(() => {
        setState(null);
        read();
    }, [id]);
    const isOver = !id || state?.state === 'done' || state?.state === 'cancelled';
    useEffect(() => {
        if (isOver) return undefined;
        const timer = setInterval(read, POLL_INTERVAL);
        return () => clearInterval(timer);
    }, [id, isOver]);
    return { state, read };
}

/** @param {{ place: string, isGroup: boolean, entry: any }} props */
function Runner({ place, isGroup, entry }) {
    const schema = entry.inputSchema ?? { type: 'object' };
    const [text, setText] = useState(() => JSON.stringify(initial(schema) || {}, null, 2));
    const [as, setAs] = useState(REVISIONS[0]);
    const [view, setView] = useState('form');
    const [running, setRunning] = useState(/** @type {string | null} */ (null));
    const { state, read } = useTry(running);
    const wrong = checkText(text, schema);
    const isBusy = running !== null && state?.state !== 'done' && state?.state !== 'cancelled';
    const run = async () => {
        if (wrong.some(one => one.what === 'is not JSON')) return;
        const key = `${place} ${entry.name}`;
        if (!entry.annotations?.readOnlyHint && !allowed.has(key)) {
            if (!await confirm(`Call ${entry.name}?`, 'The server does not say that this tool only reads, so calling it may change something. You are asked once.', 'Call it')) return;
            allowed.add(key);
        }
        // Arguments go as they were written: numbers are not read and written again.
        const target = JSON.stringify({ [isGroup ? 'group' : 'server']: place, method: 'tools/call', name: entry.name, as });
        const started = await attempt(() => send('POST', 'try', `${target.slice(0, -1)},"arguments":${text}}`));
        if (started) setRunning(started.try);
    };
    const runRef = useRef(run);
    runRef.current = run;
    useKeys({ 'Ctrl+Enter': () => { runRef.current(); } }, [['Ctrl+Enter', 'Run']]);
    const cancel = () => attempt(() => send('DELETE', `try/${encodeURIComponent(/** @type {string} */ (running))}`)).then(read);
    return html`<section class="panel" aria-label="Arguments"><header><h2 class="mono"><${Text} text=${entry.name} most=${160} /></h2><span class="muted">
        <${Text} text=${entry.description ?? entry.title ?? ''} most=${240} /></span><span class="gap"></span><label for="try-as">Speak as</label>
        <select id="try-as" value=${as} onChange=${(/** @type {any} */ event) => setAs(event.target.value)}>${REVISIONS.map(revision => html`<option>${revision}</option>`)}</select><${Segments} label="Edit as" chosen=${view} choose=${setView} options=${[['form', 'Form'], ['json', 'JSON']]} /></header>
        <div class="body"><div class="split2">${view === 'form' && html`<${SchemaForm} schema=${schema} text=${text} change=${setText} />`}<div class="field">
        <label for="try-json">Arguments, as they are sent</label>
        <textarea id="try-json" rows="8" spellcheck="false" aria-invalid=${wrong.length ? 'true' : undefined} aria-describedby="try-wrong" value=${text} onInput=${(/** @type {any} */ event) => setText(event.target.value)} />
        <div class="wrong" id="try-wrong">${wrong.slice(0, 5).map(one => html`<div>${one.path || 'The text'} ${one.what}</div>`)}</div></div></div>
        <div class="row">${may('act') ? html`<button type="button" class="btn primary" disabled=${isBusy} onClick=${run}>
        <${Icon} name="play" />${wrong.length ? 'Send all the same' : 'Run'}<kbd>Ctrl Enter</kbd></button>` : html`<span class="muted">You may look, not act.</span>`}
        ${isBusy && html`<button type="button" class="btn" onClick=${cancel}>Cancel</button>
        <span role="status">${state?.state === 'asking' ? 'It asks something' : 'Running'}</span><${Progress} notes=${state?.notifications ?? []} />`}</div></div>
        </section>
        ${(state?.questions ?? []).map((/** @type {any} */ question) => html`<${TryAnswerForm} key=${question.id} run=${running} question=${question} done=${read} />`)}
        ${state && (state.state === 'done' || state.state === 'cancelled') && html`<${Outcome} state=${state} place=${place} isGroup=${isGroup} entry=${entry} text=${text} as=${as} />`}`;
}

/** @param {{ notes: any[] }} props */
function Progress({ notes }) {
    const last = notes.filter(note => note?.method === 'notifications/progress').at(-1)?.params;
    if (!last) return null;
    return html`<progress class="progress" max=${last.total ?? undefined} value=${last.total ? last.progress : undefined} aria-label="Progress"></progress>
        <span class="muted"><${Text} text=${last.message ?? ''} most=${200} /></span>`;
}

/** @param {{ state: any, place: string, isGroup: boolean, entry: any, text: string, as: string }} props */
function Outcome({ state, place, isGroup, entry, text, as }) {
    const [view, setView] = useState('result');
    const tabs = [['result', 'Result'], ...(state.call ? [['wires', 'Both wires']] : []), ['json', 'JSON'], ['cli', 'as rialto call'], ['curl', 'as curl']].map(([id, label]) => ({ id, label }));
    const url = new URL(isGroup ? `mcp/${place}` : 'mcp', document.baseURI).href;
    const compact = text.replace(/\s*\n\s*/gu, ' ').replaceAll("'", "'\\''");
    const body = `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":${JSON.stringify(entry.name)},"arguments":${compact},"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientInfo":{"name":"curl","version":"1"},"io.modelcontextprotocol/clientCapabilities":{}}}}`;
    return html`<section class="panel" aria-label="Outcome"><header>
        <h2>${state.state === 'cancelled' ? 'Cancelled' : state.error ? 'Error' : state.result?.isError ? 'The tool says it failed' : 'Result'}</h2>
        <span class="muted">${duration(state.took_us)}, as ${as}</span>
        <span class="gap"></span>${state.call && html`<a class="link" href=${address(['calls', state.call])}>The call</a>`}</header>
        <${Tabs} tabs=${tabs} chosen=${view} choose=${setView} label="Views of the result" panel="try-panel" />
        <${TabPanel} panel="try-panel" chosen=${view} class="group-tab">
        <div class="body">${view === 'result' ? html`<${TryResult} state=${state} />` : view === 'wires' ? html`<${CallView} id=${state.call} whole=${true} close=${() => setView('result')} />`
            : view === 'json' ? html`<${Json} text=${JSON.stringify(state.error ?? state.result ?? null)} wrap=${true} />`
            : html`<${CopyLine} what="Command" text=${view === 'cli' ? `rialto call ${url} ${entry.name} '${compact}'` : `curl -s ${url} -H 'content-type: application/json' -H 'accept: application/json, text/event-stream' -H 'mcp-protocol-version: 2026-07-28' -H 'mcp-method: tools/call' -H 'mcp-name: ${entry.name}' -d '${body}'`} />`}</div><//></section>`;
}
