# Developer commands; CI runs `check`.

# All checks: format, lints, docs, tests, fuzzing, instruction counts.
check:
    .ci/run

# All tests. Installs the SDKs they need on first use.
test:
    cargo test --locked

# Soak test: three nodes under load with injected faults, for CLUSTER_SECONDS; CLUSTER_SEED makes it repeatable.
soak:
    cargo test --locked --test it cluster::soak -- --ignored --nocapture

# Gateway benchmark against nginx and other gateways, which are installed on first use.
bench *options:
    cargo bench --bench gateway -- {{options}}

# Server benchmark against the official Rust SDK.
bench-serve *options:
    cargo bench --bench serve -- {{options}}

# Cluster benchmark; needs redis-server.
bench-cluster *options:
    cargo bench --bench cluster -- {{options}}

# Instruction counts per call against the committed figures; `--renew` rewrites them. Installs valgrind.
instructions *options:
    cargo build --locked --profile guard --bin rialto
    cargo test --locked --test instructions -- --count {{options}}

# Fuzzes by mutating the seeds: all targets or those named, FUZZ_SECONDS for each; FUZZ_SEED repeats a run.
fuzz *targets:
    FUZZ_SECONDS="${FUZZ_SECONDS:-60}" cargo test --locked --test fuzz -- {{targets}}

# Runs one fuzz target under libFuzzer for a minute; needs nightly and cargo-fuzz.
libfuzzer target:
    mkdir -p fuzz/corpus/{{target}}
    cargo +nightly fuzz run {{target}} fuzz/corpus/{{target}} fuzz/seeds/{{target}} -- -max_total_time=60

# Runs the test suite ROUNDS times next to two busy loops and once on one core; reports failures by test.
stress rounds="20" *filters:
    tests/stress.sh {{rounds}} {{filters}}
