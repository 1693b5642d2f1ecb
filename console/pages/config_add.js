// Lines for a new server: what was pasted is checked, then probed, and then its lines are shown.

import { attempt, send } from '../api.js';
import { Copy, Text, TextBlock } from '../parts/common.js';
import { confirm } from '../parts/dialog.js';
import { counted, duration } from '../pure/time.js';
import { may, me, route, say, setQuery } from '../state.js';
import { html, useEffect, useRef, useState } from '../ui.js';

/** The field of a panel has the focus when it is opened, and what opens it when it is closed. @param {boolean} isOpen */
function usePanelFocus(isOpen) {
    const field = useRef(/** @type {HTMLTextAreaElement | null} */ (null));
    const opener = useRef(/** @type {HTMLElement | null} */ (null));
    const wasOpen = useRef(false);
    useEffect(() => {
        if (isOpen) field.current?.focus();
        else if (wasOpen.current) opener.current?.focus();
        wasOpen.current = isOpen;
    }, [isOpen]);
    return { field, opener };
}

/** @param {{ config: any, reload: () => void }} props Paste a URL, a command or an mcp.json; get the lines to add. */
export function Add({ config, reload }) {
    const isOpen = route.value.query.get('add') === '1';
    const [text, setText] = useState('');
    const [checked, setChecked] = useState(/** @type {any} */ (null));
    const { field, opener } = usePanelFocus(isOpen);
    const check = async (/** @type {Event} */ event) => {
        event.preventDefault();
        const add = text.trim();
        const said = await attempt(() => send('POST', 'config/check', { add }));
        setChecked(said && { ...said, add });
    };
    const write = async () => {
        if (
            !(await confirm(
                'Write the file?',
                html`<${TextBlock} text=${checked.difference} label="Difference" class="text nowrap" />`,
                'Write'
            ))
        )
            return;
        const done = await attempt(() =>
            send('PUT', 'config', { text: checked.text }, { headers: { 'if-match': config.etag } })
        );
        if (done) say('Written');
        reload();
    };
    if (!isOpen)
        return html`<div><button type="button" class="btn" ref=${opener} onClick=${() => setQuery({ add: '1' })}>Add a server</button></div>`;
    return html`<section class="panel" aria-labelledby="add"><header><h2 id="add">Add a server</h2><span class="gap"></span>
        <button type="button" class="btn quiet" onClick=${() => setQuery({ add: null })}>Close</button></header><div class="body">
        <form class="form" onSubmit=${check}><div class="field"><label for="add-text">An address, a command, or an mcp.json</label>
        <textarea id="add-text" rows="3" ref=${field} spellcheck="false" placeholder="https://example.com/mcp" value=${text}
        onInput=${(/** @type {any} */ event) => setText(event.target.value)} /></div>
        <div class="row"><button type="submit" class="btn primary" disabled=${!text.trim() || !may('act')}>Check</button></div></form>
        <div aria-live="polite">${checked && html`<${Checked} key=${checked.add} checked=${checked} write=${config?.editable && may('edit') ? write : null} />`}</div>
        </div></section>`;
}

/** @param {any} checked @returns {string} What a valid file would do. */
function effectOf(checked) {
    const parts = Object.entries({ adds: checked.added, changes: checked.changed }).filter(([, names]) => names.length);
    const said = parts.map(([what, names]) => `${what} ${names.join(', ')}`).join('; ');
    return checked.restart.length ? `${said} Needs a restart: ${checked.restart.join(', ')}.` : said;
}

/** @param {{ checked: any, write: (() => void) | null }} props */
function Checked({ checked, write }) {
    const [probed, setProbed] = useState(!checked.valid || !checked.added.length);
    return html`<div class="body add-out">${
        checked.valid
            ? html`<p><span class="tag ok">valid</span> ${effectOf(checked)}</p>`
            : html`<p><span class="tag bad">${counted(checked.problems.length, 'problem')}</span></p>
        <ul>${checked.problems.map(problem)}</ul>`
    }${checked.valid && checked.added.length > 0 && html`<${Probes} checked=${checked} done=${() => setProbed(true)} />`}${
        probed &&
        checked.lines &&
        html`<${TextBlock} text=${checked.lines} label="Lines to add" /><div class="row"><${Copy} text=${checked.lines} what="Lines" />
    ${write && checked.text && html`<button type="button" class="btn primary" onClick=${write}>Write…</button>`}</div>`
    }</div>`;
}

/** @param {any} one @param {number} index */
const problem = (one, index) => html`<li key=${index}>${one.line ? `${one.line}:${one.column} ` : ''}
    <${Text} text=${one.message} most=${400} /> <span class="muted"><${Text} text=${one.hint ?? ''} most=${400} /></span></li>`;

/** @typedef {{ name: string, report?: any, error?: { message: string, hint?: string } }} Probed */

/** Addresses are probed at once; a command is run by a click only. @param {{ checked: any, done: () => void }} props */
function Probes({ checked, done }) {
    const { added, commands, add } = checked;
    const [busy, setBusy] = useState(false);
    const [found, setFound] = useState(/** @type {Probed[] | null} */ (null));
    const allowed = added.filter((/** @type {string} */ name) => may(commands.includes(name) ? 'edit' : 'act'));
    const runs = allowed.filter((/** @type {string} */ name) => commands.includes(name));
    const denied = added.filter((/** @type {string} */ name) => !allowed.includes(name));
    const probe = async () => {
        setBusy(true);
        setFound(await Promise.all(allowed.map((/** @type {string} */ name) => probeOne(add, name))));
        setBusy(false);
        done();
    };
    useEffect(() => {
        if (!allowed.length) done();
        else if (!runs.length) probe();
    }, []);
    const isAsked = !found && !busy && runs.length > 0;
    return html`<h3>Probe</h3>${
        isAsked &&
        html`<div class="row"><button type="button" class="btn" onClick=${probe}>Run ${runs.join(', ')} once</button>
            <button type="button" class="btn quiet" onClick=${done}>Skip</button>
            <span class="muted">The command is started on ${me.value?.node}, asked what it speaks, and stopped.</span></div>`
    }${busy && html`<p class="muted">Asking ${allowed.join(', ')}…</p>`}
        <ul class="steps">${(found ?? []).map(outcome)}${denied.map(
            (/** @type {string} */ name) => html`<li key=${name}><span class="sign none" aria-hidden="true">–</span>
            <span>${name} was not probed: running a command needs the right to edit.</span></li>`
        )}</ul>`;
}

/** @param {string} add @param {string} name @returns {Promise<Probed>} */
async function probeOne(add, name) {
    try {
        return { name, report: await send('POST', 'probe', { add, name }) };
    } catch (error) {
        return { name, error: /** @type {any} */ (error) };
    }
}

/** @param {Probed} probed */
function outcome({ name, report, error }) {
    if (!report)
        return html`<li key=${name} class="bad"><span class="sign bad" aria-hidden="true">✗</span><span><b>${name} did not answer as a server of MCP.</b>
            <${Text} text=${error?.message} most=${600} /></span></li>`;
    const who = [report.server?.name, report.server?.version].filter(Boolean).join(' ');
    return html`<li key=${name}><span class="sign ok" aria-hidden="true">✓</span><span><b>${name} is <${Text} text=${who || 'a server without a name'} most=${100} /></b>,
        ${report.transport}, ${report.revision}, because <${Text} text=${report.why} most=${300} />; connected in ${duration(report.connectMs * 1000)}.
        <${Translated} clients=${report.clients} /></span></li>`;
}

/** @param {{ clients: { client: string, translated: string[] }[] }} props What Rialto would translate. */
const Translated = ({ clients }) =>
    html`<br /><span class="muted">${clients
        .map(({ client, translated }) => `${client}: ${translated.join(', ') || 'as it is'}`)
        .join(' · ')}</span>`;
