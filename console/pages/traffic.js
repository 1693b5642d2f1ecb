// Calls as they happen, newest first, and the one that is opened below them.

import { attempt, get, send, useLoaded } from '../api.js';
import { useKeys } from '../keys.js';
import { resynced, useLive } from '../live.js';
import { CopyLine, Empty, ErrorStrip, Outcome, Segments, Text } from '../parts/common.js';
import { Icon } from '../parts/icons.js';
import { TimeBar } from '../parts/spark.js';
import { Grid, neighbour, ROW_HEIGHT } from '../parts/table.js';
import { matches, parse } from '../pure/query.js';
import { bytes, clock, counted, duration, exactClock } from '../pure/time.js';
import { address, go, may, paused, route, setQuery, speak } from '../state.js';
import { html, useEffect, useMemo, useRef, useState } from '../ui.js';
import { CallView } from './call.js';

const KEPT_ROWS = 5000;
const COLUMNS = [['Time'], ['Client'], ['Call'], ['Server'], ['Translated'], ['Outcome'], ['Took', true], ['Whose time'], ['Answer', true]]
    .map(([label, right]) => ({ label: String(label), right: Boolean(right) }));
const BRIDGES = { none: 'as it is', names: 'names only', era: 'same era', across: 'across eras' };
/** What "Calls" leaves out: the talk around them. */
const AROUND = ['ping', 'initialize', 'server/discover', 'logging/setLevel'];

/** @param {any} row @param {string} show */
function isShown(row, show) {
    if (show === 'all') return true;
    if (show === 'failed') return row.done && row.outcome !== 'ok';
    return row.method !== null && !AROUND.includes(row.method) && !row.method.startsWith('notifications/') && !row.method.endsWith('/list');
}

/** Rows by id, newest first; those that wait behind "12 new" are kept apart. @param {string} q */
function useRows(q) {
    const [rows, setRows] = useState(/** @type {any[]} */ ([]));
    const [waiting, setWaiting] = useState(/** @type {any[]} */ ([]));
    const [lost, setLost] = useState(0);
    const isHeld = useRef(false);
    const put = (/** @type {any[]} */ into, /** @type {any} */ row) => [row, ...into.filter(one => one.id !== row.id)].slice(0, KEPT_ROWS);
    const on = {
        call: (/** @type {any} */ row) => {
            setRows(before => {
                const at = before.findIndex(one => one.id === row.id);
                if (at >= 0) return before.with(at, row);
                if (!isHeld.current && !paused.peek()) return put(before, row);
                setWaiting(behind => put(behind, row));
                return before;
            });
        },
        gone: (/** @type {any} */ { id }) => setRows(before => (before.some(one => one.id === id) ? before.map(one => (one.id === id ? { ...one, gone: true } : one)) : before)),
        lost: (/** @type {any} */ { count }) => setLost(before => before + (count ?? 0))
    };
    useLive(['call', 'gone'], on, q);
    const release = () => {
        setRows(before => waiting.reduceRight(put, before));
        setWaiting([]);
    };
    return { rows, setRows, waiting, release, lost, setLost, isHeld };
}

/** @param {{ Page: any }} props */
export function Traffic({ Page }) {
    const { query } = route.value;
    const [q, show, open] = [query.get('q') ?? '', query.get('show') ?? 'calls', query.get('open')];
    const filter = useMemo(() => parse(q), [q]);
    const valid = filter.error ? '' : q;
    const { rows, setRows, waiting, release, lost, setLost, isHeld } = useRows(valid);
    const first = useLoaded(() => (filter.error ? Promise.resolve({ items: [] }) : get('calls', { q: valid, limit: 500 })), [valid, resynced.value]);
    const recording = useLoaded(() => get('recording'), []);
    useEffect(() => {
        if (!first.data) return;
        setRows(before => [...before.filter(row => !first.data.items.some((/** @type {any} */ one) => one.id === row.id)), ...first.data.items].sort((a, b) => (a.at < b.at ? 1 : -1)).slice(0, KEPT_ROWS));
    }, [first.data]);
    useEffect(() => { if (!paused.value && !isHeld.current && waiting.length) release(); }, [paused.value]);
    const shown = useMemo(() => rows.filter(row => isShown(row, show) && matches(filter.terms, row)), [rows, show, filter]);
    const fresh = waiting.filter(row => isShown(row, show) && matches(filter.terms, row)).length;
    useEffect(() => { if (fresh) speak(`${counted(fresh, 'new call')}`); }, [fresh]);
    const choose = (/** @type {any} */ row) => row && setQuery({ open: row.id }, !open);
    isHeld.current = isHeld.current || Boolean(open);
    useTrafficKeys({ shown, open, choose, q, release, clear: () => { setRows([]); setLost(0); } });
    const held = (/** @type {boolean} */ top) => {
        isHeld.current = !top || Boolean(open);
    };
    const sub = recordingText(recording.data);
    return html`<${Page} title="Traffic" class="traffic" sub=${sub}><${Filters} q=${q} show=${show} error=${filter.error} />
        <${ErrorStrip} error=${first.error} at=${first.at} retry=${first.reload} />
        <${BodiesStrip} recording=${recording} />
        ${lost > 0 && html`<div class="strip-note"><span>
        <b>${counted(lost, 'call is', 'calls are')} not shown</b>: more came than is recorded or sent. Filter, or record more.</span>
            <button type="button" class="btn" onClick=${() => setLost(0)}>Hide</button></div>`}
        <div class="body">${shown.length || first.loading ? html`<${Grid} rows=${shown} columns=${COLUMNS} cells=${(/** @type {any} */ row) => cells(row, shown)} keyOf=${(/** @type {any} */ row) => row.id} chosen=${open} open=${choose} held=${held}
            label="Calls, newest first" short=${Boolean(open)} size=${open ? splitSize(query.get('split'), shown.length) : null} classOf=${(/** @type {any} */ row) => (row.done ? '' : 'open')}>
            ${fresh > 0 && html`<div class="fresh">
            <button type="button" class="btn" onClick=${() => { document.querySelector('.calls')?.scrollTo(0, 0); release(); }}>${fresh} new</button></div>`}<//>`
            : html`<${NothingYet} q=${q} any=${rows.length} />`}
        ${open && html`<${CallView} id=${open} close=${() => setQuery({ open: null, tab: null })} />`}</div><//>`;
}

/** @param {string | null} chosen @param {number} count Height of the table while a call is open below it. */
const splitSize = (chosen, count) => Number(chosen) || Math.min(27 + ROW_HEIGHT * Math.max(3, Math.min(count, 6)) + 2, 240);

/** @param {any} recording */
function recordingText(recording) {
    if (!recording) return '';
    if (recording.mode === 'off') return 'Recording is turned off in the configuration';
    const bodies = recording.bodies ? `with bodies${recording.bodies_until ? ` until ${clock(recording.bodies_until)}` : ''}` : 'without bodies';
    return `Recording while you watch, ${bodies}, secrets taken out`;
}

/** @param {{ q: string, show: string, error: string | null }} props */
function Filters({ q, show, error }) {
    return html`<div class="filters" role="search">
        <input type="search" id="filter" class="query" aria-label="Filter calls" aria-invalid=${error ? 'true' : undefined} aria-describedby="filter-wrong" spellcheck="false"
        placeholder="client: server: tool: method: outcome: took:>1s era:across node: or any text" value=${q} onInput=${(/** @type {any} */ event) => setQuery({ q: event.target.value })} />
        <${Segments} label="Show" chosen=${show} choose=${(/** @type {string} */ value) => setQuery({ show: value === 'calls' ? null : value })} options=${[['calls', 'Calls'], ['all', 'Everything'], ['failed', 'Failed']]} />
        <button type="button" class="btn" aria-pressed=${paused.value ? 'true' : 'false'} onClick=${() => { paused.value = !paused.value; }}>
        <${Icon} name=${paused.value ? 'play' : 'pause'} />${paused.value ? 'Go on' : 'Pause'}<kbd>Space</kbd></button>
        <span class="wrong" id="filter-wrong" role="alert">${error}</span></div>`;
}

/** @param {{ recording: any }} props */
function BodiesStrip({ recording }) {
    const state = recording.data;
    if (!state || state.bodies || state.mode === 'off') return null;
    const allow = async () => {
        await attempt(() => send('PUT', 'recording', { bodies: true, for: '15m' }));
        recording.reload();
    };
    return html`<div class="strip-note plain"><${Icon} name="eye" /><span>Messages are shown as shapes, without their values.</span>
        ${may('bodies') && html`<button type="button" class="btn" onClick=${allow}>Show bodies for 15 minutes</button>`}</div>`;
}

/** @param {{ q: string, any: number }} props */
function NothingYet({ q, any }) {
    if (q || any) {
        return html`<${Empty} title="No call matches">
            <p>${any ? `${counted(any, 'call')} ${any === 1 ? 'is' : 'are'} here, and the filter shows none of them.` : 'Calls that match appear here from now on.'}</p>
            <button type="button" class="btn" onClick=${() => setQuery({ q: null, show: null })}>Clear the filter</button><//>`;
    }
    return html`<${Empty} title="Nothing is recorded while nobody watches"><p>Calls appear here from now on. To make one:</p>
        <${CopyLine} text=${`rialto call ${new URL('mcp', document.baseURI)}`} what="Command" />
        <p class="muted">Or <a class="link" href="#/try">try a tool</a> from this page.</p><//>`;
}

/** @param {any} row @param {any[]} rows */
function cells(row, rows) {
    const most = Math.max(...rows.slice(0, 200).map(one => one.took_us ?? 0), 1e6);
    const { client, server } = row;
    const rounds = row.rounds > 1 ? `, ${row.rounds} rounds` : '';
    return html`<td class="num muted">${exactClock(row.at)}</td>
        <td class="who">
        <${Text} text=${[client.name ?? client.transport, client.version].filter(Boolean).join(' ')} most=${60} /> <span class="muted mono rev">${client.revision}</span>
        </td>
        <td class="what"><span class="m">${row.method ?? 'http'}</span> <${Text} text=${row.name} most=${120} /></td>
        <td class="who">${server ? html`${server.name} <span class="muted mono rev">${server.revision}</span>` : html`<span class="muted">Rialto itself</span>`}</td>
        <td>${server && html`<span class=${`tag ${row.bridge === 'across' ? 'era' : ''}`}>${row.done && row.outcome !== 'ok' && !server.revision ? 'not sent' : BRIDGES[/** @type {'none'} */ (row.bridge)]}${rounds}</span>`}${row.one_of > 1 ? html` <span class="tag warn">1 of ${row.one_of}</span>` : ''}${row.kept ? html` <span class="tag">kept</span>` : ''}</td>
        <td><${Outcome} outcome=${row.outcome} done=${row.done} /></td><td class="r">${row.done ? duration(row.took_us) : ''}</td>
        <td><${TimeBar} time=${row.time} took=${row.took_us} most=${most} /></td><td class="r muted">${bytes(row.bytes?.answered)}</td>`;
}

/** @param {{ shown: any[], open: string | null, choose: (row: any) => void, q: string, release: () => void, clear: () => void }} props */
function useTrafficKeys({ shown, open, choose, q, release, clear }) {
    const keyOf = (/** @type {any} */ row) => row.id;
    const step = (/** @type {number} */ by) => () => choose(neighbour(shown, keyOf, open, by));
    const nextFailure = () => {
        const at = shown.findIndex(row => row.id === open);
        choose([...shown.slice(at + 1), ...shown].find(row => row.done && row.outcome !== 'ok'));
    };
    const resize = (/** @type {number} */ by) => () => setQuery({ split: String(Math.max(110, Math.min(800, splitSize(route.peek().query.get('split'), shown.length) + by))) });
    useKeys({
        j: step(1), k: step(-1), ArrowDown: step(1), ArrowUp: step(-1), Enter: () => { if (open) go(address(['calls', open])); else choose(shown[0]); },
        Space: () => { paused.value = !paused.value; }, x: clear, e: nextFailure, '[': resize(-60), ']': resize(60), u: release,
        f: () => { if (open) go(address(['calls', open])); },
        Escape: () => {
            if (open) setQuery({ open: null, tab: null });
            else if (q) setQuery({ q: null });
            /** @type {HTMLElement | null} */ (document.activeElement)?.blur();
        }
    }, [['Space', 'Pause'], ['x', 'Clear the table'], ['e', 'Next failure'], ['[ ]', 'Move the divider'], ['f', 'The call as the whole page'], ['u', 'Show new calls']]);
}
