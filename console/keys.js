// Keys. Each page adds its own while it is shown; the last one added is asked first.

import { nextTheme, overlay, paused, say, singleKeys, go } from './state.js';
import { useLayoutEffect } from './ui.js';

/** @typedef {{ keys: Record<string, (event: KeyboardEvent) => void | boolean>, about: [string, string][] }} KeyMap */

/** @type {KeyMap[]} */
const maps = [];
/** How long `g` waits for the second key. */
const CHORD_TIMEOUT = 1500;
/** Second keys after `g`. */
export const PAGES = {
    o: '#/',
    t: '#/traffic',
    q: '#/questions',
    s: '#/servers',
    g: '#/groups',
    e: '#/sessions',
    b: '#/bridge',
    y: '#/try',
    c: '#/config',
    n: '#/cluster'
};

/** By the clock of events: what counts is when keys were pressed, not when a busy page came to them. */
let chordUntil = 0;

/** Name of a key as the maps have it: `a`, `Shift+c`, `Ctrl+Enter`, `ArrowDown`. @param {KeyboardEvent} event */
function nameOf(event) {
    const letter = event.key === ' ' ? 'Space' : event.key;
    const isUpper = letter.length === 1 && letter !== letter.toLowerCase();
    const shift = event.shiftKey && (letter.length > 1 || isUpper) ? 'Shift+' : '';
    const ctrl = event.ctrlKey || event.metaKey ? 'Ctrl+' : '';
    return `${ctrl}${shift}${letter.length === 1 ? letter.toLowerCase() : letter}`;
}

/** @param {EventTarget | null} target */
const isTyping = target =>
    target instanceof HTMLElement &&
    (target.isContentEditable ||
        (/^(?:input|textarea|select)$/iu.test(target.tagName) &&
            !/^(?:checkbox|radio|button)$/u.test(/** @type {HTMLInputElement} */ (target).type)));

/** @type {KeyMap} */
const everywhere = {
    keys: {
        '/': () => {
            overlay.value = 'palette';
        },
        '?': () => {
            overlay.value = 'keys';
        },
        t: nextTheme,
        '.': () => {
            paused.value = !paused.value;
            say(paused.value ? 'The page is held still' : 'The page goes on');
        },
        g: event => {
            chordUntil = event.timeStamp + CHORD_TIMEOUT;
        }
    },
    about: [
        ['/', 'Find, or go to'],
        ['g o', 'Overview'],
        ['g t', 'Traffic'],
        ['g q', 'Questions'],
        ['g s', 'Servers'],
        ['g g', 'Groups'],
        ['g e', 'Sessions'],
        ['g b', 'Bridge'],
        ['g y', 'Try a tool'],
        ['g c', 'Configuration'],
        ['g n', 'Cluster (nodes)'],
        ['j k', 'Next and previous row'],
        ['Enter', 'Open'],
        ['Esc', 'Close, then clear the filter'],
        ['t', 'Colours'],
        ['.', 'Hold the page still'],
        ['?', 'These keys']
    ]
};

/** @param {KeyboardEvent} event */
function onKey(event) {
    if (event.defaultPrevented || event.isComposing || event.altKey) return;
    const name = nameOf(event);
    const isSingle = !name.startsWith('Ctrl+') && !/^(?:Shift\+)?(?:Escape|Enter|Arrow|Home|End|Page)/u.test(name);
    if (document.querySelector('dialog[open]')) return;
    if (isTyping(event.target) && !name.startsWith('Ctrl+') && name !== 'Escape') return;
    if (isSingle && singleKeys.value === 'off') return;
    // Space and Enter belong to the control that has the focus.
    if (
        (name === 'Space' || name === 'Enter') &&
        event.target instanceof Element &&
        event.target.closest('button, a[href], summary, input')
    )
        return;
    if (chordUntil > event.timeStamp) {
        chordUntil = 0;
        const to = PAGES[/** @type {keyof typeof PAGES} */ (name)];
        if (to) {
            event.preventDefault();
            go(to);
        }
        return;
    }
    for (const { keys } of [...maps].reverse().concat(everywhere)) {
        const act = keys[name];
        if (act && act(event) !== false) {
            event.preventDefault();
            return;
        }
    }
}

export const startKeys = () => document.addEventListener('keydown', onKey);

/** @param {Record<string, (event: KeyboardEvent) => void | boolean>} keys @param {[string, string][]} about */
export function useKeys(keys, about = []) {
    // Before the page is painted: whatever one sees can be acted on at once.
    useLayoutEffect(() => {
        const map = { keys, about };
        maps.push(map);
        return () => {
            maps.splice(maps.indexOf(map), 1);
        };
    });
}

/** @returns {[string, string][]} What all keys do now. */
export const aboutKeys = () => [...maps.flatMap(map => map.about), ...everywhere.about];
