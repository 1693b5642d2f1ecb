// Requests to /admin/v1. The key is in this tab's session storage and goes into a header, never into an address.

import { inTurn } from './pure/turns.js';
import { me, paused, readAddress, signInReason } from './state.js';
import { effect, signal, useEffect, useRef, useSignal, useState } from './ui.js';

const BASE = new URL('admin/v1/', document.baseURI);
const STORED = 'rialto.key';
const channel = typeof BroadcastChannel === 'function' ? new BroadcastChannel('rialto.console') : null;
/** How long a new tab waits for another one to hand over the key before it asks for one; a later key is taken up, too. */
const HANDOVER_TIMEOUT = 300;

let key = '';

/** What the API answered in place of what was asked for. */
export class ApiError extends Error {
    /** @param {number} status @param {{ code?: string, message?: string, hint?: string }} said */
    constructor(status, said) {
        super(said.message || (status ? `The gateway answered ${status}.` : 'The gateway cannot be reached.'));
        this.status = status;
        this.code = said.code ?? '';
        this.hint = said.hint ?? '';
    }
}

export const currentKey = () => key;

/** @param {string} value Empty forgets the key. */
export function setKey(value) {
    key = value;
    try {
        if (value) sessionStorage.setItem(STORED, value);
        else sessionStorage.removeItem(STORED);
    } catch {
        /* Without storage the key lasts until the page is reloaded. */
    }
}

/** What follows when another tab hands over the key that is missing here, however late. */
let takenUp = () => {};

channel?.addEventListener('message', ({ data }) => {
    if (data?.ask && key) channel.postMessage({ key });
    if (!data?.key || key) return;
    setKey(data.key);
    takenUp();
});

/** Takes the key out of the address, or from this tab's storage, or from another tab of this origin. */
export async function findKey() {
    const given = /^#key=([^&]+)(?:&to=(.*))?$/u.exec(location.hash);
    if (given) {
        setKey(decodeURIComponent(given[1]));
        history.replaceState(null, '', given[2] ? `#${decodeURIComponent(given[2])}` : '#/');
        readAddress();
        return;
    }
    try {
        key = sessionStorage.getItem(STORED) ?? '';
    } catch {
        /* As above. */
    }
    if (!key && channel) await handover(channel);
}

/** Takes up a link with a key that is opened in this tab, and a key that another tab hands over. @param {() => void} found */
export function watchForKeys(found) {
    takenUp = found;
    addEventListener('hashchange', async () => {
        if (!location.hash.startsWith('#key=')) return;
        await findKey();
        found();
    });
}

/** @param {BroadcastChannel} from */
function handover(from) {
    return new Promise(resolve => {
        takenUp = () => resolve(undefined);
        setTimeout(resolve, HANDOVER_TIMEOUT, undefined);
        from.postMessage({ ask: true });
    });
}

/** @param {string} path Below `/admin/v1/`. @param {Record<string, string | number | null | undefined>} [query] */
export function apiUrl(path, query = {}) {
    const url = new URL(path, BASE);
    for (const [name, value] of Object.entries(query)) {
        if (value !== null && value !== undefined && value !== '') url.searchParams.set(name, String(value));
    }
    return url;
}

/** @param {string} path @param {RequestInit & { query?: Record<string, any>, body?: any, headers?: Record<string, string> }} [init] @returns {Promise<Response>} */
export async function request(path, { query, body, headers, ...init } = {}) {
    const sent = key;
    const all = {
        authorization: `Bearer ${sent}`,
        ...(init.method && init.method !== 'GET' ? { 'content-type': 'application/json' } : {}),
        ...headers
    };
    let response;
    try {
        const text = body === undefined ? undefined : typeof body === 'string' ? body : JSON.stringify(body);
        response = await fetch(apiUrl(path, query), {
            ...init,
            body: text,
            headers: all,
            cache: 'no-store',
            credentials: 'omit',
            redirect: 'error'
        });
    } catch (error) {
        if (/** @type {Error} */ (error).name === 'AbortError') throw error;
        throw new ApiError(0, { hint: 'Is it still running? The page tries again by itself.' });
    }
    if (response.ok) return response;
    const said = await response.json().catch(() => ({}));
    // A key that came meanwhile was not refused.
    if (response.status === 401 && key === sent) signedOut(said.error?.message);
    throw new ApiError(response.status, said.error ?? {});
}

/** @param {string} [why] */
export function signedOut(why) {
    const had = key !== '';
    setKey('');
    me.value = null;
    signInReason.value = had ? why || 'That key is not known here. A new one is made at each start.' : '';
}

/** @param {string} path @param {Record<string, any>} [query] @param {AbortSignal} [abort] @returns {Promise<any>} */
export const get = async (path, query, abort) => (await request(path, { query, signal: abort })).json();

/** @param {string} method @param {string} path @param {any} [body] @param {{ headers?: Record<string, string>, query?: Record<string, any> }} [of] @returns {Promise<any>} */
export async function send(method, path, body, of = {}) {
    const response = await request(path, { method, body, ...of });
    const text = await response.text();
    return text ? JSON.parse(text) : null;
}

/** @param {string} path @param {Record<string, any>} [query] @param {number} [most] All pages of a list, up to a bound, and nodes that did not answer. */
export async function getPages(path, query = {}, most = 2000) {
    const [items, away] = /** @type {[any[], { node: string, since: string | null }[]]} */ ([[], []]);
    let cursor = null;
    do {
        const page = /** @type {any} */ (await get(path, { limit: 500, ...query, cursor }));
        items.push(...page.items);
        away.push(...(page.away ?? []));
        cursor = page.next;
    } while (cursor && items.length < most);
    return { items, away };
}

/** @param {string} path @param {Record<string, any>} [query] @returns {Promise<any[]>} All pages of a list, up to a bound. */
export const getAll = async (path, query) => (await getPages(path, query)).items;

/**
 * Loads what a page shows, again when `inputs` change or `reload` is called, and never twice at a time. What was there
 * stays while an error is told.
 * @template T @param {() => Promise<T>} load @param {readonly unknown[]} inputs
 * @param {unknown} [again] Loads again when it changes, too; what was there stays meanwhile.
 */
export function useLoaded(load, inputs, again) {
    const state = useSignal({
        data: /** @type {T | null} */ (null),
        error: /** @type {ApiError | null} */ (null),
        at: /** @type {Date | null} */ (null),
        loading: true
    });
    const latest = useRef(load);
    latest.current = load;
    const [loads] = useState(() =>
        inTurn(
            () => latest.current(),
            outcome => {
                state.value =
                    'data' in outcome
                        ? { data: outcome.data, error: null, at: new Date(), loading: false }
                        : { ...state.peek(), error: asApiError(outcome.error), loading: false };
            }
        )
    );
    const reload = loads.ask;
    useEffect(() => {
        state.value = { data: null, error: null, at: null, loading: true };
        loads.restart();
        return loads.drop;
    }, inputs);
    const isFirst = useRef(true);
    useEffect(() => {
        if (!isFirst.current) reload();
        isFirst.current = false;
    }, [again]);
    const { data, error, at, loading } = state.value;
    const update = (/** @type {(data: T) => T} */ change) => {
        const now = state.peek();
        if (now.data) state.value = { ...now, data: change(now.data) };
    };
    return { data, error, at, loading, reload, update };
}

/** How often figures are read again while they are looked at: history has a step each ten seconds. */
const FIGURES_INTERVAL = 5000;

/** Reads again what changes without an event, while the page is seen. @param {{ reload: () => void }} loaded @param {number} [interval] */
export function useRefreshed({ reload }, interval = FIGURES_INTERVAL) {
    useEffect(() => {
        const timer = setInterval(() => {
            if (!paused.peek() && document.visibilityState === 'visible') reload();
        }, interval);
        return () => clearInterval(timer);
    }, []);
}

/** @param {unknown} error @returns {ApiError} */
export const asApiError = error =>
    error instanceof ApiError
        ? error
        : new ApiError(0, { message: String(/** @type {Error} */ (error)?.message ?? error) });

/** Sentence of the last act that failed, for the strip above a page. */
export const actError = signal(/** @type {ApiError | null} */ (null));
effect(() => {
    if (signInReason.value !== null) actError.value = null;
});

/** @template T @param {() => Promise<T>} act @returns {Promise<T | null>} Null when it failed; the page says why. */
export async function attempt(act) {
    actError.value = null;
    try {
        return await act();
    } catch (error) {
        actError.value = asApiError(error);
        return null;
    }
}
