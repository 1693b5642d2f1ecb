// Groups: what a client of a revision sees, and why something is not there.

import { get, getAll, useLoaded } from '../api.js';
import { useLive, resynced } from '../live.js';
import { Bones, Copy, CopyLine, Empty, ErrorStrip, TabPanel, Tabs, Text } from '../parts/common.js';
import { LongRows } from '../parts/table.js';
import { Json } from '../parts/wires.js';
import { REVISIONS } from '../pure/revisions.js';
import { bytes, counted, figure } from '../pure/time.js';
import { address, paused, route, setQuery } from '../state.js';
import { html, useEffect, useState } from '../ui.js';

/** @param {{ Page: any }} props */
export function Groups({ Page }) {
    const name = route.value.parts[1];
    return name ? html`<${OneGroup} key=${name} name=${name} Page=${Page} />` : html`<${List} Page=${Page} />`;
}

/** @param {{ Page: any }} props */
function List({ Page }) {
    const loaded = useLoaded(() => getAll('groups'), [], resynced.value);
    useLive(['server'], {
        server: () => {
            if (!paused.peek()) loaded.reload();
        }
    });
    const groups = /** @type {any[] | null} */ (loaded.data);
    return html`<${Page} title="Groups"><${ErrorStrip} error=${loaded.error} at=${loaded.at} retry=${loaded.reload} /><div class="page">
        <section class="panel" aria-label="Groups">
        ${
            groups && !groups.length
                ? html`<${Empty} title="There is no group">
        <p>A group is a named set of servers at one address. Servers without a group are in the default one.</p><//>`
                : html`<div class="scroll"><table><thead><tr><th scope="col">Group</th><th scope="col">Address</th><th scope="col">Servers</th><th scope="col">Names</th>
                <th scope="col" class="r">Tools</th><th scope="col" class="r">Prompts</th><th scope="col" class="r">Resources</th><th scope="col">Collisions</th></tr>
                </thead>
            <tbody>${
                groups
                    ? groups.map(
                          group => html`<tr key=${group.name}><td><a class="name" href=${address(['groups', group.name])}>${group.name}</a></td>
            <td class="mono">${group.paths[0]}</td><td class="wrap">${group.servers.join(', ')}</td><td>${group.naming === 'prefix' ? 'with prefix' : 'plain'}</td>
                <td class="r">${figure(group.lists.tools)}</td><td class="r">${figure(group.lists.prompts)}</td><td class="r">${figure(group.lists.resources)}</td>
                <td>${group.collisions.length ? html`<span class="tag warn">${group.collisions.length}</span>` : html`<span class="muted">none</span>`}</td>
                </tr>`
                      )
                    : html`<${Bones} columns=${8} />`
            }</tbody></table></div>`
        }</section></div><//>`;
}

const KINDS = [
    ['tools', 'Tools'],
    ['prompts', 'Prompts'],
    ['resources', 'Resources'],
    ['templates', 'Templates'],
    ['seen', 'As seen']
];

/** @param {{ name: string, Page: any }} props */
function OneGroup({ name, Page }) {
    const { query } = route.value;
    const [as, session, kind] = [
        query.get('as') ?? REVISIONS[0],
        query.get('session') ?? '',
        query.get('tab') ?? 'tools'
    ];
    const loaded = useLoaded(
        () => get(`groups/${encodeURIComponent(name)}`, { as, session }),
        [name, as, session],
        resynced.value
    );
    const reload = () => {
        if (!paused.peek()) loaded.reload();
    };
    useLive(['server'], { server: reload });
    const group = /** @type {any} */ (loaded.data);
    const tabs = KINDS.map(([id, label]) => ({ id, label, count: id === 'seen' ? 0 : group?.[id]?.length }));
    const choose = (/** @type {string} */ id) => setQuery({ tab: id === 'tools' ? null : id });
    return html`<${Page} title=${name} sub=${html`<a class="link" href="#/groups">Groups</a>`}>
        <${ErrorStrip} error=${loaded.error} at=${loaded.at} retry=${loaded.reload} /><div class="page">
        <div class="cols"><${WhyNot} name=${name} as=${as} session=${session} /><${Addresses} group=${group} /></div>
        <section class="panel" aria-label="What it shows"><header><h2>What clients see</h2>
        <span class="muted">${group && counted(group.servers.length, 'server')}</span><span class="gap"></span>
        <${SeenAs} group=${name} as=${as} session=${session} /></header>
        <${Tabs} tabs=${tabs} chosen=${kind} choose=${choose} label="Lists of the group" panel="group-panel" />
        <${TabPanel} panel="group-panel" chosen=${kind} class="group-tab">${
            kind === 'seen'
                ? html`<${AsSeen} seen=${group?.seen} as=${as} />`
                : html`<${Entries} group=${name} entries=${group?.[kind] ?? null} kind=${kind} as=${group?.as ?? as} />`
        }<//></section></div><//>`;
}

/** @param {{ group: any }} props */
const Addresses = ({
    group
}) => html`<section class="panel" aria-label="Addresses"><header><h2>How clients reach it</h2></header>
    <div class="body">${(group?.paths ?? []).map(
        (/** @type {string} */ one) =>
            html`<${CopyLine} key=${one} text=${new URL(one.replace(/^\//u, ''), document.baseURI).href} what="Address" />`
    )}${group ? html`<${CopyLine} text=${group.stdio} what="Command" />` : html`<p class="muted">–</p>`}
    ${group?.collisions.length > 0 && html`<p><span class="tag warn">collisions</span> ${group.collisions.join(', ')}</p>`}</div></section>`;

/** @param {{ group: string, as: string, session: string }} props As which client one looks: of a revision, or in a session. */
function SeenAs({ group, as, session }) {
    const loaded = useLoaded(() => getAll('sessions'), [], resynced.value);
    const sessions = (loaded.data ?? []).filter(one => one.group === group);
    const chosen = (/** @type {any} */ event) => {
        const { id = null, revision = as } = sessions.find(one => one.id === event.target.value) ?? {};
        setQuery({ session: id, as: revision });
    };
    return html`<label for="as">seen as</label>
        <select id="as" value=${as} disabled=${session !== ''} onChange=${(/** @type {any} */ event) => setQuery({ as: event.target.value })}>
        ${REVISIONS.map(revision => html`<option key=${revision}>${revision}</option>`)}</select>
        <label for="session" class="hidden">in session</label><select id="session" value=${session} onChange=${chosen}>
        <option value="">any session</option>${sessions.map(
            one => html`<option value=${one.id} key=${one.id}>${one.id}, ${one.client?.name ?? 'unnamed'}</option>`
        )}</select>`;
}

const WORDS = { outputSchema: 'output schema', inputSchema: 'input schema', _meta: 'metadata' };

/** @param {string[] | null} leftOut Members that clients of a revision are not given. */
function seenAs(leftOut) {
    if (leftOut === null) return 'not at all';
    const names = leftOut.map(name => `no ${WORDS[/** @type {keyof typeof WORDS} */ (name)] ?? name}`);
    return names.join(', ') || 'it is';
}

/** @param {{ group: string, entries: any[] | null, kind: string, as: string }} props */
function Entries({ group, entries, kind, as }) {
    if (entries && !entries.length)
        return html`<${Empty} level=${3} title=${`The group shows no ${kind}`}><p>Ask above why one is not there.</p><//>`;
    const row = (/** @type {any} */ entry) => {
        const name = html`<${Text} text=${entry.name} most=${200} />`;
        return html`<tr key=${entry.name}><td class="mono wrap">${
            kind === 'tools' ? html`<a class="link" href=${address(['try', group, entry.name])}>${name}</a>` : name
        }</td><td class="mono wrap"><${Text} text=${entry.own} most=${160} /></td>
            <td><a class="link" href=${address(['servers', entry.server])}>${entry.server}</a></td>
            <td class="wrap"><${Text} text=${entry.description ?? entry.title ?? ''} most=${300} /></td>
            <td class="wrap"><${Text} text=${seenAs(entry.left_out)} most=${200} /></td>
            <td class="r">${bytes(entry.bytes)}</td></tr>`;
    };
    return html`<div class="scroll"><table><thead><tr><th scope="col">Name in the group</th><th scope="col">At the server</th>
        <th scope="col">Server</th><th scope="col">Description</th><th scope="col">Seen by ${as} as</th>
        <th scope="col" class="r">Size</th></tr></thead>
        <tbody>${entries ? html`<${LongRows} items=${entries} columns=${6} row=${row} />` : html`<${Bones} columns=${6} />`}</tbody></table></div>`;
}

/** @param {{ seen: Record<string, string> | undefined, as: string }} props Lists as JSON text, by method, as they are sent. */
const AsSeen = ({
    seen,
    as
}) => html`<div class="body"><p class="muted">What a client of ${as} is given, byte for byte.</p>
    ${Object.entries(seen ?? {}).map(
        ([
            method,
            text
        ]) => html`<section key=${method} aria-label=${method}><div class="row"><h3 class="mono">${method}</h3>
        <span class="muted">${bytes(new Blob([text]).size)}</span><${Copy} text=${text} what=${method} /></div>
        <${Json} text=${text} wrap=${true} /></section>`
    )}</div>`;

/** @param {{ name: string, as: string, session: string }} props */
function WhyNot({ name, as, session }) {
    const asked = route.value.query.get('why') ?? '';
    const [text, setText] = useState(asked);
    useEffect(() => setText(asked), [asked]);
    const ask = async () =>
        asked ? get(`groups/${encodeURIComponent(name)}/why`, { name: asked, as, session }) : null;
    const loaded = useLoaded(ask, [name, asked, as, session]);
    const why = /** @type {any} */ (loaded.data);
    const submit = (/** @type {Event} */ event) => {
        event.preventDefault();
        setQuery({ why: text.trim() || null });
    };
    return html`<section class="panel" aria-labelledby="why"><header><h2 id="why">Why not?</h2></header><div class="body">
        <form class="row" onSubmit=${submit} role="search"><label for="why-name">Why is</label>
        <input id="why-name" class="mono why-name" type="text" spellcheck="false" placeholder="a tool, prompt or URI" value=${text}
        onInput=${(/** @type {any} */ event) => setText(event.target.value)} /><span>not there?</span>
        <button type="submit" class="btn">Find out</button></form>
        <${ErrorStrip} error=${loaded.error} retry=${loaded.reload} />
        <div aria-live="polite">${why && html`<${Answer} why=${why} as=${as} />`}
        ${!asked && html`<p class="muted">A name as the client or as the server has it. Each step names the line of the file that decides.</p>`}</div>
        </div></section>`;
}

/** @param {{ why: any, as: string }} props */
const Answer = ({ why, as }) =>
    html`<p>${
        why.there
            ? html`<span class="tag ok">It is there</span> A client of ${as} sees it.`
            : html`<span class="tag bad">It is not there</span>`
    }</p><ol class="steps">${why.steps.map(step)}</ol>`;

/** @param {any} one @param {number} index */
function step(one, index) {
    const [sign, shape, said] =
        one.ok === true ? ['✓', 'ok', 'yes: '] : one.ok === false ? ['✗', 'bad', 'no: '] : ['–', 'none', ''];
    return html`<li key=${index} class=${shape}><span class=${`sign ${shape}`} aria-hidden="true">${sign}</span><span>
        <span class="hidden">${said}</span>${
            one.ok === false
                ? html`<b><${Text} text=${one.what} most=${400} />
        </b>`
                : html`<${Text} text=${one.what} most=${400} />`
        }</span><code>${one.where}</code></li>`;
}
