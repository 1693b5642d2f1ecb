//! Lua scripts for the operations that must be atomic.
//!
//! Redis does not roll back a script, so each begins with the command that can fail: when memory is short, the
//! first command that needs memory is refused before anything was written. Ownership and incarnations are compared
//! inside the script, so two nodes can never own one session.
//!
//! At `maxmemory`, operations that start new work (sessions, events, requests) are refused. Membership and
//! ownership changes need little memory, and deletes free some, so those must succeed: their scripts declare
//! `allow-oom`, or begin with a write that needs no memory, after which Redis admits the rest.

use std::fmt;
use std::sync::OnceLock;

use redis::{Arg, Cmd};

/// A Lua script and its SHA-1, computed on first use.
pub(super) struct Script {
    code: &'static str,
    hash: OnceLock<String>,
}

static ALL_SCRIPTS: [&Script; 15] = [
    &CREATE,
    &CLAIM,
    &TOUCH,
    &DELETE,
    &WRITE,
    &JOIN,
    &HEARTBEAT,
    &LEAVE,
    &ADD_MEMBER,
    &SEND,
    &REPLY,
    &SHARED_KEY,
    &CLAIM_AFFINITY,
    &TAKE_TOKENS,
    &RETURN_TOKENS,
];

/// `create s e | owner record ttl`; 0 when the session exists.
pub(super) static CREATE: Script = Script::new(
    "if redis.call('EXISTS', KEYS[1]) == 1 then return 0 end
    redis.call('HSET', KEYS[1], 'owner', ARGV[1], 'record', ARGV[2])
    redis.call('DEL', KEYS[2])
    redis.call('PEXPIRE', KEYS[1], ARGV[3])
    return 1",
);

/// `claim s | from to`; an empty name is no owner.
pub(super) static CLAIM: Script = Script::new(
    "#!lua flags=allow-oom
    local owner = redis.call('HGET', KEYS[1], 'owner')
    if not owner then return 0 end
    if owner ~= ARGV[1] then return 2 end
    redis.call('HSET', KEYS[1], 'owner', ARGV[2])
    return 1",
);

/// `touch s e | owner ttl`
pub(super) static TOUCH: Script = Script::new(
    "local owner = redis.call('HGET', KEYS[1], 'owner')
    if not owner then return 0 end
    if owner ~= ARGV[1] then return 2 end
    redis.call('PEXPIRE', KEYS[1], ARGV[2])
    redis.call('PEXPIRE', KEYS[2], ARGV[2])
    return 1",
);

/// `delete s e | owner`; leaves a tombstone until the session would have expired.
pub(super) static DELETE: Script = Script::new(
    "local owner = redis.call('HGET', KEYS[1], 'owner')
    if not owner then return 0 end
    if owner ~= ARGV[1] then return 2 end
    redis.call('HDEL', KEYS[1], 'record', 'changes', 'version')
    redis.call('UNLINK', KEYS[2])
    redis.call('HSET', KEYS[1], 'owner', '-')
    return 1",
);

/// `write s e | owner ttl trim_before version field record (entry stream at event)…`; an empty version means no record. The
/// field is `record` for a whole one, which ends earlier changes, or `changes`.
///
/// Stored events are not written again and an older record does not replace a newer one, so a write with unknown
/// outcome can be repeated and a late one is harmless.
pub(super) static WRITE: Script = Script::new(
    "local owner = redis.call('HGET', KEYS[1], 'owner')
    if not owner then return 0 end
    if owner ~= ARGV[1] then return 2 end
    if ARGV[4] ~= '' and tonumber(ARGV[4]) >= tonumber(redis.call('HGET', KEYS[1], 'version') or 0) then
        redis.call('HSET', KEYS[1], ARGV[5], ARGV[6], 'version', ARGV[4])
        if ARGV[5] == 'record' then redis.call('HDEL', KEYS[1], 'changes') end
    end
    for i = 7, #ARGV, 4 do
        local put = redis.pcall('XADD', KEYS[2], ARGV[i], 's', ARGV[i + 1], 't', ARGV[i + 2], 'd', ARGV[i + 3])
        if type(put) == 'table' and put.err and not string.find(put.err, 'equal or smaller', 1, true) then
            return put
        end
    end
    redis.call('PEXPIRE', KEYS[1], ARGV[2])
    if redis.call('PEXPIRE', KEYS[2], ARGV[2]) == 1 and ARGV[3] ~= '0' then
        redis.call('XTRIM', KEYS[2], 'MINID', ARGV[3])
    end
    return 1",
);

/// `join n | node ttl`
pub(super) static JOIN: Script = Script::new(
    "#!lua flags=allow-oom
    redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
    return 1",
);

/// `heartbeat n m | node ttl`; also keeps the mailbox alive.
pub(super) static HEARTBEAT: Script = Script::new(
    "local there = redis.call('GET', KEYS[1])
    if not there then return 0 end
    if there ~= ARGV[1] then return 2 end
    redis.call('PEXPIRE', KEYS[1], ARGV[2])
    if redis.call('PTTL', KEYS[2]) < tonumber(ARGV[2]) then redis.call('PEXPIRE', KEYS[2], ARGV[2]) end
    return 1",
);

/// `leave n | node`
pub(super) static LEAVE: Script = Script::new(
    "if redis.call('GET', KEYS[1]) == ARGV[1] then redis.call('DEL', KEYS[1]) end
    return 1",
);

/// `claim_affinity p | node instead_of ttl`; returns the owner.
pub(super) static CLAIM_AFFINITY: Script = Script::new(
    "local holder = redis.call('GET', KEYS[1])
    if holder and holder ~= ARGV[1] and holder ~= ARGV[2] then return holder end
    if holder then redis.call('PEXPIRE', KEYS[1], ARGV[3]) end
    if holder ~= ARGV[1] then redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[3]) end
    return ARGV[1]",
);

/// `add_member nodes | name ttl`; refused at `maxmemory`, by which nodes detect a full store.
pub(super) static ADD_MEMBER: Script = Script::new(
    "redis.call('SADD', KEYS[1], ARGV[1])
    if redis.call('PTTL', KEYS[1]) < tonumber(ARGV[2]) then redis.call('PEXPIRE', KEYS[1], ARGV[2]) end
    return 1",
);

/// `send m | ttl max_messages max_bytes message…`; 0 when the mailbox is full. Refused at `maxmemory`.
///
/// The memory of a list is an estimate from a few of its nodes. It is read only where there are so many messages that
/// they can be too much, and skipped where the user may not read it.
pub(super) static SEND: Script = Script::new(
    "local waiting = redis.call('LLEN', KEYS[1])
    if waiting >= tonumber(ARGV[2]) then return 0 end
    if waiting >= 8 then
        local used = redis.pcall('MEMORY', 'USAGE', KEYS[1])
        if type(used) == 'number' and used >= tonumber(ARGV[3]) then return 0 end
    end
    for i = 4, #ARGV do redis.call('RPUSH', KEYS[1], ARGV[i]) end
    redis.call('PEXPIRE', KEYS[1], ARGV[1])
    return 1",
);

/// `reply m | ttl message…`; as `send`, but accepted at `maxmemory`.
pub(super) static REPLY: Script = Script::new(
    "#!lua flags=allow-oom
    for i = 2, #ARGV do redis.call('RPUSH', KEYS[1], ARGV[i]) end
    redis.call('PEXPIRE', KEYS[1], ARGV[1])
    return 1",
);

/// `shared_key k | offered ttl`; returns the stored key.
pub(super) static SHARED_KEY: Script = Script::new(
    "local kept = redis.call('GET', KEYS[1])
    if kept then
        redis.call('PEXPIRE', KEYS[1], ARGV[2])
        return kept
    end
    redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
    return ARGV[1]",
);

/// `take_tokens l u | wanted interval burst limit ends_in`; returns the tokens granted, and the time in µs after which to
/// try again if there are none. The interval is in µs of the server's clock, 0 without a rate; the limit is 0 without a quota.
///
/// The bucket is one number: the time at which it is full again. Nothing is written unless something is granted.
pub(super) static TAKE_TOKENS: Script = Script::new(
    "local granted, interval, limit = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[4])
    local clock = redis.call('TIME')
    local now = clock[1] * 1000000 + clock[2]
    local full_at = now
    if interval > 0 then
        full_at = math.max(now, tonumber(redis.call('GET', KEYS[1]) or 0))
        local room = now + tonumber(ARGV[3]) * interval - full_at
        granted = math.min(granted, math.floor(room / interval + 0.000001))
        if granted < 1 then return {0, math.ceil(interval - room)} end
    end
    if limit > 0 then
        granted = math.min(granted, limit - tonumber(redis.call('GET', KEYS[2]) or 0))
        if granted < 1 then return {0, ARGV[5] * 1000} end
        redis.call('INCRBY', KEYS[2], granted)
        redis.call('PEXPIRE', KEYS[2], ARGV[5])
    end
    if interval > 0 then
        full_at = full_at + granted * interval
        redis.call('SET', KEYS[1], string.format('%.3f', full_at), 'PX', math.ceil((full_at - now) / 1000) + 1)
    end
    return {granted, 0}",
);

/// `return_tokens l u | unused interval`; a bucket that is full and a window that is over stay as they are.
pub(super) static RETURN_TOKENS: Script = Script::new(
    "local unused, interval = tonumber(ARGV[1]), tonumber(ARGV[2])
    local full_at = interval > 0 and redis.call('GET', KEYS[1])
    if full_at then
        redis.call('SET', KEYS[1], string.format('%.3f', full_at - unused * interval), 'KEEPTTL')
    end
    local used = redis.call('GET', KEYS[2])
    if used then redis.call('DECRBY', KEYS[2], math.min(unused, tonumber(used))) end
    return 1",
);

// === impl Script ===

impl Script {
    const fn new(code: &'static str) -> Self {
        Self { code, hash: OnceLock::new() }
    }

    /// The `EVALSHA` command; fails with `NOSCRIPT` when Redis has not cached the script.
    pub(super) fn evalsha(&self, keys: &[&str]) -> Cmd {
        let hash = self.hash.get_or_init(|| redis::Script::new(self.code).get_hash().to_owned());
        let mut command = redis::cmd("EVALSHA");
        command.arg(hash).arg(keys.len()).arg(keys);
        command
    }

    /// The `EVAL` command for an `EVALSHA` that failed with `NOSCRIPT`; Redis caches the script then.
    pub(super) fn eval_for(command: &Cmd) -> Option<Cmd> {
        let mut arguments = command.args_iter().filter_map(|argument| match argument {
            Arg::Simple(bytes) => Some(bytes),
            _ => None,
        });
        let hash = arguments.nth(1)?;
        let script =
            ALL_SCRIPTS.iter().find(|script| script.hash.get().is_some_and(|known| known.as_bytes() == hash))?;
        let mut eval = redis::cmd("EVAL");
        eval.arg(script.code);
        for argument in arguments {
            eval.arg(argument);
        }
        Some(eval)
    }
}

impl fmt::Debug for Script {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Script").field(&self.hash).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn uncached_scripts_are_sent_as_eval() {
        let mut evalsha = CLAIM.evalsha(&["k"]);
        evalsha.arg("from").arg("to");
        let eval = Script::eval_for(&evalsha).unwrap();
        let texts: Vec<String> = eval
            .args_iter()
            .map(|argument| match argument {
                Arg::Simple(bytes) => String::from_utf8(bytes.to_vec()).unwrap(),
                _ => panic!("only simple arguments"),
            })
            .collect();
        assert_eq!(texts, ["EVAL", CLAIM.code, "1", "k", "from", "to"]);
        assert!(Script::eval_for(&redis::cmd("GET")).is_none());
    }
}
