// Small lines of figures, and the bar of whose time a call took.

import { duration } from '../pure/time.js';
import { html } from '../ui.js';

/** @param {(number | null)[]} values @param {number} width @param {number} height @returns {{ line: string, fill: string }} Steps of which nothing is known are gaps. */
function paths(values, width, height) {
    const most = Math.max(...values.map(value => value ?? 0), 1e-9);
    const step = width / Math.max(1, values.length - 1);
    const x = (/** @type {number} */ index) => (index * step).toFixed(1);
    const runs = /** @type {[number, number[]][]} */ ([]);
    values.forEach((value, index) => {
        if (value === null) return;
        const run = runs.at(-1);
        if (run && index === run[0] + run[1].length) run[1].push(value);
        else runs.push([index, [value]]);
    });
    const drawn = runs.map(([from, known]) => {
        const y = (/** @type {number} */ value) => (height - 3 - (value / most) * (height - 6)).toFixed(1);
        const points = known.map((value, at) => `${x(from + at)} ${y(value)}`);
        // One step alone is a dash.
        const line = `M${points.join('L')}${known.length === 1 ? 'h2' : ''}`;
        return { line, fill: `M${points.join('L')}L${x(from + known.length - 1)} ${height}L${x(from)} ${height}Z` };
    });
    return { line: drawn.map(one => one.line).join(''), fill: drawn.map(one => one.fill).join('') };
}

/** @param {{ values?: (number | null)[], bad?: boolean, width?: number, height?: number }} props Decoration: the figure beside it says the same. */
export function Spark({ values = [], bad = false, width = 84, height = 30 }) {
    if (values.length < 2)
        return html`<svg class="spark" viewBox=${`0 0 ${width} ${height}`} aria-hidden="true"></svg>`;
    const { line, fill } = paths(values, width, height);
    return html`<svg class="spark" viewBox=${`0 0 ${width} ${height}`} preserveAspectRatio="none" aria-hidden="true">
        <path class="fill" d=${fill} /><path class=${bad ? 'bad' : ''} d=${line} /></svg>`;
}

const PARTS = /** @type {const} */ ([
    ['rialto_us', 'us', 't-us'],
    ['open_us', 'op', 't-open'],
    ['server_us', 'them', 't-them'],
    ['client_us', 'person', 't-person']
]);

/** @param {any} time @param {number} width @param {number} gap Widths of the four parts; each that is there is seen. */
function widths(time, width, gap) {
    const total = PARTS.reduce((sum, [key]) => sum + (time?.[key] ?? 0), 0);
    const there = PARTS.filter(([key]) => (time?.[key] ?? 0) > 0);
    const room = width - gap * Math.max(0, there.length - 1) - 2 * there.length;
    let x = 0;
    return there.map(([key, row, big]) => {
        const wide = 2 + Math.max(0, room) * (time[key] / (total || 1));
        const part = { x, wide, row, big };
        x += wide + gap;
        return part;
    });
}

/** @param {{ time: any, took: number | null, most: number }} props Length on a logarithmic scale, so that short calls are seen beside long ones. */
export function TimeBar({ time, took, most }) {
    const length = took
        ? Math.max(4, 92 * Math.min(1, Math.log10(1 + took / 50) / Math.log10(1 + Math.max(most, 1) / 50)))
        : 0;
    return html`<svg class="bar" viewBox="0 0 92 6" aria-hidden="true"><rect class="track" width="92" height="6" rx="2" />
        ${length > 0 && widths(time, length, 1).map(part => html`<rect class=${part.row} x=${part.x.toFixed(1)} width=${part.wide.toFixed(1)} height="6" rx="1" />`)}</svg>`;
}

/** @param {{ time: any, took: number | null, server: string }} props */
export function TimeParts({ time, took, server }) {
    const names = [
        ['Rialto', time?.rialto_us],
        ['opening', time?.open_us],
        [server, time?.server_us],
        ['a person', time?.client_us]
    ].filter(([, us]) => us > 0);
    const said = `Of ${duration(took)}: ${names.map(([name, us]) => `${name} ${duration(us)}`).join(', ')}`;
    return html`<div class="time"><svg viewBox="0 0 460 8" preserveAspectRatio="none" role="img" aria-label=${said}>
        ${widths(time, 460, 1).map(part => html`<rect class=${part.big} x=${part.x.toFixed(1)} width=${part.wide.toFixed(1)} height="8" rx="1" />`)}</svg>
        <div class="keys">${names.map(([name, us]) => html`<span key=${name}><b>${name}</b> ${duration(us)}</span>`)}</div></div>`;
}
