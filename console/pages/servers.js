// The configured servers, and one of them: what it offers, how it was found out, what it says on standard error.

import { attempt, get, getAll, send, useLoaded } from '../api.js';
import { useKeys } from '../keys.js';
import { resynced, useLive } from '../live.js';
import { Bones, Dot, Empty, ErrorStrip, Revision, shapeOf, TabPanel, Tabs, Text, TextBlock } from '../parts/common.js';
import { confirm } from '../parts/dialog.js';
import { Icon } from '../parts/icons.js';
import { Spark } from '../parts/spark.js';
import { outline } from '../pure/schema.js';
import { clock, counted, duration, figure, percent, since } from '../pure/time.js';
import { address, go, may, paused, route, say, setQuery } from '../state.js';
import { html } from '../ui.js';

/** @typedef {import('../types.d.ts').components['schemas']['ServerRow']} ServerRow */
/** @typedef {import('../types.d.ts').components['schemas']['Server']} Server */

export const SERVER_COLUMNS = /** @type {[string, boolean][]} */ ([['Server', false], ['State', false], ['Reached by', false], ['Speaks', false], ['Tools', true], ['Calls', false], ['p50, ms', true], ['p99, ms', true], ['Rialto adds, ms', true], ['Failed', true], ['Leases', true]]);
const TRANSPORTS = { http: 'Streamable HTTP', streamable: 'Streamable HTTP', sse: 'HTTP+SSE', stdio: 'stdio', rest: 'HTTP API', builtin: 'in this process', local: 'in this process' };
/** @param {string} name */
export const transportName = name => TRANSPORTS[/** @type {'http'} */ (name)] ?? name;
const ms = (/** @type {number | null | undefined} */ us) => (us === null || us === undefined ? '–' : figure(us / 1000));

/** @param {{ server: ServerRow }} props */
export function ServerCells({ server }) {
    const { figures, phase } = server;
    const shape = shapeOf(phase);
    const about = [server.server?.name, server.server?.version].filter(Boolean).join(' ');
    const head = html`<td><a class="name" href=${address(['servers', server.name])}><${Dot} state=${shape} />${server.name}</a> <span class="muted">
        <${Text} text=${about} most=${50} /></span></td>
        <td>${phase === 'ready' ? 'ready' : html`<span class=${`tag ${shape === 'wait' ? '' : shape}`}>${phase}</span>`}</td><td>${transportName(server.transport)}</td>
        <td>${server.revision ? html`<${Revision} revision=${server.revision} as=${server.revision === '2026-07-28' ? 'tag mono server' : 'tag mono'} />` : html`<span class="muted">not known yet</span>`}</td>`;
    if (phase === 'down' || phase === 'starting') return html`${head}<td colspan="7" class="why wrap">
        <${Text} text=${server.reason ?? (phase === 'starting' ? 'It is being started; a first start may take a minute.' : 'No reason is known.')} most=${300} /></td>`;
    return html`${head}<td class="r">${figure(server.lists.tools)}</td><td class="sp"><${Spark} values=${figures?.series ?? []} width=${68} height=${20} /></td>
        <td class="r">${ms(figures?.server_us.p50)}</td><td class="r">${ms(figures?.server_us.p99)}</td>
        <td class="r">${ms(figures?.rialto_us.p50)}</td><td class="r">${figures?.calls ? percent(figures.failed_ratio) : '–'}</td>
        <td class="r">${server.leases || '–'}</td>`;
}

/** @param {{ Page: any }} props */
export function Servers({ Page }) {
    const name = route.value.parts[1];
    return name ? html`<${OneServer} key=${name} name=${name} Page=${Page} />` : html`<${List} Page=${Page} />`;
}

/** @param {{ Page: any }} props */
function List({ Page }) {
    const loaded = useLoaded(() => getAll('servers'), [resynced.value]);
    useLive(['server'], { server: () => { if (!paused.peek()) loaded.reload(); } });
    const servers = /** @type {ServerRow[] | null} */ (loaded.data);
    const tools = html`<a class="btn" href="#/config?add=1"><${Icon} name="plus" />Add a server</a>`;
    return html`<${Page} title="Servers" tools=${tools}><${ErrorStrip} error=${loaded.error} at=${loaded.at} retry=${loaded.reload} /><div class="page">
        <section class="panel" aria-label="Servers">
        ${servers && !servers.length ? html`<${Empty} title="No server is configured">
        <p>Servers of the configuration file appear here, with their state and their lists.</p><a class="btn" href="#/config?add=1">Add a server</a><//>`
            : html`<div class="scroll"><table><thead><tr>${SERVER_COLUMNS.map(([label, right]) => html`<th scope="col" class=${right ? 'r' : ''}>${label}</th>`)}</tr>
                </thead>
                <tbody>${servers ? servers.map(server => html`<tr key=${server.name}><${ServerCells} server=${server} />
                </tr>`) : html`<${Bones} columns=${SERVER_COLUMNS.length} />`}</tbody></table></div>`}</section></div><//>`;
}

/** @param {{ name: string, Page: any }} props */
function OneServer({ name, Page }) {
    const path = `servers/${encodeURIComponent(name)}`;
    const loaded = useLoaded(() => get(path), [name, resynced.value]);
    useLive(['server'], { server: row => { if ((row.name ?? name) === name && !paused.peek()) loaded.reload(); } });
    useKeys({ Escape: () => go('#/servers') }, [['Esc', 'All servers']]);
    const server = /** @type {Server | null} */ (loaded.data);
    const reconnect = async () => {
        const busy = server?.calls_in_flight ?? 0;
        if (busy && !await confirm(`Reconnect ${name}?`, `${counted(busy, 'call is', 'calls are')} at work there and may fail.`, 'Reconnect', true)) return;
        if (await attempt(() => send('POST', `${path}/reconnect`, {}))) say(`${name} is being reconnected`);
    };
    const chosen = route.value.query.get('tab') ?? 'tools';
    const tabs = ['tools', 'prompts', 'resources', 'templates'].map(id => ({ id, label: id[0].toUpperCase() + id.slice(1), count: /** @type {any} */ (server?.lists)?.[id] }))
        .concat([['connections', 'Connections'], ['log', 'Standard error'], ['seen', 'Seen by clients of…'], ['config', 'Configuration']].map(([id, label]) => ({ id, label, count: 0 })));
    return html`<${Page} title=${name} sub=${html`<a class="link" href="#/servers">Servers</a>`}>
        <${ErrorStrip} error=${loaded.error} at=${loaded.at} retry=${loaded.reload} />
        ${server && html`<div class="page"><section class="panel" aria-label="State"><header><${Dot} state=${shapeOf(server.phase)} />
        <h2>${server.phase} for ${since(server.since)}</h2><span class="muted">${transportName(server.transport)}</span><${Revision} revision=${server.revision} />
            <span class="gap"></span>${may('act') && html`<button type="button" class="btn" onClick=${reconnect}><${Icon} name="replay" />Reconnect</button>
            <a class="btn" href=${address(['try', name])}><${Icon} name="try" />Try a tool</a>`}
            ${server.login && html`<button type="button" class="btn" disabled title="Logging in to servers is not possible from here yet">Log in</button>`}</header>
            <${State} server=${server} /></section>
            <section class="panel" aria-label="What it offers">
            <${Tabs} tabs=${tabs} chosen=${chosen} choose=${(/** @type {string} */ id) => setQuery({ tab: id === 'tools' ? null : id })} label="Views of the server" panel="server-panel" />
            <${TabPanel} panel="server-panel" chosen=${chosen} class="server-tab"><${ServerTab} server=${server} chosen=${chosen} /><//></section></div>`}<//>`;
}

/** @param {{ server: Server }} props */
function State({ server }) {
    const { figures } = server;
    const outcomes = Object.entries(/** @type {Record<string, number>} */ (server.outcomes)).filter(([, count]) => count > 0).map(([name, count]) => `${name.replaceAll('_', ' ')} ${figure(count)}`).join(', ');
    const facts = [['Address', server.target], ['Calls', figures ? `${counted(figures.calls, 'call')}, ${percent(figures.failed_ratio)} failed` : '–'], ['Takes', figures ? `p50 ${duration(figures.server_us.p50)}, p99 ${duration(figures.server_us.p99)}` : '–'],
        ['Outcomes', outcomes || 'none yet'], ['Leases', `${server.leases}${server.lease_limit ? ` of ${server.lease_limit}` : ''}`], ['Connected', counted(server.connects, 'time')], ['In groups', server.groups.join(', ') || 'none']];
    return html`<div class="body">${server.reason && html`<p>
        <span class=${`tag ${shapeOf(server.phase)}`}>${server.phase}</span> <${Text} text=${server.reason} most=${600} /></p>`}
        <div class="split2"><dl class="facts">${facts.map(([name, value]) => html`<dt>${name}</dt><dd><${Text} text=${value} most=${400} /></dd>`)}</dl>
        <div><h3 class="muted">How it was found out</h3><ul class="steps">${server.found.length ? server.found.map(step => html`<li>
        <span class="sign none" aria-hidden="true">·</span><span><${Text} text=${step} most=${400} /></span></li>`) : html`<li><span></span>
        <span class="muted">not found out yet</span></li>`}</ul></div></div></div>`;
}

/** @param {{ server: Server, chosen: string }} props */
function ServerTab({ server, chosen }) {
    switch (chosen) {
        case 'connections': return html`<${Connections} server=${server} />`;
        case 'log': return html`<${Log} key=${server.name} name=${server.name} />`;
        case 'seen': return html`<${Seen} server=${server} />`;
        case 'config': return server.configuration ? html`<div class="body"><p class="muted">${server.configuration.file}, line ${server.configuration.line}</p>
            <${TextBlock} text=${server.configuration.text} label="Configuration" /></div>`
            : html`<${Empty} level=${3} title="It is in no file"><p>This server was given on the command line or is built in.</p><//>`;
        default: return html`<${Items} key=${chosen} name=${server.name} kind=${chosen} />`;
    }
}

/** @param {{ name: string, kind: string }} props */
function Items({ name, kind }) {
    const loaded = useLoaded(() => getAll(`servers/${encodeURIComponent(name)}/lists/${kind}`), [name, kind]);
    const items = /** @type {any[] | null} */ (loaded.data);
    if (loaded.error) return html`<${ErrorStrip} error=${loaded.error} retry=${loaded.reload} />`;
    if (items && !items.length) return html`<${Empty} level=${3} title=${`It has no ${kind}`}><p>What the server lists appears here as soon as it is read.</p><//>`;
    return html`<div class="scroll"><table><thead><tr><th scope="col">Name</th><th scope="col">Description</th><th scope="col">Takes</th><th scope="col">In groups</th>
        </tr></thead><tbody>${items ? items.map(item => html`<tr key=${item.name}>
        <td class="mono wrap">${kind === 'tools' ? html`<a class="link" href=${address(['try', name, item.name])}><${Text} text=${item.name} most=${120} />
        </a>` : html`<${Text} text=${item.name} most=${200} />`}</td><td class="wrap"><${Text} text=${item.description ?? item.title ?? ''} most=${400} /></td>
        <td class="wrap mono">${item.entry?.inputSchema ? outline(item.entry.inputSchema) : ''}${item.entry?.annotations?.destructiveHint ? html` <span class="tag warn">destructive</span>` : item.entry?.annotations?.readOnlyHint ? html` <span class="tag">reads only</span>` : ''}</td>
        <td>${item.groups.map((/** @type {any} */ { group }) => html`<a class="link" href=${address(['groups', group])}>${group}</a> `)}</td>
        </tr>`) : html`<${Bones} columns=${4} />`}</tbody></table></div>`;
}

/** @param {{ server: Server }} props */
const Connections = ({ server }) => html`<div class="body"><div class="scroll"><table><thead><tr><th scope="col">Speaks</th><th scope="col">Serves clients of</th>
    <th scope="col">Can ask clients</th><th scope="col">Capabilities</th><th scope="col">Why</th></tr></thead>
    <tbody>${server.legs.map(leg => html`<tr key=${leg.revision}><td class="mono">${leg.revision}</td><td class="mono wrap">${leg.clients.join(' ')}</td>
    <td>${leg.reaches_client ? 'yes' : 'no'}</td><td class="wrap">${leg.capabilities.join(', ')}</td><td class="wrap">${leg.why}</td></tr>`)}</tbody></table></div>
    <p class="muted">${counted(server.leases, 'connection is', 'connections are')} leased to single clients; ${counted(server.calls_in_flight, 'call is', 'calls are')} at work.</p></div>`;

/** @param {{ server: Server }} props */
const Seen = ({ server }) => (server.calls_by_revision.length ? html`<div class="scroll"><table><thead><tr><th scope="col">Client</th><th scope="col">Server</th>
    <th scope="col" class="r">Calls</th><th scope="col">Translated</th></tr></thead>
    <tbody>${server.calls_by_revision.map(pair => html`<tr key=${pair.client + pair.server}><td class="mono">${pair.client}</td><td class="mono">${pair.server}</td>
    <td class="r">${figure(pair.calls)}</td><td class="wrap">${pair.bridged.join(', ') || 'as it is'}</td></tr>`)}</tbody></table></div>`
    : html`<${Empty} level=${3} title="Nobody called it yet">
        <p>Pairs of revisions appear here with what is translated between them. <a class="link" href="#/bridge">The bridge</a> has all that can come up.</p><//>`);

/** @param {{ name: string }} props */
function Log({ name }) {
    const loaded = useLoaded(() => get(`servers/${encodeURIComponent(name)}/log`, { limit: 200 }), [name]);
    const linesOf = /** @type {any[] | null} */ (loaded.data?.items ?? null);
    if (loaded.error) return html`<${ErrorStrip} error=${loaded.error} retry=${loaded.reload} />`;
    if (!linesOf) return null;
    if (!linesOf.length) return html`<${Empty} level=${3} title="Nothing on standard error"><p>The last 200 lines of each child process appear here.</p><//>`;
    return html`<div class="body"><button type="button" class="btn" onClick=${loaded.reload}>Read again</button>
        <${TextBlock} label="Standard error" text=${linesOf.map(line => `${clock(line.at)}  ${line.text}`).join('\n')} /></div>`;
}
