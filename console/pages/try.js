// Calls any tool as a client of any revision, and answers what it asks.

import { attempt, get, getAll, send, useLoaded } from '../api.js';
import { useKeys } from '../keys.js';
import { resynced, useLive } from '../live.js';
import { Empty, ErrorStrip, Segments, Text } from '../parts/common.js';
import { confirm } from '../parts/dialog.js';
import { checkText, SchemaForm } from '../parts/form.js';
import { Icon } from '../parts/icons.js';
import { REVISIONS } from '../pure/revisions.js';
import { initial } from '../pure/schema.js';
import { address, go, may, route } from '../state.js';
import { html, useEffect, useRef, useState } from '../ui.js';
import { TryOutcome } from './try_outcome.js';
import { TryAnswerForm } from './try_result.js';

/** Tools that were allowed once, by group and name; asked for again after a reload. */
const allowed = new Set();
/** Mistakes in the arguments that are told at once. */
const WRONG_MAX = 5;
const POLL_INTERVAL = 1000;
/** Targets of servers that have no address, so that they are reached through their groups alone. */
const INSIDE = ['built in', 'HTTP API'];

/** @param {{ Page: any }} props */
export function Try({ Page }) {
    const [, where = '', tool = ''] = route.value.parts;
    const places = useLoaded(
        async () => {
            const [groups, servers] = await Promise.all([getAll('groups'), getAll('servers')]);
            const alone = servers.filter(one => !INSIDE.includes(one.target));
            return { groups: groups.map(one => one.name), servers: alone.map(one => one.name) };
        },
        [],
        resynced.value
    );
    const place = where || places.data?.groups[0] || '';
    const isGroup = places.data ? places.data.groups.includes(place) : true;
    const tools = useLoaded(
        () => (place && places.data ? toolsOf(place, isGroup) : Promise.resolve(/** @type {any[]} */ ([]))),
        [place, isGroup, places.data !== null],
        resynced.value
    );
    const entry = tools.data?.find(one => one.name === tool);
    const isLoading = places.loading || tools.loading;
    const pick = (/** @type {string} */ value) => go(address(['try', place, value]));
    return html`<${Page} title="Try a tool"><${ErrorStrip} error=${places.error ?? tools.error} at=${places.error ? places.at : tools.at} retry=${() => {
        places.reload();
        tools.reload();
    }} /><div class="page">
        <section class="panel" aria-label="What to try"><header>
        <label for="try-place">Over</label><select id="try-place" value=${place} onChange=${(/** @type {any} */ event) => go(address(['try', event.target.value]))}>
        <optgroup label="Groups">${(places.data?.groups ?? []).map(name => html`<option value=${name}>${name}</option>`)}</optgroup>
        <optgroup label="Servers alone">${(places.data?.servers ?? []).filter(name => !places.data?.groups.includes(name)).map(name => html`<option value=${name}>${name}</option>`)}</optgroup></select>
        <label for="try-tool">call</label><select id="try-tool" aria-busy=${isLoading ? 'true' : undefined} value=${tool} onChange=${(/** @type {any} */ event) => pick(event.target.value)}>
        <option value="">${isLoading ? 'loading…' : 'a tool…'}</option>${(tools.data ?? []).map(one => html`<option value=${one.name}>${one.name}</option>`)}</select></header></section>
        ${
            entry
                ? html`<${Runner} key=${`${place} ${tool}`} place=${place} isGroup=${isGroup} entry=${entry} />`
                : places.data &&
                  tools.data &&
                  html`<${NoTool} place=${place} isGroup=${isGroup} tool=${tool} isEmpty=${!tools.data.length} />`
        }</div><//>`;
}

/** @param {{ place: string, isGroup: boolean, tool: string, isEmpty: boolean }} props */
function NoTool({ place, isGroup, tool, isEmpty }) {
    const isMissing = tool && !isEmpty;
    const where = isGroup
        ? 'the call is made as the console’s own caller and appears in Traffic.'
        : 'the server is called directly, past the gateway, so the call is not in Traffic.';
    const how = `Its arguments appear here as a form and as JSON; ${where}`;
    return html`<section class="panel"><${Empty} title=${isMissing ? `${place} has no tool ${tool}` : 'Choose a tool'}>
        <p>${isEmpty ? 'No tool is served here yet.' : how}</p>
        ${isMissing && isGroup && html`<a class="link" href=${address(['groups', place], { why: tool })}>Why not?</a>`}<//></section>`;
}

/** @param {string} place @param {boolean} isGroup @returns {Promise<any[]>} */
async function toolsOf(place, isGroup) {
    const name = encodeURIComponent(place);
    if (!isGroup) return (await getAll(`servers/${name}/lists/tools`)).map(one => ({ ...one.entry, name: one.name }));
    const group = await get(`groups/${name}`);
    const seen = JSON.parse(group.seen['tools/list'] ?? '{}').tools ?? [];
    const full = new Map(seen.map?.((/** @type {any} */ tool) => [tool.name, tool]));
    const servers = await Promise.all(
        [...new Set(group.tools.map((/** @type {any} */ tool) => tool.server))].map(async server => [
            server,
            new Map(
                (await getAll(`servers/${encodeURIComponent(String(server))}/lists/tools`).catch(() => [])).map(one => [
                    one.name,
                    one.entry
                ])
            )
        ])
    );
    const byServer = new Map(/** @type {any} */ (servers));
    return group.tools.map((/** @type {any} */ tool) => ({
        ...tool,
        ...byServer.get(tool.server)?.get(tool.own),
        ...full.get(tool.name),
        name: tool.name
    }));
}

/** @param {string | null} id Follows a running call by events and, in case one is missed, by asking. */
function useTry(id) {
    const [state, setState] = useState(/** @type {any} */ (null));
    const read = async () => {
        if (id) setState(await get(`try/${encodeURIComponent(id)}`).catch(() => null));
    };
    useLive(['try', 'call'], {
        try: (/** @type {any} */ one) => {
            if (one.try === id) read();
        }
    });
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

/** Asks once for each tool that may change something. @param {string} key @param {any} entry */
async function isAllowed(key, entry) {
    const why =
        'The server does not say that this tool only reads, so calling it may change something. You are asked once.';
    if (entry.annotations?.readOnlyHint || allowed.has(key)) return true;
    if (!(await confirm(`Call ${entry.name}?`, why, 'Call it'))) return false;
    allowed.add(key);
    return true;
}

/** @param {string} place @param {boolean} isGroup @param {any} entry The call that is made, and what became of it. */
function useRun(place, isGroup, entry) {
    const [running, setRunning] = useState(/** @type {string | null} */ (null));
    const { state, read } = useTry(running);
    const isOver = state?.state === 'done' || state?.state === 'cancelled';
    const run = async (/** @type {string} */ text, /** @type {string} */ as) => {
        if (!(await isAllowed(`${place} ${entry.name}`, entry))) return;
        // Arguments go as they were written: numbers are not read and written again.
        const target = { [isGroup ? 'group' : 'server']: place, method: 'tools/call', name: entry.name, as };
        const body = `${JSON.stringify(target).slice(0, -1)},"arguments":${text}}`;
        const started = await attempt(() => send('POST', 'try', body));
        if (started) setRunning(started.try);
    };
    const cancel = async () => {
        await attempt(() => send('DELETE', `try/${encodeURIComponent(running ?? '')}`));
        read();
    };
    return { running, state, read, run, cancel, isOver, isBusy: running !== null && !isOver };
}

/** @param {{ place: string, isGroup: boolean, entry: any }} props */
function Runner({ place, isGroup, entry }) {
    const schema = entry.inputSchema ?? { type: 'object' };
    const [text, setText] = useState(() => JSON.stringify(initial(schema) || {}, null, 2));
    const [as, setAs] = useState(REVISIONS[0]);
    const call = useRun(place, isGroup, entry);
    const wrong = checkText(text, schema);
    const run = () => {
        if (may('act') && !call.isBusy && !wrong.some(one => one.what === 'is not JSON')) call.run(text, as);
    };
    const latest = useRef(run);
    latest.current = run;
    useKeys({ 'Ctrl+Enter': () => latest.current() }, [['Ctrl+Enter', 'Run']]);
    const questions = call.state?.questions ?? [];
    return html`<${Arguments} entry=${entry} schema=${schema} text=${text} setText=${setText} as=${as} setAs=${setAs} wrong=${wrong}>
        <${RunRow} call=${call} run=${run} isWrong=${wrong.length > 0} /><//>
        ${questions.map(
            (/** @type {any} */ question) =>
                html`<${TryAnswerForm} key=${question.id} run=${call.running} question=${question} done=${call.read} />`
        )}
        ${call.isOver && html`<${TryOutcome} state=${call.state} place=${place} isGroup=${isGroup} entry=${entry} text=${text} />`}`;
}

/** @param {{ entry: any, schema: any, text: string, setText: (text: string) => void, as: string, setAs: (as: string) => void, wrong: { path: string, what: string }[], children?: any }} props */
function Arguments({ entry, schema, text, setText, as, setAs, wrong, children }) {
    const [view, setView] = useState('form');
    const views = [
        ['form', 'Form'],
        ['json', 'JSON']
    ];
    return html`<section class="panel" aria-label="Arguments"><header><h2 class="mono"><${Text} text=${entry.name} most=${160} /></h2>
        <span class="muted"><${Text} text=${entry.description ?? entry.title ?? ''} most=${240} /></span><span class="gap"></span>
        <label for="try-as">Speak as</label>
        <select id="try-as" value=${as} onChange=${(/** @type {any} */ event) => setAs(event.target.value)}>
        ${REVISIONS.map(revision => html`<option key=${revision}>${revision}</option>`)}</select>
        <${Segments} label="Edit as" chosen=${view} choose=${setView} options=${views} /></header>
        <div class="body"><div class="split2">${view === 'form' && html`<${SchemaForm} schema=${schema} text=${text} change=${setText} />`}
        <div class="field"><label for="try-json">Arguments, as they are sent</label>
        <textarea id="try-json" rows="8" spellcheck="false" aria-invalid=${wrong.length ? 'true' : undefined} aria-describedby="try-wrong"
        value=${text} onInput=${(/** @type {any} */ event) => setText(event.target.value)} />
        <div class="wrong" id="try-wrong">${wrong
            .slice(0, WRONG_MAX)
            .map(
                one =>
                    html`<div key=${one.path}><${Text} text=${`${one.path || 'The text'} ${one.what}`} most=${300} /></div>`
            )}</div></div></div>
        ${children}</div></section>`;
}

/** @param {{ call: ReturnType<typeof useRun>, run: () => void, isWrong: boolean }} props */
function RunRow({ call, run, isWrong }) {
    if (!may('act')) return html`<p class="muted">You may look, not act.</p>`;
    return html`<div class="row"><button type="button" class="btn primary" aria-disabled=${call.isBusy ? 'true' : undefined} onClick=${run}>
        <${Icon} name="play" />${isWrong ? 'Send all the same' : 'Run'}<kbd>Ctrl Enter</kbd></button>${
            call.isBusy &&
            html`<button type="button" class="btn" onClick=${call.cancel}>Cancel</button>
            <span role="status">${call.state?.state === 'asking' ? 'It asks something' : 'Running'}</span>
            <${Progress} notes=${call.state?.notifications ?? []} />`
        }</div>`;
}

/** @param {{ notes: any[] }} props */
function Progress({ notes }) {
    const last = notes.filter(note => note?.method === 'notifications/progress').at(-1)?.params;
    if (!last) return null;
    const value = last.total ? last.progress : undefined;
    return html`<progress class="progress" max=${last.total ?? undefined} value=${value} aria-label="Progress"></progress>
        <span class="muted"><${Text} text=${last.message ?? ''} most=${200} /></span>`;
}
