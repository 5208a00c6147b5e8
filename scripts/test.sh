#!/usr/bin/env bash
# Runs the test tiers and closes with one line of counts over all of them: N passed, N failed, N skipped.
#
#   scripts/test.sh [TIER ...]      lint unit exports sql isolation e2e; without names: all, in this order
#
# A tier is a command; its counts are read from what it prints:
#   cargo test            "test result: ok. 12 passed; 0 failed; 1 ignored; ..."
#   pg_regress            "test emit    ... ok    59 ms" or "... FAILED   59 ms"
#   our own checks        "ok - name", "not ok - name", "skipped - name: why"
# A tier that ends in error without a failed test, or without any test, counts as one failed test: nothing is lost.
set -uo pipefail
# shellcheck source=scripts/lib.sh
. "$(dirname "$0")/lib.sh"

ALL=(lint unit exports sql isolation e2e)
cd "$ROOT" || exit 1
passed=0 failed=0 skipped=0
summary=()

# The names in here are the tiers of CONTRIBUTING.md.
tier_lint() { scripts/lint.sh; }
tier_unit() {
    # outbox-core with the checks for overflow of a debug build; the others beside the build of the extension and its C library.
    local rc=0
    cargo test --no-fail-fast -p outbox-core || rc=$?
    cargo test --release --no-fail-fast -p outbox-kafka -p outbox-bench || rc=$?
    return "$rc"
}
tier_exports() { scripts/check-exports.sh; }
tier_sql() { scripts/test-sql.sh sql; }
tier_isolation() { scripts/test-sql.sh isolation; }
tier_e2e() { scripts/install.sh && cargo test --release -p outbox-e2e --no-fail-fast; }

# count LOG: "passed failed skipped" of that output.
count() {
    awk '
        /^test result: / {
            for (i = 2; i <= NF; i++) {
                if ($i ~ /^passed;/) passed += $(i - 1)
                if ($i ~ /^failed;/) failed += $(i - 1)
                if ($i ~ /^ignored;/) skipped += $(i - 1)
            }
        }
        /^test [^ ]+ +\.\.\. ok +[0-9]+ ms/ { passed++ }
        /^test [^ ]+ +\.\.\. FAILED/ && / ms$/ { failed++ }
        /^ok - / { passed++ }
        /^not ok - / { failed++ }
        /^skipped - / { skipped++ }
        END { print passed + 0, failed + 0, skipped + 0 }
    ' "$1"
}

run_tier() {
    local tier=$1 log=$TARGET/logs/test-$1.log began=$SECONDS rc=0 p f s
    printf '\n== %s\n' "$tier"
    "tier_$tier" 2>&1 </dev/null | tee "$log"
    rc=${PIPESTATUS[0]}
    read -r p f s < <(count "$log")
    if { [ "$rc" != 0 ] && [ "$f" = 0 ]; } || [ $((p + f + s)) = 0 ]; then
        echo "tier $tier ended with exit $rc and $p passed, $f failed: counted as a failure"
        f=1
    fi
    passed=$((passed + p)) failed=$((failed + f)) skipped=$((skipped + s))
    summary+=("$(printf '%-10s %4d passed %4d failed %4d skipped %5ds' "$tier" "$p" "$f" "$s" $((SECONDS - began)))")
}

finish() {
    printf '\n'
    if [ ${#summary[@]} -gt 1 ]; then printf '%s\n' "${summary[@]}"; fi
    echo "$passed passed, $failed failed, $skipped skipped"
    [ "$failed" = 0 ]
    exit
}

# What every tier stands on. Where it fails, there is nothing to test.
prepare() {
    printf '== prepare\n'
    scripts/setup.sh test || return 1
    find_pg
    # Lint and unit tests stand alone.
    case " $* " in
        *" exports "* | *" sql "* | *" isolation "* | *" e2e "*) scripts/build.sh || return 1 ;;
    esac
    case " $* " in
        *" e2e "*) [ -n "${OUTBOX_TEST_BROKERS:-}" ] || scripts/kafka jars || return 1 ;;
    esac
}

[ $# -gt 0 ] || set -- "${ALL[@]}"
for tier in "$@"; do
    [[ " ${ALL[*]} " == *" $tier "* ]] || die "unknown tier: $tier" "there are: ${ALL[*]}"
done
mkdir -p "$TARGET/logs"
if ! (prepare "$@") 2>&1; then
    failed=1
    finish
fi
find_pg
export PGRX_PG_CONFIG_PATH=$PG_CONFIG
for tier in "$@"; do run_tier "$tier"; done
finish
