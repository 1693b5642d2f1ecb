# What people run; CI runs `check`.

# Everything that must hold: format, lints, docs, tests, instructions of a call.
check:
    .ci/run

# Every test. Installs the SDKs that it needs on first use.
test:
    cargo test --locked

# Three nodes under load, with something going wrong again and again: CLUSTER_SECONDS long, the same for the same
# CLUSTER_SEED.
soak:
    cargo test --locked --test it cluster::soak -- --ignored --nocapture

# The benchmark of passing calls on, beside nginx and other gateways, which are installed on first use.
bench *options:
    cargo bench --bench gateway -- {{options}}

# The benchmark of serving, beside the official Rust SDK.
bench-serve *options:
    cargo bench --bench serve -- {{options}}

# The benchmark of many nodes, which needs a redis-server.
bench-cluster *options:
    cargo bench --bench cluster -- {{options}}

# Instructions of a call, against the figures that are committed; with `--renew` they are written anew. Installs
# valgrind.
instructions *options:
    cargo build --locked --profile guard --bin rialto
    cargo test --locked --test instructions -- --count {{options}}

# One fuzz target for a minute; needs nightly and cargo-fuzz.
fuzz target:
    cargo +nightly fuzz run {{target}} fuzz/seeds/{{target}} -- -max_total_time=60

# The whole suite, ROUNDS times with two busy loops beside it and once on one core: failures by test.
stress rounds="20" *filters:
    tests/stress.sh {{rounds}} {{filters}}
