# Developer commands; CI runs `check`.

# All checks: format, lints, docs, tests, fuzzing, instruction counts.
check:
    .ci/run

# All tests. Installs the SDKs they need on first use.
test:
    cargo test --locked

# Pictures of every page of the console, light and dark, in target/screenshots. Installs Chromium.
screenshots:
    cargo test --locked --test it console_page::screenshots -- --ignored

# Soak test: three nodes under load with injected faults, for ten minutes or CLUSTER_SECONDS; CLUSTER_SEED makes it repeatable.
soak:
    CLUSTER_SECONDS="${CLUSTER_SECONDS:-600}" cargo test --locked --test it cluster::soak -- --nocapture

# Known vulnerabilities of dependencies. Needs the advisory database from the network, so CI does not run it; licences,
# duplicates and sources are checked by tests/dependencies.rs.
advisories:
    cargo deny --version || cargo install --locked cargo-deny@0.20.2
    cargo deny check advisories

# Gateway benchmark against nginx and other gateways, which are installed on first use.
bench *options:
    cargo bench --bench gateway -- {{options}}

# Server benchmark against the official Rust SDK.
bench-serve *options:
    cargo bench --bench serve -- {{options}}

# Cluster benchmark; needs redis-server.
bench-cluster *options:
    cargo bench --bench cluster -- {{options}}

# First paint of the console and how soon it answers keys, with 100 servers, 1,000 tools and 10,000 calls. Installs Chromium.
bench-console:
    cargo build --locked --profile guard --bin rialto
    RIALTO_BINARY="$PWD/target/guard/rialto" cargo test --locked --test it console_page::figures -- --ignored --nocapture

# Memory and latency under hostile load, with and without limits; `--quick` for a tenth of it. Six minutes.
hostile *options:
    cargo bench --locked --profile guard --bench hostile -- {{options}}

# Instruction counts per call against the committed figures; `--renew` rewrites them. Installs valgrind.
instructions *options:
    cargo build --locked --profile guard --bin rialto
    cargo test --locked --test instructions -- --count {{options}}

# Fuzzes by mutating the seeds, differently each time: all targets or those named, FUZZ_SECONDS for each; FUZZ_SEED repeats a run.
fuzz *targets:
    FUZZ_SEED="${FUZZ_SEED:-clock}" FUZZ_SECONDS="${FUZZ_SECONDS:-60}" cargo test --locked --test fuzz -- {{targets}}

# Runs one fuzz target under libFuzzer for a minute; needs nightly and cargo-fuzz.
libfuzzer target:
    mkdir -p fuzz/corpus/{{target}}
    cargo +nightly fuzz run {{target}} fuzz/corpus/{{target}} fuzz/seeds/{{target}} -- -max_total_time=60

# Runs the test suite ROUNDS times next to two busy loops and once on one core; reports failures by test.
stress rounds="20" *filters:
    tests/stress.sh {{rounds}} {{filters}}
