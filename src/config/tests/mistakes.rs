//! Everything that can be wrong with a file.

use super::{problems, toml};

/// Compares what is said of files with what should be, all at once.
fn compare(name: &str, cases: &[(&str, &str)]) {
    let differ = |(text, told): &(&str, &str)| {
        let found = problems(text, name);
        (found != *told).then(|| format!("{text}\n--- is told:\n{found}\n--- and not:\n{told}\n"))
    };
    let faults: Vec<String> = cases.iter().filter_map(differ).collect();
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

#[test]
fn mistakes_are_told_with_their_place_and_a_hint() {
    compare("rialto.toml", MISTAKES);
}

/// Files, and what is said of them.
const MISTAKES: &[(&str, &str)] = &[
    // Syntax.
    ("listen = \n", "1:10: error: string values must be quoted, expected literal string"),
    ("listen = \"127.0.0.1:1\"\nlisten = 2\n", "2:1: error: duplicate key `listen`"),
    (
        "listen = \"x\nstore = 5\n[servers.a]\ncomand = \"x\"\n",
        "1:12: error: invalid basic string, expected `\"`\n2:9: error: `store` must be `memory` or a URL of Redis, not a number\n4:1: error: unknown key `comand` in [servers.a]; did you mean `command`?",
    ),
    // Keys.
    ("listn = \"127.0.0.1:1\"", "1:1: error: unknown key `listn`; did you mean `listen`?"),
    (
        "[servers.files]\n  comand = \"npx\"\n  builtin = \"elements\"",
        "2:3: error: unknown key `comand` in [servers.files]; did you mean `command`?",
    ),
    ("[server.a]\ncommand = \"x\"", "1:2: error: unknown key `server`; did you mean `servers`?"),
    ("[log]\nx = 1", "2:1: error: unknown key `x` in [log]; there is `filter`, `format`"),
    ("[groups.a.tools]\nalow = [\"x\"]", "2:1: error: unknown key `alow` in [groups.a.tools]; did you mean `allow`?"),
    (
        "[servers.a]\nurl = \"http://h\"\ntype = \"sse\"\ntransport = \"sse\"",
        "4:1: error: `type` and `transport` are the same; one of them has to go",
    ),
    // Types.
    ("listen = 3001", "1:10: error: `listen` must be an address such as \"127.0.0.1:3001\", not a number"),
    ("log = \"info\"", "1:7: error: `log` must be a table, not a text"),
    ("servers = []", "1:11: error: `servers` must be tables by name, not a list"),
    ("[servers]\na = \"npx\"", "2:5: error: `servers.a` must be a table, not a text"),
    (
        "[servers.a]\ncommand = \"x\"\nargs = \"-y\"",
        "3:8: error: `args` in [servers.a] must be a list of texts, not a text; write args = [\"…\"]",
    ),
    (
        "[servers.a]\ncommand = \"x\"\nargs = [\"a\", 5]",
        "3:14: error: each of `args` in [servers.a] must be a text, not a number",
    ),
    (
        "[servers.a]\ncommand = \"x\"\nenv = { A = 1 }",
        "3:13: error: `A` of `env` in [servers.a] must be a text, not a number",
    ),
    (
        "[servers.a]\nbuiltin = \"elements\"\ndisabled = \"no\"",
        "3:12: error: `disabled` in [servers.a] must be true or false, not a text",
    ),
    ("[limits]\ncalls = \"5\"", "2:9: error: `calls` in [limits] must be a whole number, not a text"),
    ("[limits]\ncalls = 0", "2:9: error: `calls` in [limits]: 0 must be from 1 to 1099511627776"),
    // Values.
    (
        "[limits]\ndrain = 5",
        "2:9: error: `drain` in [limits] must be a duration, not a number; a duration has a unit: \"250ms\", \"30s\", \"5m\", \"1h\"",
    ),
    (
        "[limits]\nshutdown_timeout = \"5 minutes\"",
        "2:9: error: `drain` in [limits]: \"5 minutes\" is no duration; a duration has a unit: \"250ms\", \"30s\", \"5m\", \"1h\"",
    ),
    ("[limits]\nsse_heartbeat = \"0s\"", "2:14: error: `keep_alive` in [limits]: \"0s\" must be more than 0"),
    (
        "[defaults]\nping_interval = \"0s\"",
        "2:8: error: `ping` in [defaults]: \"0s\" must be more than 0; \"off\" leaves it out",
    ),
    (
        "[limits]\nbody_bytes = \"4 Mega\"",
        "2:14: error: `body_bytes` in [limits]: \"4 Mega\" is no size; write it as \"16MiB\" or \"64KiB\"",
    ),
    ("[limits]\nbody_bytes = 0", "2:14: error: `body_bytes` in [limits] must be more than 0"),
    ("[limits]\nbody_bytes = -1", "2:14: error: `body_bytes` in [limits] must be more than 0"),
    (
        "listen = \"127.0.0.1\"",
        "1:10: error: `listen`: \"127.0.0.1\" is no address; the port is missing; write \"127.0.0.1:3001\"",
    ),
    (
        "[admin]\nlisten = \"here\"",
        "2:10: error: `listen` in [admin]: \"here\" is no address; write an IP address and a port, such as \"127.0.0.1:3001\"",
    ),
    (
        "listen = \"127.0.0.1:5\"\nadmin = { listen = \"127.0.0.1:5\" }",
        "2:1: error: [admin] listens where clients are served; choose another port",
    ),
    (
        "store = \"ann:s3cret@host\"",
        "1:9: error: `store` is neither `memory` nor a URL of Redis; for Redis, write redis://user:password@host:6379/0, rediss:// for TLS, redis-cluster://host1,host2, or redis-sentinel://host1,host2/name",
    ),
    ("store = \"memry\"", "1:9: error: `store` is not known; did you mean `memory`?"),
    (
        "store = \"redis://ann:s3cret@a,b\"",
        "1:9: error: `store` names several hosts, which only redis-cluster:// and redis-sentinel:// do; write redis://user:password@host:6379/0, rediss:// for TLS, redis-cluster://host1,host2, or redis-sentinel://host1,host2/name",
    ),
    (
        "[cluster]\nlease = 5\nprefix = \"a b\"\nsealing_key = \"short\"",
        "2:9: error: `lease` in [cluster] must be a duration, not a number; a duration has a unit: \"250ms\", \"30s\", \"5m\", \"1h\"\n3:10: error: `prefix` in [cluster] cannot be part of a key; it has letters, digits, and any of - _ . :\n4:10: error: `secret` in [cluster] has fewer than 16 letters; make one: openssl rand -hex 32",
    ),
    (
        "[log]\nformat = \"jsn\"\nfilter = \"rialto=loud\"",
        "2:10: error: `format` in [log]: \"jsn\" is not known; did you mean `json`?\n3:10: error: `filter` in [log] cannot be read; write a level such as \"info\", or targets as in \"rialto=debug,hyper=warn\"",
    ),
    (
        "[defaults]\nrevision = \"2025-06-19\"",
        "2:12: error: `revision` in [defaults] is no revision that is known; it is `auto`, `2024-11-05`, `2025-03-26`, `2025-06-18`, `2025-11-25`, `2026-07-28`",
    ),
    (
        "[servers.a]\nurl = \"tracker.example/mcp\"",
        "2:7: error: `url` in [servers.a] is no address of HTTP; write something like \"https://tracker.example/mcp\"",
    ),
    (
        "[servers.a]\nurl = \"https://ann:s3cret@tracker.example/mcp\"",
        "2:7: error: `url` in [servers.a] has credentials in it; give them in `headers`",
    ),
    (
        "[servers.a]\nurl = \"https://h\"\nheaders = { \"a b\" = \"x\", c = \"${BAD}\" }",
        "3:13: error: `a b` in the headers of [servers.a] cannot be the name of a header\n3:26: error: the value of `c` in the headers of [servers.a] cannot be sent; it may not have line ends or other control characters in it",
    ),
    ("[servers.a]\ncommand = \" \"", "2:11: error: `command` in [servers.a] is empty"),
    (
        "[servers.a]\nbuiltin = \"elements\"\nidle_timeout = \"2m\"\ntotal_timeout = \"1m\"",
        "4:12: error: `call_cap` is shorter than `call`",
    ),
    (
        "[access]\nhosts = [\"https://g.example/\"]\norigins = [\"app.example\"]\ncaller_headers = [\"a b\"]",
        "2:10: error: \"https://g.example/\" is no host; write it as \"g.example\"\n3:12: error: \"app.example\" is no origin; write it as \"https://app.example\"\n4:19: error: \"a b\" cannot be the name of a header",
    ),
    (
        "[access.tokens]\nann = \"\"\nbob = \"x\"\ncid = \"x\"",
        "2:1: error: the token of `ann` is empty\n4:1: error: `cid` has the token of another caller",
    ),
    // Variables.
    (
        "[servers.a]\nurl = \"https://h\"\nheaders = { A = \"Bearer ${NOPE} ${env:NEITHER}\" }",
        "3:25: error: the variable `NOPE` is not set; set it, or give a default: ${NOPE:-…}; $${ stands for ${ itself\n3:33: error: the variable `NEITHER` is not set; set it, or give a default: ${NEITHER:-…}; $${ stands for ${ itself",
    ),
    (
        "listen = \"${HOST:-nowhere}:${PORT}\"",
        "1:10: error: `listen`: \"${HOST:-nowhere}:${PORT}\" is no address; write an IP address and a port, such as \"127.0.0.1:3001\"",
    ),
    // Kinds.
    (
        "[servers.a]\ndisabled = true",
        "1:10: error: [servers.a] does not say what the server is; give one of `builtin`, `command`, `url`, `base_url`",
    ),
    (
        "[servers.a]\nurl = \"http://h\"\ncommand = \"x\"",
        "3:1: error: [servers.a] has both `command` and `url`; one of them has to go",
    ),
    (
        "[servers.a]\nurl = \"http://h\"\nargs = []",
        "3:1: error: `args` in [servers.a] does not go with `url`; it goes with `command`",
    ),
    (
        "[servers.a]\ncommand = \"x\"\nheaders = {}",
        "3:1: error: `headers` in [servers.a] does not go with `command`; it goes with `url`, `base_url`",
    ),
    (
        "[servers.a]\nbuiltin = \"element\"",
        "2:11: error: `builtin` in [servers.a]: \"element\" is not known; did you mean `elements`?",
    ),
    // Names.
    (
        "[servers.\"My Files\"]\ncommand = \"x\"",
        "1:10: error: `My Files` cannot be the name of a server; use small letters, digits and hyphens, at most 24, such as `my-files`",
    ),
    (
        "[groups.abcdefghijklmnopqrstuvwxyz]",
        "1:9: error: `abcdefghijklmnopqrstuvwxyz` cannot be the name of a group; use small letters, digits and hyphens, at most 24, such as `abcdefghijklmnopqrstuvwx`",
    ),
    (
        "[groups.streamable]",
        "1:9: error: a group cannot be called `streamable`, as /mcp/streamable is an address already",
    ),
    (
        "[servers.files]\ncommand = \"x\"\n[groups.g]\nservers = [\"file\", \"files\", \"files\"]",
        "4:12: error: [groups.g] names the server `file`, which is not there; did you mean `files`?\n4:29: error: [groups.g] names the server `files` twice",
    ),
    (
        "[groups.g]\ntools = { allow = [] }\nnaming = \"plane\"\npage = 0",
        "2:19: error: an empty `allow` allows nothing; leave it out to allow all, or write deny = [\"*\"]\n3:10: error: `naming` in [groups.g]: \"plane\" is not known; did you mean `plain`?\n4:8: error: `page` in [groups.g]: 0 must be from 1 to 100000",
    ),
    // REST.
    (
        "[servers.r]\nbase_url = \"http://h\"",
        "1:10: error: [servers.r] has a `base_url` and no tools; give `openapi`, or tools by hand as [[servers.NAME.tools]]",
    ),
    (
        "[servers.r]\nbase_url = \"http://h\"\nopenapi = \"nowhere.json\"",
        "3:11: error: the file that `openapi` names is not there",
    ),
    (
        "[servers.r]\nbase_url = \"http://h\"\n[[servers.r.tools]]\nname = \"a\"\nurl = \"/\"\n[[servers.r.tools]]\nname = \"a\"\nurl = \"/\"",
        "7:8: error: [servers.r] has two tools of the name `a`",
    ),
    (
        "[servers.r]\nbase_url = \"http://h\"\n[[servers.r.tools]]\nmethod = \"GRAB\"\nurl = \"/\"\nheaders = { \"\" = \"x\" }",
        "3:1: error: `name` is missing in [servers.r.tools]\n4:10: error: `method` in [servers.r.tools]: \"GRAB\" is not known; it is `GET` or `POST` or `PUT` or `PATCH` or `DELETE` or `HEAD`\n6:13: error: `` cannot be the name of a header",
    ),
    (
        "[servers.r]\nbase_url = \"http://h\"\n[[servers.r.tools]]\nname = \"a b\"\nurl = \"/{usr}{?q*}\"\nbody = 1\n[servers.r.tools.arguments.user]\n[servers.r.tools.arguments.q]\ntype = \"integer\"\ndefault = \"x\"\nenum = [1, \"y\"]",
        "4:8: error: `a b` cannot be the name of a tool; use letters, digits, `_`, `-` and `.`, at most 64\n5:7: warning: the tool `a b` has no argument `usr`, which its `url` names; did you mean `user`?\n6:1: warning: the tool `a b` sends a body with GET; say `method = \"POST\"`, or leave the body out\n10:11: error: the default of the argument `q` is a text, not of type integer\n10:11: error: the default of the argument `q` is none of its choices\n11:8: error: not every choice of the argument `q` is of type integer",
    ),
    // Warnings.
    (
        "[servers.a]\ncommand = \"x\"\ndisabled = true\n[servers.b]\ncommand = \"x\"\n[groups.default]\nservers = [\"a\"]",
        "4:10: warning: the server `b` is in no group; name it in one, or leave [groups.default] out to serve all\n6:9: warning: [groups.default] has no servers: all of them are disabled",
    ),
    (
        "listen = \"0.0.0.0:3001\"",
        "1:10: warning: anybody who reaches 0.0.0.0:3001 may call; give callers a token in [access.tokens]\n1:10: warning: requests that name a host beyond this machine will be refused; list them in [access] hosts",
    ),
    ("[servers]", "1:2: warning: the file names no servers"),
    (
        "[servers.a]\ncommand = \"npx -y x\"\ncwd = \"nowhere\"",
        "2:11: warning: a program with a space in its name is unusual; the program alone is the command, the rest are `args`\n3:7: warning: there is no such folder",
    ),
];

#[test]
fn mistakes_in_files_of_other_clients_are_told_too() {
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
        ("[]", "1:1: error: the file must hold an object, not a list"),
        ("", "1:1: error: the file is empty"),
        (r#"{"servers": {}}"#, "1:1: warning: the file names no servers"),
        (r#"{"servers": []}"#, "1:13: error: `servers` must be an object, not a list"),
        (r#"{"servers": {"a": 5}}"#, "1:19: error: the server `a` must be an object, not a number"),
        ("{\"servers\": {\n \"a\": {}}}", "2:2: error: the server `a` has neither `command` nor `url`"),
        (
            r#"{"servers": {"a": {"command": "x", "url": "http://h"}}}"#,
            "1:36: error: the server `a` has both `command` and `url`; one of them has to go",
        ),
        (
            r#"{"servers": {"a": {"url": "h"}}}"#,
            "1:27: error: `url` of the server `a` is no address of HTTP; write something like \"https://tracker.example/mcp\", and credentials as headers",
        ),
        (
            r#"{"servers": {"a": {"url": "http://h", "type": "pigeon"}}}"#,
            "1:47: error: `type` of the server `a` is not known here: \"pigeon\"; it is `http`, `streamable-http`, `streamableHttp`, `streamable_http`, `sse`",
        ),
        (
            r#"{"servers": {"a": {"url": "http://h", "headers": {"Key": "${input:api-key}"}}}}"#,
            "1:59: error: nobody is there to be asked for `${input:api-key}`; use an environment variable instead: ${API_KEY}",
        ),
        (
            r#"{"servers": {"a": {"command": "${NOPE}"}}}"#,
            "1:32: error: the variable `NOPE` is not set; set it, or give a default: ${NOPE:-…}; $${ stands for ${ itself",
        ),
        (
            r#"{"servers": {"a": {"command": "x", "args": "y", "env": 5, "disabled": 1}}}"#,
            "1:44: error: `args` of the server `a` must be a list of texts, not a text\n1:56: error: `env` of the server `a` must be an object of texts, not a number\n1:71: error: `disabled` of the server `a` must be true or false, not a number",
        ),
        (
            r#"{"servers": {"a": {"command": "x", "envFile": "nowhere.env"}}}"#,
            "1:47: error: the file that `envFile` of the server `a` names cannot be read",
        ),
        ("{\"servers\": {\"a\": {\"command\": \"x\"} \"b\": 1}}", "1:35: error: expected comma"),
        (r#"{"servers": {"a": {"command": "x"}, "a": {"command": "y"}}}"#, "1:37: error: the key `a` is there twice"),
    ];
    compare("mcp.json", &cases);
}

#[test]
fn no_secret_is_ever_told() {
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
        "[access]\ncaller_headers = [\"${BAD}\"]",
        "[access.tokens]\na = \"${BAD}\"\nb = \"${BAD}\"",
        "[groups.g]\nservers = [\"${TOKEN}\"]",
        "[servers.r]\nbase_url = \"http://h\"\n[[servers.r.tools]]\nname = \"${BAD}\"\nurl = \"/{x}\"\nbody = 1",
        "[servers.r]\nbase_url = \"http://h\"\ntools = [{ name = \"${TOKEN}\", url = \"/\" }, { name = \"${TOKEN}\", url = \"/\" }]",
        "[servers.r]\nbase_url = \"http://h\"\nopenapi = \"/${TOKEN}\"",
    ] {
        let told = problems(line, "rialto.toml");
        assert!(!told.is_empty() && !told.contains("s3cret") && !told.contains("t0ken"), "{line}\n{told}");
    }
    for member in [
        "\"url\": \"${TOKEN}\"",
        "\"url\": \"http://h\", \"type\": \"${TOKEN}\"",
        "\"command\": \"x\", \"envFile\": \"${TOKEN}\"",
    ] {
        let told = problems(&format!("{{\"servers\": {{\"a\": {{{member}}}}}}}"), "mcp.json");
        assert!(!told.is_empty() && !told.contains("t0ken"), "{member}\n{told}");
    }
    let config = toml(
        "[servers.a]\nurl = \"https://h\"\nheaders = { A = \"${TOKEN}\" }\n[servers.b]\ncommand = \"x\"\nargs = [\"${TOKEN}\"]\nenv = { A = \"${TOKEN}\" }\n[access.tokens]\nann = \"${TOKEN}\"",
    );
    assert!(!format!("{config:?}").contains("t0ken"), "{config:?}");
    assert_eq!(config.access.tokens[0].secret, "t0ken");
}
