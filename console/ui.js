// The one place that names the vendored files; everything else imports from here.

import { h, render, Fragment } from './vendor/preact.js';
import htm from './vendor/htm.js';

/** Templates: html`<p class="muted">${text}</p>`. Values become text nodes, never markup. */
export const html = htm.bind(h);
export { h, render, Fragment };
export {
    useCallback,
    useEffect,
    useErrorBoundary,
    useId,
    useLayoutEffect,
    useMemo,
    useRef,
    useState
} from './vendor/hooks.js';
export {
    batch,
    computed,
    effect,
    signal,
    untracked,
    useComputed,
    useSignal,
    useSignalEffect
} from './vendor/signals.js';
