// What Traffic is filtered by, and what is said about it.

import { Segments } from '../parts/common.js';
import { Icon } from '../parts/icons.js';
import { QueryInput } from '../parts/query.js';
import { explain } from '../pure/query.js';
import { paused, setQuery } from '../state.js';
import { html, useEffect, useState } from '../ui.js';

/** The table follows each letter of the filter; the gateway is asked after this long without one. */
const TYPING_PAUSE = 150;
const SHOWN = [
    ['calls', 'Calls'],
    ['all', 'Everything'],
    ['failed', 'Failed']
];

/** @param {string} text @returns {string} As it was when nobody had changed it for a moment: the gateway is not asked at each letter. */
export function useSettled(text) {
    const [settled, setSettled] = useState(text);
    useEffect(() => {
        const timer = setTimeout(setSettled, TYPING_PAUSE, text);
        return () => clearTimeout(timer);
    }, [text]);
    return settled;
}

/** @param {{ q: string, show: string, error: string | null, rows: any[] }} props */
export function Filters({ q, show, error, rows }) {
    const toggle = () => {
        paused.value = !paused.value;
    };
    return html`<div class="filters" role="search">
        <${QueryInput} text=${q} rows=${rows} wrong=${error !== null} change=${(/** @type {string} */ text) => setQuery({ q: text })} />
        <${Segments} label="Show" chosen=${show} options=${SHOWN}
        choose=${(/** @type {string} */ value) => setQuery({ show: value === 'calls' ? null : value })} />
        <button type="button" class="btn" aria-pressed=${paused.value ? 'true' : 'false'} onClick=${toggle}>
        <${Icon} name=${paused.value ? 'play' : 'pause'} />${paused.value ? 'Go on' : 'Pause'}<kbd>Space</kbd></button>
        <div class="note" id="filter-note"><span class="wrong" role="alert">${error}</span>
        <span class="muted" role="status">${error ? '' : explain(q)}</span></div></div>`;
}
