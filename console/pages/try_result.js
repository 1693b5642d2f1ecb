// The result of a tried call, and the forms for what it asks. Content of servers is shown, never followed or run.

import { attempt, send } from '../api.js';
import { Text, TextBlock } from '../parts/common.js';
import { checkText, SchemaForm } from '../parts/form.js';
import { Json } from '../parts/wires.js';
import { textAt } from '../pure/json.js';
import { initial } from '../pure/schema.js';
import { bytes } from '../pure/time.js';
import { html, useState } from '../ui.js';

const IMAGES = new Set(['image/png', 'image/jpeg', 'image/gif', 'image/webp']);
const BASE64 = /^[A-Za-z0-9+/]*={0,2}$/u;
const MAX_IMAGE = 8_000_000;

/** @typedef {import('../types.d.ts').components['schemas']['TryState']} TryState */

/** @param {{ state: TryState }} props What is read of the result says only what it is; what is shown is its text. */
export function TryResult({ state }) {
    const { error, result: text } = state;
    if (error)
        return html`<p><span class="tag bad">error${error.code === null ? '' : ` ${error.code}`}</span> <${Text} text=${error.message} most=${2000} />
        </p>${error.data !== null && html`<${Json} text=${error.data} wrap=${true} />`}`;
    if (text === null) return html`<p class="muted">There is no result.</p>`;
    const result = JSON.parse(text);
    const structured = textAt(text, '/structuredContent');
    const content = Array.isArray(result.content) ? result.content.slice(0, 100) : null;
    return html`${
        result.isError &&
        html`<p><span class="tag warn">tool error</span>
        </p>`
    }${content?.map((/** @type {any} */ part, /** @type {number} */ index) => html`<${Content} key=${index} part=${part} text=${textAt(text, `/content/${index}`)} />`)}
        ${structured !== null && html`<h3 class="muted">Structured</h3><${Json} text=${structured} wrap=${true} />`}
        ${!content && html`<${Json} text=${text} wrap=${true} />`}`;
}

/** @param {{ part: any, text: string }} props */
function Content({ part, text }) {
    if (part?.type === 'text') return html`<${TextBlock} text=${String(part.text ?? '')} label="Text of the result" />`;
    if (
        part?.type === 'image' &&
        IMAGES.has(part.mimeType) &&
        typeof part.data === 'string' &&
        part.data.length < MAX_IMAGE &&
        BASE64.test(part.data)
    ) {
        return html`<img class="result-image" alt=${`Picture of the result, ${part.mimeType}, ${bytes(part.data.length * 0.75)}`} src=${`data:${part.mimeType};base64,${part.data}`} />`;
    }
    return html`<${Json} text=${text} wrap=${true} />`;
}

/** @param {string} method @param {any} schema Of a form, or nothing. @returns {string} What an answer begins as. */
function answerFor(method, schema) {
    if (schema) return JSON.stringify(initial(schema) || {}, null, 2);
    if (method === 'roots/list') return '{"roots": []}';
    return '{"role": "assistant", "content": {"type": "text", "text": ""}, "model": "a person"}';
}

/** @param {{ run: string | null, question: any, done: () => void }} props One question of the server, as a form. */
export function TryAnswerForm({ run, question, done }) {
    const params = question.params ?? {};
    const schema = params.requestedSchema ?? null;
    const isForm = question.method === 'elicitation/create' && params.mode !== 'url';
    const [text, setText] = useState(() => answerFor(question.method, isForm ? schema : null));
    const wrong = checkText(text, isForm ? schema : {});
    const answer = async (/** @type {Record<string, any>} */ body, /** @type {string} */ extra = '') => {
        const sent = `${JSON.stringify({ question: question.id, ...body }).slice(0, -1)}${extra}}`;
        await attempt(() => send('POST', `try/${encodeURIComponent(run ?? '')}/answer`, sent));
        done();
    };
    const isElicitation = question.method === 'elicitation/create';
    const content = isForm ? `,"content":${text}` : '';
    const accept = () => (isElicitation ? answer({ action: 'accept' }, content) : answer({}, `,"result":${text}`));
    return html`<section class="panel" aria-label="Question"><header><h2>It asks</h2><span class="tag">${question.method}</span></header><div class="body"><p>
        <${Text} text=${params.message ?? params.systemPrompt ?? ''} most=${2000} /></p>
        ${params.url && html`<p>It wants you to open this address. It is not opened by itself:</p><p class="mono"><${Text} text=${String(params.url)} most=${500} /></p>`}
        ${
            isForm
                ? html`<${SchemaForm} schema=${schema} text=${text} change=${setText} />`
                : !params.url &&
                  html`<${Json} text=${JSON.stringify(params)} wrap=${true} />
        <div class="field"><label for=${`answer-${question.id}`}>Answer, as JSON</label>
        <textarea id=${`answer-${question.id}`} rows="4" value=${text} onInput=${(/** @type {any} */ event) => setText(event.target.value)} /></div>`
        }
        <div class="row">
        <button type="button" class="btn primary" disabled=${wrong.length > 0} onClick=${accept}>Accept</button>
        <button type="button" class="btn" onClick=${() => answer({ action: 'decline' })}>Decline</button>
        <button type="button" class="btn" onClick=${() => answer({ action: 'cancel' })}>Cancel</button></div></div></section>`;
}
