// Times, durations, sizes and figures as they are shown.

/** @param {number | null | undefined} us @returns {string} "0.3 ms", "84 ms", "6.42 s", "3 min 20 s" */
export function duration(us) {
    if (us === null || us === undefined || Number.isNaN(us)) return '–';
    const ms = us / 1000;
    if (ms < 0.05) return us > 0 ? `${trim(ms, 2)} ms` : '0 ms';
    if (ms < 10) return `${trim(ms, 1)} ms`;
    if (ms < 999.5) return `${Math.round(ms)} ms`;
    if (ms < 9995) return `${trim(ms / 1000, 2)} s`;
    if (ms < 59_950) return `${trim(ms / 1000, 1)} s`;
    return span(Math.round(ms / 1000));
}

/** @param {number} value @param {number} digits */
const trim = (value, digits) => String(Number(value.toFixed(digits)));

/** @param {number} seconds @returns {string} "12 s", "3 min 20 s", "2 h 5 min", "6 days" */
export function span(seconds) {
    seconds = Math.max(0, Math.round(seconds));
    if (seconds < 60) return `${seconds} s`;
    if (seconds < 3600) return join(Math.floor(seconds / 60), 'min', seconds % 60, 's');
    if (seconds < 86_400) return join(Math.floor(seconds / 3600), 'h', Math.floor((seconds % 3600) / 60), 'min');
    const days = Math.floor(seconds / 86_400);
    return `${days} ${days === 1 ? 'day' : 'days'}`;
}

/** @param {number} big @param {string} unit @param {number} small @param {string} part */
const join = (big, unit, small, part) => (small ? `${big} ${unit} ${small} ${part}` : `${big} ${unit}`);

const pad = (/** @type {number} */ value, width = 2) => String(value).padStart(width, '0');

/** @param {string | number | Date | null | undefined} at @returns {Date | null} Numbers are Unix seconds. */
export function date(at) {
    if (at === null || at === undefined) return null;
    const made = at instanceof Date ? at : new Date(typeof at === 'number' ? at * 1000 : at);
    return Number.isNaN(made.getTime()) ? null : made;
}

/** @param {string | number | Date | null | undefined} at @returns {string} "10:47:31", in the viewer's zone */
export function clock(at) {
    const when = date(at);
    return when ? `${pad(when.getHours())}:${pad(when.getMinutes())}:${pad(when.getSeconds())}` : '–';
}

/** @param {string | number | Date | null | undefined} at @returns {string} "10:47:31.208" */
export function exactClock(at) {
    const when = date(at);
    return when ? `${clock(when)}.${pad(when.getMilliseconds(), 3)}` : '–';
}

/** @param {string | number | Date | null | undefined} at @param {number} now milliseconds @returns {string} "4 min", of what is past */
export function since(at, now = Date.now()) {
    const when = date(at);
    return when ? span((now - when.getTime()) / 1000) : '–';
}

/** @param {number | null | undefined} count @returns {string} "0.2 KB", "12.4 KB", "2.1 MB" */
export function bytes(count) {
    if (count === null || count === undefined) return '–';
    if (count < 100) return `${count} B`;
    if (count < 1e6) return `${(count / 1000).toFixed(count < 1e5 ? 1 : 0)} KB`;
    return `${(count / 1e6).toFixed(1)} MB`;
}

/** @param {{ kept?: { first: number, last: number }, bytes: number }} message @returns {string} What there is of a message that is cut. */
export function keptPart({ kept, bytes: all }) {
    const last = kept?.last ? ` and the last ${bytes(kept.last)}` : '';
    return `${kept ? `The first ${bytes(kept.first)}${last}` : 'A part'} of ${bytes(all)}.`;
}

/** @param {number | null | undefined} value @returns {string} With thin groups and only as many digits as say something. */
export function figure(value) {
    if (value === null || value === undefined || Number.isNaN(value)) return '–';
    const digits = value >= 100 || Number.isInteger(value) ? 0 : value >= 10 ? 1 : 2;
    return value.toLocaleString('en', { maximumFractionDigits: digits });
}

/** @param {number | null | undefined} part 0 to 1 @returns {string} */
export function percent(part) {
    if (part === null || part === undefined || Number.isNaN(part)) return '–';
    const value = part * 100;
    if (value > 0 && value < 0.1) return '<0.1%';
    return `${value.toFixed(value < 10 ? 1 : 0)}%`;
}

/** @param {number} count @param {string} one @param {string} [many] @returns {string} "1 call", "2 calls" */
export const counted = (count, one, many = `${one}s`) => `${figure(count)} ${count === 1 ? one : many}`;

/**
 * When a call waited for its client, or a person at it: from what asked the client something until it answered, or until
 * it called again where the call was parked. As the time by part counts it, open questions together are one wait.
 * @param {{ messages: any[], took_us: number | null, done: boolean }} call @returns {{ from: number, to: number }[]}
 */
export function waitingSpans({ messages, took_us, done }) {
    const client = messages.filter(message => message.wire === 'client').sort((a, b) => a.at_us - b.at_us);
    const spans = [];
    let [open, from] = [0, 0];
    for (const [index, message] of client.entries()) {
        const { way, kind, at_us } = message;
        const next = client[index + 1];
        const comesAgain = next ? next.way === 'in' && next.round > message.round : !done;
        const isParked = way === 'out' && kind === 'response' && comesAgain;
        const before = open;
        if (isParked || (way === 'out' && kind === 'request')) open++;
        else if (way === 'in') open = kind === 'request' ? 0 : kind === 'response' ? Math.max(0, open - 1) : open;
        if (!before && open) from = at_us;
        else if (before && !open) spans.push({ from, to: at_us });
    }
    if (open) spans.push({ from, to: Math.max(from, took_us ?? 0) });
    return spans;
}
