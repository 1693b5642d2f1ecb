//! Where Redis is: one server, the nodes of a Cluster, or the Sentinels that know the server.

use std::fmt;

use percent_encoding::percent_decode_str;

/// An address of Redis. What is shown of it has no password.
#[derive(Clone, PartialEq, Eq)]
pub struct RedisAddress {
    pub(super) form: Form,
    /// Whether TLS is spoken.
    pub(super) tls: bool,
    pub(super) hosts: Vec<(String, u16)>,
    pub(super) user: Option<String>,
    pub(super) password: Option<String>,
    pub(super) database: i64,
}

/// What is at an address.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Form {
    /// A server.
    Server,
    /// Some nodes of a Cluster, which know the others.
    Cluster,
    /// Sentinels, and the name by which they know the server.
    Sentinel(String),
}

/// How addresses are written, for those who wrote one that is not.
pub const FORMS: &str = "write redis://user:password@host:6379/0, rediss:// for TLS, redis-cluster://host1,host2, \
     or redis-sentinel://host1,host2/name";

const PORT: u16 = 6379;
const SENTINEL_PORT: u16 = 26379;

impl RedisAddress {
    /// Reads an address; says what is wrong with it without telling what it is.
    pub fn parse(url: &str) -> Result<Self, &'static str> {
        let (scheme, rest) = url.split_once("://").ok_or("is no URL")?;
        let (tls, kind) = match scheme.strip_prefix("rediss") {
            Some(kind) => (true, kind),
            None => (false, scheme.strip_prefix("redis").ok_or("is no URL of Redis")?),
        };
        if rest.contains(['?', '#']) {
            return Err("has parameters, which are not known");
        }
        let (before, path) = rest.split_once('/').unwrap_or((rest, ""));
        let (credentials, hosts) = before.rsplit_once('@').unwrap_or(("", before));
        let (user, password) = credentials.split_once(':').unwrap_or((credentials, ""));
        let (form, database, port) = match kind {
            "" => (Form::Server, path, PORT),
            "-cluster" if path.is_empty() => (Form::Cluster, "", PORT),
            "-cluster" => return Err("names a database, and a Cluster has only one"),
            "-sentinel" => {
                let (name, database) = path.split_once('/').unwrap_or((path, ""));
                if name.is_empty() {
                    return Err("does not say by which name the Sentinels know the server");
                }
                (Form::Sentinel(decoded(name)?), database, SENTINEL_PORT)
            }
            _ => return Err("is no URL of Redis"),
        };
        let hosts = hosts.split(',').map(|one| host(one, port)).collect::<Option<Vec<_>>>();
        let hosts = hosts.ok_or("names a host that cannot be one")?;
        if form == Form::Server && hosts.len() > 1 {
            return Err("names several hosts, which only redis-cluster:// and redis-sentinel:// do");
        }
        let given = |text: String| Some(text).filter(|text| !text.is_empty());
        let (user, password) = (given(decoded(user)?), given(decoded(password)?));
        if user.is_some() && password.is_none() {
            return Err("has a user without a password");
        }
        let database = match database {
            "" => 0,
            number => number.parse::<u16>().map_err(|_| "names a database that is no number")?.into(),
        };
        Ok(Self { form, tls, hosts, user, password, database })
    }

    /// The password may be in what a server or a library says.
    pub(super) fn hide(&self, text: &str) -> String {
        match &self.password {
            Some(password) => text.replace(password.as_str(), "***"),
            None => text.to_owned(),
        }
    }
}

fn decoded(text: &str) -> Result<String, &'static str> {
    let text = percent_decode_str(text).decode_utf8().map_err(|_| "has letters in it that are not UTF-8")?;
    Ok(text.into_owned())
}

/// A host and its port.
fn host(text: &str, port: u16) -> Option<(String, u16)> {
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
    let fits = |letter: char| letter.is_ascii_alphanumeric() || matches!(letter, '.' | '-' | '_' | ':');
    (!host.is_empty() && host.chars().all(fits)).then(|| (host.to_owned(), port))
}

impl fmt::Display for RedisAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = match self.form {
            Form::Server => "",
            Form::Cluster => "-cluster",
            Form::Sentinel(_) => "-sentinel",
        };
        write!(f, "redis{}{kind}://", if self.tls { "s" } else { "" })?;
        if self.password.is_some() {
            write!(f, "{}:***@", self.user.as_deref().unwrap_or(""))?;
        }
        for (i, (host, port)) in self.hosts.iter().enumerate() {
            let (open, close) = if host.contains(':') { ("[", "]") } else { ("", "") };
            write!(f, "{}{open}{host}{close}:{port}", if i == 0 { "" } else { "," })?;
        }
        match &self.form {
            Form::Server if self.database > 0 => write!(f, "/{}", self.database),
            Form::Sentinel(name) if self.database > 0 => write!(f, "/{name}/{}", self.database),
            Form::Sentinel(name) => write!(f, "/{name}"),
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
    fn addresses_are_read_and_shown_without_their_password() {
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
        assert_eq!(address.hide("AUTH p@:ss"), "AUTH ***");
    }

    #[test]
    fn what_is_no_address_is_refused() {
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
