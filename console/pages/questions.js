// Open server requests and parked calls: who asks whom, and until when.

import { attempt, send } from '../api.js';
import { goneOf, useLive } from '../live.js';
import { Bones, Empty, ErrorStrip, Revision, Text } from '../parts/common.js';
import { confirm } from '../parts/dialog.js';
import { chosenNode, NodeChooser, otherNode, useNodeRows } from '../parts/nodes.js';
import { date, span } from '../pure/time.js';
import { address, may, paused, say } from '../state.js';
import { html, useEffect, useState } from '../ui.js';

/** @param {{ Page: any }} props */
export function Questions({ Page }) {
    const node = chosenNode();
    const loaded = useNodeRows('questions');
    const reload = () => {
        if (!paused.peek()) loaded.reload();
    };
    useLive(['question'], { question: reload, node: reload, gone: goneOf('question', reload) }, { node });
    const [, tick] = useState(0);
    useEffect(() => {
        const timer = setInterval(() => {
            if (!paused.peek()) tick(n => n + 1);
        }, 1000);
        return () => clearInterval(timer);
    }, []);
    const questions = /** @type {any[] | null} */ (loaded.data);
    return html`<${Page} title="Questions" tools=${html`<${NodeChooser} />`}><${ErrorStrip} error=${loaded.error} at=${loaded.at} retry=${loaded.reload} /><div class="page">
        <section class="panel" aria-label="Open questions">
        ${
            questions && !questions.length
                ? html`<${Empty} title="No server is waiting for an answer.">
        <p>When a server asks a client something in the middle of a call, the question appears here until it is answered.
        The console never answers in a client’s name.</p><//>`
                : html`<div class="scroll"><table><thead><tr><th scope="col">Age</th><th scope="col">Server</th><th scope="col">Asks</th><th scope="col">Kind</th>
                <th scope="col">Question</th><th scope="col">How</th><th scope="col"><span class="hidden">Acts</span></th></tr></thead>
            <tbody>${questions ? questions.map(question => row(question, loaded.reload)) : html`<${Bones} columns=${7} />`}</tbody></table></div>`
        }</section></div><//>`;
}

/** @param {any} question @param {() => void} reload */
function row(question, reload) {
    const [asked, until] = [date(question.asked), date(question.until)];
    const age = asked ? span((Date.now() - asked.getTime()) / 1000) : '–';
    const cancel = async () => {
        if (
            !(await confirm(
                'Cancel the call?',
                `${question.server} is told that nobody answers, and the client’s call ends with an error.`,
                'Cancel the call',
                true
            ))
        )
            return;
        if (
            await attempt(() =>
                send('DELETE', `questions/${encodeURIComponent(question.id)}`, undefined, {
                    query: { node: otherNode(question.node) }
                }).then(() => true)
            )
        )
            say('The call was cancelled');
        reload();
    };
    const who = [question.client?.name ?? 'unnamed', question.client?.version].filter(Boolean).join(' ');
    const whole = until && asked ? span((until.getTime() - asked.getTime()) / 1000) : null;
    return html`<tr key=${question.id} class=${question.away ? 'away' : ''}><td class="num">${age}${whole && html` <span class="muted">of ${whole}</span>`}</td>
        <td>${question.server ? html`<a class="name" href=${address(['servers', question.server])}>${question.server}</a>` : '–'}</td>
        <td><${Text} text=${who} most=${60} /> <${Revision} revision=${question.revision} /></td><td>${question.kind}</td>
        <td class="wrap">${
            question.text === null
                ? html`<span class="muted">–</span>`
                : html`<${Text} text=${question.text} most=${300} />`
        }</td><td>${question.how === 'input_required' ? 'parked, state given' : 'request on its stream'}</td>
        <td class="r">${question.call && html`<a class="btn" href=${address(['calls', question.call])}>Call</a> `}
        ${may('act') && html`<button type="button" class="btn danger" onClick=${cancel}>Cancel call</button>`}</td></tr>`;
}
