//! The steps that Redis takes at once or not at all, as scripts that it runs itself.
//!
//! Redis runs a script to its end, so each begins with what can fail: when memory is short, the first
//! command that needs some is refused, and nothing has been written by then. Owners and lives are
//! compared where they are kept, which is what keeps two nodes from having one session.
//!
//! What begins something is refused by a Redis that has no memory left: sessions, events, requests. What
//! says who is there and who has what is a few bytes that do not add up, and what ends something makes
//! room, so neither is: a script for these says `allow-oom`, or begins with a write that takes no memory,
//! after which Redis lets the others pass.

use std::fmt;
use std::sync::OnceLock;

use redis::{Arg, Cmd};

/// A script, and the name under which Redis may know it already.
pub(super) struct Script {
    code: &'static str,
    hash: OnceLock<String>,
}

static ALL: [&Script; 13] =
    [&CREATE, &CLAIM, &TOUCH, &DELETE, &WRITE, &JOIN, &BEAT, &LEAVE, &ENROLL, &SEND, &REPLY, &SECRET, &PLACE];

/// `create s e | owner record life`
pub(super) static CREATE: Script = Script::new(
    "if redis.call('EXISTS', KEYS[1]) == 1 then return 0 end
    redis.call('HSET', KEYS[1], 'owner', ARGV[1], 'record', ARGV[2])
    redis.call('DEL', KEYS[2])
    redis.call('PEXPIRE', KEYS[1], ARGV[3])
    return 1",
);

/// `claim s | from to`; nobody is an empty name.
pub(super) static CLAIM: Script = Script::new(
    "#!lua flags=allow-oom
    local owner = redis.call('HGET', KEYS[1], 'owner')
    if not owner then return 0 end
    if owner ~= ARGV[1] then return 2 end
    redis.call('HSET', KEYS[1], 'owner', ARGV[2])
    return 1",
);

/// `touch s e | owner life`
pub(super) static TOUCH: Script = Script::new(
    "local owner = redis.call('HGET', KEYS[1], 'owner')
    if not owner then return 0 end
    if owner ~= ARGV[1] then return 2 end
    redis.call('PEXPIRE', KEYS[1], ARGV[2])
    redis.call('PEXPIRE', KEYS[2], ARGV[2])
    return 1",
);

/// `delete s e | owner`; that it was deleted is known as long as it would have been kept.
pub(super) static DELETE: Script = Script::new(
    "local owner = redis.call('HGET', KEYS[1], 'owner')
    if not owner then return 0 end
    if owner ~= ARGV[1] then return 2 end
    redis.call('HDEL', KEYS[1], 'record', 'version')
    redis.call('UNLINK', KEYS[2])
    redis.call('HSET', KEYS[1], 'owner', '-')
    return 1",
);

/// `write s e | owner life keep_from version record (entry stream at event)…`; no version is no record.
///
/// An event that is there already is not written again, and a record not in the place of a later one, so
/// that one who never heard what became of a write can repeat it, and one that comes late does no harm.
pub(super) static WRITE: Script = Script::new(
    "local owner = redis.call('HGET', KEYS[1], 'owner')
    if not owner then return 0 end
    if owner ~= ARGV[1] then return 2 end
    if ARGV[4] ~= '' and tonumber(ARGV[4]) >= tonumber(redis.call('HGET', KEYS[1], 'version') or 0) then
        redis.call('HSET', KEYS[1], 'record', ARGV[5], 'version', ARGV[4])
    end
    for i = 6, #ARGV, 4 do
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

/// `join n | node life`
pub(super) static JOIN: Script = Script::new(
    "#!lua flags=allow-oom
    redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
    return 1",
);

/// `beat n m | node life`
pub(super) static BEAT: Script = Script::new(
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

/// `place p | node instead_of life`; who has it then.
pub(super) static PLACE: Script = Script::new(
    "local holder = redis.call('GET', KEYS[1])
    if holder and holder ~= ARGV[1] and holder ~= ARGV[2] then return holder end
    if holder then redis.call('PEXPIRE', KEYS[1], ARGV[3]) end
    if holder ~= ARGV[1] then redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[3]) end
    return ARGV[1]",
);

/// `enroll nodes | name life`; refused without memory, which is how nodes find out.
pub(super) static ENROLL: Script = Script::new(
    "redis.call('SADD', KEYS[1], ARGV[1])
    if redis.call('PTTL', KEYS[1]) < tonumber(ARGV[2]) then redis.call('PEXPIRE', KEYS[1], ARGV[2]) end
    return 1",
);

/// `send m | life message…`
pub(super) static SEND: Script = Script::new(
    "for i = 2, #ARGV do redis.call('RPUSH', KEYS[1], ARGV[i]) end
    redis.call('PEXPIRE', KEYS[1], ARGV[1])
    return 1",
);

/// `reply m | life message…`; the same for what was asked for before.
pub(super) static REPLY: Script = Script::new(
    "#!lua flags=allow-oom
    for i = 2, #ARGV do redis.call('RPUSH', KEYS[1], ARGV[i]) end
    redis.call('PEXPIRE', KEYS[1], ARGV[1])
    return 1",
);

/// `secret k | offered life`
pub(super) static SECRET: Script = Script::new(
    "local kept = redis.call('GET', KEYS[1])
    if kept then
        redis.call('PEXPIRE', KEYS[1], ARGV[2])
        return kept
    end
    redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
    return ARGV[1]",
);

// === impl Script ===

impl Script {
    const fn new(code: &'static str) -> Self {
        Self { code, hash: OnceLock::new() }
    }

    /// The command that runs it, if Redis knows it.
    pub(super) fn on(&self, keys: &[&str]) -> Cmd {
        let hash = self.hash.get_or_init(|| redis::Script::new(self.code).get_hash().to_owned());
        let mut command = redis::cmd("EVALSHA");
        command.arg(hash).arg(keys.len()).arg(keys);
        command
    }

    /// The same command for a Redis that does not know it, and will from then on.
    pub(super) fn unknown(command: &Cmd) -> Option<Cmd> {
        let mut arguments = command.args_iter().filter_map(|argument| match argument {
            Arg::Simple(bytes) => Some(bytes),
            _ => None,
        });
        let hash = arguments.nth(1)?;
        let script = ALL.iter().find(|script| script.hash.get().is_some_and(|known| known.as_bytes() == hash))?;
        let mut whole = redis::cmd("EVAL");
        whole.arg(script.code);
        for argument in arguments {
            whole.arg(argument);
        }
        Some(whole)
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
    fn a_script_that_is_not_known_is_sent_whole() {
        let mut short = CLAIM.on(&["k"]);
        short.arg("from").arg("to");
        let whole = Script::unknown(&short).unwrap();
        let texts: Vec<String> = whole
            .args_iter()
            .map(|argument| match argument {
                Arg::Simple(bytes) => String::from_utf8(bytes.to_vec()).unwrap(),
                _ => panic!("only simple arguments"),
            })
            .collect();
        assert_eq!(texts, ["EVAL", CLAIM.code, "1", "k", "from", "to"]);
        assert!(Script::unknown(&redis::cmd("GET")).is_none());
    }
}
