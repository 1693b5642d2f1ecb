// Dialogs: the browser's own, so that focus stays inside and returns to where it was.

import { aboutKeys } from '../keys.js';
import { overlay, singleKeys } from '../state.js';
import { html, signal, useEffect, useRef } from '../ui.js';
import { giveBack } from './focus.js';

/** @param {{ close: () => void, label: string, class?: string, children?: any }} props */
export function Dialog({ close, label, class: name = '', children }) {
    const ref = useRef(/** @type {HTMLDialogElement | null} */ (null));
    useEffect(() => {
        const [dialog, before] = [ref.current, document.activeElement];
        dialog?.showModal();
        return () => {
            // What is below an open dialog cannot be focused.
            dialog?.close();
            giveBack(before);
        };
    }, []);
    return html`<dialog ref=${ref} class=${name} aria-label=${label} onCancel=${(/** @type {Event} */ event) => {
        event.preventDefault();
        close();
    }}
        onClick=${(/** @type {MouseEvent} */ event) => {
            if (event.target === ref.current) close();
        }}>${children}</dialog>`;
}

const asked = signal(
    /** @type {{ title: string, text: any, act: string, danger: boolean, answer: (yes: boolean) => void } | null} */ (
        null
    )
);

/** Asks before something is done. @param {string} title @param {any} text @param {string} act @param {boolean} [danger] @returns {Promise<boolean>} */
export const confirm = (title, text, act, danger = false) =>
    new Promise(answer => {
        asked.value = { title, text, act, danger, answer };
    });

export function Confirm() {
    const question = asked.value;
    if (!question) return null;
    const answer = (/** @type {boolean} */ yes) => {
        asked.value = null;
        question.answer(yes);
    };
    return html`<${Dialog} label=${question.title} close=${() => answer(false)}>
        <form method="dialog" onSubmit=${(/** @type {Event} */ event) => {
            event.preventDefault();
            answer(true);
        }}>
        <h2>${question.title}</h2><div class="soft">${question.text}</div>
        <div class="acts"><button type="button" class="btn" onClick=${() => answer(false)}>Cancel</button>
        <button type="submit" class=${question.danger ? 'btn danger' : 'btn primary'} autofocus>${question.act}</button></div></form><//>`;
}

export function KeysDialog() {
    if (overlay.value !== 'keys') return null;
    const close = () => {
        overlay.value = null;
    };
    return html`<${Dialog} label="Keys" close=${close}><div class="body"><h2>Keys</h2>
        <dl class="keys-list">${aboutKeys().map(([keys, what]) => html`<dt>${keys.split(' ').map(key => html`<kbd>${key}</kbd>`)}</dt><dd>${what}</dd>`)}</dl>
        <label><input type="checkbox" checked=${singleKeys.value === 'on'} onChange=${(/** @type {any} */ event) => {
            singleKeys.value = event.target.checked ? 'on' : 'off';
        }} />Keys without Ctrl act</label>
        <div class="acts"><button type="button" class="btn" onClick=${close}>Close</button></div></div><//>`;
}
