// A grid with more rows than the document has: only those in view, and some beyond, are made.

import { html, useEffect, useLayoutEffect, useRef, useState } from '../ui.js';

export const ROW_HEIGHT = 30;
const BEYOND = 12;

/**
 * @param {{ rows: any[], columns: { label: string, right?: boolean }[], cells: (row: any) => any, keyOf: (row: any) => string, chosen: string | null,
 *   open: (row: any) => void, label: string, classOf?: (row: any) => string, held?: (top: boolean) => void, short?: boolean, children?: any, size?: number | null }} props
 */
export function Grid({ rows, columns, cells, keyOf, chosen, open, label, classOf, held, short = false, children, size = null }) {
    const box = useRef(/** @type {HTMLElement | null} */ (null));
    const [view, setView] = useState({ top: 0, height: 600 });
    const measure = () => {
        const element = box.current;
        if (!element) return;
        setView(before => (before.top === element.scrollTop && before.height === element.clientHeight ? before : { top: element.scrollTop, height: element.clientHeight }));
        held?.(element.scrollTop < 4);
    };
    useEffect(() => {
        measure();
        const watcher = new ResizeObserver(measure);
        if (box.current) watcher.observe(box.current);
        return () => watcher.disconnect();
    }, []);
    useLayoutEffect(() => {
        if (box.current && size !== null) box.current.style.flexBasis = `${size}px`;
        else box.current?.style.removeProperty('flex-basis');
    }, [size]);
    const at = rows.findIndex(row => keyOf(row) === chosen);
    useLayoutEffect(() => { if (at >= 0) reveal(box.current, at); }, [chosen]);
    const first = Math.max(0, Math.floor(view.top / ROW_HEIGHT) - BEYOND);
    const last = Math.min(rows.length, Math.ceil((view.top + view.height) / ROW_HEIGHT) + BEYOND);
    return html`<div class=${`calls${short ? ' short' : ''}`} ref=${box} onScroll=${measure}>${children}
        <table role="grid" tabindex="0" aria-label=${label} aria-rowcount=${rows.length + 1} aria-activedescendant=${at >= first && at < last ? `row-${at}` : undefined}>
        <thead><tr aria-rowindex="1">${columns.map(column => html`<th scope="col" class=${column.right ? 'r' : ''}>${column.label}</th>`)}</tr></thead><tbody>
        ${first > 0 && html`<${Pad} key="above" rows=${first} columns=${columns.length} />`}
        ${rows.slice(first, last).map((row, index) => html`<tr key=${keyOf(row)} id=${`row-${first + index}`} aria-rowindex=${first + index + 2} class=${classOf?.(row) ?? ''}
            aria-selected=${keyOf(row) === chosen ? 'true' : 'false'} onClick=${() => open(row)}>${cells(row)}</tr>`)}
        ${last < rows.length && html`<${Pad} key="below" rows=${rows.length - last} columns=${columns.length} />`}</tbody></table></div>`;
}

/** Room for rows that are not made. @param {{ rows: number, columns: number }} props */
function Pad({ rows, columns }) {
    const cell = useRef(/** @type {HTMLElement | null} */ (null));
    useLayoutEffect(() => { if (cell.current) cell.current.style.height = `${rows * ROW_HEIGHT}px`; }, [rows]);
    return html`<tr class="pad" aria-hidden="true"><td ref=${cell} colspan=${columns}></td></tr>`;
}

/** @param {HTMLElement | null} box @param {number} at Scrolls so that a row is seen, below the head that stays. */
function reveal(box, at) {
    if (!box) return;
    const top = at * ROW_HEIGHT;
    if (top < box.scrollTop) box.scrollTop = top;
    else if (top + ROW_HEIGHT * 2 > box.scrollTop + box.clientHeight) box.scrollTop = top + ROW_HEIGHT * 2 - box.clientHeight;
}

/** @param {any[]} rows @param {(row: any) => string} keyOf @param {string | null} chosen @param {number} step @returns {any} The row that is that far from the chosen one. */
export function neighbour(rows, keyOf, chosen, step) {
    const at = rows.findIndex(row => keyOf(row) === chosen);
    return at < 0 ? rows[0] : rows[Math.min(rows.length - 1, Math.max(0, at + step))];
}
