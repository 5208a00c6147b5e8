#!/usr/bin/env bash
# Builds the extension for the PostgreSQL found: plain cargo, no pgrx tool. What else it needs scripts/setup.sh installs.
set -euo pipefail
# shellcheck source=scripts/lib.sh
. "$(dirname "$0")/lib.sh"

find_pg
cd "$ROOT"
export PGRX_PG_CONFIG_PATH=$PG_CONFIG
# The default feature names the one supported major version, which find_pg has checked.
build=(cargo build --release -p outbox_ext)
if [ "${QUIET:-}" = 1 ]; then
    with_progress "building outbox_ext for $("$PG_CONFIG" --version) (minutes the first time)" "$TARGET/logs/build.log" "${build[@]}"
else
    "${build[@]}"
fi
