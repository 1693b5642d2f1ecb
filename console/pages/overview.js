// Is anything broken, who is slow, and who meets whom.

import { attempt, get, send, useLoaded, useRefreshed } from '../api.js';
import { useKeys } from '../keys.js';
import { resynced, useLive } from '../live.js';
import { Ribbons } from '../parts/bridge.js';
import { CopyLine, Dot, Empty, ErrorStrip, Segments, Text } from '../parts/common.js';
import { Icon } from '../parts/icons.js';
import { chosenNode, isOwnNode, NodeChooser } from '../parts/nodes.js';
import { Spark } from '../parts/spark.js';
import { counted, duration, figure, percent, since } from '../pure/time.js';
import { may, paused, range, say } from '../state.js';
import { html, useState } from '../ui.js';
import { ServerTable } from './servers.js';

/** @typedef {import('../types.d.ts').components['schemas']['Overview']} OverviewData */

const RANGES = /** @type {[string, string][]} */ ([
    ['1m', '1 min'],
    ['15m', '15 min'],
    ['1h', '1 h']
]);

const setRange = (/** @type {string} */ value) => {
    range.value = value;
};
const KEYS = { 1: () => setRange('1m'), 2: () => setRange('15m'), 3: () => setRange('1h') };

/** @param {{ Page: any }} props */
export function Overview({ Page }) {
    const node = chosenNode();
    const loaded = useLoaded(() => get('overview', { range: range.value, node }), [range.value, node], resynced.value);
    const reload = () => {
        if (!paused.peek()) loaded.reload();
    };
    // The stream has the figures of the node that answers. Those over a time are of the last minute, not of the range.
    const figures = (/** @type {any} */ { sessions, streams, calls_in_flight, parked }) => {
        if (paused.peek() || !isOwnNode(node)) return;
        const now = { sessions, streams, calls_in_flight, parked };
        loaded.update(data => ({ ...data, figures: { ...data.figures, ...now } }));
    };
    useRefreshed(loaded);
    const on = { figures, server: reload, attention: reload, node: reload };
    useLive(['figures', 'server', 'attention'], on, { node });
    useKeys(KEYS, [['1 2 3', 'Range: 1 min, 15 min, 1 h']]);
    const data = /** @type {OverviewData | null} */ (loaded.data);
    const tools = html`<${NodeChooser} /><${Segments} label="Range" options=${RANGES} chosen=${range.value} choose=${setRange} />`;
    return html`<${Page} title="Overview" tools=${tools}><${ErrorStrip} error=${loaded.error} at=${loaded.at} retry=${loaded.reload} />
        <div class="page"><${Figures} data=${data} />${
            data && !data.servers.length
                ? html`<${NoServers} />`
                : html`<div class="cols"><${Meeting} data=${data} /><${Attention} data=${data} reload=${loaded.reload} /></div>
                <${ServerPanel} data=${data} />`
        }</div><//>`;
}

/** @param {OverviewData} data @returns {[string, string, string, string, (number | null)[], boolean][]} Name, value, unit, note, line. */
function figuresOf({ figures, series }) {
    const ms = (/** @type {number | null | undefined} */ us) =>
        us === null || us === undefined ? '–' : figure(us / 1000);
    const p99 = (/** @type {number | null} */ us, /** @type {string} */ more) =>
        us === null ? 'not measured yet' : `p99 ${duration(us)}${more}`;
    const work = `${figure(figures.calls_in_flight)} at work, ${figures.parked} parked for input`;
    const [server, own] = [figures.server_us, figures.rialto_us];
    return [
        ['Calls', figure(figures.calls_per_s), 'per second', work, series.calls, false],
        [
            'Not answered well',
            percent(figures.failed).replace('%', ''),
            '%',
            'of all calls in this range',
            series.failed,
            figures.failed > 0
        ],
        [
            'Servers take',
            ms(server.p50),
            'ms',
            p99(server.p99, ', people’s time left out'),
            series.server_p50_us,
            false
        ],
        ['Rialto adds', ms(own.p50 ?? own.mean), 'ms', p99(own.p99, ''), series.rialto_p50_us, false],
        [
            'Clients',
            figure(figures.sessions),
            figures.sessions === 1 ? 'session' : 'sessions',
            counted(figures.streams, 'open stream'),
            series.sessions,
            false
        ]
    ];
}

const NAMES = ['Calls', 'Not answered well', 'Servers take', 'Rialto adds', 'Clients'];

/** @param {{ data: OverviewData | null }} props */
function Figures({ data }) {
    const cells = data ? figuresOf(data) : NAMES.map(name => [name, '–', '', ' ', [], false]);
    return html`<dl class="panel strip">${cells.map(
        ([
            name,
            value,
            unit,
            note,
            values,
            bad
        ]) => html`<div key=${name}><dt>${name}<${Spark} values=${values} bad=${bad} /></dt>
        <dd>${value}${value !== '–' && html`<small>${unit}</small>`}</dd><dd class="note">${note}</dd></div>`
    )}</dl>`;
}

/** @param {{ data: OverviewData | null }} props */
function Meeting({ data }) {
    const [asTable, setAsTable] = useState(false);
    const pairs = (data?.pairs ?? []).filter(pair => pair.calls > 0);
    const total = pairs.reduce((sum, pair) => sum + pair.calls, 0);
    const across = pairs.filter(pair => pair.bridge === 'across').reduce((sum, pair) => sum + pair.calls, 0);
    return html`<section class="panel" aria-labelledby="meeting"><header><h2 id="meeting">Who meets whom</h2><span class="gap"></span>
        ${
            pairs.length > 0 &&
            html`<div class="legend"><span><i class="asis"></i>as it is</span><span><i></i>same era</span><span><i class="era">
        </i>across eras, ${percent(total ? across / total : 0)}</span></div>
        <button type="button" class="btn quiet" aria-pressed=${asTable ? 'true' : 'false'} onClick=${() => setAsTable(!asTable)}>as a table</button>`
        }</header>
        ${
            !data
                ? html`<div class="bridge"><svg viewBox="36 0 664 226" aria-hidden="true"></svg></div>`
                : !pairs.length
                  ? html`<${Empty} level=${3} title="No calls in this range">
                <p>Ribbons appear here between the revisions that clients speak and the servers they call.</p><//>`
                  : asTable
                    ? html`<${PairTable} pairs=${pairs} />`
                    : html`<div class="bridge"><${Ribbons} pairs=${pairs} servers=${data.servers} /></div>`
        }</section>`;
}

/** @param {{ pairs: any[] }} props */
const PairTable = ({
    pairs
}) => html`<div class="scroll"><table><thead><tr><th scope="col">Client</th><th scope="col">Server</th><th scope="col">Server speaks</th>
    <th scope="col">Translated</th><th scope="col" class="r">Calls</th><th scope="col" class="r">Share</th></tr></thead>
    <tbody>${pairs.map(
        pair => html`<tr key=${`${pair.client} ${pair.server} ${pair.server_revision}`}><td class="mono">${pair.client}</td><td>${pair.server}</td>
    <td class="mono">${pair.server_revision}</td>
    <td class="wrap">${pair.words.join(', ') || 'as it is'}</td><td class="r">${figure(pair.calls)}</td><td class="r">${percent(pair.share)}</td></tr>`
    )}</tbody></table>
    </div>`;

/** @param {{ data: OverviewData | null, reload: () => void }} props */
function Attention({ data, reload }) {
    const items = data?.attention ?? [];
    const act = async (/** @type {any} */ { verb, path }) => {
        const below = path.replace(/^\/?(?:admin\/v1\/)?/u, '');
        if (await attempt(() => send(verb, below, verb === 'POST' ? {} : undefined).then(() => true))) say('Asked for');
        reload();
    };
    return html`<section class="panel" aria-labelledby="attention"><header><h2 id="attention">Needs attention</h2><span class="gap"></span>
        <span class="muted num">${items.length || ''}</span></header>
        ${
            data &&
            !items.length &&
            html`<${Empty} level=${3} title="Nothing needs you.">
        <p>Servers that are down, refused files, calls that wait for people and other trouble are listed here.</p><//>`
        }
        <ul class="todo">${items.map(item => html`<${AttentionItem} key=${item.id} item=${item} act=${act} />`)}</ul></section>`;
}

/** @param {{ item: OverviewData['attention'][number], act: (act: any) => void }} props */
function AttentionItem({ item, act }) {
    const { link } = item;
    return html`<li><${Dot} state=${item.level} /><div><b><${Text} text=${item.text} most=${300} /></b>
        ${item.since && html` <span class="muted">for ${since(item.since)}</span>`}
        ${item.detail && html`<p><${Text} text=${item.detail} most=${600} /></p>`}</div>${
            item.act && may('act')
                ? html`<button type="button" class="btn" onClick=${() => act(item.act)}>${item.act.label}</button>`
                : html`<a class="btn" href=${link.startsWith('#') ? link : `#${link}`}>Open</a>`
        }</li>`;
}

/** @param {{ data: OverviewData | null }} props */
function ServerPanel({ data }) {
    const groups = new Set(data?.servers.flatMap(server => server.groups));
    return html`<section class="panel" aria-labelledby="servers"><header><h2 id="servers">Servers</h2>
        <span class="muted">${data && `${data.servers.length} in ${counted(groups.size, 'group')}`}</span><span class="gap"></span>
        <a class="btn" href="#/config?add=1"><${Icon} name="plus" />Add a server</a></header>
        <${ServerTable} servers=${data?.servers ?? null} /></section>`;
}

const NoServers =
    () => html`<section class="panel"><${Empty} title="No server is configured yet"><p>Add one, then point a client here.</p>
    <a class="btn primary" href="#/config?add=1"><${Icon} name="plus" />Add a server</a>
    <p>Address for clients:</p><${CopyLine} text=${new URL('mcp', document.baseURI).href} what="Address" /><p>For clients that start a program:</p>
    <${CopyLine} text="rialto stdio" what="Command" /><//></section>`;
