//! Tests of all diagnostics.

use super::{diagnostics_of, toml};

/// Compares the diagnostics of all cases and reports every difference at once.
fn compare(name: &str, cases: &[(&str, &str)]) {
    let differ = |(text, expected): &(&str, &str)| {
        let found = diagnostics_of(text, name);
        (found != *expected).then(|| format!("{text}\n--- actual:\n{found}\n--- expected:\n{expected}\n"))
    };
    let differences: Vec<String> = cases.iter().filter_map(differ).collect();
    assert!(differences.is_empty(), "{}", differences.join("\n"));
}

#[test]
fn toml_mistakes_are_reported_with_position_and_hint() {
    compare("rialto.toml", MISTAKES);
}

#[test]
fn mistakes_in_limits_are_reported_with_position_and_hint() {
    compare("rialto.toml", LIMIT_MISTAKES);
}

/// Limits and their diagnostics.
const LIMIT_MISTAKES: &[(&str, &str)] = &[
    (
        "[[policy.limits]]\nname = \"a\"\nrate = \"0/s\"",
        "3:8: error: `rate` in [policy.limits]: \"0/s\" allows nothing; the least is 1; to forbid calls, write a rule",
    ),
    (
        "[[policy.limits]]\nname = \"a\"\nrate = \"20/d\"\nquota = \"5/s\"",
        "3:8: error: `rate` in [policy.limits]: \"20/d\" has the unknown unit `d`; write \"20/s\", \"30/m\" or \"500/h\"\n4:9: error: `quota` in [policy.limits]: \"5/s\" has the unknown unit `s`; write \"10/m\", \"100/h\", \"1000/d\" or \"10000/month\"",
    ),
    (
        "[[policy.limits]]\nname = \"a\"\nrate = \"fast\"",
        "3:8: error: `rate` in [policy.limits]: \"fast\" is no number per time; write it as \"20/s\"",
    ),
    (
        "[[policy.limits]]\nname = \"a\"\nrate = \"2000000/s\"",
        "3:8: error: `rate` in [policy.limits]: \"2000000/s\" is too much; a rate is at most 1000000/s",
    ),
    (
        "[[policy.limits]]\nname = \"a\"\nquota = \"5/d\"\nburst = 5",
        "4:1: error: `burst` in [policy.limits] has no `rate`; set `rate`, such as \"20/s\"",
    ),
    (
        "[[policy.limits]]\nname = \"a\"\nper = [\"caller\"]",
        "1:1: error: the limit \"a\" limits nothing; set one of `rate`, `quota`, `max_in_flight`, `max_argument_bytes`, `total_timeout`",
    ),
    (
        "[[policy.limits]]\nname = \"a\"\nrate = \"1/s\"\n[[policy.limits]]\nname = \"a\"\nrate = \"1/s\"",
        "5:8: error: two limits are named \"a\"; metrics and status show limits by name",
    ),
    (
        "[[policy.limits]]\nname = \"a\"\nrate = \"1/s\"\ntools = [\"element/get*\", \"search\"]\ngroups = [\"defalt\"]",
        "4:10: error: \"element/get*\" in [[policy.limits]] names the unknown server `element`; did you mean `elements`?\n4:26: error: `tools` in [policy.limits]: \"search\" has no server; write the server and its own name, such as \"*/search\"\n5:11: error: \"defalt\" in [[policy.limits]] names the unknown group `defalt`; did you mean `default`?",
    ),
    (
        "[[policy.limits]]\nname = \"a\"\nrate = \"1/s\"\nper = [\"tool\", \"calller\"]",
        "4:7: error: `per` in [policy.limits]: `server` and `tool` are known only of a limit with targets; add tools = [\"*\"] to count the calls of all tools\n4:16: error: `per` in [policy.limits]: \"calller\" is unknown; did you mean `caller`?",
    ),
    (
        "[[policy.limits]]\nname = \"a\"\nrate = \"1/s\"\nprincipals = [\"group:x\"]\nburts = 3",
        "4:15: error: `principals`: \"group:x\" names no caller; valid: `*`, `anonymous`, `local`, `role:NAME`, `key:NAME`, `token:NAME`, `issuer:NAME`, `client:ID`, `user:ISSUER/SUBJECT`, `email:ADDRESS`, `claim:PATH=VALUE`\n5:1: error: unknown key `burts` in [policy.limits]; did you mean `burst`?",
    ),
    ("[[policy.limits]]\nrate = \"1/s\"", "1:1: error: `name` is missing in [policy.limits]"),
    (
        "[[policy.limits]]\nname = \"a\"\nmax_in_flight = 0\ntools = []",
        "3:17: error: `max_in_flight` in [policy.limits]: 0 must be from 1 to 1099511627776\n4:1: error: `tools` in [policy.limits] is empty; list patterns, or remove the key to count every request",
    ),
];

/// Files and their diagnostics.
const MISTAKES: &[(&str, &str)] = &[
    // Syntax.
    ("listen = \n", "1:10: error: string values must be quoted, expected literal string"),
    ("listen = \"127.0.0.1:1\"\nlisten = 2\n", "2:1: error: duplicate key `listen`"),
    (
        "listen = \"x\nstore = 5\n[servers.a]\ncomand = \"x\"\n",
        "1:12: error: invalid basic string, expected `\"`\n2:9: error: `store` must be `memory` or a Redis URL, not a number\n4:1: error: unknown key `comand` in [servers.a]; did you mean `command`?",
    ),
    // Issuers.
    (
        "[access.issuers.corp]\naudience = [\"a\"]",
        "1:17: error: `issuer` is missing in [access.issuers.corp]\n2:1: error: unknown key `audience` in [access.issuers.corp]; did you mean `audiences`?",
    ),
    (
        "[access.issuers.corp]\nissuer = \"login.example\"",
        "2:10: error: `issuer` in [access.issuers.corp] is not an HTTP URL; write it as the issuer does: \"https://login.example\"",
    ),
    (
        "[access.issuers.corp]\nissuer = \"https://u:s3cret@h\"",
        "2:10: error: `issuer` in [access.issuers.corp] has credentials in it",
    ),
    (
        "[access.issuers.corp]\nissuer = \"https://h/?a\"",
        "2:10: error: `issuer` in [access.issuers.corp] has a query, a fragment or a sign that no issuer has",
    ),
    (
        "[access.issuers.corp]\nissuer = \"http://keycloak:8080\"",
        "2:10: warning: `issuer` in [access.issuers.corp] is not https; whoever is between us and the issuer can make tokens; use https",
    ),
    (
        "[access.issuers.corp]\nissuer = \"https://h\"\nalgorithms = [\"HS256\", \"RS265\"]\nleeway = \"5m\"\njwks = \"keys.json\"",
        "3:15: error: \"HS256\" is never accepted; tokens have to be signed by a key that only the issuer has\n3:24: error: \"RS265\" is not a known algorithm; did you mean `RS256`?\n4:10: error: `leeway` in [access.issuers.corp] is more than two minutes; set the clocks right instead\n5:8: error: the `jwks` file does not exist",
    ),
    (
        "[access.issuers.corp]\nissuer = \"https://h\"\ntoken_format = \"opaqe\"\naudience_claim = \"client_id\"",
        "3:16: error: `token_format` in [access.issuers.corp]: \"opaqe\" is unknown; did you mean `opaque`?\n4:18: error: `audience_claim` needs `audiences`; list the clients whose tokens are accepted: audiences = [\"…\"]",
    ),
    (
        "[access.issuers.a]\nissuer = \"https://h\"\ntoken_format = \"opaque\"\nclient_id = \"r\"",
        "1:17: error: `client_secret` is missing in [access.issuers.a]; the issuer is asked about opaque tokens with these credentials",
    ),
    (
        "[access.issuers.a]\nissuer = \"https://h\"\n[access.issuers.b]\nissuer = \"https://h\"\n[access.issuers.C]\nissuer = \"https://c\"",
        "3:17: error: [access.issuers.b] has the same `issuer` as `a`; remove one of them\n5:17: error: `C` is not a valid issuer name; use lowercase letters, digits and hyphens, at most 24, such as `c`",
    ),
    (
        "[access.issuers.a]\nissuer = \"https://h\"\nalgorithms = []\nclient_secret = \"${file:/nowhere/at/all}\"",
        "3:14: error: an empty `algorithms` accepts no token; leave it out to accept `RS256`, `RS384`, `RS512`, `PS256`, `PS384`, `PS512`, `ES256`, `ES384`, `EdDSA`\n4:18: error: the file `/nowhere/at/all` cannot be read; it must be readable, hold text and not be empty",
    ),
    // Keys.
    ("listn = \"127.0.0.1:1\"", "1:1: error: unknown key `listn`; did you mean `listen`?"),
    (
        "[servers.files]\n  comand = \"npx\"\n  builtin = \"elements\"",
        "2:3: error: unknown key `comand` in [servers.files]; did you mean `command`?",
    ),
    ("[server.a]\ncommand = \"x\"", "1:2: error: unknown key `server`; did you mean `servers`?"),
    (
        "[log]\nx = 1",
        "2:1: error: unknown key `x` in [log]; valid: `filter`, `level`, `levels`, `samples`, `access`, `access_format`, `format`",
    ),
    (
        "[log.samples]\naccess = 1.5\nhttp = \"few\"\n\"a b\" = 1",
        "2:10: error: the part of `access` must be from 0 to 1; write 0.1 for one line in ten\n3:8: error: the part of `http` must be from 0 to 1; write 0.1 for one line in ten\n4:1: error: \"a b\" in `samples` in [log] is no log target; write a module such as `upstream`, `access`, or a crate such as `hyper`",
    ),
    (
        "telemetry = { sample_ratio = 1.5 }",
        "1:30: error: `sample_ratio` in [telemetry] must be from 0 to 1; write 1 for all, 0.1 for one in ten",
    ),
    (
        "[log.levels]\nupstream = \"debgu\"\n\"a b\" = \"info\"",
        "2:12: error: the level of `upstream` must be one of off, error, warn, info, debug, trace; did you mean `debug`?\n3:1: error: \"a b\" in `levels` in [log] is no log target; write a module such as `upstream`, `access`, or a crate such as `hyper`",
    ),
    ("[groups.a.tools]\nalow = [\"x\"]", "2:1: error: unknown key `alow` in [groups.a.tools]; did you mean `allow`?"),
    (
        "[servers.a]\nurl = \"http://h\"\ntype = \"sse\"\ntransport = \"sse\"",
        "4:1: error: `type` and `transport` are the same key; remove one of them",
    ),
    // Types.
    ("listen = 3001", "1:10: error: `listen` must be an address such as \"127.0.0.1:3001\", not a number"),
    ("log = \"info\"", "1:7: error: `log` must be a table, not a string"),
    ("servers = []", "1:11: error: `servers` must be a table of named tables, not a list"),
    ("[servers]\na = \"npx\"", "2:5: error: `servers.a` must be a table, not a string"),
    (
        "[servers.a]\ncommand = \"x\"\nargs = \"-y\"",
        "3:8: error: `args` in [servers.a] must be a list of strings, not a string; write args = [\"…\"]",
    ),
    (
        "[servers.a]\ncommand = \"x\"\nargs = [\"a\", 5]",
        "3:14: error: each of `args` in [servers.a] must be a string, not a number",
    ),
    (
        "[servers.a]\ncommand = \"x\"\nenv = { A = 1 }",
        "3:13: error: `A` of `env` in [servers.a] must be a string, not a number",
    ),
    (
        "[servers.a]\nbuiltin = \"elements\"\ndisabled = \"no\"",
        "3:12: error: `disabled` in [servers.a] must be true or false, not a string",
    ),
    ("[limits]\ncalls = \"5\"", "2:9: error: `calls` in [limits] must be an integer, not a string"),
    ("[limits]\ncalls = 0", "2:9: error: `calls` in [limits]: 0 must be from 1 to 1099511627776"),
    // Values.
    (
        "[limits]\nshutdown_timeout = 5",
        "2:20: error: `shutdown_timeout` in [limits] must be a duration, not a number; write a duration with a unit: \"250ms\", \"30s\", \"5m\", \"1h\"",
    ),
    (
        "[limits]\nshutdown_timeout = \"5 minutes\"",
        "2:20: error: `shutdown_timeout` in [limits]: \"5 minutes\" is not a duration; write a duration with a unit: \"250ms\", \"30s\", \"5m\", \"1h\"",
    ),
    ("[limits]\nsse_heartbeat = \"0s\"", "2:17: error: `sse_heartbeat` in [limits]: \"0s\" must be more than 0"),
    (
        "[defaults]\nping_interval = \"0s\"",
        "2:17: error: `ping_interval` in [defaults]: \"0s\" must be more than 0; \"off\" disables it",
    ),
    (
        "[limits]\nbody_bytes = \"4 Mega\"",
        "2:14: error: `body_bytes` in [limits]: \"4 Mega\" is not a size; write it as \"16MiB\" or \"64KiB\"",
    ),
    ("[limits]\nbody_bytes = 0", "2:14: error: `body_bytes` in [limits] must be more than 0"),
    ("[limits]\nbody_bytes = -1", "2:14: error: `body_bytes` in [limits] must be more than 0"),
    (
        "listen = \"127.0.0.1\"",
        "1:10: error: `listen`: \"127.0.0.1\" is not an address; the port is missing; write \"127.0.0.1:3001\"",
    ),
    (
        "[admin]\nlisten = \"here\"",
        "2:10: error: `listen` in [admin]: \"here\" is not an address; write an IP address and a port, such as \"127.0.0.1:3001\"",
    ),
    (
        "listen = \"127.0.0.1:5\"\nadmin = { listen = \"127.0.0.1:5\" }",
        "2:1: error: [admin] has the same listen address as clients; choose another port",
    ),
    (
        "store = \"ann:s3cret@host\"",
        "1:9: error: `store` is neither `memory` nor a Redis URL; for Redis, write redis://user:password@host:6379/0, rediss:// for TLS, redis-cluster://host1,host2, or redis-sentinel://host1,host2/name",
    ),
    ("store = \"memry\"", "1:9: error: `store` is unknown; did you mean `memory`?"),
    (
        "store = \"redis://ann:s3cret@a,b\"",
        "1:9: error: `store` names several hosts, which only redis-cluster:// and redis-sentinel:// do; write redis://user:password@host:6379/0, rediss:// for TLS, redis-cluster://host1,host2, or redis-sentinel://host1,host2/name",
    ),
    (
        "[cluster]\nlease = 5\nprefix = \"a b\"\nsealing_key = \"short\"",
        "2:9: error: `lease` in [cluster] must be a duration, not a number; write a duration with a unit: \"250ms\", \"30s\", \"5m\", \"1h\"\n3:10: error: `prefix` in [cluster] has invalid characters; use letters, digits, and any of - _ . :\n4:15: error: `sealing_key` in [cluster] has fewer than 16 characters; generate one: openssl rand -hex 32",
    ),
    (
        "[log]\nformat = \"jsn\"\nfilter = \"rialto=loud\"",
        "2:10: error: `format` in [log]: \"jsn\" is unknown; did you mean `json`?\n3:10: error: `filter` in [log] is not a log filter; write a level such as \"info\", or targets as in \"rialto=debug,hyper=warn\"",
    ),
    (
        "[defaults]\nrevision = \"2025-06-19\"",
        "2:12: error: `revision` in [defaults] is not a known revision; use `auto`, `2024-11-05`, `2025-03-26`, `2025-06-18`, `2025-11-25`, `2026-07-28`",
    ),
    (
        "[servers.a]\nurl = \"tracker.example/mcp\"",
        "2:7: error: `url` in [servers.a] is not an HTTP URL; write something like \"https://tracker.example/mcp\"",
    ),
    (
        "[servers.a]\nurl = \"https://ann:s3cret@tracker.example/mcp\"",
        "2:7: error: `url` in [servers.a] has credentials in it; give them in `headers`",
    ),
    (
        "[servers.a]\nurl = \"https://h\"\nheaders = { \"a b\" = \"x\", c = \"${BAD}\" }",
        "3:13: error: `a b` in the headers of [servers.a] is not a valid header name\n3:26: error: the value of `c` in the headers of [servers.a] is not a valid header value; control characters are not allowed",
    ),
    ("[servers.a]\ncommand = \" \"", "2:11: error: `command` in [servers.a] is empty"),
    (
        "[servers.a]\nbuiltin = \"elements\"\nidle_timeout = \"2m\"\ntotal_timeout = \"1m\"",
        "4:17: error: `total_timeout` is shorter than `idle_timeout`",
    ),
    (
        "[access]\nhosts = [\"https://g.example/\"]\norigins = [\"app.example\"]\nforward_headers = [\"a b\"]",
        "2:10: error: \"https://g.example/\" is not a host name; write it as \"g.example\"\n3:12: error: \"app.example\" is not an origin; write it as \"https://app.example\"\n4:20: error: \"a b\" is not a valid header name",
    ),
    (
        "[access.tokens]\nann = \"\"\nbob = \"x\"\ncid = \"x\"",
        "2:1: error: the token of `ann` is empty\n4:1: error: `cid` has the same token as another caller",
    ),
    (
        "[access.tokens]\nann = \"two words\"",
        "2:1: error: the token of `ann` cannot be sent as a bearer token; use letters, digits and any of - . _ ~ + /, such as `openssl rand -hex 32` prints",
    ),
    (
        "public_url = \"https://mcp.example/\"\n[access]\nforward_headers = [\"Authorization\", \"cookie\"]\nscopes = [\"offline_access\", \"a b\"]\ntrusted_proxies = [\"10.0.0.0/33\"]",
        "1:14: error: `public_url` ends with a slash; write \"https://mcp.example\"\n3:20: error: `authorization` has the client's credentials and is never forwarded; set what a server needs in the `headers` of its section\n3:37: error: `cookie` has the client's credentials and is never forwarded; set what a server needs in the `headers` of its section\n4:11: error: `offline_access` is no scope of a server; leave it out: clients that want to stay logged in ask for it themselves\n4:29: error: \"a b\" is not a scope; write one scope per item\n5:20: error: \"10.0.0.0/33\" is not a network; write an IP address or a network, such as \"10.0.0.0/8\"",
    ),
    (
        "[access.keys.ci]\nhashes = [\"sha256:12\", \"rlto_x\"]\nexpires = \"soon\"\ngroups = [\"defalt\"]\n[access.keys.cd]\nroles = [\"a\"]\n[access.keys.CE]\nhashes = []\ngroups = []",
        "2:11: error: `hashes` in [access.keys.ci] has a value that is not a digest; write \"sha256:\" and 64 hexadecimal digits, as `rialto key new` prints them\n2:24: error: `hashes` in [access.keys.ci] has a value that is not a digest; this is a key itself; whoever has read it has it, so make another with `rialto key new`\n3:11: error: `expires` in [access.keys.ci] is not a date; write a date such as 2027-06-30, or a time with an offset such as 2027-06-30T12:00:00Z\n4:11: error: [access.keys.ci] lists the unknown group `defalt`; did you mean `default`?\n5:14: error: `hashes` in [access.keys.cd] is missing; `rialto key new NAME` prints the lines for a key\n7:14: error: `CE` is not a valid key name; use lowercase letters, digits and hyphens, at most 24, such as `ce`\n8:10: error: `hashes` in [access.keys.CE] has 0 values; one, or two while the key is being replaced\n9:10: error: a key without `groups` can be used nowhere; leave it out to allow all",
    ),
    (
        "[access]\nkeys = { a = { hashes = [\"sha256:c61fcc0675de3fcd602d7206eb44c97f06b1f1ef386d7f96501ab5ece31e95a9\"] }, b = { hashes = [\"sha256:c61fcc0675de3fcd602d7206eb44c97f06b1f1ef386d7f96501ab5ece31e95a9\"] } }",
        "2:104: error: `b` has the same hash as another key",
    ),
    // Variables.
    (
        "[servers.a]\nurl = \"https://h\"\nheaders = { A = \"Bearer ${NOPE} ${env:NEITHER}\" }",
        "3:25: error: the variable `NOPE` is not set; set it, or give a default: ${NOPE:-…}; $${ stands for ${ itself\n3:33: error: the variable `NEITHER` is not set; set it, or give a default: ${NEITHER:-…}; $${ stands for ${ itself",
    ),
    (
        "listen = \"${HOST:-nowhere}:${PORT}\"",
        "1:10: error: `listen`: \"${HOST:-nowhere}:${PORT}\" is not an address; write an IP address and a port, such as \"127.0.0.1:3001\"",
    ),
    // Kinds.
    (
        "[servers.a]\ndisabled = true",
        "1:10: error: [servers.a] has no kind; set one of `builtin`, `command`, `url`, `base_url`",
    ),
    (
        "[servers.a]\nurl = \"http://h\"\ncommand = \"x\"",
        "3:1: error: [servers.a] has both `command` and `url`; remove one of them",
    ),
    (
        "[servers.a]\nurl = \"http://h\"\nargs = []",
        "3:1: error: `args` in [servers.a] is not valid with `url`; it is valid with `command`",
    ),
    (
        "[servers.a]\ncommand = \"x\"\nheaders = {}",
        "3:1: error: `headers` in [servers.a] is not valid with `command`; it is valid with `url`, `base_url`",
    ),
    (
        "[servers.a]\nbuiltin = \"element\"",
        "2:11: error: `builtin` in [servers.a]: \"element\" is unknown; did you mean `elements`?",
    ),
    // Names.
    (
        "[servers.\"My Files\"]\ncommand = \"x\"",
        "1:10: error: `My Files` is not a valid server name; use lowercase letters, digits and hyphens, at most 24, such as `my-files`",
    ),
    (
        "[groups.abcdefghijklmnopqrstuvwxyz]",
        "1:9: error: `abcdefghijklmnopqrstuvwxyz` is not a valid group name; use lowercase letters, digits and hyphens, at most 24, such as `abcdefghijklmnopqrstuvwx`",
    ),
    ("[groups.streamable]", "1:9: error: the group name `streamable` is reserved: /mcp/streamable is another path"),
    (
        "[servers.files]\ncommand = \"x\"\n[groups.g]\nservers = [\"file\", \"files\", \"files\"]",
        "4:12: error: [groups.g] lists the unknown server `file`; did you mean `files`?\n4:29: error: [groups.g] lists the server `files` twice",
    ),
    (
        "[groups.g]\ntools = { allow = [] }\nnaming = \"plane\"\npage_size = 0",
        "2:19: error: an empty `allow` allows nothing; leave it out to allow all, or write deny = [\"*\"]\n3:10: error: `naming` in [groups.g]: \"plane\" is unknown; did you mean `plain`?\n4:13: error: `page_size` in [groups.g]: 0 must be from 1 to 100000",
    ),
    // REST.
    (
        "[servers.r]\nbase_url = \"http://h\"",
        "1:10: error: [servers.r] has a `base_url` but no tools; set `openapi`, or describe tools in [[servers.NAME.tools]]",
    ),
    (
        "[servers.r]\nbase_url = \"http://h\"\nopenapi = \"nowhere.json\"",
        "3:11: error: the `openapi` file does not exist",
    ),
    (
        "[servers.r]\nbase_url = \"http://h\"\n[[servers.r.tools]]\nname = \"a\"\nurl = \"/\"\n[[servers.r.tools]]\nname = \"a\"\nurl = \"/\"",
        "7:8: error: [servers.r] has two tools named `a`",
    ),
    (
        "[servers.r]\nbase_url = \"http://h\"\n[[servers.r.tools]]\nmethod = \"GRAB\"\nurl = \"/\"\nheaders = { \"\" = \"x\" }",
        "3:1: error: `name` is missing in [servers.r.tools]\n4:10: error: `method` in [servers.r.tools]: \"GRAB\" is unknown; use `GET` or `POST` or `PUT` or `PATCH` or `DELETE` or `HEAD`\n6:13: error: `` is not a valid header name",
    ),
    (
        "[servers.r]\nbase_url = \"http://h\"\n[[servers.r.tools]]\nname = \"a b\"\nurl = \"/{usr}{?q*}\"\nbody = 1\n[servers.r.tools.arguments.user]\n[servers.r.tools.arguments.q]\ntype = \"integer\"\ndefault = \"x\"\nenum = [1, \"y\"]",
        "4:8: error: `a b` is not a valid tool name; use letters, digits, `_`, `-` and `.`, at most 64\n5:7: warning: the `url` of the tool `a b` refers to the unknown argument `usr`; did you mean `user`?\n6:1: warning: the tool `a b` sends a body with GET; set `method = \"POST\"`, or remove the body\n10:11: error: the default of the argument `q` is a string, not of type integer\n10:11: error: the default of the argument `q` is not one of its `enum` values\n11:8: error: not every `enum` value of the argument `q` is of type integer",
    ),
    // Warnings.
    (
        "[servers.a]\ncommand = \"x\"\ndisabled = true\n[servers.b]\ncommand = \"x\"\n[groups.default]\nservers = [\"a\"]",
        "4:10: warning: the server `b` is in no group; add it to one, or remove [groups.default] to serve all servers\n6:9: warning: [groups.default] has no servers: all of them are disabled",
    ),
    ("[servers]", "1:2: warning: the file has no servers"),
    (
        "[servers.a]\ncommand = \"npx -y x\"\ncwd = \"nowhere\"",
        "2:11: warning: the program name contains a space; put arguments into `args`\n3:7: warning: the directory does not exist",
    ),
];

#[test]
fn mcp_json_mistakes_are_reported_with_position_and_hint() {
    let cases = [
        (
            r#"{"mcpServers": {"a": {"comand": "x", "command": "y"}}}"#,
            "1:23: warning: `comand` of the server `a` is not used; did you mean `command`?",
        ),
        (
            r#"{"mcpServers": {"a": {"url": "http://h", "autoApprove": []}}}"#,
            "1:42: warning: `autoApprove` of the server `a` is not used",
        ),
        (r#"{"mcpServer": {}}"#, "1:2: error: unknown key `mcpServer`; did you mean `mcpServers`?"),
        ("{\n}", "1:1: error: the file has neither `mcpServers` nor `servers`"),
        ("[]", "1:1: error: the file must contain an object, not a list"),
        ("", "1:1: error: the file is empty"),
        (r#"{"servers": {}}"#, "1:1: warning: the file has no servers"),
        (r#"{"servers": []}"#, "1:13: error: `servers` must be an object, not a list"),
        (r#"{"servers": {"a": 5}}"#, "1:19: error: the server `a` must be an object, not a number"),
        ("{\"servers\": {\n \"a\": {}}}", "2:2: error: the server `a` has neither `command` nor `url`"),
        (
            r#"{"servers": {"a": {"command": "x", "url": "http://h"}}}"#,
            "1:36: error: the server `a` has both `command` and `url`; remove one of them",
        ),
        (
            r#"{"servers": {"a": {"url": "h"}}}"#,
            "1:27: error: `url` of the server `a` is not an HTTP URL; write something like \"https://tracker.example/mcp\", and credentials as headers",
        ),
        (
            r#"{"servers": {"a": {"url": "http://h", "type": "pigeon"}}}"#,
            "1:47: error: `type` of the server `a` is unknown: \"pigeon\"; use `http`, `streamable-http`, `streamableHttp`, `streamable_http`, `sse`",
        ),
        (
            r#"{"servers": {"a": {"url": "http://h", "headers": {"Key": "${input:api-key}"}}}}"#,
            "1:59: error: `${input:api-key}` needs a prompt, which Rialto does not have; use an environment variable instead: ${API_KEY}",
        ),
        (
            r#"{"servers": {"a": {"command": "${NOPE}"}}}"#,
            "1:32: error: the variable `NOPE` is not set; set it, or give a default: ${NOPE:-…}; $${ stands for ${ itself",
        ),
        (
            r#"{"servers": {"a": {"command": "x", "args": "y", "env": 5, "disabled": 1}}}"#,
            "1:44: error: `args` of the server `a` must be a list of strings, not a string\n1:56: error: `env` of the server `a` must be an object of strings, not a number\n1:71: error: `disabled` of the server `a` must be true or false, not a number",
        ),
        (
            r#"{"servers": {"a": {"command": "x", "envFile": "nowhere.env"}}}"#,
            "1:47: error: the `envFile` of the server `a` cannot be read",
        ),
        ("{\"servers\": {\"a\": {\"command\": \"x\"} \"b\": 1}}", "1:35: error: expected comma"),
        (r#"{"servers": {"a": {"command": "x"}, "a": {"command": "y"}}}"#, "1:37: error: duplicate key `a`"),
    ];
    compare("mcp.json", &cases);
}

#[test]
fn diagnostics_never_contain_secrets() {
    for line in [
        "[servers.a]\nurl = \"https://h/${TOKEN}\"\nheaders = { A = \"${BAD}\" }",
        "[servers.a]\nurl = \"https://h\"\nheaders = { B = \"x\\u0001 s3cret\" }",
        "[servers.a]\nurl = \"${TOKEN}\"",
        "[servers.a]\nurl = \"http://t0ken@h\"",
        "[defaults]\nidle_timeout = \"${TOKEN}\"",
        "[defaults]\nrevision = \"${TOKEN}\"",
        "[defaults]\nconnection = \"${TOKEN}\"",
        "[limits]\nbody_bytes = \"${TOKEN}\"",
        "[log]\nfilter = \"rialto=${TOKEN}\"",
        "listen = \"${TOKEN}\"",
        "[access]\nhosts = [\"/${TOKEN}\"]",
        "[access]\norigins = [\"${TOKEN}\"]",
        "[access]\nforward_headers = [\"${BAD}\"]",
        "[access.tokens]\na = \"${BAD}\"\nb = \"${BAD}\"",
        "[groups.g]\nservers = [\"${TOKEN}\"]",
        "[servers.r]\nbase_url = \"http://h\"\n[[servers.r.tools]]\nname = \"${BAD}\"\nurl = \"/{x}\"\nbody = 1",
        "[servers.r]\nbase_url = \"http://h\"\ntools = [{ name = \"${TOKEN}\", url = \"/\" }, { name = \"${TOKEN}\", url = \"/\" }]",
        "[servers.r]\nbase_url = \"http://h\"\nopenapi = \"/${TOKEN}\"",
    ] {
        let diagnostics = diagnostics_of(line, "rialto.toml");
        assert!(
            !diagnostics.is_empty() && !diagnostics.contains("s3cret") && !diagnostics.contains("t0ken"),
            "{line}\n{diagnostics}"
        );
    }
    for member in [
        "\"url\": \"${TOKEN}\"",
        "\"url\": \"http://h\", \"type\": \"${TOKEN}\"",
        "\"command\": \"x\", \"envFile\": \"${TOKEN}\"",
    ] {
        let diagnostics = diagnostics_of(&format!("{{\"servers\": {{\"a\": {{{member}}}}}}}"), "mcp.json");
        assert!(!diagnostics.is_empty() && !diagnostics.contains("t0ken"), "{member}\n{diagnostics}");
    }
    let config = toml(
        "[servers.a]\nurl = \"https://h\"\nheaders = { A = \"${TOKEN}\" }\n[servers.b]\ncommand = \"x\"\nargs = [\"${TOKEN}\"]\nenv = { A = \"${TOKEN}\" }\n[access.tokens]\nann = \"${TOKEN}\"",
    );
    assert!(!format!("{config:?}").contains("t0ken"), "{config:?}");
    assert_eq!(config.settings.access.tokens[0].secret, "t0ken");
}

#[test]
fn mistakes_in_rules_are_reported_with_position_and_hint() {
    compare("rialto.toml", RULE_MISTAKES);
}

/// Files with rules and their diagnostics.
const RULE_MISTAKES: &[(&str, &str)] = &[
    (
        "[[policy.rules]]\nprincipals = [\"*\"]\nallow = { tools = [\"element/get*\"] }",
        "3:20: error: `allow` names the unknown server `element`; did you mean `elements`?",
    ),
    (
        "[[policy.rules]]\nprincipals = [\"*\"]\ndeny = { tools = [\"*/x\", \"get\", \"elements/\"] }",
        "3:26: error: `deny`: \"get\" has no `/` between server and name; write server/name, with the server's own name or URI; * matches any characters, ? one\n3:33: error: `deny`: \"elements/\" has no name after the `/`; write server/name, with the server's own name or URI; * matches any characters, ? one",
    ),
    (
        "[[policy.rules]]\nprincipals = [\"*\"]\nalow = { tools = [\"elements/x\"] }\nallow = { tool = [\"elements/x\"], tools = [\"elements/x\"] }",
        "3:1: error: unknown key `alow` in [policy.rules]; did you mean `allow`?\n4:11: error: unknown key `tool` in [policy.rules.allow]; did you mean `tools`?",
    ),
    (
        "[policy]\ndefault = \"no\"\nrule = []",
        "2:11: error: `default` in [policy]: \"no\" is unknown; use `allow` or `deny`\n3:1: error: unknown key `rule` in [policy]; did you mean `rules`?",
    ),
    (
        "[[policy.rules]]\nname = \"empty\"\nprincipals = [\"*\"]",
        "1:1: error: \"empty\" allows and denies nothing; write what it is about: allow = { tools = [\"server/*\"] }",
    ),
    (
        "[[policy.rules]]\nallow = { tools = [\"*\"] }",
        "1:1: error: \"rule 1\" is for nobody; principals = [\"*\"] is everybody",
    ),
    (
        "[[policy.rules]]\nprincipals = [\"roles:a\", \"ann\", \"user:ann\"]\nallow = { tools = [\"*\"] }",
        "2:15: error: `principals`: \"roles:a\" names no caller; did you mean `role:NAME`?\n2:26: error: `principals`: \"ann\" names no caller; valid: `*`, `anonymous`, `local`, `role:NAME`, `key:NAME`, `token:NAME`, `issuer:NAME`, `client:ID`, `user:ISSUER/SUBJECT`, `email:ADDRESS`, `claim:PATH=VALUE`\n2:33: error: `principals`: \"user:ann\" must be `user:ISSUER/SUBJECT`, with the name of the issuer in this file; did you mean `user:ISSUER/SUBJECT`?",
    ),
    (
        "[[policy.rules]]\nprincipals = [\"*\"]\nallow = { tools = [\"*\"] }\nrequire_scopes = [\"a\"]",
        "4:1: error: `require_scopes` needs an issuer: no other credential has scopes; add [access.issuers.NAME], or remove it",
    ),
    (
        "[[policy.rules]]\nprincipals = [\"*\"]\nallow = { tools = [\"*\"] }\ngroups = [\"reserch\"]\n[groups.research]",
        "4:11: error: the rule holds in the unknown group `reserch`; did you mean `research`?",
    ),
    (
        "[[policy.rules]]\nprincipals = [\"*\"]\nallow = { tools = [\"*\"] }\nwhen = { project = [\"A\"], \"/a~\" = [\"x\"], \"/b\" = [], \"/c\" = \"x\" }",
        "4:10: error: `when`: \"project\" is no JSON Pointer; write \"/project\"\n4:27: error: `when`: \"/a~\" has a `~` that is not followed by 0 or 1; ~0 stands for ~ and ~1 for /\n4:42: error: `when`: no value of \"/b\" is allowed\n4:60: error: `/c` of `when` in [policy.rules] must be a list of strings, not a string",
    ),
    (
        "[[policy.rules]]\nprincipals = [\"*\"]\ndeny = { tools = [\"*\"] }\nwhen = { \"/a\" = [\"x\"] }",
        "4:1: error: `when` is a condition of `allow`; `deny` has none; put `deny` into a rule of its own",
    ),
    (
        "[[policy.rules]]\nprincipals = [\"*\"]\nallow = { resources = [\"*\"] }\nwhen = { \"/a\" = [\"x\"] }",
        "4:1: error: `when` reads the arguments of tools and prompts; resources and methods have none; put what it allows of them into a rule of its own",
    ),
    ("[access]\nscope_hierarchy = { admin = [\"a b\"] }", "2:21: error: \"a b\" is not a scope"),
];
