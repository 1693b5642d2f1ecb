//! Redis URLs: a single server, a Redis Cluster or Sentinels.

use std::fmt;

use percent_encoding::percent_decode_str;

/// A parsed Redis URL. `Display` and `Debug` redact the password.
#[derive(Clone, PartialEq, Eq)]
pub struct RedisAddress {
    pub(super) topology: RedisTopology,
    /// Connect with TLS (`rediss`).
    pub(super) tls: bool,
    pub(super) hosts: Vec<(String, u16)>,
    pub(super) user: Option<String>,
    pub(super) password: Option<String>,
    pub(super) database: i64,
}

/// Kind of Redis deployment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum RedisTopology {
    /// A single server.
    Server,
    /// Seed nodes of a Redis Cluster.
    Cluster,
    /// Sentinels, with the name of the monitored master.
    Sentinel(String),
}

/// Help text listing the accepted URL forms.
pub const REDIS_URL_FORMS: &str = "write redis://user:password@host:6379/0, rediss:// for TLS, redis-cluster://host1,host2, \
     or redis-sentinel://host1,host2/name";

const DEFAULT_REDIS_PORT: u16 = 6379;
const DEFAULT_SENTINEL_PORT: u16 = 26379;

impl RedisAddress {
    /// Parses a URL. Errors never contain the URL, which may hold a password.
    pub fn parse(url: &str) -> Result<Self, &'static str> {
        let (scheme, rest) = url.split_once("://").ok_or("is not a URL")?;
        let (tls, kind) = match scheme.strip_prefix("rediss") {
            Some(kind) => (true, kind),
            None => (false, scheme.strip_prefix("redis").ok_or("is not a Redis URL")?),
        };
        if rest.contains(['?', '#']) {
            return Err("has query parameters, which are not supported");
        }
        let (before, path) = rest.split_once('/').unwrap_or((rest, ""));
        let (credentials, hosts) = before.rsplit_once('@').unwrap_or(("", before));
        let (user, password) = credentials.split_once(':').unwrap_or((credentials, ""));
        let (topology, database, port) = match kind {
            "" => (RedisTopology::Server, path, DEFAULT_REDIS_PORT),
            "-cluster" if path.is_empty() => (RedisTopology::Cluster, "", DEFAULT_REDIS_PORT),
            "-cluster" => return Err("names a database, but a Redis Cluster has only one"),
            "-sentinel" => {
                let (name, database) = path.split_once('/').unwrap_or((path, ""));
                if name.is_empty() {
                    return Err("does not name the master that the Sentinels monitor");
                }
                (RedisTopology::Sentinel(percent_decoded(name)?), database, DEFAULT_SENTINEL_PORT)
            }
            _ => return Err("is not a Redis URL"),
        };
        let hosts = hosts.split(',').map(|one| parse_host(one, port)).collect::<Option<Vec<_>>>();
        let hosts = hosts.ok_or("has an invalid host or port")?;
        if topology == RedisTopology::Server && hosts.len() > 1 {
            return Err("names several hosts, which only redis-cluster:// and redis-sentinel:// do");
        }
        let non_empty = |text: String| Some(text).filter(|text| !text.is_empty());
        let (user, password) = (non_empty(percent_decoded(user)?), non_empty(percent_decoded(password)?));
        if user.is_some() && password.is_none() {
            return Err("has a user without a password");
        }
        let database = match database {
            "" => 0,
            number => number.parse::<u16>().map_err(|_| "has a database that is not a number")?.into(),
        };
        Ok(Self { topology, tls, hosts, user, password, database })
    }

    /// Replaces the password in a text from the server or the client library.
    pub(super) fn redact(&self, text: &str) -> String {
        match &self.password {
            Some(password) => text.replace(password.as_str(), "***"),
            None => text.to_owned(),
        }
    }
}

fn percent_decoded(text: &str) -> Result<String, &'static str> {
    let text = percent_decode_str(text).decode_utf8().map_err(|_| "has percent-encoded bytes that are not UTF-8")?;
    Ok(text.into_owned())
}

/// Parses `host`, `host:port`, `[ipv6]` or `[ipv6]:port`.
fn parse_host(text: &str, port: u16) -> Option<(String, u16)> {
    let (host, port) = match text.strip_prefix('[') {
        Some(inner) => {
            let (host, after) = inner.split_once(']')?;
            host.parse::<std::net::Ipv6Addr>().ok()?;
            match after {
                "" => (host, port),
                after => (host, after.strip_prefix(':')?.parse().ok()?),
            }
        }
        None => match text.rsplit_once(':') {
            Some((host, port)) => (host, port.parse().ok()?),
            None => (text, port),
        },
    };
    let is_valid = |character: char| character.is_ascii_alphanumeric() || matches!(character, '.' | '-' | '_' | ':');
    (!host.is_empty() && host.chars().all(is_valid)).then(|| (host.to_owned(), port))
}

impl fmt::Display for RedisAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = match self.topology {
            RedisTopology::Server => "",
            RedisTopology::Cluster => "-cluster",
            RedisTopology::Sentinel(_) => "-sentinel",
        };
        write!(f, "redis{}{kind}://", if self.tls { "s" } else { "" })?;
        if self.password.is_some() {
            write!(f, "{}:***@", self.user.as_deref().unwrap_or(""))?;
        }
        for (i, (host, port)) in self.hosts.iter().enumerate() {
            let (open, close) = if host.contains(':') { ("[", "]") } else { ("", "") };
            write!(f, "{}{open}{host}{close}:{port}", if i == 0 { "" } else { "," })?;
        }
        match &self.topology {
            RedisTopology::Server if self.database > 0 => write!(f, "/{}", self.database),
            RedisTopology::Sentinel(name) if self.database > 0 => write!(f, "/{name}/{}", self.database),
            RedisTopology::Sentinel(name) => write!(f, "/{name}"),
            _ => Ok(()),
        }
    }
}

impl fmt::Debug for RedisAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_are_parsed_and_printed_without_their_password() {
        for (url, shown) in [
            ("redis://h", "redis://h:6379"),
            ("redis://127.0.0.1:1/", "redis://127.0.0.1:1"),
            ("redis://:p%40ss@h/3", "redis://:***@h:6379/3"),
            ("rediss://ann:s3cret@[::1]:7000/0", "rediss://ann:***@[::1]:7000"),
            ("rediss://[::1]", "rediss://[::1]:6379"),
            ("redis-cluster://a,b:7001", "redis-cluster://a:6379,b:7001"),
            ("rediss-cluster://u:s3cret@a", "rediss-cluster://u:***@a:6379"),
            ("redis-sentinel://a,b/main", "redis-sentinel://a:26379,b:26379/main"),
            ("redis-sentinel://:s3cret@a:1/main/2", "redis-sentinel://:***@a:1/main/2"),
        ] {
            let address = RedisAddress::parse(url).unwrap();
            assert_eq!(address.to_string(), shown);
            assert_eq!(format!("{address:?}"), shown);
        }
        let address = RedisAddress::parse("redis://ann:p%40:ss@h").unwrap();
        assert_eq!((address.user.as_deref(), address.password.as_deref()), (Some("ann"), Some("p@:ss")));
        assert_eq!(address.redact("AUTH p@:ss"), "AUTH ***");
    }

    #[test]
    fn malformed_urls_are_refused() {
        for url in [
            "",
            "redis",
            "redis:",
            "redis://",
            "redis://:1",
            "http://h",
            "redisx://h",
            "redis-x://h",
            "redis://h:port",
            "redis://h:99999",
            "redis://h/x",
            "redis://h/-1",
            "redis://h?protocol=resp3",
            "redis://a,b",
            "redis://a b",
            "redis://ann@h",
            "redis://[x]",
            "redis://[::1]x",
            "redis://:%ff@h",
            "redis-cluster://a,",
            "redis-cluster://a/1",
            "redis-sentinel://a",
            "redis-sentinel://a/",
        ] {
            assert!(RedisAddress::parse(url).is_err(), "{url}");
        }
    }
}
