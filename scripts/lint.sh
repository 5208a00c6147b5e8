#!/usr/bin/env bash
# The lint tier: formatting and lints of the Rust code and the scripts. Prints one line for each check.
set -uo pipefail
# shellcheck source=scripts/lib.sh
. "$(dirname "$0")/lib.sh"

find_pg
cd "$ROOT" || exit 1
export PGRX_PG_CONFIG_PATH=$PG_CONFIG
failed=0
check() {
    local name=$1
    shift
    if "$@"; then
        echo "ok - $name"
    else
        echo "not ok - $name"
        failed=1
    fi
}

mapfile -t shell_files < <(grep -lrE '^#!/usr/bin/env bash|^# shellcheck shell=bash' scripts .ci)
# Trailing blanks, of which shellcheck says nothing.
plain_text() { ! grep -nE '[[:blank:]]+$' "${shell_files[@]}" Makefile; }

check "cargo fmt" cargo fmt --all --check
# In release, so that the C library's build is shared with the extension's own build.
check "cargo clippy" cargo clippy --quiet --release --workspace --all-targets -- -D warnings
check "shellcheck" shellcheck "${shell_files[@]}"
check "no trailing blanks in scripts" plain_text
exit $failed
