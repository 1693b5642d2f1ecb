// A grid with more rows than the document has: only those in view, and some beyond, are made.

import { html, useEffect, useLayoutEffect, useMemo, useRef, useState } from '../ui.js';

export const ROW_HEIGHT = 30;
const BEYOND = 12;

/** @typedef {{ label: string, right?: boolean }} Column */
/** @typedef {{ top: number, height: number }} View */

/** What is in view of a box that scrolls. @param {((top: boolean) => void) | undefined} held @param {(() => void) | undefined} atEnd */
function useView(held, atEnd) {
    const box = useRef(/** @type {HTMLElement | null} */ (null));
    const [view, setView] = useState({ top: 0, height: 600 });
    const measure = () => {
        const element = box.current;
        if (!element) return;
        const { scrollTop: top, clientHeight: height, scrollHeight } = element;
        setView(before => (before.top === top && before.height === height ? before : { top, height }));
        held?.(top < 4);
        if (top > 0 && top + height > scrollHeight - height) atEnd?.();
    };
    // The observer lives as long as the table; what it calls is that of the last time the table was drawn.
    const latest = useRef(measure);
    latest.current = measure;
    useEffect(() => {
        const watcher = new ResizeObserver(() => latest.current());
        if (box.current) watcher.observe(box.current);
        return () => watcher.disconnect();
    }, []);
    return { box, view, measure };
}

/**
 * @param {{ rows: any[], columns: Column[], cells: (row: any) => any, keyOf: (row: any) => string, chosen: string | null, made: string,
 *   open: (row: any) => void, label: string, classOf?: (row: any) => string, held?: (top: boolean) => void, atEnd?: () => void,
 *   short?: boolean, children?: any, size?: number | null }} props
 */
export function Grid({
    rows,
    columns,
    keyOf,
    chosen,
    label,
    held,
    atEnd,
    short = false,
    children,
    size = null,
    ...of
}) {
    const { box, view, measure } = useView(held, atEnd);
    useLayoutEffect(() => {
        if (box.current && size !== null) box.current.style.flexBasis = `${size}px`;
        else box.current?.style.removeProperty('flex-basis');
    }, [size]);
    const at = rows.findIndex(row => keyOf(row) === chosen);
    useLayoutEffect(() => {
        if (at >= 0) reveal(box.current, at);
    }, [chosen]);
    const first = Math.max(0, Math.floor(view.top / ROW_HEIGHT) - BEYOND);
    const last = Math.min(rows.length, Math.ceil((view.top + view.height) / ROW_HEIGHT) + BEYOND);
    const active = at >= first && at < last ? `row-${at}` : undefined;
    const made = rows
        .slice(first, last)
        .map((row, index) => ({ row, at: first + index, isChosen: keyOf(row) === chosen }));
    return html`<div class=${`calls${short ? ' short' : ''}`} ref=${box} onScroll=${measure}>${children}
        <table role="grid" tabindex="0" aria-label=${label} aria-rowcount=${rows.length + 1} aria-activedescendant=${active}>
        <thead><tr aria-rowindex="1">${columns.map(
            column => html`<th scope="col" class=${column.right ? 'r' : ''}>${column.label}</th>`
        )}</tr></thead><tbody>
        ${first > 0 && html`<${Pad} key="above" rows=${first} columns=${columns.length} />`}
        ${made.map(one => html`<${GridRow} key=${keyOf(one.row)} ...${one} of=${of} />`)}
        ${last < rows.length && html`<${Pad} key="below" rows=${rows.length - last} columns=${columns.length} />`}</tbody></table></div>`;
}

/** @param {{ row: any, at: number, isChosen: boolean, of: { cells: (row: any) => any, made: string, open: (row: any) => void, classOf?: (row: any) => string } }} props */
function GridRow({ row, at, isChosen, of }) {
    // A key changes one row or two; the cells of the others are not made again.
    const cells = useMemo(() => of.cells(row), [row, of.made]);
    return html`<tr id=${`row-${at}`} aria-rowindex=${at + 2} class=${of.classOf?.(row) ?? ''} aria-selected=${isChosen ? 'true' : 'false'}
        onClick=${() => of.open(row)}>${cells}</tr>`;
}

/** Room for rows that are not made. @param {{ rows: number, columns: number }} props */
function Pad({ rows, columns }) {
    const cell = useRef(/** @type {HTMLElement | null} */ (null));
    useLayoutEffect(() => {
        if (cell.current) cell.current.style.height = `${rows * ROW_HEIGHT}px`;
    }, [rows]);
    return html`<tr class="pad" aria-hidden="true"><td ref=${cell} colspan=${columns}></td></tr>`;
}

/** @param {HTMLElement | null} box @param {number} at Scrolls so that a row is seen, below the head that stays. */
function reveal(box, at) {
    if (!box) return;
    const top = at * ROW_HEIGHT;
    if (top < box.scrollTop) box.scrollTop = top;
    else if (top + ROW_HEIGHT * 2 > box.scrollTop + box.clientHeight)
        box.scrollTop = top + ROW_HEIGHT * 2 - box.clientHeight;
}

/** @param {any[]} rows @param {(row: any) => string} keyOf @param {string | null} chosen @param {number} step @returns {any} The row that is that far from the chosen one. */
export function neighbour(rows, keyOf, chosen, step) {
    const at = rows.findIndex(row => keyOf(row) === chosen);
    return at < 0 ? rows[0] : rows[Math.min(rows.length - 1, Math.max(0, at + step))];
}

/** Rows that a table begins with, and how many more each look at its end brings. */
const [FIRST_ROWS, MORE_ROWS] = [60, 200];

/**
 * Rows of a table that may be long: the first of them, and more as soon as its end is seen.
 * @param {{ items: any[], columns: number, row: (item: any, index: number) => any }} props
 */
export function LongRows({ items, columns, row }) {
    const [most, setMost] = useState(FIRST_ROWS);
    const end = useRef(/** @type {HTMLElement | null} */ (null));
    const left = items.length - most;
    useEffect(() => {
        if (left <= 0 || !end.current) return undefined;
        const watcher = new IntersectionObserver(seen => {
            if (seen.some(one => one.isIntersecting)) setMost(before => before + MORE_ROWS);
        });
        watcher.observe(end.current);
        return () => watcher.disconnect();
    }, [most, left]);
    return html`${items.slice(0, most).map(row)}
        ${left > 0 && html`<tr key="more" ref=${end}><td colspan=${columns} class="muted">${left.toLocaleString('en')} more</td></tr>`}`;
}
