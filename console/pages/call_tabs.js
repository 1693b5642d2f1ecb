// What is told of a call beside its wires: translations, headers, raw bytes, and facts.

import { attempt, request } from '../api.js';
import { TabPanel, Tabs, Text, TextBlock } from '../parts/common.js';
import { Icon } from '../parts/icons.js';
import { nodeOfCall } from '../parts/nodes.js';
import { Timeline } from '../parts/timeline.js';
import { titleOf, Wires } from '../parts/wires.js';
import { bytes, counted, duration, exactClock } from '../pure/time.js';
import { address, may, setQuery } from '../state.js';
import { html } from '../ui.js';
import { download } from './call_dialogs.js';

/** @typedef {import('../parts/wires.js').Call} Call */

const VIEWS = { translation: Translation, headers: Headers, raw: Raw, about: About };

const KINDS = { changed: 'changed', stays: 'stays here', added: 'added here' };
/** Members that are named for one reason. */
const MEMBERS_MAX = 20;

/** @param {{ call: Call, chosen: string }} props */
export function CallTabs({ call, chosen }) {
    const tabs = [
        { id: 'wires', label: 'Both wires' },
        { id: 'timeline', label: 'Timeline' },
        { id: 'translation', label: 'Translation', count: reasonsOf(call).size },
        { id: 'headers', label: 'Headers' },
        { id: 'raw', label: 'Raw bytes' },
        { id: 'about', label: 'About' }
    ];
    const choose = (/** @type {string} */ id) => setQuery({ tab: id === 'wires' ? null : id });
    const View = VIEWS[/** @type {keyof typeof VIEWS} */ (chosen)] ?? About;
    return html`<${Tabs} tabs=${tabs} chosen=${chosen} choose=${choose} label="Views of the call" panel="call-panel">
        ${chosen === 'wires' && html`<${Legend} />`}<//>
        ${
            chosen === 'wires'
                ? html`<${Wires} call=${call} />`
                : chosen === 'timeline'
                  ? html`<${Timeline} call=${call} />`
                  : html`<${TabPanel} panel="call-panel" chosen=${chosen}><${View} call=${call} /><//>`
        }`;
}

const Legend = () => html`<div class="legend"><span><span class="mark ch">~</span>changed</span>
    <span><span class="mark rm">−</span>stays here</span><span><span class="mark ad">+</span>added here</span></div>`;

/** @param {Call} call @returns {Map<string, Call['changes']>} */
function reasonsOf(call) {
    const reasons = new Map();
    for (const change of call.changes) reasons.set(change.why, [...(reasons.get(change.why) ?? []), change]);
    return reasons;
}

/** @param {{ call: Call }} props What came up in this call, then what could have. */
function Translation({ call }) {
    const reasons = reasonsOf(call);
    const others = call.translated.filter(word => !reasons.has(word));
    if (!others.length && !reasons.size)
        return html`<p class="muted">Nothing was translated: the messages were passed on as they came.</p>`;
    return html`${
        reasons.size > 0 &&
        html`<div class="scroll"><table><thead><tr><th scope="col">Why</th><th scope="col">What</th><th scope="col">Members</th></tr></thead>
        <tbody>${[...reasons].map(reasonRow)}</tbody></table></div>`
    }
        ${
            others.length > 0 &&
            html`<h3>Also translated between ${call.client.revision} and ${call.server?.revision}</h3>
        <p class="muted">${others.join(' · ')}</p>`
        }`;
}

/** @param {[string, Call['changes']]} entry */
function reasonRow([why, changes]) {
    const kinds = new Set(changes.map(change => KINDS[change.kind]));
    const members = new Set(changes.map(change => change.path || '(the whole message)'));
    const named = [...members].slice(0, MEMBERS_MAX).join('  ');
    return html`<tr key=${why}><td class="wrap">${why}</td><td>${[...kinds].join(', ')}</td>
        <td class="wrap mono"><${Text} text=${named} most=${2000} /></td></tr>`;
}

/** @param {any} message */
const whereOf = ({ wire, http, ...message }) =>
    `${wire === 'client' ? 'Client' : 'Server'}: ${http.verb ? `${http.verb} ${http.path}` : (http.status ?? titleOf(message))}`;

/** @param {{ call: Call }} props */
function Headers({ call }) {
    const withHeaders = call.messages.filter(message => /** @type {any} */ (message.http)?.headers?.length);
    if (!withHeaders.length) return html`<p class="muted">No message of this call came with headers.</p>`;
    return html`${withHeaders.map(message => {
        const http = /** @type {any} */ (message.http);
        return html`<section key=${message.n}><h3>${whereOf(message)}</h3>
            <dl class="facts">${http.headers.map(
                (/** @type {[string, string]} */ [name, value]) => html`<dt class="mono">${name}</dt><dd class="mono">
            <${Text} text=${value} most=${2000} /></dd>`
            )}</dl></section>`;
    })}`;
}

const WAYS = {
    'client in': 'From the client',
    'client out': 'To the client',
    'server in': 'From the server',
    'server out': 'To the server'
};

/** @param {Call['messages'][number]} message */
const titleOfRaw = message =>
    `${WAYS[/** @type {'client in'} */ (`${message.wire} ${message.way}`)]}: ${titleOf(message)}`;

/** @param {{ call: Call }} props */
function Raw({ call }) {
    const save = async (/** @type {number} */ n) => {
        const response = await attempt(() =>
            request(`calls/${encodeURIComponent(call.id)}/messages/${n}`, { query: { node: nodeOfCall(call.id) } })
        );
        if (response) download(await response.blob(), `${call.id}-${n}.json`);
    };
    return html`${call.messages.map(
        message => html`<section key=${message.n}><div class="row"><h3>${titleOfRaw(message)}</h3>
        <span class="muted">${bytes(message.bytes)}</span>
        ${
            may('bodies') &&
            message.text !== null &&
            html`<button type="button" class="btn quiet" onClick=${() => save(message.n)}>
        <${Icon} name="export" />Save</button>`
        }</div>
        ${message.text === null ? html`<p class="muted">Not kept.</p>` : html`<${TextBlock} text=${message.text} most=${8000} label=${`Message ${message.n}`} />`}</section>`
    )}`;
}

/** @param {{ call: Call }} props */
function About({ call }) {
    const facts = [
        ['Call', call.id],
        ['Began', exactClock(call.at)],
        ['Took', duration(call.took_us)],
        ['Requests', call.requests.join(', ')],
        ['Trace', call.trace ?? 'none'],
        ['Node', call.node],
        ['Session lives on', call.owner],
        ['Session', call.client.session ?? 'none'],
        ['Own name of the server', call.server?.own ?? '–'],
        ['Bodies', call.bodies],
        ['Recorded', call.one_of > 1 ? `one of ${call.one_of}` : 'every call'],
        ['Error', call.error ? JSON.stringify(call.error) : 'none'],
        ['Messages', counted(call.messages.length, 'message')]
    ];
    return html`<dl class="facts">${facts.map(([name, value]) => html`<dt>${name}</dt><dd><${Text} text=${String(value)} most=${2000} /></dd>`)}</dl>
        ${
            call.client.session &&
            html`<p>
        <a class="link" href=${address(['traffic'], { q: `session:${call.client.session}`, show: 'all' })}>Other calls of this session</a></p>`
        }`;
}
