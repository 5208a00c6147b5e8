#!/usr/bin/env bash
# Builds and installs the extension, then measures it beside its peers and its floors, on a private PostgreSQL and a private Kafka.
#
#   scripts/bench.sh [latency] [rates] [drain] [sustained] [emit] [instructions] [idle] [flatness] [--rounds N] [--scale F] [--only CONDITION]
#
# Without names every row but flatness is measured (about 40 minutes). In full, that report and the one of flatness alone go to
# bench/report/, any other to target/bench/.
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
"$ROOT/scripts/setup.sh" bench
find_pg
export PGRX_PG_CONFIG_PATH=$PG_CONFIG
cd "$ROOT"
QUIET=1 scripts/build.sh
QUIET=1 scripts/install.sh
[ -n "${OUTBOX_TEST_BROKERS:-}" ] || scripts/kafka jars
fetch_jars "$TARGET/debezium-jars" "$ROOT/bench/debezium/pom.xml" "Kafka Connect and Debezium"
with_progress "building the benchmark" "$TARGET/logs/bench-build.log" cargo build --release -p outbox-bench
exec "$TARGET/release/outbox-bench" "$@"
