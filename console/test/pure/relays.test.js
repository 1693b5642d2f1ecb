import assert from 'node:assert/strict';
import { test } from 'node:test';

import { joinRelayed } from '../../pure/relays.js';

const time = { rialto_us: 100, open_us: 0, server_us: 900, client_us: 0 };
const plain = {
    id: 'a.1',
    node: 'a',
    request: 'r1',
    relayed_to: null,
    relayed: false,
    done: true,
    took_us: 1000,
    time
};
const front = { ...plain, id: 'a.2', request: 'r2', relayed_to: 'b', took_us: 1500 };
const owner = { ...plain, id: 'b.1', node: 'b', request: 'r2', relayed: true };

test('a relayed call is shown once, with the way between its nodes as part of its time', () => {
    const [first, second] = joinRelayed([plain, front, owner]);
    assert.equal(first, plain);
    assert.equal(second.id, 'b.1');
    assert.deepEqual(second.hop, { node: 'a', took_us: 500 });
    assert.deepEqual([second.took_us, second.time.rialto_us], [1500, 600]);
});

test('a relayed call that only one of its nodes has recorded stays', () => {
    assert.deepEqual(joinRelayed([plain, front]), [plain, front]);
    assert.deepEqual(joinRelayed([plain, owner]), [plain, owner]);
});

test('while a relayed call runs it has no time of the way', () => {
    const open = { ...owner, done: false };
    assert.deepEqual(joinRelayed([open, front]), [open]);
});

test('a client that gives two calls one request id loses neither of those that were not relayed', () => {
    const other = { ...plain, id: 'a.3', request: 'r2' };
    assert.deepEqual(
        joinRelayed([other, front, owner]).map(row => row.id),
        ['a.3', 'b.1']
    );
});
