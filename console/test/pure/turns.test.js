import assert from 'node:assert/strict';
import { test } from 'node:test';
import { inTurn } from '../../pure/turns.js';

/** Work whose answers come when the test says so. */
function slow() {
    const waiting = [];
    return {
        waiting,
        work: () => new Promise((resolve, reject) => waiting.push({ resolve, reject })),
        /** Lets what follows an answer happen. */
        settled: () => new Promise(resolve => setImmediate(resolve))
    };
}

test('each answer is told though it is asked for again meanwhile, and never two run at a time', async () => {
    const { waiting, work, settled } = slow();
    const told = [];
    const turns = inTurn(work, outcome => told.push(outcome.data));
    turns.ask();
    for (let n = 0; n < 5; n++) turns.ask();
    assert.equal(waiting.length, 1);
    assert.ok(turns.isBusy());
    waiting[0].resolve('first');
    await settled();
    assert.deepEqual(told, ['first']);
    assert.equal(waiting.length, 2, 'one more run for all that was asked for meanwhile');
    waiting[1].resolve('second');
    await settled();
    assert.deepEqual(told, ['first', 'second']);
    assert.equal(waiting.length, 2);
    assert.ok(!turns.isBusy());
});

test('what was asked for before a restart is not told', async () => {
    const { waiting, work, settled } = slow();
    const told = [];
    const turns = inTurn(work, outcome => told.push(outcome));
    turns.ask();
    turns.restart();
    assert.equal(waiting.length, 2);
    waiting[1].reject('refused');
    await settled();
    waiting[0].resolve('old');
    await settled();
    assert.deepEqual(told, [{ error: 'refused' }]);
    turns.restart();
    turns.drop();
    waiting[2].resolve('nobody is there');
    await settled();
    assert.equal(told.length, 1);
    turns.ask();
    assert.equal(waiting.length, 4, 'it goes on after that');
});
