// Sessions of handshake-era clients: where they live, their streams, what is kept for those who resume.

import { attempt, get, send, useLoaded } from '../api.js';
import { useKeys } from '../keys.js';
import { goneOf, useLive } from '../live.js';
import { Bones, Dot, Empty, ErrorStrip, Revision, Text } from '../parts/common.js';
import { confirm } from '../parts/dialog.js';
import { chosenNode, NodeChooser, otherNode, useNodeRows } from '../parts/nodes.js';
import { neighbour } from '../parts/table.js';
import { transportName } from '../pure/revisions.js';
import { bytes, counted, date, figure, span } from '../pure/time.js';
import { address, may, paused, route, say, setQuery } from '../state.js';
import { html } from '../ui.js';

/** @param {{ Page: any }} props */
export function Sessions({ Page }) {
    const open = route.value.query.get('open');
    const node = chosenNode();
    const loaded = useNodeRows('sessions');
    const reload = () => {
        if (!paused.peek()) loaded.reload();
    };
    useLive(['session'], { session: reload, node: reload, gone: goneOf('session', reload) }, { node });
    const sessions = /** @type {any[] | null} */ (loaded.data);
    const step = (/** @type {number} */ by) => () => {
        if (sessions?.length) setQuery({ open: neighbour(sessions, one => one.id, open, by).id });
    };
    useKeys({ j: step(1), k: step(-1), ArrowDown: step(1), ArrowUp: step(-1), Escape: () => setQuery({ open: null }) });
    return html`<${Page} title="Sessions" sub=${sessions && counted(sessions.length, 'session')} tools=${html`<${NodeChooser} />`}>
        <${ErrorStrip} error=${loaded.error} at=${loaded.at} retry=${loaded.reload} /><div class="page"><section class="panel" aria-label="Sessions">
        ${
            sessions && !sessions.length
                ? html`<${Empty} title="No session is open">
        <p>Clients of 2026-07-28 have no sessions; their calls are in <a class="link" href="#/traffic">Traffic</a>. Older clients appear here with their first message.</p><//>`
                : html`<div class="scroll"><table><thead><tr><th scope="col">Session</th><th scope="col">Group</th><th scope="col">Client</th><th scope="col">Speaks</th>
                <th scope="col">Caller</th><th scope="col">Lives on</th><th scope="col" class="r">Streams</th><th scope="col" class="r">Calls</th>
                <th scope="col" class="r">Kept</th><th scope="col">Ends</th><th scope="col"><span class="hidden">Acts</span></th></tr></thead>
            <tbody>${sessions ? sessions.map(session => row(session, open, loaded.reload)) : html`<${Bones} columns=${11} />`}</tbody></table></div>`
        }</section></div>
            <//>`;
}

/** @param {any} session @param {string | null} open @param {() => void} reload */
function row(session, open, reload) {
    const isOpen = session.id === open;
    const left = date(session.expires);
    const end = async () => {
        if (
            !(await confirm(
                `End session ${session.id}?`,
                'Its client has to begin a new one; calls at work there are cancelled.',
                'End it',
                true
            ))
        )
            return;
        const at = { query: { node: otherNode(session.node) } };
        const path = `sessions/${encodeURIComponent(session.id)}`;
        if (await attempt(() => send('DELETE', path, undefined, at).then(() => true))) say('The session was ended');
        reload();
    };
    const who = [session.client?.name ?? 'unnamed', session.client?.version].filter(Boolean).join(' ');
    const toggle = () => setQuery({ open: isOpen ? null : session.id });
    return html`<tr key=${session.id} class=${session.away ? 'away' : ''}><td class="mono">
        <button type="button" class="link" aria-expanded=${isOpen ? 'true' : 'false'} onClick=${toggle}>${session.id}</button></td>
        <td>${session.group}</td><td><${Text} text=${who} most=${60} /> <span class="muted">${transportName(session.transport)}</span></td>
        <td><${Revision} revision=${session.revision} /></td>
        <td><${Text} text=${session.caller} most=${80} /></td><td>${session.owner}${session.away ? ', away' : ''}</td>
        <td class="r">${session.streams}</td><td class="r">${session.calls}</td>
        <td class="r">${figure(session.events)} <span class="muted">${bytes(session.event_bytes)}</span></td>
        <td class="num muted">${left ? `in ${span((left.getTime() - Date.now()) / 1000)}` : '–'}</td>
        <td class="r">${may('act') && html`<button type="button" class="btn danger" aria-label=${`End session ${session.id}`} onClick=${end}>End</button>`}</td></tr>
        ${isOpen && html`<tr key=${`${session.id} streams`}><td colspan="11" class="wrap"><${Streams} id=${session.id} node=${session.node} /></td></tr>`}`;
}

/** @param {{ id: string, node: string }} props */
function Streams({ id, node }) {
    const loaded = useLoaded(() => get(`sessions/${encodeURIComponent(id)}`, { node: otherNode(node) }), [id, node]);
    if (loaded.error) return html`<${ErrorStrip} error=${loaded.error} retry=${loaded.reload} />`;
    const streams = /** @type {any[]} */ (loaded.data?.open_streams ?? []);
    return html`<div class="body"><p><a class="link" href=${address(['traffic'], { q: `session:${id}`, show: 'all' })}>Its calls</a>
        </p>${loaded.data && !streams.length && html`<p class="muted">No stream is open; answers go with the requests.</p>`}
        <ul class="steps">${streams.map(stream => html`<${Stream} key=${stream.number} stream=${stream} />`)}</ul></div>`;
}

/** @param {{ stream: any }} props */
function Stream({ stream }) {
    const again = counted(stream.resumed_events ?? 0, 'event');
    const resumed = stream.resumed
        ? `, resumed ${stream.resumed}× (last from ${stream.resumed_from}, ${again} again)`
        : '';
    return html`<li><${Dot} state=${stream.attached ? 'ok' : 'wait'} />
        <span>stream ${stream.number}, ${
            stream.kind === 'listening'
                ? 'listening'
                : stream.call
                  ? html`of <a class="link mono" href=${address(['calls', stream.call])}>${stream.call}</a>`
                  : 'of a call that was not recorded'
        }, ${counted(stream.kept, 'event')} kept, position <code>${stream.position}</code>,
        read to <code>${stream.read ?? '–'}</code>, ${stream.attached ? 'attached' : 'nobody reads it'}${resumed}</span></li>`;
}
