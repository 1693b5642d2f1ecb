// One server: its state, how it was found out, and what it offers.

import { attempt, get, send, useLoaded, useRefreshed } from '../api.js';
import { useKeys } from '../keys.js';
import { resynced, useLive } from '../live.js';
import { Dot, ErrorStrip, Revision, sentence, shapeOf, TabPanel, Tabs, Text } from '../parts/common.js';
import { confirm } from '../parts/dialog.js';
import { Icon } from '../parts/icons.js';
import { chosenOther, NodeChooser } from '../parts/nodes.js';
import { Spark } from '../parts/spark.js';
import { transportName } from '../pure/revisions.js';
import { clock, counted, duration, figure, percent, since } from '../pure/time.js';
import { address, go, may, paused, route, say, setQuery } from '../state.js';
import { html } from '../ui.js';
import { ServerTab } from './server_tabs.js';

/** @typedef {import('../types.d.ts').components['schemas']['Server']} Server */

const TABS = [
    ['tools', 'Tools'],
    ['prompts', 'Prompts'],
    ['resources', 'Resources'],
    ['templates', 'Templates'],
    ['connections', 'Connections'],
    ['log', 'Standard error'],
    ['seen', 'Seen by clients of…'],
    ['config', 'Configuration']
];

/** @param {{ name: string, Page: any }} props */
export function OneServer({ name, Page }) {
    const node = chosenOther();
    const loaded = useLoaded(() => get(`servers/${encodeURIComponent(name)}`, { node }), [name, node], resynced.value);
    const changed = (/** @type {any} */ row) => {
        if ((row.name ?? name) === name && !paused.peek()) loaded.reload();
    };
    useRefreshed(loaded);
    useLive(['server'], { server: changed }, { node });
    useKeys({ Escape: () => go(address(['servers'], { node })) }, [['Esc', 'All servers']]);
    const server = /** @type {Server | null} */ (loaded.data);
    const chosen = route.value.query.get('tab') ?? 'tools';
    const counts = /** @type {any} */ (server?.lists);
    const tabs = TABS.map(([id, label]) => ({ id, label, count: counts?.[id] ?? 0 }));
    const choose = (/** @type {string} */ id) => setQuery({ tab: id === 'tools' ? null : id });
    const all = html`<a class="link" href=${address(['servers'], { node })}>Servers</a>`;
    return html`<${Page} title=${name} sub=${all} tools=${html`<${NodeChooser} all=${false} />`}>
        <${ErrorStrip} error=${loaded.error} at=${loaded.at} retry=${loaded.reload} />${
            server &&
            html`<div class="page"><${State} server=${server} /><section class="panel" aria-label="What it offers">
            <${Tabs} tabs=${tabs} chosen=${chosen} choose=${choose} label="Views of the server" panel="server-panel" />
            <${TabPanel} panel="server-panel" chosen=${chosen} class="server-tab"><${ServerTab} server=${server} chosen=${chosen} /><//>
            </section></div>`
        }<//>`;
}

const WHAT_BECOMES_OF_CALLS = 'Calls in flight may finish on the connection of before, within limits.shutdown_timeout.';

/** @param {string} name */
async function reconnect(name) {
    const [path, query] = [`servers/${encodeURIComponent(name)}`, { node: chosenOther() }];
    // What is shown may be older than the calls that are made now.
    const server = await attempt(() => get(path, query));
    if (!server) return;
    const busy = `${counted(server.calls_in_flight, 'call is', 'calls are')} at work there. ${WHAT_BECOMES_OF_CALLS}`;
    if (server.calls_in_flight && !(await confirm(`Reconnect ${name}?`, busy, 'Reconnect', true))) return;
    if (await attempt(() => send('POST', `${path}/reconnect`, {}, { query }))) say(`${name} is being reconnected`);
}

/** @param {{ url: string }} props A page of the server's own; it is opened by a click and nothing else. */
const LogIn = ({ url }) =>
    /^https?:/u.test(url)
        ? html`<a class="btn primary" href=${url} target="_blank" rel="noopener noreferrer">Log in</a>`
        : null;

/** @param {Server} server @returns {[string, string][]} */
function factsOf(server) {
    const { figures } = server;
    const counts = /** @type {[string, number][]} */ (Object.entries(server.outcomes)).filter(([, count]) => count > 0);
    const outcomes = counts.map(([name, count]) => `${name.replaceAll('_', ' ')} ${figure(count)}`).join(', ');
    const { p50, p99 } = figures.server_us;
    return [
        ['Address', server.target],
        [
            'Calls',
            figures.calls ? `${counted(figures.calls, 'call')}, ${percent(figures.failed_ratio)} failed` : 'none yet'
        ],
        ['Takes', p50 === null ? '–' : `p50 ${duration(p50)}, p99 ${duration(p99)}`],
        ['Outcomes', outcomes || 'none yet'],
        ['Leases', `${server.leases}${server.lease_limit ? ` of ${server.lease_limit}` : ''}`],
        ['Connected', server.connects ? counted(server.connects, 'time') : 'never'],
        ['In groups', server.groups.join(', ') || 'none']
    ];
}

/** @param {{ server: Server }} props */
function State({ server }) {
    const shape = shapeOf(server.phase);
    return html`<section class="panel" aria-label="State"><header><${Dot} state=${shape} />
        <h2>${server.phase} for ${since(server.since)}</h2><span class="muted">${transportName(server.transport)}</span>
        <${Revision} revision=${server.revision} /><span class="gap"></span>${
            may('act') &&
            html`<button type="button" class="btn" onClick=${() => reconnect(server.name)}><${Icon} name="replay" />Reconnect</button>
            ${server.groups.length > 0 && html`<a class="btn" href=${address(['try', server.groups[0]])}><${Icon} name="try" />Try a tool</a>`}`
        }${server.login && html`<${LogIn} url=${server.login.url} />`}</header>
        <div class="body">${
            server.reason &&
            html`<p><span class=${`tag ${shape}`}>${server.phase}</span> <${Text} text=${server.reason} most=${600} /></p>`
        }
        ${server.phase === 'down' && html`<${Down} server=${server} />`}
        <div class="split2"><div><${Facts} facts=${factsOf(server)} /><${Lines} series=${server.series} /></div>
        <${FoundOut} server=${server} /></div></div></section>`;
}

/** @param {{ series: Server['series'] }} props How long it took, over the time that its figures are of. */
const Lines = ({ series }) =>
    html`<dl class="facts lines"><dt>p50</dt><dd><${Spark} values=${series.server_p50_us} width=${160} height=${26} /></dd>
        <dt>p99</dt><dd><${Spark} values=${series.server_p99_us} width=${160} height=${26} /></dd></dl>`;

/** @param {NonNullable<Server['found']>} found @returns {[string, string][]} The words of `rialto probe`. */
const probeFacts = found => [
    ['Transport', found.transport],
    ['Revision', `${found.revision}, because ${found.why}`],
    ['Offered', found.offered.join(', ') || 'it lists no revisions'],
    ['Session', found.session ? 'yes, Mcp-Session-Id' : 'none'],
    ['Connected in', duration(found.connect_us)],
    ...found.oddities.map(oddity => /** @type {[string, string]} */ (['Note', oddity]))
];

/** @param {{ server: Server }} props */
const FoundOut = ({ server: { found, phase } }) =>
    html`<div><h3>How it was found out</h3>${
        found
            ? html`<${Facts} facts=${probeFacts(found)} />`
            : html`<p class="muted">${phase === 'ready' ? 'There was nothing to find out: it is not reached by MCP.' : 'not found out yet'}</p>`
    }</div>`;

/** @param {{ facts: [string, string][] }} props */
const Facts = ({ facts }) =>
    html`<dl class="facts">${facts.map(
        ([name, value], index) =>
            html`<dt key=${`name${index}`}>${name}</dt><dd key=${index}><${Text} text=${value} most=${400} /></dd>`
    )}</dl>`;

/** @param {{ server: Server }} props Why it is down: what was checked on the way to it, and each attempt. */
function Down({ server }) {
    const { attempts, checks, failed_connects: failed, next_attempt: next } = server;
    const again = next ? `, again at ${clock(next)}` : '';
    return html`<div class="split2">${
        checks.length > 0 &&
        html`<div><h3>What was checked</h3><ol class="steps">${checks.map(
            (check, index) => html`<${Check} key=${index} check=${check} />`
        )}</ol></div>`
    }<div><h3>Attempts</h3><p class="muted">failed ${counted(failed, 'time')}${again}</p>
        <ol class="steps">${attempts.map(
            (attempt, index) => html`<li key=${index}><${Sign} ok=${attempt.ok} />
            <span><${Text} text=${attempt.reason ?? 'connected'} most=${400} /></span><span class="num muted">${clock(attempt.at)}</span></li>`
        )}</ol></div></div>`;
}

/** @param {{ check: Server['checks'][number] }} props */
const Check = ({ check }) =>
    html`<li class=${check.ok === false ? 'bad' : ''}><${Sign} ok=${check.ok} /><span><b><${Text} text=${check.what} most=${400} /></b>${
        check.ok === false &&
        html`<br /><${Text} text=${check.detail ?? ''} most=${400} /><br /><span class="muted">${sentence(check.hint ?? '')}</span>`
    }</span></li>`;

/** @param {{ ok: boolean | null }} props */
function Sign({ ok }) {
    const [kind, sign, said] =
        ok === null ? ['none', '–', 'not known: '] : ok ? ['ok', '✓', 'passed: '] : ['bad', '✗', 'failed: '];
    return html`<span class=${`sign ${kind}`}><span aria-hidden="true">${sign}</span><span class="hidden">${said}</span></span>`;
}
