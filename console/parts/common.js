// Small parts that every page uses: states, texts of strangers, tabs, buttons that copy.

import { actError } from '../api.js';
import { copy } from '../state.js';
import { cut, visible } from '../pure/text.js';
import { clock } from '../pure/time.js';
import { html, useState } from '../ui.js';
import { Icon } from './icons.js';

/** Longest text of a server that is shown at once. */
const TEXT_MAX = 20_000;

/** Text of others: as text, with what cannot be seen made visible. @param {{ text?: string | null, most?: number }} props */
export function Text({ text, most = TEXT_MAX }) {
    const { text: kept, more } = cut(text ?? '', most);
    return html`${visible(kept).map(part => (typeof part === 'string' ? part : html`<span class="inv" title="A character that cannot be seen">${part.code}</span>`))}
        ${more > 0 && html`<span class="muted">… ${more.toLocaleString('en')} more characters</span>`}`;
}

/** @param {{ state: string }} props One of ok, warn, bad, wait. */
export const Dot = ({ state }) => html`<span class=${`dot ${state}`} aria-hidden="true"></span>`;

/** @param {{ revision?: string | null, as?: string }} props */
export const Revision = ({ revision, as = 'tag mono' }) =>
    revision ? html`<span class=${as}>${revision}</span>` : null;

const SHAPES = { ready: 'ok', starting: 'wait', degraded: 'warn', down: 'bad', here: 'ok', alive: 'ok', away: 'bad' };
/** @param {string} phase @returns {string} */
export const shapeOf = phase => SHAPES[/** @type {keyof typeof SHAPES} */ (phase)] ?? 'wait';

const WARNINGS = new Set(['tool_error', 'cancelled', 'timeout', 'input_required']);
/** @param {{ outcome?: string | null, done?: boolean }} props */
export function Outcome({ outcome, done = true }) {
    const undone = outcome === 'waiting' ? 'waiting' : 'running';
    if (!done) return html`<span class="outcome"><${Dot} state="wait" />${undone}</span>`;
    const shape = outcome === 'ok' ? 'ok' : WARNINGS.has(outcome ?? '') ? 'warn' : 'bad';
    return html`<span class=${`outcome ${shape}`}><${Dot} state=${shape} />${(outcome ?? 'unknown').replaceAll('_', ' ')}</span>`;
}

/** @param {{ text: string, label?: string, what?: string }} props */
export const Copy = ({ text, label = 'Copy', what = 'Text' }) =>
    html`<button type="button" class="btn" onClick=${() => copy(text, what)}><${Icon} name="copy" />${label}</button>`;

/** A command or address to take along. @param {{ text: string, what?: string }} props */
export const CopyLine = ({ text, what = 'Line' }) =>
    html`<div class="copyline"><code tabindex="0">${text}</code><${Copy} text=${text} what=${what} /></div>`;

/** @param {string} said @returns {string} What the API said, which begins small and has no end. */
export const sentence = said => (said ? said[0].toUpperCase() + said.slice(1) + (/[.?!]$/u.test(said) ? '' : '.') : '');

/** What would be here, and how it gets here. @param {{ title: string, children?: any, level?: number }} props */
export const Empty = ({ title, children, level = 2 }) =>
    html`<div class="empty">${level === 2 ? html`<h2>${title}</h2>` : html`<h3>${title}</h3>`}${children}</div>`;

/** @param {{ error: { message: string, hint?: string } | null, at?: Date | null, retry?: () => void }} props */
export function ErrorStrip({ error, at, retry }) {
    if (!error) return null;
    return html`<div class="strip-note bad" role="alert"><${Dot} state="bad" /><span><b><${Text} text=${sentence(error.message)} /></b>${' '}
        <span class="muted">${error.hint ? html`<${Text} text=${sentence(error.hint)} />` : ''}${at ? ` What is shown is as of ${clock(at)}.` : ''}</span></span>
        ${retry && html`<button type="button" class="btn" onClick=${retry}>Try again</button>`}</div>`;
}

/** The strip of an act that failed. */
export const ActError = () =>
    actError.value
        ? html`<${ErrorStrip} error=${actError.value} /><div class="hidden"><button type="button" onClick=${() => {
              actError.value = null;
          }}>Dismiss</button></div>`
        : null;

/** Grey rows, after a moment. @param {{ columns: number, rows?: number }} props */
export const Bones = ({ columns, rows = 4 }) =>
    html`${Array.from(
        { length: rows },
        (_, row) => html`<tr class="bones" key=${`bone${row}`} aria-hidden="true">
    ${Array.from({ length: columns }, (__, column) => html`<td><svg width=${40 + ((row * 37 + column * 53) % 60)} height="9" class="bone"></svg></td>`)}</tr>`
    )}`;

/**
 * Tabs by the pattern of ARIA: arrows move, Home and End jump.
 * @param {{ tabs: { id: string, label: string, count?: number | string | null }[], chosen: string, choose: (id: string) => void, label: string, children?: any, panel: string }} props
 */
export function Tabs({ tabs, chosen, choose, label, children, panel }) {
    const onKeyDown = (/** @type {KeyboardEvent} */ event) => {
        const at = tabs.findIndex(tab => tab.id === chosen);
        const to = { ArrowRight: at + 1, ArrowLeft: at - 1, Home: 0, End: tabs.length - 1 }[event.key];
        if (to === undefined) return;
        event.preventDefault();
        const next = tabs[(to + tabs.length) % tabs.length];
        choose(next.id);
        document.getElementById(`tab-${panel}-${next.id}`)?.focus();
    };
    return html`<div class="tabs"><div role="tablist" aria-label=${label} onKeyDown=${onKeyDown}>
        ${tabs.map(
            tab => html`<button type="button" role="tab" id=${`tab-${panel}-${tab.id}`} key=${tab.id} aria-selected=${tab.id === chosen ? 'true' : 'false'}
            aria-controls=${panel} tabindex=${tab.id === chosen ? 0 : -1} onClick=${() => choose(tab.id)}>${tab.label}${tab.count ? html`<span>${tab.count}</span>` : ''}</button>`
        )}
        </div>${children && html`<span class="gap"></span>${children}`}</div>`;
}

/** @param {{ panel: string, chosen: string, class?: string, children?: any }} props */
export const TabPanel = ({ panel, chosen, class: name = 'tabpanel', children }) =>
    html`<div id=${panel} role="tabpanel" tabindex="0" aria-labelledby=${`tab-${panel}-${chosen}`} class=${name}>${children}</div>`;

/** One of a few. @param {{ options: [string, string][], chosen: string, choose: (value: string) => void, label: string }} props */
export const Segments = ({ options, chosen, choose, label }) => html`<span class="seg" role="group" aria-label=${label}>
    ${options.map(([value, name]) => html`<button type="button" key=${value} aria-pressed=${value === chosen ? 'true' : 'false'} onClick=${() => choose(value)}>${name}</button>`)}</span>`;

/** @param {{ text: string, class?: string, most?: number, label: string }} props A block of text of others, cut where it is long. */
export function TextBlock({ text, class: name = 'text', most = TEXT_MAX, label }) {
    const [shown, setShown] = useState(most);
    const { more } = cut(text, shown);
    return html`<pre class=${name} tabindex="0" aria-label=${label}><${Text} text=${text} most=${shown} /></pre>
        ${more > 0 && shown < 400_000 && html`<button type="button" class="btn" onClick=${() => setShown(shown * 4)}>Show more</button>`}`;
}
