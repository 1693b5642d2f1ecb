// One field for the key, and where it is.

import { setKey } from '../api.js';
import { Brand } from '../parts/icons.js';
import { signInReason } from '../state.js';
import { html, useEffect, useRef, useState } from '../ui.js';

/** @param {{ signedIn: () => Promise<void> }} props Tries the key, and goes back to where one was. */
export function SignIn({ signedIn }) {
    const [busy, setBusy] = useState(false);
    const field = useRef(/** @type {HTMLInputElement | null} */ (null));
    useEffect(() => {
        document.title = 'Sign in · Rialto';
        field.current?.focus();
    }, []);
    const submit = async (/** @type {Event} */ event) => {
        event.preventDefault();
        const value = field.current?.value.trim() ?? '';
        if (!value || busy) return;
        setBusy(true);
        setKey(/[#?&]key=([^&]+)/u.exec(value)?.[1] ?? value.replace(/^Bearer\s+/iu, ''));
        await signedIn();
        setBusy(false);
        field.current?.focus();
        field.current?.select();
    };
    const why = signInReason.value;
    return html`<main class="signin"><form onSubmit=${submit}><div class="brand"><${Brand} />Rialto</div><h1>Sign in to the console</h1>
        <div class="field"><label for="key">Key</label>
        <input id="key" type="password" ref=${field} autocomplete="current-password" spellcheck="false" aria-describedby="where why" aria-invalid=${why ? 'true' : undefined} />
        <div class="help" id="where">It is in the link that <code>rialto console</code> prints. Operators with a token or login of their own give that.</div>
        <div class="wrong" id="why" role="alert">${why}</div></div>
        <button type="submit" class="btn primary" aria-disabled=${busy ? 'true' : undefined}>${busy ? 'Signing in' : 'Sign in'}</button></form></main>`;
}
