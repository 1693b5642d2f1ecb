// Calls as they happen, newest first, and the one that is opened below them.

import { attempt, get, send, useLoaded } from '../api.js';
import { useKeys } from '../keys.js';
import { resynced } from '../live.js';
import { CopyLine, Empty, ErrorStrip } from '../parts/common.js';
import { Divider } from '../parts/divider.js';
import { Icon } from '../parts/icons.js';
import { chosenNode, isAway, meantNodes, NodeChooser } from '../parts/nodes.js';
import { Grid, neighbour, ROW_HEIGHT } from '../parts/table.js';
import { isFree, matches, parse } from '../pure/query.js';
import { joinRelayed } from '../pure/relays.js';
import { clock, counted } from '../pure/time.js';
import { address, go, may, paused, route, setQuery, speak } from '../state.js';
import { html, useEffect, useMemo, useRef } from '../ui.js';
import { CallView } from './call.js';
import { Filters, useSettled } from './traffic_filter.js';
import { cells, columns, isShown, longest, useRows } from './traffic_rows.js';

/** How soon and how late it is asked again whether bodies are still shown. */
const [BODIES_MIN_PAUSE, BODIES_MAX_PAUSE] = [1000, 60_000];
const [SPLIT_MIN, SPLIT_MAX, SPLIT_STEP] = [110, 800, 60];

/** @param {{ Page: any }} props */
export function Traffic({ Page }) {
    const { query } = route.value;
    const [q, show, open] = [query.get('q') ?? '', query.get('show') ?? 'calls', query.get('open')];
    const filter = useMemo(() => parse(q), [q]);
    const recording = useRecording();
    // Only the gateway can look into messages; until it has, the columns decide.
    const isDeep = isFree(filter.terms) && Boolean(recording.data?.bodies);
    const settled = useSettled(filter.error ? '' : q);
    const calls = useCalls(settled, filter.error !== null, isDeep);
    const { rows, waiting, isHeld, lost } = calls;
    const isAnswered = isDeep && settled === q && calls.first.data !== null;
    const holds = (/** @type {any} */ row) => (isAnswered ? row.found === q : matches(filter.terms, row));
    const fits = (/** @type {any} */ row) => isShown(row, show) && holds(row);
    const shown = useMemo(() => joinRelayed(rows).filter(fits), [rows, show, filter, isAnswered]);
    const fresh = joinRelayed(waiting).filter(fits).length;
    useEffect(() => {
        if (fresh) speak(counted(fresh, 'new call'));
    }, [fresh]);
    useEffect(() => {
        if (!paused.value && !isHeld.current && waiting.length) calls.release();
    }, [paused.value, open]);
    const choose = (/** @type {any} */ row) => row && setQuery({ open: row.id }, !open);
    const split = open ? splitSize(query.get('split'), shown.length) : null;
    useTrafficKeys({ shown, open, choose, q, split, release: calls.release, clear: calls.clear });
    return html`<${Page} title="Traffic" class="traffic" sub=${recordingText(recording.data)} tools=${html`<${NodeChooser} />`}>
        <${Filters} q=${q} show=${show} error=${filter.error} rows=${rows} />
        <${ErrorStrip} error=${calls.first.error} at=${calls.first.at} retry=${calls.first.reload} />
        <${BodiesStrip} recording=${recording} /><${LostStrip} lost=${lost} recording=${recording} hide=${calls.hideLost} />
        <div class="body">${
            shown.length || calls.first.loading
                ? html`<${CallGrid} shown=${shown} fresh=${fresh} open=${open} choose=${choose} split=${split} calls=${calls} />`
                : html`<${NothingYet} q=${q} any=${rows.length} mode=${recording.data?.mode} />`
        }${open && html`<${OpenCall} id=${open} split=${split} />`}</div><//>`;
}

/** @param {{ id: string, split: number | null }} props */
const OpenCall = ({ id, split }) =>
    html`<${Divider} label="Height of the table" value=${split} min=${SPLIT_MIN} max=${SPLIT_MAX} change=${setSplit} />
        <${CallView} id=${id} close=${() => setQuery({ open: null, tab: null })} />`;

/**
 * Rows of the stream, and those that were there before.
 * @param {string} q @param {boolean} isWrong The filter cannot be read. @param {boolean} isDeep It is looked for in messages, too.
 */
function useCalls(q, isWrong, isDeep) {
    const node = chosenNode();
    const load = async () => (isWrong ? { items: [] } : get('calls', { q, limit: 500, node }));
    const first = useLoaded(load, [q, isWrong, node], `${resynced.value} ${isDeep}`);
    const calls = useRows(q, node, first.reload);
    const isAsked = useRef(true);
    useEffect(() => {
        if (!first.data) return;
        // What was asked for is shown at once; what a later look brings waits while one reads.
        if (isAsked.current) calls.add(first.data.items);
        else calls.update(first.data.items);
        isAsked.current = false;
    }, [first.data]);
    useEffect(() => {
        isAsked.current = true;
    }, [q, node]);
    useEffect(calls.clear, [node]);
    return { ...calls, first, older: useOlder(first, q, node, calls.add) };
}

/** Asks for the calls before those that are shown, page by page. @param {any} first @param {string} q @param {string | null} node @param {(items: any[]) => void} add */
function useOlder(first, q, node, add) {
    const next = useRef(/** @type {string | null} */ (null));
    const asked = useRef('');
    asked.current = `${node} ${q}`;
    useEffect(() => {
        next.current = first.data?.next ?? null;
    }, [first.data]);
    return async () => {
        const [cursor, mine] = [next.current, asked.current];
        if (!cursor) return;
        next.current = null;
        const page = await get('calls', { q, limit: 500, cursor, node }).catch(() => null);
        // Other calls may be asked for by now, and neither these nor what follows them are among those.
        if (!page || mine !== asked.current) return;
        next.current = page.next;
        add(page.items);
    };
}

/** @param {{ shown: any[], fresh: number, open: string | null, choose: (row: any) => void, split: number | null, calls: any }} props */
function CallGrid({ shown, fresh, open, choose, split, calls }) {
    const isAll = chosenNode() === 'all';
    const most = longest(shown);
    const isAtTop = useRef(true);
    const hold = () => {
        calls.isHeld.current = !isAtTop.current || Boolean(open);
    };
    hold();
    const held = (/** @type {boolean} */ top) => {
        isAtTop.current = top;
        hold();
    };
    const showNew = () => {
        document.querySelector('.calls')?.scrollTo(0, 0);
        calls.release();
    };
    return html`<${Grid} rows=${shown} columns=${columns(isAll)} cells=${(/** @type {any} */ row) => cells(row, most, isAll)} made=${`${most} ${isAll}`}
        keyOf=${(/** @type {any} */ row) => row.id} chosen=${open} open=${choose} held=${held} atEnd=${calls.older}
        label="Calls, newest first" short=${Boolean(open)} size=${split} classOf=${(/** @type {any} */ row) => `${row.done ? '' : 'open'}${row.gone || isAway(row.node) ? ' away' : ''}`}>
        ${fresh > 0 && html`<div class="fresh"><button type="button" class="btn" onClick=${showNew}>${fresh} new</button></div>`}<//>`;
}

/** @param {string | null} chosen @param {number} count Height of the table while a call is open below it. */
const splitSize = (chosen, count) =>
    Number(chosen) || Math.min(27 + ROW_HEIGHT * Math.max(3, Math.min(count, 6)) + 2, 240);

/** @param {number} height */
const setSplit = height => setQuery({ split: String(Math.round(Math.max(SPLIT_MIN, Math.min(SPLIT_MAX, height)))) });

/** @param {any} recording */
function recordingText(recording) {
    if (!recording) return '';
    if (recording.mode === 'off') return 'Recording is turned off in the configuration';
    const until = recording.bodies_until ? ` until ${clock(recording.bodies_until)}` : '';
    return `Recording while you watch, ${recording.bodies ? `with bodies${until}` : 'without bodies'}, secrets taken out`;
}

/** What the chosen nodes record; without bodies as soon as one of them has none. */
async function readRecording() {
    const all = await ofNodes(node => get('recording', { node }));
    const without = all.filter(one => !one.bodies);
    const first = all.toSorted((a, b) => Date.parse(a.bodies_until) - Date.parse(b.bodies_until))[0];
    return without.find(one => one.may_show_bodies) ?? without[0] ?? first;
}

/** Reads what is recorded, again when bodies are shown no more. */
function useRecording() {
    const recording = useLoaded(readRecording, [meantNodes(chosenNode()).join()], resynced.value);
    const until = recording.data?.bodies ? recording.data.bodies_until : null;
    useEffect(() => {
        if (!until) return undefined;
        let timer = 0;
        const wait = () => {
            // The clocks of the two may differ, and somebody else may hide them before.
            const left = Math.max(BODIES_MIN_PAUSE, Math.min(Date.parse(until) - Date.now(), BODIES_MAX_PAUSE));
            timer = setTimeout(() => {
                recording.reload();
                wait();
            }, left);
        };
        wait();
        return () => clearTimeout(timer);
    }, [until]);
    return recording;
}

/** @param {any} change At each of the chosen nodes. */
const changeRecording = change => ofNodes(node => send('PUT', 'recording', change, { query: { node } }));

/** @param {(node: string | null) => Promise<any>} ask @returns {Promise<any[]>} What the chosen nodes that answer say; an error where none does. */
async function ofNodes(ask) {
    const said = await Promise.allSettled(meantNodes(chosenNode()).map(ask));
    const all = said.flatMap(one => (one.status === 'fulfilled' ? [one.value] : []));
    if (!all.length) throw /** @type {PromiseRejectedResult} */ (said[0]).reason;
    return all;
}

/** @param {{ recording: any }} props */
function BodiesStrip({ recording }) {
    const state = recording.data;
    if (!state || state.bodies || state.mode === 'off') return null;
    const allow = async () => {
        await attempt(() => changeRecording({ bodies: true, for: '15m' }));
        recording.reload();
    };
    const why = state.may_show_bodies ? '.' : ': bodies is “never” in the configuration.';
    return html`<div class="strip-note plain"><${Icon} name="eye" /><span>Messages are shown as shapes, without their values${why}</span>
        ${may('bodies') && state.may_show_bodies && html`<button type="button" class="btn" onClick=${allow}>Show bodies for 15 minutes</button>`}</div>`;
}

/** @param {{ lost: { isAny: boolean, count: number, why: string }, recording: any, hide: () => void }} props Calls that came and are not shown. */
function LostStrip({ lost, recording, hide }) {
    if (!lost.isAny) return null;
    // How many there were is not always known.
    const what = lost.count ? counted(lost.count, 'call is', 'calls are') : 'Some calls are';
    const more = async () => {
        const { rate } = recording.data;
        if (await attempt(() => changeRecording({ rate: rate * 2 }))) hide();
        recording.reload();
    };
    return html`<div class="strip-note"><span><b>${what} not shown</b>:
        ${lost.why || 'more came than is recorded'}.</span>
        <button type="button" class="btn" onClick=${() => document.getElementById('filter')?.focus()}>Filter</button>
        ${may('bodies') && recording.data?.rate && html`<button type="button" class="btn" onClick=${more}>Record more</button>`}
        <button type="button" class="btn quiet" onClick=${hide}>Hide</button></div>`;
}

/** @param {{ q: string, any: number, mode?: string }} props */
function NothingYet({ q, any, mode }) {
    if (mode === 'off')
        return html`<${Empty} title="Nothing is recorded"><p>Recording is turned off: record is “off” in the configuration. With “watch”
            calls appear here while somebody looks.</p><//>`;
    if (q || any) {
        const here = `${counted(any, 'call is', 'calls are')} here, and the filter shows none of them.`;
        return html`<${Empty} title="No call matches"><p>${any ? here : 'Calls that match appear here from now on.'}</p>
            <button type="button" class="btn" onClick=${() => setQuery({ q: null, show: null })}>Clear the filter</button><//>`;
    }
    return html`<${Empty} title="Nothing is recorded while nobody watches"><p>Calls appear here from now on. To make one:</p>
        <${CopyLine} text=${`rialto call ${new URL('mcp', document.baseURI)}`} what="Command" />
        <p class="muted">Or <a class="link" href="#/try">try a tool</a> from this page.</p><//>`;
}

const ABOUT_KEYS = /** @type {[string, string][]} */ ([
    ['Space', 'Pause'],
    ['x', 'Clear the table'],
    ['e', 'Next failure'],
    ['[ ]', 'Move the divider'],
    ['f', 'The call as the whole page'],
    ['u', 'Show new calls']
]);

/** @param {{ shown: any[], open: string | null, choose: (row: any) => void, q: string, split: number | null, release: () => void, clear: () => void }} props */
function useTrafficKeys({ shown, open, choose, q, split, release, clear }) {
    const step = (/** @type {number} */ by) => () => choose(neighbour(shown, row => row.id, open, by));
    const nextFailure = () => {
        const at = shown.findIndex(row => row.id === open);
        choose([...shown.slice(at + 1), ...shown].find(row => row.done && row.outcome !== 'ok'));
    };
    const pause = () => {
        paused.value = !paused.value;
    };
    const whole = () => (open ? go(address(['calls', open])) : choose(shown[0]));
    const close = () => {
        if (open) setQuery({ open: null, tab: null });
        else if (q) setQuery({ q: null });
        // Out of the filter, so that the next keys are no text.
        const to = document.querySelector('.calls table') ?? document.querySelector('h1');
        /** @type {HTMLElement | null} */ (to)?.focus({ preventScroll: true });
    };
    const steps = {
        j: step(1),
        k: step(-1),
        ArrowDown: step(1),
        ArrowUp: step(-1),
        e: nextFailure,
        Enter: whole,
        f: whole
    };
    const resize = (/** @type {number} */ by) => () => split && setSplit(split + by);
    const others = {
        Space: pause,
        x: clear,
        u: release,
        Escape: close,
        '[': resize(-SPLIT_STEP),
        ']': resize(SPLIT_STEP)
    };
    useKeys(/** @type {any} */ ({ ...steps, ...others }), ABOUT_KEYS);
}
