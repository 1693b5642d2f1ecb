// Characters that cannot be seen, or that turn the direction of what follows, so that a page can show them.

const INVISIBLE =
    /[\u0000-\u0008\u000b\u000c\u000e-\u001f\u007f-\u009f\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f\u3164\ufe00-\ufe0f\ufeff\uffa0\ufff0-\ufffb\u{e0000}-\u{e0fff}]/gu;

/** @param {string} text @returns {(string | { code: string })[]} Visible stretches, and the others by their code point. */
export function visible(text) {
    const parts = [];
    let from = 0;
    for (const found of text.matchAll(INVISIBLE)) {
        if (found.index > from) parts.push(text.slice(from, found.index));
        parts.push({
            code: `U+${/** @type {number} */ (found[0].codePointAt(0)).toString(16).toUpperCase().padStart(4, '0')}`
        });
        from = found.index + found[0].length;
    }
    if (from < text.length || !parts.length) parts.push(text.slice(from));
    return parts;
}

/** @param {string} text @param {number} most @returns {{ text: string, more: number }} Never cut within a character. */
export function cut(text, most) {
    if (text.length <= most) return { text, more: 0 };
    const isHalf = /[\ud800-\udbff]$/u.test(text.slice(0, most));
    const kept = text.slice(0, isHalf ? most - 1 : most);
    return { text: kept, more: text.length - kept.length };
}

/** @param {unknown} value A value of the API that should be text. @returns {string} */
export const asText = value =>
    typeof value === 'string' ? value : value === undefined || value === null ? '' : JSON.stringify(value);
