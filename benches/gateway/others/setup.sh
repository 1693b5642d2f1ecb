#!/usr/bin/env bash
# Installs one of the gateways that Rialto is compared with: setup.sh DEST mcp-proxy-rust|mcp-proxy-python|fastmcp|node
#
# `node` installs two of them, mcp-proxy and supergateway, with Node 22. An unchanged installation is kept, and a lock
# serializes concurrent runs.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
peers=$here/../../../tests/peers
dest=${1:?usage: setup.sh DEST NAME}
name=${2:?usage: setup.sh DEST NAME}
rust_version=0.6.0
mkdir -p "$dest"
dest=$(cd "$dest" && pwd)

say() { echo "$name: $*"; }

# Hash of the manifests and the tool version.
hash_of() {
    local tool=$1
    shift
    { "$tool" --version; cat "$@"; } | sha256sum | cut -d' ' -f1
}

is_fresh() { [ -f "$dest/$name.stamp" ] && [ "$(cat "$dest/$name.stamp")" = "$1" ]; }

rust_binary() {
    is_fresh "$rust_version" && return
    say "building; this takes a few minutes"
    # Revision 2026-07-28 is behind a feature flag.
    CARGO_TARGET_DIR=$dest/build cargo install mcp-proxy --version "=$rust_version" --locked --force --quiet \
        --features protocol-2026-07-28 --root "$dest/$name" >&2
    rm -rf "$dest/build"
    echo "$rust_version" >"$dest/$name.stamp"
}

python_environment() {
    local manifest=$1 hash
    hash=$(hash_of python3 "$manifest")
    is_fresh "$hash" && return
    say "installing"
    rm -rf "${dest:?}/$name"
    python3 -m venv "$dest/$name"
    "$dest/$name/bin/python" -m pip install --quiet --disable-pip-version-check -r "$manifest" >&2
    echo "$hash" >"$dest/$name.stamp"
}

node_packages() {
    local from=$here/node hash packaged
    hash=$(hash_of npm "$from/package.json" "$from/package-lock.json")
    is_fresh "$hash" && return
    say "installing"
    mkdir -p "$dest/$name"
    cp "$from/package.json" "$from/package-lock.json" "$from/.npmrc" "$dest/$name/"
    (cd "$dest/$name" && npm ci --ignore-scripts --loglevel=error >&2)
    packaged=$(cd "$dest/$name/node_modules" && compgen -G 'node-linux-*/bin/node') || packaged=
    if [ -n "$packaged" ]; then
        ln -sf "../$packaged" "$dest/$name/node_modules/.bin/node"
    else
        ln -sf "$(command -v node)" "$dest/$name/node_modules/.bin/node"
    fi
    echo "$hash" >"$dest/$name.stamp"
}

exec 9>"$dest/.$name.lock"
flock 9
case $name in
mcp-proxy-rust) rust_binary ;;
mcp-proxy-python) python_environment "$here/python/requirements-mcp-proxy.txt" ;;
fastmcp) python_environment "$peers/python/requirements-fastmcp.txt" ;;
node) node_packages ;;
*) echo "unknown gateway: $name" >&2 && exit 1 ;;
esac
