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
    outcome: 'ok',
    error: null,
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

const lost = { ...front, outcome: 'failed', error: { code: null, status: 502, message: 'node lost' } };

test('a call that failed on the way back is one that failed, whatever its owner says', () => {
    const [row] = joinRelayed([{ ...owner, outcome: 'ok', error: null }, lost]);
    assert.deepEqual([row.id, row.outcome, row.error], ['b.1', 'failed', lost.error]);
    const [open] = joinRelayed([{ ...owner, done: false, outcome: null }, lost]);
    assert.deepEqual([open.done, open.outcome], [true, 'failed']);
    const own = { code: -32603, status: 200, message: 'the server answered with an error' };
    const [both] = joinRelayed([{ ...owner, outcome: 'error', error: own }, lost]);
    assert.deepEqual([both.outcome, both.error], ['error', own], 'the owner knows better why');
});

test('calls that share a request id are not put together', () => {
    const [f2, o2] = [
        { ...front, id: 'a.4', took_us: 9000 },
        { ...owner, id: 'b.2' }
    ];
    const rows = [front, owner, f2, o2];
    assert.deepEqual(joinRelayed(rows), rows);
    assert.deepEqual(joinRelayed([front, owner, o2]), [front, owner, o2]);
});

test('a call of a session that moved is joined with the node that served it', () => {
    const refused = { ...owner, outcome: 'refused', error: { code: null, status: 421, message: 'session moved' } };
    const served = { ...owner, id: 'c.1', node: 'c' };
    const moved = { ...front, relayed_to: 'c' };
    const rows = joinRelayed([refused, served, moved]);
    assert.deepEqual(
        rows.map(row => [row.id, row.hop?.node]),
        [['c.1', 'a']]
    );
    assert.deepEqual(joinRelayed([refused]), [refused], 'alone it is all that is known of the call');
    const elsewhere = { ...owner, id: 'd.1', node: 'd' };
    assert.deepEqual(joinRelayed([elsewhere, moved]), [elsewhere, moved], 'another node did not serve it');
});

test('rows that did not change stay the same objects', () => {
    const [before] = joinRelayed([owner, front]);
    assert.equal(joinRelayed([plain, owner, front])[1], before);
    assert.notEqual(joinRelayed([owner, { ...front }])[0], before);
});
