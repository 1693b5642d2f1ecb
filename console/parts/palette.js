// Find or go to: pages, servers, tools, sessions, ids of calls.

import { get, getAll } from '../api.js';
import { address, go, overlay } from '../state.js';
import { html, useEffect, useRef, useState } from '../ui.js';
import { Text } from './common.js';
import { Dialog } from './dialog.js';

/** @typedef {{ label: string, kind: string, to: string }} Place */

/** @type {Place[]} */
const PAGES = [
    ['Overview', '#/'],
    ['Traffic', '#/traffic'],
    ['Questions', '#/questions'],
    ['Servers', '#/servers'],
    ['Groups', '#/groups'],
    ['Sessions', '#/sessions'],
    ['Bridge', '#/bridge'],
    ['Try a tool', '#/try'],
    ['Configuration', '#/config'],
    ['Cluster', '#/cluster']
].map(([label, to]) => ({ label, to, kind: 'page' }));
const MOST = 40;

/** @returns {Promise<Place[]>} */
async function places() {
    const [servers, groups, sessions] = await Promise.all(
        ['servers', 'groups', 'sessions'].map(path => getAll(path).catch(() => []))
    );
    const tools = await Promise.all(
        groups.slice(0, 20).map(group => get(`groups/${encodeURIComponent(group.name)}`).catch(() => ({ tools: [] })))
    );
    return [
        ...servers.map(({ name }) => ({ label: name, kind: 'server', to: address(['servers', name]) })),
        ...groups.map(({ name }) => ({ label: name, kind: 'group', to: address(['groups', name]) })),
        ...tools.flatMap((group, index) =>
            (group.tools ?? []).map((/** @type {any} */ tool) => ({
                label: tool.name,
                kind: `tool of ${groups[index].name}`,
                to: address(['try', groups[index].name, tool.name])
            }))
        ),
        ...sessions.map(({ id, client }) => ({
            label: `${id} ${client?.name ?? ''}`,
            kind: 'session',
            to: address(['sessions'], { open: id })
        }))
    ];
}

/** @param {Place[]} all @param {string} text */
function found(all, text) {
    const words = text.toLowerCase().split(/\s+/u).filter(Boolean);
    const hits = all.filter(({ label, kind }) => words.every(word => `${label} ${kind}`.toLowerCase().includes(word)));
    hits.sort(
        (a, b) =>
            Number(b.label.toLowerCase().startsWith(words[0] ?? '')) -
            Number(a.label.toLowerCase().startsWith(words[0] ?? ''))
    );
    if (text.trim())
        hits.push({
            label: `Calls with “${text.trim()}”`,
            kind: 'traffic',
            to: address(['traffic'], { q: text.trim() })
        });
    if (/^\S+\.\w+$/u.test(text.trim()))
        hits.push({ label: `Call ${text.trim()}`, kind: 'call', to: address(['calls', text.trim()]) });
    return hits.slice(0, MOST);
}

export function Palette() {
    if (overlay.value !== 'palette') return null;
    return html`<${Open} />`;
}

function Open() {
    const [text, setText] = useState('');
    const [at, setAt] = useState(0);
    const [all, setAll] = useState(PAGES);
    const list = useRef(/** @type {HTMLElement | null} */ (null));
    useEffect(() => {
        places().then(more => setAll([...PAGES, ...more]));
    }, []);
    useEffect(() => {
        list.current?.querySelector('[aria-selected="true"]')?.scrollIntoView({ block: 'nearest' });
    });
    const hits = found(all, text);
    const close = () => {
        overlay.value = null;
    };
    const open = (/** @type {Place | undefined} */ place) => {
        close();
        if (place) go(place.to);
    };
    const onKeyDown = (/** @type {KeyboardEvent} */ event) => {
        const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
        if (step) setAt((at + step + hits.length) % Math.max(1, hits.length));
        else if (event.key === 'Enter') open(hits[at]);
        else return;
        event.preventDefault();
    };
    return html`<${Dialog} label="Find or go to" class="palette" close=${close}>
        <input type="search" role="combobox" aria-expanded="true" aria-controls="places" aria-activedescendant=${hits[at] ? `place-${at}` : undefined} aria-label="Find or go to"
            placeholder="A page, server, tool, session or the id of a call" value=${text} autofocus onKeyDown=${onKeyDown}
            onInput=${(/** @type {any} */ event) => {
                setText(event.target.value);
                setAt(0);
            }} />
        <ul id="places" role="listbox" aria-label="Places" ref=${list}>${hits.map(
            (place, index) => html`<li id=${`place-${index}`} key=${place.to + place.label} role="option"
            aria-selected=${index === at ? 'true' : 'false'} onClick=${() => open(place)}><span><${Text} text=${place.label} most=${120} /></span><span class="kind"><${Text} text=${place.kind} most=${60} /></span></li>`
        )}</ul><//>`;
}
