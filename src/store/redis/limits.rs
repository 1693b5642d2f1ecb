//! Rate limits in Redis.

use std::time::Duration;

use redis::Cmd;

use super::scripts::{RETURN_TOKENS, Script, TAKE_TOKENS};
use super::{RedisStore, ttl_millis};
use crate::store::traits::{LimitStore, SharedBucket, StoreFuture, TokenGrant};

impl RedisStore {
    /// Command that runs a script on the bucket and the window of a limit, with a number of tokens and the interval.
    fn bucket_command(&self, script: &Script, key: &str, bucket: SharedBucket, tokens: u32) -> Cmd {
        let window = bucket.window.map_or(0, |window| window.start);
        let mut command = script.evalsha(&[&self.keys.bucket(key), &self.keys.quota(key, window)]);
        command.arg(tokens).arg(bucket.rate.map_or(0.0, |rate| rate.interval.as_secs_f64() * 1e6));
        command
    }
}

impl LimitStore for RedisStore {
    fn take_tokens<'a>(&'a self, key: &'a str, bucket: SharedBucket, wanted: u32) -> StoreFuture<'a, TokenGrant> {
        Box::pin(async move {
            let mut command = self.bucket_command(&TAKE_TOKENS, key, bucket, wanted);
            command.arg(bucket.rate.map_or(0, |rate| rate.burst));
            command.arg(bucket.window.map_or(0, |window| window.limit));
            command.arg(bucket.window.map_or(0, |window| ttl_millis(window.ends_in)));
            let (granted, retry_us): (u32, u64) = self.decode_single(self.connection.execute(vec![command]).await?)?;
            Ok(TokenGrant { granted, retry_after: Duration::from_micros(retry_us) })
        })
    }

    fn return_tokens<'a>(&'a self, key: &'a str, bucket: SharedBucket, unused: u32) -> StoreFuture<'a, ()> {
        Box::pin(async move {
            let command = self.bucket_command(&RETURN_TOKENS, key, bucket, unused);
            self.connection.execute(vec![command]).await?;
            Ok(())
        })
    }
}
