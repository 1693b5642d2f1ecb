// Calls that one node relayed to another, which both have recorded.

/**
 * The rows without those of nodes that only relayed a call that its owner has, too. The owner's row, which has both
 * wires, gets the whole time of the call and what the way between the nodes took of it.
 * @param {any[]} rows @returns {any[]}
 */
export function joinRelayed(rows) {
    const owners = new Set(rows.filter(row => row.relayed && row.request).map(row => row.request));
    if (!owners.size) return rows;
    const fronts = new Map(
        rows.filter(row => row.relayed_to && owners.has(row.request)).map(row => [row.request, row])
    );
    return rows.filter(row => fronts.get(row.request) !== row).map(row => (row.relayed ? withHop(row, fronts) : row));
}

/** @param {any} row @param {Map<string, any>} fronts */
function withHop(row, fronts) {
    const front = fronts.get(row.request);
    if (!front || !row.done || !front.done) return row;
    const hop = Math.max(front.took_us - row.took_us, 0);
    const time = { ...row.time, rialto_us: row.time.rialto_us + hop };
    return { ...row, took_us: row.took_us + hop, time, hop: { node: front.node, took_us: hop } };
}
