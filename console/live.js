// The one event stream of a tab. Pages say which topics they need; what is in view decides what the gateway computes.

import { ApiError, asApiError, currentKey, request } from './api.js';
import { me } from './state.js';
import { batch, effect, signal, useEffect, useRef } from './ui.js';

/** @typedef {{ topics: string[], q?: string, node?: string | null, on: Record<string, (data: any) => void> }} Wish */

/** State of the stream: `since` is when it was lost, `retry` when it is tried again. */
export const stream = signal({
    state: /** @type {'off' | 'opening' | 'live' | 'lost' | 'asleep'} */ ('off'),
    since: /** @type {Date | null} */ (null),
    retry: 0,
    error: ''
});

/** A hidden tab lets go of its stream after this long. */
export const HIDDEN_TIMEOUT = 30_000;
/** The stream is taken for lost when nothing, not even a beat, came for this long. */
const SILENCE_TIMEOUT = 25_000;
const MAX_BACKOFF = 15_000;
/** Needed by the frame on every page; `node` in a cluster only. */
const FRAME_TOPICS = ['attention', 'server', 'reload'];

/** @type {Set<Wish>} */
const wishes = new Set();
const wanted = signal('');
const asleep = signal(false);
/** Counts up after each reconnect in which events may have been missed, so that pages load again. */
export const resynced = signal(0);

function publish() {
    const topics = new Set(me.peek()?.clustered ? [...FRAME_TOPICS, 'node'] : FRAME_TOPICS);
    let [q, isOfOthers] = ['', false];
    for (const wish of wishes) {
        for (const topic of wish.topics) topics.add(topic);
        q ||= wish.q ?? '';
        // Events of one other node come with those of all.
        isOfOthers ||= Boolean(wish.node && wish.node !== me.peek()?.node);
    }
    const query = new URLSearchParams({ topics: [...topics].sort().join(',') });
    if (q && topics.has('call')) query.set('q', q);
    if (isOfOthers) query.set('node', 'all');
    wanted.value = query.toString();
}

/**
 * @param {string[]} topics @param {Record<string, (data: any) => void>} on Handlers by name of event.
 * @param {{ q?: string, node?: string | null }} [of] Which calls, and whether events of other nodes are wanted, too.
 */
export function useLive(topics, on, { q = '', node = null } = {}) {
    const names = topics.join();
    const own = useRef(/** @type {Wish | null} */ (null));
    useEffect(() => {
        const wish = { topics, q, node, on };
        own.current = wish;
        wishes.add(wish);
        publish();
        return () => {
            wishes.delete(wish);
            // A page that follows takes the stream over where it asks for the same.
            queueMicrotask(publish);
        };
    }, [names, q, node]);
    useEffect(() => {
        if (own.current) own.current.on = on;
    });
}

/** @param {string} topic @param {() => void} act @returns {(data: any) => void} Acts when something of a topic is no more. */
export const goneOf = (topic, act) => data => {
    if (data.topic === topic) act();
};

/** @param {string} name @param {any} data */
function hand(name, data) {
    for (const wish of wishes) wish.on[name]?.(data);
}

/** @param {ReadableStream<Uint8Array>} body @param {() => void} alive @yields {{ id: string, event: string, data: string }} */
async function* events(body, alive) {
    const reader = body.pipeThrough(/** @type {any} */ (new TextDecoderStream())).getReader();
    let rest = '';
    for (;;) {
        const { value, done } = await reader.read();
        if (done) return;
        alive();
        rest += value;
        let end;
        while ((end = rest.search(/\r?\n\r?\n/u)) >= 0) {
            const block = rest.slice(0, end);
            rest = rest.slice(end).replace(/^\r?\n\r?\n/u, '');
            const event = { id: '', event: 'message', data: '' };
            for (const line of block.split(/\r?\n/u)) {
                const found = /^(id|event|data): ?(.*)$/u.exec(line);
                if (found?.[1] === 'data') event.data += found[2];
                else if (found) event[/** @type {'id' | 'event'} */ (found[1])] = found[2];
            }
            if (event.data) yield event;
        }
    }
}

/** The query of the last stream, and the id of its last event. */
const last = { query: '', id: '' };

/** @param {string} query Whose stream is open: an id counts for its query alone, of other topics and calls nothing was read. */
function opened(query) {
    const before = last.query;
    if (before === query) return;
    [last.query, last.id] = [query, ''];
    // Between the stream before and this one, events may have been missed.
    if (before) resynced.value++;
}

/** @param {string} query @param {AbortController} abort */
async function read(query, abort) {
    let timer = 0;
    const alive = () => {
        clearTimeout(timer);
        timer = setTimeout(
            () => abort.abort(new ApiError(0, { message: 'Nothing came for a while.' })),
            SILENCE_TIMEOUT
        );
    };
    try {
        const from = last.query === query ? last.id : '';
        const headers = { accept: 'text/event-stream', ...(from ? { 'last-event-id': from } : {}) };
        const response = await request(`live?${query}`, { headers, signal: abort.signal });
        stream.value = { state: 'live', since: null, retry: 0, error: '' };
        alive();
        opened(query);
        for await (const { id, event, data } of events(/** @type {any} */ (response.body), alive)) {
            if (id && last.query === query) last.id = id;
            const parsed = JSON.parse(data);
            batch(() => (Array.isArray(parsed) ? parsed : [parsed]).forEach(one => hand(event, one)));
        }
    } finally {
        clearTimeout(timer);
    }
}

/** @param {string} query @param {AbortSignal} stop Keeps the stream open until `stop`, with growing pauses between attempts. */
async function keepOpen(query, stop) {
    for (let attempt = 0; !stop.aborted; attempt++) {
        const abort = new AbortController();
        stop.addEventListener('abort', () => abort.abort(), { once: true });
        if (attempt) resynced.value++;
        const before = stream.peek();
        if (before.state !== 'lost') stream.value = { ...before, state: 'opening' };
        let error = '';
        try {
            await read(query, abort);
            attempt = 0;
        } catch (caught) {
            if (stop.aborted) return;
            error = asApiError(abort.signal.reason instanceof ApiError ? abort.signal.reason : caught).message;
            if (stream.peek().state === 'live') attempt = 0;
        }
        if (stop.aborted) return;
        const pause = Math.min(MAX_BACKOFF, 1000 * 2 ** Math.min(attempt, 4));
        stream.value = { state: 'lost', since: stream.peek().since ?? new Date(), retry: Date.now() + pause, error };
        await new Promise(resolve => {
            const timer = setTimeout(resolve, pause);
            stop.addEventListener(
                'abort',
                () => {
                    clearTimeout(timer);
                    resolve(undefined);
                },
                { once: true }
            );
            retryNow = () => {
                clearTimeout(timer);
                resolve(undefined);
            };
        });
    }
}

let retryNow = () => {};
export const tryAgain = () => retryNow();

/** Opens the stream whenever somebody is signed in, the tab is seen, and a page wants something. */
export function startLive() {
    let hiddenTimer = 0;
    document.addEventListener('visibilitychange', () => {
        clearTimeout(hiddenTimer);
        if (document.visibilityState === 'visible') {
            if (asleep.peek()) resynced.value++;
            asleep.value = false;
        } else
            hiddenTimer = setTimeout(() => {
                asleep.value = true;
            }, HIDDEN_TIMEOUT);
    });
    publish();
    effect(() => {
        const query = wanted.value;
        if (!me.value || asleep.value || !currentKey() || !query) {
            if (asleep.value) stream.value = { state: 'asleep', since: null, retry: 0, error: '' };
            return;
        }
        const stop = new AbortController();
        // Leaves the effect first: what it reads must not be among the inputs.
        queueMicrotask(() => keepOpen(query, stop.signal));
        return () => stop.abort();
    });
}
