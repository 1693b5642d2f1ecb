#!/usr/bin/env bash
# Runs every test again and again on a busy machine, and says which failed how often: stress.sh [ROUNDS [FILTER...]]
#
# ROUNDS rounds (20) run with two busy loops beside them, one more on a single core. The output of each round is in
# target/stress. What a test prints when it fails is there, too.
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

rounds=${1:-20}
shift || true
logs=target/stress
# A loop ends by itself should this script be killed.
longest=3600

mkdir -p "$logs"
rm -f "$logs"/*.log
cargo test --locked --no-run || exit 1

# round NAME COMMAND...: one run of the suite under COMMAND.
round() {
    local name=$1 begun=$SECONDS
    shift
    "$@" cargo test --locked --no-fail-fast -- "${filters[@]}" >"$logs/$name.log" 2>&1
    local passed failed
    passed=$(grep -cE '^test .* \.\.\. ok$' "$logs/$name.log")
    failed=$(grep -cE '^test .* \.\.\. FAILED$' "$logs/$name.log")
    echo "$name: $passed passed, $failed failed, $((SECONDS - begun)) s"
}

busy=()
stop() {
    [ ${#busy[@]} -eq 0 ] || kill "${busy[@]}" 2>/dev/null
    busy=()
}
trap stop EXIT

filters=("$@")
for number in $(seq 1 "$rounds"); do
    for _ in 1 2; do
        timeout "$longest" sh -c 'while :; do :; done' &
        busy+=($!)
    done
    round "round-$number" env
    stop
done
round one-core taskset -c 0

echo "failures by test:"
grep -hE '^test .* \.\.\. FAILED$' "$logs"/*.log | sed -E 's/^test (.*) \.\.\. FAILED$/\1/' | sort | uniq -c | sort -rn
! grep -qE '^test .* \.\.\. FAILED$|error: test failed' "$logs"/*.log
