#!/usr/bin/env bash
# Builds and installs the extension, then measures it beside its peers and its floors, on a private PostgreSQL and a private Kafka.
#
#   scripts/bench.sh [latency] [rates] [drain] [sustained] [emit] [idle] [--rounds N] [--scale F]
#
# Without names every row is measured (about half an hour) and the report goes to bench/report/, else to target/bench/.
# A missed bar is reported and is no failure; exit 1 means that something could not be measured. Wants a quiet machine.
set -euo pipefail
# shellcheck source=scripts/lib.sh
. "$(dirname "$0")/lib.sh"

case ${1:-} in
    -h | --help | help)
        sed -n '2,/^set -euo/{/^set -euo/d;s/^# \{0,1\}//;p}' "$0"
        exit 0
        ;;
esac
"$ROOT/scripts/setup.sh" run
find_pg
export PGRX_PG_CONFIG_PATH=$PG_CONFIG
cd "$ROOT"
QUIET=1 scripts/build.sh
QUIET=1 scripts/install.sh
[ -n "${OUTBOX_TEST_BROKERS:-}" ] || scripts/kafka jars
fetch_jars "$TARGET/debezium-jars" "$ROOT/bench/debezium/pom.xml" "Kafka Connect and Debezium"
with_progress "building the benchmark" "$TARGET/logs/bench-build.log" cargo build --release -p outbox-bench
exec "$TARGET/release/outbox-bench" "$@"
