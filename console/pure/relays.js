// Calls that one node relayed to another, which both have recorded.

/** Status of a node that was asked for a session that is not its own any more. */
const MISDIRECTED = 421;

/** A row and what it was joined with, so that what did not change stays one object. @type {WeakMap<any, { front: any, joined: any }>} */
const joins = new WeakMap();

/**
 * The rows without those of nodes that only relayed a call that its owner has, too. The owner's row, which has both
 * wires, gets the whole time of the call, what the way between the nodes took of it, and how it ended for the client.
 * @param {any[]} rows @returns {any[]}
 */
export function joinRelayed(rows) {
    const owners = byRequest(rows.filter(row => row.relayed && !isMisdirected(row)));
    const fronts = byRequest(rows.filter(row => row.relayed_to));
    if (!fronts.size) return rows;
    const pairs = new Map();
    for (const [request, [front, ...others]] of fronts) {
        const [owner, ...more] = owners.get(request) ?? [];
        // Clients choose these ids, so several calls can have one, and nobody knows which of them belong together.
        const isCertain = !others.length && !more.length && owner?.node === front.relayed_to;
        if (isCertain) pairs.set(owner, front);
    }
    const dropped = new Set(pairs.values());
    return rows
        .filter(row => !dropped.has(row) && !(isMisdirected(row) && fronts.has(row.request)))
        .map(row => (pairs.has(row) ? joinedWith(row, pairs.get(row)) : row));
}

/** @param {any} row Of a node that refused a call because its session had moved on; another node served it. */
const isMisdirected = row => row.relayed && row.error?.status === MISDIRECTED;

/** @param {any[]} rows @returns {Map<string, any[]>} */
function byRequest(rows) {
    const found = new Map();
    for (const row of rows) {
        if (!row.request) continue;
        const same = found.get(row.request);
        if (same) same.push(row);
        else found.set(row.request, [row]);
    }
    return found;
}

/** @param {any} row @param {any} front */
function joinedWith(row, front) {
    const known = joins.get(row);
    if (known && known.front === front) return known.joined;
    const joined = join(row, front);
    joins.set(row, { front, joined });
    return joined;
}

/** @param {any} row @param {any} front */
function join(row, front) {
    if (!front.done) return row;
    const isLost = front.outcome !== 'ok' && (!row.done || row.outcome === 'ok');
    // The answer did not reach the client, whatever its owner made of it.
    const end = isLost ? { done: true, outcome: front.outcome, error: front.error } : {};
    if (!row.done && !isLost) return row;
    const hop = Math.max(front.took_us - row.took_us, 0);
    const time = { ...row.time, rialto_us: row.time.rialto_us + hop };
    const took = Math.max(front.took_us, row.took_us);
    return { ...row, ...end, took_us: took, time, hop: { node: front.node, took_us: hop } };
}
