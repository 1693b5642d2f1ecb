// The frame: navigation, the bar on top, strips, dialogs, and the page that the address names.

import { currentKey, findKey, get, watchForKeys } from './api.js';
import { startKeys } from './keys.js';
import { goneOf, startLive, stream, tryAgain, useLive } from './live.js';
import { Bridge } from './pages/bridge.js';
import { CallPage } from './pages/call.js';
import { Cluster } from './pages/cluster.js';
import { Config } from './pages/config.js';
import { Groups } from './pages/groups.js';
import { Overview } from './pages/overview.js';
import { Questions } from './pages/questions.js';
import { Servers } from './pages/servers.js';
import { Sessions } from './pages/sessions.js';
import { SignIn } from './pages/signin.js';
import { Traffic } from './pages/traffic.js';
import { Try } from './pages/try.js';
import { ActError, Dot, Empty, ErrorStrip } from './parts/common.js';
import { Confirm, KeysDialog } from './parts/dialog.js';
import { startFocus } from './parts/focus.js';
import { Brand, Icon } from './parts/icons.js';
import { nodes, noteNode, setNodes } from './parts/nodes.js';
import { Palette } from './parts/palette.js';
import { clock, since } from './pure/time.js';
import { inTurn } from './pure/turns.js';
import { counts, me, nextTheme, overlay, paused, route, signInReason, spoken, toast } from './state.js';
import { html, render, signal, useEffect, useErrorBoundary, useRef, useState } from './ui.js';

/** @typedef {{ id: string, label: string, icon: string, view: any, alert?: boolean }} Place */

/** @type {(Place | string)[]} */
const PLACES = [
    { id: '', label: 'Overview', icon: 'overview', view: Overview },
    { id: 'traffic', label: 'Traffic', icon: 'traffic', view: Traffic },
    { id: 'questions', label: 'Questions', icon: 'questions', view: Questions, alert: true },
    'What is served',
    { id: 'servers', label: 'Servers', icon: 'servers', view: Servers },
    { id: 'groups', label: 'Groups', icon: 'groups', view: Groups },
    { id: 'sessions', label: 'Sessions', icon: 'sessions', view: Sessions },
    { id: 'bridge', label: 'Bridge', icon: 'bridge', view: Bridge },
    'Do',
    { id: 'try', label: 'Try a tool', icon: 'try', view: Try },
    { id: 'config', label: 'Configuration', icon: 'config', view: Config, alert: true },
    'Where',
    { id: 'cluster', label: 'Cluster', icon: 'cluster', view: Cluster }
];
const CALL = { id: 'calls', label: 'Call', icon: 'traffic', view: CallPage };

const startError = signal(/** @type {{ message: string, hint?: string } | null} */ (null));

async function loadMe() {
    const tried = currentKey();
    try {
        me.value = await get('me');
        signInReason.value = null;
        startError.value = null;
    } catch (error) {
        // Another key that came meanwhile is being tried.
        if (currentKey() && currentKey() !== tried) return;
        startError.value = /** @type {any} */ (error);
    }
}

/** Counts beside the navigation, of what is cheap to ask. */
async function readCounts() {
    const size = async (/** @type {string} */ path, node = /** @type {string | null} */ (null)) =>
        (await get(path, { limit: 500, node }).catch(() => ({ items: [] }))).items.length;
    const [servers, groups, sessions, questions] = await Promise.all([
        ...['servers', 'groups'].map(path => size(path)),
        ...['sessions', 'questions'].map(path => size(path, me.value?.clustered ? 'all' : null))
    ]);
    const all = await get('nodes').catch(() => null);
    if (all) setNodes(all.items);
    const config = await get('config').catch(() => ({ problems: [] }));
    counts.value = {
        servers,
        groups,
        sessions,
        questions,
        cluster: nodes.peek().size > 1 ? nodes.peek().size : 0,
        config: config.problems?.length ?? 0
    };
}

/** Many events come at once; they are one look. */
const loadCounts = inTurn(readCounts, () => {}).ask;

/** @param {{ place: string }} props */
function Side({ place }) {
    const who = me.value;
    return html`<nav class="side" aria-label="Console"><a class="brand" href="#/" aria-label="Rialto"><${Brand} />Rialto</a>
        ${PLACES.map(item =>
            typeof item === 'string'
                ? html`<h2 key=${item}>${item}</h2>`
                : html`<a class="item" key=${item.id} href=${`#/${item.id}`} title=${item.label} aria-current=${item.id === place ? 'page' : undefined}>
                <${Icon} name=${item.icon} />${item.label}
                ${counts.value[item.id] ? html`<span class=${`count ${item.alert ? 'alert' : ''}`}>${counts.value[item.id]}</span>` : ''}</a>`
        )}
        <div class="foot"><div><b>${who?.node}</b>${counts.value.cluster ? ` of ${counts.value.cluster} nodes` : ''}</div>
        <div>${who?.version}, up for ${since(who?.started)}</div><div>Signed in as ${who?.operator}</div>
        <div class="row"><button type="button" class="link" onClick=${nextTheme}>Colours</button>
        <button type="button" class="link" onClick=${() => {
            overlay.value = 'keys';
        }}>Keys</button></div></div></nav>`;
}

const STATES = {
    off: ['wait', 'Not live'],
    opening: ['wait', 'Connecting'],
    live: ['ok', 'Live'],
    lost: ['bad', 'Not live'],
    asleep: ['wait', 'Asleep']
};

function LiveState() {
    const [shape, text] = STATES[stream.value.state];
    return html`<span class="live" role="status"><${Dot} state=${paused.value ? 'wait' : shape} />${paused.value ? 'Held still' : text}</span>`;
}

/** The strip of a stream that was lost. */
function LostStrip() {
    const [, tick] = useState(0);
    const { state, since: from, retry, error } = stream.value;
    useEffect(() => {
        if (state !== 'lost') return undefined;
        const timer = setInterval(() => tick(n => n + 1), 1000);
        return () => clearInterval(timer);
    }, [state]);
    if (state !== 'lost') return null;
    const left = Math.max(0, Math.ceil((retry - Date.now()) / 1000));
    // Screen readers are told once, not at each second of the countdown.
    return html`<div class="strip-note"><${Dot} state="warn" /><span>
        <b role="status">Not live since ${clock(from)}</b>, ${left > 0 ? `trying again in ${left} s` : 'trying again'}. <span class="muted">${error}</span></span>
        <button type="button" class="btn" onClick=${tryAgain}>Try now</button></div>`;
}

/** @param {{ title: string, children?: any, sub?: any, class?: string, tools?: any }} props The bar on top, and the page below it. */
export function Page({ title, sub, tools, children, class: name = '' }) {
    const head = useRef(/** @type {HTMLElement | null} */ (null));
    useEffect(() => {
        document.title = `${title} · Rialto`;
        // A page that was gone to is told to screen readers; the first one is read anyway.
        if (document.activeElement === document.body && sessionStorage.length)
            head.current?.focus({ preventScroll: true });
    }, [title]);
    return html`<main class=${`main ${name}`} id="main"><div class="top"><h1 tabindex="-1" ref=${head}>${title}</h1>${sub && html`<span class="sub">${sub}</span>`}
        <span class="gap"></span>
        <button type="button" class="find" aria-label="Find or go to" aria-keyshortcuts="/" onClick=${() => {
            overlay.value = 'palette';
        }}>
        <${Icon} name="find" />Find or go to<kbd>/</kbd></button>${tools}<${LiveState} /></div>
        <${LostStrip} /><${ActError} />${children}</main>`;
}

/** @param {{ place: any }} props */
function Guarded({ place }) {
    const [error, reset] = useErrorBoundary(caught => console.error(caught));
    if (error) {
        return html`<${Page} title=${place.label}><${Empty} title="This page could not be drawn"><p>${String(/** @type {any} */ (error)?.message ?? error)}</p>
            <button type="button" class="btn" onClick=${reset}>Try again</button><//><//>`;
    }
    return html`<${place.view} Page=${Page} />`;
}

/** What is seen until it is known who is signed in, like what index.html begins with. */
const EmptyFrame =
    () => html`<div class="app"><nav class="side" aria-label="Console"><span class="brand"><${Brand} />Rialto</span></nav>
    <main class="main"><div class="top"></div></main></div>`;

function App() {
    useLive([], {
        attention: () => {},
        server: () => loadCounts(),
        reload: () => loadCounts(),
        question: () => loadCounts(),
        node: (/** @type {any} */ row) => {
            const isNew = !nodes.peek().has(row.name);
            noteNode(row);
            if (isNew) loadCounts();
        },
        gone: goneOf('node', loadCounts)
    });
    useEffect(() => {
        if (me.value) loadCounts();
    }, [me.value]);
    if (signInReason.value !== null) return html`<${SignIn} signedIn=${loadMe} />`;
    if (!me.value)
        return startError.value
            ? html`<${ErrorStrip} error=${startError.value} retry=${loadMe} />`
            : html`<${EmptyFrame} />`;
    const id = route.value.parts[0] ?? '';
    const place = id === CALL.id ? CALL : PLACES.find(item => typeof item !== 'string' && item.id === id);
    return html`<a class="skip" href="#main" onClick=${(/** @type {Event} */ event) => {
        event.preventDefault();
        document.querySelector('h1')?.focus();
    }}>To the page</a>
        <div class="app"><${Side} place=${id === 'calls' ? 'traffic' : id} />
        ${
            place
                ? html`<${Guarded} key=${id} place=${place} />`
                : html`<${Page} title="Not found"><${Empty} title="There is no such page">
        <a class="link" href="#/">To the overview</a><//><//>`
        }</div>
        <${Palette} /><${KeysDialog} /><${Confirm} /><div class="toast" role="status">${toast.value}</div><div class="hidden" aria-live="polite">${spoken.value}</div>`;
}

await findKey();
watchForKeys(loadMe);
startKeys();
startFocus();
startLive();
const root = /** @type {Element} */ (document.getElementById('console'));
root.replaceChildren();
render(html`<${App} />`, root);
await loadMe();
