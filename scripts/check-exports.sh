#!/usr/bin/env bash
# The install script is written by hand; this proves that it and the library name the same C functions, and that the
# version is the same everywhere. Prints one line for each check.
set -euo pipefail
# shellcheck source=scripts/lib.sh
. "$(dirname "$0")/lib.sh"

library=${1:-$TARGET/release/liboutbox_ext.so}
[ -f "$library" ] || die "$library does not exist" "run: make build"
version=$(sed -nE "s/^default_version *= *'([^']+)'.*/\1/p" "$ROOT/outbox_ext.control")
script=$ROOT/sql/outbox_ext--$version.sql
failed=0
check() {
    local name=$1 left_over=$2
    if [ -z "$left_over" ]; then
        echo "ok - $name"
    else
        echo "not ok - $name:"
        printf '%s\n' "$left_over" | sed 's/^/    /'
        failed=1
    fi
}

# What the script calls: AS 'MODULE_PATHNAME', 'symbol' in any layout.
called() { tr '\n' ' ' <"$script" | grep -oE "AS +'MODULE_PATHNAME' *, *'[A-Za-z0-9_]+'" | sed -E "s/.*'([A-Za-z0-9_]+)'$/\1/" | sort -u; }
exported() { nm -D --defined-only "$library" | awk '{print $NF}' | sed 's/@.*//' | sort -u; }
callable() { exported | grep -E '_wrapper$' | grep -v '^pg_finfo_' | sort -u; }
# PostgreSQL looks up pg_finfo_NAME beside each function that it calls.
with_finfo() { exported | sed -n 's/^pg_finfo_//p' | sort -u; }
foreign_names() { exported | grep -E '^(rd_kafka_|rd_|SSL_|EVP_|ZSTD_|deflate|inflate)' || true; }
cargo_version() { sed -nE '/^\[workspace.package\]/,/^\[workspace.dep/s/^version = "([^"]+)"/\1/p' "$ROOT/Cargo.toml"; }

[ -n "$(called)" ] || die "no function found in $script"
check "the install script of the default version exists" "$([ -f "$script" ] || echo "$script")"
check "the version is Cargo's" "$([ "$(cargo_version)" = "$version" ] || echo "control file: $version, Cargo.toml: $(cargo_version)")"
check "each function of the script is exported by the library" "$(comm -23 <(called) <(exported))"
check "each function of the script can be called" "$(comm -23 <(called) <(with_finfo))"
check "each callable function of the library is in the script" "$(comm -13 <(called) <(callable))"
# A second copy of these inside the server could be bound in the place of its own.
check "the library exports nothing of its C libraries" "$(foreign_names)"
exit $failed
