// Work that is asked for more often than it can be done.

/** @template T @typedef {{ data: T } | { error: unknown }} Outcome */

/**
 * One run at a time. Whatever is asked for meanwhile is one more run after it, so each answer is told, however often it
 * is asked for, and the last one began after the last time of asking.
 * @template T @param {() => Promise<T>} work @param {(outcome: Outcome<T>) => void} tell
 */
export function inTurn(work, tell) {
    let [turn, isBusy, isWanted] = [0, false, false];
    const run = async () => {
        const mine = turn;
        isBusy = true;
        do {
            isWanted = false;
            const outcome = await attempt(work);
            if (mine !== turn) return;
            tell(outcome);
        } while (isWanted && mine === turn);
        if (mine === turn) isBusy = false;
    };
    const drop = () => {
        turn++;
        isBusy = false;
    };
    return {
        ask() {
            if (isBusy) isWanted = true;
            else run();
        },
        /** Begins at once: the answer to what was asked before is not wanted any more. */
        restart() {
            drop();
            run();
        },
        drop,
        isBusy: () => isBusy
    };
}

/** @template T @param {() => Promise<T>} work @returns {Promise<Outcome<T>>} */
async function attempt(work) {
    try {
        return { data: await work() };
    } catch (error) {
        return { error };
    }
}
