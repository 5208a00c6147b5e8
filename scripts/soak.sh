#!/usr/bin/env bash
# The soak: writers, an inbox consumer and one fault after the other, drawn from a seed; then the judge.
#
#   scripts/soak.sh [SECONDS [SEED]]      default: 300 seconds, a seed of the clock
#
# Prints the seed and every fault with its time; the figures are in target/soak/report.md, the whole output in
# target/logs/soak.log.
set -euo pipefail
# shellcheck source=scripts/lib.sh
. "$(dirname "$0")/lib.sh"

"$ROOT/scripts/setup.sh" test
find_pg
cd "$ROOT"
export PGRX_PG_CONFIG_PATH=$PG_CONFIG
scripts/build.sh
scripts/install.sh
scripts/kafka jars
mkdir -p "$TARGET/logs"
OUTBOX_E2E_SOAK_SECONDS=${1:-300} OUTBOX_E2E_SOAK_SEED=${2:-} \
    cargo test --release -p outbox-e2e --test scenarios soak_ 2>&1 | tee "$TARGET/logs/soak.log"
