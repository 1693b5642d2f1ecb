// What became of a call that was tried, and how to make it again elsewhere.

import { CopyLine, TabPanel, Tabs } from '../parts/common.js';
import { Json } from '../parts/wires.js';
import { textAt } from '../pure/json.js';
import { commandOf, curlOf } from '../pure/shell.js';
import { duration } from '../pure/time.js';
import { address, groupUrl } from '../state.js';
import { html, useState } from '../ui.js';
import { CallView } from './call.js';
import { TryResult } from './try_result.js';

/** @param {import('./try_result.js').TryState} state */
function titleOf(state) {
    if (state.state === 'cancelled') return 'Cancelled';
    if (state.error) return 'Error';
    return state.result && textAt(state.result, '/isError') === 'true' ? 'The tool says it failed' : 'Result';
}

/** @param {{ state: any, place: string, isGroup: boolean, entry: any, text: string }} props */
export function TryOutcome({ state, place, isGroup, entry, text }) {
    const [view, setView] = useState('result');
    const all = [
        ['result', 'Result', true],
        ['wires', 'Both wires', Boolean(state.call)],
        ['json', 'JSON', true],
        ['cli', 'as rialto call', isGroup],
        ['curl', 'as curl', isGroup]
    ];
    const tabs = all
        .filter(([, , isThere]) => isThere)
        .map(([id, label]) => ({ id: String(id), label: String(label) }));
    const url = groupUrl(place);
    const views = {
        result: () => html`<${TryResult} state=${state} />`,
        wires: () => html`<${CallView} id=${state.call} whole=${true} close=${() => setView('result')} />`,
        json: () =>
            html`<${Json} text=${state.error ? JSON.stringify(state.error) : (state.result ?? 'null')} wrap=${true} />`,
        cli: () => html`<${CopyLine} what="Command" text=${commandOf(url, entry.name, text)} />`,
        curl: () => html`<${CopyLine} what="Command" text=${curlOf(url, entry.name, text)} />`
    };
    return html`<section class="panel" aria-label="Outcome"><header><h2>${titleOf(state)}</h2>
        <span class="muted">${duration(state.took_us)}, as ${state.revision}</span><span class="gap"></span>
        ${state.call && html`<a class="btn" href=${address(['calls', state.call])}>The call</a>`}</header>
        <${Tabs} tabs=${tabs} chosen=${view} choose=${setView} label="Views of the result" panel="try-panel" />
        <${TabPanel} panel="try-panel" chosen=${view} class="group-tab">
        <div class=${view === 'wires' ? '' : 'body'}>${views[/** @type {keyof typeof views} */ (view)]()}</div><//></section>`;
}
