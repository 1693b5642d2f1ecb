// The input of a filter, with what can stand there in a list below it.

import { complete } from '../pure/complete.js';
import { html, useLayoutEffect, useRef, useState } from '../ui.js';
import { Text } from './common.js';

const CLOSED = { at: -1, chosen: -1 };

/** @param {{ text: string, rows: any[], change: (text: string) => void, wrong: boolean }} props */
export function QueryInput({ text, rows, change, wrong }) {
    const input = useRef(/** @type {HTMLInputElement | null} */ (null));
    const caret = useRef(/** @type {number | null} */ (null));
    // Where one types, below zero while no list is shown, and which option is chosen.
    const [{ at, chosen }, set] = useState(CLOSED);
    const { from, to, options } = at < 0 ? { from: 0, to: 0, options: [] } : complete(text, at, rows);
    useLayoutEffect(() => {
        if (caret.current !== null) input.current?.setSelectionRange(caret.current, caret.current);
        caret.current = null;
    });
    const take = (/** @type {string} */ option) => {
        const isEnd = !option.endsWith(':');
        const rest = text.slice(to);
        caret.current = from + option.length + (isEnd ? 1 : 0);
        change(text.slice(0, from) + option + (isEnd && !rest.startsWith(' ') ? ' ' : '') + rest);
        set(isEnd ? CLOSED : { at: caret.current, chosen: -1 });
        input.current?.focus();
    };
    const keys = keysOf(options, chosen, { choose: one => set({ at, chosen: one }), close: () => set(CLOSED), take });
    const onInput = (/** @type {any} */ { target }) => {
        change(target.value);
        set({ at: target.selectionStart ?? target.value.length, chosen: -1 });
    };
    return html`<div class="query"><input type="search" id="filter" role="combobox" ref=${input} aria-label="Filter calls" spellcheck="false"
        aria-invalid=${wrong ? 'true' : undefined} aria-describedby="filter-note" aria-autocomplete="list" aria-controls="filter-options"
        aria-expanded=${options.length ? 'true' : 'false'} aria-activedescendant=${options[chosen] ? `filter-option-${chosen}` : undefined}
        autocomplete="off" value=${text} placeholder="client: server: tool: method: outcome: took:>1s era:across node: or any text"
        onInput=${onInput} onKeyDown=${keys} onBlur=${() => set(CLOSED)} />
        <ul id="filter-options" role="listbox" aria-label="What can stand here" hidden=${!options.length}>${options.map(
            (
                option,
                index
            ) => html`<li id=${`filter-option-${index}`} key=${option.text} role="option" aria-selected=${index === chosen ? 'true' : 'false'}
            onMouseDown=${(/** @type {Event} */ event) => {
                event.preventDefault();
                take(option.text);
            }}><code><${Text} text=${option.text} most=${120} /></code><span class="muted">${option.about}</span></li>`
        )}</ul></div>`;
}

/**
 * Arrows choose, Enter and Tab take what is chosen, Esc closes the list. Without a choice, keys do what they do elsewhere.
 * @param {{ text: string }[]} options @param {number} chosen
 * @param {{ choose: (chosen: number) => void, close: () => void, take: (text: string) => void }} acts
 */
const keysOf =
    (options, chosen, { choose, close, take }) =>
    (/** @type {KeyboardEvent} */ event) => {
        const step = { ArrowDown: 1, ArrowUp: -1 }[event.key] ?? 0;
        const isTaken = (event.key === 'Enter' || event.key === 'Tab') && options[chosen];
        if (!options.length || event.isComposing || !(step || isTaken || event.key === 'Escape')) return;
        event.preventDefault();
        const next = chosen < 0 && step < 0 ? options.length - 1 : (chosen + step + options.length) % options.length;
        if (step) choose(next);
        else if (isTaken) take(options[chosen].text);
        else close();
    };
