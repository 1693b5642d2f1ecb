// The line between two parts of a page: dragged with the mouse, moved with the arrows.

import { html, useRef } from '../ui.js';

const STEP = 30;

/** @param {{ label: string, value: number | null, min: number, max: number, change: (value: number) => void }} props */
export function Divider({ label, value, min, max, change }) {
    const from = useRef(/** @type {{ y: number, value: number } | null} */ (null));
    const onPointerDown = (/** @type {PointerEvent} */ event) => {
        from.current = { y: event.clientY, value: value ?? min };
        /** @type {HTMLElement} */ (event.currentTarget).setPointerCapture(event.pointerId);
    };
    const onPointerMove = (/** @type {PointerEvent} */ event) => {
        if (from.current) change(from.current.value + event.clientY - from.current.y);
    };
    const onPointerUp = () => {
        from.current = null;
    };
    const onKeyDown = (/** @type {KeyboardEvent} */ event) => {
        const to = { ArrowUp: -STEP, ArrowDown: STEP, Home: -Infinity, End: Infinity }[event.key];
        if (to === undefined) return;
        event.preventDefault();
        change((value ?? min) + to);
    };
    return html`<div class="divider" role="separator" tabindex="0" aria-orientation="horizontal" aria-label=${label} aria-valuenow=${value}
        aria-valuemin=${min} aria-valuemax=${max} onPointerDown=${onPointerDown} onPointerMove=${onPointerMove} onPointerUp=${onPointerUp}
        onPointerCancel=${onPointerUp} onKeyDown=${onKeyDown}></div>`;
}
