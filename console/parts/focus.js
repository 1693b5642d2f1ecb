// Focus is never lost: when what has it is taken away, it goes to what took its place, or to what is nearest.

const FOCUSABLE = 'a[href], button, input, select, textarea, summary, [tabindex]:not([tabindex="-1"])';

/** @typedef {{ parent: Element, next: Node | null, previous: Node | null }} Gap */

/** What has the focus, or had it before it was taken away. @type {HTMLElement | null} */
let holder = null;

/** @param {Element | null} element @returns {element is HTMLElement} */
const canHold = element =>
    element instanceof HTMLElement && element.matches(FOCUSABLE) && !element.matches(':disabled') && isSeen(element);

/** @param {Element} element */
const isSeen = element => element.checkVisibility() && !element.closest('[inert]');

/** @param {Node | null} within @returns {HTMLElement[]} */
const holdersIn = within =>
    within instanceof Element ? [within, ...within.querySelectorAll(FOCUSABLE)].filter(canHold) : [];

/** @param {HTMLElement} element @returns {string} */
const nameOf = element =>
    element.id || `${element.tagName} ${element.getAttribute('aria-label') ?? element.textContent?.trim()}`;

/** @param {Element} element @returns {string | null | undefined} What the row says that it is in. */
const rowText = element => element.closest('tr, li')?.textContent;

/**
 * The same control, made again. Another row has controls of the same name that do other things.
 * @param {HTMLElement} gone @param {Node | null} within
 */
function sameIn(gone, within) {
    const [name, row] = [nameOf(gone), rowText(gone)];
    return holdersIn(within).find(one => nameOf(one) === name && (gone.id || rowText(one) === row));
}

/** @param {Gap} gap @returns {HTMLElement | undefined} What follows, or what was before. */
function beside({ parent, next, previous }) {
    for (let one = next; one; one = one.nextSibling) {
        const [first] = holdersIn(one);
        if (first && parent.contains(first)) return first;
    }
    for (let one = previous; one; one = one.previousSibling) {
        const found = holdersIn(one).at(-1);
        if (found && parent.contains(found)) return found;
    }
    return undefined;
}

/** @param {HTMLElement} gone @param {Gap} gap @returns {HTMLElement | null} */
function successor(gone, gap) {
    const around = gap.parent.closest('dialog, main');
    if (!around?.isConnected) return null;
    const row = gap.parent.closest('tr, li');
    const name = nameOf(gone);
    // What is taken out of a row that stays is looked for in that row alone.
    const same = row ? holdersIn(row).find(one => nameOf(one) === name) : sameIn(gone, around);
    if (same) return same;
    for (let at = gap; ;) {
        const { parent } = at;
        const found = beside(at) ?? (canHold(parent) ? parent : null);
        if (found || parent === around || !parent.parentElement) return found;
        at = { parent: parent.parentElement, next: parent.nextSibling, previous: parent.previousSibling };
    }
}

/** @param {MutationRecord[]} records @param {Element} gone @returns {Gap | null} Where it was, in what is still there. */
function gapOf(records, gone) {
    let [inside, gap] = /** @type {[Node, Gap | null]} */ ([gone, null]);
    for (const { target, removedNodes, nextSibling: next, previousSibling: previous } of records) {
        if (target instanceof Element && [...removedNodes].some(one => one.contains(inside))) {
            gap = { parent: target, next, previous };
            inside = target;
        }
    }
    return gap?.parent.isConnected ? gap : null;
}

/** Focuses the title of the page, from which Tab goes on. */
const focusTitle = () => document.querySelector('h1')?.focus({ preventScroll: true });

/** @param {HTMLElement} gone @param {Gap | null} gap */
function moveOn(gone, gap) {
    const to = gap && successor(gone, gap);
    if (to) to.focus({ preventScroll: true });
    else focusTitle();
}

/** @param {MutationRecord[]} records */
function onChange(records) {
    if (!holder) return;
    const gone = holder;
    const isLost = !document.activeElement || document.activeElement === document.body;
    if (!gone.isConnected) {
        if (isLost) moveOn(gone, gapOf(records, gone));
    } else if (gone.matches(':disabled')) {
        const { parentElement: parent, nextSibling: next, previousSibling: previous } = gone;
        if (parent) moveOn(gone, { parent, next, previous });
    } else if (isLost && records.some(({ addedNodes }) => [...addedNodes].some(one => one.contains(gone)))) {
        // It was moved to another place, for which the browser takes it out for a moment.
        gone.focus({ preventScroll: true });
    }
}

/** Gives the focus back to what had it before, or to what took its place. @param {Element | null} before */
export function giveBack(before) {
    if (!(before instanceof HTMLElement || before instanceof SVGElement) || before === document.body) return;
    const main = document.querySelector('main');
    const again = () => (before instanceof HTMLElement ? sameIn(before, main) : null);
    const to = before.isConnected ? before : again();
    if (to) to.focus();
    else focusTitle();
}

/** Watches over the focus of the whole page. */
export function startFocus() {
    document.addEventListener('focusin', ({ target }) => {
        if (target instanceof HTMLElement) holder = target;
    });
    document.addEventListener('focusout', ({ target }) => {
        // Whoever lets go of it on purpose, by a click beside it, wants nothing in its place.
        setTimeout(() => {
            if (holder === target && holder?.isConnected && document.activeElement === document.body) holder = null;
        });
    });
    new MutationObserver(onChange).observe(document.body, {
        childList: true,
        subtree: true,
        attributes: true,
        attributeFilter: ['disabled']
    });
}
