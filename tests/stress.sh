#!/usr/bin/env bash
# Runs the tests repeatedly under CPU load and counts failures by test: stress.sh [ROUNDS [FILTER...]]
#
# ROUNDS rounds (20) run beside two busy loops, and one more on a single core. target/stress has the output of each.
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

rounds=${1:-20}
shift || true
logs=target/stress
# Seconds after which a busy loop ends even if this script was killed.
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
