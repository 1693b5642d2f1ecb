// What several parts of the page share: the address, who is signed in, theme, range, and sentences for the live region.

import { computed, signal } from './ui.js';

/** @typedef {import('./types.d.ts').components['schemas']['Me']} Me */

/** Operator's preferences; no secret is among them. @param {string} name @param {string} otherwise */
function preference(name, otherwise) {
    const chosen = signal(otherwise);
    try {
        chosen.value = localStorage.getItem(`rialto.${name}`) ?? otherwise;
    } catch {
        /* Storage may be off; the choice then lasts as long as the page. */
    }
    chosen.subscribe(value => {
        try {
            localStorage.setItem(`rialto.${name}`, value);
        } catch {
            /* As above. */
        }
    });
    return chosen;
}

/** "", "light" or "dark"; empty follows the system. */
export const theme = preference('theme', '');
/** "on" or "off": keys without Ctrl, Alt or Meta. */
export const singleKeys = preference('keys', 'on');
export const range = preference('range', '15m');

export const me = signal(/** @type {Me | null} */ (null));
/** Why the sign-in page is shown: null when it is not. */
export const signInReason = signal(/** @type {string | null} */ (null));
/** Counts beside the navigation. */
export const counts = signal(/** @type {Record<string, number>} */ ({}));
/** True while the operator holds the page still. */
export const paused = signal(false);
/** Dialogs over the page: "palette", "keys" or none. */
export const overlay = signal(/** @type {'palette' | 'keys' | null} */ (null));

/** Hash of the address, without `#`. */
const hash = signal(location.hash.slice(1));
addEventListener('hashchange', () => {
    // A link with a key is taken apart in api.js first.
    if (!location.hash.startsWith('#key=')) hash.value = location.hash.slice(1);
});

/** Parts and query of the address: `#/servers/a%2Fb?tab=log` → `['servers', 'a/b']`, `tab`. */
export const route = computed(() => {
    const [path, query = ''] = split(hash.value || '/');
    const parts = path
        .split('/')
        .filter(Boolean)
        .map(part => {
            try {
                return decodeURIComponent(part);
            } catch {
                return part;
            }
        });
    return { parts, query: new URLSearchParams(query), address: hash.value };
});

/** @param {string} text */
function split(text) {
    const mark = text.indexOf('?');
    return mark < 0 ? [text] : [text.slice(0, mark), text.slice(mark + 1)];
}

/** @param {string[]} parts @param {Record<string, string | null | undefined>} [query] @returns {string} */
export function address(parts, query = {}) {
    const given = Object.entries(query).filter(([, value]) => value !== null && value !== undefined && value !== '');
    const search = new URLSearchParams(/** @type {[string, string][]} */ (given)).toString();
    return `#/${parts.map(encodeURIComponent).join('/')}${search ? `?${search}` : ''}`;
}

/** @param {string} group @returns {string} Where clients call it. */
export const groupUrl = group => new URL(group === 'default' ? 'mcp' : `mcp/${group}`, document.baseURI).href;

/** @param {string} to */
export function go(to) {
    location.hash = to;
}

/** Changes the query of the address. Without `push`, back does not return to what was. @param {Record<string, string | null>} changes @param {boolean} [push] */
export function setQuery(changes, push = false) {
    const { parts, query } = route.peek();
    const next = address(parts, { ...Object.fromEntries(query), ...changes });
    if (next === location.hash) return;
    if (push) return go(next);
    history.replaceState(null, '', next);
    hash.value = next.slice(1);
}

/** Takes up the address after `history.replaceState`. */
export const readAddress = () => {
    hash.value = location.hash.slice(1);
};

/** The sentence of the polite live region. */
export const spoken = signal('');
/** What is shown for a moment at the bottom of the page. */
export const toast = signal('');
const SPOKEN_INTERVAL = 5000;
let lastSpoken = 0;
let toastTimer = 0;

/** Tells screen readers, at most one sentence in five seconds. @param {string} sentence */
export function speak(sentence) {
    const now = Date.now();
    if (now - lastSpoken < SPOKEN_INTERVAL) return;
    lastSpoken = now;
    spoken.value = sentence;
}

/** Shows the outcome of an act. @param {string} sentence */
export function say(sentence) {
    toast.value = sentence;
    clearTimeout(toastTimer);
    toastTimer = setTimeout(() => {
        toast.value = '';
    }, 4000);
}

/** @param {string} right @returns {boolean} */
export const may = right => me.value?.rights.includes(/** @type {any} */ (right)) ?? false;

/** @param {string} text @param {string} what */
export async function copy(text, what) {
    try {
        await navigator.clipboard.writeText(text);
        say(`${what} copied`);
    } catch {
        say('The browser did not allow copying');
    }
}

const THEMES = ['', 'light', 'dark'];
const THEME_NAMES = { '': 'as the system', light: 'light', dark: 'dark' };
export function nextTheme() {
    theme.value = THEMES[(THEMES.indexOf(theme.value) + 1) % THEMES.length];
    say(`Colours: ${THEME_NAMES[/** @type {keyof typeof THEME_NAMES} */ (theme.value)]}`);
}
theme.subscribe(value => {
    if (value) document.documentElement.dataset.theme = value;
    else delete document.documentElement.dataset.theme;
});
