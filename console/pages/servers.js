// The configured servers, in a table.

import { getAll, useLoaded, useRefreshed } from '../api.js';
import { goneOf, resynced, useLive } from '../live.js';
import { Bones, Dot, Empty, ErrorStrip, Revision, shapeOf, Text } from '../parts/common.js';
import { Icon } from '../parts/icons.js';
import { chosenOther, NodeChooser } from '../parts/nodes.js';
import { Spark } from '../parts/spark.js';
import { LongRows } from '../parts/table.js';
import { REVISIONS, transportName } from '../pure/revisions.js';
import { figure, percent } from '../pure/time.js';
import { address, paused, route } from '../state.js';
import { html } from '../ui.js';
import { OneServer } from './server.js';

/** @typedef {import('../types.d.ts').components['schemas']['ServerRow']} ServerRow */

export const SERVER_COLUMNS = /** @type {[string, boolean][]} */ ([
    ['Server', false],
    ['State', false],
    ['Reached by', false],
    ['Speaks', false],
    ['Tools', true],
    ['Calls', false],
    ['p50, ms', true],
    ['p99, ms', true],
    ['Rialto adds, ms', true],
    ['Failed', true],
    ['Leases', true]
]);
const ms = (/** @type {number | null | undefined} */ us) => (us === null || us === undefined ? '–' : figure(us / 1000));
/** Share of failed calls from which on it is marked. */
const FAILED_MANY = 0.05;

/** @param {ServerRow} server */
export function serverRow(server) {
    const { phase } = server;
    const shape = shapeOf(phase);
    const about = [server.server?.name, server.server?.version].filter(Boolean).join(' ');
    const revisionClass = server.revision === REVISIONS[0] ? 'tag mono server' : 'tag mono';
    return html`<tr key=${server.name}><td class="name-cell">
        <a class="name" href=${address(['servers', server.name], { node: chosenOther() })}><${Dot} state=${shape} />${server.name}</a>
        <span class="muted"> <${Text} text=${about} most=${40} /></span></td>
        <td>${phase === 'ready' ? 'ready' : html`<span class=${`tag ${shape === 'wait' ? '' : shape}`}>${phase}</span>`}</td>
        <td>${transportName(server.transport)}</td>
        <td>${
            server.revision
                ? html`<${Revision} revision=${server.revision} as=${revisionClass} />`
                : html`<span class="muted">not known yet</span>`
        }</td>
        ${phase === 'down' || phase === 'starting' ? html`<${Reason} server=${server} />` : html`<${FigureCells} server=${server} />`}</tr>`;
}

/** @param {{ server: ServerRow }} props */
function Reason({ server }) {
    const otherwise =
        server.phase === 'starting' ? 'It is being started; a first start may take a minute.' : 'No reason is known.';
    return html`<td colspan="7" class="why wrap"><${Text} text=${server.reason ?? otherwise} most=${300} /></td>`;
}

/** @param {{ server: ServerRow }} props */
function FigureCells({ server }) {
    const { figures } = server;
    const isBad = figures.calls > 0 && figures.failed_ratio >= FAILED_MANY;
    const failed = figures.calls ? percent(figures.failed_ratio) : '–';
    return html`<td class="r">${figure(server.lists.tools)}</td>
        <td class="sp"><${Spark} values=${figures.series} width=${68} height=${20} /></td>
        <td class="r">${ms(figures.server_us.p50)}</td><td class="r">${ms(figures.server_us.p99)}</td>
        <td class="r">${ms(figures.rialto_us.p50)}</td>
        <td class="r">${isBad ? html`<span class="tag warn">${failed}</span>` : failed}</td>
        <td class="r">${server.leases || '–'}</td>`;
}

/** @param {{ servers: ServerRow[] | null }} props */
export const ServerTable = ({ servers }) =>
    html`<div class="scroll"><table><thead><tr>${SERVER_COLUMNS.map(
        ([label, right]) => html`<th scope="col" class=${right ? 'r' : ''}>${label}</th>`
    )}</tr></thead><tbody>${
        servers
            ? html`<${LongRows} items=${servers} columns=${SERVER_COLUMNS.length} row=${serverRow} />`
            : html`<${Bones} columns=${SERVER_COLUMNS.length} />`
    }</tbody></table></div>`;

/** @param {{ Page: any }} props */
export function Servers({ Page }) {
    const name = route.value.parts[1];
    return name ? html`<${OneServer} key=${name} name=${name} Page=${Page} />` : html`<${List} Page=${Page} />`;
}

/** @param {{ Page: any }} props */
function List({ Page }) {
    const node = chosenOther();
    const loaded = useLoaded(() => getAll('servers', { node }), [node], resynced.value);
    const reload = () => {
        if (!paused.peek()) loaded.reload();
    };
    useRefreshed(loaded);
    useLive(['server'], { server: reload, gone: goneOf('server', reload) }, { node });
    const servers = /** @type {ServerRow[] | null} */ (loaded.data);
    const tools = html`<${NodeChooser} all=${false} /><a class="btn" href="#/config?add=1"><${Icon} name="plus" />Add a server</a>`;
    return html`<${Page} title="Servers" tools=${tools}><${ErrorStrip} error=${loaded.error} at=${loaded.at} retry=${loaded.reload} />
        <div class="page"><section class="panel" aria-label="Servers">${
            servers && !servers.length
                ? html`<${Empty} title="No server is configured">
                <p>Servers of the configuration file appear here, with their state and their lists.</p>
                <a class="btn" href="#/config?add=1">Add a server</a><//>`
                : html`<${ServerTable} servers=${servers} />`
        }</section></div><//>`;
}
