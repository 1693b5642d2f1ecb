// A form made from a JSON Schema. The text of the arguments is the truth: each field edits its place in that text.

import { at, scan, splice, unquote } from '../pure/json.js';
import { fields, problems } from '../pure/schema.js';
import { html, useId } from '../ui.js';
import { Text } from './common.js';

/** @typedef {import('../pure/schema.js').Field} Field */
/** @typedef {{ text: string, root: import('../pure/json.js').Node, change: (text: string) => void, wrong: Map<string, string> }} FormContext */

/** @param {string} text @returns {import('../pure/json.js').Node | null} */
export function scanned(text) {
    try {
        return scan(text);
    } catch {
        return null;
    }
}

/** @param {string} text @param {any} schema @returns {{ path: string, what: string }[]} */
export function checkText(text, schema) {
    if (!scanned(text)) return [{ path: '', what: 'is not JSON' }];
    return problems(JSON.parse(text), schema);
}

/** @param {{ schema: any, text: string, change: (text: string) => void }} props */
export function SchemaForm({ schema, text, change }) {
    const root = scanned(text);
    const all = fields(schema);
    if (!root) return html`<p class="muted">The text is not JSON; the form is back when it is.</p>`;
    if (!all.length) return html`<p class="muted">It takes no arguments that its schema names.</p>`;
    const wrong = new Map(checkText(text, schema).map(({ path, what }) => [path, what]));
    const context = { text, root, change, wrong };
    return html`<div class="form">${all.map(field => html`<${FieldInput} key=${field.pointer} field=${field} context=${context} />`)}</div>`;
}

/** @param {{ field: Field, context: FormContext }} props */
function FieldInput({ field, context }) {
    const id = useId();
    const wrong = context.wrong.get(field.pointer);
    if (field.kind === 'group') {
        return html`<fieldset><legend><${Text} text=${field.label} most=${80} />${field.required && html`<span class="req" title="needed">*</span>`}</legend>
            ${field.fields.map(below => html`<${FieldInput} key=${below.pointer} field=${below} context=${context} />`)}</fieldset>`;
    }
    const node = at(context.root, field.pointer);
    const raw = node ? context.text.slice(node.start, node.end) : '';
    const write = (/** @type {string | null} */ json) => context.change(splice(context.text, field.pointer, json));
    const said = [field.help && `${id}h`, wrong && `${id}w`].filter(Boolean).join(' ') || undefined;
    return html`<div class="field">${
        field.kind !== 'choices' &&
        html`<label for=${id}>
        <${Text} text=${field.label} most=${80} />${field.required && html`<span class="req" title="needed">*</span>`}</label>`
    }
        <${Control} id=${id} field=${field} raw=${raw} write=${write} described=${said} invalid=${wrong && raw ? 'true' : undefined} />
        ${field.help && html`<div class="help" id=${`${id}h`}><${Text} text=${field.help} most=${400} /></div>`}
        ${wrong && html`<div class="wrong" id=${`${id}w`}>${wrong}</div>`}</div>`;
}

/** @param {{ id: string, field: Field, raw: string, write: (json: string | null) => void, described?: string, invalid?: string }} props */
function Control({ id, field, raw, write, described, invalid }) {
    const text = raw.startsWith('"') ? unquote(raw) : raw;
    const attributes = {
        id,
        'aria-describedby': described,
        'aria-invalid': invalid,
        'aria-required': field.required ? 'true' : undefined
    };
    const onText = (/** @type {any} */ event) =>
        write(event.target.value === '' && !field.required ? null : JSON.stringify(event.target.value));
    switch (field.kind) {
        case 'text':
            return html`<input type="text" ...${attributes} value=${text} onInput=${onText} />`;
        case 'long':
            return html`<textarea rows="4" ...${attributes} value=${text} onInput=${onText} />`;
        case 'number':
            return html`<input type="text" inputmode="decimal" ...${attributes} value=${text} onChange=${(/** @type {any} */ event) => write(numberText(event.target.value, field.required))} />`;
        case 'boolean':
            return html`<span>
            <input type="checkbox" ...${attributes} aria-required=${undefined} checked=${raw === 'true'} onChange=${(/** @type {any} */ event) => write(String(event.target.checked))} /></span>`;
        case 'choice':
            return html`<select ...${attributes} value=${raw} onChange=${(/** @type {any} */ event) => write(event.target.value || null)}>
            ${(!field.required || !raw) && html`<option value="">–</option>`}${field.options.map(option => html`<option value=${JSON.stringify(option.value)}>${option.label}</option>`)}</select>`;
        case 'choices':
            return html`<${Choices} field=${field} raw=${raw} write=${write} />`;
        default:
            return html`<textarea rows="2" ...${attributes} spellcheck="false" value=${raw} placeholder="JSON" onChange=${(/** @type {any} */ event) => write(scanned(event.target.value) ? event.target.value : null)} />`;
    }
}

/** @param {string} value @param {boolean} required A number stays as it was typed; what is none is kept as text, and marked. */
function numberText(value, required) {
    if (value.trim() === '') return required ? '0' : null;
    return /^-?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?$/u.test(value.trim()) ? value.trim() : JSON.stringify(value);
}

/** @param {{ field: Field, raw: string, write: (json: string | null) => void }} props */
function Choices({ field, raw, write }) {
    const chosen = new Set(
        scanned(raw) ? (JSON.parse(raw).map?.((/** @type {unknown} */ one) => JSON.stringify(one)) ?? []) : []
    );
    const toggle = (/** @type {string} */ json) => {
        if (!chosen.delete(json)) chosen.add(json);
        write(`[${[...chosen].join(', ')}]`);
    };
    return html`<fieldset><legend><${Text} text=${field.label} most=${80} /></legend>${field.options.map(
        ({ value, label }) => html`<label key=${label}>
        <input type="checkbox"
        checked=${chosen.has(JSON.stringify(value))} onChange=${() => toggle(JSON.stringify(value))} /><${Text} text=${label} most=${80} /></label>`
    )}</fieldset>`;
}
