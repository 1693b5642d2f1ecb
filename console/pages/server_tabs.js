// The tabs of one server: its lists, connections, standard error, who called it, and its lines of the file.

import { get, getAll, useLoaded, useRefreshed } from '../api.js';
import { resynced } from '../live.js';
import { Bones, Empty, ErrorStrip, Text, TextBlock } from '../parts/common.js';
import { chosenOther } from '../parts/nodes.js';
import { LongRows } from '../parts/table.js';
import { outline } from '../pure/schema.js';
import { clock, counted, figure } from '../pure/time.js';
import { address } from '../state.js';
import { html } from '../ui.js';

/** @typedef {import('../types.d.ts').components['schemas']['Server']} Server */

/** How often standard error is read while it is shown. */
const LOG_INTERVAL = 2000;

/** @param {{ server: Server, chosen: string }} props */
export function ServerTab({ server, chosen }) {
    switch (chosen) {
        case 'connections':
            return html`<${Connections} server=${server} />`;
        case 'log':
            return html`<${Log} key=${server.name} name=${server.name} />`;
        case 'seen':
            return html`<${Seen} server=${server} />`;
        case 'config':
            return html`<${Lines} configuration=${server.configuration} />`;
        default:
            return html`<${Items} key=${chosen} name=${server.name} kind=${chosen} isDown=${server.phase === 'down'} />`;
    }
}

/** @param {{ configuration: Server['configuration'] }} props */
const Lines = ({ configuration }) =>
    configuration
        ? html`<div class="body"><p class="muted">${configuration.file}, line ${configuration.line}</p>
            <${TextBlock} text=${configuration.text} label="Configuration" /></div>`
        : html`<${Empty} level=${3} title="It is in no file"><p>This server was given on the command line or is built in.</p><//>`;

/** @param {{ name: string, kind: string, isDown: boolean }} props */
function Items({ name, kind, isDown }) {
    const node = chosenOther();
    const load = () => getAll(`servers/${encodeURIComponent(name)}/lists/${kind}`, { node });
    const loaded = useLoaded(load, [name, kind, node], resynced.value);
    const items = /** @type {any[] | null} */ (loaded.data);
    if (loaded.error && !items) return html`<${ErrorStrip} error=${loaded.error} retry=${loaded.reload} />`;
    if (items && !items.length) {
        const title = isDown ? `Its ${kind} are not known while it is down` : `It has no ${kind}`;
        return html`<${Empty} level=${3} title=${title}><p>What the server lists appears here as soon as it is read.</p><//>`;
    }
    const isTool = kind === 'tools';
    const row = (/** @type {any} */ item) => itemRow(item, isTool ? tryAddress(item.groups) : null);
    return html`<${ErrorStrip} error=${loaded.error} at=${loaded.at} retry=${loaded.reload} /><div class="scroll"><table><thead><tr>
        <th scope="col">Name</th><th scope="col">Description</th>
        <th scope="col">Takes</th>${isTool && html`<th scope="col" class="r">Called</th>`}<th scope="col">In groups</th></tr></thead>
        <tbody>${items ? html`<${LongRows} items=${items} columns=${isTool ? 5 : 4} row=${row} />` : html`<${Bones} columns=${isTool ? 5 : 4} />`}</tbody></table></div>`;
}

/** @param {{ group: string, name: string }[]} groups That show a tool. @returns {string | null} Where it is called as clients call it. */
const tryAddress = ([shown]) => (shown ? address(['try', shown.group, shown.name]) : null);

/** @param {any} item @param {string | null} to Where it can be tried. */
function itemRow(item, to) {
    const hints = item.entry?.annotations;
    const hint = hints?.destructiveHint ? ['warn', 'destructive'] : hints?.readOnlyHint ? ['', 'reads only'] : null;
    const takes = item.entry?.inputSchema ? outline(item.entry.inputSchema) : '';
    const name = html`<${Text} text=${item.name} most=${200} />`;
    return html`<tr key=${item.name}><td class="mono wrap">${to ? html`<a class="link" href=${to}>${name}</a>` : name}</td>
        <td class="wrap"><${Text} text=${item.description ?? item.title ?? ''} most=${400} />${item.changed && html`<${Changed} />`}</td>
        <td class="wrap mono"><${Text} text=${takes} most=${300} />${hint && html` <span class=${`tag ${hint[0]}`}>${hint[1]}</span>`}</td>
        ${to && html`<td class="r">${item.called === null ? '–' : `${figure(item.called)}×`}</td>`}<td>${item.groups.map(
            (/** @type {any} */ { group }) =>
                html`<a class="link" key=${group} href=${address(['groups', group])}>${group}</a> `
        )}</td></tr>`;
}

const Changed = () =>
    html` <span class="tag warn" title="Its description is another one than when the gateway saw it first">changed</span>`;

/** @param {{ server: Server }} props */
function Connections({ server }) {
    const leased = counted(server.leases, 'connection is', 'connections are');
    const busy = counted(server.calls_in_flight, 'call is', 'calls are');
    return html`<div class="body"><div class="scroll"><table><thead><tr><th scope="col">Speaks</th><th scope="col">Serves clients of</th>
        <th scope="col">Can ask clients</th><th scope="col">Capabilities</th><th scope="col">Why</th></tr></thead>
        <tbody>${server.legs.map(
            leg => html`<tr key=${leg.revision}><td class="mono">${leg.revision}</td><td class="mono wrap">${leg.clients.map(revision => [html`<span class="word" key=${revision}>${revision}</span>`, ' '])}</td>
            <td>${leg.reaches_client ? 'yes' : 'no'}</td><td class="wrap">${leg.capabilities.join(', ')}</td>
            <td class="wrap">${leg.why}</td></tr>`
        )}</tbody></table></div><p class="muted">${leased} leased to single clients; ${busy} at work.</p></div>`;
}

/** @param {{ server: Server }} props */
function Seen({ server }) {
    if (!server.calls_by_revision.length) {
        return html`<${Empty} level=${3} title="Nobody called it yet"><p>Pairs of revisions appear here with what is translated
            between them. <a class="link" href="#/bridge">The bridge</a> has all that can come up.</p><//>`;
    }
    return html`<div class="scroll"><table><thead><tr><th scope="col">Client</th><th scope="col">Server</th>
        <th scope="col" class="r">Calls</th><th scope="col">Translated</th></tr></thead>
        <tbody>${server.calls_by_revision.map(
            pair => html`<tr key=${pair.client + pair.server}><td class="mono">${pair.client}</td><td class="mono">${pair.server}</td>
            <td class="r">${figure(pair.calls)}</td><td class="wrap">${pair.bridged.join(', ') || 'as it is'}</td></tr>`
        )}</tbody></table></div>`;
}

/** @param {{ name: string }} props The oldest line first, read again while it is looked at. */
function Log({ name }) {
    const node = chosenOther();
    const load = () => get(`servers/${encodeURIComponent(name)}/log`, { limit: 200, node });
    const loaded = useLoaded(load, [name, node]);
    useRefreshed(loaded, LOG_INTERVAL);
    const lines = /** @type {any[] | null} */ (loaded.data?.items ?? null);
    const trouble = html`<${ErrorStrip} error=${loaded.error} at=${loaded.at} retry=${loaded.reload} />`;
    if (!lines) return trouble;
    if (!lines.length)
        return html`${trouble}<${Empty} level=${3} title="Nothing on standard error"><p>The last 200 lines of each child process appear here.</p><//>`;
    const text = lines.map(line => `${clock(line.at)}  ${line.text}`).reverse();
    return html`${trouble}<div class="body"><${TextBlock} label="Standard error" text=${text.join('\n')} />
        <p class="muted">${counted(lines.length, 'line')}, the newest at the end.</p></div>`;
}
